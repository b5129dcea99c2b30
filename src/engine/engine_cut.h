/* SPDX-License-Identifier: Apache-2.0 */
/* Cutter: what making the job list works with. */
#ifndef ENGINE_ENGINE_CUT_H
#define ENGINE_ENGINE_CUT_H

#include "engine/engine_jobs.h"

struct cutter {
    const struct layout_mode *mode;
    const struct engine_budget *budget;
    enum engine_io io;
    struct job_memory *scratch;
    struct job_list *list;
    uint64_t target_max; /* bytes that a job of a large tensor writes at most */
    struct buffer batch; /* items of small tensors that will share a job */
    uint64_t batch_target, batch_need, batch_target_max;
    struct buffer stack;  /* lists of steps of the boxes still to be cut */
    struct buffer frames; /* these boxes */
};

/* Opens a lane for the jobs that follow, or goes on with the last one. */
reshard_status lane_open(struct cutter *cutter, bool is_exclusive, reshard_error *err);

/* Appends a job to the last lane. */
reshard_status job_add(struct cutter *cutter, const struct job_shape *shape, uint64_t target_bytes, reshard_error *err);

/* Cuts the box of a tensor into jobs. steps: those of the tensor, ascending. */
reshard_status box_cut(struct cutter *cutter, uint32_t tensor, const uint32_t *steps, uint32_t count, reshard_error *err);

/* Cuts a step that is one run of bytes. */
reshard_status run_cut(struct cutter *cutter, uint32_t step, enum job_kind kind, uint64_t window_bytes, reshard_error *err);

/* Whether the step's source must be decoded; and whether as a whole, or from a stream, which is cheap front to back only. */
bool step_is_encoded(const struct plan *plan, uint32_t step);
bool step_is_decoded(const struct plan *plan, uint32_t step);
bool step_is_streamed(const struct plan *plan, uint32_t step);

/* Bytes that the step writes. */
uint64_t step_bytes(const struct plan *plan, uint32_t step);

#endif
