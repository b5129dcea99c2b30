/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catalog: the neutral picture of a checkpoint. Tensors (key, dtype, global shape) are made of chunks; a chunk is a box of
 * the tensor's index space, or a flat run of that box's row-major order; its bytes are an extent of an object. Non-tensor
 * items ride along. Both sides of a plan are catalogs: the source as a driver found it, the target as one laid it out.
 *
 * Size: arrays, not a heap object a chunk. A chunk is 48 bytes; index vectors are interned in one pool (regular grids share
 * nearly all of them), rare properties lie in side tables. Building is add_*, then catalog_seal once, then only reading; resolving
 * may still add vectors and layouts, which moves the pools: keep indices, not pointers, across it.
 */
#ifndef CATALOG_CATALOG_H
#define CATALOG_CATALOG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/name_map.h"
#include "base/value.h"
#include "encoding/chain.h"
#include "encoding/compress.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

#define CATALOG_NONE UINT32_MAX
#define CATALOG_WARNINGS_MAX 1000 /* that are damage, and as many that are not: neither hides the other */

/* One step of the path from the root of a nested state dict to a leaf. */
struct path_part {
    enum { PATH_KEY, PATH_INDEX, PATH_INT_KEY } kind; /* string key, list position, integer dict key */
    struct str key;   /* PATH_KEY */
    int64_t index;    /* PATH_INDEX, PATH_INT_KEY */
};

enum tensor_flags {
    TENSOR_HIDDEN = 1,        /* payload inside an opaque item: moved, never listed */
    TENSOR_PARAMETER = 2,
    TENSOR_REQUIRES_GRAD = 4,
    TENSOR_AMBIGUOUS = 8,     /* another tensor or item has the same key: only the path tells them apart */
    TENSOR_NO_DATA = 16,      /* shape only (meta) */
    TENSOR_TORN = 32          /* its chunks do not hold each element once, and that was borne: told as damage */
};

struct catalog_tensor {
    struct str key;
    enum dtype dtype;
    int32_t rank;
    uint32_t shape;           /* index into the vector pool */
    uint32_t path;            /* index into paths, or CATALOG_NONE: the key is the whole path */
    uint16_t path_count;
    uint16_t flags;
    uint32_t tied_to;         /* tensor with the very same bytes (same storage, same view), or CATALOG_NONE */
    uint32_t storage_group;   /* tensors that view one storage share this number, or CATALOG_NONE */
    uint32_t first_chunk, chunk_count; /* after catalog_seal */
    uint32_t stored_as;       /* 1 + type of its chunks' elements, where they are cast to dtype as they are read; 0: they are of dtype */
};

static inline enum dtype catalog_stored_dtype(const struct catalog_tensor *tensor)
{
    return tensor->stored_as ? (enum dtype)(tensor->stored_as - 1) : tensor->dtype;
}

enum chunk_flags {
    CHUNK_UNRESOLVED = 1,   /* offset and bytes cover a blob whose payload the driver has yet to find (see driver resolve) */
    CHUNK_REPLICA = 2,      /* same box (or flat run) as an earlier chunk of the tensor: copies that must agree */
    CHUNK_SWAP = 4,         /* elements in the other byte order */
    CHUNK_CONJUGATE = 8,
    CHUNK_NEGATE = 16,
    CHUNK_HAS_CRC = 32,     /* the side table knows a CRC-32 of the payload */
    CHUNK_WANT_CRC = 64,    /* target: the driver wants the CRC-32 of its bytes; those of a strided chunk between its elements as zeros */
    CHUNK_CHECKED = 256,    /* verify has compared a stored checksum of its bytes, or does so when it reads them */
    CHUNK_PLAIN_NAN = 128,  /* BF16: whoever wrote it reads every NaN as 0xffff */
    CHUNK_DAMAGED = 512     /* verify has told that its bytes are no elements: nobody reads it again */
};

struct catalog_chunk {
    uint64_t offset;   /* of element 0, in the object, or in the decoded stream if encoded */
    uint64_t bytes;    /* extent: from offset on, all bytes that belong to the chunk (its storage, for views) */
    uint32_t tensor;
    uint32_t object;
    uint32_t start, extent; /* vector pool: the box, `rank` numbers each */
    uint32_t layout;   /* side table index + 1, 0: row-major, unencoded, whole box */
    uint16_t flags;
    uint16_t writer;   /* rank that wrote it, saturated; 0 if unknown */
    uint32_t driver_data; /* the driver's own */
    uint32_t reserved;
};

