/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/selection.h"

#include "base/array.h"
#include "base/sort.h"
#include "convert/tied_states.h"
#include "kernels/copy.h"

#include <stdlib.h>

#define PATH_KEPT_MAX 16 /* parts of a path that a new name may share */

/* What choosing tensors works with. */
struct choice {
    const struct catalog *catalog;
    const struct selection_options *options;
    struct selection *out;
    uint32_t *wanted_of; /* by source tensor: the wanted one that is the same, or CATALOG_NONE */
    struct buffer text;  /* scratch */
    struct naming naming;
    struct key_rules rules;
};

/* What the wanted tensor and the source's have in common if their elements are the same: its ties, and what else the source knows. */
static void selection_take_over(struct choice *choice, uint32_t index, uint32_t wanted)
{
    const struct catalog_tensor *tensor = &choice->catalog->tensors[index];
    struct catalog *catalog = choice->out->wanted;
    struct catalog_tensor *copy = &catalog->tensors[wanted];
    copy->flags = tensor->flags;
    copy->storage_group = tensor->storage_group;
    copy->tied_to = CATALOG_NONE;
    uint32_t tied = tensor->tied_to != CATALOG_NONE && tensor->tied_to < index ? choice->wanted_of[tensor->tied_to] : CATALOG_NONE;
    if (tied != CATALOG_NONE && catalog->tensors[tied].dtype == copy->dtype)
        copy->tied_to = tied;
    choice->out->wanted_source[wanted] = index;
    if (choice->wanted_of[index] == CATALOG_NONE)
        choice->wanted_of[index] = wanted;
    /* Where the first of a tie is not selected, the next one stands for it. */
    if (tensor->tied_to != CATALOG_NONE && tensor->tied_to < index && tied == CATALOG_NONE)
        choice->wanted_of[tensor->tied_to] = wanted;
}

static reshard_status copy_path(struct choice *choice, const struct catalog_tensor *tensor, uint32_t wanted, reshard_error *err)
{
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_tensor_path(choice->catalog, tensor, &single, &parts);
    return tensor->path == CATALOG_NONE ? RESHARD_OK : catalog_set_tensor_path(choice->out->wanted, wanted, parts, count, err);
}

/* The type that is wanted of a tensor: by the rules, then as options.types has it. */
static reshard_status select_dtype(struct choice *choice, struct str key, enum dtype source, enum dtype *out, reshard_error *err)
{
    const struct catalog *types = choice->options->types;
    reshard_status status = key_rules_dtype(&choice->rules, key, source, out, err);
    const uint32_t found = types && !status ? catalog_find(types, key) : CATALOG_NONE;
    if (found == CATALOG_NONE || dtype_info(*out)->class_ != DTYPE_CLASS_FLOAT)
        return status;
    const enum dtype other = types->tensors[found].dtype;
    if (dtype_info(other)->class_ == DTYPE_CLASS_FLOAT && copy_can_cast(*out, other))
        *out = other;
    return RESHARD_OK;
}

static reshard_status select_tensor(struct choice *choice, uint32_t index, reshard_error *err)
{
    const struct catalog *catalog = choice->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    struct selection *out = choice->out;
    bool hidden = tensor->flags & TENSOR_HIDDEN;
    bool is_lost = choice->options->lost_tensors && choice->options->lost_tensors[index];
    struct str key = tensor->key;
    reshard_status status = hidden || is_lost ? RESHARD_OK : naming_apply(&choice->naming, NAMING_TENSOR, &key, err);
    if (status)
        return status;
    bool is_renamed = !str_equal(key, tensor->key);
    out->is_whole &= !is_renamed;
    bool is_wanted = !choice->options->drop_items;
    status = hidden || is_lost ? RESHARD_OK : key_filter_wants(&choice->rules.filter, key, &is_wanted, err);
    if (status)
        return status;
    if (is_lost || !is_wanted) {
        out->is_whole = false;
        return RESHARD_OK;
    }
    enum dtype dtype = tensor->dtype;
    status = hidden ? RESHARD_OK : select_dtype(choice, key, tensor->dtype, &dtype, err);
    if (status)
        return status;
    uint32_t wanted;
    status = catalog_add_tensor(out->wanted, key, dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape), &wanted, err);
    if (!status && !is_renamed)
        status = copy_path(choice, tensor, wanted, err);
    if (status)
        return status;
    selection_take_over(choice, index, wanted);
    struct recipe recipe = { .source_tensor = index, .target_tensor = wanted, .is_whole = true };
    return recipe_table_append(&out->table, &recipe, err);
}

/* The wanted tensor that is one of the source's, or NULL. */
static const struct catalog_tensor *wanted_for(const struct choice *choice, uint32_t tensor)
{
    uint32_t wanted = choice->wanted_of[tensor];
    return wanted == CATALOG_NONE ? NULL : &choice->out->wanted->tensors[wanted];
}

