/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what ranks hold to whole tensors. Tensor-parallel ranks have parts of a weight along an axis that models/paddle.rules tells; ranks
 * that share optimizer state have whole tensors (sharding V1), or runs of the flattened part of their tensor-parallel rank, of which the
 * last may be padded (V2, stage 3).
 */
#include "formats/paddle/params_family.h"

#include "base/checked.h"
#include "base/array.h"
#include "formats/shared/safetensors_set.h"
#include "parallel/expert_keys.h"
#include "parallel/fused_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define REPLICATED (-1)
#define PADDING_BYTES_MAX (1 << 20) /* 256 for each of 4096 ranks */
#define SAMPLE_BYTES 4096           /* of the beginning, the middle and the end of what is compared */

const struct paddle_tensor *family_tensor(const struct family *family, uint32_t piece)
{
    const struct family_piece *of = &family->pieces[piece];
    return &params_source_of(family->source)->files[family->files[of->file].file].archive.tensors[of->tensor];
}

static const struct family_file *merge_file(const struct family *family, uint32_t piece)
{
    return &family->files[family->pieces[piece].file];
}

/* Files without a number are tensor-parallel rank 0. */
static uint32_t merge_tp(const struct family *family, uint32_t piece)
{
    int32_t tp = merge_file(family, piece)->ranks.tp;
    return tp < 0 ? 0 : (uint32_t)tp;
}

static reshard_status merge_fail(const struct family *family, uint32_t key, reshard_status code, reshard_error *err, const char *format,
                                 ...) PRINTF_LIKE(5, 6);

static reshard_status merge_fail(const struct family *family, uint32_t key, reshard_status code, reshard_error *err, const char *format,
                                 ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    struct str name = name_map_at(&family->keys, key);
    error_set(err, code, "tensor '%.*s': %s", STR_ARG(name), text);
    error_object(err, "%.*s", STR_ARG(name));
    return code;
}

/* ---- the axis of tensor parallelism ---- */

/* Whether what two ranks hold is stored alike. */
static bool merge_same_kind(const struct family *family, uint32_t a, uint32_t b)
{
    const struct paddle_tensor *x = family_tensor(family, a), *y = family_tensor(family, b);
    return shape_equal(x->rank, x->shape, y->rank, y->shape) && x->dtype == y->dtype && x->part_count == 1 && y->part_count == 1 &&
           x->parts[0].stored_bytes == y->parts[0].stored_bytes;
}

/* Whether two ranks hold the very same bytes. */
static reshard_status merge_same_bytes(const struct family *family, uint32_t a, uint32_t b, bool *same, reshard_error *err)
{
    const struct paddle_tensor *x = family_tensor(family, a), *y = family_tensor(family, b);
    *same = merge_same_kind(family, a, b);
    if (!*same || !x->parts[0].stored_bytes)
        return RESHARD_OK;
    return st_ranges_equal(family->source->store, merge_file(family, a)->name, x->parts[0].offset, merge_file(family, b)->name,
                           y->parts[0].offset, x->parts[0].stored_bytes, same, err);
}

