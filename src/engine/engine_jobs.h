/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: a plan cut into pieces of work, each of which fits a worker's share of memory. The list depends on the plan and the options
 * only, so that an interrupted run can be taken up again.
 *
 * Small tensors share a job; a large one is halved on its outermost axis, and further inward, until the parts fit. Where the source is
 * transposed, halving alternates between the outermost axes of both sides, so that both are touched in long runs. Target chunks that are
 * made of long plain runs are copied by the kernel instead.
 *
 * A lane is a run of consecutive jobs: of one tensor if a sink wants them in order, of one tensor that is decoded from
 * streams (then one worker does them all, front to back), or whatever lies between.
 */
#ifndef ENGINE_ENGINE_JOBS_H
#define ENGINE_ENGINE_JOBS_H

#include "engine/engine_budget.h"
#include "engine/engine_layout.h"

#define JOB_NONE UINT32_MAX

struct job {
    uint64_t target_bytes;
    uint64_t run_begin; /* JOB_RUN, JOB_COPY */
    uint64_t box;       /* JOB_BOX, JOB_TILE: place of start and extent among the list's boxes */
    uint32_t kind;      /* enum job_kind */
    uint32_t lane;
    uint32_t first_item, item_count;
    uint32_t first_crc, crc_count; /* pieces whose chunk wants its CRC */
};

struct lane {
    uint32_t first_job, end_job;
    uint32_t next_job;  /* not yet taken */
    uint32_t next_turn; /* next to hand over its bytes */
    bool is_exclusive;  /* one worker does all of it */
};

struct job_list {
    struct job *jobs;
    struct lane *lanes;
    uint32_t *items;
    int64_t *boxes;
    uint32_t job_count, lane_count, crc_count;
    struct buffer job_bytes, lane_bytes, item_bytes, box_bytes; /* what holds the arrays */
};

reshard_status job_list_make(const struct layout_mode *mode, const struct engine_budget *budget, enum engine_io io,
                             struct job_memory *scratch, struct job_list *out, reshard_error *err);
void job_list_release(struct job_list *list);

struct job_shape job_shape_of(const struct job_list *list, const struct plan *plan, const struct job *job);

/* Changes with any job. */
uint64_t job_list_hash(const struct job_list *list);

#endif
