/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/fsdp_flat.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/sort.h"
#include "parallel/flat_unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define UNSEEN (-1)  /* a rank without state of a number */
#define UNKNOWN (-2) /* not looked at yet */

/* The state of one number in one rank's file. */
struct flat_cell {
    struct value **pairs; /* name, value, …; NULL: none */
    size_t count;
    int64_t length; /* elements of its pieces; UNSEEN: it has none */
};

struct joining {
    struct assembling *assembling;
    struct source *source;
    struct torch_source *state;
    uint32_t first_file, ranks, numbers;
    struct fsdp_shards shards;
    struct flat_cell *cells; /* of number i on rank r: [i * ranks + r] */
    int64_t *lengths;        /* of number i in shard s: [i * shards.count + s], UNSEEN: none */
    struct fsdp_flat *flat;
    const char *why;  /* what cannot be told */
    bool is_related;  /* which parameter each number is, is known */
    bool *has_number; /* by parameter */
    bool *is_twin;    /* by parameter: an earlier one has the same elements, as tied ones have */
};

bool fsdp_shards_of(const struct torch_shard_layout *layout, uint32_t world, struct fsdp_shards *out)
{
    uint32_t cuts = 0;
    *out = (struct fsdp_shards){ world, 1 };
    for (size_t i = 0; layout->kind == TORCH_DTENSOR && i < layout->mesh.rank; i++) {
        if (layout->placements[i].kind == PLACE_REPLICATE)
            continue;
        int64_t shape = layout->mesh.shape[i], stride = layout->mesh.stride[i];
        if (layout->placements[i].kind != PLACE_SHARD || shape < 1 || stride < 1 || shape > UINT32_MAX || stride > UINT32_MAX)
            return false;
        *out = (struct fsdp_shards){ (uint32_t)layout->mesh.shape[i], (uint32_t)layout->mesh.stride[i] };
        cuts++;
    }
    return layout->kind == TORCH_SHARDED || cuts == 1;
}

/* Whether each rank holds the piece of a ShardedTensor that would be its own then: torch.chunk along the first dimension. */
static bool shards_fit_tensor(const struct catalog *catalog, const uint32_t *chunks, uint32_t chunk_count, uint32_t ranks,
                              struct fsdp_shards shards)
{
    const struct catalog_tensor *tensor = &catalog->tensors[catalog->chunks[chunks[0]].tensor];
    if (tensor->rank == 0)
        return true;
    int64_t size = catalog_vector_at(catalog, tensor->shape)[0], piece = (size + shards.count - 1) / shards.count;
    uint32_t expected = 0;
    for (uint32_t rank = 0; rank < ranks; rank++)
        expected += (int64_t)(rank / shards.stride % shards.count) * piece < size;
    for (uint32_t i = 0; i < chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[chunks[i]];
        int64_t at = chunk->writer / shards.stride % shards.count;
        if (catalog_vector_at(catalog, chunk->start)[0] != at * piece)
            return false;
    }
    return chunk_count == expected;
}

static bool shards_fit(const struct joining *joining, const struct sort_entry *entries, uint32_t *chunks, size_t count,
                       struct fsdp_shards shards)
{
    bool fits = count > 0;
    for (size_t begin = 0, end; begin < count && fits; begin = end) {
        for (end = begin; end < count && entries[end].key == entries[begin].key; end++)
            chunks[end - begin] = entries[end].value;
        fits = shards_fit_tensor(joining->source->catalog, chunks, (uint32_t)(end - begin), joining->ranks, shards);
    }
    return fits;
}

/* A ShardedTensor does not say which ranks hold copies of it (HYBRID_SHARD without a mesh): what ranks hold of all of them does, in one
 * way. Ranks beyond what a chunk's writer can say stay with one piece each. */
static reshard_status find_sharded(struct joining *joining, bool *is_known, reshard_error *err)
{
    const struct catalog *catalog = joining->source->catalog;
    struct sort_entry *entries = array_new(2 * (size_t)catalog->chunk_count, sizeof(*entries));
    uint32_t *chunks = array_new(catalog->chunk_count, sizeof(*chunks)), ranks = joining->ranks, ways = 0;
    size_t count = 0;
    reshard_status status = entries && chunks ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < catalog->chunk_count; i++) {
        uint32_t tensor = catalog->chunks[i].tensor;
        if (!(catalog->tensors[tensor].flags & TENSOR_HIDDEN) && fsdp_shard_of(joining->source, tensor))
            entries[count++] = (struct sort_entry){ tensor, i };
    }
    if (count > 0)
        entries_sort(entries, entries + count, count);
    for (uint32_t pieces = ranks; !status && pieces > 1 && ranks < UINT16_MAX; pieces--)
        for (uint32_t stride = 1; ranks % pieces == 0 && stride <= ranks / pieces; stride++) {
            struct fsdp_shards shards = { pieces, stride };
            if (ranks / pieces % stride == 0 && shards_fit(joining, entries, chunks, count, shards) && ways++ == 0)
                joining->shards = shards;
        }
    *is_known = ways == 1 || ranks >= UINT16_MAX;
    free(entries);
    free(chunks);
    return status;
}

