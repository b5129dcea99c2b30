/* SPDX-License-Identifier: Apache-2.0 */
/* Many runs of one command without starting it anew: each is a fork of a process whose libraries are loaded. */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_SECONDS_MAX 60 /* of processor time: a run that hangs spends none, and of the clock it gets twice as much */
#define OWN_FILES_MIN 900  /* our descriptors lie from here on */
#define FILES_LOOKED_AT 64

static uint64_t count_open_files(void)
{
    uint64_t count = 0;
    for (int fd = 3; fd < FILES_LOOKED_AT; fd++)
        count += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    return count;
}

static uint64_t files_before;

static void finish(void)
{
    outcome->is_finished = true;
    outcome->live_blocks = allocations_live(&outcome->leak_from);
    outcome->open_files = count_open_files() - files_before;
}

static int run_here(int (*run)(int, char **, char **), int argc, char **argv, char **environment)
{
    log_open();
    files_before = count_open_files();
    allocations_begin();
    atexit(finish);
    return run(argc, argv, environment);
}

static void redirect(int fd, const char *directory, unsigned long number, const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%lu.%s", directory, number, suffix);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    syscall(SYS_dup3, file, fd, 0);
    syscall(SYS_close, file);
}

static void enter(const char *directory, unsigned long number)
{
    char path[4096], text[32];
    snprintf(path, sizeof(path), "%s/%lu", directory, number);
    syscall(SYS_mkdirat, AT_FDCWD, path, 0777);
    if (chdir(path) < 0)
        _exit(99);
    redirect(STDOUT_FILENO, directory, number, "out");
    redirect(STDERR_FILENO, directory, number, "err");
    /* The command's real number of the failing call, unless the test set one for all runs. */
    snprintf(text, sizeof(text), "%lu", number);
    setenv("SHIM_NTH", text, 0);
    alarm(2 * RUN_SECONDS_MAX);
    struct rlimit seconds = { RUN_SECONDS_MAX, RUN_SECONDS_MAX }, core = { 0, 0 };
    setrlimit(RLIMIT_CPU, &seconds);
    setrlimit(RLIMIT_CORE, &core);
}

/* number, exit status (or minus the signal), whether hit, calls, live blocks, open files, where one leaked, what was hit */
static void report(FILE *file, unsigned long number, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    fprintf(file, "%lu\t%d\t%d\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%#" PRIxPTR "\t%s\n", number, code, outcome->was_hit, outcome->calls,
            outcome->is_finished ? outcome->live_blocks : 0, outcome->is_finished ? outcome->open_files : 0, outcome->leak_from,
            outcome->what);
    fflush(file);
}

int serve(int (*run)(int, char **, char **), int argc, char **argv, char **environment)
{
    const char *runs = getenv("SHIM_RUNS"), *directory = getenv("SHIM_DIRECTORY"), *report_path = getenv("SHIM_REPORT");
    unsigned long first, last;
    if (!runs || !directory || !report_path || sscanf(runs, "%lu-%lu", &first, &last) != 2) {
        rules_load();
        return run_here(run, argc, argv, environment);
    }
    FILE *file = fopen(report_path, "ae");
    void *shared = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!file || shared == MAP_FAILED)
        return 99;
    outcome = shared;
    for (unsigned long number = first; number <= last; number++) {
        memset(outcome, 0, sizeof(*outcome));
        pid_t child = fork();
        if (child == 0) {
            enter(directory, number);
            rules_load();
            return run_here(run, argc, argv, environment);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 99;
        report(file, number, status);
        /* A number that no call had any more: the last of them has been. */
        if (getenv("SHIM_ACT") && !outcome->was_hit && !getenv("SHIM_ALL"))
            break;
    }
    fclose(file);
    return 0;
}
