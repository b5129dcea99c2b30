/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define BIT(verb) (1u << VERB_##verb)
#define READING (BIT(INSPECT) | BIT(LS) | BIT(HASH) | BIT(CAT) | BIT(CONVERT) | BIT(PLAN) | BIT(VERIFY) | BIT(DIFF))
#define RUNNING (BIT(HASH) | BIT(CAT) | BIT(CONVERT) | BIT(PLAN) | BIT(VERIFY) | BIT(DIFF))
#define WRITING (BIT(CONVERT) | BIT(PLAN))
#define ANY (READING | BIT(FORMATS) | BIT(COMPLETION))

enum kind { FLAG, TEXT, LIST, BYTES, NUMBER, COUNT };

#define FIELD(name) offsetof(struct options, name)

static const struct row {
    const char *name, *argument;
    char short_name;
    enum kind kind;
    size_t field;
    unsigned verbs;
    const char *help;
} rows[] = {
    { "to", "FORMAT", 't', TEXT, FIELD(to), WRITING, "format to write; 'reshard formats' lists them" },
    { "like", "PATH", 0, TEXT, FIELD(like), WRITING, "take format, layout and names of files from this checkpoint" },
    { "layout", "WORDS", 0, TEXT, FIELD(layout), WRITING, "how to cut tensors, for example ranks=8" },
    { "include", "GLOB", 0, LIST, FIELD(include), WRITING, "only keys that match; repeatable" },
    { "exclude", "GLOB", 0, LIST, FIELD(exclude), WRITING, "not the keys that match; repeatable" },
    { "dtype", "[GLOB=]TYPE", 0, LIST, FIELD(dtypes), WRITING, "cast: all floating tensors, or the keys that match; repeatable" },
    { "items", "keep|drop|compare|ignore", 0, TEXT, FIELD(items), WRITING | BIT(DIFF), "what to do with non-tensor items" },
    { "max-shard-size", "SIZE", 0, BYTES, FIELD(max_shard_bytes), WRITING, "largest file of a sharded format (5GB; 0: no limit)" },
    { "option", "NAME=VALUE", 'o', LIST, FIELD(format_options), WRITING, "option of the target format; repeatable" },
    { "rules", "NAME|FILE", 0, TEXT, FIELD(rules), WRITING, "how a model family's tensors are split" },
    { "map", "FILE", 0, TEXT, FIELD(map), WRITING | BIT(DIFF), "mapping between names and layouts" },
    { "mapping", "STATEMENT", 'm', LIST, FIELD(statements), WRITING | BIT(DIFF), "one statement of a mapping; repeatable" },
    { "checksum", "crc32c|sha256|none", 0, TEXT, FIELD(checksum), WRITING, "write a sidecar reshard.json with a digest per tensor" },
    { "overwrite", NULL, 0, FLAG, FIELD(overwrite), WRITING, "replace an existing target" },
    { "resume", NULL, 0, FLAG, FIELD(resume), WRITING, "go on where an interrupted run stopped" },
    { "verify", NULL, 0, FLAG, FIELD(verify), WRITING, "read the result back and compare before it becomes visible" },
    { "no-sync", NULL, 0, FLAG, FIELD(no_sync), WRITING, "do not wait for the disk; for scratch space" },
    { "dry-run", NULL, 'n', FLAG, FIELD(dry_run), BIT(CONVERT), "as 'reshard plan'" },
    { "ranks", NULL, 0, FLAG, FIELD(ranks_flag), BIT(PLAN), "a line for each target file" },
    { "chunks", NULL, 'c', FLAG, FIELD(chunks), BIT(LS), "also each stored piece: box, file, offset, length" },
    { "items", NULL, 'i', FLAG, FIELD(items_flag), BIT(LS), "also non-tensor items" },
    { "digest", "sha256|xxh3|crc32c", 0, TEXT, FIELD(digest), BIT(HASH), "digest to print (sha256)" },
    { "slice", "A:B,…", 's', TEXT, FIELD(slice), BIT(CAT), "part of the tensor: begin:end per axis, ':' for all" },
    { "as", "text|npy|raw", 0, TEXT, FIELD(as), BIT(CAT), "how to print the values (text)" },
    { "deep", NULL, 0, FLAG, FIELD(deep), BIT(VERIFY), "also read all values: NaN, infinities, all zero" },
    { "latest-good", NULL, 0, FLAG, FIELD(latest_good), BIT(VERIFY), "PATH is a root: print its newest checkpoint that passes" },
    { "tolerance", "ABS[,REL]", 0, TEXT, FIELD(tolerance), BIT(DIFF), "largest difference of values that counts as equal" },
    { "limits", NULL, 0, FLAG, FIELD(list_limits), BIT(FORMATS), "list the named limits instead" },
    { "format", "NAME", 'f', TEXT, FIELD(format), READING, "do not recognise the format, take this" },
    { "iteration", "N", 0, NUMBER, FIELD(iteration), READING, "of a root with several checkpoints (the latest)" },
    { "follow-links", NULL, 0, FLAG, FIELD(follow_links), READING, "symbolic links may lead out of the directory" },
    { "lenient", NULL, 0, FLAG, FIELD(lenient), READING, "accept what is ambiguous but readable" },
    { "memory", "SIZE", 0, BYTES, FIELD(memory_bytes), RUNNING, "budget for buffers (128MiB)" },
    { "threads", "N", 0, COUNT, FIELD(threads), RUNNING, "worker threads (number of CPUs, at most 8)" },
    { "io", "auto|buffered|direct|mmap", 0, TEXT, FIELD(io), RUNNING, "how files are read and written" },
    { "limit", "NAME=VALUE", 0, LIST, FIELD(limits), READING, "raise or lower a named limit; repeatable" },
    { "progress", "auto|bar|plain|json|none", 0, TEXT, FIELD(progress), RUNNING, "progress on standard error" },
    { "color", "auto|never|always", 0, TEXT, FIELD(color), ANY, "colour on a terminal" },
    { "json", NULL, 'j', FLAG, FIELD(json), ANY, "one JSON object on standard output" },
    { "quiet", NULL, 'q', FLAG, FIELD(quiet), ANY, "no progress, no notes" },
    { "verbose", NULL, 'v', FLAG, FIELD(verbose), ANY, "more detail" },
    { "help", NULL, 'h', FLAG, FIELD(help), ANY, "this text" },
};

#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

const struct verb_info verb_table[VERB_COUNT] = {
    { "inspect", "PATH", "one screen about a checkpoint: format, layout, tensors, what is odd",
      "  reshard inspect step-1000\n  reshard inspect model.pt          # lists calls that the pickle would make; none is made\n", 1, 1 },
    { "ls", "PATH", "a line for each tensor", "  reshard ls step-1000 --chunks\n  reshard ls model.pt --items --json | jq '.items[].key'\n", 1, 1 },
    { "hash", "PATH", "a digest for each tensor, independent of format and layout",
      "  reshard hash step-1000\n  diff <(reshard hash a) <(reshard hash b)\n", 1, 1 },
    { "cat", "PATH KEY", "values of one tensor, or an item as JSON",
      "  reshard cat model.safetensors lm_head.weight --slice 0:2,:\n  reshard cat step-1000 w --as npy > w.npy\n", 2, 2 },
    { "convert", "SRC DST", "write a checkpoint in another format or layout, whole or not at all",
      "  reshard convert step-1000 hf --to hf\n  reshard convert model.pt dcp --to torch-dcp --layout ranks=8\n"
      "  reshard convert step-1000 out --like reference --verify\n", 2, 2 },
    { "plan", "SRC [DST]", "what convert would do; touches nothing", "  reshard plan step-1000 --to hf --dtype bf16\n", 1, 2 },
    { "verify", "PATH", "check structure, coverage, replicas and stored checksums", "  reshard verify step-1000 --deep\n  reshard verify --latest-good runs/a\n", 1, 1 },
    { "diff", "A B", "compare two checkpoints of any format and layout", "  reshard diff step-1000 hf --items ignore\n  reshard diff a b --tolerance 1e-6\n", 2, 2 },
    { "formats", "[NAME]", "the known formats, or the options of one", "  reshard formats\n  reshard formats hf\n  reshard formats --limits\n", 0, 1 },
    { "completion", "bash|zsh|fish", "a completion script for a shell", "  reshard completion bash > /etc/bash_completion.d/reshard\n", 1, 1 },
};

bool options_row(size_t index, struct option_row *out)
{
    if (index >= ROW_COUNT)
        return false;
    *out = (struct option_row){ rows[index].name, rows[index].argument, rows[index].help, rows[index].short_name, rows[index].verbs };
    return true;
}

void options_overview(FILE *out)
{
    fputs("usage: reshard VERB [options] PATH...\n\nOpens any sharded deep-learning checkpoint, and saves it under any other layout or format.\n\n", out);
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(out, "  %-11s %s\n", verb_table[i].name, verb_table[i].summary);
    fputs("\n'reshard VERB --help' tells more. Exit status: 0 done or same, 1 differs or a check failed, 2 usage, 3 input/output,\n"
          "4 malformed input, 5 unsupported, 6 a limit was reached, 130 interrupted.\n",
          out);
}

void options_help(FILE *out, enum verb verb)
{
    const struct verb_info *info = &verb_table[verb];
    fprintf(out, "usage: reshard %s [options] %s\n\n%c%s.\n\n", info->name, info->arguments, info->summary[0] & ~0x20, info->summary + 1);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!(rows[i].verbs & 1u << verb))
            continue;
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", rows[i].name, rows[i].argument ? " " : "", rows[i].argument ? rows[i].argument : "");
        if (rows[i].short_name)
            fprintf(out, "  -%c, %-33s %s\n", rows[i].short_name, left, rows[i].help);
        else
            fprintf(out, "      %-33s %s\n", left, rows[i].help);
    }
    fprintf(out, "\nexamples:\n%s", info->examples);
}