static uint32_t source_shard(const struct joining *joining, uint32_t rank)
{
    return rank / joining->shards.stride % joining->shards.count;
}

static const struct torch_archive *archive_of(const struct joining *joining, uint32_t rank)
{
    return &joining->state->files[joining->first_file + rank].archive;
}

static bool add_state(struct fsdp_flat *flat, uint32_t tensor, uint32_t number)
{
    if (!ARRAY_ROOM(flat->states, flat->state_count, flat->state_capacity) ||
        !ARRAY_ROOM(flat->number_of_state, flat->state_count, flat->number_capacity))
        return false;
    flat->states[flat->state_count] = tensor;
    flat->number_of_state[flat->state_count++] = number;
    return true;
}

/* Room for all the tensors of a catalog as parameters. */
static bool fsdp_flat_room(struct fsdp_flat *flat, struct arena *arena, const struct catalog *catalog)
{
    flat->parameters = arena_array(arena, catalog->tensor_count, sizeof(*flat->parameters));
    flat->tensors = arena_array(arena, catalog->tensor_count, sizeof(*flat->tensors));
    return flat->parameters && flat->tensors;
}

static void fsdp_flat_add(struct fsdp_flat *flat, const struct catalog *catalog, uint32_t index)
{
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    flat->parameters[flat->parameter_count] =
        (struct wrap_parameter){ tensor->key, box_volume(tensor->rank, catalog_vector_at(catalog, tensor->shape)) };
    flat->tensors[flat->parameter_count++] = index;
}

/* ---- what the files hold ---- */

/* The numbers of all groups: 0, 1, 2, … as torch deals them out. */
static bool flat_count_numbers(const struct value *root, uint32_t *out)
{
    const struct value *groups = value_dict_get(root, "param_groups");
    *out = 0;
    for (size_t i = 0; groups && groups->kind == VALUE_LIST && i < groups->list.count; i++) {
        const struct value *members = value_dict_get(groups->list.items[i], "params");
        for (size_t j = 0; members && members->kind == VALUE_LIST && j < members->list.count; j++, (*out)++) {
            int64_t number;
            if (*out == INT32_MAX || !value_as_int(members->list.items[j], &number) || number != *out)
                return false;
        }
    }
    return *out > 0;
}

static bool flat_is_plain(const struct value *value)
{
    return value->kind == VALUE_NONE || value->kind == VALUE_BOOL || value->kind == VALUE_INT || value->kind == VALUE_FLOAT ||
           value->kind == VALUE_STR;
}

/* One piece a state, all of one length, beside scalars. */
static bool read_cell(const struct torch_archive *archive, struct value *states, struct flat_cell *cell)
{
    cell->length = UNSEEN;
    if (!value_as_mapping(states, &cell->pairs, &cell->count))
        return false;
    for (size_t i = 0; i + 1 < cell->count; i += 2) {
        const struct value *value = cell->pairs[i + 1];
        if (cell->pairs[i]->kind != VALUE_STR || (value->tensor == 0 && !flat_is_plain(value)))
            return false;
        if (value->tensor == 0)
            continue;
        const struct torch_tensor *tensor = &archive->tensors[value->tensor - 1];
        bool is_odd = tensor->flags & (TORCH_TENSOR_CONJ | TORCH_TENSOR_NEG | TORCH_TENSOR_META) || tensor->rank > 1 ||
                      dtype_element_bytes(tensor->dtype) == 0 || (tensor->rank == 1 && tensor->shape[0] > 1 && tensor->strides[0] != 1);
        if (is_odd || (tensor->rank == 1 && cell->length != UNSEEN && cell->length != tensor->shape[0]))
            return false;
        if (tensor->rank == 1)
            cell->length = tensor->shape[0];
    }
    return true;
}

static bool read_cells(struct joining *joining, uint32_t rank)
{
    const struct torch_archive *archive = archive_of(joining, rank);
    const struct value *root = joining->state->files[joining->first_file + rank].graph->root;
    struct value *states = value_dict_get(root, "state"), **pairs;
    size_t count;
    if (!states || !value_as_mapping(states, &pairs, &count))
        return false;
    for (size_t i = 0; i + 1 < count; i += 2) {
        int64_t number;
        if (!value_as_int(pairs[i], &number) || number < 0 || number >= joining->numbers)
            return false;
        struct flat_cell *cell = &joining->cells[(size_t)number * joining->ranks + rank];
        if (cell->pairs || !read_cell(archive, pairs[i + 1], cell))
            return false;
    }
    return true;
}

static bool same_names(const struct flat_cell *a, const struct flat_cell *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i + 1 < a->count; i += 2)
        same = str_equal(a->pairs[i]->text, b->pairs[i]->text);
    return same;
}

/* Ranks of one shard have pieces of one length, and all that have some have them of the same states. */
static bool compare_cells(struct joining *joining)
{
    for (uint32_t number = 0; number < joining->numbers; number++) {
        const struct flat_cell *first = NULL;
        for (uint32_t rank = 0; rank < joining->ranks; rank++) {
            const struct flat_cell *cell = &joining->cells[(size_t)number * joining->ranks + rank];
            int64_t *length = &joining->lengths[(size_t)number * joining->shards.count + source_shard(joining, rank)];
            int64_t own = cell->pairs ? cell->length : UNSEEN;
            if ((*length != UNKNOWN && *length != own) || (cell->pairs && first && !same_names(first, cell)))
                return false;
            *length = own;
            first = cell->pairs && !first ? cell : first;
        }
    }
    return true;
}

