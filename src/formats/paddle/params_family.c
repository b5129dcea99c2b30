/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders that the ranks of a training run wrote, before there was Flex Checkpoint. Files of weights have a table from structured names to
 * the framework's; the optimizer knows only the latter, of its own rank: linear_3.w_0_fp32_master_0_moment1_0. Here every key becomes a
 * structured one, as Flex Checkpoint has them: NAME, NAME.moment1_0, NAME.w_0 for the master weight, which older files spell
 * master_weights.linear_3.w_0 or linear_3.w_0_fp32_master_0.
 */
#include "formats/paddle/params_family.h"

#include "base/array.h"
#include "base/model_data.h"
#include "formats/paddle/static_names.h"
#include "formats/paddle/unified.h"
#include "formats/shared/torch_flatten.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MASTER_MARK "fp32_master_0"
#define MASTER_STATE "w_0"
#define MASTER_MEMBER "master_weights"
#define ASGD_COUNT "m_0" /* a state of ASGD: how many gradients it has kept */

/* ---- the folder ---- */

/* save_group_sharded_model gives its weights the name that programs for inference have. */
static bool family_is_group(struct store *store, const struct store_entry *entries, size_t count)
{
    bool is_group = false, is_left_out;
    for (size_t i = 0; i < count && !is_group; i++)
        is_group = str_is(str_base_name(entries[i].name), "model.pdmodel") && params_is_taken(store, &entries[i], &is_left_out);
    return is_group;
}

reshard_status params_look_at_folder(struct store *store, const char *name, enum params_folder_kind *out, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    reshard_status status = store_list(store, name, &arena, &entries, &count, err);
    *out = PARAMS_NO_FOLDER;
    bool is_group = !status && family_is_group(store, entries, count), is_left_out;
    for (size_t i = 0; i < count && !status; i++) {
        struct family_file file = { 0 };
        if (!params_is_taken(store, &entries[i], &is_left_out))
            continue;
        if (family_read_name(str_base_name(entries[i].name), is_group, &file))
            *out = PARAMS_FOLDER_OF_RANKS;
        else if (*out == PARAMS_NO_FOLDER)
            *out = PARAMS_FOLDER_OF_FILES;
    }
    arena_release(&arena);
    return status;
}

static int family_compare(const void *a, const void *b)
{
    const struct family_file *x = a, *y = b;
    const int32_t numbers[][2] = { { (int32_t)x->role, (int32_t)y->role }, { x->ranks.tp, y->ranks.tp }, { x->ranks.pp, y->ranks.pp },
                                   { x->ranks.ep, y->ranks.ep }, { x->ranks.shard, y->ranks.shard },
                                   { x->part_count, y->part_count }, { x->part, y->part } };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i][0] != numbers[i][1])
            return numbers[i][0] < numbers[i][1] ? -1 : 1;
    return str_compare(x->name, y->name);
}

static reshard_status family_add_side_file(struct family *family, const struct store_entry *entry, struct str base, reshard_error *err)
{
    uint32_t file;
    bool is_left_out;
    if (params_is_taken(family->source->store, entry, &is_left_out)) {
        reshard_status status = params_open_file(family->source, entry->name.data, &file, err);
        return status ? status : params_add_file(family->source, file, base.data, err);
    }
    if (is_left_out)
        params_warn_left_out(family->source, entry->name);
    if (!uc_is_side_file(base) || entry->leads_out)
        return RESHARD_OK;
    return catalog_add_file(family->source->catalog, base, entry->name, entry->bytes, err);
}

