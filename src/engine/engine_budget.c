/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_budget.h"

#include <inttypes.h>
#include <sched.h>
#include <unistd.h>

#include "base/checked.h"
#include "engine/engine_layout.h"

#define MEMORY_DEFAULT (UINT64_C(128) << 20)
#define DECODED_DEFAULT_MAX (UINT64_C(384) << 20) /* for decoded chunks, if nobody says how much memory there is */
#define CHUNK_DEFAULT_MAX (UINT64_C(448) << 20)   /* for one of them */
#define WORKERS_MAX 256u
#define WORKERS_DEFAULT_MAX 8u
#define WORKERS_FAR 16u
#define SHARE_MAX ((uint64_t)16 << 20) /* beyond this, larger reads and writes gain nothing */
#define SHARE_MIN ((uint64_t)16 << 10)
#define SHARE_BIG ((uint64_t)1 << 20)
#define RECORDS_PART 8 /* of a share is for records */
#define PARTS_MAX 8192u
#define PARTS_MIN 4u
#define WORKER_BYTES ((uint64_t)2 << 20) /* what makes another worker worth starting */
#define DECODER_BYTES ((uint64_t)4 << 20)
#define DECODERS_MAX 32u

static unsigned cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

unsigned engine_threads(const struct engine_options *options, bool is_far)
{
    if (options->threads)
        return options->threads > WORKERS_MAX ? WORKERS_MAX : options->threads;
    const unsigned cpus = is_far ? WORKERS_FAR : cpu_count();
    return is_far || cpus < WORKERS_DEFAULT_MAX ? cpus : WORKERS_DEFAULT_MAX;
}

static unsigned workers_wanted(uint64_t target_bytes, const struct engine_options *options, bool is_far)
{
    unsigned wanted = engine_threads(options, is_far);
    uint64_t useful = 1 + target_bytes / WORKER_BYTES;
    /* Who names a number of threads gets them even for little data. */
    return !options->threads && useful < wanted ? (unsigned)useful : wanted;
}

/* The most that a chunk takes which the plan reads and which is decoded as a whole. */
struct chunk_need {
    uint64_t decoded, between, coded;
};

static void need_grow(uint64_t *need, uint64_t bytes)
{
    *need = bytes > *need ? bytes : *need;
}

static struct chunk_need chunk_need_max(const struct plan *plan)
{
    struct chunk_need need = { 0 };
    const struct chain *last = NULL; /* chunks of an array share one */
    for (uint32_t i = 0; i < plan->step_count; i++) {
        uint32_t chunk = plan->steps[i].source_chunk;
        const struct chunk_layout *layout = chunk == CATALOG_NONE ? NULL : catalog_layout_of(plan->source, &plan->source->chunks[chunk]);
        if (!layout || !layout->chain || layout->chain->literal)
            continue;
        need_grow(&need.coded, layout->coded_bytes);
        if (layout->chain == last)
            continue;
        last = layout->chain;
        need_grow(&need.decoded, last->decoded_bytes);
        need_grow(&need.between, chain_between_bytes(last));
    }
    return need;
}

/*
 * Most of the memory is for decoded chunks: the more of them are kept, the fewer are decoded twice. Where nobody said how much, there is
 * room for each worker to decode one while it holds two, within bounds.
 */
static void plan_decoding(struct engine_budget *budget, const struct chunk_need *need, uint64_t memory, bool is_default)
{
    uint64_t scratch = capped_add_u64(need->between, need->coded), one = capped_add_u64(need->decoded, scratch), all;
    budget->chunk_bytes = need->decoded;
    budget->between_bytes = need->between;
    budget->decoded_bytes = memory / 2;
    all = capped_mul_u64(capped_add_u64(one, capped_mul_u64(need->decoded, 2)), budget->workers);
    if (all > DECODED_DEFAULT_MAX)
        all = DECODED_DEFAULT_MAX;
    if (is_default && budget->decoded_bytes < all)
        budget->decoded_bytes = all;
    if (budget->decoded_bytes < one)
        budget->decoded_bytes = one;
    uint64_t decodes = one ? budget->decoded_bytes / one : 1;
    budget->decodes_max = decodes < budget->workers ? (unsigned)decodes : budget->workers;
    budget->decoded_bytes -= scratch * budget->decodes_max;
}