/* Rare properties of a chunk. */
struct chunk_layout {
    uint32_t strides;          /* vector pool, in elements; CATALOG_NONE: row-major. A target's chunks may have them too: a block of columns
                                * of a row-major file is one chunk. No two elements of it may then have the same place */
    int64_t flat_begin, flat_count; /* flat run of the box; flat_count -1: whole box */
    enum codec codec;          /* then offset counts decoded bytes of the range below */
    uint64_t coded_offset, coded_bytes;
    enum codec outer_codec;    /* a coded range inside a coded range (a deflated member of a zstd blob): decoded first */
    uint64_t outer_offset, outer_bytes;
    const struct chain *chain; /* not NULL: the chunk is coded as a whole; [coded_offset, +coded_bytes) decodes to chain->decoded_bytes,
                                * in which the chunk's offset counts. codec is NONE then. The chain lives in the arena. */
    uint32_t crc32;            /* of [crc_offset, crc_offset + crc_bytes) of the object */
    uint64_t crc_offset, crc_bytes;
};

struct catalog_object {
    struct str name;  /* relative to the store's root */
    uint64_t bytes;
    const struct chain_packing *packing; /* target: compress the whole object once its payload is written; NULL: leave it. bytes are those
                                          * before that */
};

enum item_kind {
    ITEM_VALUE,  /* value is there */
    ITEM_BLOB,   /* a torch.save container in an extent; driver loads it on request */
    ITEM_RAW,    /* bytes in an extent, opaque */
    ITEM_FILE,   /* a side file (config.json, tokenizer) carried along; object names it */
    ITEM_LATE    /* a value that lies in an extent in the format's own way; driver loads it on request */
};

struct catalog_item {
    struct str key;
    uint32_t path;       /* as for tensors */
    uint16_t path_count;
    uint16_t writer;
    enum item_kind kind;
    const struct value *value;          /* ITEM_VALUE */
    const struct value_graph *graph;    /* it belongs to */
    uint32_t object;                    /* ITEM_BLOB, ITEM_LATE, ITEM_RAW, ITEM_FILE */
    uint64_t offset, bytes;
    enum codec codec;                   /* of the extent */
    bool is_ambiguous;
    bool is_checked;                    /* a stored checksum of it was compared */
    bool is_beside;                     /* state that lies in files of its own beside the model's: no part of the model's state dict */
};

struct catalog_warning {
    struct str text;
    struct str key; /* the tensor that is lost: one that is named, though nothing says of what type and shape; else empty */
    bool is_damage; /* verify counts it as a failure */
    uint32_t object;        /* damage whose place is known: bytes [offset, +bytes) of that object; bytes is 0 elsewhere */
    uint64_t offset, bytes;
};

/* A fact that `inspect` prints: "framework version" … in order of addition. */
struct catalog_fact {
    struct str name, value;
};

struct catalog {
    struct arena arena;
    const char *format; /* driver's name */
    struct limits limits; /* catalog_new sets the defaults */
    struct catalog_tensor *tensors;
    struct catalog_chunk *chunks;
    struct catalog_object *objects;
    struct catalog_item *items;
    struct chunk_layout *layouts;
    struct path_part *paths;
    struct catalog_warning *warnings;
    struct catalog_fact *facts;
    uint32_t tensor_count, chunk_count, object_count, item_count, layout_count, path_count, warning_count, fact_count;
    uint32_t tensor_capacity, chunk_capacity, object_capacity, item_capacity, layout_capacity, path_capacity, warning_capacity,
        fact_capacity;
    int64_t *vectors;     /* pool of interned index vectors */
    int64_t **old_vectors; /* where it lay since the catalog was sealed: pointers to its numbers stay good */
    uint32_t old_vector_count, old_vector_capacity;
    uint32_t vector_count, vector_capacity, vector_slots_capacity, vector_slots_used;
    uint32_t *vector_slots;
    uint64_t vector_seed; /* of their hash, against numbers chosen to collide */
    uint32_t damage_count;                     /* of the warnings */
    uint32_t warnings_dropped, damage_dropped; /* above CATALOG_WARNINGS_MAX: of those that are not damage, and of those that are */
    uint32_t lost_count;     /* tensors that are named but lost, also those whose warning was dropped */
    bool has_unnamed_loss;   /* tensors may be lost whose names nothing tells */
    bool is_short_of_memory; /* a warning found none: catalog_seal and what a source is asked for fail, so that nothing is left unsaid */
    struct name_map object_names;
    struct name_map keys;  /* of listed tensors, after seal: key -> position in key_tensors */
    uint32_t *key_tensors; /* tensor index by key number (the last tensor of that key) */
    bool is_sealed;
    struct value_graph **graphs; /* owned: what items' values and tree belong to */
    uint32_t graph_count;
    const struct value *tree;    /* the original nested object (torch files), or NULL; value.tensor counts this catalog's tensors */
    const struct value_graph *tree_graph;
    uint32_t ranks;              /* number of ranks that wrote it, 0 unknown */
    bool is_far;                 /* its bytes come over a network: whoever reads waits for answers, and not for a CPU */
    bool shows_overlaps;         /* before seal: chunks that overlap are a damage warning, for who only looks */
    bool has_overlaps;           /* after seal: some do; no plan reads it */
    bool has_writers;            /* after seal: its chunks tell the ranks that wrote them */
    bool names_are_checked;      /* a stored checksum of the names, shapes and types was compared */
};

