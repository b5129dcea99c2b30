/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/payload_check.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/waiting.h"
#include "convert/sidecar.h"

#include <pthread.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)256 << 10) /* stays in the second-level cache between its uses */
#define THREADS_MAX 16

/* Work is handed out chunk by chunk in order of (object, offset): big chunks dominate, small ones are cheap to hand out. */
struct payload_job {
    const struct catalog *catalog;
    struct source *source;
    const bool *is_chosen; /* by catalog tensor; NULL: all are looked at */
    bool tries_all;        /* all that is coded is decoded: it is written, or digests of it are taken */
    struct value_stats *stats;
    struct finding_sink *findings;
    const struct engine_options *options;
    const struct waiting *outer; /* whom the caller asks while it waits */
    uint32_t *order;
    uint32_t count, next;
    uint64_t bytes_done, bytes_total;
    bool stopped;
    reshard_status status;
    reshard_error *err;
    pthread_mutex_t lock;
    unsigned workers;
    pthread_mutex_t large_lock; /* one chunk at a time of those that not every worker can decode at once */
};

static bool has_values(const struct payload_job *job, const struct catalog_chunk *chunk)
{
    return job->stats && !(chunk->flags & CHUNK_REPLICA) && !(job->catalog->tensors[chunk->tensor].flags & TENSOR_HIDDEN);
}

/* Values can be taken straight from the stored bytes if these are the chunk's elements, each once, in native order. */
static bool payload_check_is_plain(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    if (chunk->flags & (CHUNK_SWAP | CHUNK_CONJUGATE | CHUNK_NEGATE))
        return false;
    if (dtype_element_bytes(tensor->dtype) == 0 || tensor->stored_as)
        return false;
    return !layout || (layout->strides == CATALOG_NONE && !catalog_chunk_is_coded(catalog, chunk));
}

static uint64_t element_count(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    if (layout && layout->flat_count >= 0)
        return (uint64_t)layout->flat_count;
    return (uint64_t)box_volume(catalog->tensors[chunk->tensor].rank, catalog_vector_at(catalog, chunk->extent));
}

static bool payload_check_advance(struct payload_job *job, uint64_t bytes)
{
    pthread_mutex_lock(&job->lock);
    job->bytes_done += bytes;
    if (job->options->progress) {
        struct engine_progress progress = { .bytes_done = job->bytes_done, .bytes_total = job->bytes_total, .bytes_read = job->bytes_done };
        if (!job->options->progress(&progress, job->options->context) && !job->stopped) {
            job->stopped = true;
            job->status = error_set(job->err, RESHARD_ERR_CANCELLED, "interrupted");
        }
    }
    bool go_on = !job->stopped;
    pthread_mutex_unlock(&job->lock);
    return go_on;
}

/* What one range of an object is read for. */
struct range_read {
    uint64_t offset, bytes;
    bool want_crc, want_values;
    uint64_t values_offset, values_bytes; /* inside the range */
    enum dtype dtype;
    struct value_stats stats;
    uint32_t crc;
};

/* Windows start at values_offset modulo the window size, a multiple of every element size, so no element is cut. */
static reshard_status payload_check_read_range(struct payload_job *job, const struct store_object *object, struct range_read *range,
                                               uint8_t *window, reshard_error *err)
{
    uint64_t values_end = range->values_offset + range->values_bytes;
    for (uint64_t at = 0; at < range->bytes;) {
        uint64_t size = range->bytes - at;
        if (at < range->values_offset && size > range->values_offset - at)
            size = range->values_offset - at;
        if (size > WINDOW_BYTES)
            size = WINDOW_BYTES;
        reshard_status status = store_read_at(object, range->offset + at, window, (size_t)size, err);
        if (status)
            return status;
        if (range->want_crc)
            range->crc = crc32_zip(range->crc, window, (size_t)size);
        if (range->want_values && at >= range->values_offset && at < values_end) {
            uint64_t part = values_end - at < size ? values_end - at : size;
            value_stats_add(&range->stats, range->dtype, window, (size_t)part / dtype_element_bytes(range->dtype));
        }
        at += size;
        if (!payload_check_advance(job, size))
            return RESHARD_OK;
    }
    return RESHARD_OK;
}

/* Whether decoding the chunk compares a checksum that is stored in it. */
static bool may_check(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return layout && layout->chain && !layout->chain->literal && chain_may_check(layout->chain);
}

