/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/fused_check.h"

#include "base/array.h"
#include "convert/conversion_second.h"
#include "mapping/map_state.h"
#include "parallel/fused_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What tensors of one name, but for numbers in it, have in common. */
struct fused_name {
    struct str first; /* key of the first of them */
    int axis;
    int64_t parts_before, parts_after;
    uint32_t count;
};

struct fused_names {
    struct name_map patterns;
    struct fused_name *names;
    uint32_t capacity;
    struct buffer pattern;
};

static bool looks_fused(struct str key)
{
    struct str name;
    return map_state_of(key, &name) == MAP_STATE_WEIGHT && fused_name_is(name);
}

/* The tensor's parts along an axis, as its first chunk tells. */
static int64_t parts_along(const struct catalog *catalog, const struct catalog_tensor *tensor, int axis)
{
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape);
    int64_t extent = catalog_vector_at(catalog, catalog->chunks[tensor->first_chunk].extent)[axis];
    return extent > 0 ? shape[axis] / extent + (shape[axis] % extent != 0) : 1;
}

/* Whether a chunk has one index of the axis: layers or experts, which are stacked, and no fused rows. */
static bool is_stacked(const struct catalog *catalog, const struct catalog_tensor *tensor, int axis)
{
    return catalog_vector_at(catalog, catalog->chunks[tensor->first_chunk].extent)[axis] == 1;
}

static bool fused_note(struct fused_names *found, struct str key, const struct fused_name *name)
{
    bool was_new;
    buffer_clear(&found->pattern);
    for (size_t i = 0; i < key.size; i++) {
        bool is_digit = key.data[i] >= '0' && key.data[i] <= '9', was_digit = i && key.data[i - 1] >= '0' && key.data[i - 1] <= '9';
        if (!is_digit || !was_digit)
            buffer_append_byte(&found->pattern, is_digit ? '#' : (uint8_t)key.data[i]);
    }
    uint32_t number = found->pattern.failed ? NAME_NONE : name_map_intern(&found->patterns, buffer_str(&found->pattern), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(found->names, number, found->capacity))
        return false;
    if (was_new)
        found->names[number] = *name;
    found->names[number].count++;
    return true;
}

/* A tensor that one recipe takes over as it is. */
static bool fused_compare(struct fused_names *found, const struct conversion *conversion, const struct recipe *recipe)
{
    const struct catalog *source = conversion_read_catalog(conversion), *target = conversion->target.catalog;
    const struct catalog_tensor *x = &source->tensors[recipe->source_tensor], *y = &target->tensors[recipe->target_tensor];
    if (!x->chunk_count || !y->chunk_count || x->rank != y->rank || !looks_fused(y->key))
        return true;
    for (int axis = 0; axis < x->rank; axis++) {
        if (is_stacked(source, x, axis) || is_stacked(target, y, axis))
            continue;
        const struct fused_name name = { y->key, axis, parts_along(source, x, axis), parts_along(target, y, axis), 0 };
        if (name.parts_before != name.parts_after)
            return fused_note(found, y->key, &name);
    }
    return true;
}

static reshard_status fused_report(struct conversion *conversion, const struct fused_name *name, reshard_error *err)
{
    char others[48] = "";
    if (name->count > 1)
        snprintf(others, sizeof(others), ", like %" PRIu32 " more of its kind,", name->count - 1);
    return note_add(&conversion->warnings, &conversion->notes, NOTE_FUSED, name->first, err,
                    "looks fused%s and goes from %" PRId64 " to %" PRId64 " parts on axis %d: where each rank holds [Q | K | V] or "
                    "[gate | up] of its own, that needs a mapping (fused_qkv_old, fused_ffn)",
                    others, name->parts_before, name->parts_after, name->axis);
}

reshard_status fused_check(struct conversion *conversion, reshard_error *err)
{
    struct fused_names found = { 0 };
    const unsigned abilities = conversion->source->source->driver->abilities | conversion->target.driver->abilities;
    const struct recipe_table *table = &conversion->selection.table;
    reshard_status status = RESHARD_OK;
    for (uint32_t t = 0; (abilities & FORMAT_CUTS_BY_RANK) && t < conversion->target.catalog->tensor_count && !status; t++) {
        if (table->first[t + 1] - table->first[t] == 1 && table->recipes[table->first[t]].is_whole &&
            !fused_compare(&found, conversion, &table->recipes[table->first[t]]))
            status = error_set_memory(err);
    }
    for (uint32_t i = 0; i < found.patterns.count && !status; i++)
        status = fused_report(conversion, &found.names[i], err);
    name_map_release(&found.patterns);
    buffer_release(&found.pattern);
    free(found.names);
    return status;
}