struct catalog *catalog_new(const char *format);
void catalog_free(struct catalog *catalog);

/* Interns a vector of at most RANK_MAX numbers: until the catalog is sealed, equal vectors have equal indices. values may lie in the
 * pool. CATALOG_NONE without memory. count may be 0. */
uint32_t catalog_vector(struct catalog *catalog, const int64_t *values, int count);
static inline const int64_t *catalog_vector_at(const struct catalog *catalog, uint32_t vector)
{
    return catalog->vectors + vector;
}

static inline bool catalog_same_shape(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b,
                                      const struct catalog_tensor *y)
{
    return shape_equal(x->rank, catalog_vector_at(a, x->shape), y->rank, catalog_vector_at(b, y->shape));
}

/* Add functions copy what they are given. They fail without memory, above a limit, and on what cannot be right: a shape that
 * overflows, a box outside the tensor. The message names the tensor. */
reshard_status catalog_add_object(struct catalog *catalog, struct str name, uint64_t bytes, uint32_t *out,
                                  reshard_error *err); /* known names give the old index */
reshard_status catalog_add_tensor(struct catalog *catalog, struct str key, enum dtype dtype, int rank, const int64_t *shape, uint32_t *out,
                                  reshard_error *err);
reshard_status catalog_set_tensor_path(struct catalog *catalog, uint32_t tensor, const struct path_part *parts, size_t count,
                                       reshard_error *err);

/* Adds a chunk; start NULL means the whole tensor. The pointer is good until the next add. */
reshard_status catalog_add_chunk(struct catalog *catalog, uint32_t tensor, const int64_t *start, const int64_t *extent, uint32_t object,
                                 uint64_t offset, uint64_t bytes, struct catalog_chunk **out, reshard_error *err);

/* The side record of a chunk, made on first use (row-major, whole box, not encoded); NULL without memory. The pointer is good until
 * the next one is made. */
struct chunk_layout *catalog_chunk_layout(struct catalog *catalog, struct catalog_chunk *chunk);

/* One such property each; without memory only the error is set. Strides are in elements, of the box's axes. */
reshard_status catalog_chunk_set_strides(struct catalog *catalog, struct catalog_chunk *chunk, int rank, const int64_t *strides,
                                         reshard_error *err);
/* The elements are a run of the box's row-major order. */
reshard_status catalog_chunk_set_run(struct catalog *catalog, struct catalog_chunk *chunk, int64_t begin, int64_t count,
                                     reshard_error *err);
/* The chunk's offset and bytes are in what the codec makes of this part of its object. */
reshard_status catalog_chunk_set_codec(struct catalog *catalog, struct catalog_chunk *chunk, enum codec codec, uint64_t offset,
                                       uint64_t bytes, reshard_error *err);
/* The same with a chain, which lives as long as the catalog, and decodes that part to what the chunk is a part of. */
reshard_status catalog_chunk_set_chain(struct catalog *catalog, struct catalog_chunk *chunk, const struct chain *chain, uint64_t offset,
                                       uint64_t bytes, reshard_error *err);
