/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a format that uses DCP's container differs from plain DCP. Whoever stands on this driver, as formats/mcore does, fills in such tables
 * and hands them over: hooks for reading to dcp_read_tensors, a flavour for writing to dcp_target_init. A member that is NULL or false
 * means: as in plain DCP.
 */
#ifndef FORMATS_DCP_DCP_FLAVOUR_H
#define FORMATS_DCP_DCP_FLAVOUR_H

#include "formats/driver.h"

struct dcp_target;
struct dcp_placing;

/* A stored piece of a tensor, where it is stored in another form than the tensor's own: the whole, and the piece as a box of it. */
struct dcp_form {
    int rank;
    int64_t size[RANK_MAX], start[RANK_MAX], extent[RANK_MAX];
};

/* While a catalog is filled. */
struct dcp_read_hooks {
    void *context;

    /* Gets the pickle of .metadata before its entries come, for what plain DCP does not know in it. */
    reshard_status (*see_metadata)(void *context, const struct buffer *pickle, reshard_error *err);

    /* Whether the entry is stored in another form than its tensor's own; then fills in the tensor's, and add_chunk gets its chunks. */
    bool (*reshape)(void *context, struct str name, int *rank, int64_t *shape);

    /* Adds the chunks of one stored piece of such an entry. like: object, offset and bytes of its blob, flags and writer. Errors name the
     * tensor. */
    reshard_status (*add_chunk)(void *context, struct str name, uint32_t tensor, const struct dcp_form *stored,
                                const struct catalog_chunk *like, reshard_error *err);

    /* Takes a byte item over instead of its becoming an item (*taken). */
    reshard_status (*take_item)(void *context, struct str name, uint32_t object, uint64_t offset, uint64_t bytes, enum codec codec,
                                bool *taken, reshard_error *err);
};

#define DCP_PATH_MADE_MAX 4

/* While a target is laid out and written. */
struct dcp_flavour {
    const char *const *own_files; /* names of files that the format has itself, then NULL: no side file may bear them */
    bool has_no_paths;            /* .metadata has no planner_data: a key is all that is known of a tensor's place in the state dict */

    /* Decides which items are stored, and under which keys: adds them with dcp_stored_add. NULL: every wanted item under its own. */
    reshard_status (*store_items)(const struct layout_request *request, struct target *target, reshard_error *err);

    /* Makes the pieces of a tensor with dcp_place_piece, or none if it lies in vectors. NULL: dcp_place_like, or rows for every rank. */
    reshard_status (*place_tensor)(struct dcp_placing *placing, uint32_t tensor, reshard_error *err);

    /* Adds the chunks of tensors that lie in vectors (dcp_vectors.h), whose runs have their places by then. */
    reshard_status (*add_vector_chunks)(struct target *target, reshard_error *err);

    /* The key under which a tensor is stored; in arena, "" without memory. NULL: its own. */
    struct str (*stored_key)(const struct dcp_target *state, struct arena *arena, struct str key);

    /* Whether a tensor is stored in another form than its own; then says how a box of it is. */
    bool (*stored_form)(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                        const int64_t *extent, struct dcp_form *out);

    /* The path of a tensor whose source knows none; 0: its key is all of it. */
    size_t (*tensor_path)(struct str key, struct path_part made[DCP_PATH_MADE_MAX]);

    /* Name of an attribute that Metadata gets: a dict by the stored key of every tensor, whose values put_attribute appends as pickle.
     * NULL, or it returns NULL: there is none. */
    const char *(*attribute)(const struct dcp_target *state);
    void (*put_attribute)(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, struct buffer *out);
};

/* The table of plain DCP: nothing in it is set. */
extern const struct dcp_flavour dcp_plain;

#endif
