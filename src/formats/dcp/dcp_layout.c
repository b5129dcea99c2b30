/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_target.h"

#include "base/array.h"
#include "encoding/pickle_write.h"
#include "formats/dcp/dcp_source.h"
#include "formats/shared/torch_spell.h"

#include <inttypes.h>
#include <stdlib.h>

reshard_status dcp_tensor_frame(enum dtype dtype, int rank, const int64_t *shape, struct torch_frame *out, reshard_error *err)
{
    struct buffer pickle = { 0 };
    int64_t volume;
    uint64_t bytes;
    if (!shape_volume(rank, shape, &volume) || !dtype_bytes(dtype, (uint64_t)volume, &bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "the size of a chunk overflows");
    pickle_put_begin(&pickle);
    torch_save_put_tensor(&pickle, dtype, rank, shape, NULL, 0, "0", bytes, false);
    pickle_put_end(&pickle);
    reshard_status status = torch_frame_plan("archive", &pickle, &bytes, 1, DCP_ALIGNMENT, out, err);
    buffer_release(&pickle);
    return status;
}

reshard_status dcp_chunk_frame(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                               const int64_t *extent, struct torch_frame *out, reshard_error *err)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    struct dcp_form stored;
    if (!state->flavour->stored_form || !state->flavour->stored_form(state, catalog, tensor, start, extent, &stored))
        return dcp_tensor_frame(info->dtype, info->rank, extent, out, err);
    return dcp_tensor_frame(info->dtype, stored.rank, stored.extent, out, err);
}

/* ---- keys ---- */

static void path_text(const struct path_part *parts, size_t count, struct buffer *out)
{
    for (size_t i = 0; i < count; i++) {
        if (parts[i].kind == PATH_KEY)
            buffer_printf(out, "%s'%.*s'", i ? ", " : "", STR_ARG(parts[i].key));
        else
            buffer_printf(out, "%s%" PRId64, i ? ", " : "", parts[i].index);
    }
    buffer_append_byte(out, '\0');
}

/* Numbers below the count of tensors are tensors of wanted, the others stored items. */
static void describe(const struct catalog *wanted, const struct dcp_target *state, uint32_t number, struct buffer *out)
{
    struct path_part single;
    const struct path_part *parts;
    size_t count = number < wanted->tensor_count ? catalog_tensor_path(wanted, &wanted->tensors[number], &single, &parts)
                                                 : dcp_stored_path(&state->items[number - wanted->tensor_count], &single, &parts);
    path_text(parts, count, out);
}

static reshard_status name_taken(const struct catalog *wanted, const struct dcp_target *state, struct str key, uint32_t first,
                                 uint32_t second, reshard_error *err)
{
    struct buffer a = { 0 }, b = { 0 };
    describe(wanted, state, first, &a);
    describe(wanted, state, second, &b);
    if (a.failed || b.failed)
        error_set_memory(err);
    else
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is the name of both (%s) and (%s); a DCP name is unique", STR_ARG(key),
                  (const char *)a.data, (const char *)b.data);
    error_hint(err, "rename one with reshard_map_options.texts, or leave one out with reshard_convert_options.exclude");
    reshard_status status = a.failed || b.failed ? RESHARD_ERR_MEMORY : RESHARD_ERR_UNSUPPORTED;
    buffer_release(&a);
    buffer_release(&b);
    return status;
}

static reshard_status check_key(const struct catalog *wanted, const struct dcp_target *state, struct name_map *keys, uint32_t *number_of,
                                uint32_t number, struct str key, reshard_error *err)
{
    bool was_new;
    uint32_t index = name_map_intern(keys, key, &was_new);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return name_taken(wanted, state, key, number_of[index], number, err);
    number_of[index] = number;
    return RESHARD_OK;
}

