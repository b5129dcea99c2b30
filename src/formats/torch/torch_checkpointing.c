/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_checkpointing: a folder with metadata.pkl and files ITEM_RANK.pt, each what torch.save made of an item ("model", "step") of that
 * rank. The files say themselves what part of which tensor they hold, as other files of ranks do; metadata.pkl says how many ranks there
 * are, and where an item lies that is not called so. Spec: docs/formats/torch.md.
 */
#include "formats/torch/torch.h"

#include "encoding/pickle.h"
#include "formats/shared/side_files.h"
#include "formats/source_probe.h"
#include "formats/source_root.h"
#include "formats/torch/fsdp_assemble.h"

#include <inttypes.h>
#include <stdlib.h>

#define METADATA "metadata.pkl"

/* Surer than of other files of ranks. */
static int items_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    bool has_metadata = false, has_items = false;
    if (!store_is_directory(store, name) || store_list(store, name, &arena, &entries, &count, err))
        count = 0;
    for (size_t i = 0; i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        struct fsdp_file file;
        has_metadata = has_metadata || (!entries[i].is_directory && str_is(base, METADATA));
        has_items = has_items || (!entries[i].is_directory && fsdp_item_file_parse(base, &file));
    }
    arena_release(&arena);
    return has_metadata && has_items ? 88 : 0;
}

/* ---- metadata.pkl ---- */

static bool has_files(const struct fsdp_groups *groups, struct str item)
{
    bool found = false;
    for (uint32_t i = 0; i < groups->count && !found; i++)
        found = str_equal(groups->groups[i].files[0].prefix, item);
    return found;
}

/* Where each rank has an item: None says ITEM_RANK.pt. */
static reshard_status check_layout(struct str item, const struct value *said, struct work *work, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    if (!value_as_mapping(value_dict_get(said, "rank_to_layout_info"), &pairs, &count))
        return RESHARD_OK;
    for (size_t i = 0; i + 1 < count; i += 2) {
        struct str path = { 0 }, type = { 0 };
        reshard_status status = work_spend_steps(work, 1, err);
        if (status)
            return status;
        if (pairs[i + 1]->kind == VALUE_NONE)
            continue;
        value_as_str(value_dict_get(pairs[i + 1], "file_path"), &path);
        value_as_str(value_dict_get(value_dict_get(pairs[i + 1], "serialization_format"), "type"), &type);
        error_set(err, RESHARD_ERR_UNSUPPORTED, "item '%.*s' lies in '%.*s' (%.*s%s), a layout of its own", STR_ARG(item), STR_ARG(path),
                  STR_ARG_BRIEF(type));
        error_hint(err, "items in files ITEM_RANK.pt are read, which is what torch_checkpointing writes where nothing else is said");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

static reshard_status check_items_listed(const struct source *source, const struct value *root, const struct fsdp_groups *groups,
                                  reshard_error *err)
{
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!value_as_mapping(value_dict_get(root, "metadata"), &pairs, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "there is no dict \"metadata\"");
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct str item;
        if (!value_as_str(pairs[i], &item))
            return error_set(err, RESHARD_ERR_FORMAT, "an item's key is no text");
        status = check_layout(item, pairs[i + 1], source->limits.budget, err);
        if (!status && !has_files(groups, item) && source_bears_loss(source))
            catalog_warn_lost(source->catalog, (struct str){ 0 }, "there are no files of item '%.*s', which is lost", STR_ARG(item));
        else if (!status && !has_files(groups, item))
            status = error_set(err, RESHARD_ERR_FORMAT, "there is no file '%.*s_0.pt', which has an item", STR_ARG(item));
    }
    return status;
}

static reshard_status head_of(const struct value *root, uint32_t *world, struct str *version, reshard_error *err)
{
    int64_t ranks;
    if (!value_as_str(value_dict_get(root, "version"), version))
        return error_set(err, RESHARD_ERR_FORMAT, "it says no version");
    if (!str_starts_with(*version, "1.") && !str_starts_with(*version, "2."))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "version '%.*s%s', versions 1 and 2 are read", STR_ARG_BRIEF(*version));
    if (!value_as_int(value_dict_get(root, "world_size"), &ranks) || ranks < 1 || ranks > INT32_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "there is no \"world_size\" of 1 or more");
    *world = (uint32_t)ranks;
    return RESHARD_OK;
}

static reshard_status read_metadata(struct source *source, struct fsdp_groups *groups, uint32_t *world, reshard_error *err)
{
    struct buffer text = { 0 };
    struct value_graph graph = { .arena.work = source->limits.budget };
    struct str version;
    char *name = store_join(&source->catalog->arena, source->name, STR(METADATA));
    reshard_status status = name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, metadata_bytes), &text, err)
                                 : error_set_memory(err);
    if (!status)
        status = pickle_parse(text.data, text.size, 0, &source->limits, &graph, NULL, err);
    if (!status)
        status = head_of(graph.root, world, &version, err);
    if (!status)
        status = catalog_add_fact(source->catalog, "torch_checkpointing version", err, "%.*s%s", STR_ARG_BRIEF(version));
    if (!status)
        status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, *world);
    if (!status)
        status = fsdp_item_groups_find(source->store, source->name, *world, source_bears_loss(source), groups, err);
    if (!status)
        status = check_items_listed(source, graph.root, groups, err);
    if (status && name) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    value_graph_release(&graph);
    buffer_release(&text);
    return status;
}

/* ---- the folder ---- */

/* What lies beside: items in files of other names and kinds, for one. */
static bool is_other_file(const void *context, const struct store_entry *entry, struct str base)
{
    struct fsdp_file file;
    (void)context, (void)entry;
    return base.data[0] != '.' && !str_is(base, METADATA) && !str_is(base, SIDECAR_NAME) && !fsdp_item_file_parse(base, &file);
}

static reshard_status items_read_catalog(struct source *source, reshard_error *err)
{
    struct fsdp_groups groups = { 0 };
    uint32_t world;
    reshard_status status = read_metadata(source, &groups, &world, err);
    if (!status)
        status = fsdp_read_items(source, &groups, world, err);
    if (!status)
        status = side_files_add(source, source->name, "", is_other_file, NULL, err);
    fsdp_groups_release(&groups);
    return status;
}

static const char *const items_entries[] = { METADATA, "*_[0-9]*.pt", NULL };

const struct format_driver format_torch_checkpointing = {
    .name = "torch_checkpointing",
    .summary = "torch_checkpointing directory: metadata.pkl, and a torch.save file of each item and rank",
    .abilities = FORMAT_READS | FORMAT_ITEMS_NAME_TENSORS,
    .folder_entries = items_entries,
    .probe = items_probe,
    .read_catalog = items_read_catalog,
    .verify = torch_source_verify,
    .close_source = fsdp_close_source,
};