/* The text that ends a weight's key and is in that of its state: what is before it in either says what kind of tensor it is. */
static bool select_common_name(struct str weight, struct str state, struct str *name, const char **within)
{
    for (size_t i = 0; i < weight.size; i++) {
        *name = (struct str){ weight.data + i, weight.size - i };
        *within = memmem(state.data, state.size, name->data, name->size);
        if (*within)
            return true;
    }
    return false;
}

/* In choice->text: the key that the state has of the other weight. False: it cannot be told, or memory lacks (text.failed). */
static bool select_tied_key(struct choice *choice, const struct tied_state *tied)
{
    const struct catalog_tensor *weight = wanted_for(choice, tied->weight), *owner = wanted_for(choice, tied->owner),
                                *state = wanted_for(choice, tied->tensor);
    struct str name;
    const char *within;
    buffer_clear(&choice->text);
    if (!weight || !owner || !state || !select_common_name(owner->key, state->key, &name, &within))
        return false;
    size_t kind = owner->key.size - name.size, before = (size_t)(within - state->key.data);
    if (weight->key.size <= kind || memcmp(weight->key.data, owner->key.data, kind) != 0)
        return false;
    buffer_append(&choice->text, state->key.data, before);
    buffer_append(&choice->text, weight->key.data + kind, weight->key.size - kind);
    return buffer_append(&choice->text, within + name.size, state->key.size - before - name.size);
}