static reshard_status family_list(struct family *family, const struct store_entry *entries, size_t count, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    family->files = arena_array(&family->arena, count, sizeof(*family->files));
    family->indexes = arena_array(&family->arena, count, sizeof(*family->indexes));
    if (!family->files || !family->indexes)
        return error_set_memory(err);
    family->is_group = family_is_group(family->source->store, entries, count);
    for (size_t i = 0; i < count && !status; i++) {
        struct family_file file = { .name = entries[i].name };
        struct str base = str_base_name(entries[i].name);
        if (entries[i].is_directory)
            continue;
        if (family_read_name(base, family->is_group, &file))
            family->files[family->file_count++] = file;
        else if (family_is_index(base) && !entries[i].leads_out)
            family->indexes[family->index_count++] = entries[i].name;
        else
            status = family_add_side_file(family, &entries[i], base, err);
        if (!status && family_is_meta(base) && !entries[i].leads_out)
            status = family_read_meta(family, entries[i].name, err);
        if (!status && family_is_config(base) && !entries[i].leads_out)
            status = family_read_config(family, entries[i].name, err);
    }
    qsort(family->files, family->file_count, sizeof(*family->files), family_compare);
    for (uint32_t i = 0; i < family->file_count; i++)
        if (family->files[i].ranks.tp >= (int32_t)family->tp)
            family->tp = (uint32_t)family->files[i].ranks.tp + 1;
    /* The files of the last ranks are missed by no name. Files without such a number are of one rank, whatever the model once was. */
    if (family->file_count && family->files[family->file_count - 1].ranks.tp >= 0 && family->told_tp > family->tp)
        family->tp = family->told_tp;
    family_find_expert_ranks(family);
    for (uint32_t i = 1; i < family->file_count; i++) {
        family->has_stages |= family->files[i].ranks.pp != family->files[0].ranks.pp;
        family->has_experts |= family->files[i].ranks.ep != family->files[0].ranks.ep;
    }
    return status;
}

/* ---- keys ---- */

/* PARAMETER and STATE of what follows the last '_' that leaves a parameter's name before it; false: there is none. */
static bool family_split_static(const struct family *family, const struct family_file *file, struct str key, struct buffer *parameter,
                                struct str *state)
{
    for (size_t at = key.size; at-- > 1;) {
        if (key.data[at] != '_' && key.data[at] != '.')
            continue;
        buffer_clear(parameter);
        if (!family_append_structured(family, file, (struct str){ key.data, at }, parameter))
            continue;
        *state = (struct str){ key.data + at + 1, key.size - at - 1 };
        if (str_is(*state, MASTER_MARK))
            *state = STR(MASTER_STATE);
        else if (str_starts_with(*state, MASTER_MARK "_"))
            *state = (struct str){ state->data + sizeof(MASTER_MARK), state->size - sizeof(MASTER_MARK) };
        return state->size > 0;
    }
    return false;
}

/* A name that no table knows is of its own rank alone: another stage means another parameter by it, whose number stands before it then. */
static reshard_status family_append_stray(struct family *family, const struct family_file *file, const struct torch_leaf *leaf,
                                          struct buffer *key, reshard_error *err)
{
    struct path_part *parts = arena_array(&family->arena, (size_t)leaf->part_count + 1, sizeof(*parts));
    bool has_stage = family->has_stages && file->ranks.pp >= 0, has_expert = family->has_experts && file->ranks.ep >= 0;
    char stage[16] = "", expert[16] = "";
    if (!parts)
        return error_set_memory(err);
    if (has_stage)
        snprintf(stage, sizeof(stage), "pp%02" PRId32, file->ranks.pp);
    if (has_expert)
        snprintf(expert, sizeof(expert), "%smoe%02" PRId32, has_stage ? "_" : "", file->ranks.ep);
    char *rank = arena_printf(&family->arena, "%s%s", stage, expert);
    if (!rank)
        return error_set_memory(err);
    parts[0] = (struct path_part){ .kind = PATH_KEY, .key = str_of(rank) };
    if (leaf->part_count)
        memcpy(parts + 1, leaf->parts, leaf->part_count * sizeof(*parts));
    family->stray_count += !file->has_slices_alone;
    bool done = rank[0] ? path_join(parts, leaf->part_count + 1, key) : path_join(leaf->parts, leaf->part_count, key);
    return done ? RESHARD_OK : error_set_memory(err);
}

