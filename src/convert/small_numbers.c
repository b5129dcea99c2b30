/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/small_numbers.h"

#include "base/array.h"
#include "formats/shared/step_number.h"
#include "tensor/box.h"

#include <stdlib.h>
#include <string.h>

reshard_status small_numbers_begin(struct small_numbers *numbers, const struct catalog *catalog, reshard_error *err)
{
    *numbers = (struct small_numbers){ .catalog = catalog,
                                       .tensors = array_zeroed(catalog->tensor_count, sizeof(*numbers->tensors)),
                                       .number_of = array_zeroed(catalog->tensor_count, sizeof(*numbers->number_of)) };
    return numbers->tensors && numbers->number_of ? RESHARD_OK : error_set_memory(err);
}

void small_numbers_release(struct small_numbers *numbers)
{
    free(numbers->tensors);
    free(numbers->number_of);
    free(numbers->bytes);
}

bool small_number_is(const struct catalog *catalog, uint32_t tensor)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    return !(entry->flags & TENSOR_NO_DATA) && catalog_tensor_bytes(catalog, entry) <= SMALL_NUMBER_BYTES &&
           box_volume(entry->rank, catalog_vector_at(catalog, entry->shape)) == 1;
}

void small_numbers_note(struct small_numbers *numbers, uint32_t tensor)
{
    if (numbers->number_of[tensor])
        return;
    numbers->tensors[numbers->count++] = tensor;
    numbers->number_of[tensor] = numbers->count;
}

static reshard_status small_number_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                        reshard_error *err)
{
    const struct small_numbers *numbers = context;
    (void)is_last;
    (void)err;
    if (offset + size <= SMALL_NUMBER_BYTES)
        memcpy(numbers->bytes[numbers->number_of[tensor] - 1] + offset, bytes, size);
    return RESHARD_OK;
}

reshard_status small_numbers_read(struct small_numbers *numbers, struct checkpoint *checkpoint, const struct engine_options *engine,
                                  reshard_error *err)
{
    if (!numbers->count)
        return RESHARD_OK;
    numbers->bytes = array_zeroed(numbers->count, sizeof(*numbers->bytes));
    reshard_status status =
        numbers->bytes ? source_resolve(checkpoint->source, numbers->tensors, numbers->count, err) : error_set_memory(err);
    struct engine_source source = checkpoint_engine_source(checkpoint);
    if (!status)
        status = engine_stream(&source, numbers->tensors, numbers->count, NULL, NULL, engine, small_number_sink, numbers, err);
    return status;
}

reshard_status small_number_value(const struct small_numbers *numbers, uint32_t number, struct value_graph *graph, struct value **out,
                                  reshard_error *err)
{
    const struct catalog_tensor *tensor = &numbers->catalog->tensors[numbers->tensors[number]];
    return step_of_element(graph, tensor->dtype, numbers->bytes[number], false, out, err);
}
