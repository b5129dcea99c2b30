/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes .metadata as a pickle of protocol 2, with the few opcodes that every reader knows. What occurs often (classes, attribute names,
 * file names, keys) is put into the memo; about 150 bytes a chunk result, and nothing of the pickle is kept in memory.
 */
#include "formats/dcp/dcp_target.h"

#include "base/array.h"
#include "encoding/pickle_write.h"

#include <stdio.h>
#include <stdlib.h>

#define FLUSH_BYTES 65536
#define BATCH 1000 /* pairs a SETITEMS, items an APPENDS: as CPython's pickler */

#define MODULE "torch.distributed.checkpoint.metadata"

/* Globals and texts that occur again and again; each gets a memo number when it is first written. */
enum constant {
    CLASS_TENSOR, CLASS_PROPERTIES, CLASS_CHUNK, CLASS_BYTES, CLASS_INDEX, CLASS_INFO, CLASS_SIZE, CALL_LAYOUT, CALL_FORMAT,
    CLASSES,
    TEXT_PROPERTIES = CLASSES, TEXT_SIZE, TEXT_CHUNKS, TEXT_OFFSETS, TEXT_SIZES, TEXT_FQN, TEXT_INDEX, TEXT_OFFSET, TEXT_PATH, TEXT_LENGTH,
    VALUE_LAYOUT, VALUE_FORMAT, /* results of the two calls */
    DTYPE_FIRST,
    CONSTANTS = DTYPE_FIRST + DTYPE_COUNT
};

static const struct {
    const char *module, *name;
} classes[CLASSES] = {
    [CLASS_TENSOR] = { MODULE, "TensorStorageMetadata" },
    [CLASS_PROPERTIES] = { MODULE, "TensorProperties" },
    [CLASS_CHUNK] = { MODULE, "ChunkStorageMetadata" },
    [CLASS_BYTES] = { MODULE, "BytesStorageMetadata" },
    [CLASS_INDEX] = { MODULE, "MetadataIndex" },
    [CLASS_INFO] = { "torch.distributed.checkpoint.filesystem", "_StorageInfo" },
    [CLASS_SIZE] = { "torch", "Size" },
    [CALL_LAYOUT] = { "torch.serialization", "_get_layout" },
    [CALL_FORMAT] = { MODULE, "_MEM_FORMAT_ENCODING" },
};

static const char *const texts[VALUE_LAYOUT - CLASSES] = {
    "properties", "size", "chunks", "offsets", "sizes", "fqn", "index", "offset", "relative_path", "length",
};

struct writing {
    const struct layout_request *request;
    const struct catalog *catalog;   /* of the target */
    struct dcp_target *state;
    struct buffer out;
    dcp_sink sink;
    void *context;
    uint32_t memo_count;
    uint32_t constants[CONSTANTS];   /* memo number + 1 */
    uint32_t *tensor_memo, *item_memo, *object_memo,
        *vector_memo;                /* the same, by wanted tensor, wanted item, target object, vector */
    struct arena names;              /* keys that are not the tensors' own */
    uint32_t in_batch;
};

/* ---- memo ---- */

static void dcp_metadata_write_put_memo(struct writing *writing, uint32_t *slot)
{
    uint32_t number = writing->memo_count++;
    *slot = number + 1;
    if (number <= UINT8_MAX) {
        pickle_put_opcode(&writing->out, 'q');
        buffer_append_byte(&writing->out, (uint8_t)number);
    } else {
        pickle_put_opcode(&writing->out, 'r');
        buffer_append_u32le(&writing->out, number);
    }
}

/* Fetches what the slot stands for; false if it was not written yet. */
static bool get_memo(struct writing *writing, uint32_t slot)
{
    if (!slot)
        return false;
    if (slot - 1 <= UINT8_MAX) {
        pickle_put_opcode(&writing->out, 'h');
        buffer_append_byte(&writing->out, (uint8_t)(slot - 1));
    } else {
        pickle_put_opcode(&writing->out, 'j');
        buffer_append_u32le(&writing->out, slot - 1);
    }
    return true;
}

