/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the nodes of a paddle.save pickle are. Arrays come first, then what wraps them, in the order in which the pickle made them, so that
 * a wrapper finds what it wraps. Strings that the scan left out, and that are no array's elements, are read here.
 */
#include "base/array.h"
#include "encoding/paddle_save_parts.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- names ---- */

/* What paddle's own restricted loader takes, and what older releases write. Names of one module, between blanks. */
static const struct {
    const char *module, *names;
} known_names[] = {
    { "numpy", " ndarray memmap dtype float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ bool complex64 "
               "complex128 bfloat16 str_ bytes_ " },
    { "numpy.core.multiarray", " _reconstruct scalar " },
    { "numpy._core.multiarray", " _reconstruct scalar " },
    { "numpy.core.numeric", " _frombuffer " },
    { "numpy._core.numeric", " _frombuffer " },
    { "collections", " OrderedDict defaultdict Counter deque " },
    { "builtins", " dict list tuple set frozenset bytes bytearray str int float bool complex slice range type object eval " },
    { "copyreg", " _reconstructor " },
    { "_codecs", " encode " },
    { "paddle.framework.io_utils", " _reconstruct_dense_tensor_data " },
    { "paddle.base.libpaddle", " GeneratorState " },
    { "paddle.fluid.libpaddle", " GeneratorState " },
    { "paddle.distributed.flex_checkpoint.dcp.metadata", " Metadata LocalTensorMetadata LocalTensorIndex " },
    { "paddle.distributed.checkpoint.metadata", " Metadata LocalTensorMetadata LocalTensorIndex " },
};

static bool names_have(const char *names, struct str name)
{
    if (!name.size || memchr(name.data, ' ', name.size) || memchr(name.data, '\0', name.size))
        return false;
    for (const char *at = names; (at = strstr(at, " ")) != NULL; at++)
        if (strncmp(at + 1, name.data, name.size) == 0 && at[1 + name.size] == ' ')
            return true;
    return false;
}

static bool is_known_global(const struct value *global)
{
    for (size_t i = 0; i < sizeof(known_names) / sizeof(*known_names); i++)
        if (str_is(global->global.module, known_names[i].module) && names_have(known_names[i].names, global->global.name))
            return true;
    return false;
}

static reshard_status note_unknown(struct paddle_reading *reading, const struct value *global, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    bool was_new;
    const struct str text = ARENA_JOIN(&archive->arena, global->global.module, STR("."), global->global.name);
    if (!text.data || name_map_intern(&reading->globals, text, &was_new) == NAME_NONE)
        return work_error(reading->limits->budget, err);
    if (!was_new)
        return RESHARD_OK;
    if (!ARRAY_ROOM(archive->unknown_globals, archive->unknown_global_count, reading->unknown_capacity))
        return error_set_memory(err);
    archive->unknown_globals[archive->unknown_global_count++] = text;
    return RESHARD_OK;
}

static reshard_status check_global(struct paddle_reading *reading, const struct value *global, reshard_error *err)
{
    if (is_known_global(global))
        return RESHARD_OK;
    if (reading->lenient)
        return note_unknown(reading, global, err);
    error_set_at(err, RESHARD_ERR_FORMAT, global->offset,
                 "byte %" PRIu64 ": the pickle names %.*s.%.*s, which is none of what paddle.save writes", global->offset,
                 STR_ARG(global->global.module), STR_ARG(global->global.name));
    error_hint(err, "nothing was called; reshard_open_options.lenient keeps what it would make as an inert value");
    return RESHARD_ERR_FORMAT;
}

/* ---- arrays and what wraps them ---- */

static reshard_status note_array(struct paddle_reading *reading, struct value *node, reshard_error *err)
{
    struct pickle_array array;
    bool is_plain;
    uint32_t index;
    reshard_status status = pickle_array_read(&reading->archive->skim, node, &array, &is_plain, err);
    if (status || !is_plain)
        return status;
    struct paddle_part part = { array.offset, array.stored_bytes, array.bytes, array.is_latin1 };
    struct paddle_tensor tensor = {
        .dtype = array.dtype, .is_big_endian = array.is_big_endian, .is_fortran = array.is_fortran, .rank = array.rank,
        .shape = array.shape, .parts = &part, .part_count = 1, .node = node,
    };
    status = paddle_add_tensor(reading, &tensor, &index, err);
    node->tensor = index + 1;
    const struct value *payload = pickle_array_payload(node);
    if (payload)
        reading->is_payload[payload->id] = true;
    return status;
}

