/* SPDX-License-Identifier: Apache-2.0 */
/* The other way round: states of a weight that is a copy of another, where the reference, in which the two are one, has them once. */
#include "convert/tied_states.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/hash.h"
#include "base/sort.h"
#include "convert/tensor_digests.h"
#include "mapping/map_state.h"

#include <stdlib.h>

#define TIED_KIND_MAX 1024 /* weights of one type and shape */

/* A checkpoint and the digests of its tensors, as far as they were asked for. */
struct spare_side {
    struct checkpoint *checkpoint;
    const struct catalog *catalog;
    char (*hex)[DIGEST_HEX_MAX];
    uint64_t *samples; /* of their first rows; 0: not looked at */
};

struct spare_search {
    struct spare_side source, reference;
    const struct engine_options *engine;
    struct spare_state *found;
    uint32_t count, capacity;
    struct buffer key;
    struct sort_entry *owners; /* weights of the reference that have states there, by their kind */
    uint32_t owner_count;
};

/* Two tensors of one checkpoint, of which each is the weight, or a state of it. */
struct spare_pair {
    uint32_t kept, spare;
};

static uint32_t spare_find(struct spare_search *search, const struct spare_side *side, struct str weight, struct str rest)
{
    buffer_clear(&search->key);
    buffer_append_str(&search->key, weight);
    buffer_append_str(&search->key, rest);
    return search->key.failed ? CATALOG_NONE : catalog_find(side->catalog, buffer_str(&search->key));
}

static bool spare_same_kind(const struct spare_side *side, struct spare_pair pair)
{
    const struct catalog_tensor *kept = &side->catalog->tensors[pair.kept], *spare = &side->catalog->tensors[pair.spare];
    return kept->dtype == spare->dtype && catalog_same_shape(side->catalog, kept, side->catalog, spare);
}

/* A number that is the same for tensors of the same first row: few are read whole. */
static reshard_status spare_sample(const struct spare_search *search, const struct spare_side *side, uint32_t tensor, reshard_error *err)
{
    const struct catalog_tensor *of = &side->catalog->tensors[tensor];
    char hex[DIGEST_HEX_MAX];
    bool has_rows = of->rank > 0 && catalog_vector_at(side->catalog, of->shape)[0] > 0;
    if (side->samples[tensor])
        return RESHARD_OK;
    side->samples[tensor] = 1;
    if (!has_rows)
        return RESHARD_OK;
    reshard_status status = tensor_digest_rows(side->checkpoint->source, tensor, 1, search->engine, hex, err);
    if (!status)
        side->samples[tensor] = hash64(hex, strlen(hex), 0) | 1;
    return status;
}

static reshard_status spare_same_bytes(const struct spare_search *search, const struct spare_side *side, struct spare_pair pair, bool *out,
                                       reshard_error *err)
{
    const uint32_t both[] = { pair.kept, pair.spare };
    reshard_status status = RESHARD_OK;
    *out = false;
    if (!spare_same_kind(side, pair))
        return RESHARD_OK;
    for (size_t i = 0; i < 2 && !status; i++)
        status = spare_sample(search, side, both[i], err);
    if (status || side->samples[pair.kept] != side->samples[pair.spare])
        return status;
    for (size_t i = 0; i < 2 && !status; i++)
        if (!side->hex[both[i]][0])
            status = tensor_digests(side->checkpoint, DIGEST_XXH3, &both[i], 1, NULL, search->engine, side->hex, err);
    *out = !status && strcmp(side->hex[pair.kept], side->hex[pair.spare]) == 0;
    return status;
}

/* Whether the reference has the other weight too, as a copy, with the state that it lacks here; then whether the source has the same. */
static reshard_status spare_compare(struct spare_search *search, struct str kept, struct str spare, struct str rest,
                                    struct spare_state *out, bool *is_tied, reshard_error *err)
{
    static const struct str none = { "", 0 };
    struct spare_pair wanted = { spare_find(search, &search->reference, kept, none), spare_find(search, &search->reference, spare, none) };
    struct spare_pair weights = { spare_find(search, &search->source, kept, none), spare_find(search, &search->source, spare, none) };
    struct spare_pair states = { spare_find(search, &search->source, kept, rest), spare_find(search, &search->source, spare, rest) };
    bool is_same_weight, is_same_state = false, is_owned = spare_find(search, &search->reference, kept, rest) != CATALOG_NONE;
    *is_tied = false;
    if (!is_owned || wanted.kept == CATALOG_NONE || wanted.spare == CATALOG_NONE || weights.spare == CATALOG_NONE ||
        states.kept == CATALOG_NONE || states.spare == CATALOG_NONE)
        return search->key.failed ? error_set_memory(err) : RESHARD_OK;
    reshard_status status = spare_same_bytes(search, &search->reference, wanted, is_tied, err);
    if (status || !*is_tied)
        return status;
    status = spare_same_bytes(search, &search->source, weights, &is_same_weight, err);
    if (!status && is_same_weight)
        status = spare_same_bytes(search, &search->source, states, &is_same_state, err);
    *out = (struct spare_state){ .tensor = states.spare, .kept = states.kept, .is_same = is_same_state };
    return status;
}