static void put_constant(struct writing *writing, int constant)
{
    if (get_memo(writing, writing->constants[constant]))
        return;
    if (constant < CLASSES)
        pickle_put_global(&writing->out, classes[constant].module, classes[constant].name);
    else if (constant < VALUE_LAYOUT)
        pickle_put_str(&writing->out, str_of(texts[constant - CLASSES]));
    else
        pickle_put_global(&writing->out, "torch", dtype_info((enum dtype)(constant - DTYPE_FIRST))->torch_name);
    dcp_metadata_write_put_memo(writing, &writing->constants[constant]);
}

static void dcp_metadata_write_put_text(struct writing *writing, struct str text, uint32_t *slot)
{
    if (get_memo(writing, *slot))
        return;
    pickle_put_str(&writing->out, text);
    dcp_metadata_write_put_memo(writing, slot);
}

/* ---- small objects ---- */

static void begin_object(struct writing *writing, int class_)
{
    put_constant(writing, class_);
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_TUPLE);
    pickle_put_opcode(&writing->out, PICKLE_NEWOBJ);
}

static void begin_attributes(struct writing *writing)
{
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_DICT);
    pickle_put_opcode(&writing->out, PICKLE_MARK);
}

static void end_attributes(struct writing *writing)
{
    pickle_put_opcode(&writing->out, PICKLE_SETITEMS);
    pickle_put_opcode(&writing->out, PICKLE_BUILD);
}

static void put_size(struct writing *writing, int rank, const int64_t *numbers)
{
    put_constant(writing, CLASS_SIZE);
    pickle_put_int_tuple(&writing->out, numbers, (size_t)rank);
    pickle_put_opcode(&writing->out, PICKLE_TUPLE1);
    pickle_put_opcode(&writing->out, PICKLE_REDUCE);
}

/* The one result of calling an enum or a look-up with one argument. */
static void put_result(struct writing *writing, int value, int call, const char *text)
{
    if (get_memo(writing, writing->constants[value]))
        return;
    put_constant(writing, call);
    if (text)
        pickle_put_str(&writing->out, str_of(text));
    else
        pickle_put_int(&writing->out, 0);
    pickle_put_opcode(&writing->out, PICKLE_TUPLE1);
    pickle_put_opcode(&writing->out, PICKLE_REDUCE);
    dcp_metadata_write_put_memo(writing, &writing->constants[value]);
}

/* State: (dtype, layout, requires_grad, memory format, pin_memory). */
static void put_properties(struct writing *writing, enum dtype dtype)
{
    begin_object(writing, CLASS_PROPERTIES);
    pickle_put_opcode(&writing->out, PICKLE_MARK);
    put_constant(writing, DTYPE_FIRST + (int)dtype);
    put_result(writing, VALUE_LAYOUT, CALL_LAYOUT, "torch.strided");
    pickle_put_bool(&writing->out, false);
    put_result(writing, VALUE_FORMAT, CALL_FORMAT, NULL);
    pickle_put_bool(&writing->out, false);
    pickle_put_opcode(&writing->out, PICKLE_TUPLE);
    pickle_put_opcode(&writing->out, PICKLE_BUILD);
}

static reshard_status dcp_metadata_write_flush(struct writing *writing, size_t bytes_min, reshard_error *err)
{
    if (writing->out.failed)
        return error_set_memory(err);
    if (writing->out.size < bytes_min)
        return RESHARD_OK;
    reshard_status status = writing->sink(writing->context, writing->out.data, writing->out.size, err);
    buffer_clear(&writing->out);
    return status;
}

/* ---- dicts in batches ---- */

static void begin_dict(struct writing *writing)
{
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_DICT);
    writing->in_batch = 0;
}

static void begin_pair(struct writing *writing)
{
    if (writing->in_batch == BATCH) {
        pickle_put_opcode(&writing->out, PICKLE_SETITEMS);
        writing->in_batch = 0;
    }
    if (writing->in_batch++ == 0)
        pickle_put_opcode(&writing->out, PICKLE_MARK);
}

static void end_dict(struct writing *writing)
{
    if (writing->in_batch)
        pickle_put_opcode(&writing->out, PICKLE_SETITEMS);
}

/* ---- the attributes ---- */

