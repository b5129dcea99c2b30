/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Format driver: turns the bytes of a checkpoint into a catalog, and a wanted catalog into a laid-out target. It never copies
 * tensor bytes: it says where they are or belong, the plan relates the two, the engine moves.
 *
 * A new format is a folder with a table like this, and one row in registry.c.
 */
#ifndef FORMATS_DRIVER_H
#define FORMATS_DRIVER_H

#include "catalog/catalog.h"
#include "formats/notes.h"
#include "store/store.h"

/* A file of digests that convert leaves in a checkpoint's folder (convert/sidecar.h): no part of any format. */
#define SIDECAR_NAME "reshard.json"

/* One bit each, in their order, so that the next one is seen. */
enum format_abilities {
    FORMAT_READS = 1 << 0,
    FORMAT_WRITES = 1 << 1,
    FORMAT_IS_DIRECTORY = 1 << 2,     /* what it writes is a directory */
    FORMAT_HAS_BARE_FOLDERS = 1 << 3, /* folders of it may hold nothing but other folders of it */
    FORMAT_LIMITS_FILES = 1 << 4,     /* what it writes can be cut into more files, or chunks, so that none is too large */
    FORMAT_IS_WHOLE = 1 << 5,         /* nobody opens what it writes unless all of a model is there: salvage needs another format */
    FORMAT_ALLOWS_HOLES = 1 << 6,     /* what it reads may be an incomplete set: uncovered tensors become damage warnings, not an error */
    FORMAT_HOLDS_ITEMS = 1 << 7,      /* non-tensor items survive */
    FORMAT_HOLDS_CONFIG = 1 << 8,     /* what it writes has a config.json beside the weights: an item of that key, a file or bytes */
    FORMAT_ITEMS_NAME_TENSORS = 1 << 9, /* what it reads: value.tensor and value.storage in items count the catalog's tensors, storages
                                         * hidden ones */
    FORMAT_NAMES_FRAMEWORK = 1 << 10, /* what it reads says for which framework the weights are; where it does not, they are for none */
    FORMAT_PAIRS_F4 = 1 << 11,        /* what it writes has types of torch: F4 as float4_e2m1fn_x2, two in an element */
    FORMAT_WRAPS = 1 << 12,           /* what it writes flattens the parameters of modules together: layout_request.wrap */
    FORMAT_CUTS_BY_RANK = 1 << 13,    /* a part of a tensor is what a tensor-parallel rank's layer holds, also of fused weights */
    /* Of optimizer state: how those who load what it writes look for it. */
    FORMAT_STATE_BY_NAME = 1 << 14,   /* under each name of a tied weight */
    FORMAT_STATE_BY_NUMBER = 1 << 15, /* by the numbers of parameters */
    FORMAT_STATE_BY_PARAMETER = 1 << 16,  /* by the names of parameters, as Megatron does */
    FORMAT_WEIGHTS_ARE_MASTERS = 1 << 17, /* with FORMAT_STATE_BY_PARAMETER: masters are stored as the weights */
    FORMAT_TORCH_STATE = 1 << 18,     /* as torch does: optimizer.state.NAME.STATE */
    FORMAT_OPTIMIZER_APART = 1 << 19, /* with FORMAT_TORCH_STATE: optimizers have files of their own, so that state has no other spelling */
    FORMAT_STATE_FLAT = 1 << 20,      /* as NAME-STATE */
    FORMAT_PADDLE_STATE = 1 << 21     /* as Paddle does: NAME.moment1_0, or in a family */
};

/* An option that convert passes on: name=value. The table makes --help, completion and docs. */
struct format_option {
    const char *name, *type, *default_value, *help;
};

/* A word of --layout, WORD=NUMBER or WORD=CHOICE, that a driver knows. */
struct layout_word {
    const char *name, *unit, *help; /* help NULL: a synonym, which no message lists */
    bool is_rank_count;             /* on how many ranks tensors are spread: layout_request.ranks */
    const char *const *choices;     /* what it may be, then NULL: its number is 1 and up. NULL: any number */
};

