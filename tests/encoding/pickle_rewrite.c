/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests/live/pickle_test.py: reads pickles from standard input, each after its size as u64 little-endian, and answers each
 * with the pickle that pickle_write makes of it in the same form, or with 2^64 - 1, a size and an error message.
 */
#include "base/cursor.h"
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"

#include <stdio.h>
#include <stdlib.h>

static void put_size(uint64_t size)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(size >> (8 * i));
    fwrite(bytes, 1, sizeof(bytes), stdout);
}

static void answer(const void *bytes, size_t size)
{
    reshard_error err = { 0 };
    struct value_graph graph = { 0 };
    struct buffer out = { .limit = 1 << 28 };
    reshard_status status = pickle_parse_with_ids(bytes, size, 0, &limits_default, &graph, NULL, &err);
    if (!status)
        status = pickle_write(graph.root, graph.count, NULL, NULL, NULL, &out, &err);
    if (status)
        put_size(UINT64_MAX);
    put_size(status ? strlen(err.message) : out.size);
    fwrite(status ? (const void *)err.message : out.data, 1, status ? strlen(err.message) : out.size, stdout);
    fflush(stdout);
    buffer_release(&out);
    arena_release(&graph.arena);
}

int main(void)
{
    uint8_t head[8];
    while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
        size_t size = load_le(head, 8);
        uint8_t *bytes = malloc(size + 1);
        if (!bytes || fread(bytes, 1, size, stdin) != size)
            return 1;
        answer(bytes, size);
        free(bytes);
    }
    return 0;
}
