/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON pull parser with positions. Strict (RFC 8259 and serde_json's reading of it): no comments, trailing commas, NaN,
 * byte order mark, leading zeros, lone surrogate escapes or invalid UTF-8; nesting is limited. Numbers keep their text, so that
 * callers tell 2 from 2.0, -0 from 0, and see all 64 bits. Strings may hold NUL. Why own code: docs/decisions.
 */
#ifndef ENCODING_JSON_H
#define ENCODING_JSON_H

#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/value.h"

enum json_event {
    JSON_OBJECT_BEGIN, JSON_OBJECT_END, JSON_ARRAY_BEGIN, JSON_ARRAY_END,
    JSON_KEY, JSON_STRING, JSON_NUMBER, JSON_TRUE, JSON_FALSE, JSON_NULL,
    JSON_END /* after the one top value; only white space was left */
};

struct json_parser; /* on the heap; holds its stack of open containers */

/* bytes must outlive the parser. base_offset is added to error offsets. Leading white space is allowed (see json_offset). */
struct json_parser *json_new(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits);
void json_free(struct json_parser *parser);

/* Next event. *text: the decoded KEY or STRING (into the input, or into the parser's buffer until the next call), or a
 * NUMBER's characters. */
reshard_status json_next(struct json_parser *parser, enum json_event *event, struct str *text, reshard_error *err);

/* Skips the value whose first event was just returned. */
reshard_status json_skip(struct json_parser *parser, enum json_event first, reshard_error *err);

/* Byte offset of the event returned last, with base_offset. */
uint64_t json_offset(const struct json_parser *parser);

/* A NUMBER's text as u64: digits only, no sign, fraction or exponent. */
bool json_number_is_u64(struct str text, uint64_t *out);

/* From here on NaN, Infinity and -Infinity are NUMBERs too, as they are for Python's json module. */
void json_take_non_finite(struct json_parser *parser);

/* A whole document as a value graph: objects are DICTs (duplicate keys refused), numbers INT, BIGINT or FLOAT. */
reshard_status json_parse(const void *bytes, size_t size, const struct limits *limits, struct value_graph *graph, reshard_error *err);

/* The same of what Python's json module writes: NaN, Infinity and -Infinity are FLOATs. For texts of Python libraries, such as zarr's
 * attributes and config.json; not for headers of safetensors, whose own reader refuses them. */
reshard_status json_parse_python(const void *bytes, size_t size, const struct limits *limits, struct value_graph *graph,
                                 reshard_error *err);

#endif
