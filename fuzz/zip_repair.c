/* SPDX-License-Identifier: Apache-2.0 */
#include "zip_repair.h"

#include "base/crc32.h"

#include <string.h>

#define END_RECORD_BYTES 22
#define CENTRAL_BYTES 46
#define LOCAL_BYTES 30
#define MEMBERS_MAX 64

static uint32_t get_u16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

static uint32_t get_u32(const uint8_t *at)
{
    return get_u16(at) | get_u16(at + 2) << 16;
}

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void repair_member(uint8_t *archive, size_t size, uint8_t *central)
{
    size_t header = get_u32(central + 42), bytes = get_u32(central + 20);
    if (header > size || size - header < LOCAL_BYTES || get_u16(central + 10) != 0)
        return;
    uint8_t *local = archive + header;
    size_t payload = header + LOCAL_BYTES + get_u16(local + 26) + get_u16(local + 28);
    if (payload > size || size - payload < bytes)
        return;
    uint32_t crc32 = crc32_zip(0, archive + payload, bytes);
    put_u32(central + 16, crc32);
    if (!(get_u16(local + 6) & 8)) {
        put_u32(local + 14, crc32);
    } else {
        uint8_t *descriptor = archive + payload + bytes;
        if (size - payload - bytes >= 8 && memcmp(descriptor, "PK\7\10", 4) == 0)
            put_u32(descriptor + 4, crc32);
    }
}

/* The archive whose end record lies at end. A zip64 end record and its locator may stand before that. */
static void repair_archive(uint8_t *bytes, size_t end)
{
    size_t directory_bytes = get_u32(bytes + end + 12), offset = get_u32(bytes + end + 16), directory_end = end;
    if (end >= 76 && memcmp(bytes + end - 20, "PK\6\7", 4) == 0)
        directory_end = end - 76;
    if (directory_bytes > directory_end || offset > directory_end - directory_bytes)
        return;
    size_t at = directory_end - directory_bytes;
    uint8_t *archive = bytes + (at - offset);
    size_t archive_bytes = directory_end - (at - offset);
    for (int i = 0; i < MEMBERS_MAX && directory_end - at >= CENTRAL_BYTES && memcmp(bytes + at, "PK\1\2", 4) == 0; i++) {
        repair_member(archive, archive_bytes, bytes + at);
        size_t entry = CENTRAL_BYTES + get_u16(bytes + at + 28) + get_u16(bytes + at + 30) + get_u16(bytes + at + 32);
        if (entry > directory_end - at)
            return;
        at += entry;
    }
}

void zip_repair(uint8_t *bytes, size_t size)
{
    for (size_t end = 0; size >= END_RECORD_BYTES && end <= size - END_RECORD_BYTES; end++) {
        if (bytes[end] == 'P' && memcmp(bytes + end, "PK\5\6", 4) == 0)
            repair_archive(bytes, end);
    }
}