/* All but the state is the same on all ranks, and plain. */
static reshard_status compare_rest(struct joining *joining, bool *same, reshard_error *err)
{
    struct assembling *assembling = joining->assembling;
    const struct value *first = joining->state->files[joining->first_file].graph->root;
    reshard_status status = RESHARD_OK;
    *same = true;
    for (uint32_t rank = 0; !status && *same && rank < joining->ranks; rank++) {
        struct value **pairs;
        size_t count;
        assembling->file = joining->first_file + rank;
        *same = value_as_mapping(joining->state->files[assembling->file].graph->root, &pairs, &count);
        for (size_t i = 0; !status && *same && i + 1 < count; i += 2) {
            bool found = false;
            const bool is_text = pairs[i]->kind == VALUE_STR;
            if (is_text && str_is(pairs[i]->text, "state"))
                continue;
            const struct value *other = is_text ? value_dict_find(first, pairs[i]->text) : NULL;
            status = fsdp_has_storage(assembling, pairs[i + 1], &found, err);
            *same = other && !found;
            if (!status && *same)
                status = value_compare(other, pairs[i + 1], NULL, joining->source->limits.budget, same, err);
        }
    }
    return status;
}

/* ---- parameters ---- */

/* What twins have alike: the CRC-32s of all pieces, and the shape. */
static int64_t twin_key(const struct catalog *catalog, uint32_t tensor, uint64_t sum, uint64_t seed)
{
    uint32_t rank = catalog->tensors[tensor].rank;
    const int64_t *shape = catalog_vector_at(catalog, catalog->tensors[tensor].shape);
    return (int64_t)hash64(shape, rank * sizeof(*shape), seed ^ sum);
}

/* The sums of tensors' pieces; *is_unknown where one has no CRC. */
static void sum_pieces(const struct catalog *catalog, uint64_t *sums, bool *is_unknown)
{
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
        is_unknown[chunk->tensor] |= !layout || !(chunk->flags & CHUNK_HAS_CRC);
        sums[chunk->tensor] = sums[chunk->tensor] * 0x9E3779B97F4A7C15u + (layout ? layout->crc32 : 0) + 1;
    }
}

/* A parameter whose pieces have the CRC-32s of an earlier one's of that shape may be tied to it: FSDP1 flattens such once. Those that have
 * a number are none. Sorted by what they have alike, each is compared with the first of its kind. */
static reshard_status find_twins(struct joining *joining, reshard_error *err)
{
    const struct catalog *catalog = joining->source->catalog;
    const struct fsdp_flat *flat = joining->flat;
    uint64_t *sums = array_zeroed(catalog->tensor_count, sizeof(*sums)), seed = hash_random_seed();
    bool *is_unknown = array_zeroed(catalog->tensor_count, sizeof(*is_unknown));
    struct sort_entry *entries = array_new(flat->parameter_count, 2 * sizeof(*entries));
    bool good = sums && is_unknown && entries;
    size_t count = 0, first = 0;
    if (good)
        sum_pieces(catalog, sums, is_unknown);
    for (uint32_t i = 0; good && i < flat->parameter_count; i++) {
        uint32_t tensor = flat->tensors[i];
        if (!is_unknown[tensor])
            entries[count++] = (struct sort_entry){ twin_key(catalog, tensor, sums[tensor], seed), i };
    }
    if (good)
        entries_sort(entries, entries + count, count);
    for (size_t i = 0; i < count; i++) {
        first = entries[i].key == entries[first].key ? first : i;
        uint32_t own = entries[i].value, other = entries[first].value;
        const struct catalog_tensor *a = &catalog->tensors[flat->tensors[own]], *b = &catalog->tensors[flat->tensors[other]];
        joining->is_twin[own] = i > first && a->rank > 1 && !joining->has_number[own] &&
                                sums[flat->tensors[own]] == sums[flat->tensors[other]] && catalog_same_shape(catalog, a, catalog, b);
    }
    free(sums);
    free(is_unknown);
    free(entries);
    return good ? RESHARD_OK : error_set_memory(err);
}

static reshard_status drop_twins(struct joining *joining, reshard_error *err)
{
    struct fsdp_flat *flat = joining->flat;
    uint32_t kept = 0, *kept_as = array_new(flat->parameter_count, sizeof(*kept_as));
    if (!kept_as)
        return error_set_memory(err);
    for (uint32_t i = 0; i < flat->parameter_count; i++) {
        kept_as[i] = kept;
        if (joining->is_twin[i])
            continue;
        flat->parameters[kept] = flat->parameters[i];
        flat->tensors[kept++] = flat->tensors[i];
    }
    for (uint32_t i = 0; i < flat->number_count; i++)
        flat->parameter_of[i] = kept_as[flat->parameter_of[i]];
    flat->parameter_count = kept;
    free(kept_as);
    return RESHARD_OK;
}

