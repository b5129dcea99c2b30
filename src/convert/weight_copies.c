/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/weight_copies.h"

#include "base/array.h"
#include "base/hash.h"
#include "convert/tensor_digests.h"
#include "mapping/map_state.h"

#include <stdlib.h>

/* ---- names ---- */

struct str weight_copies_key(const struct weight_copies *copies, uint32_t tensor)
{
    return copies->names ? copies->names->keys[tensor] : copies->catalog->tensors[tensor].key;
}

uint32_t weight_copies_at(const struct weight_copies *copies, struct str key)
{
    return copies->names ? selected_names_find(copies->names, key) : catalog_find(copies->catalog, key);
}

/* ---- which weights have states ---- */

static int64_t weight_kind(const struct catalog *catalog, uint32_t weight)
{
    const struct catalog_tensor *tensor = &catalog->tensors[weight];
    uint64_t seed = (uint64_t)tensor->dtype << 8 | (uint64_t)tensor->rank;
    return (int64_t)hash64(catalog_vector_at(catalog, tensor->shape), (size_t)tensor->rank * sizeof(int64_t), seed);
}

static void weight_list_owners(struct weight_copies *copies)
{
    const struct catalog *catalog = copies->catalog;
    for (uint32_t i = 0; i < copies->checkpoint->listed_count; i++) {
        struct str name;
        bool is_state = map_state_of(weight_copies_key(copies, copies->checkpoint->listed[i]), &name) != MAP_STATE_WEIGHT;
        uint32_t weight = is_state ? weight_copies_at(copies, name) : CATALOG_NONE;
        if (weight == CATALOG_NONE || copies->is_owner[weight])
            continue;
        copies->is_owner[weight] = 1;
        copies->owners[copies->owner_count++] = (struct sort_entry){ weight_kind(catalog, weight), weight };
    }
    entries_sort(copies->owners, copies->sampled, copies->owner_count);
}

reshard_status weight_copies_open(struct checkpoint *checkpoint, const struct selected_names *names, const struct engine_options *engine,
                                  struct weight_copies *out, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    size_t tensors = (size_t)catalog->tensor_count + 1, listed = (size_t)checkpoint->listed_count + 1;
    *out = (struct weight_copies){ .checkpoint = checkpoint, .catalog = catalog, .names = names, .engine = engine };
    out->hex = array_zeroed(tensors, sizeof(*out->hex));
    out->samples = array_zeroed(tensors, sizeof(*out->samples));
    out->owners = array_zeroed(listed, sizeof(*out->owners));
    out->sampled = array_zeroed(listed, sizeof(*out->sampled));
    out->has_samples = array_zeroed(listed, sizeof(*out->has_samples));
    out->is_owner = array_zeroed(tensors, sizeof(*out->is_owner));
    if (!out->hex || !out->samples || !out->owners || !out->sampled || !out->has_samples || !out->is_owner)
        return error_set_memory(err);
    weight_list_owners(out);
    return RESHARD_OK;
}

void weight_copies_release(struct weight_copies *copies)
{
    free(copies->hex);
    free(copies->samples);
    free(copies->owners);
    free(copies->sampled);
    free(copies->has_samples);
    free(copies->is_owner);
    buffer_release(&copies->key);
    *copies = (struct weight_copies){ 0 };
}

uint32_t weight_copies_find(struct weight_copies *copies, struct str weight, struct str rest)
{
    buffer_clear(&copies->key);
    buffer_append_str(&copies->key, weight);
    buffer_append_str(&copies->key, rest);
    return copies->key.failed ? CATALOG_NONE : weight_copies_at(copies, buffer_str(&copies->key));
}

/* ---- the same bytes ---- */

static bool weight_same_kind(const struct catalog *catalog, uint32_t a, uint32_t b)
{
    const struct catalog_tensor *x = &catalog->tensors[a], *y = &catalog->tensors[b];
    return x->dtype == y->dtype && catalog_same_shape(catalog, x, catalog, y);
}

