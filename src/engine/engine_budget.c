/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_budget.h"

#include <sched.h>
#include <unistd.h>

#include "engine/engine_layout.h"

#define MEMORY_DEFAULT (UINT64_C(128) << 20)
#define WORKERS_MAX 256u
#define WORKERS_DEFAULT_MAX 8u
#define SHARE_MAX ((uint64_t)16 << 20) /* beyond this, larger reads and writes gain nothing */
#define SHARE_MIN ((uint64_t)16 << 10)
#define SHARE_BIG ((uint64_t)1 << 20)
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

static unsigned workers_wanted(uint64_t target_bytes, const struct engine_options *options)
{
    unsigned cpus = options->threads ? 0 : cpu_count();
    unsigned wanted = options->threads ? options->threads : cpus < WORKERS_DEFAULT_MAX ? cpus : WORKERS_DEFAULT_MAX;
    uint64_t useful = 1 + target_bytes / WORKER_BYTES;
    wanted = wanted > WORKERS_MAX ? WORKERS_MAX : wanted;
    /* Who names a number of threads gets them even for little data. */
    return !options->threads && useful < wanted ? (unsigned)useful : wanted;
}

/* Size of the largest chunk that the plan reads and that is decoded as a whole; 0: there is none. */
static uint64_t decoded_chunk_max(const struct plan *plan)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        uint32_t chunk = plan->steps[i].source_chunk;
        const struct chunk_layout *layout = chunk == CATALOG_NONE ? NULL : catalog_layout_of(plan->source, &plan->source->chunks[chunk]);
        if (layout && layout->chain && layout->chain->decoded_bytes > largest)
            largest = layout->chain->decoded_bytes;
    }
    return largest;
}

struct engine_budget budget_of(const struct plan *plan, const struct engine_options *options)
{
    struct engine_budget budget = { .workers = workers_wanted(plan->write_bytes, options) };
    uint64_t memory = options->memory_bytes ? options->memory_bytes : MEMORY_DEFAULT;
    uint64_t usable = memory - memory / 4; /* the rest is for stacks, decoders and the code itself */
    uint64_t chunk_bytes = decoded_chunk_max(plan);
    if (chunk_bytes) {
        /* Most of it is for decoded chunks: the more of them are kept, the fewer are decoded twice. */
        usable = memory / 4;
        budget.decoded_bytes = memory / 2;
        if (budget.decoded_bytes < chunk_bytes)
            budget.decoded_bytes = chunk_bytes; /* one at least, whatever was asked for */
    }
    while (budget.workers > 1 && usable / budget.workers < SHARE_MIN)
        budget.workers--;
    uint64_t share = usable / budget.workers / 4096 * 4096;
    share = share < SHARE_MIN ? SHARE_MIN : share > SHARE_MAX ? SHARE_MAX : share;

    uint64_t parts = share / 8 / JOB_RECORD_BYTES;
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
    unsigned wanted = workers_wanted(UINT64_MAX / 2, options);
    while (wanted > 1 && 2 * object_bytes > memory / wanted)
        wanted--;
    return wanted;
}

uint64_t engine_memory_estimate(const struct plan *plan, const struct engine_options *options)
{
    struct engine_budget budget = budget_of(plan, options);
    return (uint64_t)budget.workers * budget.share_bytes + budget.decoded_bytes;
}