static reshard_status check_wanted(const struct catalog *wanted, const struct dcp_target *state, reshard_error *err)
{
    struct name_map keys = { 0 };
    uint32_t *number_of = array_zeroed((size_t)wanted->tensor_count + state->item_count, sizeof(*number_of));
    reshard_status status = number_of ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        if (wanted->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        status = torch_check_type(&wanted->tensors[i], err);
        if (!status)
            status = check_key(wanted, state, &keys, number_of, i, wanted->tensors[i].key, err);
    }
    for (uint32_t i = 0; i < state->item_count && !status; i++) {
        if (!state->items[i].is_file)
            status = check_key(wanted, state, &keys, number_of, wanted->tensor_count + i, state->items[i].key, err);
    }
    name_map_release(&keys);
    free(number_of);
    return status;
}

/* ---- items ---- */

static reshard_status count_bytes(void *context, const void *bytes, size_t size, reshard_error *err)
{
    (void)bytes;
    (void)err;
    *(uint64_t *)context += size;
    return RESHARD_OK;
}

/* Names that the checkpoint's own files have. */
static bool is_own_name(const struct dcp_target *state, struct str name)
{
    uint64_t rank;
    if (dcp_file_rank(name, &rank) || str_is(name, DCP_METADATA) || str_ends_with(name, ".metadata"))
        return true;
    return dcp_is_listed(state->flavour->own_files, name);
}

static reshard_status lay_out_file(struct dcp_placing *placing, struct dcp_stored *blob, reshard_error *err)
{
    const struct layout_request *request = placing->request;
    const struct dcp_target *state = dcp_target_state(placing->target);
    if (is_own_name(state, blob->key) || store_name_check(blob->key, NULL))
        return target_note_dropped(placing->target, NOTE_NO_PLACE, blob->key, err,
                                   "a file of that name does not fit beside the checkpoint");
    const struct catalog_item *source = layout_item_stored(request, blob->wanted);
    struct catalog *catalog = placing->target->catalog;
    const struct str name = ARENA_JOIN(&catalog->arena, str_of(state->folder), blob->key);
    if (!name.data)
        return error_set_memory(err);
    blob->form = DCP_ITEM_FILE;
    blob->bytes = request->source_catalog->objects[source->object].bytes;
    return catalog_add_object(catalog, name, blob->bytes, &blob->object, err);
}

static reshard_status drop_item(struct dcp_placing *placing, const struct dcp_stored *item, uint32_t node, const char *reason,
                                reshard_error *err)
{
    struct path_tree *tree = &dcp_target_state(placing->target)->tree;
    if (node == CATALOG_NONE)
        return target_note_dropped(placing->target, NOTE_NO_PLACE, item->key, err, "%s", reason);
    tree->nodes[node].is_left_out = true;
    struct str key = tree->nodes[node].wanted == CATALOG_NONE ? item->key : placing->request->wanted->items[tree->nodes[node].wanted].key;
    return target_note_dropped(placing->target, NOTE_NO_PLACE, key, err, "%s", reason);
}

/* What is a torch.save container already is kept byte for byte. */
static reshard_status lay_out_item(struct dcp_placing *placing, uint32_t number, struct dcp_stored *blob, reshard_error *err)
{
    const struct layout_request *request = placing->request;
    const struct catalog_item *source = blob->wanted == CATALOG_NONE ? NULL : layout_item_stored(request, blob->wanted);
    struct dcp_item_pickle pickle = { 0 };
    reshard_error problem = { 0 };
    uint32_t node = CATALOG_NONE;
    if (source && source->kind == ITEM_BLOB && !blob->value && !blob->is_in_list) {
        blob->form = DCP_ITEM_VERBATIM;
        blob->bytes = source->bytes;
        if (source->codec == CODEC_NONE)
            return RESHARD_OK;
        blob->bytes = 0;
        return dcp_item_copy(request->source, source, count_bytes, &blob->bytes, err);
    }
    reshard_status status = dcp_item_pickle_make(request, dcp_target_state(placing->target), number, &pickle, &node, &problem);
    while (status == RESHARD_ERR_UNSUPPORTED) {
        status = drop_item(placing, blob, node, problem.message, err);
        if (status || node == CATALOG_NONE)
            return status;
        /* The rest of the tree is written without that leaf. */
        problem = (reshard_error){ 0 };
        status = dcp_item_pickle_make(request, dcp_target_state(placing->target), number, &pickle, &node, &problem);
    }
    if (status) {
        if (err)
            *err = problem;
        error_prefix(err, "item '%.*s'", STR_ARG(blob->key));
        return status;
    }
    blob->form = DCP_ITEM_PICKLED;
    blob->bytes = pickle.frame.bytes;
    dcp_item_pickle_release(&pickle);
    return RESHARD_OK;
}

