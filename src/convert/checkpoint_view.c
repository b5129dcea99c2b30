/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/checkpoint_view.h"

#include "base/array.h"

#include <stdlib.h>

struct viewing {
    struct checkpoint *checkpoint;
    struct checkpoint_view *view;
    uint32_t *listed; /* that stay, as checkpoint.listed */
    uint32_t count;
};

static reshard_status view_tensors(struct viewing *viewing, reshard_error *err)
{
    struct checkpoint *checkpoint = viewing->checkpoint;
    struct checkpoint_view *view = viewing->view;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < checkpoint->listed_count && !status; i++) {
        struct str key = checkpoint->source->catalog->tensors[checkpoint->listed[i]].key;
        bool is_wanted = false;
        status = naming_apply(&view->naming, NAMING_TENSOR, &key, err);
        if (!status)
            status = key_filter_wants(&view->filter, key, &is_wanted, err);
        if (status || !is_wanted)
            continue;
        view->is_chosen[checkpoint->listed[i]] = true;
        view->names[viewing->count] = key;
        viewing->listed[viewing->count++] = checkpoint->listed[i];
    }
    return status;
}

static reshard_status view_items(struct viewing *viewing, reshard_error *err)
{
    const struct catalog *catalog = viewing->checkpoint->source->catalog;
    struct checkpoint_view *view = viewing->view;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        const struct catalog_item *item = &catalog->items[i];
        struct str key = item->key;
        bool is_wanted = true;
        if (!catalog_item_is_of_format(item)) {
            status = naming_apply(&view->naming, NAMING_ITEM, &key, err);
            if (!status)
                status = key_filter_wants(&view->filter, key, &is_wanted, err);
        } else if (view->filter.include.count) {
            is_wanted = false; /* asked for are keys */
        }
        if (status || !is_wanted)
            continue;
        view->item_names[view->item_count] = key;
        view->items[view->item_count++] = i;
    }
    return status;
}

/* Names are found by a table of their own. */
static reshard_status view_index(struct viewing *viewing, reshard_error *err)
{
    struct checkpoint_view *view = viewing->view;
    for (uint32_t i = 0; i < viewing->count; i++) {
        uint32_t number = name_map_intern(&view->by_name, view->names[i], NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        view->tensors[number] = i; /* the last of several counts */
    }
    return RESHARD_OK;
}

void checkpoint_view_free(struct checkpoint_view *view)
{
    if (!view)
        return;
    naming_end(&view->naming);
    key_filter_release(&view->filter);
    free(view->whole);
    free(view->is_chosen);
    name_map_release(&view->by_name);
    free(view->names);
    free(view->tensors);
    free(view->items);
    free(view->item_names);
    free(view);
}

static struct checkpoint_view *view_make(size_t tensors, size_t items, size_t catalog_tensors)
{
    struct checkpoint_view *view = calloc(1, sizeof(*view));
    if (!view)
        return NULL;
    view->names = array_zeroed(tensors, sizeof(*view->names));
    view->tensors = array_zeroed(tensors, sizeof(*view->tensors));
    view->items = array_zeroed(items, sizeof(*view->items));
    view->item_names = array_zeroed(items, sizeof(*view->item_names));
    view->is_chosen = array_zeroed(catalog_tensors, sizeof(*view->is_chosen));
    if (view->names && view->tensors && view->items && view->item_names && view->is_chosen)
        return view;
    checkpoint_view_free(view);
    return NULL;
}

reshard_status checkpoint_select(struct checkpoint *checkpoint, const struct view_options *options, reshard_error *err)
{
    struct viewing viewing = { .checkpoint = checkpoint };
    viewing.listed = array_zeroed(checkpoint->listed_count, sizeof(*viewing.listed));
    viewing.view =
        view_make(checkpoint->listed_count, checkpoint->source->catalog->item_count, checkpoint->source->catalog->tensor_count);
    reshard_status status = viewing.listed && viewing.view ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = naming_begin(&viewing.view->naming, &options->naming, err);
    if (!status)
        status = key_filter_begin(&viewing.view->filter, options->include, options->exclude, err);
    if (!status)
        status = view_tensors(&viewing, err);
    if (!status)
        status = view_items(&viewing, err);
    if (!status)
        status = view_index(&viewing, err);
    if (!status) {
        status = key_filter_check(&viewing.view->filter, err);
        if (status)
            naming_hint(&viewing.view->naming, err);
    }
    if (status) {
        checkpoint_view_free(viewing.view);
        free(viewing.listed);
        return status;
    }
    viewing.view->whole = checkpoint->listed;
    viewing.view->whole_count = checkpoint->listed_count;
    checkpoint->listed = viewing.listed;
    checkpoint->listed_count = viewing.count;
    checkpoint->view = viewing.view;
    return RESHARD_OK;
}

reshard_status checkpoint_is_whole(const struct checkpoint *checkpoint, reshard_error *err)
{
    if (!checkpoint->view)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE,
                     "the handle shows a part of its checkpoint (reshard_checkpoint_view), and this call wants all of it");
}
