/* SPDX-License-Identifier: Apache-2.0 */
#include "api/versioned.h"

#include "base/array.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Above every struct that will ever be: a larger struct_size was never set. */
#define STRUCT_SIZE_MAX ((size_t)1 << 20)

/* Bytes of reshard_error in version 0.2, which a record without struct_size has. It never changes. */
#define ERROR_BYTES_FIRST 2592
_Static_assert(sizeof(reshard_error) >= ERROR_BYTES_FIRST, "members of a record are added, never taken away");

static size_t size_of(const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof(size));
    return size;
}

static bool size_is_set(size_t size)
{
    return size >= sizeof(size_t) && size <= STRUCT_SIZE_MAX;
}

bool struct_reaches(const void *given, size_t end)
{
    return given && size_is_set(size_of(given)) && size_of(given) >= end;
}

/* The first byte behind the size that we know which is not zero; its place, or 0. */
static size_t unknown_member(const uint8_t *bytes, size_t known, size_t size)
{
    for (size_t i = known; i < size; i++) {
        if (bytes[i])
            return i;
    }
    return 0;
}

static reshard_status refuse_size(const char *name, size_t size, size_t known, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "%s: struct_size is %zu, this version's is %zu", name, size, known);
    error_hint(err, "begin with the _INIT macro of %s", name);
    return RESHARD_ERR_USAGE;
}

static reshard_status refuse_member(const char *name, size_t place, size_t size, size_t known, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_USAGE, "%s of %zu bytes: byte %zu is set, this version knows the first %zu", name, size, place,
                     known);
}

reshard_status struct_take(void *out, size_t size, const void *given, const char *name, reshard_error *err)
{
    memset(out, 0, size);
    if (given) {
        size_t theirs = size_of(given);
        if (!size_is_set(theirs))
            return refuse_size(name, theirs, size, err);
        size_t place = unknown_member(given, size, theirs);
        if (place)
            return refuse_member(name, place, theirs, size, err);
        memcpy(out, given, theirs < size ? theirs : size);
    }
    memcpy(out, &size, sizeof(size));
    return RESHARD_OK;
}

reshard_status array_take(const void *given, size_t count, size_t stride, size_t size, const char *name, void **out, reshard_error *err)
{
    *out = NULL;
    if (count && !given)
        return error_set(err, RESHARD_ERR_USAGE, "%s: an array of %zu is NULL", name, count);
    if (count && !stride)
        return error_set(err, RESHARD_ERR_USAGE, "%s: the array's stride is 0, this version's struct has %zu bytes", name, size);
    uint8_t *copy = count < SIZE_MAX / (stride > size ? stride : size) ? array_zeroed(count, size) : NULL;
    if (!copy)
        return error_set_memory(err);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *member = (const uint8_t *)given + i * stride;
        size_t place = unknown_member(member, size, stride);
        if (place) {
            free(copy);
            return refuse_member(name, place, stride, size, err);
        }
        memcpy(copy + i * size, member, stride < size ? stride : size);
    }
    *out = copy;
    return RESHARD_OK;
}

void array_give(void *out, size_t count, size_t stride, const void *made, size_t size)
{
    for (size_t i = 0; i < count; i++)
        memcpy((uint8_t *)out + i * stride, (const uint8_t *)made + i * size, stride < size ? stride : size);
}

reshard_status struct_clear(void *out, const char *name, reshard_error *err)
{
    if (!out)
        return RESHARD_OK;
    size_t theirs = size_of(out);
    if (!size_is_set(theirs))
        return refuse_size(name, theirs, 0, err);
    memset((uint8_t *)out + sizeof(size_t), 0, theirs - sizeof(size_t));
    return RESHARD_OK;
}

bool entry_begin(void *out, const char *name, size_t index, size_t count)
{
    return out && !struct_clear(out, name, NULL) && index < count;
}

void struct_give(void *out, const void *made, size_t size)
{
    size_t theirs = size_of(out), shared = theirs < size ? theirs : size;
    memcpy((uint8_t *)out + sizeof(size_t), (const uint8_t *)made + sizeof(size_t), shared - sizeof(size_t));
}

reshard_status argument_missing(const char *function, const char *argument, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_USAGE, "%s: %s is NULL", function, argument);
}

static size_t error_size(const reshard_error *err)
{
    return err->struct_size ? err->struct_size : ERROR_BYTES_FIRST;
}

reshard_error *error_scope_begin(struct error_scope *scope, reshard_error *err)
{
    scope->caller = err;
    scope->is_own = false;
    if (!err)
        return NULL;
    scope->caller_size = err->struct_size;
    scope->is_own = error_size(err) < sizeof(*err);
    if (!scope->is_own)
        return err;
    memset(&scope->own, 0, sizeof(scope->own));
    return &scope->own;
}

void error_take(reshard_error *out, const reshard_error *given)
{
    const size_t size = error_size(given) < sizeof(*out) ? error_size(given) : sizeof(*out);
    *out = (reshard_error)RESHARD_ERROR_INIT;
    if (size > sizeof(size_t))
        memcpy((uint8_t *)out + sizeof(size_t), (const uint8_t *)given + sizeof(size_t), size - sizeof(size_t));
}

static void record_give(reshard_error *caller, const reshard_error *own)
{
    size_t size = error_size(caller);
    if (size > sizeof(size_t))
        memcpy((uint8_t *)caller + sizeof(size_t), (const uint8_t *)own + sizeof(size_t), size - sizeof(size_t));
}

void error_scope_end(struct error_scope *scope)
{
    if (scope->is_own && scope->own.code)
        record_give(scope->caller, &scope->own);
    else if (scope->caller)
        scope->caller->struct_size = scope->caller_size; /* records are copied as a whole inside */
}
