/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_graph.h"

#include "base/array.h"
#include "encoding/pickle_stream.h"

#include <stdlib.h>

/* A node of which parts are still to be written. */
struct graph_frame {
    const struct value *node;
    size_t next; /* part */
    struct pickle_items items;
};

struct graph_writing {
    struct pickle_stream stream;
    struct pickle_words words;
    struct graph_frame *frames;
    size_t count, capacity;
    uint32_t *memo; /* by node id: PICKLE_NO_MEMO, or its index */
    bool *is_open;  /* by node id */
    struct work *work;
    reshard_error *err;
};

static reshard_status graph_refuse(const struct graph_writing *graph, const char *what)
{
    return error_set(graph->err, RESHARD_ERR_UNSUPPORTED, "%s in a pickle of protocol 4", what);
}

static reshard_status graph_push(struct graph_writing *graph, const struct value *node, struct pickle_items items)
{
    if (!ARRAY_ROOM(graph->frames, graph->count, graph->capacity))
        return error_set_memory(graph->err);
    graph->frames[graph->count++] = (struct graph_frame){ node, 0, items };
    graph->is_open[node->id] = true;
    return RESHARD_OK;
}

/* A container is memoized before its items, a tuple or call behind its parts. */
static reshard_status graph_begin_container(struct graph_writing *graph, const struct value *node)
{
    struct pickle_stream *stream = &graph->stream;
    struct pickle_items items = { 0 };
    switch ((enum value_kind)node->kind) {
    case VALUE_LIST:
        graph->memo[node->id] = pickle_stream_container(stream, PICKLE_EMPTY_LIST);
        items = pickle_stream_items_begin(stream, node->list.count, PICKLE_ITEMS_LIST);
        break;
    case VALUE_DICT:
        graph->memo[node->id] = pickle_stream_container(stream, PICKLE_EMPTY_DICT);
        items = pickle_stream_items_begin(stream, node->list.count / 2, PICKLE_ITEMS_DICT);
        break;
    case VALUE_SET:
        graph->memo[node->id] = pickle_stream_container(stream, PICKLE_EMPTY_SET);
        items = pickle_stream_items_begin(stream, node->list.count, PICKLE_ITEMS_SET);
        break;
    case VALUE_FROZENSET:
        pickle_stream_object(stream);
        pickle_stream_opcode(stream, PICKLE_MARK);
        break;
    default:
        pickle_stream_tuple_begin(stream, node->list.count);
    }
    return graph_push(graph, node, items);
}

static reshard_status graph_begin_call(struct graph_writing *graph, const struct value *node)
{
    const struct value_object *object = node->object;
    bool is_plain = node->kind == VALUE_CALL && !node->via_inst && !object->kwargs && object->args->kind == VALUE_TUPLE &&
                    !object->state_count && !object->list_count && !object->set_count;
    if (!is_plain)
        return graph_refuse(graph, "an object of a class of its own");
    pickle_stream_object(&graph->stream);
    return graph_push(graph, node, (struct pickle_items){ 0 });
}

static void graph_put_global(struct graph_writing *graph, const struct value *node)
{
    pickle_stream_object(&graph->stream);
    pickle_stream_word(&graph->stream, &graph->words, node->global.module);
    pickle_stream_word(&graph->stream, &graph->words, node->global.name);
    pickle_stream_opcode(&graph->stream, PICKLE_STACK_GLOBAL);
    graph->memo[node->id] = pickle_stream_memoize(&graph->stream);
}

static reshard_status graph_save(struct graph_writing *graph, const struct value *node)
{
    if (!work_take(graph->work, WORK_STEP))
        return work_error(graph->work, graph->err);
    if (node->kind <= VALUE_FLOAT) {
        pickle_stream_plain(&graph->stream, node);
        return RESHARD_OK;
    }
    if (graph->memo[node->id] != PICKLE_NO_MEMO) {
        pickle_stream_get(&graph->stream, graph->memo[node->id]);
        return RESHARD_OK;
    }
    if (graph->is_open[node->id])
        return graph_refuse(graph, "a tuple inside itself");
    switch ((enum value_kind)node->kind) {
    case VALUE_STR:
        graph->memo[node->id] = pickle_stream_str(&graph->stream, node->text);
        return RESHARD_OK;
    case VALUE_BYTES:
        graph->memo[node->id] = pickle_stream_bytes(&graph->stream, node->text);
        return RESHARD_OK;
    case VALUE_GLOBAL:
        graph_put_global(graph, node);
        return RESHARD_OK;
    case VALUE_CALL:
    case VALUE_NEW:
        return graph_begin_call(graph, node);
    case VALUE_PERSID:
    case VALUE_BYTEARRAY:
        return graph_refuse(graph, node->kind == VALUE_PERSID ? "a persistent id" : "a bytearray");
    default:
        return graph_begin_container(graph, node);
    }
}

