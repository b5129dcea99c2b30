/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a sidecar: what stands in it, and where it is put. */
#include "convert/sidecar_parts.h"

#include "base/array.h"
#include "convert/tensor_digests.h"

#include <stdlib.h>

#define HEAD_BYTES 256 /* the schema is the first member */

/* ---- the text ---- */

static void put_member(struct buffer *json, bool is_first, struct str name, const char *text)
{
    buffer_append_text(json, is_first ? "\n    " : ",\n    ");
    buffer_append_json_string(json, name);
    buffer_printf(json, ": \"%s\"", text);
}

static reshard_status put_tensors(struct checkpoint *written, enum digest_kind kind, const struct engine_options *options,
                                  struct buffer *json, reshard_error *err)
{
    const struct catalog *catalog = written->source->catalog;
    struct sidecar_names names = { 0 };
    struct buffer type = { 0 };
    char(*hex)[DIGEST_HEX_MAX] = array_zeroed(catalog->tensor_count, sizeof(*hex));
    reshard_status status =
        hex ? tensor_digests(written, kind, written->listed, written->listed_count, NULL, options, hex, err) : error_set_memory(err);
    if (!status)
        status = sidecar_names_of_tensors(written, &names, err);
    if (!status) {
        buffer_append_text(json, "  \"tensors\": {");
        for (uint32_t i = 0; i < names.map.count; i++)
            put_member(json, i == 0, name_map_at(&names.map, i), hex[names.indices[i]]);
        buffer_append_text(json, "\n  },\n  \"types\": {");
        for (uint32_t i = 0; i < names.map.count && !type.failed; i++) {
            buffer_clear(&type);
            sidecar_put_type(catalog, names.indices[i], &type);
            if (buffer_append_byte(&type, 0))
                put_member(json, i == 0, name_map_at(&names.map, i), (const char *)type.data);
        }
        buffer_append_text(json, "\n  }");
    }
    if (!status && (type.failed || json->failed))
        status = error_set_memory(err);
    buffer_release(&type);
    sidecar_names_release(&names);
    free(hex);
    return status;
}

static reshard_status put_items(struct checkpoint *written, enum digest_kind kind, struct buffer *json, reshard_error *err)
{
    struct sidecar_names names = { 0 };
    struct item_digests digests = { 0 };
    char digest[ITEM_DIGEST_MAX];
    reshard_status status = sidecar_names_of_items(written, &names, err);
    if (!status)
        status = item_digests_begin(written->source, kind, &digests, err);
    buffer_append_text(json, "  \"items\": {");
    for (uint32_t i = 0; i < names.map.count && !status; i++) {
        status = item_digest(&digests, names.indices[i], digest, err);
        if (!status)
            put_member(json, i == 0, name_map_at(&names.map, i), digest);
    }
    buffer_append_text(json, "\n  }");
    item_digests_end(&digests);
    sidecar_names_release(&names);
    return !status && json->failed ? error_set_memory(err) : status;
}

static reshard_status digest_of_sidecar(const char *name, enum digest_kind *out, reshard_error *err)
{
    if (digest_from_name(str_of(name), out) && *out != DIGEST_MD5)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE, "unknown checksum '%s': crc32c, sha256 or xxh3", name);
}

reshard_status sidecar_digest_check(const char *name, reshard_error *err)
{
    enum digest_kind kind;
    return digest_of_sidecar(name, &kind, err);
}

reshard_status sidecar_make(struct checkpoint *written, const char *digest, const struct engine_options *options, struct buffer *json,
                            char **name, reshard_error *err)
{
    enum digest_kind kind;
    reshard_status status = digest_of_sidecar(digest, &kind, err);
    if (status)
        return status;
    buffer_printf(json, "{\n  \"schema\": \"" SIDECAR_SCHEMA "\",\n  \"digest\": \"%s\",\n", digest_name(kind));
    status = put_tensors(written, kind, options, json, err);
    buffer_append_text(json, ",\n");
    if (!status)
        status = put_items(written, kind, json, err);
    buffer_append_text(json, "\n}\n");
    if (!status && !(*name = sidecar_name(written->source)))
        status = error_set_memory(err);
    return status;
}

/* ---- the place ---- */

/* Whether the file that was named is the checkpoint, and not the index or metadata file of a folder. */
static bool is_file_alone(const struct source *source)
{
    const struct catalog *catalog = source->catalog;
    for (uint32_t i = 0; i < catalog->object_count; i++) {
        if (!str_is(catalog->objects[i].name, source->name))
            return false;
    }
    return true;
}

