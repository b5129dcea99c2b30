/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/diff.h"

#include "convert/lockstep.h"
#include "convert/selection.h"
#include "kernels/cast.h"

#include <math.h>
#include <stdlib.h>

/* What differs between the two tensors of the pair in hand. */
struct pair_result {
    uint64_t count;
    int64_t first_index;
    double max_difference;
};

struct diff {
    struct checkpoint *a, *b;
    const struct catalog *catalog_a; /* a's tensors as they are compared: its own catalog, or what a mapping makes */
    struct mapping_made mapping;
    struct selection selection;
    const struct diff_options *options;
    struct finding_sink *findings;
    struct lockstep_pair *pairs;
    uint32_t pair_count;
    struct pair_result result;
    /* Elements are compared whole: what a window cuts off waits here for the next. */
    uint8_t held_a[16], held_b[16];
    size_t held;
    unsigned element_bytes;
    to_double_function to_double;
};

/* Where keys are ambiguous only the path tells which tensor is meant. */
static uint32_t find_counterpart(const struct catalog *catalog, const struct catalog *from, const struct catalog_tensor *tensor)
{
    uint32_t found = catalog_find(catalog, tensor->key);
    if (found == CATALOG_NONE || !((tensor->flags | catalog->tensors[found].flags) & TENSOR_AMBIGUOUS))
        return found;
    struct path_part single, other_single;
    const struct path_part *parts, *other;
    size_t count = catalog_tensor_path(from, tensor, &single, &parts);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *candidate = &catalog->tensors[i];
        if (candidate->flags & TENSOR_HIDDEN || !str_equal(candidate->key, tensor->key))
            continue;
        size_t other_count = catalog_tensor_path(catalog, candidate, &other_single, &other);
        if (path_equal(parts, count, other, other_count))
            return i;
    }
    return CATALOG_NONE;
}

/* Where one axis is a whole number of times as long: a tensor that was saved as one tensor-parallel rank had it looks so. */
static void diff_part_text(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b, const struct catalog_tensor *y,
                           struct buffer *out)
{
    int64_t times = 0;
    int axis = -1;
    for (int i = 0; x->rank == y->rank && i < x->rank && times >= 0; i++) {
        int64_t m = catalog_vector_at(a, x->shape)[i], n = catalog_vector_at(b, y->shape)[i], low = m < n ? m : n, high = m < n ? n : m;
        if (m == n)
            continue;
        times = times == 0 && low > 0 && high % low == 0 ? high / low : -1;
        axis = i;
    }
    if (times > 1)
        buffer_printf(out, ", axis %d is %lld times as long: is one of them the part of one tensor-parallel rank, not merged?", axis,
                      (long long)times);
}

/* Some writers forget the shape of a tensor without elements, which then has one axis (dlrover's shared memory does). */
static bool diff_lost_shape(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b,
                            const struct catalog_tensor *y)
{
    bool is_lost = (x->rank == 1 && catalog_vector_at(a, x->shape)[0] == 0) || (y->rank == 1 && catalog_vector_at(b, y->shape)[0] == 0);
    return is_lost && x->dtype == y->dtype && !catalog_tensor_bytes(a, x) && !catalog_tensor_bytes(b, y);
}

/* Keys that the caller left out are on neither side. */
static bool diff_is_wanted(const struct diff *diff, const struct catalog_tensor *tensor)
{
    const struct selection_options keys = { .include = diff->options->include, .exclude = diff->options->exclude };
    return !(tensor->flags & TENSOR_HIDDEN) && selection_wants(tensor->key, &keys);
}

