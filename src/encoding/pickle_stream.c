/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_stream.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>

#define FRAME_TARGET 65536 /* CPython ends a frame at the first object behind so many bytes, and keeps longer strings out of frames */
#define FRAME_MIN 4        /* shorter ones get no header */
#define FRAME_HEADER 9

enum { OP_FRAME = 0x95, OP_MEMOIZE = 0x94, OP_BINGET = 'h', OP_LONG_BINGET = 'j', OP_SHORT_BINUNICODE = 0x8C,
       OP_BINUNICODE = 'X', OP_BINUNICODE8 = 0x8D, OP_SHORT_BINBYTES = 'C', OP_BINBYTES = 'B', OP_BINBYTES8 = 0x8E, OP_BYTEARRAY8 = 0x96,
       OP_LONG1 = 0x8A, OP_LONG4 = 0x8B };

static void stream_fail(struct pickle_stream *stream, reshard_status status)
{
    if (!stream->status)
        stream->status = status;
}

/* Hands bytes over that lie at the stream's offset, and goes on behind them. */
static void stream_emit(struct pickle_stream *stream, const void *bytes, size_t size)
{
    if (!stream->status && stream->sink && size)
        stream_fail(stream, stream->sink(stream->context, stream->offset, bytes, size, &stream->err));
    stream->offset += size;
}

static uint64_t open_bytes(const struct pickle_stream *stream)
{
    return stream->frame.size + stream->gap_bytes;
}

/* Leaves room for payload. */
static void stream_skip(struct pickle_stream *stream, uint64_t bytes)
{
    if (!checked_add_u64(stream->offset, bytes, &stream->offset))
        stream_fail(stream, error_set(&stream->err, RESHARD_ERR_LIMIT, "a file of more than 2^64 bytes"));
}

/* Ends the open frame: header and bytes leave together up to the first gap. */
static void end_frame(struct pickle_stream *stream)
{
    if (!stream->is_open)
        return;
    if (stream->frame.failed)
        stream_fail(stream, error_set_memory(&stream->err));
    uint64_t bytes = open_bytes(stream) - FRAME_HEADER; /* the header has its place at the beginning of the buffer */
    size_t position = bytes < FRAME_MIN ? FRAME_HEADER : 0;
    for (int i = 0; i < 8 && !stream->frame.failed; i++)
        stream->frame.data[1 + i] = (uint8_t)(bytes >> (8 * i));
    for (size_t i = 0; i < stream->gap_count && !stream->status; i++) {
        stream_emit(stream, stream->frame.data + position, stream->gaps[i].at - position);
        stream_skip(stream, stream->gaps[i].bytes);
        position = stream->gaps[i].at;
    }
    if (!stream->status)
        stream_emit(stream, stream->frame.data + position, stream->frame.size - position);
    buffer_clear(&stream->frame);
    stream->gap_count = 0;
    stream->gap_bytes = 0;
    stream->is_open = false;
}

/* The buffer to append to. */
static struct buffer *stream_out(struct pickle_stream *stream)
{
    if (!stream->is_open) {
        buffer_append_byte(&stream->frame, OP_FRAME);
        buffer_append_fill(&stream->frame, 0, FRAME_HEADER - 1);
        stream->is_open = true;
    }
    return &stream->frame;
}

void pickle_stream_begin(struct pickle_stream *stream, int protocol, pickle_sink sink, void *context)
{
    const uint8_t head[2] = { 0x80, (uint8_t)protocol };
    *stream = (struct pickle_stream){ .protocol = protocol, .sink = sink, .context = context };
    stream_emit(stream, head, sizeof(head));
}

reshard_status pickle_sink_buffer(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct buffer *out = context;
    (void)offset;
    return buffer_append(out, bytes, size) ? RESHARD_OK : buffer_error(out, err);
}

