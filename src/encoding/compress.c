/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/compress.h"

#include "base/checked.h"
#include "encoding/compress_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)64 << 10)
#define DECODE_STEP_BYTES ((size_t)64 << 10)
#define RATIO_FREE_BYTES (UINT64_C(1) << 20) /* output that the ratio limit does not count */

struct decoder {
    const struct codec_library *library; /* NULL: CODEC_NONE */
    void *state;
    const struct reader *reader;
    uint64_t start, next, end; /* of the coded bytes in the reader; next is the first one not in the window */
    uint64_t position, ratio_max, bytes_max;
    struct codec_span span;
    bool is_finished;
    uint8_t window[];
};

static const struct codec_library *const libraries[CODEC_COUNT] = {
    [CODEC_DEFLATE] = &codec_zlib,
    [CODEC_ZSTD] = &codec_zstd,
    [CODEC_LATIN1] = &codec_latin1,
};

reshard_status decoder_new(enum codec codec, const struct reader *reader, uint64_t offset, uint64_t length, const struct limits *limits,
                           struct decoder **out, reshard_error *err)
{
    if (!range_fits(offset, length, reader->size))
        return error_set_at(err, RESHARD_ERR_FORMAT, offset, "%" PRIu64 " coded bytes reach beyond the object's %" PRIu64, length,
                            reader->size);
    const struct codec_library *library = libraries[codec];
    struct decoder *decoder = malloc(sizeof(*decoder) + (library ? WINDOW_BYTES : 0));
    if (!decoder)
        return error_set_memory(err);
    *decoder = (struct decoder){ .library = library, .reader = reader, .start = offset, .next = offset, .end = offset + length };
    decoder->ratio_max = limits->inflate_ratio;
    decoder->bytes_max = limits->inflate_bytes;
    if (library) {
        decoder->state = library->open();
        if (!decoder->state) {
            free(decoder);
            return error_set_memory(err);
        }
    }
    *out = decoder;
    return RESHARD_OK;
}

void decoder_free(struct decoder *decoder)
{
    if (!decoder)
        return;
    if (decoder->library)
        decoder->library->close(decoder->state);
    free(decoder);
}

uint64_t decoder_position(const struct decoder *decoder)
{
    return decoder->position;
}

/* Where in the reader the first coded byte lies that is not used up. */
static uint64_t coded_position(const struct decoder *decoder)
{
    return decoder->next - decoder->span.in_size;
}

static reshard_status compress_read_plain(struct decoder *decoder, void *out, size_t size, size_t *got, reshard_error *err)
{
    uint64_t left = decoder->end - decoder->next;
    size_t step = size < left ? size : (size_t)left;
    reshard_status status = step ? reader_read(decoder->reader, decoder->next, out, step, err) : RESHARD_OK;
    if (status)
        return status;
    decoder->next += step;
    decoder->position += step;
    *got = step;
    return RESHARD_OK;
}

static reshard_status refill(struct decoder *decoder, reshard_error *err)
{
    uint64_t left = decoder->end - decoder->next;
    size_t step = left < WINDOW_BYTES ? (size_t)left : WINDOW_BYTES;
    if (decoder->span.in_size || !step)
        return RESHARD_OK;
    reshard_status status = reader_read(decoder->reader, decoder->next, decoder->window, step, err);
    if (status)
        return status;
    decoder->next += step;
    decoder->span.in = decoder->window;
    decoder->span.in_size = step;
    return RESHARD_OK;
}

static reshard_status check_growth(const struct decoder *decoder, reshard_error *err)
{
    if (decoder->position > decoder->bytes_max)
        return error_set_limit(err, "inflate_bytes", decoder->position, decoder->bytes_max);
    if (decoder->position <= RATIO_FREE_BYTES)
        return RESHARD_OK;
    uint64_t coded = decoder->end - decoder->start;
    uint64_t ratio = (decoder->position - RATIO_FREE_BYTES) / (coded ? coded : 1);
    if (ratio > decoder->ratio_max)
        return error_set_limit(err, "inflate_ratio", ratio, decoder->ratio_max);
    return RESHARD_OK;
}

/* The end of a stream: the end of all, or the start of the next one. */
static reshard_status finish_stream(struct decoder *decoder, reshard_error *err)
{
    uint64_t left = decoder->end - coded_position(decoder);
    if (left == 0) {
        decoder->is_finished = true;
        return RESHARD_OK;
    }
    if (!decoder->library->is_repeatable)
        return error_set_at(err, RESHARD_ERR_FORMAT, coded_position(decoder), "%" PRIu64 " bytes follow the end of the %s stream", left,
                            decoder->library->name);
    return decoder->library->restart(decoder->state) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status decode_step(struct decoder *decoder, reshard_error *err)
{
    reshard_status status = refill(decoder, err);
    if (status)
        return status;
    if (decoder->library->may_end && !decoder->span.in_size && decoder->library->may_end(decoder->state)) {
        decoder->is_finished = true;
        return RESHARD_OK;
    }
    size_t in_before = decoder->span.in_size, out_before = decoder->span.out_size;
    uint64_t at = coded_position(decoder);
    enum codec_result result = decoder->library->decode(decoder->state, &decoder->span);
    size_t made = out_before - decoder->span.out_size;
    decoder->position += made;
    switch (result) {
    case CODEC_NO_MEMORY:
        return error_set_memory(err);
    case CODEC_DAMAGED:
        return error_set_at(err, RESHARD_ERR_FORMAT, coded_position(decoder), "invalid %s data: %s", decoder->library->name,
                            decoder->library->complaint(decoder->state));
    case CODEC_FINISHED:
        status = check_growth(decoder, err);
        return status ? status : finish_stream(decoder, err);
    case CODEC_MORE:
        break;
    }
    if (made == 0 && in_before == decoder->span.in_size && decoder->next == decoder->end)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "the %s data ends in the middle of the stream, after %" PRIu64 " decoded bytes",
                            decoder->library->name, decoder->position);
    return check_growth(decoder, err);
}

reshard_status decoder_read(struct decoder *decoder, void *out, size_t size, size_t *got, reshard_error *err)
{
    if (!decoder->library)
        return compress_read_plain(decoder, out, size, got, err);
    decoder->span.out = out;
    decoder->span.out_size = size;
    reshard_status status = RESHARD_OK;
    while (!status && decoder->span.out_size && !decoder->is_finished)
        status = decode_step(decoder, err);
    if (status)
        return status;
    *got = size - decoder->span.out_size;
    return RESHARD_OK;
}

reshard_status decode_all(enum codec codec, const struct reader *reader, uint64_t offset, uint64_t length, const struct limits *limits,
                          struct buffer *out, reshard_error *err)
{
    struct decoder *decoder = NULL;
    size_t before = out->size, got = DECODE_STEP_BYTES;
    reshard_status status = decoder_new(codec, reader, offset, length, limits, &decoder, err);
    while (!status && got == DECODE_STEP_BYTES) {
        uint8_t *room = buffer_extend(out, DECODE_STEP_BYTES);
        if (!room) {
            status = buffer_error(out, err);
            break;
        }
        status = decoder_read(decoder, room, DECODE_STEP_BYTES, &got, err);
        out->size -= status ? DECODE_STEP_BYTES : DECODE_STEP_BYTES - got;
    }
    if (status)
        out->size = before;
    decoder_free(decoder);
    return status;
}

reshard_status encode_all(enum codec codec, int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    if (libraries[codec])
        return libraries[codec]->encode(level, bytes, size, out, err);
    return buffer_append(out, bytes, size) ? RESHARD_OK : error_set_memory(err);
}
