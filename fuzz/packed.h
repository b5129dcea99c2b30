/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of several files in one input of a fuzz target. Unpacked it is
 *
 *   8 bytes that choose options (what they mean is the target's matter), then files:
 *   u8 repairs, u8 size of the name, name, u24 size, bytes           numbers are little-endian
 *
 * and an input is this, or a zstd frame of it: rank files repeat each other, and corpora stay small. make_corpus.py packs directories.
 */
#ifndef FUZZ_PACKED_H
#define FUZZ_PACKED_H

#include "store/store.h"

#define PACKED_OPTIONS 8
#define PACKED_FILES_MAX 160
#define PACKED_BYTES_MAX (768 << 10)

/* What is set right in a file before it is used, so that a mutated one gets past its checksums. Upper bits: entries of the index. */
enum packed_repairs {
    REPAIR_ZIPS = 1,
    REPAIR_CRC32C = 2,         /* the last 4 bytes are the checksum of those before */
    REPAIR_INDEX_AT_END = 4,   /* the same for a zarr shard's index: 16 bytes an entry, the checksum behind it */
    REPAIR_INDEX_AT_START = 6,
    REPAIR_INDEX_MASK = 6,
    REPAIR_COUNT_SHIFT = 3
};

struct packed_file {
    char name[256];
    uint8_t repairs;
    uint8_t *bytes; /* malloc'd */
    size_t size;
};

struct packed {
    uint8_t options[PACKED_OPTIONS];
    struct packed_file files[PACKED_FILES_MAX];
    int count;
};

/* False without memory, or if there is not even a whole set of options. What is cut short ends there. */
bool packed_read(const uint8_t *bytes, size_t size, struct packed *out);
void packed_release(struct packed *packed);

/* As a zstd frame; 0 if it does not fit. */
size_t packed_write(const struct packed *packed, uint8_t *out, size_t size_max);

/* Puts the files, repaired, into a memory store; the name to open is returned: "" or that of the only file at the top. */
const char *packed_store(const struct packed *packed, struct store *store);

#endif
