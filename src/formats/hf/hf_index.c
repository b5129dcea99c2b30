/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_index.h"

#include "encoding/json.h"
#include "formats/shared/safetensors_pieces.h"

#include <inttypes.h>
#include <stdlib.h>

static int mapped_order(const void *a, const void *b)
{
    const struct hf_mapped *x = a, *y = b;
    return str_compare(x->key, y->key);
}

/* What is counted from the tensors is not taken over: total_size always, total_parameters unless all tensors are still there. */
static bool is_counted(struct str key, bool is_whole)
{
    return str_is(key, "total_size") || (!is_whole && str_is(key, "total_parameters"));
}

static reshard_status write_metadata(const struct value *metadata, bool is_whole, const struct st_metadata *ties, uint64_t total_size,
                                     const struct limits *limits, struct buffer *out, reshard_error *err)
{
    struct value **pairs = NULL;
    size_t count = 0;
    if (metadata && !value_as_mapping(metadata, &pairs, &count))
        count = 0;
    buffer_printf(out, "  \"metadata\": {\n    \"total_size\": %" PRIu64, total_size);
    for (size_t i = 0; i < count; i += 2) {
        struct str key;
        if (!value_as_str(pairs[i], &key) || is_counted(key, is_whole) || st_metadata_get(ties, key))
            continue;
        buffer_append_text(out, ",\n    ");
        buffer_append_json_string(out, key);
        buffer_append_text(out, ": ");
        reshard_status status = value_to_json(pairs[i + 1], out, NAMED_LIMIT(limits, item_bytes), err);
        if (status)
            return status;
    }
    for (uint32_t i = 0; i < ties->count; i++) {
        buffer_append_text(out, ",\n    ");
        buffer_append_json_string(out, ties->pairs[i].key);
        buffer_append_text(out, ": ");
        buffer_append_json_string(out, ties->pairs[i].value);
    }
    return buffer_append_text(out, "\n  },\n") ? RESHARD_OK : error_set_memory(err);
}

reshard_status hf_index_write(struct hf_mapped *mapped, size_t count, uint64_t total_size, const struct value *metadata, bool is_whole,
                              const struct st_metadata *ties, const struct limits *limits, struct buffer *out, reshard_error *err)
{
    buffer_append_text(out, "{\n");
    reshard_status status = write_metadata(metadata, is_whole, ties, total_size, limits, out, err);
    if (status)
        return status;
    if (count)
        qsort(mapped, count, sizeof(*mapped), mapped_order);
    buffer_append_text(out, count ? "  \"weight_map\": {\n" : "  \"weight_map\": {");
    for (size_t i = 0; i < count; i++) {
        buffer_append_text(out, "    ");
        buffer_append_json_string(out, mapped[i].key);
        buffer_append_text(out, ": ");
        buffer_append_json_string(out, mapped[i].file);
        buffer_append_text(out, i + 1 < count ? ",\n" : "\n  ");
    }
    buffer_append_text(out, "}\n}\n");
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}
