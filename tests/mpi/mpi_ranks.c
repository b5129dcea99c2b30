/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run by mpirun: random layouts against the naive model, in memory and through files ("saved", a folder that all see, and how many), and
 * ranks that are late or wrong. Every rank prints what it found wrong.
 */
#include "comm/saved_layouts.h"

#include "reshard/mpi.h"

#include <unistd.h>

static int case_run(reshard_comm *comm, uint64_t seed, int rank, int size)
{
    static struct layouts layouts;
    struct layout_rank own;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_redistribute_options options = RESHARD_REDISTRIBUTE_OPTIONS_INIT;
    reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
    layouts_make(&layouts, seed, size);
    options.scratch_bytes = UINT64_C(1) << seed % 16;
    reshard_status status = layout_rank_make(&layouts, rank, &own, &err);
    if (!status)
        status = reshard_redistribute(comm, own.source, own.target, &options, &report, &err);
    int is_good = !status && layout_rank_is_good(&layouts, &own) && report.bytes_moved == layouts_minimum(&layouts);
    if (!is_good)
        printf("not good: seed %d, rank %d: %d %s\n", (int)seed, rank, (int)status, err.message);
    layout_rank_release(&own);
    return is_good;
}

/* The same through files: all save, and all load under the other layout. */
static int saved_run(reshard_comm *comm, const char *folder, uint64_t seed, int rank, int size)
{
    static struct layouts layouts;
    struct layout_rank own;
    reshard_error err = RESHARD_ERROR_INIT;
    const struct saved_way way = saved_way_make(seed);
    char path[300];
    layouts_make(&layouts, seed, size);
    reshard_status status = layout_rank_make(&layouts, rank, &own, &err);
    if (!status)
        status = layouts_save(comm, &layouts, &own, &way, folder, path, &err);
    if (!status)
        status = layouts_load(comm, &layouts, &own, &way, path, &err);
    if (status)
        printf("not good: seed %d, rank %d, %s: %d %s\n", (int)seed, rank, way.format, (int)status, err.message);
    layout_rank_release(&own);
    return !status;
}

/* The last rank does not come: the others say so in time, and the job ends here, as nothing is in step any more. */
static int late_run(reshard_comm *comm, int rank, int size)
{
    reshard_error err = RESHARD_ERROR_INIT;
    char expected[64];
    if (rank == size - 1)
        sleep(5);
    snprintf(expected, sizeof(expected), "rank %d did not come", size - 1);
    if (rank == size - 1 || (reshard_comm_barrier(comm, &err) == RESHARD_ERR_IO && strstr(err.message, expected)))
        return 1;
    printf("not good: rank %d: '%s'\n", rank, err.message);
    return 0;
}

/* What is refused before any rank is waited for; options of an older program end before the timeout. */
static int arguments_run(void)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm = (void *)&err;
    struct {
        size_t struct_size;
        double behind;
    } older = { sizeof(size_t), 1e-9 };
    if (reshard_comm_mpi(MPI_COMM_WORLD, NULL, NULL, &err) != RESHARD_ERR_USAGE || !strstr(err.message, "reshard_comm_mpi: out") ||
        reshard_comm_mpi(MPI_COMM_NULL, NULL, &comm, &err) != RESHARD_ERR_USAGE || comm)
        return 0;
    if (reshard_comm_mpi(MPI_COMM_WORLD, (const void *)&older, &comm, &err) || reshard_comm_barrier(comm, &err))
        return 0;
    reshard_comm_free(comm);
    return 1;
}

int main(int argc, char **argv)
{
    int rank, size, is_good = 1;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int is_late = argc > 1 && strcmp(argv[1], "late") == 0;
    options.timeout_seconds = is_late ? 1 : 60;
    if (!arguments_run()) {
        printf("not good: arguments\n");
        return 1;
    }
    if (reshard_comm_mpi(MPI_COMM_WORLD, &options, &comm, &err)) {
        printf("not good: %s\n", err.message);
        return 1;
    }
    if (is_late) {
        is_good = late_run(comm, rank, size);
        fflush(stdout);
        _exit(!is_good);
    }
    const char *folder = argc > 3 && strcmp(argv[1], "saved") == 0 ? argv[2] : NULL;
    const uint64_t cases = strtoull(folder ? argv[3] : argc > 1 ? argv[1] : "100", NULL, 10);
    for (uint64_t seed = 1; seed <= cases && is_good; seed++)
        is_good = folder ? saved_run(comm, folder, seed, rank, size) : case_run(comm, seed, rank, size);
    if (rank == 0 && is_good)
        printf("all good over %d ranks\n", size);
    fflush(stdout);
    if (!is_good)
        MPI_Abort(MPI_COMM_WORLD, 1);
    reshard_comm_free(comm);
    MPI_Finalize();
    return 0;
}
