/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that the manifest spells out, objects of torch.save, empty containers, and tensors that a rank has for itself. Of several ranks
 * "KEY" is the first's, and "rank_N.KEY" that of another one, unless the manifest says the very same of both.
 */
#include "formats/torchsnapshot/snapshot_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/base64.h"
#include "encoding/json.h"
#include "formats/shared/rank_item.h"
#include "formats/shared/torch_whole.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- values ---- */

static reshard_status refuse_value(struct str type, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "its \"serialized_value\" is no %.*s", STR_ARG(type));
}

static reshard_status bytes_value(struct value_graph *graph, struct str type, struct str text, struct value **out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    reshard_status status = RESHARD_OK;
    bool is_float = str_is(type, "float");
    if (!base64_decode(text, &bytes) || (is_float && bytes.size != sizeof(double))) {
        status = bytes.failed ? error_set_memory(err) : refuse_value(type, err);
    } else if (!(*out = value_new(graph, is_float ? VALUE_FLOAT : VALUE_BYTES))) {
        status = error_set_memory(err);
    } else if (is_float) {
        uint64_t bits = load_le(bytes.data, 8);
        memcpy(&(*out)->real, &bits, sizeof(bits));
    } else {
        (*out)->text = (struct str){ arena_copy(&graph->arena, bytes.data ? (const char *)bytes.data : "", bytes.size), bytes.size };
        if (!(*out)->text.data)
            status = error_set_memory(err);
    }
    buffer_release(&bytes);
    return status;
}

static reshard_status int_value(struct snapshot_reading *reading, struct str text, struct value **out, reshard_error *err)
{
    /* As JSON reads numbers, of any size. */
    struct value_graph graph = { .arena.work = reading->source->limits.budget };
    reshard_status status = json_parse(text.data, text.size, &reading->source->limits, &graph, err);
    if (status == RESHARD_ERR_FORMAT || (!status && graph.root->kind != VALUE_INT && graph.root->kind != VALUE_BIGINT))
        status = refuse_value(STR("int"), err);
    if (!status && !(*out = value_copy(reading->graph, graph.root, graph.count)))
        status = error_set_memory(err);
    value_graph_release(&graph);
    return status;
}

/* *out NULL: the entry spells no value out. */
static reshard_status told_value(struct snapshot_reading *reading, const struct snapshot_entry *entry, struct value **out,
                                 reshard_error *err)
{
    struct str text, type = entry->type;
    struct value_graph *graph = reading->graph;
    bool is_list, is_container = snapshot_is_container(type, &is_list), is_bool = str_is(type, "bool"),
         is_bytes = str_is(type, "bytes") || str_is(type, "float"), is_str = str_is(type, "str"), is_int = str_is(type, "int");
    *out = NULL;
    if (is_container) {
        *out = value_new_list(graph, is_list ? VALUE_LIST : VALUE_DICT, NULL, 0);
        return *out ? RESHARD_OK : error_set_memory(err);
    }
    if (!is_bool && !is_bytes && !is_str && !is_int)
        return RESHARD_OK;
    if (!value_as_str(value_dict_get(entry->value, "serialized_value"), &text))
        return refuse_value(type, err);
    if (is_bytes)
        return bytes_value(graph, type, text, out, err);
    if (is_int)
        return int_value(reading, text, out, err);
    if (is_bool && !str_is(text, "True") && !str_is(text, "False"))
        return refuse_value(type, err);
    *out = is_str ? value_new_str(graph, text) : value_new(graph, VALUE_BOOL);
    if (!*out)
        return error_set_memory(err);
    if (is_bool)
        (*out)->boolean = str_is(text, "True");
    return RESHARD_OK;
}

/* ---- one item ---- */

static reshard_status item_add(struct snapshot_reading *reading, struct catalog_item *item, const struct rank_item *name, uint32_t rank,
                               uint32_t *index, reshard_error *err)
{
    item->key = name->key;
    item->path = CATALOG_NONE;
    item->writer = catalog_writer(rank);
    return catalog_add_item(reading->source->catalog, item, name->parts, name->part_count > 1 ? name->part_count : 0, index, err);
}

static reshard_status blob_add(struct snapshot_reading *reading, const struct snapshot_piece *piece, const struct rank_item *name,
                               uint32_t rank, reshard_error *err)
{
    struct catalog_item item = { .kind = ITEM_BLOB, .object = piece->object, .offset = piece->offset, .bytes = piece->bytes };
    uint32_t index;
    reshard_status status = item_add(reading, &item, name, rank, &index, err);
    return status ? status : snapshot_note_saved(reading->source, (struct snapshot_saved){ item.object, item.offset, item.bytes }, err);
}

