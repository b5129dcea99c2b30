/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, reading and writing through a driver without plan and engine: every element on its own, the slow and obvious way. The tests of
 * the DCP driver use it as their oracle.
 */
#ifndef TESTS_FORMATS_DCP_CHECK_H
#define TESTS_FORMATS_DCP_CHECK_H

#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include "base/digest.h"
#include "encoding/json.h"
#include "formats/dcp/dcp.h"
#include "formats/mcore/mcore.h"

static inline void check_close(struct source *source)
{
    if (!source)
        return;
    if (source->driver->close_source)
        source->driver->close_source(source);
    catalog_free(source->catalog);
    if (!source->is_borrowed_store)
        store_free(source->store);
    free(source->name);
    free(source);
}

/* As format_open, with a driver given. Takes the store. */
static inline reshard_status check_open(const struct format_driver *driver, struct store *store, const char *name, struct source **out,
                                        reshard_error *err)
{
    struct source *source = calloc(1, sizeof(*source));
    source->driver = driver;
    source->store = store;
    source->limits = limits_default;
    source->iteration = -1;
    source->name = strdup(name);
    source->catalog = catalog_new(driver->name);
    reshard_status status = driver->read_catalog(source, err);
    if (!status)
        status = catalog_seal(source->catalog, false, err);
    if (status)
        check_close(source);
    else
        *out = source;
    return status;
}

static inline reshard_status check_open_path(const struct format_driver *driver, const char *path, struct source **out, reshard_error *err)
{
    struct store *store = NULL;
    char *name = NULL;
    reshard_status status = store_open_path(path, 0, &store, &name, err);
    if (!status)
        status = check_open(driver, store, name ? name : "", out, err);
    free(name);
    return status;
}

static inline reshard_status check_resolve_all(struct source *source, reshard_error *err)
{
    uint32_t count = 0, *chunks = malloc(((size_t)source->catalog->chunk_count + 1) * sizeof(*chunks));
    if (!chunks)
        return error_set_memory(err);
    for (uint32_t i = 0; i < source->catalog->chunk_count; i++) {
        if (source->catalog->chunks[i].flags & CHUNK_UNRESOLVED)
            chunks[count++] = i;
    }
    reshard_status status = source->driver->resolve(source, chunks, count, err);
    free(chunks);
    return status;
}

/* Bytes of the chunk's extent, decoded; they start at element 0. */
static inline reshard_status check_chunk_bytes(struct source *source, const struct catalog_chunk *chunk, struct buffer *out,
                                               reshard_error *err)
{
    const struct chunk_layout *layout = catalog_layout_of(source->catalog, chunk);
    struct buffer outer = { 0 }, decoded = { 0 };
    struct store_object *object = NULL;
    char name[4097];
    snprintf(name, sizeof(name), "%.*s", STR_ARG(source->catalog->objects[chunk->object].name));
    reshard_status status = store_open_object(source->store, name, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    if (layout && layout->outer_codec != CODEC_NONE) {
        status = decode_all(layout->outer_codec, &reader, layout->outer_offset, layout->outer_bytes, &limits_default, &outer, err);
        reader = reader_over_memory(outer.data, outer.size, "outer");
    }
    if (!status && layout && layout->codec != CODEC_NONE) {
        status = decode_all(layout->codec, &reader, layout->coded_offset, layout->coded_bytes, &limits_default, &decoded, err);
        reader = reader_over_memory(decoded.data, decoded.size, "decoded");
    }
    if (!status)
        status = reader_append(&reader, chunk->offset, chunk->bytes, out, err);
    buffer_release(&outer);
    buffer_release(&decoded);
    store_object_close(object);
    return status;
}

/* The sign of a part of an element; which 1: imaginary. */
static inline void check_flip(uint8_t *element, enum dtype dtype, int which)
{
    unsigned part = dtype_info(dtype)->swap_bytes;
    element[(size_t)part * (size_t)(which + 1) - 1] ^= 0x80;
}

static inline void check_put_element(const struct catalog *catalog, const struct catalog_chunk *chunk, uint8_t *to, const uint8_t *from)
{
    enum dtype dtype = catalog->tensors[chunk->tensor].dtype;
    unsigned size = dtype_element_bytes(dtype);
    bool is_complex = dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX;
    memcpy(to, from, size);
    if (chunk->flags & CHUNK_CONJUGATE)
        check_flip(to, dtype, 1);
    if (chunk->flags & CHUNK_NEGATE) {
        check_flip(to, dtype, 0);
        if (is_complex)
            check_flip(to, dtype, 1);
    }
}

/* Moves the chunk's elements into the whole tensor; false if the extent is too short for its strides. */
static inline bool check_scatter(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct buffer *bytes,
                                 uint8_t *whole)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape), *start = catalog_vector_at(catalog, chunk->start),
                  *extent = catalog_vector_at(catalog, chunk->extent);
    int rank = tensor->rank;
    unsigned size = dtype_element_bytes(tensor->dtype);
    int64_t whole_strides[RANK_MAX], volume = box_volume(rank, extent), begin = 0, count = volume;
    strides_row_major(rank, shape, whole_strides);
    if (layout && layout->flat_count >= 0) {
        begin = layout->flat_begin;
        count = layout->flat_count;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = begin + i, at = 0, strided = 0;
        for (int axis = rank - 1; axis >= 0; axis--) {
            int64_t index = rest % extent[axis];
            rest /= extent[axis];
            at += (start[axis] + index) * whole_strides[axis];
            if (layout && layout->strides != CATALOG_NONE)
                strided += index * catalog_vector_at(catalog, layout->strides)[axis];
        }
        int64_t from = layout && layout->strides != CATALOG_NONE ? strided : i;
        if ((uint64_t)(from + 1) * size > bytes->size)
            return false;
        check_put_element(catalog, chunk, whole + (size_t)at * size, bytes->data + (size_t)from * size);
    }
    return true;
}