static inline const struct chunk_layout *catalog_layout_of(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    return chunk->layout ? &catalog->layouts[chunk->layout - 1] : 0;
}

/* Whether some of its elements are not there, which was borne and told. For what is sealed. */
static inline bool catalog_tensor_is_torn(const struct catalog *catalog, uint32_t tensor)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    bool is_torn = entry->flags & TENSOR_TORN;
    for (uint32_t i = 0; i < entry->chunk_count && !is_torn; i++)
        is_torn = catalog->chunks[entry->first_chunk + i].flags & CHUNK_DAMAGED;
    return is_torn;
}

reshard_status catalog_add_item(struct catalog *catalog, const struct catalog_item *item, const struct path_part *parts, size_t part_count,
                                uint32_t *out, reshard_error *err);

/* A file beside the tensors that travels with them, as an item: its key is what it is called in the checkpoint's folder. */
reshard_status catalog_add_file(struct catalog *catalog, struct str key, struct str object, uint64_t bytes, reshard_error *err);

/* Takes tensors and their chunks out again, by tensor index; those that stay keep their order. No item or tree may refer to a tensor by
 * number. */
reshard_status catalog_remove_tensors(struct catalog *catalog, const uint8_t *is_removed, reshard_error *err);

/*
 * Adds all that another, sealed catalog has to one that is being built, but its tree: from must outlive it, as texts and values are shared.
 * Objects keep their numbers; those of tensors and items are told. For views (formats/driver.h), which replace some of it.
 */
struct catalog_copying {
    const struct catalog *from;
    uint32_t warning_count;  /* the first of its warnings that are taken */
    void *context;           /* of the functions below, which may be NULL */
    /* Adds what stands in the tensor's place, without its chunks, and returns true in *is_replaced; else it is copied. */
    reshard_status (*replace_tensor)(void *context, uint32_t tensor, bool *is_replaced, reshard_error *err);
    bool (*skips_item)(void *context, uint32_t item);
    /* Another key of the tensor that is copied, which then has no path; text outlives into. NULL: keys stay. */
    void (*rename_tensor)(void *context, uint32_t tensor, struct str *key);
    uint32_t *tensors;       /* made: by tensor of from, what it or the first in its place became. The caller frees both, always */
    uint32_t *items;         /* made: by item of the copy, the item of from */
};
reshard_status catalog_copy(struct catalog *into, struct catalog_copying *copying, reshard_error *err);

/* Adds one tensor of another, sealed catalog, which outlives it, with its chunks, as the last; names of its objects get the prefix. */
reshard_status catalog_copy_one(struct catalog *into, const struct catalog *from, uint32_t tensor, const char *prefix, reshard_error *err);

/* Adds a tensor of the other catalog once more under that key, where catalog_copy has added the others: with the same chunks. */
reshard_status catalog_copy_again(struct catalog *into, const struct catalog *from, uint32_t tensor, struct str key, reshard_error *err);

/* Gives the catalog a graph to own. On failure the graph is released. */
struct value_graph *catalog_adopt_graph(struct catalog *catalog, struct value_graph graph);
void catalog_warn(struct catalog *catalog, bool is_damage, const char *format, ...)
    __attribute__((format(printf, 3, 4))); /* keeps CATALOG_WARNINGS_MAX of a kind, counts the rest */
void catalog_warn_lost(struct catalog *catalog, struct str key, const char *format, ...)
    __attribute__((format(printf, 3, 4))); /* damage: a tensor of which nothing is left but its name; key { 0 }: not even that */
