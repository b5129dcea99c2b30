/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over files, without libFuzzer. Prints TAP: one line for each path given, a directory with all files below
 * it. A path "DIR:SUFFIX" takes only files whose names end so; "FILE.pack" is many inputs, a zstd frame of u32 size, bytes, each. Each path
 * runs in a process of its own, so that the report says which file was fatal, also under a sanitizer.
 *
 * --outcomes FILE: what comes of each input (outcome.h) is what FILE has for it, whose lines are "NAME OUTCOME". --record FILE writes it.
 */
#include "outcome.h"

#include "base/cursor.h"

#include <errno.h>
#include <fts.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#define FILE_BYTES_MAX (1 << 20)
#define PACK_BYTES_MAX (64 << 20)
#define PATH_BYTES 4096

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* What the child tells: the file that it is at, how many it has done, and of how many something else came than is recorded. */
struct replay_state {
    char path[PATH_BYTES], first_other[PATH_BYTES];
    unsigned files, skipped, others;
};

/* "\nNAME OUTCOME\nNAME OUTCOME\n", or NULL; where outcomes are recorded, or NULL. */
static char *recorded;
static FILE *recording;

/* NULL: it cannot be read, or is_large. Exactly as much memory as bytes, so that a read past the end is seen. */
static uint8_t *read_file(const char *path, size_t size_max, size_t *size, int *is_large)
{
    FILE *file = fopen(path, "rb");
    long end = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    *is_large = end > (long)size_max;
    uint8_t *bytes = end < 0 || *is_large || fseek(file, 0, SEEK_SET) ? NULL : malloc(end ? (size_t)end : 1);
    *size = (size_t)end;
    if (bytes && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    if (file)
        fclose(file);
    return bytes;
}

static char *read_text(const char *path)
{
    size_t size;
    int is_large;
    uint8_t *bytes = read_file(path, PACK_BYTES_MAX, &size, &is_large);
    char *text = bytes ? malloc(size + 2) : NULL;
    if (text) {
        text[0] = '\n';
        memcpy(text + 1, bytes, size);
        text[size + 1] = '\0';
    }
    free(bytes);
    return text;
}

/* The last two parts of the path given, which tell a corpus from another, and what is below it. */
static const char *short_name(const char *path)
{
    const char *start = path;
    int slashes = 0;
    for (const char *at = path + strlen(path); at > path && slashes < 2; at--) {
        if (at[-1] == '/' && ++slashes == 2)
            start = at;
    }
    return start;
}

static void take_outcome(const char *root, const char *path, struct replay_state *state)
{
    char line[PATH_BYTES + 32];
    const char *name = short_name(root);
    int size = snprintf(line, sizeof(line), "\n%s%s %016llx\n", name, path + strlen(root), (unsigned long long)outcome_take());
    if (size < 0 || (size_t)size >= sizeof(line))
        abort();
    if (recording && fputs(line + 1, recording) < 0)
        abort();
    if (recorded && !strstr(recorded, line) && !state->others++)
        snprintf(state->first_other, sizeof(state->first_other), "%s", path);
}

static void replay_input(const uint8_t *bytes, size_t size, const char *root, const char *path, struct replay_state *state)
{
    snprintf(state->path, sizeof(state->path), "%s", path);
    outcome_take();
    LLVMFuzzerTestOneInput(bytes, size);
    take_outcome(root, path, state);
    state->files++;
}

static int replay_file(const char *root, const char *path, struct replay_state *state)
{
    size_t size;
    int is_large;
    uint8_t *bytes = read_file(path, FILE_BYTES_MAX, &size, &is_large);
    state->skipped += (unsigned)is_large;
    if (bytes)
        replay_input(bytes, size, root, path, state);
    free(bytes);
    return !bytes && !is_large;
}

/* Its inputs are called PATH#0, PATH#1, ... */
static int replay_pack(const char *path, struct replay_state *state)
{
    size_t size;
    int is_large, number = 0;
    uint8_t *packed = read_file(path, PACK_BYTES_MAX, &size, &is_large), *bytes = malloc(PACK_BYTES_MAX);
    const size_t end = packed && bytes ? ZSTD_decompress(bytes, PACK_BYTES_MAX, packed, size) : 0;
    struct cursor pack = cursor_over(bytes, ZSTD_isError(end) ? 0 : end);
    struct str content;
    uint32_t length;
    free(packed);
    while (cursor_u32le(&pack, &length) && cursor_bytes(&pack, length, &content)) {
        uint8_t *input = malloc(length ? length : 1);
        char name[PATH_BYTES];
        if (!input)
            abort();
        snprintf(name, sizeof(name), "%s#%d", path, number++);
        memcpy(input, content.data, length);
        replay_input(input, length, path, name, state);
        free(input);
    }
    free(bytes);
    return number == 0 || cursor_left(&pack) != 0;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int has_suffix(const FTSENT *entry, const char *suffix)
{
    size_t size = strlen(suffix);
    return entry->fts_namelen >= size && strcmp(entry->fts_name + entry->fts_namelen - size, suffix) == 0;
}

static int replay_path(char *path, struct replay_state *state)
{
    const size_t length = strlen(path);
    if (length > 5 && strcmp(path + length - 5, ".pack") == 0)
        return replay_pack(path, state);
    char *colon = strrchr(path, ':');
    const char *suffix = colon ? colon + 1 : "";
    if (colon)
        *colon = '\0';
    char *roots[] = { path, NULL };
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    int failed = !walk;
    for (FTSENT *entry; !failed && (entry = fts_read(walk)) != NULL;) {
        if (entry->fts_info == FTS_F && has_suffix(entry, suffix))
            failed = replay_file(path, entry->fts_path, state);
        else if (entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS || entry->fts_info == FTS_DNR)
            failed = 1;
    }
    if (walk)
        fts_close(walk);
    return failed;
}

static int replay_apart(int number, char *path, struct replay_state *state)
{
    char name[PATH_BYTES];
    snprintf(name, sizeof(name), "%s", short_name(path));
    for (char *at = name; *at; at++)
        *at = *at == '#' || *at == '\n' ? '?' : *at;
    *state = (struct replay_state){ 0 };
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        exit(replay_path(path, state));
    int result = -1;
    while (child > 0 && waitpid(child, &result, 0) < 0 && errno == EINTR)
        ;
    if (child > 0 && result == 0 && state->files > 0 && !state->others) {
        printf("ok %d - %s: %u files\n", number, name, state->files);
        if (state->skipped)
            printf("# %u files above 1 MiB left out\n", state->skipped);
        return 0;
    }
    printf("not ok %d - %s\n", number, name);
    if (child > 0 && WIFSIGNALED(result))
        printf("# signal %d (%s) at %s\n", WTERMSIG(result), strsignal(WTERMSIG(result)), state->path);
    else if (state->others)
        printf("# of %u files something else came than is recorded; the first is %s (fuzz/outcomes.sh)\n", state->others,
               state->first_other);
    else if (state->files == 0 && result == 0)
        printf("# no files there\n");
    else
        printf("# failed at %s\n", state->path);
    return 1;
}

int main(int argc, char **argv)
{
    struct replay_state *state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failures = 0, first = 1;
    if (argc > 3 && strcmp(argv[1], "--outcomes") == 0)
        first = (recorded = read_text(argv[2])) ? 3 : argc;
    else if (argc > 3 && strcmp(argv[1], "--record") == 0)
        first = (recording = fopen(argv[2], "w")) ? 3 : argc;
    if (first >= argc || state == MAP_FAILED) {
        fprintf(stderr, "usage: %s [--outcomes FILE | --record FILE] {FILE | DIR | DIR:SUFFIX}...\n", argv[0]);
        return 2;
    }
    printf("1..%d\n", argc - first);
    for (int i = first; i < argc; i++)
        failures += replay_apart(i - first + 1, argv[i], state);
    munmap(state, sizeof(*state));
    free(recorded);
    if (recording)
        failures += fclose(recording) != 0;
    return failures ? 1 : 0;
}
