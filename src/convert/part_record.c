/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/part_record.h"

#include "base/array.h"
#include "base/crc32.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define RECORD_MAGIC "RSHPART2"
#define RECORD_MAGIC_BYTES 8
#define MISSING_RUNS_SHOWN 20

void part_record_name(uint32_t part, uint32_t parts, char out[PART_RECORD_NAME_MAX])
{
    snprintf(out, PART_RECORD_NAME_MAX, ".part-%" PRIu32 "-of-%" PRIu32, part, parts);
}

/* Whether the record has a CRC of the chunk. */
static bool has_crc(const struct run *run, uint32_t chunk)
{
    return run->conversion->target.catalog->chunks[chunk].flags & CHUNK_WANT_CRC && run->crcs[chunk];
}

reshard_status part_record_make(const struct run *run, uint64_t identity, struct str fed, struct buffer *out, reshard_error *err)
{
    const struct conversion_options *options = run->conversion->options;
    const struct catalog *target = run->conversion->target.catalog;
    uint32_t count = 0;
    for (uint32_t i = 0; i < target->chunk_count; i++)
        count += has_crc(run, i);
    buffer_append(out, RECORD_MAGIC, RECORD_MAGIC_BYTES);
    buffer_append_u64le(out, identity);
    buffer_append_u32le(out, options->part);
    buffer_append_u32le(out, options->part_count);
    buffer_append_u32le(out, (uint32_t)options->part_words.size);
    buffer_append_str(out, options->part_words);
    buffer_append_u32le(out, count);
    for (uint32_t i = 0; i < target->chunk_count; i++) {
        if (!has_crc(run, i))
            continue;
        buffer_append_u32le(out, i);
        buffer_append_u32le(out, run->crcs[i]);
    }
    buffer_append_str(out, fed);
    buffer_append_u32le(out, crc32c(0, out->data, out->size));
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}

bool part_record_parse(const struct buffer *bytes, struct part_record *out)
{
    uint32_t size, crc, count = 0;
    struct str magic, crcs;
    if (bytes->size < 4)
        return false;
    struct cursor all = cursor_over(bytes->data, bytes->size), end = all;
    all.size -= 4;
    bool is_good = cursor_skip(&end, bytes->size - 4) && cursor_u32le(&end, &crc) && crc32c(0, bytes->data, bytes->size - 4) == crc &&
                   cursor_bytes(&all, RECORD_MAGIC_BYTES, &magic) && str_is(magic, RECORD_MAGIC) && cursor_u64le(&all, &out->identity) &&
                   cursor_u32le(&all, &out->part) && cursor_u32le(&all, &out->parts) && cursor_u32le(&all, &size) &&
                   cursor_bytes(&all, size, &out->words) && cursor_u32le(&all, &count) && count <= UINT32_MAX / 8 &&
                   cursor_bytes(&all, count * 8, &crcs);
    if (!is_good)
        return false;
    out->crcs = cursor_over((const uint8_t *)crcs.data, crcs.size);
    out->fed = all;
    return out->parts && out->parts <= PARTS_MAX && out->part < out->parts;
}

reshard_status part_record_refuse(const char *name, const char *what, reshard_error *err)
{
    error_set(err, RESHARD_DIFFERS, "'%s' %s", name, what);
    error_hint(err, "run that part again with the options of the others");
    return RESHARD_DIFFERS;
}

/* ---- beginning ---- */

reshard_status part_check(const struct conversion *conversion, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    if (options->part_count > PARTS_MAX || options->part >= options->part_count)
        return error_set(err, RESHARD_ERR_USAGE, "part %" PRIu32 " of %" PRIu32 ": parts are counted from 0, and there are at most %d",
                         options->part, options->part_count, PARTS_MAX);
    if (options->store)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.store: parts are written to the file system");
    if (options->part_words.size > UINT32_MAX / 2)
        return error_set(err, RESHARD_ERR_LIMIT, "the words of a part are too long");
    if (run_is_packed(conversion))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "what is compressed file by file cannot be written in parts");
    return RESHARD_OK;
}

struct store_txn_options part_txn_options(const struct conversion *conversion, enum store_txn_share share)
{
    return (struct store_txn_options){ .is_directory = run_is_directory(conversion),
                                       .overwrite = conversion->options->overwrite,
                                       .no_sync = conversion->options->no_sync,
                                       .identity = run_identity(conversion),
                                       .share = share };
}

/* The folder of the unfinished target, in which records lie. */
static struct str record_folder(const struct run *run)
{
    return str_without_slashes(str_folder(str_of(store_txn_path(run->txn))));
}

