/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ByteCheckpoint's extra state: a file of torch.save for each rank, with a dict of a schedule, random numbers, counts. Items are
 * "extra_state.KEY", those of further ranks "rank_N.extra_state.KEY" where they differ from rank 0's.
 */
#include "formats/dcp/dcp_source.h"
#include "formats/shared/rank_item.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define EXTRA_KEY "extra_state"
#define FILE_PREFIX EXTRA_KEY "_rank_"
#define FILE_SUFFIX ".pt"

struct extra_file {
    struct store_entry *entry;
    uint64_t rank;
};

struct extra_reading {
    struct source *source;
    struct name_map known;  /* keys of the first rank's items */
    uint32_t *items;        /* by number of a key: of the catalog */
    uint32_t item_capacity;
    struct dcp_archive *archive; /* of this file */
    const struct value_graph *graph;
    uint32_t rank;
    bool is_first;
};

static int extra_by_rank(const void *a, const void *b)
{
    const struct extra_file *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static reshard_status extra_list(struct source *source, const char *folder, struct arena *arena, struct extra_file **out, size_t *out_count,
                                 reshard_error *err)
{
    struct store_entry *entries;
    size_t count;
    char *plain = arena_copy(arena, folder, strlen(folder) - 1);
    *out_count = 0;
    if (!plain)
        return error_set_memory(err);
    if (!store_is_directory(source->store, plain))
        return RESHARD_OK;
    reshard_status status = store_list(source->store, plain, arena, &entries, &count, err);
    if (!status && !(*out = arena_array(arena, count + 1, sizeof(**out))))
        status = error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        const size_t head = sizeof(FILE_PREFIX) - 1, around = head + sizeof(FILE_SUFFIX) - 1;
        struct extra_file file = { .entry = &entries[i] };
        if (!entries[i].is_directory && !entries[i].leads_out && str_starts_with(base, FILE_PREFIX) && str_ends_with(base, FILE_SUFFIX) &&
            str_to_u64((struct str){ base.data + head, base.size - around }, &file.rank) && file.rank < UINT32_MAX)
            (*out)[(*out_count)++] = file;
    }
    if (!status)
        qsort(*out, *out_count, sizeof(**out), extra_by_rank);
    return status;
}

static reshard_status extra_is_same(const struct extra_reading *reading, uint32_t item, const struct value *value, bool *out,
                                    reshard_error *err)
{
    struct work *work = reading->source->limits.budget;
    bool found;
    *out = false;
    if (!rank_item_has_storage(value, reading->graph->count, work, &found))
        return work_error(work, err);
    return found ? RESHARD_OK : value_compare(reading->source->catalog->items[item].value, value, NULL, work, out, err);
}

static reshard_status extra_add_item(struct extra_reading *reading, struct str key, const struct path_part *parts, size_t part_count,
                                     const struct value *value, uint32_t *index, reshard_error *err)
{
    struct catalog_item item = { .key = key, .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = value, .graph = reading->graph,
                                 .object = reading->archive->object, .is_beside = true };
    reshard_status status = catalog_add_item(reading->source->catalog, &item, parts, part_count, index, err);
    return status ? status : dcp_item_set_archive(reading->source, *index, reading->archive, err);
}

static reshard_status extra_add(struct extra_reading *reading, struct str text, const struct value *value, reshard_error *err)
{
    struct path_part parts[] = { { .kind = PATH_KEY, .key = STR(EXTRA_KEY) }, { .kind = PATH_KEY, .key = text } };
    struct rank_item own;
    struct buffer key = { 0 };
    bool was_new = false, is_same = false;
    uint32_t number = path_join(parts, 2, &key) ? name_map_intern(&reading->known, buffer_str(&key), &was_new) : NAME_NONE, index;
    struct str joined = number == NAME_NONE ? (struct str){ 0 } : name_map_at(&reading->known, number);
    buffer_release(&key);
    if (number == NAME_NONE || !ARRAY_ROOM(reading->items, number, reading->item_capacity))
        return error_set_memory(err);
    if (was_new)
        reading->items[number] = CATALOG_NONE;
    if (!was_new && reading->is_first)
        return error_set(err, RESHARD_ERR_FORMAT, "it has '%.*s' twice", STR_ARG(text));
    if (reading->is_first)
        return extra_add_item(reading, joined, parts, 2, value, &reading->items[number], err);
    reshard_status status = reading->items[number] == CATALOG_NONE
                                ? RESHARD_OK
                                : extra_is_same(reading, reading->items[number], value, &is_same, err);
    if (status || is_same)
        return status;
    status = rank_item_name(&reading->source->catalog->arena, reading->rank, joined, parts, 2, &own, err);
    return status ? status : extra_add_item(reading, own.key, own.parts, own.part_count, value, &index, err);
}

static reshard_status extra_add_all(struct extra_reading *reading, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!value_as_mapping(reading->graph->root, &pairs, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "a rank's extra state is a dict, and this is none");
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct buffer text = { 0 };
        struct str name;
        bool is_text = value_as_str(pairs[i], &name);
        if (!is_text && !value_to_repr(pairs[i], &text, reading->source->limits.budget))
            status = work_error(reading->source->limits.budget, err);
        if (!status)
            status = extra_add(reading, is_text ? name : buffer_str(&text), pairs[i + 1], err);
        buffer_release(&text);
    }
    return status;
}

reshard_status dcp_read_extra(struct source *source, const char *above, const char *folder, reshard_error *err)
{
    struct extra_reading reading = { .source = source };
    struct arena arena = { .work = source->limits.budget };
    struct extra_file *files = NULL;
    size_t count = 0;
    uint32_t object;
    char *whole = arena_printf(&arena, "%s%s", above, folder);
    reshard_status status = whole ? extra_list(source, whole, &arena, &files, &count, err) : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str name = files[i].entry->name;
        reading.rank = (uint32_t)files[i].rank;
        reading.is_first = i == 0;
        status = catalog_add_object(source->catalog, name, files[i].entry->bytes, &object, err);
        if (!status)
            status = dcp_archive_open(source, object, 0, files[i].entry->bytes, CODEC_NONE, &reading.archive, &reading.graph, err);
        if (!status)
            status = extra_add_all(&reading, err);
        if (status) {
            error_prefix(err, "'%.*s'", STR_ARG(name));
            error_object(err, "%.*s", STR_ARG(name));
        }
    }
    name_map_release(&reading.known);
    free(reading.items);
    arena_release(&arena);
    return status;
}
