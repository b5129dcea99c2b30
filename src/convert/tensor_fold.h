/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All values of tensors, brought down to something small: a digest, statistics. Several tensors are in flight at once, each with a state of
 * its own, which the next tensor takes over.
 */
#ifndef CONVERT_TENSOR_FOLD_H
#define CONVERT_TENSOR_FOLD_H

#include "convert/checkpoint.h"

#include <pthread.h>

struct tensor_fold {
    void **active; /* by catalog tensor: its state, NULL while it is not in flight; a tensor's is its worker's alone */
    void **idle;
    size_t idle_count;
    pthread_mutex_t lock; /* of what is idle, and of whatever the caller shares among tensors */
};

/* Streams the tensors (catalog indices) through the sink, which takes and gives states; free_state gets those that are left. */
reshard_status tensor_fold_run(struct tensor_fold *fold, struct checkpoint *checkpoint, const uint32_t *tensors, uint32_t count,
                               const struct engine_options *options, engine_sink sink, void *context, void (*free_state)(void *state),
                               reshard_error *err);

/* A state that another tensor is done with; NULL: there is none. */
void *tensor_fold_take(struct tensor_fold *fold);

/* The tensor is done with its state. */
void tensor_fold_give(struct tensor_fold *fold, uint32_t tensor);

#endif
