/* SPDX-License-Identifier: Apache-2.0 */
/* Which items are stored, and under which key. */
#include "formats/dcp/dcp_target.h"

#include "base/array.h"

reshard_status dcp_stored_add(struct dcp_target *state, const struct dcp_stored *item, reshard_error *err)
{
    if (state->item_count >= DCP_IN_RUN - 1 || !ARRAY_ROOM(state->items, state->item_count, state->item_capacity))
        return error_set_memory(err);
    state->items[state->item_count++] = *item;
    return RESHARD_OK;
}

reshard_status dcp_stored_make(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    struct dcp_target *state = dcp_target_state(target);
    reshard_status status = RESHARD_OK;
    if (state->flavour->store_items)
        return state->flavour->store_items(request, target, err);
    for (uint32_t i = 0; i < wanted->item_count && !status; i++) {
        const struct catalog_item *item = &wanted->items[i];
        struct dcp_stored stored = { .key = item->key, .wanted = i, .node = CATALOG_NONE, .is_file = item->kind == ITEM_FILE };
        if (item->path != CATALOG_NONE) {
            stored.parts = wanted->paths + item->path;
            stored.part_count = item->path_count;
        }
        status = dcp_stored_add(state, &stored, err);
    }
    return status;
}
