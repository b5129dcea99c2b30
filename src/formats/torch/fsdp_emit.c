/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle of one rank's file, and the records that its storages are. Values of items are copied; the storages in them become records
 * of this file, and calls that rebuild a hidden whole of the optimizer become this rank's piece of it.
 */
#include "formats/torch/fsdp_flat_cut.h"
#include "formats/torch/torch.h"

#include "base/array.h"
#include "encoding/pickle_write.h"
#include "formats/shared/path_nest.h"
#include "formats/shared/rank_item.h"
#include "formats/shared/torch_spell.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct emitting {
    const struct layout_request *request;
    struct target *target;
    struct fsdp_target *state;
    struct fsdp_target_file *file;
    struct value_graph graph;
    struct nest nest;
    struct torch_shard_maker maker;
    struct value *whole;     /* of the file, where it is one item */
    uint32_t *record_of;     /* by wanted tensor: 1 + its record in this file */
    uint32_t *wanted_of;     /* by source tensor: 1 + wanted tensor; NULL: items do not count the source's tensors */
    uint32_t item;           /* whose value is copied */
    bool is_empty;
    reshard_status status;
    reshard_error *err;
};

/* ---- records ---- */

reshard_status fsdp_record_add(struct fsdp_target_file *file, struct fsdp_record *record, uint32_t *out, reshard_error *err)
{
    if (file->is_planned) {
        bool is_same = file->record_again < file->record_count && file->records[file->record_again].bytes == record->bytes;
        *out = file->record_again++;
        if (!is_same)
            return error_set(err, RESHARD_ERR_IO, "the source changed while it was read: an item has other storages now");
        buffer_release(&record->memory);
        free(record->runs);
        return RESHARD_OK;
    }
    if (!ARRAY_ROOM(file->records, file->record_count, file->record_capacity))
        return error_set_memory(err);
    file->records[file->record_count] = *record;
    *out = file->record_count++;
    return RESHARD_OK;
}

/* The record of this rank's part of a wanted tensor; tied ones share it. */
static reshard_status record_for(struct emitting *emitting, uint32_t wanted, uint32_t *out, reshard_error *err)
{
    const struct catalog *catalog = emitting->request->wanted;
    const struct fsdp_spread *spread = &emitting->state->spread;
    uint32_t tied = catalog->tensors[wanted].tied_to;
    if (tied != CATALOG_NONE && spread->layout_of[tied] == spread->layout_of[wanted])
        wanted = tied;
    if (emitting->record_of[wanted]) {
        *out = emitting->record_of[wanted] - 1;
        return RESHARD_OK;
    }
    const struct catalog_tensor *tensor = &catalog->tensors[wanted];
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape);
    struct fsdp_record record = { .tensor = wanted, .dtype = tensor->dtype, .rank = tensor->rank };
    memcpy(record.extent, shape, (size_t)tensor->rank * sizeof(*shape));
    reshard_status status = RESHARD_OK;
    if (spread->layout_of[wanted])
        status = torch_layout_box(&spread->layouts[spread->layout_of[wanted] - 1], emitting->file->rank, spread->world, tensor->rank, shape,
                                  record.start, record.extent, err);
    if (!status && !dtype_bytes(tensor->dtype, (uint64_t)box_volume(record.rank, record.extent), &record.bytes))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' cannot be cut where ranks begin", STR_ARG(tensor->key));
    if (!status)
        status = fsdp_record_add(emitting->file, &record, out, err);
    if (!status)
        emitting->record_of[wanted] = *out + 1;
    return status;
}

/* A small tensor that objects of torch hold; NULL without memory. */
static struct value *put_integers(void *context, int rank, const int64_t *shape, const int32_t *numbers)
{
    struct emitting *emitting = context;
    struct fsdp_record record = { .tensor = TORCH_NONE, .dtype = DTYPE_I32, .rank = rank };
    uint32_t number;
    memcpy(record.extent, shape, (size_t)rank * sizeof(*shape));
    for (int64_t i = 0; i < box_volume(rank, shape); i++)
        buffer_append_u32le(&record.memory, (uint32_t)numbers[i]);
    record.bytes = record.memory.size;
    struct value *node = record.memory.failed ? NULL : value_new(&emitting->graph, VALUE_NONE);
    if (!node || fsdp_record_add(emitting->file, &record, &number, emitting->err)) {
        buffer_release(&record.memory);
        return NULL;
    }
    node->tensor = number + 1;
    return node;
}

