/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle of the file to be written. If the source is a torch file and nothing was renamed or left out, its own object is written
 * again, with every class, wrapper and shared node, and only the tensors respelled; else an object is nested from the paths.
 */
#include "formats/torch/torch_target.h"

#include "base/array.h"
#include "encoding/pickle_write.h"
#include "encoding/torch_shard.h"
#include "formats/shared/torch_spell.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What the substitute sees. */
struct emitting {
    const struct layout_request *request;
    struct torch_target *state;
    struct target *target;
    uint32_t *args_tensor;  /* whole: by node id: 1 + wanted tensor whose rebuild arguments this tuple is */
    uint32_t *item_ids;     /* nested: see torch_nest */
    bool own_source;        /* numbers in item values are those of the catalog's tensors */
    reshard_status status;
    reshard_error *err;
};

static void torch_emit_fail(struct emitting *emitting, struct buffer *out, reshard_status status)
{
    emitting->status = status;
    out->failed = true;
}

static bool can_require_grad(enum dtype dtype)
{
    uint8_t class_ = dtype_info(dtype)->class_;
    return class_ == DTYPE_CLASS_FLOAT || class_ == DTYPE_CLASS_COMPLEX;
}

/* The rebuild call of a wanted tensor, or its arguments alone. */
static void torch_emit_put_tensor(struct emitting *emitting, uint32_t wanted, bool requires_grad, bool args_only, struct buffer *out)
{
    const struct catalog *catalog = emitting->request->wanted;
    const struct catalog_tensor *tensor = &catalog->tensors[wanted];
    const struct torch_place *place = &emitting->state->places[wanted];
    char key[16];
    if (place->record == TORCH_NONE) {
        torch_emit_fail(
            emitting, out,
            error_set(emitting->err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' is inside an object but not converted", STR_ARG(tensor->key)));
        return;
    }
    snprintf(key, sizeof(key), "%" PRIu32, place->record);
    requires_grad = requires_grad && can_require_grad(tensor->dtype);
    (args_only ? torch_save_put_tensor_args
               : torch_save_put_tensor)(out, tensor->dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape), place->strides,
                                        place->offset, key, emitting->state->records[place->record].bytes, requires_grad);
}

/* A Parameter around a plain tensor, where no source says how it was spelled. */
static void torch_emit_put_parameter(struct emitting *emitting, uint32_t wanted, struct buffer *out)
{
    const struct catalog_tensor *tensor = &emitting->request->wanted->tensors[wanted];
    bool requires_grad = tensor->flags & TENSOR_REQUIRES_GRAD;
    if (!(tensor->flags & TENSOR_PARAMETER)) {
        torch_emit_put_tensor(emitting, wanted, requires_grad, false, out);
        return;
    }
    pickle_put_global(out, "torch._utils", "_rebuild_parameter");
    pickle_put_opcode(out, PICKLE_MARK);
    torch_emit_put_tensor(emitting, wanted, false, false, out);
    pickle_put_bool(out, requires_grad && can_require_grad(tensor->dtype));
    pickle_put_global(out, "collections", "OrderedDict");
    pickle_put_opcode(out, PICKLE_EMPTY_TUPLE);
    pickle_put_opcode(out, PICKLE_REDUCE);
    pickle_put_opcode(out, PICKLE_TUPLE);
    pickle_put_opcode(out, PICKLE_REDUCE);
}

/* ---- storages in items ---- */

/* The wanted item that a node of the nested graph belongs to; TORCH_NONE if none does. */
static uint32_t item_at(const struct emitting *emitting, uint32_t node_id)
{
    uint32_t low = 0, high = emitting->request->wanted->item_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (emitting->item_ids[middle + 1] <= node_id)
            low = middle + 1;
        else
            high = middle;
    }
    bool is_inside = low < emitting->request->wanted->item_count && emitting->item_ids[low] <= node_id;
    return is_inside ? low : TORCH_NONE;
}

static reshard_status torch_emit_find_storage(struct emitting *emitting, const struct value *persid, uint32_t *out)
{
    if (emitting->own_source)
        return torch_record_for_hidden(emitting->request, emitting->state, persid->storage - 1, out, emitting->err);
    if (emitting->request->items.read_storage && emitting->item_ids) {
        uint32_t item = item_at(emitting, persid->id);
        if (item != TORCH_NONE)
            return torch_record_for_item(emitting->request, emitting->state, item, persid->storage - 1, out, emitting->err);
    }
    return error_set(emitting->err, RESHARD_ERR_UNSUPPORTED, "an item holds a tensor whose bytes the source cannot give");
}

/* ---- tensors in the source's own object ---- */

static uint32_t wanted_tensor(const struct emitting *emitting, const struct value *node)
{
    uint32_t source_tensor = node->tensor - 1;
    return source_tensor < emitting->request->source_catalog->tensor_count ? emitting->state->wanted_of[source_tensor] : TORCH_NONE;
}

static bool has_storage_class(enum dtype dtype)
{
    return dtype_info(dtype)->torch_storage[0] != '\0';
}

