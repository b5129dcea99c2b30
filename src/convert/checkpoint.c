/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/checkpoint.h"

#include "base/array.h"
#include "base/waiting.h"
#include "convert/checkpoint_view.h"
#include "remote/remote.h"
#include "store/store_calls.h"

#include <stdlib.h>

static reshard_status list_tensors(struct checkpoint *checkpoint, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    checkpoint->listed = array_zeroed(catalog->tensor_count, sizeof(uint32_t));
    if (!checkpoint->listed)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        if (!(catalog->tensors[i].flags & TENSOR_HIDDEN))
            checkpoint->listed[checkpoint->listed_count++] = i;
    }
    return RESHARD_OK;
}

reshard_status checkpoint_of(struct source *source, const char *path, struct checkpoint **out, reshard_error *err)
{
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (!checkpoint) {
        source_free(source);
        return error_set_memory(err);
    }
    checkpoint->source = source;
    checkpoint->path = str_copy(str_of(path));
    reshard_status status = checkpoint->path ? list_tensors(checkpoint, err) : error_set_memory(err);
    if (status)
        checkpoint_close(checkpoint);
    else
        *out = checkpoint;
    return status;
}

reshard_status checkpoint_open_in(struct store *store, const char *name, const struct open_options *open, const char *path,
                                  struct checkpoint **out, reshard_error *err)
{
    struct source *source;
    reshard_status status = format_open(store, name, open, &source, err);
    return status ? status : checkpoint_of(source, path, out, err);
}

reshard_status checkpoint_open_live(const struct live_state *state, const struct open_options *open, const char *name,
                                    struct checkpoint **out, reshard_error *err)
{
    struct source *source;
    reshard_status status = live_source_open(state, open, &source, err);
    return status ? status : checkpoint_of(source, name, out, err);
}

static reshard_status open_in_folder(reshard_status status, struct store *store, char *file_name, const char *path,
                                     const struct checkpoint_options *options, struct checkpoint **out, reshard_error *err)
{
    if (!status) {
        status = checkpoint_open_in(store, file_name ? file_name : "", &options->open, path, out, err);
        if (status)
            error_prefix(err, "'%s'", path);
    }
    free(file_name);
    return status;
}

reshard_status checkpoint_open_calls(const struct store_calls *calls, const char *path, const struct checkpoint_options *options,
                                     struct checkpoint **out, reshard_error *err)
{
    struct store *store = NULL;
    char *file_name = NULL;
    reshard_status status = store_open_calls(calls, path, &store, &file_name, err);
    return open_in_folder(status, store, file_name, path, options, out, err);
}

/* While the store is made, of which nothing has been read. */
static bool opening_goes_on(void *context)
{
    const struct open_options *options = context;
    return options->goes_on(options->context, 0);
}

reshard_status checkpoint_open(const char *path, const struct checkpoint_options *options, struct checkpoint **out, reshard_error *err)
{
    struct open_options asked = options->open;
    const struct waiting waiting = { opening_goes_on, &asked }, *before = waiting_set_if(asked.goes_on, &waiting);
    struct store *store = NULL;
    char *file_name = NULL;
    char shown[STORE_SHOWN_MAX];
    reshard_status status = remote_open_path(path, options->store_flags, &store, &file_name, err);
    waiting_set(before);
    status = open_in_folder(status, store, file_name, store_path_shown(path, shown), options, out, err);
    if (!status)
        (*out)->source->catalog->is_far = store_path_is_url(path);
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    checkpoint_close(checkpoint->paired);
    checkpoint_close(checkpoint->related);
    checkpoint_view_free(checkpoint->view);
    source_free(checkpoint->source);
    free(checkpoint->listed);
    free(checkpoint->path);
    free(checkpoint);
}
