/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which file of a family has which tensor, as the trainer's ranks write them. A rank's number is (data * pp + stage) * tp + part, where
 * data is dp index * sharding + sharding index. What several ranks have is the first one's; the tensor-parallel ranks of a place put whole
 * tensors together and deal them out among them; experts that are spread over tensor parallelism stay with the rank that has them.
 */
#include "formats/paddle/flex_target.h"
#include "base/array.h"
#include "formats/paddle/unified_target.h"

#include <stdlib.h>

/* In the order of enum sharding_stage, behind SHARDING_NONE. Under stage 3 the trainer writes no Unified Checkpoint. */
static const char *const stages[] = { "1v1", "1v2", "2", NULL };

const struct layout_word uc_words[] = {
    { .name = "tp", .unit = "ranks", .help = "tensor parallel: files that tensors are dealt over", .is_rank_count = true },
    { .name = "pp", .unit = "ranks", .help = "pipeline parallel: each stage has files of its own" },
    { .name = "vp", .unit = "chunks", .help = "virtual pipeline: model chunks of each stage" },
    { .name = "ep", .unit = "ranks", .help = "expert parallel, over the ranks of dp, sharding and tp" },
    { .name = "dp", .unit = "ranks", .help = "data parallel: files of their own for the experts that these ranks have" },
    { .name = "sharding", .unit = "ranks", .help = "ranks that share optimizer state, and have files of their own for it" },
    { .name = "stage", .unit = "stage", .help = "how they share it", .choices = stages },
    { .name = "ranks", .unit = "ranks", .is_rank_count = true },
    { 0 },
};

/* ---- names ---- */

/* The key as a Flex Checkpoint has it, whose rules say where it is; empty without memory. */
static struct str unified_place_key(struct arena *arena, enum uc_family family, struct str name)
{
    size_t slash;
    if (family == UC_MASTERS)
        return ARENA_JOIN(arena, name, STR(".w_0"));
    if (family != UC_OPTIMIZER || !str_find_char(name, '/', &slash))
        return name;
    return ARENA_JOIN(arena, { name.data, slash }, STR("."), { name.data + slash + 1, name.size - slash - 1 });
}

static reshard_status unified_place_rename(struct uc_placing *placing, const struct layout_request *request, enum uc_family family,
                                           const struct st_piece *piece, reshard_error *err)
{
    const struct catalog_tensor *tensor = &request->wanted->tensors[piece->tensor];
    struct str key = unified_place_key(&placing->arena, family, piece->name);
    bool was_new;
    if (!key.size && piece->name.size)
        return error_set_memory(err);
    uint32_t number = name_map_intern(&placing->names, key, &was_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    placing->renamed_of[piece->tensor] = number;
    if (!was_new) /* a weight of two families */
        return RESHARD_OK;
    const int64_t *shape = catalog_vector_at(request->wanted, tensor->shape);
    return catalog_add_tensor(placing->renamed, key, tensor->dtype, tensor->rank, shape, &number, err);
}

/* ---- ranks ---- */

static bool unified_place_is_asked(const struct layout_request *request)
{
    static const char *const words[] = { "tp", "pp", "vp", "ep", "dp", "sharding", "stage" };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (layout_number(request, words[i]))
            return true;
    return false;
}

/* Weights that are float32 themselves are copied to the master weights by the first ranks of all. */
static bool unified_place_is_copy(const struct flex_cutting *cutting, uint32_t tensor)
{
    const struct flex_member *member = &cutting->parts[tensor];
    const struct flex_parameter *parameter = &cutting->parameters[member->parameter];
    const struct catalog_tensor *weight = parameter->tensor == CATALOG_NONE ? NULL : &cutting->wanted->tensors[parameter->tensor];
    return member->is_state && weight && weight->dtype == DTYPE_F32 && str_equal(weight->key, parameter->key) &&
           str_ends_with(cutting->wanted->tensors[tensor].key, ".w_0");
}

/* As the trainer's ranks hand tensors in: in the order of the model, copies of weights last. */
static reshard_status unified_place_number(struct uc_placing *placing, reshard_error *err)
{
    const struct flex_cutting *cutting = &placing->cutting;
    placing->positions = array_zeroed(placing->renamed->tensor_count, sizeof(*placing->positions));
    if (!placing->positions)
        return error_set_memory(err);
    for (uint32_t i = 0; i < cutting->order_count; i++)
        placing->positions[cutting->order[i]] = i + (unified_place_is_copy(cutting, cutting->order[i]) ? cutting->order_count : 0);
    return RESHARD_OK;
}

/* How a state is cut says only who has it: without shared state, or experts among tensor-parallel ranks, tensors need not divide. */
static uint32_t unified_place_cut(const struct flex_degrees *degrees)
{
    return degrees->sharding > 1 || degrees->is_ep_over_tp ? degrees->tp : 1;
}

static reshard_status unified_place_cut_tensors(struct uc_placing *placing, const struct layout_request *request,
                                                struct flex_degrees degrees, reshard_error *err)
{
    struct layout_request renamed = *request;
    renamed.wanted = placing->renamed;
    placing->tp = degrees.tp;
    degrees.tp = unified_place_cut(&degrees);
    return flex_cutting_make(&renamed, &degrees, &placing->cutting, err);
}

reshard_status uc_placing_make(const struct layout_request *request, const struct st_pieces *families, struct uc_placing *out,
                               reshard_error *err)
{
    struct flex_degrees degrees;
    *out = (struct uc_placing){ .is_asked = unified_place_is_asked(request) };
    if (!out->is_asked)
        return RESHARD_OK;
    reshard_status status = flex_degrees_read(request, &degrees, err);
    if (status)
        return status;
    out->renamed = catalog_new("paddle-flex");
    out->renamed_of = array_zeroed(request->wanted->tensor_count, sizeof(*out->renamed_of));
    if (!out->renamed || !out->renamed_of)
        return error_set_memory(err);
    for (int f = 0; f < UC_FAMILIES && !status; f++)
        for (uint32_t i = 0; i < families[f].count && !status; i++)
            status = unified_place_rename(out, request, f, &families[f].items[i], err);
    if (!status)
        status = unified_place_cut_tensors(out, request, degrees, err);
    return status ? status : unified_place_number(out, err);
}

void uc_placing_release(struct uc_placing *placing)
{
    flex_cutting_release(&placing->cutting);
    catalog_free(placing->renamed);
    name_map_release(&placing->names);
    arena_release(&placing->arena);
    free(placing->renamed_of);
    free(placing->positions);
    *placing = (struct uc_placing){ 0 };
}

/* The first rank that has a tensor, or some of it. */
static struct flex_place unified_place_first(const struct flex_cutting *cutting, uint32_t tensor)
{
    const struct flex_degrees *degrees = &cutting->degrees;
    struct flex_place place = { .stage = cutting->parameters[cutting->parts[tensor].parameter].stage }, none = place;
    struct flex_held held;
    for (place.data = 0; place.data < degrees->dp; place.data++)
        for (place.shard = 0; place.shard < degrees->sharding; place.shard++)
            for (place.part = 0; place.part < degrees->tp; place.part++)
                if (flex_held_of(cutting, tensor, &place, &held))
                    return place;
    return none; /* of no elements */
}

/* How many places of data parallel ranks have files: all that have experts of their own, and of states all that share them. */
static uint32_t unified_place_count(const struct flex_degrees *degrees, uint32_t tp, bool is_state)
{
    bool spreads = degrees->ep > (degrees->is_ep_over_tp ? tp : 1);
    uint32_t span = degrees->is_ep_over_tp ? degrees->ep / tp + (degrees->ep % tp > 0) : degrees->ep;
    if (is_state)
        return spreads ? degrees->dp * degrees->sharding : degrees->sharding;
    return !spreads ? 1 : degrees->sharding > 1 ? span : degrees->dp;
}

/* ---- files ---- */

/* As the trainer deals tensors over the tensor-parallel ranks: each takes from the running total its share of the bytes, and as many
 * tensors are left as there are ranks to come. A last file may stay without a tensor. */
void uc_deal(struct st_piece *pieces, uint32_t count, uint32_t files, uint32_t first)
{
    uint64_t total = 0, running = 0;
    uint32_t block = 0, in_block = 0;
    for (uint32_t i = 0; i < count; i++)
        total += pieces[i].bytes;
    uint64_t limit = total / files + (total % files != 0);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = pieces[i].bytes, share = (running + bytes) / (block + 1), rest = (running + bytes) % (block + 1);
        bool is_over = share > limit || (share == limit && rest > 0);
        bool is_short = count - i < files - block;
        if ((is_over || is_short) && in_block && block + 1 < files) {
            block++;
            in_block = 0;
        }
        pieces[i].file = first + block;
        in_block++;
        running += bytes;
    }
}