/* The model's tensors that are cut, and how. *is_known false: not as FSDP1 cuts. */
static reshard_status take_parameters(struct joining *joining, bool *is_known, reshard_error *err)
{
    struct catalog *catalog = joining->source->catalog;
    struct fsdp_flat *flat = joining->flat;
    bool has_room = fsdp_flat_room(flat, &catalog->arena, catalog);
    joining->is_twin = array_zeroed(catalog->tensor_count, sizeof(*joining->is_twin));
    joining->has_number = array_zeroed(catalog->tensor_count, sizeof(*joining->has_number));
    if (!has_room || !joining->is_twin || !joining->has_number)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        if (tensor->flags & TENSOR_HIDDEN || !fsdp_shard_of(joining->source, i))
            continue;
        fsdp_flat_add(flat, catalog, i);
    }
    struct torch_shard_layout layout;
    reshard_error seen = { 0 };
    bool is_sharded = false;
    *is_known = flat->parameter_count > 0;
    for (uint32_t i = 0; *is_known && i < flat->parameter_count; i++) {
        struct fsdp_shards shards = { 0 };
        reshard_status status = torch_shard_describe(fsdp_shard_of(joining->source, flat->tensors[i]),
                                                     catalog->tensors[flat->tensors[i]].rank, joining->ranks, &layout, &seen);
        if (status == RESHARD_ERR_MEMORY)
            return error_set_memory(err);
        *is_known = !status && fsdp_shards_of(&layout, joining->ranks, &shards);
        if (i == 0)
            joining->shards = shards;
        *is_known = *is_known && shards.count == joining->shards.count && shards.stride == joining->shards.stride;
        is_sharded |= layout.kind == TORCH_SHARDED;
    }
    return *is_known && is_sharded ? find_sharded(joining, is_known, err) : RESHARD_OK;
}

/* ---- state by parameter ---- */

/* Elements of all pieces of a number; UNSEEN: it has no state anywhere. */
static int64_t total_of(const struct joining *joining, uint32_t number)
{
    const int64_t *lengths = joining->lengths + (size_t)number * joining->shards.count;
    int64_t total = UNSEEN;
    for (uint32_t i = 0; i < joining->shards.count; i++)
        if (lengths[i] != UNSEEN)
            total = total == UNSEEN ? lengths[i] : total + lengths[i];
    return total;
}

static bool may_be(const struct fsdp_flat *flat, const int64_t *totals, uint32_t number, uint32_t parameter)
{
    return totals[number] == UNSEEN || totals[number] == flat->parameters[parameter].elements;
}

/* The numbers [from, to) of a group are parameters in the model's order: as early as can be, and as late; both are the same if it is one
 * way. */
static bool relate_group(struct fsdp_flat *flat, const int64_t *totals, uint32_t from, uint32_t to, bool *is_one)
{
    uint32_t next = 0, behind = flat->parameter_count;
    for (uint32_t i = from; i < to; i++, next++) {
        while (next < flat->parameter_count && !may_be(flat, totals, i, next))
            next++;
        if (next >= flat->parameter_count)
            return false;
        flat->parameter_of[i] = next;
    }
    for (uint32_t i = to; i-- > from; behind--) {
        while (behind > 0 && !may_be(flat, totals, i, behind - 1))
            behind--;
        *is_one = *is_one && behind > 0 && flat->parameter_of[i] == behind - 1;
    }
    return true;
}

/* Which parameter each of flat->number_count numbers is, from how many elements both have; UNSEEN: of a number that is not known. */
static reshard_status relate_numbers(struct fsdp_flat *flat, const struct value *groups, const int64_t *totals, bool *is_related,
                                     bool *is_one, reshard_error *err)
{
    bool *is_taken = array_zeroed(flat->parameter_count, sizeof(*is_taken));
    uint32_t from = 0;
    if (!is_taken)
        return error_set_memory(err);
    *is_related = *is_one = true;
    for (size_t i = 0; *is_related && i < groups->list.count; i++) {
        const struct value *members = value_dict_get(groups->list.items[i], "params");
        uint32_t to = from + (members && members->kind == VALUE_LIST ? (uint32_t)members->list.count : 0);
        *is_related = relate_group(flat, totals, from, to, is_one);
        from = to;
    }
    for (uint32_t i = 0; *is_related && i < flat->number_count; i++) {
        *is_related = !is_taken[flat->parameter_of[i]];
        is_taken[flat->parameter_of[i]] = true;
    }
    free(is_taken);
    return RESHARD_OK;
}

static reshard_status relate_pieces(struct joining *joining, bool *is_related, bool *is_one, reshard_error *err)
{
    const struct value *groups = value_dict_get(joining->state->files[joining->first_file].graph->root, "param_groups");
    int64_t *totals = array_zeroed(joining->numbers, sizeof(*totals));
    if (!totals)
        return error_set_memory(err);
    for (uint32_t i = 0; i < joining->numbers; i++)
        totals[i] = total_of(joining, i);
    joining->flat->number_count = joining->numbers;
    reshard_status status = relate_numbers(joining->flat, groups, totals, is_related, is_one, err);
    free(totals);
    return status;
}

/* ---- wholes of other checkpoints ---- */

