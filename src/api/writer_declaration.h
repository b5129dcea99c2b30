/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a writer of parts was opened with, as bytes: the first part keeps them as its words, if it has no others, and so anybody can
 * commit, without the program that wrote the parts.
 *
 * 8 bytes of magic, options (api/options_pack.h), name, number of tensors u64, and of each its key, dtype, rank u8 and shape i64, and
 * items (api/items_pack.h). Integers are little-endian.
 */
#ifndef API_WRITER_DECLARATION_H
#define API_WRITER_DECLARATION_H

#include "reshard/writer.h"

#include "api/items_pack.h"
#include "base/arena.h"
#include "base/buffer.h"

/* Appends nothing if the options have what cannot go along: then only the program can commit. input's version has been dealt with. */
reshard_status declaration_write(const reshard_writer_input *input, const reshard_convert_options *options, struct buffer *out,
                                 reshard_error *err);

/* Whether a part's words are a declaration. */
bool declaration_is(struct str words);

/* A declaration that has been read; what points into it lives as long as the bytes and it. */
struct declaration {
    struct arena arena;
    reshard_writer_input input;
    reshard_convert_options options;
    struct packed_items items;
};

/* FORMAT if they are none. Release *out on failure too. */
reshard_status declaration_read(struct str bytes, struct declaration *out, reshard_error *err);
void declaration_release(struct declaration *declaration);

#endif
