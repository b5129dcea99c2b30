/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that torch calls to make tensors, as patterns over inert calls. */
#include "base/checked.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>

reshard_status torch_view_check(const struct torch_view *view, uint64_t storage_bytes, const struct limits *limits, uint64_t at,
                                uint64_t *offset_bytes, reshard_error *err)
{
    int64_t elements, end;
    uint64_t bytes, begin;
    unsigned item = dtype_element_bytes(view->dtype);
    for (int i = 0; i < view->rank; i++) {
        if (view->shape[i] < 0)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "negative size %" PRId64 " of a tensor", view->shape[i]);
        if (view->strides[i] < 0)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "negative stride %" PRId64 " of a tensor", view->strides[i]);
    }
    if (view->offset < 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "negative offset %" PRId64 " of a tensor", view->offset);
    if (!shape_volume(view->rank, view->shape, &elements))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "number of elements of a tensor overflows 64 bits");
    if (item == 0 || !dtype_bytes(view->dtype, (uint64_t)elements, &bytes) || bytes > INT64_MAX ||
        !checked_mul_u64((uint64_t)view->offset, item, &begin))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "number of bytes of a tensor overflows 64 bits");
    if (elements == 0) {
        *offset_bytes = begin < storage_bytes ? begin : storage_bytes;
        return RESHARD_OK;
    }
    if (!strides_span(view->rank, view->shape, view->strides, &end) || !checked_add_i64(end, view->offset, &end) ||
        (uint64_t)end > storage_bytes / item)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "view of a tensor reaches beyond its storage of %" PRIu64 " bytes", storage_bytes);
    if (bytes > storage_bytes && bytes - storage_bytes > limits->tensor_expansion)
        return error_set_limit(err, "tensor_expansion", bytes - storage_bytes, limits->tensor_expansion);
    *offset_bytes = begin;
    return RESHARD_OK;
}

static reshard_status wrong_args(const struct value *node, const char *function, size_t count, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "%s with %zu arguments", function, count);
}

static reshard_status parse_numbers(const struct value *value, const struct value *node, const char *what, int64_t *out, size_t *count,
                                    reshard_error *err)
{
    if (value_as_ints(value, out, RANK_MAX, count))
        return RESHARD_OK;
    struct value **items;
    size_t length;
    if (!value_as_sequence(value, &items, &length))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "%s of a tensor is a %s, not a tuple", what, value_kind_name(value));
    if (length > RANK_MAX)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, node->offset, "tensor of %zu dimensions, at most %d are supported", length,
                            RANK_MAX);
    return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "%s of a tensor holds something that is not a 64-bit integer", what);
}

/* Quantized types that pack several values into a byte count shapes and offsets in values. */
static unsigned values_per_byte(enum dtype dtype)
{
    return dtype == DTYPE_QUINT4X2 ? 2 : dtype == DTYPE_QUINT2X4 ? 4 : 1;
}

