/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions in parts, on storage that all of them see: each run lays out the same target, moves its part of the payload, and leaves a
 * record beside the target; a commit, when all records are there, writes what is beside payload, and makes the target visible.
 *
 * A record: 8 bytes of magic, identity of the run u64, part u32, parts u32, size of the words u32 and the words, then chunk u32 and CRC-32
 * u32 of each chunk of the target that the part has made a CRC of, and the CRC-32C of all before it u32. Integers are little-endian.
 */
#include "convert/conversion_run.h"

#include "base/crc32.h"
#include "base/cursor.h"
#include "convert/conversion_second.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define RECORD_MAGIC "RSHPART1"
#define RECORD_MAGIC_BYTES 8
#define RECORD_NAME_MAX 48
#define PARTS_MAX 100000

struct part_record {
    uint64_t identity;
    uint32_t part, parts;
    struct str words;
    struct cursor crcs; /* pairs of chunk and CRC */
};

/* ---- records ---- */

static reshard_status record_make(const struct run *run, uint64_t identity, struct buffer *out, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    const struct catalog *target = run->conversion->target.catalog;
    buffer_append(out, RECORD_MAGIC, RECORD_MAGIC_BYTES);
    buffer_append_u64le(out, identity);
    buffer_append_u32le(out, options->part);
    buffer_append_u32le(out, options->part_count);
    buffer_append_u32le(out, (uint32_t)options->part_words.size);
    buffer_append_str(out, options->part_words);
    for (uint32_t i = 0; i < target->chunk_count; i++) {
        if (!(target->chunks[i].flags & CHUNK_WANT_CRC) || !run->crcs[i])
            continue;
        buffer_append_u32le(out, i);
        buffer_append_u32le(out, run->crcs[i]);
    }
    buffer_append_u32le(out, crc32c(0, out->data, out->size));
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}

static bool record_parse(const struct buffer *bytes, struct part_record *out)
{
    uint32_t size, crc;
    struct str magic;
    if (bytes->size < 4)
        return false;
    struct cursor all = cursor_over(bytes->data, bytes->size), end = all;
    all.size -= 4;
    bool is_good = cursor_skip(&end, bytes->size - 4) && cursor_u32le(&end, &crc) && crc32c(0, bytes->data, bytes->size - 4) == crc &&
                   cursor_bytes(&all, RECORD_MAGIC_BYTES, &magic) && str_is(magic, RECORD_MAGIC) && cursor_u64le(&all, &out->identity) &&
                   cursor_u32le(&all, &out->part) && cursor_u32le(&all, &out->parts) && cursor_u32le(&all, &size) &&
                   cursor_bytes(&all, size, &out->words);
    out->crcs = all;
    return is_good && out->parts && out->parts <= PARTS_MAX && out->part < out->parts && cursor_left(&all) % 8 == 0;
}

static void part_record_name(uint32_t part, uint32_t parts, char out[RECORD_NAME_MAX])
{
    snprintf(out, RECORD_NAME_MAX, ".part-%" PRIu32 "-of-%" PRIu32, part, parts);
}

/* ---- a part ---- */

static struct store_txn_options part_txn_options(const struct conversion *conversion, enum store_txn_share share)
{
    return (struct store_txn_options){ .is_directory = run_is_directory(conversion),
                                       .overwrite = conversion->options->overwrite,
                                       .no_sync = conversion->options->no_sync,
                                       .identity = run_identity(conversion),
                                       .share = share };
}

static reshard_status part_write(struct run *run, const struct plan *part, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct store_txn_options options = part_txn_options(conversion, STORE_TXN_PART);
    struct engine_source source = conversion_engine_source(conversion);
    struct buffer record = { 0 };
    char name[RECORD_NAME_MAX];
    reshard_status status = run_announce(conversion, err);
    if (!status)
        status = store_txn_begin(target_path, &options, &run->txn, err);
    if (!status)
        status = run_create_objects(run, part, err);
    if (!status)
        status = engine_run(part, &source, run->objects, run->crcs, NULL, &conversion->engine, err);
    run_close_objects(run);
    if (!status)
        status = record_make(run, options.identity, &record, err);
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
    if (options->part_count > PARTS_MAX || options->part >= options->part_count)
        return error_set(err, RESHARD_ERR_USAGE, "part %" PRIu32 " of %" PRIu32 ": parts are counted from 0, and there are at most %d",
                         options->part, options->part_count, PARTS_MAX);
    if (options->part_words.size > UINT32_MAX / 2)
        return error_set(err, RESHARD_ERR_LIMIT, "the words of a part are too long");
    if (run_is_packed(conversion))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "what is compressed file by file cannot be written in parts");
    reshard_status status = plan_split(conversion->plan, options->part, options->part_count, &part, err);
    if (!status)
        status = part_write(&run, part, target_path, err);
    store_txn_abort(run.txn, true);
    run_release(&run);
    plan_free(part);
    return status;
}

