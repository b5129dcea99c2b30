/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_jobs.h"

#include "base/hash.h"

void job_list_release(struct job_list *list)
{
    buffer_release(&list->job_bytes);
    buffer_release(&list->lane_bytes);
    buffer_release(&list->item_bytes);
    buffer_release(&list->box_bytes);
    *list = (struct job_list){ 0 };
}

struct job_shape job_shape_of(const struct job_list *list, const struct plan *plan, const struct job *job)
{
    struct job_shape shape = {
        .kind = (enum job_kind)job->kind,
        .items = list->items + job->first_item,
        .item_count = job->item_count,
        .run_begin = job->run_begin,
        .run_bytes = job->target_bytes,
    };
    if (shape.kind == JOB_BOX || shape.kind == JOB_TILE) {
        const struct plan_step *step = &plan->steps[shape.items[0]];
        shape.start = list->boxes + job->box;
        shape.extent = shape.start + plan->recipes[step->recipe].rank;
    }
    return shape;
}

uint64_t job_list_hash(const struct job_list *list)
{
    uint64_t hash = hash64(&list->job_count, sizeof(list->job_count), 0);
    if (list->job_bytes.size)
        hash = hash64(list->job_bytes.data, list->job_bytes.size, hash);
    if (list->item_bytes.size)
        hash = hash64(list->item_bytes.data, list->item_bytes.size, hash);
    if (list->box_bytes.size)
        hash = hash64(list->box_bytes.data, list->box_bytes.size, hash);
    return hash;
}
