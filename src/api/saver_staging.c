/* SPDX-License-Identifier: Apache-2.0 */
#include "api/saver_staging.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/checked.h"
#include "engine/engine.h"
#include "kernels/copy.h"

#define VALUE_ALIGNMENT 64
#define SIZE_UNIT (UINT64_C(1) << 16)
#define PAGES_PART (UINT64_C(32) << 20) /* that a thread asks for at once */
#define PAGES_THREADS_MAX 8

/* ---- memory ---- */

static reshard_status staging_make(struct saver_staging *staging, reshard_error *err)
{
    if (staging->fd >= 0)
        return RESHARD_OK;
    staging->fd = memfd_create("reshard-save", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (staging->fd < 0)
        return error_set_errno(err, "memory for copies");
    if (fcntl(staging->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return error_set_errno(err, "memory for copies");
    return RESHARD_OK;
}

struct pages_work {
    uint8_t *memory;
    uint64_t size;
    _Atomic uint64_t next;
    _Atomic int failure; /* errno of one that failed */
};

static void *pages_take(void *context)
{
    struct pages_work *work = context;
    for (uint64_t at; !work->failure && (at = atomic_fetch_add(&work->next, PAGES_PART)) < work->size;)
        if (madvise(work->memory + at, work->size - at < PAGES_PART ? work->size - at : PAGES_PART, MADV_POPULATE_WRITE) < 0)
            work->failure = errno;
    return NULL;
}

/* Has the kernel make all pages, which zeroes them: as many threads do it as copy a checkpoint. */
static int pages_make(uint8_t *memory, uint64_t size)
{
    const struct engine_options any_number = { 0 };
    const uint64_t parts = (size + PAGES_PART - 1) / PAGES_PART;
    const unsigned wanted = engine_threads(&any_number, false);
    struct pages_work work = { .memory = memory, .size = size };
    pthread_t threads[PAGES_THREADS_MAX];
    unsigned started = 0;
    while (started + 1 < wanted && started + 1 < parts && started < PAGES_THREADS_MAX &&
           !pthread_create(&threads[started], NULL, pages_take, &work))
        started++;
    pages_take(&work);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return work.failure;
}

/*
 * Of a file that is that long already: pages that are there before they are written, for without memory this has to fail, not the copying.
 * NULL: errno says why.
 */
static uint8_t *staging_map(int fd, uint64_t size)
{
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, size, MADV_HUGEPAGE);
    int failure = pages_make(memory, size);
    if (failure == EINVAL) /* Linux before 5.14 */
        failure = fallocate(fd, 0, 0, (off_t)size) < 0 ? errno : 0;
    if (!failure)
        return memory;
    munmap(memory, size);
    errno = failure;
    return NULL;
}

/* A file that is longer already, for more than could be had, is not made shorter. */
static bool staging_lengthen(int fd, uint64_t size)
{
    struct stat found;
    return fstat(fd, &found) == 0 && ((uint64_t)found.st_size >= size || ftruncate(fd, (off_t)size) == 0);
}

/* What is there stays as it is where more cannot be had. */
static reshard_status staging_grow(struct saver_staging *staging, uint64_t size, reshard_error *err)
{
    reshard_status status = staging_make(staging, err);
    if (status || size <= staging->size)
        return status;
    size = (size + SIZE_UNIT - 1) / SIZE_UNIT * SIZE_UNIT;
    uint8_t *memory = size <= INT64_MAX / 2 && staging_lengthen(staging->fd, size) ? staging_map(staging->fd, size) : NULL;
    if (!memory) {
        error_set_errno(err, "%" PRIu64 " bytes of memory for copies", size);
        fallocate(staging->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)staging->size, INT64_MAX - (off_t)staging->size);
        return RESHARD_ERR_IO;
    }
    if (staging->memory)
        munmap(staging->memory, staging->size);
    staging->memory = memory;
    staging->size = size;
    return RESHARD_OK;
}

void saver_staging_release(struct saver_staging *staging)
{
    if (staging->memory)
        munmap(staging->memory, staging->size);
    if (staging->fd >= 0)
        close(staging->fd);
    *staging = (struct saver_staging)SAVER_STAGING_NONE;
}

/* ---- copying ---- */

/* Where the copy of each shard's values begins; *end: behind the last. */
static reshard_status staging_places(const struct saver_request *request, uint64_t *offsets, uint64_t *end, reshard_error *err)
{
    *end = 0;
    for (size_t i = 0; i < saver_request_count(request); i++) {
        const struct shard *shard = saver_request_shard(request, i);
        uint64_t bytes;
        if (request->sharded && !shard_has_values(shard))
            continue;
        if (!shard_has_values(shard) || !shard_bytes(shard, &bytes))
            return error_set(err, RESHARD_ERR_USAGE, "shard of '%.*s': there are no values, or no whole number of bytes",
                             STR_ARG(shard->key));
        offsets[i] = *end;
        if (!checked_add_u64(*end, bytes, end) || !checked_add_u64(*end, VALUE_ALIGNMENT - 1, end))
            return error_set(err, RESHARD_ERR_LIMIT, "the values have more than 2^64 bytes");
        *end = *end / VALUE_ALIGNMENT * VALUE_ALIGNMENT;
    }
    return RESHARD_OK;
}

static void copy_strided(const struct shard *shard, uint8_t *to)
{
    struct copy_spec spec = { .rank = shard->rank, .source_dtype = shard->dtype, .target_dtype = shard->dtype };
    int64_t bytes = dtype_element_bytes(shard->dtype);
    for (int axis = shard->rank - 1; axis >= 0; axis--) {
        spec.extent[axis] = shard->extent[axis];
        spec.source_stride[axis] = shard->strides[axis] * (int64_t)dtype_element_bytes(shard->dtype);
        spec.target_stride[axis] = bytes;
        bytes *= shard->extent[axis];
    }
    if (bytes)
        copy_run(&spec, shard->data, to);
}

static reshard_status staging_copy(const struct shard *shard, uint8_t *to, saver_copy copy, void *context, reshard_error *err)
{
    uint64_t bytes;
    if (!shard_has_values(shard))
        return RESHARD_OK;
    shard_bytes(shard, &bytes);
    if (shard->read)
        return !bytes || !shard->read(to, 0, bytes, shard->context)
                   ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_CANCELLED, "'%.*s': the function that gives values stopped the call", STR_ARG(shard->key));
    if (shard->strides && copy)
        return error_set(err, RESHARD_ERR_USAGE, "shard of '%.*s': reshard_saver_options.copy takes no strides", STR_ARG(shard->key));
    if (copy)
        return !bytes || !copy(to, shard->data, bytes, context)
                   ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_CANCELLED, "reshard_saver_options.copy stopped the call");
    if (shard->strides)
        copy_strided(shard, to);
    else if (bytes)
        memcpy(to, shard->data, bytes);
    return RESHARD_OK;
}