/* The name under which a tensor is stored. */
static void dcp_metadata_write_put_key(struct writing *writing, uint32_t tensor)
{
    struct str key = writing->catalog->tensors[tensor].key;
    const struct dcp_flavour *flavour = writing->state->flavour;
    if (!writing->tensor_memo[tensor] && flavour->stored_key) {
        struct str stored = flavour->stored_key(writing->state, &writing->names, key);
        writing->out.failed |= key.size && !stored.size;
        key = stored;
    }
    dcp_metadata_write_put_text(writing, key, &writing->tensor_memo[tensor]);
}

/* What is stored of a chunk's tensor, and where the chunk lies in that. */
static void find_form(const struct writing *writing, const struct catalog_chunk *chunk, struct dcp_form *out)
{
    const struct catalog *catalog = writing->catalog;
    const struct dcp_flavour *flavour = writing->state->flavour;
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const int64_t *start = catalog_vector_at(catalog, chunk->start), *extent = catalog_vector_at(catalog, chunk->extent);
    size_t bytes = (size_t)tensor->rank * sizeof(*start);
    if (flavour->stored_form && flavour->stored_form(writing->state, catalog, chunk->tensor, start, extent, out))
        return;
    out->rank = tensor->rank;
    memcpy(out->size, catalog_vector_at(catalog, tensor->shape), bytes);
    memcpy(out->start, start, bytes);
    memcpy(out->extent, extent, bytes);
}

static bool is_tensor_chunk(const struct catalog_chunk *chunk)
{
    return chunk->driver_data != 0 && !(chunk->driver_data & (DCP_IN_ITEM | DCP_IN_RUN));
}

static bool is_written_item(const struct dcp_stored *item)
{
    return !item->is_file && (item->form == DCP_ITEM_VERBATIM || item->form == DCP_ITEM_PICKLED);
}

static reshard_status put_chunk_list(struct writing *writing, uint32_t tensor, uint32_t first, uint32_t *next, reshard_error *err)
{
    const struct catalog *catalog = writing->catalog;
    struct dcp_form form;
    uint32_t count = 0, i;
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_LIST);
    for (i = first; i < catalog->chunk_count && catalog->chunks[i].tensor == tensor; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (!is_tensor_chunk(chunk))
            continue;
        if (count % BATCH == 0) {
            if (count)
                pickle_put_opcode(&writing->out, PICKLE_APPENDS);
            pickle_put_opcode(&writing->out, PICKLE_MARK);
        }
        count++;
        begin_object(writing, CLASS_CHUNK);
        begin_attributes(writing);
        find_form(writing, chunk, &form);
        put_constant(writing, TEXT_OFFSETS);
        put_size(writing, form.rank, form.start);
        put_constant(writing, TEXT_SIZES);
        put_size(writing, form.rank, form.extent);
        end_attributes(writing);
        reshard_status status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
        if (status)
            return status;
    }
    if (count)
        pickle_put_opcode(&writing->out, PICKLE_APPENDS);
    *next = i;
    return RESHARD_OK;
}

static reshard_status put_tensor(struct writing *writing, uint32_t first, uint32_t *next, reshard_error *err)
{
    const struct catalog *catalog = writing->catalog;
    uint32_t index = catalog->chunks[first].tensor;
    struct dcp_form form;
    begin_pair(writing);
    dcp_metadata_write_put_key(writing, index);
    begin_object(writing, CLASS_TENSOR);
    begin_attributes(writing);
    put_constant(writing, TEXT_PROPERTIES);
    put_properties(writing, catalog->tensors[index].dtype);
    put_constant(writing, TEXT_SIZE);
    find_form(writing, &catalog->chunks[first], &form);
    put_size(writing, form.rank, form.size);
    put_constant(writing, TEXT_CHUNKS);
    reshard_status status = put_chunk_list(writing, index, first, next, err);
    end_attributes(writing);
    return status;
}

/* Vectors that are in .metadata. */
static uint32_t count_vectors(const struct dcp_target *state)
{
    return state->vectors.are_blobs ? state->vectors.count : 0;
}

