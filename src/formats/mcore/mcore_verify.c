/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the cells of every ShardedObject are all there. */
#include "formats/mcore/mcore_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "formats/mcore/mcore_items.h"

#include <inttypes.h>
#include <stdlib.h>

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
static reshard_status mcore_verify_check_objects(struct source *source, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct name_map keys = { 0 };
    struct object_grid *grids = array_zeroed(catalog->item_count, sizeof(*grids));
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

reshard_status mcore_verify_torch_dist(struct source *source, bool deep, reshard_error *err)
{
    reshard_status status = mcore_verify_check_objects(source, err);
    return status ? status : dcp_verify(source, deep, err);
}
