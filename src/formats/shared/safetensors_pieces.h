/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces: what a safetensors target stores, one header entry each. A piece is a whole tensor, or a box of one where a file set
 * is sharded (Hugging Face storage of torch DCP). The head of a file (length, JSON, padding) is written as the library writes it.
 */
#ifndef FORMATS_SAFETENSORS_PIECES_H
#define FORMATS_SAFETENSORS_PIECES_H

#include "formats/driver.h"
#include "encoding/safetensors_header.h"

struct st_piece {
    struct str name;
    const int64_t *start;  /* NULL: the whole tensor */
    const int64_t *extent; /* what the entry's shape says */
    uint64_t bytes;
    uint64_t begin;  /* in the file's data; set by st_head_write */
    uint32_t tensor; /* of wanted and of the target's catalog */
    uint32_t file;   /* the driver's number of the file it goes to */
    int32_t rank;
    enum dtype dtype;
};

struct st_pieces {
    struct st_piece *items;
    uint32_t count, capacity;
};

/* String pairs of a __metadata__; the strings live elsewhere. */
struct st_metadata {
    bool is_present;      /* an empty map is not the same as none */
    struct name_map keys; /* pair i has key i */
    struct st_pair *pairs;
    uint32_t count, capacity;
};

/*
 * One whole piece for every tensor of wanted that is stored, in wanted's order. Tensors without data are noted as dropped. With
 * drop_ties, of tensors that share their bytes only the one with the first name is kept, and ties gets the pairs removed -> kept;
 * otherwise each is stored, and noted. Fails on what safetensors cannot say: dtypes it lacks, names that are no Unicode or not unique.
 */
reshard_status st_pieces_collect(const struct layout_request *request, struct target *target, bool drop_ties, struct st_pieces *out,
                                 struct st_metadata *ties, reshard_error *err);
reshard_status st_pieces_add(struct st_pieces *pieces, const struct st_piece *piece, reshard_error *err);
void st_pieces_release(struct st_pieces *pieces);

/* Adds a pair, or replaces the value of a key that is there. The strings must outlive the metadata. */
reshard_status st_metadata_put(struct st_metadata *metadata, struct str key, struct str value, reshard_error *err);
const struct str *st_metadata_get(const struct st_metadata *metadata, struct str key); /* NULL: there is no such key */
void st_metadata_release(struct st_metadata *metadata);

/* Sorts the pieces into the library's order, sets where they begin, and appends the file's head to out. *data_bytes is what they
 * take together. Pairs are sorted by key, because the library's own order is random. */
reshard_status st_head_write(struct st_piece *pieces, uint32_t count, const struct st_metadata *metadata, const struct limits *limits,
                             struct buffer *out, uint64_t *data_bytes, reshard_error *err);

#endif
