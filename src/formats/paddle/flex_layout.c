/* SPDX-License-Identifier: Apache-2.0 */
/* Lays a Flex Checkpoint out: pieces to files, then where each file's payload goes, then the metadata. */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "base/name_map.h"
#include "encoding/paddle_save.h"
#include "formats/paddle/flex.h"
#include "formats/paddle/paddle.h"
#include "formats/paddle/unified.h"

#include <inttypes.h>
#include <stdlib.h>

const struct format_option flex_options[] = {
    { "generation", "RELEASE", "3.3", "Paddle whose metadata is written: 2.6, 3.0 (v0, to 3.1), 3.2 (v1), 3.3 (v2)" },
    { "dedupe", "WAY", "balanced", "what several ranks hold is written by: balanced, first-rank; none: by all, as replicas" },
    { "protocol", "4|5", "4", "pickle protocol of the data files; 5 needs Paddle 3.4" },
    { "folders", "WAY", "kept",
      "trainer: model_state, optimizer_state and master_weight, for PaddleFormers; one; kept: those of the reference or the source" },
    { "segment-size", "ELEMENTS", "1048576", "stage=3 leaves parameters of up to so many elements whole" },
    { NULL, NULL, NULL, NULL },
};

/* ---- options ---- */

struct word_value {
    const char *word;
    int value;
};

static const struct word_value releases[] = {
    { "2.6", FLEX_RELEASE_2_6 }, { "3.0", FLEX_RELEASE_3_0 }, { "3.1", FLEX_RELEASE_3_0 },
    { "v0", FLEX_RELEASE_3_0 },  { "3.2", FLEX_RELEASE_3_2 }, { "v1", FLEX_RELEASE_3_2 },
    { "3.3", FLEX_RELEASE_3_3 }, { "v2", FLEX_RELEASE_3_3 },  { NULL, 0 },
};
static const struct word_value dedupes[] = {
    { "balanced", FLEX_DEDUPE_BALANCED }, { "first-rank", FLEX_DEDUPE_FIRST }, { "none", FLEX_DEDUPE_NONE }, { NULL, 0 }
};
static const struct word_value filings[] = {
    { "kept", FLEX_FILING_KEPT }, { "one", FLEX_FILING_ONE }, { "trainer", FLEX_FILING_TRAINER }, { NULL, 0 }
};
static const struct word_value protocols[] = { { "4", 4 }, { "5", 5 }, { NULL, 0 } };

/* The value of an option; *out stays as it is where it was not given. */
static reshard_status flex_layout_read_option(const struct layout_request *request, const char *name, const struct word_value *words,
                                              int *out, reshard_error *err)
{
    const char *value = layout_option(request, name);
    if (!value)
        return RESHARD_OK;
    for (const struct word_value *word = words; word->word; word++) {
        if (strcmp(word->word, value) == 0) {
            *out = word->value;
            return RESHARD_OK;
        }
    }
    struct buffer text = { 0 };
    for (const struct word_value *word = words; word->word; word++)
        buffer_printf(&text, "%s%s", word == words ? "" : ", ", word->word);
    error_set(err, RESHARD_ERR_USAGE, "format option %s=%s: one of %.*s is wanted", name, value, (int)text.size, (const char *)text.data);
    buffer_release(&text);
    return RESHARD_ERR_USAGE;
}

static reshard_status flex_layout_read_options(const struct layout_request *request, struct flex_target *state, reshard_error *err)
{
    int release, dedupe = FLEX_DEDUPE_BALANCED, filing = FLEX_FILING_KEPT;
    const struct source *like = flex_reference(request);
    state->release = FLEX_RELEASE_3_3;
    state->protocol = 4;
    reshard_status status = like ? flex_like_options(like, state, err) : RESHARD_OK;
    release = state->release;
    if (!status)
        status = flex_layout_read_option(request, "generation", releases, &release, err);
    if (!status)
        status = flex_layout_read_option(request, "dedupe", dedupes, &dedupe, err);
    if (!status)
        status = flex_layout_read_option(request, "folders", filings, &filing, err);
    if (!status)
        status = flex_layout_read_option(request, "protocol", protocols, &state->protocol, err);
    state->release = (enum flex_release)release;
    state->dedupe = (enum flex_dedupe)dedupe;
    state->filing = (enum flex_filing)filing;
    if (!status && state->dedupe == FLEX_DEDUPE_NONE && state->release < FLEX_RELEASE_3_3) {
        error_set(err, RESHARD_ERR_USAGE, "metadata before Paddle 3.3 cannot say which of several copies is which");
        error_hint(err, "give reshard_convert_options.format_options generation=3.3 with dedupe=none");
        return RESHARD_ERR_USAGE;
    }
    return status;
}

