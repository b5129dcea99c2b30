/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_item.h"

static bool forget_tensor(const struct value *value, void *context)
{
    (void)context;
    ((struct value *)value)->tensor = 0;
    return true;
}

bool torch_item_forget_tensors(const struct value_graph *graph, struct work *work)
{
    return !graph->root || value_walk(graph->root, graph->count, work, forget_tensor, NULL, NULL);
}

static reshard_status storage_append(const struct torch_storage *wanted, const struct reader *reader, const struct limits *limits,
                                     struct buffer *out, reshard_error *err)
{
    size_t before = out->size;
    reshard_status status = wanted->codec == CODEC_NONE
                                ? reader_append(reader, wanted->offset, wanted->bytes, out, err)
                                : decode_all(wanted->codec, reader, wanted->offset, wanted->stored_bytes, limits, out, err);
    if (!status && out->size - before != wanted->bytes)
        status = error_set(err, RESHARD_ERR_FORMAT, "storage '%.*s' decodes to another size than it says", STR_ARG(wanted->key));
    if (status)
        out->size = before;
    return status;
}

reshard_status torch_item_storage(const struct torch_archive *archive, const struct reader *reader, const struct limits *limits,
                                  uint32_t storage, struct buffer *out, reshard_error *err)
{
    if (storage >= archive->storage_count)
        return error_set(err, RESHARD_ERR_USAGE, "the item has no storage %u", storage);
    const struct torch_storage *wanted = &archive->storages[storage];
    if (wanted->bytes > limits->item_bytes)
        return error_set_limit(err, "item_bytes", wanted->bytes, limits->item_bytes);
    if (!wanted->has_data)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "storage '%.*s' has no data", STR_ARG(wanted->key));
    return storage_append(wanted, reader, limits, out, err);
}
