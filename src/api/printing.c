/* SPDX-License-Identifier: Apache-2.0 */
#include "api/printing.h"

#include <inttypes.h>

#define PRINT_WINDOW 65536

static reshard_status printing_flush(struct printing *printing, size_t least, reshard_error *err)
{
    if (printing->text.failed)
        return error_set_memory(err);
    if (printing->text.size < least)
        return RESHARD_OK;
    if (printing->sink(printing->text.data, printing->text.size, printing->context))
        return error_set(err, RESHARD_ERR_CANCELLED, "the receiver stopped");
    buffer_clear(&printing->text);
    return RESHARD_OK;
}

reshard_status printing_step(struct printing *printing, reshard_error *err)
{
    return printing_flush(printing, PRINT_WINDOW, err);
}

reshard_status printing_end(struct printing *printing, reshard_status status, reshard_error *err)
{
    if (!status)
        status = printing_flush(printing, 1, err);
    buffer_release(&printing->text);
    return status;
}

void print_numbers(struct buffer *out, const char *name, const int64_t *numbers, size_t count)
{
    buffer_printf(out, "\"%s\": [", name);
    for (size_t i = 0; i < count; i++)
        buffer_printf(out, "%s%" PRId64, i ? ", " : "", numbers[i]);
    buffer_append_text(out, "]");
}