/* ---- parts of the state ---- */

reshard_status flex_target_add_file(struct target *target, struct str name, uint32_t folder, uint32_t rank, uint32_t *out,
                                    reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    struct flex_out_file file = { .folder = folder, .rank = rank };
    if (!ARRAY_ROOM(state->files, state->file_count, state->file_capacity) || !arena_str(&target->catalog->arena, name, &file.name))
        return error_set_memory(err);
    *out = state->file_count;
    state->files[state->file_count++] = file;
    return RESHARD_OK;
}

reshard_status flex_target_add_folder(struct target *target, enum flex_role role, struct str metadata, uint32_t *out, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    struct flex_out_folder folder = { .role = role, .prefix = str_of(flex_role_folders[role]), .object = CATALOG_NONE };
    for (uint32_t i = 0; i < state->folder_count; i++) {
        if (state->folders[i].role == role) {
            *out = i;
            return RESHARD_OK;
        }
    }
    if (!ARRAY_ROOM(state->folders, state->folder_count, state->folder_capacity) ||
        !arena_str(&target->catalog->arena, metadata, &folder.metadata))
        return error_set_memory(err);
    *out = state->folder_count;
    state->folders[state->folder_count++] = folder;
    return RESHARD_OK;
}

reshard_status flex_target_add_piece(struct target *target, const struct flex_piece *piece, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    if (piece->count >= 0 && state->release < FLEX_RELEASE_3_2) {
        error_set(err, RESHARD_ERR_USAGE, "'%.*s' would be stored as a run of its elements, which metadata before Paddle 3.2 cannot say",
                  STR_ARG(target->catalog->tensors[piece->tensor].key));
        error_hint(err, "stage=1v1 in reshard_convert_options.layout shares whole tensors");
        return RESHARD_ERR_USAGE;
    }
    if (!ARRAY_ROOM(state->pieces, state->piece_count, state->piece_capacity))
        return error_set_memory(err);
    state->pieces[state->piece_count++] = *piece;
    return RESHARD_OK;
}

/* ---- what is wanted ---- */

