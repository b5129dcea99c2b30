/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cast.h"

#include <stdbool.h>

/* gcc vectorises these loops only at this level, and where no operation has to be left undone for the exception that it would raise; each
 * is simple enough to gain from it: 16-bit and 8-bit floats take half of the time, or a third. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-trapping-math")
#endif

#include "base/float_bits.h"

#define BLOCK_ELEMENTS 256

/* Elements at any address. */
#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef uint8_t mem_u8 UNALIGNED;
typedef int8_t mem_i8 UNALIGNED;
typedef uint16_t mem_u16 UNALIGNED;
typedef int16_t mem_i16 UNALIGNED;
typedef uint32_t mem_u32 UNALIGNED;
typedef int32_t mem_i32 UNALIGNED;
typedef uint64_t mem_u64 UNALIGNED;
typedef int64_t mem_i64 UNALIGNED;
typedef float mem_f32 UNALIGNED;
typedef double mem_f64 UNALIGNED;

/* What x86 makes of it: INT64_MIN if it does not fit or is NaN. */
static inline int64_t truncate_i64(double value)
{
    return value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

static inline int32_t truncate_i32(double value)
{
    return value > -0x1p31 - 1 && value < 0x1p31 ? (int32_t)value : INT32_MIN;
}

static inline uint64_t truncate_u64(double value)
{
    return value >= 0x1p63 ? (uint64_t)truncate_i64(value - 0x1p63) ^ UINT64_C(1) << 63 : (uint64_t)truncate_i64(value);
}

/* Number types: id, type in memory, value of x as a number. */
#define INTEGERS(X)                                                                                                                        \
    X(BOOL, mem_u8, (x != 0))                                                                                                              \
    X(U8, mem_u8, x)                                                                                                                       \
    X(I8, mem_i8, x)                                                                                                                       \
    X(U16, mem_u16, x)                                                                                                                     \
    X(I16, mem_i16, x)                                                                                                                     \
    X(U32, mem_u32, x)                                                                                                                     \
    X(I32, mem_i32, x)                                                                                                                     \
    X(U64, mem_u64, x)                                                                                                                     \
    X(I64, mem_i64, x)

#define FLOATS(X)                                                                                                                          \
    X(F8_E5M2, mem_u8, half_decode(x, 2))                                                                                                  \
    X(F8_E4M3, mem_u8, f8_e4m3_decode(x))                                                                                                  \
    X(F8_E8M0, mem_u8, f8_e8m0_decode(x))                                                                                                  \
    X(F8_E4M3FNUZ, mem_u8, fnuz_decode(x, 3, 8))                                                                                           \
    X(F8_E5M2FNUZ, mem_u8, fnuz_decode(x, 2, 16))                                                                                          \
    X(F16, mem_u16, half_decode(x, 10))                                                                                                    \
    X(BF16, mem_u16, bf16_decode(x))                                                                                                       \
    X(F32, mem_f32, x)                                                                                                                     \
    X(F64, mem_f64, x)

#define LOAD(name, from_type, to_type, value)                                                                                              \
    static void name(const void *source, void *target, size_t count)                                                                       \
    {                                                                                                                                      \
        const from_type *from = source;                                                                                                    \
        to_type *to = target;                                                                                                              \
        for (size_t i = 0; i < count; i++) {                                                                                               \
            from_type x = from[i];                                                                                                         \
            to[i] = (to_type)(value);                                                                                                      \
        }                                                                                                                                  \
    }

#define X(id, type, value) LOAD(load_f32_##id, type, mem_f32, value)
INTEGERS(X)
FLOATS(X)
#undef X
#define X(id, type, value) LOAD(load_f64_##id, type, mem_f64, value)
INTEGERS(X)
FLOATS(X)
#undef X
#define X(id, type, value) LOAD(load_i64_##id, type, mem_i64, value)
INTEGERS(X)
#undef X

/* From float32 to float types that are not float64. */
LOAD(store_f32_F8_E5M2, mem_f32, mem_u8, f8_e5m2_encode(x))
LOAD(store_f32_F8_E4M3, mem_f32, mem_u8, f8_e4m3_encode(x))
LOAD(store_f32_F8_E8M0, mem_f32, mem_u8, f8_e8m0_encode(x))
LOAD(store_f32_F8_E4M3FNUZ, mem_f32, mem_u8, fnuz_encode(x, 3, 8))
LOAD(store_f32_F8_E5M2FNUZ, mem_f32, mem_u8, fnuz_encode(x, 2, 16))
LOAD(store_f32_F16, mem_f32, mem_u16, f16_encode(x))
LOAD(store_f32_BF16, mem_f32, mem_u16, bf16_encode(x))

/* From float64 to integers; torch goes through int32 to the small ones, through int64 to uint32. */
LOAD(store_f64_BOOL, mem_f64, mem_u8, x != 0)
LOAD(store_f64_U8, mem_f64, mem_u8, truncate_i64(x))
LOAD(store_f64_I8, mem_f64, mem_i8, truncate_i32(x))
LOAD(store_f64_U16, mem_f64, mem_u16, truncate_i32(x))
LOAD(store_f64_I16, mem_f64, mem_i16, truncate_i32(x))
LOAD(store_f64_U32, mem_f64, mem_u32, truncate_i64(x))
LOAD(store_f64_I32, mem_f64, mem_i32, truncate_i32(x))
LOAD(store_f64_U64, mem_f64, mem_u64, truncate_u64(x))
LOAD(store_f64_I64, mem_f64, mem_i64, truncate_i64(x))

/* From int64 (uint64 as its bits) to integers. */
LOAD(store_i64_BOOL, mem_i64, mem_u8, x != 0)
LOAD(store_i64_U8, mem_i64, mem_u8, x)
LOAD(store_i64_I8, mem_i64, mem_i8, x)
LOAD(store_i64_U16, mem_i64, mem_u16, x)
LOAD(store_i64_I16, mem_i64, mem_i16, x)
LOAD(store_i64_U32, mem_i64, mem_u32, x)
LOAD(store_i64_I32, mem_i64, mem_i32, x)
LOAD(store_i64_U64, mem_i64, mem_u64, x)

/* int64 to int64 is here for the table's sake. */
LOAD(store_i64_I64, mem_i64, mem_i64, x)

/* What each type can be loaded as and stored from. */
static const struct cast_row {
    cast_function load_f32, load_f64, load_i64, store_f32, store_f64, store_i64;
} cast_rows[DTYPE_COUNT] = {
#define X(id, type, value) [DTYPE_##id] = { load_f32_##id, load_f64_##id, load_i64_##id, NULL, store_f64_##id, store_i64_##id },
    INTEGERS(X)
#undef X
#define X(id) [DTYPE_##id] = { load_f32_##id, load_f64_##id, NULL, store_f32_##id, NULL, NULL },
        X(F8_E5M2) X(F8_E4M3) X(F8_E8M0) X(F8_E4M3FNUZ) X(F8_E5M2FNUZ) X(F16) X(BF16)
#undef X
            [DTYPE_F32] = { load_f32_F32, load_f64_F32, NULL, load_f32_F32, NULL, NULL },
    [DTYPE_F64] = { load_f32_F64, load_f64_F64, NULL, NULL, load_f64_F64, NULL },
};

/* The float type that a complex one has two of; other types are themselves. */
static enum dtype cast_part_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_COMPLEX32:
        return DTYPE_F16;
    case DTYPE_C64:
        return DTYPE_F32;
    case DTYPE_C128:
        return DTYPE_F64;
    default:
        return dtype;
    }
}

