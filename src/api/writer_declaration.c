/* SPDX-License-Identifier: Apache-2.0 */
#include "api/writer_declaration.h"

#include <stdlib.h>

#include "api/options_pack.h"
#include "api/versioned.h"
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"
#include "parallel/shard_pack.h"

#define DECLARATION_MAGIC UINT64_C(0x3130574452485352) /* RSHRDW01 */
#define PICKLE_BEGIN "\x80\x04"
#define TENSOR_BYTES_MIN 10 /* sizes of key and dtype, zero bytes behind them, rank */
#define ITEM_BYTES_MIN 10

/* ---- writing ---- */

static reshard_status declaration_put_tensors(const reshard_writer_input *input, struct buffer *out, reshard_error *err)
{
    void *taken = NULL;
    reshard_status status = array_take(input->tensors, input->tensor_count, input->tensor_stride, sizeof(reshard_writer_tensor),
                                       "reshard_writer_tensor", &taken, err);
    const reshard_writer_tensor *tensors = taken;
    buffer_append_u64le(out, input->tensor_count);
    for (size_t i = 0; i < input->tensor_count && !status; i++) {
        packed_put_bytes(out, tensors[i].key.data, tensors[i].key.size);
        packed_put_text(out, tensors[i].dtype);
        buffer_append_byte(out, (uint8_t)tensors[i].rank);
        pack_numbers(out, tensors[i].rank, tensors[i].shape);
    }
    free(taken);
    return status;
}

static reshard_status declaration_put_items(const reshard_writer_input *input, struct buffer *out, reshard_error *err)
{
    void *taken = NULL;
    reshard_status status =
        array_take(input->items, input->item_count, input->item_stride, sizeof(reshard_state_item), "reshard_state_item", &taken, err);
    const reshard_state_item *items = taken;
    buffer_append_u64le(out, input->item_count);
    for (size_t i = 0; i < input->item_count && !status; i++) {
        packed_put_bytes(out, items[i].key.data, items[i].key.size);
        packed_put_bytes(out, items[i].json.data, items[i].json.size);
    }
    free(taken);
    return status;
}

static reshard_status declaration_put_values(const struct reshard_items *values, struct buffer *out, reshard_error *err)
{
    struct buffer pickle = { 0 };
    uint32_t memo_count = 0;
    reshard_status status = RESHARD_OK;
    if (values && values->graph.root && values->graph.root->list.count) {
        buffer_append_text(&pickle, PICKLE_BEGIN);
        status = pickle_write_part(values->graph.root, values->graph.count, NULL, &memo_count, &pickle, err);
        pickle_put_end(&pickle);
    }
    packed_put_bytes(out, (const char *)pickle.data, pickle.size);
    out->failed |= pickle.failed;
    buffer_release(&pickle);
    return status;
}

reshard_status declaration_write(const reshard_writer_input *input, const reshard_convert_options *options, struct buffer *out,
                                 reshard_error *err)
{
    if (options_pack_excluded(options))
        return RESHARD_OK;
    buffer_append_u64le(out, DECLARATION_MAGIC);
    reshard_status status = options_pack(options, out, err);
    packed_put_text(out, input->name);
    if (!status)
        status = declaration_put_tensors(input, out, err);
    if (!status)
        status = declaration_put_items(input, out, err);
    if (!status)
        status = declaration_put_values(input->values, out, err);
    return status || !out->failed ? status : buffer_error(out, err);
}

/* ---- reading ---- */

struct declaration_reading {
    struct cursor cursor;
    struct declaration *out;
    reshard_error *err;
};

static reshard_status declaration_damaged(const struct declaration_reading *reading)
{
    return error_set(reading->err, RESHARD_ERR_FORMAT, "what the parts were opened with is damaged at byte %zu", reading->cursor.pos);
}

/* As many members as a number says, each of which takes at least so many bytes. */
static reshard_status declaration_take_array(struct declaration_reading *reading, size_t least, size_t size,
                                             reshard_status (*take)(struct declaration_reading *reading, void *out), const void **array,
                                             size_t *count)
{
    uint64_t number;
    if (!cursor_u64le(&reading->cursor, &number) || number > cursor_left(&reading->cursor) / least)
        return declaration_damaged(reading);
    uint8_t *room = arena_array(&reading->out->arena, number, size);
    reshard_status status = room ? RESHARD_OK : error_set_memory(reading->err);
    for (size_t i = 0; i < number && !status; i++)
        status = take(reading, room + i * size);
    *array = room;
    *count = (size_t)number;
    return status;
}

