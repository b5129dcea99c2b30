/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a Unified Checkpoint are quantised states, and the view in which they are float32. */
#include "formats/paddle/unified_quantised.h"

#include "base/array.h"
#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>

#define GROUP 32 /* rows of a block of stage O2 */
#define OBJECTS "dequantised/"
#define MOMENT1 "/moment1_0"
#define MOMENT2 "/moment2_0"

static const char *const scale_words[] = { "@scales", "@min_scales", "@max_scales" };

/* ---- keys ---- */

bool uc_stage_is_known(struct str stage)
{
    return str_is(stage, "O1") || str_is(stage, "O2");
}

struct str uc_weight_of(struct str key)
{
    struct str rest = key;
    return str_take(&rest, '/');
}

static struct str without_end(struct str key, const char *end)
{
    return (struct str){ key.data, key.size - strlen(end) };
}

struct str uc_quantised_state(struct str key)
{
    for (size_t i = 0; i < sizeof(scale_words) / sizeof(scale_words[0]); i++) {
        struct str state = without_end(key, scale_words[i]);
        if (str_ends_with(key, scale_words[i]) && (str_ends_with(state, MOMENT1) || str_ends_with(state, MOMENT2)))
            return state;
    }
    return (struct str){ 0 };
}

const char *uc_quantised_within(struct str key, enum dtype dtype)
{
    return dtype == DTYPE_I8 && str_ends_with(key, MOMENT2) ? MOMENT1 : NULL;
}

static bool unified_quantised_is_staged(const struct st_set *set)
{
    const struct value *stage = st_index_find(&set->index, "ckpt_quant_stage");
    return stage && stage->kind == VALUE_STR && uc_stage_is_known(stage->text);
}

/* The number of a weight's state in a file, or NAME_NONE. */
static reshard_status unified_quantised_number(const struct st_header *header, struct str weight, const char *end, uint32_t *out,
                                               reshard_error *err)
{
    const struct str parts[] = { weight, str_of(end) };
    return name_map_find_joined(&header->names, parts, 2, out, err);
}

reshard_status uc_quantised_owner(const struct st_header *header, struct str scale, uint32_t *out, reshard_error *err)
{
    struct str state = uc_quantised_state(scale);
    *out = name_map_find(&header->names, state);
    if (*out == NAME_NONE && str_ends_with(state, MOMENT1))
        return unified_quantised_number(header, without_end(state, MOMENT1), MOMENT2, out, err);
    return RESHARD_OK;
}

bool uc_quantised_is_state(const struct st_set *set, struct str key, enum dtype dtype)
{
    bool is_first = str_ends_with(key, MOMENT1), is_second = str_ends_with(key, MOMENT2);
    return unified_quantised_is_staged(set) && ((is_first && dtype == DTYPE_I8) || (is_second && (dtype == DTYPE_U8 || dtype == DTYPE_I8)));
}

/* Whether a file has both moments of a weight in one. */
static reshard_status unified_quantised_has_merged(const struct st_header *header, struct str weight, bool *out, reshard_error *err)
{
    uint32_t first = NAME_NONE, second, scales = NAME_NONE;
    reshard_status status = unified_quantised_number(header, weight, MOMENT2, &second, err);
    if (second != NAME_NONE)
        status = unified_quantised_number(header, weight, MOMENT1 "@scales", &scales, err);
    if (scales != NAME_NONE)
        status = unified_quantised_number(header, weight, MOMENT1, &first, err);
    *out = !status && scales != NAME_NONE && first == NAME_NONE;
    return status;
}

bool uc_quantised_is_scale(const struct st_set *set, struct str key)
{
    return unified_quantised_is_staged(set) && uc_quantised_state(key).size > 0;
}

reshard_status uc_quantised_is_merged(const struct st_set *set, struct str key, bool *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *out = false;
    if (!str_ends_with(key, MOMENT1) || !unified_quantised_is_staged(set))
        return RESHARD_OK;
    for (uint32_t f = 0; f < set->files.count && !*out && !status; f++)
        status = unified_quantised_has_merged(&set->files.items[f].header, without_end(key, MOMENT1), out, err);
    return status;
}

/* ---- the view ---- */

struct uc_view {
    struct uc_state state; /* first: who lays a checkpoint out like this one, or from it, finds it here */
    struct store *computed, *joined;
    struct uc_quantised *items;
    struct store_region *regions;
    uint32_t count, capacity;
};

struct uc_viewing {
    struct source *view;
    const struct catalog *from;
    struct uc_view *state;
    struct buffer key;
};

/* A tensor of the stored checkpoint: the weight's, with this end. CATALOG_NONE: there is none. */
static uint32_t unified_quantised_find(struct uc_viewing *viewing, struct str weight, const char *end)
{
    buffer_clear(&viewing->key);
    buffer_append_str(&viewing->key, weight);
    bool fits = buffer_append_text(&viewing->key, end);
    return fits ? catalog_find(viewing->from, buffer_str(&viewing->key)) : CATALOG_NONE;
}

