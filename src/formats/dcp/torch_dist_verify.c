/* SPDX-License-Identifier: Apache-2.0 */
/* integrity.json: {"algorithm": "sha256", "files": {NAME: hex, …}} of the regular files in the directory. */
#include "formats/dcp/dcp_read.h"

#include "base/digest.h"
#include "encoding/json.h"

#include <stdlib.h>

#define PASS_BYTES (256 * 1024)

static reshard_status hash_object(const struct store_object *object, uint8_t *pass, char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    struct digest *digest = digest_new(DIGEST_SHA256);
    if (!digest)
        return error_set_memory(err);
    uint64_t size = store_object_size(object);
    reshard_status status = RESHARD_OK;
    for (uint64_t offset = 0; offset < size && !status; offset += PASS_BYTES) {
        size_t step = size - offset < PASS_BYTES ? (size_t)(size - offset) : PASS_BYTES;
        status = store_read_at(object, offset, pass, step, err);
        if (!status)
            digest_update(digest, pass, step);
    }
    if (!status)
        digest_hex(digest, hex);
    digest_free(digest);
    return status;
}

static reshard_status check_file(struct source *source, struct str base, struct str wanted, uint8_t *pass, reshard_error *err)
{
    char hex[DIGEST_HEX_MAX];
    char *name = NULL;
    bool is_directory;
    uint64_t bytes;
    struct store_object *object = NULL;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, base, &name, err);
    if (status)
        return status;
    if (!store_exists(source->store, name, &is_directory, &bytes) || is_directory) {
        catalog_warn(source->catalog, true, "'integrity.json' lists '%.*s', which does not exist", STR_ARG(base));
        goto out;
    }
    status = store_open_object(source->store, name, &object, err);
    if (!status)
        status = hash_object(object, pass, hex, err);
    if (!status && !str_is(wanted, hex))
        catalog_warn(source->catalog, true, "'%.*s': its sha256 is %s, 'integrity.json' says %.*s", STR_ARG(base), hex, STR_ARG(wanted));

out:
    store_object_close(object);
    free(name);
    return status;
}

static reshard_status check_all(struct source *source, const struct value *root, reshard_error *err)
{
    const struct value *algorithm = root->kind == VALUE_DICT ? value_dict_get(root, "algorithm") : NULL;
    const struct value *files = root->kind == VALUE_DICT ? value_dict_get(root, "files") : NULL;
    struct str text, base, hex;
    if (!algorithm || !value_as_str(algorithm, &text) || !files || files->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "'integrity.json': no 'algorithm' and 'files'");
    if (!str_is(text, "sha256"))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'integrity.json': algorithm '%.*s', expected 'sha256'", STR_ARG(text));
    uint8_t *pass = malloc(PASS_BYTES);
    reshard_status status = pass ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < files->list.count && !status; i += 2) {
        if (!value_as_str(files->list.items[i], &base) || !value_as_str(files->list.items[i + 1], &hex))
            status = error_set(err, RESHARD_ERR_FORMAT, "'integrity.json': an entry of 'files' is no pair of strings");
        else
            status = check_file(source, base, hex, pass, err);
    }
    free(pass);
    return status;
}

static reshard_status check_integrity(struct source *source, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    char *name = NULL;
    bool is_directory;
    uint64_t size;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, STR("integrity.json"), &name, err);
    if (status)
        return status;
    if (!store_exists(source->store, name, &is_directory, &size) || is_directory)
        goto out;
    status = store_read_all(source->store, name, source->limits.json_bytes, &bytes, err);
    if (!status)
        status = json_parse(bytes.data, bytes.size, &source->limits, &graph, err);
    if (!status)
        status = check_all(source, graph.root, err);

out:
    value_graph_release(&graph);
    buffer_release(&bytes);
    free(name);
    return status;
}

reshard_status torch_dist_verify(struct source *source, bool deep, reshard_error *err)
{
    reshard_status status = check_integrity(source, err);
    return status ? status : dcp_verify(source, deep, err);
}
