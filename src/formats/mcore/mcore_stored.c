/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_stored.h"

#include "formats/mcore/mcore_transpose.h"

#include <stdlib.h>

#include "base/array.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"

/* ---- objects ---- */

/* Only what the archive says about its tensors is read; chunks will say where they are. */
static reshard_status open_archive(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, struct torch_archive *out,
                                   reshard_error *err)
{
    struct store_object *file = NULL;
    struct reader all, window;
    reshard_status status = dcp_open_object(source, object, &file, err);
    if (status)
        return status;
    all = store_object_reader(file);
    status = reader_window(&all, offset, bytes, &window, err);
    if (!status)
        status = torch_save_open(&window, &source->limits, -1, out, err);
    if (status)
        error_shift(err, offset);
    store_object_close(file);
    return status;
}

static reshard_status mcore_stored_take_object(struct source *source, struct mcore_stored *stored, struct str key, uint32_t object,
                                               uint64_t offset, uint64_t bytes, reshard_error *err)
{
    if (!ARRAY_ROOM(stored->objects, stored->count, stored->capacity))
        return error_set_memory(err);
    struct optimizer_object taken = { .object = object, .offset = offset };
    struct torch_archive *archive = calloc(1, sizeof(*archive));
    if (!archive || !arena_str(&source->catalog->arena, key, &taken.name)) {
        free(archive);
        return error_set_memory(err);
    }
    reshard_status status = open_archive(source, object, offset, bytes, archive, err);
    if (status) {
        torch_save_release(archive);
        free(archive);
        return status;
    }
    taken.archive = archive;
    stored->objects[stored->count++] = taken;
    return RESHARD_OK;
}

reshard_status mcore_stored_take(struct source *source, struct mcore_stored *stored, struct str key, uint32_t object, uint64_t offset,
                                uint64_t bytes, enum codec codec, bool *taken, reshard_error *err)
{
    bool is_state = state_key_is(key, STATE_KEY_BUFFERS), has_sizes = state_key_is(key, STATE_KEY_UNPADDED_SIZES);
    *taken = source->is_by_parameter && (is_state || has_sizes || state_key_is(key, STATE_KEY_BUCKET_SIZES));
    source->has_other_view |= is_state && !*taken;
    if (!*taken || !(is_state || has_sizes))
        return RESHARD_OK;
    if (codec != CODEC_NONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "optimizer state in a compressed object");
    return mcore_stored_take_object(source, stored, key, object, offset, bytes, err);
}

void mcore_stored_release(struct mcore_stored *stored)
{
    for (uint32_t i = 0; i < stored->count; i++) {
        torch_save_release(stored->objects[i].archive);
        free(stored->objects[i].archive);
    }
    free(stored->objects);
}

/* ---- tensors ---- */

const struct value *mcore_item_value(const struct catalog *catalog, const char *key)
{
    uint32_t item = catalog_find_item(catalog, str_of(key));
    return item == CATALOG_NONE ? NULL : catalog->items[item].value;
}

/* Names of fully_reshardable. */
static reshard_status rename_states(struct catalog *catalog, bool is_flattened, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str key = catalog->tensors[i].key;
        if (!state_key_is(key, STATE_KEY_BUCKET) && !optimizer_state_key(&catalog->arena, key, is_flattened, &catalog->tensors[i].key))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static bool has_buckets(const struct catalog *catalog)
{
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !found; i++)
        found = state_key_is(catalog->tensors[i].key, STATE_KEY_BUCKET);
    return found;
}

reshard_status mcore_stored_read(struct source *source, const struct mcore_stored *stored, bool is_flattened, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct value *args = mcore_item_value(catalog, "args"), *content = mcore_item_value(catalog, "content_metadata");
    const struct value *kind = content && content->kind == VALUE_DICT ? value_dict_get(content, "distrib_optim_sharding_type") : NULL;
    struct str name;
    if (source->is_by_parameter) {
        reshard_status status = rename_states(catalog, is_flattened, err);
        if (!status && is_flattened)
            status = mcore_transpose_states(catalog, args, err);
        return status ? status : optimizer_dist_relate(catalog, args, stored->objects, stored->count, err);
    }
    source->has_other_view = source->has_other_view || is_flattened || has_buckets(catalog);
    if (args && kind && value_as_str(kind, &name) && str_is(name, "fully_reshardable"))
        return optimizer_dist_check(catalog, args, err);
    return RESHARD_OK;
}