/* An open source. Made by format_open, freed by source_free. */
struct source {
    const struct format_driver *driver;
    struct store *store;       /* owned unless is_borrowed_store */
    char *name;                /* file in the store, or the directory inside it ("" for the root) that is the checkpoint */
    struct limits limits;
    struct work work;          /* limits.budget of this source and its catalog */
    struct catalog *catalog;
    void *driver_state;        /* freed by driver->close_source */
    bool is_borrowed_store;
    bool is_in_root;           /* name is the sub-directory that a root's choice names */
    bool lenient;
    bool is_salvage;           /* what is missing of files, or of a file's end, is no error: tensors there are lost */
    bool is_rebuilt;           /* set by read_catalog: nothing said names, shapes and places, they are made of data files alone */
    struct source *stored;     /* of a view that source_view made: the source that it is a view of; else NULL */
    uint32_t *stored_items;    /* of a view: by item, the item of stored that it is */
    uint32_t read_warnings;    /* warnings of its catalog that were there before it was sealed */
    bool has_other_view;       /* set by read_catalog: optimizer state, or experts in one matrix, are listed as they are stored, not by
                                  parameter */
    bool shows_damage;         /* gaps and overlaps of chunks, and files that are gone, are damage warnings: for looking */
    bool skip_unsupported;     /* tensors that are not supported are left out with a warning instead of failing */
    int64_t iteration;         /* wanted; -1: the latest */
};

/* Whether what is gone of the checkpoint's files is told as damage, and the rest read; else it is an error. */
static inline bool source_bears_loss(const struct source *source)
{
    return source->is_salvage || source->shows_damage;
}

/* Whether a read that failed tells of the bytes: they are damaged, or nobody reads what they say. Else reading itself failed. */
static inline bool status_blames_bytes(reshard_status status)
{
    return status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_LIMIT || status == RESHARD_ERR_UNSUPPORTED;
}

/* Whether a failure says nothing of what was looked at, and nothing more can be: there is no memory, or nobody wants it any more. */
static inline bool status_ends_run(reshard_status status)
{
    return status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_CANCELLED;
}

/* The same of a failure that others would bear: where it ends the run, err is told what was seen. */
static inline bool failure_ends_run(reshard_status status, const reshard_error *seen, reshard_error *err)
{
    if (status_ends_run(status))
        error_set(err, status, "%s", seen->message);
    return status_ends_run(status);
}

/* Tells of a tensor that is left out because nobody reads what it is stored as: a warning, or a loss to whoever wants all that is left. */
void source_warn_left_out(struct source *source, struct str key, bool is_damage, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Makes sure that all chunks of the given tensors (NULL: of all) are resolved. */
reshard_status source_resolve(struct source *source, const uint32_t *tensors, uint32_t count, reshard_error *err);

/* What the driver can check beyond what all payload is checked for. */
reshard_status source_verify(struct source *source, bool is_deep, reshard_error *err);

/* Makes sure that item->value is set where the item can have one (not ITEM_FILE). */
reshard_status source_load_item(struct source *source, uint32_t item, reshard_error *err);

/* Appends the bytes of a storage inside a loaded item, as read_item_storage of the driver, which must have that. */
reshard_status source_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err);

/* Opens store's name ("" for its root): probes, or takes the driver named by format (may be NULL), reads the catalog, seals it.
 * Takes over store in every case unless borrow. */
struct open_options {
    const char *format;
    struct limits limits;
    int64_t iteration; /* -1 */
    bool borrow_store, lenient, skip_unsupported, shows_damage, is_salvage;
    bool (*goes_on)(void *context, uint64_t bytes_read); /* asked while metadata is read; false cancels. May be NULL */
    void *context;
};
reshard_status format_open(struct store *store, const char *name, const struct open_options *options, struct source **out,
                           reshard_error *err);
void source_free(struct source *source);

/* Opens what needs no looking for: a source of this driver, whose read_catalog finds driver_state, and sets or clears it. Takes over store
 * in every case, and driver_state where the driver has close_source. */
reshard_status source_open_made(const struct format_driver *driver, struct store *store, void *driver_state,
                                const struct open_options *options, struct source **out, reshard_error *err);

/*
 * The view of an opened source in which optimizer state that is stored by bucket or flattened is one tensor for each parameter and state,
 * and experts in one matrix are tensors of their own. It is made of what the first has read, and no metadata is read again; it borrows the
 * store, the texts and the values of the first, and loads its items: that one outlives it.
 * UNSUPPORTED or FORMAT says why state cannot be related to parameters. Only where has_other_view is set.
 */
reshard_status source_by_parameter(struct source *stored, struct source **out, reshard_error *err);

/* A view that make fills; it borrows from stored as above. */
reshard_status source_view(struct source *stored, reshard_status (*make)(struct source *view, reshard_error *err), struct source **out,
                           reshard_error *err);
reshard_status source_view_with(struct source *stored, reshard_status (*make)(struct source *view, void *context, reshard_error *err),
                                void *context, struct source **out, reshard_error *err);