/* 5GB is 5·10^9, 5GiB is 5·2^30, plain numbers are bytes. */
static bool parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t factor;
    } units[] = {
        { "", 1 }, { "B", 1 }, { "kB", 1000 }, { "KB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 }, { "TB", UINT64_C(1000000000000) },
        { "KiB", 1 << 10 }, { "MiB", 1 << 20 }, { "GiB", 1 << 30 }, { "TiB", UINT64_C(1) << 40 },
        { "K", 1 << 10 }, { "M", 1 << 20 }, { "G", 1 << 30 },
    };
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    for (size_t i = 0; errno == 0 && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(end, units[i].unit) == 0)
            return !__builtin_mul_overflow((uint64_t)value, units[i].factor, out) && *out <= INT64_MAX;
    }
    return false;
}

__attribute__((format(printf, 1, 2))) static int usage_error(const char *format, ...)
{
    va_list args;
    fputs("reshard: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("\n", stderr);
    return 2;
}

static int store_value(struct options *options, const struct row *row, const char *value)
{
    void *field = (char *)options + row->field;
    uint64_t number;
    char *end;
    switch (row->kind) {
    case FLAG: *(bool *)field = true; return -1;
    case TEXT: *(const char **)field = value; return -1;
    case LIST: {
        struct option_list *list = field;
        if (list->count == OPTION_LIST_MAX)
            return usage_error("--%s is given too often", row->name);
        list->values[list->count++] = value;
        return -1;
    }
    case BYTES:
        if (!parse_bytes(value, &number))
            return usage_error("--%s: '%s' is not a size such as 5GB or 64MiB", row->name, value);
        *(int64_t *)field = (int64_t)number;
        return -1;
    case NUMBER:
    case COUNT:
        errno = 0;
        number = strtoull(value, &end, 10);
        if (*value < '0' || *value > '9' || *end || errno || number > (row->kind == COUNT ? 4096 : INT64_MAX))
            return usage_error("--%s: '%s' is not a number that fits", row->name, value);
        if (row->kind == COUNT)
            *(unsigned *)field = (unsigned)number;
        else
            *(int64_t *)field = (int64_t)number;
        return -1;
    }
    return -1;
}

static int find_verb(const char *name, enum verb *out)
{
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(name, verb_table[i].name) == 0) {
            *out = (enum verb)i;
            return -1;
        }
    }
    if (strcmp(name, "salvage") == 0 || strcmp(name, "map") == 0) {
        fprintf(stderr, "reshard: '%s' is not in this version\n", name);
        return 5;
    }
    usage_error("unknown verb '%s'", name);
    fputs("hint: 'reshard --help' lists the verbs\n", stderr);
    return 2;
}

