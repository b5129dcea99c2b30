/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An item as a torch.save archive: its value pickled again, and every storage that the value refers to as a member of its own. A storage is
 * a hidden tensor of the catalog, whose payload the engine moves, or bytes that only the source driver can read. Calls that rebuild tensors
 * are written as they are, so offsets and strides stay.
 */
#include "formats/dcp/dcp_target.h"

#include "base/array.h"
#include "base/checked.h"
#include "encoding/pickle_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct pickling {
    const struct layout_request *request;
    const struct dcp_target *state;
    struct dcp_item_pickle *pickle;
    uint32_t item;       /* wanted item whose value is being written */
    const char *problem; /* why it cannot be written; "" without memory */
    uint32_t node;       /* leaf of the tree that is being written, or CATALOG_NONE */
};

/* Number of the storage in the archive, new if need be; false without memory. */
static bool dcp_item_write_take_storage(struct dcp_item_pickle *pickle, struct dcp_item_storage wanted, uint32_t *out)
{
    for (uint32_t i = 0; i < pickle->storage_count && !wanted.is_run; i++) {
        const struct dcp_item_storage *known = &pickle->storages[i];
        if (known->is_tensor == wanted.is_tensor && known->index == wanted.index && (wanted.is_tensor || known->item == wanted.item)) {
            *out = i;
            return pickle->storages[i].bytes == wanted.bytes;
        }
    }
    if (!ARRAY_ROOM(pickle->storages, pickle->storage_count, pickle->storage_capacity))
        return false;
    *out = pickle->storage_count;
    pickle->storages[pickle->storage_count++] = wanted;
    return true;
}

/* The wanted tensor that is the source's hidden one, if it has these bytes. */
static bool hidden_tensor(struct pickling *pickling, uint32_t source_tensor, uint64_t bytes, uint32_t *out)
{
    const struct catalog *wanted = pickling->request->wanted;
    uint32_t count = pickling->request->source_catalog->tensor_count;
    *out = source_tensor < count ? pickling->state->wanted_of[source_tensor] : CATALOG_NONE;
    if (*out == CATALOG_NONE)
        pickling->problem = "a tensor inside it is not selected";
    else if (catalog_tensor_bytes(wanted, &wanted->tensors[*out]) != bytes)
        pickling->problem = "a storage in it has another size than it says";
    return !pickling->problem;
}

/* ('storage', class, key, location, numel): the members that stay. */
static bool read_persistent_id(const struct value *value, struct value **out_class, int64_t *numel, uint64_t *bytes)
{
    struct value **items;
    size_t count;
    enum dtype dtype = DTYPE_U8;
    if (!value_as_sequence(value->inner, &items, &count) || count < 5 || items[1]->kind != VALUE_GLOBAL || !value_as_int(items[4], numel) ||
        *numel < 0)
        return false;
    struct str name = items[1]->global.name;
    bool is_untyped = str_is(name, "UntypedStorage") || str_is(name, "_UntypedStorage");
    if (!is_untyped && !dtype_from_torch_storage(name, &dtype))
        return false;
    *out_class = items[1];
    return dtype_bytes(dtype, (uint64_t)*numel, bytes);
}

static bool dcp_item_write_put_global(struct buffer *out, const struct value *global)
{
    /* Names with a line end cannot be spelled in protocol 2, and no storage class has one. */
    struct str module = global->global.module, name = global->global.name;
    size_t at;
    if (str_find_char(module, '\n', &at) || str_find_char(name, '\n', &at))
        return false;
    return buffer_append_byte(out, 'c') && buffer_append_str(out, module) && buffer_append_byte(out, '\n') &&
           buffer_append_str(out, name) && buffer_append_byte(out, '\n');
}

