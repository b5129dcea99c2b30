/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/integrity_file.h"

#include "encoding/json.h"
#include "formats/shared/checked_ranges.h"

#include <stdlib.h>

#define PASS_BYTES (256 * 1024)

struct integrity_hasher {
    struct digest *digest;
    uint8_t *pass;
};

struct integrity_hasher *integrity_hasher_new(void)
{
    struct integrity_hasher *hasher = calloc(1, sizeof(*hasher));
    if (!hasher)
        return NULL;
    hasher->digest = digest_new(DIGEST_SHA256);
    hasher->pass = malloc(PASS_BYTES);
    if (hasher->digest && hasher->pass)
        return hasher;
    integrity_hasher_free(hasher);
    return NULL;
}

void integrity_hasher_free(struct integrity_hasher *hasher)
{
    if (!hasher)
        return;
    digest_free(hasher->digest);
    free(hasher->pass);
    free(hasher);
}

reshard_status integrity_hash(struct integrity_hasher *hasher, const struct store_object *object, char hex[DIGEST_HEX_MAX],
                              reshard_error *err)
{
    uint64_t size = store_object_size(object);
    digest_reset(hasher->digest);
    for (uint64_t offset = 0; offset < size; offset += PASS_BYTES) {
        size_t step = size - offset < PASS_BYTES ? (size_t)(size - offset) : PASS_BYTES;
        reshard_status status = store_read_at(object, offset, hasher->pass, step, err);
        if (status)
            return status;
        digest_update(hasher->digest, hasher->pass, step);
    }
    digest_hex(hasher->digest, hex);
    return RESHARD_OK;
}

/* One check of a checkpoint. */
struct integrity_check {
    struct source *source;
    const char *directory;
    struct arena arena;
    struct integrity_hasher *hasher;
    struct checked_ranges checked;
};

/* The name in the store of a file beside integrity.json. */
static reshard_status integrity_path(struct integrity_check *check, struct str base, const char **out, reshard_error *err)
{
    reshard_status status = store_name_check(base, err);
    if (status)
        return status;
    *out = ARENA_JOIN(&check->arena, str_of(check->directory), base).data;
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status check_listed_file(struct integrity_check *check, struct str base, struct str wanted, reshard_error *err)
{
    char hex[DIGEST_HEX_MAX];
    const char *name = NULL;
    struct catalog *catalog = check->source->catalog;
    struct store_object *object = NULL;
    reshard_status status = integrity_path(check, base, &name, err);
    if (status)
        return status;
    if (!store_is_file(check->source->store, name)) {
        catalog_warn(catalog, true, "'" INTEGRITY_FILE "' lists '%.*s', which does not exist", STR_ARG(base));
        return RESHARD_OK;
    }
    status = store_open_object(check->source->store, name, &object, err);
    if (!status)
        status = integrity_hash(check->hasher, object, hex, err);
    uint32_t index = name_map_find(&catalog->object_names, str_of(name));
    if (!status && index != NAME_NONE && !checked_ranges_add(&check->checked, index, 0, store_object_size(object)))
        status = error_set_memory(err);
    if (!status && str_is(base, ".metadata"))
        catalog->names_are_checked = true;
    if (!status && !str_is(wanted, hex))
        catalog_warn(catalog, true, "'%.*s': its sha256 is %s, '" INTEGRITY_FILE "' says %.*s", STR_ARG(base), hex, STR_ARG(wanted));
    store_object_close(object);
    return status;
}

static reshard_status check_listed_files(struct integrity_check *check, const struct value *root, reshard_error *err)
{
    const struct value *algorithm = root->kind == VALUE_DICT ? value_dict_get(root, "algorithm") : NULL;
    const struct value *files = root->kind == VALUE_DICT ? value_dict_get(root, "files") : NULL;
    struct str text, base, hex;
    if (!algorithm || !value_as_str(algorithm, &text) || !files || files->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "'" INTEGRITY_FILE "': no 'algorithm' and 'files'");
    if (!str_is(text, "sha256"))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'" INTEGRITY_FILE "': algorithm '%.*s', expected 'sha256'", STR_ARG(text));
    check->hasher = integrity_hasher_new();
    reshard_status status = check->hasher ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < files->list.count && !status; i += 2) {
        if (!value_as_str(files->list.items[i], &base) || !value_as_str(files->list.items[i + 1], &hex))
            status = error_set(err, RESHARD_ERR_FORMAT, "'" INTEGRITY_FILE "': an entry of 'files' is no pair of strings");
        else
            status = check_listed_file(check, base, hex, err);
    }
    if (!status)
        checked_ranges_mark(&check->checked, check->source->catalog);
    return status;
}

