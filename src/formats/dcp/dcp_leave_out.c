/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without what begins with a prefix: its .metadata, with all else in it as it is, and the files that only what goes refers to.
 * Whatever dictionary of .metadata is about stored keys, be it one that a framework added, loses theirs.
 */
#include "formats/dcp/dcp_source.h"

#include "encoding/pickle.h"
#include "encoding/pickle_objects.h"
#include "encoding/pickle_write.h"

#include <stdlib.h>

struct leaving {
    struct source *source;
    struct str prefix;
    struct value_graph graph;
    struct name_map files, kept_files; /* that what goes, and what stays, refers to */
    struct removal *out;
    bool is_unsure; /* what stays may be in any file */
};

/* The stored key that an entry of some dictionary is about; false: none. */
static bool entry_key(const struct value *key, struct str *out)
{
    const struct value *name = key->kind == VALUE_STR ? key : pickle_object_class(key) ? pickle_object_attribute(key, "fqn") : NULL;
    return name && value_as_str(name, out);
}

/* Where a value lies, if the entry is one of storage_data. */
static reshard_status file_note(struct leaving *leaving, const struct value *info, bool goes, reshard_error *err)
{
    struct str name;
    const struct value *path = pickle_object_class(info) ? pickle_object_attribute(info, "relative_path") : NULL;
    if (!path)
        return RESHARD_OK;
    if (!value_as_str(path, &name))
        leaving->is_unsure |= !goes;
    else if (name_map_intern(goes ? &leaving->files : &leaving->kept_files, name, NULL) == NAME_NONE)
        return error_set_memory(err);
    return RESHARD_OK;
}

static void entry_count(struct leaving *leaving, const struct value *entry)
{
    const struct value *class = pickle_object_class(entry);
    if (class && str_is(class->global.name, "TensorStorageMetadata"))
        leaving->out->tensors++;
    else
        leaving->out->items++;
}

/* Takes pairs out of a dictionary; is_list: it is the one that says what there is. */
static reshard_status pairs_filter(struct leaving *leaving, struct value **pairs, size_t *count, bool is_list, reshard_error *err)
{
    size_t left = 0;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < *count && !status; i += 2) {
        struct str key;
        const bool goes = entry_key(pairs[i], &key) && str_begins(key, leaving->prefix);
        status = file_note(leaving, pairs[i + 1], goes, err);
        if (goes && is_list)
            entry_count(leaving, pairs[i + 1]);
        if (goes)
            continue;
        pairs[left] = pairs[i];
        pairs[left + 1] = pairs[i + 1];
        left += 2;
    }
    *count = left;
    return status;
}

/* A mapping is a dictionary, or an object that got its entries one by one. */
static reshard_status mapping_filter(struct leaving *leaving, struct value *value, bool is_list, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    if (!value_as_mapping(value, &pairs, &count))
        return RESHARD_OK;
    reshard_status status = pairs_filter(leaving, pairs, &count, is_list, err);
    if (value->kind == VALUE_DICT)
        value->list.count = count;
    else
        value->object->dict_count = (uint32_t)count;
    return status;
}

/* All attributes of the Metadata. */
static reshard_status attributes_filter(struct leaving *leaving, reshard_error *err)
{
    const struct value *root = leaving->graph.root;
    bool has_list = false;
    reshard_status status = RESHARD_OK;
    if (!pickle_object_class(root))
        return error_set(err, RESHARD_ERR_FORMAT, "'" DCP_METADATA "' holds no Metadata");
    for (uint32_t s = 0; s < root->object->state_count && !status; s++) {
        struct value **pairs;
        size_t count;
        if (!value_as_mapping(root->object->states[s], &pairs, &count))
            continue;
        for (size_t i = 0; i + 1 < count && !status; i += 2) {
            const bool is_list = pairs[i]->kind == VALUE_STR && str_is(pairs[i]->text, "state_dict_metadata");
            has_list |= is_list;
            status = mapping_filter(leaving, pairs[i + 1], is_list, err);
        }
    }
    if (!status && !has_list)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'" DCP_METADATA "' says what there is in a way that is not known here");
    return status;
}

/* Only files of data are removed, whatever the metadata says. */
static reshard_status files_collect(struct leaving *leaving, reshard_error *err)
{
    const struct catalog *catalog = leaving->source->catalog;
    struct removal *out = leaving->out;
    reshard_status status = RESHARD_OK;
    out->files = arena_array(&out->arena, leaving->files.count, sizeof(*out->files));
    if (!out->files)
        return error_set_memory(err);
    for (uint32_t i = 0; i < leaving->files.count && !leaving->is_unsure && !status; i++) {
        const struct str base = name_map_at(&leaving->files, i);
        char *name = NULL;
        if (name_map_find(&leaving->kept_files, base) != NAME_NONE || !str_ends_with(base, ".distcp"))
            continue;
        status = dcp_name_join(dcp_state(leaving->source)->directory, base, &name, err);
        const uint32_t object = status ? NAME_NONE : name_map_find(&catalog->object_names, str_of(name));
        if (object != NAME_NONE) {
            out->file_bytes += catalog->objects[object].bytes;
            out->files[out->file_count] = arena_copy(&out->arena, name, strlen(name));
            status = out->files[out->file_count++] ? RESHARD_OK : error_set_memory(err);
        }
        free(name);
    }
    return status;
}

/* What was written must be what a reader takes. */
static reshard_status written_check(const struct leaving *leaving, reshard_error *err)
{
    struct dcp_metadata decoded;
    const struct buffer *bytes = &leaving->out->bytes;
    reshard_status status = dcp_metadata_decode(bytes->data, bytes->size, &leaving->source->limits, DCP_DECODE_BEST, &decoded, err);
    if (status)
        error_prefix(err, "'" DCP_METADATA "' without what is to go");
    dcp_metadata_release(&decoded);
    return status;
}

static reshard_status metadata_rewrite(struct leaving *leaving, const char *name, reshard_error *err)
{
    const struct limits *limits = &leaving->source->limits;
    struct buffer pickle = { 0 };
    reshard_status status = store_read_all(leaving->source->store, name, NAMED_LIMIT(limits, metadata_bytes), &pickle, err);
    if (!status)
        status = pickle_parse(pickle.data, pickle.size, 0, limits, &leaving->graph, NULL, err);
    if (!status)
        status = attributes_filter(leaving, err);
    leaving->out->bytes.limit = limits->metadata_bytes;
    if (!status)
        status = pickle_write(leaving->graph.root, leaving->graph.count, limits->budget, NULL, NULL, &leaving->out->bytes, err);
    if (!status)
        status = written_check(leaving, err);
    if (status)
        error_object(err, "%s", name);
    value_graph_release(&leaving->graph);
    buffer_release(&pickle);
    return status;
}

reshard_status dcp_leave_out(struct source *source, struct str prefix, struct removal *out, reshard_error *err)
{
    struct leaving leaving = { .source = source, .prefix = prefix, .out = out };
    struct dcp_metadata_file *files;
    uint32_t count = 0;
    bool is_per_rank = false;
    reshard_status status = dcp_metadata_files(source, &out->arena, &files, &count, &is_per_rank, err);
    if (!status && is_per_rank) {
        error_hint(err, "convert it, which joins the metadata of its ranks");
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "every rank has a metadata file of its own");
    }
    if (!status) {
        out->name = files[0].name;
        status = metadata_rewrite(&leaving, out->name, err);
    }
    if (!status)
        status = files_collect(&leaving, err);
    name_map_release(&leaving.files);
    name_map_release(&leaving.kept_files);
    return status;
}
