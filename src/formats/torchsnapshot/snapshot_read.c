/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of the manifest become tensors and items. A tensor is what all ranks have: one that is marked as replicated, or that is sharded, of
 * which each rank lists its own part. What a rank has for itself is an item (snapshot_items.c), unless there is but one rank.
 */
#include "formats/torchsnapshot/snapshot_source.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

bool snapshot_is_tensor(struct str type, bool *is_sharded)
{
    *is_sharded = str_is(type, "ShardedTensor") || str_is(type, "DTensor");
    return *is_sharded || str_is(type, "Tensor") || str_is(type, "ChunkedTensor");
}

bool snapshot_is_container(struct str type, bool *is_list)
{
    *is_list = str_is(type, "list");
    return *is_list || str_is(type, "dict") || str_is(type, "OrderedDict");
}

bool snapshot_is_shared(const struct snapshot_reading *reading, const struct snapshot_entry *entry)
{
    bool is_sharded;
    return (snapshot_is_tensor(entry->type, &is_sharded) && is_sharded) || reading->manifest.world_size == 1 ||
           value_dict_is_true(entry->value, "replicated");
}

/* ---- tensors ---- */

/* The shape is said, or, of shards, as far as they reach. */
static reshard_status shape_find(const struct snapshot_reading *reading, const struct value *entry, uint32_t first, uint32_t count,
                                 int64_t *shape, reshard_error *err)
{
    const struct snapshot_piece *pieces = snapshot_state_of(reading->source)->pieces + first;
    const struct value *said = value_dict_get(entry, "shape");
    size_t axes = 0;
    memset(shape, 0, RANK_MAX * sizeof(*shape));
    for (uint32_t i = 0; i < count; i++) {
        if (pieces[i].rank != pieces[0].rank || pieces[i].dtype != pieces[0].dtype)
            return error_set(err, RESHARD_ERR_FORMAT, "its pieces are of different types, or have different numbers of axes");
        for (int axis = 0; axis < pieces[i].rank; axis++) {
            int64_t end;
            if (pieces[i].start[axis] < 0 || __builtin_add_overflow(pieces[i].start[axis], pieces[i].extent[axis], &end))
                return error_set(err, RESHARD_ERR_FORMAT, "a piece of it begins nowhere");
            if (end > shape[axis])
                shape[axis] = end;
        }
    }
    if (said && (!value_as_ints(said, shape, RANK_MAX, &axes) || axes != (size_t)pieces[0].rank))
        return error_set(err, RESHARD_ERR_FORMAT, "\"shape\" has another number of axes than its pieces");
    return RESHARD_OK;
}

reshard_status snapshot_note_saved(struct source *source, struct snapshot_saved saved, reshard_error *err)
{
    struct snapshot_state *state = snapshot_state_of(source);
    if (!ARRAY_ROOM(state->saved, state->saved_count, state->saved_capacity))
        return error_set_memory(err);
    state->saved[state->saved_count++] = saved;
    return RESHARD_OK;
}

static reshard_status piece_add_chunk(struct source *source, uint32_t tensor, const struct snapshot_piece *piece, uint32_t rank,
                                      reshard_error *err)
{
    struct catalog_chunk *chunk;
    if (piece->is_left_out || box_volume(piece->rank, piece->extent) == 0)
        return RESHARD_OK;
    reshard_status status = catalog_add_chunk(source->catalog, tensor, piece->start, piece->extent, piece->object, piece->offset,
                                              piece->bytes, &chunk, err);
    if (status)
        return status;
    chunk->writer = catalog_writer(rank);
    if (!piece->is_saved)
        return RESHARD_OK;
    chunk->flags |= CHUNK_UNRESOLVED;
    return snapshot_note_saved(source, (struct snapshot_saved){ piece->object, piece->offset, piece->bytes }, err);
}

/* Whether the piece is one of those before it, of the same bytes: all ranks list what is replicated. */
static bool is_listed_again(const struct snapshot_piece *piece, const struct snapshot_piece *first)
{
    return piece->object == first->object && piece->offset == first->offset && piece->bytes == first->bytes &&
           shape_equal(piece->rank, piece->start, first->rank, first->start);
}

struct tensor_pieces {
    uint32_t first, count;
    uint32_t *ranks; /* by piece */
    uint32_t rank_capacity;
    const struct value *entry; /* the first rank's */
    bool is_sharded;
};

/* All that ranks have of the path's tensor, in the state's list of pieces. */
static reshard_status pieces_gather(struct snapshot_reading *reading, uint32_t path, struct tensor_pieces *out, reshard_error *err)
{
    const struct snapshot_manifest *manifest = &reading->manifest;
    struct snapshot_state *state = snapshot_state_of(reading->source);
    reshard_status status = RESHARD_OK;
    out->first = state->piece_count;
    for (uint32_t i = manifest->paths[path].first; !status && i != CATALOG_NONE; i = manifest->entries[i].next) {
        const struct snapshot_entry *entry = &manifest->entries[i];
        bool is_sharded, is_tensor = snapshot_is_tensor(entry->type, &is_sharded);
        uint32_t count, before = out->count;
        if (!is_tensor || !snapshot_is_shared(reading, entry))
            continue;
        if (out->entry && out->is_sharded != is_sharded)
            return error_set(err, RESHARD_ERR_FORMAT, "it is sharded for one rank, and whole for another");
        if (!out->entry)
            out->entry = entry->value;
        out->is_sharded = is_sharded;
        status = snapshot_pieces_read(reading, entry, &count, err);
        out->count += status ? 0 : count;
        for (uint32_t k = before; !status && k < out->count; k++) {
            if (!ARRAY_ROOM(out->ranks, k, out->rank_capacity))
                status = error_set_memory(err);
            else
                out->ranks[k] = entry->rank;
        }
    }
    return status;
}

