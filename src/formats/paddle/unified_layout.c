/* SPDX-License-Identifier: Apache-2.0 */
/* Lays a Unified Checkpoint out: the tensors of each family dealt over its files, then its index, then what is carried along. */
#include "formats/paddle/paddle.h"
#include "base/array.h"
#include "formats/paddle/flex.h"
#include "formats/paddle/unified_quantised.h"
#include "formats/paddle/unified_target.h"

#include "formats/shared/safetensors_items.h"
#include "formats/shared/safetensors_target.h"

#include <inttypes.h>
#include <stdlib.h>

struct uc_write {
    const struct layout_request *request;
    struct target *target;
    const struct uc_state *like; /* of the reference, or NULL */
    bool is_dealt_like;          /* tensors go to the files that the reference has them in */
    struct st_pieces pieces[UC_FAMILIES];
    uint32_t files[UC_FAMILIES];
    const struct uc_state *from; /* of the source, or NULL */
    struct st_metadata metadata;
    enum uc_mode mode;
    struct uc_placing placing;
    bool is_empty; /* nothing has a place in any family */
};

/* ---- families ---- */

/* Which family a key names, and the key in it; one that names none is a weight's. */
static enum uc_family unified_layout_family(struct str *key)
{
    for (int f = 0; f < UC_FAMILIES; f++) {
        size_t size = strlen(uc_stems[f]);
        if (key->size <= size + 1 || !str_starts_with(*key, uc_stems[f]) || key->data[size] != ':')
            continue;
        *key = (struct str){ key->data + size + 1, key->size - size - 1 };
        return f;
    }
    return UC_MODEL;
}

/* Paddle reads U16 as bfloat16, and knows none of the other types that it has no name for. */
static bool unified_layout_has_dtype(enum dtype dtype)
{
    static const enum dtype known[] = { DTYPE_BOOL, DTYPE_U8,  DTYPE_I8,  DTYPE_I16, DTYPE_I32,     DTYPE_I64,     DTYPE_F16,
                                        DTYPE_BF16, DTYPE_F32, DTYPE_F64, DTYPE_C64, DTYPE_F8_E4M3, DTYPE_F8_E5M2 };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i] == dtype)
            return true;
    }
    return false;
}

static reshard_status unified_layout_sort(struct uc_write *write, struct st_pieces *all, reshard_error *err)
{
    struct name_map names[UC_FAMILIES] = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < all->count && !status; i++) {
        struct st_piece piece = all->items[i];
        bool was_new = true;
        enum uc_family family = unified_layout_family(&piece.name);
        if (!unified_layout_has_dtype(piece.dtype)) {
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': Paddle has no dtype %s", STR_ARG(all->items[i].name),
                               dtype_info(piece.dtype)->name);
            error_object(err, "%.*s", STR_ARG(all->items[i].name));
        } else if (name_map_intern(&names[family], piece.name, &was_new) == NAME_NONE) {
            status = error_set_memory(err);
        } else if (!was_new) {
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': two tensors would have this key in the family '%s'",
                               STR_ARG(piece.name), uc_stems[family]);
            error_object(err, "%.*s", STR_ARG(all->items[i].name));
        }
        if (!status)
            status = st_pieces_add(&write->pieces[family], &piece, err);
    }
    for (int f = 0; f < UC_FAMILIES; f++)
        name_map_release(&names[f]);
    return status;
}

/* What is written as it is, though the trainer does not take it so. */
static reshard_status unified_layout_note_piece(struct uc_write *write, const struct st_piece *piece, uint32_t *states, reshard_error *err)
{
    struct str key = write->request->wanted->tensors[piece->tensor].key;
    *states += !str_starts_with(key, FLEX_EMA_NAME ".") && (str_ends_with(key, ".moment1_0") || str_ends_with(key, ".w_0"));
    if (piece->rank > PADDLE_RANK_MAX)
        return target_note_changed(write->target, NOTE_RELEASE, key, err, "Paddle loads no tensors of more than %d dimensions",
                                   PADDLE_RANK_MAX);
    if (piece->dtype == DTYPE_C64)
        return target_note_changed(write->target, NOTE_RELEASE, key, err, "PaddleFormers 1.2 does not load C64 from safetensors");
    return RESHARD_OK;
}

static reshard_status unified_layout_note(struct uc_write *write, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    uint32_t states = 0;
    for (uint32_t i = 0; i < write->pieces[UC_MODEL].count && !status; i++)
        status = unified_layout_note_piece(write, &write->pieces[UC_MODEL].items[i], &states, err);
    if (!status && states)
        status = target_note_changed(write->target, NOTE_NAMES, (struct str){ 0 }, err,
                                     "%" PRIu32 " optimizer states are written among the weights under the names that they have: "
                                     "reshard_map_options.rules auto deals them over the families", states);
    return status;
}

