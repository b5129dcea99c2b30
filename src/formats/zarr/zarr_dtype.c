/* SPDX-License-Identifier: Apache-2.0 */
/* Names of element types, and fill values. */
#include "formats/zarr/zarr_array.h"

#include <inttypes.h>
#include <math.h>

static const struct {
    enum dtype dtype;
    const char *v2, *v3;
} names[] = {
    { DTYPE_BOOL, "|b1", "bool" },
    { DTYPE_U8, "|u1", "uint8" },
    { DTYPE_I8, "|i1", "int8" },
    { DTYPE_I16, "<i2", "int16" },
    { DTYPE_U16, "<u2", "uint16" },
    { DTYPE_I32, "<i4", "int32" },
    { DTYPE_U32, "<u4", "uint32" },
    { DTYPE_I64, "<i8", "int64" },
    { DTYPE_U64, "<u8", "uint64" },
    { DTYPE_F16, "<f2", "float16" },
    { DTYPE_F32, "<f4", "float32" },
    { DTYPE_F64, "<f8", "float64" },
    { DTYPE_C64, "<c8", "complex64" },
    { DTYPE_C128, "<c16", "complex128" },
    { DTYPE_BF16, "bfloat16", "bfloat16" },
    { DTYPE_F8_E4M3, "float8_e4m3fn", "float8_e4m3fn" },
    { DTYPE_F8_E5M2, "float8_e5m2", "float8_e5m2" },
    { DTYPE_F8_E8M0, "float8_e8m0fnu", "float8_e8m0fnu" },
    { DTYPE_F8_E4M3FNUZ, "float8_e4m3fnuz", "float8_e4m3fnuz" },
    { DTYPE_F8_E5M2FNUZ, "float8_e5m2fnuz", "float8_e5m2fnuz" },
    { DTYPE_BITS8, NULL, "r8" },
    { DTYPE_BITS16, NULL, "r16" },
};

#define NAME_COUNT (sizeof(names) / sizeof(names[0]))

const char *zarr_dtype_name_v2(enum dtype dtype)
{
    for (size_t i = 0; i < NAME_COUNT; i++)
        if (names[i].dtype == dtype)
            return names[i].v2;
    return NULL;
}

const char *zarr_dtype_name_v3(enum dtype dtype)
{
    for (size_t i = 0; i < NAME_COUNT; i++)
        if (names[i].dtype == dtype)
            return names[i].v3;
    return NULL;
}

static reshard_status unsupported(struct str name, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "dtype '%.*s'; supported are bool, integers, floats and complex numbers of any byte order, "
              "bfloat16, and float8 of the kinds e4m3fn, e5m2, e8m0fnu, e4m3fnuz and e5m2fnuz", STR_ARG(name));
    error_hint(err, "the path of another array or group of the store can be opened by itself");
    return RESHARD_ERR_UNSUPPORTED;
}

/* numpy's names without the byte order, which may be any for single bytes. */
reshard_status zarr_dtype_v2(struct str name, const struct zarr_hints *hints, enum dtype *dtype, bool *is_swapped, reshard_error *err)
{
    *is_swapped = false;
    if (str_is(name, "<V2") || str_is(name, "|V2")) {
        if (hints->void_is_bf16) {
            *dtype = DTYPE_BF16;
            return RESHARD_OK;
        }
        error_set(err, RESHARD_ERR_UNSUPPORTED, "dtype '%.*s' is two bytes of unknown meaning", STR_ARG(name));
        error_hint(err, "if they are bfloat16, say \"bfloat16\" instead in the .zarray document");
        return RESHARD_ERR_UNSUPPORTED;
    }
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (!names[i].v2)
            continue;
        struct str known = str_of(names[i].v2);
        bool has_order = known.data[0] == '<' || known.data[0] == '|';
        if (str_equal(name, known)) {
            *dtype = names[i].dtype;
            return RESHARD_OK;
        }
        if (!has_order || name.size != known.size || !strchr("<>|", name.data[0]) || memcmp(name.data + 1, known.data + 1, known.size - 1))
            continue;
        if (name.data[0] == '|' && known.data[0] == '<')
            continue; /* an order is needed */
        *dtype = names[i].dtype;
        *is_swapped = name.data[0] == '>' && known.data[0] == '<';
        return RESHARD_OK;
    }
    return unsupported(name, err);
}

reshard_status zarr_dtype_v3(struct str name, enum dtype *dtype, reshard_error *err)
{
    for (size_t i = 0; i < NAME_COUNT; i++) {
        if (str_is(name, names[i].v3)) {
            *dtype = names[i].dtype;
            return RESHARD_OK;
        }
    }
    return unsupported(name, err);
}

