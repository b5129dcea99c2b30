/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks as a test program is to use them: a thread unlocks what it has locked, waits for a condition under that lock, and locks nothing
 * twice that is not made for it. Whoever forgets one is told at once, and not when two threads happen to meet. Every test program is linked
 * so that the locks of its objects come through here.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define HELD_MAX 64

/* The linker gives the wrapped functions these names. */
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until);

static _Thread_local const pthread_mutex_t *held[HELD_MAX]; /* one that was locked n times n times */
static _Thread_local int held_count;

static int held_find(const pthread_mutex_t *mutex)
{
    int i = held_count;
    while (i > 0 && held[i - 1] != mutex)
        i--;
    return i - 1;
}

static void check(int is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "locks: %s\n", what);
    abort();
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    const int is_again = held_find(mutex) >= 0, result = is_again ? pthread_mutex_trylock(mutex) : __real_pthread_mutex_lock(mutex);
    check(!is_again || result == 0, "what a thread has locked it locks again");
    check(held_count < HELD_MAX, "more than a thread locks");
    held[held_count++] = mutex;
    return result;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    const int at = held_find(mutex);
    check(at >= 0, "a thread unlocks what it has not locked");
    held[at] = held[--held_count];
    return __real_pthread_mutex_unlock(mutex);
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    check(held_find(mutex) < 0, "a lock ends while it is locked");
    return __real_pthread_mutex_destroy(mutex);
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    check(held_find(mutex) >= 0, "a thread waits without the lock");
    return __real_pthread_cond_wait(condition, mutex);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    check(held_find(mutex) >= 0, "a thread waits without the lock");
    return __real_pthread_cond_timedwait(condition, mutex, until);
}

/* What the first thread still has locked at the end of the program nobody else can have. */
__attribute__((destructor)) static void locks_end(void)
{
    check(held_count == 0, "a lock is left locked");
}