/* A pickled item that is a file of its own. */
static reshard_status add_item_file(struct dcp_placing *placing, struct dcp_stored *item, reshard_error *err)
{
    struct catalog *catalog = placing->target->catalog;
    const struct str name = ARENA_JOIN(&catalog->arena, str_of(dcp_target_state(placing->target)->folder), item->key);
    if (!name.data)
        return error_set_memory(err);
    item->offset = 0;
    return catalog_add_object(catalog, name, item->bytes, &item->object, err);
}

static reshard_status dcp_layout_lay_out_items(struct dcp_placing *placing, reshard_error *err)
{
    struct dcp_target *state = dcp_target_state(placing->target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->item_count && !status; i++) {
        struct dcp_stored *item = &state->items[i];
        bool is_side_file = item->is_file && item->wanted != CATALOG_NONE;
        if (is_side_file)
            continue;
        status = lay_out_item(placing, i, item, err);
        if (!status && item->form != DCP_ITEM_DROPPED && !item->is_file)
            status = dcp_place_item(placing, i, item->bytes, err);
    }
    return status;
}

/* ---- chunks ---- */

/* The hidden tensors of an item's blob. */
static reshard_status add_item_chunks(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err)
{
    struct dcp_target *state = dcp_target_state(target);
    const struct dcp_stored *blob = &state->items[item];
    struct dcp_item_pickle pickle = { 0 };
    if (blob->form != DCP_ITEM_PICKLED)
        return RESHARD_OK;
    reshard_status status = dcp_item_pickle_make(request, state, item, &pickle, NULL, err);
    for (uint32_t i = 0; i < pickle.storage_count && !status; i++) {
        const struct dcp_item_storage *storage = &pickle.storages[i];
        struct catalog_chunk *chunk;
        uint64_t payload = blob->offset + pickle.frame.members[pickle.frame.first_storage + i].payload_offset;
        if (storage->is_run) {
            state->vectors.runs[storage->index].object = blob->object;
            state->vectors.runs[storage->index].payload = payload;
        }
        if (!storage->is_tensor)
            continue;
        status = catalog_add_chunk(target->catalog, storage->index, NULL, NULL, blob->object, payload, storage->bytes, &chunk, err);
        if (status)
            break;
        chunk->flags = CHUNK_WANT_CRC;
        chunk->driver_data = DCP_IN_ITEM | item;
    }
    dcp_item_pickle_release(&pickle);
    return status;
}

static reshard_status add_tensor_chunk(const struct dcp_placing *placing, const struct dcp_piece *piece, reshard_error *err)
{
    struct catalog *catalog = placing->target->catalog;
    struct dcp_target *state = dcp_target_state(placing->target);
    const struct catalog_tensor *tensor = &catalog->tensors[piece->index];
    struct catalog_chunk *chunk;
    uint64_t payload_bytes = 0;
    (void)dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, catalog_vector_at(catalog, piece->extent)), &payload_bytes);
    reshard_status status =
        catalog_add_chunk(catalog, piece->index, catalog_vector_at(catalog, piece->start), catalog_vector_at(catalog, piece->extent),
                          placing->files[piece->file].object, piece->offset + piece->payload_offset, payload_bytes, &chunk, err);
    if (status)
        return status;
    uint64_t rank = 0;
    if (dcp_file_rank(placing->files[piece->file].name, &rank))
        chunk->writer = catalog_writer(rank);
    chunk->flags = CHUNK_WANT_CRC;
    state->blobs[state->blob_count] = (struct dcp_blob){ piece->offset, piece->bytes };
    chunk->driver_data = ++state->blob_count;
    return RESHARD_OK;
}

