/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The random layouts of layouts.h through files: what ranks hold under one layout is saved by all of them in a format, perhaps converted
 * into another one, and loaded under a second layout.
 */
#ifndef TESTS_COMM_SAVED_LAYOUTS_H
#define TESTS_COMM_SAVED_LAYOUTS_H

#include "comm/layouts.h"

#include "reshard/sharded.h"

/* How a case goes through files: the same on all ranks, as it follows from the seed. */
struct saved_way {
    const char *format, *second; /* that it is saved in, and then converted into; NULL: it is not */
    int file_ranks;              /* the files of so many ranks are written; 0: of those that save */
    int no_spread, no_exchange, has_checksum;
    size_t memory;
};

static inline struct saved_way saved_way_make(uint64_t seed)
{
    static const char *const formats[] = { "torch_dist", "torch-dcp", "paddle-flex", "hf", "safetensors", "torch", "zarr", "atorch" };
    uint64_t choice = seed * 104729;
    struct saved_way way = { .format = formats[test_random(&choice) % 8] };
    int is_converted = test_random(&choice) % 4 == 0;
    way.second = is_converted ? formats[test_random(&choice) % 8] : NULL;
    way.file_ranks = strcmp(way.format, "atorch") == 0 || test_random(&choice) % 3 == 0 ? 1 + (int)(test_random(&choice) % 5) : 0;
    way.no_spread = test_random(&choice) % 4 == 0;
    way.no_exchange = test_random(&choice) % 3 == 0;
    way.has_checksum = test_random(&choice) % 4 == 0;
    way.memory = (size_t)1 << (16 + test_random(&choice) % 8);
    return way;
}

static inline int saved_same_piece(const struct layout_shard *a, const struct layout_shard *b)
{
    return a->tensor == b->tensor && a->is_flat == b->is_flat && a->begin == b->begin && a->end == b->end &&
           memcmp(a->start, b->start, sizeof(a->start)) == 0 && memcmp(a->extent, b->extent, sizeof(a->extent)) == 0;
}

/* Copies of a piece are numbered from 0, and that one is the main one. */
static inline int64_t saved_replica(const struct layouts *layouts, const struct layout_shard *shard)
{
    int64_t copy = 0;
    for (const struct layout_shard *other = layouts->sources; other < shard; other++)
        copy += saved_same_piece(other, shard);
    return copy;
}

/* Leading axes of which the shard has one index need not be axes in memory. */
static inline size_t saved_prepended(const struct layouts *layouts, const struct layout_shard *shard)
{
    size_t count = 0;
    if (shard->is_flat || (shard->owner + shard->tensor) % 2)
        return 0;
    while (count < layouts->tensors[shard->tensor].rank && shard->extent[count] == 1)
        count++;
    return count;
}

/* Values that a function gives: those that lie in memory without strides. */
static inline int saved_give(void *out, uint64_t offset, size_t size, void *context)
{
    memcpy(out, (const uint8_t *)context + offset, size);
    return 0;
}

/* The shards of a rank as its state dict: those that it has, or those that it wants. */
static inline reshard_status saved_state(const struct layouts *layouts, const struct layout_rank *own, int is_target,
                                         reshard_sharded **out, reshard_error *err)
{
    reshard_status status = reshard_sharded_new(out, err);
    for (int i = is_target ? own->first_target : 0; i < (is_target ? own->count : own->first_target) && !status; i++) {
        const struct layout_shard *shard = own->of[i];
        const struct layout_tensor *whole = &layouts->tensors[shard->tensor];
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        int64_t replica = is_target ? 0 : saved_replica(layouts, shard);
        tensor.key = (reshard_str){ whole->key, strlen(whole->key) };
        tensor.dtype = shard->is_wide ? "F32" : "BF16";
        tensor.rank = whole->rank;
        tensor.prepended = saved_prepended(layouts, shard);
        tensor.local_shape = shard->extent + tensor.prepended;
        tensor.global_shape = whole->shape;
        tensor.global_offset = shard->start;
        tensor.replica_ids = &replica;
        tensor.replica_count = 1;
        tensor.is_flattened = shard->is_flat;
        tensor.flat_begin = shard->begin;
        tensor.flat_end = shard->end;
        if (!is_target && !shard->is_strided && i % 3 == 0) {
            tensor.read = saved_give;
            tensor.context = own->memory[i];
        } else {
            tensor.data = own->memory[i];
        }
        tensor.strides = shard->is_strided ? shard->strides + tensor.prepended : NULL;
        status = reshard_sharded_add(*out, &tensor, err);
    }
    return status;
}

