/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_memory.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"

struct memory_object {
    struct store_object base;
    struct memory_store *store;
    struct memory_data *data;
};

struct memory_store *memory_store_of(struct store *store)
{
    return (struct memory_store *)(void *)store;
}

/* ---- data and sets ---- */

struct memory_data *memory_data_new(uint64_t size)
{
    struct memory_data *data = malloc(sizeof(*data));
    uint8_t *bytes = size > SIZE_MAX / 2 ? NULL : array_zeroed((size_t)size, 1);
    if (!data || !bytes) {
        free(data);
        free(bytes);
        return NULL;
    }
    *data = (struct memory_data){ 1, size, bytes };
    return data;
}

void memory_data_unref(struct memory_data *data)
{
    if (!data || --data->refs)
        return;
    free(data->bytes);
    free(data);
}

size_t memory_set_find(const struct memory_set *set, const char *name, bool *found)
{
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(set->files[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *found = low < set->count && strcmp(set->files[low].name, name) == 0;
    return low;
}

bool memory_set_insert(struct memory_set *set, char *name, struct memory_data *data)
{
    if (!ARRAY_ROOM(set->files, set->count, set->capacity))
        return false;
    bool found;
    size_t at = memory_set_find(set, name, &found);
    memmove(set->files + at + 1, set->files + at, (set->count - at) * sizeof(*set->files));
    set->files[at] = (struct memory_file){ name, data, true };
    set->count++;
    return true;
}

void memory_set_release(struct memory_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        memory_data_unref(set->files[i].data);
        free(set->files[i].name);
    }
    free(set->files);
    *set = (struct memory_set){ 0 };
}

bool memory_name_is_in(const char *name, const char *target)
{
    size_t size = strlen(target);
    return strncmp(name, target, size) == 0 && (name[size] == '\0' || name[size] == '/');
}

void memory_partial_free(struct memory_partial *partial)
{
    if (!partial)
        return;
    memory_set_release(&partial->set);
    buffer_release(&partial->journal);
    free(partial->target);
    free(partial);
}

/* ---- objects ---- */

static void store_memory_object_close(struct store_object *object)
{
    struct memory_object *memory = (struct memory_object *)(void *)object;
    pthread_mutex_lock(&memory->store->lock);
    memory_data_unref(memory->data);
    pthread_mutex_unlock(&memory->store->lock);
    free(memory);
}

static uint8_t *bytes_of(const struct store_object *object)
{
    return ((const struct memory_object *)(const void *)object)->data->bytes;
}

static reshard_status store_memory_object_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size,
                                                  reshard_error *err)
{
    (void)err;
    memcpy(out, bytes_of(object) + offset, size);
    return RESHARD_OK;
}

static reshard_status store_memory_object_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size,
                                                   reshard_error *err)
{
    (void)err;
    memcpy(bytes_of(object) + offset, bytes, size);
    return RESHARD_OK;
}

static reshard_status store_memory_object_resize(struct store_object *object, uint64_t bytes, reshard_error *err)
{
    struct memory_data *data = ((struct memory_object *)(void *)object)->data;
    if (bytes > data->size) {
        uint8_t *grown = realloc(data->bytes, (size_t)bytes);
        if (!grown)
            return error_set_memory(err);
        memset(grown + data->size, 0, (size_t)bytes - data->size);
        data->bytes = grown;
    }
    data->size = (size_t)bytes;
    return RESHARD_OK;
}

static const void *object_map(const struct store_object *object)
{
    return bytes_of(object);
}

static const struct object_ops read_ops = { .close = store_memory_object_close, .read_at = store_memory_object_read_at, .map = object_map };
static const struct object_ops write_ops = { .close = store_memory_object_close,
                                             .read_at = store_memory_object_read_at,
                                             .write_at = store_memory_object_write_at,
                                             .resize = store_memory_object_resize,
                                             .map = object_map };

reshard_status memory_object_new(struct memory_store *store, const char *name, struct memory_data *data, bool is_writable,
                                 struct store_object **out, reshard_error *err)
{
    struct memory_object *object = malloc(sizeof(*object));
    char *own_name = strdup(name);
    if (!object || !own_name) {
        free(object);
        free(own_name);
        return error_set_memory(err);
    }
    *object = (struct memory_object){ { is_writable ? &write_ops : &read_ops, own_name, data->size }, store, data };
    data->refs++;
    *out = &object->base;
    return RESHARD_OK;
}

/* ---- store ---- */

static void memory_free(struct store *store)
{
    struct memory_store *memory = memory_store_of(store);
    while (memory->partials) {
        struct memory_partial *partial = memory->partials;
        memory->partials = partial->next;
        memory_partial_free(partial);
    }
    memory_set_release(&memory->set);
    pthread_mutex_destroy(&memory->lock);
    free(memory);
}

