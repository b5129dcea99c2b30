/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compressed blob has to be read like a file, but only goes front to back. One pass finds its size and keeps both ends, where everything
 * but the payload lies; what is between them is decoded again when somebody asks. Memory is bounded whatever the blob holds.
 */
#include "formats/dcp/dcp_source.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

#define HEAD_BYTES 65536
#define TAIL_BYTES 65536
#define PASS_BYTES 65536

struct dcp_decoded {
    enum codec codec;
    struct reader file;
    uint64_t offset, bytes; /* coded */
    const struct limits *limits;
    uint64_t size;          /* decoded */
    uint64_t tail_start;
    size_t head_bytes, tail_bytes;
    uint8_t *head, *tail;   /* of HEAD_BYTES and 2 * TAIL_BYTES */
};

/* Appends to the tail, which slides when it is full. */
static void keep_tail(struct dcp_decoded *decoded, const uint8_t *bytes, size_t size)
{
    if (size > TAIL_BYTES) {
        bytes += size - TAIL_BYTES;
        size = TAIL_BYTES;
        decoded->tail_bytes = 0;
    }
    if (decoded->tail_bytes + size > (size_t)2 * TAIL_BYTES) {
        memmove(decoded->tail, decoded->tail + decoded->tail_bytes - TAIL_BYTES, TAIL_BYTES);
        decoded->tail_bytes = TAIL_BYTES;
    }
    memcpy(decoded->tail + decoded->tail_bytes, bytes, size);
    decoded->tail_bytes += size;
}

static reshard_status dcp_blob_measure(struct dcp_decoded *decoded, reshard_error *err)
{
    struct decoder *decoder = NULL;
    uint8_t *pass = malloc(PASS_BYTES);
    reshard_status status =
        pass ? decoder_new(decoded->codec, &decoded->file, decoded->offset, decoded->bytes, decoded->limits, &decoder, err)
             : error_set_memory(err);
    size_t got = PASS_BYTES;
    while (!status && got == PASS_BYTES) {
        status = decoder_read(decoder, pass, PASS_BYTES, &got, err);
        if (status)
            break;
        if (decoded->size == 0) {
            memcpy(decoded->head, pass, got);
            decoded->head_bytes = got;
        }
        keep_tail(decoded, pass, got);
        decoded->size += got;
    }
    decoded->tail_start = decoded->size - decoded->tail_bytes;
    decoder_free(decoder);
    free(pass);
    return status;
}

/* [offset, offset + size) by decoding from the start. */
static reshard_status decode_middle(const struct dcp_decoded *decoded, uint64_t offset, uint8_t *out, size_t size, reshard_error *err)
{
    struct decoder *decoder = NULL;
    uint8_t *pass = malloc(PASS_BYTES);
    reshard_status status =
        pass ? decoder_new(decoded->codec, &decoded->file, decoded->offset, decoded->bytes, decoded->limits, &decoder, err)
             : error_set_memory(err);
    size_t got;
    while (!status && offset > 0) {
        size_t step = offset < PASS_BYTES ? (size_t)offset : PASS_BYTES;
        status = decoder_read(decoder, pass, step, &got, err);
        if (!status && got < step)
            status = error_set(err, RESHARD_ERR_FORMAT, "decoded blob ends earlier than before");
        offset -= step;
    }
    if (!status)
        status = decoder_read(decoder, out, size, &got, err);
    if (!status && got < size)
        status = error_set(err, RESHARD_ERR_FORMAT, "decoded blob ends earlier than before");
    decoder_free(decoder);
    free(pass);
    return status;
}

static reshard_status decoded_read_at(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct dcp_decoded *decoded = reader->context;
    if (!range_fits(offset, size, reader->size))
        return error_set_at(err, RESHARD_ERR_FORMAT, offset,
                            "decoded blob ends inside %zu bytes at offset %" PRIu64 ": it has %" PRIu64 " bytes", size, offset,
                            reader->size);
    uint64_t at = reader->base + offset;
    if (size == 0)
        return RESHARD_OK;
    if (range_fits(at, size, decoded->head_bytes)) {
        memcpy(out, decoded->head + at, size);
    } else if (at >= decoded->tail_start) {
        memcpy(out, decoded->tail + (at - decoded->tail_start), size);
    } else {
        return decode_middle(decoded, at, out, size, err);
    }
    return RESHARD_OK;
}

reshard_status dcp_decoded_open(enum codec codec, const struct reader *file, uint64_t offset, uint64_t bytes, const struct limits *limits,
                                struct dcp_decoded **out, struct reader *reader, reshard_error *err)
{
    struct dcp_decoded *decoded = calloc(1, sizeof(*decoded));
    if (!decoded)
        return error_set_memory(err);
    *decoded = (struct dcp_decoded){ .codec = codec, .file = *file, .offset = offset, .bytes = bytes, .limits = limits };
    decoded->head = malloc(HEAD_BYTES);
    decoded->tail = malloc((size_t)2 * TAIL_BYTES);
    reshard_status status = decoded->head && decoded->tail ? dcp_blob_measure(decoded, err) : error_set_memory(err);
    if (status) {
        dcp_decoded_free(decoded);
        return status;
    }
    *reader = (struct reader){ .read_at = decoded_read_at, .size = decoded->size, .context = decoded, .name = file->name };
    *out = decoded;
    return RESHARD_OK;
}

void dcp_decoded_free(struct dcp_decoded *decoded)
{
    if (!decoded)
        return;
    free(decoded->head);
    free(decoded->tail);
    free(decoded);
}
