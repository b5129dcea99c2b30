/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickle writer: protocol 2 (what torch.load(weights_only=True) takes), from value graphs or call by call. Deterministic.
 *
 * Nodes met more than once, and cycles through lists, dicts and objects, are written once and fetched from the memo.
 */
#ifndef ENCODING_PICKLE_WRITE_H
#define ENCODING_PICKLE_WRITE_H

#include "base/buffer.h"
#include "base/value.h"

/* Low level: each appends one construct to out; failures are kept in out->failed. */
void pickle_put_begin(struct buffer *out); /* PROTO 2 */
void pickle_put_end(struct buffer *out);   /* STOP */
void pickle_put_none(struct buffer *out);
void pickle_put_bool(struct buffer *out, bool value);
void pickle_put_int(struct buffer *out, int64_t value);
void pickle_put_float(struct buffer *out, double value);
void pickle_put_str(struct buffer *out, struct str text);
void pickle_put_global(struct buffer *out, const char *module, const char *name);
void pickle_put_opcode(struct buffer *out, uint8_t opcode);
void pickle_put_int_tuple(struct buffer *out, const int64_t *values, size_t count);

enum pickle_opcode {
    PICKLE_MARK = '(', PICKLE_EMPTY_TUPLE = ')', PICKLE_EMPTY_LIST = ']', PICKLE_EMPTY_DICT = '}', PICKLE_TUPLE = 't',
    PICKLE_TUPLE1 = 0x85, PICKLE_TUPLE2 = 0x86, PICKLE_TUPLE3 = 0x87, PICKLE_REDUCE = 'R', PICKLE_BUILD = 'b', PICKLE_NEWOBJ = 0x81,
    PICKLE_BINPERSID = 'Q', PICKLE_APPENDS = 'e', PICKLE_SETITEMS = 'u', PICKLE_SETITEM = 's', PICKLE_APPEND = 'a'
};

/*
 * Appends the whole pickle (PROTO 2 … STOP) of a graph node. substitute, if given, is asked for every node before it is
 * written; it appends what stands for the node and returns true, or returns false to have the node written as it is. It
 * may not use the memo. Give out a limit: tuples that contain themselves make a pickle longer than its source.
 *
 * Memory and time are those of what the root reaches, however large the graph around it is. Each part that is reached, and be it that the
 * substitute does not show it, spends a step of work (may be NULL): for who writes parts of a graph that may share most of it.
 */
typedef bool (*pickle_substitute)(const struct value *value, struct buffer *out, void *context);
reshard_status pickle_write(const struct value *root, uint32_t graph_count, struct work *work, pickle_substitute substitute, void *context,
                            struct buffer *out, reshard_error *err);

/*
 * Appends the node to a pickle of protocol 4 or 5 that is being written: no PROTO and no STOP, names as Python 3 has them, bytes as they
 * are. *memo_count: entries that the reader's memo has; those that this adds are counted.
 */
reshard_status pickle_write_part(const struct value *root, uint32_t graph_count, struct work *work, uint32_t *memo_count,
                                 struct buffer *out, reshard_error *err);

#endif
