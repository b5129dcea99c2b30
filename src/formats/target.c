/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/driver.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"

void target_free(struct target *target)
{
    if (target->driver && target->driver->close_target)
        target->driver->close_target(target);
    catalog_free(target->catalog);
    free(target->dropped);
    free(target->changed);
    *target = (struct target){ 0 };
}

static bool text_print(struct arena *arena, const char *format, va_list args, struct str *out) __attribute__((format(printf, 2, 0)));
static bool text_print(struct arena *arena, const char *format, va_list args, struct str *out)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = size < 0 ? NULL : arena_alloc(arena, (size_t)size + 1);
    if (!text)
        return false;
    vsnprintf(text, (size_t)size + 1, format, args);
    *out = (struct str){ text, (size_t)size };
    return true;
}

static reshard_status note_add(struct str **notes, uint32_t *count, uint32_t *capacity, struct str text, reshard_error *err)
{
    if (!ARRAY_ROOM(*notes, *count, *capacity))
        return error_set_memory(err);
    (*notes)[(*count)++] = text;
    return RESHARD_OK;
}

reshard_status target_note_dropped(struct target *target, reshard_error *err, const char *format, ...)
{
    struct str text;
    va_list args;
    va_start(args, format);
    bool printed = text_print(&target->catalog->arena, format, args, &text);
    va_end(args);
    return printed ? note_add(&target->dropped, &target->dropped_count, &target->dropped_capacity, text, err) : error_set_memory(err);
}

reshard_status target_note_changed(struct target *target, reshard_error *err, const char *format, ...)
{
    struct str text;
    va_list args;
    va_start(args, format);
    bool printed = text_print(&target->catalog->arena, format, args, &text);
    va_end(args);
    return printed ? note_add(&target->changed, &target->changed_count, &target->changed_capacity, text, err) : error_set_memory(err);
}

reshard_status target_add_tensors(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        uint32_t added;
        reshard_status status = catalog_add_tensor(target->catalog, tensor->key, tensor->dtype, tensor->rank,
                                                   catalog_vector_at(wanted, tensor->shape), &added, err);
        if (status)
            return status;
        struct catalog_tensor *copy = &target->catalog->tensors[added];
        copy->flags = tensor->flags;
        copy->tied_to = tensor->tied_to;
        copy->storage_group = tensor->storage_group;
    }
    return RESHARD_OK;
}
