/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded state dicts, and saving and loading them together: what a rank of a training job holds, described once, is written by all ranks
 * of a group as one checkpoint of any format, and filled from any checkpoint. The model is that of Megatron Core's dist_checkpointing.
 *
 * A reshard_sharded is one rank's state dict: tensors that are pieces of whole ones, objects that are cells of a grid, common values, that
 * every rank has alike, and local ones, which are never saved.
 *
 * Vectors of a tensor: global ones have `rank` numbers; its leading `prepended` axes are indexes (a layer, an expert) that the tensor in
 * memory does not have, so that local ones have rank - prepended. All count elements.
 *
 * Memory. Descriptions, objects and values are copied. Values of tensors stay the caller's, and are only touched by reshard_save (read) and
 * reshard_load (written), which do not keep them; where functions give and take them, these are called.
 *
 * Threads. One at a time uses a reshard_sharded. reshard_save and reshard_load are collective: every rank of the group calls them, each
 * with its own handle, from any thread.
 *
 * Errors. RESHARD_ERR_USAGE for descriptions that cannot be right; the message names the key. After a failed call the state is as it was
 * before it, unless the call says otherwise.
 */
#ifndef RESHARD_SHARDED_H
#define RESHARD_SHARDED_H

#include "reshard/comm.h"
#include "reshard/state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_sharded reshard_sharded;

reshard_status reshard_sharded_new(reshard_sharded **out, reshard_error *err);
void reshard_sharded_free(reshard_sharded *sharded);

/* ------------------------------------------------------------------------------------------------ tensors */

typedef struct reshard_sharded_tensor {
    size_t struct_size;
    reshard_str key;
    const char *dtype;              /* "BF16", "bfloat16", "torch.bfloat16" */
    size_t rank, prepended;
    const int64_t *local_shape;     /* rank - prepended numbers; of a flat range, that of the box it is cut out of */
    const int64_t *global_shape, *global_offset;
    const int64_t *fragments;       /* in how many equal pieces each global axis is cut; NULL: the grid is irregular */
    const int64_t *replica_ids;     /* which copy it is: the main one, which is saved, if all are 0, or there are none; or REPLICA_ANY */
    size_t replica_count;
    int64_t allow_shape_mismatch;   /* loading: the checkpoint's extents may differ; what it lacks is zero, what is too much is left */
    int64_t is_flattened, flat_begin, flat_end; /* data is this range of the box's row-major order */
    void *data;                     /* little-endian; NULL: none */
    const int64_t *strides;         /* of data, local, in elements; NULL: row-major */
    /* In place of data and strides, as geometry.h has it: read gives values to reshard_save and reshard_saver_save, until they return;
     * write takes those of reshard_load, on its thread. Such tensors are not narrowed: RESHARD_ERR_USAGE. */
    int (*read)(void *out, uint64_t offset, size_t size, void *context);
    void *context; /* of both */
    int (*write)(const void *bytes, uint64_t offset, size_t size, void *context);
} reshard_sharded_tensor;
#define RESHARD_SHARDED_TENSOR_INIT                                                                                                        \
    {                                                                                                                                      \
        sizeof(reshard_sharded_tensor), { NULL, 0 }, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL \
    }

/* The only replica id of a tensor of which its rank does not know who else has the same piece. reshard_save, reshard_load and savers look:
 * the first rank's is the main one, unless another copy has been said to be. */
#define RESHARD_REPLICA_ANY (-1)

/* On a global axis, the tensor is piece `offset` of `fragments` equal ones. An array's member. */
typedef struct reshard_rank_offset {
    int64_t axis, offset, fragments;
} reshard_rank_offset;

/*
 * Adds a tensor. Its box lies in the whole; on a regular grid every piece begins at a multiple of its extent; a flat range lies in its box,
 * and an empty one is left out.
 */
reshard_status reshard_sharded_add(reshard_sharded *sharded, const reshard_sharded_tensor *tensor, reshard_error *err);

/* The same where global_shape, global_offset and fragments follow from where the piece is: (1, 3, 7, 9) that is piece 0 of 10 on axis 0 and
 * 3 of 6 on axis 2 is at (0, 0, 21, 0) of (10, 3, 42, 9). The three members of tensor do not count. */
reshard_status reshard_sharded_add_offsets(reshard_sharded *sharded, const reshard_sharded_tensor *tensor,
                                           const reshard_rank_offset *offsets, size_t offset_stride, size_t offset_count,
                                           reshard_error *err);

