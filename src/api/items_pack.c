/* SPDX-License-Identifier: Apache-2.0 */
#include "api/items_pack.h"

#include <stdlib.h>

#include "api/options_pack.h"
#include "base/array.h"
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"

#define PICKLE_BEGIN "\x80\x04"
#define PAIR_BYTES_MIN 10 /* two sizes, and zero bytes behind them */

/* ---- writing ---- */

static reshard_status pack_values(const struct value_graph *graph, struct buffer *out, reshard_error *err)
{
    struct buffer pickle = { 0 };
    uint32_t memo_count = 0;
    reshard_status status = RESHARD_OK;
    if (graph->root && graph->root->list.count) {
        buffer_append_text(&pickle, PICKLE_BEGIN);
        status = pickle_write_part(graph->root, graph->count, NULL, &memo_count, &pickle, err);
        pickle_put_end(&pickle);
    }
    packed_put_block(out, pickle.data, pickle.size);
    out->failed |= pickle.failed;
    buffer_release(&pickle);
    return status;
}

reshard_status items_pack(const reshard_state_item *texts, size_t text_count, const struct reshard_items *values, struct buffer *out,
                          reshard_error *err)
{
    static const struct value_graph nothing;
    buffer_append_u64le(out, text_count);
    for (size_t i = 0; i < text_count; i++) {
        packed_put_bytes(out, texts[i].key.data, texts[i].key.size);
        packed_put_bytes(out, texts[i].json.data, texts[i].json.size);
    }
    reshard_status status = pack_values(values ? &values->graph : &nothing, out, err);
    const size_t file_count = values ? values->file_count : 0;
    buffer_append_u64le(out, file_count);
    for (size_t i = 0; i < file_count; i++) {
        packed_put_bytes(out, values->files[i].key.data, values->files[i].key.size);
        packed_put_block(out, values->files[i].bytes.data, values->files[i].bytes.size);
    }
    return status || !out->failed ? status : buffer_error(out, err);
}

/* ---- reading ---- */

static reshard_status items_damaged(const struct cursor *cursor, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "items are damaged at byte %zu", cursor->pos);
}

static bool unpack_count(struct cursor *cursor, uint64_t *count)
{
    return cursor_u64le(cursor, count) && *count <= cursor_left(cursor) / PAIR_BYTES_MIN;
}

static reshard_status unpack_texts(struct cursor *cursor, struct arena *arena, struct packed_items *out, reshard_error *err)
{
    uint64_t count;
    struct str key, json;
    if (!unpack_count(cursor, &count))
        return items_damaged(cursor, err);
    reshard_state_item *texts = arena_array(arena, count, sizeof(*texts));
    if (!texts)
        return error_set_memory(err);
    for (uint64_t i = 0; i < count; i++) {
        if (!packed_take_bytes(cursor, &key) || !packed_take_bytes(cursor, &json))
            return items_damaged(cursor, err);
        texts[i] = (reshard_state_item){ { key.data, key.size }, { json.data, json.size } };
    }
    out->texts = texts;
    out->text_count = (size_t)count;
    return RESHARD_OK;
}

/* A dict with texts as keys, as a list of items has it. */
static bool values_are_named(const struct value *root)
{
    bool is_good = root->kind == VALUE_DICT;
    for (size_t i = 0; is_good && i < root->list.count; i += 2)
        is_good = root->list.items[i]->kind == VALUE_STR;
    return is_good;
}

static reshard_status unpack_values(struct cursor *cursor, struct value_graph *out, reshard_error *err)
{
    struct limits limits = limits_default;
    struct pickle_report report;
    struct str pickle;
    struct work work;
    if (!packed_take_block(cursor, &pickle))
        return items_damaged(cursor, err);
    if (!pickle.size) {
        out->root = value_new(out, VALUE_DICT);
        return out->root ? RESHARD_OK : error_set_memory(err);
    }
    work_begin(&work, limits.work);
    work_add_input(&work, pickle.size);
    limits.budget = &work;
    reshard_status status = pickle_parse_with_ids(pickle.data, pickle.size, 0, &limits, out, &report, err);
    if (!status && (report.consumed != pickle.size || !values_are_named(out->root)))
        status = items_damaged(cursor, err);
    return status;
}

static reshard_status unpack_files(struct cursor *cursor, struct reshard_items *out, reshard_error *err)
{
    uint64_t count;
    if (!unpack_count(cursor, &count))
        return items_damaged(cursor, err);
    out->files = array_zeroed(count, sizeof(*out->files));
    if (!out->files)
        return error_set_memory(err);
    for (; out->file_count < count; out->file_count++) {
        struct items_file *file = &out->files[out->file_count];
        if (!packed_take_bytes(cursor, &file->key) || !packed_take_block(cursor, &file->bytes))
            return items_damaged(cursor, err);
    }
    out->file_capacity = (size_t)count;
    return RESHARD_OK;
}

reshard_status items_unpack(struct cursor *cursor, struct arena *arena, struct packed_items *out, reshard_error *err)
{
    *out = (struct packed_items){ .texts = NULL };
    reshard_status status = unpack_texts(cursor, arena, out, err);
    if (!status)
        status = unpack_values(cursor, &out->values.graph, err);
    return status ? status : unpack_files(cursor, &out->values, err);
}

void packed_items_release(struct packed_items *items)
{
    value_graph_release(&items->values.graph);
    free(items->values.files);
    *items = (struct packed_items){ .texts = NULL };
}
