/* SPDX-License-Identifier: Apache-2.0 */
#include "base/waiting.h"

#include <stddef.h>
#include <time.h>

#include "base/clock.h"

#define ASK_MS 50

static _Thread_local const struct waiting *asked;
static _Thread_local int64_t asked_ms; /* when it was */

const struct waiting *waiting_set(const struct waiting *waiting)
{
    const struct waiting *before = asked;
    asked = waiting;
    return before;
}

const struct waiting *waiting_set_if(bool asks, const struct waiting *waiting)
{
    return asks ? waiting_set(waiting) : asked;
}

bool waiting_goes_on_for(const struct waiting *outer, pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    const bool goes_on = !outer || outer->goes_on(outer->context);
    pthread_mutex_unlock(lock);
    return goes_on;
}

bool waiting_goes_on(void)
{
    const int64_t now = asked ? clock_ms() : 0;
    if (!asked || now - asked_ms < ASK_MS)
        return true;
    asked_ms = now;
    return asked->goes_on(asked->context);
}

bool waiting_pause(unsigned milliseconds)
{
    const int64_t end = clock_ms() + milliseconds;
    bool goes_on = waiting_goes_on();
    for (int64_t left; goes_on && (left = end - clock_ms()) > 0; goes_on = waiting_goes_on()) {
        const int64_t part = left < ASK_MS ? left : ASK_MS;
        nanosleep(&(struct timespec){ .tv_nsec = (long)part * 1000000 }, NULL);
    }
    return goes_on;
}
