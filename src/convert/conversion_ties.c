/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ties that safetensors' save_model has recorded in a file's metadata: the name of a tensor that is not stored, and that of the one with
 * its values. They are names of tensors, and change with them.
 */
#include "convert/conversion.h"

#include "convert/selected_names.h"
#include "formats/shared/safetensors_items.h"

#include <stdlib.h>

struct tie_naming {
    struct conversion *conversion;
    struct selected_names names; /* where no mapping changes them */
    struct name_map written;     /* of the target's tensors */
    bool is_known;               /* what becomes of a name that is no tensor's */
};

static reshard_status tie_naming_begin(struct conversion *conversion, const struct selection_options *options, struct tie_naming *out,
                                       reshard_error *err)
{
    const struct catalog *wanted = conversion->selection.wanted;
    *out = (struct tie_naming){ .conversion = conversion,
                                .is_known = !conversion->mapping.stage || !naming_is_asked(&options->naming) };
    for (uint32_t i = 0; i < wanted->tensor_count; i++)
        if (name_map_intern(&out->written, wanted->tensors[i].key, NULL) == NAME_NONE)
            return error_set_memory(err);
    return conversion->mapping.stage ? RESHARD_OK : selected_names_make(conversion->source->source->catalog, options, &out->names, err);
}

static void tie_naming_end(struct tie_naming *naming)
{
    selected_names_release(&naming->names);
    name_map_release(&naming->written);
}

/* Whether the pair is a tie, and not some text. *kept: the tensor of the source that is stored. */
static bool tie_is_recorded(const struct catalog *source, struct str name, struct str other, uint32_t *kept)
{
    *kept = str_is(name, "format") ? CATALOG_NONE : catalog_find(source, other);
    return *kept != CATALOG_NONE && !(source->tensors[*kept].flags & TENSOR_HIDDEN) && catalog_find(source, name) == CATALOG_NONE;
}

/* Gives both their new names. *is_kept: false where the target has no such tensors. */
static reshard_status tie_rename(struct tie_naming *naming, struct str *name, struct str *other, bool *is_kept, reshard_error *err)
{
    struct conversion *conversion = naming->conversion;
    const struct str old = *name, old_other = *other;
    reshard_error taken = { 0 };
    uint32_t kept;
    *is_kept = true;
    if (!tie_is_recorded(conversion->source->source->catalog, old, old_other, &kept))
        return RESHARD_OK;
    reshard_status status = RESHARD_OK;
    if (!conversion->mapping.stage) {
        *other = naming->names.keys[kept];
        status = naming_apply(&naming->names.naming, NAMING_TENSOR, name, &taken);
    }
    if (status && status != RESHARD_ERR_USAGE) { /* of what another tensor is called there is no tie any more */
        if (err)
            *err = taken;
        return status;
    }
    *is_kept = !status && naming->is_known && name_map_find(&naming->written, *other) != NAME_NONE &&
               name_map_find(&naming->written, *name) == NAME_NONE;
    if (*is_kept)
        return RESHARD_OK;
    return note_add(&conversion->losses, &conversion->notes, NOTE_TIE, old, err,
                    "was recorded as tied to '%.*s': in the target these are not two names of one tensor", STR_ARG(old_other));
}

/* A copy of the dict with new names. */
static reshard_status tie_rename_all(struct tie_naming *naming, const struct catalog_item *item, struct value_graph *out,
                                     reshard_error *err)
{
    size_t kept = 0;
    struct value *root = out->root = value_copy(out, item->value, item->graph->count);
    reshard_status status = root ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < root->list.count; i += 2) {
        struct value *pair[] = { root->list.items[i], root->list.items[i + 1] };
        struct str name, other;
        bool is_kept = true, is_text = value_as_str(pair[0], &name) && value_as_str(pair[1], &other);
        if (is_text)
            status = tie_rename(naming, &name, &other, &is_kept, err);
        if (status || !is_kept)
            continue;
        root->list.items[kept] = is_text ? value_new_str(out, name) : pair[0];
        root->list.items[kept + 1] = is_text ? value_new_str(out, other) : pair[1];
        if (!root->list.items[kept] || !root->list.items[kept + 1])
            return error_set_memory(err);
        kept += 2;
    }
    if (!status)
        root->list.count = kept;
    return status;
}

static reshard_status tie_item_replace(struct tie_naming *naming, uint32_t wanted, const struct catalog_item *item, reshard_error *err)
{
    struct selection *selection = &naming->conversion->selection;
    struct value_graph graph = { 0 };
    reshard_status status = tie_rename_all(naming, item, &graph, err);
    if (status) {
        value_graph_release(&graph);
        return status;
    }
    struct value_graph *kept = catalog_adopt_graph(selection->wanted, graph);
    if (!kept)
        return error_set_memory(err);
    selection->wanted->items[wanted].value = kept->root;
    selection->wanted->items[wanted].graph = kept;
    selection->wanted_items[wanted] = CATALOG_NONE;
    selection->is_whole = false;
    return RESHARD_OK;
}

reshard_status conversion_rename_ties(struct conversion *conversion, const struct selection_options *options, reshard_error *err)
{
    const struct catalog *source = conversion->source->source->catalog;
    const struct selection *selection = &conversion->selection;
    bool may_change = !selection->is_whole || naming_is_asked(&options->naming);
    struct tie_naming naming = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < selection->wanted->item_count && !status && may_change; i++) {
        uint32_t from = selection->wanted_items[i];
        const struct catalog_item *item = from == CATALOG_NONE ? NULL : &source->items[from];
        if (!item || !(str_is(item->key, ST_METADATA_KEY) || str_is(item->key, ST_INDEX_METADATA_KEY)) || item->kind != ITEM_VALUE ||
            !item->value || item->value->kind != VALUE_DICT || !item->graph)
            continue;
        if (!naming.conversion)
            status = tie_naming_begin(conversion, options, &naming, err);
        if (!status)
            status = tie_item_replace(&naming, i, item, err);
    }
    tie_naming_end(&naming);
    return status;
}