/* The model's tensors that are parameters, as far as their files tell. */
static void take_all_parameters(const struct source *source, struct fsdp_flat *flat)
{
    const struct catalog *catalog = source->catalog;
    bool is_one_file = torch_source_of(source)->ranks->is_one_file;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        bool is_float = dtype_info(tensor->dtype)->class_ == DTYPE_CLASS_FLOAT;
        if (tensor->flags & TENSOR_HIDDEN || !(fsdp_shard_of(source, i) || (is_one_file && is_float)))
            continue;
        fsdp_flat_add(flat, catalog, i);
    }
}

/* The hidden tensors of state by number, which are no scalars. */
static reshard_status take_wholes(const struct catalog *catalog, struct fsdp_flat *flat, int64_t *totals, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        struct str name;
        uint32_t number;
        if (tensor->rank == 0 || !fsdp_state_key_read(tensor->key, &number, &name) || number >= flat->number_count)
            continue;
        if (!add_state(flat, i, number))
            return error_set_memory(err);
        totals[number] = box_volume(tensor->rank, catalog_vector_at(catalog, tensor->shape));
    }
    return RESHARD_OK;
}

reshard_status fsdp_flat_of_wholes(const struct source *source, const struct value *optimizer, struct arena *arena, struct fsdp_flat **out,
                                   reshard_error *err)
{
    uint32_t numbers;
    bool is_related = false, is_one = false;
    struct fsdp_flat *flat = arena_zalloc(arena, sizeof(*flat));
    *out = NULL;
    if (optimizer->kind != VALUE_DICT || !flat_count_numbers(optimizer, &numbers))
        return RESHARD_OK;
    int64_t *totals = arena_array(arena, numbers, sizeof(*totals));
    if (!flat || !totals)
        return error_set_memory(err);
    flat->parameter_of = arena_array(arena, numbers, sizeof(*flat->parameter_of));
    if (!fsdp_flat_room(flat, arena, source->catalog) || !flat->parameter_of)
        return error_set_memory(err);
    flat->is_original = true;
    flat->number_count = numbers;
    for (uint32_t i = 0; i < numbers; i++)
        totals[i] = UNSEEN;
    take_all_parameters(source, flat);
    reshard_status status = take_wholes(source->catalog, flat, totals, err);
    if (!status)
        status = relate_numbers(flat, value_dict_get(optimizer, "param_groups"), totals, &is_related, &is_one, err);
    if (!status && is_related && is_one)
        *out = flat;
    else
        fsdp_flat_release(flat);
    return status;
}

/* The pieces by parameter; of those that the optimizer does not have nothing is known. */
static void flat_pieces(const struct fsdp_flat *flat, int64_t *pieces)
{
    uint32_t shards = flat->shards.count;
    for (size_t i = 0; i < (size_t)flat->parameter_count * shards; i++)
        pieces[i] = UNSEEN;
    for (uint32_t i = 0; i < flat->number_count; i++) {
        const int64_t *lengths = flat->lengths + (size_t)i * shards;
        bool is_seen = false;
        for (uint32_t s = 0; s < shards; s++)
            is_seen = is_seen || lengths[s] != UNSEEN;
        for (uint32_t s = 0; is_seen && s < shards; s++)
            pieces[(size_t)flat->parameter_of[i] * shards + s] = lengths[s] == UNSEEN ? 0 : lengths[s];
    }
}

reshard_status fsdp_flat_fit(const struct catalog *catalog, const struct fsdp_flat *flat, const struct wrap_parameter *names,
                             const char *rule, enum wrap_fit *found, struct wrap_units *out, reshard_error *err)
{
    uint32_t shards = flat->shards.count;
    int64_t *pieces = array_new((size_t)flat->parameter_count * shards, sizeof(*pieces));
    if (!pieces)
        return error_set_memory(err);
    flat_pieces(flat, pieces);
    struct wrap_sight sight = { .parameters = names, .count = flat->parameter_count, .shards = shards, .pieces = pieces, .rule = rule };
    sight.element_bytes = dtype_element_bytes(catalog->tensors[flat->tensors[0]].dtype);
    reshard_status status = wrap_fit(&sight, catalog->limits.budget, found, out, err);
    free(pieces);
    return status;
}

/* ---- state by unit ---- */

static reshard_status fit_sizes(struct joining *joining, enum wrap_fit *found, reshard_error *err)
{
    struct fsdp_flat *flat = joining->flat;
    int64_t *sizes = array_zeroed(joining->numbers, sizeof(*sizes));
    bool is_even = true;
    *found = WRAP_FITS_NOT;
    if (!sizes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < joining->numbers; i++) {
        const int64_t *lengths = joining->lengths + (size_t)i * joining->shards.count;
        sizes[i] = lengths[0];
        for (uint32_t s = 0; s < joining->shards.count; s++)
            is_even = is_even && lengths[s] != UNSEEN && lengths[s] == lengths[0];
    }
    struct wrap_sight sight = { .parameters = flat->parameters,
                                .count = flat->parameter_count,
                                .shards = joining->shards.count,
                                .sizes = sizes,
                                .size_count = joining->numbers };
    reshard_status status = is_even ? wrap_fit(&sight, joining->source->limits.budget, found, &flat->units, err) : RESHARD_OK;
    free(sizes);
    return status;
}

