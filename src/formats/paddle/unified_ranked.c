/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states that were not merged (ignore_merge_optimizer): each rank's file has the states as the rank had them, for its part of
 * the weights. Where tensor-parallel ranks share a weight, the weight itself, which is merged, says how: one axis is as many times
 * shorter as there are ranks. That holds for no matrix that is several in one (q, k and v; gate and up), whose parts are cut one by one.
 * Sharding V2 (split_param) leaves runs of the flattened states, one sharding rank's behind the other's, of which the last is padded.
 */
#include "formats/paddle/unified_quantised.h"

#include "base/array.h"
#include "base/checked.h"
#include "parallel/expert_keys.h"
#include "parallel/fused_names.h"

#include <inttypes.h>
#include <stdlib.h>

struct uc_pieces {
    struct uc_read *read;
    const struct uc_members *members;
    struct st_set *set;
    enum uc_family family;
    uint32_t tp, shards; /* ranks */
    struct uc_ranked *ranks; /* by file: what its name says */
};

/* How the states of a weight lie on the ranks. */
struct uc_cut {
    const int64_t *whole; /* NULL: each rank has all of it */
    int axis;
};

static struct uc_ranked unified_ranked_rank(const struct uc_members *members, struct str name)
{
    for (size_t i = 0; i < members->ranked_count; i++) {
        if (str_equal(members->ranked[i].name, name))
            return members->ranked[i];
    }
    return (struct uc_ranked){ .name = name };
}

static reshard_status unified_ranked_refuse(const struct uc_pieces *pieces, struct str key, const struct st_file *file, const char *why,
                                            reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': tensor '%.*s' is what one rank had of it (%s)", STR_ARG(file->name), STR_ARG(key),
              why);
    error_object(err, "%s:%.*s", uc_stems[pieces->family], STR_ARG(key));
    error_hint(err, "save without ignore_merge_optimizer, or open the files one by one");
    return RESHARD_ERR_UNSUPPORTED;
}

/* The merged weight that a state belongs to: what is before the first '/'. NULL: it is not here. */
static const struct st_entry *unified_ranked_weight(const struct uc_pieces *pieces, struct str key, const struct st_header **header)
{
    static const enum uc_family families[] = { UC_MODEL, UC_PEFT };
    struct str rest = key;
    struct str weight = str_take(&rest, '/');
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        const struct st_set *set = &pieces->read->sets[families[i]];
        uint32_t number = name_map_find(&set->index.keys, weight);
        if (number == NAME_NONE || set->index.file_of[number] == ST_NO_FILE)
            continue;
        *header = &set->files.items[set->index.file_of[number]].header;
        return &(*header)->entries[name_map_find(&(*header)->names, weight)];
    }
    return NULL;
}

/* The entry of a file with the key; NULL: it has none. */
static const struct st_entry *unified_ranked_entry(const struct uc_pieces *pieces, uint32_t file, struct str key)
{
    const struct st_header *header = &pieces->set->files.items[file].header;
    uint32_t found = name_map_find(&header->names, key);
    return found == NAME_NONE ? NULL : &header->entries[found];
}

/* Finds how a piece of this shape is cut out of its weight. *why: it cannot be told. */
static struct uc_cut unified_ranked_cut(const struct uc_pieces *pieces, struct str key, const struct st_entry *entry, const int64_t *shape,
                                        const char **why)
{
    const struct st_header *header = NULL;
    const struct st_entry *weight = unified_ranked_weight(pieces, key, &header);
    const int64_t *whole = weight ? st_entry_shape(header, weight) : NULL;
    struct uc_cut cut = { .axis = -1 };
    if (pieces->tp == 1 || entry->rank == 0 || (entry->rank == 1 && shape[0] == 1))
        return cut;
    *why = !weight ? "and its weight is not here" : weight->rank != entry->rank ? "and its weight has another number of axes" : NULL;
    for (int i = 0; i < entry->rank && !*why; i++) {
        int64_t total;
        if (shape[i] == whole[i])
            continue;
        bool is_part = checked_mul_i64(shape[i], (int64_t)pieces->tp, &total) && total == whole[i];
        if (!is_part || cut.axis >= 0)
            *why = "and its shape is no part of its weight's";
        cut.axis = i;
    }
    if (cut.axis < 0 || *why)
        return cut;
    cut.whole = whole;
    if (fused_name_is(key))
        *why = "of a matrix that looks fused, whose parts are cut one by one";
    return cut;
}

