/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sidecar.h"

#include "api/tensor_digests.h"
#include "encoding/json.h"

#include <stdlib.h>

#define SIDECAR_SCHEMA "reshard-sidecar/1"

reshard_status sidecar_make(reshard_checkpoint *written, const char *digest, const struct engine_options *options, struct buffer *json, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(written);
    enum digest_kind kind;
    if (!digest_from_name(str_of(digest), &kind))
        return error_set(err, RESHARD_ERR_USAGE, "unknown checksum '%s': crc32c, sha256 or xxh3", digest);
    const uint32_t *sorted = checkpoint_sorted(written);
    char(*hex)[DIGEST_HEX_MAX] = calloc((size_t)catalog->tensor_count + 1, sizeof(*hex));
    reshard_status status = sorted && hex ? tensor_digests(written, kind, written->listed, written->listed_count, NULL, options, hex, err)
                                          : error_set_memory(err);
    if (!status) {
        buffer_printf(json, "{\n  \"schema\": \"" SIDECAR_SCHEMA "\",\n  \"digest\": \"%s\",\n  \"tensors\": {", digest_name(kind));
        const char *separator = "";
        for (uint32_t i = 0; i < written->listed_count; i++) {
            uint32_t tensor = written->listed[sorted[i]];
            if (catalog->tensors[tensor].flags & TENSOR_AMBIGUOUS)
                continue;
            buffer_printf(json, "%s\n    ", separator);
            buffer_append_json_string(json, catalog->tensors[tensor].key);
            buffer_printf(json, ": \"%s\"", hex[tensor]);
            separator = ",";
        }
        buffer_append_text(json, "\n  }\n}\n");
        if (json->failed)
            status = error_set_memory(err);
    }
    free(hex);
    return status;
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

reshard_status sidecar_add(struct store_txn *txn, const struct buffer *json, reshard_error *err)
{
    return write_whole(txn, SIDECAR_NAME, json, err);
}

reshard_status sidecar_put_beside(const char *target_path, const struct buffer *json, bool no_sync, reshard_error *err)
{
    struct buffer path = { 0 };
    struct store_txn *txn = NULL;
    if (!buffer_printf(&path, "%s." SIDECAR_NAME, target_path) || !buffer_append_byte(&path, 0)) {
        buffer_release(&path);
        return error_set_memory(err);
    }
    struct store_txn_options options = { .overwrite = true, .no_sync = no_sync };
    reshard_status status = store_txn_begin((const char *)path.data, &options, &txn, err);
    if (!status)
        status = write_whole(txn, "", json, err);
    if (status)
        store_txn_abort(txn, false);
    else
        status = store_txn_commit(txn, err);
    buffer_release(&path);
    return status;
}

/* ---- checking ---- */

/* Name of the sidecar in the checkpoint's store: in its directory, or beside its file. */
static char *sidecar_name(const struct source *source)
{
    const char *name = source->name ? source->name : "";
    bool is_directory = true;
    uint64_t bytes;
    struct buffer out = { 0 };
    if (*name)
        store_exists(source->store, name, &is_directory, &bytes);
    if (*name)
        buffer_printf(&out, "%s%s", name, is_directory ? "/" : ".");
    buffer_append_text(&out, SIDECAR_NAME);
    buffer_append_byte(&out, 0);
    if (out.failed)
        buffer_release(&out);
    return (char *)out.data;
}

static void check_digests(const reshard_checkpoint *checkpoint, const struct value *tensors, char (*hex)[DIGEST_HEX_MAX], struct finding_sink *findings)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    struct value **pairs;
    size_t count;
    if (!value_as_mapping(tensors, &pairs, &count))
        return;
    for (size_t i = 0; i + 1 < count; i += 2) {
        struct str key, wanted;
        if (!value_as_str(pairs[i], &key) || !value_as_str(pairs[i + 1], &wanted))
            continue;
        uint32_t tensor = catalog_find(catalog, key);
        if (tensor == CATALOG_NONE)
            finding_report(findings, 2, "missing", key, "listed in " SIDECAR_NAME " and not in the checkpoint");
        else if (!str_is(wanted, hex[tensor]))
            finding_report(findings, 2, "checksum", key, "digest %s, " SIDECAR_NAME " says %.*s", hex[tensor], STR_ARG(wanted));
    }
}

