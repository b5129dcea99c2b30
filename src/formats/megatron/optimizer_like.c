/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of parameter groups: how a run is set up, not what it has learned. Releases differ in which they store. Those that the source
 * does not have and the reference has are the reference's, as its arguments are; those that the reference's release does not know are left
 * out.
 */
#include "parallel/parameter_groups.h"
#include "formats/megatron/optimizer_target.h"

/* Groups of one of the reference's optimizers, NULL if it has none. */
static const struct value *reference_groups(const struct megatron_source *like, bool of_experts, uint32_t *graph_count)
{
    const struct value *optimizer = like && like->rank_count > 0 ? value_dict_get(like->ranks[0].root, "optimizer") : NULL;
    if (!optimizer)
        return NULL;
    if (optimizer->kind == VALUE_LIST)
        optimizer = optimizer->list.count > of_experts ? optimizer->list.items[of_experts] : NULL;
    *graph_count = like->torch.files[like->ranks[0].file].graph->count;
    return optimizer ? parameter_group_list(optimizer) : NULL;
}

/* A group of the same kind. */
static const struct value *like_find_group(const struct value *groups, const struct value *group)
{
    for (size_t i = 0; i < groups->list.count; i++) {
        const struct value *found = groups->list.items[i];
        if (found->kind == VALUE_DICT && parameter_group_has_decay(found) == parameter_group_has_decay(group) &&
            parameter_group_is_decoupled(found) == parameter_group_is_decoupled(group))
            return found;
    }
    return NULL;
}

/* What is not a setting: the parameters, and how far the optimizer has come. */
static bool is_state(struct str key)
{
    return str_is(key, "params") || str_is(key, "step");
}

static reshard_status add_settings(const struct value *like, uint32_t graph_count, struct value *group, struct value_graph *graph,
                                   struct like_settings *done, reshard_error *err)
{
    for (size_t i = 0; i + 1 < like->list.count; i += 2) {
        const struct value *key = like->list.items[i];
        char name[64];
        if (key->kind != VALUE_STR || key->text.size >= sizeof(name) || is_state(key->text))
            continue;
        memcpy(name, key->text.data, key->text.size);
        name[key->text.size] = '\0';
        if (value_dict_get(group, name))
            continue;
        struct value *value = value_copy(graph, like->list.items[i + 1], graph_count);
        if (!value || !value_dict_set(graph, group, name, value, true))
            return error_set_memory(err);
        done->are_added = true;
    }
    return RESHARD_OK;
}

static bool like_has_key(const struct value *dict, struct str key)
{
    for (size_t i = 0; i + 1 < dict->list.count; i += 2) {
        if (dict->list.items[i]->kind == VALUE_STR && str_equal(dict->list.items[i]->text, key))
            return true;
    }
    return false;
}

static void remove_settings(const struct value *like, struct value *group, struct like_settings *done)
{
    size_t kept = 0;
    for (size_t i = 0; i + 1 < group->list.count; i += 2) {
        struct value *key = group->list.items[i];
        if (key->kind == VALUE_STR && !is_state(key->text) && !like_has_key(like, key->text)) {
            done->are_removed = true;
            continue;
        }
        group->list.items[kept++] = key;
        group->list.items[kept++] = group->list.items[i + 1];
    }
    group->list.count = kept;
}

reshard_status optimizer_like_settings(const struct layout_request *request, bool of_experts, struct value *group,
                                       struct value_graph *graph, struct like_settings *done, reshard_error *err)
{
    uint32_t graph_count;
    const struct value *groups = reference_groups(megatron_folder_state(request->like), of_experts, &graph_count);
    const struct value *like = groups ? like_find_group(groups, group) : NULL;
    if (!like)
        return RESHARD_OK;
    remove_settings(like, group, done);
    return add_settings(like, graph_count, group, graph, done, err);
}
