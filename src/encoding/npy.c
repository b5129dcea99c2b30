/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/npy.h"

#include "base/cursor.h"

#include <inttypes.h>

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define ALIGN 64

/* ---- types ---- */

static const struct npy_kind {
    char kind;
    uint8_t bytes;
    enum dtype dtype;
    bool is_written; /* the name under which the type is written */
} npy_kinds[] = {
    { 'b', 1, DTYPE_BOOL, true }, { 'i', 1, DTYPE_I8, true },  { 'i', 2, DTYPE_I16, true }, { 'i', 4, DTYPE_I32, true },
    { 'i', 8, DTYPE_I64, true },  { 'u', 1, DTYPE_U8, true },  { 'u', 2, DTYPE_U16, true }, { 'u', 4, DTYPE_U32, true },
    { 'u', 8, DTYPE_U64, true },  { 'f', 2, DTYPE_F16, true }, { 'f', 4, DTYPE_F32, true }, { 'f', 8, DTYPE_F64, true },
    { 'c', 8, DTYPE_C64, true },  { 'c', 16, DTYPE_C128, true }, { 'V', 2, DTYPE_BF16, false }, /* what ml_dtypes leaves */
};

#define NPY_KIND_COUNT (sizeof(npy_kinds) / sizeof(npy_kinds[0]))

bool npy_dtype(char kind, uint64_t bytes, enum dtype *out)
{
    for (size_t i = 0; i < NPY_KIND_COUNT; i++) {
        if (npy_kinds[i].kind != kind || npy_kinds[i].bytes != bytes)
            continue;
        *out = npy_kinds[i].dtype;
        return true;
    }
    return false;
}

/* Behind the kind: a size that is not beyond 31 bits. */
static bool take_element_bytes(struct str text, unsigned unit, uint64_t *out)
{
    uint64_t count;
    if (!str_to_u64(text, &count) || count > INT32_MAX)
        return false;
    *out = count * unit;
    return true;
}

/* "M8", "M8[ns]", "m8[25us]". */
static bool is_time(struct str text)
{
    struct str unit = { text.data + 2, text.size - 2 };
    return text.size >= 2 && text.data[1] == '8' && (!unit.size || (unit.data[0] == '[' && str_ends_with(unit, "]")));
}

/* What no number is: text behind the byte order. */
static bool npy_parse_other(struct str text, struct npy_header *out)
{
    struct str size = { text.data + 1, text.size - 1 };
    uint64_t ignored;
    out->element_bytes = 0;
    switch (text.data[0]) {
    case 'U':
        out->content = NPY_TEXTS;
        return take_element_bytes(size, 4, &out->element_bytes);
    case 'S':
        out->content = NPY_STRINGS;
        return take_element_bytes(size, 1, &out->element_bytes);
    case 'O':
        out->content = NPY_OBJECTS;
        return !size.size || str_to_u64(size, &ignored);
    case 'M':
    case 'm':
        out->content = NPY_TIMES;
        out->dtype = DTYPE_I64;
        out->element_bytes = 8;
        return is_time(text);
    default:
        return false;
    }
}

static reshard_status unknown_type(struct str text, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "npy: type '%.*s%s' is not one of b1 i1-8 u1-8 f2-8 c8 c16", STR_ARG_BRIEF(text));
}

/*
 * "<f4": byte order, kind, size. Of what ml_dtypes adds only bfloat16 can be told: it is '<V2', where bytes without a type are '|V2'. Its
 * other types are '<V1' or '<f1', several of them alike.
 */
static reshard_status parse_type(struct str text, struct npy_header *out, reshard_error *err)
{
    uint64_t bytes;
    bool has_order = text.size > 0 && strchr("<>|=", text.data[0]) != NULL, is_big = text.size > 0 && text.data[0] == '>';
    struct str type = { text.data + has_order, text.size - has_order };
    out->descr = text;
    if (!type.size)
        return unknown_type(text, err);
    bool is_untyped = type.data[0] == 'V' && !is_big && text.data[0] != '<';
    if (!is_untyped && str_to_u64((struct str){ type.data + 1, type.size - 1 }, &bytes) && npy_dtype(type.data[0], bytes, &out->dtype)) {
        out->content = NPY_NUMBERS;
        out->element_bytes = bytes;
        out->is_big_endian = is_big && dtype_info(out->dtype)->swap_bytes > 1;
        return RESHARD_OK;
    }
    out->is_big_endian = is_big;
    return npy_parse_other(type, out) ? RESHARD_OK : unknown_type(text, err);
}

/* ---- the header's dict ---- */

static bool npy_next_is(const struct cursor *c, char wanted)
{
    return c->pos < c->size && c->data[c->pos] == (uint8_t)wanted;
}

static void npy_skip_space(struct cursor *c)
{
    while (npy_next_is(c, ' ') || npy_next_is(c, '\n') || npy_next_is(c, '\t') || npy_next_is(c, '\r'))
        c->pos++;
}