static reshard_status add_chunks(const struct dcp_placing *placing, reshard_error *err)
{
    struct dcp_target *state = dcp_target_state(placing->target);
    reshard_status status = RESHARD_OK;
    state->blobs = array_zeroed(placing->piece_count, sizeof(*state->blobs));
    if (!state->blobs)
        return error_set_memory(err);
    for (uint32_t i = 0; i < placing->piece_count; i++) {
        const struct dcp_piece *piece = &placing->pieces[i];
        if (piece->is_run) {
            struct dcp_run *run = &state->vectors.runs[piece->index];
            run->object = placing->files[piece->file].object;
            run->blob_offset = piece->offset;
            run->blob_bytes = piece->bytes;
            run->payload = piece->offset + piece->payload_offset;
        }
        if (!piece->is_item)
            continue;
        state->items[piece->index].object = placing->files[piece->file].object;
        state->items[piece->index].offset = piece->offset;
    }
    for (uint32_t i = 0; i < state->item_count && !status; i++)
        status = add_item_chunks(placing->request, placing->target, i, err);
    for (uint32_t i = 0; i < placing->piece_count && !status; i++) {
        if (!placing->pieces[i].is_item && !placing->pieces[i].is_run)
            status = add_tensor_chunk(placing, &placing->pieces[i], err);
    }
    return status || !state->flavour->add_vector_chunks ? status : state->flavour->add_vector_chunks(placing->target, err);
}

/* ---- all of it ---- */

/* What the paths of a nested object lose here. */
static reshard_status note_paths(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    if (dcp_target_state(target)->flavour->has_no_paths)
        return RESHARD_OK;
    for (uint32_t i = 0; i < wanted->path_count; i++) {
        if (wanted->paths[i].kind == PATH_INT_KEY)
            return target_note_changed(target, NOTE_KEYS, (struct str){ 0 }, err, "integer dict keys become strings");
    }
    return RESHARD_OK;
}

/* Collects the lists on the paths of what is stored. */
static reshard_status collect_lists(const struct dcp_placing *placing, reshard_error *err)
{
    const struct catalog *wanted = placing->request->wanted;
    const struct dcp_target *state = dcp_target_state(placing->target);
    struct dcp_lists *lists = &dcp_target_state(placing->target)->lists;
    reshard_status status = RESHARD_OK;
    uint32_t last = CATALOG_NONE;
    struct path_part single;
    const struct path_part *parts;
    for (uint32_t i = 0; i < placing->piece_count && !status; i++) {
        const struct dcp_piece *piece = &placing->pieces[i];
        if (piece->is_run || (!piece->is_item && piece->index == last))
            continue;
        size_t count = piece->is_item ? dcp_stored_path(&state->items[piece->index], &single, &parts)
                                      : catalog_tensor_path(wanted, &wanted->tensors[piece->index], &single, &parts);
        last = piece->is_item ? CATALOG_NONE : piece->index;
        status = dcp_lists_add(lists, parts, count, !piece->is_item, err);
    }
    for (uint32_t i = 0; i < lists->lists.count && !status; i++) {
        if (dcp_list_has_hole(&lists->found[i]))
            return target_note_changed(placing->target, NOTE_KEYS, (struct str){ 0 }, err,
                                       "lists with members left out: what is left of them keeps its flat name only");
    }
    return status;
}

reshard_status dcp_target_init(const struct layout_request *request, struct target *target, struct dcp_target *state,
                               const struct dcp_flavour *flavour, reshard_error *err)
{
    uint32_t source_count = request->source_catalog->tensor_count;
    target->driver_state = state;
    state->flavour = flavour;
    state->wanted_of = array_new(source_count, sizeof(*state->wanted_of));
    if (!state->wanted_of)
        return error_set_memory(err);
    memset(state->wanted_of, 0xFF, (size_t)source_count * sizeof(*state->wanted_of));
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++) {
        if (request->wanted_source[i] != CATALOG_NONE)
            state->wanted_of[request->wanted_source[i]] = i;
    }
    return RESHARD_OK;
}

