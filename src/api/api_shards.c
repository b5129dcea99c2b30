/* SPDX-License-Identifier: Apache-2.0 */
/* Shards and lists of them: structs are converted here; src/parallel/shard_list and src/kernels/shard_slice do the work. */
#include "reshard/geometry.h"

#include "api/handle.h"
#include "api/public_shards.h"
#include "base/array.h"
#include "base/buffer.h"
#include "kernels/shard_slice.h"
#include "parallel/shard_list.h"

#include <inttypes.h>
#include <stdlib.h>

reshard_status dtype_take(const char *name, struct str key, enum dtype *out, reshard_error *err)
{
    const char *point = name ? strrchr(name, '.') : NULL;
    if (!name)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s' has no dtype", STR_ARG(key));
    if (!dtype_from_name(str_of(point ? point + 1 : name), out))
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': no element type is called '%s'", STR_ARG(key), name);
    return RESHARD_OK;
}

reshard_status vectors_check(size_t rank, const int64_t *const *vectors, size_t count, struct str key, reshard_error *err)
{
    if (rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': a rank of %zu is above %d", STR_ARG(key), rank, RANK_MAX);
    for (size_t i = 0; rank && i < count; i++) {
        if (!vectors[i])
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': a shape or box is NULL", STR_ARG(key));
    }
    return RESHARD_OK;
}

void shard_functions_take(shard_read *read, shard_write *write, void *context, struct shard *out)
{
    out->read = read;
    out->write = write;
    out->is_written = write != NULL;
    out->context = read || write ? context : NULL;
}

reshard_status shard_functions_check(const struct shard *shard, reshard_error *err)
{
    if ((shard->read || shard->write) && (shard->data || shard->strides))
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': read and write go with neither data nor strides", STR_ARG(shard->key));
    return RESHARD_OK;
}

static reshard_status shard_take(const reshard_shard *given, struct shard *out, reshard_error *err)
{
    reshard_shard taken;
    reshard_status status = struct_take(&taken, sizeof(taken), given, "reshard_shard", err);
    if (status)
        return status;
    const struct str key = { taken.key.data, taken.key.size };
    const int64_t *const vectors[] = { taken.global_shape, taken.start, taken.extent };
    *out = (struct shard){
        .key = key,
        .rank = (int)taken.rank,
        .shape = taken.global_shape,
        .start = taken.start,
        .extent = taken.extent,
        .is_flattened = taken.is_flattened != 0,
        .flat_begin = taken.flat_begin,
        .flat_end = taken.flat_end,
        .data = taken.data,
        .strides = taken.strides,
    };
    shard_functions_take(taken.read, taken.write, taken.context, out);
    status = key.size && !key.data ? error_set(err, RESHARD_ERR_USAGE, "the key of a shard is NULL") : RESHARD_OK;
    if (!status)
        status = vectors_check(taken.rank, vectors, 3, key, err);
    if (!status)
        status = shard_functions_check(out, err);
    if (!status)
        status = dtype_take(taken.dtype, key, &out->dtype, err);
    return status ? status : shard_check(out, err);
}

static reshard_shard shard_public(const struct shard *shard)
{
    return (reshard_shard){
        .key = { shard->key.data ? shard->key.data : "", shard->key.size },
        .dtype = dtype_info(shard->dtype)->name,
        .rank = (size_t)shard->rank,
        .global_shape = shard->shape,
        .start = shard->start,
        .extent = shard->extent,
        .is_flattened = shard->is_flattened,
        .flat_begin = shard->is_flattened ? shard->flat_begin : 0,
        .flat_end = shard->is_flattened ? shard->flat_end : 0,
        .data = shard->data,
        .strides = shard->strides,
        .read = shard->read,
        .write = shard->write,
        .context = shard->context,
    };
}

API_EXPORT reshard_status reshard_shard_describe(const reshard_shard *shard, reshard_shard *out, reshard_error *err)
{
    struct shard taken;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    reshard_status status = struct_clear(out, "reshard_shard", err);
    if (status)
        return status;
    NEEDS(shard, err);
    status = shard_take(shard, &taken, err);
    if (status)
        return status;
    taken.is_flattened = false;
    taken.strides = NULL;
    taken.data = NULL;
    shard_functions_take(NULL, NULL, NULL, &taken);
    const reshard_shard made = shard_public(&taken);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* ---- slices ---- */

static reshard_status permutation_take(const int64_t *axes, struct shard_slice *slice, reshard_error *err)
{
    int before[RANK_MAX];
    uint64_t seen = 0;
    int rank = slice->source->rank;
    memcpy(before, slice->axes, sizeof(before));
    for (int i = 0; i < rank; i++) {
        if (axes[i] < 0 || axes[i] >= rank || (seen >> axes[i] & 1))
            return error_set(err, RESHARD_ERR_USAGE, "axis %" PRId64 " of a permutation of %d axes is none, or is there twice", axes[i],
                             rank);
        seen |= UINT64_C(1) << axes[i];
        slice->axes[i] = before[axes[i]];
    }
    return RESHARD_OK;
}

static reshard_status operation_take(const reshard_slice_operation *operation, struct shard_slice *slice, reshard_error *err)
{
    if (!operation->dtype)
        return operation->axes ? permutation_take(operation->axes, slice, err)
                               : error_set(err, RESHARD_ERR_USAGE, "an operation has neither dtype nor axes");
    if (slice->via_count == COPY_VIA_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "more than %d casts", COPY_VIA_MAX);
    return dtype_take(operation->dtype, slice->source->key, &slice->via[slice->via_count++], err);
}

static reshard_status operations_take(const reshard_slice_copy *copy, struct shard_slice *slice, reshard_error *err)
{
    reshard_slice_operation *operations = NULL;
    reshard_status status = array_take(copy->operations, copy->operation_count, copy->operation_stride, sizeof(*operations),
                                       "reshard_slice_operation", (void **)&operations, err);
    for (int axis = 0; axis < RANK_MAX; axis++)
        slice->axes[axis] = axis;
    for (size_t i = 0; !status && i < copy->operation_count; i++)
        status = operation_take(&operations[i], slice, err);
    free(operations);
    enum dtype last = slice->via_count ? slice->via[slice->via_count - 1] : slice->source->dtype;
    if (!status && last != slice->target->dtype)
        status = error_set(err, RESHARD_ERR_USAGE, "the slice is %s behind its operations, the target %s", dtype_info(last)->name,
                           dtype_info(slice->target->dtype)->name);
    return status;
}

API_EXPORT reshard_status reshard_assign_slice(const reshard_slice_copy *copy, uint64_t *elements, reshard_error *err)
{
    struct shard shards[4];
    struct shard_slice slice = { &shards[0], &shards[1], &shards[2], &shards[3], { 0 }, { 0 }, 0 };
    reshard_slice_copy taken;
    uint64_t written = 0;
    ERROR_SCOPE(err);
    if (elements)
        *elements = 0;
    NEEDS(copy, err);
    reshard_status status = struct_take(&taken, sizeof(taken), copy, "reshard_slice_copy", err);
    if (status)
        return status;
    const reshard_shard *const given[] = { taken.source_region, taken.source, taken.target_region, taken.target };
    for (int i = 0; !status && i < 4; i++)
        status = given[i] ? shard_take(given[i], &shards[i], err) : argument_missing(__func__, "a region or shard", err);
    if (!status && (!shards[1].data || !shards[3].data))
        status = error_set(err, RESHARD_ERR_USAGE, "the source or the target has no values");
    if (!status && (shards[1].strides || shards[3].strides))
        status = error_set(err, RESHARD_ERR_USAGE, "slices of shards with strides are not assigned");
    if (!status)
        status = operations_take(&taken, &slice, err);
    if (!status)
        status = shard_slice_copy(&slice, &written, err);
    if (elements)
        *elements = written;
    return status;
}

/* ---- lists ---- */

API_EXPORT reshard_status reshard_shards_new(reshard_shards **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = calloc(1, sizeof(**out));
    return *out ? RESHARD_OK : error_set_memory(err);
}

API_EXPORT void reshard_shards_free(reshard_shards *shards)
{
    if (shards)
        shard_list_release(&shards->list);
    free(shards);
}

API_EXPORT reshard_status reshard_shards_add(reshard_shards *shards, const reshard_shard *shard, reshard_error *err)
{
    struct shard taken;
    ERROR_SCOPE(err);
    NEEDS(shards, err);
    NEEDS(shard, err);
    reshard_status status = shard_take(shard, &taken, err);
    return status ? status : shard_list_add(&shards->list, &taken, err);
}

API_EXPORT size_t reshard_shards_count(const reshard_shards *shards)
{
    return shards ? shards->list.count : 0;
}

API_EXPORT reshard_status reshard_shards_at(const reshard_shards *shards, size_t index, reshard_shard *out)
{
    if (!entry_begin(out, "reshard_shard", index, reshard_shards_count(shards)))
        return RESHARD_ERR_USAGE;
    const reshard_shard made = shard_public(&shards->list.shards[index]);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_shards_merge(const reshard_shards *const *lists, size_t count, reshard_shards **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!lists || !lists[i])
            return argument_missing(__func__, "lists", err);
    }
    reshard_shards *made = NULL;
    const struct shard_list **inner = array_zeroed(count, sizeof(const struct shard_list *));
    reshard_status status = inner ? reshard_shards_new(&made, err) : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++)
        inner[i] = &lists[i]->list;
    if (!status)
        status = shard_list_merge(inner, count, &made->list, err);
    free(inner);
    if (status) {
        reshard_shards_free(made);
        return status;
    }
    *out = made;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_shards_check(const reshard_shards *source, const reshard_shards *target, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(source, err);
    return shard_list_check(&source->list, target ? &target->list : NULL, err);
}

/* ---- a rank's tensors ---- */

static const reshard_split_rule *rule_find(const reshard_split_rule *rules, size_t count, struct str name)
{
    for (size_t i = 0; i < count; i++) {
        if (str_equal((struct str){ rules[i].name.data, rules[i].name.size }, name))
            return &rules[i];
    }
    return NULL;
}

static reshard_status split_add(struct shard_list *list, const reshard_split_input *input, const reshard_local_tensor *tensor,
                                const reshard_split_rule *rules, reshard_error *err)
{
    const struct str name = { tensor->name.data, tensor->name.size };
    struct shard local = { .rank = (int)tensor->rank, .extent = tensor->shape, .data = tensor->data };
    const reshard_split_rule *rule = rule_find(rules, input->rule_count, name);
    const struct shard_split split = { rule ? rule->axis : -1, input->part, input->parts ? input->parts : 1 };
    struct buffer key = { 0 };
    int64_t volume;
    reshard_status status = vectors_check(tensor->rank, &tensor->shape, 1, name, err);
    if (!status && rule && rule->axis < 0)
        status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': the rule splits axis %" PRId64, STR_ARG(name), split.axis);
    if (!status && !shape_volume(local.rank, tensor->shape, &volume))
        status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': the shape has a negative extent or too many elements", STR_ARG(name));
    if (!status)
        status = dtype_take(tensor->dtype, name, &local.dtype, err);
    if (!status && (!buffer_append(&key, input->prefix.data, input->prefix.size) || !buffer_append_str(&key, name)))
        status = buffer_error(&key, err);
    local.key = buffer_str(&key);
    if (!status)
        status = shard_list_add_split(list, &local, &split, err);
    buffer_release(&key);
    return status;
}

API_EXPORT reshard_status reshard_shards_split(const reshard_split_input *input, reshard_shards **out, reshard_error *err)
{
    reshard_split_input taken;
    reshard_local_tensor *tensors = NULL;
    reshard_split_rule *rules = NULL;
    reshard_shards *made = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(input, err);
    reshard_status status = struct_take(&taken, sizeof(taken), input, "reshard_split_input", err);
    if (!status)
        status = array_take(taken.tensors, taken.tensor_count, taken.tensor_stride, sizeof(*tensors), "reshard_local_tensor",
                            (void **)&tensors, err);
    if (!status)
        status = array_take(taken.rules, taken.rule_count, taken.rule_stride, sizeof(*rules), "reshard_split_rule", (void **)&rules, err);
    if (!status)
        status = reshard_shards_new(&made, err);
    for (size_t i = 0; !status && i < taken.tensor_count; i++)
        status = split_add(&made->list, &taken, &tensors[i], rules, err);
    free(tensors);
    free(rules);
    if (status) {
        reshard_shards_free(made);
        return status;
    }
    *out = made;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_state_kind(const reshard_local_tensor *tensors, size_t stride, size_t count, int64_t *kind,
                                             reshard_error *err)
{
    reshard_local_tensor *taken = NULL;
    ERROR_SCOPE(err);
    NEEDS(kind, err);
    *kind = RESHARD_STATE_EMPTY;
    reshard_status status = array_take(tensors, count, stride, sizeof(*taken), "reshard_local_tensor", (void **)&taken, err);
    if (status)
        return status;
    for (size_t i = 0; !status && i < count; i++) {
        const size_t sharded = taken[i].shard ? i : 0, plain = taken[i].shard ? 0 : i;
        if (!taken[i].shard != !taken[0].shard)
            status = error_set(err, RESHARD_ERR_USAGE, "a state dict holds shards or tensors, not both: '%.*s' is a shard, '%.*s' a tensor",
                               STR_ARG(taken[sharded].name), STR_ARG(taken[plain].name));
    }
    if (!status && count)
        *kind = taken[0].shard ? RESHARD_STATE_SHARDED : RESHARD_STATE_PLAIN;
    free(taken);
    return status;
}

API_EXPORT reshard_status reshard_state_kinds_join(const int64_t *kinds, size_t count, int64_t *kind, reshard_error *err)
{
    size_t first = 0;
    ERROR_SCOPE(err);
    NEEDS(kind, err);
    *kind = RESHARD_STATE_EMPTY;
    if (count)
        NEEDS(kinds, err);
    int64_t found = RESHARD_STATE_EMPTY;
    for (size_t i = 0; i < count; i++) {
        if (kinds[i] < RESHARD_STATE_PLAIN || kinds[i] > RESHARD_STATE_SHARDED)
            return error_set(err, RESHARD_ERR_USAGE, "rank %zu: %" PRId64 " is no kind of state", i, kinds[i]);
        if (kinds[i] && found && kinds[i] != found)
            return error_set(err, RESHARD_ERR_USAGE, "rank %zu holds shards, rank %zu plain tensors",
                             found == RESHARD_STATE_SHARDED ? first : i, found == RESHARD_STATE_SHARDED ? i : first);
        if (kinds[i] && !found)
            first = i;
        found = kinds[i] ? kinds[i] : found;
    }
    *kind = found;
    return RESHARD_OK;
}
