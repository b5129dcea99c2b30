/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_source.h"

#include "encoding/json.h"

#include <stdio.h>
#include <stdlib.h>

#define CONFIG_BYTES_MAX 65536

/* ---- metadata.json ---- */

static const struct {
    const char *name;
    enum mcore_backend backend;
} backends[] = { { "torch_dist", MCORE_TORCH_DIST }, { "fsdp_dtensor", MCORE_FSDP_DTENSOR }, { "zarr", MCORE_ZARR } };

static reshard_status mcore_config_read_config(const struct value *root, struct mcore_config *out, reshard_error *err)
{
    struct str name;
    const struct value *backend = root->kind == VALUE_DICT ? value_dict_get(root, "sharded_backend") : NULL;
    const struct value *version = root->kind == VALUE_DICT ? value_dict_get(root, "sharded_backend_version") : NULL;
    /* Somebody else's file of that name. */
    out->backend = MCORE_ABSENT;
    if (!backend)
        return RESHARD_OK;
    if (!value_as_str(backend, &name)) {
        out->backend = MCORE_UNREADABLE;
        return error_set(err, RESHARD_ERR_FORMAT, "'sharded_backend' is no string");
    }
    out->version = 1;
    if (version && !value_as_int(version, &out->version))
        return error_set(err, RESHARD_ERR_FORMAT, "'sharded_backend_version' is no integer");
    out->backend = MCORE_OTHER;
    snprintf(out->name, sizeof(out->name), "%.*s", STR_ARG(name));
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (str_is(name, backends[i].name))
            out->backend = backends[i].backend;
    }
    return RESHARD_OK;
}

reshard_status mcore_config_read(struct store *store, const char *directory, struct mcore_config *out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    char *name = NULL;
    *out = (struct mcore_config){ 0 };
    reshard_status status = dcp_name_join(directory, STR("metadata.json"), &name, err);
    if (status)
        return status;
    if (!store_is_file(store, name))
        goto out;
    out->backend = MCORE_UNREADABLE;
    status = store_read_all(store, name, AT_MOST(CONFIG_BYTES_MAX), &bytes, err);
    if (!status)
        status = json_parse(bytes.data, bytes.size, &limits_default, &graph, err);
    if (!status)
        status = mcore_config_read_config(graph.root, out, err);
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

/* ---- the folder ---- */

bool mcore_is_iteration(const struct store *store, const char *name)
{
    const struct str base = str_base_name(str_without_slashes(str_of(name[0] ? name : store_path(store))));
    if (str_is(base, "release"))
        return true;
    if (!str_starts_with(base, "iter_") || base.size == 5)
        return false;
    for (size_t i = 5; i < base.size; i++) {
        if (base.data[i] < '0' || base.data[i] > '9')
            return false;
    }
    return true;
}
