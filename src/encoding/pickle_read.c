/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle.h"

#include "base/array.h"
#include "encoding/pickle_machine.h"

#include <stdio.h>
#include <stdlib.h>

#define SLAB_NODES_MIN 32
#define SLAB_NODES_MAX 4096

struct opcode {
    reshard_status (*run)(struct pickle_machine *m);
    bool weights_only;
};

static const struct opcode opcodes[256] = {
#define X(byte, name, weights_only) [byte] = { pickle_op_##name, weights_only },
    PICKLE_OPCODES(X)
#undef X
};

/* ---- what all opcodes need ---- */

reshard_status pickle_fail(struct pickle_machine *m, reshard_status code, const char *format, ...)
{
    uint64_t offset = m->base_offset + m->op_start;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set_at(m->err, code, offset, "pickle: byte %" PRIu64 ": %s", offset, text);
}

reshard_status pickle_fail_limit(struct pickle_machine *m, const char *limit_name, uint64_t found, uint64_t limit)
{
    reshard_status status = error_set_limit(m->err, limit_name, found, limit);
    error_prefix(m->err, "pickle: byte %" PRIu64, m->base_offset + m->op_start);
    return status;
}

reshard_status pickle_fail_underflow(struct pickle_machine *m)
{
    return pickle_fail(m, RESHARD_ERR_FORMAT,
                       m->mark_count ? "values are taken from below a mark" : "values are taken from an empty stack");
}

static reshard_status fail_truncated(struct pickle_machine *m)
{
    return pickle_fail(m, RESHARD_ERR_FORMAT, "the pickle ends inside an opcode's argument");
}

struct value *pickle_node(struct pickle_machine *m, enum value_kind kind, reshard_status *status)
{
    struct value_graph *graph = m->graph;
    if (!m->nodes_left) {
        m->slab_size = m->slab_size ? m->slab_size * 2 : SLAB_NODES_MIN;
        if (m->slab_size > SLAB_NODES_MAX)
            m->slab_size = SLAB_NODES_MAX;
        m->nodes = arena_array(&graph->arena, m->slab_size, sizeof(*m->nodes));
        if (!m->nodes) {
            *status = error_set_memory(m->err);
            return NULL;
        }
        m->nodes_left = m->slab_size;
    }
    if (graph->count >= m->limits->pickle_values || graph->count == UINT32_MAX) {
        *status = pickle_fail_limit(m, "pickle_values", (uint64_t)graph->count + 1, m->limits->pickle_values);
        return NULL;
    }
    struct value *node = m->nodes++;
    m->nodes_left--;
    *node = (struct value){ .kind = (uint8_t)kind, .id = graph->count++, .offset = m->base_offset + m->op_start };
    return node;
}

reshard_status pickle_stack_grow(struct pickle_machine *m)
{
    size_t before = m->stack_capacity;
    if (!ARRAY_ROOM(m->stack, m->stack_capacity, m->stack_capacity))
        return error_set_memory(m->err);
    return work_spend(m->limits->budget, (m->stack_capacity - before) * sizeof(*m->stack), m->err);
}

static void drop_mark(struct pickle_machine *m)
{
    m->mark_count--;
    m->fence = m->mark_count ? m->marks[m->mark_count - 1] : 0;
}

reshard_status pickle_pop_mark(struct pickle_machine *m, struct value ***items, size_t *count)
{
    if (!m->mark_count)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "no mark is on the stack");
    size_t start = m->fence;
    *items = start ? m->stack + start : m->stack; /* there may be no stack yet */
    *count = m->stack_count - start;
    m->stack_count = start;
    drop_mark(m);
    return RESHARD_OK;
}

/* ---- framing ---- */