/* What the numbers are. *found as for the wrapping. */
static reshard_status find_meaning(struct joining *joining, enum wrap_fit *found, reshard_error *err)
{
    struct fsdp_flat *flat = joining->flat;
    bool is_related, is_one;
    reshard_status status = relate_pieces(joining, &is_related, &is_one, err);
    *found = WRAP_FITS_NOT;
    flat->is_original = is_related;
    flat->shards = joining->shards;
    flat->lengths = joining->lengths;
    joining->is_related = is_related && is_one;
    if (status)
        return status;
    if (is_related && !is_one) {
        joining->why = "several parameters have as many elements as the state of one";
        return RESHARD_OK;
    }
    flat->number_count = is_related ? joining->numbers : 0;
    for (uint32_t i = 0; i < flat->number_count; i++)
        joining->has_number[flat->parameter_of[i]] = true;
    if (!is_related)
        status = fit_sizes(joining, found, err);
    if (status || *found != WRAP_FITS_NOT)
        return status;
    uint32_t before = flat->parameter_count;
    status = find_twins(joining, err);
    if (!status)
        status = drop_twins(joining, err);
    if (!status && is_related)
        return fsdp_flat_fit(joining->source->catalog, flat, flat->parameters, NULL, found, &flat->units, err);
    return !status && flat->parameter_count < before ? fit_sizes(joining, found, err) : status;
}

/* ---- wholes ---- */

static struct value *state_value(const struct joining *joining, uint32_t number, uint32_t rank, size_t at)
{
    const struct flat_cell *cell = &joining->cells[(size_t)number * joining->ranks + rank];
    return cell->pairs ? cell->pairs[at + 1] : NULL;
}

bool fsdp_flat_part(const struct fsdp_flat *flat, uint32_t number, uint32_t shard, struct flat_unit_part *out)
{
    size_t at = (size_t)number * flat->shards.count + shard;
    bool is_there = flat->lengths[at] != UNSEEN;
    *out = (struct flat_unit_part){ flat->begins[at], is_there ? flat->lengths[at] : 0, 0 };
    return is_there;
}

/* The part of a parameter's state that a shard's piece of number `number` holds, and where in that piece. false: nothing. */
static bool part_in_piece(const struct joining *joining, uint32_t number, uint32_t parameter, uint32_t shard, struct flat_unit_part *out)
{
    const struct fsdp_flat *flat = joining->flat;
    if (flat->is_original)
        return fsdp_flat_part(flat, number, shard, out) && out->count > 0;
    return flat_unit_part_of(joining->lengths[(size_t)number * joining->shards.count], joining->shards.count, shard,
                             flat->units.places[parameter].start, flat->parameters[parameter].elements, out) &&
           out->count > 0;
}

/* The whole of a state, in the shape of its parameter. rank: the first that has it. */
static reshard_status join_pieces(struct joining *joining, uint32_t number, uint32_t parameter, size_t at, uint32_t rank, uint32_t *out,
                                  reshard_error *err)
{
    struct catalog *catalog = joining->source->catalog;
    const struct catalog_tensor owner = catalog->tensors[joining->flat->tensors[parameter]];
    int64_t shape[RANK_MAX];
    enum dtype dtype = archive_of(joining, rank)->tensors[state_value(joining, number, rank, at)->tensor - 1].dtype;
    memcpy(shape, catalog_vector_at(catalog, owner.shape), (size_t)owner.rank * sizeof(*shape));
    reshard_status status = catalog_add_tensor(catalog, buffer_str(&joining->assembling->key), dtype, owner.rank, shape, out, err);
    if (!status)
        catalog->tensors[*out].flags |= TENSOR_HIDDEN;
    for (uint32_t i = 0; !status && i < joining->ranks; i++) {
        struct flat_unit_part part;
        const struct value *value = state_value(joining, number, i, at);
        if (!value || !part_in_piece(joining, number, parameter, source_shard(joining, i), &part))
            continue;
        const struct torch_tensor *tensor = value->tensor ? &archive_of(joining, i)->tensors[value->tensor - 1] : NULL;
        if (!tensor || tensor->rank != 1 || tensor->dtype != dtype)
            return error_set(err, RESHARD_ERR_FORMAT, "the optimizer's state of '%.*s' has another type on rank %" PRIu32 " than before",
                             STR_ARG(owner.key), i);
        struct torch_run run = { .tensor = *out,
                                 .file = joining->first_file + i,
                                 .archive_tensor = value->tensor - 1,
                                 .writer = i,
                                 .offset = part.place,
                                 .begin = part.begin,
                                 .count = part.count };
        status = torch_source_add_run(joining->source, &run, err);
    }
    return status;
}

/* What is no piece is the same on all ranks. */
static reshard_status join_copies(struct joining *joining, uint32_t number, size_t at, uint32_t *out, reshard_error *err)
{
    struct assembling *assembling = joining->assembling;
    reshard_status status = RESHARD_OK;
    assembling->is_hidden = true;
    for (uint32_t i = 0; !status && i < joining->ranks; i++) {
        struct torch_leaf leaf = { .value = state_value(joining, number, i, at) };
        assembling->file = joining->first_file + i;
        assembling->rank = i;
        if (leaf.value)
            status = fsdp_add_tensor(assembling, &leaf, out, err);
    }
    assembling->is_hidden = false;
    return status;
}

