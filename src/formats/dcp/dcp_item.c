/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"
#include "formats/shared/torch_item.h"

#include <stdlib.h>

static reshard_status container_reader(struct dcp_archive *archive, const struct reader *file, const struct limits *limits,
                                       struct reader *out, reshard_error *err)
{
    if (archive->codec == CODEC_NONE)
        return reader_window(file, archive->offset, archive->bytes, out, err);
    if (archive->decoded.size == 0) {
        archive->decoded.limit = (size_t)limits->item_bytes;
        archive->decoded.limit_name = "item_bytes";
        reshard_status status = decode_all(archive->codec, file, archive->offset, archive->bytes, limits, &archive->decoded, err);
        if (status)
            return status;
    }
    *out = reader_over_memory(archive->decoded.data, archive->decoded.size, file->name);
    return RESHARD_OK;
}

/* A container that is no torch.save one: its bytes are the value. */
static reshard_status open_raw(const struct reader *reader, struct value_graph *graph, reshard_error *err)
{
    struct buffer bytes = { 0 };
    reshard_status status = torch_save_check_raw(reader, err);
    if (!status)
        status = reader_append(reader, 0, reader->size, &bytes, err);
    struct value *value = status ? NULL : value_new(graph, VALUE_BYTES);
    if (!status && value) {
        value->text = (struct str){ arena_copy(&graph->arena, bytes.data ? (const char *)bytes.data : "", bytes.size), bytes.size };
        if (!value->text.data)
            value = NULL;
    }
    buffer_release(&bytes);
    if (status)
        return status;
    graph->root = value;
    return value ? RESHARD_OK : error_set_memory(err);
}

static reshard_status dcp_item_open_container(struct dcp_archive *archive, const struct reader *reader, const struct limits *limits,
                                     reshard_error *err)
{
    enum torch_container container;
    reshard_status status = torch_save_probe(reader, &container, err);
    if (!status && container == TORCH_NO_CONTAINER)
        return open_raw(reader, &archive->archive.graph, err);
    return status ? status : torch_save_open(reader, limits, -1, &archive->archive, err);
}

