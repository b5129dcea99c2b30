/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_modern.h"

#include "base/array.h"
#include "encoding/pickle_write.h"

#include <stdlib.h>

#define FRAME_TARGET 65536
#define FRAME_MIN 4
#define FRAME_HEADER 9
#define BATCH 1000

enum {
    OP_FRAME = 0x95,
    OP_MEMOIZE = 0x94,
    OP_GET = 'h',
    OP_LONG_GET = 'j',
    OP_SHORT_TEXT = 0x8C,
    OP_TEXT = 'X',
    OP_LONG_TEXT = 0x8D,
    OP_SHORT_BYTES = 'C',
    OP_BYTES = 'B',
    OP_LONG_BYTES = 0x8E,
    OP_LONG1 = 0x8A,
    OP_LONG4 = 0x8B
};

/* ---- frames ---- */

static void modern_frame_commit(struct pickle_modern *writer)
{
    struct buffer *out = writer->out;
    if (writer->frame == SIZE_MAX || out->failed)
        return;
    uint8_t *header = out->data + writer->frame;
    uint64_t size = out->size - writer->frame - FRAME_HEADER;
    if (size >= FRAME_MIN) {
        header[0] = OP_FRAME;
        for (int i = 0; i < 8; i++)
            header[1 + i] = (uint8_t)(size >> (8 * i));
    } else {
        memmove(header, header + FRAME_HEADER, size);
        out->size -= FRAME_HEADER;
    }
    writer->frame = SIZE_MAX;
}

/* Every byte but those of long texts stands in a frame. */
static void modern_frame_open(struct pickle_modern *writer)
{
    if (writer->frame != SIZE_MAX)
        return;
    writer->frame = writer->out->size;
    buffer_append_fill(writer->out, 0, FRAME_HEADER);
}

void pickle_modern_node(struct pickle_modern *writer)
{
    if (writer->frame != SIZE_MAX && writer->out->size - writer->frame - FRAME_HEADER >= FRAME_TARGET)
        modern_frame_commit(writer);
}

void pickle_modern_begin(struct pickle_modern *writer, struct buffer *out)
{
    *writer = (struct pickle_modern){ .out = out, .frame = SIZE_MAX };
    buffer_append(out, "\x80\x04", 2);
}

void pickle_modern_end(struct pickle_modern *writer)
{
    pickle_modern_put(writer, '.');
    modern_frame_commit(writer);
}

void pickle_modern_release(struct pickle_modern *writer)
{
    name_map_release(&writer->words);
    free(writer->word_memo);
    *writer = (struct pickle_modern){ 0 };
}

/* ---- pieces ---- */

void pickle_modern_put(struct pickle_modern *writer, uint8_t opcode)
{
    modern_frame_open(writer);
    buffer_append_byte(writer->out, opcode);
}

uint32_t pickle_modern_memoize(struct pickle_modern *writer)
{
    pickle_modern_put(writer, OP_MEMOIZE);
    return writer->memo_next++;
}

void pickle_modern_get(struct pickle_modern *writer, uint32_t memo)
{
    pickle_modern_node(writer);
    pickle_modern_put(writer, memo < 256 ? OP_GET : OP_LONG_GET);
    if (memo < 256)
        buffer_append_byte(writer->out, (uint8_t)memo);
    else
        buffer_append_u32le(writer->out, memo);
}

void pickle_modern_int(struct pickle_modern *writer, int64_t value)
{
    pickle_modern_node(writer);
    modern_frame_open(writer);
    pickle_put_int(writer->out, value);
}

void pickle_modern_bool(struct pickle_modern *writer, bool value)
{
    pickle_modern_node(writer);
    modern_frame_open(writer);
    pickle_put_bool(writer->out, value);
}

/* A length of one, four or eight bytes, then the bytes. What is as long as a frame stands outside of frames. */
static void put_counted(struct pickle_modern *writer, struct str bytes, uint8_t short_, uint8_t middle, uint8_t long_)
{
    struct buffer *out = writer->out;
    bool is_outside = bytes.size >= FRAME_TARGET;
    if (is_outside)
        modern_frame_commit(writer);
    else
        modern_frame_open(writer);
    buffer_append_byte(out, bytes.size < 256 ? short_ : bytes.size <= UINT32_MAX ? middle : long_);
    if (bytes.size < 256)
        buffer_append_byte(out, (uint8_t)bytes.size);
    else if (bytes.size <= UINT32_MAX)
        buffer_append_u32le(out, (uint32_t)bytes.size);
    else
        buffer_append_u64le(out, bytes.size);
    buffer_append_str(out, bytes);
}

