/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_stream.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>

#define FRAME_TARGET 65536 /* CPython ends a frame at the first object behind so many bytes, and keeps longer strings out of frames */
#define FRAME_MIN 4        /* shorter ones get no header */
#define FRAME_HEADER 9

enum { OP_FRAME = 0x95, OP_MEMOIZE = 0x94, OP_BINGET = 'h', OP_LONG_BINGET = 'j', OP_STACK_GLOBAL = 0x93, OP_SHORT_BINUNICODE = 0x8C,
       OP_BINUNICODE = 'X', OP_BINUNICODE8 = 0x8D, OP_SHORT_BINBYTES = 'C', OP_BINBYTES = 'B', OP_BINBYTES8 = 0x8E, OP_BYTEARRAY8 = 0x96 };

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

uint32_t pickle_stream_str(struct pickle_stream *stream, struct str text)
{
    uint8_t head[FRAME_HEADER] = { text.size < 256 ? OP_SHORT_BINUNICODE : text.size <= UINT32_MAX ? OP_BINUNICODE : OP_BINUNICODE8 };
    size_t width = text.size < 256 ? 1 : text.size <= UINT32_MAX ? 4 : 8;
    for (size_t i = 0; i < width; i++)
        head[1 + i] = (uint8_t)((uint64_t)text.size >> (8 * i));
    pickle_stream_object(stream);
    if (text.size >= FRAME_TARGET) {
        end_frame(stream);
        stream_emit(stream, head, 1 + width);
        stream_emit(stream, text.data, text.size);
    } else {
        buffer_append(stream_out(stream), head, 1 + width);
        buffer_append_str(stream_out(stream), text);
    }
    return pickle_stream_memoize(stream);
}

void pickle_stream_str_once(struct pickle_stream *stream, struct str text, uint32_t *memo)
{
    if (*memo == PICKLE_NO_MEMO)
        *memo = pickle_stream_str(stream, text);
    else
        pickle_stream_get(stream, *memo);
}

uint32_t pickle_stream_int_tuple(struct pickle_stream *stream, const int64_t *values, size_t count)
{
    static const uint8_t small[] = { PICKLE_EMPTY_TUPLE, PICKLE_TUPLE1, PICKLE_TUPLE2, PICKLE_TUPLE3 };
    pickle_stream_object(stream);
    if (count > 3)
        pickle_stream_opcode(stream, PICKLE_MARK);
    for (size_t i = 0; i < count; i++)
        pickle_stream_int(stream, values[i]);
    pickle_stream_opcode(stream, count > 3 ? PICKLE_TUPLE : small[count]);
    return count ? pickle_stream_memoize(stream) : PICKLE_NO_MEMO;
}

uint32_t pickle_stream_global(struct pickle_stream *stream, const char *module_name, const char *name, uint32_t *module)
{
    pickle_stream_object(stream);
    pickle_stream_str_once(stream, str_of(module_name), module);
    pickle_stream_str(stream, str_of(name));
    pickle_stream_opcode(stream, OP_STACK_GLOBAL);
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
    uint8_t head[FRAME_HEADER];
    size_t width = is_array || bytes > UINT32_MAX ? 8 : bytes < 256 ? 1 : 4;
    head[0] = is_array ? OP_BYTEARRAY8 : width == 1 ? OP_SHORT_BINBYTES : width == 4 ? OP_BINBYTES : OP_BINBYTES8;
    for (size_t i = 0; i < width; i++)
        head[1 + i] = (uint8_t)(bytes >> (8 * i));
    pickle_stream_object(stream);
    uint64_t offset;
    if (bytes >= FRAME_TARGET) {
        end_frame(stream);
        stream_emit(stream, head, 1 + width);
        offset = stream->offset;
        stream_skip(stream, bytes);
    } else {
        buffer_append(stream_out(stream), head, 1 + width);
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

struct pickle_items pickle_stream_items_begin(struct pickle_stream *stream, uint64_t count, bool is_dict)
{
    if (count > 1)
        pickle_stream_opcode(stream, PICKLE_MARK);
    return (struct pickle_items){ .count = count, .is_dict = is_dict };
}

void pickle_stream_item(struct pickle_stream *stream, struct pickle_items *items)
{
    if (items->done && items->done % PICKLE_BATCH == 0) {
        pickle_stream_opcode(stream, items->is_dict ? PICKLE_SETITEMS : PICKLE_APPENDS);
        pickle_stream_opcode(stream, PICKLE_MARK);
    }
    items->done++;
}

void pickle_stream_items_end(struct pickle_stream *stream, struct pickle_items *items)
{
    if (items->count > 1)
        pickle_stream_opcode(stream, items->is_dict ? PICKLE_SETITEMS : PICKLE_APPENDS);
    else if (items->count)
        pickle_stream_opcode(stream, items->is_dict ? PICKLE_SETITEM : PICKLE_APPEND);
    /* CPython begins a batch of a dict before it knows whether there is more for it. */
    if (items->is_dict && items->count > 1 && items->count % PICKLE_BATCH == 0) {
        pickle_stream_opcode(stream, PICKLE_MARK);
        pickle_stream_opcode(stream, PICKLE_SETITEMS);
    }
}