static bool npy_take(struct cursor *c, char wanted)
{
    npy_skip_space(c);
    if (!npy_next_is(c, wanted))
        return false;
    c->pos++;
    return true;
}

/* A Python string literal without escapes. */
static bool take_string(struct cursor *c, struct str *out)
{
    npy_skip_space(c);
    if (!npy_next_is(c, '\'') && !npy_next_is(c, '"'))
        return false;
    char quote = (char)c->data[c->pos++];
    size_t start = c->pos;
    while (c->pos < c->size && c->data[c->pos] != (uint8_t)quote && c->data[c->pos] != '\\')
        c->pos++;
    if (!npy_next_is(c, quote))
        return false;
    *out = (struct str){ (const char *)c->data + start, c->pos - start };
    c->pos++;
    return true;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t size = strlen(word);
    npy_skip_space(c);
    if (cursor_left(c) < size || memcmp(c->data + c->pos, word, size) != 0)
        return false;
    c->pos += size;
    return true;
}

static bool take_extent(struct cursor *c, int64_t *out)
{
    npy_skip_space(c);
    size_t start = c->pos;
    uint64_t value;
    while (c->pos < c->size && c->data[c->pos] >= '0' && c->data[c->pos] <= '9')
        c->pos++;
    if (!str_to_u64((struct str){ (const char *)c->data + start, c->pos - start }, &value) || value > INT64_MAX)
        return false;
    if (npy_next_is(c, 'L')) /* Python 2 */
        c->pos++;
    *out = (int64_t)value;
    return true;
}

static reshard_status npy_take_shape(struct cursor *c, struct npy_header *out, reshard_error *err)
{
    if (!npy_take(c, '('))
        return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: shape is no tuple");
    out->rank = 0;
    while (!npy_take(c, ')')) {
        if (out->rank == RANK_MAX)
            return error_set_at(err, RESHARD_ERR_LIMIT, c->pos, "npy: more than %d axes", RANK_MAX);
        if (!take_extent(c, &out->shape[out->rank]))
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: shape holds something else than integers from 0 on");
        out->rank++;
        bool has_comma = npy_take(c, ',');
        npy_skip_space(c);
        if (!has_comma && !npy_next_is(c, ')'))
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: shape is not closed");
    }
    int64_t elements;
    if (!shape_volume(out->rank, out->shape, &elements))
        return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: the shape's number of elements overflows");
    return RESHARD_OK;
}

enum npy_field { NPY_DESCR = 1, NPY_ORDER = 2, NPY_SHAPE = 4 };

static reshard_status take_field(struct cursor *c, struct str key, struct npy_header *out, unsigned *field, reshard_error *err)
{
    struct str text;
    if (str_is(key, "descr")) {
        *field = NPY_DESCR;
        npy_skip_space(c);
        /* Fields, a type inside a type, a text: what NumPy writes and is not read. The rest it does not write. */
        bool may_be_type = npy_next_is(c, '[') || npy_next_is(c, '(') || npy_next_is(c, '\'') || npy_next_is(c, '"');
        if (!take_string(c, &text))
            return error_set_at(err, may_be_type ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT, c->pos, "npy: descr is no plain type");
        return parse_type(text, out, err);
    }
    if (str_is(key, "fortran_order")) {
        *field = NPY_ORDER;
        out->is_fortran = take_word(c, "True");
        if (!out->is_fortran && !take_word(c, "False"))
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: fortran_order is neither True nor False");
        return RESHARD_OK;
    }
    if (str_is(key, "shape")) {
        *field = NPY_SHAPE;
        return npy_take_shape(c, out, err);
    }
    return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: unknown key '%.*s'", STR_ARG(key));
}

static reshard_status parse_dict(struct cursor *c, struct npy_header *out, reshard_error *err)
{
    unsigned seen = 0, field = 0;
    if (!npy_take(c, '{'))
        return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: the header is no dict");
    while (!npy_take(c, '}')) {
        struct str key;
        if (!take_string(c, &key) || !npy_take(c, ':'))
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: expected a key and ':'");
        reshard_status status = take_field(c, key, out, &field, err);
        if (status)
            return status;
        if (seen & field)
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: key '%.*s' occurs twice", STR_ARG(key));
        seen |= field;
        bool has_comma = npy_take(c, ',');
        npy_skip_space(c);
        if (!has_comma && !npy_next_is(c, '}'))
            return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: expected ',' or '}'");
    }
    npy_skip_space(c);
    if (cursor_left(c))
        return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: text follows the header's dict");
    if (seen != (NPY_DESCR | NPY_ORDER | NPY_SHAPE))
        return error_set_at(err, RESHARD_ERR_FORMAT, c->pos, "npy: descr, fortran_order or shape is missing");
    return RESHARD_OK;
}