static reshard_status tensor_put(struct snapshot_reading *reading, const struct tensor_pieces *pieces, reshard_error *err)
{
    struct source *source = reading->source;
    int64_t shape[RANK_MAX];
    uint32_t tensor, own = 0; /* pieces of the first rank */
    if (!pieces->count)
        return error_set(err, RESHARD_ERR_FORMAT, "no rank has a piece of it");
    const struct snapshot_piece *list = snapshot_state_of(source)->pieces + pieces->first;
    reshard_status status = shape_find(reading, pieces->entry, pieces->first, pieces->count, shape, err);
    if (!status)
        status = catalog_add_tensor(source->catalog, buffer_str(&reading->key), list->dtype, list->rank, shape, &tensor, err);
    if (!status && reading->part_count > 1)
        status = catalog_set_tensor_path(source->catalog, tensor, reading->parts, reading->part_count, err);
    while (own < pieces->count && pieces->ranks[own] == pieces->ranks[0])
        own++;
    for (uint32_t i = 0; !status && i < pieces->count; i++)
        if (pieces->is_sharded || i < own || !is_listed_again(&list[i], &list[i % own]))
            status = piece_add_chunk(source, tensor, &list[i], pieces->ranks[i], err);
    return status;
}

static reshard_status tensor_add(struct snapshot_reading *reading, uint32_t path, bool *is_there, reshard_error *err)
{
    struct tensor_pieces pieces = { 0 };
    reshard_status status = pieces_gather(reading, path, &pieces, err);
    *is_there = pieces.entry != NULL;
    if (!status && pieces.entry)
        status = tensor_put(reading, &pieces, err);
    snapshot_state_of(reading->source)->piece_count = pieces.first;
    free(pieces.ranks);
    return status;
}

/* What cannot be read is left out if the caller takes what there is. */
static reshard_status tensor_read_path(struct snapshot_reading *reading, uint32_t path, bool *is_there, reshard_error *err)
{
    struct source *source = reading->source;
    struct catalog *catalog = source->catalog;
    uint32_t tensors = catalog->tensor_count;
    reshard_error found = { 0 };
    reshard_status status = tensor_add(reading, path, is_there, &found);
    if (status == RESHARD_ERR_UNSUPPORTED && source->skip_unsupported && catalog->tensor_count == tensors) {
        source_warn_left_out(source, buffer_str(&reading->key), false, "%s", found.message);
        return RESHARD_OK;
    }
    if (status && err)
        *err = found;
    return status;
}

/* ---- the checkpoint ---- */

static reshard_status manifest_read_path(struct snapshot_reading *reading, uint32_t path, reshard_error *err)
{
    bool has_tensor = false;
    arena_release(&reading->arena);
    reading->arena = (struct arena){ .work = reading->source->limits.budget };
    buffer_clear(&reading->key);
    reshard_status status = snapshot_path_parts(&reading->manifest, path, &reading->arena, reading->source->limits.budget, &reading->parts,
                                                &reading->part_count, err);
    if (!status && !path_join(reading->parts, reading->part_count, &reading->key))
        status = error_set_memory(err);
    if (!status)
        status = tensor_read_path(reading, path, &has_tensor, err);
    if (!status)
        status = snapshot_add_items(reading, path, has_tensor, err);
    if (status)
        error_prefix(err, "'%.*s'", STR_ARG(name_map_at(&reading->manifest.names, path)));
    return status;
}

static void state_free(void *context)
{
    struct snapshot_state *state = context;
    free(state->privates);
    free(state->pieces);
    free(state->saved);
    free(state);
}

static reshard_status snapshot_open(struct source *source, reshard_error *err)
{
    struct str name = str_of(source->name), directory = name;
    if (str_ends_with(name, SNAPSHOT_METADATA))
        directory.size -= sizeof(SNAPSHOT_METADATA) - 1;
    struct arena *arena = &source->catalog->arena;
    const char *opened = arena_copy(arena, directory.data, directory.size), *folder = opened ? store_join(arena, opened, STR("")) : NULL;
    reshard_status status = folder ? dcp_source_new(source, folder, err) : error_set_memory(err);
    if (status)
        return status;
    struct snapshot_state *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    dcp_state(source)->flavour_state = state;
    dcp_state(source)->flavour_free = state_free;
    return RESHARD_OK;
}

reshard_status snapshot_read_catalog(struct source *source, reshard_error *err)
{
    struct snapshot_reading reading = { .source = source };
    struct str version;
    reshard_status status = snapshot_open(source, err);
    if (!status)
        status = snapshot_manifest_read(source, &reading.manifest, err);
    if (!status && !(reading.graph = catalog_adopt_graph(source->catalog, (struct value_graph){ .arena.work = source->limits.budget })))
        status = error_set_memory(err);
    if (!status && value_as_str(value_dict_get(reading.manifest.graph.root, "version"), &version))
        status = catalog_add_fact(source->catalog, "torchsnapshot version", err, "%.*s%s", STR_ARG_BRIEF(version));
    if (!status) {
        source->catalog->ranks = reading.manifest.world_size;
        status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, reading.manifest.world_size);
    }
    for (uint32_t i = 0; !status && i < reading.manifest.names.count; i++)
        status = manifest_read_path(&reading, i, err);
    snapshot_manifest_release(&reading.manifest);
    buffer_release(&reading.key);
    arena_release(&reading.arena);
    return status;
}
