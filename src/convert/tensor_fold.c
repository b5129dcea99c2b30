/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_fold.h"

#include "base/array.h"

#include <stdlib.h>

void *tensor_fold_take(struct tensor_fold *fold)
{
    pthread_mutex_lock(&fold->lock);
    void *state = fold->idle_count ? fold->idle[--fold->idle_count] : NULL;
    pthread_mutex_unlock(&fold->lock);
    return state;
}

void tensor_fold_give(struct tensor_fold *fold, uint32_t tensor)
{
    pthread_mutex_lock(&fold->lock);
    fold->idle[fold->idle_count++] = fold->active[tensor];
    fold->active[tensor] = NULL;
    pthread_mutex_unlock(&fold->lock);
}

reshard_status tensor_fold_run(struct tensor_fold *fold, struct checkpoint *checkpoint, const uint32_t *tensors, uint32_t count,
                               const struct engine_options *options, engine_sink sink, void *context, void (*free_state)(void *state),
                               reshard_error *err)
{
    const size_t room = (size_t)checkpoint->source->catalog->tensor_count + 1;
    *fold = (struct tensor_fold){ .lock = PTHREAD_MUTEX_INITIALIZER };
    reshard_status status = source_resolve(checkpoint->source, tensors, count, err);
    if (status)
        return status;
    fold->active = array_zeroed(room, sizeof(*fold->active));
    fold->idle = array_zeroed(room, sizeof(*fold->idle));
    if (!fold->active || !fold->idle) {
        status = error_set_memory(err);
    } else {
        struct engine_source source = checkpoint_engine_source(checkpoint);
        status = engine_stream(&source, tensors, count, NULL, NULL, options, sink, context, err);
    }
    for (size_t i = 0; fold->active && i < room; i++)
        if (fold->active[i])
            free_state(fold->active[i]);
    for (size_t i = 0; i < fold->idle_count; i++)
        free_state(fold->idle[i]);
    free(fold->active);
    free(fold->idle);
    return status;
}
