/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32.h"
#include "encoding/compress.h"
#include "encoding/zip_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)256 << 10)
#define RATIO_FREE_BYTES (UINT64_C(1) << 20)

static reshard_status place(const struct zip_member *member, reshard_status status, reshard_error *err)
{
    if (status)
        error_prefix(err, "zip member '%.*s'", STR_ARG(member->name));
    return status;
}

static bool is_zeros(const uint8_t *bytes, size_t size)
{
    return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

/* torch's skip_data leaves payloads as holes and their CRC at 0. */
static bool crc_is_right(const struct zip_archive *archive, const struct zip_member *member, uint32_t found, bool is_zero)
{
    return archive->crc_is_off || found == member->crc32 || (member->crc32 == 0 && is_zero);
}

static reshard_status wrong_crc(const struct zip_member *member, uint32_t found, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, "CRC-32 of the content is %08" PRIx32 ", recorded is %08" PRIx32,
                        found, member->crc32);
}

/* Sizes that no honest member has are refused before memory is taken for them. */
static reshard_status check_size(const struct zip_member *member, const struct limits *limits, reshard_error *err)
{
    if (member->bytes > limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", member->bytes, limits->metadata_bytes);
    if (member->method == ZIP_METHOD_STORED)
        return RESHARD_OK;
    if (member->bytes > limits->inflate_bytes)
        return error_set_limit(err, "inflate_bytes", member->bytes, limits->inflate_bytes);
    if (member->bytes <= RATIO_FREE_BYTES)
        return RESHARD_OK;
    uint64_t ratio = (member->bytes - RATIO_FREE_BYTES) / (member->stored_bytes ? member->stored_bytes : 1);
    return ratio > limits->inflate_ratio ? error_set_limit(err, "inflate_ratio", ratio, limits->inflate_ratio) : RESHARD_OK;
}

/* Fills out with exactly the member's content. */
static reshard_status inflate_into(const struct reader *reader, const struct zip_member *member, const struct limits *limits, uint8_t *out,
                                   reshard_error *err)
{
    struct decoder *decoder = NULL;
    reshard_status status = decoder_new(CODEC_DEFLATE, reader, member->payload_offset, member->stored_bytes, limits, &decoder, err);
    if (status)
        return status;
    uint8_t beyond;
    size_t got = 0, more = 0;
    status = decoder_read(decoder, out, (size_t)member->bytes, &got, err);
    if (!status && got == member->bytes)
        status = decoder_read(decoder, &beyond, 1, &more, err);
    if (!status && (got != member->bytes || more))
        status = error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset,
                              "inflates to %s than the %" PRIu64 " bytes that the directory says", more ? "more" : "less", member->bytes);
    decoder_free(decoder);
    return status;
}

static reshard_status read_into(const struct reader *reader, const struct zip_archive *archive, const struct zip_member *member,
                                const struct limits *limits, uint8_t *out, reshard_error *err)
{
    if (member->method == ZIP_METHOD_DEFLATED)
        return inflate_into(reader, member, limits, out, err);
    const uint8_t *cached = zip_cached(archive, member->payload_offset, (size_t)member->bytes);
    if (!cached)
        return reader_read(reader, member->payload_offset, out, (size_t)member->bytes, err);
    if (member->bytes)
        memcpy(out, cached, (size_t)member->bytes);
    return RESHARD_OK;
}

reshard_status zip_read_member(const struct reader *reader, const struct zip_archive *archive, const struct zip_member *member,
                               const struct limits *limits, struct buffer *out, reshard_error *err)
{
    reshard_status status = check_size(member, limits, err);
    if (status)
        return place(member, status, err);
    size_t before = out->size;
    work_add_input(limits->budget, member->stored_bytes);
    status = work_spend(limits->budget, member->bytes, err);
    if (status)
        return place(member, status, err);
    uint8_t *room = member->bytes > SIZE_MAX ? NULL : buffer_extend(out, (size_t)member->bytes);
    if (!room)
        return place(member, error_set_memory(err), err);
    status = read_into(reader, archive, member, limits, room, err);
    if (!status && !archive->crc_is_off) {
        uint32_t found = crc32_zip(0, room, (size_t)member->bytes);
        if (!crc_is_right(archive, member, found, member->crc32 == 0 && is_zeros(room, (size_t)member->bytes)))
            status = wrong_crc(member, found, err);
    }
    if (status)
        out->size = before;
    return place(member, status, err);
}

struct content_check {
    uint8_t *window;
    size_t window_bytes; /* one more than the member has, at most: what is more shows */
    uint64_t bytes;
    uint32_t crc32;
    bool is_zero;
};

static reshard_status check_through(const struct reader *reader, const struct zip_member *member, const struct limits *limits,
                                    struct content_check *check, reshard_error *err)
{
    struct decoder *decoder = NULL;
    enum codec codec = member->method == ZIP_METHOD_DEFLATED ? CODEC_DEFLATE : CODEC_NONE;
    reshard_status status = decoder_new(codec, reader, member->payload_offset, member->stored_bytes, limits, &decoder, err);
    size_t got = check->window_bytes;
    while (!status && got == check->window_bytes) {
        status = decoder_read(decoder, check->window, check->window_bytes, &got, err);
        if (status)
            break;
        check->crc32 = crc32_zip(check->crc32, check->window, got);
        check->is_zero = check->is_zero && is_zeros(check->window, got);
        check->bytes += got;
        if (check->bytes > member->bytes)
            break;
    }
    decoder_free(decoder);
    return status;
}

reshard_status zip_check_member(const struct reader *reader, const struct zip_archive *archive, const struct zip_member *member,
                                const struct limits *limits, reshard_error *err)
{
    struct content_check check = { .window_bytes = member->bytes < WINDOW_BYTES ? (size_t)member->bytes + 1 : WINDOW_BYTES,
                                   .is_zero = true };
    check.window = malloc(check.window_bytes);
    if (!check.window)
        return place(member, error_set_memory(err), err);
    reshard_status status = check_through(reader, member, limits, &check, err);
    free(check.window);
    if (!status && check.bytes != member->bytes)
        status = error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset,
                              "inflates to %s than the %" PRIu64 " bytes that the directory says",
                              check.bytes > member->bytes ? "more" : "less", member->bytes);
    if (!status && !crc_is_right(archive, member, check.crc32, check.is_zero))
        status = wrong_crc(member, check.crc32, err);
    return place(member, status, err);
}
