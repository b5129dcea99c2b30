/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind paddle_save.h share. Nobody else includes this. */
#ifndef ENCODING_PADDLE_SAVE_PARTS_H
#define ENCODING_PADDLE_SAVE_PARTS_H

#include "encoding/paddle_save.h"
#include "encoding/pickle_arrays.h"

struct paddle_reading {
    struct paddle_archive *archive;
    const struct reader *reader;
    const struct limits *limits;
    bool lenient;
    struct value **by_id; /* nodes by id, NULL if not reachable */
    bool *is_payload;     /* by id: the string holds an array's elements */
    struct name_map globals; /* unknown ones, seen before */
    uint32_t tensor_capacity, entry_capacity, unknown_capacity;
};

reshard_status paddle_fail(const struct value *node, reshard_error *err, const char *format, ...) PRINTF_LIKE(3, 4);

/* Appends a tensor of the archive; tensor->shape and parts lie anywhere and are copied. */
reshard_status paddle_add_tensor(struct paddle_reading *reading, const struct paddle_tensor *tensor, uint32_t *out, reshard_error *err);
reshard_status paddle_add_entry(struct paddle_reading *reading, const struct paddle_entry *entry, reshard_error *err);

/* The nodes of the graph: globals, arrays, wrappers of arrays (paddle_save_nodes.c). */
reshard_status paddle_read_nodes(struct paddle_reading *reading, reshard_error *err);

/* The members of the outermost dict, its name table and what was cut (paddle_save_entries.c). */
reshard_status paddle_read_entries(struct paddle_reading *reading, reshard_error *err);

/* One tensor behind a TensorDesc (paddle_save_binary.c). */
bool paddle_binary_probe(const uint8_t *head, size_t size);
reshard_status paddle_read_binary(struct paddle_reading *reading, reshard_error *err);

#endif