/* What a leaf of an optimizer's file is: *state "" where no parameter is known, and *parameter is all of the key then. */
static reshard_status family_read_state(struct family *family, const struct family_file *file, const struct torch_leaf *leaf,
                                        struct buffer *parameter, struct str *state, reshard_error *err)
{
    bool is_text = leaf->part_count > 0 && leaf->parts[leaf->part_count - 1].kind == PATH_KEY;
    bool is_member = leaf->part_count == 2 && leaf->parts[0].kind == PATH_KEY && str_is(leaf->parts[0].key, MASTER_MEMBER);
    struct str name = is_text ? leaf->parts[leaf->part_count - 1].key : STR("");
    bool is_flat_member = leaf->part_count == 1 && str_starts_with(name, MASTER_MEMBER ".");
    *state = (struct str){ 0 };
    if (file->has_slices_alone)
        return family_append_stray(family, file, leaf, parameter, err);
    if (is_text && (is_member || is_flat_member || (file->role == FAMILY_MASTER && leaf->part_count == 1))) {
        if (is_flat_member)
            name = (struct str){ name.data + sizeof(MASTER_MEMBER), name.size - sizeof(MASTER_MEMBER) };
        *state = STR(MASTER_STATE);
        if (family_append_structured(family, file, name, parameter))
            return RESHARD_OK;
        buffer_clear(parameter);
        if (family_split_static(family, file, name, parameter, state) && str_is(*state, MASTER_STATE))
            return RESHARD_OK;
    } else if (is_text && leaf->part_count == 1 && family_split_static(family, file, name, parameter, state)) {
        return RESHARD_OK;
    }
    *state = (struct str){ 0 };
    buffer_clear(parameter);
    return family_append_stray(family, file, leaf, parameter, err);
}

reshard_status family_intern(struct family *family, struct str text, uint32_t *out, reshard_error *err)
{
    bool was_new;
    *out = name_map_intern(&family->keys, text, &was_new);
    if (*out == NAME_NONE || !ARRAY_ROOM(family->key_list, *out, family->key_capacity))
        return error_set_memory(err);
    if (was_new)
        family->key_list[*out] = (struct family_key){ .first = CATALOG_NONE, .last = CATALOG_NONE, .parameter = CATALOG_NONE };
    return RESHARD_OK;
}

static reshard_status family_add_piece(struct family *family, const struct family_piece *piece, uint32_t key, reshard_error *err)
{
    if (!ARRAY_ROOM(family->pieces, family->piece_count, family->piece_capacity))
        return error_set_memory(err);
    struct family_key *of = &family->key_list[key];
    if (of->last == CATALOG_NONE)
        of->first = family->piece_count;
    else
        family->pieces[of->last].next = family->piece_count;
    of->last = family->piece_count;
    family->pieces[family->piece_count++] = *piece;
    return RESHARD_OK;
}

/* ---- leaves ---- */

struct family_leaves {
    struct family *family;
    uint32_t file;
    struct buffer key;
};

