/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/state_view.h"

#include "base/array.h"

#include <stdlib.h>

reshard_status state_view_begin(struct state_view *view, const struct catalog *catalog, reshard_error *err)
{
    *view = (struct state_view){ .keys = array_zeroed(catalog->tensor_count, sizeof(*view->keys)),
                                 .is_left_out = array_zeroed(catalog->tensor_count, 1),
                                 .skips_item = array_zeroed(catalog->item_count, 1) };
    return view->keys && view->is_left_out && view->skips_item ? RESHARD_OK : error_set_memory(err);
}

void state_view_release(struct state_view *view)
{
    free(view->keys);
    free(view->is_left_out);
    free(view->skips_item);
    free(view->again);
    free(view->numbers);
    *view = (struct state_view){ 0 };
}

static void state_view_rename(void *context, uint32_t tensor, struct str *key)
{
    const struct state_view *view = context;
    if (view->keys[tensor].data)
        *key = view->keys[tensor];
}

static bool state_view_skips(void *context, uint32_t item)
{
    const struct state_view *view = context;
    return view->skips_item[item];
}

static reshard_status state_view_add_number(struct catalog *into, const struct state_number *number, reshard_error *err)
{
    struct chain *chain = arena_zalloc(&into->arena, sizeof(*chain));
    const char *literal = arena_copy(&into->arena, (const char *)&number->number, sizeof(number->number));
    struct catalog_chunk *chunk;
    uint32_t tensor;
    const int64_t shape[1] = { 1 };
    if (!chain || !literal)
        return error_set_memory(err);
    *chain = (struct chain){ .decoded_bytes = sizeof(number->number), .literal = (const uint8_t *)literal };
    reshard_status status = catalog_add_tensor(into, number->key, DTYPE_F32, number->rank, shape, &tensor, err);
    if (!status)
        status = catalog_add_chunk(into, tensor, NULL, NULL, 0, 0, sizeof(number->number), &chunk, err);
    return status ? status : catalog_chunk_set_chain(into, chunk, chain, 0, 0, err);
}

/* The item that is made; its value is there, so that nobody asks which of the source's it is. */
static reshard_status state_view_add_item(struct source *made, struct state_view *view, reshard_error *err)
{
    uint32_t count = made->catalog->item_count, index;
    uint32_t *items = array_zeroed((size_t)count + 1, sizeof(*items));
    if (!items)
        return error_set_memory(err);
    if (count)
        memcpy(items, made->stored_items, count * sizeof(*items));
    free(made->stored_items);
    made->stored_items = items;
    struct value_graph *kept = catalog_adopt_graph(made->catalog, *view->graph);
    *view->graph = (struct value_graph){ 0 };
    if (!kept)
        return error_set_memory(err);
    const struct catalog_item item = { .key = str_of(view->item), .kind = ITEM_VALUE, .value = kept->root, .graph = kept };
    return catalog_add_item(made->catalog, &item, NULL, 0, &index, err);
}

static reshard_status state_view_fill(struct source *made, void *context, reshard_error *err)
{
    struct state_view *view = context;
    const struct catalog *from = made->stored->catalog;
    struct catalog *into = made->catalog;
    struct catalog_copying copying = { .from = from,
                                       .warning_count = made->stored->read_warnings,
                                       .context = view,
                                       .skips_item = state_view_skips,
                                       .rename_tensor = state_view_rename };
    reshard_status status = catalog_copy(into, &copying, err);
    made->stored_items = copying.items;
    for (uint32_t i = 0; i < from->tensor_count && !status; i++)
        into->tensors[copying.tensors[i]].flags |= view->is_left_out[i] ? TENSOR_HIDDEN : 0;
    for (uint32_t i = 0; i < view->again_count && !status; i++)
        status = catalog_copy_again(into, from, view->again[i].tensor, view->again[i].key, err);
    for (uint32_t i = 0; i < view->number_count && !status; i++)
        status = state_view_add_number(into, &view->numbers[i], err);
    if (!status && view->item)
        status = state_view_add_item(made, view, err);
    free(copying.tensors);
    return status;
}

reshard_status state_view_make(struct checkpoint *checkpoint, struct state_view *view, struct checkpoint **out, reshard_error *err)
{
    struct source *made;
    reshard_status status = source_view_with(checkpoint->source, state_view_fill, view, &made, err);
    return status ? status : checkpoint_of(made, checkpoint->path, out, err);
}
