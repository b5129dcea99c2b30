/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of fused weights that are dealt over another number of ranks: in one tensor, or in those that were cut out of it, as q, k and v.
 * Whoever puts the ranks' fused pieces behind each other and cuts the whole at the places where one rank has its parts gets weights of the
 * right shapes with rows of each other.
 */
#include "convert/explain_slices.h"

#include "base/array.h"

#include <stdlib.h>

#define GROUPS_MAX 64  /* query heads for each pair of key and value heads */
#define DEGREE_MAX 256 /* of tensor parallelism */

/* Parts of a fused weight, in units of which each rank has a whole number. */
struct fusion {
    int64_t parts, size[3]; /* slices of each part */
};

/* Where slice i of the weight that `degree` ranks hold lies in the weight of one rank. */
static int64_t fusion_whole(const struct fusion *fusion, int64_t degree, int64_t count, int64_t i)
{
    const int64_t per_rank = count / degree, rank = i / per_rank;
    int64_t rest = i % per_rank, before = 0, part = 0;
    while (rest >= fusion->size[part] / degree) {
        rest -= fusion->size[part] / degree;
        before += fusion->size[part++];
    }
    return before + rank * (fusion->size[part] / degree) + rest;
}

/* And back. */
static int64_t fusion_place(const struct fusion *fusion, int64_t degree, int64_t count, int64_t whole)
{
    int64_t before = 0, part = 0;
    while (whole >= fusion->size[part]) {
        whole -= fusion->size[part];
        before += fusion->size[part++] / degree;
    }
    const int64_t own = fusion->size[part] / degree;
    return whole / own * (count / degree) + before + whole % own;
}

static bool is_fused_for(const struct slice_order *order, const struct fusion *fusion, int64_t degree_a, int64_t degree_b)
{
    for (int64_t i = 0; i < order->count; i++) {
        int64_t whole = fusion_whole(fusion, degree_b, order->count, i);
        if (order->b[i] != order->a[fusion_place(fusion, degree_a, order->count, whole)])
            return false;
    }
    return true;
}

static bool try_fusion(const struct slice_order *order, const struct fusion *fusion, int64_t units, struct buffer *out)
{
    for (int64_t a = 1; a <= units && a <= DEGREE_MAX; a++)
        for (int64_t b = 1; units % a == 0 && b <= units && b <= DEGREE_MAX; b++) {
            bool is_plausible = fusion->parts == 3 || ((a & (a - 1)) == 0 && (b & (b - 1)) == 0);
            if (a == b || units % b || !is_plausible || !is_fused_for(order, fusion, a, b))
                continue;
            buffer_printf(out, "%s of %s are interleaved for %lld tensor-parallel ranks in the second, for %lld in the first", order->noun,
                          fusion->parts == 2 ? "two fused weights (gate and up)" : "fused q, k and v", (long long)b, (long long)a);
            if (fusion->size[0] != fusion->size[1])
                buffer_printf(out, " (%lld of q for one of k and v)", (long long)(fusion->size[0] / fusion->size[1]));
            return true;
        }
    return false;
}

bool slices_fused_pair(const struct slice_order *order, struct buffer *out)
{
    const struct fusion fusion = { 2, { order->count / 2, order->count / 2 } };
    return order->count % 2 == 0 && try_fusion(order, &fusion, order->count / 2, out);
}

bool slices_fused_qkv(const struct slice_order *order, struct buffer *out)
{
    for (int64_t group = 1; group <= GROUPS_MAX; group++) {
        int64_t units = order->count / (group + 2);
        const struct fusion fusion = { 3, { units * group, units, units } };
        if (order->count % (group + 2) == 0 && try_fusion(order, &fusion, units, out))
            return true;
    }
    return false;
}

/* ---- weights that are fused elsewhere ---- */

#define SIBLINGS_MAX 3

/* Words of keys, between dots, by which weights are known that other checkpoints fuse, in that order. */
static const char *const siblings[][SIBLINGS_MAX] = {
    { "gate_proj", "up_proj" }, { "w1", "w3" }, { "q_proj", "k_proj", "v_proj" }, { "query", "key", "value" }, { "wq", "wk", "wv" },
};

/* The key with the first of a family's words, where it has that, in place of which comes another; empty where it has not. */
static bool sibling_key(struct str key, const char *first, const char *other, struct buffer *out)
{
    struct str rest = key, word;
    buffer_clear(out);
    while (word = str_take(&rest, '.'), !str_is(word, first)) {
        if (!rest.size)
            return false;
    }
    const size_t before = (size_t)(word.data - key.data), behind = before + word.size;
    buffer_append(out, key.data, before);
    buffer_append_text(out, other);
    return buffer_append(out, key.data + behind, key.size - behind);
}

/* Of a weight that is the first of a family, all of it, in order; their number, 0 if there are not all of them among the suspects. by_key:
 * suspects by the first's tensors. */