reshard_status pickle_stream_end(struct pickle_stream *stream, uint64_t *bytes, reshard_error *err)
{
    pickle_stream_opcode(stream, '.');
    end_frame(stream);
    buffer_release(&stream->frame);
    free(stream->gaps);
    if (bytes)
        *bytes = stream->offset;
    if (stream->status && err)
        *err = stream->err;
    return stream->status;
}

void pickle_stream_object(struct pickle_stream *stream)
{
    if (stream->is_open && open_bytes(stream) - FRAME_HEADER >= FRAME_TARGET)
        end_frame(stream);
}

void pickle_stream_opcode(struct pickle_stream *stream, uint8_t opcode)
{
    buffer_append_byte(stream_out(stream), opcode);
}

uint32_t pickle_stream_memoize(struct pickle_stream *stream)
{
    pickle_stream_opcode(stream, OP_MEMOIZE);
    if (stream->memo_count == PICKLE_NO_MEMO - 1)
        stream_fail(stream, error_set(&stream->err, RESHARD_ERR_LIMIT, "a pickle with more than 2^32 objects"));
    return stream->memo_count++;
}

void pickle_stream_get(struct pickle_stream *stream, uint32_t memo)
{
    pickle_stream_object(stream);
    struct buffer *out = stream_out(stream);
    buffer_append_byte(out, memo < 256 ? OP_BINGET : OP_LONG_BINGET);
    if (memo < 256)
        buffer_append_byte(out, (uint8_t)memo);
    else
        buffer_append_u32le(out, memo);
}

void pickle_stream_none(struct pickle_stream *stream)
{
    pickle_stream_object(stream);
    pickle_put_none(stream_out(stream));
}

void pickle_stream_bool(struct pickle_stream *stream, bool value)
{
    pickle_stream_object(stream);
    pickle_put_bool(stream_out(stream), value);
}

void pickle_stream_int(struct pickle_stream *stream, int64_t value)
{
    pickle_stream_object(stream);
    pickle_put_int(stream_out(stream), value);
}

static void put_big_int(struct buffer *out, struct str digits)
{
    buffer_append_byte(out, digits.size < 256 ? OP_LONG1 : OP_LONG4);
    if (digits.size < 256)
        buffer_append_byte(out, (uint8_t)digits.size);
    else
        buffer_append_u32le(out, (uint32_t)digits.size);
    buffer_append_str(out, digits);
}

void pickle_stream_plain(struct pickle_stream *stream, const struct value *value)
{
    pickle_stream_object(stream);
    struct buffer *out = stream_out(stream);
    if (value->kind == VALUE_NONE)
        pickle_put_none(out);
    else if (value->kind == VALUE_BOOL)
        pickle_put_bool(out, value->boolean);
    else if (value->kind == VALUE_INT)
        pickle_put_int(out, value->integer);
    else if (value->kind == VALUE_FLOAT)
        pickle_put_float(out, value->real);
    else
        put_big_int(out, value->text);
}

/* An opcode for lengths of one, four and eight bytes, and the length. Returns how many bytes that takes. */
static size_t length_head(uint64_t size, const uint8_t opcodes[3], uint8_t head[FRAME_HEADER])
{
    size_t width = size < 256 ? 1 : size <= UINT32_MAX ? 4 : 8;
    head[0] = opcodes[width / 4];
    for (size_t i = 0; i < width; i++)
        head[1 + i] = (uint8_t)(size >> (8 * i));
    return 1 + width;
}

/* What is as long as a frame stands outside of frames. */
static uint32_t put_counted(struct pickle_stream *stream, struct str bytes, const uint8_t opcodes[3])
{
    uint8_t head[FRAME_HEADER];
    size_t head_size = length_head(bytes.size, opcodes, head);
    pickle_stream_object(stream);
    if (bytes.size >= FRAME_TARGET) {
        end_frame(stream);
        stream_emit(stream, head, head_size);
        stream_emit(stream, bytes.data, bytes.size);
    } else {
        buffer_append(stream_out(stream), head, head_size);
        buffer_append_str(stream_out(stream), bytes);
    }
    return pickle_stream_memoize(stream);
}

