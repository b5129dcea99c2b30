/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a save in the background holds up the job, warm, against one memcpy of the same bytes in interleaved rounds:
 * bench_async FOLDER [MEGABYTES]. Prints the ratios of the medians, for a thread and for the program.
 */
#include "bench.h"
#include "reshard/async.h"

#include <stdint.h>
#include <string.h>

#define ROUNDS 7
#define TENSOR_BYTES ((size_t)16 << 20)

static reshard_error err;

static reshard_shards *shards_new(uint8_t *memory, size_t count)
{
    reshard_shards *shards;
    const int64_t shape[] = { 2048, 4096 }, start[] = { 0, 0 };
    must(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < count; i++) {
        char key[64];
        reshard_shard shard = RESHARD_SHARD_INIT;
        snprintf(key, sizeof(key), "layers.%zu.weight", i);
        shard.key = (reshard_str){ key, strlen(key) };
        shard.dtype = "BF16";
        shard.rank = 2;
        shard.global_shape = shard.extent = shape;
        shard.start = start;
        shard.data = memory + i * TENSOR_BYTES;
        must(reshard_shards_add(shards, &shard, &err));
    }
    return shards;
}

static void saver_time(int64_t kind, const char *folder, const reshard_shards *shards, uint8_t *from, uint8_t *to, size_t count)
{
    double saves[ROUNDS], copies[ROUNDS];
    reshard_saver *saver;
    reshard_saver_options how = RESHARD_SAVER_OPTIONS_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    how.kind = kind;
    state.shards = shards;
    options.to = "torch-dcp";
    options.overwrite = options.no_sync = 1;
    request.state = &state;
    request.path = folder;
    request.options = &options;
    must(reshard_saver_open(&how, &saver, &err));
    for (int round = -1; round < ROUNDS; round++) {
        double begin = now();
        must(reshard_saver_save(saver, &request, NULL, &err));
        double saved = now() - begin;
        must(reshard_saver_wait(saver, -1, &err));
        begin = now();
        for (size_t i = 0; i < count; i++)
            memcpy(to + i * TENSOR_BYTES, from + i * TENSOR_BYTES, TENSOR_BYTES);
        if (round >= 0) {
            saves[round] = saved;
            copies[round] = now() - begin;
        }
    }
    must(reshard_saver_close(saver, &err));
    const double save = median(saves, ROUNDS), copy = median(copies, ROUNDS);
    printf("%s: %.1f ms a save, %.1f ms a memcpy of %zu MiB, ratio %.2f\n", kind ? "program" : "thread", 1e3 * save, 1e3 * copy,
           count * TENSOR_BYTES >> 20, save / copy);
}

int main(int argc, char **argv)
{
    const size_t count = (argc > 2 ? strtoul(argv[2], NULL, 10) : 512) / 16;
    uint8_t *from = malloc(count * TENSOR_BYTES), *to = malloc(count * TENSOR_BYTES);
    if (argc < 2 || !from || !to || !count)
        return 2;
    memset(from, 1, count * TENSOR_BYTES);
    memset(to, 2, count * TENSOR_BYTES);
    reshard_shards *shards = shards_new(from, count);
    for (int64_t kind = RESHARD_SAVER_THREAD; kind <= RESHARD_SAVER_PROCESS; kind++)
        saver_time(kind, argv[1], shards, from, to, count);
    reshard_shards_free(shards);
    free(from);
    free(to);
    return 0;
}