uint32_t pickle_modern_text(struct pickle_modern *writer, struct str text)
{
    pickle_modern_node(writer);
    put_counted(writer, text, OP_SHORT_TEXT, OP_TEXT, OP_LONG_TEXT);
    return pickle_modern_memoize(writer);
}

void pickle_modern_word(struct pickle_modern *writer, struct str text)
{
    bool is_new;
    uint32_t number = name_map_intern(&writer->words, text, &is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(writer->word_memo, number, writer->word_capacity)) {
        writer->out->failed = true;
        return;
    }
    if (is_new)
        writer->word_memo[number] = pickle_modern_text(writer, text);
    else
        pickle_modern_get(writer, writer->word_memo[number]);
}

void pickle_modern_batch(struct pickle_modern *writer, size_t index, size_t count, uint8_t single, uint8_t many)
{
    bool ends = index > 0 && (index == count || index % BATCH == 0);
    if (ends)
        pickle_modern_put(writer, count == 1 ? single : many);
    if (index < count && index % BATCH == 0 && count > 1)
        pickle_modern_put(writer, PICKLE_MODERN_MARK);
}

/* Closes a tuple of which the items, and before them the mark if there are more than three, have been written. */
static void put_tuple_end(struct pickle_modern *writer, size_t count)
{
    if (!count)
        pickle_modern_put(writer, PICKLE_MODERN_EMPTY_TUPLE);
    else
        pickle_modern_put(writer, count > 3 ? PICKLE_MODERN_TUPLE : (uint8_t)(PICKLE_MODERN_TUPLE1 + count - 1));
}

void pickle_modern_ints(struct pickle_modern *writer, const int64_t *values, size_t count)
{
    pickle_modern_node(writer);
    if (count > 3)
        pickle_modern_put(writer, PICKLE_MODERN_MARK);
    for (size_t i = 0; i < count; i++)
        pickle_modern_int(writer, values[i]);
    put_tuple_end(writer, count);
    if (count)
        pickle_modern_memoize(writer);
}

uint32_t pickle_modern_int_list(struct pickle_modern *writer, const int64_t *values, size_t count)
{
    pickle_modern_node(writer);
    pickle_modern_put(writer, PICKLE_MODERN_EMPTY_LIST);
    uint32_t memo = pickle_modern_memoize(writer);
    for (size_t i = 0; i < count; i++) {
        pickle_modern_batch(writer, i, count, PICKLE_MODERN_APPEND, PICKLE_MODERN_APPENDS);
        pickle_modern_int(writer, values[i]);
    }
    pickle_modern_batch(writer, count, count, PICKLE_MODERN_APPEND, PICKLE_MODERN_APPENDS);
    return memo;
}

/* ---- graphs ---- */

struct modern_frame {
    const struct value *node;
    size_t next; /* part */
};

struct modern_graph {
    struct pickle_modern writer;
    struct modern_frame *frames;
    size_t count, capacity;
    uint32_t *memo; /* by node id: PICKLE_MODERN_NONE, or its index */
    bool *is_open;  /* by node id */
    struct work *work;
    reshard_error *err;
};

static reshard_status modern_refuse(const struct modern_graph *graph, const char *what)
{
    return error_set(graph->err, RESHARD_ERR_UNSUPPORTED, "%s in a pickle of protocol 4", what);
}

static void put_memoized(struct modern_graph *graph, const struct value *node)
{
    graph->memo[node->id] = pickle_modern_memoize(&graph->writer);
}

static void modern_put_bigint(struct modern_graph *graph, struct str bytes)
{
    modern_frame_open(&graph->writer);
    buffer_append_byte(graph->writer.out, bytes.size < 256 ? OP_LONG1 : OP_LONG4);
    if (bytes.size < 256)
        buffer_append_byte(graph->writer.out, (uint8_t)bytes.size);
    else
        buffer_append_u32le(graph->writer.out, (uint32_t)bytes.size);
    buffer_append_str(graph->writer.out, bytes);
}