reshard_status npy_data_offset(const void *bytes, size_t size, uint64_t *out, reshard_error *err)
{
    struct cursor c = cursor_over(bytes, size);
    struct str signature;
    uint8_t major = 0, minor = 0;
    uint16_t short_bytes = 0;
    uint32_t header_bytes = 0;
    if (!cursor_bytes(&c, MAGIC_BYTES, &signature) || memcmp(signature.data, MAGIC, MAGIC_BYTES) != 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "npy: does not start with the npy signature");
    if (!cursor_u8(&c, &major) || !cursor_u8(&c, &minor) || major < 1 || major > 3 || minor)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, MAGIC_BYTES, "npy: version %u.%u; 1.0 to 3.0 are known", major, minor);
    bool complete = major == 1 ? cursor_u16le(&c, &short_bytes) : cursor_u32le(&c, &header_bytes);
    if (major == 1)
        header_bytes = short_bytes;
    if (!complete)
        return error_set_at(err, RESHARD_ERR_FORMAT, size, "npy: ends inside the header of %" PRIu32 " bytes", header_bytes);
    *out = (uint64_t)c.pos + header_bytes;
    return RESHARD_OK;
}

reshard_status npy_parse_any(const void *bytes, size_t size, struct npy_header *out, reshard_error *err)
{
    struct npy_header header = { 0 };
    reshard_status status = npy_data_offset(bytes, size, &header.data_offset, err);
    if (status)
        return status;
    const size_t start = MAGIC_BYTES + 2 + (((const uint8_t *)bytes)[MAGIC_BYTES] == 1 ? 2 : 4);
    const uint64_t header_bytes = header.data_offset - start;
    if (header.data_offset > size)
        return error_set_at(err, RESHARD_ERR_FORMAT, size, "npy: ends inside the header of %" PRIu64 " bytes", header_bytes);
    struct cursor inner = cursor_over((const uint8_t *)bytes + start, (size_t)header_bytes);
    status = parse_dict(&inner, &header, err);
    if (status) {
        error_shift(err, start);
        return status;
    }
    *out = header;
    return RESHARD_OK;
}

reshard_status npy_parse(const void *bytes, size_t size, struct npy_header *out, reshard_error *err)
{
    struct npy_header header;
    reshard_status status = npy_parse_any(bytes, size, &header, err);
    if (!status && header.content != NPY_NUMBERS)
        status = unknown_type(header.descr, err);
    if (!status)
        *out = header;
    return status;
}

/* ---- writing ---- */

/* NULL: NumPy has no such type. */
static const struct npy_kind *kind_of_dtype(enum dtype dtype)
{
    for (size_t i = 0; i < NPY_KIND_COUNT; i++)
        if (npy_kinds[i].dtype == dtype && npy_kinds[i].is_written)
            return &npy_kinds[i];
    return NULL;
}

bool npy_can_hold(enum dtype dtype)
{
    return kind_of_dtype(dtype) != NULL;
}

static bool append_type(enum dtype dtype, bool *is_substitute, struct buffer *out)
{
    unsigned bytes = dtype_element_bytes(dtype);
    const struct npy_kind *known = kind_of_dtype(dtype);
    char kind = known ? known->kind : 'u';
    *is_substitute = !known;
    return buffer_printf(out, "'%c%c%u'", bytes == 1 ? '|' : '<', kind, bytes);
}

static void append_dict(enum dtype dtype, int rank, const int64_t *shape, bool *is_substitute, struct buffer *out)
{
    buffer_append_text(out, "{'descr': ");
    append_type(dtype, is_substitute, out);
    buffer_append_text(out, ", 'fortran_order': False, 'shape': (");
    for (int i = 0; i < rank; i++)
        buffer_printf(out, "%s%" PRId64, i ? ", " : "", shape[i]);
    buffer_append_text(out, rank == 1 ? ",), }" : "), }");
}

reshard_status npy_write_header(enum dtype dtype, int rank, const int64_t *shape, bool *is_substitute, struct buffer *out,
                                reshard_error *err)
{
    unsigned bytes = dtype_element_bytes(dtype);
    if (bytes == 0 || (bytes & (bytes - 1)))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "npy cannot hold %s: its elements are no whole bytes", dtype_info(dtype)->name);
    struct buffer dict = { 0 };
    bool substitute;
    append_dict(dtype, rank, shape, &substitute, &dict);

    /* The newline belongs to the header, whose end is aligned. Version 1 has room for the longest shape. */
    _Static_assert(RANK_MAX * 24 < UINT16_MAX / 2, "npy version 1 counts the header's bytes with 16 bits");
    const size_t fixed = MAGIC_BYTES + 2 + 2, total = fixed + dict.size + 1;
    const size_t padding = (ALIGN - total % ALIGN) % ALIGN, before = out->size;
    buffer_append(out, MAGIC, MAGIC_BYTES);
    buffer_append_byte(out, 1);
    buffer_append_byte(out, 0);
    buffer_append_u16le(out, (uint16_t)(total + padding - fixed));
    buffer_append(out, dict.data, dict.size);
    buffer_append_fill(out, ' ', padding);
    buffer_append_byte(out, '\n');
    bool failed = dict.failed || out->failed;
    buffer_release(&dict);
    if (failed) {
        out->size = before;
        return error_set_memory(err);
    }
    *is_substitute = substitute;
    return RESHARD_OK;
}
