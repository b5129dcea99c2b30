/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/object_copy.h"

#include <inttypes.h>
#include <stdlib.h>

#define COPY_BYTES ((size_t)1 << 20)

static reshard_status copy_bytes(const struct store_object *from, struct store_object *to, reshard_error *err)
{
    uint64_t bytes = store_object_size(from);
    uint8_t *buffer = malloc(COPY_BYTES);
    if (!buffer)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (uint64_t done = 0; done < bytes && !status;) {
        size_t part = bytes - done < COPY_BYTES ? (size_t)(bytes - done) : COPY_BYTES;
        status = store_read_at(from, done, buffer, part, err);
        if (!status)
            status = store_write_at(to, done, buffer, part, err);
        done += part;
    }
    free(buffer);
    return status;
}

reshard_status object_copy(const struct publish_job *job, uint32_t object, uint32_t source_number, reshard_error *err)
{
    const struct catalog_object *source_object = &job->source->catalog->objects[source_number];
    struct store_object *from = NULL;
    struct arena arena = { 0 };
    char *name = arena_copy(&arena, source_object->name.data, source_object->name.size);
    reshard_status status = name ? store_open_object(job->source->store, name, &from, err) : error_set_memory(err);
    if (status)
        goto out;
    uint64_t bytes = store_object_size(from);
    if (bytes != source_object->bytes) {
        status = error_set(err, RESHARD_ERR_IO, "'%s' changed while it was read: %" PRIu64 " bytes, then %" PRIu64, name,
                           source_object->bytes, bytes);
        goto out;
    }
    status = copy_bytes(from, job->objects[object], err);

out:
    store_object_close(from);
    arena_release(&arena);
    return status;
}
