/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of a job: which bytes it reads and writes, and where each of them lies in the worker's memory meanwhile.
 *
 * A job takes the overlaps of plan steps with a box (parts). Parts of one target chunk make a piece: bytes that are written together.
 * Source bytes that parts share, or that lie close together, make a range, which is read once. The same function that lays a job
 * out for running decides whether a box fits when jobs are cut, so that running never finds its memory too small.
 */
#ifndef ENGINE_ENGINE_LAYOUT_H
#define ENGINE_ENGINE_LAYOUT_H

#include "plan/plan.h"
#include "base/sort.h"
#include "store/store.h"

enum job_kind {
    JOB_WHOLE, /* all of each step */
    JOB_BOX,   /* what lies in a box, which is a run of the target tensor's row-major order */
    JOB_TILE,  /* what lies in any box: its pieces are spread */
    JOB_RUN,   /* bytes of one step that is a plain run */
    JOB_COPY   /* the same, and the kernel may do it */
};

/* What a job takes. Items are step numbers, or ITEM_EMPTY | target tensor for a tensor without elements that the sink must hear of. */
#define ITEM_EMPTY UINT32_C(0x80000000)
struct job_shape {
    enum job_kind kind;
    const uint32_t *items;
    uint32_t item_count;
    const int64_t *start, *extent; /* JOB_BOX, JOB_TILE */
    uint64_t run_begin, run_bytes; /* JOB_RUN, JOB_COPY: relative to the step's first byte */
};

enum part_kind {
    PART_RANGE,  /* its source lies in a range */
    PART_BLOCKS, /* its source is far apart: blocks read one after the other, packed */
    PART_PLACE,  /* its runs are read straight into the target's place */
    PART_FILL,   /* it has no source: all of its elements are its recipe's fill */
    PART_DECODED /* its source is in a chunk that is decoded as a whole: copied to the target's place from there */
};

struct part {
    uint64_t source_offset; /* of its first element, in the source object or in the decoded stream */
    uint64_t target_offset; /* of its first element, in the target object; in the piece if that is spread */
    uint64_t bytes;         /* of the target */
    uint64_t source_bytes;  /* from its first element to the end of the last; of one block for PART_BLOCKS */
    const uint8_t *source;  /* its first element, once in memory */
    uint8_t *target;        /* where its first element goes; NULL if it stays where its source is */
    uint8_t *packed;        /* room for the blocks of PART_BLOCKS */
    struct store_object *pinned;
    uint32_t step, piece, range;
    uint32_t origin; /* source object, or source chunk if that is coded */
    uint32_t block_count;
    uint8_t kind;
    bool is_encoded; /* its source is a decoded stream */
    bool is_chunk;   /* its source is a decoded chunk */
    bool is_plain;   /* one run of equal bytes on both sides */
    bool is_held;    /* its decoded chunk is to be given back */
};

struct piece {
    uint64_t offset, bytes; /* in the target object; offset is 0 if it is spread */
    uint8_t *memory;        /* NULL if direct */
    uint32_t object, chunk, tensor;
    uint32_t first_part, part_count;
    bool is_spread; /* several runs of the object, which lie one after another in memory */
    bool is_split;  /* its parts are plain and in order: each may be handed over from wherever it is */
    bool is_direct; /* and so they are: the piece has no memory */
};

struct range {
    uint64_t begin, end;
    uint8_t *memory;
    const uint8_t *source; /* memory, or where the object is mapped */
    struct store_object *pinned;
    uint32_t origin;
    bool is_encoded;
};

#define JOB_RECORD_BYTES (sizeof(struct part) + sizeof(struct piece) + sizeof(struct range) + 2 * sizeof(struct sort_entry))

/* A worker's share of memory, and the job laid out in it. */
struct job_memory {
    struct part *parts;
    struct piece *pieces;
    struct range *ranges;
    struct sort_entry *order, *spare;
    uint8_t *data;
    size_t data_bytes;
    uint32_t parts_max;
    uint32_t part_count, piece_count, range_count;
    unsigned fill_min; /* how sparse blocks may be, see engine_blocks.h */
};

/* How jobs are laid out in this run. */
struct layout_mode {
    const struct plan *plan;
    bool is_stream;        /* pieces go to a sink in order, not to objects */
    struct store_object **objects; /* of the target, when its jobs run; NULL while they are cut, and for streams */
    uint64_t source_align; /* ranges begin and end at multiples of it: 4096 for direct reads, else 1 */
};

/* Divides a share. share_bytes as in the budget. */
void job_memory_init(struct job_memory *memory, uint8_t *share, size_t share_bytes, size_t data_bytes, uint32_t parts_max);

/* *fits says whether the job has room; if not, the layout is of no use. Fails if a source's strides are bad. */
reshard_status job_layout(const struct layout_mode *mode, const struct job_shape *shape, struct job_memory *memory, bool *fits,
                          reshard_error *err);

/* The strided copy of a part whose source is mapped or in a range: between part->source and part->target. */
reshard_status part_copy(const struct layout_mode *mode, const struct job_shape *shape, const struct part *part, struct plan_copy *out,
                         reshard_error *err);

/* Whether what a job has of a target chunk is several runs of the object: the chunk is strided, or the job a tile. */
bool piece_is_spread(const struct plan *plan, const struct job_shape *shape, uint32_t chunk);

/* The overlap of a target chunk's box with a job's, or all of it if the job has no box; false if there is none. */
bool piece_box(const struct plan *plan, const struct job_shape *shape, uint32_t chunk, int64_t *start, int64_t *extent);

/* Where the runs that make up a spread piece lie in the target object, in the order of the piece's bytes, which is that of the runs. */
struct spread_runs {
    uint64_t run_bytes, run_count;
    int outer_rank;
    int64_t extent[RANK_MAX], stride[RANK_MAX]; /* of the outer axes; bytes in the object */
    uint64_t offset;                            /* of the first run */
};
void spread_runs_of(const struct plan *plan, const struct job_shape *shape, uint32_t chunk, struct spread_runs *out);
uint64_t spread_run_offset(const struct spread_runs *runs, uint64_t index);

#endif
