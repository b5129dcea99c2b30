/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_source.h"

#include "encoding/pickle.h"

#include <inttypes.h>

#define VERSION_MAX 1

/* A pickle beside the files of ranks, as an item. *out is its value. */
static reshard_status items_add_pickle(struct source *source, const struct store_entry *entry, enum atorch_file_kind kind,
                                       const struct value **out, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct value_graph parsed = { 0 };
    struct buffer bytes = { 0 };
    char *name = arena_copy(&catalog->arena, entry->name.data, entry->name.size);
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, metadata_bytes), &bytes, err) : error_set_memory(err);
    char *kept = status ? NULL : arena_copy(&catalog->arena, bytes.data, bytes.size);
    if (!status && !kept)
        status = error_set_memory(err);
    if (!status)
        status = pickle_parse(kept, bytes.size, 0, &source->limits, &parsed, NULL, err);
    buffer_release(&bytes);
    if (status) {
        value_graph_release(&parsed);
        error_object(err, "%s", atorch_file_stem(kind));
        error_prefix(err, "%s", atorch_file_stem(kind));
        return status;
    }
    struct value_graph *graph = catalog_adopt_graph(catalog, parsed);
    if (!graph)
        return error_set_memory(err);
    struct catalog_item item = { .key = str_of(atorch_file_stem(kind)), .kind = ITEM_VALUE, .value = graph->root, .graph = graph };
    *out = graph->root;
    return catalog_add_item(catalog, &item, NULL, 0, NULL, err);
}

static reshard_status items_read_checkpoint(struct source *source, const struct store_entry *entry, reshard_error *err)
{
    struct atorch_source *state = atorch_source_of(source);
    const struct value *value;
    int64_t version = 0;
    reshard_status status = items_add_pickle(source, entry, ATORCH_CKPT_META, &value, err);
    if (status)
        return status;
    const struct value *said = value_dict_get(value, "version"), *ranks = value_dict_get(value, "world_size");
    if (!said || !value_as_int(said, &version))
        return error_set_at(err, RESHARD_ERR_FORMAT, value->offset, "ckpt_meta: it has no version that is a whole number");
    if (version > VERSION_MAX) {
        error_set_at(err, RESHARD_ERR_UNSUPPORTED, said->offset, "ckpt_meta: version %" PRId64 ", known are 0 and 1", version);
        return RESHARD_ERR_UNSUPPORTED;
    }
    state->is_global_known = ranks && value_as_int(ranks, &state->global_ranks) && state->global_ranks > 0;
    if (state->model.ranks && version != state->model.version)
        catalog_warn(source->catalog, false, "ckpt_meta says version %" PRId64 ", the flat_meta files are of version %d", version,
                     state->model.version);
    if (state->is_global_known && state->model.ranks && state->global_ranks % state->model.ranks != 0)
        catalog_warn(source->catalog, false, "ckpt_meta says %" PRId64 " ranks, which %" PRIu32 " ranks with files cannot be shared by",
                     state->global_ranks, state->model.ranks);
    return RESHARD_OK;
}

static reshard_status items_add_files(struct source *source, const struct atorch_folder *folder, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < folder->beside_count && !status; i++) {
        const struct store_entry *entry = folder->beside[i];
        struct str base = str_base_name(entry->name);
        if (!entry->leads_out && !str_is(base, SIDECAR_NAME))
            status = catalog_add_file(source->catalog, base, entry->name, entry->bytes, err);
    }
    return status;
}

reshard_status atorch_read_items(struct source *source, const struct atorch_folder *folder, reshard_error *err)
{
    const struct store_entry *groups = folder->single[ATORCH_OPTIM_META], *checkpoint = folder->single[ATORCH_CKPT_META];
    const struct value *value;
    reshard_status status = groups ? items_add_pickle(source, groups, ATORCH_OPTIM_META, &value, err) : RESHARD_OK;
    if (!status && checkpoint)
        status = items_read_checkpoint(source, checkpoint, err);
    return status ? status : items_add_files(source, folder, err);
}
