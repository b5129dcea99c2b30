/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/partition_gates.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

struct gate_matrix {
    int64_t rows, columns;
};

reshard_status partition_gates_note(struct partition_gates *gates, struct str key, int rank, const int64_t *shape, reshard_error *err)
{
    if (rank < 2)
        return RESHARD_OK;
    uint32_t number = name_map_intern(&gates->names, key, NULL);
    if (number == NAME_NONE || !ARRAY_ROOM(gates->matrices, number, gates->capacity))
        return error_set_memory(err);
    gates->matrices[number] = (struct gate_matrix){ shape[rank - 2], shape[rank - 1] };
    return RESHARD_OK;
}

/* Whether the key is a prefix and then `end`, whose last component is replaced by `last` if that is said. */
static bool gates_take_end(struct str key, struct str end, const char *last, struct str *prefix)
{
    size_t kept = end.size;
    while (last && kept && end.data[kept - 1] != '.')
        kept--;
    const struct str tail = last ? str_of(last) : (struct str){ end.data + end.size, 0 };
    if (key.size < kept + tail.size)
        return false;
    *prefix = (struct str){ key.data, key.size - kept - tail.size };
    return (!prefix->size || prefix->data[prefix->size - 1] == '.') && memcmp(key.data + prefix->size, end.data, kept) == 0 &&
           memcmp(key.data + prefix->size + kept, tail.data, tail.size) == 0;
}

static const struct gate_matrix *gates_find(const struct partition_gates *gates, const struct buffer *key)
{
    uint32_t number = name_map_find(&gates->names, buffer_str(key));
    return number == NAME_NONE ? NULL : &gates->matrices[number];
}

reshard_status partition_gates_ask(struct partition_gates *gates, struct str key, bool *is_gated, bool *is_told, reshard_error *err)
{
    struct str prefix;
    *is_told = false;
    for (uint32_t i = 0; i < gates->rules->gate_count && !*is_told; i++) {
        const struct partition_gate *gate = &gates->rules->gates[i];
        if (!gates_take_end(key, gate->wide, NULL, &prefix) && !gates_take_end(key, gate->wide, "bias", &prefix))
            continue;
        buffer_clear(&gates->wide);
        buffer_clear(&gates->narrow);
        buffer_append_str(&gates->wide, prefix);
        buffer_append_str(&gates->narrow, prefix);
        if (!buffer_append_str(&gates->wide, gate->wide) || !buffer_append_str(&gates->narrow, gate->narrow))
            return error_set_memory(err);
        const struct gate_matrix *wide = gates_find(gates, &gates->wide), *narrow = gates_find(gates, &gates->narrow);
        *is_told = wide && narrow;
        if (*is_told)
            *is_gated = wide->rows % 2 == 0 && wide->rows / 2 == narrow->columns;
    }
    return RESHARD_OK;
}

reshard_status partition_gates_ask_any(struct partition_gates *gates, bool *is_gated, reshard_error *err)
{
    bool is_told = false;
    reshard_status status = RESHARD_OK;
    *is_gated = false;
    for (uint32_t i = 0; i < gates->names.count && !is_told && !status; i++)
        status = partition_gates_ask(gates, name_map_at(&gates->names, i), is_gated, &is_told, err);
    return status;
}

void partition_gates_release(struct partition_gates *gates)
{
    name_map_release(&gates->names);
    free(gates->matrices);
    buffer_release(&gates->wide);
    buffer_release(&gates->narrow);
    *gates = (struct partition_gates){ 0 };
}
