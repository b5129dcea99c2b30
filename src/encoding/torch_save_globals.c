/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/torch_save_parts.h"

/* Names of one module, separated and surrounded by single blanks. */
struct global_names {
    const char *module, *names;
};

#define STORAGE_CLASSES                                                                                                                \
    " FloatStorage BFloat16Storage HalfStorage LongStorage IntStorage ByteStorage BoolStorage DoubleStorage CharStorage ShortStorage " \
    "ComplexFloatStorage ComplexDoubleStorage "
#define TENSOR_CLASSES " FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor ShortTensor CharTensor ByteTensor "

/* What torch.load(weights_only=True) of torch 2.13 takes: its built-in table, and what torch.distributed adds to it. */
static const struct global_names weights_only_names[] = {
    { "torch._utils",
      " _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state _rebuild_tensor _rebuild_qtensor "
      "_rebuild_sparse_tensor _rebuild_meta_tensor_no_storage _rebuild_nested_tensor _rebuild_wrapper_subclass "
      "_rebuild_device_tensor_from_cpu_tensor _rebuild_device_tensor_from_numpy " },
    { "torch._tensor", " _rebuild_from_type_v2 " },
    { "collections", " OrderedDict Counter " },
    { "torch", STORAGE_CLASSES },
    { "torch", TENSOR_CLASSES },
    { "torch", " QInt8Storage QUInt8Storage QInt32Storage QUInt4x2Storage QUInt2x4Storage BoolTensor Size Tensor device "
               "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric per_channel_affine_float_qparams "
               "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex128 complex64 complex32 qint8 qint32 quint8 "
               "quint4x2 quint2x4 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu uint16 "
               "uint32 uint64 bits8 bits16 bits1x8 bits2x4 bits4x2 uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 "
               "int6 int7 " },
    { "torch.storage", " UntypedStorage TypedStorage " },
    { "torch.cuda", STORAGE_CLASSES },
    { "torch.cuda", TENSOR_CLASSES },
    { "torch.cuda", " BoolTensor " },
    { "torch.sparse", TENSOR_CLASSES },
    { "torch.cuda.sparse", TENSOR_CLASSES },
    { "torch.nn.parameter", " Parameter " },
    { "torch.serialization", " _get_layout " },
    { "_codecs", " encode " },
    { "builtins", " bytearray set complex " },
    { "torch.nested._internal.nested_tensor", " NestedTensor _rebuild_njt " },
    { "torch._dynamo.decorators", " _DimRange " },
    { "torch.distributed._mesh_layout", " _MeshLayout _FlatLayout " },
    { "torch.distributed.device_mesh", " DeviceMesh " },
    { "torch.distributed.tensor", " DTensor " },
    { "torch.distributed.tensor._dtensor_spec", " DTensorSpec TensorMeta ShardOrderEntry " },
    { "torch.distributed.tensor.placement_types", " Partial Replicate Shard _StridedShard " },
};

/* Makes plain values and nothing else, besides what weights_only takes. */
static const struct global_names harmless_names[] = {
    { "collections", " defaultdict deque " },
    { "builtins", " frozenset bytes str int float bool list dict tuple object range slice Ellipsis NotImplemented NoneType " },
    { "argparse", " Namespace " },
    { "types", " SimpleNamespace " },
    { "copyreg", " _reconstructor " },
    { "datetime", " datetime date time timedelta timezone " },
    { "decimal", " Decimal " },
    { "fractions", " Fraction " },
    { "uuid", " UUID SafeUUID " },
    { "_io", " BytesIO StringIO " },
    { "pathlib", " PurePath PurePosixPath PureWindowsPath Path PosixPath WindowsPath " },
    { "pathlib._local", " PurePath PurePosixPath PureWindowsPath Path PosixPath WindowsPath " },
    { "functools", " partial " },
    { "numpy",
      " ndarray dtype bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 str_ " },
    { "numpy.core.multiarray", " _reconstruct scalar " },
    { "numpy._core.multiarray", " _reconstruct scalar " },
    { "numpy.core.numeric", " _frombuffer " },
    { "numpy._core.numeric", " _frombuffer " },
    { "torch", " BoolStorage UntypedStorage SymInt Generator preserve_format contiguous_format channels_last channels_last_3d strided "
               "sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc complex32 bcomplex32 " },
    { "torch._utils", " _rebuild_xla_tensor torch.channels_last torch.channels_last_3d torch.contiguous_format torch.preserve_format " },
    { "torch._tensor", " _rebuild_from_type Tensor " },
    { "torch.storage", " _UntypedStorage _TypedStorage " },
    { "torch.nn.parameter", " Buffer " },
    { "torch.distributed._tensor.api", " DTensor " },
    { "torch.distributed.tensor._api", " DTensor " },
    { "torch.distributed._tensor.placement_types", " DTensorSpec TensorMeta Partial Replicate Shard _Partial _StridedShard " },
    { "torch.distributed.tensor.placement_types", " DTensorSpec TensorMeta " },
    { "torch.distributed._shard.sharded_tensor.api", " ShardedTensor " },
    { "torch.distributed._shard.sharded_tensor.shard", " Shard " },
    { "torch.distributed._shard.sharded_tensor.metadata", " ShardedTensorMetadata TensorProperties MEM_FORMAT_ENCODING " },
    { "torch.distributed._shard.metadata", " ShardMetadata " },
    { "torch.distributed._shard.sharding_spec.chunk_sharding_spec", " ChunkShardingSpec " },
    { "torch.distributed._shard.sharding_spec.api", " EnumerableShardingSpec " },
    { "torch.distributed.remote_device", " _remote_device " },
};