static int family_find(const struct explanation *explanation, struct suspect *const *by_key, const struct suspect *first,
                       struct suspect *family[SIBLINGS_MAX])
{
    const struct catalog *catalog = explanation->catalog_a;
    const struct str key = catalog->tensors[first->pair.a].key;
    struct buffer name = { 0 };
    int count = 0;
    for (size_t i = 0; i < sizeof(siblings) / sizeof(siblings[0]) && !count; i++) {
        bool is_whole = true;
        for (int k = 0; k < SIBLINGS_MAX && siblings[i][k] && is_whole; k++) {
            const bool is_named = sibling_key(key, siblings[i][0], siblings[i][k], &name);
            const uint32_t tensor = is_named ? catalog_find(catalog, buffer_str(&name)) : CATALOG_NONE;
            is_whole = tensor != CATALOG_NONE && by_key[tensor] && by_key[tensor]->is_read;
            if (is_whole)
                family[count++] = by_key[tensor];
        }
        count = is_whole ? count : 0;
    }
    buffer_release(&name);
    return count;
}

/* Rows of all, one tensor behind the other; sizes: how many each has. */
struct family_rows {
    uint64_t *hashes;
    int64_t count, sizes[SIBLINGS_MAX];
    uint64_t row_bytes;
};

static reshard_status family_rows_read(struct explanation *explanation, bool is_a, struct suspect *const *family, int members,
                                  struct family_rows *out, bool *is_alike, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (int i = 0; i < members && *is_alike && !status; i++) {
        struct held_tensor held = { 0 };
        status = explain_hold(explanation, is_a, is_a ? family[i]->pair.a : family[i]->pair.b, &held, err);
        const uint64_t bytes = held.elements * dtype_element_bytes(held.dtype);
        const int64_t rows = !status && held.rank && held.elements ? held.shape[0] : 0;
        const uint64_t row_bytes = rows ? bytes / (uint64_t)rows : 0;
        *is_alike = rows && (i == 0 || row_bytes == out->row_bytes);
        explanation->bytes += bytes;
        if (*is_alike) {
            uint64_t *grown = realloc(out->hashes, (size_t)(out->count + rows) * sizeof(*grown));
            status = grown ? RESHARD_OK : error_set_memory(err);
            out->hashes = grown ? grown : out->hashes;
        }
        if (*is_alike && !status) {
            slices_hash(&held, 0, out->hashes + out->count);
            out->sizes[i] = rows;
            out->count += rows;
            out->row_bytes = row_bytes;
        }
        free((void *)(uintptr_t)held.bytes);
    }
    return status;
}

/* Whether the rows of both sides are those of a fused weight, which each has for another number of ranks. */
static bool family_is_dealt(const struct family_rows *a, const struct family_rows *b, int members, struct buffer *out)
{
    const struct slice_order order = { .count = a->count, .a = a->hashes, .b = b->hashes, .noun = "rows" };
    const struct fusion fusion = { members, { a->sizes[0], a->sizes[1], a->sizes[2] } };
    const int64_t unit = a->sizes[1];
    bool is_fusion = a->row_bytes == b->row_bytes && a->sizes[0] % unit == 0 && (members == 3 ? a->sizes[2] : a->sizes[0]) == unit;
    for (int i = 0; i < members; i++)
        is_fusion = is_fusion && a->sizes[i] == b->sizes[i];
    return is_fusion && try_fusion(&order, &fusion, unit, out);
}

static reshard_status family_tell(const struct explanation *explanation, struct suspect *const *family, int members, struct str how,
                                  reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (int i = 0; i < members && !status; i++) {
        struct buffer text = { 0 };
        buffer_printf(&text, "with ");
        for (int k = 0, named = 0; k < members; k++) {
            if (k != i)
                buffer_printf(&text, "%s'%.*s'", named++ ? " and " : "", STR_ARG(explanation->catalog_a->tensors[family[k]->pair.a].key));
        }
        buffer_printf(&text, ": %.*s", STR_ARG(how));
        free(family[i]->text);
        family[i]->text = NULL;
        family[i]->is_partial = false;
        status = suspect_tell(family[i], &text, err);
    }
    return status;
}

static reshard_status explain_family(struct explanation *explanation, struct suspect *const *by_key, const struct suspect *first,
                                     reshard_error *err)
{
    struct suspect *family[SIBLINGS_MAX];
    struct family_rows a = { 0 }, b = { 0 };
    struct buffer how = { 0 };
    const int members = family_find(explanation, by_key, first, family);
    uint64_t rows = 0; /* that one side has and the other lacks, as a sum */
    bool is_alike = members > 0;
    reshard_status status = RESHARD_OK;
    for (int i = 0; i < members; i++) {
        is_alike = is_alike && (!family[i]->text || family[i]->is_partial) && explain_reaches(explanation, family[i]);
        rows += family[i]->rows_a - family[i]->rows_b;
    }
    is_alike = is_alike && !rows;
    if (is_alike)
        status = family_rows_read(explanation, true, family, members, &a, &is_alike, err);
    if (is_alike && !status)
        status = family_rows_read(explanation, false, family, members, &b, &is_alike, err);
    if (is_alike && !status && family_is_dealt(&a, &b, members, &how))
        status = family_tell(explanation, family, members, buffer_str(&how), err);
    buffer_release(&how);
    free(a.hashes);
    free(b.hashes);
    return status;
}

reshard_status explain_families(struct explanation *explanation, reshard_error *err)
{
    struct suspect **by_key = array_zeroed(explanation->catalog_a->tensor_count, sizeof(*by_key));
    reshard_status status = by_key ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < explanation->count && !status; i++)
        by_key[explanation->suspects[i].pair.a] = &explanation->suspects[i];
    for (uint32_t i = 0; i < explanation->count && !status; i++)
        status = explain_family(explanation, by_key, &explanation->suspects[i], err);
    free(by_key);
    return status;
}