reshard_status pickle_op_proto(struct pickle_machine *m)
{
    uint8_t version;
    if (!cursor_u8(&m->input, &version))
        return fail_truncated(m);
    if (version > 5)
        return pickle_fail(m, RESHARD_ERR_UNSUPPORTED, "pickle protocol %d is not known, expected 0 to 5", version);
    m->protocol = version;
    if (m->op_start == 0)
        m->report.protocol = version;
    return RESHARD_OK;
}

reshard_status pickle_op_frame(struct pickle_machine *m)
{
    uint64_t length;
    if (!cursor_u64le(&m->input, &length))
        return fail_truncated(m);
    if (length > cursor_left(&m->input))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a frame of %" PRIu64 " bytes, but only %zu follow", length, cursor_left(&m->input));
    return RESHARD_OK;
}

reshard_status pickle_op_stop(struct pickle_machine *m)
{
    if (!pickle_has(m, 1))
        return pickle_fail_underflow(m);
    m->result = pickle_top(m);
    m->report.stack_left = m->stack_count != 1 || m->mark_count != 0;
    m->report.consumed = m->input.pos;
    return RESHARD_OK;
}

reshard_status pickle_op_ext(struct pickle_machine *m)
{
    return pickle_fail(m, RESHARD_ERR_UNSUPPORTED, "an extension registry code: its meaning is not in the file");
}

reshard_status pickle_op_buffer(struct pickle_machine *m)
{
    return pickle_fail(m, RESHARD_ERR_UNSUPPORTED, "an out-of-band buffer: its bytes are not in the file");
}

/* ---- stack ---- */

reshard_status pickle_op_mark(struct pickle_machine *m)
{
    if (!ARRAY_ROOM(m->marks, m->mark_count, m->mark_capacity))
        return error_set_memory(m->err);
    if (m->mark_count >= m->limits->pickle_depth)
        return pickle_fail_limit(m, "pickle_depth", m->mark_count + 1, m->limits->pickle_depth);
    m->marks[m->mark_count++] = m->fence = m->stack_count;
    return RESHARD_OK;
}

reshard_status pickle_op_pop(struct pickle_machine *m)
{
    if (pickle_has(m, 1))
        m->stack_count--;
    else if (m->mark_count)
        drop_mark(m);
    else
        return pickle_fail_underflow(m);
    return RESHARD_OK;
}

reshard_status pickle_op_pop_mark(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    return pickle_pop_mark(m, &items, &count);
}

reshard_status pickle_op_dup(struct pickle_machine *m)
{
    return pickle_has(m, 1) ? pickle_push(m, pickle_top(m)) : pickle_fail_underflow(m);
}

/* ---- memo ---- */

static reshard_status memo_get(struct pickle_machine *m, uint64_t index)
{
    if (index >= m->memo_capacity || !m->memo[index])
        return pickle_fail(m, RESHARD_ERR_FORMAT, "memo entry %" PRIu64 " does not exist", index);
    return pickle_push(m, m->memo[index]);
}

static reshard_status memo_grow(struct pickle_machine *m, uint64_t index)
{
    if (index > m->memo_count && index - m->memo_count > m->limits->memo_gap)
        return pickle_fail_limit(m, "memo_gap", index - m->memo_count, m->limits->memo_gap);
    size_t before = m->memo_capacity;
    if (!ARRAY_ROOM(m->memo, index, m->memo_capacity))
        return error_set_memory(m->err);
    memset(m->memo + before, 0, (m->memo_capacity - before) * sizeof(*m->memo));
    return work_spend(m->limits->budget, (m->memo_capacity - before) * sizeof(*m->memo), m->err);
}

static reshard_status memo_put(struct pickle_machine *m, uint64_t index)
{
    if (!pickle_has(m, 1))
        return pickle_fail_underflow(m);
    if (index >= m->memo_capacity) {
        reshard_status status = memo_grow(m, index);
        if (status)
            return status;
    }
    m->memo_count += m->memo[index] == NULL;
    m->memo[index] = pickle_top(m);
    return RESHARD_OK;
}

