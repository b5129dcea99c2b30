/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_pieces.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"

void st_pieces_release(struct st_pieces *pieces)
{
    free(pieces->items);
    *pieces = (struct st_pieces){ 0 };
}

void st_metadata_release(struct st_metadata *metadata)
{
    name_map_release(&metadata->keys);
    free(metadata->pairs);
    *metadata = (struct st_metadata){ 0 };
}

reshard_status st_pieces_add(struct st_pieces *pieces, const struct st_piece *piece, reshard_error *err)
{
    if (!ARRAY_ROOM(pieces->items, pieces->count, pieces->capacity))
        return error_set_memory(err);
    pieces->items[pieces->count++] = *piece;
    return RESHARD_OK;
}

reshard_status st_metadata_put(struct st_metadata *metadata, struct str key, struct str value, reshard_error *err)
{
    metadata->is_present = true;
    uint32_t index = name_map_intern(&metadata->keys, key, NULL);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (!ARRAY_ROOM(metadata->pairs, index, metadata->capacity))
        return error_set_memory(err);
    metadata->pairs[index] = (struct st_pair){ key, value };
    metadata->count = metadata->keys.count;
    return RESHARD_OK;
}

const struct str *st_metadata_get(const struct st_metadata *metadata, struct str key)
{
    uint32_t index = name_map_find(&metadata->keys, key);
    return index == NAME_NONE ? NULL : &metadata->pairs[index].value;
}

/* ---- what can be stored ---- */

