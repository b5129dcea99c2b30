/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include "base/checked.h"

const struct dtype_info dtype_table[DTYPE_COUNT] = {
#define X(id, name, torch_name, torch_storage, bits, swap_bytes, class_, rank) \
    [DTYPE_##id] = { name, torch_name, torch_storage, bits, swap_bytes, DTYPE_CLASS_##class_, rank },
    DTYPES(X)
#undef X
};

/* What torch's short names are bound to; a pickle may use them, since they are attributes of the module. */
static const struct torch_alias {
    const char *name;
    enum dtype dtype;
} torch_aliases[] = {
    { "half", DTYPE_F16 },  { "float", DTYPE_F32 },       { "double", DTYPE_F64 }, { "short", DTYPE_I16 },   { "int", DTYPE_I32 },
    { "long", DTYPE_I64 },  { "chalf", DTYPE_COMPLEX32 }, { "cfloat", DTYPE_C64 }, { "cdouble", DTYPE_C128 },
};

bool dtype_from_safetensors(struct str name, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_table[i].safetensors_rank >= 0 && str_is(name, dtype_table[i].name)) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_from_torch(struct str name, enum dtype *out)
{
    if (!name.size)
        return false;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (str_is(name, dtype_table[i].torch_name)) {
            *out = (enum dtype)i;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(torch_aliases) / sizeof(torch_aliases[0]); i++) {
        if (str_is(name, torch_aliases[i].name)) {
            *out = torch_aliases[i].dtype;
            return true;
        }
    }
    return false;
}

bool dtype_from_torch_storage(struct str class_name, enum dtype *out)
{
    if (!class_name.size)
        return false;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (str_is(class_name, dtype_table[i].torch_storage)) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static char ascii_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_same_ignoring_case(struct str a, const char *b)
{
    if (a.size != strlen(b))
        return false;
    for (size_t i = 0; i < a.size; i++)
        if (ascii_lower(a.data[i]) != ascii_lower(b[i]))
            return false;
    return true;
}

bool dtype_from_name(struct str name, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (is_same_ignoring_case(name, dtype_table[i].name)) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return dtype_from_torch(name, out);
}

bool dtype_bytes(enum dtype dtype, uint64_t elements, uint64_t *out)
{
    unsigned bits = dtype_table[dtype].bits;
    unsigned group = bits % 8 == 0 ? 1 : bits % 4 == 0 ? 2 : bits % 2 == 0 ? 4 : 8;
    return elements % group == 0 && checked_mul_u64(elements / group, bits * group / 8, out);
}