reshard_status pickle_op_memoize(struct pickle_machine *m)
{
    return memo_put(m, m->memo_count);
}

reshard_status pickle_op_binput(struct pickle_machine *m)
{
    uint8_t index;
    return cursor_u8(&m->input, &index) ? memo_put(m, index) : fail_truncated(m);
}

reshard_status pickle_op_long_binput(struct pickle_machine *m)
{
    uint32_t index;
    return cursor_u32le(&m->input, &index) ? memo_put(m, index) : fail_truncated(m);
}

reshard_status pickle_op_binget(struct pickle_machine *m)
{
    uint8_t index;
    return cursor_u8(&m->input, &index) ? memo_get(m, index) : fail_truncated(m);
}

reshard_status pickle_op_long_binget(struct pickle_machine *m)
{
    uint32_t index;
    return cursor_u32le(&m->input, &index) ? memo_get(m, index) : fail_truncated(m);
}

static reshard_status read_index_line(struct pickle_machine *m, uint64_t *index)
{
    struct str line;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &line);
    if (status)
        return status;
    if (!str_to_u64(line, index))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "'%.*s' is not a memo index", (int)(line.size > 100 ? 100 : line.size), line.data);
    return RESHARD_OK;
}

reshard_status pickle_op_put(struct pickle_machine *m)
{
    uint64_t index;
    reshard_status status = read_index_line(m, &index);
    return status ? status : memo_put(m, index);
}

reshard_status pickle_op_get(struct pickle_machine *m)
{
    uint64_t index;
    reshard_status status = read_index_line(m, &index);
    return status ? status : memo_get(m, index);
}

/* ---- scalars ---- */

static reshard_status push_new(struct pickle_machine *m, enum value_kind kind)
{
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, kind, &status);
    return node ? pickle_push(m, node) : status;
}

static reshard_status push_bool(struct pickle_machine *m, bool boolean)
{
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, VALUE_BOOL, &status);
    if (!node)
        return status;
    node->boolean = boolean;
    return pickle_push(m, node);
}

static reshard_status pickle_read_push_int(struct pickle_machine *m, int64_t integer)
{
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, VALUE_INT, &status);
    if (!node)
        return status;
    node->integer = integer;
    return pickle_push(m, node);
}

reshard_status pickle_op_none(struct pickle_machine *m)
{
    return push_new(m, VALUE_NONE);
}

reshard_status pickle_op_newtrue(struct pickle_machine *m)
{
    return push_bool(m, true);
}

reshard_status pickle_op_newfalse(struct pickle_machine *m)
{
    return push_bool(m, false);
}

reshard_status pickle_op_binint(struct pickle_machine *m)
{
    uint32_t number;
    return cursor_u32le(&m->input, &number) ? pickle_read_push_int(m, (int32_t)number) : fail_truncated(m);
}

reshard_status pickle_op_binint1(struct pickle_machine *m)
{
    uint8_t number;
    return cursor_u8(&m->input, &number) ? pickle_read_push_int(m, number) : fail_truncated(m);
}

reshard_status pickle_op_binint2(struct pickle_machine *m)
{
    uint16_t number;
    return cursor_u16le(&m->input, &number) ? pickle_read_push_int(m, number) : fail_truncated(m);
}

reshard_status pickle_op_binfloat(struct pickle_machine *m)
{
    struct str bytes;
    if (!cursor_bytes(&m->input, 8, &bytes))
        return fail_truncated(m);
    uint64_t bits = __builtin_bswap64(load_le((const uint8_t *)bytes.data, 8));
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, VALUE_FLOAT, &status);
    if (!node)
        return status;
    memcpy(&node->real, &bits, sizeof(bits));
    return pickle_push(m, node);
}

reshard_status pickle_op_long1(struct pickle_machine *m)
{
    uint8_t size;
    struct str bytes;
    if (!cursor_u8(&m->input, &size) || !cursor_bytes(&m->input, size, &bytes))
        return fail_truncated(m);
    return pickle_push_integer(m, bytes);
}