/* (name, array), as tensors have been saved since 2.1. */
static void note_pair(struct paddle_reading *reading, struct value *pair)
{
    struct value *const *items = pair->list.items;
    if (pair->list.count != 2 || items[0]->kind != VALUE_STR || !items[1]->tensor || !pickle_array_is(items[1]))
        return;
    pair->tensor = items[1]->tensor;
    struct paddle_tensor *tensor = &reading->archive->tensors[pair->tensor - 1];
    tensor->name = items[0]->text;
    tensor->is_pair = true;
}

/* The one argument of a call that only wraps it; NULL if the call is none of these. */
static struct value *wrapped(const struct value *node)
{
    const struct value_object *object = node->object;
    if (!value_is_global(object->callable, "builtins", "tuple") &&
        !value_is_global(object->callable, "paddle.framework.io_utils", "_reconstruct_dense_tensor_data"))
        return NULL;
    return object->args->list.count == 1 && !object->state_count ? object->args->list.items[0] : NULL;
}

/* eval('data', {'data': array}) is how a DenseTensor has been spelled for years. It is taken for what it says, and nothing else is. */
static reshard_status note_eval(struct value *node, reshard_error *err)
{
    const struct value *args = node->object->args;
    struct value *const *items = args->list.items;
    struct str text, key;
    bool is_data = args->list.count == 2 && value_as_str(items[0], &text) && str_is(text, "data") && items[1]->kind == VALUE_DICT &&
                   items[1]->list.count == 2 && value_as_str(items[1]->list.items[0], &key) && str_is(key, "data") &&
                   items[1]->list.items[1]->tensor;
    if (!is_data)
        return paddle_fail(node, err, "the pickle calls eval; only eval('data', {'data': array}) is a tensor,"
                                      " and nothing is ever evaluated");
    node->tensor = items[1]->list.items[1]->tensor;
    return RESHARD_OK;
}

static reshard_status note_if_wrapper(struct paddle_reading *reading, struct value *node, reshard_error *err)
{
    if (node->kind == VALUE_TUPLE)
        note_pair(reading, node);
    if (node->kind != VALUE_CALL && node->kind != VALUE_NEW)
        return RESHARD_OK;
    if (value_is_global(node->object->callable, "builtins", "eval"))
        return note_eval(node, err);
    const struct value *inner = wrapped(node);
    if (inner && inner->tensor)
        node->tensor = inner->tensor;
    return RESHARD_OK;
}

/* ---- all nodes ---- */

static bool collect_node(const struct value *value, void *context)
{
    struct paddle_reading *reading = context;
    reading->by_id[value->id] = (struct value *)(uintptr_t)value; /* the graph is this reading's own */
    return true;
}

static bool is_string(const struct value *value)
{
    return value->kind == VALUE_STR || value->kind == VALUE_BYTES || value->kind == VALUE_BYTEARRAY;
}

static reshard_status note_first(struct paddle_reading *reading, struct value *node, reshard_error *err)
{
    if (node->kind == VALUE_GLOBAL)
        return check_global(reading, node, err);
    return pickle_array_is(node) ? note_array(reading, node, err) : RESHARD_OK;
}

static reshard_status note_second(struct paddle_reading *reading, struct value *node, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    if (is_string(node) && !reading->is_payload[node->id])
        return pickle_skim_load(&archive->skim, reading->reader, reading->limits, &archive->graph, node, err);
    return note_if_wrapper(reading, node, err);
}

/* ---- values with arrays in them ---- */

struct loading {
    struct paddle_archive *archive;
    struct value_graph *graph;
    const struct reader *reader;
    const struct limits *limits;
    reshard_status status;
    reshard_error *err;
};

static bool load_node(const struct value *value, void *context)
{
    struct loading *loading = context;
    struct value *node = (struct value *)(uintptr_t)value; /* the graph is the archive's, whoever keeps it */
    node->tensor = 0;
    if (is_string(node))
        loading->status =
            pickle_skim_load(&loading->archive->skim, loading->reader, loading->limits, loading->graph, node, loading->err);
    return !loading->status;
}

reshard_status paddle_save_load_value(struct paddle_archive *archive, const struct reader *reader, const struct limits *limits,
                                      struct value_graph *graph, const struct value *value, reshard_error *err)
{
    struct loading loading = { archive, graph, reader, limits, RESHARD_OK, err };
    bool no_memory = false;
    if (value_walk(value, graph->count, limits->budget, load_node, &loading, &no_memory) || !no_memory)
        return loading.status;
    return work_error(limits->budget, err);
}

/* ---- values to be written ---- */

struct checking {
    const struct value *global; /* that is not known */
    bool has_broken_array;
};

static bool check_node(const struct value *value, void *context)
{
    struct checking *checking = context;
    if (value->kind == VALUE_GLOBAL && (!is_known_global(value) || value_is_global(value, "builtins", "eval")))
        checking->global = value;
    checking->has_broken_array = pickle_array_is(value) && !pickle_array_is_sound(value);
    return !checking->global && !checking->has_broken_array && value->kind != VALUE_PERSID && !value->tensor && !value->storage;
}