static reshard_status declaration_take_tensor(struct declaration_reading *reading, void *out)
{
    struct cursor *cursor = &reading->cursor;
    reshard_writer_tensor *tensor = out;
    struct str key;
    uint8_t rank;
    if (!packed_take_bytes(cursor, &key) || !packed_take_text(cursor, &tensor->dtype) || !cursor_u8(cursor, &rank))
        return declaration_damaged(reading);
    int64_t *shape = arena_array(&reading->out->arena, rank, sizeof(*shape));
    if (!shape)
        return error_set_memory(reading->err);
    if (!unpack_numbers(cursor, rank, shape))
        return declaration_damaged(reading);
    tensor->key = (reshard_str){ key.data, key.size };
    tensor->rank = rank;
    tensor->shape = shape;
    return RESHARD_OK;
}

static reshard_status declaration_take_item(struct declaration_reading *reading, void *out)
{
    struct str key, json;
    if (!packed_take_bytes(&reading->cursor, &key) || !packed_take_bytes(&reading->cursor, &json))
        return declaration_damaged(reading);
    *(reshard_state_item *)out = (reshard_state_item){ { key.data, key.size }, { json.data, json.size } };
    return RESHARD_OK;
}

/* Of tensors and items. */
static reshard_status declaration_take_arrays(struct declaration_reading *reading)
{
    reshard_writer_input *input = &reading->out->input;
    const void *tensors = NULL, *items = NULL;
    reshard_status status = declaration_take_array(reading, TENSOR_BYTES_MIN, sizeof(reshard_writer_tensor), declaration_take_tensor,
                                                   &tensors, &input->tensor_count);
    if (!status)
        status = declaration_take_array(reading, ITEM_BYTES_MIN, sizeof(reshard_state_item), declaration_take_item, &items,
                                        &input->item_count);
    input->tensors = tensors;
    input->items = items;
    return status;
}

/* A dict with texts as keys, as a list of items has it. */
static bool values_are_named(const struct value *root)
{
    bool is_good = root->kind == VALUE_DICT;
    for (size_t i = 0; is_good && i < root->list.count; i += 2)
        is_good = root->list.items[i]->kind == VALUE_STR;
    return is_good;
}

static reshard_status declaration_take_values(struct declaration_reading *reading)
{
    struct declaration *out = reading->out;
    struct limits limits = limits_default;
    struct pickle_report report;
    struct str pickle;
    struct work work;
    if (!packed_take_bytes(&reading->cursor, &pickle))
        return declaration_damaged(reading);
    if (!pickle.size)
        return RESHARD_OK;
    work_begin(&work, limits.work);
    work_add_input(&work, pickle.size);
    limits.budget = &work;
    reshard_status status = pickle_parse(pickle.data, pickle.size, 0, &limits, &out->values.graph, &report, reading->err);
    if (!status && (report.consumed != pickle.size || !values_are_named(out->values.graph.root)))
        status = declaration_damaged(reading);
    out->input.values = &out->values;
    return status;
}

bool declaration_is(struct str words)
{
    struct cursor cursor = cursor_over((const uint8_t *)words.data, words.size);
    uint64_t magic;
    return cursor_u64le(&cursor, &magic) && magic == DECLARATION_MAGIC;
}

reshard_status declaration_read(struct str bytes, struct declaration *out, reshard_error *err)
{
    struct declaration_reading reading = { cursor_over((const uint8_t *)bytes.data, bytes.size), out, err };
    uint64_t magic;
    *out = (struct declaration){ .input = RESHARD_WRITER_INPUT_INIT, .options = RESHARD_CONVERT_OPTIONS_INIT };
    if (!cursor_u64le(&reading.cursor, &magic) || magic != DECLARATION_MAGIC)
        return declaration_damaged(&reading);
    reshard_status status = options_unpack(&reading.cursor, &out->arena, &out->options, err);
    if (!status && !packed_take_text(&reading.cursor, &out->input.name))
        status = declaration_damaged(&reading);
    if (!status)
        status = declaration_take_arrays(&reading);
    if (!status)
        status = declaration_take_values(&reading);
    return status || !cursor_left(&reading.cursor) ? status : declaration_damaged(&reading);
}

void declaration_release(struct declaration *declaration)
{
    value_graph_release(&declaration->values.graph);
    arena_release(&declaration->arena);
    *declaration = (struct declaration){ .input = RESHARD_WRITER_INPUT_INIT };
}
