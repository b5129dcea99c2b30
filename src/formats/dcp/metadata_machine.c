/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/metadata_machine.h"

#include "tensor/box.h"

#include <stdlib.h>

enum step dcp_machine_fail(struct machine *m, reshard_status status)
{
    m->status = status;
    return STEP_FAILED;
}

/* array: the address of a pointer of any type. */
enum step dcp_machine_grow(struct machine *m, void *array, size_t *capacity, size_t element_size)
{
    void *old;
    memcpy(&old, array, sizeof(old));
    size_t wanted = *capacity + *capacity / 2 + 64;
    reshard_status status = work_spend(m->build->limits->budget, (wanted - *capacity) * element_size, m->build->err);
    if (status)
        return dcp_machine_fail(m, status);
    void *grown = reallocarray(old, wanted, element_size);
    if (!grown)
        return dcp_machine_fail(m, error_set_memory(m->build->err));
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
    return STEP_ON;
}

/* ---- words ---- */

enum dcp_class dcp_word_class(const struct machine *m, word w)
{
    w = dcp_resolve(m, w);
    bool has_class = word_tag(w) == WORD_NEW || word_tag(w) == WORD_GLOBAL;
    return has_class ? m->globals[word_payload(w)].class : DCP_CLASS_UNKNOWN;
}

/* Content of the string opcode at position; false if it is none or cut. *end is behind it. */
static bool string_at(const struct machine *m, size_t position, struct str *out, size_t *end)
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

struct str dcp_word_text(const struct machine *m, word w)
{
    struct str text = { 0 };
    size_t end;
    string_at(m, (size_t)(word_payload(w) >> 8), &text, &end);
    return text;
}

enum step dcp_read_string(struct machine *m, size_t position, word *out, size_t *end)
{
    struct str text;
    if (!string_at(m, position, &text, end) || text.size > m->build->limits->pickle_string_bytes || !str_is_utf8(text, true, NULL))
        return STEP_GIVE_UP;
    *out = word_make(WORD_STR, (uint64_t)position << 8 | dcp_attribute_of(text));
    return STEP_ON;
}

#define CACHE_SLOT(cache, position) (&(cache)[(position) * UINT64_C(0x9E3779B97F4A7C15) >> 32 & (sizeof(cache) / sizeof((cache)[0]) - 1)])

enum step dcp_word_name(struct machine *m, word w, uint32_t *out)
{
    uint64_t position = word_payload(w) >> 8;
    if (CACHE_SLOT(m->name_cache, position)->position == position + 1) {
        *out = CACHE_SLOT(m->name_cache, position)->id;
        return STEP_ON;
    }
    reshard_status status = dcp_build_name(m->build, dcp_word_text(m, w), out);
    if (status)
        return dcp_machine_fail(m, status);
    CACHE_SLOT(m->name_cache, position)->position = position + 1;
    CACHE_SLOT(m->name_cache, position)->id = *out;
    return STEP_ON;
}

enum step dcp_word_to_text(struct machine *m, word w, uint32_t *out)
{
    uint64_t position = word_payload(w) >> 8;
    if (CACHE_SLOT(m->text_cache, position)->position == position + 1) {
        *out = CACHE_SLOT(m->text_cache, position)->id;
        return STEP_ON;
    }
    reshard_status status = dcp_build_text(m->build, dcp_word_text(m, w), out);
    if (status)
        return dcp_machine_fail(m, status);
    CACHE_SLOT(m->text_cache, position)->position = position + 1;
    CACHE_SLOT(m->text_cache, position)->id = *out;
    return STEP_ON;
}

enum step dcp_vector(struct machine *m, const int64_t *values, size_t count, uint32_t *out)
{
    reshard_status status = dcp_build_vector(m->build, values, count, out);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

/* ---- opcodes ---- */

static enum step push_int(struct machine *m, int64_t number)
{
    return number <= WORD_INT_MAX && number >= -WORD_INT_MAX ? dcp_push(m, word_make(WORD_INT, (uint64_t)number)) : STEP_GIVE_UP;
}

static enum step op_number(struct machine *m, uint8_t opcode)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    struct str bytes;
    switch (opcode) {
    case 'K':
        return cursor_u8(&m->input, &u8) ? push_int(m, u8) : STEP_GIVE_UP;
    case 'M':
        return cursor_u16le(&m->input, &u16) ? push_int(m, u16) : STEP_GIVE_UP;
    case 'J':
        return cursor_u32le(&m->input, &u32) ? push_int(m, (int32_t)u32) : STEP_GIVE_UP;
    default:
        if (!cursor_u8(&m->input, &u8) || u8 > 8 || !cursor_bytes(&m->input, u8, &bytes))
            return STEP_GIVE_UP;
        uint64_t number = load_le((const uint8_t *)bytes.data, u8);
        if (u8 && u8 < 8 && (uint8_t)bytes.data[u8 - 1] & 0x80)
            number |= UINT64_MAX << (8 * u8);
        return push_int(m, (int64_t)number);
    }
}

