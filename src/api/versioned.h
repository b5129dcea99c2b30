/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the boundary. The caller's may be of another version than ours: shorter, then what it lacks is zero, or longer, then
 * what we do not know must be zero. All begin with a size_t struct_size. What is handed in is copied into a struct of our size, and what is
 * handed out is made in one and copied as far as the caller's reaches.
 */
#ifndef API_VERSIONED_H
#define API_VERSIONED_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define API_EXPORT __attribute__((visibility("default")))

/* Copies a struct of the caller's (NULL: defaults, all zero) into ours of `size` bytes, whose struct_size is set. name is the type's. */
reshard_status struct_take(void *out, size_t size, const void *given, const char *name, reshard_error *err);

/* The same of an array without struct_size, whose members lie `stride` bytes apart. *out is malloc'd, also without members. */
reshard_status array_take(const void *given, size_t count, size_t stride, size_t size, const char *name, void **out, reshard_error *err);

/* Whether a struct of the caller's has what lies before `end`. */
bool struct_reaches(const void *given, size_t end);

/* Copies the members of an array that was taken back, as far as the caller's reach: of arrays that are filled in, too. */
void array_give(void *out, size_t count, size_t stride, const void *made, size_t size);

/* Zeroes a struct of the caller's behind struct_size: before anything can fail. out may be NULL. */
reshard_status struct_clear(void *out, const char *name, reshard_error *err);

/* How a function NAME_at begins: clears *out; false if out is missing or no struct of ours, or the list of `count` has no such entry. */
bool entry_begin(void *out, const char *name, size_t index, size_t count);

/* Copies ours, of `size` bytes, into the caller's, which was cleared. */
void struct_give(void *out, const void *made, size_t size);

/* RESHARD_ERR_USAGE: the function's argument is NULL. */
reshard_status argument_missing(const char *function, const char *argument, reshard_error *err);

/* For the first lines of a function: returns if the argument is NULL. */
#define NEEDS(argument, err)                                    \
    do {                                                        \
        if (!(argument))                                        \
            return argument_missing(__func__, #argument, err);  \
    } while (0)

/* The same of a struct's member, "reshard_state.shards". */
#define NEEDS_MEMBER(type, taken, member, err)                                                 \
    do {                                                                                       \
        if (!(taken).member)                                                                   \
            return error_set(err, RESHARD_ERR_USAGE, "%s.%s is NULL", #type, #member);         \
    } while (0)

/*
 * The error record of the caller for the time of a call: if it is smaller than ours, a record of our own, which is copied at the end.
 * Begins an exported function; `err` is the one to be filled in from there on.
 */
struct error_scope {
    reshard_error *caller;
    size_t caller_size;
    bool is_own;
    reshard_error own;
};
reshard_error *error_scope_begin(struct error_scope *scope, reshard_error *err);
void error_scope_end(struct error_scope *scope);
/* What a record of the caller's, of any version, says: for calls that are handed one. */
void error_take(reshard_error *out, const reshard_error *given);

#define ERROR_SCOPE(err)                                                       \
    struct error_scope error_scope __attribute__((cleanup(error_scope_end)));  \
    (err) = error_scope_begin(&error_scope, err)

#endif