/* What reshard_sharded_at gives is good until the list is freed, but keys only until they are changed. */
size_t reshard_sharded_count(const reshard_sharded *sharded);
reshard_status reshard_sharded_at(const reshard_sharded *sharded, size_t index, reshard_sharded_tensor *out);

/*
 * Adds [start, start + length) of a local axis of the tensor, as if every rank's piece were narrowed so and all were a tensor of their own:
 * global extent and offset shrink with it. Of a flat range, along axis 0 only, what lies in these rows: nothing is added if that is empty.
 */
reshard_status reshard_sharded_add_narrow(reshard_sharded *sharded, const reshard_sharded_tensor *tensor, int64_t axis, int64_t start,
                                          int64_t length, reshard_error *err);

/* By global axis: which piece of the grid the tensor is; the box of the whole that it is; the largest chunk that cuts no piece, whose axes
 * the fragments must divide unless shapes may differ. */
reshard_status reshard_sharded_cell(const reshard_sharded_tensor *tensor, int64_t *cell, reshard_error *err);
reshard_status reshard_sharded_slice(const reshard_sharded_tensor *tensor, int64_t *start, int64_t *extent, reshard_error *err);
reshard_status reshard_sharded_largest_chunk(const reshard_sharded_tensor *tensor, int64_t *chunk, reshard_error *err);

/* Whether a copy with these numbers is the main one. */
int reshard_replica_is_main(const int64_t *replica_ids, size_t replica_count);

/* ------------------------------------------------------------------------------------------------ factories */

/*
 * A local tensor that is several of a checkpoint: gate and up of a fused weight. build adds them to `parts`, which reshard_sharded_expand
 * calls; their data may be views of the whole's. After loading, reshard_sharded_merge calls merge (NULL: there is nothing to do) with the
 * same parts filled. Factories do not nest.
 */
typedef struct reshard_sharded_factory {
    size_t struct_size;
    const reshard_sharded_tensor *whole; /* key, local shape, replica and data are what build makes use of */
    int (*build)(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context);
    int (*merge)(const reshard_sharded_tensor *whole, const reshard_sharded *parts, void *context);
    void *context;
} reshard_sharded_factory;
#define RESHARD_SHARDED_FACTORY_INIT { sizeof(reshard_sharded_factory), NULL, NULL, NULL, NULL }

/* whole is copied, with the vectors that it points to. */
reshard_status reshard_sharded_add_factory(reshard_sharded *sharded, const reshard_sharded_factory *factory, reshard_error *err);

/* Makes tensors of the factories that have not been expanded yet; reshard_save and reshard_load do so first. merge calls what is to be
 * called of all that are; reshard_load does so last. */