static reshard_status flex_layout_check_type(const struct flex_target *state, const struct catalog_tensor *tensor, reshard_error *err)
{
    bool is_nameless = state->release == FLEX_RELEASE_2_6 && (tensor->dtype == DTYPE_F8_E4M3 || tensor->dtype == DTYPE_F8_E5M2);
    if (paddle_save_can_hold(tensor->dtype) && !is_nameless)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %s has no dtype %s", STR_ARG(tensor->key),
              is_nameless ? "metadata of Paddle 2.6" : "Paddle", dtype_info(tensor->dtype)->name);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    error_hint(err, "reshard_convert_options.dtypes converts it, reshard_convert_options.exclude leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

static bool flex_layout_is_reserved(struct str key)
{
    return str_ends_with(key, "@@") || str_starts_with(key, "__paddle_");
}

static reshard_status flex_layout_check_key(struct name_map *names, struct str key, reshard_error *err)
{
    bool was_new;
    if (name_map_intern(names, key, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is the key of two tensors or items; keys of a Flex Checkpoint are unique",
                  STR_ARG(key));
    else if (flex_layout_is_reserved(key))
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': Paddle keeps keys that end with @@ or begin with __paddle_ for itself",
                  STR_ARG(key));
    else
        return RESHARD_OK;
    error_object(err, "%.*s", STR_ARG(key));
    error_hint(err, "rename it with reshard_map_options.texts, or leave it out with reshard_convert_options.exclude");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status flex_layout_check_tensors(const struct layout_request *request, struct target *target, struct name_map *names,
                                                reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    bool has_numbers = false;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        if (tensor->flags & TENSOR_NO_DATA && !(tensor->flags & TENSOR_HIDDEN))
            status = target_note_dropped(target, NOTE_NO_DATA, tensor->key, err, "a tensor without data");
        if (status || !flex_is_stored(tensor))
            continue;
        status = flex_layout_check_type(flex_target_state(target), tensor, err);
        if (!status)
            status = flex_layout_check_key(names, tensor->key, err);
        if (!status && tensor->rank > PADDLE_RANK_MAX)
            status = target_note_changed(target, NOTE_RELEASE, tensor->key, err, "Paddle loads no tensors of more than %d dimensions",
                                         PADDLE_RANK_MAX);
        for (uint32_t p = 0; tensor->path != CATALOG_NONE && p < tensor->path_count; p++)
            has_numbers |= wanted->paths[tensor->path + p].kind != PATH_KEY;
    }
    if (!status && has_numbers)
        status = target_note_changed(target, NOTE_KEYS, (struct str){ 0 }, err, "positions in lists and integer keys become strings");
    return status;
}

/* ---- items ---- */

static bool flex_layout_has_names(const struct layout_request *request, struct flex_target *state)
{
    if (!state->names)
        state->names = array_zeroed(request->wanted->tensor_count, sizeof(*state->names));
    return state->names != NULL;
}

/* Names of the framework that the files of a Flex Checkpoint have, for what has none yet. is_source: not the reference. */
static reshard_status keep_names(const struct layout_request *request, struct target *target, const struct source *from, bool is_source,
                                 reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    struct static_names names = { 0 };
    reshard_status status = flex_called(from, &names, err);
    if (!status && names.keys.count && !flex_layout_has_names(request, state))
        status = error_set_memory(err);
    for (uint32_t t = 0; names.keys.count && t < request->wanted->tensor_count && !status; t++) {
        struct str name = is_source ? flex_called_source(&names, request, t) : static_names_find(&names, request->wanted->tensors[t].key);
        if (name.size && !state->names[t].size && !arena_str(&target->catalog->arena, name, &state->names[t]))
            status = error_set_memory(err);
    }
    static_names_release(&names);
    return status;
}

/* Names of the framework that a table of the source has for its keys, which may have something in front that the item's key has, too. */
static reshard_status take_names(const struct layout_request *request, struct target *target, const struct catalog_item *item,
                                 struct str item_key, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    const size_t prefix = item_key.size - strlen(PADDLE_NAME_TABLE);
    struct value **pairs;
    size_t count;
    if (!item->value || !value_as_mapping(item->value, &pairs, &count))
        return target_note_dropped(target, NOTE_NO_VALUE, item_key, err, "it is no table of names");
    if (!flex_layout_has_names(request, state))
        return error_set_memory(err);
    struct name_map keys = { 0 };
    struct value **names = array_new(count / 2, sizeof(struct value *)); /* by key */
    reshard_status status = names ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < count && !status; i += 2) {
        bool was_new;
        struct str key;
        uint32_t number = value_as_str(pairs[i], &key) ? name_map_intern(&keys, key, &was_new) : NAME_NONE - 1;
        if (number == NAME_NONE)
            status = error_set_memory(err);
        else if (number != NAME_NONE - 1)
            names[number] = pairs[i + 1];
    }
    for (uint32_t t = 0; t < request->wanted->tensor_count && !status; t++) {
        uint32_t source = request->wanted_source[t];
        struct str key = source == CATALOG_NONE ? (struct str){ 0 } : request->source_catalog->tensors[source].key;
        bool has_prefix = key.size > prefix && memcmp(key.data, item_key.data, prefix) == 0;
        uint32_t number = has_prefix ? name_map_find(&keys, (struct str){ key.data + prefix, key.size - prefix }) : NAME_NONE;
        if (number != NAME_NONE)
            (void)value_as_str(names[number], &state->names[t]);
    }
    free(names);
    name_map_release(&keys);
    return status;
}