static bool names_hold(const char *names, struct str name)
{
    const char *found = names;
    while (name.size > 0 && (found = strstr(found, " ")) != NULL) {
        found++;
        if (strncmp(found, name.data, name.size) == 0 && found[name.size] == ' ')
            return true;
    }
    return false;
}

static bool table_holds(const struct global_names *table, size_t count, struct str module, struct str name)
{
    if (memchr(name.data ? name.data : "", ' ', name.size) || memchr(name.data ? name.data : "", '\0', name.size))
        return false;
    for (size_t i = 0; i < count; i++)
        if (str_is(module, table[i].module) && names_hold(table[i].names, name))
            return true;
    return false;
}

bool torch_global_is_weights_only(struct str module, struct str name)
{
    return table_holds(weights_only_names, sizeof(weights_only_names) / sizeof(*weights_only_names), module, name);
}

bool torch_global_is_harmless(struct str module, struct str name)
{
    return torch_global_is_weights_only(module, name) ||
           table_holds(harmless_names, sizeof(harmless_names) / sizeof(*harmless_names), module, name);
}

static const struct {
    const char *module, *name;
    enum torch_rebuild rebuild;
} rebuilds[] = {
    { "torch._utils", "_rebuild_tensor_v2", REBUILD_V2 },
    { "torch._utils", "_rebuild_tensor_v3", REBUILD_V3 },
    { "torch._utils", "_rebuild_parameter", REBUILD_PARAMETER },
    { "torch._utils", "_rebuild_tensor", REBUILD_V1 },
    { "torch._utils", "_rebuild_parameter_with_state", REBUILD_PARAMETER_STATE },
    { "torch._tensor", "_rebuild_from_type_v2", REBUILD_FROM_TYPE },
    { "torch._tensor", "_rebuild_from_type", REBUILD_FROM_TYPE },
    { "torch.tensor", "_rebuild_from_type", REBUILD_FROM_TYPE },
    { "torch._utils", "_rebuild_device_tensor_from_cpu_tensor", REBUILD_FROM_CPU },
    { "torch._utils", "_rebuild_qtensor", REBUILD_QUANTIZED },
    { "torch._utils", "_rebuild_wrapper_subclass", REBUILD_WRAPPER },
    { "torch._utils", "_rebuild_sparse_tensor", REBUILD_SPECIAL },
    { "torch._utils", "_rebuild_sparse_csr_tensor", REBUILD_SPECIAL },
    { "torch._utils", "_rebuild_nested_tensor", REBUILD_SPECIAL },
    { "torch._utils", "_rebuild_meta_tensor_no_storage", REBUILD_SPECIAL },
    { "torch._utils", "_rebuild_device_tensor_from_numpy", REBUILD_SPECIAL },
    { "torch._utils", "_rebuild_xla_tensor", REBUILD_SPECIAL },
};

enum torch_rebuild torch_rebuild_of(const struct value *callable)
{
    if (!callable || callable->kind != VALUE_GLOBAL || !str_starts_with(callable->global.module, "torch."))
        return REBUILD_NONE;
    for (size_t i = 0; i < sizeof(rebuilds) / sizeof(*rebuilds); i++)
        if (value_is_global(callable, rebuilds[i].module, rebuilds[i].name))
            return rebuilds[i].rebuild;
    return REBUILD_NONE;
}

bool torch_dtype_of(const struct value *global, enum dtype *out)
{
    return global->kind == VALUE_GLOBAL && str_is(global->global.module, "torch") && global->global.name.size > 0 &&
           dtype_from_torch(global->global.name, out);
}

/* torch, or a device's module such as torch.cuda. */
static bool is_device_module(struct str module)
{
    if (str_is(module, "torch"))
        return true;
    if (!str_starts_with(module, "torch.") || module.size == 6)
        return false;
    for (size_t i = 6; i < module.size; i++)
        if (module.data[i] < 'a' || module.data[i] > 'z')
            return false;
    return true;
}

bool torch_storage_class_of(const struct value *global, enum dtype *out, bool *is_untyped)
{
    struct str module = global->global.module, name = global->global.name;
    *is_untyped = (str_is(module, "torch.storage") || str_is(module, "torch")) &&
                  (str_is(name, "UntypedStorage") || str_is(name, "_UntypedStorage") || str_is(name, "TypedStorage") ||
                   str_is(name, "_TypedStorage"));
    if (*is_untyped) {
        *out = DTYPE_U8;
        return true;
    }
    return name.size > 0 && is_device_module(module) && dtype_from_torch_storage(name, out);
}

bool torch_is_tensor_class(const struct value *global)
{
    if (!global || global->kind != VALUE_GLOBAL)
        return false;
    struct str module = global->global.module, name = global->global.name;
    if (str_is(module, "torch.nn.parameter"))
        return str_is(name, "Parameter");
    return is_device_module(module) && (str_is(name, "Tensor") || str_is(name, "BoolTensor") || names_hold(TENSOR_CLASSES, name));
}

bool torch_save_is_tensor_node(const struct value *value)
{
    if (value->tensor > 0)
        return true;
    return value->kind == VALUE_CALL && torch_rebuild_of(value->object->callable) != REBUILD_NONE;
}
