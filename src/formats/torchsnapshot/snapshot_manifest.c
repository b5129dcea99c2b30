/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest: {"version", "world_size", "manifest": {"RANK/KEY/KEY": {"type", …}}}. In keys "%" is "%25" and "/" is "%2F". Containers
 * have entries of their own; a dict's says its keys, some of which may be numbers. Facts: docs/formats/torchsnapshot.md.
 */
#include "formats/torchsnapshot/snapshot_source.h"

#include "base/array.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdlib.h>

#define ENTRY_UNITS 256 /* of work: an entry that is looked at */

static reshard_status refuse_text(const struct buffer *text, reshard_status status, reshard_error *err)
{
    size_t at = 0;
    while (at < text->size && strchr(" \t\r\n", text->data[at]))
        at++;
    if (status != RESHARD_ERR_FORMAT || (at < text->size && text->data[at] == '{'))
        return status;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "it is no JSON: torchsnapshot before 0.1.0 wrote YAML");
    error_hint(err, "torchsnapshot 0.1.0 and later restore it, and write JSON");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status read_text(const struct source *source, struct snapshot_manifest *out, reshard_error *err)
{
    struct buffer text = { 0 };
    char *name = NULL;
    reshard_status status = dcp_name_join(((const struct dcp_source *)source->driver_state)->directory, STR(SNAPSHOT_METADATA), &name, err);
    if (!status)
        status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &text, err);
    if (!status) {
        status = json_parse(text.data, text.size, &source->limits, &out->graph, err);
        status = refuse_text(&text, status, err);
    }
    buffer_release(&text);
    free(name);
    return status;
}

/* ---- entries ---- */

static void note_keys(const struct value *keys, struct snapshot_path *path)
{
    struct value **items;
    size_t count;
    int64_t number;
    if (!value_as_sequence(keys, &items, &count))
        return;
    for (size_t i = 0; i < count; i++) {
        bool is_int = value_as_int(items[i], &number);
        path->has_int_keys |= is_int;
        path->has_text_keys |= !is_int;
    }
}

static reshard_status manifest_add_entry(struct snapshot_manifest *manifest, struct str name, const struct value *value, reshard_error *err)
{
    struct snapshot_entry entry = { .value = value, .next = CATALOG_NONE };
    struct str path = name, rank = str_take(&path, '/');
    uint64_t number;
    bool was_new;
    if (!str_to_u64(rank, &number) || number >= manifest->world_size)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' does not begin with a rank below the world's size, %" PRIu32, STR_ARG(name),
                         manifest->world_size);
    if (!value_as_str(value_dict_get(value, "type"), &entry.type))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has no \"type\"", STR_ARG(name));
    entry.rank = (uint32_t)number;
    uint32_t at = name_map_intern(&manifest->names, path, &was_new);
    if (at == NAME_NONE || !ARRAY_ROOM(manifest->paths, at, manifest->path_capacity) ||
        !ARRAY_ROOM(manifest->entries, manifest->entry_count, manifest->entry_capacity))
        return error_set_memory(err);
    struct snapshot_path *known = &manifest->paths[at];
    if (was_new) {
        *known = (struct snapshot_path){ .first = manifest->entry_count };
        if (snapshot_is_container(entry.type, &known->is_list) && !known->is_list)
            note_keys(value_dict_get(value, "keys"), known);
    } else {
        manifest->entries[known->last].next = manifest->entry_count;
    }
    known->last = manifest->entry_count;
    manifest->entries[manifest->entry_count++] = entry;
    return RESHARD_OK;
}

/* A container is known by an entry of its own, which may stand behind those of its members. */
static void note_children(struct snapshot_manifest *manifest)
{
    for (uint32_t i = 0; i < manifest->names.count; i++) {
        const struct str parent = str_folder(name_map_at(&manifest->names, i));
        uint32_t at = parent.size ? name_map_find(&manifest->names, (struct str){ parent.data, parent.size - 1 }) : NAME_NONE;
        if (at != NAME_NONE)
            manifest->paths[at].has_children = true;
    }
}

static reshard_status manifest_fill(const struct source *source, struct snapshot_manifest *out, reshard_error *err)
{
    const struct value *root = out->graph.root;
    struct value **pairs;
    size_t count;
    int64_t world;
    reshard_status status = RESHARD_OK;
    if (!value_as_int(value_dict_get(root, "world_size"), &world) || world < 1 || world > UINT32_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "there is no \"world_size\" of 1 or more");
    if (!value_as_mapping(value_dict_get(root, "manifest"), &pairs, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "there is no object \"manifest\"");
    out->world_size = (uint32_t)world;
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct str name;
        status = work_spend(source->limits.budget, ENTRY_UNITS, err);
        if (!status && value_as_str(pairs[i], &name))
            status = manifest_add_entry(out, name, pairs[i + 1], err);
    }
    if (!status)
        note_children(out);
    return status;
}

