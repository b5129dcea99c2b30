/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include "base/crc32.h"
#include "base/cursor.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The file: 8 bytes of magic (zeros once it is retired), identity u64, kind u64 (1: the target is a directory), CRC-32C of these 24 bytes
 * u32; then records: size u32, CRC-32C of the bytes u32, bytes. A record that a killed run left incomplete ends the journal. Integers are
 * little-endian.
 */
#define HEADER_BYTES 28
#define MAGIC_BYTES 8
#define RECORD_HEADER_BYTES 8
#define RECORD_BYTES_MAX ((uint32_t)1 << 30)
static const char magic[MAGIC_BYTES + 1] = "RSHJRN01", retired[MAGIC_BYTES] = { 0 };

static void make_header(uint64_t identity, bool is_directory, uint8_t out[HEADER_BYTES])
{
    memcpy(out, magic, MAGIC_BYTES);
    for (int i = 0; i < 8; i++) {
        out[8 + i] = (uint8_t)(identity >> (8 * i));
        out[16 + i] = (uint8_t)(i == 0 && is_directory);
    }
    uint32_t crc = crc32c(0, out, 24);
    for (int i = 0; i < 4; i++)
        out[24 + i] = (uint8_t)(crc >> (8 * i));
}

/* The record at offset, if it is whole, appended to out; false if there is none. */
static bool store_journal_read_record(int fd, uint64_t offset, uint64_t file_bytes, struct buffer *out, uint64_t *next)
{
    uint8_t header[RECORD_HEADER_BYTES];
    size_t done;
    if (file_bytes < offset || file_bytes - offset < RECORD_HEADER_BYTES || !pread_whole(fd, offset, header, sizeof(header), &done))
        return false;
    uint32_t size = (uint32_t)load_le(header, 4), crc = (uint32_t)load_le(header + 4, 4);
    if (size > RECORD_BYTES_MAX || size > file_bytes - offset - RECORD_HEADER_BYTES)
        return false;
    uint8_t *bytes = buffer_extend(out, size);
    if (!bytes)
        return false;
    if (!pread_whole(fd, offset + RECORD_HEADER_BYTES, bytes, size, &done) || crc32c(0, bytes, size) != crc) {
        out->size -= size;
        return false;
    }
    *next = offset + RECORD_HEADER_BYTES + size;
    return true;
}

bool journal_matches(int fd, uint64_t identity, bool is_directory, uint64_t *end)
{
    uint8_t found[HEADER_BYTES], wanted[HEADER_BYTES];
    struct stat info;
    size_t done;
    make_header(identity, is_directory, wanted);
    if (!pread_whole(fd, 0, found, sizeof(found), &done) || memcmp(found, wanted, sizeof(found)) != 0 || fstat(fd, &info) < 0)
        return false;
    struct buffer record = { 0 };
    *end = HEADER_BYTES;
    while (store_journal_read_record(fd, *end, (uint64_t)info.st_size, &record, end))
        buffer_clear(&record);
    bool good = !record.failed;
    buffer_release(&record);
    return good;
}

int journal_start(int fd, uint64_t identity, bool is_directory, uint64_t *end)
{
    uint8_t header[HEADER_BYTES];
    size_t done;
    make_header(identity, is_directory, header);
    if (ftruncate(fd, 0) < 0 || !pwrite_whole(fd, 0, header, sizeof(header), &done))
        return -1;
    *end = sizeof(header);
    return 0;
}

/* In place: what it says is still there when it is to be somebody's again, and no room is needed for that. */
static int journal_put_magic(int fd, const char *bytes)
{
    size_t done;
    return pwrite_whole(fd, 0, bytes, MAGIC_BYTES, &done) ? 0 : -1;
}

int journal_retire(int fd)
{
    return journal_put_magic(fd, retired);
}

int journal_revive(int fd)
{
    return journal_put_magic(fd, magic);
}

bool journal_is_free(int fd)
{
    char found[MAGIC_BYTES];
    struct stat info;
    size_t done;
    if (fstat(fd, &info) < 0)
        return false;
    return info.st_size == 0 || (pread_whole(fd, 0, found, sizeof(found), &done) && memcmp(found, retired, sizeof(found)) == 0);
}

int journal_append(int fd, const void *bytes, size_t size, uint64_t *end)
{
    if (size > RECORD_BYTES_MAX) {
        errno = EFBIG;
        return -1;
    }
    struct buffer record = { 0 };
    size_t done;
    buffer_append_u32le(&record, (uint32_t)size);
    buffer_append_u32le(&record, crc32c(0, bytes, size));
    buffer_append(&record, bytes, size);
    bool good = !record.failed;
    errno = ENOMEM;
    /* What an earlier run left incomplete behind the last whole record must not follow this one. */
    if (good)
        good = ftruncate(fd, (off_t)*end) == 0 && pwrite_whole(fd, *end, record.data, record.size, &done);
    if (good)
        *end += record.size;
    int number = errno;
    buffer_release(&record);
    errno = number;
    return good ? 0 : -1;
}

reshard_status journal_read(int fd, uint64_t end, struct buffer *out, reshard_error *err)
{
    uint64_t at = HEADER_BYTES;
    while (at < end) {
        if (!store_journal_read_record(fd, at, end, out, &at)) {
            if (out->failed)
                return error_set_memory(err);
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "the journal changed while it was read");
        }
    }
    return RESHARD_OK;
}
