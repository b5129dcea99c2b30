/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors files as atorch's own writer makes them: wide elements first, then by name; names in ASCII; no metadata. */
#include "formats/atorch/atorch_target.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

void atorch_entries_release(struct atorch_entries *entries)
{
    free(entries->items);
    arena_release(&entries->arena);
    *entries = (struct atorch_entries){ 0 };
}

static reshard_status entries_add(struct atorch_entries *entries, struct atorch_entry entry, reshard_error *err)
{
    int64_t count = entry.length;
    if (entry.shape || !entry.rank)
        count = box_volume(entry.rank, entry.shape);
    if (!dtype_bytes(entry.dtype, (uint64_t)count, &entry.bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': a piece of %s that is no whole number of bytes", STR_ARG(entry.name),
                         dtype_info(entry.dtype)->name);
    if (dtype_info(entry.dtype)->safetensors_rank < 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': safetensors has no dtype %s", STR_ARG(entry.name),
                         dtype_info(entry.dtype)->name);
    if (!ARRAY_ROOM(entries->items, entries->count, entries->capacity))
        return error_set_memory(err);
    entries->items[entries->count++] = entry;
    return RESHARD_OK;
}

/* ---- flat_param ---- */

static reshard_status entries_of_units(const struct atorch_model *model, struct atorch_entries *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < model->unit_count && !status; i++) {
        const struct atorch_unit *unit = &model->units[i];
        status = entries_add(
            out, (struct atorch_entry){ .name = unit->name, .owner = i, .dtype = unit->dtype, .rank = 1, .length = unit->shard }, err);
    }
    return status;
}

/* ---- optim_param ---- */

static reshard_status entries_name_state(const struct atorch_plan *plan, struct str owner, bool is_unit, const struct atorch_state *state,
                                         struct atorch_entries *out, struct str *name, reshard_error *err)
{
    struct str kind = name_map_at(&plan->state_names, state->name);
    const char *between = !is_unit ? "-" : owner.size ? "." ATORCH_FLAT_NAME "-" : ATORCH_FLAT_NAME "-";
    size_t size = owner.size + strlen(between) + kind.size;
    char *text = arena_alloc(&out->arena, size + 1);
    if (!text)
        return error_set_memory(err);
    if (owner.size)
        memcpy(text, owner.data, owner.size);
    memcpy(text + owner.size, between, strlen(between));
    memcpy(text + owner.size + strlen(between), kind.data, kind.size);
    *name = (struct str){ text, size };
    return RESHARD_OK;
}

static reshard_status entries_of_state(const struct layout_request *request, const struct atorch_plan *plan, uint32_t rank, uint32_t number,
                                       struct atorch_entries *out, reshard_error *err)
{
    const struct atorch_state *state = &plan->states[number];
    const struct atorch_parameter *parameter = &plan->model.parameters[state->parameter];
    const struct atorch_unit *unit = &plan->model.units[parameter->unit];
    struct flat_unit_part part;
    uint32_t expert, shard;
    atorch_place_of(unit, rank, &expert, &shard);
    if (!atorch_part_of(unit, parameter, shard, &part))
        return RESHARD_OK;
    struct atorch_entry entry = { .owner = state->tensors[expert], .state = number, .rank = 1, .length = part.count };
    entry.dtype = request->wanted->tensors[entry.owner].dtype;
    if (state->is_scalar) {
        entry.rank = 0;
    } else if (unit->shards == 1) { /* not sharded: in its own shape */
        entry.rank = parameter->rank;
        entry.shape = parameter->shape;
    }
    reshard_status status = entries_name_state(plan, parameter->name, false, state, out, &entry.name, err);
    return status ? status : entries_add(out, entry, err);
}

/* The states of a unit's first parameter are those of all. */
static reshard_status entries_of_unit_states(const struct layout_request *request, const struct atorch_plan *plan, uint32_t rank,
                                             uint32_t number, struct atorch_entries *out, reshard_error *err)
{
    const struct atorch_unit *unit = &plan->model.units[number];
    uint32_t first = unit->first, expert, shard;
    reshard_status status = RESHARD_OK;
    atorch_place_of(unit, rank, &expert, &shard);
    while (first < unit->first + unit->count && !plan->tensors[first])
        first++;
    if (first == unit->first + unit->count)
        return RESHARD_OK;
    for (uint32_t i = plan->first_state[first]; i < plan->first_state[first + 1] && !status; i++) {
        const struct atorch_state *state = &plan->states[i];
        struct atorch_entry entry = {
            .owner = number, .state = i, .rank = !state->is_scalar, .length = unit->shard, .is_unit_state = true
        };
        entry.dtype = request->wanted->tensors[state->tensors[expert]].dtype;
        status = entries_name_state(plan, unit->name, true, state, out, &entry.name, err);
        if (!status)
            status = entries_add(out, entry, err);
    }
    return status;
}

