/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes the layout of a model in memory from TP 4 to TP 2 by reshard_open_shards and reshard_load_shards, and copies as many bytes by
 * memcpy, in interleaved rounds: bench_state [GIGABYTES]. Half of the matrices are cut by rows, half by columns. Prints the ratio of the
 * medians.
 */
#include "bench.h"
#include "reshard/state.h"

#include <stdint.h>
#include <string.h>

#define ROUNDS 7
#define ROWS 4096
#define COLUMNS 4096
#define MATRIX_BYTES ((size_t)ROWS * COLUMNS * 2)

static reshard_error err;

/* The shards of all ranks; each has its own memory, as in a job. */
static reshard_shards *layout_new(int count, int64_t ranks)
{
    static const int64_t shape[] = { ROWS, COLUMNS };
    reshard_shards *shards;
    must(reshard_shards_new(&shards, &err));
    for (int i = 0; i < count; i++) {
        char key[64];
        snprintf(key, sizeof(key), "layers.%d.weight", i);
        for (int64_t rank = 0; rank < ranks; rank++) {
            int axis = i % 2;
            int64_t start[] = { 0, 0 }, extent[] = { ROWS, COLUMNS };
            extent[axis] /= ranks;
            start[axis] = rank * extent[axis];
            reshard_shard shard = RESHARD_SHARD_INIT;
            shard.key = (reshard_str){ key, strlen(key) };
            shard.dtype = "BF16";
            shard.rank = 2;
            shard.global_shape = shape;
            shard.start = start;
            shard.extent = extent;
            shard.data = malloc(MATRIX_BYTES / (size_t)ranks);
            if (!shard.data)
                exit(1);
            memset(shard.data, i + 1, MATRIX_BYTES / (size_t)ranks);
            must(reshard_shards_add(shards, &shard, &err));
        }
    }
    return shards;
}

static double time_ours(const reshard_shards *source, const reshard_shards *target)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *checkpoint;
    double began = now();
    state.shards = source;
    must(reshard_open_shards(&state, NULL, &checkpoint, &err));
    must(reshard_load_shards(checkpoint, target, NULL, &err));
    reshard_close(checkpoint);
    return now() - began;
}

/* The same number of bytes, in pieces as large as the shards. */
static double time_memcpy(const reshard_shards *source, const reshard_shards *target)
{
    size_t from = reshard_shards_count(source), to = reshard_shards_count(target);
    double began = now();
    for (size_t i = 0; i < from; i++) {
        reshard_shard a = RESHARD_SHARD_INIT, b = RESHARD_SHARD_INIT;
        must(reshard_shards_at(source, i, &a));
        must(reshard_shards_at(target, i % to, &b));
        memcpy(b.data, a.data, MATRIX_BYTES / 4);
    }
    return now() - began;
}

int main(int argc, char **argv)
{
    double gigabytes = argc > 1 ? atof(argv[1]) : 1, ours[ROUNDS], theirs[ROUNDS];
    int count = (int)(gigabytes * 1e9 / (double)MATRIX_BYTES);
    reshard_shards *source = layout_new(count, 4), *target = layout_new(count, 2);
    time_memcpy(source, target);
    for (int i = 0; i < ROUNDS; i++) {
        ours[i] = time_ours(source, target);
        theirs[i] = time_memcpy(source, target);
    }
    double our_time = median(ours, ROUNDS), their_time = median(theirs, ROUNDS);
    printf("TP 4 to TP 2 in memory: %.1f GB: %.2fx of memcpy (%.1f GB/s)\n", (double)count * MATRIX_BYTES / 1e9,
           their_time / our_time, (double)count * MATRIX_BYTES / 1e9 / our_time);
    return 0;
}