/* What the caller said: the value of a format option, the number of a word of --layout. Arrays of them end with a NULL name. */
struct option_value {
    const char *name, *value;
};

struct word_number {
    const char *name;
    uint32_t number;
};

/* Where values of items come from while a target is laid out and published. */
struct item_loader {
    /* Makes sure that the item of the catalog has its value where it can have one (not ITEM_FILE). */
    reshard_status (*load)(void *context, uint32_t item, reshard_error *err);
    /* As read_item_storage of a driver. NULL: no item refers to storages. */
    reshard_status (*read_storage)(void *context, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err);
    void *context;
};

/* What the target should look like. */
struct layout_request {
    const struct catalog *source_catalog; /* what is laid out anew: of an open checkpoint, or of live memory */
    struct item_loader items;      /* of source_catalog; layout_item calls it */
    struct source *source;         /* the open checkpoint, for drivers that know their own again; NULL: there is none */
    const struct catalog *wanted;  /* tensors selected, renamed and retyped (keys, dtypes, shapes, paths, ties) without chunks; items */
    const uint32_t
        *wanted_source; /* source tensor with the very elements of each wanted tensor (its type may differ); CATALOG_NONE: made of others */
    const uint32_t *wanted_items;  /* source item of each wanted item; CATALOG_NONE: made for the target, wanted has its value */
    bool by_writer;                /* where the format has a file a rank: each rank's holds the chunks that the source has of that writer */
    bool is_whole;                 /* nothing was renamed or left out: source_catalog->tree applies as it is, dtypes may differ */
    const struct source *like;     /* take the layout from this one where keys and shapes agree; may be NULL */
    uint32_t ranks;                /* 0: the driver's default */
    const struct word_number *words; /* of the driver's; NULL: none */
    int64_t max_shard_bytes;       /* -1: default; 0: no limit */
    const char *wrap;              /* which modules' parameters are flattened together (parallel/wrap_rule.h); NULL: not said */
    const char *file_name;         /* base name of the destination */
    const struct option_value *options; /* of the driver's; NULL: none */
    struct limits limits;
};

/* What the parts of a tensor along its first axes are called, in row-major order. */
struct target_parts {
    struct str *keys;
    uint32_t count, capacity;
};

/* A laid-out target: its catalog has objects (with final sizes) and a chunk for every piece to be written. */
struct target {
    const struct format_driver *driver;
    struct catalog *catalog;
    void *driver_state;
    struct note_list dropped, changed; /* what the format cannot hold, and what becomes something else; texts lie in catalog->arena */
    struct str *read_keys;  /* by tensor: what it is called when the target is read, in catalog->arena; NULL: as in wanted */
    struct str *hidden_keys; /* by tensor: the key of the hidden tensor of an item that it is when the target is read, in catalog->arena;
                              * data NULL: it is none, or of no known key. NULL: none is */
    struct target_parts *read_parts; /* by tensor: the tensors that it is when the target is read, if no tensor of its own key is there; of
                                      * none if it is never taken apart. NULL: none is */
    uint32_t *chunks;       /* numbers of the catalog's chunks, by object, and in an object by offset; from target_seal */
    uint32_t *first_chunk;  /* by object: its place in chunks, and one past the last object, that behind them */
};
void target_free(struct target *target);

static inline struct str target_read_key(const struct target *target, uint32_t tensor)
{
    return target->read_keys ? target->read_keys[tensor] : target->catalog->tensors[tensor].key;
}

/* The tensor is read under that key. */
reshard_status target_read_as(struct target *target, uint32_t tensor, struct str key, reshard_error *err);

/* The next part of the tensor is read under that key, if the whole is not. The key lives as long as the target. */
reshard_status target_read_in_parts(struct target *target, uint32_t tensor, struct str key, reshard_error *err);

/* For formats that nest: the tensor is put under a path, and read under the path's joined parts, which need not be its key: the metadata of
 * a DCP may call a tensor one thing and place it under another. */
reshard_status target_read_as_path(struct target *target, uint32_t tensor, const struct path_part *parts, size_t count, reshard_error *err);

/* For formats whose items hold tensors: the tensor is read as the hidden one of that key. */
reshard_status target_read_as_hidden(struct target *target, uint32_t tensor, struct str key, reshard_error *err);

