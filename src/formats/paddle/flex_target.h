/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writing half of paddle-flex shares. Laying out decides which piece of which tensor lies in which file, and where its elements
 * go; publishing and commit make the pickles again from that.
 */
#ifndef FORMATS_PADDLE_FLEX_TARGET_H
#define FORMATS_PADDLE_FLEX_TARGET_H

#include "encoding/paddle_save_write.h"
#include "formats/driver.h"
#include "formats/paddle/flex.h"
#include "parallel/state_sharding.h"

/* The release whose metadata is written: what its classes hold is in flex_metadata.h. */
enum flex_release { FLEX_RELEASE_2_6, FLEX_RELEASE_3_0, FLEX_RELEASE_3_2, FLEX_RELEASE_3_3 };

/* What becomes of a piece that several ranks hold. */
enum flex_dedupe { FLEX_DEDUPE_BALANCED, FLEX_DEDUPE_FIRST, FLEX_DEDUPE_NONE };

/* Which folders there are. */
enum flex_filing { FLEX_FILING_KEPT /* those of the reference, or of the source */, FLEX_FILING_ONE, FLEX_FILING_TRAINER };

/* A piece of a tensor in one file. */
struct flex_piece {
    uint32_t tensor;
    uint32_t start, extent; /* the box: vectors of the target's catalog */
    int64_t begin, count;   /* the run of the box in row-major order; count -1: all of the box, in its shape */
    uint32_t file;
    int32_t replica; /* -1: its number is not said */
};

struct flex_out_file {
    struct str name; /* in the folder of the checkpoint */
    uint32_t folder;
    uint32_t rank;
    uint32_t object;
    uint32_t first_piece, piece_count; /* once they are in order */
    bool is_safetensors;    /* it is a safetensors file, whatever its name */
    struct buffer head;     /* then: its header */
};

/* A folder with metadata of its own: the only one, or each of those that a trainer writes. */
struct flex_out_folder {
    enum flex_role role;
    struct str prefix;   /* "" or ends with '/' */
    struct str metadata; /* name of the file */
    uint32_t object;
    uint64_t uid;        /* in the names of its data files */
    bool is_safetensors, is_named_safetensors; /* what these are, and what they are called */
};

struct flex_out_item {
    uint32_t wanted;
    struct str key;
};

/* A file beside the checkpoint's own that is carried along. */
struct flex_out_copy {
    uint32_t object, source_object;
};

struct flex_target {
    enum flex_release release;
    enum flex_dedupe dedupe;
    enum flex_filing filing;
    int protocol;              /* of the data files */
    struct flex_piece *pieces; /* by file, and in a file in the order of the dict */
    struct flex_out_file *files;
    struct flex_out_folder *folders;
    struct flex_out_item *items; /* members of a file without tensors: Paddle's loader takes all that it loads for tensors */
    uint32_t item_file;
    struct flex_out_copy *copies;
    uint32_t copy_count, copy_capacity;
    struct str *names;           /* by tensor: what the framework calls it, "" if not known. NULL: none is */
    uint32_t piece_count, piece_capacity, file_count, file_capacity, folder_count, folder_capacity, item_count;
};

static inline struct flex_target *flex_target_state(const struct target *target)
{
    return target->driver_state;
}

/* ---- flex_layout.c ---- */

extern const struct format_option flex_options[];

reshard_status flex_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
void flex_close_target(struct target *target);

/* Adds a file, or the folder of a role, which may be there; *out is its number. */
reshard_status flex_target_add_file(struct target *target, struct str name, uint32_t folder, uint32_t rank, uint32_t *out,
                                    reshard_error *err);
reshard_status flex_target_add_folder(struct target *target, enum flex_role role, struct str metadata, uint32_t *out, reshard_error *err);
reshard_status flex_target_add_piece(struct target *target, const struct flex_piece *piece, reshard_error *err);