uint64_t engine_chunk_memory(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const struct chain *chain = layout ? layout->chain : NULL;
    return chain ? capped_add_u64(chain->decoded_bytes, chain_between_bytes(chain)) : 0;
}

uint64_t engine_chunk_memory_max(const struct engine_options *options)
{
    return options->chunk_memory ? options->chunk_memory : options->memory_bytes ? options->memory_bytes : CHUNK_DEFAULT_MAX;
}

reshard_status budget_check(const struct engine_budget *budget, const struct engine_options *options, reshard_error *err)
{
    uint64_t found = capped_add_u64(budget->chunk_bytes, budget->between_bytes), limit = engine_chunk_memory_max(options);
    if (found <= limit)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_LIMIT,
              "memory: found %" PRIu64 " bytes, which a chunk that is decoded as a whole takes, the limit is %" PRIu64, found, limit);
    error_hint(err, "raise it with reshard_run_options.memory_bytes %" PRIu64 "MiB", (found >> 20) + 1);
    return RESHARD_ERR_LIMIT;
}

/* All jobs of a small plan in one: what a share has beyond that lies idle, and a caller may run thousands of such plans. */
static uint64_t share_useful(const struct plan *plan)
{
    uint64_t bytes = capped_mul_u64(capped_add_u64(plan->read_bytes, plan->write_bytes), 2);
    uint64_t all = capped_add_u64(bytes, (uint64_t)plan->step_count * JOB_RECORD_BYTES * RECORDS_PART);
    return all < SHARE_BIG ? SHARE_BIG : all >= SHARE_MAX ? SHARE_MAX : (all + 4095) / 4096 * 4096;
}

struct engine_budget budget_of(const struct plan *plan, const struct engine_options *options)
{
    struct engine_budget budget = { .workers = workers_wanted(plan->write_bytes, options, plan->source->is_far) };
    uint64_t memory = options->memory_bytes ? options->memory_bytes : MEMORY_DEFAULT;
    uint64_t usable = memory - memory / 4; /* the rest is for stacks, decoders and the code itself */
    struct chunk_need need = chunk_need_max(plan);
    if (need.decoded) {
        plan_decoding(&budget, &need, memory, !options->memory_bytes);
        usable = memory / 4;
    }
    while (budget.workers > 1 && usable / budget.workers < SHARE_MIN)
        budget.workers--;
    uint64_t share = usable / budget.workers / 4096 * 4096;
    uint64_t useful = share_useful(plan);
    share = share < SHARE_MIN ? SHARE_MIN : share > useful ? useful : share;

    uint64_t parts = share / RECORDS_PART / JOB_RECORD_BYTES;
    parts = parts < PARTS_MIN ? PARTS_MIN : parts > PARTS_MAX ? PARTS_MAX : parts;
    uint64_t align = share >= SHARE_BIG ? 4096 : 64;
    uint64_t records = (parts * JOB_RECORD_BYTES + align - 1) / align * align;
    budget.share_bytes = (size_t)share;
    budget.data_bytes = (size_t)(share - records);
    budget.parts_max = (uint32_t)parts;
    uint64_t decoders = memory / 4 / budget.workers / DECODER_BYTES;
    budget.decoders_max = decoders < 1 ? 1 : decoders > DECODERS_MAX ? DECODERS_MAX : (uint32_t)decoders;
    return budget;
}

unsigned packers_wanted(uint64_t object_bytes, const struct engine_options *options)
{
    uint64_t memory = options->memory_bytes ? options->memory_bytes : MEMORY_DEFAULT;
    unsigned wanted = workers_wanted(UINT64_MAX / 2, options, false);
    while (wanted > 1 && 2 * object_bytes > memory / wanted)
        wanted--;
    return wanted;
}

uint64_t engine_memory_estimate(const struct plan *plan, const struct engine_options *options)
{
    struct engine_budget budget = budget_of(plan, options);
    return capped_add_u64((uint64_t)budget.workers * budget.share_bytes, capped_add_u64(budget.decoded_bytes, budget.between_bytes));
}
