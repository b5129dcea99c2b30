/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard-mpi: convert with the work split over MPI ranks that see the same storage. Every rank runs its part; when all are done, the first
 * one commits. A rank that fails ends the job and says which it was; nothing is visible then, and the same call may be made again.
 */
#include "command_run.h"
#include "commands.h"

#include "reshard/mpi.h"

#include <stdlib.h>
#include <string.h>

static int ends_job(const struct options *options, int rank, int size, int status)
{
    fprintf(stderr, "reshard-mpi: rank %d of %d failed in %s\n", rank, size, options->paths[1] ? options->paths[1] : "its arguments");
    fflush(stderr);
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

static int ranks_refuse(const struct options *options, int rank)
{
    if (rank == 0)
        print_failure(options, RESHARD_ERR_USAGE, "run it as `mpirun -n N reshard-mpi convert ...`; the other verbs are those of reshard",
                      "only convert, without --part and --dry-run, runs over ranks");
    return reshard_status_exit(RESHARD_ERR_USAGE);
}

/* Parts take as long as they take: a rank waits for the others until MPI ends the job. */
static int ranks_run(const struct options *options)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options patience = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (options->verb != VERB_CONVERT || options->part || options->dry_run || options->path_count != 2)
        return ranks_refuse(options, rank);
    patience.timeout_seconds = 1e9;
    reshard_status status = reshard_comm_mpi(MPI_COMM_WORLD, &patience, &comm, &err);
    if (status)
        return print_error(options, status, &err);
    int exit_status = ranks_convert(options, comm, &err);
    reshard_comm_free(comm);
    return exit_status;
}

int main(int argc, char **argv)
{
    static struct options options;
    MPI_Init(&argc, &argv);
    int status = options_parse(argc, argv, &options);
    status = status < 0 ? ranks_run(&options) : finish_output(&options, status);
    options_release(&options);
    MPI_Finalize();
    return status;
}