char *sidecar_name(const struct source *source)
{
    const char *name = source->name ? source->name : "";
    struct str place = str_of(name);
    bool is_directory = true;
    uint64_t bytes;
    struct buffer out = { 0 };
    if (place.size)
        store_exists(source->store, name, &is_directory, &bytes);
    bool is_beside = !is_directory && is_file_alone(source);
    if (!is_directory && !is_beside)
        place = str_without_slashes(str_folder(place));
    if (place.size) {
        buffer_append_str(&out, place);
        buffer_append_byte(&out, is_beside ? '.' : '/');
    }
    buffer_append_text(&out, SIDECAR_NAME);
    buffer_append_byte(&out, 0);
    if (out.failed)
        buffer_release(&out);
    return (char *)out.data;
}

static reshard_status write_whole(struct store_txn *txn, const char *name, const struct buffer *json, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_txn_create(txn, name, json->size, &object, err);
    if (!status)
        status = store_write_at(object, 0, json->data, json->size, err);
    store_object_close(object);
    return status;
}

reshard_status sidecar_add(struct store_txn *txn, const char *name, const struct buffer *json, reshard_error *err)
{
    return write_whole(txn, name, json, err);
}

/* ---- beside a file ---- */

static char *path_beside(const char *target_path)
{
    struct buffer path = { 0 };
    if (!buffer_printf(&path, "%s." SIDECAR_NAME, target_path) || !buffer_append_byte(&path, 0))
        buffer_release(&path);
    return (char *)path.data;
}

/* Whether the file says at its start that it is a sidecar, of whatever version. */
static bool is_sidecar(const char *path)
{
    struct store *store = NULL;
    struct store_object *file = NULL;
    char *name = NULL;
    char head[HEAD_BYTES];
    bool found = false;
    if (store_path_look(path) == STORE_PATH_FILE && store_open_path(path, 0, &store, &name, NULL) == RESHARD_OK &&
        store_open_object(store, name, &file, NULL) == RESHARD_OK) {
        uint64_t size = store_object_size(file);
        size_t taken = size < sizeof(head) ? (size_t)size : sizeof(head);
        found = store_read_at(file, 0, head, taken, NULL) == RESHARD_OK &&
                memmem(head, taken, SIDECAR_SCHEMA_STEM, sizeof(SIDECAR_SCHEMA_STEM) - 1);
    }
    store_object_close(file);
    store_free(store);
    free(name);
    return found;
}

reshard_status sidecar_check_beside(const char *target_path, bool is_directory, bool overwrite, reshard_error *err)
{
    char *path = path_beside(target_path);
    reshard_status status = path ? RESHARD_OK : error_set_memory(err);
    enum store_path_kind found = !path || is_directory ? STORE_PATH_NOTHING : store_path_look(path);
    if (found == STORE_PATH_NOTHING)
        goto out;
    if (found == STORE_PATH_UNKNOWN) {
        status = error_set_errno(err, "cannot look at '%s'", path);
    } else if (!is_sidecar(path)) {
        status = error_set(err, RESHARD_ERR_USAGE, "'%s' is in the way: digests of the target have that name, and it holds something else",
                           path);
        error_hint(err, "move it away, or give the target another name");
    } else if (!overwrite) {
        status = error_set(err, RESHARD_ERR_IO, "cannot write '%s': it has digests already, '%s'", target_path, path);
        error_hint(err, "reshard_convert_options.overwrite replaces both");
    }
    if (status)
        error_object(err, "%s", path);

out:
    free(path);
    return status;
}

static reshard_status write_file(const char *path, const struct buffer *json, bool no_sync, reshard_error *err)
{
    struct store_txn *txn = NULL;
    struct store_txn_options options = { .overwrite = true, .no_sync = no_sync };
    reshard_status status = store_txn_begin(path, &options, &txn, err);
    if (!status)
        status = write_whole(txn, "", json, err);
    if (!status)
        return store_txn_commit(txn, err);
    store_txn_abort(txn, false);
    return status;
}

reshard_status sidecar_renew_beside(const char *target_path, bool is_directory, const struct buffer *json, bool no_sync, reshard_error *err)
{
    char *path = path_beside(target_path);
    reshard_status status = path ? RESHARD_OK : error_set_memory(err);
    if (!status && json->size && !is_directory)
        status = write_file(path, json, no_sync, err);
    else if (!status && is_sidecar(path))
        status = store_path_remove(path, no_sync, err);
    free(path);
    return status;
}