static reshard_status put_vector(struct writing *writing, uint32_t index, reshard_error *err)
{
    const struct dcp_vectors *vectors = &writing->state->vectors;
    const struct dcp_vector *vector = &vectors->vectors[index];
    reshard_status status = RESHARD_OK;
    begin_pair(writing);
    dcp_metadata_write_put_text(writing, vector->key, &writing->vector_memo[index]);
    begin_object(writing, CLASS_TENSOR);
    begin_attributes(writing);
    put_constant(writing, TEXT_PROPERTIES);
    put_properties(writing, vector->dtype);
    put_constant(writing, TEXT_SIZE);
    put_size(writing, 1, &vector->count);
    put_constant(writing, TEXT_CHUNKS);
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_LIST);
    for (uint32_t i = 0; i < vector->run_count && !status; i++) {
        const struct dcp_run *run = &vectors->runs[vector->first_run + i];
        if (i % BATCH == 0 && i > 0)
            pickle_put_opcode(&writing->out, PICKLE_APPENDS);
        if (i % BATCH == 0)
            pickle_put_opcode(&writing->out, PICKLE_MARK);
        begin_object(writing, CLASS_CHUNK);
        begin_attributes(writing);
        put_constant(writing, TEXT_OFFSETS);
        put_size(writing, 1, &run->start);
        put_constant(writing, TEXT_SIZES);
        put_size(writing, 1, &run->count);
        end_attributes(writing);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    if (vector->run_count)
        pickle_put_opcode(&writing->out, PICKLE_APPENDS);
    end_attributes(writing);
    return status;
}