static reshard_status object_add(struct snapshot_reading *reading, const struct snapshot_entry *entry, const struct rank_item *name,
                                 reshard_error *err)
{
    struct snapshot_piece piece = { 0 };
    reshard_status status = snapshot_object_read(reading, entry->value, &piece, err);
    if (!status && piece.is_left_out) {
        catalog_warn(reading->source->catalog, true, "item '%.*s' is lost: it lies in '%.*s', which is gone or cut off", STR_ARG(name->key),
                     STR_ARG(reading->source->catalog->objects[piece.object].name));
        return RESHARD_OK;
    }
    return status ? status : blob_add(reading, &piece, name, entry->rank, err);
}

/* Whether the pieces are runs of whole rows that follow one another from the first row to the last. */
static bool are_rows(const struct snapshot_piece *pieces, uint32_t count, const struct snapshot_private *whole)
{
    int64_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].rank != whole->rank || pieces[i].dtype != whole->dtype || pieces[i].is_saved)
            return false;
        for (int axis = 0; axis < whole->rank; axis++)
            if (pieces[i].start[axis] != (axis ? 0 : row) || (axis && pieces[i].extent[axis] != whole->shape[axis]))
                return false;
        row += whole->rank ? pieces[i].extent[0] : 0;
    }
    return whole->rank ? row == whole->shape[0] : count == 1;
}

static reshard_status rows_add(struct snapshot_reading *reading, const struct snapshot_entry *entry, uint32_t first, uint32_t count,
                               const struct rank_item *name, reshard_error *err)
{
    struct source *source = reading->source;
    struct snapshot_state *state = snapshot_state_of(source);
    const struct snapshot_piece *pieces = state->pieces + first;
    struct catalog_item item = { .kind = ITEM_LATE, .object = pieces->object, .offset = pieces->offset, .bytes = pieces->bytes };
    struct snapshot_private own = { .dtype = pieces->dtype, .rank = pieces->rank, .first_piece = first, .piece_count = count };
    const struct value *said = value_dict_get(entry->value, "shape");
    size_t axes;
    int64_t volume;
    if (!value_as_ints(said, own.shape, RANK_MAX, &axes) || axes != (size_t)own.rank || !shape_volume(own.rank, own.shape, &volume) ||
        !are_rows(pieces, count, &own))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the tensor of one rank is no run of rows");
    if (!ARRAY_ROOM(state->privates, state->private_count, state->private_capacity))
        return error_set_memory(err);
    reshard_status status = item_add(reading, &item, name, entry->rank, &own.item, err);
    if (!status)
        state->privates[state->private_count++] = own;
    return status;
}

static reshard_status private_add(struct snapshot_reading *reading, const struct snapshot_entry *entry, const struct rank_item *name,
                                  reshard_error *err)
{
    struct snapshot_state *state = snapshot_state_of(reading->source);
    uint32_t first = state->piece_count, count;
    bool is_lost = false, is_kept = false;
    reshard_status status = snapshot_pieces_read(reading, entry, &count, err);
    if (!status && !count)
        status = error_set(err, RESHARD_ERR_FORMAT, "there is no piece of it");
    for (uint32_t i = 0; !status && i < count; i++)
        is_lost = is_lost || state->pieces[first + i].is_left_out;
    if (!status && is_lost) {
        catalog_warn(reading->source->catalog, true, "item '%.*s' is lost: a file of it is gone or cut off", STR_ARG(name->key));
    } else if (!status && count == 1 && state->pieces[first].is_saved) {
        status = blob_add(reading, &state->pieces[first], name, entry->rank, err);
    } else if (!status) {
        status = rows_add(reading, entry, first, count, name, err);
        is_kept = !status;
    }
    if (!is_kept)
        state->piece_count = first;
    return status;
}

