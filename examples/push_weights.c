/* SPDX-License-Identifier: Apache-2.0 */
/* Four trainer processes push a matrix, each its rows, to two server processes, each its columns, over shared memory: push_weights NAME */
#include <reshard/comm.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 64, COLUMNS = 32, TRAINERS = 4, SERVERS = 2 };
static float weights[ROWS * COLUMNS];

static reshard_status part_make(int axis, int64_t part, int64_t parts, reshard_shards **out, reshard_error *err)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    int64_t start[] = { 0, 0 }, extent[] = { ROWS, COLUMNS };
    extent[axis] /= parts;
    start[axis] = part * extent[axis];
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ "model.weight", 12 };
    shard.dtype = "float32";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = weights;
    reshard_status status = reshard_shards_new(out, err);
    return status ? status : reshard_shards_add(*out, &shard, err);
}

static int rank_main(const char *name, int rank)
{
    const int is_trainer = rank < TRAINERS;
    reshard_comm *comm = NULL;
    reshard_shards *part = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    for (int i = 0; is_trainer && i < ROWS / TRAINERS * COLUMNS; i++)
        weights[i] = (float)(rank * (ROWS / TRAINERS) * COLUMNS + i);
    reshard_status status = reshard_comm_processes(name, rank, TRAINERS + SERVERS, NULL, &comm, &err);
    status = status ? status : part_make(!is_trainer, is_trainer ? rank : rank - TRAINERS, is_trainer ? TRAINERS : SERVERS, &part, &err);
    for (int step = 0; step < 3 && !status; step++) /* training, a push; serving, a push; ... */
        status = reshard_redistribute(comm, is_trainer ? part : NULL, is_trainer ? NULL : part, NULL, NULL, &err);
    if (status)
        fprintf(stderr, "push_weights: rank %d: %s\n", rank, err.message);
    else if (!is_trainer)
        printf("server %d: row 1 begins with %g\n", rank - TRAINERS, weights[COLUMNS / SERVERS]);
    reshard_shards_free(part);
    reshard_comm_free(comm);
    return reshard_status_exit(status);
}

int main(int argc, char **argv)
{
    int failed = argc == 2 ? 0 : (fputs("usage: push_weights NAME\n", stderr), 2), how;
    for (int rank = 0; !failed && rank < TRAINERS + SERVERS; rank++)
        if (fork() == 0)
            return rank_main(argv[1], rank);
    while (wait(&how) > 0)
        failed |= how;
    return failed > 2 ? 1 : failed;
}
