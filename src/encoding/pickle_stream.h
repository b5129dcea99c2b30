/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickle writer for large objects: protocol 4 or 5, call by call, in frames as CPython makes them, with every string, tuple and container
 * in the memo as there. What is written leaves frame by frame, so that memory is that of one frame. Payload is left out: the stream says
 * where in the file it belongs, and whoever moves it puts it there.
 *
 * The same calls with and without a sink give the same offsets: the first time to plan, the second to write.
 */
#ifndef ENCODING_PICKLE_STREAM_H
#define ENCODING_PICKLE_STREAM_H

#include "base/buffer.h"
#include "base/name_map.h"
#include "base/value.h"
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"

#define PICKLE_BATCH 1000 /* items that one APPENDS or SETITEMS takes */
#define PICKLE_NO_MEMO UINT32_MAX

/* Of protocol 4, beside those of pickle_write.h. */
enum { PICKLE_EMPTY_SET = 0x8F, PICKLE_ADDITEMS = 0x90, PICKLE_FROZENSET = 0x91, PICKLE_STACK_GLOBAL = 0x93 };

/* Payload between the bytes of a frame: behind the first `at` of them. */
struct pickle_gap {
    size_t at;
    uint64_t bytes;
};

/* Gets every byte that is no payload, in ascending order. */
typedef reshard_status (*pickle_sink)(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err);

struct pickle_stream {
    struct buffer frame;       /* bytes of the open frame, payload left out */
    struct pickle_gap *gaps;   /* payload in it */
    size_t gap_count, gap_capacity;
    uint64_t gap_bytes;        /* of all gaps */
    uint64_t offset;           /* in the file: where the open frame's header is, or the next byte if none is open */
    bool is_open;
    uint32_t memo_count;
    int protocol;
    pickle_sink sink;          /* NULL: offsets are counted, nothing is written */
    void *context;
    reshard_status status;     /* the first failure; what follows it does nothing */
    reshard_error err;
};

void pickle_stream_begin(struct pickle_stream *stream, int protocol, pickle_sink sink, void *context);

/* The sink that appends to a buffer, which is the context. */
reshard_status pickle_sink_buffer(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err);

/* STOP, and the last frame. *bytes (may be NULL): of the file. Releases the stream also on failure. */
reshard_status pickle_stream_end(struct pickle_stream *stream, uint64_t *bytes, reshard_error *err);

/*
 * One object each; those that go into the memo return their number there. pickle_stream_object comes before an object that is written by
 * opcodes: a frame may end there.
 */
void pickle_stream_object(struct pickle_stream *stream);
void pickle_stream_opcode(struct pickle_stream *stream, uint8_t opcode);
uint32_t pickle_stream_memoize(struct pickle_stream *stream);
void pickle_stream_get(struct pickle_stream *stream, uint32_t memo);
void pickle_stream_none(struct pickle_stream *stream);
void pickle_stream_bool(struct pickle_stream *stream, bool value);
void pickle_stream_int(struct pickle_stream *stream, int64_t value);
void pickle_stream_plain(struct pickle_stream *stream, const struct value *value); /* none, a truth value or a number of any size */
uint32_t pickle_stream_str(struct pickle_stream *stream, struct str text);
uint32_t pickle_stream_bytes(struct pickle_stream *stream, struct str bytes);

/* The string, from the memo if *memo says that it is there; else *memo is set. */
void pickle_stream_str_once(struct pickle_stream *stream, struct str text, uint32_t *memo);

/* Texts that are one object wherever they occur, as Python keeps one for each identifier. A zeroed one is empty. */
struct pickle_words {
    struct name_map names;
    uint32_t *memo;
    uint32_t capacity;
};
uint32_t pickle_stream_word(struct pickle_stream *stream, struct pickle_words *words, struct str text); /* from the memo if it is there */
void pickle_words_release(struct pickle_words *words);

/* Items of a tuple are written in between. _end: PICKLE_NO_MEMO for (). */
void pickle_stream_tuple_begin(struct pickle_stream *stream, size_t count);
uint32_t pickle_stream_tuple_end(struct pickle_stream *stream, size_t count);
uint32_t pickle_stream_int_tuple(struct pickle_stream *stream, const int64_t *values, size_t count);
uint32_t pickle_stream_int_list(struct pickle_stream *stream, const int64_t *values, size_t count);

/* An empty dict, list or set, to be filled. */
uint32_t pickle_stream_container(struct pickle_stream *stream, uint8_t opcode);

/* A class or function. *module: the memo of the module's name, which several share. */
uint32_t pickle_stream_global(struct pickle_stream *stream, const char *module_name, const char *name, uint32_t *module);

/* Bytes that the stream does not get (is_array: a bytearray, protocol 5): where in the file they belong. */
uint64_t pickle_stream_payload(struct pickle_stream *stream, uint64_t bytes, bool is_array);

/* A value as pickle_write writes it. */
void pickle_stream_value(struct pickle_stream *stream, const struct value *value, uint32_t graph_count, struct work *work);

/*
 * Items of a container that is on the stack, in CPython's batches: _items_begin once with their number, _item before each (a pair is one
 * item), _items_end. CPython knows how many items a dict or set has, but asks an object that is like a dict for one after the other: their
 * last batches differ.
 */
enum pickle_items_kind { PICKLE_ITEMS_LIST, PICKLE_ITEMS_DICT, PICKLE_ITEMS_PAIRS, PICKLE_ITEMS_SET };
struct pickle_items {
    uint64_t count, done;
    enum pickle_items_kind kind;
};
struct pickle_items pickle_stream_items_begin(struct pickle_stream *stream, uint64_t count, enum pickle_items_kind kind);
void pickle_stream_item(struct pickle_stream *stream, struct pickle_items *items);
void pickle_stream_items_end(struct pickle_stream *stream, struct pickle_items *items);

#endif
