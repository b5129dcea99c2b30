/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that the reference has and the source lacks: an error that lists them, made of one number, or out of another checkpoint. */
#include "convert/selection.h"

#include "base/array.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "store/store.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define LISTED_MAX 3

struct missing {
    struct selection *selection;
    const struct catalog *source, *reference;
    const struct selection_options *options;
    struct key_rules *rules;
    struct name_map known;
    enum missing_choice choice;
    double value;
    uint64_t count; /* that are an error */
    struct str listed[LISTED_MAX];
    reshard_error *err;
};

static enum missing_choice missing_read(const char *text, double *value)
{
    char *end;
    *value = 0;
    if (!text || strcmp(text, "error") == 0)
        return MISSING_REFUSED;
    if (strcmp(text, "zeros") == 0)
        return MISSING_FILLED;
    *value = strtod(text, &end);
    return end != text && !*end ? MISSING_FILLED : MISSING_BORROWED;
}

bool selection_missing_is_path(const char *missing)
{
    double value;
    return missing && missing_read(missing, &value) == MISSING_BORROWED;
}

/* An element of that type. NULL: no memory, or the type does not have the number. */
static const void *missing_fill(struct missing *missing, const struct catalog_tensor *tensor, enum dtype dtype, double value)
{
    struct cast cast;
    unsigned bytes = dtype_element_bytes(dtype);
    void *fill = arena_zalloc(&missing->selection->arena, bytes + 16);
    if (!fill) {
        error_set_memory(missing->err);
        return NULL;
    }
    if (value == 0)
        return fill;
    if (!bytes || !cast_find(DTYPE_F64, dtype, &cast)) {
        error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "'%.*s': %s cannot be filled with %g", STR_ARG(tensor->key),
                  dtype_info(dtype)->name, value);
        return NULL;
    }
    cast_run(&cast, &value, fill, 1);
    return fill;
}

/* The tensor as the reference has it, in the type that is asked for; *wanted is its number. */
static reshard_status missing_add(struct missing *missing, const struct catalog_tensor *tensor, uint32_t *wanted)
{
    struct selection *selection = missing->selection;
    enum dtype dtype;
    reshard_status status = key_rules_dtype(missing->rules, tensor->key, tensor->dtype, &dtype, missing->err);
    if (!status)
        status = catalog_add_tensor(selection->wanted, tensor->key, dtype, tensor->rank,
                                    catalog_vector_at(missing->reference, tensor->shape), wanted, missing->err);
    if (status)
        return status;
    struct catalog_tensor *made = &selection->wanted->tensors[*wanted];
    made->flags = tensor->flags & (TENSOR_PARAMETER | TENSOR_REQUIRES_GRAD);
    made->tied_to = made->storage_group = CATALOG_NONE;
    selection->wanted_source[*wanted] = CATALOG_NONE;
    selection->is_whole = false;
    return RESHARD_OK;
}

static reshard_status missing_add_filled(struct missing *missing, const struct catalog_tensor *tensor, double value)
{
    struct selection *selection = missing->selection;
    int64_t *start = arena_zalloc(&selection->arena, ((size_t)tensor->rank + 1) * sizeof(*start));
    int64_t *extent = arena_alloc(&selection->arena, ((size_t)tensor->rank + 1) * sizeof(*extent));
    uint32_t wanted;
    if (!start || !extent)
        return error_set_memory(missing->err);
    if (tensor->rank)
        memcpy(extent, catalog_vector_at(missing->reference, tensor->shape), (size_t)tensor->rank * sizeof(*extent));
    reshard_status status = missing_add(missing, tensor, &wanted);
    if (status)
        return status;
    struct recipe recipe = { .source_tensor = RECIPE_FILL,
                             .target_tensor = wanted,
                             .rank = tensor->rank,
                             .target_start = start,
                             .source_start = start,
                             .extent = extent };
    if (value != 0 || signbit(value)) {
        recipe.fill = missing_fill(missing, tensor, selection->wanted->tensors[wanted].dtype, value);
        if (!recipe.fill)
            return missing->err ? missing->err->code : RESHARD_ERR_UNSUPPORTED;
    }
    return recipe_table_append(&selection->table, &recipe, missing->err);
}

static reshard_status missing_wrong_shape(struct missing *missing, const struct catalog_tensor *tensor, const struct catalog_tensor *found)
{
    struct buffer wanted = { 0 }, has = { 0 };
    char shown[STORE_SHOWN_MAX];
    for (int i = 0; i < tensor->rank; i++)
        buffer_printf(&wanted, "%s%" PRId64, i ? ", " : "", catalog_vector_at(missing->reference, tensor->shape)[i]);
    for (int i = 0; i < found->rank; i++)
        buffer_printf(&has, "%s%" PRId64, i ? ", " : "", catalog_vector_at(missing->options->second, found->shape)[i]);
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "'%.*s': the reference has [%.*s], '%s', which is to stand in for it, [%.*s]",
              STR_ARG(tensor->key), STR_ARG(buffer_str(&wanted)), store_path_shown(missing->options->missing, shown),
              STR_ARG(buffer_str(&has)));
    buffer_release(&wanted);
    buffer_release(&has);
    return RESHARD_ERR_UNSUPPORTED;
}