/* Finds partners, reports what has none or cannot be compared, and lists the rest in diff->pairs. */
static reshard_status match_tensors(struct diff *diff, reshard_error *err)
{
    const struct catalog *a = diff->catalog_a, *b = diff->b->source->catalog;
    char shape_a[SHAPE_TEXT_MAX], shape_b[SHAPE_TEXT_MAX];
    struct buffer part = { 0 };
    diff->pairs = malloc(((size_t)a->tensor_count + 1) * sizeof(*diff->pairs));
    if (!diff->pairs)
        return error_set_memory(err);
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        const struct catalog_tensor *x = &a->tensors[i];
        if (!diff_is_wanted(diff, x))
            continue;
        uint32_t other = find_counterpart(b, a, x);
        if (other == CATALOG_NONE) {
            finding_report(diff->findings, FINDING_FAILURE, "missing", x->key, "missing in the second: %s", dtype_info(x->dtype)->name);
            continue;
        }
        const struct catalog_tensor *y = &b->tensors[other];
        if (!catalog_same_shape(a, x, b, y)) {
            bool is_lost = diff_lost_shape(a, x, b, y);
            buffer_clear(&part);
            if (!is_lost)
                diff_part_text(a, x, b, y, &part);
            buffer_append_byte(&part, 0);
            finding_report(diff->findings, is_lost ? FINDING_WARNING : FINDING_FAILURE, "shape", x->key, "shape %s against %s%s%s",
                           shape_text(x->rank, catalog_vector_at(a, x->shape), ",", shape_a),
                           shape_text(y->rank, catalog_vector_at(b, y->shape), ",", shape_b), is_lost ? ", both without elements" : "",
                           part.failed ? "" : (char *)part.data);
        } else if (x->dtype != y->dtype) {
            finding_report(diff->findings, FINDING_FAILURE, "dtype", x->key, "dtype %s against %s", dtype_info(x->dtype)->name,
                           dtype_info(y->dtype)->name);
        } else if (!((x->flags | y->flags) & TENSOR_NO_DATA)) {
            diff->pairs[diff->pair_count++] = (struct lockstep_pair){ i, other };
        }
    }
    for (uint32_t i = 0; i < diff->b->listed_count; i++) {
        const struct catalog_tensor *y = &b->tensors[diff->b->listed[i]];
        if (diff_is_wanted(diff, y) && find_counterpart(a, b, y) == CATALOG_NONE)
            finding_report(diff->findings, FINDING_FAILURE, "unexpected", y->key, "only in the second: %s", dtype_info(y->dtype)->name);
    }
    bool failed = part.failed;
    buffer_release(&part);
    return failed ? error_set_memory(err) : finding_sink_status(diff->findings, err);
}

static void note_difference(struct diff *diff, int64_t index, double difference)
{
    struct pair_result *result = &diff->result;
    if (result->count++ == 0)
        result->first_index = index;
    if (difference > result->max_difference || isnan(difference))
        result->max_difference = difference;
}

/* count whole elements. Bits first; numbers only where bits differ. */
static void compare_elements(struct diff *diff, const uint8_t *a, const uint8_t *b, size_t count, int64_t first_index)
{
    unsigned width = diff->element_bytes;
    if (memcmp(a, b, count * width) == 0)
        return;
    double absolute = diff->options->absolute_tolerance, relative = diff->options->relative_tolerance;
    for (size_t i = 0; i < count; i++) {
        if (memcmp(a + i * width, b + i * width, width) == 0)
            continue;
        double x[2] = { 0 }, y[2] = { 0 }, difference = NAN, magnitude = 0;
        if (diff->to_double) {
            uint8_t element[16] __attribute__((aligned(16)));
            memcpy(element, a + i * width, width);
            diff->to_double(element, x, 1);
            memcpy(element, b + i * width, width);
            diff->to_double(element, y, 1);
            difference = fmax(fabs(x[0] - y[0]), fabs(x[1] - y[1]));
            magnitude = fmax(fabs(y[0]), fabs(y[1]));
            if ((absolute > 0 || relative > 0) && ((isnan(x[0]) && isnan(y[0])) || difference <= absolute + relative * magnitude))
                continue;
        }
        note_difference(diff, first_index + (int64_t)i, difference);
    }
}

static void start_pair(struct diff *diff, uint32_t pair)
{
    enum dtype dtype = diff->catalog_a->tensors[diff->pairs[pair].a].dtype;
    unsigned bytes = dtype_element_bytes(dtype);
    diff->element_bytes = bytes ? bytes : 1;
    diff->to_double = bytes ? cast_to_double_find(dtype) : NULL;
    diff->result = (struct pair_result){ .first_index = -1 };
    diff->held = 0;
}