/* Finds out which bytes the persistent id means, and gives them a number in the archive. */
static bool dcp_item_write_find_storage(struct pickling *pickling, const struct value *value, struct value **class_, int64_t *numel,
                                        uint32_t *storage)
{
    uint64_t bytes;
    uint32_t index = value->storage - 1, item = CATALOG_NONE;
    if (value->storage && index & DCP_KEPT && (index & ~DCP_KEPT) < pickling->state->kept_count) {
        item = pickling->state->kept[index & ~DCP_KEPT].item;
        index = pickling->state->kept[index & ~DCP_KEPT].storage;
    } else if (pickling->item != CATALOG_NONE) {
        item = pickling->request->wanted_items[pickling->item];
    }
    bool is_tensor = !pickling->request->items.read_storage;
    if (!value->storage)
        pickling->problem = "it refers to a storage that the source does not hold";
    else if (!read_persistent_id(value, class_, numel, &bytes))
        pickling->problem = "a persistent id in it is of an unknown form";
    else if ((!is_tensor || hidden_tensor(pickling, index, bytes, &index)) &&
             !dcp_item_write_take_storage(pickling->pickle,
                           (struct dcp_item_storage){ .is_tensor = is_tensor, .item = item, .index = index, .bytes = bytes },
                           storage))
        pickling->problem = "";
    return !pickling->problem;
}

static bool substitute(const struct value *value, struct buffer *out, void *context)
{
    struct pickling *pickling = context;
    struct value *class_;
    int64_t numel;
    uint32_t storage;
    char key[16];
    if (value->kind != VALUE_PERSID)
        return false;
    if (pickling->problem || !dcp_item_write_find_storage(pickling, value, &class_, &numel, &storage))
        return true;
    int size = snprintf(key, sizeof(key), "%" PRIu32, storage);
    pickle_put_opcode(out, PICKLE_MARK);
    pickle_put_str(out, STR("storage"));
    if (!dcp_item_write_put_global(out, class_))
        pickling->problem = "a storage class in it has no valid name";
    pickle_put_str(out, (struct str){ key, (size_t)size });
    pickle_put_str(out, STR("cpu"));
    pickle_put_int(out, numel);
    pickle_put_opcode(out, PICKLE_TUPLE);
    pickle_put_opcode(out, PICKLE_BINPERSID);
    return true;
}

/* A vector, whose storage is a run. */
static bool substitute_run(const struct value *value, struct buffer *out, void *context)
{
    struct pickling *pickling = context;
    const struct dcp_vectors *vectors = &pickling->state->vectors;
    uint32_t storage;
    char key[16];
    if (value->kind != VALUE_NONE || value->tensor == 0)
        return false;
    const struct dcp_run *run = &vectors->runs[value->tensor - 1];
    uint64_t bytes = dcp_run_bytes(vectors, value->tensor - 1);
    if (!dcp_item_write_take_storage(pickling->pickle,
                                     (struct dcp_item_storage){ .is_run = true, .index = value->tensor - 1, .bytes = bytes }, &storage)) {
        pickling->problem = "";
        return true;
    }
    snprintf(key, sizeof(key), "%" PRIu32, storage);
    torch_save_put_tensor(out, vectors->vectors[run->vector].dtype, 1, &run->count, NULL, 0, key, bytes, false);
    return true;
}

static reshard_status problem_error(const struct pickling *pickling, reshard_error *err)
{
    return pickling->problem[0] ? error_set(err, RESHARD_ERR_UNSUPPORTED, "%s", pickling->problem) : error_set_memory(err);
}

/* Work of writing a value, beside that of its nodes. */
#define PICKLE_UNITS 1024
#define PICKLE_UNITS_PER_BYTE 8

/*
 * Appends the pickle of a value without PROTO and STOP, so that several can follow one another. Each fills the memo from 0 and fetches only
 * what it put there itself.
 */
static reshard_status put_with(struct pickling *pickling, const struct value *value, uint32_t graph_count,
                               bool (*spell)(const struct value *, struct buffer *, void *), struct buffer *out, reshard_error *err)
{
    struct buffer whole = { .limit = (size_t)pickling->request->limits.item_bytes, .limit_name = "item_bytes" };
    struct work *work = pickling->request->limits.budget;
    reshard_status status = work_spend(work, PICKLE_UNITS, err);
    if (!status)
        status = pickle_write(value, graph_count, work, spell, pickling, &whole, err);
    if (!status)
        status = work_spend(work, whole.size * PICKLE_UNITS_PER_BYTE, err);
    if (!status && pickling->problem)
        status = problem_error(pickling, err);
    /* PROTO 2 are two bytes, STOP is one. */
    if (!status && (whole.size < 3 || !buffer_append(out, whole.data + 2, whole.size - 3)))
        status = error_set_memory(err);
    buffer_release(&whole);
    return status;
}

