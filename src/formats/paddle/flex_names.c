/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the files of a Flex Checkpoint. Upstream matches suffixes, and so takes 0_10.distcp for a file of uid 0; here names are matched
 * whole. */
#include "formats/paddle/flex.h"

#include "base/array.h"
#include "formats/source_root.h"

const char *const flex_role_folders[FLEX_ROLES] = { "", "model_state/", "optimizer_state/", "master_weight/", FLEX_EMA_NAME "/" };

/* ---- one name ---- */

static bool names_strip(struct str *name, const char *suffix)
{
    if (!str_ends_with(*name, suffix))
        return false;
    name->size -= strlen(suffix);
    return true;
}

/* <rank>_<uid> */
static bool names_pair(struct str stem, uint64_t *rank, uint64_t *uid)
{
    size_t middle;
    return str_find_char(stem, '_', &middle) && str_to_u64((struct str){ stem.data, middle }, rank) &&
           str_to_u64((struct str){ stem.data + middle + 1, stem.size - middle - 1 }, uid);
}

enum flex_file_kind flex_file_kind_of(struct str base, uint64_t *rank, uint64_t *uid)
{
    struct str stem = base;
    *rank = *uid = 0;
    if (str_is(base, FLEX_AUTO_METADATA))
        return FLEX_AUTO;
    if (names_strip(&stem, ".metadata"))
        return str_to_u64(stem, uid) ? FLEX_METADATA : FLEX_OTHER_FILE;
    if (names_strip(&stem, ".metadata.lock"))
        return str_to_u64(stem, uid) ? FLEX_LOCK : FLEX_OTHER_FILE;
    if (names_strip(&stem, ".distcp"))
        return names_pair(stem, rank, uid) ? FLEX_DISTCP : FLEX_OTHER_FILE;
    if (names_strip(&stem, ".safetensors"))
        return names_pair(stem, rank, uid) ? FLEX_SAFETENSORS : FLEX_OTHER_FILE;
    return FLEX_OTHER_FILE;
}

struct str flex_key_in(struct str name, struct str key)
{
    const size_t size = sizeof(FLEX_EMA_NAME "."), behind = sizeof(FLEX_EMA_NAME "/") - 1;
    name = str_folder(name);
    bool is_ema = str_ends_with(name, FLEX_EMA_NAME "/") && (name.size == behind || name.data[name.size - behind - 1] == '/');
    return is_ema && key.size >= size && str_starts_with(key, FLEX_EMA_NAME ".") ? (struct str){ key.data + size - 1, key.size - size + 1 }
                                                                                 : key;
}

/* ---- a folder ---- */

static void names_note_folder(struct flex_listing *out, struct str base)
{
    for (int role = FLEX_MODEL; role < FLEX_ROLES; role++) {
        const char *folder = flex_role_folders[role];
        if (base.size == strlen(folder) - 1 && memcmp(base.data, folder, base.size) == 0)
            out->has_folder[role] = true;
    }
}

reshard_status flex_list(struct store *store, struct str directory, struct arena *arena, struct flex_listing *out, reshard_error *err)
{
    struct store_entry *entries;
    size_t count, plain = directory.size ? directory.size - 1 : 0;
    *out = (struct flex_listing){ 0 };
    char *name = arena_copy(arena, directory.data, plain);
    if (!name)
        return error_set_memory(err);
    reshard_status status = store_list(store, name, arena, &entries, &count, err);
    if (status)
        return status;
    out->files = arena_array(arena, count, sizeof(*out->files));
    if (!out->files)
        return error_set_memory(err);
    for (size_t i = 0; i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        if (entries[i].is_directory) {
            names_note_folder(out, base);
            continue;
        }
        if (entries[i].leads_out)
            continue;
        struct flex_file *file = &out->files[out->count++];
        *file = (struct flex_file){ .name = entries[i].name, .bytes = entries[i].bytes };
        file->kind = flex_file_kind_of(base, &file->rank, &file->uid);
    }
    return RESHARD_OK;
}

reshard_status flex_locate(struct store *store, const char *name, struct arena *arena, struct str *directory, struct str *metadata,
                           reshard_error *err)
{
    struct str whole = str_of(name);
    uint64_t rank, uid;
    *directory = whole;
    *metadata = (struct str){ "", 0 };
    if (store_is_file(store, name)) {
        *directory = str_folder(whole);
        *metadata = str_base_name(whole);
        enum flex_file_kind kind = flex_file_kind_of(*metadata, &rank, &uid);
        if (kind != FLEX_METADATA && kind != FLEX_AUTO)
            return error_set(err, RESHARD_ERR_FORMAT, "'%s' is no folder and no <uid>.metadata", name);
        return RESHARD_OK;
    }
    const char *joined = store_join(arena, name, STR(""));
    if (!joined)
        return error_set_memory(err);
    *directory = str_of(joined);
    return RESHARD_OK;
}

/* ---- probing ---- */

/* Whether a metadata file begins like a pickle. */
static bool names_is_pickle(struct store *store, struct str name, reshard_error *err)
{
    struct store_object *object = NULL;
    uint8_t head[2] = { 0 };
    bool is_pickle = store_open_object(store, name.data, &object, err) == RESHARD_OK && store_object_size(object) >= sizeof(head) &&
                     store_read_at(object, 0, head, sizeof(head), err) == RESHARD_OK && head[0] == 0x80 && head[1] <= 5;
    store_object_close(object);
    return is_pickle;
}

/* How sure a folder's own files make us. A folder that lacks its metadata is still one of this format: reading it says so. */
static int names_score(struct store *store, const struct flex_listing *listing, reshard_error *err)
{
    bool has_data = false, has_metadata = false, has_auto = false;
    const struct flex_file *metadata = NULL;
    for (size_t i = 0; i < listing->count; i++) {
        has_data |= listing->files[i].kind == FLEX_DISTCP;
        has_auto |= listing->files[i].kind == FLEX_AUTO;
        if (listing->files[i].kind == FLEX_METADATA) {
            has_metadata = true;
            metadata = &listing->files[i];
        }
    }
    if (has_data)
        return has_metadata ? 95 : 50;
    if (has_metadata && names_is_pickle(store, metadata->name, err))
        return 92;
    return has_auto ? 70 : 0;
}

int flex_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct flex_listing listing, inner;
    struct str directory, metadata;
    int score = 0;
    if (flex_locate(store, name, &arena, &directory, &metadata, err) || flex_list(store, directory, &arena, &listing, err))
        goto out;
    score = metadata.size ? (names_is_pickle(store, str_of(name), err) ? 95 : 60) : names_score(store, &listing, err);
    for (int role = FLEX_MODEL; !score && role < FLEX_ROLES; role++) {
        const struct str folder = listing.has_folder[role] ? ARENA_JOIN(&arena, directory, str_of(flex_role_folders[role])) : STR("");
        if (folder.size && flex_list(store, folder, &arena, &inner, err) == RESHARD_OK && names_score(store, &inner, err) > 0)
            score = 92;
    }

out:
    arena_release(&arena);
    return score;
}
