/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ranks hold that is no tensor of the model: its own items, the optimizer, extra state. */
#include "formats/torch/fsdp_assemble.h"

#include "base/array.h"
#include "formats/shared/rank_item.h"

#include <inttypes.h>
#include <stdlib.h>

static reshard_status keep_item_value(struct assembling *assembling, struct value *value, reshard_error *err)
{
    if (!ARRAY_ROOM(assembling->item_values, assembling->item_count, assembling->item_value_capacity))
        return error_set_memory(err);
    assembling->item_values[assembling->item_count++] = value;
    return RESHARD_OK;
}

reshard_status fsdp_has_storage(const struct assembling *assembling, const struct value *value, bool *out, reshard_error *err)
{
    size_t nodes = assembling->state->files[assembling->file].graph->count;
    return rank_item_has_storage(value, nodes, assembling->source->limits.budget, out) ? RESHARD_OK : error_set_memory(err);
}

/* Storage numbers in values count a file's own tables, so equal structure is not equal content where a storage lies inside. */
static reshard_status is_same_item(struct assembling *assembling, const struct catalog_item *known, const struct value *value, bool *out,
                                   reshard_error *err)
{
    bool found;
    reshard_status status = fsdp_has_storage(assembling, value, &found, err);
    *out = false;
    return status || found ? status : value_compare(known->value, value, NULL, assembling->source->limits.budget, out, err);
}

reshard_status fsdp_add_own_item(struct assembling *assembling, struct str key, const struct path_part *parts, size_t part_count,
                                 struct value *value, reshard_error *err)
{
    struct catalog *catalog = assembling->source->catalog;
    struct rank_item own;
    reshard_status status = rank_item_name(&catalog->arena, assembling->rank, key, parts, part_count, &own, err);
    if (!status)
        status = torch_source_add_item(assembling->source, assembling->file, own.key, own.parts, own.part_count, value, err);
    if (!status)
        catalog->items[catalog->item_count - 1].is_beside = assembling->is_beside;
    return status ? status : keep_item_value(assembling, value, err);
}

/* The number of the item whose path that is: another rank's item is compared with that, though several may have the joined key. */
static uint32_t intern_path(struct assembling *assembling, const struct path_part *parts, size_t part_count, bool *was_new)
{
    struct buffer path = { 0 };
    const struct path_part single = { .kind = PATH_KEY, .key = buffer_str(&assembling->key) };
    uint32_t number = NAME_NONE;
    if (name_map_intern(&assembling->item_keys, single.key, NULL) != NAME_NONE &&
        path_append_exact(part_count ? parts : &single, part_count ? part_count : 1, &path))
        number = name_map_intern(&assembling->item_paths, buffer_str(&path), was_new);
    buffer_release(&path);
    return number;
}

reshard_status fsdp_add_item(struct assembling *assembling, const struct path_part *parts, size_t part_count, struct value *value,
                             reshard_error *err)
{
    struct catalog *catalog = assembling->source->catalog;
    bool was_new, is_same;
    uint32_t number = intern_path(assembling, parts, part_count, &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(assembling->items, number, assembling->item_capacity))
        return error_set_memory(err);
    struct str key = buffer_str(&assembling->key);
    if (!was_new) {
        reshard_status status = is_same_item(assembling, &catalog->items[assembling->items[number]], value, &is_same, err);
        if (status || is_same)
            return status;
        return fsdp_add_own_item(assembling, key, parts, part_count, value, err);
    }
    bool is_key_path = part_count == 1 && parts[0].kind == PATH_KEY;
    reshard_status status =
        torch_source_add_item(assembling->source, assembling->file, key, parts, is_key_path ? 0 : part_count, value, err);
    if (!status && was_new)
        assembling->items[number] = catalog->item_count - 1;
    if (!status)
        catalog->items[catalog->item_count - 1].is_beside = assembling->is_beside;
    return status ? status : keep_item_value(assembling, value, err);
}

/* ---- optimizer ---- */

bool fsdp_state_key_of_path(const struct path_part *parts, size_t count, struct buffer *out)
{
    return buffer_append_str(out, FSDP_HIDDEN_PREFIX) && path_join(parts, count, out);
}

bool fsdp_state_key_of_number(uint32_t number, struct str name, struct buffer *out)
{
    return buffer_append_str(out, FSDP_HIDDEN_PREFIX) && buffer_printf(out, "state.%" PRIu32 ".", number) && buffer_append_str(out, name);
}

