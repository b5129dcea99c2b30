/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The view by parameter of torch_dist and of Megatron's zarr: a copy of the catalog in which flattened tensors have their own shape, and
 * buckets and objects of optimizer state have become tensors of parameters. Of the files only the objects are read that the source has not
 * read itself.
 */
#include "formats/mcore/mcore_stored.h"
#include "base/array.h"
#include "formats/mcore/mcore_transpose.h"

#include <stdlib.h>

#include "parallel/state_keys.h"

struct viewing {
    struct source *view;
    const struct catalog *from;
    const struct mcore_stored *stored;
    struct catalog_copying copying;
    struct optimizer_object *objects;
    struct torch_archive **opened;    /* by object: made here; NULL: the source's */
    uint32_t object_count;
};

/* ---- tensors ---- */

static reshard_status replace_tensor(void *context, uint32_t tensor, bool *is_replaced, reshard_error *err)
{
    const struct viewing *viewing = context;
    const struct catalog_tensor *stored = &viewing->from->tensors[tensor];
    struct mcore_reshape reshape;
    uint32_t made;
    *is_replaced = mcore_data_find(&viewing->stored->data, stored->key, &reshape) && reshape.is_flat;
    if (!*is_replaced)
        return RESHARD_OK;
    return catalog_add_tensor(viewing->view->catalog, stored->key, stored->dtype, reshape.rank, reshape.shape, &made, err);
}

static reshard_status view_add_pieces(const struct viewing *viewing, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < viewing->stored->count && !status; i++) {
        const struct mcore_piece *piece = &viewing->stored->pieces[i];
        size_t bytes = (size_t)piece->rank * sizeof(*piece->form);
        struct str key = viewing->from->tensors[piece->tensor].key;
        struct dcp_form form = { .rank = piece->rank };
        struct mcore_reshape reshape = { 0 };
        memcpy(form.size, piece->form, bytes);
        memcpy(form.start, piece->form + piece->rank, bytes);
        memcpy(form.extent, piece->form + 2 * piece->rank, bytes);
        mcore_data_find(&viewing->stored->data, key, &reshape);
        reshape.is_flat = false;
        uint32_t tensor = viewing->copying.tensors[piece->tensor];
        status = mcore_add_flattened(viewing->view->catalog, tensor, &reshape, &form, &piece->like, err);
    }
    return status;
}

/* Names of fully_reshardable. */
static reshard_status rename_states(struct catalog *catalog, bool is_flattened, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str key = catalog->tensors[i].key;
        if (!state_key_is(key, STATE_KEY_BUCKET) && !optimizer_state_key(&catalog->arena, key, is_flattened, &catalog->tensors[i].key))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* ---- objects ---- */

static bool skips_item(void *context, uint32_t item)
{
    const struct viewing *viewing = context;
    return mcore_stored_is_object(viewing->from->items[item].key);
}

/* Only what the archive says about its tensors is read; chunks will say where they are. */
static reshard_status open_archive(struct source *source, const struct catalog_item *item, struct torch_archive *out, reshard_error *err)
{
    struct store_object *file = NULL;
    struct reader all, window;
    if (item->codec != CODEC_NONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "optimizer state in a compressed object");
    reshard_status status = dcp_open_object(source, item->object, &file, err);
    if (status)
        return status;
    all = store_object_reader(file);
    status = reader_window(&all, item->offset, item->bytes, &window, err);
    if (!status)
        status = torch_save_open(&window, &source->limits, -1, out, err);
    if (status)
        error_shift(err, item->offset);
    store_object_close(file);
    return status;
}

static reshard_status take_object(struct viewing *viewing, uint32_t index, reshard_error *err)
{
    const struct catalog_item *item = &viewing->from->items[index];
    const struct torch_archive *known = dcp_numbered_archive(viewing->view->stored, index);
    struct torch_archive *opened = known ? NULL : calloc(1, sizeof(*opened));
    if (!known && !opened)
        return error_set_memory(err);
    reshard_status status = known ? RESHARD_OK : open_archive(viewing->view, item, opened, err);
    viewing->opened[viewing->object_count] = opened;
    viewing->objects[viewing->object_count++] = (struct optimizer_object){ .name = item->key,
                                                                           .archive = known ? known : opened,
                                                                           .root = known ? known->graph.root : opened->graph.root,
                                                                           .object = item->object,
                                                                           .offset = item->offset };
    if (status) {
        error_prefix(err, "item '%.*s'", STR_ARG(item->key));
        error_object(err, "%.*s", STR_ARG(viewing->from->objects[item->object].name));
    }
    return status;
}

static reshard_status take_objects(struct viewing *viewing, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    viewing->objects = array_zeroed(viewing->from->item_count, sizeof(*viewing->objects));
    viewing->opened = array_zeroed(viewing->from->item_count, sizeof(struct torch_archive *));
    if (!viewing->objects || !viewing->opened)
        return error_set_memory(err);
    for (uint32_t i = 0; i < viewing->from->item_count && !status; i++) {
        struct str key = viewing->from->items[i].key;
        if (state_key_is(key, STATE_KEY_BUFFERS) || state_key_is(key, STATE_KEY_UNPADDED_SIZES))
            status = take_object(viewing, i, err);
    }
    return status;
}

static void viewing_release(struct viewing *viewing)
{
    for (uint32_t i = 0; i < viewing->object_count; i++) {
        if (viewing->opened[i])
            torch_save_release(viewing->opened[i]);
        free(viewing->opened[i]);
    }
    free(viewing->opened);
    free(viewing->objects);
    free(viewing->copying.tensors);
}

/* ---- the whole ---- */

static reshard_status view_relate(struct viewing *viewing, reshard_error *err)
{
    struct catalog *catalog = viewing->view->catalog;
    const struct value *args = mcore_item_value(catalog, "args");
    bool is_flattened = viewing->stored->is_flattened;
    reshard_status status = rename_states(catalog, is_flattened, err);
    if (!status && is_flattened)
        status = mcore_transpose_states(catalog, args, err);
    return status ? status : optimizer_dist_relate(catalog, args, viewing->objects, viewing->object_count, err);
}

reshard_status mcore_view_by_parameter(struct source *view, reshard_error *err)
{
    const struct dcp_source *state = dcp_state(view->stored);
    struct viewing viewing = { .view = view, .from = view->stored->catalog, .stored = state->flavour_state };
    viewing.copying = (struct catalog_copying){ .from = viewing.from,
                                                .warning_count = view->stored->read_warnings,
                                                .context = &viewing,
                                                .replace_tensor = replace_tensor,
                                                .skips_item = skips_item };
    reshard_status status = dcp_source_new(view, state->directory, err);
    if (!status)
        status = catalog_copy(view->catalog, &viewing.copying, err);
    view->stored_items = viewing.copying.items;
    if (!status)
        status = view_add_pieces(&viewing, err);
    if (!status)
        status = take_objects(&viewing, err);
    if (!status)
        status = view_relate(&viewing, err);
    viewing_release(&viewing);
    return status;
}
