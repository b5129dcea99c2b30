/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pickle whose big strings stay where they are: files of many gigabytes hold the bytes of arrays inside the pickle. The scan copies
 * everything but those bytes (and frames, which say nothing) into a small pickle that pickle_parse takes, and remembers where in the file
 * each part came from. It reads in small blocks and jumps over payload.
 */
#ifndef ENCODING_PICKLE_SKIM_H
#define ENCODING_PICKLE_SKIM_H

#include "base/limits.h"
#include "base/reader.h"
#include "encoding/pickle.h"

#define PICKLE_SKIM_STRING_MIN 1024 /* strings from this size on are left out */

/* A string that was left out; it is empty in the small pickle. */
struct pickle_skipped {
    size_t at;              /* in the small pickle, behind the string's length */
    uint64_t offset, bytes; /* in the file */
};

struct pickle_skim {
    struct buffer bytes;     /* the small pickle. Texts of the graph point into it */
    struct pickle_shift *shifts; /* where bytes of the file were left out */
    size_t shift_count, shift_capacity;
    struct pickle_skipped *skipped; /* by at */
    size_t skipped_count, skipped_capacity;
    uint64_t consumed; /* bytes of the file up to and including STOP */
};

/* Scans one pickle from the start of reader. Refuses what has no STOP, unknown opcodes, and strings and frames that end beyond the file. */
reshard_status pickle_skim(const struct reader *reader, const struct limits *limits, struct pickle_skim *out, reshard_error *err);
void pickle_skim_release(struct pickle_skim *skim);

/* pickle_parse of it: offsets in nodes and messages are those of the file. */
reshard_status pickle_skim_parse(const struct pickle_skim *skim, const struct limits *limits, struct value_graph *graph,
                                 struct pickle_report *report, reshard_error *err);

/* Where in the file the bytes of a STR, BYTES or BYTEARRAY lie. false: nowhere, since the pickle spells them another way (protocol 0). */
struct pickle_place {
    uint64_t offset, bytes;
    bool is_text; /* its opcode makes a str, so that the bytes are UTF-8; else they are as they are, also for a str of Python 2 */
};
bool pickle_skim_locate(const struct pickle_skim *skim, const struct value *string, struct pickle_place *out);

/* Whether the string was left out, so that text says nothing; NULL if it was not. */
const struct pickle_skipped *pickle_skim_skipped(const struct pickle_skim *skim, const struct value *string);

/* Reads a string that was left out into the graph's arena, where it was. */
reshard_status pickle_skim_load(const struct pickle_skim *skim, const struct reader *reader, const struct limits *limits,
                                struct value_graph *graph, struct value *string, reshard_error *err);

#endif
