/* SPDX-License-Identifier: Apache-2.0 */
#include "packed.h"

#include "base/cursor.h"
#include "base/crc32.h"
#include "zip_repair.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* ---- reading ---- */

/* Kept from run to run: to make and fill what zstd works in takes as long as all else that is done with an input. */
static ZSTD_DCtx *unpacking;
static ZSTD_CCtx *packing;

/* The content, which is malloc'd. */
static uint8_t *unpack(const uint8_t *bytes, size_t size, size_t *unpacked)
{
    /* No more memory than it takes: much of a run would be pages that nobody uses. */
    unsigned long long told = ZSTD_getFrameContentSize(bytes, size);
    size_t room = told < PACKED_BYTES_MAX ? (size_t)told : PACKED_BYTES_MAX;
    uint8_t *content = told == ZSTD_CONTENTSIZE_ERROR ? NULL : malloc(room + 1);
    if (!unpacking)
        unpacking = ZSTD_createDCtx();
    *unpacked = content && unpacking ? ZSTD_decompressDCtx(unpacking, content, room, bytes, size) : 0;
    if (content && !ZSTD_isError(*unpacked))
        return content;
    free(content);
    *unpacked = size < PACKED_BYTES_MAX ? size : PACKED_BYTES_MAX;
    content = malloc(*unpacked + 1);
    if (content)
        memcpy(content, bytes, *unpacked);
    return content;
}

struct input {
    const uint8_t *at;
    size_t left;
};

static size_t take_number(struct input *input, int size)
{
    size_t value = 0;
    for (int i = 0; i < size && input->left; i++, input->left--)
        value |= (size_t)*input->at++ << 8 * i;
    return value;
}

static const uint8_t *take_bytes(struct input *input, size_t *size)
{
    const uint8_t *bytes = input->at;
    *size = *size < input->left ? *size : input->left;
    input->at += *size;
    input->left -= *size;
    return bytes;
}

static bool read_file(struct input *input, struct packed_file *file)
{
    *file = (struct packed_file){ .repairs = (uint8_t)take_number(input, 1) };
    size_t name_size = take_number(input, 1);
    const uint8_t *name = take_bytes(input, &name_size);
    memcpy(file->name, name, name_size);
    file->size = take_number(input, 3);
    const uint8_t *bytes = take_bytes(input, &file->size);
    file->bytes = malloc(file->size + 1);
    if (file->bytes)
        memcpy(file->bytes, bytes, file->size);
    return file->bytes;
}

bool packed_read(const uint8_t *bytes, size_t size, struct packed *out)
{
    struct input input = { 0 };
    out->count = 0;
    uint8_t *content = unpack(bytes, size, &input.left);
    input.at = content;
    bool is_good = content && input.left >= PACKED_OPTIONS;
    for (int i = 0; is_good && i < PACKED_OPTIONS; i++)
        out->options[i] = (uint8_t)take_number(&input, 1);
    while (is_good && input.left && out->count < PACKED_FILES_MAX) {
        is_good = read_file(&input, &out->files[out->count]);
        out->count += is_good;
    }
    free(content);
    if (!is_good)
        packed_release(out);
    return is_good;
}

void packed_release(struct packed *packed)
{
    for (int i = 0; i < packed->count; i++)
        free(packed->files[i].bytes);
    packed->count = 0;
}

/* ---- writing ---- */

size_t packed_write(const struct packed *packed, uint8_t *out, size_t size_max)
{
    struct buffer content = { 0 };
    size_t written = 0;
    buffer_append(&content, packed->options, PACKED_OPTIONS);
    for (int i = 0; i < packed->count; i++) {
        const struct packed_file *file = &packed->files[i];
        size_t name_size = strnlen(file->name, 255);
        buffer_append_byte(&content, file->repairs);
        buffer_append_byte(&content, (uint8_t)name_size);
        buffer_append(&content, file->name, name_size);
        for (int shift = 0; shift < 24; shift += 8)
            buffer_append_byte(&content, (uint8_t)(file->size >> shift));
        buffer_append(&content, file->bytes, file->size);
    }
    if (!packing)
        packing = ZSTD_createCCtx();
    if (packing && !content.failed && content.size <= PACKED_BYTES_MAX)
        written = ZSTD_compressCCtx(packing, out, size_max, content.data, content.size, 1);
    buffer_release(&content);
    return ZSTD_isError(written) ? 0 : written;
}

/* ---- use ---- */

static void put_checksum(uint8_t *bytes, size_t size)
{
    uint32_t checksum = crc32c(0, bytes, size);
    for (int i = 0; i < 4; i++)
        bytes[size + (size_t)i] = (uint8_t)(checksum >> 8 * i);
}

static void repair(const struct packed_file *file)
{
    size_t index = 16 * (size_t)(file->repairs >> REPAIR_COUNT_SHIFT);
    unsigned kind = file->repairs & REPAIR_INDEX_MASK;
    if (file->repairs & REPAIR_ZIPS)
        zip_repair(file->bytes, file->size);
    if (kind == REPAIR_CRC32C && file->size >= 4)
        put_checksum(file->bytes, file->size - 4);
    if (kind > REPAIR_CRC32C && file->size >= index + 4)
        put_checksum(file->bytes + (kind == REPAIR_INDEX_AT_END ? file->size - index - 4 : 0), index);
}

const char *packed_store(const struct packed *packed, struct store *store)
{
    for (int i = 0; i < packed->count; i++) {
        const struct packed_file *file = &packed->files[i];
        repair(file);
        store_memory_put(store, file->name, file->bytes, file->size, NULL);
    }
    /* A file at the top that stands alone is a checkpoint itself, else the store's root is. */
    bool is_file = packed->count == 1 && !strchr(packed->files[0].name, '/') && packed->files[0].name[0] != '.';
    return is_file ? packed->files[0].name : "";
}
