/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "base/array.h"

#include <stdlib.h>

static reshard_status lock_make(pthread_mutex_t *lock, reshard_error *err)
{
    pthread_mutexattr_t recursive;
    if (pthread_mutexattr_init(&recursive))
        return error_set_memory(err);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    int failure = pthread_mutex_init(lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
    return failure ? error_set_memory(err) : RESHARD_OK;
}

static reshard_status locks_make(reshard_checkpoint *handle, reshard_error *err)
{
    reshard_status status = lock_make(&handle->lock, err);
    if (!status && pthread_rwlock_init(&handle->places, NULL)) {
        pthread_mutex_destroy(&handle->lock);
        status = error_set_memory(err);
    }
    return status;
}

static void index_public(reshard_checkpoint *handle)
{
    const struct checkpoint *opened = handle->opened;
    const size_t tensors = opened->source->catalog->tensor_count;
    memset(handle->public_index, 0xFF, tensors * sizeof(*handle->public_index)); /* CATALOG_NONE */
    for (uint32_t i = 0; i < opened->listed_count; i++)
        handle->public_index[opened->listed[i]] = i;
}

reshard_status handle_make(struct checkpoint *opened, reshard_checkpoint **out, reshard_error *err)
{
    const struct catalog *catalog = opened->source->catalog;
    reshard_checkpoint *handle = calloc(1, sizeof(*handle));
    uint32_t *public_index = array_new(catalog->tensor_count, sizeof(*public_index));
    if (!handle || !public_index || locks_make(handle, err)) {
        free(handle);
        free(public_index);
        checkpoint_close(opened);
        return error_set_memory(err);
    }
    handle->opened = opened;
    handle->public_index = public_index;
    index_public(handle);
    *out = handle;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_open(const char *path, const reshard_open_options *options, reshard_checkpoint **out, reshard_error *err)
{
    struct open_call call;
    struct checkpoint *opened = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(path, err);
    reshard_status status = open_options_read(options, &call, err);
    if (!status)
        status = checkpoint_open(path, &call.options, &opened, err);
    return status ? status : handle_make(opened, out, err);
}

API_EXPORT reshard_status reshard_checkpoint_view(reshard_checkpoint *checkpoint, const reshard_view *view, reshard_error *err)
{
    reshard_view given;
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    reshard_status status = struct_take(&given, sizeof(given), view, "reshard_view", err);
    if (status)
        return status;
    if (checkpoint->opened->view || checkpoint->order)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_checkpoint_view() comes before all that looks at the handle, and once");
    const struct view_options options = {
        .naming = { .strip_prefix = given.strip_prefix, .renames = given.renames, .add_prefix = given.add_prefix },
        .include = given.include,
        .exclude = given.exclude,
    };
    status = checkpoint_select(checkpoint->opened, &options, err);
    if (!status)
        index_public(checkpoint);
    return status;
}

API_EXPORT void reshard_close(reshard_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    engine_files_free(checkpoint->files);
    checkpoint_close(checkpoint->opened);
    pthread_mutex_destroy(&checkpoint->lock);
    pthread_rwlock_destroy(&checkpoint->places);
    name_map_release(&checkpoint->classes);
    name_map_release(&checkpoint->text_values);
    arena_release(&checkpoint->text_arena);
    free(checkpoint->texts);
    free(checkpoint->public_index);
    free(checkpoint->order);
    free(checkpoint);
}

/* Handles are made here and never constant. */
reshard_checkpoint *checkpoint_lock(const reshard_checkpoint *checkpoint)
{
    reshard_checkpoint *handle = (reshard_checkpoint *)(uintptr_t)checkpoint;
    pthread_mutex_lock(&handle->lock);
    return handle;
}

void checkpoint_unlock(reshard_checkpoint *checkpoint)
{
    pthread_mutex_unlock(&checkpoint->lock);
}
