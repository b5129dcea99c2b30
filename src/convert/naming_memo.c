/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/naming_memo.h"

#include "base/array.h"

#include <stdlib.h>

static reshard_status naming_memo_rename(struct str key, struct buffer *out, void *context, reshard_error *err)
{
    struct naming_memo *memo = context;
    const size_t before = out->size;
    bool is_new;
    uint32_t number = name_map_intern(&memo->asked, key, &is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(memo->named, number, memo->capacity))
        return error_set_memory(err);
    if (!is_new)
        return buffer_append_str(out, memo->named[number]) ? RESHARD_OK : error_set_memory(err);
    memo->named[number] = (struct str){ 0 };
    reshard_status status = memo->given->rename(key, out, memo->given->context, err);
    if (status)
        return status;
    const struct str made = { (const char *)out->data + before, out->size - before };
    return arena_str(&memo->texts, made, &memo->named[number]) ? RESHARD_OK : error_set_memory(err);
}

struct naming_options naming_memo_begin(struct naming_memo *memo, const struct naming_options *given)
{
    struct naming_options asks = *given;
    *memo = (struct naming_memo){ .given = given };
    if (given->rename) {
        asks.rename = naming_memo_rename;
        asks.context = memo;
    }
    return asks;
}

void naming_memo_end(struct naming_memo *memo)
{
    name_map_release(&memo->asked);
    free(memo->named);
    arena_release(&memo->texts);
    *memo = (struct naming_memo){ 0 };
}
