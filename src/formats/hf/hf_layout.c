/* SPDX-License-Identifier: Apache-2.0 */
/* Lays a Hugging Face folder out: which piece goes to which file, then the files, the index and what is carried along. */
#include "formats/hf/hf.h"

#include "base/array.h"
#include "formats/hf/hf_assign.h"
#include "formats/hf/hf_folder.h"
#include "formats/hf/hf_index.h"
#include "formats/shared/kept_items.h"
#include "formats/shared/safetensors_items.h"
#include "formats/shared/safetensors_target.h"

#include <inttypes.h>
#include <stdlib.h>

struct hf_target {
    const struct layout_request *request;
    struct target *target;
    struct st_pieces pieces;
    struct st_metadata ties;
    struct st_items items;
    struct hf_assignment assignment;
};

static int file_order(const void *a, const void *b)
{
    const struct st_piece *x = a, *y = b;
    return x->file < y->file ? -1 : x->file > y->file;
}

static reshard_status put_pairs(struct st_metadata *into, const struct st_metadata *from, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < from->count && !status; i++)
        status = st_metadata_put(into, from->pairs[i].key, from->pairs[i].value, err);
    return status;
}

/* ---- metadata ---- */

/* Where a piece starts on an axis; what is stored as F4 counts half bytes on its last one. */
static int64_t saved_offset(const struct st_piece *piece, int axis)
{
    int64_t start = piece->start ? piece->start[axis] : 0;
    return piece->dtype == DTYPE_F4_X2 && axis == piece->rank - 1 ? 2 * start : start;
}

/* {"NAME": {"saved_offsets": [0, 2]}, …} as torch's writer spells it. */
static reshard_status print_sharding_info(const struct st_piece *pieces, uint32_t count, struct buffer *out, reshard_error *err)
{
    buffer_append_byte(out, '{');
    for (uint32_t i = 0; i < count; i++) {
        buffer_append_text(out, i ? ", " : "");
        buffer_append_json_string(out, pieces[i].name);
        buffer_append_text(out, ": {\"saved_offsets\": [");
        for (int axis = 0; axis < pieces[i].rank; axis++)
            buffer_printf(out, "%s%" PRId64, axis ? ", " : "", saved_offset(&pieces[i], axis));
        buffer_append_text(out, "]}");
    }
    return buffer_append_byte(out, '}') ? RESHARD_OK : error_set_memory(err);
}

static reshard_status put_sharding_info(struct hf_target *hf, const struct st_piece *pieces, uint32_t count, struct st_metadata *metadata,
                                        struct buffer *info, reshard_error *err)
{
    if (!hf->assignment.is_dcp)
        return RESHARD_OK;
    buffer_clear(info);
    reshard_status status = print_sharding_info(pieces, count, info, err);
    if (!status)
        status = st_metadata_put(metadata, STR(HF_SHARDING_INFO), buffer_str(info), err);
    if (!status)
        status = st_metadata_put(metadata, STR(HF_DCP_VERSION), STR("1.0"), err);
    return status;
}

static reshard_status prepare_metadata(struct hf_target *hf, reshard_error *err)
{
    reshard_status status = st_metadata_set_framework(hf->request, &hf->items.metadata, err);
    if (status || hf->assignment.index_name.size)
        return status;
    status = st_items_merge_index(&hf->items, hf->target, err);
    return status ? status : put_pairs(&hf->items.metadata, &hf->ties, err);
}

/* ---- files ---- */

static reshard_status hf_layout_add_files(struct hf_target *hf, reshard_error *err)
{
    struct st_pieces *pieces = &hf->pieces;
    struct buffer info = { 0 };
    reshard_status status = RESHARD_OK;
    uint32_t begin = 0;
    if (pieces->count)
        qsort(pieces->items, pieces->count, sizeof(*pieces->items), file_order);
    for (uint32_t f = 0; f < hf->assignment.file_count && !status; f++) {
        uint32_t end = begin;
        while (end < pieces->count && pieces->items[end].file == f)
            end++;
        struct st_piece *first = pieces->count ? pieces->items + begin : NULL;
        status = put_sharding_info(hf, first, end - begin, &hf->items.metadata, &info, err);
        if (!status)
            status = st_target_add_file(hf->target, hf->assignment.files[f], first, end - begin, &hf->items.metadata,
                                        &hf->request->limits, err);
        begin = end;
    }
    buffer_release(&info);
    return status;
}