/* ---- tensors ---- */

/* A NONE node whose tensor is 1 + the record stands for a tensor; the object around it says what part of the whole it is. */
static struct value *make_tensor(struct emitting *emitting, uint32_t wanted)
{
    const struct catalog_tensor *tensor = &emitting->request->wanted->tensors[wanted];
    const struct fsdp_spread *spread = &emitting->state->spread;
    uint32_t record;
    struct value *local = value_new(&emitting->graph, VALUE_NONE);
    emitting->status = local ? record_for(emitting, wanted, &record, emitting->err) : error_set_memory(emitting->err);
    if (emitting->status)
        return NULL;
    local->tensor = record + 1;
    if (!spread->layout_of[wanted])
        return local;
    struct value *whole = torch_make_shard(&emitting->maker, &spread->layouts[spread->layout_of[wanted] - 1], tensor->dtype, tensor->rank,
                                           catalog_vector_at(emitting->request->wanted, tensor->shape), local);
    if (!whole)
        emitting->status = error_set_memory(emitting->err);
    return whole;
}

/* ---- where things belong ---- */

/* The kind of file that a path belongs to, and the rest of the path in it. */
static enum fsdp_kind kind_of(const struct path_part **parts, size_t *count)
{
    const struct path_part *first = *parts;
    bool is_optimizer = first->kind == PATH_KEY && str_is(first->key, FSDP_OPTIMIZER_KEY);
    if (first->kind != PATH_KEY || (!is_optimizer && (!str_is(first->key, FSDP_EXTRA_KEY) || *count < 2)))
        return FSDP_MODEL;
    (*parts)++;
    (*count)--;
    return is_optimizer ? FSDP_OPTIMIZER : FSDP_EXTRA;
}

static reshard_status fsdp_put_leaf(struct emitting *emitting, struct str key, const struct path_part *parts, size_t count,
                                    struct value *leaf, bool *is_joined, reshard_error *err)
{
    bool is_taken = false;
    emitting->is_empty = false;
    *is_joined = false;
    if (count == 0) {
        is_taken = emitting->whole != NULL;
        emitting->whole = leaf;
    } else if (!nest_put(&emitting->nest, parts, count, leaf, &is_taken)) {
        return error_set_memory(err);
    }
    struct path_part flat = { .kind = PATH_KEY, .key = key };
    *is_joined = is_taken;
    if (is_taken && count > 0 && !nest_put(&emitting->nest, &flat, 1, leaf, &is_taken))
        return error_set_memory(err);
    return is_taken ? error_set(err, RESHARD_ERR_UNSUPPORTED, "two entries would be called '%.*s'", STR_ARG(key)) : RESHARD_OK;
}

/* What the file's tensor is called when it is read: an optimizer's are hidden wholes, called by their path in the file. */
static reshard_status fsdp_read_as(const struct emitting *emitting, uint32_t tensor, const struct path_part *full, size_t full_count,
                                   const struct path_part *parts, size_t count, reshard_error *err)
{
    struct buffer key = { 0 };
    if (emitting->file->kind != FSDP_OPTIMIZER)
        return target_read_as_path(emitting->target, tensor, full, full_count, err);
    bool is_made = fsdp_state_key_of_path(parts, count, &key);
    reshard_status status = is_made ? target_read_as_hidden(emitting->target, tensor, buffer_str(&key), err) : error_set_memory(err);
    buffer_release(&key);
    return status;
}

/* Ranks' files are put together by joined paths. */
static reshard_status fsdp_check_tensor(const struct catalog_tensor *tensor, reshard_error *err)
{
    if (!(tensor->flags & TENSOR_AMBIGUOUS))
        return torch_check_type(tensor, err);
    error_set(err, RESHARD_ERR_UNSUPPORTED, "several tensors have the name '%.*s' when their paths are joined, and files of ranks are put "
              "together by that", STR_ARG(tensor->key));
    error_hint(err, "reshard_convert_options.to torch-dcp or torch keeps their paths apart");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status fsdp_put_tensors(struct emitting *emitting, reshard_error *err)
{
    const struct catalog *wanted = emitting->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        struct path_part single;
        const struct path_part *parts;
        if (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA))
            continue;
        status = fsdp_check_tensor(tensor, err);
        if (status)
            return status;
        size_t count = catalog_tensor_path(wanted, tensor, &single, &parts), full_count = count;
        const struct path_part *full = parts;
        bool is_joined;
        if (kind_of(&parts, &count) != emitting->file->kind)
            continue;
        struct value *leaf = make_tensor(emitting, i);
        status = leaf ? fsdp_put_leaf(emitting, tensor->key, parts, count, leaf, &is_joined, err) : emitting->status;
        if (!status && !is_joined && !emitting->file->is_planned)
            status = fsdp_read_as(emitting, i, full, full_count, parts, count, err);
    }
    return status;
}