/* A parameter that no rule names is whole on every rank if all have the same bytes; else nobody can tell how they share it. */
static reshard_status merge_unknown_axis(const struct family *family, uint32_t key, int *axis, reshard_error *err)
{
    uint32_t first = family->key_list[key].first;
    *axis = REPLICATED;
    for (uint32_t piece = family->pieces[first].next; piece != CATALOG_NONE; piece = family->pieces[piece].next) {
        bool same = true;
        reshard_status status = RESHARD_OK;
        if (merge_tp(family, piece) != merge_tp(family, first))
            status = merge_same_bytes(family, first, piece, &same, err);
        if (status)
            return status;
        if (same)
            continue;
        struct str a = merge_file(family, first)->name, b = merge_file(family, piece)->name;
        merge_fail(family, key, RESHARD_ERR_UNSUPPORTED, err,
                   "'%.*s' and '%.*s' hold different parts of it, and models/paddle.rules does not say along which axis", STR_ARG(a),
                   STR_ARG(b));
        error_hint(err, "a Flex or Unified Checkpoint of the same run says it; or open the files one by one");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

/* What a rank has of a tensor: the first one that has it, or any where model_meta.json alone tells of it; NULL: nobody knows. */
static const struct paddle_tensor *merge_known(const struct family *family, uint32_t key)
{
    const struct family_key *of = &family->key_list[key];
    return of->first != CATALOG_NONE ? family_tensor(family, of->first) : of->told ? &of->told->local : NULL;
}

/* The size of the hidden layer, as the embedding has it; 0: there is none here. */
static int64_t merge_hidden_size(const struct family *family)
{
    for (uint32_t key = 0; key < family->keys.count; key++) {
        struct str name = name_map_at(&family->keys, key);
        bool is_embedding = str_matches_glob(name, STR("*embed*.weight")) || str_matches_glob(name, STR("*wte.weight"));
        const struct paddle_tensor *tensor = is_embedding ? merge_known(family, key) : NULL;
        if (tensor && tensor->rank == 2)
            return tensor->shape[1];
    }
    return 0;
}

/* The head of a model is stored as (hidden, vocabulary) or, tied to the embedding, the other way round; the vocabulary is cut. Where the
 * embedding does not tell, the vocabulary is the longer axis. */
static int merge_head_axis(const struct family *family, const int64_t *shape)
{
    int64_t hidden = merge_hidden_size(family);
    if ((shape[0] == hidden) != (shape[1] == hidden))
        return shape[0] == hidden ? 1 : 0;
    return shape[0] > shape[1] ? 0 : 1;
}

/* Some of what a rank holds, or all where that is little: parts of a weight that are as like as that are one whole. */
struct merge_sample {
    uint8_t bytes[3 * SAMPLE_BYTES];
    size_t size;
};

static reshard_status merge_read_sample(const struct family *family, uint32_t piece, struct merge_sample *out, reshard_error *err)
{
    const struct paddle_part *part = &family_tensor(family, piece)->parts[0];
    struct store_object *object = NULL;
    const bool is_all = part->stored_bytes <= sizeof(out->bytes);
    const uint64_t last = is_all ? 0 : part->stored_bytes - SAMPLE_BYTES;
    out->size = is_all ? (size_t)part->stored_bytes : sizeof(out->bytes);
    reshard_status status = store_open_object(family->source->store, merge_file(family, piece)->name.data, &object, err);
    if (!status && is_all && out->size)
        status = store_read_at(object, part->offset, out->bytes, out->size, err);
    for (uint64_t i = 0; i < 3 && !is_all && !status; i++)
        status = store_read_at(object, part->offset + last / 2 * i, out->bytes + SAMPLE_BYTES * i, SAMPLE_BYTES, err);
    store_object_close(object);
    return status;
}

/* Whether all elements are the same, as far as a sample shows: zeros, ones. */
static bool merge_is_constant(const struct paddle_tensor *tensor, const struct merge_sample *sample)
{
    const int64_t elements = box_volume(tensor->rank, tensor->shape);
    const uint64_t stored = tensor->parts[0].stored_bytes, width = elements > 0 ? stored / (uint64_t)elements : 0;
    const size_t window = sample->size == sizeof(sample->bytes) ? SAMPLE_BYTES : sample->size;
    bool is_constant = !width || stored % (uint64_t)elements == 0;
    for (size_t at = 0; at < sample->size && is_constant && width && width < window; at += window)
        is_constant = memcmp(sample->bytes + at, sample->bytes + at + width, window - (size_t)width) == 0;
    return is_constant;
}

/* The weight beside a bias; CATALOG_NONE: there is none. */
static uint32_t merge_weight_beside(const struct family *family, uint32_t key)
{
    struct str name = name_map_at(&family->keys, key);
    char text[256];
    if (!str_ends_with(name, ".bias") || name.size + sizeof("weight") > sizeof(text))
        return CATALOG_NONE;
    int size = snprintf(text, sizeof(text), "%.*s.weight", (int)(name.size - strlen(".bias")), name.data);
    uint32_t number = name_map_find(&family->keys, (struct str){ text, (size_t)size });
    return number == NAME_NONE ? CATALOG_NONE : number;
}

/* Whether all tensor-parallel ranks hold the same of a parameter; if it is constant, so may its parts be. */
static reshard_status merge_compare_ranks(const struct family *family, uint32_t key, bool *is_same, bool *is_constant, reshard_error *err)
{
    struct merge_sample sample, other;
    const uint32_t first = family->key_list[key].first;
    bool has_other = false;
    *is_same = false;
    *is_constant = false;
    if (first == CATALOG_NONE || family_tensor(family, first)->part_count != 1)
        return RESHARD_OK;
    reshard_status status = merge_read_sample(family, first, &sample, err);
    bool same = !status;
    for (uint32_t piece = family->pieces[first].next; piece != CATALOG_NONE && same; piece = family->pieces[piece].next) {
        if (merge_tp(family, piece) == merge_tp(family, first))
            continue;
        has_other = true;
        same = merge_same_kind(family, first, piece);
        if (same)
            status = merge_read_sample(family, piece, &other, err);
        same = same && !status && memcmp(sample.bytes, other.bytes, sample.size) == 0;
    }
    *is_same = same && has_other;
    *is_constant = *is_same && merge_is_constant(family_tensor(family, first), &sample);
    return status;
}

/* Whether a parameter that the rules would cut is whole on every rank all the same: a model may leave it so, as it does experts, key and
 * value projections of few heads, and embeddings that do not divide. A constant bias is as its weight is, other constants are as the rules
 * say. */
static reshard_status merge_find_held(struct family *family, uint32_t key, bool *is_whole, reshard_error *err)
{
    bool is_same = false, is_constant = false;
    reshard_status status = RESHARD_OK;
    *is_whole = family->key_list[key].held == FAMILY_HELD_WHOLE;
    if (family->key_list[key].held != FAMILY_HELD_UNASKED)
        return RESHARD_OK;
    status = merge_compare_ranks(family, key, &is_same, &is_constant, err);
    *is_whole = is_same && !is_constant;
    uint32_t weight = is_constant ? merge_weight_beside(family, key) : CATALOG_NONE;
    bool weight_same = false, weight_constant = false;
    if (!status && weight != CATALOG_NONE)
        status = merge_compare_ranks(family, weight, &weight_same, &weight_constant, err);
    *is_whole |= weight_same && !weight_constant;
    family->key_list[key].held = *is_whole ? FAMILY_HELD_WHOLE : FAMILY_HELD_CUT;
    if (!status && *is_whole && !family->whole_count++)
        family->first_whole = key;
    return status;
}

/* Whether a parameter is one of an expert that is on some ranks of a stage, among them tensor-parallel ones: it is never cut then. */
static bool merge_is_spread(const struct family *family, uint32_t named)
{
    size_t begin, end;
    uint64_t number;
    return family->spreads_experts && expert_number_find(name_map_at(&family->keys, named), &begin, &end, &number);
}

/* The axis along which the ranks' parts of a tensor lie side by side: of a state that of its parameter. */
static reshard_status merge_axis(struct family *family, uint32_t key, int *axis, reshard_error *err)
{
    struct partition_key found;
    uint32_t named = family->key_list[key].parameter != CATALOG_NONE ? family->key_list[key].parameter : key;
    const struct family_key *of = &family->key_list[named];
    const struct paddle_tensor *tensor = merge_known(family, named) ? merge_known(family, named) : merge_known(family, key);
    bool is_whole = false;
    *axis = REPLICATED;
    if (family->tp == 1 || merge_is_spread(family, named) || (of->told && !of->told->is_cut))
        return RESHARD_OK;
    bool is_known = partition_key_read(&family->rules, name_map_at(&family->keys, named), &found) &&
                    !(found.rule->component_count == 1 && str_is(found.rule->components[0], "*"));
    if (!is_known)
        return merge_unknown_axis(family, of->first != CATALOG_NONE ? named : key, axis, err);
    if (!found.rule->is_cut || found.rule->axis >= tensor->rank)
        return RESHARD_OK;
    reshard_status status = of->told ? RESHARD_OK : merge_find_held(family, named, &is_whole, err);
    if (status || is_whole)
        return status;
    *axis = found.rule->axis;
    if (found.rule->is_vocabulary && tensor->rank == 2)
        *axis = merge_head_axis(family, tensor->shape);
    if (fused_name_is(name_map_at(&family->keys, named)))
        catalog_warn(family->source->catalog, false,
                     "'%.*s' looks fused: the parts of %" PRIu32 " tensor-parallel ranks lie side by side as the ranks have them",
                     STR_ARG(name_map_at(&family->keys, named)), family->tp);
    return RESHARD_OK;
}

/* ---- boxes ---- */

struct merge {
    struct family *family;
    uint32_t key;
    uint32_t tensor; /* of the catalog */
    enum dtype dtype;
    bool is_spread; /* its pieces are those of one group of ranks, of several tensor-parallel ones */
    int axis, rank;
    int64_t shape[RANK_MAX];
    int64_t start[RANK_MAX]; /* of the current tensor-parallel rank's box */
};

/* Several tensors of the weight's shape, along an axis before its own: the gradients that ASGD keeps. */
static bool merge_is_stack(const struct paddle_tensor *tensor, const struct paddle_tensor *weight)
{
    return weight->rank > 0 && tensor->rank == weight->rank + 1 &&
           shape_equal(weight->rank, tensor->shape + 1, weight->rank, weight->shape);
}

/* What the tensor-parallel rank of a piece has of the tensor: the shape of its weight, or of the piece itself. */
static const struct paddle_tensor *merge_local(const struct merge *merge, uint32_t piece)
{
    const struct family *family = merge->family;
    const struct paddle_tensor *own = family_tensor(family, piece);
    uint32_t parameter = family->key_list[merge->key].parameter;
    if (parameter == CATALOG_NONE || family->key_list[merge->key].is_scalar)
        return own;
    for (uint32_t weight = family->key_list[parameter].first; weight != CATALOG_NONE; weight = family->pieces[weight].next)
        if (merge->is_spread || merge_tp(family, weight) == merge_tp(family, piece))
            return merge_is_stack(own, family_tensor(family, weight)) ? own : family_tensor(family, weight);
    const struct family_told *told = family->key_list[parameter].told;
    return !told || merge_is_stack(own, &told->local) ? own : &told->local;
}

/* The first piece of the next tensor-parallel rank; CATALOG_NONE: there is none. */
static uint32_t merge_next_rank(const struct merge *merge, uint32_t piece)
{
    const struct family *family = merge->family;
    uint32_t tp = merge_tp(family, piece);
    while (piece != CATALOG_NONE && (merge->is_spread || merge_tp(family, piece) == tp))
        piece = family->pieces[piece].next;
    return piece;
}

static reshard_status merge_grow(struct merge *merge, const struct paddle_tensor *local, uint32_t piece, reshard_error *err)
{
    struct str name = merge_file(merge->family, piece)->name;
    if (local->rank != merge->rank)
        return merge_fail(merge->family, merge->key, RESHARD_ERR_FORMAT, err, "'%.*s' has it with %d axes, others with %d", STR_ARG(name),
                          local->rank, merge->rank);
    for (int i = 0; i < merge->rank; i++) {
        if (i == merge->axis && !checked_add_i64(merge->shape[i], local->shape[i], &merge->shape[i]))
            return merge_fail(merge->family, merge->key, RESHARD_ERR_FORMAT, err, "its size overflows");
        if (i != merge->axis && local->shape[i] != merge->shape[i])
            return merge_fail(merge->family, merge->key, RESHARD_ERR_FORMAT, err,
                              "axis %d has %" PRId64 " elements in '%.*s' and %" PRId64 " elsewhere", i, local->shape[i], STR_ARG(name),
                              merge->shape[i]);
    }
    return RESHARD_OK;
}

/* The whole shape, out of what each tensor-parallel rank has. */
static reshard_status merge_shape(struct merge *merge, reshard_error *err)
{
    struct family *family = merge->family;
    uint32_t first = family->key_list[merge->key].first, ranks = 1;
    const struct paddle_tensor *local = merge_local(merge, first);
    uint32_t parameter = family->key_list[merge->key].parameter;
    merge->rank = local->rank;
    if (merge->axis >= 0 && parameter != CATALOG_NONE && merge_known(family, parameter) &&
        merge_is_stack(local, merge_known(family, parameter)))
        merge->axis++;
    if (merge->axis >= merge->rank)
        merge->axis = REPLICATED;
    memcpy(merge->shape, local->shape, (size_t)local->rank * sizeof(*local->shape));
    reshard_status status = RESHARD_OK;
    for (uint32_t piece = merge_next_rank(merge, first); piece != CATALOG_NONE && !status; piece = merge_next_rank(merge, piece)) {
        status = merge_grow(merge, merge_local(merge, piece), piece, err);
        ranks++;
    }
    if (!status && merge->axis >= 0 && ranks != family->tp)
        status = merge_fail(family, merge->key, RESHARD_ERR_FORMAT, err,
                            "files of %" PRIu32 " tensor-parallel ranks have a part of it, of %" PRIu32 "%s; a file is missing", ranks,
                            family->tp, family->tp == family->told_tp ? ", as config.json says" : "");
    return status;
}

/* ---- chunks ---- */

/* How much longer than the weight its runs may be: sharding V2 pads each parameter to 256 bytes of it on every rank, stage 3 to 4096 bytes
 * (on processors; 256 elsewhere) and a whole number of elements for each. */
static int64_t merge_padding_max(const struct family *family, bool is_slice)
{
    int64_t ranks = 1;
    for (uint32_t i = 0; i < family->file_count; i++)
        if (family->files[i].ranks.shard >= ranks)
            ranks = family->files[i].ranks.shard + 1;
    return is_slice ? 4096 + ranks : 256 * ranks;
}

static bool merge_is_sliced(const struct merge *merge)
{
    const struct family_key *of = &merge->family->key_list[merge->key];
    return of->parameter != CATALOG_NONE && !of->is_scalar && merge->family->key_list[of->parameter].is_sliced;
}

/* Runs make sense only beside the weight whose runs they are. */
static bool merge_knows_weight(const struct merge *merge)
{
    const struct family_key *of = &merge->family->key_list[merge->key];
    return of->parameter != CATALOG_NONE && merge_known(merge->family, of->parameter);
}

static reshard_status merge_check_pieces(const struct merge *merge, uint32_t first, uint32_t end, reshard_error *err)
{
    const struct family *family = merge->family;
    const struct family_key *of = &family->key_list[merge->key];
    uint32_t next = family->pieces[first].next;
    if ((of->parameter == CATALOG_NONE && !of->is_stray) || of->is_scalar || merge_knows_weight(merge) || next == end ||
        family_tensor(family, first)->rank != 1 || merge_file(family, first)->ranks.shard == merge_file(family, next)->ranks.shard)
        return RESHARD_OK;
    return merge_fail(family, merge->key, RESHARD_ERR_FORMAT, err,
                      "'%.*s' and '%.*s' have a part of it each, and the weight that would tell how they lie is in no file",
                      STR_ARG(merge_file(family, first)->name), STR_ARG(merge_file(family, next)->name));
}

/* Whether all bytes of a piece are 0. Only what is short is asked for. */
static reshard_status merge_is_zero(const struct family *family, uint32_t piece, bool *is_zero, reshard_error *err)
{
    const struct paddle_tensor *tensor = family_tensor(family, piece);
    struct store_object *object = NULL;
    *is_zero = false;
    if (tensor->part_count != 1 || !tensor->parts[0].stored_bytes || tensor->parts[0].stored_bytes > PADDING_BYTES_MAX)
        return RESHARD_OK;
    size_t size = (size_t)tensor->parts[0].stored_bytes;
    uint8_t *bytes = malloc(size);
    reshard_status status = bytes ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = store_open_object(family->source->store, merge_file(family, piece)->name.data, &object, err);
    if (!status)
        status = store_read_at(object, tensor->parts[0].offset, bytes, size, err);
    *is_zero = !status && bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
    store_object_close(object);
    free(bytes);
    return status;
}

/* Whether the state of a vector ends at a rank's border of sharding V2, and the padding that the next rank has is as long as the state: no
 * copy of it then, as stage 3 has of what it does not cut, but a run of zeros. */
static reshard_status merge_is_padding(const struct merge *merge, uint32_t first, uint32_t piece, const struct paddle_tensor *local,
                                       bool *is_padding, reshard_error *err)
{
    const struct family *family = merge->family;
    const struct paddle_tensor *tensor = family_tensor(family, piece);
    bool is_first_zero = false;
    *is_padding = false;
    if (piece == first || local->rank != 1 || !shape_equal(tensor->rank, tensor->shape, local->rank, local->shape) ||
        family->key_list[merge->key].is_scalar || !merge_knows_weight(merge) || family->has_slices ||
        merge_file(family, piece)->ranks.shard == merge_file(family, first)->ranks.shard ||
        local->shape[0] >= merge_padding_max(family, false))
        return RESHARD_OK;
    reshard_status status = merge_is_zero(family, piece, is_padding, err);
    if (!status && *is_padding)
        status = merge_is_zero(family, first, &is_first_zero, err);
    *is_padding = *is_padding && !is_first_zero;
    return status;
}

/* One piece: all that the rank has, or a run that goes on at element *begin. */
static reshard_status merge_take_piece(struct merge *merge, uint32_t piece, const struct paddle_tensor *local, int64_t *begin,
                                      int64_t *stored, reshard_error *err)
{
    struct family *family = merge->family;
    const struct paddle_tensor *tensor = family_tensor(family, piece);
    struct str name = merge_file(family, piece)->name;
    struct params_place place = { .tensor = merge->tensor, .file = merge_file(family, piece)->file,
                                  .archive_tensor = family->pieces[piece].tensor, .start = merge->start, .extent = local->shape,
                                  .flat_count = -1 };
    if (params_dtype(tensor) != merge->dtype)
        return merge_fail(family, merge->key, RESHARD_ERR_FORMAT, err, "'%.*s' has it as %s, others as %s", STR_ARG(name),
                          dtype_info(params_dtype(tensor))->name, dtype_info(merge->dtype)->name);
    if (merge_is_sliced(merge) || !shape_equal(tensor->rank, tensor->shape, local->rank, local->shape)) {
        if (tensor->rank != 1 || !merge_knows_weight(merge))
            return merge_fail(family, merge->key, RESHARD_ERR_FORMAT, err, "'%.*s' has it with another shape", STR_ARG(name));
        int64_t left = box_volume(local->rank, local->shape) - *begin, count = tensor->shape[0];
        place.flat_begin = *begin;
        place.flat_count = count < left ? count : left; /* the last run is padded */
        *begin += place.flat_count;
        *stored += count; /* of arrays that are there: no overflow */
    }
    return params_add_chunks(family->source, &place, err);
}

/* Where a piece lies among the runs of the ranks that share a state: by the sharding rank, and of experts whose ranks are among the
 * tensor-parallel ones by that behind it. */
static int64_t merge_order(const struct merge *merge, uint32_t piece)
{
    int64_t shard = merge_file(merge->family, piece)->ranks.shard;
    return merge->is_spread ? (shard < 0 ? 0 : shard) * (int64_t)merge->family->tp + merge_tp(merge->family, piece) : shard;
}

/* The first piece behind those that share one state. Another pipeline stage that has the parameter too (tied weights) shares its state
 * anew, as do the ranks of another place of data parallelism, whose sharding ranks begin again. */
static uint32_t merge_next_set(const struct merge *merge, uint32_t first, uint32_t end)
{
    const struct family *family = merge->family;
    uint32_t piece = first, next = family->pieces[first].next;
    while (next != end && merge_file(family, next)->ranks.pp == merge_file(family, first)->ranks.pp &&
           merge_order(merge, next) > merge_order(merge, piece)) {
        piece = next;
        next = family->pieces[next].next;
    }
    return next;
}

/* The pieces of the ranks that share a state: each is all that the rank has, or they are runs of it one after another. */
static reshard_status merge_add_set(struct merge *merge, uint32_t first, uint32_t end, const struct paddle_tensor *local,
                                     reshard_error *err)
{
    struct family *family = merge->family;
    int64_t elements = box_volume(local->rank, local->shape), begin = 0, stored = 0;
    reshard_status status = merge_check_pieces(merge, first, end, err);
    for (uint32_t piece = first; piece != end && !status; piece = family->pieces[piece].next) {
        bool is_padding = false;
        status = merge_is_padding(merge, first, piece, local, &is_padding, err);
        if (!status && !is_padding)
            status = merge_take_piece(merge, piece, local, &begin, &stored, err);
    }
    if (!status && stored && (begin < elements || stored - elements >= merge_padding_max(family, merge_is_sliced(merge))))
        status = merge_fail(family, merge->key, RESHARD_ERR_FORMAT, err,
                            "the files of its sharding ranks have %" PRId64 " elements, its weight has %" PRId64, stored, elements);
    return status;
}

static reshard_status merge_add_chunks(struct merge *merge, reshard_error *err)
{
    struct family *family = merge->family;
    reshard_status status = RESHARD_OK;
    for (uint32_t piece = family->key_list[merge->key].first; piece != CATALOG_NONE && !status;) {
        uint32_t end = merge_next_rank(merge, piece);
        const struct paddle_tensor *local = merge_local(merge, piece);
        for (uint32_t set = piece, next; set != end && !status; set = next) {
            next = merge_next_set(merge, set, end);
            status = merge_add_set(merge, set, next, local, err);
        }
        if (merge->axis >= 0)
            merge->start[merge->axis] += local->shape[merge->axis];
        piece = end;
    }
    return status;
}

struct merge_ordered {
    int64_t pp, order;
    uint32_t piece;
};

static int merge_compare_order(const void *a, const void *b)
{
    const struct merge_ordered *x = a, *y = b;
    if (x->pp != y->pp)
        return x->pp < y->pp ? -1 : 1;
    return x->order != y->order ? (x->order < y->order ? -1 : 1) : x->piece < y->piece ? -1 : x->piece > y->piece;
}

/* Brings the pieces of an expert into the order of the ranks that share it, which tensor-parallel ranks are among. */
static reshard_status merge_order_pieces(const struct merge *merge, reshard_error *err)
{
    struct family *family = merge->family;
    struct family_key *of = &family->key_list[merge->key];
    struct merge_ordered *list = NULL;
    size_t count = 0, capacity = 0;
    for (uint32_t piece = of->first; piece != CATALOG_NONE; piece = family->pieces[piece].next) {
        if (!ARRAY_ROOM(list, count, capacity)) {
            free(list);
            return error_set_memory(err);
        }
        list[count++] = (struct merge_ordered){ merge_file(family, piece)->ranks.pp, merge_order(merge, piece), piece };
    }
    qsort(list, count, sizeof(*list), merge_compare_order);
    of->first = list[0].piece;
    for (size_t i = 0; i < count; i++)
        family->pieces[list[i].piece].next = i + 1 < count ? list[i + 1].piece : CATALOG_NONE;
    of->last = list[count - 1].piece;
    free(list);
    return RESHARD_OK;
}

static reshard_status merge_key(struct family *family, uint32_t key, reshard_error *err)
{
    const struct family_key *of = &family->key_list[key];
    struct merge merge = { .family = family, .key = key, .axis = REPLICATED };
    if (of->first == CATALOG_NONE)
        return RESHARD_OK; /* only its states are there */
    merge.is_spread = merge_is_spread(family, of->parameter != CATALOG_NONE ? of->parameter : key);
    reshard_status status = merge.is_spread ? merge_order_pieces(&merge, err) : RESHARD_OK;
    if (!status && !of->is_scalar)
        status = merge_axis(family, key, &merge.axis, err);
    if (!status)
        status = merge_shape(&merge, err);
    merge.dtype = params_dtype(family_tensor(family, of->first));
    if (!status)
        status = catalog_add_tensor(family->source->catalog, name_map_at(&family->keys, key), merge.dtype, merge.rank, merge.shape,
                                    &merge.tensor, err);
    return status ? status : merge_add_chunks(&merge, err);
}

static enum family_kind merge_kind(const struct family_key *key)
{
    return key->is_stray ? FAMILY_STRAYS : key->parameter != CATALOG_NONE ? FAMILY_STATES : FAMILY_WEIGHTS;
}

reshard_status family_merge(struct family *family, enum family_kind kind, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t key = 0; key < family->keys.count && !status; key++)
        if (merge_kind(&family->key_list[key]) == kind)
            status = merge_key(family, key, err);
    return status;
}
