/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Header of a safetensors file: read and checked whole before anything is believed.
 *
 *   offset 0      u64 little-endian N     bytes of the header
 *   offset 8      N bytes                 UTF-8 JSON object, spaces at its end
 *   offset 8+N    the tensors             row-major, little-endian, packed without holes up to the end of the file
 *
 *   {"__metadata__":{"k":"v"},"NAME":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}
 *
 * 1.4 million tensors (a header of 100 MB, the library's own limit) take some 200 MB while they are read.
 */
#ifndef FORMATS_SAFETENSORS_HEADER_H
#define FORMATS_SAFETENSORS_HEADER_H

#include "base/limits.h"
#include "base/name_map.h"
#include "base/reader.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

#define ST_METADATA_KEY "__metadata__"

struct st_entry {
    uint64_t begin, end; /* relative to data_start */
    uint64_t position;   /* of its name in the file, for messages */
    uint64_t shape;      /* index into shapes */
    uint16_t rank;
    uint8_t dtype; /* enum dtype */
};

struct st_pair {
    struct str key, value;
};

struct st_header {
    struct name_map names; /* entry i is called name i */
    struct st_entry *entries;
    int64_t *shapes;
    uint32_t count, capacity; /* entries */
    uint64_t shape_count, shape_capacity;
    bool has_metadata;             /* an empty map is not the same as none */
    bool starts_with_space;        /* legal for the library, not for the format's text */
    struct name_map metadata_keys; /* metadata value i belongs to key i */
    struct str *metadata_values;   /* in the map's arena */
    uint32_t metadata_capacity;
    uint64_t data_start; /* 8 + N */
};

/*
 * Reads and checks the header of a whole file; out must be empty. Refuses what the library (0.8) refuses, and also duplicate names
 * unless lenient (then the last wins, as there), entries written as lists, and dimensions beyond 63 bits.
 */
enum st_care { ST_STRICT, ST_LENIENT, ST_CUT_OFF /* lenient, and the file may end before its tensors do */, ST_STRICT_CUT_OFF };
reshard_status st_header_read(const struct reader *reader, const struct limits *limits, enum st_care care, struct st_header *out,
                              reshard_error *err);
void st_header_release(struct st_header *header);

/* NULL if the file holds only scalars. */
static inline const int64_t *st_entry_shape(const struct st_header *header, const struct st_entry *entry)
{
    return header->shapes ? header->shapes + entry->shape : NULL;
}

/* Value of a metadata key; false if there is none. */
bool st_metadata_find(const struct st_header *header, const char *key, struct str *value);

/* Prefixes an error with what was read, and its offset there if it has one: "header: byte 12: …". */
void st_error_place(reshard_error *err, const char *what);

/* The JSON text of a header into out's arrays, without the checks on ranges; base_offset is where the text stands in the file. */
reshard_status st_header_parse(struct str json, uint64_t base_offset, const struct limits *limits, bool lenient, struct st_header *out,
                               reshard_error *err);

#endif