static reshard_status flex_layout_take_item(const struct layout_request *request, struct target *target, struct name_map *names,
                                            uint32_t wanted, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    struct str key = request->wanted->items[wanted].key;
    const struct catalog_item *item;
    const char *why;
    if (layout_item_stored(request, wanted)->kind == ITEM_FILE)
        return RESHARD_OK;
    reshard_status status = layout_item(request, wanted, &item, err);
    if (status)
        return status;
    if (str_ends_with(key, PADDLE_NAME_TABLE))
        return take_names(request, target, item, layout_item_stored(request, wanted)->key, err);
    if (flex_layout_is_reserved(key))
        return target_note_dropped(target, NOTE_NO_PLACE, key, err, "Paddle keeps such names for itself");
    status = flex_item_check_plain(item, &why, err);
    if (!status && why)
        return target_note_dropped(target, item->value ? NOTE_NO_PLACE : NOTE_NO_VALUE, key, err, "%s", why);
    if (!status)
        status = flex_layout_check_key(names, key, err);
    if (status)
        return status;
    state->items[state->item_count++] = (struct flex_out_item){ wanted, key };
    return RESHARD_OK;
}

static reshard_status flex_layout_take_items(const struct layout_request *request, struct target *target, struct name_map *names,
                                             reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    reshard_status status = RESHARD_OK;
    state->items = array_zeroed(request->wanted->item_count, sizeof(*state->items));
    if (!state->items)
        return error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++)
        status = flex_layout_take_item(request, target, names, i, err);
    return status;
}

/* ---- files ---- */

