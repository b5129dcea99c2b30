/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"

#include "encoding/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TRACKER "latest_checkpointed_iteration.txt"
#define TRACKER_BYTES_MAX 64
#define CONFIG_BYTES_MAX 65536

/* ---- metadata.json ---- */

static const struct {
    const char *name;
    enum dist_backend backend;
} backends[] = { { "torch_dist", DIST_TORCH_DIST }, { "fsdp_dtensor", DIST_FSDP_DTENSOR }, { "zarr", DIST_ZARR } };

static reshard_status read_config(const struct value *root, struct dist_config *out, reshard_error *err)
{
    struct str name;
    const struct value *backend = root->kind == VALUE_DICT ? value_dict_get(root, "sharded_backend") : NULL;
    const struct value *version = root->kind == VALUE_DICT ? value_dict_get(root, "sharded_backend_version") : NULL;
    if (!backend || !value_as_str(backend, &name))
        return error_set(err, RESHARD_ERR_FORMAT, "no 'sharded_backend' string");
    out->version = 1;
    if (version && !value_as_int(version, &out->version))
        return error_set(err, RESHARD_ERR_FORMAT, "'sharded_backend_version' is no integer");
    out->backend = DIST_OTHER;
    snprintf(out->name, sizeof(out->name), "%.*s", STR_ARG(name));
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (str_is(name, backends[i].name))
            out->backend = backends[i].backend;
    }
    return RESHARD_OK;
}

reshard_status dist_config_read(struct store *store, const char *directory, struct dist_config *out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    char *name = NULL;
    bool is_directory;
    uint64_t size;
    *out = (struct dist_config){ 0 };
    reshard_status status = dcp_name_join(directory, STR("metadata.json"), &name, err);
    if (status)
        return status;
    if (!store_exists(store, name, &is_directory, &size) || is_directory)
        goto out;
    out->backend = DIST_UNREADABLE;
    status = store_read_all(store, name, CONFIG_BYTES_MAX, &bytes, err);
    if (!status)
        status = json_parse(bytes.data, bytes.size, &limits_default, &graph, err);
    if (!status)
        status = read_config(graph.root, out, err);
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }

out:
    value_graph_release(&graph);
    buffer_release(&bytes);
    free(name);
    return status;
}

/* ---- where the checkpoint is ---- */

static char *with_slash(struct str name)
{
    char *out = malloc(name.size + 2);
    if (!out)
        return NULL;
    if (name.size)
        memcpy(out, name.data, name.size);
    if (name.size && name.data[name.size - 1] != '/')
        out[name.size++] = '/';
    out[name.size] = '\0';
    return out;
}

static struct str trimmed(struct str text)
{
    while (text.size && strchr(" \t\r\n", text.data[0]))
        text = (struct str){ text.data + 1, text.size - 1 };
    while (text.size && strchr(" \t\r\n", text.data[text.size - 1]))
        text.size--;
    return text;
}

/* The sub-directory that the tracker's text names, "iter_0000010" or "release". */
static reshard_status read_tracker(struct store *store, const char *name, char out[64], reshard_error *err)
{
    struct buffer bytes = { 0 };
    uint64_t iteration;
    reshard_status status = store_read_all(store, name, TRACKER_BYTES_MAX, &bytes, err);
    struct str text = trimmed(buffer_str(&bytes));
    if (status)
        error_prefix(err, "'%s'", name);
    else if (str_is(text, "release"))
        snprintf(out, 64, "release");
    else if (str_to_u64(text, &iteration))
        snprintf(out, 64, "iter_%07" PRIu64, iteration);
    else
        status = error_set(err, RESHARD_ERR_FORMAT, "'%s': '%.*s' is neither an iteration nor 'release'", name, STR_ARG(text));
    buffer_release(&bytes);
    return status;
}

/* Below a Megatron root; *out stays NULL if directory is none. */
static reshard_status find_iteration(struct store *store, const char *directory, int64_t iteration, char **out, reshard_error *err)
{
    char wanted[64], *tracker = NULL, *found = NULL;
    bool is_directory, is_root;
    uint64_t size;
    reshard_status status = dcp_name_join(directory, STR(TRACKER), &tracker, err);
    if (status)
        return status;
    is_root = store_exists(store, tracker, &is_directory, &size) && !is_directory;
    if (is_root && iteration >= 0)
        snprintf(wanted, sizeof(wanted), "iter_%07" PRId64, iteration);
    else if (is_root)
        status = read_tracker(store, tracker, wanted, err);
    if (!status && is_root)
        status = dcp_name_join(directory, str_of(wanted), &found, err);
    if (!status && found) {
        if (!store_exists(store, found, &is_directory, &size) || !is_directory)
            status = error_set(err, RESHARD_ERR_FORMAT, "'%s' does not exist, '%s' names it", found, tracker);
        else if (!(*out = with_slash(str_of(found))))
            status = error_set_memory(err);
    }
    free(found);
    free(tracker);
    return status;
}

reshard_status dcp_directory_find(struct store *store, const char *name, int64_t iteration, char **out, bool *is_root, reshard_error *err)
{
    struct str directory = str_of(name);
    bool is_directory = true;
    uint64_t size;
    *is_root = false;
    *out = NULL;
    if (directory.size && store_exists(store, name, &is_directory, &size) && !is_directory) {
        if (!str_ends_with(directory, DCP_METADATA))
            return error_set(err, RESHARD_ERR_FORMAT, "'%s' is no directory and no .metadata file", name);
        while (directory.size && directory.data[directory.size - 1] != '/')
            directory.size--;
    }
    char *found = NULL, *base = with_slash(directory);
    if (!base)
        return error_set_memory(err);
    reshard_status status = find_iteration(store, base, iteration, &found, err);
    *is_root = found != NULL;
    if (found)
        free(base);
    if (!status)
        *out = found ? found : base;
    else
        free(base);
    return status;
}
