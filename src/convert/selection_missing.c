/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the reference has and the source lacks, and what a mapping leaves as it is: an error that lists them, made of one number, or
 * out of another checkpoint.
 */
#include "convert/selection.h"

#include "base/array.h"
#include "convert/target_names.h"
#include "kernels/cast.h"
#include "kernels/copy.h"
#include "store/store.h"

#include <inttypes.h>
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

/* An element of that type, as recipes want it: zero is NULL. */
static reshard_status missing_fill(struct missing *missing, const struct catalog_tensor *tensor, enum dtype dtype, double value,
                                   const void **out)
{
    struct cast cast;
    unsigned bytes = dtype_element_bytes(dtype);
    *out = NULL;
    if (value == 0)
        return RESHARD_OK;
    if (!bytes || !cast_find(DTYPE_F64, dtype, &cast))
        return error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "'%.*s': %s cannot be filled with %g", STR_ARG(tensor->key),
                         dtype_info(dtype)->name, value);
    void *fill = arena_zalloc(&missing->selection->arena, bytes + 16);
    if (!fill)
        return error_set_memory(missing->err);
    cast_run(&cast, &value, fill, 1);
    *out = fill;
    return RESHARD_OK;
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
    status = missing_fill(missing, tensor, selection->wanted->tensors[wanted].dtype, value, &recipe.fill);
    return status ? status : recipe_table_append(&selection->table, &recipe, missing->err);
}

static reshard_status missing_wrong_shape(struct missing *missing, const struct catalog_tensor *tensor, const int64_t *shape,
                                          const struct catalog_tensor *found)
{
    struct buffer wanted = { 0 }, has = { 0 };
    char shown[STORE_SHOWN_MAX];
    for (int i = 0; i < tensor->rank; i++)
        buffer_printf(&wanted, "%s%" PRId64, i ? ", " : "", shape[i]);
    for (int i = 0; i < found->rank; i++)
        buffer_printf(&has, "%s%" PRId64, i ? ", " : "", catalog_vector_at(missing->options->second, found->shape)[i]);
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is to be [%.*s]; '%s', which is to stand in for it, has [%.*s]",
              STR_ARG(tensor->key), STR_ARG(buffer_str(&wanted)), store_path_shown(missing->options->missing, shown),
              STR_ARG(buffer_str(&has)));
    buffer_release(&wanted);
    buffer_release(&has);
    return RESHARD_ERR_UNSUPPORTED;
}

/* What the other checkpoint has under that key, in that shape. CATALOG_NONE: it has none. */
static reshard_status missing_find_second(struct missing *missing, const struct catalog_tensor *tensor, const int64_t *shape,
                                          uint32_t *out)
{
    const struct catalog *second = missing->options->second;
    uint32_t index = second ? catalog_find(second, tensor->key) : CATALOG_NONE;
    *out = CATALOG_NONE;
    if (index == CATALOG_NONE || second->tensors[index].flags & (TENSOR_HIDDEN | TENSOR_NO_DATA | TENSOR_AMBIGUOUS))
        return RESHARD_OK;
    const struct catalog_tensor *found = &second->tensors[index];
    if (!shape_equal(tensor->rank, shape, found->rank, catalog_vector_at(second, found->shape)))
        return missing_wrong_shape(missing, tensor, shape, found);
    *out = index;
    return RESHARD_OK;
}

/* *number: what recipes call that tensor of the other checkpoint, which the wanted one is made of. */
static reshard_status missing_borrow(struct missing *missing, uint32_t index, uint32_t wanted, uint32_t *number)
{
    struct selection *selection = missing->selection;
    const struct catalog_tensor *tensor = &selection->wanted->tensors[wanted];
    enum dtype from = missing->options->second->tensors[index].dtype, to = tensor->dtype;
    if (from != to && !copy_can_cast(from, to))
        return error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': no cast from %s to %s", STR_ARG(tensor->key),
                         dtype_info(from)->name, dtype_info(to)->name);
    if (!ARRAY_ROOM(selection->borrowed, selection->borrowed_count, selection->borrowed_capacity))
        return error_set_memory(missing->err);
    *number = missing->source->tensor_count + selection->borrowed_count;
    selection->borrowed[selection->borrowed_count++] = index;
    return RESHARD_OK;
}

/* Out of the other checkpoint, by the reference's key. *has: it is there. */
static reshard_status missing_add_borrowed(struct missing *missing, const struct catalog_tensor *tensor, bool *has)
{
    struct recipe recipe = { .is_whole = true };
    uint32_t index;
    reshard_status status = missing_find_second(missing, tensor, catalog_vector_at(missing->reference, tensor->shape), &index);
    *has = !status && index != CATALOG_NONE;
    if (*has)
        status = missing_add(missing, tensor, &recipe.target_tensor);
    if (!status && *has)
        status = missing_borrow(missing, index, recipe.target_tensor, &recipe.source_tensor);
    return status || !*has ? status : recipe_table_append(&missing->selection->table, &recipe, missing->err);
}

static void missing_list(struct missing *missing, struct str key)
{
    if (missing->count < LISTED_MAX)
        missing->listed[missing->count] = key;
    missing->count++;
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
    if (!status && !has)
        missing_list(missing, tensor->key);
    return status;
}

