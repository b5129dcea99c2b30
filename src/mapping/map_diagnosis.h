/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diagnoses of a mapping text: what is wrong, where, and what would work. They are collected, so that one run tells all of them, and
 * rendered as compilers do: `file.map:3:14: error: …`, the source line, a caret, a hint.
 */
#ifndef MAPPING_MAP_DIAGNOSIS_H
#define MAPPING_MAP_DIAGNOSIS_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#define MAP_DIAGNOSES_MAX 200

/* A part of the text. An empty span is a place. */
struct map_span {
    uint32_t offset, size;
};

enum map_severity {
    MAP_NOTE,
    MAP_WARNING,
    MAP_UNPORTABLE, /* right, but Paddle's own engine would refuse it or crash: an error for those who ask for strict AOA */
    MAP_ERROR
};

struct map_diagnosis {
    enum map_severity severity;
    struct map_span span;
    const char *message, *hint; /* hint may be NULL */
};

struct map_text;

struct map_diagnoses {
    struct arena arena;
    const struct map_text *text; /* that spans are about, if it was taken out of a file (map_config.h); rows hold the places in the file */
    struct map_diagnosis *rows;
    uint32_t count, capacity;
    uint32_t error_count, warning_count, unportable_count, dropped; /* dropped: above MAP_DIAGNOSES_MAX, still counted */
    bool no_memory;
    bool is_ours; /* the text has what is ours alone: that something else in it is not portable either is not told */
};

/* Adds one. hint may be NULL. Always returns false, so that a failure reads `return map_diagnose(...)`. */
bool map_diagnose(struct map_diagnoses *diagnoses, enum map_severity severity, struct map_span span, const char *hint, const char *format,
                  ...) PRINTF_LIKE(5, 6);

/* 1-based line and column (in characters) of an offset. */
void map_position(struct str text, uint32_t offset, int *line, int *column);

/* Appends all diagnoses in the order of their places. strict: UNPORTABLE is called an error. false without memory. */
bool map_diagnoses_render(const struct map_diagnoses *diagnoses, struct str name, struct str text, bool strict, struct buffer *out);

/* The first error as an error record (RESHARD_ERR_USAGE), or RESHARD_ERR_MEMORY, or RESHARD_OK if there is no error. */
reshard_status map_diagnoses_status(const struct map_diagnoses *diagnoses, struct str name, struct str text, bool strict,
                                    reshard_error *err);

void map_diagnoses_release(struct map_diagnoses *diagnoses);

#endif
