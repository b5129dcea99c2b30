/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices along an axis that come in another order. Each slice is known by its hash; where the second's hashes are the first's in another
 * order, that order is put into words: shards in each other's place, parts of a fused weight dealt over another number of ranks, the halves
 * of heads interleaved, or else its runs.
 */
#include "convert/explain_slices.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"

#define AXES_TRIED 3
#define SLICES_MAX ((int64_t)1 << 24)
#define PIECES_NAMED 16
#define RUNS_NAMED 4
#define HEAD_MAX 512

/* A slice may lie in many places, one for each index of the axes in front: then the hash of one is the seed of the next. */
void slices_hash(const struct held_tensor *tensor, int axis, uint64_t *hashes)
{
    uint64_t outer = 1, inner = dtype_element_bytes(tensor->dtype), count = (uint64_t)tensor->shape[axis];
    for (int i = 0; i < axis; i++)
        outer *= (uint64_t)tensor->shape[i];
    for (int i = axis + 1; i < tensor->rank; i++)
        inner *= (uint64_t)tensor->shape[i];
    const uint8_t *at = tensor->bytes;
    memset(hashes, 0, (size_t)count * sizeof(*hashes));
    for (uint64_t o = 0; o < outer; o++)
        for (uint64_t i = 0; i < count; i++, at += inner)
            hashes[i] = hash64(at, inner, hashes[i]);
}

struct hashed_slice {
    uint64_t hash;
    int64_t index;
};