static reshard_status entries_of_optimizer(const struct layout_request *request, const struct atorch_plan *plan, uint32_t rank,
                                           struct atorch_entries *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (plan->model.is_original) {
        for (uint32_t i = 0; i < plan->state_count && !status; i++)
            status = entries_of_state(request, plan, rank, i, out, err);
        return status;
    }
    for (uint32_t i = 0; i < plan->model.unit_count && !status; i++)
        status = entries_of_unit_states(request, plan, rank, i, out, err);
    return status;
}

/* ---- buffers ---- */

static bool entries_is_forgotten(int rank, const int64_t *shape)
{
    return rank == 1 && shape[0] == 0;
}

/* The asynchronous saver forgets the shape of no elements. Where a reference has, so does what is to be like it; where the source has, the
 * reference knows it. */
static void entries_shape_like(const struct layout_request *request, struct atorch_entry *entry)
{
    const struct catalog *like = atorch_known(request->like) ? request->like->catalog : NULL;
    uint32_t index = like ? catalog_find(like, entry->name) : CATALOG_NONE;
    const struct catalog_tensor *other = index != CATALOG_NONE ? &like->tensors[index] : NULL;
    if (!other || other->dtype != entry->dtype || catalog_tensor_bytes(like, other))
        return;
    const int64_t *shape = catalog_vector_at(like, other->shape);
    if (!entries_is_forgotten(other->rank, shape) && !entries_is_forgotten(entry->rank, entry->shape))
        return;
    entry->rank = other->rank;
    entry->shape = shape;
}

static reshard_status entries_of_buffers(const struct layout_request *request, const struct atorch_plan *plan, struct atorch_entries *out,
                                         reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < plan->buffer_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[plan->buffers[i]];
        struct atorch_entry entry = { .name = tensor->key,
                                      .owner = plan->buffers[i],
                                      .dtype = tensor->dtype,
                                      .rank = tensor->rank,
                                      .shape = catalog_vector_at(wanted, tensor->shape) };
        if (!catalog_tensor_bytes(wanted, tensor))
            entries_shape_like(request, &entry);
        status = entries_add(out, entry, err);
    }
    return status;
}

/* ---- files ---- */

static int entry_order(const void *a, const void *b)
{
    const struct atorch_entry *x = a, *y = b;
    unsigned x_bits = dtype_info(x->dtype)->bits, y_bits = dtype_info(y->dtype)->bits;
    if (x_bits != y_bits)
        return x_bits > y_bits ? -1 : 1;
    return str_compare(x->name, y->name);
}

reshard_status atorch_entries_make(const struct layout_request *request, const struct atorch_plan *plan, enum atorch_file_kind kind,
                                   uint32_t rank, struct atorch_entries *out, reshard_error *err)
{
    *out = (struct atorch_entries){ 0 };
    reshard_status status = kind == ATORCH_PARAM   ? entries_of_units(&plan->model, out, err)
                            : kind == ATORCH_OPTIM ? entries_of_optimizer(request, plan, rank, out, err)
                                                   : entries_of_buffers(request, plan, out, err);
    if (!status && out->count)
        qsort(out->items, out->count, sizeof(*out->items), entry_order);
    for (uint32_t i = 0; i < out->count && !status; i++) {
        out->items[i].begin = out->bytes;
        if (__builtin_add_overflow(out->bytes, out->items[i].bytes, &out->bytes) || out->bytes > INT64_MAX / 2)
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "one file of more than 2^62 bytes");
    }
    if (status)
        atorch_entries_release(out);
    return status;
}

static bool entries_put(const struct atorch_entry *entry, struct buffer *out)
{
    if (!buffer_append_json_ascii(out, entry->name))
        return false;
    buffer_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", dtype_info(entry->dtype)->name);
    for (int i = 0; i < entry->rank; i++)
        buffer_printf(out, "%s%" PRId64, i ? "," : "", entry->shape ? entry->shape[i] : entry->length);
    return buffer_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", entry->begin, entry->begin + entry->bytes);
}

reshard_status atorch_entries_head(const struct atorch_entries *entries, const struct limits *limits, struct buffer *out,
                                   reshard_error *err)
{
    size_t head = out->size;
    buffer_append_u64le(out, 0);
    buffer_append_byte(out, '{');
    for (uint32_t i = 0; i < entries->count; i++) {
        buffer_append_text(out, i ? "," : "");
        if (!entries_put(&entries->items[i], out) && !out->failed)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': its name is no Unicode text, which safetensors needs",
                             STR_ARG(entries->items[i].name));
    }
    buffer_append_byte(out, '}');
    buffer_append_fill(out, ' ', (8 - (out->size - head) % 8) % 8);
    if (out->failed)
        return error_set_memory(err);
    uint64_t length = out->size - head - 8;
    if (length > limits->json_bytes)
        return error_set_limit(err, "json_bytes", length, limits->json_bytes);
    for (int i = 0; i < 8; i++)
        out->data[head + (size_t)i] = (uint8_t)(length >> (8 * i));
    return RESHARD_OK;
}
