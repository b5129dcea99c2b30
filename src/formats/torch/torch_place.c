/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which record holds which tensor. Each tensor gets a record of its own, row-major, with two exceptions: tied tensors share one, and
 * a storage of the source that several tensors view may be kept whole, so that they still share memory after loading.
 */
#include "base/array.h"
#include "formats/torch/torch.h"
#include "formats/shared/torch_spell.h"
#include "formats/torch/torch_target.h"

#include "base/checked.h"

#include <stdlib.h>

reshard_status torch_record_add(struct torch_target *state, uint32_t tensor, uint64_t bytes, uint32_t *out, reshard_error *err)
{
    if (!ARRAY_ROOM(state->records, state->record_count, state->record_capacity))
        return error_set_memory(err);
    state->records[state->record_count] = (struct torch_record){ .tensor = tensor, .bytes = bytes };
    *out = state->record_count++;
    return RESHARD_OK;
}

reshard_status torch_record_for_hidden(const struct layout_request *request, struct torch_target *state, uint32_t source_tensor,
                                       uint32_t *out, reshard_error *err)
{
    uint32_t wanted = source_tensor < request->source_catalog->tensor_count ? state->wanted_of[source_tensor] : TORCH_NONE;
    if (wanted == TORCH_NONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "an item refers to a storage that is not converted");
    struct torch_place *place = &state->places[wanted];
    reshard_status status = RESHARD_OK;
    if (place->record == TORCH_NONE)
        status =
            torch_record_add(state, wanted, catalog_tensor_bytes(request->wanted, &request->wanted->tensors[wanted]), &place->record, err);
    *out = place->record;
    return status;
}

reshard_status torch_record_for_item(const struct layout_request *request, struct torch_target *state, uint32_t item, uint32_t storage,
                                     uint32_t *out, reshard_error *err)
{
    for (uint32_t i = 0; i < state->item_storage_count; i++) {
        if (state->item_storages[i].item == item && state->item_storages[i].storage == storage) {
            *out = state->item_storages[i].record;
            return RESHARD_OK;
        }
    }
    if (!ARRAY_ROOM(state->item_storages, state->item_storage_count, state->item_storage_capacity))
        return error_set_memory(err);
    struct buffer bytes = { .limit = (size_t)request->limits.item_bytes, .limit_name = "item_bytes" };
    reshard_status status = layout_item_storage(request, item, storage, &bytes, err);
    if (!status)
        status = torch_record_add(state, TORCH_NONE, bytes.size, out, err);
    if (status) {
        buffer_release(&bytes);
        return status;
    }
    state->records[*out].memory = bytes;
    state->item_storages[state->item_storage_count++] = (struct torch_item_storage){ item, storage, *out };
    return RESHARD_OK;
}

/* ---- storages kept whole ---- */

enum views_option { VIEWS_AUTO, VIEWS_KEEP, VIEWS_COMPACT };

/* What is known about one hidden storage of the source. */
struct keeping {
    uint32_t hidden;     /* wanted tensor */
    uint64_t view_bytes; /* of its different views, written one by one */
    bool is_possible;
};

static reshard_status parse_views(const struct layout_request *request, enum views_option *out, reshard_error *err)
{
    const char *text = layout_option(request, "views");
    *out = VIEWS_AUTO;
    if (!text || strcmp(text, "auto") == 0)
        return RESHARD_OK;
    *out = strcmp(text, "keep") == 0 ? VIEWS_KEEP : VIEWS_COMPACT;
    if (*out == VIEWS_COMPACT && strcmp(text, "compact") != 0)
        return error_set(err, RESHARD_ERR_USAGE, "views=%s: expected auto, keep or compact", text);
    return RESHARD_OK;
}

static const struct torch_origin *torch_place_origin_of(const struct layout_request *request, uint32_t wanted)
{
    const struct torch_source *source = torch_source_of(request->source);
    uint32_t tensor = request->wanted_source[wanted];
    return tensor < source->origin_count && source->origins[tensor].file != TORCH_NONE ? &source->origins[tensor] : NULL;
}

/* The hidden wanted tensor of the storage that a wanted tensor views; TORCH_NONE if there is none. */
static uint32_t hidden_of(const struct layout_request *request, const struct torch_target *state, const struct torch_origin *origin)
{
    uint32_t hidden = torch_source_of(request->source)->files[origin->file].hidden[origin->storage];
    return hidden ? state->wanted_of[hidden - 1] : TORCH_NONE;
}

/* Whether the wanted tensor can be a view of its storage's own bytes. */
static bool can_be_view(const struct layout_request *request, uint32_t wanted, const struct torch_origin *origin)
{
    const struct torch_archive *archive = &torch_source_of(request->source)->files[origin->file].archive;
    const struct torch_tensor *tensor = &archive->tensors[origin->tensor];
    unsigned item = dtype_element_bytes(tensor->dtype);
    return request->wanted->tensors[wanted].dtype == tensor->dtype && !(tensor->flags & (TORCH_TENSOR_CONJ | TORCH_TENSOR_NEG)) &&
           tensor->offset_bytes % item == 0;
}