static reshard_status compare_part(void *context, uint32_t pair, uint64_t offset, const void *a_bytes, const void *b_bytes, size_t size,
                                   bool is_last, reshard_error *err)
{
    struct diff *diff = context;
    const uint8_t *a = a_bytes, *b = b_bytes;
    if (offset == 0)
        start_pair(diff, pair);
    unsigned width = diff->element_bytes;
    while (size && (diff->held || size < width)) {
        diff->held_a[diff->held] = *a++;
        diff->held_b[diff->held++] = *b++;
        size--;
        offset++;
        if (diff->held == width) {
            compare_elements(diff, diff->held_a, diff->held_b, 1, (int64_t)(offset / width) - 1);
            diff->held = 0;
        }
    }
    size_t whole = size / width;
    if (whole)
        compare_elements(diff, a, b, whole, (int64_t)(offset / width));
    for (size_t i = whole * width; i < size; i++) {
        diff->held_a[diff->held] = a[i];
        diff->held_b[diff->held++] = b[i];
    }
    if (is_last && diff->result.count)
        finding_report_values(diff->findings, diff->catalog_a->tensors[diff->pairs[pair].a].key, "values differ", diff->result.first_index,
                              diff->result.count, diff->result.max_difference);
    return finding_sink_status(diff->findings, err);
}

/* The source tensors that the pairs' made ones are made of. */
static reshard_status resolve_made(struct diff *diff, reshard_error *err)
{
    const struct recipe_table *table = &diff->selection.table;
    uint32_t *tensors, count;
    reshard_status status = recipes_read(table->recipes, table->count, diff->a->source->catalog->tensor_count, &tensors, &count, err);
    if (!status)
        status = source_resolve(diff->a->source, tensors, count, err);
    free(tensors);
    return status;
}

static reshard_status resolve_pairs(struct diff *diff, reshard_error *err)
{
    uint32_t *tensors = malloc(((size_t)diff->pair_count + 1) * sizeof(*tensors));
    if (!tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < diff->pair_count; i++)
        tensors[i] = diff->pairs[i].a;
    reshard_status status = diff->mapping.stage ? resolve_made(diff, err) : source_resolve(diff->a->source, tensors, diff->pair_count, err);
    for (uint32_t i = 0; i < diff->pair_count; i++)
        tensors[i] = diff->pairs[i].b;
    if (!status)
        status = source_resolve(diff->b->source, tensors, diff->pair_count, err);
    free(tensors);
    return status;
}

/* ---- items ---- */

static const struct catalog_item *find_item(const struct catalog *catalog, const struct catalog_item *wanted, const struct name_map *keys,
                                            const uint32_t *items)
{
    uint32_t key = name_map_find(keys, wanted->key);
    return key == NAME_NONE ? NULL : &catalog->items[items[key]];
}

static bool index_items(const struct catalog *catalog, struct name_map *keys, uint32_t **items)
{
    *items = malloc(((size_t)catalog->item_count + 1) * sizeof(**items));
    if (!*items)
        return false;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        uint32_t key = name_map_intern(keys, catalog->items[i].key, NULL);
        if (key == NAME_NONE)
            return false;
        (*items)[key] = i;
    }
    return true;
}

static reshard_status compare_item(struct diff *diff, uint32_t a_index, uint32_t b_index, reshard_error *err)
{
    reshard_status status = source_load_item(diff->a->source, a_index, err);
    if (!status)
        status = source_load_item(diff->b->source, b_index, err);
    if (status)
        return status;
    const struct catalog_item *x = &diff->a->source->catalog->items[a_index], *y = &diff->b->source->catalog->items[b_index];
    bool same = !x->value == !y->value;
    if (x->value && y->value)
        status = value_compare(x->value, y->value, diff->a->source->limits.budget, &same, err);
    if (!status && !same)
        finding_report(diff->findings, FINDING_FAILURE, "item", x->key, "items differ");
    return status;
}

