/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the B+ tree of the newest version. Nodes name data files relative to the base of the file that they lie in themselves, and keys
 * behind what their parents say of the beginning. Keys must ascend over the whole walk, and nodes go down by one, so that no node is met
 * for ever; one may be met again under another beginning, which spends work.
 */
#include "formats/orbax/orbax_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "encoding/ocdbt.h"
#include "formats/source_root.h"

#include <inttypes.h>
#include <stdlib.h>

#define KEY_UNITS 256 /* of work: a key that is listed, beside its bytes */
#define GENERATION_DIGITS 16

/* A node that is still to be read. */
struct node_place {
    char *object; /* in the store */
    struct str base;  /* of the files that it names */
    struct str begin; /* of its keys */
    uint64_t offset, bytes;
    unsigned height;
};

struct keys_walk {
    struct source *source;
    struct buffer *inline_values;
    struct zarr_keys *keys;
    struct chain_scratch scratch;
    struct node_place *stack;
    size_t stack_count, stack_capacity;
    struct name_map objects, nodes; /* names of data files; those that were read, with the offset behind */
    uint64_t *sizes;                /* by number of an object */
    uint32_t sizes_capacity;
    struct str last; /* key */
    const char *inline_object;
};

/* ---- files ---- */

static reshard_status object_size(struct keys_walk *walk, const char *object, uint64_t *out, reshard_error *err)
{
    bool was_new, is_directory = false;
    uint32_t number = name_map_intern(&walk->objects, str_of(object), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(walk->sizes, number, walk->sizes_capacity))
        return error_set_memory(err);
    if (was_new && (!store_exists(walk->source->store, object, &is_directory, &walk->sizes[number]) || is_directory)) {
        walk->sizes[number] = 0;
        error_set(err, RESHARD_ERR_FORMAT, "'%s' is not there, and the OCDBT store has data in it", object);
        error_object(err, "%s", object);
        return RESHARD_ERR_FORMAT;
    }
    *out = walk->sizes[number];
    return RESHARD_OK;
}