bool fsdp_state_key_read(struct str key, uint32_t *number, struct str *name)
{
    uint64_t read;
    if (!fsdp_is_state(key))
        return false;
    *name = (struct str){ key.data + FSDP_HIDDEN_PREFIX.size, key.size - FSDP_HIDDEN_PREFIX.size };
    if (!str_is(str_take(name, '.'), "state") || !str_to_u64(str_take(name, '.'), &read) || read >= CATALOG_NONE)
        return false;
    *number = (uint32_t)read;
    return true;
}

/* A tensor of the state becomes a piece of a hidden whole; what is none stays in the item, with the storages it may have. */
static reshard_status add_state_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct assembling *assembling = context;
    uint32_t tensor;
    buffer_clear(&assembling->key);
    if (!fsdp_state_key_of_path(leaf->parts, leaf->part_count, &assembling->key))
        return error_set_memory(err);
    reshard_status status = fsdp_add_tensor(assembling, leaf, &tensor, err);
    if (status || tensor == CATALOG_NONE)
        return status ? status : keep_item_value(assembling, leaf->value, err);
    assembling->merged_seen++;
    if (assembling->rank > 0)
        return RESHARD_OK;
    if (!ARRAY_ROOM(assembling->merged, assembling->merged_count, assembling->merged_capacity))
        return error_set_memory(err);
    assembling->merged[assembling->merged_count++] = (struct torch_whole){ leaf->value, tensor };
    return RESHARD_OK;
}

/* The item that names wholes: rank 0's nested state dict. */
static reshard_status add_whole_item(struct assembling *assembling, reshard_error *err)
{
    struct catalog *catalog = assembling->source->catalog;
    reshard_status status = torch_source_add_item(assembling->source, assembling->file, STR(FSDP_OPTIMIZER_KEY), NULL, 0,
                                                  assembling->state->files[assembling->file].graph->root, err);
    if (!status)
        catalog->items[catalog->item_count - 1].is_beside = true;
    return status;
}

/* The state of one rank: pieces of wholes, and from rank 0 the item that names them. */
static reshard_status add_merged(struct assembling *assembling, reshard_error *err)
{
    struct value_graph *graph = assembling->state->files[assembling->file].graph;
    assembling->is_hidden = true;
    assembling->merged_seen = 0;
    reshard_status status = torch_flatten(graph, &assembling->source->limits, add_state_leaf, assembling, err);
    if (status)
        return status;
    if (assembling->merged_seen != assembling->merged_count)
        return error_set(err, RESHARD_ERR_FORMAT, "the optimizer's state has %zu tensors, on rank 0 %zu", assembling->merged_seen,
                         assembling->merged_count);
    return assembling->rank == 0 ? add_whole_item(assembling, err) : RESHARD_OK;
}

static reshard_status fsdp_add_optimizer(struct assembling *assembling, reshard_error *err)
{
    if (assembling->is_joined)
        return add_whole_item(assembling, err);
    const struct torch_file *file = &assembling->state->files[assembling->file];
    assembling->is_merged = !assembling->state->ranks->is_staged &&
                            (file->archive.shard_count > 0 || assembling->is_one_file || assembling->is_replicated ||
                             assembling->merged_count > 0);
    if (assembling->is_merged)
        return add_merged(assembling, err);
    buffer_clear(&assembling->key);
    if (!buffer_append_str(&assembling->key, STR(FSDP_OPTIMIZER_KEY)))
        return error_set_memory(err);
    return fsdp_add_item(assembling, NULL, 0, file->graph->root, err);
}

reshard_status fsdp_name_wholes(struct assembling *assembling, reshard_error *err)
{
    return torch_wholes_name(assembling->state->files[assembling->file].graph, assembling->source->catalog, assembling->merged,
                             assembling->merged_count, err);
}

/* ---- extra state ---- */

/* The item KEY.ENTRY, or KEY.ENTRY.NAME if name is given. */
static reshard_status add_extra(struct assembling *assembling, struct str word, struct str entry, const struct str *name,
                                struct value *value, reshard_error *err)
{
    struct path_part parts[3] = { { .kind = PATH_KEY, .key = word }, { .kind = PATH_KEY, .key = entry } };
    size_t count = 2;
    if (name)
        parts[count++] = (struct path_part){ .kind = PATH_KEY, .key = *name };
    buffer_clear(&assembling->key);
    return path_join(parts, count, &assembling->key) ? fsdp_add_item(assembling, parts, count, value, err) : error_set_memory(err);
}

