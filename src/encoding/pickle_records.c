/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_records.h"

#include "encoding/pickle_records_parts.h"

#include <stdlib.h>

enum records_step records_fail(struct records *m, reshard_status status)
{
    m->status = status;
    return RECORDS_FAILED;
}

/* array: the address of a pointer of any type. */
enum records_step records_grow(struct records *m, void *array, size_t *capacity, size_t element_size)
{
    void *old;
    memcpy(&old, array, sizeof(old));
    size_t wanted = *capacity + *capacity / 2 + 64;
    reshard_status status = work_spend(m->limits->budget, (wanted - *capacity) * element_size, m->err);
    if (status)
        return records_fail(m, status);
    void *grown = reallocarray(old, wanted, element_size);
    if (!grown)
        return records_fail(m, error_set_memory(m->err));
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
    return RECORDS_ON;
}

/* ---- words ---- */

const struct records_global *records_class(const struct records *m, records_word w)
{
    w = records_resolve(m, w);
    bool has_class = records_tag(w) == RECORDS_NEW || records_tag(w) == RECORDS_GLOBAL;
    return has_class ? &m->globals[records_payload(w)] : NULL;
}

/* Content of the string opcode at position; false if it is none or cut. *end is behind it. */
static bool string_at(const struct records *m, size_t position, struct str *out, size_t *end)
{
    struct cursor cursor = m->input;
    uint8_t opcode = 0, u8 = 0;
    uint32_t u32 = 0;
    uint64_t length = 0;
    cursor.pos = position;
    bool ok = cursor_u8(&cursor, &opcode);
    if (opcode == 0x8C) {
        ok = ok && cursor_u8(&cursor, &u8);
        length = u8;
    } else if (opcode == 'X') {
        ok = ok && cursor_u32le(&cursor, &u32);
        length = u32;
    } else {
        ok = ok && opcode == 0x8D && cursor_u64le(&cursor, &length);
    }
    ok = ok && cursor_bytes(&cursor, length, out);
    *end = cursor.pos;
    return ok;
}

struct str records_text(const struct records *m, records_word w)
{
    struct str text = { 0 };
    size_t end;
    string_at(m, (size_t)(records_payload(w) >> 8), &text, &end);
    return text;
}

struct str records_bytes(const struct records *m, records_word w)
{
    struct cursor cursor = m->input;
    uint8_t opcode = 0, u8 = 0;
    uint32_t size = 0;
    struct str bytes = { 0 };
    cursor.pos = (size_t)records_payload(w);
    if (cursor_u8(&cursor, &opcode) && (opcode == 'C' ? cursor_u8(&cursor, &u8) : cursor_u32le(&cursor, &size)))
        cursor_bytes(&cursor, opcode == 'C' ? u8 : size, &bytes);
    return bytes;
}

enum records_step records_read_string(struct records *m, size_t position, records_word *out, size_t *end)
{
    struct str text;
    if (!string_at(m, position, &text, end) || text.size > m->limits->pickle_string_bytes || !str_is_utf8(text, true, NULL))
        return RECORDS_GIVE_UP;
    *out = records_word_of(RECORDS_STR, (uint64_t)position << 8 | m->shapes->attribute(text));
    return RECORDS_ON;
}

enum records_step records_string(struct records *m, int space, records_word w, uint32_t *out)
{
    const size_t last = sizeof(m->string_cache[0]) / sizeof(m->string_cache[0][0]) - 1;
    uint64_t position = records_payload(w) >> 8;
    size_t place = position * UINT64_C(0x9E3779B97F4A7C15) >> 32 & last;
    if (m->string_cache[space][place].position == position + 1) {
        *out = m->string_cache[space][place].id;
        return RECORDS_ON;
    }
    reshard_status status = m->shapes->keep_string(m, space, records_text(m, w), out);
    if (status)
        return records_fail(m, status);
    m->string_cache[space][place].position = position + 1;
    m->string_cache[space][place].id = *out;
    return RECORDS_ON;
}

/* ---- opcodes ---- */

static enum records_step pickle_records_push_int(struct records *m, int64_t number)
{
    return number <= RECORDS_INT_MAX && number >= -RECORDS_INT_MAX ? records_push(m, records_word_of(RECORDS_INT, (uint64_t)number))
                                                                   : RECORDS_GIVE_UP;
}