/* ---- weights of the reference that have states, by their kind ---- */

static int64_t spare_kind(const struct catalog *catalog, uint32_t weight)
{
    const struct catalog_tensor *tensor = &catalog->tensors[weight];
    uint64_t seed = (uint64_t)tensor->dtype << 8 | (uint64_t)tensor->rank;
    return (int64_t)hash64(catalog_vector_at(catalog, tensor->shape), (size_t)tensor->rank * sizeof(int64_t), seed);
}

static reshard_status spare_list_owners(struct spare_search *search, reshard_error *err)
{
    const struct catalog *catalog = search->reference.catalog;
    const struct checkpoint *reference = search->reference.checkpoint;
    size_t room = (size_t)reference->listed_count + 1;
    uint8_t *is_owner = calloc((size_t)catalog->tensor_count + 1, sizeof(*is_owner));
    struct sort_entry *spare = calloc(room, sizeof(*spare));
    search->owners = calloc(room, sizeof(*search->owners));
    if (!is_owner || !spare || !search->owners) {
        free(is_owner);
        free(spare);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < reference->listed_count; i++) {
        struct str name;
        bool is_state = map_state_of(catalog->tensors[reference->listed[i]].key, &name) != MAP_STATE_WEIGHT;
        uint32_t weight = is_state ? catalog_find(catalog, name) : CATALOG_NONE;
        if (weight == CATALOG_NONE || is_owner[weight])
            continue;
        is_owner[weight] = 1;
        search->owners[search->owner_count++] = (struct sort_entry){ spare_kind(catalog, weight), weight };
    }
    entries_sort(search->owners, spare, search->owner_count);
    free(is_owner);
    free(spare);
    return RESHARD_OK;
}

/* The first of the weights of a kind, and how many there are. */
static uint32_t spare_owners_of(const struct spare_search *search, int64_t kind, uint32_t *count)
{
    uint32_t low = 0, high = search->owner_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (search->owners[middle].key < kind)
            low = middle + 1;
        else
            high = middle;
    }
    for (*count = 0; low + *count < search->owner_count && search->owners[low + *count].key == kind && *count <= TIED_KIND_MAX;)
        ++*count;
    return low;
}

/* ---- what is spare ---- */

/* Looks for the weight that the one of this state is tied to. Where very many weights are of one shape, they are no embeddings. */
static reshard_status spare_look(struct spare_search *search, uint32_t tensor, reshard_error *err)
{
    const struct catalog *wanted = search->reference.catalog;
    struct str key = search->source.catalog->tensors[tensor].key, spare;
    if (map_state_of(key, &spare) == MAP_STATE_WEIGHT || catalog_find(wanted, key) != CATALOG_NONE)
        return RESHARD_OK;
    const struct str rest = { key.data + spare.size, key.size - spare.size };
    uint32_t weight = catalog_find(wanted, spare), count = 0;
    uint32_t first = weight == CATALOG_NONE ? 0 : spare_owners_of(search, spare_kind(wanted, weight), &count);
    reshard_status status = RESHARD_OK;
    bool is_tied = false;
    for (uint32_t i = 0; i < (count <= TIED_KIND_MAX ? count : 0) && !status && !is_tied; i++) {
        struct spare_state state;
        uint32_t owner = search->owners[first + i].value;
        if (owner == weight)
            continue;
        status = spare_compare(search, wanted->tensors[owner].key, spare, rest, &state, &is_tied, err);
        if (status || !is_tied)
            continue;
        if (!ARRAY_ROOM(search->found, search->count, search->capacity))
            return error_set_memory(err);
        search->found[search->count++] = state;
    }
    return status;
}

static bool spare_side_open(struct spare_side *side, struct checkpoint *checkpoint)
{
    side->checkpoint = checkpoint;
    side->catalog = checkpoint->source->catalog;
    side->hex = calloc((size_t)side->catalog->tensor_count + 1, sizeof(*side->hex));
    side->samples = calloc((size_t)side->catalog->tensor_count + 1, sizeof(*side->samples));
    return side->hex && side->samples;
}

reshard_status spare_states_find(struct checkpoint *source, struct checkpoint *reference, const struct engine_options *engine,
                                 struct spare_state **out, uint32_t *count, reshard_error *err)
{
    struct spare_search search = { .engine = engine };
    bool is_ready = spare_side_open(&search.source, source) && spare_side_open(&search.reference, reference);
    reshard_status status = is_ready ? spare_list_owners(&search, err) : error_set_memory(err);
    for (uint32_t i = 0; i < source->listed_count && search.owner_count && !status; i++)
        status = spare_look(&search, source->listed[i], err);
    free(search.source.hex);
    free(search.reference.hex);
    free(search.source.samples);
    free(search.reference.samples);
    free(search.owners);
    buffer_release(&search.key);
    if (status) {
        free(search.found);
        search = (struct spare_search){ 0 };
    }
    *out = search.found;
    *count = search.count;
    return status;
}