/* A second tensor with the values of one of the source's. */
static reshard_status select_tied(struct choice *choice, const struct tied_state *tied, reshard_error *err)
{
    const struct catalog_tensor *tensor = &choice->catalog->tensors[tied->tensor];
    struct selection *out = choice->out;
    uint32_t wanted;
    enum dtype dtype;
    bool is_wanted;
    struct str key = tied->key;
    if (tied->weight != CATALOG_NONE && !select_tied_key(choice, tied))
        return choice->text.failed ? error_set_memory(err) : RESHARD_OK;
    if (tied->weight != CATALOG_NONE)
        key = buffer_str(&choice->text);
    reshard_status status = key_filter_wants(&choice->rules.filter, key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    out->is_whole = false;
    status = key_rules_dtype(&choice->rules, key, tensor->dtype, &dtype, err);
    if (!status)
        status = catalog_add_tensor(out->wanted, key, dtype, tensor->rank, catalog_vector_at(choice->catalog, tensor->shape), &wanted, err);
    if (status)
        return status;
    out->wanted->tensors[wanted].tied_to = out->wanted->tensors[wanted].storage_group = CATALOG_NONE;
    out->wanted_source[wanted] = tied->tensor;
    struct recipe recipe = { .source_tensor = tied->tensor, .target_tensor = wanted, .is_whole = true };
    return recipe_table_append(&out->table, &recipe, err);
}

/* ---- tensors that a mapping makes ---- */

/*
 * A new name among nested containers belongs beside the tensor that it comes from: it keeps as much of that one's path as its key begins
 * with, and the rest is one part.
 */
static reshard_status derive_path(struct choice *choice, uint32_t anchor, struct str key, uint32_t wanted, reshard_error *err)
{
    const struct catalog_tensor *tensor = &choice->catalog->tensors[anchor];
    struct path_part single, kept[PATH_KEPT_MAX];
    const struct path_part *parts;
    size_t count = catalog_tensor_path(choice->catalog, tensor, &single, &parts), shared = 0, used = 0;
    for (size_t i = 1; i < count && i < PATH_KEPT_MAX; i++) {
        buffer_clear(&choice->text);
        if (!path_join(parts, i, &choice->text))
            return error_set_memory(err);
        struct str prefix = buffer_str(&choice->text);
        if (key.size <= prefix.size + 1 || memcmp(key.data, prefix.data, prefix.size) != 0 || key.data[prefix.size] != '.')
            break;
        shared = i;
        used = prefix.size + 1;
    }
    if (!shared)
        return RESHARD_OK;
    memcpy(kept, parts, shared * sizeof(*kept));
    kept[shared] = (struct path_part){ .kind = PATH_KEY, .key = { key.data + used, key.size - used } };
    return catalog_set_tensor_path(choice->out->wanted, wanted, kept, shared + 1, err);
}

/* The first source tensor that a made one has elements of, or CATALOG_NONE; *same: it has those and no others, unchanged. */
static uint32_t anchor_of(const struct mapping_stage *mapping, uint32_t made, bool *same)
{
    const struct recipe_table *table = &mapping->table;
    uint32_t anchor = CATALOG_NONE;
    for (uint32_t i = table->first[made]; i < table->first[made + 1]; i++) {
        if (table->recipes[i].source_tensor < anchor)
            anchor = table->recipes[i].source_tensor;
    }
    const struct recipe *only = &table->recipes[table->first[made]];
    *same = anchor != CATALOG_NONE && table->first[made + 1] - table->first[made] == 1 && only->is_whole;
    return anchor;
}

static reshard_status add_recipes(struct choice *choice, const struct mapping_stage *mapping, uint32_t made, uint32_t wanted,
                                  reshard_error *err)
{
    const struct recipe_table *table = &mapping->table;
    enum dtype last = mapping->space->tensors[made].dtype, target = choice->out->wanted->tensors[wanted].dtype;
    reshard_status status = RESHARD_OK;
    bool no_data = table->first[made] < table->first[made + 1];
    for (uint32_t i = table->first[made]; i < table->first[made + 1] && !status; i++) {
        struct recipe recipe = table->recipes[i];
        bool is_zeros = recipe.source_tensor == RECIPE_FILL;
        recipe.target_tensor = wanted;
        no_data = no_data && !is_zeros && choice->catalog->tensors[recipe.source_tensor].flags & TENSOR_NO_DATA;
        if (!is_zeros)
            status = recipe_add_cast(&recipe, choice->catalog->tensors[recipe.source_tensor].dtype, last, target, &choice->out->arena, err);
        if (!status)
            status = recipe_table_append(&choice->out->table, &recipe, err);
    }
    if (no_data)
        choice->out->wanted->tensors[wanted].flags |= TENSOR_NO_DATA;
    return status;
}

static reshard_status select_made(struct choice *choice, const struct mapping_stage *mapping, uint32_t made, reshard_error *err)
{
    const struct map_tensor *tensor = &mapping->space->tensors[made];
    struct selection *out = choice->out;
    enum dtype dtype;
    bool same, is_wanted = false;
    uint32_t wanted, anchor = anchor_of(mapping, made, &same);
    struct str key = tensor->key;
    reshard_status status = naming_apply(&choice->naming, NAMING_TENSOR, &key, err);
    if (!status)
        status = key_filter_wants(&choice->rules.filter, key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    status = select_dtype(choice, key, tensor->dtype, &dtype, err);
    if (!status)
        status = catalog_add_tensor(out->wanted, key, dtype, tensor->rank, tensor->shape, &wanted, err);
    if (status)
        return status;
    struct catalog_tensor *copy = &out->wanted->tensors[wanted];
    copy->tied_to = copy->storage_group = CATALOG_NONE;
    out->wanted_source[wanted] = CATALOG_NONE;
    if (anchor != CATALOG_NONE) {
        const struct catalog_tensor *source = &choice->catalog->tensors[anchor];
        /* A type that elements only pass through changes them. */
        same = same && mapping->table.recipes[mapping->table.first[made]].via_count == 0 &&
               (source->dtype == tensor->dtype || tensor->dtype == dtype);
        copy->flags = source->flags & (TENSOR_PARAMETER | TENSOR_REQUIRES_GRAD);
        if (same)
            selection_take_over(choice, anchor, wanted);
        status = str_equal(source->key, key) ? copy_path(choice, source, wanted, err) : derive_path(choice, anchor, key, wanted, err);
    }
    return status ? status : add_recipes(choice, mapping, made, wanted, err);
}

/* What is made comes where the first of what it is made of stood in the source, what is made of nothing last. */
static reshard_status select_mapped(struct choice *choice, const struct mapping_stage *mapping, reshard_error *err)
{
    uint32_t made_count = map_space_tensor_count(mapping->space), source_count = choice->catalog->tensor_count;
    size_t room = (size_t)made_count + source_count + 1, count = 0;
    struct sort_entry *order = array_new(room * 2, sizeof(*order));
    reshard_status status = order ? RESHARD_OK : error_set_memory(err);
    bool same;
    choice->out->is_whole = false;
    for (uint32_t i = 0; i < made_count && !status; i++)
        order[count++] = (struct sort_entry){ anchor_of(mapping, i, &same), i };
    for (uint32_t i = 0; i < source_count && !status; i++) {
        if (choice->catalog->tensors[i].flags & TENSOR_HIDDEN)
            order[count++] = (struct sort_entry){ i, made_count + i };
    }
    if (!status)
        entries_sort(order, order + room, count);
    for (size_t i = 0; i < count && !status; i++)
        status = order[i].value < made_count ? select_made(choice, mapping, order[i].value, err)
                                             : select_tensor(choice, order[i].value - made_count, err);
    free(order);
    return status;
}

/* Files beside a checkpoint and what belongs to its format keep their names. *wanted: whether the item is. */
static reshard_status name_item(struct choice *choice, uint32_t index, struct str *key, bool *wanted, reshard_error *err)
{
    const struct selection_options *options = choice->options;
    const struct catalog_item *item = &choice->catalog->items[index];
    *key = item->key;
    *wanted = !options->drop_items && !(options->lost_items && options->lost_items[index]);
    if (!*wanted || catalog_item_is_of_format(item))
        return RESHARD_OK;
    reshard_status status = naming_apply(&choice->naming, NAMING_ITEM, key, err);
    return status ? status : key_filter_wants(&choice->rules.filter, *key, wanted, err);
}

static reshard_status select_item(struct choice *choice, uint32_t index, reshard_error *err)
{
    const struct catalog *catalog = choice->catalog;
    const struct catalog_item *item = &catalog->items[index];
    struct selection *out = choice->out;
    struct str key;
    bool is_wanted;
    reshard_status status = name_item(choice, index, &key, &is_wanted, err);
    if (status)
        return status;
    bool is_renamed = !str_equal(key, item->key), has_path = item->path != CATALOG_NONE && !is_renamed;
    out->is_whole &= is_wanted && !is_renamed;
    if (!is_wanted)
        return RESHARD_OK;
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_item_path(catalog, item, &single, &parts);
    struct catalog_item copy = *item;
    uint32_t wanted;
    copy.key = key;
    if (item->kind != ITEM_VALUE) {
        const struct catalog_object *object = &catalog->objects[item->object];
        status = catalog_add_object(out->wanted, object->name, object->bytes, &copy.object, err);
        if (status)
            return status;
    }
    status = catalog_add_item(out->wanted, &copy, parts, has_path ? count : 0, &wanted, err);
    if (!status)
        out->wanted_items[wanted] = index;
    return status;
}

reshard_status selection_make(const struct catalog *catalog, const struct mapping_stage *mapping, const char *format,
                              const struct selection_options *options, const struct catalog *reference, struct selection *out,
                              reshard_error *err)
{
    struct selection made = { .is_whole = true };
    struct choice choice = { .catalog = catalog, .options = options, .out = &made };
    size_t most = (size_t)catalog->tensor_count + (mapping ? map_space_tensor_count(mapping->space) : 0) +
                  (reference ? reference->tensor_count : 0) + options->tied_count + 1;
    reshard_status status = naming_begin(&choice.naming, &options->naming, err);
    if (!status)
        status = key_rules_begin(&choice.rules, options->include, options->exclude, options->dtypes, err);
    if (status)
        goto out;
    choice.wanted_of = array_new(catalog->tensor_count, sizeof(uint32_t));
    made.wanted = catalog_new(format);
    made.wanted_source = array_new(most, sizeof(uint32_t));
    made.wanted_items = array_new((size_t)catalog->item_count + 1, sizeof(uint32_t));
    if (!choice.wanted_of || !made.wanted || !made.wanted_source || !made.wanted_items) {
        status = error_set_memory(err);
        goto out;
    }
    made.wanted->limits = catalog->limits;
    memset(choice.wanted_of, 0xFF, (size_t)catalog->tensor_count * sizeof(uint32_t));
    if (mapping)
        status = select_mapped(&choice, mapping, err);
    for (uint32_t i = 0; i < catalog->tensor_count && !mapping && !status; i++)
        status = select_tensor(&choice, i, err);
    for (uint32_t i = 0; i < options->tied_count && !status; i++)
        status = select_tied(&choice, &options->tied[i], err);
    if (!status && (options->missing || options->choose_missing || mapping))
        status = selection_add_missing(&made, catalog, reference, options, mapping != NULL, &choice.rules, err);
    if (!status)
        status = recipe_table_close(&made.table, made.wanted->tensor_count, err);
    for (uint32_t i = 0; i < catalog->item_count && !status; i++)
        status = select_item(&choice, i, err);
    if (!status) {
        status = key_rules_check(&choice.rules, err);
        if (status)
            naming_hint(&choice.naming, err);
    }
    if (!status && made.wanted->tensor_count == 0 && catalog->tensor_count > 0 && (options->include || options->exclude))
        status = error_set(err, RESHARD_ERR_USAGE,
                           "no tensor is left after reshard_convert_options.include and reshard_convert_options.exclude");

out:
    free(choice.wanted_of);
    buffer_release(&choice.text);
    key_rules_release(&choice.rules);
    naming_end(&choice.naming);
    if (status)
        selection_release(&made);
    else
        *out = made;
    return status;
}

void selection_release(struct selection *selection)
{
    catalog_free(selection->wanted);
    free(selection->wanted_source);
    free(selection->wanted_items);
    free(selection->borrowed);
    free(selection->unfilled);
    recipe_table_release(&selection->table);
    arena_release(&selection->arena);
    *selection = (struct selection){ 0 };
}