static reshard_status missing_refuse(const struct missing *missing, const char *before, const char *behind)
{
    struct buffer text = { 0 };
    for (uint32_t i = 0; i < LISTED_MAX && i < missing->count; i++)
        buffer_printf(&text, "%s'%.*s'", i ? ", " : "", STR_ARG(missing->listed[i]));
    error_set(missing->err, RESHARD_ERR_UNSUPPORTED, "%s %" PRIu64 " tensors%s%s: %.*s%s", before, missing->count, behind,
              missing->options->second ? ", and so does the checkpoint that stands in for it" : "", (int)text.size, (const char *)text.data,
              missing->count > LISTED_MAX ? ", …" : "");
    error_hint(missing->err, "reshard_convert_options.missing zeros, a number, or the path of a checkpoint with these names, makes them");
    buffer_release(&text);
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- what a mapping leaves as it is ---- */

static reshard_status missing_keep(struct missing *missing, uint32_t wanted, int64_t left)
{
    struct selection *selection = missing->selection;
    if (!ARRAY_ROOM(selection->unfilled, selection->unfilled_count, selection->unfilled_capacity))
        return error_set_memory(missing->err);
    selection->unfilled[selection->unfilled_count++] = (struct unfilled){ wanted, left };
    return RESHARD_OK;
}

/* Boxes that are made of nothing become that number, or those of the other checkpoint's tensor: source is RECIPE_FILL, or its number. */
static void missing_put(struct missing *missing, uint32_t first, uint32_t end, const void *fill, uint32_t source)
{
    for (uint32_t i = first; i < end; i++) {
        struct recipe *recipe = &missing->selection->table.recipes[i];
        if (recipe->source_tensor != RECIPE_FILL)
            continue;
        recipe->fill = fill;
        recipe->source_tensor = source;
        recipe->source_start = recipe->target_start;
        recipe->permutation = NULL;
    }
}

static reshard_status missing_put_borrowed(struct missing *missing, uint32_t first, uint32_t end, uint32_t wanted)
{
    const struct catalog *catalog = missing->selection->wanted;
    const struct catalog_tensor *tensor = &catalog->tensors[wanted];
    uint32_t index, number;
    reshard_status status = missing_find_second(missing, tensor, catalog_vector_at(catalog, tensor->shape), &index);
    if (!status && index == CATALOG_NONE)
        missing_list(missing, tensor->key);
    if (status || index == CATALOG_NONE)
        return status;
    status = missing_borrow(missing, index, wanted, &number);
    if (!status)
        missing_put(missing, first, end, NULL, number);
    return status;
}

/* Recipes [first, end) are those of one wanted tensor; `left` of its elements are made of nothing. */
static reshard_status missing_decide_left(struct missing *missing, uint32_t first, uint32_t end, int64_t left)
{
    const struct selection_options *options = missing->options;
    struct selection *selection = missing->selection;
    uint32_t wanted = selection->table.recipes[first].target_tensor;
    const struct catalog_tensor *tensor = &selection->wanted->tensors[wanted];
    double value = missing->value;
    enum missing_choice choice = options->missing ? missing->choice : MISSING_LEFT_OUT;
    const void *fill = NULL;
    reshard_status status = RESHARD_OK;
    if (options->choose_missing)
        status = options->choose_missing(selection->wanted, wanted, &choice, &value, options->missing_context, missing->err);
    if (status)
        return status;
    if (choice == MISSING_LEFT_OUT)
        return missing_keep(missing, wanted, left);
    if (choice == MISSING_BORROWED)
        return missing_put_borrowed(missing, first, end, wanted);
    if (choice == MISSING_REFUSED) {
        missing_list(missing, tensor->key);
        return RESHARD_OK;
    }
    status = missing_fill(missing, tensor, tensor->dtype, value, &fill);
    if (!status)
        missing_put(missing, first, end, fill, RECIPE_FILL);
    return status;
}

/* The recipes of a wanted tensor stand together. */
static reshard_status missing_decide_all_left(struct missing *missing)
{
    const struct recipe_table *table = &missing->selection->table;
    reshard_status status = RESHARD_OK;
    for (uint32_t first = 0, end; first < table->count && !status; first = end) {
        int64_t left = 0;
        for (end = first; end < table->count && table->recipes[end].target_tensor == table->recipes[first].target_tensor; end++) {
            const struct recipe *recipe = &table->recipes[end];
            left += recipe->source_tensor == RECIPE_FILL ? box_volume(recipe->rank, recipe->extent) : 0;
        }
        if (left)
            status = missing_decide_left(missing, first, end, left);
    }
    if (!status && missing->count)
        status = missing_refuse(missing, "the mapping makes nothing, or not all, of", "");
    return status;
}

/* ---- all of them ---- */

reshard_status selection_add_missing(struct selection *selection, const struct catalog *source, const struct catalog *reference,
                                     const struct selection_options *options, bool is_mapped, struct key_rules *rules, reshard_error *err)
{
    struct missing missing = { .selection = selection,
                               .source = source,
                               .reference = reference,
                               .options = options,
                               .rules = rules,
                               .err = err };
    reshard_status status = RESHARD_OK;
    bool is_asked = options->missing || options->choose_missing;
    if (is_asked && !reference && !is_mapped)
        return error_set(err, RESHARD_ERR_USAGE,
                         "reshard_convert_options.missing needs reshard_convert_options.like: nothing else is wanted");
    missing.choice = missing_read(options->missing, &missing.value);
    status = missing_decide_all_left(&missing);
    if (status || !is_asked || !reference)
        return status;
    status = target_names_add(selection, source, options, &missing.known, err);
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
        status = missing_refuse(&missing, "the source lacks", " of the reference");
    name_map_release(&missing.known);
    return status;
}