reshard_status pickle_op_long4(struct pickle_machine *m)
{
    uint32_t size;
    struct str bytes;
    if (!cursor_u32le(&m->input, &size))
        return fail_truncated(m);
    if (size > INT32_MAX)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "an integer of negative length");
    if (!cursor_bytes(&m->input, size, &bytes))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "an integer of %" PRIu32 " bytes, but only %zu follow", size, cursor_left(&m->input));
    return pickle_push_integer(m, bytes);
}

/* ---- strings with a length ---- */

enum length_form { LENGTH_U8, LENGTH_U32, LENGTH_I32, LENGTH_U64 };

static bool pickle_read_length(struct pickle_machine *m, enum length_form form, uint64_t *length)
{
    uint8_t u8;
    uint32_t u32;
    switch (form) {
    case LENGTH_U8:
        if (!cursor_u8(&m->input, &u8))
            return false;
        *length = u8;
        return true;
    case LENGTH_U32:
    case LENGTH_I32:
        if (!cursor_u32le(&m->input, &u32))
            return false;
        *length = u32;
        return true;
    case LENGTH_U64:
        return cursor_u64le(&m->input, length);
    }
    return false;
}

static reshard_status read_counted(struct pickle_machine *m, enum length_form form, struct str *out)
{
    uint64_t length;
    if (!pickle_read_length(m, form, &length))
        return fail_truncated(m);
    if (form == LENGTH_I32 && length > INT32_MAX)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a string of negative length");
    if (!cursor_bytes(&m->input, length, out))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a string of %" PRIu64 " bytes, but only %zu follow", length, cursor_left(&m->input));
    if (length > m->limits->pickle_string_bytes)
        return pickle_fail_limit(m, "pickle_string_bytes", length, m->limits->pickle_string_bytes);
    return RESHARD_OK;
}

static reshard_status push_bytes(struct pickle_machine *m, enum value_kind kind, enum length_form form)
{
    struct str text;
    reshard_status status = read_counted(m, form, &text);
    if (status)
        return status;
    struct value *node = pickle_node(m, kind, &status);
    if (!node)
        return status;
    node->text = text;
    return pickle_push(m, node);
}

static reshard_status push_unicode(struct pickle_machine *m, enum length_form form)
{
    struct str text;
    reshard_status status = read_counted(m, form, &text);
    return status ? status : pickle_push_text(m, text);
}

/* Python 2 did not say whether a string is text. UTF-8 is taken for text, the rest stays bytes. */
static reshard_status push_old_string(struct pickle_machine *m, enum length_form form)
{
    struct str text;
    reshard_status status = read_counted(m, form, &text);
    if (status)
        return status;
    bool is_text = str_is_utf8(text, true, NULL);
    struct value *node = pickle_node(m, is_text ? VALUE_STR : VALUE_BYTES, &status);
    if (!node)
        return status;
    node->text = text;
    node->reserved = is_text ? 0 : NODE_RAW_STRING;
    return pickle_push(m, node);
}

reshard_status pickle_op_short_binunicode(struct pickle_machine *m)
{
    return push_unicode(m, LENGTH_U8);
}

reshard_status pickle_op_binunicode(struct pickle_machine *m)
{
    return push_unicode(m, LENGTH_U32);
}

reshard_status pickle_op_binunicode8(struct pickle_machine *m)
{
    return push_unicode(m, LENGTH_U64);
}

reshard_status pickle_op_short_binbytes(struct pickle_machine *m)
{
    return push_bytes(m, VALUE_BYTES, LENGTH_U8);
}

reshard_status pickle_op_binbytes(struct pickle_machine *m)
{
    return push_bytes(m, VALUE_BYTES, LENGTH_U32);
}