/* NAME=VALUE pairs of --limit; values may carry a unit. */
static int read_limits(struct options *options)
{
    for (size_t i = 0; i < options->limits.count; i++) {
        const char *text = options->limits.values[i], *equals = strchr(text, '=');
        uint64_t value;
        if (!equals || !parse_bytes(equals + 1, &value))
            return usage_error("--limit: '%s' is not NAME=VALUE", text);
        char *name = strndup(text, (size_t)(equals - text));
        if (!name)
            return usage_error("out of memory");
        options->limit_values[i] = (reshard_limit){ name, value, NULL };
    }
    return -1;
}

static bool is_one_of(const char *value, const char *words)
{
    size_t size = value ? strlen(value) : 0;
    if (!value)
        return true;
    for (const char *at = words; (at = strstr(at, value)) != NULL; at += size) {
        if ((at == words || at[-1] == '|') && (at[size] == '|' || at[size] == '\0'))
            return true;
    }
    return false;
}

static int check_words(const struct options *options)
{
    const char *items = options->verb == VERB_DIFF ? "compare|ignore" : "keep|drop";
    if (!is_one_of(options->items, items))
        return usage_error("--items: '%s' is not one of %s", options->items, items);
    if (!is_one_of(options->progress, "auto|bar|plain|json|none"))
        return usage_error("--progress: '%s' is not one of %s", options->progress, "auto|bar|plain|json|none");
    if (!is_one_of(options->color, "auto|never|always"))
        return usage_error("--color: '%s' is not one of %s", options->color, "auto|never|always");
    if (!is_one_of(options->as, "text|npy|raw"))
        return usage_error("--as: '%s' is not one of %s", options->as, "text|npy|raw");
    if (options->map || options->statements.count || options->rules) {
        fputs("reshard: mappings between name spaces (--map, -m, --rules) are not in this version\n"
              "hint: --include, --exclude, --dtype and --like work without them\n",
              stderr);
        return 5;
    }
    return -1;
}

