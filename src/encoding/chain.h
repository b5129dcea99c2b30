/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec chains: how the bytes of an array chunk are coded as a whole, step by step, the way zarr does it. Unlike a stream
 * (compress.h), the decoded size is known before, and decoding is all or nothing: into exactly that many bytes.
 *
 * Steps stand in the order of decoding: the first one takes the stored bytes, the last one gives the elements.
 */
#ifndef ENCODING_CHAIN_H
#define ENCODING_CHAIN_H

#include "base/buffer.h"
#include "base/error.h"
#include "encoding/ggml_blocks.h"
#include "tensor/dtype.h"

#define CHAIN_STEPS_MAX 16

/* id, name as messages give it */
#define CHAIN_KINDS(X)                                                                 \
    X(ZLIB, "zlib")                                                                    \
    X(GZIP, "gzip")                                                                    \
    X(DEFLATE, "deflate")                                                              \
    X(ZSTD, "zstd")                                                                    \
    X(LZ4, "lz4")           /* u32 size, then one LZ4 block, as numcodecs */           \
    X(BLOSC, "blosc")       /* one Blosc 1 buffer */                                   \
    X(BZ2, "bz2")                                                                      \
    X(LZMA, "lzma")         /* .xz or .lzma */                                         \
    X(CRC32C, "crc32c")     /* the bytes and four of checksum behind (or before) */    \
    X(CRC32, "crc32")                                                                  \
    X(ADLER32, "adler32")                                                              \
    X(SLICE, "slice")       /* a part of the bytes is the chunk, the rest is others' */ \
    X(SHUFFLE, "shuffle")   /* the bytes of each plane of the elements together */     \
    X(DELTA, "delta")       /* differences of neighbours */                            \
    X(ASTYPE, "astype")     /* stored under another type */                            \
    X(SCALE, "fixedscaleoffset") /* stored as round((x - offset) * scale) */           \
    X(PACKBITS, "packbits") /* a bit an element */                                     \
    X(BLOCKS, "blocks")     /* quantised (ggml_blocks.h), shown as float32 */

enum chain_kind {
#define X(id, name) CHAIN_##id,
    CHAIN_KINDS(X)
#undef X
    CHAIN_KIND_COUNT
};

/* How numbers lie in the bytes: SHUFFLE to SCALE work on elements. */
struct chain_number {
    enum dtype dtype;
    bool is_swapped; /* in the other byte order */
};

struct chain_step {
    enum chain_kind kind;
    bool at_start;             /* CRC32C, CRC32, ADLER32: the checksum stands before the bytes */
    uint32_t element_bytes;    /* SHUFFLE */
    struct chain_number stored, shown; /* DELTA, ASTYPE, SCALE */
    double scale, offset;      /* SCALE */
    uint64_t slice_offset, slice_bytes, slice_within; /* SLICE: of so many bytes */
    enum ggml_block block;     /* BLOCKS */
    bool is_swapped;           /* BLOCKS: of a big-endian file */
};

struct chain {
    const struct chain_step *steps;
    uint32_t step_count;
    uint64_t decoded_bytes;
    const uint8_t *literal; /* not NULL: nothing is stored, the decoded bytes are these */
};

const char *chain_kind_name(enum chain_kind kind);

/* What people know it by: of blocks their kind ("Q4_K"). */
const char *chain_step_name(const struct chain_step *step);

/* Whether this build can decode it; if not, *library is what it was built without. */
bool chain_kind_is_built_in(enum chain_kind kind, const char **library);

/* Checks that the steps fit each other and the decoded size. The message names the step. */
reshard_status chain_check(const struct chain *chain, reshard_error *err);

/*
 * Whether decoding compares a checksum of the chunk: by the kinds of its steps alone, and as far as they may have one. For zstd and lzma
 * the stored bytes tell: head is their beginning (CHAIN_HEAD_BYTES, or all), past what a SLICE leaves out.
 */
#define CHAIN_HEAD_BYTES 8
bool chain_may_check(const struct chain *chain);
bool chain_is_checked(const struct chain *chain, const uint8_t *head, size_t size);

/* Bytes between the steps that decoding needs beside the result. The chain is checked. */
uint64_t chain_between_bytes(const struct chain *chain);

/* Bytes that decoding makes, as far as they are known before: what it costs. Those of slow codecs count several times. */
uint64_t chain_made_bytes(const struct chain *chain);

/* What decoding needs again and again; for one thread at a time. { 0 } is empty. */
struct chain_scratch {
    struct buffer between[2]; /* results of steps but the last one */
    void *zstd, *inflate;     /* states of libraries */
};
void chain_scratch_release(struct chain_scratch *scratch);

/* Decodes size bytes at `in` to exactly chain->decoded_bytes at out. The chain is checked, and no literal. */
reshard_status chain_decode(const struct chain *chain, const void *in, size_t size, void *out, struct chain_scratch *scratch,
                            reshard_error *err);

/* Decodes by the steps alone what nobody knows the size of: at most bytes_max, appended to out. */
reshard_status chain_decode_bounded(const struct chain_step *steps, uint32_t count, const void *in, size_t size, uint64_t bytes_max,
                                    struct chain_scratch *scratch, struct buffer *out, reshard_error *err);

/* How to compress: kinds ZLIB to BLOSC. */
struct chain_packing {
    enum chain_kind kind;
    int level;
    const char *inner;    /* BLOSC: its codec */
    int shuffle;          /* BLOSC: 0, 1 bytes, 2 bits */
    uint32_t element_bytes;
};

/* Appends one compressed buffer that one step of that kind decodes. */
reshard_status chain_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err);

#endif
