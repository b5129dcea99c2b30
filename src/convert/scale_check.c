/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/scale_check.h"

#include "convert/conversion_second.h"

#include <inttypes.h>
#include <stdio.h>

#define SMALL_BITS 8 /* floats that are stored with scales have as many at most */

/* The tensor of the source with the scales of another; CATALOG_NONE: it has none. */
static reshard_status scales_find(const struct catalog *source, struct str key, uint32_t *out, reshard_error *err)
{
    static const char *const endings[] = { "_scale_inv", "_scale" };
    struct buffer name = { 0 };
    *out = CATALOG_NONE;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]) && *out == CATALOG_NONE; i++) {
        buffer_clear(&name);
        buffer_append_str(&name, key);
        if (buffer_append_text(&name, endings[i]))
            *out = catalog_find(source, buffer_str(&name));
    }
    reshard_status status = name.failed ? error_set_memory(err) : RESHARD_OK;
    buffer_release(&name);
    return status;
}

static bool is_widened(const struct catalog_tensor *source, const struct catalog_tensor *target)
{
    const struct dtype_info *from = dtype_info(source->dtype), *to = dtype_info(target->dtype);
    return from->class_ == DTYPE_CLASS_FLOAT && from->bits <= SMALL_BITS && to->bits > SMALL_BITS;
}

reshard_status scale_check(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *source = conversion_read_catalog(conversion), *target = conversion->target.catalog;
    const struct catalog_tensor *first = NULL;
    uint32_t count = 0, last = CATALOG_NONE, first_scales = CATALOG_NONE;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < conversion->recipe_count && !status; i++) {
        const struct recipe *recipe = &conversion->recipes[i];
        uint32_t scales;
        if (recipe->source_tensor == RECIPE_FILL || recipe->target_tensor == last)
            continue;
        const struct catalog_tensor *tensor = &target->tensors[recipe->target_tensor];
        if (!is_widened(&source->tensors[recipe->source_tensor], tensor))
            continue;
        status = scales_find(source, source->tensors[recipe->source_tensor].key, &scales, err);
        if (status || scales == CATALOG_NONE)
            continue;
        last = recipe->target_tensor;
        if (!count++) {
            first = tensor;
            first_scales = scales;
        }
    }
    if (status || !count)
        return status;
    char others[48] = "";
    if (count > 1)
        snprintf(others, sizeof(others), ", like %" PRIu32 " more,", count - 1);
    return note_add(&conversion->warnings, &conversion->notes, NOTE_SCALES, first->key, err,
                    "becomes %s%s with the values as they are stored: the scales beside it, '%.*s', are not applied",
                    dtype_info(first->dtype)->name, others, STR_ARG(source->tensors[first_scales].key));
}