/* A number that is the same for tensors of the same first row. */
static reshard_status weight_sample(struct weight_copies *copies, uint32_t tensor, reshard_error *err)
{
    const struct catalog_tensor *of = &copies->catalog->tensors[tensor];
    char hex[DIGEST_HEX_MAX];
    bool has_rows = of->rank > 0 && catalog_vector_at(copies->catalog, of->shape)[0] > 0;
    if (copies->samples[tensor])
        return RESHARD_OK;
    copies->samples[tensor] = 1;
    if (!has_rows)
        return RESHARD_OK;
    reshard_status status = tensor_digest_rows(copies->checkpoint->source, tensor, 1, copies->engine, hex, err);
    if (!status)
        copies->samples[tensor] = hash64(hex, strlen(hex), 0) | 1;
    return status;
}

reshard_status weight_copies_same(struct weight_copies *copies, uint32_t a, uint32_t b, bool *out, reshard_error *err)
{
    const uint32_t both[] = { a, b };
    reshard_status status = RESHARD_OK;
    *out = false;
    if (!weight_same_kind(copies->catalog, a, b))
        return RESHARD_OK;
    for (size_t i = 0; i < 2 && !status; i++)
        status = weight_sample(copies, both[i], err);
    if (status || copies->samples[a] != copies->samples[b])
        return status;
    for (size_t i = 0; i < 2 && !status; i++)
        if (!copies->hex[both[i]][0])
            status = tensor_digests(copies->checkpoint, DIGEST_XXH3, &both[i], 1, NULL, copies->engine, copies->hex, err);
    *out = !status && strcmp(copies->hex[a], copies->hex[b]) == 0;
    return status;
}

/* ---- walks ---- */

/* The first entry of a sorted range that is above a key. */
static uint32_t weight_upper_bound(const struct sort_entry *entries, uint32_t low, uint32_t high, int64_t key)
{
    return key == INT64_MAX ? high : (uint32_t)entries_first(entries, low, high, key + 1);
}

/* Owners of one type and shape come in the order of their samples. */
static reshard_status weight_sample_owners(struct weight_copies *copies, uint32_t begin, uint32_t end, reshard_error *err)
{
    struct sort_entry *spare = array_new((size_t)(end - begin), sizeof(*spare));
    reshard_status status = spare ? work_spend_steps(copies->checkpoint->source->limits.budget, end - begin, err) : error_set_memory(err);
    for (uint32_t i = begin; i < end && !status; i++) {
        uint32_t owner = copies->owners[i].value;
        status = weight_sample(copies, owner, err);
        copies->sampled[i] = (struct sort_entry){ (int64_t)copies->samples[owner], owner };
    }
    if (!status)
        entries_sort(copies->sampled + begin, spare, end - begin);
    free(spare);
    return status;
}

reshard_status weight_walk_begin(struct weight_copies *copies, uint32_t weight, struct weight_walk *out, reshard_error *err)
{
    int64_t kind = weight_kind(copies->catalog, weight);
    uint32_t begin = (uint32_t)entries_first(copies->owners, 0, copies->owner_count, kind);
    uint32_t end = weight_upper_bound(copies->owners, begin, copies->owner_count, kind);
    bool is_alone = end == begin || (end - begin == 1 && copies->owners[begin].value == weight);
    *out = (struct weight_walk){ weight, 0, 0 };
    if (is_alone)
        return RESHARD_OK;
    reshard_status status = weight_sample(copies, weight, err);
    if (!status && !copies->has_samples[begin])
        status = weight_sample_owners(copies, begin, end, err);
    if (status)
        return status;
    copies->has_samples[begin] = 1;
    out->at = (uint32_t)entries_first(copies->sampled, begin, end, (int64_t)copies->samples[weight]);
    out->end = weight_upper_bound(copies->sampled, out->at, end, (int64_t)copies->samples[weight]);
    return RESHARD_OK;
}

reshard_status weight_walk_next(struct weight_copies *copies, struct weight_walk *walk, uint32_t *owner, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    bool is_same = false;
    *owner = CATALOG_NONE;
    while (walk->at < walk->end && !is_same && !status) {
        *owner = copies->sampled[walk->at++].value;
        if (*owner != walk->weight)
            status = work_spend_steps(copies->checkpoint->source->limits.budget, 1, err);
        if (*owner != walk->weight && !status)
            status = weight_copies_same(copies, walk->weight, *owner, &is_same, err);
    }
    if (!is_same)
        *owner = CATALOG_NONE;
    return status;
}
