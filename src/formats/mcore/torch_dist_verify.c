/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.json: {"algorithm": "sha256", "files": {NAME: hex, …}} of the regular files in the directory; and whether the cells of every
 * ShardedObject are all there. */
#include "formats/dcp/dcp_read.h"

#include "base/checked.h"
#include "base/digest.h"
#include "encoding/json.h"
#include "formats/shared/checked_ranges.h"
#include "formats/mcore/mcore_items.h"

#include <inttypes.h>
#include <stdlib.h>

#define PASS_BYTES (256 * 1024)

static reshard_status hash_object(const struct store_object *object, uint8_t *pass, char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    struct digest *digest = digest_new(DIGEST_SHA256);
    if (!digest)
        return error_set_memory(err);
    uint64_t size = store_object_size(object);
    reshard_status status = RESHARD_OK;
    for (uint64_t offset = 0; offset < size && !status; offset += PASS_BYTES) {
        size_t step = size - offset < PASS_BYTES ? (size_t)(size - offset) : PASS_BYTES;
        status = store_read_at(object, offset, pass, step, err);
        if (!status)
            digest_update(digest, pass, step);
    }
    if (!status)
        digest_hex(digest, hex);
    digest_free(digest);
    return status;
}

static reshard_status check_file(struct source *source, struct str base, struct str wanted, uint8_t *pass, struct checked_ranges *checked,
                                 reshard_error *err)
{
    char hex[DIGEST_HEX_MAX];
    char *name = NULL;
    bool is_directory;
    uint64_t bytes;
    struct store_object *object = NULL;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, base, &name, err);
    if (status)
        return status;
    if (!store_exists(source->store, name, &is_directory, &bytes) || is_directory) {
        catalog_warn(source->catalog, true, "'integrity.json' lists '%.*s', which does not exist", STR_ARG(base));
        goto out;
    }
    status = store_open_object(source->store, name, &object, err);
    if (!status)
        status = hash_object(object, pass, hex, err);
    uint32_t index = name_map_find(&source->catalog->object_names, str_of(name));
    if (!status && index != NAME_NONE && !checked_ranges_add(checked, index, 0, bytes))
        status = error_set_memory(err);
    if (!status && str_is(base, ".metadata"))
        source->catalog->names_are_checked = true;
    if (!status && !str_is(wanted, hex))
        catalog_warn(source->catalog, true, "'%.*s': its sha256 is %s, 'integrity.json' says %.*s", STR_ARG(base), hex, STR_ARG(wanted));

out:
    store_object_close(object);
    free(name);
    return status;
}

static reshard_status check_all(struct source *source, const struct value *root, reshard_error *err)
{
    const struct value *algorithm = root->kind == VALUE_DICT ? value_dict_get(root, "algorithm") : NULL;
    const struct value *files = root->kind == VALUE_DICT ? value_dict_get(root, "files") : NULL;
    struct str text, base, hex;
    if (!algorithm || !value_as_str(algorithm, &text) || !files || files->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "'integrity.json': no 'algorithm' and 'files'");
    if (!str_is(text, "sha256"))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'integrity.json': algorithm '%.*s', expected 'sha256'", STR_ARG(text));
    uint8_t *pass = malloc(PASS_BYTES);
    struct checked_ranges checked = { 0 };
    reshard_status status = pass ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < files->list.count && !status; i += 2) {
        if (!value_as_str(files->list.items[i], &base) || !value_as_str(files->list.items[i + 1], &hex))
            status = error_set(err, RESHARD_ERR_FORMAT, "'integrity.json': an entry of 'files' is no pair of strings");
        else
            status = check_file(source, base, hex, pass, &checked, err);
    }
    if (!status)
        checked_ranges_mark(&checked, source->catalog);
    checked_ranges_release(&checked);
    free(pass);
    return status;
}

reshard_status dcp_verify_integrity(struct source *source, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    char *name = NULL;
    bool is_directory;
    uint64_t size;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, STR("integrity.json"), &name, err);
    if (status)
        return status;
    if (!store_exists(source->store, name, &is_directory, &size) || is_directory)
        goto out;
    status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &bytes, err);
    if (!status)
        status = json_parse(bytes.data, bytes.size, &source->limits, &graph, err);
    if (!status)
        status = check_all(source, graph.root, err);

out:
    value_graph_release(&graph);
    buffer_release(&bytes);
    free(name);
    return status;
}

/* ---- ShardedObjects ---- */

/* The objects of one key: the extents that the first one says, and how many there are. */
struct object_grid {
    struct str shape; /* "2.4" */
    uint64_t volume, count;
};

/* Product of the numbers between dots; false if it overflows. */
static bool shape_product(struct str shape, uint64_t *out)
{
    *out = 1;
    while (shape.size) {
        struct str number = shape;
        size_t dot;
        uint64_t extent;
        if (str_find_char(shape, '.', &dot))
            number.size = dot;
        shape = (struct str){ shape.data + number.size, shape.size - number.size };
        if (shape.size)
            shape = (struct str){ shape.data + 1, shape.size - 1 };
        if (!str_to_u64(number, &extent) || !checked_mul_u64(*out, extent, out))
            return false;
    }
    return true;
}

/* Behind the last '_' of the name. */
static struct str shape_of(struct str name)
{
    size_t start = name.size;
    while (start > 0 && name.data[start - 1] != '_')
        start--;
    return (struct str){ name.data + start, name.size - start };
}

static void count_object(struct catalog *catalog, struct object_grid *grid, bool was_new, struct str name)
{
    struct str shape = shape_of(name);
    if (was_new) {
        *grid = (struct object_grid){ .shape = shape };
        if (!shape_product(shape, &grid->volume))
            catalog_warn(catalog, true, "ShardedObject '%.*s': its extents are no numbers that can be multiplied", STR_ARG(name));
    } else if (!str_equal(grid->shape, shape)) {
        catalog_warn(catalog, true, "ShardedObject '%.*s': another of its key says the extents are %.*s", STR_ARG(name),
                     STR_ARG(grid->shape));
    }
    grid->count++;
}

/* Names are unique, so that as many as there are cells are all of them. */
static reshard_status check_objects(struct source *source, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct name_map keys = { 0 };
    struct object_grid *grids = calloc((size_t)catalog->item_count + 1, sizeof(*grids));
    reshard_status status = grids ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        struct str key;
        bool was_new;
        if (catalog->items[i].kind != ITEM_BLOB || !mcore_object_key(catalog->items[i].key, &key))
            continue;
        uint32_t index = name_map_intern(&keys, key, &was_new);
        if (index == NAME_NONE)
            status = error_set_memory(err);
        else
            count_object(catalog, &grids[index], was_new, catalog->items[i].key);
    }
    for (uint32_t i = 0; i < keys.count && !status; i++) {
        if (grids[i].count != grids[i].volume)
            catalog_warn(catalog, true, "ShardedObject '%.*s': %" PRIu64 " of its %" PRIu64 " cells are there",
                         STR_ARG(name_map_at(&keys, i)), grids[i].count, grids[i].volume);
    }
    name_map_release(&keys);
    free(grids);
    return status;
}

reshard_status torch_dist_verify(struct source *source, bool deep, reshard_error *err)
{
    reshard_status status = check_objects(source, err);
    return status ? status : dcp_verify(source, deep, err);
}