/* ---- fill values ---- */

static void store_le(uint64_t bits, unsigned bytes, uint8_t *out)
{
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(bits >> (8 * i));
}

/* What a small float type is made of. Without infinity the largest exponent is for numbers too; fnuz: NaN is what else were -0. */
struct small_float {
    int exponent_bits, mantissa_bits, bias;
    bool has_infinity, is_fnuz;
    uint64_t nan;
};

static bool small_float_of(enum dtype dtype, struct small_float *out)
{
    switch (dtype) {
    case DTYPE_F16:
        *out = (struct small_float){ 5, 10, 15, true, false, 0x7e00 };
        return true;
    case DTYPE_BF16:
        *out = (struct small_float){ 8, 7, 127, true, false, 0x7fc0 };
        return true;
    case DTYPE_F8_E5M2:
        *out = (struct small_float){ 5, 2, 15, true, false, 0x7e };
        return true;
    case DTYPE_F8_E4M3:
        *out = (struct small_float){ 4, 3, 7, false, false, 0x7f };
        return true;
    case DTYPE_F8_E4M3FNUZ:
        *out = (struct small_float){ 4, 3, 8, false, true, 0x80 };
        return true;
    case DTYPE_F8_E5M2FNUZ:
        *out = (struct small_float){ 5, 2, 16, false, true, 0x80 };
        return true;
    default:
        return false;
    }
}

/* Rounds to the nearest, ties to even. false: the type cannot hold it. */
static bool small_float_encode(const struct small_float *type, double value, uint64_t *out)
{
    uint64_t sign = signbit(value) ? UINT64_C(1) << (type->exponent_bits + type->mantissa_bits) : 0;
    uint64_t top = (UINT64_C(1) << type->exponent_bits) - 1;
    if (isnan(value)) {
        *out = type->nan;
        return true;
    }
    uint64_t infinity = top << type->mantissa_bits;
    int exponent = 0;
    double magnitude = fabs(value);
    if (isinf(value)) {
        *out = sign | infinity;
        return type->has_infinity;
    }
    frexp(magnitude, &exponent); /* magnitude is in [0.5, 1) * 2^exponent, or 0, which has no exponent and is the least subnormal */
    int lowest = 1 - type->bias;
    int scale = magnitude == 0 || exponent - 1 < lowest ? lowest : exponent - 1;
    double rounded = nearbyint(ldexp(magnitude, type->mantissa_bits - scale));
    /* A mantissa that rounds up into the next power of two carries into the exponent by itself. */
    uint64_t bits = (uint64_t)rounded + ((uint64_t)(scale - lowest) << type->mantissa_bits);
    uint64_t past = type->has_infinity ? infinity : type->is_fnuz ? (top + 1) << type->mantissa_bits : type->nan;
    if (type->has_infinity && bits > infinity)
        bits = infinity;
    *out = type->is_fnuz && bits == 0 ? 0 : sign | bits;
    return type->has_infinity || bits < past;
}

static bool fill_real(double real, enum dtype dtype, uint8_t *out)
{
    struct small_float small;
    float single = (float)real;
    uint32_t half;
    uint64_t bits;
    int exponent;
    switch (dtype) {
    case DTYPE_F32:
    case DTYPE_C64:
        memcpy(&half, &single, sizeof(half));
        store_le(isnan(real) ? 0x7fc00000 : half, 4, out);
        return true;
    case DTYPE_F64:
    case DTYPE_C128:
        memcpy(&bits, &real, sizeof(bits));
        store_le(isnan(real) ? UINT64_C(0x7ff8) << 48 : bits, 8, out);
        return true;
    case DTYPE_F8_E8M0:
        /* Powers of two alone, and NaN. TensorStore says 0 and means the smallest one. */
        if (real == 0) {
            out[0] = 0;
            return true;
        }
        if (!isnan(real) && (frexp(real, &exponent) != 0.5 || exponent - 1 < -127 || exponent - 1 > 127))
            return false;
        out[0] = isnan(real) ? 0xff : (uint8_t)(exponent - 1 + 127);
        return true;
    default:
        if (!small_float_of(dtype, &small) || !small_float_encode(&small, real, &bits))
            return false;
        store_le(bits, dtype_element_bytes(dtype), out);
        return true;
    }
}