/* The whole tensor, row-major. */
static inline reshard_status check_tensor_bytes(struct source *source, uint32_t index, struct buffer *out, reshard_error *err)
{
    const struct catalog_tensor *tensor = &source->catalog->tensors[index];
    uint64_t bytes = catalog_tensor_bytes(source->catalog, tensor);
    uint8_t *whole = buffer_extend(out, (size_t)bytes);
    memset(whole, 0xA5, (size_t)bytes);
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &source->catalog->chunks[tensor->first_chunk + i];
        struct buffer part = { 0 };
        reshard_status status = check_chunk_bytes(source, chunk, &part, err);
        if (!status && !check_scatter(source->catalog, chunk, &part, whole))
            status = error_set(err, RESHARD_ERR_FORMAT, "chunk %u of tensor %u is too short", i, index);
        buffer_release(&part);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

static inline void check_sha256(const void *bytes, size_t size, char hex[65])
{
    struct digest *digest = digest_new(DIGEST_SHA256);
    assert_non_null(digest);
    digest_update(digest, bytes, size);
    digest_hex(digest, hex);
    digest_free(digest);
}

/* The box of one target chunk cut out of the whole tensor. */
static inline void check_gather(const struct catalog *catalog, const struct catalog_chunk *chunk, const uint8_t *whole, uint8_t *out)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape), *start = catalog_vector_at(catalog, chunk->start),
                  *extent = catalog_vector_at(catalog, chunk->extent);
    unsigned size = dtype_element_bytes(tensor->dtype);
    int64_t strides[RANK_MAX];
    strides_row_major(tensor->rank, shape, strides);
    for (int64_t i = 0; i < box_volume(tensor->rank, extent); i++) {
        int64_t rest = i, at = 0;
        for (int axis = tensor->rank - 1; axis >= 0; axis--) {
            at += (start[axis] + rest % extent[axis]) * strides[axis];
            rest /= extent[axis];
        }
        memcpy(out + (size_t)i * size, whole + (size_t)at * size, size);
    }
}

/* ---- converting ---- */

struct check_conversion {
    struct layout_request request;
    struct target target;
    struct catalog *wanted;
    uint32_t *wanted_source, *wanted_items;
};

/* Everything of the source is wanted. */
static inline reshard_status check_lay_out_as(const struct format_driver *driver, const struct option_value *options, struct source *source,
                                              const struct source *like, uint32_t ranks, int64_t max_shard_bytes,
                                              struct check_conversion *out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    *out = (struct check_conversion){ 0 };
    out->wanted = catalog_new(driver->name);
    out->wanted_source = calloc((size_t)catalog->tensor_count + 1, sizeof(uint32_t));
    out->wanted_items = calloc((size_t)catalog->item_count + 1, sizeof(uint32_t));
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        uint32_t index;
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_tensor_path(catalog, tensor, &single, &parts);
        reshard_status status = catalog_add_tensor(out->wanted, tensor->key, tensor->dtype, tensor->rank,
                                                   catalog_vector_at(catalog, tensor->shape), &index, err);
        if (!status && tensor->path != CATALOG_NONE)
            status = catalog_set_tensor_path(out->wanted, index, parts, count, err);
        if (status)
            return status;
        out->wanted->tensors[index].flags = tensor->flags;
        out->wanted_source[i] = i;
    }
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_item_path(catalog, &catalog->items[i], &single, &parts);
        reshard_status status =
            catalog_add_item(out->wanted, &catalog->items[i], parts, catalog->items[i].path == CATALOG_NONE ? 0 : count, NULL, err);
        if (status)
            return status;
        out->wanted_items[i] = i;
    }
    out->request = (struct layout_request){
        .wanted = out->wanted,
        .wanted_source = out->wanted_source,
        .wanted_items = out->wanted_items,
        .is_whole = true,
        .like = like,
        .ranks = ranks,
        .max_shard_bytes = max_shard_bytes,
        .file_name = "ckpt",
        .options = options,
        .limits = limits_default,
    };
    layout_of_source(&out->request, source);
    out->target.driver = driver;
    out->target.catalog = catalog_new(driver->name);
    reshard_status status = driver->lay_out(&out->request, &out->target, err);
    return status ? status : target_seal(&out->target, err);
}