static bool missing_same_shape(const struct missing *missing, const struct catalog_tensor *tensor, const struct catalog_tensor *found)
{
    return found->rank == tensor->rank &&
           (tensor->rank == 0 ||
            memcmp(catalog_vector_at(missing->reference, tensor->shape), catalog_vector_at(missing->options->second, found->shape),
                   (size_t)tensor->rank * sizeof(int64_t)) == 0);
}

/* Out of the other checkpoint, by the reference's key. *has: it is there. */
static reshard_status missing_add_borrowed(struct missing *missing, const struct catalog_tensor *tensor, bool *has)
{
    struct selection *selection = missing->selection;
    const struct catalog *second = missing->options->second;
    uint32_t index = second ? catalog_find(second, tensor->key) : CATALOG_NONE, wanted;
    *has = index != CATALOG_NONE && !(second->tensors[index].flags & (TENSOR_HIDDEN | TENSOR_NO_DATA | TENSOR_AMBIGUOUS));
    if (!*has)
        return RESHARD_OK;
    if (!missing_same_shape(missing, tensor, &second->tensors[index]))
        return missing_wrong_shape(missing, tensor, &second->tensors[index]);
    reshard_status status = missing_add(missing, tensor, &wanted);
    if (status)
        return status;
    enum dtype from = second->tensors[index].dtype, to = selection->wanted->tensors[wanted].dtype;
    if (from != to && !copy_can_cast(from, to))
        return error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': no cast from %s to %s", STR_ARG(tensor->key),
                         dtype_info(from)->name, dtype_info(to)->name);
    if (!ARRAY_ROOM(selection->borrowed, selection->borrowed_count, selection->borrowed_capacity))
        return error_set_memory(missing->err);
    struct recipe recipe = { .source_tensor = missing->source->tensor_count + selection->borrowed_count,
                             .target_tensor = wanted,
                             .is_whole = true };
    selection->borrowed[selection->borrowed_count++] = index;
    return recipe_table_append(&selection->table, &recipe, missing->err);
}

static reshard_status missing_decide(struct missing *missing, uint32_t index)
{
    const struct catalog_tensor *tensor = &missing->reference->tensors[index];
    double value = missing->value;
    enum missing_choice choice = missing->choice;
    bool has = false;
    reshard_status status = RESHARD_OK;
    if (missing->options->choose_missing)
        status = missing->options->choose_missing(missing->reference, index, &choice, &value, missing->options->missing_context,
                                                  missing->err);
    if (status || choice == MISSING_LEFT_OUT)
        return status;
    if (choice == MISSING_FILLED)
        return missing_add_filled(missing, tensor, value);
    if (choice == MISSING_BORROWED)
        status = missing_add_borrowed(missing, tensor, &has);
    if (status || has)
        return status;
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
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "the source lacks %" PRIu64 " tensors of the reference%s: %.*s%s", missing->count,
              missing->options->second ? ", and so does the checkpoint that stands in for it" : "", (int)text.size, (const char *)text.data,
              missing->count > LISTED_MAX ? ", …" : "");
    error_hint(missing->err, "reshard_convert_options.missing zeros, a number, or the path of a checkpoint with these names, makes them");
    buffer_release(&text);
    return RESHARD_ERR_UNSUPPORTED;
}

reshard_status selection_add_missing(struct selection *selection, const struct catalog *source, const struct catalog *reference,
                                     const struct selection_options *options, struct key_rules *rules, reshard_error *err)
{
    struct missing missing = { .selection = selection,
                               .source = source,
                               .reference = reference,
                               .options = options,
                               .rules = rules,
                               .err = err };
    reshard_status status = RESHARD_OK;
    if (!reference)
        return error_set(err, RESHARD_ERR_USAGE,
                         "reshard_convert_options.missing needs reshard_convert_options.like: nothing else is wanted");
    missing.choice = missing_read(options->missing, &missing.value);
    for (uint32_t i = 0; i < selection->wanted->tensor_count && !status; i++) {
        if (name_map_intern(&missing.known, selection->wanted->tensors[i].key, NULL) == NAME_NONE)
            status = error_set_memory(err);
    }
    for (uint32_t i = 0; i < reference->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &reference->tensors[i];
        bool is_known = (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA)) || name_map_find(&missing.known, tensor->key) != NAME_NONE;
        bool is_wanted = false;
        if (!is_known)
            status = key_filter_wants(&rules->filter, tensor->key, &is_wanted, err);
        if (!status && is_wanted)
            status = missing_decide(&missing, i);
    }
    if (!status && missing.count)
        status = missing_refuse(&missing);
    name_map_release(&missing.known);
    return status;
}