static reshard_status unified_quantised_refuse(struct str key, const char *why, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' is a quantised state, %s", STR_ARG(key), why);
    error_object(err, "%.*s", STR_ARG(key));
    return RESHARD_ERR_UNSUPPORTED;
}

/* Whether one chunk is all of a tensor; copies of it may follow. */
static bool unified_quantised_is_one(const struct catalog *catalog, const struct catalog_tensor *tensor)
{
    return tensor->chunk_count && catalog->chunks[tensor->first_chunk].bytes == catalog_tensor_bytes(catalog, tensor);
}

static const struct catalog_chunk *unified_quantised_chunk(const struct catalog *catalog, uint32_t tensor)
{
    return &catalog->chunks[catalog->tensors[tensor].first_chunk];
}

/* Rows and columns of a state: a vector has one scale. */
static bool unified_quantised_shape(const struct catalog *catalog, const struct catalog_tensor *tensor, struct uc_quantised *out)
{
    const int64_t *shape = catalog_vector_at(catalog, tensor->shape);
    bool is_block = out->kind == UC_MOMENT1_4 || out->kind == UC_MOMENT2_4;
    if (tensor->rank < 1 || tensor->rank > 2 || (is_block && tensor->rank != 2))
        return false;
    out->rows = (uint64_t)shape[0];
    out->columns = tensor->rank == 2 ? (uint64_t)shape[1] : 1;
    out->group = is_block ? GROUP : out->rows;
    return !is_block || out->rows % GROUP == 0;
}

/* Finds a state's scales: of the one shape that fits it, in the same file. */
static reshard_status unified_quantised_scale(struct uc_viewing *viewing, struct str weight, const char *end, struct uc_quantised *out,
                                              int index, reshard_error *err)
{
    const struct catalog *from = viewing->from;
    uint32_t number = unified_quantised_find(viewing, weight, end);
    if (viewing->key.failed)
        return error_set_memory(err);
    const struct catalog_tensor *scale = number == CATALOG_NONE ? NULL : &from->tensors[number];
    uint64_t groups = out->group == GROUP ? out->rows / GROUP : 1;
    bool fits = scale && scale->dtype == DTYPE_F32 && unified_quantised_is_one(from, scale) && scale->rank <= 2;
    const int64_t *shape = fits ? catalog_vector_at(from, scale->shape) : NULL;
    uint64_t elements = fits ? catalog_tensor_bytes(from, scale) / sizeof(float) : 0;
    fits = fits && elements == groups * out->columns && (scale->rank == 0 || (uint64_t)shape[scale->rank - 1] == out->columns);
    if (!fits) {
        error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' %s", STR_ARG(buffer_str(&viewing->key)),
                  scale ? "does not have the type and the shape of the scales of its state" : "is not there: its state is quantised");
        error_object(err, "%.*s", STR_ARG(buffer_str(&viewing->key)));
        return RESHARD_ERR_FORMAT;
    }
    const struct catalog_chunk *chunk = unified_quantised_chunk(from, number);
    if (strcmp(from->objects[chunk->object].name.data, out->file) != 0)
        return unified_quantised_refuse(weight, "whose scales lie in another file", err);
    out->scale_offsets[index] = chunk->offset;
    return RESHARD_OK;
}

/* Adds the float32 tensor of a state, and what computes it. */
static reshard_status unified_quantised_add(struct uc_viewing *viewing, const struct catalog_tensor *tensor, struct str key,
                                            const struct uc_quantised *item, reshard_error *err)
{
    struct catalog *catalog = viewing->view->catalog;
    struct uc_view *state = viewing->state;
    char name[STORE_REGION_NAME_MAX], path[sizeof(OBJECTS) + STORE_REGION_NAME_MAX];
    uint32_t made, object;
    struct catalog_chunk *chunk;
    const struct catalog_chunk *stored = &viewing->from->chunks[tensor->first_chunk];
    reshard_status status =
        catalog_add_tensor(catalog, key, DTYPE_F32, tensor->rank, catalog_vector_at(viewing->from, tensor->shape), &made, err);
    if (status)
        return status;
    uint64_t bytes = catalog_tensor_bytes(catalog, &catalog->tensors[made]);
    state->items[state->count] = *item;
    state->regions[state->count] =
        (struct store_region){ .bytes = bytes, .read = uc_quantised_read, .context = &state->items[state->count] };
    store_region_name(state->count++, name);
    snprintf(path, sizeof(path), OBJECTS "%s", name);
    status = catalog_add_object(catalog, str_of(path), bytes, &object, err);
    if (!status)
        status = catalog_add_chunk(catalog, made, NULL, NULL, object, 0, bytes, &chunk, err);
    if (!status)
        chunk->writer = stored->writer;
    return status;
}

