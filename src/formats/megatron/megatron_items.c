/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is no parameter: arguments, iteration, scheduler, random number states, extra state. Every rank has its own; those that are the same
 * appear once.
 */
#include "formats/megatron/megatron_source.h"

#include <stdlib.h>

#include "base/array.h"
#include "formats/shared/rank_item.h"

struct megatron_items {
    struct source *source;
    struct name_map keys;
    uint32_t *items;          /* by key: the first item of the catalog */
    uint32_t item_capacity;
    struct item_value {
        uint32_t file;
        struct value *value;
    } *values;
    size_t value_count, value_capacity;
    struct buffer key;
};

reshard_status megatron_items_new(struct source *source, struct megatron_items **out, reshard_error *err)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    (*out)->source = source;
    return RESHARD_OK;
}

void megatron_items_free(struct megatron_items *items)
{
    if (!items)
        return;
    name_map_release(&items->keys);
    free(items->items);
    free(items->values);
    buffer_release(&items->key);
    free(items);
}

/* Values with tensors inside are never the same. */
static reshard_status is_same(struct megatron_items *items, const struct catalog_item *known, const struct megatron_rank *rank,
                              const struct value *value, bool *out, reshard_error *err)
{
    bool found;
    uint32_t count = torch_source_of(items->source)->files[rank->file].graph->count;
    *out = false;
    if (!rank_item_has_storage(value, count, items->source->limits.budget, &found))
        return error_set_memory(err);
    return found ? RESHARD_OK : value_compare(known->value, value, NULL, items->source->limits.budget, out, err);
}

/* The path with the folder's name in front. */
static struct path_part *prefixed(struct megatron_items *items, const struct megatron_rank *rank, const struct path_part *parts,
                                  size_t count)
{
    struct path_part *out = arena_array(&megatron_source_of(items->source)->arena, count + 1, sizeof(*out));
    if (!out)
        return NULL;
    out[0] = (struct path_part){ .kind = PATH_KEY, .key = rank->folder };
    memcpy(out + 1, parts, count * sizeof(*parts));
    return out;
}

static reshard_status items_add(struct megatron_items *items, const struct megatron_rank *rank, const struct path_part *parts, size_t count,
                                struct value *value, reshard_error *err)
{
    if (!ARRAY_ROOM(items->values, items->value_count, items->value_capacity))
        return error_set_memory(err);
    items->values[items->value_count++] = (struct item_value){ rank->file, value };
    bool is_key_path = count == 1 && parts[0].kind == PATH_KEY;
    struct str key = buffer_str(&items->key);
    return torch_source_add_item(items->source, rank->file, key, parts, is_key_path ? 0 : count, value, err);
}

reshard_status megatron_items_add(struct megatron_items *items, const struct megatron_rank *rank, const struct path_part *parts,
                                  size_t count, struct value *value, reshard_error *err)
{
    struct catalog *catalog = items->source->catalog;
    bool was_new, same;
    size_t capacity = items->item_capacity;
    buffer_clear(&items->key);
    uint32_t number = path_join(parts, count, &items->key) ? name_map_intern(&items->keys, buffer_str(&items->key), &was_new) : NAME_NONE;
    if (number == NAME_NONE || !ARRAY_ROOM(items->items, number, capacity))
        return error_set_memory(err);
    items->item_capacity = (uint32_t)capacity;
    if (was_new) {
        items->items[number] = catalog->item_count;
        return items_add(items, rank, parts, count, value, err);
    }
    reshard_status status = is_same(items, &catalog->items[items->items[number]], rank, value, &same, err);
    if (status || same)
        return status;
    struct path_part *own = prefixed(items, rank, parts, count);
    buffer_clear(&items->key);
    if (!own || !path_join(own, count + 1, &items->key))
        return error_set_memory(err);
    return items_add(items, rank, own, count + 1, value, err);
}

static int value_order(const void *a, const void *b)
{
    const struct item_value *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->value->id < y->value->id ? -1 : x->value->id > y->value->id;
}

static reshard_status end_file(struct megatron_items *items, uint32_t file, size_t begin, size_t end, reshard_error *err)
{
    uint32_t storages = torch_source_of(items->source)->files[file].archive.storage_count;
    bool *wanted = array_zeroed(storages, sizeof(*wanted));
    struct value **values = array_zeroed(end - begin, sizeof(*values));
    reshard_status status = wanted && values ? RESHARD_OK : error_set_memory(err);
    for (size_t i = begin; !status && i < end; i++)
        values[i - begin] = items->values[i].value;
    if (!status)
        status = torch_source_hide_storages(items->source, file, values, end - begin, wanted, err);
    free(values);
    free(wanted);
    return status;
}

reshard_status megatron_items_end(struct megatron_items *items, reshard_error *err)
{
    uint32_t files = torch_source_of(items->source)->file_count;
    size_t at = 0;
    reshard_status status = RESHARD_OK;
    if (items->value_count > 0)
        qsort(items->values, items->value_count, sizeof(*items->values), value_order);
    for (uint32_t file = 0; !status && file < files; file++) {
        size_t begin = at;
        while (at < items->value_count && items->values[at].file == file)
            at++;
        status = end_file(items, file, begin, at, err);
    }
    return status;
}