static reshard_status add_index(struct hf_target *hf, reshard_error *err)
{
    struct buffer text = { 0 };
    uint64_t total_size = 0;
    const struct st_pieces *pieces = &hf->pieces;
    if (!hf->assignment.index_name.size)
        return RESHARD_OK;
    struct hf_mapped *mapped = array_new(pieces->count, sizeof(*mapped));
    if (!mapped)
        return error_set_memory(err);
    for (uint32_t i = 0; i < pieces->count; i++) {
        mapped[i] = (struct hf_mapped){ pieces->items[i].name, hf->assignment.files[pieces->items[i].file] };
        total_size += pieces->items[i].bytes;
    }
    reshard_status status = hf_index_write(mapped, pieces->count, total_size, hf->items.index, hf->request->is_whole, &hf->ties,
                                           &hf->request->limits, &text, err);
    if (!status)
        status = st_target_add_text(hf->target, hf->assignment.index_name, &text, err);
    buffer_release(&text);
    free(mapped);
    return status;
}

static reshard_status hf_layout_add_config(struct hf_target *hf, const struct catalog_item *item, reshard_error *err)
{
    struct buffer text = { 0 };
    if (!buffer_append_str(&text, item->value->text)) {
        buffer_release(&text);
        return error_set_memory(err);
    }
    return st_target_add_text(hf->target, item->key, &text, err);
}

static reshard_status hf_layout_add_side_files(struct hf_target *hf, reshard_error *err)
{
    const struct layout_request *request = hf->request;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < hf->items.file_count && !status; i++) {
        uint32_t index = hf->items.files[i];
        struct str name = request->wanted->items[index].key;
        if (store_name_check(name, NULL) || name_map_find(&hf->target->catalog->object_names, name) != NAME_NONE)
            status = target_note_dropped(hf->target, NOTE_NO_PLACE, name, err, "side file, whose name is taken or no file name");
        else if (st_item_is_config(&request->wanted->items[index]))
            status = hf_layout_add_config(hf, &request->wanted->items[index], err);
        else
            status = st_target_add_copy(hf->target, name, request->source,
                                        layout_item_stored(request, index)->object, err);
    }
    if (!status && hf->items.kept.text.size) {
        status = st_target_add_text(hf->target, STR(KEPT_ITEMS_NAME), &hf->items.kept.text, err);
        hf->items.kept.text = (struct buffer){ 0 }; /* taken over */
    }
    return status;
}

/* What a copy of the folder had besides. */
static reshard_status note_left(const struct hf_target *hf, reshard_error *err)
{
    const struct source *source = hf->request->source;
    const struct hf_state *state = source && source->driver == hf->target->driver ? source->driver_state : NULL;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; state && i < state->left_count && !status; i++)
        status = target_note_dropped(hf->target, NOTE_NO_PLACE, state->left[i], err, "a folder beside the weights, which is not copied");
    return status;
}

reshard_status hf_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const char *tied = layout_option(request, "tied");
    /* Text that could not be read again without raising a limit would cost the whole folder. */
    struct hf_target hf = { .request = request, .target = target, .items.kept.bytes_max = limits_default.json_bytes };
    target->driver_state = st_target_new();
    reshard_status status = target->driver_state ? target_add_tensors(request, target, err) : error_set_memory(err);
    if (status)
        goto out;
    status = st_pieces_collect(request, target, tied && strcmp(tied, "drop") == 0, &hf.pieces, &hf.ties, err);
    if (status)
        goto out;
    status = st_items_take(request, target, true, &hf.items, err);
    if (status)
        goto out;
    status = hf_assign(request, &target->catalog->arena, &hf.pieces, &hf.assignment, err);
    if (status)
        goto out;
    status = prepare_metadata(&hf, err);
    if (status)
        goto out;
    status = hf_layout_add_files(&hf, err);
    if (status)
        goto out;
    status = add_index(&hf, err);
    if (status)
        goto out;
    status = hf_layout_add_side_files(&hf, err);
    if (!status)
        status = note_left(&hf, err);

out:
    hf_assignment_release(&hf.assignment);
    st_items_release(&hf.items);
    st_metadata_release(&hf.ties);
    st_pieces_release(&hf.pieces);
    return status;
}