reshard_status sidecar_verify(reshard_checkpoint *checkpoint, const reshard_run_options *run, struct finding_sink *findings, reshard_error *err)
{
    struct source *source = checkpoint->source;
    struct buffer text = { 0 };
    struct value_graph graph = { 0 };
    char(*hex)[DIGEST_HEX_MAX] = NULL;
    struct engine_options options;
    enum digest_kind kind;
    struct str digest = { 0 };
    char *name = sidecar_name(source);
    if (!name)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    bool is_directory;
    uint64_t bytes;
    if (!store_exists(source->store, name, &is_directory, &bytes) || is_directory)
        goto out;
    status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &text, err);
    if (!status)
        status = json_parse(text.data, text.size, &source->limits, &graph, err);
    if (!status)
        status = run_options_read(run, &options, err);
    if (status) {
        error_object(err, "%s", name);
        goto out;
    }
    const struct value *named = value_dict_get(graph.root, "digest"), *tensors = value_dict_get(graph.root, "tensors");
    if (!named || !tensors || !value_as_str(named, &digest) || !digest_from_name(digest, &kind)) {
        status = error_set(err, RESHARD_ERR_FORMAT, "'%s': no \"digest\" and \"tensors\" that reshard knows", name);
        goto out;
    }
    hex = calloc((size_t)checkpoint_catalog(checkpoint)->tensor_count + 1, sizeof(*hex));
    status = hex ? tensor_digests(checkpoint, kind, checkpoint->listed, checkpoint->listed_count, NULL, &options, hex, err) : error_set_memory(err);
    if (!status)
        check_digests(checkpoint, tensors, hex, findings);

out:
    free(hex);
    free(name);
    value_graph_release(&graph);
    buffer_release(&text);
    return status;
}

/* The target's tensor for a wanted one: by key, or where keys are ambiguous by path. */
static uint32_t written_tensor(const struct conversion *conversion, const reshard_checkpoint *written, uint32_t wanted)
{
    const struct catalog *from = conversion->target.catalog, *in = checkpoint_catalog(written);
    const struct catalog_tensor *tensor = &from->tensors[wanted];
    uint32_t found = catalog_find(in, tensor->key);
    if (found == CATALOG_NONE || !(in->tensors[found].flags & TENSOR_AMBIGUOUS))
        return found;
    struct path_part single, other_single;
    const struct path_part *parts, *other;
    size_t count = catalog_tensor_path(conversion->selection.wanted, &conversion->selection.wanted->tensors[wanted], &single, &parts);
    for (uint32_t i = 0; i < in->tensor_count; i++) {
        size_t other_count = catalog_tensor_path(in, &in->tensors[i], &other_single, &other);
        if (path_equal(parts, count, other, other_count))
            return i;
    }
    return CATALOG_NONE;
}