/* ---- which tensor goes to which file ---- */

static uint64_t unified_layout_bytes(const struct st_pieces *pieces)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < pieces->count; i++)
        bytes += pieces->items[i].bytes;
    return bytes;
}

/* By size: a file is closed before it would get too large. */
static uint32_t unified_layout_split(struct st_pieces *pieces, uint64_t bytes_max)
{
    uint32_t file = 0;
    uint64_t open_bytes = 0;
    for (uint32_t i = 0; i < pieces->count; i++) {
        uint64_t bytes = pieces->items[i].bytes;
        if (bytes_max && open_bytes && (bytes > bytes_max || open_bytes > bytes_max - bytes)) {
            file++;
            open_bytes = 0;
        }
        pieces->items[i].file = file;
        open_bytes += bytes;
    }
    return file + 1;
}

/* A key as a reader lists it; empty without memory. */
static struct str unified_layout_key(struct arena *arena, enum uc_family family, struct str name)
{
    size_t stem = strlen(uc_stems[family]), size = stem + 1 + name.size;
    char *text = arena_alloc(arena, size);
    if (!text)
        return (struct str){ 0 };
    memcpy(text, uc_stems[family], stem);
    text[stem] = ':';
    memcpy(text + stem + 1, name.data, name.size);
    return (struct str){ text, size };
}

/* The number of a reference's file: 0-based, as the chunk of its tensor says; UINT32_MAX if it does not have the tensor. */
static uint32_t unified_layout_reference_file(const struct uc_write *write, struct str key)
{
    const struct catalog *catalog = write->request->like->catalog;
    uint32_t tensor = catalog_find(catalog, key);
    if (tensor == CATALOG_NONE || !catalog->tensors[tensor].chunk_count)
        return UINT32_MAX;
    return catalog->chunks[catalog->tensors[tensor].first_chunk].writer;
}

static uint32_t unified_layout_files_like(const struct uc_write *write, enum uc_family family)
{
    uint32_t files = write->like->files[family];
    for (int f = 0; f < UC_FAMILIES && !files; f++)
        files = write->like->files[f];
    return files ? files : 1;
}

static reshard_status unified_layout_assign_like(struct uc_write *write, enum uc_family family, reshard_error *err)
{
    struct st_pieces *pieces = &write->pieces[family];
    uint32_t files = unified_layout_files_like(write, family);
    uc_deal(pieces->items, pieces->count, files, 0);
    for (uint32_t i = 0; i < pieces->count && write->like->files[family]; i++) {
        struct str key = unified_layout_key(&write->target->catalog->arena, family, pieces->items[i].name);
        if (!key.size)
            return error_set_memory(err);
        uint32_t file = unified_layout_reference_file(write, key);
        pieces->items[i].file = file < files ? file : files - 1;
    }
    write->files[family] = files;
    return RESHARD_OK;
}

static reshard_status unified_layout_assign(struct uc_write *write, enum uc_family family, reshard_error *err)
{
    const struct layout_request *request = write->request;
    struct st_pieces *pieces = &write->pieces[family];
    uint32_t tp = layout_number(request, "tp"), files = tp ? tp : request->ranks ? request->ranks : 1;
    if (write->is_dealt_like)
        return unified_layout_assign_like(write, family, err);
    if (write->placing.is_asked) {
        bool is_state = family == UC_OPTIMIZER || family == UC_MASTERS || (family == UC_MODEL && write->mode == UC_MODE_SKIP);
        write->files[family] = uc_placing_assign(&write->placing, pieces, is_state);
        return RESHARD_OK;
    }
    if (files == 1 && request->max_shard_bytes > 0) {
        write->files[family] = unified_layout_split(pieces, (uint64_t)request->max_shard_bytes);
    } else {
        uc_deal(pieces->items, pieces->count, files, 0);
        write->files[family] = files;
    }
    return RESHARD_OK;
}

static bool unified_layout_is_quantised(const struct uc_write *write, enum uc_family family)
{
    return family == UC_OPTIMIZER && write->from && uc_stage_is_known(write->from->quant_stage);
}

