/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_arrays.h"

#include "encoding/npy.h"

#include <inttypes.h>
#include <stdio.h>

/* What an array is made of, wherever the two ways of writing it keep that. */
struct array_parts {
    const struct value *shape, *type, *order, *payload;
};

static bool is_global_of(const struct value *value, const char *old_module, const char *module, const char *name)
{
    return value_is_global(value, old_module, name) || value_is_global(value, module, name);
}

/* The arguments of a CALL of either module's function; NULL if it is none. */
static const struct value *array_call_args(const struct value *node, const char *old_module, const char *module, const char *name)
{
    if (node->kind != VALUE_CALL || !is_global_of(node->object->callable, old_module, module, name))
        return NULL;
    return node->object->args;
}

static const struct value *reconstruct_args(const struct value *node)
{
    return array_call_args(node, "numpy.core.multiarray", "numpy._core.multiarray", "_reconstruct");
}

static const struct value *frombuffer_args(const struct value *node)
{
    return array_call_args(node, "numpy.core.numeric", "numpy._core.numeric", "_frombuffer");
}

bool pickle_array_is(const struct value *node)
{
    return reconstruct_args(node) || frombuffer_args(node);
}

/* _reconstruct(ndarray, (0,), b'b'), then (version, shape, dtype, is_fortran, bytes) as its state. */
static bool parts_of_reconstruct(const struct value *node, const struct value *args, struct array_parts *out)
{
    if (args->list.count != 3 || node->object->state_count != 1 || node->object->states[0]->kind != VALUE_TUPLE ||
        node->object->states[0]->list.count != 5)
        return false;
    const struct value *class = args->list.items[0];
    if (!value_is_global(class, "numpy", "ndarray") && !value_is_global(class, "numpy", "memmap"))
        return false;
    struct value *const *state = node->object->states[0]->list.items;
    *out = (struct array_parts){ state[1], state[2], state[3], state[4] };
    return true;
}

static bool array_parts(const struct value *node, struct array_parts *out)
{
    const struct value *args = reconstruct_args(node);
    if (args)
        return parts_of_reconstruct(node, args, out);
    args = frombuffer_args(node);
    if (!args || args->list.count != 4 || node->object->state_count)
        return false;
    struct value *const *items = args->list.items;
    *out = (struct array_parts){ items[2], items[1], items[3], items[0] };
    return true;
}

static reshard_status array_fail(const struct value *node, reshard_error *err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "byte %" PRIu64 ": array: %s", node->offset, text);
}

/* ---- types ---- */

/* The byte order of a dtype's state (3, '<', None, None, None, -1, -1, 0); a state with fields or a shape inside makes it no number. */
static bool type_state(const struct value *type, char *order)
{
    *order = '=';
    if (!type->object->state_count)
        return true;
    const struct value *state = type->object->states[0];
    struct str text;
    if (type->object->state_count != 1 || state->kind != VALUE_TUPLE || state->list.count < 5)
        return false;
    for (size_t i = 2; i < 5; i++)
        if (state->list.items[i]->kind != VALUE_NONE)
            return false;
    if (!value_as_str(state->list.items[1], &text) || text.size != 1)
        return false;
    *order = text.data[0];
    return strchr("<>|=", *order) != NULL;
}

/* numpy.dtype('f4', False, True), or a type that is named: "f4" in *name. */
static bool type_name(const struct value *type, struct str *name)
{
    if (type->kind != VALUE_CALL || !value_is_global(type->object->callable, "numpy", "dtype") || !type->object->args->list.count)
        return false;
    return value_as_str(type->object->args->list.items[0], name) && name->size > 0;
}

