/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/params_forms.h"

#include "base/array.h"

#include <stdlib.h>

static struct value_graph *forms_graph_of(const struct source *source, uint32_t file)
{
    return params_source_of(source)->files[file].graph;
}

/* Copies work on the budget of the source. */
static reshard_status forms_copy(struct params_forms *forms, const struct source *source, uint32_t file, const struct value *value,
                                 struct value **out, reshard_error *err)
{
    forms->graph.arena.work = source->limits.budget;
    *out = value_copy(&forms->graph, value, forms_graph_of(source, file)->count);
    return *out ? RESHARD_OK : work_error(source->limits.budget, err);
}

static reshard_status forms_put(struct params_forms *forms, struct value *key, struct value *value, reshard_error *err)
{
    if (!key || !ARRAY_RESERVE(forms->pairs, forms->count + 2, forms->capacity))
        return error_set_memory(err);
    forms->pairs[forms->count++] = key;
    forms->pairs[forms->count++] = value;
    return RESHARD_OK;
}

reshard_status params_forms_add(struct params_forms *forms, const struct source *source, uint32_t file, struct str key,
                                const struct value *value, reshard_error *err)
{
    struct value *copy;
    reshard_status status = forms_copy(forms, source, file, value, &copy, err);
    return status ? status : forms_put(forms, value_new_str(&forms->graph, key), copy, err);
}

/* Whether a member is a container that is not there yet. */
static bool forms_wants(const struct params_forms *forms, const struct value *key, const struct value *value, const char *left_out)
{
    return key->kind == VALUE_STR && value->kind >= VALUE_LIST && !value->tensor && !str_is(key->text, left_out) &&
           name_map_find(&forms->seen, key->text) == NAME_NONE;
}

/* A dict, in the file's own graph, of the members that are wanted. NULL: there are none, or no memory (*status). */
static struct value *forms_choose(struct params_forms *forms, const struct source *source, uint32_t file, const char *left_out,
                                  reshard_status *status, reshard_error *err)
{
    struct value_graph *graph = forms_graph_of(source, file);
    struct value **pairs, **chosen;
    size_t count, wanted = 0;
    *status = RESHARD_OK;
    if (!value_as_mapping(graph->root, &pairs, &count))
        return NULL;
    chosen = arena_array(&graph->arena, count, sizeof(*chosen));
    for (size_t i = 0; chosen && i + 1 < count; i += 2) {
        if (!forms_wants(forms, pairs[i], pairs[i + 1], left_out))
            continue;
        if (name_map_intern(&forms->seen, pairs[i]->text, NULL) == NAME_NONE)
            chosen = NULL;
        else
            memcpy(chosen + wanted, pairs + i, 2 * sizeof(*chosen));
        wanted += 2;
    }
    struct value *dict = chosen && wanted ? value_new_list(graph, VALUE_DICT, chosen, wanted) : NULL;
    if (!chosen || (wanted && !dict))
        *status = work_error(source->limits.budget, err);
    return dict;
}

reshard_status params_forms_add_members(struct params_forms *forms, const struct source *source, uint32_t file, const char *left_out,
                                        reshard_error *err)
{
    reshard_status status;
    struct value *copy, *dict = forms_choose(forms, source, file, left_out, &status, err);
    if (!dict)
        return status;
    status = forms_copy(forms, source, file, dict, &copy, err);
    for (size_t i = 0; !status && i + 1 < copy->list.count; i += 2)
        status = forms_put(forms, copy->list.items[i], copy->list.items[i + 1], err);
    return status;
}

reshard_status params_forms_keep(struct params_forms *forms, struct source *source, reshard_error *err)
{
    if (!forms->count)
        return RESHARD_OK;
    struct value **items = arena_array(&forms->graph.arena, forms->count, sizeof(*items));
    forms->graph.root = items ? value_new_list(&forms->graph, VALUE_DICT, items, forms->count) : NULL;
    if (!forms->graph.root)
        return work_error(source->limits.budget, err);
    memcpy(items, forms->pairs, forms->count * sizeof(*items));
    struct value_graph own = forms->graph;
    forms->graph = (struct value_graph){ 0 };
    const struct value_graph *kept = catalog_adopt_graph(source->catalog, own);
    if (!kept)
        return error_set_memory(err);
    source->catalog->tree_graph = kept;
    source->catalog->tree = kept->root;
    return RESHARD_OK;
}

void params_forms_release(struct params_forms *forms)
{
    value_graph_release(&forms->graph);
    name_map_release(&forms->seen);
    free(forms->pairs);
    *forms = (struct params_forms){ 0 };
}
