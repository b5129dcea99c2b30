/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickle reader that never executes: protocols 0-5, every opcode. What the pickle would call or build becomes inert
 * nodes of a value graph (base/value.h). Iterative, bounded by limits, linear in the input. What the graph takes is spent from
 * limits->budget, now and later.
 *
 * Texts in the graph point into the input, which must outlive the graph (decoded texts lie in its arena). report may be
 * NULL. On failure graph->root stays as it was, and nodes that were made remain in the arena.
 */
#ifndef ENCODING_PICKLE_H
#define ENCODING_PICKLE_H

#include "base/error.h"
#include "base/limits.h"
#include "base/value.h"

struct pickle_report {
    size_t consumed;           /* bytes up to and including STOP */
    int protocol;              /* as PROTO says, 0 if it does not occur */
    bool stack_left;           /* values were left on the stack at STOP */
    bool not_weights_only;     /* an opcode occurs that torch's weights_only loader refuses */
    uint64_t not_weights_only_offset;
};

/*
 * Parses one pickle from the start of bytes. base_offset is added to the offsets in errors and nodes. Refuses: unknown
 * opcodes, stack underflow, popping past a mark, extension registry codes, out-of-band buffers, missing memo entries, BUILD or
 * items on nodes that cannot take them, persistent ids as pickle.load does, truncated input, and whatever passes a limit.
 */
reshard_status pickle_parse(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits,
                            struct value_graph *graph, struct pickle_report *report, reshard_error *err);

/* The same with persistent ids, VALUE_PERSID: an object is only named, and what it is the pickle's own reader knows, as torch.load does. */
reshard_status pickle_parse_with_ids(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits,
                                     struct value_graph *graph, struct pickle_report *report, reshard_error *err);

/* Bytes were left out of a pickle (encoding/pickle_skim.h): what stands at `at` and behind lay so many bytes further on, all told. */
struct pickle_shift {
    size_t at;
    uint64_t bytes;
};

/* pickle_parse for a pickle that is not all there: offsets are those of the whole. Shifts rise. */
reshard_status pickle_parse_shifted(const void *bytes, size_t size, const struct pickle_shift *shifts, size_t shift_count,
                                      const struct limits *limits, struct value_graph *graph, struct pickle_report *report,
                                      reshard_error *err);

/* What a node is, for messages: "a list", "the result of a call of os.system". Returns out. */
#define PICKLE_DESCRIBE_MAX 256
const char *pickle_describe(const struct value *value, char out[PICKLE_DESCRIBE_MAX]);

#endif