static enum records_step op_number(struct records *m, uint8_t opcode)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    struct str bytes;
    switch (opcode) {
    case 'K':
        return cursor_u8(&m->input, &u8) ? pickle_records_push_int(m, u8) : RECORDS_GIVE_UP;
    case 'M':
        return cursor_u16le(&m->input, &u16) ? pickle_records_push_int(m, u16) : RECORDS_GIVE_UP;
    case 'J':
        return cursor_u32le(&m->input, &u32) ? pickle_records_push_int(m, (int32_t)u32) : RECORDS_GIVE_UP;
    default:
        if (!cursor_u8(&m->input, &u8) || u8 > 8 || !cursor_bytes(&m->input, u8, &bytes))
            return RECORDS_GIVE_UP;
        uint64_t number = load_le((const uint8_t *)bytes.data, u8);
        if (u8 && u8 < 8 && (uint8_t)bytes.data[u8 - 1] & 0x80)
            number |= UINT64_MAX << (8 * u8);
        return pickle_records_push_int(m, (int64_t)number);
    }
}

static enum records_step op_string(struct records *m)
{
    records_word w;
    enum records_step step = records_read_string(m, m->input.pos - 1, &w, &m->input.pos);
    return step ? step : records_push(m, w);
}

static enum records_step op_get(struct records *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    if (opcode == 'h' ? !cursor_u8(&m->input, &u8) : !cursor_u32le(&m->input, &u32))
        return RECORDS_GIVE_UP;
    records_word w = records_memo_get(m, opcode == 'h' ? u8 : u32);
    if (records_tag(w) == RECORDS_UNSET)
        return RECORDS_GIVE_UP;
    if (records_tag(w) == RECORDS_SLOT && records_tag(records_resolve(m, w)) != RECORDS_NEW)
        w = records_resolve(m, w);
    enum records_step step = records_push(m, w);
    if (step || records_tag(w) != RECORDS_GLOBAL)
        return step;
    const struct records_global *class = &m->globals[records_payload(w)];
    for (unsigned i = 0; class->role == RECORDS_IS_OBJECT && i < m->shapes->shape_count; i++) {
        if (m->shapes->shapes[i].kind == class->kind)
            return records_take(m, i);
    }
    return RECORDS_ON;
}

static enum records_step op_put(struct records *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    if (opcode == 'q' ? !cursor_u8(&m->input, &u8) : !cursor_u32le(&m->input, &u32))
        return RECORDS_GIVE_UP;
    return records_memo_put(m, opcode == 'q' ? u8 : u32);
}

static enum records_step op_mark(struct records *m)
{
    if (m->mark_count >= m->limits->pickle_depth)
        return RECORDS_GIVE_UP;
    if (m->mark_count == m->mark_capacity) {
        enum records_step step = records_grow(m, &m->marks, &m->mark_capacity, sizeof(*m->marks));
        if (step)
            return step;
    }
    m->marks[m->mark_count++] = m->fence = m->stack_count;
    return RECORDS_ON;
}

/* Takes off what lies above the mark; it stays readable until the next push. */
static bool pop_mark(struct records *m, const records_word **items, size_t *count)
{
    if (!m->mark_count)
        return false;
    *items = m->fence ? m->stack + m->fence : m->stack; /* there may be no stack yet */
    *count = m->stack_count - m->fence;
    m->stack_count = m->fence;
    m->mark_count--;
    m->fence = m->mark_count ? m->marks[m->mark_count - 1] : 0;
    return true;
}

static bool has(const struct records *m, size_t count)
{
    return m->stack_count - m->fence >= count;
}

static enum records_step op_tuple(struct records *m, uint8_t opcode)
{
    const records_word *items;
    size_t count = (size_t)opcode - 0x84;
    if (opcode == 't') {
        if (!pop_mark(m, &items, &count))
            return RECORDS_GIVE_UP;
    } else {
        if (!has(m, count))
            return RECORDS_GIVE_UP;
        m->stack_count -= count;
        items = m->stack + m->stack_count;
    }
    return records_shape_tuple(m, items, count);
}

/* APPEND, APPENDS, SETITEM, SETITEMS. */
static enum records_step op_add(struct records *m, uint8_t opcode)
{
    const records_word *items;
    bool is_dict = opcode == 's' || opcode == 'u';
    size_t count = is_dict ? 2 : 1;
    if (opcode == 'e' || opcode == 'u') {
        if (!pop_mark(m, &items, &count) || !has(m, 1))
            return RECORDS_GIVE_UP;
    } else {
        if (!has(m, count + 1))
            return RECORDS_GIVE_UP;
        m->stack_count -= count;
        items = m->stack + m->stack_count;
    }
    return records_shape_add(m, items, count, is_dict);
}

static enum records_step op_stack_global(struct records *m)
{
    if (!has(m, 2))
        return RECORDS_GIVE_UP;
    m->stack_count -= 2;
    records_word module = m->stack[m->stack_count], name = m->stack[m->stack_count + 1];
    if (records_tag(module) != RECORDS_STR || records_tag(name) != RECORDS_STR)
        return RECORDS_GIVE_UP;
    return records_shape_global(m, records_text(m, module), records_text(m, name));
}

static enum records_step op_global(struct records *m)
{
    struct str module, name;
    if (!cursor_line(&m->input, 65536, &module) || !cursor_line(&m->input, 65536, &name))
        return RECORDS_GIVE_UP;
    return records_shape_global(m, module, name);
}

