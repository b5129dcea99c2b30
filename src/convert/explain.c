/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/explain.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"

#define TENSOR_BYTES_MAX ((uint64_t)256 << 20) /* of one that is read as a whole */
#define BYTES_MAX ((uint64_t)4 << 30)          /* that are read to explain */

reshard_status explain_add(struct explanation *explanation, struct lockstep_pair pair, reshard_error *err)
{
    if (explanation->count == explanation->capacity) {
        uint32_t capacity = explanation->capacity ? 2 * explanation->capacity : 64;
        struct suspect *grown = realloc(explanation->suspects, capacity * sizeof(*grown));
        if (!grown)
            return error_set_memory(err);
        explanation->suspects = grown;
        explanation->capacity = capacity;
    }
    explanation->suspects[explanation->count++] = (struct suspect){ .pair = pair };
    return RESHARD_OK;
}

void explain_release(struct explanation *explanation)
{
    for (uint32_t i = 0; i < explanation->count; i++)
        free(explanation->suspects[i].text);
    free(explanation->suspects);
    *explanation = (struct explanation){ 0 };
}

/* ---- reading ---- */

struct filling {
    uint8_t *bytes;
    uint64_t size;
};

static reshard_status fill_memory(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                  reshard_error *err)
{
    const struct filling *filling = context;
    (void)tensor, (void)is_last;
    if (offset > filling->size || size > filling->size - offset)
        return error_set(err, RESHARD_ERR_FORMAT, "more bytes than the tensor has");
    memcpy(filling->bytes + offset, bytes, size);
    return RESHARD_OK;
}

reshard_status explain_hold(const struct explanation *explanation, bool is_a, uint32_t tensor, struct held_tensor *out, reshard_error *err)
{
    const struct catalog *catalog = is_a ? explanation->catalog_a : explanation->b->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    struct engine_options options = *explanation->engine;
    struct filling filling = { .size = catalog_tensor_bytes(catalog, entry) };
    filling.bytes = malloc(filling.size + 1);
    *out = (struct held_tensor){ .bytes = filling.bytes,
                                 .elements = filling.size / dtype_element_bytes(entry->dtype),
                                 .shape = catalog_vector_at(catalog, entry->shape),
                                 .dtype = entry->dtype,
                                 .rank = entry->rank };
    if (!filling.bytes)
        return error_set_memory(err);
    options.threads = 1; /* parts come in order, and each is copied once */
    options.progress = NULL;
    if (is_a && explanation->made)
        return engine_stream_made(explanation->a, explanation->made, &tensor, 1, &options, fill_memory, &filling, err);
    return engine_stream(is_a ? explanation->a : explanation->b, &tensor, 1, NULL, NULL, &options, fill_memory, &filling, err);
}

/* ---- trying ---- */

static uint64_t sum_of_rows(const struct held_tensor *tensor)
{
    const uint64_t rows = tensor->rank ? (uint64_t)tensor->shape[0] : 1;
    const uint64_t bytes = rows ? tensor->elements / rows * dtype_element_bytes(tensor->dtype) : 0;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < rows; i++)
        sum += hash64(tensor->bytes + i * bytes, bytes, 0);
    return sum;
}

static reshard_status suspect_order(const struct explanation *explanation, const struct suspect *suspect, const struct held_tensor *a,
                                    const struct held_tensor *b, bool *is_found, struct buffer *out, reshard_error *err)
{
    unsigned char *cuts[RANK_MAX] = { NULL };
    reshard_error problem = { 0 };
    for (int axis = 0; axis < a->rank && axis < b->rank; axis++) {
        cuts[axis] = array_zeroed((size_t)(a->shape[axis] > b->shape[axis] ? a->shape[axis] : b->shape[axis]), 1);
        if (!cuts[axis])
            continue;
        if (!explanation->made)
            explain_cuts(explanation->catalog_a, suspect->pair.a, axis, cuts[axis]);
        explain_cuts(explanation->b->catalog, suspect->pair.b, axis, cuts[axis]);
    }
    *is_found = explain_order(a, b, explanation->catalog_a->tensors[suspect->pair.a].key, cuts, out, &problem);
    for (int axis = 0; axis < RANK_MAX; axis++)
        free(cuts[axis]);
    if (problem.code && err)
        *err = problem;
    return problem.code;
}

static bool suspect_seams(const struct explanation *explanation, struct suspect *suspect, const struct held_tensor *a,
                          const struct held_tensor *b, struct buffer *out)
{
    const unsigned width = dtype_element_bytes(a->dtype);
    unsigned char *is_changed = a->dtype == b->dtype && a->rank == b->rank && a->elements == b->elements ? malloc(a->elements + 1) : NULL;
    bool is_found = false;
    uint64_t changed = 0;
    if (!is_changed)
        return false;
    for (uint64_t i = 0; i < a->elements; i++)
        changed += is_changed[i] = memcmp(a->bytes + i * width, b->bytes + i * width, width) != 0;
    suspect->is_other = changed > a->elements / 2;
    if (!explanation->made)
        is_found = explain_seams(explanation->catalog_a, suspect->pair.a, is_changed, "first", out);
    is_found = is_found || explain_seams(explanation->b->catalog, suspect->pair.b, is_changed, "second", out);
    free(is_changed);
    return is_found;
}

reshard_status suspect_tell(struct suspect *suspect, struct buffer *text, reshard_error *err)
{
    if (!buffer_append_byte(text, 0)) {
        buffer_release(text);
        return error_set_memory(err);
    }
    suspect->text = (char *)text->data;
    return RESHARD_OK;
}