static reshard_status unified_ranked_add_piece(struct uc_pieces *pieces, uint32_t tensor, uint32_t file_index, struct str key,
                                               const struct uc_cut *cut, reshard_error *err)
{
    struct catalog *catalog = pieces->read->source->catalog;
    const struct st_file *file = &pieces->set->files.items[file_index];
    uint32_t found = name_map_find(&file->header.names, key);
    const struct st_entry *entry = &file->header.entries[found];
    int64_t start[RANK_MAX] = { 0 };
    struct catalog_chunk *chunk;
    if (cut->axis >= 0)
        start[cut->axis] = (int64_t)pieces->ranks[file_index].tp * st_entry_shape(&file->header, entry)[cut->axis];
    reshard_status status = catalog_add_chunk(catalog, tensor, start, st_entry_shape(&file->header, entry), file->object,
                                              file->header.data_start + entry->begin, entry->end - entry->begin, &chunk, err);
    if (!status)
        chunk->writer = uc_file_number(file->name, file_index, &pieces->read->files[pieces->family]);
    return status;
}

/* Whether two ranks have the same part of a tensor. */
static bool unified_ranked_is_copy(const struct uc_pieces *pieces, const struct uc_cut *cut, uint32_t a, uint32_t b)
{
    return cut->axis < 0 || pieces->ranks[a].tp == pieces->ranks[b].tp;
}

/* Whether what two ranks have of one key is of one kind, and the same where it is the same part. */
static reshard_status unified_ranked_compare(const struct uc_pieces *pieces, struct str key, uint32_t owner_index, uint32_t file_index,
                                             const struct uc_cut *cut, bool *same_kind, bool *same, reshard_error *err)
{
    const struct st_file *owner = &pieces->set->files.items[owner_index], *file = &pieces->set->files.items[file_index];
    const struct st_entry *first = unified_ranked_entry(pieces, owner_index, key), *entry = unified_ranked_entry(pieces, file_index, key);
    *same_kind = entry->dtype == first->dtype && entry->rank == first->rank;
    *same = true;
    for (int i = 0; i < first->rank && *same_kind; i++)
        *same_kind = st_entry_shape(&file->header, entry)[i] == st_entry_shape(&owner->header, first)[i];
    if (!*same_kind || owner_index == file_index || !unified_ranked_is_copy(pieces, cut, owner_index, file_index))
        return RESHARD_OK;
    return st_ranges_equal(pieces->read->source->store, owner->name, owner->header.data_start + first->begin, file->name,
                           file->header.data_start + entry->begin, entry->end - entry->begin, same, err);
}

/* Whether other ranks have other bytes for an expert of the same number: each of expert parallelism numbers its own from 0 on. */
static reshard_status unified_ranked_is_local(const struct uc_pieces *pieces, struct str key, uint32_t owner_index,
                                              const struct uc_cut *cut, bool *is_local, reshard_error *err)
{
    size_t begin, end;
    uint64_t number;
    bool same_kind, same;
    reshard_status status = RESHARD_OK;
    *is_local = false;
    if (!expert_number_find(key, &begin, &end, &number))
        return RESHARD_OK;
    for (uint32_t f = 0; f < pieces->set->files.count && !*is_local && !status; f++) {
        if (!unified_ranked_entry(pieces, f, key))
            continue;
        status = unified_ranked_compare(pieces, key, owner_index, f, cut, &same_kind, &same, err);
        *is_local = !status && same_kind && !same;
    }
    return status;
}

static reshard_status unified_ranked_check_piece(const struct uc_pieces *pieces, struct str key, uint32_t owner_index, uint32_t file_index,
                                                 const struct uc_cut *cut, reshard_error *err)
{
    const struct st_file *owner = &pieces->set->files.items[owner_index], *file = &pieces->set->files.items[file_index];
    bool same_kind, same;
    reshard_status status = unified_ranked_compare(pieces, key, owner_index, file_index, cut, &same_kind, &same, err);
    if (status || (same_kind && same))
        return status;
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%s:%.*s' is in '%.*s' and in '%.*s' with %s", uc_stems[pieces->family], STR_ARG(key),
              STR_ARG(owner->name), STR_ARG(file->name), same_kind ? "other bytes" : "another dtype or shape");
    error_object(err, "%.*s", STR_ARG(key));
    return RESHARD_ERR_FORMAT;
}