/* Whether it has to be decoded though nobody wants its values: what cannot be decoded is lost, and nobody is to stumble over it later. */
static bool is_tried(const struct payload_job *job, const struct catalog_chunk *chunk)
{
    return may_check(job->catalog, chunk) || (job->tries_all && catalog_chunk_is_coded(job->catalog, chunk));
}

/* CHUNK_CHECKED if the stored bytes say that they carry a checksum; for one thread: nobody else looks at this chunk. */
static reshard_status note_checked(struct payload_job *job, const struct store_object *object, uint32_t index, reshard_error *err)
{
    const struct chunk_layout *layout = catalog_layout_of(job->catalog, &job->catalog->chunks[index]);
    const struct chain_step *first = layout->chain->steps;
    uint64_t skip = first->kind == CHAIN_SLICE ? first->slice_offset : 0,
             left = skip < layout->coded_bytes ? layout->coded_bytes - skip : 0;
    uint8_t head[CHAIN_HEAD_BYTES];
    size_t size = left < sizeof(head) ? (size_t)left : sizeof(head);
    reshard_status status = store_read_at(object, layout->coded_offset + skip, head, size, err);
    if (!status && chain_is_checked(layout->chain, head, size))
        job->source->catalog->chunks[index].flags |= CHUNK_CHECKED;
    return status;
}

static reshard_status stats_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                 reshard_error *err)
{
    struct range_read *range = context;
    (void)tensor, (void)offset, (void)is_last, (void)err;
    unsigned width = dtype_element_bytes(range->dtype);
    value_stats_add(&range->stats, width ? range->dtype : DTYPE_U8, bytes, width ? size / width : size);
    return RESHARD_OK;
}

static void keep_stats(struct payload_job *job, const struct catalog_chunk *chunk, const struct value_stats *found)
{
    pthread_mutex_lock(&job->lock);
    struct value_stats *stats = &job->stats[chunk->tensor];
    stats->nan_count += found->nan_count;
    stats->inf_count += found->inf_count;
    stats->has_nonzero = stats->has_nonzero || found->has_nonzero;
    pthread_mutex_unlock(&job->lock);
}

/* After a finding: whoever takes them may want no more. */
static void heed_sink(struct payload_job *job)
{
    if (!job->stopped && job->findings->status) {
        job->stopped = true;
        job->status = finding_sink_status(job->findings, job->err);
    }
}

/* A chunk whose bytes are no elements is a finding, and the others are looked at. To salvage, which takes what it can get, so is any other
 * that it does not get; elsewhere what nobody can read, or would with another limit, is not called damaged. */
static reshard_status bear_damage(struct payload_job *job, uint32_t index, reshard_status status, const reshard_error *err)
{
    const bool is_salvage = job->source->is_salvage;
    if (status != RESHARD_ERR_FORMAT && !(is_salvage && (status == RESHARD_ERR_IO || status_blames_bytes(status))))
        return status;
    pthread_mutex_lock(&job->lock);
    finding_report_chunk(job->findings, FINDING_FAILURE, "damage", job->catalog->tensors[job->catalog->chunks[index].tensor].key, index,
                         "%s", err->message);
    if (!is_salvage)
        job->source->catalog->chunks[index].flags |= CHUNK_DAMAGED;
    heed_sink(job);
    pthread_mutex_unlock(&job->lock);
    return RESHARD_OK;
}

static void report_crc(struct payload_job *job, const struct catalog_chunk *chunk, const struct chunk_layout *layout, uint32_t found)
{
    pthread_mutex_lock(&job->lock);
    finding_report_chunk(job->findings, FINDING_FAILURE, "checksum", job->catalog->tensors[chunk->tensor].key,
                         (uint32_t)(chunk - job->catalog->chunks),
                   "%.*s: bytes [%llu, +%llu): CRC-32 %08x, stored %08x", STR_ARG(job->catalog->objects[chunk->object].name),
                   (unsigned long long)layout->crc_offset, (unsigned long long)layout->crc_bytes, found, layout->crc32);
    heed_sink(job);
    pthread_mutex_unlock(&job->lock);
}

