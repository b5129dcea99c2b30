/* SPDX-License-Identifier: Apache-2.0 */
#include "base/work.h"

#include <inttypes.h>

/* So far below the largest number that additions stay clear of it. */
#define UNITS_MAX (INT64_MAX / 4)

static int64_t full(const struct work *work)
{
    uint64_t grown;
    if (__builtin_mul_overflow(work->read, (uint64_t)WORK_PER_BYTE, &grown) || __builtin_add_overflow(grown, work->limit, &grown) ||
        grown > (uint64_t)UNITS_MAX)
        return UNITS_MAX;
    return (int64_t)grown;
}

void work_begin(struct work *work, uint64_t limit)
{
    work->limit = limit;
    work->read = 0;
    work->goes_on = NULL;
    work->is_cancelled = false;
    work_renew(work);
}

void work_renew(struct work *work)
{
    if (work)
        atomic_store(&work->left, full(work));
}

static void work_ask(struct work *work)
{
    if (work->is_cancelled || !work->goes_on || work->goes_on(work->context, work->read))
        return;
    work->is_cancelled = true;
    atomic_store(&work->left, -1);
}

void work_add_input(struct work *work, uint64_t stored_bytes)
{
    if (!work)
        return;
    int64_t before = full(work);
    if (__builtin_add_overflow(work->read, stored_bytes, &work->read))
        work->read = UINT64_MAX;
    if (!work_is_spent(work))
        atomic_fetch_add(&work->left, full(work) - before);
    work_ask(work);
}

bool work_is_spent(const struct work *work)
{
    return work && atomic_load_explicit(&((struct work *)(uintptr_t)work)->left, memory_order_relaxed) < 0;
}

uint64_t work_left(struct work *work, uint64_t max)
{
    if (!work)
        return max;
    int64_t left = atomic_load_explicit(&work->left, memory_order_relaxed);
    if (left < 0)
        return 0;
    return (uint64_t)left < max ? (uint64_t)left : max;
}

static reshard_status work_fail(const struct work *work, reshard_error *err)
{
    if (work->is_cancelled)
        return error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
    uint64_t raised = work->limit > UINT64_MAX / 8 ? UINT64_MAX / 2 : work->limit * 4 + 1;
    error_set(err, RESHARD_ERR_LIMIT,
              "work: parts that are shared, repeated or compressed ask for more than %" PRIu64 " units of work in all",
              (uint64_t)full(work));
    error_hint(err, "raise it with reshard_open_options.limits work=%" PRIu64, raised);
    return RESHARD_ERR_LIMIT;
}

reshard_status work_spend(struct work *work, uint64_t units, reshard_error *err)
{
    return work_take(work, units) ? RESHARD_OK : work_fail(work, err);
}

reshard_status work_spend_steps(struct work *work, uint64_t steps, reshard_error *err)
{
    return work_take_steps(work, steps) ? RESHARD_OK : work_fail(work, err);
}

reshard_status work_poll(struct work *work, reshard_error *err)
{
    work_ask(work);
    return work->is_cancelled ? work_fail(work, err) : RESHARD_OK;
}

reshard_status work_explain(const struct work *work, reshard_status status, reshard_error *err)
{
    if (work && work->is_cancelled)
        return work_fail(work, err);
    return status == RESHARD_ERR_MEMORY && work_is_spent(work) ? work_fail(work, err) : status;
}

reshard_status work_error(const struct work *work, reshard_error *err)
{
    return work_is_spent(work) ? work_fail(work, err) : error_set_memory(err);
}