/* Damage somewhere in bytes [offset, +bytes) of an object: what lies there is lost, and nothing else. */
void catalog_warn_place(struct catalog *catalog, uint32_t object, uint64_t offset, uint64_t bytes, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
reshard_status catalog_add_fact(struct catalog *catalog, const char *name, reshard_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/*
 * Ends building: groups chunks by tensor (stable), marks replicas, indexes keys, marks ambiguous ones, sorts nothing else. Checks what
 * every good checkpoint has: no two chunks of a tensor overlap unless they hold exactly the same elements, and together they cover it. With
 * allow_holes uncovered tensors become damage warnings (per-rank files of an incomplete set). Empty chunks may lie anywhere
 * and are never replicas; a TENSOR_NO_DATA tensor needs no chunk.
 */
reshard_status catalog_seal(struct catalog *catalog, bool allow_holes, reshard_error *err);

/* Fails if fill values and compressed chunks make more bytes than the objects account for, and the limit tensor_expansion beyond. For what
 * was opened, sealed. */
reshard_status catalog_check_made(const struct catalog *catalog, reshard_error *err);

/* Tensor by key, or CATALOG_NONE. */
uint32_t catalog_find(const struct catalog *catalog, struct str key);

/* Index of the first item of a key, or CATALOG_NONE. Also before the catalog is sealed: items are few. */
uint32_t catalog_find_item(const struct catalog *catalog, struct str key);

/* Joins a path with dots into out. */
bool path_join(const struct path_part *parts, size_t count, struct buffer *out);
/* Appends bytes that are the same for equal paths alone: 1, '1' and the position 1 are three. */
bool path_append_exact(const struct path_part *parts, size_t count, struct buffer *out);
bool path_equal(const struct path_part *a, size_t a_count, const struct path_part *b, size_t b_count);

/* Path of a tensor or item as parts; a missing path is the one part PATH_KEY key, kept in *single. */
size_t catalog_tensor_path(const struct catalog *catalog, const struct catalog_tensor *tensor, struct path_part *single,
                           const struct path_part **parts);
size_t catalog_item_path(const struct catalog *catalog, const struct catalog_item *item, struct path_part *single,
                         const struct path_part **parts);

/*
 * For targets that keep what a rank wrote in that rank's file: the tensor of the source whose chunks say so. NULL if the wanted one is not
 * one of them as it is, in the same shape.
 */
static inline const struct catalog_tensor *catalog_written_tensor(const struct catalog *stored, uint32_t stored_tensor,
                                                                  const struct catalog *wanted, uint32_t wanted_tensor)
{
    const struct catalog_tensor *tensor = stored_tensor == CATALOG_NONE ? NULL : &stored->tensors[stored_tensor];
    bool is_same = tensor && catalog_same_shape(stored, tensor, wanted, &wanted->tensors[wanted_tensor]);
    return is_same ? tensor : NULL;
}

/* Files beside a checkpoint, and what belongs to its format: they have no names that could change, and are no keys. */
static inline bool catalog_item_is_of_format(const struct catalog_item *item)
{
    return item->kind == ITEM_FILE || str_is(item->key, "__metadata__");
}

/* Bytes that the catalog itself takes. */
uint64_t catalog_memory(const struct catalog *catalog);

/* Whether a chunk's bytes must be decoded before they can be used. */
static inline bool catalog_chunk_is_coded(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return layout && (layout->codec != CODEC_NONE || layout->chain);
}

/* Where a chunk's bytes lie as they are stored: a coded one's before they are decoded. */
struct catalog_span {
    uint32_t object;
    uint64_t offset, bytes;
};

static inline struct catalog_span catalog_chunk_span(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return catalog_chunk_is_coded(catalog, chunk) ? (struct catalog_span){ chunk->object, layout->coded_offset, layout->coded_bytes }
                                                  : (struct catalog_span){ chunk->object, chunk->offset, chunk->bytes };
}

/* For qsort, by object and offset, of whatever begins with its span. */
int catalog_span_order(const void *a, const void *b);

/* Whether a chunk has strides of its own, row-major though they may be. */
static inline bool catalog_chunk_is_strided(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return layout && layout->strides != CATALOG_NONE;
}

/* A rank as chunks and items keep it: the last one that fits stands for all behind it. */
static inline uint16_t catalog_writer(uint64_t rank)
{
    return rank < UINT16_MAX ? (uint16_t)rank : UINT16_MAX;
}

/* The rank that wrote a chunk, or -1: the format does not tell. */
static inline int64_t catalog_chunk_writer(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    return catalog->has_writers ? chunk->writer : -1;
}

/* Whether two chunks of one tensor hold the same elements: the same run of the same box. */
bool catalog_chunks_are_copies(const struct catalog *catalog, uint32_t a, uint32_t b);

/* Strides of a chunk's elements: its own, or row-major. */
void catalog_chunk_strides(const struct catalog *catalog, const struct catalog_chunk *chunk, int64_t *strides);

/* A tensor's size; false only if it overflowed, which add_tensor refuses. */
uint64_t catalog_tensor_bytes(const struct catalog *catalog, const struct catalog_tensor *tensor);

#endif
