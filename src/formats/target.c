/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/driver.h"

void target_free(struct target *target)
{
    if (target->driver && target->driver->close_target)
        target->driver->close_target(target);
    catalog_free(target->catalog);
    note_list_release(&target->dropped);
    note_list_release(&target->changed);
    *target = (struct target){ 0 };
}

reshard_status target_note_dropped(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reshard_status status = note_add_args(&target->dropped, &target->catalog->arena, kind, key, err, format, args);
    va_end(args);
    return status;
}

reshard_status target_note_changed(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reshard_status status = note_add_args(&target->changed, &target->catalog->arena, kind, key, err, format, args);
    va_end(args);
    return status;
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