static reshard_status diff_compare_items(struct diff *diff, reshard_error *err)
{
    const struct catalog *a = diff->a->source->catalog, *b = diff->b->source->catalog;
    struct name_map keys_a = { 0 }, keys_b = { 0 };
    uint32_t *items_a = NULL, *items_b = NULL;
    reshard_status status = RESHARD_OK;
    if (!index_items(a, &keys_a, &items_a) || !index_items(b, &keys_b, &items_b)) {
        status = error_set_memory(err);
        goto out;
    }
    for (uint32_t i = 0; i < a->item_count && !status; i++) {
        const struct catalog_item *other = find_item(b, &a->items[i], &keys_b, items_b);
        if (a->items[i].kind == ITEM_FILE)
            continue;
        if (other)
            status = compare_item(diff, i, (uint32_t)(other - b->items), err);
        else
            finding_report(diff->findings, FINDING_FAILURE, "item", a->items[i].key, "item is missing in the second");
    }
    for (uint32_t i = 0; i < b->item_count && !status; i++) {
        if (b->items[i].kind != ITEM_FILE && !find_item(a, &b->items[i], &keys_a, items_a))
            finding_report(diff->findings, FINDING_FAILURE, "item", b->items[i].key, "item is only in the second");
    }

out:
    name_map_release(&keys_a);
    name_map_release(&keys_b);
    free(items_a);
    free(items_b);
    return status;
}

/* a under the names, shapes and types of b, as far as the options' mapping knows them. */
static reshard_status map_a(struct diff *diff, reshard_error *err)
{
    const struct mapping_request request = {
        .source = diff->a->source, .other = diff->b->source, .is_comparison = true, .options = diff->options->map
    };
    const struct selection_options tensors = { .drop_items = true };
    diff->catalog_a = diff->a->source->catalog;
    reshard_status status = mapping_make(&request, &diff->mapping, err);
    if (!status && diff->mapping.names)
        finding_report(diff->findings, FINDING_NOTE, "names", STR(""), "compared under other %s", diff->mapping.names);
    if (status || !diff->mapping.stage)
        return status;
    status = selection_make(diff->a->source->catalog, diff->mapping.stage, "mapped", &tensors, NULL, &diff->selection, err);
    if (!status)
        status = catalog_seal(diff->selection.wanted, true, err);
    if (!status)
        diff->catalog_a = diff->selection.wanted;
    return status;
}

static reshard_status compare_tensors(struct diff *diff, const struct engine_options *engine, reshard_error *err)
{
    struct engine_source source_a = checkpoint_engine_source(diff->a), source_b = checkpoint_engine_source(diff->b);
    const struct engine_made made = { diff->catalog_a, diff->selection.table.recipes, diff->selection.table.first };
    reshard_status status = match_tensors(diff, err);
    if (!status)
        status = resolve_pairs(diff, err);
    if (!status && diff->pair_count)
        status = lockstep_run(&source_a, diff->mapping.stage ? &made : NULL, &source_b, diff->pairs, diff->pair_count, engine, compare_part,
                              diff, err);
    return status;
}

reshard_status diff_run(struct checkpoint *a, struct checkpoint *b, const struct diff_options *options, const struct engine_options *engine,
                        struct finding_sink *findings, reshard_error *err)
{
    reshard_status status = checkpoint_relate_both(&a, &b, err);
    if (status)
        return status;
    struct diff diff = { .a = a, .b = b, .options = options, .findings = findings };
    uint64_t failures = findings->failures;
    work_renew(&a->source->work);
    work_renew(&b->source->work);
    status = map_a(&diff, err);
    if (!status)
        status = compare_tensors(&diff, engine, err);
    if (!status && !options->ignore_items)
        status = diff_compare_items(&diff, err);
    if (!status)
        status = finding_sink_status(findings, err);
    free(diff.pairs);
    selection_release(&diff.selection);
    mapping_made_release(&diff.mapping);
    return status ? status : findings->failures > failures ? RESHARD_DIFFERS : RESHARD_OK;
}