/* (storage, offset, size, stride) in args[0..3], checked, as a tensor. *is_known false: a storage of an unknown class or without data. */
static reshard_status torch_save_rebuild_parse_view(struct torch_reading *reading, struct value *const *args, const enum dtype *dtype,
                                 const struct value *node, struct torch_tensor *out, bool *is_known, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    const struct value *persid = args[0];
    int64_t shape[RANK_MAX], strides[RANK_MAX], offset;
    size_t rank, stride_count;
    if (value_is_call(persid, "torch.storage", "_load_from_bytes")) { /* a file inside the pickle: what pickle.dump makes of a tensor */
        *is_known = false;
        return RESHARD_OK;
    }
    if (persid->kind != VALUE_PERSID || persid->storage == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage argument of a tensor is not a storage but a %s",
                            value_kind_name(persid));
    if (!value_as_int(args[1], &offset))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "offset of a tensor is not a 64-bit integer");
    reshard_status status = parse_numbers(args[2], node, "size", shape, &rank, err);
    if (!status)
        status = parse_numbers(args[3], node, "stride", strides, &stride_count, err);
    if (status)
        return status;
    if (rank != stride_count)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "size and stride of a tensor differ in length, %zu and %zu", rank,
                            stride_count);

    const struct torch_storage *storage = &archive->storages[persid->storage - 1];
    *is_known = !storage->is_unknown_class && storage->has_data;
    if (storage->is_unknown_class)
        return RESHARD_OK;
    struct torch_view view = { dtype ? *dtype : storage->dtype, (int)rank, shape, strides, offset };
    uint64_t storage_bytes;
    if (!checked_mul_u64(storage->bytes, values_per_byte(view.dtype), &storage_bytes))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage of %" PRIu64 " bytes overflows", storage->bytes);
    status = torch_view_check(&view, storage_bytes, reading->limits, node->offset, &out->offset_bytes, err);
    if (status)
        return status;
    size_t bytes = rank * sizeof(int64_t);
    int64_t *kept = arena_alloc(&archive->arena, 2 * bytes);
    if (!kept)
        return error_set_memory(err);
    memcpy(kept, shape, bytes);
    memcpy(kept + rank, strides, bytes);
    out->storage = persid->storage - 1;
    out->dtype = view.dtype;
    out->rank = (int)rank;
    out->shape = kept;
    out->strides = kept + rank;
    out->flags = archive->is_big_endian && !storage->is_untyped && dtype_info(view.dtype)->swap_bytes > 1 ? TORCH_TENSOR_SWAP : 0;
    out->node = node;
    return RESHARD_OK;
}

static unsigned metadata_flags(const struct value *metadata)
{
    unsigned flags = 0;
    if (value_dict_is_true(metadata, "conj"))
        flags |= TORCH_TENSOR_CONJ;
    if (value_dict_is_true(metadata, "neg"))
        flags |= TORCH_TENSOR_NEG;
    return flags;
}

static bool is_true(const struct value *value)
{
    return value->kind == VALUE_BOOL && value->boolean;
}

/* Hooks are written empty, always: anything in there is code that somebody wants to run, or data that a plain tensor cannot keep. */
static bool has_no_hooks(const struct value *hooks)
{
    struct value **pairs;
    size_t count;
    if (hooks->kind == VALUE_NONE)
        return true;
    if (!value_as_mapping(hooks, &pairs, &count) || count > 0)
        return false;
    return hooks->kind == VALUE_DICT || (hooks->object->args->list.count == 0 && hooks->object->state_count == 0);
}

/* _rebuild_tensor, _v2 and _v3; sets node->tensor if the tensor is dense and its data is there. */
static reshard_status note_dense(struct torch_reading *reading, enum torch_rebuild rebuild, struct value *const *args, size_t count,
                                 struct value *node, reshard_error *err)
{
    static const struct {
        const char *name;
        size_t min, max;
    } arity[] = { [REBUILD_V1] = { "_rebuild_tensor", 4, 4 },
                  [REBUILD_V2] = { "_rebuild_tensor_v2", 6, 7 },
                  [REBUILD_V3] = { "_rebuild_tensor_v3", 7, 8 } };
    if (count < arity[rebuild].min || count > arity[rebuild].max)
        return wrong_args(node, arity[rebuild].name, count, err);

