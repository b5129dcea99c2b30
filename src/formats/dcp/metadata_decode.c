/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/metadata_decode.h"

#include "formats/dcp/metadata_build.h"

#include <stdlib.h>

void dcp_metadata_release(struct dcp_metadata *metadata)
{
    name_map_release(&metadata->names);
    name_map_release(&metadata->texts);
    vector_pool_release(&metadata->vectors);
    free(metadata->entries);
    free(metadata->chunks);
    free(metadata->indexes);
    free(metadata->ranges);
    free(metadata->transform_lists);
    free(metadata->transform_texts);
    free(metadata->paths);
    free(metadata->path_parts);
    free(metadata->entry_of_name);
    free(metadata->path_of_name);
    free(metadata->class_modules);
    free(metadata->extra_attributes);
    free(metadata->unknown_globals);
    *metadata = (struct dcp_metadata){ 0 };
}

static uint64_t map_memory(const struct name_map *map)
{
    return map->arena.bytes_used + (uint64_t)map->names_capacity * sizeof(*map->names) +
           (uint64_t)map->slots_capacity * sizeof(*map->slots);
}

uint64_t dcp_metadata_memory(const struct dcp_metadata *metadata)
{
    const struct dcp_metadata *m = metadata;
    return sizeof(*m) + map_memory(&m->names) + map_memory(&m->texts) + m->vectors.count * sizeof(*m->vectors.numbers) +
           (uint64_t)m->entry_count * sizeof(*m->entries) + (uint64_t)m->chunk_count * sizeof(*m->chunks) +
           (uint64_t)m->storage_count * (sizeof(*m->indexes) + sizeof(*m->ranges)) +
           (uint64_t)m->transform_list_count * sizeof(*m->transform_lists) +
           (uint64_t)m->transform_text_count * sizeof(*m->transform_texts) + (uint64_t)m->path_count * sizeof(*m->paths) +
           (uint64_t)m->path_part_count * sizeof(*m->path_parts) +
           (uint64_t)m->names.count * (sizeof(*m->entry_of_name) + sizeof(*m->path_of_name));
}

static reshard_status decode_one_way(const void *bytes, size_t size, const struct limits *limits, bool is_fast, struct dcp_metadata *out,
                                     bool *is_done, reshard_error *err)
{
    struct dcp_build build;
    reshard_status status = dcp_build_init(&build, limits, out, err);
    *is_done = true;
    if (!status && is_fast)
        status = dcp_decode_fast(bytes, size, &build, is_done);
    else if (!status)
        status = dcp_decode_general(bytes, size, &build);
    if (!status && *is_done)
        status = dcp_build_finish(&build);
    out->is_fast = is_fast;
    if (status || !*is_done)
        dcp_metadata_release(out);
    return status;
}

reshard_status dcp_metadata_decode(const void *bytes, size_t size, const struct limits *limits, enum dcp_decode_way way,
                                   struct dcp_metadata *out, reshard_error *err)
{
    bool is_done = false;
    *out = (struct dcp_metadata){ 0 };
    if (size > limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", size, limits->metadata_bytes);
    if (way == DCP_DECODE_BEST) {
        reshard_status status = decode_one_way(bytes, size, limits, true, out, &is_done, err);
        if (status || is_done)
            return status;
    }
    return decode_one_way(bytes, size, limits, false, out, &is_done, err);
}