reshard_status paddle_save_check_value(const struct value *value, uint32_t graph_count, struct work *work, struct arena *arena, bool *out,
                                       struct str *stranger, reshard_error *err)
{
    struct checking checking = { 0 };
    bool no_memory = false;
    *stranger = (struct str){ 0 };
    *out = value_walk(value, graph_count, work, check_node, &checking, &no_memory);
    if (no_memory)
        return work_error(work, err);
    if (checking.has_broken_array)
        *stranger = STR("numpy.ndarray with a state that NumPy does not write");
    if (!checking.global)
        return RESHARD_OK;
    *stranger = ARENA_JOIN(arena, checking.global->global.module, STR("."), checking.global->global.name);
    return stranger->data ? RESHARD_OK : work_error(work, err);
}

/* What paddle.load looks into, and what it fails at. */
static bool is_looked_into(const struct value *value)
{
    return value->kind == VALUE_DICT || value->kind == VALUE_LIST || value->kind == VALUE_TUPLE || value->kind == VALUE_SET ||
           value_is_call(value, "collections", "OrderedDict") || value_is_call(value, "builtins", "set");
}

static bool is_refused_by_load(const struct value *value)
{
    static const char *const classes[][2] = {
        { "collections", "defaultdict" }, { "collections", "Counter" }, { "collections", "deque" }, { "builtins", "frozenset" },
        { "builtins", "range" }, { "builtins", "bytes" }, { "builtins", "bytearray" }, { "_codecs", "encode" }, { "numpy", "bytes_" },
    };
    if (value->kind == VALUE_BYTES || value->kind == VALUE_BYTEARRAY || value->kind == VALUE_FROZENSET)
        return true;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (value_is_call(value, classes[i][0], classes[i][1]))
            return true;
    return false;
}

/* Appends what the container holds; keys are left alone. */
static bool push_members(const struct value *value, const struct value ***stack, size_t *count, size_t *capacity)
{
    struct value **items;
    size_t item_count;
    bool is_mapping = value_as_mapping(value, &items, &item_count);
    if (!is_mapping && (value->kind == VALUE_CALL || value->kind == VALUE_NEW)) { /* set([…]) */
        items = value->object->args ? value->object->args->list.items : NULL;
        item_count = value->object->args ? value->object->args->list.count : 0;
    } else if (!is_mapping) {
        items = value->list.items;
        item_count = value->list.count;
    }
    for (size_t i = is_mapping; i < item_count; i += 1 + is_mapping) {
        if (!ARRAY_ROOM(*stack, *count, *capacity))
            return false;
        (*stack)[(*count)++] = items[i];
    }
    return true;
}

reshard_status paddle_save_check_load(const struct value *value, uint32_t graph_count, struct work *work, bool *out, reshard_error *err)
{
    const struct value **stack = malloc(sizeof(*stack));
    uint8_t *is_seen = array_zeroed((size_t)graph_count / 8 + 1, 1);
    size_t count = 1, capacity = 1;
    bool good = stack && is_seen;
    *out = true;
    if (good)
        stack[0] = value;
    while (good && *out && count) {
        const struct value *at = stack[--count];
        *out = !is_refused_by_load(at);
        bool is_new = !(is_seen[at->id / 8] & 1 << at->id % 8);
        is_seen[at->id / 8] |= (uint8_t)(1 << at->id % 8);
        if (is_new && is_looked_into(at))
            good = work_take(work, WORK_STEP) && push_members(at, &stack, &count, &capacity);
    }
    free(stack);
    free(is_seen);
    return good ? RESHARD_OK : work_error(work, err);
}

/* ---- the whole graph ---- */

reshard_status paddle_read_nodes(struct paddle_reading *reading, reshard_error *err)
{
    struct value_graph *graph = &reading->archive->graph;
    uint32_t count = graph->count;
    bool no_memory = false;
    reading->by_id = array_zeroed(count, sizeof(*reading->by_id));
    reading->is_payload = array_zeroed(count, sizeof(*reading->is_payload));
    if (!reading->by_id || !reading->is_payload ||
        !value_walk(graph->root, count, reading->limits->budget, collect_node, reading, &no_memory))
        return work_error(reading->limits->budget, err);
    reshard_status status = RESHARD_OK;
    for (uint32_t id = 0; !status && id < count; id++)
        if (reading->by_id[id])
            status = note_first(reading, reading->by_id[id], err);
    for (uint32_t id = 0; !status && id < count; id++)
        if (reading->by_id[id])
            status = note_second(reading, reading->by_id[id], err);
    return status;
}
