/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_origin.h"

#include "base/array.h"

#include <assert.h>
#include <stdlib.h>

/* Open source objects kept at most. Many more may be in use at once by jobs that read mapped ones. */
#define OPEN_MAX 128

unsigned engine_access(enum engine_io io)
{
    return io == ENGINE_IO_DIRECT ? STORE_DIRECT : io == ENGINE_IO_MMAP ? STORE_MMAP : 0;
}

reshard_status origins_init(struct origins *origins, const struct engine_source *source, enum engine_io io, reshard_error *err)
{
    *origins = (struct origins){ .source = source, .access = engine_access(io), .use_maps = io == ENGINE_IO_AUTO || io == ENGINE_IO_MMAP };
    if (pthread_mutex_init(&origins->lock, NULL))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    uint32_t count = source->catalog->object_count;
    origins->slots = array_zeroed(count, sizeof(*origins->slots));
    origins->open = array_zeroed(count, sizeof(*origins->open));
    origins->open_capacity = count;
    if (origins->slots && origins->open)
        return RESHARD_OK;
    origins_release(origins);
    return error_set_memory(err);
}

void origins_release(struct origins *origins)
{
    if (!origins->source)
        return;
    for (uint32_t i = 0; i < origins->open_count; i++) {
        struct origin_slot *slot = &origins->slots[origins->open[i]];
        assert(!slot->users); /* who took it has given it back, also after errors: else it would never make room */
        store_object_close(slot->object);
    }
    free(origins->slots);
    free(origins->open);
    pthread_mutex_destroy(&origins->lock);
    *origins = (struct origins){ 0 };
}

reshard_status engine_files_new(const struct engine_source *source, struct engine_files **out, reshard_error *err)
{
    struct engine_files *files = calloc(1, sizeof(*files));
    *out = NULL;
    if (!files)
        return error_set_memory(err);
    files->source = *source;
    reshard_status status = origins_init(&files->origins, &files->source, ENGINE_IO_AUTO, err);
    if (status)
        free(files);
    else
        *out = files;
    return status;
}

void engine_files_free(struct engine_files *files)
{
    if (files)
        origins_release(&files->origins);
    free(files);
}

/* Closes one object that nobody uses, the first that a walking hand meets. */
static void origins_make_room(struct origins *origins)
{
    for (uint32_t tries = 0; tries < origins->open_count; tries++) {
        origins->hand = origins->hand + 1 < origins->open_count ? origins->hand + 1 : 0;
        struct origin_slot *slot = &origins->slots[origins->open[origins->hand]];
        if (slot->users)
            continue;
        store_object_close(slot->object);
        slot->object = NULL;
        origins->open[origins->hand] = origins->open[--origins->open_count];
        return;
    }
}

static reshard_status origin_open(struct origins *origins, uint32_t number, reshard_error *err)
{
    struct str name = origins->source->catalog->objects[number].name;
    char *path = malloc(name.size + 1);
    if (!path)
        return error_set_memory(err);
    if (name.size)
        memcpy(path, name.data, name.size);
    path[name.size] = 0;
    if (origins->open_count >= OPEN_MAX)
        origins_make_room(origins);
    reshard_status status = store_open_object_as(origins->source->store, path, origins->access, &origins->slots[number].object, err);
    if (!status)
        origins->open[origins->open_count++] = number;
    free(path);
    return status;
}

reshard_status origin_take(struct origins *origins, uint32_t number, struct store_object **out, reshard_error *err)
{
    struct origin_slot *slot = &origins->slots[number];
    pthread_mutex_lock(&origins->lock);
    reshard_status status = slot->object ? RESHARD_OK : origin_open(origins, number, err);
    if (!status) {
        slot->users++;
        *out = slot->object;
    }
    pthread_mutex_unlock(&origins->lock);
    return status;
}

void origin_give(struct origins *origins, uint32_t number)
{
    pthread_mutex_lock(&origins->lock);
    origins->slots[number].users--;
    pthread_mutex_unlock(&origins->lock);
}