/* Rows of this verb as getopt's tables. Long options return 1000 + the row. */
static int parse_rows(int argc, char **argv, struct options *out)
{
    struct option longs[ROW_COUNT + 1] = { 0 };
    char shorts[2 * ROW_COUNT + 2] = ":";
    size_t used = 0, at = 1;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!(rows[i].verbs & 1u << out->verb))
            continue;
        longs[used++] = (struct option){ rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, (int)(1000 + i) };
        if (rows[i].short_name) {
            shorts[at++] = rows[i].short_name;
            if (rows[i].argument)
                shorts[at++] = ':';
        }
    }
    shorts[at] = '\0';
    opterr = 0;
    optind = 1;
    for (int found; (found = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        size_t row = ROW_COUNT;
        if (found == '?' || found == ':') {
            usage_error("%s '%s'", found == ':' ? "no value for option" : "unknown option", argv[optind - 1]);
            fprintf(stderr, "hint: 'reshard %s --help' lists the options\n", verb_table[out->verb].name);
            return 2;
        }
        if (found >= 1000)
            row = (size_t)found - 1000;
        for (size_t i = 0; i < ROW_COUNT && found < 1000; i++) {
            if (rows[i].short_name == found && rows[i].verbs & 1u << out->verb)
                row = i;
        }
        int status = store_value(out, &rows[row], optarg);
        if (status >= 0)
            return status;
    }
    return -1;
}

static int take_paths(int argc, char **argv, struct options *out)
{
    const struct verb_info *info = &verb_table[out->verb];
    for (; optind < argc; optind++) {
        if (out->path_count == info->paths_max) {
            usage_error("unexpected argument '%s'", argv[optind]);
            fprintf(stderr, "hint: usage: reshard %s [options] %s\n", info->name, info->arguments);
            return 2;
        }
        out->paths[out->path_count++] = argv[optind];
    }
    if (out->path_count < info->paths_min) {
        usage_error("%s needs %s", info->name, info->arguments);
        fprintf(stderr, "hint: 'reshard %s --help' shows examples\n", info->name);
        return 2;
    }
    return -1;
}

int options_parse(int argc, char **argv, struct options *out)
{
    *out = (struct options){ .iteration = -1, .max_shard_bytes = -1 };
    if (argc < 2) {
        options_overview(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("reshard %s\n", reshard_version());
        return 0;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        options_overview(stdout);
        return 0;
    }
    int status = find_verb(argv[1], &out->verb);
    if (status < 0)
        status = parse_rows(argc - 1, argv + 1, out);
    if (status < 0 && out->help) {
        options_help(stdout, out->verb);
        return 0;
    }
    if (status < 0)
        status = take_paths(argc - 1, argv + 1, out);
    if (status < 0)
        status = check_words(out);
    if (status < 0)
        status = read_limits(out);
    return status;
}

reshard_open_options options_open(const struct options *options)
{
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    open.format = options->format;
    open.iteration = options->iteration;
    open.limits = options->limit_values;
    open.limit_count = options->limits.count;
    open.follow_links = options->follow_links;
    open.lenient = options->lenient;
    return open;
}
