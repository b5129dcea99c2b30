/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_digests.h"

#include "kernels/cast.h"

#include <pthread.h>
#include <stdlib.h>

#define CAST_ELEMENTS 4096

/* Several tensors may be in flight, so each has a digest of its own, taken from a free list. */
struct digest_job {
    const struct catalog *catalog;
    enum digest_kind kind;
    const enum dtype *as;
    struct digest **active; /* by catalog tensor, NULL while not in flight */
    struct digest **idle;
    size_t idle_count;
    char (*hex)[DIGEST_HEX_MAX];
    pthread_mutex_t lock;
};

static struct digest *digest_take(struct digest_job *job)
{
    struct digest *digest = NULL;
    pthread_mutex_lock(&job->lock);
    if (job->idle_count)
        digest = job->idle[--job->idle_count];
    pthread_mutex_unlock(&job->lock);
    if (digest)
        digest_reset(digest);
    return digest ? digest : digest_new(job->kind);
}

static void digest_give(struct digest_job *job, struct digest *digest)
{
    pthread_mutex_lock(&job->lock);
    job->idle[job->idle_count++] = digest;
    pthread_mutex_unlock(&job->lock);
}

static void update_cast(struct digest *digest, enum dtype from, enum dtype to, const uint8_t *bytes, size_t size)
{
    uint8_t scratch[CAST_ELEMENTS * 16] __attribute__((aligned(16)));
    struct cast cast;
    if (!cast_find(from, to, &cast))
        return; /* selection has refused such a pair */
    size_t width_from = dtype_element_bytes(from), width_to = dtype_element_bytes(to);
    for (size_t count = size / width_from; count;) {
        size_t part = count < CAST_ELEMENTS ? count : CAST_ELEMENTS;
        cast_run(&cast, bytes, scratch, part);
        digest_update(digest, scratch, part * width_to);
        bytes += part * width_from;
        count -= part;
    }
}

static reshard_status digest_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                  reshard_error *err)
{
    struct digest_job *job = context;
    enum dtype dtype = job->catalog->tensors[tensor].dtype;
    (void)offset;
    struct digest *digest = job->active[tensor];
    if (!digest) {
        digest = digest_take(job);
        if (!digest)
            return error_set_memory(err);
        job->active[tensor] = digest;
    }
    if (job->as && job->as[tensor] != dtype)
        update_cast(digest, dtype, job->as[tensor], bytes, size);
    else
        digest_update(digest, bytes, size);
    if (is_last) {
        digest_hex(digest, job->hex[tensor]);
        job->active[tensor] = NULL;
        digest_give(job, digest);
    }
    return RESHARD_OK;
}

reshard_status tensor_digests(struct checkpoint *checkpoint, enum digest_kind kind, const uint32_t *tensors, uint32_t count,
                              const enum dtype *as, const struct engine_options *options, char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    struct digest_job job = { .catalog = catalog, .kind = kind, .as = as, .hex = hex, .lock = PTHREAD_MUTEX_INITIALIZER };
    reshard_status status = source_resolve(checkpoint->source, tensors, count, err);
    if (status)
        return status;
    job.active = calloc((size_t)catalog->tensor_count + 1, sizeof(*job.active));
    job.idle = calloc((size_t)catalog->tensor_count + 1, sizeof(*job.idle));
    if (!job.active || !job.idle) {
        status = error_set_memory(err);
    } else {
        struct engine_source source = checkpoint_engine_source(checkpoint);
        status = engine_stream(&source, tensors, count, NULL, NULL, options, digest_sink, &job, err);
    }
    for (uint32_t i = 0; job.active && i < catalog->tensor_count; i++)
        digest_free(job.active[i]);
    for (size_t i = 0; i < job.idle_count; i++)
        digest_free(job.idle[i]);
    free(job.active);
    free(job.idle);
    return status;
}
