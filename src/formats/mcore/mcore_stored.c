/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_stored.h"

#include "formats/mcore/mcore_transpose.h"

#include <stdlib.h>

#include "base/array.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"

/* ---- what is kept ---- */

static void stored_free(void *state)
{
    struct mcore_stored *stored = state;
    mcore_data_release(&stored->data);
    free(stored->pieces);
    arena_release(&stored->arena);
    free(stored);
}

reshard_status mcore_stored_new(struct source *source, struct mcore_stored **out, reshard_error *err)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    dcp_state(source)->flavour_state = *out;
    dcp_state(source)->flavour_free = stored_free;
    return RESHARD_OK;
}

reshard_status mcore_stored_keep(struct mcore_stored *stored, uint32_t tensor, const struct dcp_form *form,
                                 const struct catalog_chunk *like, reshard_error *err)
{
    size_t rank = (size_t)form->rank;
    int64_t *numbers = arena_array(&stored->arena, 3 * rank, sizeof(*numbers));
    if (!numbers || !ARRAY_ROOM(stored->pieces, stored->count, stored->capacity))
        return error_set_memory(err);
    memcpy(numbers, form->size, rank * sizeof(*numbers));
    memcpy(numbers + rank, form->start, rank * sizeof(*numbers));
    memcpy(numbers + 2 * rank, form->extent, rank * sizeof(*numbers));
    stored->pieces[stored->count++] = (struct mcore_piece){ .tensor = tensor, .rank = form->rank, .form = numbers, .like = *like };
    return RESHARD_OK;
}

bool mcore_stored_is_object(struct str key)
{
    return state_key_is(key, STATE_KEY_BUFFERS) || state_key_is(key, STATE_KEY_UNPADDED_SIZES) || state_key_is(key, STATE_KEY_BUCKET_SIZES);
}

const struct value *mcore_item_value(const struct catalog *catalog, const char *key)
{
    uint32_t item = catalog_find_item(catalog, str_of(key));
    return item == CATALOG_NONE ? NULL : catalog->items[item].value;
}

static bool has_other_state(const struct catalog *catalog)
{
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !found; i++)
        found = state_key_is(catalog->tensors[i].key, STATE_KEY_BUCKET);
    for (uint32_t i = 0; i < catalog->item_count && !found; i++)
        found = state_key_is(catalog->items[i].key, STATE_KEY_BUFFERS);
    return found;
}

reshard_status mcore_stored_note(struct source *source, const struct mcore_stored *stored, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct value *args = mcore_item_value(catalog, "args"), *content = mcore_item_value(catalog, "content_metadata");
    const struct value *kind = content && content->kind == VALUE_DICT ? value_dict_get(content, "distrib_optim_sharding_type") : NULL;
    struct str name;
    source->has_other_view = stored->is_flattened || has_other_state(catalog);
    if (args && kind && value_as_str(kind, &name) && str_is(name, "fully_reshardable"))
        return optimizer_dist_check(catalog, args, err);
    return RESHARD_OK;
}