static reshard_status suspect_try(const struct explanation *explanation, struct suspect *suspect, const struct held_tensor *a,
                                  const struct held_tensor *b, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    bool is_same_shape = a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0;
    bool is_found = explain_values(a, b, &text);
    suspect->digest_a = hash64(a->bytes, a->elements * dtype_element_bytes(a->dtype), 0);
    suspect->digest_b = hash64(b->bytes, b->elements * dtype_element_bytes(b->dtype), 0);
    suspect->is_read = true;
    if (!is_found) {
        suspect->rows_a = sum_of_rows(a);
        suspect->rows_b = sum_of_rows(b);
    }
    if (!is_found && is_same_shape)
        status = suspect_order(explanation, suspect, a, b, &is_found, &text, err);
    if (!is_found && is_same_shape && !status)
        is_found = suspect->is_partial = suspect_seams(explanation, suspect, a, b, &text);
    if (text.failed && !status)
        status = error_set_memory(err);
    if (is_found && !status)
        return suspect_tell(suspect, &text, err);
    buffer_release(&text);
    return status;
}

bool explain_reaches(const struct explanation *explanation, const struct suspect *suspect)
{
    const struct catalog *a = explanation->catalog_a, *b = explanation->b->catalog;
    const struct catalog_tensor *x = &a->tensors[suspect->pair.a], *y = &b->tensors[suspect->pair.b];
    const uint64_t bytes_a = catalog_tensor_bytes(a, x), bytes_b = catalog_tensor_bytes(b, y), given = explanation->engine->memory_bytes;
    const uint64_t most = given ? given / 2 : TENSOR_BYTES_MAX;
    return dtype_element_bytes(x->dtype) && dtype_element_bytes(y->dtype) && !((x->flags | y->flags) & TENSOR_NO_DATA) && bytes_a <= most &&
           bytes_b <= most && explanation->bytes <= BYTES_MAX;
}

static reshard_status suspect_read(struct explanation *explanation, struct suspect *suspect, reshard_error *err)
{
    struct held_tensor a = { 0 }, b = { 0 };
    if (!explain_reaches(explanation, suspect))
        return RESHARD_OK;
    reshard_status status = explain_hold(explanation, true, suspect->pair.a, &a, err);
    if (!status)
        status = explain_hold(explanation, false, suspect->pair.b, &b, err);
    if (!status) {
        explanation->bytes += a.elements * dtype_element_bytes(a.dtype) + b.elements * dtype_element_bytes(b.dtype);
        status = suspect_try(explanation, suspect, &a, &b, err);
    }
    free((void *)(uintptr_t)a.bytes);
    free((void *)(uintptr_t)b.bytes);
    return status;
}

/* ---- values under another key ---- */

static int by_digest_b(const void *x, const void *y)
{
    const struct suspect *const *a = x, *const *b = y;
    return ((*a)->digest_b > (*b)->digest_b) - ((*a)->digest_b < (*b)->digest_b);
}

/* The suspect whose tensor in the second has the values of this one in the first. */
static const struct suspect *find_values(struct suspect *const *sorted, uint32_t count, const struct suspect *wanted)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (sorted[middle]->digest_b < wanted->digest_a)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && sorted[low]->digest_b == wanted->digest_a ? sorted[low] : NULL;
}

static reshard_status tell_swapped(struct explanation *explanation, struct suspect *suspect, const struct suspect *other,
                                   reshard_error *err)
{
    const struct str key = explanation->catalog_a->tensors[other->pair.a].key;
    struct buffer text = { 0 };
    if (suspect->digest_b == other->digest_a)
        buffer_printf(&text, "it and '%.*s' have changed places", STR_ARG(key));
    else
        buffer_printf(&text, "the first's values are in the second under '%.*s'", STR_ARG(key));
    return suspect_tell(suspect, &text, err);
}

static reshard_status explain_places(struct explanation *explanation, reshard_error *err)
{
    struct suspect **sorted = array_zeroed(explanation->count, sizeof(*sorted));
    reshard_status status = sorted ? RESHARD_OK : error_set_memory(err);
    uint32_t count = 0;
    for (uint32_t i = 0; i < explanation->count && !status; i++) {
        if (explanation->suspects[i].is_read)
            sorted[count++] = &explanation->suspects[i];
    }
    if (count)
        qsort(sorted, count, sizeof(struct suspect *), by_digest_b);
    for (uint32_t i = 0; i < explanation->count && !status; i++) {
        struct suspect *suspect = &explanation->suspects[i];
        const struct suspect *other = suspect->is_read && !suspect->text ? find_values(sorted, count, suspect) : NULL;
        if (other && other != suspect)
            status = tell_swapped(explanation, suspect, other, err);
    }
    free(sorted);
    return status;
}

reshard_status explain_run(struct explanation *explanation, reshard_error *err)
{
    uint32_t unread = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < explanation->count && !status; i++)
        status = suspect_read(explanation, &explanation->suspects[i], err);
    if (!status)
        status = explain_places(explanation, err);
    if (!status && explanation->count)
        status = explain_families(explanation, err);
    if (!status && explanation->count)
        status = explain_files(explanation, false, err);
    if (!status && explanation->count && !explanation->made)
        status = explain_files(explanation, true, err);
    for (uint32_t i = 0; i < explanation->count && !status; i++) {
        const struct suspect *suspect = &explanation->suspects[i];
        unread += !suspect->is_read && !suspect->text;
        if (!suspect->text)
            continue;
        explanation->explained++;
        finding_report(explanation->findings, FINDING_NOTE, "cause", explanation->catalog_a->tensors[suspect->pair.a].key, "%s",
                       suspect->text);
        status = finding_sink_status(explanation->findings, err);
    }
    if (unread && !status)
        finding_report(explanation->findings, FINDING_NOTE, "cause", STR(""), "%u tensors that differ are too large to look for causes",
                       unread);
    return status ? status : finding_sink_status(explanation->findings, err);
}