/* Adds up what each hidden storage's views would take; keeps is by wanted tensor. */
static void weigh_storages(const struct layout_request *request, const struct torch_target *state, struct keeping *keeps)
{
    const struct catalog *wanted = request->wanted;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct torch_origin *origin = torch_place_origin_of(request, i);
        if (!origin || origin->tensor == TORCH_NONE)
            continue;
        uint32_t hidden = hidden_of(request, state, origin);
        if (hidden == TORCH_NONE)
            continue;
        struct keeping *keep = &keeps[hidden];
        uint64_t bytes = wanted->tensors[i].tied_to == CATALOG_NONE ? catalog_tensor_bytes(wanted, &wanted->tensors[i]) : 0;
        keep->is_possible = keep->is_possible && can_be_view(request, i, origin);
        if (!checked_add_u64(keep->view_bytes, bytes, &keep->view_bytes))
            keep->view_bytes = UINT64_MAX;
    }
}

static bool is_kept(const struct layout_request *request, const struct keeping *keep, uint32_t hidden, enum views_option views)
{
    if (!keep->is_possible || views == VIEWS_COMPACT)
        return false;
    uint64_t bytes = catalog_tensor_bytes(request->wanted, &request->wanted->tensors[hidden]);
    return views == VIEWS_KEEP || keep->view_bytes >= bytes;
}

static reshard_status place_views(const struct layout_request *request, struct torch_target *state, const struct keeping *keeps,
                                  enum views_option views, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < request->wanted->tensor_count; i++) {
        const struct torch_origin *origin = torch_place_origin_of(request, i);
        uint32_t hidden = origin && origin->tensor != TORCH_NONE ? hidden_of(request, state, origin) : TORCH_NONE;
        if (hidden == TORCH_NONE || !is_kept(request, &keeps[hidden], hidden, views))
            continue;
        const struct torch_tensor *tensor = &torch_source_of(request->source)->files[origin->file].archive.tensors[origin->tensor];
        uint32_t record;
        status = torch_record_for_hidden(request, state, request->wanted_source[hidden], &record, err);
        state->places[i] = (struct torch_place){ record, tensor->offset_bytes / dtype_element_bytes(tensor->dtype), tensor->strides };
    }
    return status;
}

static reshard_status place_shared(const struct layout_request *request, struct torch_target *state, reshard_error *err)
{
    enum views_option views;
    reshard_status status = parse_views(request, &views, err);
    if (status || !request->source || request->source->driver != &format_torch)
        return status;
    struct keeping *keeps = array_zeroed(request->wanted->tensor_count, sizeof(*keeps));
    if (!keeps)
        return error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++)
        keeps[i].is_possible = true;
    weigh_storages(request, state, keeps);
    status = place_views(request, state, keeps, views, err);
    free(keeps);
    return status;
}

/* ---- all others ---- */

static reshard_status place_alone(const struct layout_request *request, struct torch_target *state, uint32_t i, reshard_error *err)
{
    const struct catalog_tensor *tensor = &request->wanted->tensors[i];
    struct torch_place *place = &state->places[i];
    reshard_status status = torch_check_type(tensor, err);
    if (status)
        return status;
    uint32_t tied = tensor->tied_to;
    if (tied != CATALOG_NONE && tied < i && state->places[tied].record != TORCH_NONE && !state->places[tied].strides &&
        request->wanted->tensors[tied].dtype == tensor->dtype) {
        *place = state->places[tied];
        return RESHARD_OK;
    }
    return torch_record_add(state, i, catalog_tensor_bytes(request->wanted, tensor), &place->record, err);
}

reshard_status torch_place_tensors(const struct layout_request *request, struct torch_target *state, reshard_error *err)
{
    const struct catalog *wanted = request->wanted, *source = request->source_catalog;
    state->places = array_new(wanted->tensor_count, sizeof(*state->places));
    state->wanted_of = array_new(source->tensor_count, sizeof(*state->wanted_of));
    if (!state->places || !state->wanted_of)
        return error_set_memory(err);
    memset(state->wanted_of, 0xFF, (size_t)source->tensor_count * sizeof(*state->wanted_of));
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        state->places[i] = (struct torch_place){ .record = TORCH_NONE };
        if (request->wanted_source[i] < source->tensor_count)
            state->wanted_of[request->wanted_source[i]] = i;
    }
    reshard_status status = place_shared(request, state, err);
    for (uint32_t i = 0; !status && i < wanted->tensor_count; i++)
        if (state->places[i].record == TORCH_NONE && !(wanted->tensors[i].flags & TENSOR_HIDDEN))
            status = place_alone(request, state, i, err);
    return status;
}
