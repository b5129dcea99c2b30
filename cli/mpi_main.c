/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard-mpi: verbs with the work split over MPI ranks that see the same storage.
 *
 * convert: every rank runs its part; when all are done, the first one commits. A rank that fails ends the job and says which it was;
 * nothing is visible then, and the same call may be made again. verify, hash, diff: every rank runs the verb, the library shares the
 * reading out among them, and each has the whole result, which the first one prints.
 */
#include "command_run.h"
#include "command_words.h"
#include "commands.h"

#include "reshard/mpi.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_DEFAULT_MAX 8U /* as without MPI */
#define FORWARDING_MICROSECONDS 200000

/* Launchers end all processes at once, and may do so before they have passed on what those wrote: they are given a moment. */
static int ends_job(const struct options *options, int rank, int size, int status)
{
    const char *where = options->paths[1] ? shown_path(options->paths[1]) : "its arguments";
    fprintf(stderr, "reshard-mpi: rank %d of %d failed in %s\n", rank, size, where);
    fflush(stderr);
    usleep(FORWARDING_MICROSECONDS);
    MPI_Abort(MPI_COMM_WORLD, status);
    return status;
}

/* Runs this rank's part without a word. */
static int part_run(const struct options *options, int rank, int size)
{
    char part[64];
    struct options own = *options;
    snprintf(part, sizeof(part), "%d/%d", rank, size);
    own.part = part;
    own.quiet = true;
    own.json = false;
    return command_run(&own);
}

static int commit_run(const struct options *options)
{
    struct options own = *options;
    own.verb = VERB_COMMIT;
    own.paths[0] = options->paths[1];
    own.paths[1] = NULL;
    own.path_count = 1;
    return command_run(&own);
}

static int ranks_convert(const struct options *options, reshard_comm *comm, reshard_error *err)
{
    int rank = (int)reshard_comm_rank(comm), size = (int)reshard_comm_size(comm);
    int status = part_run(options, rank, size);
    if (status)
        return ends_job(options, rank, size, status);
    if (reshard_comm_barrier(comm, err)) {
        fprintf(stderr, "reshard-mpi: %s\n", err->message);
        return ends_job(options, rank, size, reshard_status_exit(RESHARD_ERR_IO));
    }
    status = rank == 0 ? commit_run(options) : 0;
    if (status)
        return ends_job(options, rank, size, status);
    reshard_comm_barrier(comm, err);
    return 0;
}

/* ---- verbs that look ---- */

/* Where a rank's words go that the first one says for all: kept, in case it fails on its own. */
static FILE *rank_hush(void)
{
    FILE *kept = tmpfile();
    if (kept)
        dup2(fileno(kept), STDERR_FILENO);
    if (!freopen("/dev/null", "w", stdout))
        return NULL;
    return kept;
}

static void rank_speak(FILE *kept, int real_stderr)
{
    char part[4096];
    size_t size;
    fflush(stderr);
    dup2(real_stderr, STDERR_FILENO);
    rewind(kept);
    while ((size = fread(part, 1, sizeof(part), kept)) > 0)
        fwrite(part, 1, size, stderr);
}

/* What all ranks find wrong the first one has said. A rank that failed on its own is out of step with the others, and says so itself. */
static int ranks_look(const struct options *options, reshard_comm *comm, reshard_error *err)
{
    struct options own = *options;
    const bool is_first = reshard_comm_rank(comm) == 0;
    const int real_stderr = is_first ? -1 : dup(STDERR_FILENO);
    FILE *kept = is_first ? NULL : rank_hush();
    own.comm = comm;
    own.quiet = own.quiet || !is_first;
    int status = command_run(&own);
    if (reshard_comm_agree(comm, RESHARD_OK, err) && kept)
        rank_speak(kept, real_stderr);
    if (kept)
        fclose(kept);
    if (real_stderr >= 0)
        close(real_stderr);
    return status;
}

/* ---- all ---- */

/* Ranks of one machine have its cores together, at most as many as the launcher lets this one have. */
static unsigned threads_of_rank(void)
{
    MPI_Comm here;
    int ranks = 1;
    cpu_set_t set;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &ranks);
    MPI_Comm_free(&here);
    unsigned share = online > ranks ? (unsigned)(online / ranks) : 1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && (unsigned)CPU_COUNT(&set) < share)
        share = (unsigned)CPU_COUNT(&set);
    return share < THREADS_DEFAULT_MAX ? share : THREADS_DEFAULT_MAX;
}

static const char *why_refused(const struct options *options)
{
    const bool looks = options->verb == VERB_HASH || options->verb == VERB_VERIFY || options->verb == VERB_DIFF;
    if (!looks && options->verb != VERB_CONVERT)
        return "only convert, verify, hash and diff run over ranks";
    for (int i = 0; i < options->path_count; i++)
        if (strcmp(options->paths[i], "-") == 0)
            return "ranks read files: '-' is for one process";
    if (options->latest_good)
        return "--latest-good does not run over ranks";
    return !looks && (options->part || options->dry_run) ? "over ranks convert takes neither --part nor --dry-run" : NULL;
}

static int ranks_refuse(const struct options *options, int rank)
{
    if (rank == 0)
        print_failure(options, RESHARD_ERR_USAGE, "run it as `mpirun -n N reshard-mpi convert ...`; all other verbs are those of reshard",
                      "%s", why_refused(options));
    return reshard_status_exit(RESHARD_ERR_USAGE);
}

/* Parts take as long as they take: a rank waits for the others until MPI ends the job. */
static int ranks_run(struct options *options)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options patience = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (why_refused(options))
        return ranks_refuse(options, rank);
    if (!options->threads)
        options->threads = threads_of_rank();
    patience.timeout_seconds = 1e9;
    reshard_status status = reshard_comm_mpi(MPI_COMM_WORLD, &patience, &comm, &err);
    if (status)
        return print_error(options, status, &err);
    int exit_status = options->verb == VERB_CONVERT ? ranks_convert(options, comm, &err) : ranks_look(options, comm, &err);
    reshard_comm_free(comm);
    return exit_status;
}

/* Whether the program itself is asked for help, and not one of its verbs, whose options are those of reshard. */
static bool is_help_asked(int argc, char **argv)
{
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0);
}

static void ranks_help(void)
{
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        fputs("usage: mpirun -n N reshard-mpi convert|verify|hash|diff [options] PATH...\n\n"
              "These verbs of reshard with their work divided over the ranks of MPI, which see the same files under the same paths.\n"
              "Options are those of 'reshard VERB --help', for each rank; not --part, --dry-run, --latest-good, nor '-' as a path.\n",
              stdout);
}

int main(int argc, char **argv)
{
    static struct options options;
    output_begin();
    MPI_Init(&argc, &argv);
    output_is_relayed();
    if (is_help_asked(argc, argv)) {
        ranks_help();
        MPI_Finalize();
        return finish_output(&options, 0);
    }
    int status = options_parse(argc, argv, &options);
    status = status < 0 ? ranks_run(&options) : finish_output(&options, status);
    options_release(&options);
    MPI_Finalize();
    return status;
}