/* Whether a tensor is stored at all. */
static inline bool flex_is_stored(const struct catalog_tensor *tensor)
{
    return !(tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

/* ---- flex_folders.c ---- */

/* Adds the folders that the reference has, in its order. */
reshard_status flex_folders_like(struct target *target, const struct source *like, reshard_error *err);

/* Adds the folders that the request asks for. */
reshard_status flex_folders_make(const struct layout_request *request, struct target *target, reshard_error *err);

/* Which of the folders a tensor of that key goes to. */
uint32_t flex_folder_of(const struct target *target, struct str key);

/* Adds the data file of a rank, under the name that the folder's files have. */
reshard_status flex_target_add_rank_file(struct target *target, uint32_t folder, uint32_t rank, uint32_t *out, reshard_error *err);

/* ---- flex_place.c ---- */

extern const struct layout_word flex_words[];

/* Places the pieces of all tensors after the words of the layout. */
reshard_status flex_place(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- flex_like.c ---- */

/* The reference, if it is a Flex Checkpoint. */
const struct source *flex_reference(const struct layout_request *request);

/* Release and protocol of the reference. */
reshard_status flex_like_options(const struct source *like, struct flex_target *state, reshard_error *err);
reshard_status flex_place_like(const struct layout_request *request, struct target *target, const struct source *like, reshard_error *err);

/* ---- flex_cut.c ---- */

/* Degrees of the parallel dimensions, each 1 or more. A rank is ((data * pp + stage) * sharding + shard) * tp + part. */
struct flex_degrees {
    uint32_t tp, pp, vp, ep, dp, sharding;
    bool is_ep_over_tp; /* experts, which are whole, are spread over the ranks of tp first */
    enum sharding_stage stage;
    int64_t segment; /* of stage 3 */
    uint32_t world;
};

/* Of the words of a layout (flex_place.c). The world is tp x pp x sharding x dp, where dp is said, or what `ranks` leaves, or what ep asks
 * for. */
reshard_status flex_degrees_read(const struct layout_request *request, struct flex_degrees *out, reshard_error *err);

struct flex_place {
    uint32_t data, stage, shard, part;
};

/* What a parameter and its state have in common. */
struct flex_parameter {
    struct str key;
    uint32_t tensor; /* of the parameter itself, or of the first of its states that has its shape */
    enum dtype dtype;
    int axis;              /* cut by tensor parallelism; -1: whole */
    uint32_t stage;        /* of the pipeline */
    int64_t layer, expert; /* -1: none */
    bool is_own_stack;     /* the layer is of a stack that does not count */
    int32_t expert_rank;   /* -1: every rank has it */
    bool has_state, has_master;
    struct sharded_parameter share; /* elements are those of one rank's part */
};

/* What a tensor is of its parameter. */
struct flex_member {
    uint32_t parameter;
    bool is_state;
    bool is_shaped; /* it has the parameter's shape, and is cut like it */
};

struct flex_cutting {
    const struct catalog *wanted;
    struct flex_degrees degrees;
    struct flex_member *parts; /* by tensor */
    struct flex_parameter *parameters;
    uint32_t parameter_count, parameter_capacity; /* in the order of the model's modules */
    uint32_t *order; /* the tensors that are stored, as every rank hands its own in */
    uint32_t order_count;
    struct arena arena;
};

/* Puts the parameters in the order of the model's modules, and fills in the order of the tensors once states are shared out. */
reshard_status flex_order_parameters(struct flex_cutting *cutting, reshard_error *err);
reshard_status flex_order_tensors(struct flex_cutting *cutting, reshard_error *err);

reshard_status flex_cutting_make(const struct layout_request *request, const struct flex_degrees *degrees, struct flex_cutting *out,
                                 reshard_error *err);
void flex_cutting_release(struct flex_cutting *cutting);

/* What a rank holds of a tensor: false if nothing. number: the same for all ranks that hold the same piece, less than
 * flex_piece_numbers(). */
struct flex_held {
    int64_t start[RANK_MAX], extent[RANK_MAX];
    int64_t begin, count; /* as in flex_piece */
    uint32_t number;
};
bool flex_held_of(const struct flex_cutting *cutting, uint32_t tensor, const struct flex_place *place, struct flex_held *out);
uint32_t flex_piece_numbers(const struct flex_cutting *cutting, uint32_t tensor);

/* ---- flex_metadata_write.c ---- */

/* The metadata of one folder; bytes, if not NULL, gets its size. The same bytes every time. */
reshard_status flex_metadata_write(const struct target *target, const struct catalog *wanted, uint32_t folder, pickle_sink sink,
                                   void *context, uint64_t *bytes, reshard_error *err);

/* ---- flex_publish.c ---- */

/* Lays a file out: offsets of its pieces' elements, and its size. */
reshard_status flex_file_plan(const struct layout_request *request, const struct target *target, uint32_t file, uint64_t *offsets,
                              uint64_t *bytes, reshard_error *err);

/* Whether the value is plain data that any reader of the pickle takes: *why is NULL then, or says what it is. */
reshard_status flex_item_check_plain(const struct catalog_item *item, const char **why, reshard_error *err);
reshard_status flex_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status flex_commit(const struct publish_job *job, reshard_error *err);

#endif