static reshard_status unified_ranked_add_pieces(struct uc_pieces *pieces, struct str key, uint32_t owner_index,
                                                const struct uc_cut *cut, reshard_error *err)
{
    struct uc_read *read = pieces->read;
    const struct st_file *owner = &pieces->set->files.items[owner_index];
    const struct st_entry *first = &owner->header.entries[name_map_find(&owner->header.names, key)];
    uint32_t tensor;
    buffer_clear(&read->key);
    buffer_printf(&read->key, "%s:", uc_stems[pieces->family]);
    if (!buffer_append_str(&read->key, key))
        return error_set_memory(err);
    const int64_t *shape = cut->whole ? cut->whole : st_entry_shape(&owner->header, first);
    reshard_status status = catalog_add_tensor(read->source->catalog, buffer_str(&read->key), first->dtype, first->rank, shape, &tensor,
                                               err);
    for (uint32_t f = 0; f < pieces->set->files.count && !status; f++) {
        const struct st_file *file = &pieces->set->files.items[f];
        if (name_map_find(&file->header.names, key) == NAME_NONE)
            continue;
        status = unified_ranked_check_piece(pieces, key, owner_index, f, cut, err);
        if (!status)
            status = unified_ranked_add_piece(pieces, tensor, f, key, cut, err);
    }
    return status;
}

/* Whether the state that a scale belongs to is the whole weight's on this rank, which has its scales then. */
static reshard_status unified_ranked_is_whole_scale(const struct uc_pieces *pieces, struct str key, const struct st_header *file, bool *out,
                                                    reshard_error *err)
{
    const struct st_header *header = NULL;
    const struct st_entry *weight = unified_ranked_weight(pieces, key, &header);
    uint32_t owner;
    reshard_status status = uc_quantised_owner(file, key, &owner, err);
    const struct st_entry *state = owner == NAME_NONE ? NULL : &file->entries[owner];
    *out = weight && state && state->rank == weight->rank;
    for (int i = 0; *out && i < state->rank; i++)
        *out = st_entry_shape(file, state)[i] == st_entry_shape(header, weight)[i];
    return status;
}

/* As unified_ranked_cut. Each rank quantised its piece with scales of its own. */
static reshard_status unified_ranked_cut_quantised(const struct uc_pieces *pieces, struct str key, const struct st_header *file,
                                                   const struct st_entry *entry, struct uc_cut *out, const char **why, reshard_error *err)
{
    bool is_scale = pieces->tp > 1 && uc_quantised_is_scale(pieces->set, key), is_whole;
    if (is_scale) {
        *out = (struct uc_cut){ .axis = -1 };
        reshard_status status = unified_ranked_is_whole_scale(pieces, key, file, &is_whole, err);
        *why = is_whole ? NULL : "and has the scales of a quantised piece, which are its own";
        return status;
    }
    *out = unified_ranked_cut(pieces, key, entry, st_entry_shape(file, entry), why);
    if (!*why && out->axis >= 0 && uc_quantised_is_state(pieces->set, key, (enum dtype)entry->dtype))
        *why = "and is quantised, with scales of its own";
    return RESHARD_OK;
}

/* ---- runs of sharding V2 ---- */

#define LOCAL_NUMBER "and is an expert's, of which other ranks have another one with this number: each numbers its own from 0 on"

/* Whether a file has a run of a state: a vector of what is a matrix, or one that is longer (padded) or shorter than its weight. */
static bool unified_ranked_is_run(const struct uc_pieces *pieces, struct str key, uint32_t file)
{
    const struct st_header *header = NULL, *own = &pieces->set->files.items[file].header;
    const struct st_entry *entry = unified_ranked_entry(pieces, file, key), *weight = unified_ranked_weight(pieces, key, &header);
    if (!entry || !weight || entry->rank != 1 || uc_quantised_is_scale(pieces->set, key))
        return false;
    const int64_t count = st_entry_shape(own, entry)[0], whole = weight->rank == 1 ? st_entry_shape(header, weight)[0] : 0;
    return count > 1 && (weight->rank != 1 || count > whole || (count < whole && pieces->tp == 1));
}

static bool unified_ranked_has_runs(const struct uc_pieces *pieces, struct str key)
{
    bool found = false;
    for (uint32_t f = 0; f < pieces->set->files.count && !found; f++)
        found = unified_ranked_is_run(pieces, key, f);
    return found;
}

/* The first file behind those whose ranks share the states: files are in the order of their ranks. */
static uint32_t unified_ranked_set_end(const struct uc_pieces *pieces, uint32_t first)
{
    const struct uc_ranked *rank = &pieces->ranks[first];
    uint32_t end = first + 1;
    while (end < pieces->set->files.count && pieces->ranks[end].pp == rank->pp && pieces->ranks[end].moe == rank->moe)
        end++;
    return end;
}