static reshard_status array_type(const struct value *node, const struct value *type, struct pickle_array *out, bool *is_plain,
                                 reshard_error *err)
{
    struct str name;
    char order;
    uint64_t bytes;
    *is_plain = false;
    if (!type_name(type, &name))
        return array_fail(node, err, "its dtype is not a call of numpy.dtype");
    bool is_fine = type_state(type, &order);
    if (strchr("<>|=", name.data[0])) {
        order = name.data[0];
        name = (struct str){ name.data + 1, name.size - 1 };
    }
    if (!name.size)
        return array_fail(node, err, "its dtype has no name");
    if (!is_fine || name.data[0] == 'V' || !str_to_u64((struct str){ name.data + 1, name.size - 1 }, &bytes))
        return RESHARD_OK;
    *is_plain = npy_dtype(name.data[0], bytes, &out->dtype);
    out->is_big_endian = *is_plain && order == '>' && dtype_info(out->dtype)->swap_bytes > 1;
    return RESHARD_OK;
}

/* ---- shape and order ---- */

static reshard_status array_shape(const struct value *node, const struct array_parts *parts, struct pickle_array *out, reshard_error *err)
{
    size_t rank;
    int64_t elements;
    if (!value_as_ints(parts->shape, out->shape, RANK_MAX, &rank))
        return array_fail(node, err, "its shape is no tuple of at most %d integers", RANK_MAX);
    out->rank = (int)rank;
    for (size_t i = 0; i < rank; i++)
        if (out->shape[i] < 0)
            return array_fail(node, err, "axis %zu of its shape is %" PRId64, i, out->shape[i]);
    if (!shape_volume(out->rank, out->shape, &elements) || !dtype_bytes(out->dtype, (uint64_t)elements, &out->bytes))
        return array_fail(node, err, "the size of its shape overflows");
    return RESHARD_OK;
}

static reshard_status array_order(const struct value *node, const struct array_parts *parts, struct pickle_array *out, reshard_error *err)
{
    struct str text;
    if (parts->order->kind == VALUE_BOOL)
        out->is_fortran = parts->order->boolean;
    else if (parts->order->kind == VALUE_INT)
        out->is_fortran = parts->order->integer != 0;
    else if (value_as_str(parts->order, &text) && (str_is(text, "C") || str_is(text, "F")))
        out->is_fortran = text.data[0] == 'F';
    else
        return array_fail(node, err, "its order is neither of rows nor of columns");
    out->is_fortran = out->is_fortran && out->rank > 1;
    return RESHARD_OK;
}

/* ---- payload ---- */

static bool is_string_node(const struct value *value)
{
    return value->kind == VALUE_BYTES || value->kind == VALUE_BYTEARRAY || value->kind == VALUE_STR;
}

/*
 * The string in a payload: bytes, or what older protocols spell them with: _codecs.encode(str, 'latin1'), bytearray(str, 'latin-1'),
 * bytearray(bytes). *is_none: bytes() or bytearray(), for no bytes at all.
 */
static const struct value *payload_string(const struct value *payload, bool *is_none)
{
    *is_none = false;
    if (is_string_node(payload))
        return payload;
    if (payload->kind != VALUE_CALL || payload->object->state_count)
        return NULL;
    const struct value *callable = payload->object->callable, *args = payload->object->args;
    struct str text;
    bool is_array = value_is_global(callable, "builtins", "bytearray");
    *is_none = args->list.count == 0 && (is_array || value_is_global(callable, "builtins", "bytes"));
    if (!args->list.count || !is_string_node(args->list.items[0]))
        return NULL;
    if (args->list.count == 1)
        return is_array && args->list.items[0]->kind != VALUE_STR ? args->list.items[0] : NULL;
    bool is_latin1 = args->list.count == 2 && value_as_str(args->list.items[1], &text) &&
                     (str_is(text, "latin1") || str_is(text, "latin-1"));
    bool is_encoded = is_latin1 && args->list.items[0]->kind == VALUE_STR && (is_array || value_is_global(callable, "_codecs", "encode"));
    return is_encoded ? args->list.items[0] : NULL;
}

const struct value *pickle_array_payload(const struct value *node)
{
    struct array_parts parts;
    bool is_none;
    return array_parts(node, &parts) ? payload_string(parts.payload, &is_none) : NULL;
}

/* Code points of UTF-8: the bytes that go on are no beginnings. */
static uint64_t count_code_points(struct str text)
{
    uint64_t count = 0;
    for (size_t i = 0; i < text.size; i++)
        count += ((uint8_t)text.data[i] & 0xC0) != 0x80;
    return count;
}