reshard_status saver_stage(struct saver_staging *staging, const struct saver_request *request, saver_copy copy, void *context,
                           reshard_error *err)
{
    const size_t count = saver_request_count(request);
    uint64_t *offsets = array_zeroed(count, sizeof(*offsets)), values, end;
    struct buffer text = { 0 };
    reshard_status status = offsets ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = staging_places(request, offsets, &values, err);
    if (!status)
        status = saver_request_write(request, offsets, &text, err);
    if (!status && !checked_add_u64(values, text.size, &end))
        status = error_set(err, RESHARD_ERR_LIMIT, "the values have more than 2^64 bytes");
    if (!status)
        status = staging_grow(staging, end, err);
    for (size_t i = 0; i < count && !status; i++)
        status = staging_copy(saver_request_shard(request, i), staging->memory + offsets[i], copy, context, err);
    if (!status) {
        memcpy(staging->memory + values, text.data, text.size);
        staging->request_at = values;
        staging->request_size = text.size;
    }
    buffer_release(&text);
    free(offsets);
    return status;
}

/* ---- doing it ---- */

reshard_status saver_staging_run(const struct saver_staging *staging, reshard_comm *comm, reshard_error *err)
{
    uint8_t *own = malloc(staging->request_size + 1);
    if (!own)
        return error_set_memory(err);
    memcpy(own, staging->memory + staging->request_at, staging->request_size);
    reshard_status status = saver_request_run(own, staging->request_size, staging->memory, staging->request_at, comm, err);
    free(own);
    return status;
}

reshard_status saver_staging_run_foreign(int fd, uint64_t request_at, uint64_t request_size, reshard_error *err)
{
    struct saver_staging staging = { .fd = fd, .request_at = request_at, .request_size = request_size };
    struct stat found;
    const int seals = fcntl(fd, F_GET_SEALS);
    reshard_status status = RESHARD_OK;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &found) < 0 || found.st_uid != geteuid() || found.st_size <= 0 ||
        request_at > (uint64_t)found.st_size || request_size > (uint64_t)found.st_size - request_at)
        status = error_set(err, RESHARD_ERR_FORMAT, "a save came without the memory that it speaks of");
    if (!status) {
        staging.size = request_at + request_size; /* the file may be longer than there is memory */
        staging.memory = mmap(NULL, staging.size, PROT_READ, MAP_SHARED, fd, 0);
        if (staging.memory == MAP_FAILED) {
            staging.memory = NULL;
            status = error_set_errno(err, "memory of a save");
        }
    }
    if (!status)
        status = saver_staging_run(&staging, NULL, err);
    saver_staging_release(&staging);
    return status;
}