/* While places are dealt a piece's `file` is its place, and in it 0: dealt, or one more than the tensor-parallel rank that has it. */
static uint32_t unified_place_of(const struct uc_placing *placing, const struct st_piece *piece)
{
    const struct flex_cutting *cutting = &placing->cutting;
    const struct flex_degrees *degrees = &cutting->degrees;
    uint32_t tensor = placing->renamed_of[piece->tensor];
    bool is_expert = cutting->parameters[cutting->parts[tensor].parameter].expert_rank >= 0;
    struct flex_place place = unified_place_first(cutting, tensor);
    if (!is_expert && unified_place_is_copy(cutting, tensor))
        place.data = place.shard = 0;
    uint32_t data = place.data * degrees->sharding + place.shard;
    return (data * degrees->pp + place.stage) * (placing->tp + 1) + (is_expert && degrees->is_ep_over_tp ? place.part + 1 : 0);
}

static int unified_place_order(const void *a, const void *b, void *context)
{
    const struct st_piece *x = a, *y = b;
    const struct uc_placing *placing = context;
    uint32_t p = placing->positions[placing->renamed_of[x->tensor]], q = placing->positions[placing->renamed_of[y->tensor]];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (p != q)
        return p < q ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

void uc_placing_sort(struct uc_placing *placing, struct st_pieces *pieces)
{
    if (pieces->count)
        qsort_r(pieces->items, pieces->count, sizeof(*pieces->items), unified_place_order, placing);
}

uint32_t uc_placing_assign(struct uc_placing *placing, struct st_pieces *pieces, bool is_state)
{
    uint32_t tp = placing->tp;
    for (uint32_t i = 0; i < pieces->count; i++)
        pieces->items[i].file = unified_place_of(placing, &pieces->items[i]);
    uc_placing_sort(placing, pieces);
    for (uint32_t begin = 0, end; begin < pieces->count; begin = end) {
        uint32_t key = pieces->items[begin].file, first = key / (tp + 1) * tp, own = key % (tp + 1);
        for (end = begin; end < pieces->count && pieces->items[end].file == key; end++)
            ;
        if (!own)
            uc_deal(pieces->items + begin, end - begin, tp, first);
        for (uint32_t i = begin; own && i < end; i++)
            pieces->items[i].file = first + own - 1;
    }
    return unified_place_count(&placing->cutting.degrees, tp, is_state) * placing->cutting.degrees.pp * tp;
}