/* The part of a file's name that lies directly in directory, or an empty one if the file lies elsewhere. */
static struct str entry_in(const char *name, const char *directory)
{
    size_t skip = strlen(directory);
    if (skip && (strncmp(name, directory, skip) != 0 || name[skip] != '/'))
        return (struct str){ NULL, 0 };
    skip += skip > 0;
    return (struct str){ name, skip + strcspn(name + skip, "/") };
}

static bool store_memory_collect(const struct memory_set *set, const char *directory, struct arena *arena, struct store_entry *entries,
                                 size_t *count)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct memory_file *file = &set->files[i];
        struct str name = entry_in(file->name, directory), copy;
        /* The files of one directory need not stand together ("a", "a.b", "a/c"), so all names found so far are looked at. */
        bool seen = name.size == 0;
        for (size_t j = *count; !seen && j-- > 0;)
            seen = str_equal(entries[j].name, name);
        if (seen)
            continue;
        if (!arena_str(arena, name, &copy))
            return false;
        bool is_directory = file->name[name.size] == '/';
        entries[(*count)++] =
            (struct store_entry){ .name = copy, .bytes = is_directory ? 0 : file->data->size, .is_directory = is_directory };
    }
    return true;
}

static reshard_status memory_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                  size_t *count, reshard_error *err)
{
    struct memory_store *memory = memory_store_of(store);
    pthread_mutex_lock(&memory->lock);
    size_t found = 0;
    struct store_entry *array = arena_array(arena, memory->set.count, sizeof(*array));
    bool good = array && store_memory_collect(&memory->set, directory, arena, array, &found);
    pthread_mutex_unlock(&memory->lock);
    if (!good)
        return error_set_memory(err);
    if (directory[0] && found == 0)
        return store_error_missing(directory, err);
    store_entries_sort(array, found);
    *entries = array;
    *count = found;
    return RESHARD_OK;
}

static bool memory_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    struct memory_store *memory = memory_store_of(store);
    bool found, below = false;
    pthread_mutex_lock(&memory->lock);
    size_t at = memory_set_find(&memory->set, name, &found);
    uint64_t size = found ? memory->set.files[at].data->size : 0;
    for (; !found && !below && at < memory->set.count && strncmp(memory->set.files[at].name, name, strlen(name)) == 0; at++)
        below = memory_name_is_in(memory->set.files[at].name, name);
    pthread_mutex_unlock(&memory->lock);
    if (!found && !below)
        return false;
    *is_directory = below;
    *bytes = size;
    return true;
}

static reshard_status memory_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                         reshard_error *err)
{
    (void)access;
    struct memory_store *memory = memory_store_of(store);
    bool found;
    pthread_mutex_lock(&memory->lock);
    size_t at = memory_set_find(&memory->set, name, &found);
    reshard_status status =
        found ? memory_object_new(memory, name, memory->set.files[at].data, false, out, err) : store_error_missing(name, err);
    pthread_mutex_unlock(&memory->lock);
    return status;
}

static const struct store_ops memory_ops = {
    .free = memory_free,
    .list = memory_list,
    .exists = memory_exists,
    .open_object = memory_open_object,
    .txn_begin = memory_txn_begin,
};

struct store *store_new_memory(void)
{
    struct memory_store *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return NULL;
    if (pthread_mutex_init(&memory->lock, NULL) != 0) {
        free(memory);
        return NULL;
    }
    memory->base.ops = &memory_ops;
    return &memory->base;
}

static reshard_status put_locked(struct memory_store *memory, const char *name, struct memory_data *data, reshard_error *err)
{
    bool found;
    size_t at = memory_set_find(&memory->set, name, &found);
    if (found) {
        memory_data_unref(memory->set.files[at].data);
        memory->set.files[at].data = data;
        return RESHARD_OK;
    }
    char *own_name = strdup(name);
    if (own_name && memory_set_insert(&memory->set, own_name, data))
        return RESHARD_OK;
    free(own_name);
    memory_data_unref(data);
    return error_set_memory(err);
}

reshard_status store_memory_put(struct store *store, const char *name, const void *bytes, size_t size, reshard_error *err)
{
    if (store->ops != &memory_ops)
        return error_set(err, RESHARD_ERR_USAGE, "'%s' can be put into a memory store only", name);
    reshard_status status = store_name_check(str_of(name), err);
    if (status)
        return status;
    struct memory_data *data = memory_data_new(size);
    if (!data)
        return error_set_memory(err);
    if (size)
        memcpy(data->bytes, bytes, size);
    struct memory_store *memory = memory_store_of(store);
    pthread_mutex_lock(&memory->lock);
    status = put_locked(memory, name, data, err);
    pthread_mutex_unlock(&memory->lock);
    return status;
}
