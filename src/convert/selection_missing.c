/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that the reference has and the source lacks: an error that lists them, or made of one number. */
#include "convert/selection.h"

#include "kernels/cast.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define LISTED_MAX 3

struct missing {
    struct selection *selection;
    const struct catalog *reference;
    const struct selection_options *options;
    struct name_map known;
    bool is_error;
    double value;
    uint64_t count; /* that are an error */
    struct str listed[LISTED_MAX];
    reshard_error *err;
};

static reshard_status missing_read(struct missing *missing)
{
    const char *text = missing->options->missing;
    char *end;
    if (!text || strcmp(text, "error") == 0 || strcmp(text, "zeros") == 0) {
        missing->is_error = !text || text[0] == 'e';
        return RESHARD_OK;
    }
    missing->value = strtod(text, &end);
    if (end != text && !*end)
        return RESHARD_OK;
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "missing tensors as '%s': known are error, zeros and a number", text);
    error_hint(missing->err, "values of another checkpoint: convert both, then join them with a mapping");
    return RESHARD_ERR_UNSUPPORTED;
}

/* An element of that type. NULL: no memory, or the type does not have the number. */
static const void *missing_fill(struct missing *missing, const struct catalog_tensor *tensor, double value)
{
    struct cast cast;
    unsigned bytes = dtype_element_bytes(tensor->dtype);
    void *fill = arena_zalloc(&missing->selection->arena, bytes + 16);
    if (!fill) {
        error_set_memory(missing->err);
        return NULL;
    }
    if (value == 0)
        return fill;
    if (!bytes || !cast_find(DTYPE_F64, tensor->dtype, &cast)) {
        error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "'%.*s': %s cannot be filled with %g", STR_ARG(tensor->key),
                  dtype_info(tensor->dtype)->name, value);
        return NULL;
    }
    cast_run(&cast, &value, fill, 1);
    return fill;
}

static reshard_status missing_add(struct missing *missing, const struct catalog_tensor *tensor, double value)
{
    struct selection *selection = missing->selection;
    const int64_t *shape = catalog_vector_at(missing->reference, tensor->shape);
    int64_t *start = arena_zalloc(&selection->arena, ((size_t)tensor->rank + 1) * sizeof(*start));
    int64_t *extent = arena_alloc(&selection->arena, ((size_t)tensor->rank + 1) * sizeof(*extent));
    uint32_t wanted;
    if (!start || !extent)
        return error_set_memory(missing->err);
    if (tensor->rank)
        memcpy(extent, shape, (size_t)tensor->rank * sizeof(*extent));
    reshard_status status = catalog_add_tensor(selection->wanted, tensor->key, tensor->dtype, tensor->rank, shape, &wanted, missing->err);
    if (status)
        return status;
    struct catalog_tensor *made = &selection->wanted->tensors[wanted];
    made->flags = tensor->flags & (TENSOR_PARAMETER | TENSOR_REQUIRES_GRAD);
    made->tied_to = made->storage_group = CATALOG_NONE;
    selection->wanted_source[wanted] = CATALOG_NONE;
    selection->is_whole = false;
    struct recipe recipe = { .source_tensor = RECIPE_FILL,
                             .target_tensor = wanted,
                             .rank = tensor->rank,
                             .target_start = start,
                             .source_start = start,
                             .extent = extent };
    if (value != 0 || signbit(value)) {
        recipe.fill = missing_fill(missing, tensor, value);
        if (!recipe.fill)
            return missing->err ? missing->err->code : RESHARD_ERR_UNSUPPORTED;
    }
    return recipe_table_append(&selection->table, &recipe, missing->err);
}

static reshard_status missing_decide(struct missing *missing, uint32_t index)
{
    const struct catalog_tensor *tensor = &missing->reference->tensors[index];
    double value = missing->value;
    bool is_filled = !missing->is_error;
    if (missing->options->choose_missing) {
        reshard_status status = missing->options->choose_missing(missing->reference, index, &is_filled, &value,
                                                                 missing->options->missing_context, missing->err);
        return status || !is_filled ? status : missing_add(missing, tensor, value);
    }
    if (is_filled)
        return missing_add(missing, tensor, value);
    if (missing->count < LISTED_MAX)
        missing->listed[missing->count] = tensor->key;
    missing->count++;
    return RESHARD_OK;
}

static reshard_status missing_refuse(const struct missing *missing)
{
    struct buffer text = { 0 };
    for (uint32_t i = 0; i < LISTED_MAX && i < missing->count; i++)
        buffer_printf(&text, "%s'%.*s'", i ? ", " : "", STR_ARG(missing->listed[i]));
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "the source lacks %" PRIu64 " tensors of the reference: %.*s%s", missing->count,
              (int)text.size, (const char *)text.data, missing->count > LISTED_MAX ? ", …" : "");
    error_hint(missing->err, "reshard_convert_options.missing zeros, or a number, makes them");
    buffer_release(&text);
    return RESHARD_ERR_UNSUPPORTED;
}

reshard_status selection_add_missing(struct selection *selection, const struct catalog *reference, const struct selection_options *options,
                                     reshard_error *err)
{
    struct missing missing = { .selection = selection, .reference = reference, .options = options, .err = err };
    if (!reference)
        return error_set(err, RESHARD_ERR_USAGE,
                         "reshard_convert_options.missing needs reshard_convert_options.like: nothing else is wanted");
    reshard_status status = missing_read(&missing);
    for (uint32_t i = 0; i < selection->wanted->tensor_count && !status; i++) {
        if (name_map_intern(&missing.known, selection->wanted->tensors[i].key, NULL) == NAME_NONE)
            status = error_set_memory(err);
    }
    for (uint32_t i = 0; i < reference->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &reference->tensors[i];
        bool is_known = (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA)) || name_map_find(&missing.known, tensor->key) != NAME_NONE;
        if (!is_known && selection_wants(tensor->key, options))
            status = missing_decide(&missing, i);
    }
    if (!status && missing.count)
        status = missing_refuse(&missing);
    name_map_release(&missing.known);
    return status;
}
