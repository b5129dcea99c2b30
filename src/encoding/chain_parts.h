/* SPDX-License-Identifier: Apache-2.0 */
/* What chain.c and the files of the single codecs share. Nobody else includes this. */
#ifndef ENCODING_CHAIN_PARTS_H
#define ENCODING_CHAIN_PARTS_H

#include "encoding/chain.h"

/*
 * Decodes all of in to at most `room` bytes at out; *made says how many. A result that does not fit is RESHARD_ERR_FORMAT: room is what
 * the chunk's own shape allows.
 */
struct chain_call {
    const struct chain_step *step;
    struct chain_scratch *scratch;
    const uint8_t *in;
    size_t in_size;
    uint8_t *out;
    size_t room, made;
    unsigned rooms; /* of scratch->between that were made: views keep what they look into, whatever their number */
};
typedef reshard_status (*chain_decoder)(struct chain_call *call, reshard_error *err);

reshard_status chain_inflate(struct chain_call *call, reshard_error *err);  /* chain_inflate.c: ZLIB GZIP DEFLATE */
reshard_status chain_unzstd(struct chain_call *call, reshard_error *err);   /* compress_zstd.c */
reshard_status chain_unlz4(struct chain_call *call, reshard_error *err);    /* chain_lz4.c */
reshard_status chain_unblosc(struct chain_call *call, reshard_error *err);  /* chain_blosc.c */
reshard_status chain_unbz2(struct chain_call *call, reshard_error *err);    /* chain_bz2.c */
reshard_status chain_unlzma(struct chain_call *call, reshard_error *err);   /* chain_lzma.c */

/* chain_filter.c: the size is known beforehand, room is exactly it. */
reshard_status chain_unshuffle(struct chain_call *call, reshard_error *err);
reshard_status chain_undelta(struct chain_call *call, reshard_error *err);
reshard_status chain_unastype(struct chain_call *call, reshard_error *err);
reshard_status chain_unscale(struct chain_call *call, reshard_error *err);
reshard_status chain_unpackbits(struct chain_call *call, reshard_error *err);
reshard_status chain_unblock(struct chain_call *call, reshard_error *err);

void chain_inflate_free(void *state);
void chain_unzstd_free(void *state);

/* Appends one compressed buffer. */
typedef reshard_status (*chain_packer)(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out,
                                       reshard_error *err);
reshard_status chain_zlib_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err);
reshard_status chain_zstd_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err);
reshard_status chain_lz4_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err);
reshard_status chain_blosc_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out,
                                reshard_error *err);

/* RESHARD_ERR_FORMAT: the step's result has more bytes than the chunk. */
reshard_status chain_too_long(const struct chain_call *call, reshard_error *err);

#endif