/* One member of a parameter's state, for rank 0's graph. */
static reshard_status join_state(struct joining *joining, uint32_t number, uint32_t parameter, uint32_t shown, uint32_t rank, size_t at,
                                 struct value **out, reshard_error *err)
{
    struct assembling *assembling = joining->assembling;
    struct value_graph *graph = joining->state->files[joining->first_file].graph;
    const struct flat_cell *cell = &joining->cells[(size_t)number * joining->ranks + rank];
    struct value *value = cell->pairs[at + 1];
    uint32_t tensor;
    if (value->tensor == 0) {
        *out = value_copy(graph, value, joining->state->files[joining->first_file + rank].graph->count);
        return *out ? RESHARD_OK : error_set_memory(err);
    }
    bool is_piece = archive_of(joining, rank)->tensors[value->tensor - 1].rank == 1;
    buffer_clear(&assembling->key);
    if (!(*out = value_new(graph, VALUE_NONE)) || !fsdp_state_key_of_number(shown, cell->pairs[at]->text, &assembling->key) ||
        !ARRAY_ROOM(assembling->merged, assembling->merged_count, assembling->merged_capacity))
        return error_set_memory(err);
    reshard_status status =
        is_piece ? join_pieces(joining, number, parameter, at, rank, &tensor, err) : join_copies(joining, number, at, &tensor, err);
    if (status)
        return status;
    struct fsdp_flat *flat = joining->flat;
    if (is_piece && !add_state(flat, tensor, shown))
        return error_set_memory(err);
    assembling->merged[assembling->merged_count++] = (struct torch_whole){ *out, tensor };
    return RESHARD_OK;
}

/* The dict of a parameter's state; *out NULL: it has none. */
static reshard_status join_states(struct joining *joining, uint32_t number, uint32_t parameter, uint32_t shown, struct value **out,
                                  reshard_error *err)
{
    struct value_graph *graph = joining->state->files[joining->first_file].graph;
    uint32_t rank = 0;
    *out = NULL;
    while (rank < joining->ranks && !joining->cells[(size_t)number * joining->ranks + rank].pairs)
        rank++;
    if (rank == joining->ranks)
        return RESHARD_OK;
    const struct flat_cell *cell = &joining->cells[(size_t)number * joining->ranks + rank];
    struct value **pairs = arena_array(&graph->arena, cell->count, sizeof(*pairs));
    reshard_status status = pairs ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < cell->count; i += 2) {
        pairs[i] = value_new_str(graph, cell->pairs[i]->text);
        status = pairs[i] ? join_state(joining, number, parameter, shown, rank, i, &pairs[i + 1], err) : error_set_memory(err);
    }
    if (!status && !(*out = value_new_list(graph, VALUE_DICT, pairs, cell->count)))
        status = error_set_memory(err);
    return status;
}

static reshard_status sum_begins(struct fsdp_flat *flat, struct arena *arena, reshard_error *err)
{
    uint32_t shards = flat->shards.count;
    flat->begins = arena_array(arena, (size_t)flat->number_count * shards, sizeof(*flat->begins));
    if (!flat->begins)
        return error_set_memory(err);
    for (size_t i = 0; i < (size_t)flat->number_count * shards; i++) {
        int64_t before = i % shards ? flat->lengths[i - 1] : UNSEEN;
        flat->begins[i] = i % shards ? flat->begins[i - 1] + (before == UNSEEN ? 0 : before) : 0;
    }
    return RESHARD_OK;
}

/* Puts a new dict of states into rank 0's optimizer, and, where numbers were of units, the parameters' numbers into its group. */
static reshard_status join_numbers(struct joining *joining, reshard_error *err)
{
    struct fsdp_flat *flat = joining->flat;
    struct value_graph *graph = joining->state->files[joining->first_file].graph;
    uint32_t count = flat->is_original ? joining->numbers : flat->parameter_count;
    struct value **pairs = arena_array(&graph->arena, 2 * (size_t)count, sizeof(*pairs));
    struct value **all = arena_array(&graph->arena, count, sizeof(*all));
    size_t used = 0;
    reshard_status status = pairs && all ? RESHARD_OK : error_set_memory(err);
    flat->number_count = count;
    if (!status && flat->is_original)
        status = sum_begins(flat, &joining->source->catalog->arena, err);
    for (uint32_t i = 0; !status && i < count; i++) {
        uint32_t parameter = flat->is_original ? flat->parameter_of[i] : i, number = flat->is_original ? i : flat->units.places[i].unit;
        flat->parameter_of[i] = parameter;
        all[i] = value_new_int(graph, i);
        pairs[used] = value_new_int(graph, i);
        status = all[i] && pairs[used] ? join_states(joining, number, parameter, i, &pairs[used + 1], err) : error_set_memory(err);
        used += !status && pairs[used + 1] ? 2 : 0;
    }
    struct value *states = status ? NULL : value_new_list(graph, VALUE_DICT, pairs, used);
    if (!status && (!states || !value_dict_set(graph, graph->root, "state", states, true)))
        status = error_set_memory(err);
    struct value *groups = value_dict_get(graph->root, "param_groups");
    if (!status && !flat->is_original &&
        !value_dict_set(graph, groups->list.items[0], "params", value_new_list(graph, VALUE_LIST, all, count), true))
        status = error_set_memory(err);
    return status;
}

