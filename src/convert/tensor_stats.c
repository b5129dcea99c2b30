/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_stats.h"

#include <pthread.h>
#include <stdlib.h>

/* Several tensors may be in flight, so each has a counter of its own, taken from a free list. */
struct stats_job {
    const struct catalog *catalog;
    struct value_counter **active; /* by catalog tensor, NULL while not in flight */
    struct value_counter **idle;
    size_t idle_count;
    tensor_stats_sink sink;
    void *context;
    pthread_mutex_t lock;
};

static void counter_free(struct value_counter *counter)
{
    if (counter)
        value_counter_release(counter);
    free(counter);
}

static reshard_status counter_take(struct stats_job *job, uint32_t tensor, struct value_counter **out, reshard_error *err)
{
    const struct catalog_tensor *entry = &job->catalog->tensors[tensor];
    const unsigned bits = dtype_info(entry->dtype)->bits;
    struct value_counter *counter = NULL;
    pthread_mutex_lock(&job->lock);
    if (job->idle_count)
        counter = job->idle[--job->idle_count];
    pthread_mutex_unlock(&job->lock);
    if (!counter)
        counter = calloc(1, sizeof(*counter));
    if (!counter || !value_counter_start(counter, entry->dtype, catalog_tensor_bytes(job->catalog, entry) * 8 / bits)) {
        counter_free(counter);
        return error_set_memory(err);
    }
    *out = counter;
    return RESHARD_OK;
}

static reshard_status counter_give(struct stats_job *job, uint32_t tensor, struct value_counter *counter, reshard_error *err)
{
    value_counter_end(counter);
    pthread_mutex_lock(&job->lock);
    reshard_status status = job->sink(job->context, tensor, &counter->tally, err);
    job->active[tensor] = NULL;
    job->idle[job->idle_count++] = counter;
    pthread_mutex_unlock(&job->lock);
    return status;
}

static reshard_status tally_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                 reshard_error *err)
{
    struct stats_job *job = context;
    enum dtype dtype = job->catalog->tensors[tensor].dtype;
    struct value_counter *counter = job->active[tensor];
    (void)offset;
    if (!counter) {
        reshard_status status = counter_take(job, tensor, &counter, err);
        if (status)
            return status;
        job->active[tensor] = counter;
    }
    if (value_counter_knows(dtype))
        value_counter_add(counter, bytes, size / dtype_element_bytes(dtype));
    return is_last ? counter_give(job, tensor, counter, err) : RESHARD_OK;
}

reshard_status tensor_stats(struct checkpoint *checkpoint, const uint32_t *tensors, uint32_t count, const struct engine_options *options,
                            tensor_stats_sink sink, void *context, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    struct stats_job job = { .catalog = catalog, .sink = sink, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER };
    reshard_status status = source_resolve(checkpoint->source, tensors, count, err);
    if (status)
        return status;
    job.active = calloc((size_t)catalog->tensor_count + 1, sizeof(*job.active));
    job.idle = calloc((size_t)catalog->tensor_count + 1, sizeof(*job.idle));
    if (!job.active || !job.idle) {
        status = error_set_memory(err);
    } else {
        struct engine_source source = checkpoint_engine_source(checkpoint);
        status = engine_stream(&source, tensors, count, NULL, NULL, options, tally_sink, &job, err);
    }
    for (uint32_t i = 0; job.active && i < catalog->tensor_count; i++)
        counter_free(job.active[i]);
    for (size_t i = 0; i < job.idle_count; i++)
        counter_free(job.idle[i]);
    free(job.active);
    free(job.idle);
    return status;
}
