/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "engine/engine_state.h"
#include "base/digest.h"

/*
 * Jobs of a tensor ascend in its row-major order, and so do their parts of each plain chunk: the list of parts is in the order in which
 * its CRC grows. Parts of a strided chunk may come in any order, and lie between each other.
 */
static reshard_status crcs_combine(const struct engine *engine, uint32_t *crcs, reshard_error *err)
{
    const struct catalog *target = engine->plan->target;
    uint64_t *sizes = array_zeroed(target->chunk_count, sizeof(*sizes));
    reshard_status status = sizes ? RESHARD_OK : error_set_memory(err);
    /* The plan may be a part of another: CRCs of chunks that it does not write are left alone. */
    for (uint32_t i = 0; i < engine->list.crc_count && !status; i++)
        crcs[engine->crc_parts[i].chunk] = 0;
    for (uint32_t i = 0; i < engine->list.crc_count && !status; i++) {
        const struct crc_part *part = &engine->crc_parts[i];
        bool is_strided = catalog_chunk_is_strided(target, &target->chunks[part->chunk]);
        if (is_strided) {
            crcs[part->chunk] =
                crc32_zip_overlay(crcs[part->chunk], sizes[part->chunk], part->crc, part->bytes, part->offset, &sizes[part->chunk]);
            continue;
        }
        if (part->offset != sizes[part->chunk]) {
            status = error_set(err, RESHARD_ERR_FORMAT, "journal: CRC of byte %" PRIu64 " of a chunk follows byte %" PRIu64, part->offset,
                               sizes[part->chunk]);
            break;
        }
        crcs[part->chunk] = part->offset ? crc32_zip_combine(crcs[part->chunk], part->crc, part->bytes) : part->crc;
        sizes[part->chunk] += part->bytes;
    }
    free(sizes);
    return status;
}

static reshard_status run_work(struct engine *engine, uint32_t *crcs, struct store_txn *journal, reshard_error *err)
{
    engine->crc_parts = array_zeroed(engine->list.crc_count, sizeof(*engine->crc_parts));
    if (!engine->crc_parts)
        return error_set_memory(err);
    reshard_status status = journal_open(engine, journal, err);
    if (status)
        return status;
    status = engine_work(engine, err);
    if (status) {
        /* What was done is done: the next run need not do it again. The first error is the one to report. */
        journal_flush(engine, NULL);
        return status;
    }
    return crcs_combine(engine, crcs, err);
}

reshard_status engine_run(const struct plan *plan, const struct engine_source *source, struct store_object **objects, uint32_t *crcs,
                          struct store_txn *journal, const struct engine_options *options, reshard_error *err)
{
    struct engine engine;
    reshard_status status = engine_init(&engine, plan, source, options, false, err);
    if (status)
        return status;
    engine.objects = engine.mode.objects = objects;
    status = run_work(&engine, crcs, journal, err);
    engine_release(&engine);
    return status;
}