static inline void saved_options(const struct saved_way *way, const char *format, char layout[32], reshard_convert_options *options)
{
    *options = (reshard_convert_options)RESHARD_CONVERT_OPTIONS_INIT;
    options->to = format;
    options->no_sync = 1;
    options->overwrite = 1;
    options->checksum = way->has_checksum ? "crc32c" : NULL;
    int is_of_ranks = strcmp(format, "torch-dcp") == 0 || strcmp(format, "torch_dist") == 0 || strcmp(format, "paddle-flex") == 0;
    int is_flat = strcmp(format, "atorch") == 0; /* a flat parameter of all */
    if (is_flat || (is_of_ranks && way->file_ranks)) {
        snprintf(layout, 32, "ranks=%d", way->file_ranks ? way->file_ranks : 2);
        options->layout = layout;
    }
    options->wrap = is_flat ? "root" : NULL;
}

static inline reshard_status saved_convert(const struct saved_way *way, const char *path, const char *second, reshard_error *err)
{
    reshard_convert_options options;
    reshard_checkpoint *saved;
    char layout[32];
    saved_options(way, way->second, layout, &options);
    reshard_status status = reshard_open(path, NULL, &saved, err);
    if (status)
        return status;
    status = reshard_convert(saved, second, &options, NULL, NULL, err);
    reshard_close(saved);
    return status;
}

/* Collective: a rank saves what it has below the folder. path has room for 300 characters: where it is then. */
static inline reshard_status layouts_save(reshard_comm *comm, const struct layouts *layouts, const struct layout_rank *own,
                                          const struct saved_way *way, const char *folder, char *path, reshard_error *err)
{
    reshard_convert_options convert;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded = NULL;
    char layout[32];
    saved_options(way, way->format, layout, &convert);
    options.convert = &convert;
    options.no_spread = way->no_spread;
    snprintf(path, 300, "%s/%s", folder, way->format);
    reshard_status status = saved_state(layouts, own, 0, &sharded, err);
    if (!status)
        status = reshard_save(comm, path, sharded, &options, NULL, err);
    reshard_sharded_free(sharded);
    if (status || !way->second)
        return status;
    char first[300];
    strcpy(first, path);
    snprintf(path, 300, "%s/second-%s", folder, way->second);
    return reshard_comm_agree(comm, reshard_comm_rank(comm) ? RESHARD_OK : saved_convert(way, first, path, err), err);
}

/* Collective: a rank loads what it wants. */
static inline reshard_status layouts_load(reshard_comm *comm, const struct layouts *layouts, const struct layout_rank *own,
                                          const struct saved_way *way, const char *path, reshard_error *err)
{
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_sharded *sharded = NULL;
    options.no_check = 1; /* any boxes, which need not make wholes */
    options.no_exchange = way->no_exchange;
    options.strict = RESHARD_STRICT_RAISE_UNEXPECTED;
    run.memory_bytes = way->memory;
    reshard_status status = saved_state(layouts, own, 1, &sharded, err);
    if (!status)
        status = reshard_load(comm, path, sharded, &options, &run, NULL, err);
    if (!status && !layout_rank_is_good(layouts, own)) {
        snprintf(err->message, sizeof(err->message), "values are wrong");
        status = RESHARD_DIFFERS;
    }
    reshard_sharded_free(sharded);
    return status;
}

#endif