/* How many elements a file has of a state that is a run. */
static int64_t unified_ranked_length(const struct uc_pieces *pieces, struct str key, uint32_t file)
{
    const struct st_entry *entry = unified_ranked_entry(pieces, file, key);
    return entry && entry->rank == 1 ? st_entry_shape(&pieces->set->files.items[file].header, entry)[0] : 0;
}

/* Whether the ranks of each set have runs of a state that are as long as the weight, and padding as sharding V2 makes it. *found: the
 * elements of a set that has not. */
static bool unified_ranked_runs_fit(const struct uc_pieces *pieces, struct str key, enum dtype dtype, int64_t elements, int64_t *found)
{
    bool fits = true;
    for (uint32_t first = 0, end; first < pieces->set->files.count && fits; first = end) {
        bool is_there = false;
        end = unified_ranked_set_end(pieces, first);
        *found = 0;
        for (uint32_t f = first; f < end && fits; f++) {
            const struct st_entry *entry = unified_ranked_entry(pieces, f, key);
            is_there |= entry != NULL;
            fits = !entry || (entry->rank == 1 && (enum dtype)entry->dtype == dtype);
            *found += fits ? unified_ranked_length(pieces, key, f) : 0;
        }
        fits = fits && (!is_there || (*found >= elements && *found - elements < 256 * (int64_t)pieces->shards));
    }
    return fits;
}

/* Whether several ranks have what is long enough for all of a state, or those of several places of expert parallelism have some of it. */
static bool unified_ranked_is_on_several(const struct uc_pieces *pieces, struct str key, uint32_t owner_index, int64_t elements)
{
    const bool is_whole = unified_ranked_length(pieces, key, owner_index) >= elements;
    bool found = false;
    for (uint32_t f = 0; f < pieces->set->files.count && !found; f++) {
        int64_t count = f == owner_index ? 0 : unified_ranked_length(pieces, key, f);
        found = count && (is_whole || count >= elements || pieces->ranks[f].moe != pieces->ranks[owner_index].moe);
    }
    return found;
}

static reshard_status unified_ranked_add_run(struct uc_pieces *pieces, uint32_t tensor, uint32_t file_index, const struct st_entry *entry,
                                             int64_t begin, int64_t count, reshard_error *err)
{
    struct catalog *catalog = pieces->read->source->catalog;
    const struct st_file *file = &pieces->set->files.items[file_index];
    struct catalog_chunk *chunk;
    const int64_t *whole = catalog_vector_at(catalog, catalog->tensors[tensor].shape);
    reshard_status status = catalog_add_chunk(catalog, tensor, NULL, whole, file->object, file->header.data_start + entry->begin,
                                              (uint64_t)count * dtype_element_bytes((enum dtype)entry->dtype), &chunk, err);
    if (status)
        return status;
    chunk->writer = uc_file_number(file->name, file_index, &pieces->read->files[pieces->family]);
    return catalog_chunk_set_run(catalog, chunk, begin, count, err);
}

static reshard_status unified_ranked_add_runs(struct uc_pieces *pieces, struct str key, uint32_t owner_index, const struct uc_cut *weight,
                                              int rank, reshard_error *err)
{
    struct uc_read *read = pieces->read;
    const enum dtype dtype = (enum dtype)unified_ranked_entry(pieces, owner_index, key)->dtype;
    const int64_t elements = box_volume(rank, weight->whole);
    uint32_t tensor;
    buffer_clear(&read->key);
    buffer_printf(&read->key, "%s:", uc_stems[pieces->family]);
    if (!buffer_append_str(&read->key, key))
        return error_set_memory(err);
    reshard_status status = catalog_add_tensor(read->source->catalog, buffer_str(&read->key), dtype, rank, weight->whole, &tensor, err);
    for (uint32_t first = 0, end; first < pieces->set->files.count && !status; first = end) {
        int64_t begin = 0;
        end = unified_ranked_set_end(pieces, first);
        for (uint32_t f = first; f < end && !status; f++) {
            const struct st_entry *entry = unified_ranked_entry(pieces, f, key);
            int64_t count = unified_ranked_length(pieces, key, f);
            count = count < elements - begin ? count : elements - begin;
            if (count)
                status = unified_ranked_add_run(pieces, tensor, f, entry, begin, count, err);
            begin += count;
        }
    }
    return status;
}

