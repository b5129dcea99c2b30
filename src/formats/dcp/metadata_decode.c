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
    free(metadata->raws);
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