/* Quantised states are of use with their scales only, which the trainer's loader looks for in the same file. */
static reshard_status unified_layout_join(struct st_pieces *pieces, reshard_error *err)
{
    struct name_map weights = { 0 };
    uint32_t *files = array_zeroed(pieces->count, sizeof(*files));
    reshard_status status = files ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < pieces->count && !status; i++) {
        bool was_new;
        uint32_t weight = name_map_intern(&weights, uc_weight_of(pieces->items[i].name), &was_new);
        if (weight == NAME_NONE)
            status = error_set_memory(err);
        else if (was_new)
            files[weight] = pieces->items[i].file;
        else
            pieces->items[i].file = files[weight];
    }
    name_map_release(&weights);
    free(files);
    return status;
}

/* ---- files ---- */

static int unified_layout_file_order(const void *a, const void *b)
{
    const struct st_piece *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static bool unified_layout_is_single(const struct uc_write *write, enum uc_family family)
{
    return write->like && write->files[family] == 1 && write->like->files[family] == 1 && !write->like->is_indexed[family];
}

static char *unified_layout_name(const struct uc_write *write, enum uc_family family, uint32_t file)
{
    struct arena *arena = &write->target->catalog->arena;
    if (unified_layout_is_single(write, family))
        return arena_printf(arena, "%s.safetensors", uc_stems[family]);
    return arena_printf(arena, "%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", uc_stems[family], file + 1, write->files[family]);
}

static void unified_layout_print_settings(const struct uc_write *write, struct buffer *out)
{
    const struct uc_state *from = write->from;
    bool from_skip = from && from->had_masters && !from->has[UC_MASTERS];
    bool has_masters = write->mode != UC_MODE_REMOVE && (write->pieces[UC_MASTERS].count || from_skip || write->mode == UC_MODE_SKIP);
    if (from && from->quant_stage.size) {
        buffer_append_text(out, ",\n    \"ckpt_quant_stage\": ");
        buffer_append_json_string(out, from->quant_stage);
    }
    buffer_printf(out, ",\n    \"quant_ckpt_resume_times\": %" PRId64 ",\n    \"master_weights\": %s",
                  from ? from->resume_times : 0, has_masters ? "true" : "false");
}

static void unified_layout_print_entry(const struct uc_write *write, enum uc_family family, struct str key, uint32_t file, bool *is_next,
                                       struct buffer *out)
{
    buffer_append_text(out, *is_next ? ",\n        " : "\n        ");
    buffer_append_json_string(out, key);
    buffer_printf(out, ": \"%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors\"", uc_stems[family], file + 1, write->files[family]);
    *is_next = true;
}

/* Of quantised states the trainer writes down what they were before: no scales, both moments where they are one tensor. */
static void unified_layout_print_map(const struct uc_write *write, enum uc_family family, struct buffer *out)
{
    const struct st_pieces *pieces = &write->pieces[family];
    bool is_quantised = unified_layout_is_quantised(write, family), is_next = false;
    struct buffer moment = { 0 };
    for (uint32_t i = 0; i < pieces->count; i++) {
        const struct st_piece *piece = &pieces->items[i];
        const char *within = is_quantised ? uc_quantised_within(piece->name, piece->dtype) : NULL;
        if (is_quantised && uc_quantised_state(piece->name).size)
            continue;
        if (within) {
            buffer_clear(&moment);
            buffer_append_str(&moment, uc_weight_of(piece->name));
            out->failed |= !buffer_append_text(&moment, within);
            unified_layout_print_entry(write, family, buffer_str(&moment), piece->file, &is_next, out);
        }
        unified_layout_print_entry(write, family, piece->name, piece->file, &is_next, out);
    }
    buffer_append_text(out, is_next ? "\n    }" : "}");
    buffer_release(&moment);
}

/* As Python's json prints it with four blanks, the tensors file by file in the order that they have in the model. */
static reshard_status unified_layout_add_index(struct uc_write *write, enum uc_family family, reshard_error *err)
{
    const struct st_pieces *pieces = &write->pieces[family];
    struct buffer text = { 0 };
    char *name = arena_printf(&write->target->catalog->arena, "%s.safetensors.index.json", uc_stems[family]);
    if (!name)
        return error_set_memory(err);
    buffer_printf(&text, "{\n    \"metadata\": {\n        \"total_size\": %" PRIu64 "\n    },\n    \"weight_map\": {",
                  unified_layout_bytes(pieces));
    unified_layout_print_map(write, family, &text);
    if (family == UC_OPTIMIZER)
        unified_layout_print_settings(write, &text);
    if (family == UC_PEFT)
        buffer_append_text(&text, ",\n    \"type\": \"lora\"");
    if (!buffer_append_text(&text, "\n}")) {
        buffer_release(&text);
        return error_set_memory(err);
    }
    return st_target_add_text(write->target, str_of(name), &text, err);
}

static reshard_status unified_layout_add_files(struct uc_write *write, enum uc_family family, reshard_error *err)
{
    struct st_pieces *pieces = &write->pieces[family];
    reshard_status status = RESHARD_OK;
    uint32_t begin = 0;
    /* Of no tensors at all, a model without weights is written. */
    if (!pieces->count && (family != UC_MODEL || !write->is_empty))
        return RESHARD_OK;
    if (pieces->count) {
        status = unified_layout_assign(write, family, err);
        if (!status && unified_layout_is_quantised(write, family))
            status = unified_layout_join(pieces, err);
        if (write->placing.is_asked)
            uc_placing_sort(&write->placing, pieces);
        else
            qsort(pieces->items, pieces->count, sizeof(*pieces->items), unified_layout_file_order);
    } else {
        write->files[family] = 1;
    }
    /* The index first: a file's pieces are put into the order of its bytes. */
    if (!status && !unified_layout_is_single(write, family))
        status = unified_layout_add_index(write, family, err);
    for (uint32_t f = 0; f < write->files[family] && !status; f++) {
        uint32_t end = begin;
        while (end < pieces->count && pieces->items[end].file == f)
            end++;
        if (end == begin && pieces->count)
            continue; /* no map would have it */
        char *name = unified_layout_name(write, family, f);
        status = name ? st_target_add_file(write->target, str_of(name), begin < end ? pieces->items + begin : NULL, end - begin,
                                           &write->metadata, &write->request->limits, err)
                      : error_set_memory(err);
        begin = end;
    }
    return status;
}

/* ---- items ---- */

static reshard_status unified_layout_add_side_files(struct uc_write *write, reshard_error *err)
{
    const struct layout_request *request = write->request;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        const struct catalog_item *item = &request->wanted->items[i];
        bool is_known = str_is(item->key, ST_METADATA_KEY);
        bool fits = item->kind == ITEM_FILE && uc_is_side_file(item->key) && !store_name_check(item->key, NULL) &&
                    name_map_find(&write->target->catalog->object_names, item->key) == NAME_NONE;
        if (fits)
            status = st_target_add_copy(write->target, item->key, request->source, layout_item_stored(request, i)->object, err);
        else if (!is_known)
            status = target_note_dropped(write->target, NOTE_NO_PLACE, item->key, err, "a Unified Checkpoint has no place for it");
    }
    return status;
}