static reshard_status family_add_tensor(struct family_leaves *leaves, const struct torch_leaf *leaf, reshard_error *err)
{
    struct family *family = leaves->family;
    const struct family_file *file = &family->files[leaves->file];
    struct str state = { 0 };
    uint32_t parameter = CATALOG_NONE, key;
    reshard_status status = RESHARD_OK;
    buffer_clear(&leaves->key);
    if (file->role != FAMILY_MODEL)
        status = family_read_state(family, file, leaf, &leaves->key, &state, err);
    else if (leaf->part_count == 1 && leaf->parts[0].kind == PATH_KEY)
        status = family_append_key(family, file, leaf->parts[0].key, &leaves->key) ? RESHARD_OK : error_set_memory(err);
    else
        status = path_join(leaf->parts, leaf->part_count, &leaves->key) ? RESHARD_OK : error_set_memory(err);
    if (!status && state.size)
        status = family_intern(family, buffer_str(&leaves->key), &parameter, err);
    if (!status && state.size && (!buffer_append_byte(&leaves->key, '.') || !buffer_append_str(&leaves->key, state)))
        status = error_set_memory(err);
    if (!status)
        status = family_intern(family, buffer_str(&leaves->key), &key, err);
    if (status)
        return status;
    family->key_list[key].parameter = parameter;
    bool is_stray = file->role != FAMILY_MODEL && !state.size;
    struct str said = is_stray ? buffer_str(&leaves->key) : state;
    if (family->key_list[key].first == CATALOG_NONE)
        family->key_list[key].is_stray = is_stray;
    family->key_list[key].is_scalar = memmem(said.data ? said.data : "", said.size, "pow_acc", 7) != NULL || str_is(said, ASGD_COUNT);
    /* The mark counts for all states of the parameter: those of a master weight lack it, since that has the parameter's own name. */
    if (state.size && family_is_slice(leaf->parts[leaf->part_count - 1].key))
        family->key_list[parameter].is_sliced = true;
    family->has_slices |= state.size && family_is_slice(leaf->parts[leaf->part_count - 1].key);
    struct family_piece piece = { .file = leaves->file, .tensor = leaf->value->tensor - 1, .next = CATALOG_NONE };
    return family_add_piece(family, &piece, key, err);
}

/* The first item of the catalog with the key, or CATALOG_NONE. */
static reshard_status family_find_item(struct family *family, struct str key, uint32_t *out, reshard_error *err)
{
    const struct catalog *catalog = family->source->catalog;
    for (; family->indexed < catalog->item_count; family->indexed++) {
        bool was_new;
        uint32_t number = name_map_intern(&family->item_keys, catalog->items[family->indexed].key, &was_new);
        if (number == NAME_NONE || (was_new && !ARRAY_ROOM(family->item_of, number, family->item_capacity)))
            return error_set_memory(err);
        if (was_new)
            family->item_of[number] = family->indexed;
    }
    uint32_t found = name_map_find(&family->item_keys, key);
    *out = found == NAME_NONE ? CATALOG_NONE : family->item_of[found];
    return RESHARD_OK;
}

/* An item under the file's name. */
static reshard_status family_add_own_item(struct family_leaves *leaves, const struct torch_leaf *leaf, struct catalog_item *item,
                                          reshard_error *err)
{
    struct family *family = leaves->family;
    struct family_file *file = &family->files[leaves->file];
    struct path_part *parts = arena_array(&family->arena, (size_t)leaf->part_count + 1, sizeof(*parts));
    if (!parts)
        return error_set_memory(err);
    parts[0] = (struct path_part){ .kind = PATH_KEY, .key = file->name };
    if (leaf->part_count)
        memcpy(parts + 1, leaf->parts, leaf->part_count * sizeof(*parts));
    buffer_clear(&leaves->key);
    if (!path_join(parts, leaf->part_count + 1, &leaves->key))
        return error_set_memory(err);
    item->key = buffer_str(&leaves->key);
    file->has_own_items = true;
    return catalog_add_item(family->source->catalog, item, parts, leaf->part_count + 1, NULL, err);
}

/* Values that are the same on all ranks are one item; others get the file's name before their path. */
static reshard_status family_add_item(struct family_leaves *leaves, const struct torch_leaf *leaf, reshard_error *err)
{
    struct family *family = leaves->family;
    struct catalog *catalog = family->source->catalog;
    const struct family_file *file = &family->files[leaves->file];
    struct catalog_item item = { .kind = ITEM_VALUE, .value = leaf->value,
                                 .graph = params_source_of(family->source)->files[file->file].graph };
    bool is_equal = false;
    buffer_clear(&leaves->key);
    if (!path_join(leaf->parts, leaf->part_count, &leaves->key))
        return error_set_memory(err);
    if (str_is(buffer_str(&leaves->key), PADDLE_NAME_TABLE))
        return RESHARD_OK; /* one table is made of all */
    item.key = buffer_str(&leaves->key);
    uint32_t known;
    reshard_status status = family_find_item(family, item.key, &known, err);
    if (status)
        return status;
    if (known == CATALOG_NONE)
        return catalog_add_item(catalog, &item, leaf->parts, leaf->part_count, NULL, err);
    status = value_compare(catalog->items[known].value, leaf->value, NULL, family->source->limits.budget, &is_equal, err);
    if (status || is_equal)
        return status;
    return family_add_own_item(leaves, leaf, &item, err);
}

