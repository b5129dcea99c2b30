/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common state for an older release of Megatron Core. It is one pickle, which fails as a whole if the release does not have a class
 * that it names. Such members are settings that the release does not know anyway.
 */
#include "formats/mcore/mcore_items.h"

#include "formats/mcore/mcore_target.h"
#include "formats/shared/release_classes.h"

#define ZARR_RELEASE 8 /* has what releases that read zarr have in common */
#define OBJECT_RELEASE 19

reshard_status mcore_release_choose(const struct layout_request *request, struct target *target, uint32_t *minor, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    reshard_status status = megatron_release_option(request, minor, err);
    if (status || *minor)
        return status;
    if (state->flavour->items_are_files && !mcore_is_from(request, target->driver))
        *minor = ZARR_RELEASE;
    return RESHARD_OK;
}

/* The leaf's value, loaded; NULL if it has none. */
static reshard_status load_leaf(const struct layout_request *request, const struct path_tree_node *node, const struct value **value,
                                uint32_t *graph_count, struct str *key, reshard_error *err)
{
    *value = NULL;
    *key = node->part.key;
    if (!node->is_leaf || node->is_left_out || node->wanted == CATALOG_NONE)
        return RESHARD_OK;
    const struct catalog_item *loaded;
    *key = request->wanted->items[node->wanted].key;
    reshard_status status = layout_item(request, node->wanted, &loaded, err);
    if (status || !loaded->graph)
        return status;
    *value = loaded->value;
    *graph_count = loaded->graph->count;
    return RESHARD_OK;
}

reshard_status mcore_release_adapt(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    uint32_t minor;
    reshard_status status = mcore_release_choose(request, target, &minor, err);
    if (!status && minor && minor < OBJECT_RELEASE && state->common_is_object)
        return error_set(err, RESHARD_ERR_USAGE, "option common=object: Megatron Core 0.%u reads common.pt only", (unsigned)minor);
    for (uint32_t i = 0; i < state->dcp.tree.node_count && !status && minor; i++) {
        const struct value *value;
        uint32_t graph_count = 0;
        struct str key;
        bool lacks = false, is_whole = false;
        status = load_leaf(request, &state->dcp.tree.nodes[i], &value, &graph_count, &key, err);
        bool is_own = state->dcp.tree.nodes[i].value != NULL;
        if (!status && is_own)
            value = state->dcp.tree.nodes[i].value;
        if (!status && value)
            status = megatron_release_lacks(minor, value, is_own ? state->dcp.extra.count : graph_count, &lacks, err);
        if (status || !lacks)
            continue;
        struct value *copy = is_own ? (struct value *)value : value_copy(&state->dcp.extra, value, graph_count);
        status = copy ? megatron_release_strip(minor, &state->dcp.extra, key, copy, target, &is_whole, err) : error_set_memory(err);
        state->dcp.tree.nodes[i].value = copy;
        state->dcp.tree.nodes[i].is_left_out |= is_whole;
        if (!status && is_whole)
            status = target_note_dropped(target, NOTE_RELEASE, key, err, "Megatron Core 0.%u does not have its class", (unsigned)minor);
    }
    return status;
}
