/* SPDX-License-Identifier: Apache-2.0 */
#include "api/writer_declaration.h"

#include <stdlib.h>

#include "api/options_pack.h"
#include "api/versioned.h"
#include "parallel/shard_pack.h"

#define DECLARATION_MAGIC UINT64_C(0x3230574452485352) /* RSHRDW02 */
#define TENSOR_BYTES_MIN 10 /* sizes of key and dtype, zero bytes behind them, rank */

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
    if (!status)
        status = items_pack(taken, input->item_count, input->values, out, err);
    free(taken);
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

static reshard_status declaration_take_tensor(struct declaration_reading *reading, reshard_writer_tensor *tensor)
{
    struct cursor *cursor = &reading->cursor;
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

static reshard_status declaration_take_tensors(struct declaration_reading *reading)
{
    uint64_t count;
    if (!cursor_u64le(&reading->cursor, &count) || count > cursor_left(&reading->cursor) / TENSOR_BYTES_MIN)
        return declaration_damaged(reading);
    reshard_writer_tensor *tensors = arena_array(&reading->out->arena, count, sizeof(*tensors));
    reshard_status status = tensors ? RESHARD_OK : error_set_memory(reading->err);
    for (size_t i = 0; i < count && !status; i++)
        status = declaration_take_tensor(reading, &tensors[i]);
    reading->out->input.tensors = tensors;
    reading->out->input.tensor_count = (size_t)count;
    return status;
}

static reshard_status declaration_take_items(struct declaration_reading *reading)
{
    struct declaration *out = reading->out;
    reshard_status status = items_unpack(&reading->cursor, &out->arena, &out->items, reading->err);
    out->input.items = out->items.texts;
    out->input.item_count = out->items.text_count;
    out->input.values = &out->items.values;
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
        status = declaration_take_tensors(&reading);
    if (!status)
        status = declaration_take_items(&reading);
    return status || !cursor_left(&reading.cursor) ? status : declaration_damaged(&reading);
}

void declaration_release(struct declaration *declaration)
{
    packed_items_release(&declaration->items);
    arena_release(&declaration->arena);
    *declaration = (struct declaration){ .input = RESHARD_WRITER_INPUT_INIT };
}