reshard_status integrity_verify(struct source *source, const char *directory, reshard_error *err)
{
    struct integrity_check check = { .source = source, .directory = directory };
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    const char *name = NULL;
    reshard_status status = integrity_path(&check, STR(INTEGRITY_FILE), &name, err);
    if (!status && store_is_file(source->store, name)) {
        status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &bytes, err);
        if (!status)
            status = json_parse(bytes.data, bytes.size, &source->limits, &graph, err);
        if (!status)
            status = check_listed_files(&check, graph.root, err);
    }
    checked_ranges_release(&check.checked);
    integrity_hasher_free(check.hasher);
    arena_release(&check.arena);
    value_graph_release(&graph);
    buffer_release(&bytes);
    return status;
}

/* ---- without files that go ---- */

/* Whether a file beside the metadata goes. */
static bool integrity_goes(const struct removal *removal, size_t folder, struct str base)
{
    for (size_t i = 0; i < removal->file_count; i++)
        if (str_is(base, removal->files[i] + folder))
            return true;
    return false;
}

static void integrity_put(struct buffer *out, bool is_first, struct str base, struct str hex)
{
    buffer_append_text(out, is_first ? "\n    " : ",\n    ");
    buffer_append_json_string(out, base);
    buffer_append_text(out, ": ");
    buffer_append_json_string(out, hex);
}

/* As json.dumps with an indent of 2: the metadata has another digest, and files that go are not listed. */
static reshard_status integrity_rewrite(const struct value *root, const struct removal *removal, size_t folder, struct buffer *out,
                                        reshard_error *err)
{
    const struct value *files = root->kind == VALUE_DICT ? value_dict_get(root, "files") : NULL;
    struct digest *digest = digest_new(DIGEST_SHA256);
    struct str base, hex;
    char own[DIGEST_HEX_MAX];
    bool is_first = true, is_good = true;
    if (!digest)
        return error_set_memory(err);
    digest_update(digest, removal->bytes.data, removal->bytes.size);
    digest_hex(digest, own);
    digest_free(digest);
    buffer_append_text(out, "{\n  \"algorithm\": \"sha256\",\n  \"files\": {");
    for (size_t i = 0; files && files->kind == VALUE_DICT && i + 1 < files->list.count && is_good; i += 2) {
        is_good = value_as_str(files->list.items[i], &base) && value_as_str(files->list.items[i + 1], &hex);
        if (!is_good || integrity_goes(removal, folder, base))
            continue;
        integrity_put(out, is_first, base, str_is(base, removal->name + folder) ? str_of(own) : hex);
        is_first = false;
    }
    buffer_append_text(out, "\n  }\n}");
    if (is_first || !is_good)
        return error_set(err, RESHARD_ERR_FORMAT, "'" INTEGRITY_FILE "' lists no files");
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}

reshard_status integrity_without(struct store *store, const struct removal *removal, struct buffer *out, reshard_error *err)
{
    const struct str folder = str_folder(str_of(removal->name));
    struct arena arena = { 0 };
    struct buffer text = { 0 };
    struct value_graph graph = { 0 };
    const char *name = ARENA_JOIN(&arena, folder, STR(INTEGRITY_FILE)).data;
    reshard_status status = name ? RESHARD_OK : error_set_memory(err);
    if (!status && store_is_file(store, name)) {
        status = store_read_all(store, name, NAMED_LIMIT(&limits_default, json_bytes), &text, err);
        if (!status)
            status = json_parse(text.data, text.size, &limits_default, &graph, err);
        if (!status)
            status = integrity_rewrite(graph.root, removal, folder.size, out, err);
    }
    value_graph_release(&graph);
    buffer_release(&text);
    arena_release(&arena);
    return status;
}
