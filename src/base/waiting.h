/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread asks while it waits for others, such as a server that says nothing: whether the work is wanted still. Who waits lies far
 * below who knows, with stores of many kinds in between, so that this is kept by thread.
 */
#ifndef BASE_WAITING_H
#define BASE_WAITING_H

#include <pthread.h>
#include <stdbool.h>

struct waiting {
    bool (*goes_on)(void *context); /* at most some 20 times a second, from the thread that waits */
    void *context;
};

/* Of this thread, from now on; NULL: nobody is asked. Returns what was asked before, which is to be set again. */
const struct waiting *waiting_set(const struct waiting *waiting);

/* The same if it asks anybody; else who was asked stays. */
const struct waiting *waiting_set_if(bool asks, const struct waiting *waiting);

/* Of a thread that works for another: asks who is asked there, if anybody, one thread at a time. */
bool waiting_goes_on_for(const struct waiting *outer, pthread_mutex_t *lock);

/* Whether to wait on: asks who is asked, unless that was so a moment ago. */
bool waiting_goes_on(void);

/* Waits so long; false: it was not to be waited any more. */
bool waiting_pause(unsigned milliseconds);

#endif