/* Name in the store of a file of a node's table, and the base that it hands down. */
static reshard_status file_name(struct keys_walk *walk, struct str base, const struct ocdbt_file *file, char **out, struct str *own_base,
                                reshard_error *err)
{
    struct arena *arena = &walk->keys->arena;
    const struct str path = ARENA_JOIN(arena, base, file->path);
    if (!path.data)
        return error_set_memory(err);
    reshard_status status = store_name_check(path, err);
    if (status)
        return status;
    *out = store_join(arena, walk->source->name, path);
    *own_base = (struct str){ path.data, base.size + file->base_size };
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status check_place(struct keys_walk *walk, const char *object, uint64_t offset, uint64_t bytes, const char *what,
                                  uint64_t *object_bytes, reshard_error *err)
{
    reshard_status status = object_size(walk, object, object_bytes, err);
    if (status || range_fits(offset, bytes, *object_bytes))
        return status;
    error_set_at(err, RESHARD_ERR_FORMAT, offset, "%s of %" PRIu64 " bytes from %" PRIu64 " on lies behind the end of '%s'", what, bytes,
                 offset, object);
    error_object(err, "%s", object);
    return RESHARD_ERR_FORMAT;
}

/* ---- nodes ---- */

static reshard_status place_push(struct keys_walk *walk, const struct node_place *place, reshard_error *err)
{
    if (!ARRAY_ROOM(walk->stack, walk->stack_count, walk->stack_capacity))
        return error_set_memory(err);
    walk->stack[walk->stack_count++] = *place;
    return RESHARD_OK;
}

/* The bytes of a node. What is read the first time adds to what may be spent. */
static reshard_status node_read(struct keys_walk *walk, const struct node_place *place, struct buffer *out, reshard_error *err)
{
    const struct limits *limits = &walk->source->limits;
    struct store_object *object = NULL;
    struct buffer name = { 0 };
    uint64_t object_bytes;
    bool was_new;
    buffer_append_text(&name, place->object);
    buffer_append_u64le(&name, place->offset);
    uint32_t number = name.failed ? NAME_NONE : name_map_intern(&walk->nodes, buffer_str(&name), &was_new);
    buffer_release(&name);
    if (number == NAME_NONE)
        return error_set_memory(err);
    reshard_status status = check_place(walk, place->object, place->offset, place->bytes, "a node", &object_bytes, err);
    if (!status && place->bytes > limits->metadata_bytes)
        status = error_set_limit(err, "metadata_bytes", place->bytes, limits->metadata_bytes);
    if (!status && was_new)
        work_add_input(limits->budget, place->bytes);
    if (!status)
        status = work_spend(limits->budget, place->bytes, err);
    if (!status)
        status = store_open_object(walk->source->store, place->object, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = reader_append(&reader, place->offset, place->bytes, out, err);
    store_object_close(object);
    return status;
}

/* A key from the beginning on. */
static reshard_status key_whole(struct keys_walk *walk, struct str begin, struct str key, struct str *out, reshard_error *err)
{
    reshard_status status = work_spend(walk->source->limits.budget, KEY_UNITS + begin.size + key.size, err);
    if (status)
        return status;
    *out = ARENA_JOIN(&walk->keys->arena, begin, key);
    return out->data ? RESHARD_OK : error_set_memory(err);
}

static reshard_status key_add(struct keys_walk *walk, const struct node_place *place, const struct ocdbt_node *node,
                               const struct ocdbt_entry *found, reshard_error *err)
{
    struct zarr_entry entry = { .bytes = found->place.bytes };
    struct str base;
    char *object = NULL;
    reshard_status status = key_whole(walk, place->begin, found->key, &entry.name, err);
    if (!status && walk->last.data && str_compare(walk->last, entry.name) >= 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "keys do not ascend: '%.*s' comes behind '%.*s'", STR_ARG(entry.name),
                           STR_ARG(walk->last));
    walk->last = entry.name;
    if (status)
        return status;
    if (found->is_inline) {
        entry.object = str_of(walk->inline_object);
        entry.offset = walk->inline_values->size;
        if (!buffer_append_str(walk->inline_values, found->value))
            return buffer_error(walk->inline_values, err);
        return zarr_keys_add(walk->keys, &walk->source->limits, &entry, err);
    }
    status = file_name(walk, place->base, &node->files[found->place.file], &object, &base, err);
    if (!status)
        status = check_place(walk, object, found->place.offset, found->place.bytes, "a value", &entry.object_bytes, err);
    if (status)
        return status;
    entry.object = str_of(object);
    entry.offset = found->place.offset;
    return zarr_keys_add(walk->keys, &walk->source->limits, &entry, err);
}

static reshard_status push_child(struct keys_walk *walk, const struct node_place *place, const struct ocdbt_node *node,
                                 const struct ocdbt_entry *found, reshard_error *err)
{
    struct node_place child = { .offset = found->place.offset, .bytes = found->place.bytes, .height = node->height - 1u };
    struct str begin = { found->key.data, found->common };
    reshard_status status = key_whole(walk, place->begin, begin, &child.begin, err);
    if (!status)
        status = file_name(walk, place->base, &node->files[found->place.file], &child.object, &child.base, err);
    return status ? status : place_push(walk, &child, err);
}

static reshard_status node_take(struct keys_walk *walk, const struct node_place *place, const struct ocdbt_node *node, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (node->height != place->height)
        return error_set(err, RESHARD_ERR_FORMAT, "a node of height %u lies where one of %u should be", node->height, place->height);
    for (uint32_t i = 0; i < node->count && !status && !node->height; i++)
        status = key_add(walk, place, node, &node->entries[i], err);
    for (uint32_t i = node->count; i-- > 0 && !status && node->height;) /* the last one pushed is the next */
        status = push_child(walk, place, node, &node->entries[i], err);
    return status;
}

static reshard_status node_visit(struct keys_walk *walk, const struct node_place *place, reshard_error *err)
{
    struct arena arena = { .work = walk->source->limits.budget };
    struct buffer bytes = { 0 };
    struct ocdbt_node node;
    reshard_status status = node_read(walk, place, &bytes, err);
    if (!status) {
        status = ocdbt_node_decode(bytes.data, bytes.size, &walk->source->limits, &walk->scratch, &arena, &node, err);
        if (!status)
            status = node_take(walk, place, &node, err);
        if (status) {
            error_prefix(err, "'%s': node at %" PRIu64, place->object, place->offset);
            error_object(err, "%s", place->object);
        }
    }
    buffer_release(&bytes);
    arena_release(&arena);
    return status;
}

/* ---- the manifest ---- */

/* Of numbered manifests the one with the highest generation, in 16 hexadecimal digits: sorted it is the last. */
static reshard_status newest_manifest(struct keys_walk *walk, char **out, reshard_error *err)
{
    static const char prefix[] = "manifest.";
    struct arena *arena = &walk->keys->arena;
    struct store_entry *entries;
    size_t count;
    *out = NULL;
    reshard_status status = store_list(walk->source->store, walk->source->name, arena, &entries, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        if (!entries[i].is_directory && base.size == sizeof(prefix) - 1 + GENERATION_DIGITS && str_starts_with(base, prefix) &&
            strspn(base.data + sizeof(prefix) - 1, "0123456789abcdef") >= GENERATION_DIGITS)
            *out = arena_copy(arena, entries[i].name.data, entries[i].name.size);
    }
    if (!status && !*out)
        status = error_set(err, RESHARD_ERR_FORMAT, "the manifest is numbered, and there is no " OCDBT_MANIFEST " with a number");
    return status;
}

static reshard_status manifest_read(struct keys_walk *walk, const char *name, bool is_of_version, struct ocdbt_manifest *out,
                                    reshard_error *err)
{
    const struct limits *limits = &walk->source->limits;
    struct buffer bytes = { 0 };
    reshard_status status = store_read_all(walk->source->store, name, NAMED_LIMIT(limits, metadata_bytes), &bytes, err);
    if (!status) {
        work_add_input(limits->budget, bytes.size);
        status = ocdbt_manifest_decode(bytes.data, bytes.size, is_of_version, limits, &walk->scratch, &walk->keys->arena, out, err);
    }
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    buffer_release(&bytes);
    return status;
}

static reshard_status push_root(struct keys_walk *walk, uint64_t *generation, reshard_error *err)
{
    struct ocdbt_manifest manifest;
    struct node_place root = { 0 };
    char *name = store_join(&walk->keys->arena, walk->source->name, STR(OCDBT_MANIFEST));
    reshard_status status = name ? manifest_read(walk, name, false, &manifest, err) : error_set_memory(err);
    if (!status && manifest.is_numbered) {
        status = newest_manifest(walk, &name, err);
        if (!status)
            status = manifest_read(walk, name, true, &manifest, err);
    }
    if (status || manifest.is_empty)
        return status;
    *generation = manifest.generation;
    root.height = manifest.height;
    root.offset = manifest.root.offset;
    root.bytes = manifest.root.bytes;
    status = file_name(walk, (struct str){ 0 }, &manifest.files[manifest.root.file], &root.object, &root.base, err);
    return status ? status : place_push(walk, &root, err);
}

reshard_status orbax_keys_read(struct source *source, struct buffer *inline_values, struct zarr_keys *out, uint64_t *generation,
                               reshard_error *err)
{
    char region[STORE_REGION_NAME_MAX];
    struct keys_walk walk = { .source = source, .inline_values = inline_values, .keys = out };
    *out = (struct zarr_keys){ 0 };
    *generation = 0;
    store_region_name(0, region);
    walk.inline_object = arena_printf(&out->arena, ORBAX_INLINE "%s", region);
    reshard_status status = walk.inline_object ? push_root(&walk, generation, err) : error_set_memory(err);
    while (!status && walk.stack_count) {
        struct node_place place = walk.stack[--walk.stack_count];
        status = node_visit(&walk, &place, err);
    }
    for (uint32_t i = 0; !status && i < out->count; i++)
        if (out->entries[i].object.data == walk.inline_object)
            out->entries[i].object_bytes = inline_values->size;
    name_map_release(&walk.objects);
    name_map_release(&walk.nodes);
    chain_scratch_release(&walk.scratch);
    free(walk.sizes);
    free(walk.stack);
    return status;
}