/* ---- items ---- */

uint32_t fsdp_whole_of(const struct value *node)
{
    if (node->kind != VALUE_CALL || node->object->args->list.count < 6 ||
        (!value_is_global(node->object->callable, "torch._utils", "_rebuild_tensor_v2") &&
         !value_is_global(node->object->callable, "torch._utils", "_rebuild_tensor_v3")))
        return TORCH_NONE;
    const struct value *storage = node->object->args->list.items[0];
    return storage->kind == VALUE_PERSID && storage->storage > 0 ? storage->storage - 1 : TORCH_NONE;
}

/* The hidden whole of an optimizer that a call rebuilds; TORCH_NONE: it is none that is cut. */
static uint32_t cut_whole(const struct emitting *emitting, const struct value *node)
{
    uint32_t tensor = emitting->wanted_of ? fsdp_whole_of(node) : TORCH_NONE;
    if (tensor == TORCH_NONE || tensor >= emitting->request->source_catalog->tensor_count)
        return TORCH_NONE;
    uint32_t wanted = emitting->wanted_of[tensor];
    return wanted && emitting->state->spread.layout_of[wanted - 1] ? wanted - 1 : TORCH_NONE;
}

/* The record of a storage inside the item's value: a hidden tensor, or bytes that its source reads. */
static reshard_status storage_record(struct emitting *emitting, uint32_t storage, uint32_t *out)
{
    if (emitting->wanted_of) {
        uint32_t wanted = storage < emitting->request->source_catalog->tensor_count ? emitting->wanted_of[storage] : 0;
        if (!wanted)
            return error_set(emitting->err, RESHARD_ERR_UNSUPPORTED, "an item refers to a storage that is not converted");
        return record_for(emitting, wanted - 1, out, emitting->err);
    }
    struct fsdp_record record = { .tensor = TORCH_NONE, .dtype = DTYPE_U8, .rank = 1 };
    record.memory = (struct buffer){ .limit = (size_t)emitting->request->limits.item_bytes, .limit_name = "item_bytes" };
    if (!emitting->request->items.read_storage)
        return error_set(emitting->err, RESHARD_ERR_UNSUPPORTED, "an item holds a tensor whose bytes the source cannot give");
    reshard_status status = layout_item_storage(emitting->request, emitting->item, storage, &record.memory, emitting->err);
    record.extent[0] = (int64_t)record.memory.size;
    record.bytes = record.memory.size;
    if (!status)
        status = fsdp_record_add(emitting->file, &record, out, emitting->err);
    if (status)
        buffer_release(&record.memory);
    return status;
}

/* Nodes of a copied value that become something of this file: storages, and calls that rebuild a whole that is cut. */
struct adapting {
    struct emitting *emitting;
    struct value **nodes;
    size_t count, capacity;
    bool failed;
};

/* Parents come before children, so that the storage of a whole that is cut is left alone. */
static bool note_adapted(const struct value *value, void *context)
{
    struct adapting *adapting = context;
    struct value *node = (struct value *)value;
    if (node->reserved == FSDP_NODE_IS_DONE)
        return true;
    bool is_cut = cut_whole(adapting->emitting, node) != TORCH_NONE;
    node->tensor = 0;
    if (is_cut)
        node->object->args->list.items[0]->reserved = 1;
    if (!is_cut && (node->kind != VALUE_PERSID || node->storage == 0 || node->reserved))
        return true;
    if (!ARRAY_ROOM(adapting->nodes, adapting->count, adapting->capacity)) {
        adapting->failed = true;
        return false;
    }
    adapting->nodes[adapting->count++] = node;
    return true;
}

static reshard_status adapt_node(struct emitting *emitting, struct value *node)
{
    uint32_t wanted = cut_whole(emitting, node), record;
    if (wanted == TORCH_NONE) {
        reshard_status status = storage_record(emitting, node->storage - 1, &record);
        node->storage = status ? 0 : record + 1;
        return status;
    }
    struct value *piece = make_tensor(emitting, wanted);
    if (!piece)
        return emitting->status;
    node->kind = piece->kind;
    node->tensor = piece->tensor;
    node->object = piece->object;
    return RESHARD_OK;
}