static reshard_status modern_push(struct modern_graph *graph, const struct value *node)
{
    if (!ARRAY_ROOM(graph->frames, graph->count, graph->capacity))
        return error_set_memory(graph->err);
    graph->frames[graph->count++] = (struct modern_frame){ node, 0 };
    graph->is_open[node->id] = true;
    return RESHARD_OK;
}

/* A container is memoized before its items, a tuple or call behind its parts. */
static reshard_status modern_begin_container(struct modern_graph *graph, const struct value *node)
{
    struct pickle_modern *writer = &graph->writer;
    switch ((enum value_kind)node->kind) {
    case VALUE_LIST:
        pickle_modern_put(writer, PICKLE_MODERN_EMPTY_LIST);
        break;
    case VALUE_DICT:
        pickle_modern_put(writer, PICKLE_MODERN_EMPTY_DICT);
        break;
    case VALUE_SET:
        pickle_modern_put(writer, PICKLE_MODERN_EMPTY_SET);
        break;
    case VALUE_FROZENSET:
        pickle_modern_put(writer, PICKLE_MODERN_MARK);
        return modern_push(graph, node);
    default:
        if (node->kind == VALUE_TUPLE && node->list.count > 3)
            pickle_modern_put(writer, PICKLE_MODERN_MARK);
        return modern_push(graph, node);
    }
    put_memoized(graph, node);
    return modern_push(graph, node);
}

static reshard_status modern_begin_call(struct modern_graph *graph, const struct value *node)
{
    const struct value_object *object = node->object;
    bool is_plain = node->kind == VALUE_CALL && !node->via_inst && !object->kwargs && object->args->kind == VALUE_TUPLE &&
                    !object->state_count && !object->list_count && !object->set_count;
    return is_plain ? modern_push(graph, node) : modern_refuse(graph, "an object of a class of its own");
}

static void modern_put_plain(struct modern_graph *graph, const struct value *node)
{
    struct pickle_modern *writer = &graph->writer;
    modern_frame_open(writer);
    if (node->kind == VALUE_NONE)
        pickle_put_none(writer->out);
    else if (node->kind == VALUE_BOOL)
        pickle_put_bool(writer->out, node->boolean);
    else if (node->kind == VALUE_INT)
        pickle_put_int(writer->out, node->integer);
    else if (node->kind == VALUE_FLOAT)
        pickle_put_float(writer->out, node->real);
    else
        modern_put_bigint(graph, node->text);
}

static reshard_status modern_save(struct modern_graph *graph, const struct value *node)
{
    struct pickle_modern *writer = &graph->writer;
    if (!work_take(graph->work, WORK_STEP))
        return work_error(graph->work, graph->err);
    bool is_plain = node->kind <= VALUE_FLOAT;
    if (!is_plain && graph->memo[node->id] != PICKLE_MODERN_NONE) {
        pickle_modern_get(writer, graph->memo[node->id]);
        return RESHARD_OK;
    }
    if (graph->is_open[node->id])
        return modern_refuse(graph, "a tuple inside itself");
    pickle_modern_node(writer);
    switch ((enum value_kind)node->kind) {
    case VALUE_STR:
        put_counted(writer, node->text, OP_SHORT_TEXT, OP_TEXT, OP_LONG_TEXT);
        put_memoized(graph, node);
        return RESHARD_OK;
    case VALUE_BYTES:
        put_counted(writer, node->text, OP_SHORT_BYTES, OP_BYTES, OP_LONG_BYTES);
        put_memoized(graph, node);
        return RESHARD_OK;
    case VALUE_GLOBAL:
        pickle_modern_word(writer, node->global.module);
        pickle_modern_word(writer, node->global.name);
        pickle_modern_put(writer, PICKLE_MODERN_STACK_GLOBAL);
        put_memoized(graph, node);
        return RESHARD_OK;
    case VALUE_CALL:
    case VALUE_NEW:
        return modern_begin_call(graph, node);
    case VALUE_PERSID:
    case VALUE_BYTEARRAY:
        return modern_refuse(graph, node->kind == VALUE_PERSID ? "a persistent id" : "a bytearray");
    default:
        if (!is_plain)
            return modern_begin_container(graph, node);
        modern_put_plain(graph, node);
        return RESHARD_OK;
    }
}

static reshard_status modern_pop(struct modern_graph *graph, const struct value *node, bool is_memoized)
{
    if (is_memoized)
        put_memoized(graph, node);
    graph->is_open[node->id] = false;
    graph->count--;
    return RESHARD_OK;
}

