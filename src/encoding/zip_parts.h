/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind zip.h share. Nobody else includes this. */
#ifndef ENCODING_ZIP_PARTS_H
#define ENCODING_ZIP_PARTS_H

#include "encoding/zip.h"

#define ZIP_LOCAL_SIGNATURE UINT32_C(0x04034B50)
#define ZIP_CENTRAL_SIGNATURE UINT32_C(0x02014B50)
#define ZIP_END_SIGNATURE UINT32_C(0x06054B50)
#define ZIP_END64_SIGNATURE UINT32_C(0x06064B50)
#define ZIP_LOCATOR_SIGNATURE UINT32_C(0x07064B50)
#define ZIP_DESCRIPTOR_SIGNATURE UINT32_C(0x08074B50)

#define ZIP_LOCAL_BYTES 30
#define ZIP_CENTRAL_BYTES 46
#define ZIP_END_BYTES 22
#define ZIP_END64_BYTES 56
#define ZIP_LOCATOR_BYTES 20
#define ZIP_END_SEARCH_BYTES (65535 + ZIP_END_BYTES) /* a comment is as long as 16 bits allow */
#define ZIP_DESCRIPTOR_BYTES_MIN 12

#define ZIP_BIG32 UINT32_C(0xFFFFFFFF) /* the value lies in the zip64 field */
#define ZIP_BIG16 UINT16_C(0xFFFF)

#define ZIP_FLAG_DESCRIPTOR 0x0008
#define ZIP_FLAG_UTF8 0x0800
#define ZIP_FLAGS_ENCRYPTED 0x2041

#define ZIP_METHOD_STORED 0
#define ZIP_METHOD_DEFLATED 8

#define ZIP_EXTRA_ZIP64 0x0001
#define ZIP_EXTRA_PADDING 0x4246 /* "FB" */

/* Where the directory lies, as the end records say. */
struct zip_directory {
    uint64_t offset, bytes, count;
    uint64_t end_record; /* of the classic one */
};

/* The archive's bytes [offset, offset + size) if a cache holds them, else NULL. */
const uint8_t *zip_cached(const struct zip_archive *archive, uint64_t offset, size_t size);

/* Fills the caches, finds the end records and checks what they say; sets trailing_bytes. */
reshard_status zip_find_directory(const struct reader *reader, struct zip_archive *archive, struct zip_directory *out, reshard_error *err);

/* Refuses an end record that hides between the last member, which ends at members_end, and the directory. */
reshard_status zip_check_gap(const struct reader *reader, const struct zip_archive *archive, uint64_t members_end, reshard_error *err);

/* The sizes in the zip64 field of a local header's extra fields; false if there is none. */
bool zip_local_sizes64(const uint8_t *extra, size_t size, uint64_t *bytes, uint64_t *stored_bytes);

/* Checks all names, refuses or marks equal ones as the archive's naming has it, sets top and the table behind zip_find. */
reshard_status zip_index_names(struct zip_archive *archive, reshard_error *err);

/* Reads the local headers, sets payload_offset, refuses overlaps; *members_end is where the last member ends. */
reshard_status zip_locate_members(const struct reader *reader, struct zip_archive *archive, uint64_t *members_end, reshard_error *err);

#endif