static bool is_compared(const struct conversion *conversion, uint32_t wanted)
{
    return !(conversion->target.catalog->tensors[wanted].flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

/* Digests of tensors that a mapping makes, by wanted tensor. They come one after the other, so one digest serves them all. */
struct made_digests {
    struct digest *digest;
    char (*hex)[DIGEST_HEX_MAX];
};

static reshard_status made_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last, reshard_error *err)
{
    struct made_digests *made = context;
    (void)offset, (void)err;
    digest_update(made->digest, bytes, size);
    if (is_last) {
        digest_hex(made->digest, made->hex[tensor]);
        digest_reset(made->digest);
    }
    return RESHARD_OK;
}

static reshard_status digest_made(const struct conversion *conversion, const uint32_t *wanted, uint32_t count, char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    struct engine_source source = checkpoint_engine_source(conversion->source);
    struct engine_made made = { conversion->selection.wanted, conversion->selection.table.recipes, conversion->selection.table.first };
    const struct recipe_table *table = &conversion->selection.table;
    struct engine_options options = conversion->engine;
    struct made_digests digests = { 0 };
    uint32_t *tensors, tensor_count;
    options.threads = 1;
    reshard_status status = recipes_read(table->recipes, table->count, checkpoint_catalog(conversion->source)->tensor_count, &tensors, &tensor_count, err);
    if (!status)
        status = source_resolve(conversion->source->source, tensors, tensor_count, err);
    free(tensors);
    if (status)
        return status;
    digests = (struct made_digests){ digest_new(DIGEST_XXH3), hex };
    status = digests.digest ? engine_stream_made(&source, &made, wanted, count, &options, made_sink, &digests, err) : error_set_memory(err);
    digest_free(digests.digest);
    return status;
}

/* Digests of what the source's tensors are under the wanted types, by wanted tensor. */
static reshard_status digest_selected(const struct conversion *conversion, const uint32_t *wanted, uint32_t count, char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    const struct catalog *source = checkpoint_catalog(conversion->source);
    uint32_t *tensors = malloc(((size_t)count + 1) * sizeof(*tensors));
    enum dtype *as = malloc(((size_t)source->tensor_count + 1) * sizeof(*as));
    char(*by_source)[DIGEST_HEX_MAX] = calloc((size_t)source->tensor_count + 1, sizeof(*by_source));
    reshard_status status = tensors && as && by_source ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        tensors[i] = conversion->selection.wanted_source[wanted[i]];
        as[tensors[i]] = conversion->target.catalog->tensors[wanted[i]].dtype;
    }
    if (!status)
        status = tensor_digests(conversion->source, DIGEST_XXH3, tensors, count, as, &conversion->engine, by_source, err);
    for (uint32_t i = 0; i < count && !status; i++)
        memcpy(hex[wanted[i]], by_source[tensors[i]], DIGEST_HEX_MAX);
    free(tensors);
    free(as);
    free(by_source);
    return status;
}

reshard_status sidecar_compare_conversion(const struct conversion *conversion, reshard_checkpoint *written, reshard_error *err)
{
    const struct catalog *target = checkpoint_catalog(written), *wanted = conversion->target.catalog;
    uint32_t *tensors = malloc(((size_t)wanted->tensor_count + 1) * sizeof(*tensors)), count = 0;
    char(*hex_source)[DIGEST_HEX_MAX] = calloc((size_t)wanted->tensor_count + 1, sizeof(*hex_source));
    char(*hex_target)[DIGEST_HEX_MAX] = calloc((size_t)target->tensor_count + 1, sizeof(*hex_target));
    reshard_status status = tensors && hex_source && hex_target ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        if (is_compared(conversion, i))
            tensors[count++] = i;
    }
    if (!status)
        status = conversion->mapping.stage ? digest_made(conversion, tensors, count, hex_source, err) : digest_selected(conversion, tensors, count, hex_source, err);
    if (!status)
        status = tensor_digests(written, DIGEST_XXH3, written->listed, written->listed_count, NULL, &conversion->engine, hex_target, err);
    for (uint32_t i = 0; i < count && !status; i++) {
        uint32_t found = written_tensor(conversion, written, tensors[i]);
        struct str key = wanted->tensors[tensors[i]].key;
        const char *expected = hex_source[tensors[i]];
        if (found == CATALOG_NONE)
            status = error_set(err, RESHARD_DIFFERS, "tensor '%.*s' is missing", STR_ARG(key));
        else if (strcmp(hex_target[found], expected) != 0)
            status = error_set(err, RESHARD_DIFFERS, "tensor '%.*s': digest %s, the source has %s", STR_ARG(key), hex_target[found], expected);
    }
    free(tensors);
    free(hex_source);
    free(hex_target);
    return status;
}
