/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many runs of one command without starting it anew. A fork of the process whose libraries are loaded makes one after the other, each with
 * the variables of the command and of all libraries but libc as they were before the first, for as long as a run leaves nothing behind: a
 * run that dies, or that keeps memory, a file or a thread, is the last of its fork.
 */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUN_SECONDS_MAX 60 /* of processor time: a run that hangs spends none, and of the clock it gets twice as much */
#define FILES_LOOKED_AT 64
#define SAVED_MAX 32 /* parts of memory that hold variables: one of each library */

typedef int main_function(int argc, char **argv, char **environment);

/* What is run, and what is asked of the runs. */
static struct {
    main_function *main;
    int argc;
    char **argv, **environment;
    const char *directory;
    unsigned long first, last;
    bool stops_without_hit; /* a number that no call had any more: the last of them has been */
} job;

/* ---- one run ---- */

static uint64_t count_open_files(void)
{
    uint64_t count = 0;
    for (int fd = 3; fd < FILES_LOOKED_AT; fd++)
        count += syscall(SYS_fcntl, fd, F_GETFD) >= 0;
    return count;
}

static uint64_t files_before;

/* What is called behind the command's end is not its own: a build that counts lines writes what it has counted. */
static void finish(void)
{
    if (outcome->is_finished)
        return;
    outcome->is_finished = true;
    rules_stop();
    log_close();
    outcome->live_blocks = allocations_live(&outcome->leak_from);
    outcome->open_files = count_open_files() - files_before;
}

static int run_here(uint64_t nth)
{
    rules_load(nth);
    log_open();
    files_before = count_open_files();
    allocations_begin();
    int status = job.main(job.argc, job.argv, job.environment);
    finish();
    return status;
}

/* ---- many ---- */

static struct saved {
    void *at;
    size_t size;
    char *copy;
} saved[SAVED_MAX];
static size_t saved_count;

static void save(uintptr_t begin, uintptr_t end)
{
    char *copy = mmap(NULL, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (saved_count == SAVED_MAX || copy == MAP_FAILED)
        _exit(99);
    saved[saved_count++] = (struct saved){ (void *)begin, end - begin, memcpy(copy, (const void *)begin, end - begin) };
}

/* Of what can be written, of all but libc, all but the beginning, which the loader fills in and protects. */
static int save_variables_of(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    uintptr_t protected_end = 0;
    if (is_of_system(info->dlpi_name))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_GNU_RELRO)
            protected_end = (info->dlpi_addr + part->p_vaddr + part->p_memsz) & -(uintptr_t)sysconf(_SC_PAGESIZE);
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr, end = begin + part->p_memsz;
        if (part->p_type == PT_LOAD && part->p_flags & PF_W)
            save(begin < protected_end && protected_end < end ? protected_end : begin, end);
    }
    return 0;
}

static void restore_variables(void)
{
    for (size_t i = 0; i < saved_count; i++)
        memcpy(saved[i].at, saved[i].copy, saved[i].size);
}

static void redirect(int fd, unsigned long number, const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%lu.%s", job.directory, number, suffix);
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    syscall(SYS_dup3, file, fd, 0);
    syscall(SYS_close, file);
}

static void enter(unsigned long number)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%lu", job.directory, number);
    syscall(SYS_mkdirat, AT_FDCWD, path, 0777);
    if (chdir(path) < 0)
        _exit(99);
    redirect(STDOUT_FILENO, number, "out");
    redirect(STDERR_FILENO, number, "err");
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    struct rlimit seconds = { (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + RUN_SECONDS_MAX, RLIM_INFINITY }, core = { 0, 0 };
    setrlimit(RLIMIT_CPU, &seconds);
    setrlimit(RLIMIT_CORE, &core);
    alarm(2 * RUN_SECONDS_MAX);
}

/* What exit() does with the streams, and what a new process has. */
static void flush(FILE *stream)
{
    fflush(stream);
    __fpurge(stream);
    clearerr(stream);
}

static bool has_other_threads(void)
{
    struct stat info;
    return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &info, 0) < 0 || info.st_nlink != 3;
}

static bool is_the_last(const struct outcome *of)
{
    return job.stops_without_hit && !of->was_hit;
}

/* Numbers from this one on, in this process, which ends with them or before. outcomes: one for each number of the job. */
static void run_on(unsigned long number, struct outcome *outcomes)
{
    size_t arguments_size = (size_t)job.argc * sizeof(*job.argv);
    char **arguments = malloc(arguments_size);
    if (!arguments)
        _exit(99);
    memcpy(arguments, job.argv, arguments_size);
    dl_iterate_phdr(save_variables_of, NULL);
    atexit(finish);
    for (; number <= job.last; number++) {
        outcome = &outcomes[number - job.first];
        outcome->is_begun = true;
        memcpy(job.argv, arguments, arguments_size); /* getopt has moved them */
        restore_variables();
        enter(number);
        int status = run_here(number);
        flush(stdout);
        flush(stderr);
        outcome->status = status & 0xff;
        outcome->has_status = true;
        if (outcome->live_blocks || outcome->open_files || is_the_last(outcome) || has_other_threads())
            break;
    }
    exit(0);
}

/* number, exit status (or minus the signal), whether hit, calls, live blocks, open files, where one leaked, what was hit */
static void report(FILE *file, unsigned long number, const struct outcome *of)
{
    fprintf(file, "%lu\t%d\t%d\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%#" PRIxPTR "\t%s\n", number, of->status, of->was_hit, of->calls,
            of->is_finished ? of->live_blocks : 0, of->is_finished ? of->open_files : 0, of->leak_from, of->what);
    fflush(file);
}

/* Makes runs in forks until all have been. */
static int run_all(FILE *file, struct outcome *outcomes)
{
    for (unsigned long number = job.first; number <= job.last;) {
        pid_t child = fork();
        if (child == 0)
            run_on(number, outcomes);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || !outcomes[number - job.first].is_begun)
            return 99;
        for (; number <= job.last && outcomes[number - job.first].is_begun; number++) {
            struct outcome *of = &outcomes[number - job.first];
            if (!of->has_status) /* the one that ended the process */
                of->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
            report(file, number, of);
            if (is_the_last(of))
                return 0;
        }
    }
    return 0;
}

int serve(main_function *run, int argc, char **argv, char **environment)
{
    const char *runs = getenv("SHIM_RUNS"), *report_path = getenv("SHIM_REPORT");
    job.main = run, job.argc = argc, job.argv = argv, job.environment = environment, job.directory = getenv("SHIM_DIRECTORY");
    if (!runs || !job.directory || !report_path || sscanf(runs, "%lu-%lu", &job.first, &job.last) != 2 || job.last < job.first) {
        atexit(finish);
        return run_here(0);
    }
    job.stops_without_hit = getenv("SHIM_ACT") && !getenv("SHIM_ALL");
    FILE *file = fopen(report_path, "ae");
    struct outcome *outcomes =
        mmap(NULL, (job.last - job.first + 1) * sizeof(*outcomes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!file || outcomes == MAP_FAILED)
        return 99;
    int status = run_all(file, outcomes);
    fclose(file);
    return status;
}