static reshard_status graph_pop(struct graph_writing *graph, const struct value *node)
{
    graph->is_open[node->id] = false;
    graph->count--;
    return RESHARD_OK;
}

/* parts: what the items are made of, `unit` parts each. */
static reshard_status graph_step_items(struct graph_writing *graph, struct graph_frame *frame, struct value *const *parts, size_t count,
                                       size_t unit)
{
    if (frame->next == count) {
        pickle_stream_items_end(&graph->stream, &frame->items);
        return graph_pop(graph, frame->node);
    }
    if (frame->next % unit == 0)
        pickle_stream_item(&graph->stream, &frame->items);
    return graph_save(graph, parts[frame->next++]);
}

static reshard_status graph_step_tuple(struct graph_writing *graph, struct graph_frame *frame)
{
    const struct value *node = frame->node;
    if (frame->next < node->list.count)
        return graph_save(graph, node->list.items[frame->next++]);
    if (node->kind == VALUE_FROZENSET) {
        pickle_stream_opcode(&graph->stream, PICKLE_FROZENSET);
        graph->memo[node->id] = pickle_stream_memoize(&graph->stream);
    } else {
        graph->memo[node->id] = pickle_stream_tuple_end(&graph->stream, node->list.count);
    }
    return graph_pop(graph, node);
}

/* The callable, its arguments, and for dict-like ones the pairs. */
static reshard_status graph_step_call(struct graph_writing *graph, struct graph_frame *frame)
{
    const struct value *node = frame->node;
    const struct value_object *object = node->object;
    if (graph->memo[node->id] != PICKLE_NO_MEMO)
        return graph_step_items(graph, frame, object->dict_items, object->dict_count, 2);
    if (frame->next < 2)
        return graph_save(graph, frame->next++ ? object->args : object->callable);
    pickle_stream_opcode(&graph->stream, PICKLE_REDUCE);
    graph->memo[node->id] = pickle_stream_memoize(&graph->stream);
    frame->next = 0;
    frame->items = pickle_stream_items_begin(&graph->stream, object->dict_count / 2, PICKLE_ITEMS_PAIRS);
    return RESHARD_OK;
}

static reshard_status graph_step(struct graph_writing *graph)
{
    struct graph_frame *frame = &graph->frames[graph->count - 1];
    const struct value *node = frame->node;
    switch ((enum value_kind)node->kind) {
    case VALUE_LIST:
    case VALUE_SET:
        return graph_step_items(graph, frame, node->list.items, node->list.count, 1);
    case VALUE_DICT:
        return graph_step_items(graph, frame, node->list.items, node->list.count, 2);
    case VALUE_TUPLE:
    case VALUE_FROZENSET:
        return graph_step_tuple(graph, frame);
    default:
        return graph_step_call(graph, frame);
    }
}

reshard_status pickle_graph_write(const struct value *root, uint32_t graph_count, struct work *work, struct buffer *out,
                                  reshard_error *err)
{
    struct graph_writing graph = { .work = work, .err = err };
    graph.memo = array_new(graph_count, sizeof(*graph.memo));
    graph.is_open = array_zeroed(graph_count, sizeof(*graph.is_open));
    reshard_status status = graph.memo && graph.is_open ? RESHARD_OK : error_set_memory(err), ended;
    pickle_stream_begin(&graph.stream, 4, pickle_sink_buffer, out);
    if (!status) {
        memset(graph.memo, 0xFF, (size_t)graph_count * sizeof(*graph.memo));
        status = graph_save(&graph, root);
    }
    while (!status && graph.count && !graph.stream.status)
        status = graph_step(&graph);
    ended = pickle_stream_end(&graph.stream, NULL, status ? NULL : err);
    pickle_words_release(&graph.words);
    free(graph.frames);
    free(graph.memo);
    free(graph.is_open);
    return status ? status : ended;
}