static const uint8_t text_opcodes[] = { OP_SHORT_BINUNICODE, OP_BINUNICODE, OP_BINUNICODE8 };
static const uint8_t bytes_opcodes[] = { OP_SHORT_BINBYTES, OP_BINBYTES, OP_BINBYTES8 };

uint32_t pickle_stream_str(struct pickle_stream *stream, struct str text)
{
    return put_counted(stream, text, text_opcodes);
}

uint32_t pickle_stream_bytes(struct pickle_stream *stream, struct str bytes)
{
    return put_counted(stream, bytes, bytes_opcodes);
}

void pickle_stream_str_once(struct pickle_stream *stream, struct str text, uint32_t *memo)
{
    if (*memo == PICKLE_NO_MEMO)
        *memo = pickle_stream_str(stream, text);
    else
        pickle_stream_get(stream, *memo);
}

uint32_t pickle_stream_word(struct pickle_stream *stream, struct pickle_words *words, struct str text)
{
    bool is_new;
    uint32_t number = name_map_intern(&words->names, text, &is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(words->memo, number, words->capacity)) {
        stream_fail(stream, error_set_memory(&stream->err));
        return 0;
    }
    if (is_new)
        words->memo[number] = PICKLE_NO_MEMO;
    pickle_stream_str_once(stream, text, &words->memo[number]);
    return words->memo[number];
}

void pickle_words_release(struct pickle_words *words)
{
    name_map_release(&words->names);
    free(words->memo);
    *words = (struct pickle_words){ 0 };
}

void pickle_stream_tuple_begin(struct pickle_stream *stream, size_t count)
{
    pickle_stream_object(stream);
    if (count > 3)
        pickle_stream_opcode(stream, PICKLE_MARK);
}

uint32_t pickle_stream_tuple_end(struct pickle_stream *stream, size_t count)
{
    static const uint8_t small[] = { PICKLE_EMPTY_TUPLE, PICKLE_TUPLE1, PICKLE_TUPLE2, PICKLE_TUPLE3 };
    pickle_stream_opcode(stream, count > 3 ? PICKLE_TUPLE : small[count]);
    return count ? pickle_stream_memoize(stream) : PICKLE_NO_MEMO;
}

uint32_t pickle_stream_int_tuple(struct pickle_stream *stream, const int64_t *values, size_t count)
{
    pickle_stream_tuple_begin(stream, count);
    for (size_t i = 0; i < count; i++)
        pickle_stream_int(stream, values[i]);
    return pickle_stream_tuple_end(stream, count);
}

uint32_t pickle_stream_container(struct pickle_stream *stream, uint8_t opcode)
{
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, opcode);
    return pickle_stream_memoize(stream);
}

uint32_t pickle_stream_int_list(struct pickle_stream *stream, const int64_t *values, size_t count)
{
    uint32_t memo = pickle_stream_container(stream, PICKLE_EMPTY_LIST);
    struct pickle_items items = pickle_stream_items_begin(stream, count, PICKLE_ITEMS_LIST);
    for (size_t i = 0; i < count; i++) {
        pickle_stream_item(stream, &items);
        pickle_stream_int(stream, values[i]);
    }
    pickle_stream_items_end(stream, &items);
    return memo;
}

uint32_t pickle_stream_global(struct pickle_stream *stream, const char *module_name, const char *name, uint32_t *module)
{
    pickle_stream_object(stream);
    pickle_stream_str_once(stream, str_of(module_name), module);
    pickle_stream_str(stream, str_of(name));
    pickle_stream_opcode(stream, PICKLE_STACK_GLOBAL);
    return pickle_stream_memoize(stream);
}

