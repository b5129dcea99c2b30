/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader: random access to the bytes of one object, whatever holds it. The parsers of encoding/ read through this, the
 * store provides it, and reader_window narrows one to a part (a blob inside a file) whose offsets start at 0.
 *
 * read_at fills the whole of [offset, offset + size) or fails (RESHARD_ERR_FORMAT "ends inside …" past the end,
 * RESHARD_ERR_IO otherwise). Safe to call from several threads at once.
 */
#ifndef BASE_READER_H
#define BASE_READER_H

#include "base/buffer.h"
#include "base/error.h"

struct reader {
    reshard_status (*read_at)(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err);
    uint64_t size;          /* bytes that can be read */
    uint64_t base;          /* where offset 0 lies in what context names */
    const void *context;    /* the implementation's */
    const char *name;       /* for messages */
};

/* Reader over memory, which must outlive it. */
struct reader reader_over_memory(const void *bytes, size_t size, const char *name);

/* The part [offset, offset + length) of inner as a reader; fails if it reaches beyond inner. inner's context must outlive it. */
reshard_status reader_window(const struct reader *inner, uint64_t offset, uint64_t length, struct reader *out, reshard_error *err);

/* Reads [offset, offset + size), checked against the reader's size, appending to out. */
reshard_status reader_append(const struct reader *reader, uint64_t offset, uint64_t size, struct buffer *out, reshard_error *err);

static inline reshard_status reader_read(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    return reader->read_at(reader, offset, out, size, err);
}

#endif
