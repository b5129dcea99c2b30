/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records that parts of a target leave beside it. All that a commit needs to know of a part.
 *
 * 8 bytes of magic, identity of the run u64, part u32, parts u32, size of the words u32 and the words, number of CRCs u32, then chunk u32
 * and CRC-32 u32 of each, then what was fed (convert/feeding.c), up to the CRC-32C of all before it u32. Integers are little-endian.
 */
#ifndef CONVERT_PART_RECORD_H
#define CONVERT_PART_RECORD_H

#include "base/cursor.h"
#include "convert/conversion_run.h"

#define PARTS_MAX 100000
#define PART_RECORD_NAME_MAX 48

struct part_record {
    uint64_t identity;
    uint32_t part, parts;
    struct str words;
    struct cursor crcs; /* pairs of chunk and CRC */
    struct cursor fed;
};

void part_record_name(uint32_t part, uint32_t parts, char out[PART_RECORD_NAME_MAX]);

/* That of the part that the run's options say: its CRCs but those that are 0, and what was fed. */
reshard_status part_record_make(const struct run *run, uint64_t identity, struct str fed, struct buffer *out, reshard_error *err);
bool part_record_parse(const struct buffer *bytes, struct part_record *out);

/* RESHARD_DIFFERS, with the hint to run the part again. */
reshard_status part_record_refuse(const char *name, const char *what, reshard_error *err);

/* That the options name a part, and the target can be written in parts. */
reshard_status part_check(const struct conversion *conversion, reshard_error *err);

/* How a transaction of a part, or of all that parts have left, begins. */
struct store_txn_options part_txn_options(const struct conversion *conversion, enum store_txn_share share);

/* Before a part writes: that no record beside the target is of another number of parts. No commit could take it together with its own. */
reshard_status part_records_check_number(const struct run *run, reshard_error *err);

/* Has each record of the run's transaction taken, in any order; they are of that identity, and together all parts. */
typedef reshard_status (*part_record_sink)(void *context, const char *name, const struct part_record *record, reshard_error *err);
reshard_status part_records_take(const struct run *run, uint64_t identity, part_record_sink sink, void *context, reshard_error *err);

#endif