static reshard_status dcp_layout_add_files(struct dcp_placing *placing, reshard_error *err)
{
    struct dcp_target *state = dcp_target_state(placing->target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->item_count && !status; i++) {
        struct dcp_stored *item = &state->items[i];
        if (item->is_file && item->wanted != CATALOG_NONE)
            status = lay_out_file(placing, item, err);
        else if (item->is_file && item->form != DCP_ITEM_DROPPED)
            status = add_item_file(placing, item, err);
    }
    return status;
}

static reshard_status add_metadata_object(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct dcp_target *state = dcp_target_state(target);
    uint64_t bytes = 0;
    reshard_status status = dcp_metadata_write(request, target, count_bytes, &bytes, err);
    char *name = status ? NULL : arena_printf(&target->catalog->arena, "%s" DCP_METADATA, state->folder);
    if (!status && !name)
        status = error_set_memory(err);
    state->has_metadata = !status;
    return status ? status : catalog_add_object(target->catalog, str_of(name), bytes, &state->metadata_object, err);
}

/* What is stored, and where: the chunks are added when all of it has its place. */
static reshard_status place_all(struct dcp_placing *placing, reshard_error *err)
{
    reshard_status status = dcp_place_begin(placing, err);
    if (!status)
        status = dcp_layout_lay_out_items(placing, err);
    if (!status)
        status = dcp_place_tensors(placing, err);
    if (!status)
        status = collect_lists(placing, err);
    if (!status)
        status = dcp_place_finish(placing, err);
    /* Files come after the data files, whose numbers are those of the files. */
    if (!status)
        status = dcp_layout_add_files(placing, err);
    return status ? status : add_chunks(placing, err);
}

reshard_status dcp_container_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct dcp_placing placing = { .request = request, .like = layout_has_words(request) ? NULL : request->like, .target = target };
    reshard_status status = dcp_stored_make(request, target, err);
    if (!status)
        status = check_wanted(request->wanted, dcp_target_state(target), err);
    if (!status)
        status = target_add_tensors(request, target, err);
    if (!status)
        status = note_paths(request, target, err);
    if (!status)
        status = place_all(&placing, err);
    if (!status)
        status = add_metadata_object(request, target, err);
    dcp_placing_release(&placing);
    return status;
}

reshard_status dcp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct dcp_target *state = calloc(1, sizeof(*state));
    reshard_status status = state ? dcp_target_init(request, target, state, &dcp_plain, err) : error_set_memory(err);
    return status ? status : dcp_container_lay_out(request, target, err);
}

reshard_status dcp_item_files_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct dcp_placing placing = { .request = request, .like = layout_has_words(request) ? NULL : request->like, .target = target };
    struct dcp_target *state = dcp_target_state(target);
    reshard_status status = dcp_stored_make(request, target, err);
    for (uint32_t i = 0; i < state->item_count && !status; i++) {
        struct dcp_stored *item = &state->items[i];
        bool is_side_file = item->is_file && item->wanted != CATALOG_NONE, is_object = !item->is_file;
        if (is_side_file) {
            status = lay_out_file(&placing, item, err);
            continue;
        }
        item->is_in_list = false;
        item->is_file = true;
        status = lay_out_item(&placing, i, item, err);
        if (!status && is_object) {
            item->key = ARENA_JOIN(&target->catalog->arena, item->key, STR(".pt"));
            status = item->key.data ? RESHARD_OK : error_set_memory(err);
        }
        if (!status && item->form != DCP_ITEM_DROPPED)
            status = add_item_file(&placing, item, err);
        if (!status)
            status = add_item_chunks(request, target, i, err);
    }
    dcp_placing_release(&placing);
    return status;
}

void dcp_close_target(struct target *target)
{
    struct dcp_target *state = dcp_target_state(target);
    if (!state)
        return;
    free(state->blobs);
    free(state->items);
    free(state->wanted_of);
    dcp_vectors_release(&state->vectors);
    free(state->kept);
    path_tree_release(&state->tree);
    value_graph_release(&state->extra);
    dcp_lists_release(&state->lists);
    free(state);
    target->driver_state = NULL;
}