/* ---- commit ---- */

static reshard_status record_refuse(const char *name, const char *what, reshard_error *err)
{
    error_set(err, RESHARD_DIFFERS, "'%s' %s", name, what);
    error_hint(err, "run that part again with the options of the others");
    return RESHARD_DIFFERS;
}

/* Adds the CRCs of a part, whose chunks are no other part's. */
static bool crcs_take(struct run *run, struct cursor crcs)
{
    uint32_t chunk, crc;
    while (cursor_u32le(&crcs, &chunk) && cursor_u32le(&crcs, &crc)) {
        if (chunk >= run->conversion->target.catalog->chunk_count || run->crcs[chunk])
            return false;
        run->crcs[chunk] = crc;
    }
    return true;
}

struct commit_state {
    uint64_t identity;
    uint32_t parts, seen;
    uint8_t *is_there; /* by part */
};

static reshard_status record_take(struct run *run, struct commit_state *state, const char *name, const struct buffer *bytes,
                                  reshard_error *err)
{
    struct part_record record;
    char expected[RECORD_NAME_MAX];
    if (!record_parse(bytes, &record))
        return record_refuse(name, "is damaged", err);
    part_record_name(record.part, record.parts, expected);
    if (record.identity != state->identity || strcmp(name, expected) != 0)
        return record_refuse(name, "is of another run", err);
    if (!state->parts) {
        state->parts = record.parts;
        state->is_there = calloc(record.parts, 1);
        if (!state->is_there)
            return error_set_memory(err);
    }
    if (record.parts != state->parts)
        return record_refuse(name, "is one of another number of parts", err);
    if (!crcs_take(run, record.crcs))
        return record_refuse(name, "has checksums of chunks that are not its own", err);
    state->is_there[record.part] = 1;
    state->seen++;
    return RESHARD_OK;
}

static reshard_status parts_check(const struct commit_state *state, reshard_error *err)
{
    uint32_t missing = 0;
    if (!state->parts)
        return error_set(err, RESHARD_DIFFERS, "no part is there");
    while (missing < state->parts && state->is_there[missing])
        missing++;
    if (missing == state->parts)
        return RESHARD_OK;
    error_set(err, RESHARD_DIFFERS, "part %" PRIu32 " of %" PRIu32 " is missing (%" PRIu32 " are there)", missing, state->parts,
              state->seen);
    error_hint(err, "run it, then commit again");
    return RESHARD_DIFFERS;
}

static reshard_status parts_take(struct run *run, struct commit_state *state, reshard_error *err)
{
    struct arena arena = { 0 };
    char **names;
    size_t count;
    reshard_status status = store_txn_records(run->txn, &arena, &names, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        struct buffer bytes = { 0 };
        status = store_txn_record_read(run->txn, names[i], &bytes, err);
        if (!status)
            status = record_take(run, state, names[i], &bytes, err);
        buffer_release(&bytes);
    }
    arena_release(&arena);
    return status ? status : parts_check(state, err);
}

static reshard_status commit_write(struct run *run, const char *target_path, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct store_txn_options options = part_txn_options(conversion, STORE_TXN_REST);
    struct commit_state state = { .identity = options.identity };
    reshard_status status = sidecar_check_beside(target_path, options.is_directory, options.overwrite, err);
    if (!status)
        status = run_announce(conversion, err);
    if (!status)
        status = store_txn_begin(target_path, &options, &run->txn, err);
    if (!status)
        status = run_create_objects(run, NULL, err);
    if (!status)
        status = parts_take(run, &state, err);
    if (!status)
        status = run_publish(run, err);
    free(state.is_there);
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

reshard_status conversion_part_words(const char *target_path, struct buffer *out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct part_record record;
    bool found;
    reshard_status status = store_partial_record(target_path, &found, &bytes, err);
    if (!status && !found)
        status = error_set(err, RESHARD_DIFFERS, "no part of '%s' is there", target_path);
    if (!status && !record_parse(&bytes, &record))
        status = error_set(err, RESHARD_DIFFERS, "the record of a part of '%s' is damaged", target_path);
    if (!status && !buffer_append_str(out, record.words))
        status = error_set_memory(err);
    buffer_release(&bytes);
    return status;
}