/* Makes a copied value this file's. */
static reshard_status fsdp_adapt(struct emitting *emitting, struct value *value, reshard_error *err)
{
    struct adapting adapting = { .emitting = emitting };
    bool walked = value_walk(value, emitting->graph.count, emitting->request->limits.budget, note_adapted, &adapting, NULL);
    reshard_status status = walked ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i < adapting.count; i++)
        status = adapt_node(emitting, adapting.nodes[i]);
    free(adapting.nodes);
    return status;
}

static bool is_no_shard(const struct value *value, void *context)
{
    (void)context;
    return !torch_is_shard(value);
}

/* Whether a value holds one rank's piece of a tensor: of a file that was opened without those of the other ranks. */
static reshard_status find_lone_shard(const struct emitting *emitting, const struct catalog_item *item, bool *found, reshard_error *err)
{
    bool no_memory = false;
    *found = !value_walk(item->value, item->graph->count, emitting->request->limits.budget, is_no_shard, NULL, &no_memory);
    return no_memory ? work_error(emitting->request->limits.budget, err) : RESHARD_OK;
}

/* *out NULL: the item has no value that could be written. */
static reshard_status fsdp_copy_item(struct emitting *emitting, uint32_t index, struct value **out, reshard_error *err)
{
    const struct catalog_item *item;
    struct str key = emitting->request->wanted->items[index].key;
    *out = NULL;
    reshard_status status = layout_item(emitting->request, index, &item, err);
    bool has_value = !status && item->value && item->graph;
    if (!has_value && emitting->file->is_planned && (!status || status == RESHARD_ERR_UNSUPPORTED))
        return RESHARD_OK; /* that was said when it was planned */
    if (status == RESHARD_ERR_UNSUPPORTED || (!status && !has_value))
        return target_note_dropped(emitting->target, NOTE_NO_VALUE, key, err, "its value is not known");
    bool is_lone = false;
    if (!status)
        status = find_lone_shard(emitting, item, &is_lone, err);
    if (!status && is_lone && !emitting->file->is_planned && emitting->file->rank == 0)
        status = target_note_dropped(emitting->target, NOTE_RANKS, key, err,
                                     "one rank's piece of a tensor: convert the folder that holds the files of all ranks");
    if (status || is_lone)
        return status;
    emitting->item = index;
    *out = value_copy(&emitting->graph, item->value, item->graph->count);
    if (!*out)
        return error_set_memory(err);
    if (emitting->state->flat->source && emitting->wanted_of && str_is(key, FSDP_OPTIMIZER_KEY)) {
        struct fsdp_cutting cutting = { emitting->request, emitting->state->flat, emitting->file, &emitting->graph, emitting->wanted_of };
        status = fsdp_flat_cut(&cutting, *out, err);
    }
    return status ? status : fsdp_adapt(emitting, *out, err);
}

/* Whether the file's rank has an item of its own of that key. */
static reshard_status has_own(const struct emitting *emitting, struct str key, bool *out, reshard_error *err)
{
    char prefix[24];
    snprintf(prefix, sizeof(prefix), "rank_%" PRIu32 ".", emitting->file->rank);
    const struct str parts[] = { str_of(prefix), key };
    uint32_t found;
    reshard_status status = name_map_find_joined(&emitting->state->item_keys, parts, 2, &found, err);
    *out = found != NAME_NONE;
    return status;
}

/*
 * Path of an item of a single rank: its key is "rank_N." and the joined path of what all have. Where nothing has that key (it is lost, or
 * left out), its own path tells, behind the word of the rank.
 */
static size_t own_path(const struct emitting *emitting, const struct catalog_item *item, struct str base, struct path_part *single,
                       const struct path_part **parts)
{
    const struct catalog *wanted = emitting->request->wanted;
    uint32_t number = name_map_find(&emitting->state->item_keys, base);
    if (number != NAME_NONE)
        return catalog_item_path(wanted, &wanted->items[emitting->state->items[number]], single, parts);
    size_t count = catalog_item_path(wanted, item, single, parts);
    if (count > 1) {
        (*parts)++;
        return count - 1;
    }
    *single = (struct path_part){ .kind = PATH_KEY, .key = base };
    *parts = single;
    return 1;
}