/* The state of a weight that is cut into runs. *why: it cannot be told how. */
static reshard_status unified_ranked_join_runs(struct uc_pieces *pieces, struct str key, uint32_t owner_index, const char **why,
                                               reshard_error *err)
{
    const struct st_header *header = NULL;
    const struct st_entry *weight = unified_ranked_weight(pieces, key, &header);
    const struct uc_cut whole = { .whole = st_entry_shape(header, weight), .axis = -1 };
    const enum dtype dtype = (enum dtype)unified_ranked_entry(pieces, owner_index, key)->dtype;
    const int64_t elements = box_volume(weight->rank, whole.whole);
    size_t begin, end;
    uint64_t number;
    int64_t found = 0;
    *why = pieces->tp > 1 ? "and is a run of sharding V2, which does not say how tensor parallelism cut the weight"
           : uc_quantised_is_state(pieces->set, key, dtype) ? "and is a run of sharding V2, quantised with scales of its own"
                                                            : NULL;
    if (*why)
        return RESHARD_OK;
    const bool fits = unified_ranked_runs_fit(pieces, key, dtype, elements, &found);
    if (expert_number_find(key, &begin, &end, &number) &&
        ((!fits && found > elements) || unified_ranked_is_on_several(pieces, key, owner_index, elements))) {
        *why = LOCAL_NUMBER;
        return RESHARD_OK;
    }
    if (fits)
        return unified_ranked_add_runs(pieces, key, owner_index, &whole, weight->rank, err);
    error_set(err, RESHARD_ERR_FORMAT,
              "tensor '%s:%.*s': the files of its sharding ranks have %" PRId64 " elements, its weight has %" PRId64,
              uc_stems[pieces->family], STR_ARG(key), found, elements);
    error_object(err, "%s:%.*s", uc_stems[pieces->family], STR_ARG(key));
    return RESHARD_ERR_FORMAT;
}

/* ---- all of it ---- */

/* The state of a weight of which ranks have boxes, or all of it. *why: it cannot be told how. */
static reshard_status unified_ranked_join_pieces(struct uc_pieces *pieces, struct str key, uint32_t owner_index, const char **why,
                                                 reshard_error *err)
{
    const struct st_header *header = &pieces->set->files.items[owner_index].header;
    struct uc_cut cut;
    bool is_local = false;
    reshard_status status =
        unified_ranked_cut_quantised(pieces, key, header, unified_ranked_entry(pieces, owner_index, key), &cut, why, err);
    if (!status && !*why)
        status = unified_ranked_is_local(pieces, key, owner_index, &cut, &is_local, err);
    *why = is_local ? LOCAL_NUMBER : *why;
    return status || *why ? status : unified_ranked_add_pieces(pieces, key, owner_index, &cut, err);
}

static reshard_status unified_ranked_add_key(struct uc_pieces *pieces, struct str key, uint32_t owner_index, reshard_error *err)
{
    const struct st_file *owner = &pieces->set->files.items[owner_index];
    const char *why = NULL;
    reshard_status status = unified_ranked_has_runs(pieces, key) ? unified_ranked_join_runs(pieces, key, owner_index, &why, err)
                                                                 : unified_ranked_join_pieces(pieces, key, owner_index, &why, err);
    if (status || !why)
        return status;
    if (!pieces->read->source->skip_unsupported)
        return unified_ranked_refuse(pieces, key, owner, why, err);
    source_warn_left_out(pieces->read->source, key, true, "'%.*s' has a piece of it, %s", STR_ARG(owner->name), why);
    return RESHARD_OK;
}

reshard_status uc_add_ranked(struct uc_read *read, enum uc_family family, reshard_error *err)
{
    struct uc_pieces pieces = { .read = read, .members = &read->folder.families[family], .set = &read->sets[family], .family = family };
    reshard_status status = RESHARD_OK;
    pieces.ranks = array_zeroed(pieces.set->files.count, sizeof(*pieces.ranks));
    if (!pieces.ranks)
        return error_set_memory(err);
    for (uint32_t f = 0; f < pieces.set->files.count; f++) {
        const struct uc_ranked *rank = &pieces.ranks[f];
        pieces.ranks[f] = unified_ranked_rank(pieces.members, pieces.set->files.items[f].name);
        pieces.tp = rank->tp + 1 > pieces.tp ? rank->tp + 1 : pieces.tp;
        pieces.shards = rank->shard + 1 > pieces.shards ? rank->shard + 1 : pieces.shards;
    }
    const struct st_index *index = &pieces.set->index;
    for (uint32_t k = 0; k < index->keys.count && !status; k++)
        if (index->file_of[k] != ST_NO_FILE)
            status = unified_ranked_add_key(&pieces, name_map_at(&index->keys, k), index->file_of[k], err);
    free(pieces.ranks);
    return status;
}