static reshard_status dcp_item_write_put_value(struct pickling *pickling, uint32_t item, const struct value *value, uint32_t graph_count,
                                struct buffer *out, reshard_error *err)
{
    pickling->item = item;
    return put_with(pickling, value, graph_count, item == CATALOG_NONE ? NULL : substitute, out, err);
}

/* A value of the target's own in which vectors lie. */
static reshard_status dcp_item_write_put_runs(struct pickling *pickling, const struct dcp_stored *item, struct buffer *out,
                                              reshard_error *err)
{
    return put_with(pickling, item->value, item->graph_count, substitute_run, out, err);
}

/* The source's value of a wanted item. */
static reshard_status put_wanted(struct pickling *pickling, uint32_t item, struct buffer *out, reshard_error *err)
{
    const struct catalog_item *loaded;
    reshard_status status = layout_item(pickling->request, item, &loaded, err);
    if (status)
        return status;
    if (!loaded->value || !loaded->graph)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "it has no value");
    return dcp_item_write_put_value(pickling, item, loaded->value, loaded->graph->count, out, err);
}

static reshard_status dcp_item_write_put_leaf(void *context, uint32_t number, struct buffer *out, reshard_error *err)
{
    struct pickling *pickling = context;
    const struct path_tree_node *node = &pickling->state->tree.nodes[number];
    pickling->node = number;
    reshard_status status = node->value ? dcp_item_write_put_value(pickling, node->wanted, node->value, node->graph_count, out, err)
                                        : put_wanted(pickling, node->wanted, out, err);
    if (!status)
        pickling->node = CATALOG_NONE;
    return status;
}

static reshard_status put_stored(struct pickling *pickling, const struct dcp_stored *item, struct buffer *out, reshard_error *err)
{
    reshard_status status;
    pickle_put_begin(out);
    if (item->is_in_list)
        pickle_put_opcode(out, PICKLE_EMPTY_LIST);
    if (item->has_runs)
        status = dcp_item_write_put_runs(pickling, item, out, err);
    else if (item->value)
        status = dcp_item_write_put_value(pickling, item->wanted, item->value, item->graph_count, out, err);
    else if (item->wanted != CATALOG_NONE)
        status = put_wanted(pickling, item->wanted, out, err);
    else
        status = path_tree_write(&pickling->state->tree, item->node, dcp_item_write_put_leaf, pickling, out, err);
    if (item->is_in_list)
        pickle_put_opcode(out, PICKLE_APPEND);
    pickle_put_end(out);
    return !status && out->failed ? error_set_memory(err) : status;
}

reshard_status dcp_item_pickle_make(const struct layout_request *request, const struct dcp_target *state, uint32_t item,
                                    struct dcp_item_pickle *out, uint32_t *node, reshard_error *err)
{
    const struct dcp_stored *stored = &state->items[item];
    struct dcp_item_pickle pickle = { 0 };
    struct pickling pickling = { .request = request, .state = state, .pickle = &pickle, .node = CATALOG_NONE };
    struct buffer bytes = { .limit = (size_t)request->limits.item_bytes, .limit_name = "item_bytes" };
    uint64_t *sizes = NULL;
    reshard_status status = put_stored(&pickling, stored, &bytes, err);
    if (node)
        *node = pickling.node;
    if (!status && !(sizes = array_zeroed(pickle.storage_count, sizeof(*sizes))))
        status = error_set_memory(err);
    for (uint32_t i = 0; i < pickle.storage_count && !status; i++)
        sizes[i] = pickle.storages[i].bytes;
    if (!status)
        status = torch_frame_plan(stored->is_file ? "common" : "archive", &bytes, sizes, pickle.storage_count, DCP_ALIGNMENT, &pickle.frame,
                                  err);
    free(sizes);
    buffer_release(&bytes);
    if (status)
        dcp_item_pickle_release(&pickle);
    else
        *out = pickle;
    return status;
}

void dcp_item_pickle_release(struct dcp_item_pickle *pickle)
{
    torch_frame_release(&pickle->frame);
    free(pickle->storages);
    *pickle = (struct dcp_item_pickle){ 0 };
}
