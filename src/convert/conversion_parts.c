/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions in parts, on storage that all of them see: each run lays out the same target, moves its part of the payload, and leaves a
 * record beside the target; a commit, when all records are there, writes what is beside payload, and makes the target visible.
 */
#include "convert/part_record.h"

#include "convert/conversion_second.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a part ---- */

static reshard_status part_write(struct run *run, const struct plan *part, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct store_txn_options options = part_txn_options(conversion, STORE_TXN_PART);
    struct engine_source source = conversion_engine_source(conversion);
    struct buffer record = { 0 };
    char name[PART_RECORD_NAME_MAX];
    reshard_status status = run_announce(conversion, err);
    if (!status)
        status = store_txn_begin(target_path, &options, &run->txn, err);
    if (!status)
        status = part_records_check_number(run, err);
    if (!status)
        status = run_create_objects(run, part, err);
    if (!status)
        status = engine_run(part, &source, run->objects, run->crcs, NULL, &conversion->engine, err);
    run_close_objects(run);
    if (!status)
        status = part_record_make(run, options.identity, (struct str){ 0 }, &record, err);
    if (!status) {
        part_record_name(conversion->options->part, conversion->options->part_count, name);
        status = store_txn_leave(run->txn, name, record.data, record.size, err);
        run->txn = NULL;
    }
    buffer_release(&record);
    return status;
}

reshard_status conversion_run_part(struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    struct run run = { .conversion = conversion };
    struct plan *part = NULL;
    reshard_status status = part_check(conversion, err);
    if (!status)
        status = plan_split(conversion->plan, options->part, options->part_count, &part, err);
    if (!status)
        status = part_write(&run, part, target_path, err);
    store_txn_abort(run.txn, true);
    run_release(&run);
    plan_free(part);
    return status;
}

/* ---- commit ---- */

/* Adds the CRCs of a part, whose chunks are no other part's. */
static reshard_status part_take(void *context, const char *name, const struct part_record *record, reshard_error *err)
{
    struct run *run = context;
    struct cursor crcs = record->crcs;
    uint32_t chunk, crc;
    while (cursor_u32le(&crcs, &chunk) && cursor_u32le(&crcs, &crc)) {
        if (chunk >= run->conversion->target.catalog->chunk_count || run->crcs[chunk])
            return part_record_refuse(name, "has checksums of chunks that are not its own", err);
        run->crcs[chunk] = crc;
    }
    return cursor_left(&record->fed) ? part_record_refuse(name, "is of what was fed", err) : RESHARD_OK;
}

static reshard_status commit_write(struct run *run, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct store_txn_options options = part_txn_options(conversion, STORE_TXN_REST);
    reshard_status status = sidecar_check_beside(target_path, options.is_directory, options.overwrite, err);
    if (!status)
        status = run_announce(conversion, err);
    if (!status)
        status = store_txn_begin(target_path, &options, &run->txn, err);
    if (!status)
        status = run_create_objects(run, NULL, err);
    if (!status)
        status = part_records_take(run, options.identity, part_take, run, err);
    if (!status)
        status = run_publish(run, err);
    run_close_objects(run);
    return status;
}

reshard_status conversion_commit(struct conversion *conversion, const char *target_path, reshard_error *err)
{
    struct run run = { .conversion = conversion };
    if (conversion->options->store)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.store: parts are written to the file system");
    reshard_status status = target_check_replaced(conversion, target_path, err);
    if (!status)
        status = commit_write(&run, target_path, err);
    if (!status)
        status = run_check(&run, err);
    if (!status)
        status = run_commit(&run, target_path, err);
    store_txn_abort(run.txn, true);
    run_release(&run);
    return status;
}

reshard_status conversion_part_words(const char *target_path, bool *is_first, struct buffer *out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct part_record record;
    bool found;
    reshard_status status = store_partial_record(target_path, &found, &bytes, err);
    if (!status && !found)
        status = error_set(err, RESHARD_DIFFERS, "no part of '%s' is there", target_path);
    if (!status && !part_record_parse(&bytes, &record))
        status = error_set(err, RESHARD_DIFFERS, "the record of a part of '%s' is damaged", target_path);
    if (!status && !buffer_append_str(out, record.words))
        status = error_set_memory(err);
    *is_first = !status && record.part == 0;
    buffer_release(&bytes);
    return status;
}

/* What a job fed into parts, and never finished, is not worth that: its next save begins anew. */
reshard_status target_check_parts(const struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    struct part_record record;
    struct buffer bytes = { 0 };
    bool found = false;
    if (options->part_count || options->overwrite || options->store)
        return RESHARD_OK;
    bool is_read = store_partial_record(target_path, &found, &bytes, NULL) == RESHARD_OK && found && part_record_parse(&bytes, &record);
    bool is_lost = is_read && !cursor_left(&record.fed) && !(options->resume && record.identity == run_identity(conversion));
    reshard_status status = RESHARD_OK;
    if (is_lost) {
        status = error_set(err, RESHARD_ERR_USAGE, "parts of '%s' are there, of %" PRIu32 ", which this run would remove", target_path,
                           record.parts);
        error_hint(err, "reshard_commit() makes them visible, once all are there; reshard_convert_options.overwrite begins anew");
    }
    buffer_release(&bytes);
    return status;
}
