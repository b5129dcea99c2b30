/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_stats.h"

#include "convert/tensor_fold.h"

#include <stdlib.h>

struct stats_job {
    const struct catalog *catalog;
    struct tensor_fold fold;
    tensor_stats_sink sink;
    void *context;
};

static void counter_free(void *state)
{
    value_counter_release(state);
    free(state);
}

static reshard_status counter_take(struct stats_job *job, uint32_t tensor, struct value_counter **out, reshard_error *err)
{
    const struct catalog_tensor *entry = &job->catalog->tensors[tensor];
    const unsigned bits = dtype_info(entry->dtype)->bits;
    struct value_counter *counter = tensor_fold_take(&job->fold);
    if (!counter)
        counter = calloc(1, sizeof(*counter));
    if (counter && value_counter_start(counter, entry->dtype, catalog_tensor_bytes(job->catalog, entry) * 8 / bits)) {
        *out = counter;
        return RESHARD_OK;
    }
    if (counter)
        counter_free(counter);
    return error_set_memory(err);
}

static reshard_status counter_give(struct stats_job *job, uint32_t tensor, struct value_counter *counter, reshard_error *err)
{
    value_counter_end(counter);
    pthread_mutex_lock(&job->fold.lock);
    reshard_status status = job->sink(job->context, tensor, &counter->tally, err);
    pthread_mutex_unlock(&job->fold.lock);
    tensor_fold_give(&job->fold, tensor);
    return status;
}

static reshard_status tally_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                 reshard_error *err)
{
    struct stats_job *job = context;
    enum dtype dtype = job->catalog->tensors[tensor].dtype;
    struct value_counter *counter = job->fold.active[tensor];
    (void)offset;
    if (!counter) {
        reshard_status status = counter_take(job, tensor, &counter, err);
        if (status)
            return status;
        job->fold.active[tensor] = counter;
    }
    if (value_counter_knows(dtype))
        value_counter_add(counter, bytes, size / dtype_element_bytes(dtype));
    return is_last ? counter_give(job, tensor, counter, err) : RESHARD_OK;
}

reshard_status tensor_stats(struct checkpoint *checkpoint, const uint32_t *tensors, uint32_t count, const struct engine_options *options,
                            tensor_stats_sink sink, void *context, reshard_error *err)
{
    struct stats_job job = { .catalog = checkpoint->source->catalog, .sink = sink, .context = context };
    return tensor_fold_run(&job.fold, checkpoint, tensors, count, options, tally_sink, &job, counter_free, err);
}
