/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writing side of fsdp-ranks.
 *
 *   model_world_size_W_rank_R.pt     tensors of the model: DTensor, ShardedTensor or plain, nested by their paths; other items
 *   optim_world_size_W_rank_R.pt     the item "optimizer", or tensors and items whose path begins with it
 *   extra_state_world_size_W_rank_R.pt   what begins with "extra_state"; items "rank_N.KEY" are rank N's own "KEY"
 *   fsdp_config.json, huggingface/   FSDP's version and the number of ranks; side files
 *
 * Names follow the reference (--like), as does the way tensors lie on the ranks where their number is the same.
 */
#ifndef FORMATS_TORCH_FSDP_TARGET_H
#define FORMATS_TORCH_FSDP_TARGET_H

#include "encoding/torch_shard.h"
#include "formats/torch/fsdp_assemble.h"

/* How tensors lie on the ranks (fsdp_spread.c). */
struct fsdp_spread {
    uint32_t world;
    uint32_t *layout_of;                /* by wanted tensor: 1 + index in layouts; 0: plain, the same on all ranks */
    struct torch_shard_layout *layouts; /* each once */
    uint32_t layout_count, layout_capacity;
};

reshard_status fsdp_spread_tensors(const struct layout_request *request, struct fsdp_spread *out, reshard_error *err);
void fsdp_spread_release(struct fsdp_spread *spread);

/* Elements of a wanted tensor's flattened form in a record. */
struct fsdp_run {
    uint32_t tensor;
    int64_t begin, count, place; /* place: of the first one in the record */
};

/* One storage of a file. */
struct fsdp_record {
    uint32_t tensor;      /* wanted tensor whose box it is, or TORCH_NONE: the bytes are in memory */
    struct fsdp_run *runs; /* not NULL: it is these, and zeros between and behind them; rising places, from the heap */
    uint32_t run_count;
    enum dtype dtype;
    int rank;
    int64_t start[RANK_MAX], extent[RANK_MAX];
    uint64_t bytes;
    struct buffer memory;
};

struct fsdp_target_file {
    enum fsdp_kind kind;
    uint32_t rank, object;
    struct torch_frame frame;
    struct fsdp_record *records;
    uint32_t record_count, record_capacity;
    uint64_t pickle_bytes;
    bool is_planned;       /* the pickle is made again when the file is published: those of all ranks are too much to keep */
    uint32_t record_again; /* then: the next record */
};

struct fsdp_flat_plan;

/* driver_state of a target. */
struct fsdp_target {
    struct fsdp_spread spread;
    struct fsdp_flat_plan *flat;    /* how FSDP1's pieces of the optimizer are cut */
    bool *is_left_out;              /* by wanted item: noted as dropped, or said by another one */
    struct name_map item_keys;      /* of the wanted items: number -> items[number], the first of that key */
    uint32_t *items;
    struct fsdp_target_file *files; /* by object */
    uint32_t file_count, file_capacity;
    struct buffer config;           /* fsdp_config.json */
    uint32_t config_object;         /* CATALOG_NONE: there is none */
    struct fsdp_side_file {
        uint32_t object, item;      /* wanted item */
    } *side_files;
    uint32_t side_count, side_capacity;
};

/* Makes the pickle of a file and its records (fsdp_emit.c). *is_empty: nothing belongs in it. */
/* A file whose records are known already gets the same pickle again. */
reshard_status fsdp_emit_file(const struct layout_request *request, struct target *target, struct fsdp_target_file *file,
                              struct buffer *out, bool *is_empty, reshard_error *err);

/* Takes over what the record has on the heap if it returns RESHARD_OK. */
reshard_status fsdp_record_add(struct fsdp_target_file *file, struct fsdp_record *record, uint32_t *out, reshard_error *err);

/* value.reserved of a node of a copied item that is a record already. */
#define FSDP_NODE_IS_DONE 2

/* The source tensor whose whole a call rebuilds from one storage; TORCH_NONE: it is no such call. */
uint32_t fsdp_whole_of(const struct value *node);

reshard_status fsdp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status fsdp_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
void fsdp_close_target(struct target *target);

#endif
