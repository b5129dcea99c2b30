/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A record of the journal, little-endian:
 *   u64 magic, u64 identity of plan and job list, u32 payload bytes, payload, u64 xxh3 of all before
 * The payload is a list of finished jobs: u32 job, u32 CRC parts, and for each part u32 chunk, u32 crc, u64 offset, u64 bytes.
 * A record cut short by a crash is stepped over by looking for the next magic.
 */
#include <stdlib.h>

#include "base/cursor.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine_state.h"

#define RECORD_MAGIC UINT64_C(0x314A445241485352) /* "RSHARDJ1" */
#define RECORD_HEAD_BYTES 20
#define RECORD_TAIL_BYTES 8
#define RECORD_BYTES_MAX 65536 /* unless one job needs more */
#define JOB_HEAD_BYTES 8
#define CRC_PART_BYTES 24
#define WRITE_BYTES_MAX ((uint64_t)256 << 20)
#define WRITE_BUDGETS 4 /* so many memory budgets of data are worth a record: with a small budget data flow slowly */
#define WRITE_NS INT64_C(2000000000)

static size_t job_record_bytes(const struct job *job)
{
    return JOB_HEAD_BYTES + (size_t)job->crc_count * CRC_PART_BYTES;
}

/* Takes over one job's notes. false if they do not fit the job list, or the payload ends. */
static bool job_restore(struct engine *engine, struct cursor *payload)
{
    uint32_t job_index, crc_count;
    if (!cursor_u32le(payload, &job_index) || !cursor_u32le(payload, &crc_count) || job_index >= engine->list.job_count)
        return false;
    const struct job *job = &engine->list.jobs[job_index];
    if (crc_count != job->crc_count)
        return false;
    for (uint32_t i = 0; i < crc_count; i++) {
        struct crc_part part;
        if (!cursor_u32le(payload, &part.chunk) || !cursor_u32le(payload, &part.crc) || !cursor_u64le(payload, &part.offset) ||
            !cursor_u64le(payload, &part.bytes) || part.chunk >= engine->plan->target->chunk_count)
            return false;
        engine->crc_parts[job->first_crc + i] = part;
    }
    if (!engine->journal.is_done[job_index])
        engine->progress.bytes_resumed = engine->progress.bytes_done += job->target_bytes;
    engine->journal.is_done[job_index] = 1;
    return true;
}

/* The record that starts at the cursor, moved behind it; false if there is no whole one. */
static bool record_read(struct cursor *cursor, uint64_t identity, struct cursor *payload)
{
    struct cursor at = *cursor;
    uint64_t magic, found_identity, digest;
    uint32_t size;
    struct str bytes;
    if (!cursor_u64le(&at, &magic) || magic != RECORD_MAGIC || !cursor_u64le(&at, &found_identity) || !cursor_u32le(&at, &size) ||
        !cursor_bytes(&at, size, &bytes))
        return false;
    uint64_t expected = hash64(cursor->data + cursor->pos, RECORD_HEAD_BYTES + (size_t)size, 0);
    if (!cursor_u64le(&at, &digest) || digest != expected)
        return false;
    *payload = cursor_over(bytes.data, found_identity == identity ? bytes.size : 0);
    *cursor = at;
    return true;
}

static void journal_restore(struct engine *engine, const struct buffer *text)
{
    struct cursor cursor = cursor_over(text->data, text->size);
    while (cursor_left(&cursor) >= RECORD_HEAD_BYTES + RECORD_TAIL_BYTES) {
        struct cursor payload;
        if (!record_read(&cursor, engine->journal.identity, &payload)) {
            cursor_skip(&cursor, 1);
            continue;
        }
        while (cursor_left(&payload) > 0 && job_restore(engine, &payload))
            continue;
    }
}