static reshard_status family_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    return leaf->value->tensor ? family_add_tensor(context, leaf, err) : family_add_item(context, leaf, err);
}

/* What the containers of items were. */
static reshard_status family_add_forms(struct family *family, const struct family_file *file, reshard_error *err)
{
    const struct value *root = params_source_of(family->source)->files[file->file].graph->root;
    reshard_status status = params_forms_add_members(&family->forms, family->source, file->file, MASTER_MEMBER, err);
    return status || !file->has_own_items ? status
                                          : params_forms_add(&family->forms, family->source, file->file, file->name, root, err);
}

static reshard_status family_add_file(struct family *family, uint32_t index, reshard_error *err)
{
    static const char *const closed[] = { PADDLE_NAME_TABLE, NULL };
    const struct params_file *file = &params_source_of(family->source)->files[family->files[index].file];
    struct family_leaves leaves = { .family = family, .file = index };
    uint32_t first_item = family->source->catalog->item_count;
    if (!file->graph)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': one binary tensor, where a rank's state dict is expected",
                         STR_ARG(family->files[index].name));
    reshard_status status = torch_flatten_all(file->graph, &family->source->limits, closed, family_add_leaf, &leaves, err);
    buffer_release(&leaves.key);
    if (!status)
        status = params_load_values(family->source, family->files[index].file, first_item, err);
    if (!status && family->source->catalog->item_count > first_item)
        status = family_add_forms(family, &family->files[index], err);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(family->files[index].name));
        error_object(err, "%.*s", STR_ARG(family->files[index].name));
    }
    return status;
}

/* ---- the table of names ---- */

static reshard_status family_collect_names(struct family *family, const struct family_file *file, struct static_names *names,
                                           reshard_error *err)
{
    const struct paddle_archive *archive = family_archive(family, file);
    struct buffer key = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < archive->entry_count && !status; i++) {
        buffer_clear(&key);
        if (!archive->entries[i].name.size || !archive->entries[i].tensor)
            continue;
        if (family_append_key(family, file, archive->entries[i].key, &key))
            status = static_names_add(names, buffer_str(&key), archive->entries[i].name, file->file, err);
        else
            status = error_set_memory(err);
    }
    buffer_release(&key);
    return status;
}

/* The table as a value of a graph. NULL without memory. */
static struct value *family_table_value(const struct static_names *names, struct value_graph *graph)
{
    size_t count = 0;
    struct value **items = arena_array(&graph->arena, 2 * (size_t)names->keys.count, sizeof(*items));
    for (uint32_t i = 0; items && i < names->keys.count; i++) {
        struct str name = static_names_at(names, i);
        if (!name.size)
            continue;
        items[count] = value_new_str(graph, name_map_at(&names->keys, i));
        items[count + 1] = value_new_str(graph, name);
        if (!items[count] || !items[count + 1])
            return NULL;
        count += 2;
    }
    return items ? value_new_list(graph, VALUE_DICT, items, count) : NULL;
}

/* One table of all ranks: structured name -> the framework's. */
static reshard_status family_make_table(struct family *family, reshard_error *err)
{
    struct static_names names = { 0 };
    struct value_graph *graph = NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < family->file_count && !status && family->files[i].role == FAMILY_MODEL; i++) {
        graph = params_source_of(family->source)->files[family->files[i].file].graph;
        status = family_collect_names(family, &family->files[i], &names, err);
    }
    struct catalog_item item = { .key = STR(PADDLE_NAME_TABLE), .kind = ITEM_VALUE, .graph = graph };
    if (!status && names.keys.count) {
        item.value = family_table_value(&names, graph);
        status = item.value ? catalog_add_item(family->source->catalog, &item, NULL, 0, NULL, err)
                            : work_error(family->source->limits.budget, err);
    }
    static_names_release(&names);
    return status;
}