static bool has_text_keys(struct value *const *pairs, size_t count)
{
    bool good = count > 0;
    for (size_t i = 0; i + 1 < count; i += 2)
        good = good && pairs[i]->kind == VALUE_STR;
    return good;
}

/* A member of an extra file: with storages inside whole, else a dict's members one by one. */
static reshard_status add_extra_entry(struct assembling *assembling, struct str word, struct str entry, struct value *value,
                                      reshard_error *err)
{
    bool found;
    struct value **pairs;
    size_t count;
    reshard_status status = fsdp_has_storage(assembling, value, &found, err);
    if (status)
        return status;
    if (found || value->kind != VALUE_DICT || !value_as_mapping(value, &pairs, &count) || !has_text_keys(pairs, count))
        return add_extra(assembling, word, entry, NULL, value, err);
    for (size_t i = 0; !status && i + 1 < count; i += 2)
        status = add_extra(assembling, word, entry, &pairs[i]->text, pairs[i + 1], err);
    return status;
}

/* Rank 0's entry without tensors under its own name, if that is free. */
static reshard_status add_plain_entry(struct assembling *assembling, struct value *value, reshard_error *err)
{
    bool found;
    struct catalog_item item = { .kind = ITEM_VALUE, .value = value, .graph = assembling->state->files[assembling->file].graph };
    reshard_status status = fsdp_has_storage(assembling, value, &found, err);
    if (status || found || name_map_find(&assembling->item_keys, buffer_str(&assembling->key)) != NAME_NONE)
        return status;
    item.key = buffer_str(&assembling->key);
    return catalog_add_item(assembling->source->catalog, &item, NULL, 0, NULL, err);
}

static reshard_status add_entry(struct assembling *assembling, enum fsdp_kind kind, struct str word, struct value *key,
                                struct value *value, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    struct buffer text = { 0 };
    bool good = key->kind == VALUE_STR ? buffer_append_str(&text, key->text)
                                       : value_to_repr(key, &text, assembling->source->limits.budget);
    if (!good)
        status = error_set_memory(err);
    if (!status && kind != FSDP_OPTIMIZER)
        status = add_extra_entry(assembling, word, buffer_str(&text), value, err);
    if (!status && assembling->rank == 0) {
        buffer_clear(&assembling->key);
        status = buffer_append_str(&assembling->key, buffer_str(&text)) ? add_plain_entry(assembling, value, err) : error_set_memory(err);
    }
    buffer_release(&text);
    return status;
}

/* What items of a file beside the model are called: "extra_state", or what its name begins with. */
static struct str word_of(enum fsdp_kind kind, const struct fsdp_file *file)
{
    struct str word = file->prefix;
    const char *world = memmem(word.data, word.size, "_world_size_", 12);
    if (kind == FSDP_EXTRA)
        return STR(FSDP_EXTRA_KEY);
    if (world)
        word.size = (size_t)(world - word.data);
    while (word.size && word.data[word.size - 1] == '_')
        word.size--;
    return word.size ? word : STR("other");
}

reshard_status fsdp_add_beside(struct assembling *assembling, enum fsdp_kind kind, const struct fsdp_file *file, reshard_error *err)
{
    struct value *root = assembling->state->files[assembling->file].graph->root, **pairs;
    size_t count;
    struct str word = word_of(kind, file);
    assembling->is_beside = kind != FSDP_OTHER;
    reshard_status status = kind == FSDP_OPTIMIZER ? fsdp_add_optimizer(assembling, err) : RESHARD_OK;
    if (!value_as_mapping(root, &pairs, &count)) {
        buffer_clear(&assembling->key);
        if (status || kind == FSDP_OPTIMIZER)
            return status;
        return buffer_append_str(&assembling->key, word) ? fsdp_add_item(assembling, NULL, 0, root, err) : error_set_memory(err);
    }
    for (size_t i = 0; !status && i + 1 < count; i += 2)
        status = add_entry(assembling, kind, word, pairs[i], pairs[i + 1], err);
    return status;
}