reshard_status journal_open(struct engine *engine, struct store_txn *txn, reshard_error *err)
{
    struct journal *journal = &engine->journal;
    uint32_t job_count = engine->list.job_count;
    size_t record_max = RECORD_BYTES_MAX;
    struct buffer text = { 0 };
    if (!txn)
        return RESHARD_OK;
    if (pthread_mutex_init(&journal->lock, NULL))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    journal->txn = txn;
    uint64_t identity[2] = { plan_hash(engine->plan), job_list_hash(&engine->list) };
    journal->identity = hash64(identity, sizeof(identity), 0);
    journal->last_ns = clock_ns();
    journal->write_bytes = (uint64_t)engine->budget.workers * engine->budget.share_bytes * WRITE_BUDGETS;
    if (journal->write_bytes > WRITE_BYTES_MAX)
        journal->write_bytes = WRITE_BYTES_MAX;
    for (uint32_t i = 0; i < job_count; i++) {
        size_t needed = RECORD_HEAD_BYTES + RECORD_TAIL_BYTES + job_record_bytes(&engine->list.jobs[i]);
        record_max = needed > record_max ? needed : record_max;
    }
    journal->is_done = array_zeroed(job_count, 1);
    journal->finished = array_new(job_count, sizeof(*journal->finished));
    if (!journal->is_done || !journal->finished || !buffer_reserve(&journal->record, record_max))
        return error_set_memory(err);
    reshard_status status = store_txn_journal_read(txn, &text, err);
    if (!status)
        journal_restore(engine, &text);
    buffer_release(&text);
    return status;
}

void journal_release(struct journal *journal)
{
    free(journal->is_done);
    free(journal->finished);
    buffer_release(&journal->record);
    if (journal->txn)
        pthread_mutex_destroy(&journal->lock);
    *journal = (struct journal){ 0 };
}

static void job_append(const struct engine *engine, uint32_t job_index, struct buffer *record)
{
    const struct job *job = &engine->list.jobs[job_index];
    buffer_append_u32le(record, job_index);
    buffer_append_u32le(record, job->crc_count);
    for (uint32_t i = 0; i < job->crc_count; i++) {
        const struct crc_part *part = &engine->crc_parts[job->first_crc + i];
        buffer_append_u32le(record, part->chunk);
        buffer_append_u32le(record, part->crc);
        buffer_append_u64le(record, part->offset);
        buffer_append_u64le(record, part->bytes);
    }
}

/* Makes one record of as many jobs as fit, from finished[*begin] on. */
static reshard_status record_write(struct engine *engine, uint32_t *begin, uint32_t end, reshard_error *err)
{
    struct journal *journal = &engine->journal;
    struct buffer *record = &journal->record;
    size_t size = 0;
    uint32_t last = *begin;
    for (; last < end; last++) {
        size_t more = job_record_bytes(&engine->list.jobs[journal->finished[last]]);
        if (last > *begin && size + more > RECORD_BYTES_MAX - RECORD_HEAD_BYTES - RECORD_TAIL_BYTES)
            break;
        size += more;
    }
    buffer_clear(record);
    buffer_append_u64le(record, RECORD_MAGIC);
    buffer_append_u64le(record, journal->identity);
    buffer_append_u32le(record, (uint32_t)size);
    for (; *begin < last; (*begin)++)
        job_append(engine, journal->finished[*begin], record);
    buffer_append_u64le(record, hash64(record->data, record->size, 0));
    if (record->failed)
        return error_set_memory(err);
    return store_txn_journal_append(journal->txn, record->data, record->size, err);
}

reshard_status journal_flush(struct engine *engine, reshard_error *err)
{
    struct journal *journal = &engine->journal;
    reshard_status status = RESHARD_OK;
    if (!journal->txn)
        return RESHARD_OK;
    pthread_mutex_lock(&journal->lock);
    uint32_t begin = journal->recorded_count, end = journal->finished_count;
    journal->is_writing = true;
    journal->bytes_waiting = 0;
    pthread_mutex_unlock(&journal->lock);
    /* Others go on meanwhile; they only append to finished behind end. */
    while (begin < end && !status)
        status = record_write(engine, &begin, end, err);
    pthread_mutex_lock(&journal->lock);
    journal->recorded_count = begin;
    journal->is_writing = false;
    journal->last_ns = clock_ns();
    pthread_mutex_unlock(&journal->lock);
    return status;
}

reshard_status journal_note(struct engine *engine, uint32_t job, reshard_error *err)
{
    struct journal *journal = &engine->journal;
    if (!journal->txn)
        return RESHARD_OK;
    pthread_mutex_lock(&journal->lock);
    journal->finished[journal->finished_count++] = job;
    journal->bytes_waiting += engine->list.jobs[job].target_bytes;
    bool is_time = !journal->is_writing && (journal->bytes_waiting >= journal->write_bytes || clock_ns() - journal->last_ns >= WRITE_NS);
    journal->is_writing |= is_time;
    pthread_mutex_unlock(&journal->lock);
    return is_time ? journal_flush(engine, err) : RESHARD_OK;
}