/* ---- all of it ---- */

/* Whether the files are such an optimizer's, and what is in them. */
static reshard_status read_all(struct joining *joining, bool *is_known, reshard_error *err)
{
    const struct value *root = joining->state->files[joining->first_file].graph->root;
    const struct value *groups = value_dict_get(root, "param_groups");
    *is_known = root->kind == VALUE_DICT && flat_count_numbers(root, &joining->numbers);
    reshard_status status = *is_known ? take_parameters(joining, is_known, err) : RESHARD_OK;
    if (status || !*is_known)
        return status;
    for (uint32_t i = 1; *is_known && i < joining->ranks; i++) {
        uint32_t numbers;
        const struct value *other = joining->state->files[joining->first_file + i].graph->root;
        *is_known = other->kind == VALUE_DICT && flat_count_numbers(other, &numbers) && numbers == joining->numbers;
    }
    if (!*is_known)
        return RESHARD_OK;
    joining->cells = array_zeroed((size_t)joining->numbers * joining->ranks, sizeof(*joining->cells));
    joining->lengths =
        arena_array(&joining->source->catalog->arena, (size_t)joining->numbers * joining->shards.count, sizeof(*joining->lengths));
    const size_t parameters = (size_t)joining->numbers + joining->flat->parameter_count;
    joining->flat->parameter_of = arena_array(&joining->source->catalog->arena, parameters, sizeof(*joining->flat->parameter_of));
    if (!joining->cells || !joining->lengths || !joining->flat->parameter_of)
        return error_set_memory(err);
    for (size_t i = 0; i < (size_t)joining->numbers * joining->shards.count; i++)
        joining->lengths[i] = UNKNOWN;
    for (uint32_t i = 0; *is_known && i < joining->ranks; i++)
        *is_known = archive_of(joining, i)->shard_count == 0 && read_cells(joining, i);
    *is_known = *is_known && compare_cells(joining) && groups->list.count > 0;
    return *is_known ? compare_rest(joining, is_known, err) : RESHARD_OK;
}

static reshard_status join_optimizer(struct joining *joining, bool *is_done, reshard_error *err)
{
    bool is_known;
    enum wrap_fit found = WRAP_FITS_NOT;
    reshard_status status = read_all(joining, &is_known, err);
    if (!status && is_known)
        status = find_meaning(joining, &found, err);
    const struct value *groups = value_dict_get(joining->state->files[joining->first_file].graph->root, "param_groups");
    *is_done = !status && is_known && (joining->is_related || (found == WRAP_FITS && groups->list.count == 1));
    if (!joining->why)
        joining->why = !is_known                  ? "they are not cut as FSDP1 cuts its parameters"
                       : found == WRAP_FITS_TWICE ? "more than one way to wrap the model's modules gives such lengths"
                                                  : "no way to wrap the model's modules gives such lengths";
    return *is_done ? join_numbers(joining, err) : status;
}

static reshard_status hide_all(struct joining *joining, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < joining->ranks; i++) {
        bool *wanted = array_zeroed((size_t)archive_of(joining, i)->storage_count, sizeof(*wanted));
        status =
            wanted ? torch_source_hide_storages(joining->source, joining->first_file + i, NULL, 0, wanted, err) : error_set_memory(err);
        free(wanted);
    }
    joining->assembling->file = joining->first_file;
    joining->assembling->rank = 0;
    if (!status)
        status = fsdp_name_wholes(joining->assembling, err);
    return status ? status : torch_source_add_facts(joining->source, joining->first_file, err);
}

reshard_status fsdp_flat_read(struct assembling *assembling, uint32_t first_file, uint32_t ranks, struct fsdp_flat **out,
                              reshard_error *err)
{
    struct source *source = assembling->source;
    struct joining joining = {
        .assembling = assembling, .source = source, .state = assembling->state, .first_file = first_file, .ranks = ranks
    };
    bool is_done = false;
    joining.flat = arena_zalloc(&source->catalog->arena, sizeof(*joining.flat));
    reshard_status status = joining.flat ? join_optimizer(&joining, &is_done, err) : error_set_memory(err);
    if (is_done && !status)
        status = hide_all(&joining, err);
    free(joining.cells);
    free(joining.is_twin);
    free(joining.has_number);
    *out = is_done ? joining.flat : NULL;
    if (!status && !is_done)
        catalog_warn(source->catalog, false,
                     "the optimizer's tensors are flat pieces of FSDP1, kept rank by rank: no file says what part of a "
                     "parameter each is, and %s",
                     joining.why);
    return status;
}

void fsdp_flat_release(struct fsdp_flat *flat)
{
    if (!flat)
        return;
    wrap_units_release(&flat->units);
    free(flat->states);
    free(flat->number_of_state);
    flat->states = flat->number_of_state = NULL;
    flat->state_count = 0;
}
