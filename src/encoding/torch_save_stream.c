/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/pickle_forms.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>

#define WINDOW_BYTES 65536
#define LINE_BYTES_MAX 65536

enum scan_result { SCAN_DONE, SCAN_MORE, SCAN_SENSELESS };

static bool skip_counted(struct cursor *c, int width, uint64_t *missing)
{
    struct str bytes;
    *missing = (uint64_t)width;
    if (!cursor_bytes(c, (uint64_t)width, &bytes))
        return false;
    uint64_t count = load_le((const uint8_t *)bytes.data, width);
    *missing = count;
    return cursor_skip(c, count);
}

/* Moves past one opcode and its argument. On SCAN_MORE the cursor may have moved; *missing bytes are wanted from its place on. */
static enum scan_result scan_opcode(struct cursor *c, uint64_t *missing)
{
    uint8_t opcode;
    struct str line;
    *missing = 1;
    if (!cursor_u8(c, &opcode))
        return SCAN_MORE;
    bool good = true;
    struct pickle_form form = pickle_forms[opcode];
    switch (form.argument) {
    case PICKLE_ARG_UNKNOWN:
        return SCAN_SENSELESS;
    case PICKLE_ARG_LINES:
        for (int i = 0; good && i < form.size; i++) {
            good = cursor_line(c, LINE_BYTES_MAX, &line);
            if (!good && cursor_left(c) >= LINE_BYTES_MAX)
                return SCAN_SENSELESS;
        }
        *missing = LINE_BYTES_MAX;
        break;
    case PICKLE_ARG_STRING:
    case PICKLE_ARG_INTEGER:
        good = skip_counted(c, form.size, missing);
        break;
    default:
        *missing = form.size;
        good = cursor_skip(c, *missing);
    }
    *missing = good ? 0 : *missing;
    return good ? SCAN_DONE : SCAN_MORE;
}

static uint64_t window_end(const struct torch_stream *stream)
{
    return stream->window_start + stream->window.size;
}

/* Makes the window start at the position and hold at least size bytes from there, as far as the reader goes. */
static reshard_status fill(struct torch_stream *stream, uint64_t size, reshard_error *err)
{
    uint64_t left = stream->reader->size - stream->position;
    if (size > left)
        size = left;
    if (stream->position < stream->window_start || stream->position > window_end(stream)) {
        buffer_clear(&stream->window);
        stream->window_start = stream->position;
    } else if (stream->position > stream->window_start) {
        size_t drop = (size_t)(stream->position - stream->window_start);
        memmove(stream->window.data, stream->window.data + drop, stream->window.size - drop);
        stream->window.size -= drop;
        stream->window_start = stream->position;
    }
    if (stream->window.size >= size)
        return RESHARD_OK;
    uint64_t wanted = size > WINDOW_BYTES ? size : WINDOW_BYTES;
    if (wanted > left)
        wanted = left;
    return reader_append(stream->reader, window_end(stream), wanted - stream->window.size, &stream->window, err);
}

reshard_status torch_stream_pickle(struct torch_stream *stream, struct str *out, reshard_error *err)
{
    reshard_status status = fill(stream, WINDOW_BYTES, err);
    size_t done = 0; /* whole opcodes */
    while (!status) {
        struct cursor c = cursor_over(stream->window.data, stream->window.size);
        uint64_t missing;
        cursor_skip(&c, done);
        bool is_stop = cursor_left(&c) > 0 && c.data[c.pos] == '.';
        enum scan_result result = scan_opcode(&c, &missing);
        if (result == SCAN_DONE) {
            done = c.pos;
            if (!is_stop)
                continue;
            *out = (struct str){ (const char *)stream->window.data, done };
            stream->position += done;
            return RESHARD_OK;
        }
        uint64_t left = stream->reader->size - stream->position, wanted;
        bool is_beyond = !checked_add_u64(c.pos, missing, &wanted) || (wanted > left && stream->window.size == left);
        if (result == SCAN_SENSELESS || is_beyond) {
            /* The parser finds the same place and says what is wrong there. */
            *out = buffer_str(&stream->window);
            stream->position += stream->window.size;
            return RESHARD_OK;
        }
        if (wanted > left)
            wanted = left;
        work_add_input(stream->limits->budget, wanted - stream->window.size);
        if (wanted > stream->limits->metadata_bytes)
            return error_set_limit(err, "metadata_bytes", wanted, stream->limits->metadata_bytes);
        if (wanted < 2 * (uint64_t)stream->window.size)
            wanted = 2 * (uint64_t)stream->window.size;
        status = fill(stream, wanted, err);
    }
    return status;
}

reshard_status torch_stream_bytes(struct torch_stream *stream, size_t size, struct str *out, reshard_error *err)
{
    if (size > stream->reader->size - stream->position)
        return error_set_at(err, RESHARD_ERR_FORMAT, stream->position, "file ends, %zu more bytes are expected", size);
    reshard_status status = fill(stream, size, err);
    if (status)
        return status;
    *out = (struct str){ (const char *)stream->window.data, size };
    stream->position += size;
    return RESHARD_OK;
}

reshard_status torch_stream_skip(struct torch_stream *stream, uint64_t size, reshard_error *err)
{
    if (size > stream->reader->size - stream->position)
        return error_set_at(err, RESHARD_ERR_FORMAT, stream->position, "file ends inside %" PRIu64 " bytes of data", size);
    stream->position += size;
    return RESHARD_OK;
}

void torch_stream_release(struct torch_stream *stream)
{
    buffer_release(&stream->window);
}

bool torch_is_legacy_magic(const struct value *value)
{
    static const uint8_t magic[10] = { 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19 };
    return value->kind == VALUE_BIGINT && str_equal(value->text, (struct str){ (const char *)magic, sizeof(magic) });
}