/* ---- all of it ---- */

static reshard_status family_load_rules(struct family *family, reshard_error *err)
{
    const struct model_data *data = model_data_find(STR("paddle.rules"));
    if (!data)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/paddle.rules");
    return partition_rules_parse(data->text, &family->arena, &family->rules, err);
}

static reshard_status family_merge_all(struct family *family, reshard_error *err)
{
    struct catalog *catalog = family->source->catalog;
    reshard_status status = family_merge(family, FAMILY_WEIGHTS, err);
    uint32_t first_state = catalog->tensor_count;
    if (!status)
        status = family_merge(family, FAMILY_STATES, err);
    if (!status)
        status = master_weights_cast(catalog, first_state, family->aliases, family->alias_count, err);
    return status ? status : family_merge(family, FAMILY_STRAYS, err);
}

/* Each rank of save_group_sharded_model writes the states that it has to a file of the same name: of stage 3 these are parts. */
static void family_look_for_slices(struct family *family, struct family_file *file)
{
    file->has_slices_alone = family_has_slices(family, file);
    if (file->has_slices_alone)
        catalog_warn(family->source->catalog, false,
                     "'%.*s' has what one rank of sharding stage 3 had of the states: they keep the framework's names",
                     STR_ARG(file->name));
}

static reshard_status family_read(struct family *family, reshard_error *err)
{
    reshard_status status = family_load_rules(family, err);
    if (!status)
        status = family_check_parts(family, err);
    for (uint32_t i = 0; i < family->file_count && !status; i++) {
        status = params_open_file(family->source, family->files[i].name.data, &family->files[i].file, err);
        if (!status && family->files[i].role == FAMILY_MODEL)
            status = family_note_names(family, &family->files[i], err);
        else if (!status && family->is_group)
            family_look_for_slices(family, &family->files[i]);
    }
    if (!status)
        status = family_note_told(family, err);
    for (uint32_t i = 0; i < family->file_count && !status; i++)
        status = family_add_file(family, i, err);
    if (!status)
        status = family_merge_all(family, err);
    if (!status)
        status = family_check_indexes(family, err);
    if (!status)
        status = family_make_table(family, err);
    if (!status)
        status = params_forms_keep(&family->forms, family->source, err);
    if (!status && family->whole_count)
        catalog_warn(family->source->catalog, false,
                     "%" PRIu32 " parameters are the same on all tensor-parallel ranks, where models/paddle.rules would have them cut: "
                     "they are taken for whole ('%.*s' first)", family->whole_count,
                     STR_ARG(name_map_at(&family->keys, family->first_whole)));
    if (!status && family->stray_count)
        catalog_warn(family->source->catalog, false,
                     "%" PRIu32 " optimizer states keep the framework's names: no file of weights knows them%s", family->stray_count,
                     family->has_stages || family->has_experts ? "; their rank stands before them" : "");
    return status;
}

static void family_release(struct family *family)
{
    family_release_tables(family);
    name_map_release(&family->keys);
    name_map_release(&family->item_keys);
    free(family->item_of);
    free(family->key_list);
    free(family->pieces);
    params_forms_release(&family->forms);
    arena_release(&family->arena);
}

reshard_status params_read_family(struct source *source, bool *is_family, reshard_error *err)
{
    struct family family = { .source = source, .tp = 1, .arena = { .work = source->limits.budget } };
    struct store_entry *entries;
    size_t count = 0;
    enum params_folder_kind kind;
    *is_family = false;
    reshard_status status = params_look_at_folder(source->store, source->name, &kind, err);
    if (status || kind != PARAMS_FOLDER_OF_RANKS)
        return status;
    *is_family = true;
    status = store_list(source->store, source->name, &family.arena, &entries, &count, err);
    if (!status)
        status = family_list(&family, entries, count, err);
    if (!status)
        status = family_read(&family, err);
    family_release(&family);
    return status;
}