static void add_gap(struct pickle_stream *stream, uint64_t bytes)
{
    if (!ARRAY_ROOM(stream->gaps, stream->gap_count, stream->gap_capacity)) {
        stream_fail(stream, error_set_memory(&stream->err));
        return;
    }
    stream->gaps[stream->gap_count++] = (struct pickle_gap){ stream->frame.size, bytes };
    stream->gap_bytes += bytes;
}

uint64_t pickle_stream_payload(struct pickle_stream *stream, uint64_t bytes, bool is_array)
{
    uint8_t head[FRAME_HEADER] = { OP_BYTEARRAY8 }; /* which has one form, of eight bytes */
    size_t head_size = FRAME_HEADER;
    for (size_t i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(bytes >> (8 * i));
    if (!is_array)
        head_size = length_head(bytes, bytes_opcodes, head);
    pickle_stream_object(stream);
    uint64_t offset;
    if (bytes >= FRAME_TARGET) {
        end_frame(stream);
        stream_emit(stream, head, head_size);
        offset = stream->offset;
        stream_skip(stream, bytes);
    } else {
        buffer_append(stream_out(stream), head, head_size);
        offset = stream->offset + open_bytes(stream);
        if (bytes)
            add_gap(stream, bytes);
    }
    pickle_stream_memoize(stream);
    return offset;
}

void pickle_stream_value(struct pickle_stream *stream, const struct value *value, uint32_t graph_count, struct work *work)
{
    pickle_stream_object(stream);
    if (!stream->status)
        stream_fail(stream, pickle_write_part(value, graph_count, work, &stream->memo_count, stream_out(stream), &stream->err));
}

static const struct {
    uint8_t single, many;
} items_opcodes[] = {
    [PICKLE_ITEMS_LIST] = { PICKLE_APPEND, PICKLE_APPENDS },
    [PICKLE_ITEMS_DICT] = { PICKLE_SETITEM, PICKLE_SETITEMS },
    [PICKLE_ITEMS_PAIRS] = { PICKLE_SETITEM, PICKLE_SETITEMS },
    [PICKLE_ITEMS_SET] = { PICKLE_ADDITEMS, PICKLE_ADDITEMS },
};

/* Whether a batch of which `left` items are to come has a mark. */
static bool has_mark(const struct pickle_items *items, uint64_t left)
{
    if (items->kind == PICKLE_ITEMS_SET)
        return left > 0;
    return left > 1 || (items->done && items->kind != PICKLE_ITEMS_PAIRS);
}

struct pickle_items pickle_stream_items_begin(struct pickle_stream *stream, uint64_t count, enum pickle_items_kind kind)
{
    struct pickle_items items = { .count = count, .kind = kind };
    if (has_mark(&items, count))
        pickle_stream_opcode(stream, PICKLE_MARK);
    return items;
}

void pickle_stream_item(struct pickle_stream *stream, struct pickle_items *items)
{
    if (items->done && items->done % PICKLE_BATCH == 0) {
        pickle_stream_opcode(stream, items_opcodes[items->kind].many);
        if (has_mark(items, items->count - items->done))
            pickle_stream_opcode(stream, PICKLE_MARK);
    }
    items->done++;
}

void pickle_stream_items_end(struct pickle_stream *stream, struct pickle_items *items)
{
    uint64_t last = items->kind == PICKLE_ITEMS_PAIRS ? items->count % PICKLE_BATCH : items->count;
    if (items->count)
        pickle_stream_opcode(stream, last == 1 ? items_opcodes[items->kind].single : items_opcodes[items->kind].many);
    /* CPython begins a batch of a dict or set before it knows whether there is more for it. */
    bool begins_another = items->kind == PICKLE_ITEMS_DICT || items->kind == PICKLE_ITEMS_SET;
    if (begins_another && items->count && items->count % PICKLE_BATCH == 0) {
        pickle_stream_opcode(stream, PICKLE_MARK);
        pickle_stream_opcode(stream, items_opcodes[items->kind].many);
    }
}