    struct torch_tensor tensor = { 0 };
    enum dtype dtype = DTYPE_U8;
    bool is_known;
    if (rebuild == REBUILD_V3) {
        if (args[6]->kind != VALUE_GLOBAL || !str_is(args[6]->global.module, "torch"))
            return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "dtype of a tensor is not a dtype but a %s",
                                value_kind_name(args[6]));
        if (!torch_dtype_of(args[6], &dtype))
            return torch_warn(reading, err, "a tensor of unknown type torch.%.*s is kept as an object", STR_ARG(args[6]->global.name));
    }
    reshard_status status =
        torch_save_rebuild_parse_view(reading, args, rebuild == REBUILD_V3 ? &dtype : NULL, node, &tensor, &is_known, err);
    if (status || !is_known || values_per_byte(tensor.dtype) > 1)
        return status;
    if (rebuild != REBUILD_V1 && !has_no_hooks(args[5]))
        return torch_warn(reading, err, "a tensor with backward hooks is kept as an object");
    if (reading->archive->is_big_endian && reading->archive->storages[tensor.storage].is_untyped &&
        dtype_info(tensor.dtype)->swap_bytes > 1)
        status = torch_warn(reading, err,
                            "a big-endian file holds a %s tensor as untyped bytes, which torch on little-endian machines reads "
                            "without swapping them; so does reshard",
                            dtype_info(tensor.dtype)->name);
    if (rebuild != REBUILD_V1 && is_true(args[4]))
        tensor.flags |= TORCH_TENSOR_REQUIRES_GRAD;
    if (count == arity[rebuild].max && rebuild != REBUILD_V1)
        tensor.flags |= metadata_flags(args[count - 1]);
    uint32_t index;
    if (!status)
        status = torch_add_tensor(reading, &tensor, &index, err);
    if (!status)
        node->tensor = index + 1;
    return status;
}

/* (tensor, requires_grad, …): the node denotes what its first argument does. */
static reshard_status note_wrapper(struct torch_reading *reading, enum torch_rebuild rebuild, struct value *const *args, size_t count,
                                   struct value *node, reshard_error *err)
{
    if (count < 3)
        return wrong_args(node, "_rebuild_parameter", count, err);
    if (args[0]->tensor == 0)
        return RESHARD_OK;
    struct torch_tensor *tensor = &reading->archive->tensors[args[0]->tensor - 1];
    if (rebuild == REBUILD_FROM_CPU) {
        enum dtype dtype;
        if (torch_dtype_of(args[1], &dtype) && dtype == tensor->dtype)
            node->tensor = args[0]->tensor;
        return RESHARD_OK;
    }
    node->tensor = args[0]->tensor;
    tensor->flags |= TORCH_TENSOR_PARAMETER;
    if (is_true(args[1]))
        tensor->flags |= TORCH_TENSOR_REQUIRES_GRAD;
    return RESHARD_OK;
}

static reshard_status note_quantized(struct torch_reading *reading, struct value *const *args, size_t count, const struct value *node,
                                     reshard_error *err)
{
    struct torch_tensor tensor = { 0 };
    bool is_known;
    if (count < 6)
        return wrong_args(node, "_rebuild_qtensor", count, err);
    return torch_save_rebuild_parse_view(reading, args, NULL, node, &tensor, &is_known, err);
}

/* _rebuild_from_type_v2(function, type, args, state): the function applied to args, then dressed as type. */
static reshard_status note_from_type(struct torch_reading *reading, struct value *const *args, size_t count, struct value *node,
                                     reshard_error *err)
{
    if (count != 4)
        return wrong_args(node, "_rebuild_from_type_v2", count, err);
    enum torch_rebuild rebuild = torch_rebuild_of(args[0]);
    struct value **inner;
    size_t inner_count;
    if (rebuild == REBUILD_NONE || args[2]->kind != VALUE_TUPLE || !value_as_sequence(args[2], &inner, &inner_count))
        return RESHARD_OK;
    bool is_shard;
    switch (rebuild) {
    case REBUILD_V1:
    case REBUILD_V2:
    case REBUILD_V3:
        return note_dense(reading, rebuild, inner, inner_count, node, err);
    case REBUILD_PARAMETER:
    case REBUILD_PARAMETER_STATE:
    case REBUILD_FROM_CPU:
        return note_wrapper(reading, rebuild, inner, inner_count, node, err);
    case REBUILD_QUANTIZED:
        return note_quantized(reading, inner, inner_count, node, err);
    case REBUILD_WRAPPER:
        return torch_interpret_shard(reading, node, &is_shard, err);
    default:
        return RESHARD_OK;
    }
}