static bool has_payload(const struct catalog_tensor *tensor)
{
    return !(tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

static reshard_status safetensors_pieces_refuse(const struct catalog_tensor *tensor, const char *why, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %s", STR_ARG(tensor->key), why);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status refuse_dtype(const struct catalog_tensor *tensor, reshard_error *err)
{
    const char *name = dtype_info(tensor->dtype)->name;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': safetensors has no dtype %s", STR_ARG(tensor->key), name);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    error_hint(err, "leave it out: reshard_convert_options.exclude '%.*s'", STR_ARG(tensor->key));
    if (dtype_info(tensor->dtype)->class_ == DTYPE_CLASS_COMPLEX)
        error_hint(err, "or cast it: reshard_convert_options.dtypes '%.*s=C64'", STR_ARG(tensor->key));
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status safetensors_pieces_check_tensor(const struct catalog_tensor *tensor, reshard_error *err)
{
    size_t bad_index;
    if (str_equal(tensor->key, STR(ST_METADATA_KEY)))
        return safetensors_pieces_refuse(tensor, "safetensors reserves this name", err);
    if (!str_is_utf8(tensor->key, false, &bad_index))
        return safetensors_pieces_refuse(tensor, "its name is no Unicode text, which safetensors needs", err);
    if (tensor->dtype == DTYPE_F4_X2 && tensor->rank > 0)
        return RESHARD_OK;
    if (dtype_info(tensor->dtype)->safetensors_rank < 0)
        return refuse_dtype(tensor, err);
    return RESHARD_OK;
}

static bool path_show(const struct catalog *catalog, const struct catalog_tensor *tensor, struct buffer *out)
{
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_tensor_path(catalog, tensor, &single, &parts);
    buffer_append_byte(out, '[');
    for (size_t i = 0; i < count; i++) {
        buffer_append_text(out, i ? ", " : "");
        if (parts[i].kind == PATH_KEY)
            buffer_append_json_string(out, parts[i].key);
        else
            buffer_printf(out, "%s%" PRId64, parts[i].kind == PATH_INT_KEY ? "int " : "", parts[i].index);
    }
    return buffer_append_byte(out, ']');
}

static reshard_status refuse_ambiguous(const struct catalog *wanted, uint32_t a, uint32_t b, reshard_error *err)
{
    const struct catalog_tensor *tensor = &wanted->tensors[b];
    struct buffer text = { 0 };
    path_show(wanted, &wanted->tensors[a], &text);
    buffer_append_text(&text, " and ");
    bool fits = path_show(wanted, tensor, &text) && buffer_append_byte(&text, '\0');
    if (!fits) {
        buffer_release(&text);
        return error_set_memory(err);
    }
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': two tensors have this key: %s", STR_ARG(tensor->key), (const char *)text.data);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    error_hint(err, "leave both out: reshard_convert_options.exclude '%.*s', or write a format that keeps nesting, such as torch",
               STR_ARG(tensor->key));
    buffer_release(&text);
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- ties ---- */

/* For each tensor the one of its tie group that comes first by name: that is the one the hub's writers keep. */
static uint32_t *ties_find(const struct catalog *wanted)
{
    size_t count = (size_t)wanted->tensor_count + 1;
    uint32_t *kept = array_new(count, sizeof(*kept)), *first = array_new(count, sizeof(*first));
    if (!kept || !first) {
        free(kept);
        free(first);
        return NULL;
    }
    /* A tie points to an earlier tensor, so one pass finds the roots; first is the best name of each root's group so far. */
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        uint32_t tied_to = wanted->tensors[i].tied_to;
        uint32_t root = tied_to < i ? kept[tied_to] : i;
        kept[i] = root;
        if (root == i)
            first[i] = i;
        else if (has_payload(&wanted->tensors[i]) &&
                 (!has_payload(&wanted->tensors[first[root]]) || str_compare(wanted->tensors[i].key, wanted->tensors[first[root]].key) < 0))
            first[root] = i;
    }
    for (uint32_t i = 0; i < wanted->tensor_count; i++)
        kept[i] = first[kept[i]];
    free(first);
    return kept;
}

/* ---- collecting ---- */

struct st_collect {
    const struct layout_request *request;
    struct target *target;
    struct st_pieces *pieces;
    struct st_metadata *ties;
    struct name_map names; /* piece i is called name i */
    uint32_t *kept;
    bool drop_ties;
};

static reshard_status collect_tie(struct st_collect *collect, uint32_t index, bool *is_dropped, reshard_error *err)
{
    const struct catalog *wanted = collect->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[index], *kept = &wanted->tensors[collect->kept[index]];
    *is_dropped = false;
    if (tensor == kept)
        return RESHARD_OK;
    if (!collect->drop_ties)
        return target_note_changed(collect->target, NOTE_TIE, tensor->key, err, "shares its bytes with %.*s, is written as a copy",
                                   STR_ARG(kept->key));
    *is_dropped = true;
    reshard_status status = st_metadata_put(collect->ties, tensor->key, kept->key, err);
    if (status)
        return status;
    return target_note_changed(collect->target, NOTE_TIE, tensor->key, err, "is not written, recorded as tied to %.*s", STR_ARG(kept->key));
}

static reshard_status collect_tensor(struct st_collect *collect, uint32_t index, reshard_error *err)
{
    const struct catalog *wanted = collect->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[index];
    bool is_dropped, was_new;
    if (tensor->flags & TENSOR_HIDDEN)
        return RESHARD_OK;
    if (tensor->flags & TENSOR_NO_DATA)
        return target_note_dropped(collect->target, NOTE_NO_DATA, tensor->key, err, "a tensor without data (meta)");
    reshard_status status = safetensors_pieces_check_tensor(tensor, err);
    if (status)
        return status;
    status = collect_tie(collect, index, &is_dropped, err);
    if (status || is_dropped)
        return status;
    uint32_t name = name_map_intern(&collect->names, tensor->key, &was_new);
    if (name == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return refuse_ambiguous(wanted, collect->pieces->items[name].tensor, index, err);
    if (tensor->dtype == DTYPE_F4_X2) {
        status = target_note_changed(collect->target, NOTE_DTYPE, tensor->key, err, "%s becomes F4, its last dimension twice as long",
                                     dtype_info(tensor->dtype)->name);
        if (status)
            return status;
    }
    struct st_piece piece = {
        .name = tensor->key,
        .extent = catalog_vector_at(wanted, tensor->shape),
        .bytes = catalog_tensor_bytes(wanted, tensor),
        .tensor = index,
        .rank = tensor->rank,
        .dtype = tensor->dtype,
    };
    return st_pieces_add(collect->pieces, &piece, err);
}

reshard_status st_pieces_collect(const struct layout_request *request, struct target *target, bool drop_ties, struct st_pieces *out,
                                 struct st_metadata *ties, reshard_error *err)
{
    struct st_collect collect = { .request = request, .target = target, .pieces = out, .ties = ties, .drop_ties = drop_ties };
    reshard_status status = RESHARD_OK;
    collect.kept = ties_find(request->wanted);
    if (!collect.kept)
        status = error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->tensor_count && !status; i++)
        status = collect_tensor(&collect, i, err);
    free(collect.kept);
    name_map_release(&collect.names);
    return status;
}

/* ---- the head of a file ---- */

static enum dtype stored_dtype(const struct st_piece *piece)
{
    return piece->dtype == DTYPE_F4_X2 ? DTYPE_F4 : piece->dtype;
}

/* Wide types first, so that every tensor is aligned to its elements without padding. */
static int piece_order(const void *a, const void *b)
{
    const struct st_piece *x = a, *y = b;
    int x_rank = dtype_info(stored_dtype(x))->safetensors_rank, y_rank = dtype_info(stored_dtype(y))->safetensors_rank;
    return x_rank != y_rank ? y_rank - x_rank : str_compare(x->name, y->name);
}

static int pair_order(const void *a, const void *b)
{
    const struct st_pair *x = a, *y = b;
    return str_compare(x->key, y->key);
}

static bool safetensors_pieces_write_metadata(const struct st_metadata *metadata, struct buffer *out)
{
    struct st_pair *pairs = array_new(metadata->count, sizeof(*pairs));
    if (!pairs)
        return false;
    for (uint32_t i = 0; i < metadata->count; i++)
        pairs[i] = metadata->pairs[i];
    qsort(pairs, metadata->count, sizeof(*pairs), pair_order);
    buffer_append_text(out, "\"" ST_METADATA_KEY "\":{");
    for (uint32_t i = 0; i < metadata->count; i++) {
        buffer_append_text(out, i ? "," : "");
        buffer_append_json_string(out, pairs[i].key);
        buffer_append_byte(out, ':');
        buffer_append_json_string(out, pairs[i].value);
    }
    free(pairs);
    return buffer_append_byte(out, '}');
}

static void write_entry(const struct st_piece *piece, struct buffer *out)
{
    buffer_append_json_string(out, piece->name);
    buffer_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_info(stored_dtype(piece))->name);
    for (int i = 0; i < piece->rank; i++) {
        bool is_packed = piece->dtype == DTYPE_F4_X2 && i == piece->rank - 1;
        buffer_printf(out, "%s%" PRIu64, i ? "," : "", (uint64_t)piece->extent[i] * (is_packed ? 2 : 1));
    }
    buffer_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", piece->begin, piece->begin + piece->bytes);
}

static bool assign_ranges(struct st_piece *pieces, uint32_t count, uint64_t *data_bytes)
{
    uint64_t running = 0;
    if (count)
        qsort(pieces, count, sizeof(*pieces), piece_order);
    for (uint32_t i = 0; i < count; i++) {
        pieces[i].begin = running;
        if (__builtin_add_overflow(running, pieces[i].bytes, &running) || running > INT64_MAX / 2)
            return false;
    }
    *data_bytes = running;
    return true;
}

reshard_status st_head_write(struct st_piece *pieces, uint32_t count, const struct st_metadata *metadata, const struct limits *limits,
                             struct buffer *out, uint64_t *data_bytes, reshard_error *err)
{
    size_t head = out->size;
    if (!assign_ranges(pieces, count, data_bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the tensors of one file take more than 2^62 bytes");
    buffer_append_u64le(out, 0);
    buffer_append_byte(out, '{');
    if (metadata->is_present && !safetensors_pieces_write_metadata(metadata, out))
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        buffer_append_text(out, i || metadata->is_present ? "," : "");
        write_entry(&pieces[i], out);
    }
    buffer_append_byte(out, '}');
    buffer_append_fill(out, ' ', (8 - (out->size - head) % 8) % 8);
    if (out->failed)
        return error_set_memory(err);
    uint64_t length = out->size - head - 8;
    if (length > limits->json_bytes) {
        error_set_limit(err, "json_bytes", length, limits->json_bytes);
        error_hint(err, "readers refuse such headers; more and smaller shards help: reshard_convert_options.to hf "
                        "reshard_convert_options.max_shard_bytes SIZE");
        return RESHARD_ERR_LIMIT;
    }
    for (int i = 0; i < 8; i++)
        out->data[head + (size_t)i] = (uint8_t)(length >> (8 * i));
    return RESHARD_OK;
}