static reshard_status stream_values(struct payload_job *job, uint32_t index, struct range_read *range, reshard_error *err)
{
    struct engine_source source = { .store = job->source->store, .catalog = job->catalog, .limits = &job->source->limits };
    const uint64_t enough = (uint64_t)8 << 20, told = job->options->memory_bytes;
    struct engine_options options = { .threads = 1,
                                      .memory_bytes = told && told < enough ? told : enough,
                                      .chunk_memory = engine_chunk_memory_max(job->options) };
    bool is_large = engine_chunk_memory(job->catalog, &job->catalog->chunks[index]) > options.chunk_memory / job->workers;
    if (is_large)
        pthread_mutex_lock(&job->large_lock);
    reshard_status status = engine_stream_chunk(&source, index, &options, stats_sink, range, err);
    if (is_large)
        pthread_mutex_unlock(&job->large_lock);
    return status;
}

/* Decodes it, if somebody wants its values, or a checksum in it does. What has been read of the values so far is in the range. */
static reshard_status decode_chunk(struct payload_job *job, const struct store_object *object, uint32_t index, struct range_read *range,
                                   reshard_error *err)
{
    const struct catalog *catalog = job->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[index];
    const bool values = has_values(job, chunk), is_coded = values && !payload_check_is_plain(catalog, chunk);
    reshard_status status = may_check(catalog, chunk) ? note_checked(job, object, index, err) : RESHARD_OK;
    if (status || element_count(catalog, chunk) == 0)
        return status;
    if (is_coded || is_tried(job, chunk))
        status = stream_values(job, index, range, err);
    if (!status && values)
        keep_stats(job, chunk, &range->stats);
    return status;
}

static reshard_status check_chunk(struct payload_job *job, const struct store_object *object, uint32_t index, uint8_t *window,
                                  reshard_error *err)
{
    const struct catalog *catalog = job->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    struct range_read range = { .dtype = catalog->tensors[chunk->tensor].dtype, .offset = chunk->offset };
    uint64_t elements = element_count(catalog, chunk);
    reshard_status status = RESHARD_OK;
    range.want_values = has_values(job, chunk) && payload_check_is_plain(catalog, chunk) && elements;
    if (range.want_values)
        range.bytes = range.values_bytes = elements * dtype_element_bytes(range.dtype);
    if (chunk->flags & CHUNK_HAS_CRC && layout) {
        range.want_crc = true;
        range.offset = layout->crc_offset;
        range.bytes = layout->crc_bytes;
        range.values_offset = chunk->offset - layout->crc_offset;
        /* Values outside the checked range cannot happen with zip members; read them apart if they do. */
        if (range.want_values && (chunk->offset < layout->crc_offset || !range_fits(range.values_offset, range.values_bytes, range.bytes)))
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': its bytes lie outside the checksummed range",
                             STR_ARG(catalog->tensors[chunk->tensor].key));
    }
    status = payload_check_read_range(job, object, &range, window, err);
    if (status)
        error_prefix(err, "'%.*s'", STR_ARG(catalog->objects[chunk->object].name));
    if (status || job->stopped)
        return bear_damage(job, index, status, err);
    if (range.want_crc && range.crc != layout->crc32)
        report_crc(job, chunk, layout, range.crc);
    return bear_damage(job, index, decode_chunk(job, object, index, &range, err), err);
}

struct worker {
    struct payload_job *job;
    pthread_t thread;
    reshard_error err;
    uint8_t *window;
};

static void stop(struct payload_job *job, reshard_status status, const reshard_error *err)
{
    pthread_mutex_lock(&job->lock);
    if (!job->stopped) {
        job->stopped = true;
        job->status = status;
        if (job->err)
            *job->err = *err;
    }
    pthread_mutex_unlock(&job->lock);
}

/* Asked while a read waits. */
static bool payload_check_goes_on(void *context)
{
    struct payload_job *job = context;
    return payload_check_advance(job, 0) && (job->options->progress || waiting_goes_on_for(job->outer, &job->lock));
}

