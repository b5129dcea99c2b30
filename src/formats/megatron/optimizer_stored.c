/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of optimizers that cannot be related to the parameters of the ranks: some of those are frozen, which is said nowhere, or the
 * optimizer is one that shares them out in another way. It is listed as it is stored: optimizer.FOLDER and the path in the rank's file.
 */
#include "formats/megatron/optimizer_source.h"

#include "parallel/state_keys.h"

struct listing_state {
    struct source *source;
    struct megatron_source *state;
    const struct megatron_rank *rank;
    uint32_t file;
    struct buffer text;
};

static reshard_status add_stored_state(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct listing_state *listing = context;
    struct catalog *catalog = listing->source->catalog;
    struct torch_file *file = &listing->state->torch.files[listing->file];
    if (!leaf->value->tensor || leaf->value->tensor > file->archive.tensor_count)
        return RESHARD_OK;
    uint32_t number = leaf->value->tensor - 1, index;
    const struct torch_tensor *tensor = &file->archive.tensors[number];
    struct catalog_chunk *chunk;
    buffer_clear(&listing->text);
    if (!buffer_printf(&listing->text, STATE_KEY_ANY "%.*s.", STR_ARG(listing->rank->folder)) ||
        !path_join(leaf->parts, leaf->part_count, &listing->text))
        return error_set_memory(err);
    reshard_status status =
        catalog_add_tensor(catalog, buffer_str(&listing->text), tensor->dtype, tensor->rank, tensor->shape, &index, err);
    if (!status)
        status = torch_source_note_origin(&listing->state->torch, index,
                                          (struct torch_origin){ listing->file, number, tensor->storage }, err);
    if (status)
        return status;
    file->listed[number] = index + 1;
    return torch_source_add_chunk(listing->source, index, NULL, listing->file, number, false, &chunk, err);
}

static reshard_status list_rank_state(struct listing_state *listing, reshard_error *err)
{
    const struct megatron_rank *rank = listing->rank;
    const bool is_apart = rank->optimizer_file != TORCH_NONE;
    listing->file = is_apart ? rank->optimizer_file : rank->file;
    const struct value_graph *graph = listing->state->torch.files[listing->file].graph;
    struct value_graph part = { .root = is_apart ? graph->root : value_dict_get(rank->root, "optimizer"), .count = graph->count };
    if (!part.root)
        return RESHARD_OK;
    reshard_status status = torch_flatten(&part, &listing->source->limits, add_stored_state, listing, err);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(rank->folder));
        error_object(err, "%.*s/%s", STR_ARG(rank->folder), is_apart ? MEGATRON_OPTIMIZER_FILE : MEGATRON_MODEL_FILE);
    }
    return status;
}

reshard_status megatron_add_stored_state(struct source *source, reshard_error *err)
{
    struct listing_state listing = { .source = source, .state = megatron_source_of(source) };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < listing.state->rank_count && !status; i++) {
        listing.rank = &listing.state->ranks[i];
        status = list_rank_state(&listing, err);
    }
    buffer_release(&listing.text);
    return status;
}