reshard_status pickle_op_binbytes8(struct pickle_machine *m)
{
    return push_bytes(m, VALUE_BYTES, LENGTH_U64);
}

reshard_status pickle_op_bytearray8(struct pickle_machine *m)
{
    return push_bytes(m, VALUE_BYTEARRAY, LENGTH_U64);
}

reshard_status pickle_op_short_binstring(struct pickle_machine *m)
{
    return push_old_string(m, LENGTH_U8);
}

reshard_status pickle_op_binstring(struct pickle_machine *m)
{
    return push_old_string(m, LENGTH_I32);
}

/* ---- the run ---- */

static void note_weights_only(struct pickle_machine *m)
{
    m->report.not_weights_only = true;
    m->report.not_weights_only_offset = m->base_offset + m->op_start;
}

static reshard_status run(struct pickle_machine *m)
{
    while (!m->result) {
        uint8_t byte;
        m->op_start = m->input.pos;
        for (; m->shifts_left && m->shifts->at <= m->op_start; m->shifts++, m->shifts_left--)
            m->base_offset = m->shifts->bytes;
        if (!cursor_u8(&m->input, &byte))
            return pickle_fail(m, RESHARD_ERR_FORMAT, m->input.size ? "the pickle ends without STOP" : "the pickle is empty");
        const struct opcode *opcode = &opcodes[byte];
        if (!opcode->run)
            return pickle_fail(m, RESHARD_ERR_FORMAT, "unknown opcode 0x%02X", byte);
        if (!opcode->weights_only && !m->report.not_weights_only)
            note_weights_only(m);
        reshard_status status = opcode->run(m);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* What the graph takes while it is read is bounded; whoever adds to it later has bounds of his own. */
static reshard_status run_bounded(struct pickle_machine *m)
{
    struct arena *arena = &m->graph->arena;
    size_t bytes_max = arena->bytes_max;
    arena->work = m->limits->budget;
    arena->bytes_max = m->limits->pickle_bytes > SIZE_MAX ? 0 : (size_t)m->limits->pickle_bytes;
    reshard_status status = run(m);
    if (status == RESHARD_ERR_MEMORY && arena->is_full)
        status = pickle_fail_limit(m, "pickle_bytes", m->limits->pickle_bytes + 1, m->limits->pickle_bytes);
    arena->bytes_max = bytes_max;
    return work_explain(m->limits->budget, status, m->err);
}

static reshard_status pickle_read_whole(struct pickle_machine *m, struct pickle_report *report)
{
    reshard_status status = run_bounded(m);
    if (!status) {
        m->graph->root = m->result;
        if (report)
            *report = m->report;
    }
    free(m->stack);
    free(m->marks);
    free(m->memo);
    return status;
}

reshard_status pickle_parse(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits,
                            struct value_graph *graph, struct pickle_report *report, reshard_error *err)
{
    struct pickle_machine m = {
        .input = cursor_over(bytes, size), .base_offset = base_offset, .limits = limits, .graph = graph, .err = err,
    };
    return pickle_read_whole(&m, report);
}

reshard_status pickle_parse_with_ids(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits,
                                     struct value_graph *graph, struct pickle_report *report, reshard_error *err)
{
    struct pickle_machine m = {
        .input = cursor_over(bytes, size), .base_offset = base_offset, .limits = limits, .graph = graph, .err = err, .takes_ids = true,
    };
    return pickle_read_whole(&m, report);
}

reshard_status pickle_parse_shifted(const void *bytes, size_t size, const struct pickle_shift *shifts, size_t shift_count,
                                      const struct limits *limits, struct value_graph *graph, struct pickle_report *report,
                                      reshard_error *err)
{
    struct pickle_machine m = {
        .input = cursor_over(bytes, size), .shifts = shifts, .shifts_left = shift_count, .limits = limits, .graph = graph, .err = err,
    };
    return pickle_read_whole(&m, report);
}