static bool fill_float_text(struct str text, enum dtype dtype, int format, uint8_t *out)
{
    unsigned width = dtype_info(dtype)->swap_bytes; /* of one part of a complex number too */
    if (str_is(text, "NaN"))
        return fill_real((double)NAN, dtype, out);
    if (str_is(text, "Infinity"))
        return fill_real((double)INFINITY, dtype, out);
    if (str_is(text, "-Infinity"))
        return fill_real(-(double)INFINITY, dtype, out);
    uint64_t bits;
    if (format != 3 || !str_starts_with(text, "0x") || text.size != 2 + 2 * (size_t)width || !str_hex_at(text, 2, text.size - 2, &bits))
        return false;
    store_le(bits, width, out);
    return true;
}

static bool fill_float(const struct value *value, enum dtype dtype, int format, uint8_t *out)
{
    switch (value->kind) {
    case VALUE_INT:
        return fill_real((double)value->integer, dtype, out);
    case VALUE_FLOAT:
        return isfinite(value->real) && fill_real(value->real, dtype, out);
    case VALUE_STR:
        return fill_float_text(value->text, dtype, format, out);
    default:
        return false;
    }
}

static bool fill_integer(const struct value *value, enum dtype dtype, int format, uint8_t *out)
{
    bool is_signed = dtype_info(dtype)->class_ == DTYPE_CLASS_INT;
    unsigned bytes = dtype_element_bytes(dtype);
    int64_t number;
    if (value->kind == VALUE_BIGINT && dtype == DTYPE_U64) {
        /* 2^63 to 2^64 - 1: nine bytes of two's complement, of which the last is 0. */
        if (value->text.size != 9 || value->text.data[8] != 0)
            return false;
        memcpy(out, value->text.data, 8);
        return true;
    }
    if (value->kind == VALUE_INT)
        number = value->integer;
    else if (format == 2 && value->kind == VALUE_FLOAT && value->real == floor(value->real) && fabs(value->real) < 9e15)
        number = (int64_t)value->real;
    else
        return false;
    int64_t low = is_signed ? (bytes == 8 ? INT64_MIN : -(INT64_C(1) << (8 * bytes - 1))) : 0;
    int64_t high = bytes == 8 ? INT64_MAX : (INT64_C(1) << (8 * bytes - (is_signed ? 1 : 0))) - 1;
    if (number < low || number > high)
        return false;
    store_le((uint64_t)number, bytes, out);
    return true;
}

static bool fill_bool(const struct value *value, int format, uint8_t *out)
{
    bool is_number = format == 2 && value->kind == VALUE_INT && (value->integer == 0 || value->integer == 1);
    if (value->kind != VALUE_BOOL && !is_number)
        return false;
    out[0] = value->kind == VALUE_BOOL ? value->boolean : value->integer != 0;
    return true;
}

static bool fill_complex(const struct value *value, enum dtype dtype, int format, uint8_t *out)
{
    unsigned part = dtype_info(dtype)->swap_bytes;
    if (value->kind == VALUE_LIST && value->list.count == 2)
        return fill_float(value->list.items[0], dtype, format, out) && fill_float(value->list.items[1], dtype, format, out + part);
    memset(out + part, 0, part);
    return format == 2 && fill_float(value, dtype, format, out);
}

/* Raw bits: a list of bytes. */
static bool fill_raw(const struct value *value, enum dtype dtype, uint8_t *out)
{
    unsigned bytes = dtype_element_bytes(dtype);
    if (value->kind != VALUE_LIST || value->list.count != bytes)
        return false;
    for (unsigned i = 0; i < bytes; i++) {
        const struct value *byte = value->list.items[i];
        if (byte->kind != VALUE_INT || byte->integer < 0 || byte->integer > UINT8_MAX)
            return false;
        out[i] = (uint8_t)byte->integer;
    }
    return true;
}

reshard_status zarr_fill_parse(const struct value *value, enum dtype dtype, int format, uint8_t *out, reshard_error *err)
{
    bool is_good = false;
    switch (dtype_info(dtype)->class_) {
    case DTYPE_CLASS_BOOL:
        is_good = fill_bool(value, format, out);
        break;
    case DTYPE_CLASS_INT:
    case DTYPE_CLASS_UINT:
        is_good = fill_integer(value, dtype, format, out);
        break;
    case DTYPE_CLASS_FLOAT:
        is_good = fill_float(value, dtype, format, out);
        break;
    case DTYPE_CLASS_COMPLEX:
        is_good = fill_complex(value, dtype, format, out);
        break;
    default:
        is_good = fill_raw(value, dtype, out);
    }
    if (is_good)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_FORMAT, "fill_value is no %s", dtype_info(dtype)->name);
}