static reshard_status fsdp_put_items(struct emitting *emitting, reshard_error *err)
{
    const struct catalog *wanted = emitting->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->item_count; i++) {
        struct path_part single;
        const struct path_part *parts;
        struct str base;
        uint32_t rank;
        struct value *leaf;
        bool is_joined;
        if (wanted->items[i].kind == ITEM_FILE || emitting->state->is_left_out[i])
            continue;
        bool is_own = rank_item_read(wanted->items[i].key, &rank, &base), is_others = is_own && rank != emitting->file->rank;
        if (!is_own)
            status = has_own(emitting, wanted->items[i].key, &is_others, err);
        if (status || is_others)
            continue;
        size_t count = is_own ? own_path(emitting, &wanted->items[i], base, &single, &parts)
                              : catalog_item_path(wanted, &wanted->items[i], &single, &parts);
        if (kind_of(&parts, &count) != emitting->file->kind)
            continue;
        status = fsdp_copy_item(emitting, i, &leaf, err);
        if (!status && leaf)
            status = fsdp_put_leaf(emitting, wanted->items[i].key, parts, count, leaf, &is_joined, err);
    }
    return status;
}

/* ---- the pickle ---- */

static reshard_status find_own_record(void *context, const struct value *persid, uint32_t *record, uint64_t *bytes)
{
    const struct emitting *emitting = context;
    *record = persid->storage - 1;
    *bytes = emitting->file->records[*record].bytes;
    return RESHARD_OK;
}

static bool fsdp_substitute(const struct value *value, struct buffer *out, void *context)
{
    struct emitting *emitting = context;
    struct torch_storage_finder finder = { find_own_record, emitting };
    char key[16];
    if (value->kind != VALUE_NONE || value->tensor == 0)
        return torch_spell(value, &finder, &emitting->status, out);
    const struct fsdp_record *record = &emitting->file->records[value->tensor - 1];
    snprintf(key, sizeof(key), "%" PRIu32, value->tensor - 1);
    torch_save_put_tensor(out, record->dtype, record->rank, record->extent, NULL, 0, key, record->bytes, false);
    return true;
}

static reshard_status fsdp_fill(struct emitting *emitting, reshard_error *err)
{
    const struct layout_request *request = emitting->request;
    bool is_counted = request->source && request->source->driver->abilities & FORMAT_ITEMS_NAME_TENSORS;
    emitting->record_of = array_zeroed(request->wanted->tensor_count, sizeof(*emitting->record_of));
    if (is_counted)
        emitting->wanted_of = array_zeroed(request->source_catalog->tensor_count, sizeof(*emitting->wanted_of));
    if (!emitting->record_of || (is_counted && !emitting->wanted_of) || !nest_begin(&emitting->nest, &emitting->graph))
        return error_set_memory(err);
    for (uint32_t i = 0; is_counted && i < request->wanted->tensor_count; i++)
        if (request->wanted_source[i] != CATALOG_NONE)
            emitting->wanted_of[request->wanted_source[i]] = i + 1;
    reshard_status status = fsdp_put_tensors(emitting, err);
    if (!status)
        status = fsdp_put_items(emitting, err);
    return status;
}

reshard_status fsdp_emit_file(const struct layout_request *request, struct target *target, struct fsdp_target_file *file,
                              struct buffer *out, bool *is_empty, reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    struct emitting emitting = { .request = request, .target = target, .state = state, .file = file, .is_empty = true, .err = err };
    emitting.maker = (struct torch_shard_maker){ .graph = &emitting.graph,
                                                 .number = file->rank,
                                                 .world = state->spread.world,
                                                 .put_integers = put_integers,
                                                 .context = &emitting };
    reshard_status status = fsdp_fill(&emitting, err);
    *is_empty = emitting.is_empty;
    bool is_written = !emitting.is_empty || file->kind == FSDP_MODEL; /* a model without anything is an empty dict */
    if (!status && is_written && !emitting.whole)
        status = nest_finish(&emitting.nest, err);
    if (!status && is_written)
        status = pickle_write(emitting.whole ? emitting.whole : emitting.graph.root, emitting.graph.count, NULL, fsdp_substitute, &emitting,
                              out, err);
    if (emitting.status)
        status = emitting.status;
    nest_release(&emitting.nest);
    torch_shard_maker_release(&emitting.maker);
    value_graph_release(&emitting.graph);
    free(emitting.record_of);
    free(emitting.wanted_of);
    return status;
}