static bool cast_is_integer(enum dtype dtype)
{
    return cast_rows[dtype].load_i64 != NULL;
}

bool cast_find(enum dtype source, enum dtype target, struct cast *out)
{
    enum dtype from = cast_part_of(source), to = cast_part_of(target), between;
    bool is_complex = from != source;
    const struct cast_row *load = &cast_rows[from], *store = &cast_rows[to];
    if (is_complex != (to != target) || !load->load_f64 || !store->load_f64)
        return false;

    struct cast cast = { .parts = is_complex ? 2 : 1, .source_bytes = dtype_element_bytes(from), .target_bytes = dtype_element_bytes(to) };
    if (cast_is_integer(from) && cast_is_integer(to)) {
        between = DTYPE_I64;
        cast.load = load->load_i64;
        cast.store = store->store_i64;
    } else if (cast_is_integer(to) || to == DTYPE_F64) {
        between = DTYPE_F64;
        cast.load = load->load_f64;
        cast.store = store->store_f64;
    } else {
        between = DTYPE_F32;
        cast.load = load->load_f32;
        cast.store = store->store_f32;
    }
    if (to == between)
        cast.store = NULL;
    if (from == between)
        cast.load = NULL;
    if (from == to) {
        cast.load = NULL;
        cast.store = NULL;
    }
    cast.between_bytes = dtype_element_bytes(between);
    *out = cast;
    return true;
}

void cast_run(const struct cast *cast, const void *source, void *target, size_t count)
{
    double between[BLOCK_ELEMENTS];
    const uint8_t *from = source;
    uint8_t *to = target;
    count *= cast->parts;
    if (!cast->load && !cast->store) {
        memcpy(target, source, count * cast->source_bytes);
        return;
    }
    if (!cast->load || !cast->store) {
        (cast->load ? cast->load : cast->store)(source, target, count);
        return;
    }
    for (size_t done = 0; done < count; done += BLOCK_ELEMENTS) {
        size_t part = count - done < BLOCK_ELEMENTS ? count - done : BLOCK_ELEMENTS;
        cast->load(from + done * cast->source_bytes, between, part);
        cast->store(between, to + done * cast->target_bytes, part);
    }
}

#define X(id, type, value)                                                                                                                 \
    static void to_double_##id(const void *source, double *target, size_t count)                                                           \
    {                                                                                                                                      \
        load_f64_##id(source, target, count);                                                                                              \
    }
INTEGERS(X)
FLOATS(X)
#undef X

static void to_double_COMPLEX32(const void *source, double *target, size_t count)
{
    load_f64_F16(source, target, count * 2);
}

static void to_double_C64(const void *source, double *target, size_t count)
{
    load_f64_F32(source, target, count * 2);
}

static void to_double_C128(const void *source, double *target, size_t count)
{
    load_f64_F64(source, target, count * 2);
}

to_double_function cast_to_double_find(enum dtype source)
{
    static const to_double_function functions[DTYPE_COUNT] = {
#define X(id, type, value) [DTYPE_##id] = to_double_##id,
        INTEGERS(X) FLOATS(X)
#undef X
            [DTYPE_COMPLEX32] = to_double_COMPLEX32,
        [DTYPE_C64] = to_double_C64,
        [DTYPE_C128] = to_double_C128,
    };
    return functions[source];
}