/* One moment of a weight out of the bytes of a tensor. */
static reshard_status unified_quantised_add_moment(struct uc_viewing *viewing, const struct catalog_tensor *tensor, struct str weight,
                                                   enum uc_quantised_kind kind, reshard_error *err)
{
    const struct catalog *from = viewing->from;
    const struct catalog_chunk *chunk = &from->chunks[tensor->first_chunk];
    bool is_first = kind == UC_MOMENT1_8 || kind == UC_MOMENT1_4;
    struct uc_quantised item = { .store = viewing->view->stored->store, .kind = kind, .scale_offsets = { UC_NO_SCALE, UC_NO_SCALE } };
    if (!unified_quantised_is_one(from, tensor) || catalog_layout_of(from, chunk))
        return unified_quantised_refuse(tensor->key, "in pieces, which nobody puts together with their scales", err);
    item.file = from->objects[chunk->object].name.data;
    item.offset = chunk->offset;
    if (!unified_quantised_shape(from, tensor, &item))
        return unified_quantised_refuse(tensor->key, "of a shape that PaddleFormers does not quantise", err);
    reshard_status status = unified_quantised_scale(viewing, weight, is_first ? MOMENT1 "@scales" : MOMENT2 "@min_scales", &item, 0, err);
    if (!status && !is_first)
        status = unified_quantised_scale(viewing, weight, MOMENT2 "@max_scales", &item, 1, err);
    if (status)
        return status;
    buffer_clear(&viewing->key);
    buffer_append_str(&viewing->key, weight);
    if (!buffer_append_text(&viewing->key, is_first ? MOMENT1 : MOMENT2))
        return error_set_memory(err);
    return unified_quantised_add(viewing, tensor, buffer_str(&viewing->key), &item, err);
}

static reshard_status unified_quantised_replace(void *context, uint32_t index, bool *is_replaced, reshard_error *err)
{
    struct uc_viewing *viewing = context;
    const struct catalog_tensor *tensor = &viewing->from->tensors[index];
    bool is_first = str_ends_with(tensor->key, MOMENT1), is_second = str_ends_with(tensor->key, MOMENT2);
    struct str weight = is_first || is_second ? without_end(tensor->key, MOMENT1) : (struct str){ 0 };
    struct str state = uc_quantised_state(tensor->key);
    *is_replaced = true;
    if (state.size && catalog_find(viewing->from, state) != CATALOG_NONE)
        return RESHARD_OK;
    if (state.size && str_ends_with(state, MOMENT1) &&
        unified_quantised_find(viewing, without_end(state, MOMENT1), MOMENT2) != CATALOG_NONE)
        return RESHARD_OK; /* O2: of what the second moment's tensor holds too */
    if (is_first && tensor->dtype == DTYPE_I8)
        return unified_quantised_add_moment(viewing, tensor, weight, UC_MOMENT1_8, err);
    if (is_second && tensor->dtype == DTYPE_U8)
        return unified_quantised_add_moment(viewing, tensor, weight, UC_MOMENT2_8, err);
    *is_replaced = uc_quantised_within(tensor->key, tensor->dtype) != NULL;
    if (!*is_replaced)
        return RESHARD_OK;
    reshard_status status = unified_quantised_add_moment(viewing, tensor, weight, UC_MOMENT1_4, err);
    return status ? status : unified_quantised_add_moment(viewing, tensor, weight, UC_MOMENT2_4, err);
}

/* A state and a store of its own: the files, and what is computed of them. */
static reshard_status unified_quantised_join(struct source *view, struct uc_view *state, reshard_error *err)
{
    reshard_status status = store_new_over(state->regions, state->count, &state->computed, err);
    if (status)
        return status;
    state->joined = store_new_joined(view->stored->store, state->computed, OBJECTS);
    if (!state->joined)
        return error_set_memory(err);
    view->store = state->joined;
    return RESHARD_OK;
}

reshard_status uc_view_by_parameter(struct source *view, reshard_error *err)
{
    const struct catalog *from = view->stored->catalog;
    struct uc_view *state = calloc(1, sizeof(*state));
    struct uc_viewing viewing = { .view = view, .from = from, .state = state };
    struct catalog_copying copying = { .from = from,
                                       .warning_count = view->stored->read_warnings,
                                       .context = &viewing,
                                       .replace_tensor = unified_quantised_replace };
    size_t room = 2 * (size_t)from->tensor_count + 1; /* two moments of a tensor at most */
    if (!state)
        return error_set_memory(err);
    view->driver_state = state;
    state->state = *(const struct uc_state *)view->stored->driver_state;
    state->state.quant_stage = (struct str){ 0 };
    state->items = array_zeroed(room, sizeof(*state->items));
    state->regions = array_zeroed(room, sizeof(*state->regions));
    reshard_status status = state->items && state->regions ? catalog_copy(view->catalog, &copying, err) : error_set_memory(err);
    view->stored_items = copying.items;
    free(copying.tensors);
    buffer_release(&viewing.key);
    return status ? status : unified_quantised_join(view, state, err);
}

/* Only a view has something of its own. */
void uc_close(struct source *source)
{
    struct uc_view *state = source->stored ? source->driver_state : NULL;
    if (!state)
        return;
    store_free(state->joined);
    store_free(state->computed);
    free(state->items);
    free(state->regions);
    free(state);
}
