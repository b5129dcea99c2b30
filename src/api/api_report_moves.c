/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan carries from which file into which: its steps, added up by pairs of objects. */
#include "api/handle.h"
#include "api/report.h"
#include "base/array.h"
#include "base/sort.h"

#include <stdlib.h>

/* Steps by their pair of objects; a step without a source comes first. */
static void pairs_fill(const struct plan *plan, struct sort_entry *pairs)
{
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        int64_t from = step->source_chunk == CATALOG_NONE ? 0 : (int64_t)plan->source->chunks[step->source_chunk].object + 1;
        pairs[i] = (struct sort_entry){ from << 31 | plan->target->chunks[step->target_chunk].object, i };
    }
}

static uint64_t move_step_bytes(const struct plan *plan, const struct plan_step *step)
{
    const struct catalog_tensor *tensor = &plan->target->tensors[plan->target->chunks[step->target_chunk].tensor];
    uint64_t bytes = 0;
    dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, plan->vectors + step->extent), &bytes);
    return bytes;
}

/* The first step of a pair tells its files. */
static bool move_begin(struct reshard_report_lists *lists, const struct plan *plan, const struct plan_step *step)
{
    const struct catalog_chunk *to = &plan->target->chunks[step->target_chunk];
    reshard_move *move = &lists->moves[lists->move_count++];
    struct str name = { 0 }, kept;
    *move = (reshard_move){ .from_writer = -1, .to_writer = catalog_chunk_writer(plan->target, to) };
    if (step->source_chunk != CATALOG_NONE) {
        const struct catalog_chunk *from = &plan->source->chunks[step->source_chunk];
        move->from_writer = catalog_chunk_writer(plan->source, from);
        name = plan->source->objects[from->object].name;
    }
    if (!arena_str(&lists->arena, name, &kept))
        return false;
    move->from = public_str(kept);
    if (!arena_str(&lists->arena, plan->target->objects[to->object].name, &kept))
        return false;
    move->to = public_str(kept);
    return true;
}

static size_t pairs_count(const struct sort_entry *pairs, uint32_t count)
{
    size_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += i == 0 || pairs[i].key != pairs[i - 1].key;
    return found;
}

bool report_moves_keep(struct reshard_report_lists *lists, const struct plan *plan)
{
    struct sort_entry *pairs = array_zeroed(2 * (size_t)plan->step_count, sizeof(*pairs));
    bool is_kept = pairs != NULL;
    if (!is_kept)
        return false;
    pairs_fill(plan, pairs);
    entries_sort(pairs, pairs + plan->step_count, plan->step_count);
    lists->moves = array_zeroed(pairs_count(pairs, plan->step_count), sizeof(*lists->moves));
    is_kept = lists->moves != NULL;
    for (uint32_t i = 0; is_kept && i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[pairs[i].value];
        if (i == 0 || pairs[i].key != pairs[i - 1].key)
            is_kept = move_begin(lists, plan, step);
        if (is_kept)
            lists->moves[lists->move_count - 1].bytes += move_step_bytes(plan, step);
    }
    free(pairs);
    return is_kept;
}

API_EXPORT reshard_status reshard_report_move_at(const reshard_report *report, size_t index, reshard_move *out)
{
    const struct reshard_report_lists *lists = report_lists_of(report);
    if (!entry_begin(out, "reshard_move", index, (lists ? lists->move_count : 0)))
        return RESHARD_ERR_USAGE;
    struct_give(out, &lists->moves[index], sizeof(lists->moves[index]));
    return RESHARD_OK;
}
