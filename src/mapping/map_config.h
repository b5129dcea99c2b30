/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration objects that hold a mapping as users of Paddle have it: JSON, YAML or a piece of Python with `aoa_statements`, a list of
 * texts, perhaps inside `aoa_config`, and `aoa_config_reverse`. A list alone is the statements. What it is shows in its first characters;
 * everything else is a plain mapping text.
 *
 * Out comes one text, a line end behind each statement, with a record of where in the file each part of it stands, so that diagnoses show
 * the file.
 */
#ifndef MAPPING_MAP_CONFIG_H
#define MAPPING_MAP_CONFIG_H

#include "base/limits.h"
#include "mapping/map_diagnosis.h"

/* From `offset` in the text on, characters stand in the file from `origin` on. */
struct map_segment {
    uint32_t offset, origin;
};

struct map_text {
    struct str file;             /* as it was given */
    struct str text;             /* the statements; the file itself if it is plain */
    bool is_config, is_reverse;  /* is_reverse: the file says aoa_config_reverse */
    struct buffer made;
    struct map_segment *segments;
    uint32_t count, capacity;
    bool no_memory;
};

/* Reads a file's bytes, which must outlive *out. What is wrong with a configuration object is diagnosed. From here on diagnoses are about
 * the text, and are moved to their places in the file. Release *out on failure too. */
reshard_status map_text_read(struct str file, const struct limits *limits, struct map_text *out, struct map_diagnoses *diagnoses,
                             reshard_error *err);

/* Where a part of the text stands in the file. */
struct map_span map_text_locate(const struct map_text *text, struct map_span span);

void map_text_release(struct map_text *text);

#endif
