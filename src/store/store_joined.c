/* SPDX-License-Identifier: Apache-2.0 */
/* Two stores read as one: names with a prefix are the second's. */
#include "store/store_parts.h"

#include <stdlib.h>

struct joined_store {
    struct store base;
    struct store *first, *second;
    char *prefix;
};

static struct joined_store *joined_of(const struct store *store)
{
    return (struct joined_store *)(uintptr_t)store;
}

/* Which of the two has the name, and what it is called there. */
static struct store *joined_find(const struct store *store, const char **name)
{
    const struct joined_store *joined = joined_of(store);
    size_t size = strlen(joined->prefix);
    if (strncmp(*name, joined->prefix, size) != 0)
        return joined->first;
    *name += size;
    return joined->second;
}

static void joined_free(struct store *store)
{
    store_links_release(store);
    free(joined_of(store)->prefix);
    free(store);
}

static const char *joined_path(const struct store *store)
{
    return store_path(joined_of(store)->first);
}

static const struct store *joined_main(const struct store *store)
{
    return joined_of(store)->first;
}

static reshard_status joined_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                  size_t *count, reshard_error *err)
{
    return store_list(joined_of(store)->first, directory, arena, entries, count, err);
}

static bool joined_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    struct store *owner = joined_find(store, &name);
    return store_exists(owner, name, is_directory, bytes);
}

static uint64_t joined_version(struct store *store, const char *name)
{
    struct store *owner = joined_find(store, &name);
    return store_version(owner, name);
}

static reshard_status joined_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                         reshard_error *err)
{
    struct store *owner = joined_find(store, &name);
    return store_open_object_as(owner, name, access, out, err);
}

static reshard_status joined_txn_begin(struct store *store, const char *name, const struct store_txn_options *options,
                                       struct store_txn **out, reshard_error *err)
{
    (void)store, (void)options, (void)out;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': nothing is written to a store of two", name);
}

static const struct store_ops joined_ops = {
    .free = joined_free,
    .path = joined_path,
    .list = joined_list,
    .exists = joined_exists,
    .version = joined_version,
    .open_object = joined_open_object,
    .main = joined_main,
    .txn_begin = joined_txn_begin,
};

struct store *store_new_joined(struct store *first, struct store *second, const char *prefix)
{
    struct joined_store *joined = calloc(1, sizeof(*joined));
    if (!joined)
        return NULL;
    joined->base.ops = &joined_ops;
    joined->first = first;
    joined->second = second;
    joined->prefix = strdup(prefix);
    if (joined->prefix && !pthread_mutex_init(&joined->base.links.lock, NULL))
        return &joined->base;
    free(joined->prefix);
    free(joined);
    return NULL;
}