reshard_status torch_note_built(struct torch_reading *reading, struct value *node, reshard_error *err)
{
    const struct value_object *object = node->object;
    struct value **items;
    size_t count;
    if (!torch_is_tensor_class(object->callable) || object->state_count != 1 || !value_as_sequence(object->states[0], &items, &count) ||
        count != 4 || items[0]->kind != VALUE_PERSID)
        return RESHARD_OK;
    struct torch_tensor tensor = { 0 };
    bool is_known;
    uint32_t index;
    reshard_status status = torch_save_rebuild_parse_view(reading, items, NULL, node, &tensor, &is_known, err);
    if (!status && is_known) {
        status = torch_add_tensor(reading, &tensor, &index, err);
        if (!status)
            node->tensor = index + 1;
    }
    return status;
}

static reshard_status check_callable(const struct value *node, reshard_error *err)
{
    const struct value_object *object = node->object;
    switch (object->callable->kind) {
    case VALUE_GLOBAL:
    case VALUE_CALL:
    case VALUE_NEW:
    case VALUE_PERSID:
        break;
    default:
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "call of a %s", value_kind_name(object->callable));
    }
    enum value_kind args = object->args ? object->args->kind : VALUE_TUPLE;
    if (args != VALUE_TUPLE && !(args == VALUE_LIST && node->kind == VALUE_CALL))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "arguments of a call are a %s, not a tuple",
                            value_kind_name(object->args));
    return RESHARD_OK;
}

static reshard_status note_call(struct torch_reading *reading, enum torch_rebuild rebuild, struct value *node, reshard_error *err)
{
    struct value **args = node->object->args->list.items;
    size_t count = node->object->args->list.count;
    switch (rebuild) {
    case REBUILD_V1:
    case REBUILD_V2:
    case REBUILD_V3:
        return note_dense(reading, rebuild, args, count, node, err);
    case REBUILD_PARAMETER:
    case REBUILD_PARAMETER_STATE:
    case REBUILD_FROM_CPU:
        return note_wrapper(reading, rebuild, args, count, node, err);
    case REBUILD_FROM_TYPE:
        return note_from_type(reading, args, count, node, err);
    case REBUILD_QUANTIZED:
        return note_quantized(reading, args, count, node, err);
    default:
        return RESHARD_OK;
    }
}

reshard_status torch_note_object(struct torch_reading *reading, struct value *node, reshard_error *err)
{
    const struct value_object *object = node->object;
    reshard_status status = check_callable(node, err);
    if (status)
        return status;
    if (node->kind == VALUE_NEW)
        return RESHARD_OK;

    enum torch_rebuild rebuild = torch_rebuild_of(object->callable);
    if (rebuild == REBUILD_NONE)
        return RESHARD_OK;
    if (object->state_count > 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "BUILD on a tensor");
    if (object->list_count > 0 || object->dict_count > 0 || object->set_count > 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "items put into a tensor");
    return note_call(reading, rebuild, node, err);
}

bool torch_save_args_require_grad(const struct value *args)
{
    return args && args->kind == VALUE_TUPLE && args->list.count > 5 && is_true(args->list.items[4]);
}

enum torch_spelling torch_save_spelling(const struct value *value, const struct value **args, bool *requires_grad)
{
    *args = NULL;
    *requires_grad = false;
    if (value->kind != VALUE_CALL)
        return TORCH_SPELLS_ITSELF;
    const struct value *call_args = value->object->args;
    switch (torch_rebuild_of(value->object->callable)) {
    case REBUILD_V1:
    case REBUILD_V2:
    case REBUILD_V3:
        *requires_grad = torch_save_args_require_grad(call_args);
        return TORCH_SPELLS_ITSELF;
    case REBUILD_FROM_TYPE:
        switch (torch_rebuild_of(call_args->list.items[0])) {
        case REBUILD_V1:
        case REBUILD_V2:
        case REBUILD_V3:
            *args = call_args->list.items[2];
            *requires_grad = torch_save_args_require_grad(*args);
            return TORCH_SPELLS_DRESSED;
        default:
            return TORCH_SPELLS_INNER;
        }
    default:
        return TORCH_SPELLS_INNER;
    }
}