reshard_status reshard_sharded_expand(reshard_sharded *sharded, reshard_error *err);
reshard_status reshard_sharded_merge(reshard_sharded *sharded, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ objects and values */

/* An object that is one cell of a grid, or the only one of (1,). It is not resharded: who loads asks for the same grid. */
typedef struct reshard_sharded_object {
    size_t struct_size;
    reshard_str key;
    size_t rank;
    const int64_t *global_shape, *global_offset; /* of the grid */
    const int64_t *replica_ids;
    size_t replica_count;
    reshard_str json;               /* its value as JSON; or, if that is empty, bytes */
    reshard_str bytes;
    reshard_str file;               /* in place of both: a file of torch.save whose object is the value, with classes and tensors. It is
                                     * read as one that a stranger wrote. Since 0.3 */
} reshard_sharded_object;
#define RESHARD_SHARDED_OBJECT_INIT                                                                                                        \
    {                                                                                                                                      \
        sizeof(reshard_sharded_object), { NULL, 0 }, 0, NULL, NULL, NULL, 0, { NULL, 0 }, { NULL, 0 }, { NULL, 0 }                         \
    }

reshard_status reshard_sharded_add_object(reshard_sharded *sharded, const reshard_sharded_object *object, reshard_error *err);
size_t reshard_sharded_object_count(const reshard_sharded *sharded);
reshard_status reshard_sharded_object_at(const reshard_sharded *sharded, size_t index, reshard_sharded_object *out);

/* KEY/shard_OFFSET_SHAPE, as in "rng/shard_0.1_2.2": what a checkpoint calls the cell. Free *out with reshard_free. */
reshard_status reshard_object_key(const reshard_sharded_object *object, char **out, reshard_error *err);

/* Adds the object of such a key, without a value. */
reshard_status reshard_sharded_add_object_key(reshard_sharded *sharded, reshard_str text, reshard_error *err);

enum {
    RESHARD_VALUE_COMMON = 0,     /* the same on all ranks: rank 0's is saved */
    RESHARD_VALUE_LOCAL = 1,      /* never saved; loading gives it back as it is */
    RESHARD_VALUE_MISSING = 2,    /* of what was loaded: a key of the checkpoint that no rank asked for */
    RESHARD_VALUE_UNEXPECTED = 3, /* a key that this rank asked for and the checkpoint lacks */
    RESHARD_VALUE_WARNING = 4,    /* a message */
    RESHARD_VALUE_ANY_RANK = 5    /* saved whichever rank has it: of several the first one's. Since 0.3 */
};

typedef struct reshard_sharded_value {
    size_t struct_size;
    int64_t kind;
    reshard_str key, json;
    reshard_str file; /* in place of json, as reshard_sharded_object has it. Since 0.3 */
} reshard_sharded_value;
#define RESHARD_SHARDED_VALUE_INIT { sizeof(reshard_sharded_value), 0, { NULL, 0 }, { NULL, 0 }, { NULL, 0 } }

reshard_status reshard_sharded_add_value(reshard_sharded *sharded, const reshard_sharded_value *value, reshard_error *err);
/* Takes a common value out (count 1), or a member of it: ("args", "rank") is one of the dictionary "args". Nothing happens where there is
 * none, or the value is a file. */
reshard_status reshard_sharded_remove_value(reshard_sharded *sharded, const reshard_str *path, size_t count, reshard_error *err);

size_t reshard_sharded_value_count(const reshard_sharded *sharded);
reshard_status reshard_sharded_value_at(const reshard_sharded *sharded, size_t index, reshard_sharded_value *out);

/* ------------------------------------------------------------------------------------------------ keys */

/* Of tensors, objects and factories. Puts the prefix before each key; replaces the one that each must begin with, else none is changed;
 * replaces in each key the first of `old` that it begins with. */
reshard_status reshard_sharded_add_prefix(reshard_sharded *sharded, reshard_str prefix, reshard_error *err);
reshard_status reshard_sharded_replace_prefix(reshard_sharded *sharded, reshard_str old, reshard_str prefix, reshard_error *err);
reshard_status reshard_sharded_map_prefixes(reshard_sharded *sharded, const reshard_str *old, const reshard_str *prefixes, size_t count,
                                            reshard_error *err);

/* ------------------------------------------------------------------------------------------------ all ranks */

/*
 * Whether the state dicts of all ranks, rank 0's first, are one whole: ranks agree about dtype, global shape and grid of each key; every
 * cell of a regular grid has one main copy, flat ranges tile their cell, boxes of an irregular grid cover the whole and do not overlap;
 * every cell of an object's grid has one main copy. The message has Megatron's words ("Invalid access pattern").
 */
reshard_status reshard_sharded_check(const reshard_sharded *const *ranks, size_t count, reshard_error *err);

/* Spreads what several ranks have copies of: after it the copy of one rank is the main one, and ranks have as near the same bytes to save
 * as copies allow. Pieces without a main copy are left as they are. The result depends on the descriptions alone. */
reshard_status reshard_sharded_spread(reshard_sharded *const *ranks, size_t count, reshard_error *err);

/* How a rank's common values differ from rank 0's, as Megatron's warning says it: *text is NULL if they do not. Free with reshard_free.
 * Of files the bytes are compared, which says little where sets or devices are in them: preprocess may take them out.
 * What need not be alike is taken out of copies before (reshard_sharded_remove_value). */
reshard_status reshard_sharded_compare_common(const reshard_sharded *first, const reshard_sharded *other, int64_t rank, char **text,
                                              reshard_error *err);

/* ------------------------------------------------------------------------------------------------ saving and loading together */

/*
 * What a save has planned, for the next one: each rank has one, which reshard_save fills and uses again. A save whose ranks all describe
 * the tensors and objects that they described before, with options that say the same, exchanges no descriptions and plans nothing; memory
 * may have moved, and the path may be another. If objects or common values are others, or the path's last part is of another length (where
 * the format is a single file: is another), the target is laid out anew out of what is kept. A change of any rank's is detected, and all
 * is planned anew: what is saved never depends on what was kept.
 *
 * Kept is what options say by `to`, layout, wrap, max_shard_bytes, format_options and checksum; with `like`, a mapping, a selection, other
 * names or `open` every save plans for itself. Memory is that of the descriptions of all ranks, and of the plan. One save at a time uses a
 * reshard_kept; after one that failed it is empty. reshard_kept_uses: how many saves had their plan out of it.
 */
typedef struct reshard_kept reshard_kept;
reshard_status reshard_kept_new(reshard_kept **out, reshard_error *err);
void reshard_kept_free(reshard_kept *kept);
uint64_t reshard_kept_uses(const reshard_kept *kept);

typedef struct reshard_save_options {
    size_t struct_size;
    const reshard_convert_options *convert; /* to, format_options and all else that says what is written; the same on all ranks. Its parts,
                                             * resume and verify are not for saves */
    const char *name;                       /* of the state, for messages; NULL: "memory" */
    int64_t no_check;                       /* do not look whether the state dicts are one whole */
    int64_t no_spread;                      /* main copies are saved by their rank; else copies are spread evenly over the ranks that have
                                             * them, as by reshard_sharded_spread */
    /* On rank 0, may be NULL: common values that differ from those that are saved, and what the format does not hold ("dropped: …"). */
    void (*warn)(const char *text, void *context);
    void *context;
    reshard_kept *kept;                     /* on all ranks or on none; NULL: nothing is kept */
    /* Gets a copy of this rank's common values, to take out or replace what ranks need not have alike: numbers of ranks, orders of lists.
     * The copies are compared, what is saved are the values themselves. Called once on every rank, before ranks speak; NULL: they are
     * compared as they are. Megatron: preprocess_common_before_consistancy_check */
    int (*preprocess)(reshard_sharded *common, void *context);
} reshard_save_options;
#define RESHARD_SAVE_OPTIONS_INIT { sizeof(reshard_save_options), NULL, NULL, 0, 0, NULL, NULL, NULL, NULL }

/*
 * Saves what all ranks of a group have as one checkpoint, at a path on storage that all of them see. comm NULL: this process is all. A rank
 * that does not find there what rank 0 has begun fails, and so does the call on all: RESHARD_ERR_IO.
 *
 * Descriptions are exchanged, values are not: every rank writes its own. In formats with a file a rank (torch_dist, torch-dcp, paddle-flex)
 * that is its own file, unless convert.layout or convert.like say otherwise; in others several ranks may write parts of one file. Objects
 * are written as their key says ("rng/shard_0.1_2.2"), common values under their own.
 *
 * The target appears whole when all have written, or not at all: a failure of one rank, whose number the message has, ends the call on all.
 * Factories are expanded; else the state is as it was, and may be saved again.
 *
 * run->progress of each rank is called before it writes and while it does, with its own share as bytes_total; that of rank 0 once more
 * before the target becomes visible, with all that was written. If it stops the call, that is a failure of its rank.
 *
 * A rank that dies ends the call on the others as soon as the transport sees it, at the latest within the comm's timeout; what was at the
 * path before is still there, whole. Only if it dies when rank 0 has already made the new checkpoint visible, it is that one: then rank 0's
 * hint says so. What is left beside the target is removed by the next save. A rank that the others gave up, and that goes on later, gets an
 * error and changes nothing of theirs; as long as it holds its lock, another save to the same path is RESHARD_ERR_IO.
 */
reshard_status reshard_save(reshard_comm *comm, const char *path, reshard_sharded *sharded, const reshard_save_options *options,
                            const reshard_run_options *run, reshard_error *err);

/* What becomes of keys that a rank asks for and the checkpoint lacks (unexpected), and of those that no rank asks for (missing). The names
 * are Megatron's. */
enum {
    RESHARD_STRICT_ASSUME_OK_UNEXPECTED = 0, /* unexpected: the load fails, saying what is there; missing: nothing is said */
    RESHARD_STRICT_LOG_UNEXPECTED = 1,       /* left out, with a warning */
    RESHARD_STRICT_LOG_ALL = 2,              /* and missing ones, too */
    RESHARD_STRICT_RAISE_UNEXPECTED = 3,     /* an error */
    RESHARD_STRICT_RAISE_ALL = 4,
    RESHARD_STRICT_RETURN_UNEXPECTED = 5,    /* left out, and listed in the result */
    RESHARD_STRICT_RETURN_ALL = 6,
    RESHARD_STRICT_IGNORE_ALL = 7            /* left out */
};

/* "assume_ok_unexpected" and so on; NULL for other numbers. The number of such a name; RESHARD_ERR_USAGE for other texts. */
const char *reshard_strict_name(int64_t strict);
reshard_status reshard_strict_find(const char *name, int64_t *strict, reshard_error *err);

typedef struct reshard_load_options {
    size_t struct_size;
    const reshard_open_options *open;
    int64_t strict;      /* RESHARD_STRICT_ */
    int64_t no_check;    /* do not look whether the ranks together ask for wholes */
    int64_t no_exchange; /* each rank reads all that it asks for; else what several ask for is read by one, which sends it to the others */
    const reshard_map_options *map; /* under which names, shapes and types tensors come; the same on all ranks. NULL: their own */
    /* 1: objects and common values of the result are files (reshard_item_file) in place of JSON, and files that lie beside the checkpoint
     * are none of them. 2: these are there, as JSON. Since 0.3 */
    int64_t as_files;
} reshard_load_options;
#define RESHARD_LOAD_OPTIONS_INIT { sizeof(reshard_load_options), NULL, 0, 0, 0, NULL, 0 }

/*
 * Fills the tensors of all ranks of a group from one checkpoint of any format and layout, each cast to its type. comm NULL: this process is
 * all. Tensors without data are left out; those with write are filled a round at a time, by way of memory of which a rank has no more
 * than the least run->memory_bytes of the group (0: 128 MiB), or than its largest such tensor. A tensor's global shape is the checkpoint's,
 * unless it allows another: then what the checkpoint has is filled in, and the rest is zero.
 *
 * With a mapping (options->map, docs/mapping.md) the checkpoint has what it makes: other names, tensors split, joined, transposed, cast.
 * If it has no texts, names that are recognised become those that the ranks ask for, as a conversion to a reference with these keys would
 * do it; optimizer state is that of parameters then. Strictness is about the names that come out. What the mapping keeps (`_ -> key`) is
 * not written, and not unexpected. diagnose is called on every rank, and what it returns does not count.
 *
 * *result, which may be NULL, has the checkpoint's common values, the state's local ones, its objects with their values as JSON, and what
 * strict says: values MISSING and UNEXPECTED in the order of their keys, and warnings. Free it with reshard_sharded_free.
 *
 * All ranks load the same checkpoint, with the same strict, no_exchange and map: RESHARD_ERR_USAGE names a rank that does not. The paths
 * that lead to it may differ, and each rank may have a copy; samples of what they hold tell two checkpoints of one model apart.
 *
 * After a failure the memory of tensors holds anything; the state can be used again.
 */
reshard_status reshard_load(reshard_comm *comm, const char *path, reshard_sharded *sharded, const reshard_load_options *options,
                            const reshard_run_options *run, reshard_sharded **result, reshard_error *err);

typedef struct reshard_remove_report {
    size_t struct_size;
    uint64_t tensors, objects;   /* that are gone */
    uint64_t files, bytes;       /* of data, that are gone */
} reshard_remove_report;
#define RESHARD_REMOVE_REPORT_INIT { sizeof(reshard_remove_report), 0, 0, 0, 0 }

typedef struct reshard_remove_options {
    size_t struct_size;
    const reshard_open_options *open;
    int64_t no_sync;
} reshard_remove_options;
#define RESHARD_REMOVE_OPTIONS_INIT { sizeof(reshard_remove_options), NULL, 0 }

/*
 * Takes all tensors and objects that are stored under keys with this prefix out of a checkpoint where it lies: nothing else is written
 * again. Not collective. Formats whose metadata are apart from the values (torch_dist, torch-dcp); of others RESHARD_ERR_UNSUPPORTED.
 * RESHARD_ERR_USAGE: no key begins so. Megatron: remove_sharded_tensors, which takes away files of a separation hint only.
 *
 * The metadata is replaced by one rename; then files are removed in which only those lay. Values that share a file with others stay there,
 * where nothing names them. A digest file of the format (integrity.json) is written anew, reshard.json is removed. After a failure, or the
 * death of the process, the checkpoint is what it was, or is without them, perhaps with files too many and without these two; the call may
 * be made again. No one else may read or write the checkpoint meanwhile. report and options may be NULL.
 */
reshard_status reshard_remove(const char *path, reshard_str prefix, const reshard_remove_options *options, reshard_remove_report *report,
                              reshard_error *err);

/* What a checkpoint has, as a state dict without data: every tensor whole, in one fragment, and objects, common values and
 * "content_metadata" among these. Reads no payload. Free *out with reshard_sharded_free. */
reshard_status reshard_sharded_metadata(const reshard_checkpoint *checkpoint, reshard_sharded **out, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