static enum step op_string(struct machine *m)
{
    word w;
    enum step step = dcp_read_string(m, m->input.pos - 1, &w, &m->input.pos);
    return step ? step : dcp_push(m, w);
}

static enum step op_get(struct machine *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    if (opcode == 'h' ? !cursor_u8(&m->input, &u8) : !cursor_u32le(&m->input, &u32))
        return STEP_GIVE_UP;
    word w = dcp_memo_get(m, opcode == 'h' ? u8 : u32);
    if (word_tag(w) == WORD_UNSET)
        return STEP_GIVE_UP;
    if (word_tag(w) == WORD_SLOT && word_tag(dcp_resolve(m, w)) != WORD_NEW)
        w = dcp_resolve(m, w);
    enum step step = dcp_push(m, w);
    if (step || word_tag(w) != WORD_GLOBAL)
        return step;
    enum dcp_class class = m->globals[word_payload(w)].class;
    return class == DCP_CLASS_CHUNK || class == DCP_CLASS_INDEX || class == DCP_CLASS_RANGE ? dcp_record(m, class) : STEP_ON;
}

static enum step op_put(struct machine *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    if (opcode == 'q' ? !cursor_u8(&m->input, &u8) : !cursor_u32le(&m->input, &u32))
        return STEP_GIVE_UP;
    return dcp_memo_put(m, opcode == 'q' ? u8 : u32);
}

static enum step op_mark(struct machine *m)
{
    if (m->mark_count >= m->build->limits->pickle_depth)
        return STEP_GIVE_UP;
    if (m->mark_count == m->mark_capacity) {
        enum step step = dcp_machine_grow(m, &m->marks, &m->mark_capacity, sizeof(*m->marks));
        if (step)
            return step;
    }
    m->marks[m->mark_count++] = m->fence = m->stack_count;
    return STEP_ON;
}

/* Takes off what lies above the mark; it stays readable until the next push. */
static bool pop_mark(struct machine *m, const word **items, size_t *count)
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

static bool has(const struct machine *m, size_t count)
{
    return m->stack_count - m->fence >= count;
}

static enum step op_tuple(struct machine *m, uint8_t opcode)
{
    const word *items;
    size_t count = (size_t)opcode - 0x84;
    if (opcode == 't') {
        if (!pop_mark(m, &items, &count))
            return STEP_GIVE_UP;
    } else {
        if (!has(m, count))
            return STEP_GIVE_UP;
        m->stack_count -= count;
        items = m->stack + m->stack_count;
    }
    return dcp_shape_tuple(m, items, count);
}

/* APPEND, APPENDS, SETITEM, SETITEMS. */
static enum step op_add(struct machine *m, uint8_t opcode)
{
    const word *items;
    bool is_dict = opcode == 's' || opcode == 'u';
    size_t count = is_dict ? 2 : 1;
    if (opcode == 'e' || opcode == 'u') {
        if (!pop_mark(m, &items, &count) || !has(m, 1))
            return STEP_GIVE_UP;
    } else {
        if (!has(m, count + 1))
            return STEP_GIVE_UP;
        m->stack_count -= count;
        items = m->stack + m->stack_count;
    }
    return dcp_shape_add(m, items, count, is_dict);
}

static enum step op_stack_global(struct machine *m)
{
    if (!has(m, 2))
        return STEP_GIVE_UP;
    m->stack_count -= 2;
    word module = m->stack[m->stack_count], name = m->stack[m->stack_count + 1];
    if (word_tag(module) != WORD_STR || word_tag(name) != WORD_STR)
        return STEP_GIVE_UP;
    return dcp_shape_global(m, dcp_word_text(m, module), dcp_word_text(m, name));
}