static reshard_status entry_add(struct snapshot_reading *reading, const struct snapshot_entry *entry, const struct rank_item *name,
                                reshard_error *err)
{
    struct catalog_item item = { .kind = ITEM_VALUE, .graph = reading->graph };
    struct value *value;
    uint32_t index;
    bool is_sharded;
    if (str_is(entry->type, "object"))
        return object_add(reading, entry, name, err);
    if (snapshot_is_tensor(entry->type, &is_sharded))
        return private_add(reading, entry, name, err);
    reshard_status status = told_value(reading, entry, &value, err);
    if (!status && !value)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "entries of type '%.*s%s' are not known", STR_ARG_BRIEF(entry->type));
    item.value = value;
    return status ? status : item_add(reading, &item, name, entry->rank, &index, err);
}

/* ---- the items of a path ---- */

/* Whether the manifest says the very same of both: a value that it spells out, or where the bytes lie. */
static reshard_status says_same(struct snapshot_reading *reading, const struct snapshot_entry *a, const struct snapshot_entry *b, bool *out,
                                reshard_error *err)
{
    return value_compare(a->value, b->value, NULL, reading->source->limits.budget, out, err);
}

/* A container that its members tell of. */
static bool is_filled(const struct snapshot_path *path, const struct snapshot_entry *entry)
{
    bool is_list;
    return path->has_children && snapshot_is_container(entry->type, &is_list);
}

reshard_status snapshot_add_items(struct snapshot_reading *reading, uint32_t path, bool has_tensor, reshard_error *err)
{
    const struct snapshot_manifest *manifest = &reading->manifest;
    const struct snapshot_path *known = &manifest->paths[path];
    const struct snapshot_entry *first = NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = known->first; !status && i != CATALOG_NONE; i = manifest->entries[i].next) {
        const struct snapshot_entry *entry = &manifest->entries[i];
        struct rank_item name = { .key = buffer_str(&reading->key), .parts = reading->parts, .part_count = reading->part_count };
        bool is_sharded, is_same = false;
        if (is_filled(known, entry) || (snapshot_is_tensor(entry->type, &is_sharded) && snapshot_is_shared(reading, entry)))
            continue;
        if (first)
            status = says_same(reading, first, entry, &is_same, err);
        if (status || is_same)
            continue;
        if (has_tensor || (first && first->rank != entry->rank) || (!first && entry->rank != 0 && !snapshot_is_shared(reading, entry)))
            status = rank_item_name(&reading->arena, entry->rank, buffer_str(&reading->key), reading->parts, reading->part_count, &name,
                                    err);
        if (!status)
            status = entry_add(reading, entry, &name, err);
        if (!first)
            first = entry;
    }
    return status;
}

/* ---- later ---- */

static const struct snapshot_private *private_of(struct source *source, uint32_t item)
{
    const struct snapshot_state *state = snapshot_state_of(source);
    uint32_t low = 0, high = state->private_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (state->privates[middle].item < item)
            low = middle + 1;
        else
            high = middle;
    }
    return low < state->private_count && state->privates[low].item == item ? &state->privates[low] : NULL;
}

reshard_status snapshot_load_item(struct source *source, uint32_t index, reshard_error *err)
{
    struct catalog_item *item = &source->catalog->items[index];
    const struct snapshot_private *own = item->kind == ITEM_LATE ? private_of(source, index) : NULL;
    if (!own || item->value)
        return dcp_load_item(source, index, err);
    struct value_graph *graph = catalog_adopt_graph(source->catalog, (struct value_graph){ .arena.work = source->limits.budget });
    item->value = graph ? torch_tensor_value(graph, own->dtype, own->rank, own->shape, 0) : NULL;
    item->graph = graph;
    return item->value ? RESHARD_OK : error_set_memory(err);
}

static reshard_status own_piece_append(struct source *source, const struct snapshot_piece *piece, struct buffer *out, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = dcp_open_object(source, piece->object, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = reader_append(&reader, piece->offset, piece->bytes, out, err);
    store_object_close(object);
    return status;
}

reshard_status snapshot_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    const struct snapshot_private *own = private_of(source, item);
    const struct snapshot_piece *pieces = own ? snapshot_state_of(source)->pieces + own->first_piece : NULL;
    uint64_t bytes = 0;
    reshard_status status = RESHARD_OK;
    if (!own)
        return dcp_read_item_storage(source, item, storage, out, err);
    for (uint32_t i = 0; !status && i < own->piece_count; i++) {
        if (!checked_add_u64(bytes, pieces[i].bytes, &bytes) || bytes > source->limits.item_bytes)
            status = error_set_limit(err, "item_bytes", bytes, source->limits.item_bytes);
        else
            status = own_piece_append(source, &pieces[i], out, err);
    }
    return status;
}