/* The graph that the catalog gets: the archive's own, or a copy of it, without numbers of tensors. */
static reshard_status give_graph(struct source *source, struct dcp_archive *archive, bool is_copied, struct value_graph **out,
                                 reshard_error *err)
{
    struct value_graph given = { 0 }, *own = &archive->archive.graph;
    struct work *work = source->limits.budget;
    given.arena.work = work;
    if (is_copied && !(given.root = value_copy(&given, own->root, own->count))) {
        value_graph_release(&given);
        return work_error(work, err);
    }
    if (!is_copied) {
        given = *own;
        *own = (struct value_graph){ 0 };
    }
    if (!torch_item_forget_tensors(&given, work)) {
        value_graph_release(&given);
        return work_error(work, err);
    }
    *out = catalog_adopt_graph(source->catalog, given);
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status archive_open(struct source *source, const struct dcp_archive *wanted, bool is_numbered, struct dcp_archive **out,
                                   struct value_graph **out_graph, reshard_error *err)
{
    uint64_t bytes = wanted->bytes;
    struct store_object *file = NULL;
    struct reader reader, all;
    if (bytes > source->limits.item_bytes)
        return error_set_limit(err, "item_bytes", bytes, source->limits.item_bytes);
    struct dcp_archive *archive = calloc(1, sizeof(*archive));
    if (!archive)
        return error_set_memory(err);
    *archive = *wanted;
    reshard_status status = dcp_open_object(source, archive->object, &file, err);
    if (status)
        goto out;
    all = store_object_reader(file);
    status = container_reader(archive, &all, &source->limits, &reader, err);
    if (!status)
        status = dcp_item_open_container(archive, &reader, &source->limits, err);
    if (status) {
        error_shift(err, archive->codec == CODEC_NONE ? archive->offset : 0);
        goto out;
    }
    status = give_graph(source, archive, is_numbered, out_graph, err);
    if (status)
        goto out;
    archive->next = dcp_state(source)->archives;
    dcp_state(source)->archives = archive;
    *out = archive;
    archive = NULL;

out:
    store_object_close(file);
    if (archive) {
        torch_save_release(&archive->archive);
        buffer_release(&archive->decoded);
        free(archive);
    }
    return status;
}

reshard_status dcp_archive_open(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, enum codec codec,
                                struct dcp_archive **out, const struct value_graph **out_graph, reshard_error *err)
{
    const struct dcp_archive wanted = { .object = object, .offset = offset, .bytes = bytes, .codec = codec };
    struct value_graph *graph;
    reshard_status status = archive_open(source, &wanted, false, out, &graph, err);
    if (!status)
        *out_graph = graph;
    return status;
}

reshard_status dcp_archive_open_numbered(struct source *source, uint32_t object, uint64_t bytes, struct dcp_archive **out,
                                         struct value_graph **graph, reshard_error *err)
{
    const struct dcp_archive wanted = { .object = object, .bytes = bytes };
    return archive_open(source, &wanted, true, out, graph, err);
}

const struct torch_archive *dcp_numbered_archive(struct source *source, uint32_t item)
{
    const struct dcp_source *state = dcp_state(source);
    const struct dcp_archive *archive = item < state->item_count ? state->item_archive[item] : NULL;
    return archive && archive->archive.graph.root ? &archive->archive : NULL;
}

reshard_status dcp_item_set_archive(struct source *source, uint32_t item, struct dcp_archive *archive, reshard_error *err)
{
    struct dcp_source *state = dcp_state(source);
    if (item >= state->item_count) {
        uint32_t count = source->catalog->item_count > item ? source->catalog->item_count : item + 1;
        struct dcp_archive **grown = reallocarray(state->item_archive, count, sizeof(*grown));
        if (!grown)
            return error_set_memory(err);
        memset(grown + state->item_count, 0, (size_t)(count - state->item_count) * sizeof(*grown));
        state->item_archive = grown;
        state->item_count = count;
    }
    state->item_archive[item] = archive;
    /* The pickle's CRC was compared when it was read, and verify compares those of its records. */
    if (source->catalog->items[item].kind == ITEM_VALUE)
        source->catalog->items[item].is_checked = archive->archive.container == TORCH_ZIP && !archive->archive.checksums_are_off;
    return RESHARD_OK;
}

reshard_status dcp_load_item(struct source *source, uint32_t index, reshard_error *err)
{
    struct catalog_item *item = &source->catalog->items[index];
    struct dcp_archive *archive;
    const struct value_graph *graph;
    if (item->value || (item->kind != ITEM_BLOB && item->kind != ITEM_RAW))
        return RESHARD_OK;
    reshard_status status = dcp_archive_open(source, item->object, item->offset, item->bytes, item->codec, &archive, &graph, err);
    if (!status)
        status = dcp_item_set_archive(source, index, archive, err);
    if (status) {
        struct str file = source->catalog->objects[item->object].name;
        error_prefix(err, "'%.*s': item '%.*s'", STR_ARG(file), STR_ARG(item->key));
        error_object(err, "%.*s", STR_ARG(file));
        return status;
    }
    item->value = graph->root;
    item->graph = graph;
    return RESHARD_OK;
}

reshard_status dcp_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    const struct dcp_source *state = dcp_state(source);
    struct dcp_archive *archive = item < state->item_count ? state->item_archive[item] : NULL;
    struct store_object *file = NULL;
    struct reader reader, all;
    if (!archive)
        return error_set(err, RESHARD_ERR_USAGE, "item %u has no storage %u", item, storage);
    reshard_status status = dcp_open_object(source, archive->object, &file, err);
    if (status)
        return status;
    all = store_object_reader(file);
    status = container_reader(archive, &all, &source->limits, &reader, err);
    if (!status)
        status = torch_item_storage(&archive->archive, &reader, &source->limits, storage, out, err);
    store_object_close(file);
    return status;
}
