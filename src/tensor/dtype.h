/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types. Names are those of safetensors; kinds that it lacks have torch's own name.
 *
 * `bits` is the size of one element; a shape counts elements. Kinds whose torch shape counts packed bytes (bits8 …,
 * float4_e2m1fn_x2 as torch stores it) have 8 bits here and are copied as bytes. F4 and F6 are packed bit streams: a
 * tensor of them is a whole number of bytes and can be cut only where a byte ends.
 */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include "base/str.h"

#include <stdint.h>

enum dtype_class { DTYPE_CLASS_OPAQUE, DTYPE_CLASS_BOOL, DTYPE_CLASS_UINT, DTYPE_CLASS_INT, DTYPE_CLASS_FLOAT, DTYPE_CLASS_COMPLEX };

/* id, name, torch's name ("" if none), torch storage class ("" if untyped), bits, bytes that a byte swap reverses, class,
 * rank in the safetensors writer's order (-1: safetensors cannot hold it) */
#define DTYPES(X)                                                                             \
    X(BOOL, "BOOL", "bool", "BoolStorage", 8, 1, BOOL, 0)                                     \
    X(F4, "F4", "", "", 4, 1, OPAQUE, 1)                                                      \
    X(F6_E2M3, "F6_E2M3", "", "", 6, 1, OPAQUE, 2)                                            \
    X(F6_E3M2, "F6_E3M2", "", "", 6, 1, OPAQUE, 3)                                            \
    X(U8, "U8", "uint8", "ByteStorage", 8, 1, UINT, 4)                                        \
    X(I8, "I8", "int8", "CharStorage", 8, 1, INT, 5)                                          \
    X(F8_E5M2, "F8_E5M2", "float8_e5m2", "", 8, 1, FLOAT, 6)                                  \
    X(F8_E4M3, "F8_E4M3", "float8_e4m3fn", "", 8, 1, FLOAT, 7)                                \
    X(F8_E8M0, "F8_E8M0", "float8_e8m0fnu", "", 8, 1, FLOAT, 8)                               \
    X(F8_E4M3FNUZ, "F8_E4M3FNUZ", "float8_e4m3fnuz", "", 8, 1, FLOAT, 9)                      \
    X(F8_E5M2FNUZ, "F8_E5M2FNUZ", "float8_e5m2fnuz", "", 8, 1, FLOAT, 10)                     \
    X(I16, "I16", "int16", "ShortStorage", 16, 2, INT, 11)                                    \
    X(U16, "U16", "uint16", "", 16, 2, UINT, 12)                                              \
    X(F16, "F16", "float16", "HalfStorage", 16, 2, FLOAT, 13)                                 \
    X(BF16, "BF16", "bfloat16", "BFloat16Storage", 16, 2, FLOAT, 14)                          \
    X(I32, "I32", "int32", "IntStorage", 32, 4, INT, 15)                                      \
    X(U32, "U32", "uint32", "", 32, 4, UINT, 16)                                              \
    X(F32, "F32", "float32", "FloatStorage", 32, 4, FLOAT, 17)                                \
    X(C64, "C64", "complex64", "ComplexFloatStorage", 64, 4, COMPLEX, 18)                     \
    X(F64, "F64", "float64", "DoubleStorage", 64, 8, FLOAT, 19)                               \
    X(I64, "I64", "int64", "LongStorage", 64, 8, INT, 20)                                     \
    X(U64, "U64", "uint64", "", 64, 8, UINT, 21)                                              \
    X(C128, "C128", "complex128", "ComplexDoubleStorage", 128, 8, COMPLEX, -1)                \
    X(COMPLEX32, "complex32", "complex32", "", 32, 2, COMPLEX, -1)                            \
    X(BCOMPLEX32, "bcomplex32", "bcomplex32", "", 32, 2, OPAQUE, -1)                          \
    X(F4_X2, "float4_e2m1fn_x2", "float4_e2m1fn_x2", "", 8, 1, OPAQUE, -1)                    \
    X(BITS8, "bits8", "bits8", "", 8, 1, OPAQUE, -1)                                          \
    X(BITS16, "bits16", "bits16", "", 16, 2, OPAQUE, -1)                                      \
    X(BITS1X8, "bits1x8", "bits1x8", "", 8, 1, OPAQUE, -1)                                    \
    X(BITS2X4, "bits2x4", "bits2x4", "", 8, 1, OPAQUE, -1)                                    \
    X(BITS4X2, "bits4x2", "bits4x2", "", 8, 1, OPAQUE, -1)                                    \
    X(QUINT8, "quint8", "quint8", "QUInt8Storage", 8, 1, OPAQUE, -1)                          \
    X(QINT8, "qint8", "qint8", "QInt8Storage", 8, 1, OPAQUE, -1)                              \
    X(QINT32, "qint32", "qint32", "QInt32Storage", 32, 4, OPAQUE, -1)                         \
    X(QUINT4X2, "quint4x2", "quint4x2", "QUInt4x2Storage", 8, 1, OPAQUE, -1)                  \
    X(QUINT2X4, "quint2x4", "quint2x4", "QUInt2x4Storage", 8, 1, OPAQUE, -1)

enum dtype {
#define X(id, ...) DTYPE_##id,
    DTYPES(X)
#undef X
    DTYPE_COUNT
};

struct dtype_info {
    const char *name, *torch_name, *torch_storage;
    uint8_t bits, swap_bytes;
    uint8_t class_; /* enum dtype_class */
    int8_t safetensors_rank;
};

extern const struct dtype_info dtype_table[DTYPE_COUNT];

static inline const struct dtype_info *dtype_info(enum dtype dtype)
{
    return &dtype_table[dtype];
}

/* Look-ups by name; false if unknown. dtype_from_name also takes lower case ("bf16", "float32"), for options. */
bool dtype_from_safetensors(struct str name, enum dtype *out);
bool dtype_from_torch(struct str name, enum dtype *out);
bool dtype_from_torch_storage(struct str class_name, enum dtype *out);
bool dtype_from_name(struct str name, enum dtype *out);

/* Bytes of `elements` elements; false on overflow or if the bits are no whole number of bytes. */
bool dtype_bytes(enum dtype dtype, uint64_t elements, uint64_t *out);

/* Bytes of one element for types of whole bytes, 0 for F4 and F6. */
static inline unsigned dtype_element_bytes(enum dtype dtype)
{
    return dtype_table[dtype].bits % 8 ? 0 : dtype_table[dtype].bits / 8;
}

#endif