static int flex_layout_by_file(const void *a, const void *b, void *context)
{
    const struct flex_piece *pieces = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (pieces[i].file != pieces[j].file)
        return pieces[i].file < pieces[j].file ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* Brings pieces in the order of their files, and says where those of each are. */
static reshard_status flex_layout_sort_pieces(struct flex_target *state, reshard_error *err)
{
    uint32_t *order = array_new(state->piece_count, sizeof(*order));
    struct flex_piece *sorted = array_new(state->piece_count, sizeof(*sorted));
    if (!order || !sorted) {
        free(order);
        free(sorted);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < state->piece_count; i++)
        order[i] = i;
    qsort_r(order, state->piece_count, sizeof(*order), flex_layout_by_file, state->pieces);
    for (uint32_t i = 0; i < state->piece_count; i++) {
        struct flex_out_file *file = &state->files[state->pieces[order[i]].file];
        sorted[i] = state->pieces[order[i]];
        if (!file->piece_count++)
            file->first_piece = i;
    }
    free(order);
    free(state->pieces);
    state->pieces = sorted;
    state->piece_capacity = state->piece_count;
    return RESHARD_OK;
}

static reshard_status add_object(struct target *target, uint32_t folder, struct str name, uint64_t bytes, uint32_t *out, reshard_error *err)
{
    struct str prefix = flex_target_state(target)->folders[folder].prefix;
    const struct str full = ARENA_JOIN(&target->catalog->arena, prefix, name);
    return full.data ? catalog_add_object(target->catalog, full, bytes, out, err) : error_set_memory(err);
}

static reshard_status flex_layout_add_chunk(struct target *target, const struct flex_piece *piece, uint64_t offset, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[piece->tensor];
    int64_t elements = piece->count >= 0 ? piece->count : box_volume(tensor->rank, catalog_vector_at(catalog, piece->extent));
    const struct flex_out_file *file = &flex_target_state(target)->files[piece->file];
    struct catalog_chunk *chunk;
    uint64_t bytes;
    if (!dtype_bytes(tensor->dtype, (uint64_t)elements, &bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "the size of a chunk overflows");
    reshard_status status = catalog_add_chunk(catalog, piece->tensor, catalog_vector_at(catalog, piece->start),
                                              catalog_vector_at(catalog, piece->extent), file->object, offset, bytes, &chunk, err);
    if (status)
        return status;
    chunk->writer = catalog_writer(file->rank);
    if (piece->count < 0)
        return RESHARD_OK;
    return catalog_chunk_set_run(catalog, chunk, piece->begin, piece->count, err);
}

static reshard_status add_data_file(const struct layout_request *request, struct target *target, uint32_t number, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    struct flex_out_file *file = &state->files[number];
    uint64_t *offsets = array_zeroed((size_t)file->piece_count + state->item_count, sizeof(*offsets)), bytes;
    if (!offsets)
        return error_set_memory(err);
    reshard_status status = flex_file_plan(request, target, number, offsets, &bytes, err);
    if (!status)
        status = add_object(target, file->folder, file->name, bytes, &file->object, err);
    for (uint32_t i = 0; i < file->piece_count && !status; i++)
        status = flex_layout_add_chunk(target, &state->pieces[file->first_piece + i], offsets[i], err);
    free(offsets);
    return status;
}

/* Items go into the file of the highest rank if it has no tensors, else into one of the next rank. */
static reshard_status place_items(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    reshard_status status = RESHARD_OK;
    uint32_t last = 0;
    for (uint32_t i = 0; i < state->file_count; i++) {
        if (state->files[i].folder == 0 && state->files[i].rank >= state->files[last].rank)
            last = i;
        for (uint32_t j = 0; state->files[i].is_safetensors && j < state->item_count && !status; j++)
            status = target_note_dropped(target, NOTE_NO_PLACE, request->wanted->items[state->items[j].wanted].key, err,
                                         "the reference has safetensors files, which hold tensors alone");
        if (state->files[i].is_safetensors)
            state->item_count = 0;
    }
    state->item_file = last;
    if (status || !state->item_count || (state->file_count && state->files[last].folder == 0 && !state->files[last].piece_count))
        return status;
    uint32_t rank = state->file_count ? state->files[last].rank + 1 : 0;
    return flex_target_add_rank_file(target, 0, rank, &state->item_file, err);
}

static reshard_status add_files(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    reshard_status status = flex_layout_sort_pieces(state, err);
    if (!status)
        status = place_items(request, target, err);
    for (uint32_t i = 0; i < state->file_count && !status; i++)
        status = add_data_file(request, target, i, err);
    for (uint32_t i = 0; i < state->folder_count && !status; i++) {
        uint64_t bytes = 0;
        status = flex_metadata_write(target, request->wanted, i, NULL, NULL, &bytes, err);
        if (!status)
            status = add_object(target, i, state->folders[i].metadata, bytes, &state->folders[i].object, err);
    }
    return status;
}

/* Files that come along have a trainer's names, which no file of the checkpoint has. */
static reshard_status add_copies(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        const struct catalog_item *item = &request->wanted->items[i], *stored = layout_item_stored(request, i);
        uint64_t rank, uid;
        if (stored->kind != ITEM_FILE)
            continue;
        bool is_own = flex_file_kind_of(item->key, &rank, &uid) != FLEX_OTHER_FILE;
        if (is_own || !uc_is_side_file(item->key) || store_name_check(item->key, NULL)) {
            status = target_note_dropped(target, NOTE_NO_PLACE, item->key, err, "no file that a trainer of Paddle leaves");
            continue;
        }
        if (!ARRAY_ROOM(state->copies, state->copy_count, state->copy_capacity))
            return error_set_memory(err);
        struct flex_out_copy *copy = &state->copies[state->copy_count++];
        copy->source_object = stored->object;
        status = catalog_add_object(target->catalog, item->key, request->source_catalog->objects[stored->object].bytes, &copy->object, err);
    }
    return status;
}

reshard_status flex_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct flex_target *state = calloc(1, sizeof(*state));
    struct name_map names = { 0 };
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    reshard_status status = flex_layout_read_options(request, state, err);
    if (!status)
        status = target_add_tensors(request, target, err);
    if (!status)
        status = flex_layout_check_tensors(request, target, &names, err);
    if (!status)
        status = flex_layout_take_items(request, target, &names, err);
    if (!status)
        status = keep_names(request, target, request->source, true, err);
    if (!status)
        status = keep_names(request, target, flex_reference(request), false, err);
    if (!status)
        status = flex_folders_make(request, target, err);
    if (!status)
        status = flex_reference(request) && !layout_has_words(request) ? flex_place_like(request, target, flex_reference(request), err)
                                                                     : flex_place(request, target, err);
    if (!status)
        status = add_files(request, target, err);
    if (!status)
        status = add_copies(request, target, err);
    name_map_release(&names);
    return status;
}

void flex_close_target(struct target *target)
{
    struct flex_target *state = flex_target_state(target);
    if (!state)
        return;
    for (uint32_t i = 0; i < state->file_count; i++)
        buffer_release(&state->files[i].head);
    free(state->pieces);
    free(state->files);
    free(state->folders);
    free(state->items);
    free(state->copies);
    free(state->names);
    free(state);
    target->driver_state = NULL;
}