/* Each worker keeps the object it reads open until it gets a chunk of another one. */
static void *work(void *context)
{
    struct worker *worker = context;
    struct payload_job *job = worker->job;
    struct store_object *object = NULL;
    uint32_t opened = CATALOG_NONE;
    const struct waiting waiting = { payload_check_goes_on, job };
    waiting_set(&waiting);
    for (;;) {
        pthread_mutex_lock(&job->lock);
        uint32_t at = job->stopped ? job->count : job->next;
        job->next += at < job->count;
        pthread_mutex_unlock(&job->lock);
        if (at >= job->count)
            break;
        uint32_t index = job->order[at];
        const struct catalog_chunk *chunk = &job->catalog->chunks[index];
        reshard_status status = RESHARD_OK;
        if (chunk->object != opened) {
            store_object_close(object);
            object = NULL;
            opened = CATALOG_NONE;
            status = store_open_object_as(job->source->store, job->catalog->objects[chunk->object].name.data,
                                          engine_access(job->options->io), &object, &worker->err);
            if (!status)
                opened = chunk->object;
            else
                status = bear_damage(job, index, status, &worker->err);
        }
        if (!status && object)
            status = check_chunk(job, object, index, worker->window, &worker->err);
        if (status) {
            stop(job, status, &worker->err);
            break;
        }
    }
    store_object_close(object);
    waiting_set(NULL);
    return NULL;
}

static int payload_check_compare_places(const void *a, const void *b, void *context)
{
    const struct catalog *catalog = context;
    const struct catalog_chunk *x = &catalog->chunks[*(const uint32_t *)a], *y = &catalog->chunks[*(const uint32_t *)b];
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Chunks that need reading, and how much. Tensors that view one storage share its checksum: it is read for the first of them only. */
static reshard_status make_order(struct payload_job *job, reshard_error *err)
{
    const struct catalog *catalog = job->catalog;
    job->order = array_new(catalog->chunk_count, sizeof(uint32_t));
    if (!job->order)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (job->is_chosen && !job->is_chosen[chunk->tensor])
            continue;
        if ((chunk->flags & CHUNK_HAS_CRC) || is_tried(job, chunk) || has_values(job, chunk)) {
            job->order[job->count++] = i;
            job->bytes_total += chunk->bytes;
        }
    }
    qsort_r(job->order, job->count, sizeof(uint32_t), payload_check_compare_places, (void *)catalog);
    return RESHARD_OK;
}

static unsigned worker_count(const struct payload_job *job)
{
    unsigned threads = engine_threads(job->options, job->catalog->is_far);
    threads = threads > THREADS_MAX ? THREADS_MAX : threads;
    return threads > job->count ? (job->count ? job->count : 1) : threads;
}