/* A reader names the family of every tensor. */
static reshard_status unified_layout_read_keys(struct target *target, enum uc_mode mode, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    struct str *keys = arena_array(&catalog->arena, catalog->tensor_count, sizeof(*keys));
    if (!keys)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str name = catalog->tensors[i].key;
        enum uc_family family = unified_layout_family(&name);
        family = family == UC_MASTERS && mode == UC_MODE_SKIP ? UC_MODEL : family;
        keys[i] = unified_layout_key(&catalog->arena, family, name);
        if (!keys[i].size)
            return error_set_memory(err);
    }
    target->read_keys = keys;
    return RESHARD_OK;
}

reshard_status uc_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct uc_write write = { .request = request, .target = target, .like = request->like ? request->like->driver_state : NULL };
    if (request->source && request->source->driver == target->driver)
        write.from = request->source->driver_state;
    write.is_dealt_like = write.like && !layout_has_words(request);
    struct st_pieces all = { 0 };
    struct st_metadata ties = { 0 };
    target->driver_state = st_target_new();
    reshard_status status = target->driver_state ? target_add_tensors(request, target, err) : error_set_memory(err);
    if (!status)
        status = uc_mode_read(request, &write.mode, err);
    if (!status)
        status = st_pieces_collect(request, target, false, &all, &ties, err);
    if (!status)
        status = unified_layout_read_keys(target, write.mode, err);
    write.is_empty = !all.count; /* storages of items are tensors, and hidden */
    if (!status)
        status = unified_layout_sort(&write, &all, err);
    if (!status && !write.is_dealt_like)
        status = uc_placing_make(request, write.pieces, &write.placing, err);
    if (!status)
        status = uc_mode_apply(write.mode, request, target, write.pieces, err);
    if (!status)
        status = unified_layout_note(&write, err);
    if (!status)
        status = st_metadata_put(&write.metadata, STR("format"), STR("np"), err);
    for (int f = 0; f < UC_FAMILIES && !status; f++)
        status = unified_layout_add_files(&write, f, err);
    if (!status)
        status = unified_layout_add_side_files(&write, err);
    for (int f = 0; f < UC_FAMILIES; f++)
        st_pieces_release(&write.pieces[f]);
    uc_placing_release(&write.placing);
    st_metadata_release(&write.metadata);
    st_metadata_release(&ties);
    st_pieces_release(&all);
    return status;
}