static enum records_step op_framing(struct records *m, uint8_t opcode)
{
    uint64_t length = 0;
    uint8_t version = 0;
    size_t start = m->input.pos - 1;
    if (opcode == 0x95)
        return cursor_u64le(&m->input, &length) && length <= cursor_left(&m->input) ? RECORDS_ON : RECORDS_GIVE_UP;
    if (!cursor_u8(&m->input, &version) || version > 5)
        return RECORDS_GIVE_UP;
    m->protocol = version;
    if (start == 0)
        m->first_protocol = version;
    return RECORDS_ON;
}

/* Floats, which nothing that we understand holds, and bytes. */
static enum records_step op_opaque(struct records *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    uint64_t length = 8, position = m->input.pos - 1;
    bool ok = true;
    if (opcode == 'C') {
        ok = cursor_u8(&m->input, &u8);
        length = u8;
    } else if (opcode == 'B') {
        ok = cursor_u32le(&m->input, &u32);
        length = u32;
    }
    if (!ok || !cursor_skip(&m->input, length) || length > m->limits->pickle_string_bytes)
        return RECORDS_GIVE_UP;
    return records_push(m, opcode == 'G' ? records_word_of(RECORDS_OPAQUE, 0) : records_word_of(RECORDS_BYTES, position));
}

static enum records_step op_object(struct records *m, uint8_t opcode)
{
    if (!has(m, 2))
        return RECORDS_GIVE_UP;
    return opcode == 'R' ? records_shape_reduce(m) : opcode == 'b' ? records_shape_build(m) : records_shape_newobj(m);
}

static enum records_step run_opcode(struct records *m, uint8_t opcode)
{
    switch (opcode) {
    case 'h':
    case 'j':
        return op_get(m, opcode);
    case 0x94:
        return records_memoize(m);
    case 'K':
    case 'M':
    case 'J':
    case 0x8A:
        return op_number(m, opcode);
    case 0x8C:
    case 'X':
    case 0x8D:
        return op_string(m);
    case '(':
        return op_mark(m);
    case ')':
        return records_shape_tuple(m, NULL, 0);
    case 't':
    case 0x85:
    case 0x86:
    case 0x87:
        return op_tuple(m, opcode);
    case '}':
    case ']':
        return records_shape_container(m, opcode == '}');
    case 'a':
    case 'e':
    case 's':
    case 'u':
        return op_add(m, opcode);
    case 'R':
    case 0x81:
    case 'b':
        return op_object(m, opcode);
    case 'N':
    case 0x88:
    case 0x89:
        return records_push(m, opcode == 'N' ? RECORDS_NONE : opcode == 0x88 ? RECORDS_TRUE : RECORDS_FALSE);
    case 0x93:
        return op_stack_global(m);
    case 'c':
        return op_global(m);
    case 'q':
    case 'r':
        return op_put(m, opcode);
    case 0x80:
    case 0x95:
        return op_framing(m, opcode);
    case 'G':
    case 'C':
    case 'B':
        return op_opaque(m, opcode);
    default:
        return RECORDS_GIVE_UP;
    }
}

static enum records_step run_all(struct records *m)
{
    for (;;) {
        uint8_t opcode;
        if (!cursor_u8(&m->input, &opcode))
            return RECORDS_GIVE_UP;
        if (opcode == '.')
            break;
        enum records_step step = run_opcode(m, opcode);
        if (step)
            return step;
    }
    return m->stack_count == 1 && !m->mark_count ? m->shapes->finish(m, m->stack[0]) : RECORDS_GIVE_UP;
}

static void records_release(struct records *m)
{
    for (size_t i = 0; i < m->container_made; i++)
        free(m->containers[i].items);
    free(m->containers);
    free(m->stack);
    free(m->marks);
    free(m->pool);
    free(m->slots);
    free(m->globals);
    name_map_release(&m->global_names);
    free(m->memo_bits);
    free(m->memo_ranks);
    free(m->memo);
}

reshard_status records_decode(const void *bytes, size_t size, const struct records_shapes *shapes, void *context,
                              const struct limits *limits, bool *is_done, int *protocol, reshard_error *err)
{
    struct records *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set_memory(err);
    m->shapes = shapes;
    m->context = context;
    m->limits = limits;
    m->err = err;
    m->input = cursor_over(bytes, size);
    m->data = bytes;
    enum records_step step = size ? records_memo_scan(m) : RECORDS_GIVE_UP;
    if (!step)
        step = run_all(m);
    *is_done = step == RECORDS_ON;
    *protocol = m->first_protocol;
    reshard_status status = step == RECORDS_FAILED ? m->status : RESHARD_OK;
    records_release(m);
    free(m);
    return status;
}