static reshard_status array_payload(const struct pickle_skim *skim, const struct value *node, const struct array_parts *parts,
                                    struct pickle_array *out, reshard_error *err)
{
    bool is_none;
    const struct value *string = payload_string(parts->payload, &is_none);
    struct pickle_place place = { 0 };
    if (!string && !is_none)
        return array_fail(node, err, "its elements are no bytes");
    if (string && !pickle_skim_locate(skim, string, &place))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, node->offset,
                            "byte %" PRIu64 ": array: its elements are spelled as text (pickle protocol 0); protocols 2 to 5 are supported",
                            node->offset);
    uint64_t least = place.bytes, most = place.bytes;
    if (place.is_text && pickle_skim_skipped(skim, string))
        least = (place.bytes + 1) / 2; /* a code point has one or two bytes: reading them will tell */
    else if (place.is_text)
        least = most = count_code_points(string->text);
    if (out->bytes < least || out->bytes > most)
        return array_fail(node, err, "it has %s%" PRIu64 " bytes of elements, its shape needs %" PRIu64, least < most ? "at most " : "",
                          most, out->bytes);
    out->offset = place.offset;
    out->stored_bytes = place.bytes;
    out->is_latin1 = place.is_text && place.bytes > 0;
    return RESHARD_OK;
}

/* All but the elements: type, shape and order into *out, shape and order only of plain elements. */
static reshard_status array_head(const struct value *node, struct array_parts *parts, struct pickle_array *out, bool *is_plain,
                                 reshard_error *err)
{
    *out = (struct pickle_array){ 0 };
    *is_plain = false;
    if (!array_parts(node, parts))
        return array_fail(node, err, "a call of numpy's that makes no array as numpy writes it");
    reshard_status status = array_type(node, parts->type, out, is_plain, err);
    if (status || !*is_plain)
        return status;
    status = array_shape(node, parts, out, err);
    return status ? status : array_order(node, parts, out, err);
}

/* Whether the elements of an array whose strings are loaded are those of its shape. */
static bool payload_fits(const struct value *payload, uint64_t bytes)
{
    bool is_none;
    const struct value *string = payload_string(payload, &is_none);
    if (!string || string->kind != VALUE_STR)
        return (string || is_none) && bytes == (string ? string->text.size : 0);
    for (size_t i = 0; i < string->text.size; i++)
        if ((uint8_t)string->text.data[i] > 0xC3) /* begins a character beyond U+00FF, which is no byte */
            return false;
    return bytes == count_code_points(string->text);
}

bool pickle_array_is_sound(const struct value *node)
{
    struct array_parts parts;
    struct pickle_array found;
    bool is_plain;
    return !array_head(node, &parts, &found, &is_plain, NULL) && (!is_plain || payload_fits(parts.payload, found.bytes));
}

reshard_status pickle_array_read(const struct pickle_skim *skim, const struct value *node, struct pickle_array *out, bool *is_plain,
                                 reshard_error *err)
{
    struct array_parts parts;
    reshard_status status = array_head(node, &parts, out, is_plain, err);
    return status || !*is_plain ? status : array_payload(skim, node, &parts, out, err);
}

bool pickle_array_objects(const struct value *node, struct pickle_object_array *out)
{
    struct array_parts parts;
    struct pickle_array order = { 0 };
    struct str type;
    size_t rank;
    int64_t count;
    if (!array_parts(node, &parts) || !type_name(parts.type, &type) || type.data[type.data[0] == '|' && type.size > 1] != 'O' ||
        parts.payload->kind != VALUE_LIST || !value_as_ints(parts.shape, out->shape, RANK_MAX, &rank))
        return false;
    order.rank = (int)rank;
    if (array_order(node, &parts, &order, NULL) || !shape_volume(order.rank, out->shape, &count) ||
        (uint64_t)count != parts.payload->list.count)
        return false;
    out->rank = order.rank;
    out->is_fortran = order.is_fortran;
    out->items = parts.payload->list.items;
    out->count = parts.payload->list.count;
    return true;
}