/* Chunks of one tensor lie together, before the catalog is sealed and after. */
static reshard_status put_state_dict(struct writing *writing, reshard_error *err)
{
    const struct catalog *catalog = writing->catalog;
    reshard_status status = RESHARD_OK;
    begin_dict(writing);
    for (uint32_t i = 0; i < writing->state->item_count && !status; i++) {
        if (!is_written_item(&writing->state->items[i]))
            continue;
        begin_pair(writing);
        dcp_metadata_write_put_text(writing, writing->state->items[i].key, &writing->item_memo[i]);
        begin_object(writing, CLASS_BYTES);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    for (uint32_t i = 0; i < catalog->chunk_count && !status;) {
        if (is_tensor_chunk(&catalog->chunks[i]))
            status = put_tensor(writing, i, &i, err);
        else
            i++;
    }
    for (uint32_t i = 0; i < count_vectors(writing->state) && !status; i++)
        status = put_vector(writing, i, err);
    end_dict(writing);
    return status;
}

static void dcp_metadata_write_put_path(struct writing *writing, struct str name, const struct path_part *parts, size_t count)
{
    char number[24];
    struct path_part flat = { .kind = PATH_KEY, .key = name };
    if (dcp_lists_are_flat(&writing->state->lists, parts, count)) {
        parts = &flat;
        count = 1;
    }
    if (count > 3 || count == 0)
        pickle_put_opcode(&writing->out, PICKLE_MARK);
    for (size_t i = 0; i < count; i++) {
        if (parts[i].kind == PATH_KEY) {
            pickle_put_str(&writing->out, parts[i].key);
        } else if (parts[i].kind == PATH_INDEX && i > 0) {
            pickle_put_int(&writing->out, parts[i].index);
        } else {
            int size = snprintf(number, sizeof(number), "%lld", (long long)parts[i].index);
            pickle_put_str(&writing->out, (struct str){ number, (size_t)size });
        }
    }
    pickle_put_opcode(&writing->out, count > 3 || count == 0 ? PICKLE_TUPLE : (uint8_t)(PICKLE_TUPLE1 + count - 1));
}

/* Path of a tensor. A source that knows no paths gives keys alone. */
static size_t dcp_metadata_write_tensor_path(const struct writing *writing, const struct catalog_tensor *tensor,
                                             struct path_part made[DCP_PATH_MADE_MAX], const struct path_part **parts)
{
    const struct dcp_flavour *flavour = writing->state->flavour;
    if (tensor->path == CATALOG_NONE && flavour->tensor_path) {
        size_t count = flavour->tensor_path(tensor->key, made);
        *parts = made;
        if (count)
            return count;
    }
    return catalog_tensor_path(writing->request->wanted, tensor, &made[0], parts);
}

static reshard_status put_planner_data(struct writing *writing, reshard_error *err)
{
    const struct catalog *wanted = writing->request->wanted;
    struct path_part single, made[DCP_PATH_MADE_MAX];
    const struct path_part *parts;
    reshard_status status = RESHARD_OK;
    begin_dict(writing);
    for (uint32_t i = 0; i < writing->state->item_count && !status; i++) {
        if (!is_written_item(&writing->state->items[i]))
            continue;
        begin_pair(writing);
        const struct dcp_stored *item = &writing->state->items[i];
        dcp_metadata_write_put_text(writing, item->key, &writing->item_memo[i]);
        size_t count = dcp_stored_path(item, &single, &parts);
        dcp_metadata_write_put_path(writing, item->key, parts, count);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        if (!writing->tensor_memo[i])
            continue;
        begin_pair(writing);
        dcp_metadata_write_put_text(writing, wanted->tensors[i].key, &writing->tensor_memo[i]);
        size_t count = dcp_metadata_write_tensor_path(writing, &wanted->tensors[i], made, &parts);
        dcp_metadata_write_put_path(writing, wanted->tensors[i].key, parts, count);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    end_dict(writing);
    return status;
}

static void put_info(struct writing *writing, uint32_t object, uint64_t offset, uint64_t bytes)
{
    begin_object(writing, CLASS_INFO);
    begin_attributes(writing);
    put_constant(writing, TEXT_PATH);
    struct str name = writing->catalog->objects[object].name;
    size_t folder = strlen(writing->state->folder);
    dcp_metadata_write_put_text(writing, (struct str){ name.data + folder, name.size - folder }, &writing->object_memo[object]);
    put_constant(writing, TEXT_OFFSET);
    pickle_put_int(&writing->out, (int64_t)offset);
    put_constant(writing, TEXT_LENGTH);
    pickle_put_int(&writing->out, (int64_t)bytes);
    end_attributes(writing);
}

static reshard_status dcp_metadata_write_put_runs(struct writing *writing, reshard_error *err)
{
    const struct dcp_vectors *vectors = &writing->state->vectors;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; vectors->are_blobs && i < vectors->run_count && !status; i++) {
        const struct dcp_run *run = &vectors->runs[i];
        begin_pair(writing);
        begin_object(writing, CLASS_INDEX);
        begin_attributes(writing);
        put_constant(writing, TEXT_FQN);
        dcp_metadata_write_put_text(writing, vectors->vectors[run->vector].key, &writing->vector_memo[run->vector]);
        put_constant(writing, TEXT_INDEX);
        pickle_put_int(&writing->out, i - vectors->vectors[run->vector].first_run);
        put_constant(writing, TEXT_OFFSET);
        put_size(writing, 1, &run->start);
        end_attributes(writing);
        put_info(writing, run->object, run->blob_offset, run->blob_bytes);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    return status;
}

static reshard_status put_storage_data(struct writing *writing, reshard_error *err)
{
    const struct catalog *catalog = writing->catalog;
    reshard_status status = RESHARD_OK;
    begin_dict(writing);
    for (uint32_t i = 0; i < writing->state->item_count && !status; i++) {
        const struct dcp_stored *blob = &writing->state->items[i];
        if (!is_written_item(blob))
            continue;
        begin_pair(writing);
        begin_object(writing, CLASS_INDEX);
        begin_attributes(writing);
        put_constant(writing, TEXT_FQN);
        dcp_metadata_write_put_text(writing, writing->state->items[i].key, &writing->item_memo[i]);
        put_constant(writing, TEXT_INDEX);
        pickle_put_none(&writing->out);
        end_attributes(writing);
        put_info(writing, blob->object, blob->offset, blob->bytes);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    uint32_t tensor = CATALOG_NONE;
    int64_t position = 0;
    for (uint32_t i = 0; i < catalog->chunk_count && !status; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (!is_tensor_chunk(chunk))
            continue;
        position = chunk->tensor == tensor ? position + 1 : 0;
        tensor = chunk->tensor;
        begin_pair(writing);
        begin_object(writing, CLASS_INDEX);
        begin_attributes(writing);
        put_constant(writing, TEXT_FQN);
        dcp_metadata_write_put_key(writing, tensor);
        put_constant(writing, TEXT_INDEX);
        pickle_put_int(&writing->out, position);
        put_constant(writing, TEXT_OFFSET);
        struct dcp_form form;
        find_form(writing, chunk, &form);
        put_size(writing, form.rank, form.start);
        end_attributes(writing);
        const struct dcp_blob *blob = &writing->state->blobs[chunk->driver_data - 1];
        put_info(writing, chunk->object, blob->offset, blob->bytes);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    if (!status)
        status = dcp_metadata_write_put_runs(writing, err);
    end_dict(writing);
    return status;
}

/* The dict that a flavour adds: something for every tensor. */
static reshard_status put_attribute(struct writing *writing, reshard_error *err)
{
    const struct catalog *catalog = writing->catalog;
    reshard_status status = RESHARD_OK;
    begin_dict(writing);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if (!writing->tensor_memo[i])
            continue;
        begin_pair(writing);
        dcp_metadata_write_put_key(writing, i);
        writing->state->flavour->put_attribute(writing->state, catalog, i, &writing->out);
        status = dcp_metadata_write_flush(writing, FLUSH_BYTES, err);
    }
    end_dict(writing);
    return status;
}

/* The identity of the save is left empty, so that the same input gives the same bytes. */
static void put_storage_meta(struct writing *writing)
{
    pickle_put_global(&writing->out, MODULE, "StorageMeta");
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_TUPLE);
    pickle_put_opcode(&writing->out, PICKLE_NEWOBJ);
    begin_attributes(writing);
    pickle_put_str(&writing->out, STR("checkpoint_id"));
    pickle_put_str(&writing->out, str_of(writing->request->file_name ? writing->request->file_name : ""));
    pickle_put_str(&writing->out, STR("save_id"));
    pickle_put_none(&writing->out);
    pickle_put_str(&writing->out, STR("load_id"));
    pickle_put_none(&writing->out);
    pickle_put_str(&writing->out, STR("modules"));
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_LIST);
    end_attributes(writing);
}

static reshard_status put_metadata(struct writing *writing, reshard_error *err)
{
    const struct dcp_flavour *flavour = writing->state->flavour;
    pickle_put_begin(&writing->out);
    pickle_put_global(&writing->out, MODULE, "Metadata");
    pickle_put_opcode(&writing->out, PICKLE_EMPTY_TUPLE);
    pickle_put_opcode(&writing->out, PICKLE_NEWOBJ);
    begin_attributes(writing);
    pickle_put_str(&writing->out, STR("state_dict_metadata"));
    reshard_status status = put_state_dict(writing, err);
    if (status)
        return status;
    pickle_put_str(&writing->out, STR("planner_data"));
    if (flavour->has_no_paths)
        pickle_put_none(&writing->out);
    else
        status = put_planner_data(writing, err);
    if (status)
        return status;
    pickle_put_str(&writing->out, STR("storage_data"));
    status = put_storage_data(writing, err);
    if (status)
        return status;
    const char *attribute = flavour->attribute ? flavour->attribute(writing->state) : NULL;
    if (attribute) {
        pickle_put_str(&writing->out, str_of(attribute));
        status = put_attribute(writing, err);
        if (status)
            return status;
    }
    pickle_put_str(&writing->out, STR("storage_meta"));
    put_storage_meta(writing);
    pickle_put_str(&writing->out, STR("version"));
    pickle_put_str(&writing->out, STR("1.0.0"));
    end_attributes(writing);
    pickle_put_end(&writing->out);
    return dcp_metadata_write_flush(writing, 0, err);
}

reshard_status dcp_metadata_write(const struct layout_request *request, const struct target *target, dcp_sink sink, void *context,
                                  reshard_error *err)
{
    const struct catalog *catalog = target->catalog;
    struct writing writing = {
        .request = request, .catalog = catalog, .state = dcp_target_state(target), .sink = sink, .context = context
    };
    writing.tensor_memo = array_zeroed(catalog->tensor_count, sizeof(uint32_t));
    writing.item_memo = array_zeroed(writing.state->item_count, sizeof(uint32_t));
    writing.object_memo = array_zeroed(catalog->object_count, sizeof(uint32_t));
    writing.vector_memo = array_zeroed((size_t)count_vectors(writing.state), sizeof(uint32_t));
    reshard_status status = writing.tensor_memo && writing.item_memo && writing.object_memo && writing.vector_memo
                                ? put_metadata(&writing, err)
                                : error_set_memory(err);
    buffer_release(&writing.out);
    arena_release(&writing.names);
    free(writing.tensor_memo);
    free(writing.item_memo);
    free(writing.object_memo);
    free(writing.vector_memo);
    return status;
}