/* Seals the catalog of a target that lay_out has filled; nothing changes it any more. */
reshard_status target_seal(struct target *target, reshard_error *err);
/* key: the name concerned, which is copied; { 0 } if it is about no single one. */
reshard_status target_note_dropped(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
    PRINTF_LIKE(5, 6);
reshard_status target_note_changed(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
    PRINTF_LIKE(5, 6);

/*
 * What a checkpoint is without some of what it holds: the metadata file that takes the place of its own, and files of data that it does
 * not name any more. Names are those in the store. { 0 } is valid and empty.
 */
struct removal {
    struct arena arena;
    const char *name;
    struct buffer bytes;
    char **files;
    size_t file_count;
    uint64_t file_bytes;
    uint32_t tensors, items; /* that go */
};
void removal_release(struct removal *removal);

/* The value of a format option, or NULL if it was not given. */
static inline const char *layout_option(const struct layout_request *request, const char *name)
{
    const struct option_value *option = request->options;
    while (option && option->name && strcmp(option->name, name) != 0)
        option++;
    return option && option->name ? option->value : NULL;
}

/* The number of a word of the layout, or 0 if it was not said. */
static inline uint32_t layout_number(const struct layout_request *request, const char *name)
{
    const struct word_number *word = request->words;
    while (word && word->name && strcmp(word->name, name) != 0)
        word++;
    return word && word->name ? word->number : 0;
}

/* Whether words say how tensors are cut: they go before how a reference is. */
static inline bool layout_has_words(const struct layout_request *request)
{
    return request->words && request->words->name;
}

/* Sets source, source_catalog and items of a request: those of an open checkpoint. */
void layout_of_source(struct layout_request *request, struct source *source);

/* The item behind a wanted one, with its value if it can have one. */
reshard_status layout_item(const struct layout_request *request, uint32_t wanted, const struct catalog_item **out, reshard_error *err);

/* The same as it is: its value may not be loaded yet. */
const struct catalog_item *layout_item_stored(const struct layout_request *request, uint32_t wanted);

/* The item of that key, with its value: of the source, whether or not it is wanted, else one that is made for the target. *out NULL: none.
 */
reshard_status layout_item_named(const struct layout_request *request, const char *key, const struct catalog_item **out,
                                 reshard_error *err);

/* Appends the bytes of a storage inside the loaded value of a wanted item. */
reshard_status layout_item_storage(const struct layout_request *request, uint32_t wanted, uint32_t storage, struct buffer *out,
                                   reshard_error *err);

/* Adds the tensors of request->wanted to the target's catalog, in their order, as lay_out must; paths are left out. */
reshard_status target_add_tensors(const struct layout_request *request, struct target *target, reshard_error *err);

/*
 * What publishing gets: the sealed target, the source that items come from, and the request that lay_out got. chunk_crcs has the CRC-32 of
 * each chunk that asked for it, by chunk number. Who moves payload in several processes hands these over: each process fills the entries of
 * the chunks that it moved, and leaves the others zero, so that the array of all is the sum of theirs (engine_run, plan_split).
 */
struct publish_job {
    const struct target *target;
    struct source *source;
    struct store_object **objects; /* by object number of the target's catalog; see which of them are needed below */
    const uint32_t *chunk_crcs;
    const struct layout_request *request;
};

/* Publishes all objects, in their order, and commits. */
reshard_status target_publish(const struct publish_job *job, reshard_error *err);

/* A tensor by the name that it has in the files, where the listing has several of them as one. */
struct stored_name {
    struct str name;
    uint32_t tensor;  /* of the catalog */
    int64_t lead[2];  /* its place along the first axes of that */
    int lead_count;
};
typedef reshard_status (*stored_name_sink)(const struct stored_name *name, void *context, reshard_error *err);

struct format_driver {
    const char *name, *summary;
    const char *name_space; /* whose names the keys are, as models/ calls them: "hf", "torch_dist", "megatron", "paddle"; NULL: anybody's */
    const char *(*target_names)(
        const struct layout_request *request); /* the same of a target, where options, reference and source decide; may be NULL */
    unsigned abilities;
    const struct format_option *options; /* ends with a NULL name; may be NULL */
    const struct layout_word *words;     /* of --layout, ends with a NULL name; NULL: only the number of ranks */

    /* Ends of names of files (".npz"), then NULL: a target with such a name is of this format where nothing else says one. NULL: none. */
    const char *const *file_endings;

    /* Globs of what a folder of this format holds besides side files, folders with '/' at the end; then NULL. A folder with other things in
     * it is not replaced. NULL: the format has no folders. */
    const char *const *folder_entries;

    /* Names of files of which one lies in each folder that is a part of a checkpoint of this format, whatever the folder is called; then
     * NULL. NULL: parts are known by folder_entries. */
    const char *const *part_marks;

    /* Globs of base names of files that only say which tensors there are and where they lie, then NULL: salvage may take them from another
     * checkpoint of the same layout. NULL: names lie with the values. */
    const char *const *layout_files;

    /* How sure the driver is that store's name ("" for the root) is its format: 0 no, 100 certain. Looks at names and the first
     * bytes only. What goes wrong on the way is left in err: only a lack of memory or a failing disk matters to the caller. */
    int (*probe)(struct store *store, const char *name, reshard_error *err);

    /* Whether a folder holds what is left of such a checkpoint without what describes it. Asked where no format's probe says anything, so
     * that opening what is whole does not pay for it. NULL: no. */
    bool (*probe_rest)(struct store *store, const char *name, reshard_error *err);

    /* Fills source->catalog (made by the caller, not sealed). */
    reshard_status (*read_catalog)(struct source *source, reshard_error *err);

    /* Fills view->catalog and view->stored_items from stored, a sealed source of this driver with has_other_view, without reading what that
     * has read. view->driver_state is the driver's own for views, which resolve and close_source get; items are stored's. NULL: no such
     * source. */
    reshard_status (*view_by_parameter)(struct source *view, reshard_error *err);

    /* Finds the payload of chunks with CHUNK_UNRESOLVED among the given ones: sets offset, bytes, layout, flags; checks dtype and shape
     * against the stored ones. NULL: chunks are born resolved. Called from one thread. */
    reshard_status (*resolve)(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err);

    /* Value of an item that is ITEM_BLOB, ITEM_LATE or ITEM_RAW, into a graph that the catalog keeps (later calls return it). NULL if all
     * items are values. Sets item->value. Tensors inside become TENSOR_HIDDEN tensors only if the driver added them on reading. */
    reshard_status (*load_item)(struct source *source, uint32_t item, reshard_error *err);

    /* Appends the bytes of a storage inside a loaded item: the one that a PERSID node of its value names (value->storage - 1). NULL where
     * no item has such nodes. Sizes are bounded by limits.item_bytes. */
    reshard_status (*read_item_storage)(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err);

    /* What the checkpoint is without tensors and items that are stored under keys with that prefix; touches nothing. Release *out on
     * failure too. NULL: payload would have to move. */
    reshard_status (*leave_out)(struct source *source, struct str prefix, struct removal *out, reshard_error *err);

    /* The weights by the names that they have in the files, where the catalog's are others: a target is laid out by those. NULL: never. */
    reshard_status (*each_stored_name)(const struct source *source, stored_name_sink sink, void *context, reshard_error *err);

    /* Checks beyond the catalog: stored checksums, unreferenced files (as warnings). May be NULL. deep: also payload checksums. */
    reshard_status (*verify)(struct source *source, bool deep, reshard_error *err);

    /*
     * Lays a target out: fills target->catalog (made by the caller, format set). Tensor i of it IS tensor i of request->wanted: same
     * count and order, same key, dtype and shape; one that is not stored (dropped, a tied copy, hidden) simply gets no chunk. Objects
     * get their final sizes. The caller seals the catalog afterwards, which groups chunks by tensor: chunk indices known in lay_out are
     * no longer valid when it is published, use the tensor's first_chunk or chunk->driver_data. wanted's tensors have no chunks; flags
     * (TENSOR_HIDDEN too), paths, tied_to and storage_group are the source's. Items of wanted are the source's selected ones.
     */
    reshard_status (*lay_out)(const struct layout_request *request, struct target *target, reshard_error *err);

    /*
     * Writes what is in one object beside tensor payload: headers, the frames of archives, items, or all of a side file. It needs that
     * object open, and the CRCs of that object's chunks, nothing else; so objects may be published in any order, by any process that has
     * laid the same target out, before or after the payload is there. Once each. Items load through the source, so that one process
     * publishes one object at a time. NULL: objects hold nothing but payload, or what commit writes.
     */
    reshard_status (*publish_object)(const struct publish_job *job, uint32_t object, reshard_error *err);

    /* Writes what is of the target as a whole: metadata, indexes, trackers. Once, last, with all objects open, and CRCs of all chunks.
     * NULL: there is nothing. */
    reshard_status (*commit)(const struct publish_job *job, reshard_error *err);

    void (*close_source)(struct source *source);
    void (*close_target)(struct target *target);
};

/* The drivers, in probing order; NULL past the end. */
const struct format_driver *format_driver_at(int index);
const struct format_driver *format_driver_find(const char *name);
/* The one whose file_endings a path ends with, behind the name itself; NULL: none. */
const struct format_driver *format_driver_of_path(const char *path);

#endif