static enum step op_global(struct machine *m)
{
    struct str module, name;
    if (!cursor_line(&m->input, 65536, &module) || !cursor_line(&m->input, 65536, &name))
        return STEP_GIVE_UP;
    return dcp_shape_global(m, module, name);
}

static enum step op_framing(struct machine *m, uint8_t opcode)
{
    uint64_t length = 0;
    uint8_t version = 0;
    size_t start = m->input.pos - 1;
    if (opcode == 0x95)
        return cursor_u64le(&m->input, &length) && length <= cursor_left(&m->input) ? STEP_ON : STEP_GIVE_UP;
    if (!cursor_u8(&m->input, &version) || version > 5)
        return STEP_GIVE_UP;
    m->protocol = version;
    if (start == 0)
        m->build->out->protocol = version;
    return STEP_ON;
}

/* Floats and bytes: nothing that we understand holds any. */
static enum step op_opaque(struct machine *m, uint8_t opcode)
{
    uint8_t u8 = 0;
    uint32_t u32 = 0;
    uint64_t length = 8;
    bool ok = true;
    if (opcode == 'C') {
        ok = cursor_u8(&m->input, &u8);
        length = u8;
    } else if (opcode == 'B') {
        ok = cursor_u32le(&m->input, &u32);
        length = u32;
    }
    if (!ok || !cursor_skip(&m->input, length) || length > m->build->limits->pickle_string_bytes)
        return STEP_GIVE_UP;
    return dcp_push(m, word_make(WORD_OPAQUE, 0));
}

static enum step run_opcode(struct machine *m, uint8_t opcode)
{
    switch (opcode) {
    case 'h':
    case 'j':
        return op_get(m, opcode);
    case 0x94:
        return dcp_memoize(m);
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
        return dcp_shape_tuple(m, NULL, 0);
    case 't':
    case 0x85:
    case 0x86:
    case 0x87:
        return op_tuple(m, opcode);
    case '}':
    case ']':
        return dcp_shape_container(m, opcode == '}');
    case 'a':
    case 'e':
    case 's':
    case 'u':
        return op_add(m, opcode);
    case 'R':
        return has(m, 2) ? dcp_shape_reduce(m) : STEP_GIVE_UP;
    case 0x81:
        return has(m, 2) ? dcp_shape_newobj(m) : STEP_GIVE_UP;
    case 'b':
        return has(m, 2) ? dcp_shape_build(m) : STEP_GIVE_UP;
    case 'N':
        return dcp_push(m, WORD_NONE);
    case 0x88:
    case 0x89:
        return dcp_push(m, opcode == 0x88 ? WORD_TRUE : WORD_FALSE);
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
        return STEP_GIVE_UP;
    }
}

static enum step run(struct machine *m)
{
    for (;;) {
        uint8_t opcode;
        if (!cursor_u8(&m->input, &opcode))
            return STEP_GIVE_UP;
        if (opcode == '.')
            break;
        enum step step = run_opcode(m, opcode);
        if (step)
            return step;
    }
    return m->stack_count == 1 && !m->mark_count ? dcp_shape_finish(m, m->stack[0]) : STEP_GIVE_UP;
}

static void machine_release(struct machine *m)
{
    for (size_t i = 0; i < m->container_made; i++)
        free(m->containers[i].items);
    free(m->containers);
    free(m->stack);
    free(m->marks);
    free(m->pool);
    free(m->slots);
    free(m->tensors);
    free(m->globals);
    name_map_release(&m->global_names);
    free(m->memo_bits);
    free(m->memo_ranks);
    free(m->memo);
}

reshard_status dcp_decode_fast(const void *bytes, size_t size, struct dcp_build *build, bool *is_done)
{
    struct machine *m = calloc(1, sizeof(*m));
    if (!m)
        return error_set_memory(build->err);
    m->build = build;
    m->input = cursor_over(bytes, size);
    m->data = bytes;
    m->checkpoint_id = m->save_id = m->load_id = WORD_NONE;
    enum step step = size ? dcp_memo_scan(m) : STEP_GIVE_UP;
    if (!step)
        step = run(m);
    *is_done = step == STEP_ON;
    reshard_status status = step == STEP_FAILED ? m->status : RESHARD_OK;
    machine_release(m);
    free(m);
    return status;
}