reshard_status snapshot_manifest_read(const struct source *source, struct snapshot_manifest *out, reshard_error *err)
{
    reshard_status status = read_text(source, out, err);
    if (!status)
        status = manifest_fill(source, out, err);
    if (status) {
        const char *directory = ((const struct dcp_source *)source->driver_state)->directory;
        error_prefix(err, "'%s" SNAPSHOT_METADATA "'", directory);
        error_object(err, "%s" SNAPSHOT_METADATA, directory);
    }
    return status;
}

void snapshot_manifest_release(struct snapshot_manifest *manifest)
{
    value_graph_release(&manifest->graph);
    name_map_release(&manifest->names);
    free(manifest->paths);
    free(manifest->entries);
    *manifest = (struct snapshot_manifest){ 0 };
}

/* ---- parts ---- */

/* All of %XX, as whoever reads it does; what is no such escape stays. */
static bool escapes_decode(struct str text, struct arena *arena, struct str *out)
{
    char *bytes = arena_copy(arena, text.data, text.size);
    size_t size = 0;
    uint64_t byte;
    if (!bytes)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        bool is_escape = text.data[i] == '%' && text.size - i > 2 && str_hex_at(text, i + 1, 2, &byte);
        bytes[size++] = is_escape ? (char)byte : text.data[i];
        i += is_escape ? 2 : 0;
    }
    *out = (struct str){ bytes, size };
    return true;
}

static bool part_is_number(struct str text, int64_t *out)
{
    bool is_negative = text.size > 1 && text.data[0] == '-';
    uint64_t number;
    if (!str_to_u64((struct str){ text.data + is_negative, text.size - is_negative }, &number) || number > INT64_MAX)
        return false;
    *out = is_negative ? -(int64_t)number : (int64_t)number;
    return true;
}

/* Whether the number is one of a dict's keys, of which some are numbers and some are texts. */
static reshard_status is_int_key(const struct snapshot_manifest *manifest, uint32_t path, int64_t number, struct work *work, bool *out,
                                 reshard_error *err)
{
    const struct value *entry = manifest->entries[manifest->paths[path].first].value;
    struct value **items;
    size_t count;
    int64_t key;
    *out = false;
    if (!value_as_sequence(value_dict_get(entry, "keys"), &items, &count))
        return RESHARD_OK;
    for (size_t i = 0; !*out && i < count; i++)
        *out = value_as_int(items[i], &key) && key == number;
    return work_spend(work, count, err);
}

reshard_status snapshot_path_parts(const struct snapshot_manifest *manifest, uint32_t path, struct arena *arena, struct work *work,
                                   struct path_part **out, size_t *count, reshard_error *err)
{
    struct str name = name_map_at(&manifest->names, path), rest = name;
    size_t slashes = 0, made = 0;
    for (size_t i = 0; i < name.size; i++)
        slashes += name.data[i] == '/';
    struct path_part *parts = arena_array(arena, slashes + 1, sizeof(*parts));
    reshard_status status = parts ? RESHARD_OK : error_set_memory(err);
    while (!status && made <= slashes) {
        size_t above = name.size - rest.size;
        struct path_part *part = &parts[made++];
        struct str text = str_take(&rest, '/');
        bool is_int = false;
        uint32_t parent = above ? name_map_find(&manifest->names, (struct str){ name.data, above - 1 }) : NAME_NONE;
        status = work_spend(work, above + text.size + 1, err); /* a deep path's prefixes are long together */
        *part = (struct path_part){ .kind = PATH_KEY };
        if (!status && !escapes_decode(text, arena, &part->key))
            status = error_set_memory(err);
        if (status || parent == NAME_NONE || !part_is_number(part->key, &part->index))
            continue;
        if (manifest->paths[parent].is_list)
            part->kind = PATH_INDEX;
        else if (!manifest->paths[parent].has_text_keys)
            is_int = manifest->paths[parent].has_int_keys;
        else if (manifest->paths[parent].has_int_keys)
            status = is_int_key(manifest, parent, part->index, work, &is_int, err);
        if (is_int)
            part->kind = PATH_INT_KEY;
    }
    *out = parts;
    *count = made;
    return status;
}