static reshard_status modern_step_items(struct modern_graph *graph, struct modern_frame *frame, size_t unit, uint8_t single, uint8_t many)
{
    const struct value *node = frame->node;
    size_t count = node->list.count / unit;
    if (frame->next % unit == 0)
        pickle_modern_batch(&graph->writer, frame->next / unit, count, single, many);
    if (frame->next == count * unit)
        return modern_pop(graph, node, false);
    return modern_save(graph, node->list.items[frame->next++]);
}

/* Sets have no opcode for a single item. */
static reshard_status modern_step_set(struct modern_graph *graph, struct modern_frame *frame)
{
    const struct value *node = frame->node;
    size_t next = frame->next, count = node->list.count;
    if (next > 0 && (next == count || next % BATCH == 0))
        pickle_modern_put(&graph->writer, PICKLE_MODERN_ADDITEMS);
    if (next == count)
        return modern_pop(graph, node, false);
    if (next % BATCH == 0)
        pickle_modern_put(&graph->writer, PICKLE_MODERN_MARK);
    frame->next++;
    return modern_save(graph, node->list.items[next]);
}

static reshard_status modern_step_tuple(struct modern_graph *graph, struct modern_frame *frame)
{
    const struct value *node = frame->node;
    if (frame->next < node->list.count)
        return modern_save(graph, node->list.items[frame->next++]);
    if (node->kind == VALUE_FROZENSET)
        pickle_modern_put(&graph->writer, PICKLE_MODERN_FROZENSET);
    else
        put_tuple_end(&graph->writer, node->list.count);
    return modern_pop(graph, node, node->list.count > 0 || node->kind == VALUE_FROZENSET);
}

/* The callable, its arguments, and for dict-like ones the pairs. */
static reshard_status modern_step_call(struct modern_graph *graph, struct modern_frame *frame)
{
    const struct value *node = frame->node;
    const struct value_object *object = node->object;
    size_t at = frame->next++, pairs = object->dict_count / 2;
    if (at == 0)
        return modern_save(graph, object->callable);
    if (at == 1)
        return modern_save(graph, object->args);
    if (at == 2) {
        pickle_modern_put(&graph->writer, PICKLE_MODERN_REDUCE);
        put_memoized(graph, node);
    }
    at -= 2;
    if (at % 2 == 0)
        pickle_modern_batch(&graph->writer, at / 2, pairs, PICKLE_MODERN_SETITEM, PICKLE_MODERN_SETITEMS);
    return at == pairs * 2 ? modern_pop(graph, node, false) : modern_save(graph, object->dict_items[at]);
}

static reshard_status modern_step(struct modern_graph *graph)
{
    struct modern_frame *frame = &graph->frames[graph->count - 1];
    switch ((enum value_kind)frame->node->kind) {
    case VALUE_LIST:
        return modern_step_items(graph, frame, 1, PICKLE_MODERN_APPEND, PICKLE_MODERN_APPENDS);
    case VALUE_DICT:
        return modern_step_items(graph, frame, 2, PICKLE_MODERN_SETITEM, PICKLE_MODERN_SETITEMS);
    case VALUE_SET:
        return modern_step_set(graph, frame);
    case VALUE_TUPLE:
    case VALUE_FROZENSET:
        return modern_step_tuple(graph, frame);
    default:
        return modern_step_call(graph, frame);
    }
}

reshard_status pickle_modern_write(const struct value *root, uint32_t graph_count, struct work *work, struct buffer *out,
                                   reshard_error *err)
{
    struct modern_graph graph = { .work = work, .err = err };
    graph.memo = reallocarray(NULL, (size_t)graph_count + 1, sizeof(*graph.memo));
    graph.is_open = calloc((size_t)graph_count + 1, sizeof(*graph.is_open));
    reshard_status status = graph.memo && graph.is_open ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        memset(graph.memo, 0xFF, ((size_t)graph_count + 1) * sizeof(*graph.memo));
        pickle_modern_begin(&graph.writer, out);
        status = modern_save(&graph, root);
        while (!status && graph.count && !out->failed)
            status = modern_step(&graph);
        if (!status)
            pickle_modern_end(&graph.writer);
    }
    if (!status && out->failed)
        status = buffer_error(out, err);
    pickle_modern_release(&graph.writer);
    free(graph.frames);
    free(graph.memo);
    free(graph.is_open);
    return status;
}