/* Whether a dressed tensor can keep its dress: the function it names must still fit the type. */
static bool dress_fits(const struct value *node, enum dtype dtype)
{
    const struct value *function = node->object->args->list.items[0];
    return value_is_global(function, "torch._utils", has_storage_class(dtype) ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
}

/* A DTensor or ShardedTensor says itself which type it has, in several places. */
static bool loses_wrapper(const struct emitting *emitting, const struct value *node)
{
    const uint32_t wanted = wanted_tensor(emitting, node);
    return torch_is_shard(node) && wanted != TORCH_NONE &&
           emitting->request->wanted->tensors[wanted].dtype != emitting->request->source_catalog->tensors[node->tensor - 1].dtype;
}

static bool put_own_tensor(struct emitting *emitting, const struct value *node, struct buffer *out)
{
    uint32_t wanted = wanted_tensor(emitting, node);
    const struct value *args;
    bool requires_grad;
    if (wanted == TORCH_NONE)
        return false;
    switch (torch_save_spelling(node, &args, &requires_grad)) {
    case TORCH_SPELLS_INNER:
        if (!loses_wrapper(emitting, node))
            return false;
        torch_emit_put_parameter(emitting, wanted, out);
        return true;
    case TORCH_SPELLS_DRESSED:
        if (emitting->args_tensor && args->id < emitting->request->source_catalog->tree_graph->count &&
            emitting->args_tensor[args->id] == wanted + 1)
            return false;
        break;
    default:
        break;
    }
    torch_emit_put_tensor(emitting, wanted, requires_grad, false, out);
    return true;
}

static reshard_status find_record(void *context, const struct value *persid, uint32_t *record, uint64_t *bytes)
{
    struct emitting *emitting = context;
    reshard_status status = torch_emit_find_storage(emitting, persid, record);
    *bytes = status ? 0 : emitting->state->records[*record].bytes;
    return status;
}

static bool put_name_or_storage(struct emitting *emitting, const struct value *value, struct buffer *out)
{
    struct torch_storage_finder finder = { find_record, emitting };
    return torch_spell(value, &finder, &emitting->status, out);
}

static bool substitute_whole(const struct value *value, struct buffer *out, void *context)
{
    struct emitting *emitting = context;
    if (value->tensor > 0)
        return put_own_tensor(emitting, value, out);
    if (value->kind == VALUE_TUPLE && emitting->args_tensor[value->id] > 0) {
        torch_emit_put_tensor(emitting, emitting->args_tensor[value->id] - 1, torch_save_args_require_grad(value), true, out);
        return true;
    }
    return put_name_or_storage(emitting, value, out);
}

static bool substitute_nested(const struct value *value, struct buffer *out, void *context)
{
    struct emitting *emitting = context;
    if (value->kind == VALUE_NONE && value->tensor > 0) {
        torch_emit_put_parameter(emitting, value->tensor - 1, out);
        return true;
    }
    if (value->tensor > 0 && emitting->own_source)
        return put_own_tensor(emitting, value, out);
    return put_name_or_storage(emitting, value, out);
}

/* Finds the argument tuples of dressed tensors, and notes dresses that cannot be kept. */
static bool note_dressed(const struct value *value, void *context)
{
    struct emitting *emitting = context;
    const struct value *args;
    bool requires_grad;
    if (value->tensor == 0)
        return true;
    const bool is_dressed = torch_save_spelling(value, &args, &requires_grad) == TORCH_SPELLS_DRESSED;
    uint32_t wanted = wanted_tensor(emitting, value);
    if (wanted == TORCH_NONE || (!is_dressed && !loses_wrapper(emitting, value)))
        return true;
    const struct catalog_tensor *tensor = &emitting->request->wanted->tensors[wanted];
    if (is_dressed && dress_fits(value, tensor->dtype))
        emitting->args_tensor[args->id] = wanted + 1;
    else
        emitting->status =
            target_note_changed(emitting->target, NOTE_CLASS, tensor->key, emitting->err,
                                "loses its class and attributes, which cannot be kept with type %s", dtype_info(tensor->dtype)->name);
    return emitting->status == RESHARD_OK;
}

static reshard_status emit_whole(struct emitting *emitting, struct buffer *out)
{
    const struct catalog *catalog = emitting->request->source_catalog;
    uint32_t count = catalog->tree_graph->count;
    emitting->args_tensor = array_zeroed(count, sizeof(*emitting->args_tensor));
    reshard_status status = emitting->args_tensor ? RESHARD_OK : error_set_memory(emitting->err);
    if (!status && !value_walk(catalog->tree, count, emitting->request->limits.budget, note_dressed, emitting, NULL))
        status = emitting->status ? emitting->status : error_set_memory(emitting->err);
    if (!status)
        status = pickle_write(catalog->tree, count, NULL, substitute_whole, emitting, out, emitting->err);
    free(emitting->args_tensor);
    emitting->args_tensor = NULL;
    return emitting->status ? emitting->status : status;
}

static reshard_status emit_nested(struct emitting *emitting, struct buffer *out)
{
    struct value_graph graph = { 0 };
    reshard_status status = torch_nest(emitting->request, emitting->target, &graph, &emitting->item_ids, emitting->err);
    if (!status)
        status = pickle_write(graph.root, graph.count, NULL, substitute_nested, emitting, out, emitting->err);
    value_graph_release(&graph);
    free(emitting->item_ids);
    emitting->item_ids = NULL;
    return emitting->status ? emitting->status : status;
}

reshard_status torch_emit_pickle(const struct layout_request *request, struct target *target, struct torch_target *state,
                                 struct buffer *out, reshard_error *err)
{
    struct emitting emitting = { .request = request, .state = state, .target = target, .err = err };
    emitting.own_source = request->source && request->source->driver->abilities & FORMAT_ITEMS_NAME_TENSORS;
    bool is_whole = request->is_whole && emitting.own_source && request->source_catalog->tree && request->source_catalog->tree_graph;
    return is_whole ? emit_whole(&emitting, out) : emit_nested(&emitting, out);
}