static reshard_status workers_run(struct payload_job *job, reshard_error *err)
{
    struct worker workers[THREADS_MAX] = { 0 };
    unsigned wanted = worker_count(job), started = 0;
    job->workers = wanted;
    job->outer = waiting_set(NULL);
    /* The caller's thread is the first worker; what has no memory or no thread is done without. */
    for (; started < wanted; started++) {
        workers[started].job = job;
        workers[started].window = aligned_alloc(4096, WINDOW_BYTES);
        if (!workers[started].window || (started && pthread_create(&workers[started].thread, NULL, work, &workers[started])))
            break;
    }
    if (started)
        work(&workers[0]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    waiting_set(job->outer);
    for (unsigned i = 0; i < THREADS_MAX; i++)
        free(workers[i].window);
    return started ? job->status : error_set_memory(err);
}

/* ---- a team ---- */

/* Leaves this rank's share in the order. places, by chunk, becomes where it was. */
static reshard_status order_share(struct payload_job *job, const struct team *team, uint32_t **places, reshard_error *err)
{
    const struct catalog *catalog = job->catalog;
    uint64_t *bytes = array_zeroed(job->count, sizeof(*bytes));
    uint32_t *owners = array_zeroed(job->count, sizeof(*owners)), count = 0;
    *places = array_zeroed(catalog->chunk_count, sizeof(**places));
    const bool is_there = bytes && owners && *places;
    for (uint32_t i = 0; i < job->count && is_there; i++) {
        bytes[i] = catalog->chunks[job->order[i]].bytes;
        (*places)[job->order[i]] = i;
    }
    if (is_there)
        team_share(team, bytes, job->count, owners);
    job->bytes_total = is_there ? 0 : job->bytes_total;
    for (uint32_t i = 0; i < job->count && is_there; i++) {
        if (owners[i] != team_rank(team))
            continue;
        job->bytes_total += bytes[i];
        job->order[count++] = job->order[i];
    }
    job->count = count;
    free(bytes);
    free(owners);
    return is_there ? RESHARD_OK : error_set_memory(err);
}

/* Which of its chunks have got the flag. */
static void flagged_pack(const struct payload_job *job, enum chunk_flags flag, struct buffer *out)
{
    uint32_t flagged = 0;
    for (uint32_t i = 0; i < job->count; i++)
        flagged += (job->catalog->chunks[job->order[i]].flags & flag) != 0;
    buffer_append_u32le(out, flagged);
    for (uint32_t i = 0; i < job->count; i++)
        if (job->catalog->chunks[job->order[i]].flags & flag)
            buffer_append_u32le(out, job->order[i]);
}

static bool flagged_take(struct payload_job *job, enum chunk_flags flag, struct cursor *cursor)
{
    uint32_t flagged, number;
    if (!cursor_u32le(cursor, &flagged))
        return false;
    for (uint32_t i = 0; i < flagged; i++) {
        if (!cursor_u32le(cursor, &number) || number >= job->catalog->chunk_count)
            return false;
        job->source->catalog->chunks[number].flags |= (uint16_t)flag;
    }
    return true;
}

/* What a rank has learnt: which of its chunks carry a checksum, which are damaged, and what values are like. */
static void learnt_pack(const struct payload_job *job, struct buffer *out)
{
    flagged_pack(job, CHUNK_CHECKED, out);
    flagged_pack(job, CHUNK_DAMAGED, out);
    for (uint32_t t = 0; t < job->catalog->tensor_count && job->stats; t++) {
        const struct value_stats *stats = &job->stats[t];
        if (!stats->nan_count && !stats->inf_count && !stats->has_nonzero)
            continue;
        buffer_append_u32le(out, t);
        buffer_append_u64le(out, stats->nan_count);
        buffer_append_u64le(out, stats->inf_count);
        buffer_append_byte(out, stats->has_nonzero);
    }
}

static bool learnt_take(struct payload_job *job, struct str part, bool is_own)
{
    struct cursor cursor = cursor_over(part.data, part.size);
    uint32_t number;
    uint8_t has_nonzero;
    if (!flagged_take(job, CHUNK_CHECKED, &cursor) || !flagged_take(job, CHUNK_DAMAGED, &cursor))
        return false;
    while (cursor_left(&cursor) && job->stats) {
        struct value_stats found;
        if (!cursor_u32le(&cursor, &number) || number >= job->catalog->tensor_count || !cursor_u64le(&cursor, &found.nan_count) ||
            !cursor_u64le(&cursor, &found.inf_count) || !cursor_u8(&cursor, &has_nonzero))
            return false;
        struct value_stats *stats = &job->stats[number];
        stats->nan_count += is_own ? 0 : found.nan_count;
        stats->inf_count += is_own ? 0 : found.inf_count;
        stats->has_nonzero = stats->has_nonzero || has_nonzero;
    }
    return cursor_left(&cursor) == 0;
}

static reshard_status learnt_share(struct payload_job *job, struct team *team, reshard_status status, reshard_error *err)
{
    struct buffer own = { 0 };
    struct comm_gathered gathered;
    if (!team)
        return status;
    if (!status)
        learnt_pack(job, &own);
    status = team_exchange(team, status, &own, &gathered, err);
    for (uint32_t rank = 0; rank < team_size(team) && !status; rank++)
        if (!learnt_take(job, gathered.parts[rank], rank == team_rank(team)))
            status = error_set(err, RESHARD_ERR_FORMAT, "%s: rank %u tells of other tensors: do all ranks look at the same checkpoint?",
                               team->call, rank);
    comm_gathered_release(&gathered);
    buffer_release(&own);
    return status;
}

reshard_status payload_check(struct source *source, const bool *is_chosen, struct value_stats *stats, struct team *team,
                             const struct engine_options *options, struct finding_sink *findings, reshard_error *err)
{
    struct team_findings kept;
    struct payload_job job = {
        .catalog = source->catalog,
        .source = source,
        .is_chosen = is_chosen,
        .tries_all = source->is_salvage || sidecar_is_there(source),
        .stats = stats,
        .findings = team_findings_begin(team, &kept, findings),
        .options = options,
        .err = err,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .large_lock = PTHREAD_MUTEX_INITIALIZER,
    };
    uint32_t *places = NULL;
    reshard_status status = make_order(&job, err);
    if (!status && team)
        status = order_share(&job, team, &places, err);
    if (!status)
        status = workers_run(&job, err);
    status = learnt_share(&job, team, status, err);
    if (!status)
        status = team_findings_end(team, &kept, status, places, job.catalog->chunk_count, findings, err);
    buffer_release(&kept.packed);
    free(places);
    free(job.order);
    return status;
}