static inline reshard_status check_lay_out(struct source *source, const struct source *like, uint32_t ranks, int64_t max_shard_bytes,
                                           struct check_conversion *out, reshard_error *err)
{
    return check_lay_out_as(&format_torch_dcp, NULL, source, like, ranks, max_shard_bytes, out, err);
}

static inline void check_conversion_release(struct check_conversion *conversion)
{
    target_free(&conversion->target);
    catalog_free(conversion->wanted);
    free(conversion->wanted_source);
    free(conversion->wanted_items);
}

/* Payloads, then publish, into a transaction. */
static inline reshard_status check_write(struct check_conversion *conversion, struct store_txn *txn, reshard_error *err)
{
    const struct catalog *catalog = conversion->target.catalog;
    struct store_object **objects = calloc((size_t)catalog->object_count + 1, sizeof(*objects));
    uint32_t *crcs = calloc((size_t)catalog->chunk_count + 1, sizeof(*crcs));
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->object_count && !status; i++) {
        char name[4097];
        snprintf(name, sizeof(name), "%.*s", STR_ARG(catalog->objects[i].name));
        status = store_txn_create(txn, name, catalog->objects[i].bytes, &objects[i], err);
    }
    for (uint32_t i = 0; i < catalog->chunk_count && !status; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        struct buffer whole = { 0 }, part = { 0 };
        status = check_tensor_bytes(conversion->request.source, conversion->wanted_source[chunk->tensor], &whole, err);
        if (!status) {
            uint8_t *bytes = buffer_extend(&part, (size_t)chunk->bytes);
            check_gather(catalog, chunk, whole.data, bytes);
            crcs[i] = crc32_zip(0, part.data, part.size);
            status = store_write_at(objects[chunk->object], chunk->offset, part.data, part.size, err);
        }
        buffer_release(&whole);
        buffer_release(&part);
    }
    struct publish_job job = { &conversion->target, conversion->request.source, objects, crcs, &conversion->request };
    if (!status)
        status = target_publish(&job, err);
    for (uint32_t i = 0; i < catalog->object_count; i++)
        store_object_close(objects[i]);
    free(objects);
    free(crcs);
    return status;
}

/* ---- fixtures ---- */

/* The folder of a family's fixtures. */
static inline const char *check_fixtures(const char *family, char out[4096])
{
    snprintf(out, 4096, "%s/%s", test_fixtures(), family);
    if (access(out, R_OK) != 0)
        fail_msg("%s: no such fixtures", out);
    return out;
}

/* Parses folder/manifest.json. */
static inline bool check_manifest(const char *folder, struct buffer *text, struct value_graph *graph)
{
    char path[8192];
    uint8_t bytes[4096];
    size_t got;
    reshard_error err = { 0 };
    snprintf(path, sizeof(path), "%s/manifest.json", folder);
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    while ((got = fread(bytes, 1, sizeof(bytes), file)) > 0)
        buffer_append(text, bytes, got);
    fclose(file);
    /* Python's JSON has infinities and NaN; what they are does not matter here. */
    for (size_t i = 0; i + 8 <= text->size; i++) {
        if (memcmp(text->data + i, "Infinity", 8) == 0)
            memcpy(text->data + i, "1.0     ", 8);
        else if (memcmp(text->data + i, ": NaN", 5) == 0)
            memcpy(text->data + i, ": 1  ", 5);
    }
    struct limits limits = limits_default;
    if (json_parse(text->data, text->size, &limits, graph, &err) == RESHARD_OK)
        return true;
    print_message("# %s: %s\n", path, err.message);
    return false;
}

#endif
