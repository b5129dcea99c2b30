/* SPDX-License-Identifier: Apache-2.0 */
#include "base/waiting.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ASK_MS 50

static _Thread_local const struct waiting *asked;
static _Thread_local int64_t asked_ms; /* when it was */

static int64_t waiting_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const struct waiting *waiting_set(const struct waiting *waiting)
{
    const struct waiting *before = asked;
    asked = waiting;
    return before;
}

bool waiting_goes_on(void)
{
    const int64_t now = asked ? waiting_now_ms() : 0;
    if (!asked || now - asked_ms < ASK_MS)
        return true;
    asked_ms = now;
    return asked->goes_on(asked->context);
}

bool waiting_pause(unsigned milliseconds)
{
    const int64_t end = waiting_now_ms() + milliseconds;
    bool goes_on = waiting_goes_on();
    for (int64_t left; goes_on && (left = end - waiting_now_ms()) > 0; goes_on = waiting_goes_on()) {
        const int64_t part = left < ASK_MS ? left : ASK_MS;
        nanosleep(&(struct timespec){ .tv_nsec = (long)part * 1000000 }, NULL);
    }
    return goes_on;
}
