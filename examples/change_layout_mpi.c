/* SPDX-License-Identifier: Apache-2.0 */
/* In the memory of four MPI ranks: from TP 4, each has a quarter of the rows, to TP 2, ranks 0 and 1 each have half of them. */
#include <reshard/mpi.h>

#include <stdio.h>

#define ROWS 64
#define COLUMNS 32

static float source[ROWS / 4 * COLUMNS], target[ROWS / 2 * COLUMNS];

/* Part `part` of `parts` of the rows. */
static reshard_status part_add(reshard_shards *shards, int64_t part, int64_t parts, void *data, reshard_error *err)
{
    const int64_t shape[] = { ROWS, COLUMNS }, extent[] = { ROWS / parts, COLUMNS }, start[] = { part * extent[0], 0 };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ "model.weight", 12 };
    shard.dtype = "float32";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = data;
    return reshard_shards_add(shards, &shard, err);
}

int main(int argc, char **argv)
{
    int rank, size, wrong = 0;
    reshard_comm *comm = NULL;
    reshard_shards *have = NULL, *want = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < ROWS / 4 * COLUMNS; i++)
        source[i] = (float)(rank * (ROWS / 4) * COLUMNS + i);
    reshard_status status = size == 4 ? reshard_comm_mpi(MPI_COMM_WORLD, NULL, &comm, &err) : RESHARD_ERR_USAGE;
    status = status ? status : reshard_shards_new(&have, &err);
    status = status ? status : reshard_shards_new(&want, &err);
    status = status ? status : part_add(have, rank, 4, source, &err);
    if (rank < 2)
        status = status ? status : part_add(want, rank, 2, target, &err);
    status = status ? status : reshard_redistribute(comm, have, want, NULL, &report, &err);
    for (int i = 0; rank < 2 && i < ROWS / 2 * COLUMNS; i++)
        wrong += target[i] != (float)(rank * (ROWS / 2) * COLUMNS + i);
    if (status)
        fprintf(stderr, "rank %d: %s\n", rank, size == 4 ? err.message : "usage: mpirun -n 4 change_layout_mpi");
    else if (rank == 0)
        printf("%d wrong, %d bytes moved\n", wrong, (int)report.bytes_moved);
    reshard_shards_free(have);
    reshard_shards_free(want);
    reshard_comm_free(comm);
    MPI_Finalize();
    return reshard_status_exit(status);
}