static int compare_slices(const void *x, const void *y)
{
    const struct hashed_slice *a = x, *b = y;
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

/* The first of the sorted slices with this hash that is not taken; next[i] skips those that are. */
static int64_t slice_find(const struct hashed_slice *slices, int64_t *next, int64_t count, uint64_t hash)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (slices[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    int64_t at = low < count ? low + next[low] : count;
    if (at >= count || slices[at].hash != hash)
        return -1;
    next[low]++;
    return slices[at].index;
}

/* Fills order->from; false: b's slices are not those of a, or are in the same order. */
static bool slices_match(struct slice_order *order, reshard_error *err)
{
    const size_t count = (size_t)order->count;
    struct hashed_slice *slices = array_new(count, sizeof(*slices));
    int64_t *next = array_zeroed(count, sizeof(*next));
    bool is_other = memcmp(order->a, order->b, count * sizeof(*order->a)) != 0;
    bool is_found = slices && next && is_other;
    for (size_t i = 0; slices && i < count; i++)
        slices[i] = (struct hashed_slice){ order->a[i], (int64_t)i };
    if (is_found)
        qsort(slices, count, sizeof(*slices), compare_slices);
    for (size_t i = 0; is_found && i < count; i++) {
        order->from[i] = slice_find(slices, next, order->count, order->b[i]);
        is_found = order->from[i] >= 0;
    }
    if (!slices || !next)
        error_set_memory(err);
    free(slices);
    free(next);
    return is_found;
}

/* ---- other orders ---- */

/* Halves of each head against pairs, as two conventions of rotary embeddings want them. */
static bool is_rotary(const struct slice_order *order, struct buffer *out)
{
    for (int64_t head = 8; head <= HEAD_MAX && head <= order->count; head += 2) {
        bool to_pairs = order->count % head == 0, to_halves = to_pairs;
        for (int64_t i = 0; i < order->count && (to_pairs || to_halves); i++) {
            int64_t base = i - i % head, in = i % head;
            int64_t paired = base + in % 2 * (head / 2) + in / 2, halved = base + in % (head / 2) * 2 + in / (head / 2);
            to_pairs = to_pairs && order->b[i] == order->a[paired];
            to_halves = to_halves && order->b[i] == order->a[halved];
        }
        if (to_pairs || to_halves) {
            buffer_printf(out, "%s of each head of %lld are %s in the second: the other convention of rotary embeddings", order->noun,
                          (long long)head, to_pairs ? "in pairs" : "in halves");
            return true;
        }
    }
    return false;
}

static int64_t divisor_of_both(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The largest pieces of one size that the order moves as wholes. */
static int64_t piece_size(const struct slice_order *order)
{
    int64_t size = order->count;
    for (int64_t i = 0; i < order->count; i++) {
        if (i == 0 || order->from[i] != order->from[i - 1] + 1)
            size = divisor_of_both(divisor_of_both(size, i), order->from[i]);
    }
    return size;
}

/* Whether pieces of that size are whole shards of one side or of the other. */
static bool pieces_are_shards(const struct slice_order *order, int64_t size)
{
    for (int64_t i = 0; i < order->count; i += size)
        if (!order->cuts || !order->cuts[i])
            return false;
    return order->cuts != NULL;
}

static bool is_in_pieces(const struct slice_order *order, bool must_be_shards, struct buffer *out)
{
    const int64_t size = piece_size(order), pieces = order->count / size;
    const bool are_shards = pieces_are_shards(order, size);
    if (pieces > PIECES_NAMED || (must_be_shards && !are_shards))
        return false;
    if (are_shards)
        buffer_printf(out, "shards are in another rank's place: the second has, as the first numbers them,");
    else
        buffer_printf(out, "%s come in another order, in pieces of %lld: the second has, as the first numbers them,", order->noun,
                      (long long)size);
    for (int64_t i = 0; i < order->count; i += size)
        buffer_printf(out, "%s %lld", i ? "," : "", (long long)(order->from[i] / size));
    return true;
}

/* Where the shard that begins at index i ends; shards may be of several sizes. */
static int64_t shard_end(const struct slice_order *order, int64_t i)
{
    do
        i++;
    while (i < order->count && !order->cuts[i]);
    return i;
}

static int64_t shard_number(const struct slice_order *order, int64_t index)
{
    int64_t number = 0;
    for (int64_t i = 1; i <= index; i++)
        number += order->cuts[i];
    return number;
}

/* Whole shards of the first stand where the second has whole ones. */
static bool is_in_shards(const struct slice_order *order, struct buffer *out)
{
    int64_t shards = 0;
    if (!order->cuts || !order->cuts[0] || shard_end(order, 0) == order->count)
        return false;
    for (int64_t i = 0, end; i < order->count; i = end, shards++) {
        const int64_t from = order->from[i];
        end = shard_end(order, i);
        if (shards == PIECES_NAMED || !order->cuts[from] || shard_end(order, from) - from != end - i)
            return false;
        for (int64_t at = i + 1; at < end; at++) {
            if (order->from[at] != order->from[at - 1] + 1)
                return false;
        }
    }
    buffer_printf(out, "shards are in another rank's place: the second has, as the first numbers them,");
    for (int64_t i = 0; i < order->count; i = shard_end(order, i))
        buffer_printf(out, "%s %lld", i ? "," : "", (long long)shard_number(order, order->from[i]));
    return true;
}

static void tell_runs(const struct slice_order *order, struct buffer *out)
{
    int64_t runs = 0;
    buffer_printf(out, "%s come in another order: the second has the first's ", order->noun);
    for (int64_t i = 0, end; i < order->count; i = end) {
        for (end = i + 1; end < order->count && order->from[end] == order->from[end - 1] + 1; end++)
            ;
        if (runs++ < RUNS_NAMED)
            buffer_printf(out, "%s%lld:%lld", runs > 1 ? ", " : "", (long long)order->from[i], (long long)(order->from[end - 1] + 1));
    }
    if (runs > RUNS_NAMED)
        buffer_printf(out, ", … (%lld runs)", (long long)runs);
}

static bool mentions(struct str key, const char *word)
{
    return memmem(key.data, key.size, word, strlen(word)) != NULL;
}

/* What the key says of fused weights goes before what shards or heads may look like. */
static void tell_order(const struct slice_order *order, struct str key, struct buffer *out)
{
    bool looks_paired = mentions(key, "gate_up") || mentions(key, "fc1") || mentions(key, "h_to_4h") || mentions(key, "w13");
    bool looks_qkv = mentions(key, "qkv") || mentions(key, "query_key") || mentions(key, "c_attn");
    if ((looks_paired && slices_fused_pair(order, out)) || (looks_qkv && slices_fused_qkv(order, out)))
        return;
    if (is_in_pieces(order, true, out) || is_in_shards(order, out))
        return;
    if (!is_rotary(order, out) && !slices_fused_qkv(order, out) && !slices_fused_pair(order, out) &&
        !is_in_pieces(order, false, out))
        tell_runs(order, out);
}

bool explain_order(const struct held_tensor *a, const struct held_tensor *b, struct str key, unsigned char *const *cuts, struct buffer *out,
                   reshard_error *err)
{
    static const char *const nouns[AXES_TRIED] = { "rows", "columns", "slices of axis 2" };
    if (a->dtype != b->dtype || a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) != 0)
        return false;
    for (int axis = 0; axis < a->rank && axis < AXES_TRIED; axis++) {
        const size_t count = (size_t)a->shape[axis];
        struct slice_order order = { .count = a->shape[axis], .cuts = cuts[axis], .noun = nouns[axis] };
        if (order.count < 2 || order.count > SLICES_MAX)
            continue;
        order.a = array_new(count, sizeof(*order.a));
        order.b = array_new(count, sizeof(*order.b));
        order.from = array_new(count, sizeof(*order.from));
        bool is_found = order.a && order.b && order.from;
        if (!is_found)
            error_set_memory(err);
        if (is_found) {
            slices_hash(a, axis, order.a);
            slices_hash(b, axis, order.b);
            is_found = slices_match(&order, err);
        }
        if (is_found)
            tell_order(&order, key, out);
        free(order.a);
        free(order.b);
        free(order.from);
        if (is_found)
            return true;
    }
    return false;
}