/* Of how many parts the record of that name is; 0: it does not say. */
static uint64_t parts_of_name(const char *name)
{
    const char *of = strstr(name, "-of-");
    uint64_t parts = 0;
    return of && str_to_u64(str_of(of + 4), &parts) ? parts : 0;
}

reshard_status part_records_check_number(const struct run *run, reshard_error *err)
{
    const uint32_t own = run->conversion->options->part_count;
    struct arena arena = { 0 };
    char **names;
    size_t count;
    reshard_status status = store_txn_records(run->txn, &arena, &names, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        const uint64_t parts = parts_of_name(names[i]);
        if (!parts || parts == own)
            continue;
        status = error_set(err, RESHARD_DIFFERS, "'%s' is there, and this is a part of %" PRIu32, names[i], own);
        error_hint(err, "write the rest of those %" PRIu64 " parts, or remove '%.*s' to begin anew", parts, STR_ARG(record_folder(run)));
    }
    arena_release(&arena);
    return status;
}

/* ---- all parts ---- */

struct records {
    const struct run *run;
    uint64_t identity;
    uint32_t parts, seen;
    uint8_t *is_there; /* by part */
    part_record_sink sink;
    void *context;
};

static reshard_status record_take(struct records *records, const char *name, const struct buffer *bytes, reshard_error *err)
{
    struct part_record record;
    char expected[PART_RECORD_NAME_MAX];
    if (!part_record_parse(bytes, &record))
        return part_record_refuse(name, "is damaged", err);
    part_record_name(record.part, record.parts, expected);
    if (record.identity != records->identity || strcmp(name, expected) != 0)
        return part_record_refuse(name, "is of another run", err);
    if (!records->parts) {
        records->parts = record.parts;
        records->is_there = array_zeroed(record.parts, 1);
        if (!records->is_there)
            return error_set_memory(err);
    }
    if (record.parts != records->parts) { /* both were written at once, or none would have begun beside the other */
        error_set(err, RESHARD_DIFFERS, "'%s' is one of another number of parts", name);
        error_hint(err, "remove it from '%.*s', or all of that folder to begin anew", STR_ARG(record_folder(records->run)));
        return RESHARD_DIFFERS;
    }
    reshard_status status = records->sink(records->context, name, &record, err);
    records->is_there[record.part] = 1;
    records->seen++;
    return status;
}

/* The numbers of those that are missing, runs of them as 3-17; how many they are. */
static uint32_t parts_list_missing(const struct records *records, struct buffer *out)
{
    uint32_t missing = 0, runs = 0;
    for (uint32_t i = 0, end; i < records->parts; i = end) {
        for (end = i + 1; end < records->parts && !records->is_there[end] == !records->is_there[i];)
            end++;
        if (records->is_there[i])
            continue;
        missing += end - i;
        if (++runs > MISSING_RUNS_SHOWN)
            continue;
        buffer_printf(out, "%s%" PRIu32, runs > 1 ? ", " : "", i);
        if (end - i > 1)
            buffer_printf(out, "-%" PRIu32, end - 1);
    }
    if (runs > MISSING_RUNS_SHOWN)
        buffer_append_text(out, ", …");
    return missing;
}

static reshard_status parts_check(const struct records *records, reshard_error *err)
{
    struct buffer list = { 0 };
    if (!records->parts)
        return error_set(err, RESHARD_DIFFERS, "no part is there");
    const uint32_t missing = parts_list_missing(records, &list);
    if (missing) {
        error_set(err, RESHARD_DIFFERS, "part%s %.*s of %" PRIu32 " %s missing (%" PRIu32 " are there)", missing > 1 ? "s" : "",
                  STR_ARG(buffer_str(&list)), records->parts, missing > 1 ? "are" : "is", records->seen);
        error_hint(err, "run %s, then commit again", missing > 1 ? "them" : "it");
    }
    buffer_release(&list);
    return missing ? RESHARD_DIFFERS : RESHARD_OK;
}

reshard_status part_records_take(const struct run *run, uint64_t identity, part_record_sink sink, void *context, reshard_error *err)
{
    struct records records = { .run = run, .identity = identity, .sink = sink, .context = context };
    struct arena arena = { 0 };
    char **names;
    size_t count;
    reshard_status status = store_txn_records(run->txn, &arena, &names, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        struct buffer bytes = { 0 };
        status = store_txn_record_read(run->txn, names[i], &bytes, err);
        if (!status)
            status = record_take(&records, names[i], &bytes, err);
        buffer_release(&bytes);
    }
    arena_release(&arena);
    if (!status)
        status = parts_check(&records, err);
    free(records.is_there);
    return status;
}
