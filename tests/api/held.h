/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank holds in the tests of saving and loading together. */
#ifndef TESTS_API_HELD_H
#define TESTS_API_HELD_H

#include "check.h"

#include "reshard/sharded.h"

#include <stdbool.h>

static inline reshard_str text_of(const char *text)
{
    return (reshard_str){ text, strlen(text) };
}

#define ROWS 24
#define COLUMNS 12
#define LAYERS 12

/* What a rank holds: rows, columns, a layer stack, copies, a flat range, bytes that only some have. */
struct held {
    float rows[ROWS * 3], columns[5 * COLUMNS], layers[LAYERS][4], copy[7], flat[30], scalar;
    float more; /* than the usual values: of another time */
    reshard_sharded *sharded;
};

static inline float value_of(int tensor, int64_t number)
{
    return (float)(tensor * 1000 + number);
}

static inline void tensor_add(struct held *held, const char *key, size_t rank, size_t prepended, const int64_t *shape,
                       const reshard_rank_offset *offset, int64_t replica, void *data, const int64_t *strides)
{
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    tensor.key = text_of(key);
    tensor.dtype = "F32";
    tensor.rank = rank;
    tensor.prepended = prepended;
    tensor.local_shape = shape;
    tensor.replica_ids = &replica;
    tensor.replica_count = 1;
    tensor.data = data;
    tensor.strides = strides;
    assert_int_equal(reshard_sharded_add_offsets(held->sharded, &tensor, offset, sizeof(*offset), offset ? 1 : 0, NULL), RESHARD_OK);
}

static inline void flat_add(struct held *held, int64_t rank, int64_t ranks)
{
    static const int64_t shape[] = { 5, 6 }, origin[] = { 0, 0 }, one[] = { 1, 1 };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    tensor.key = text_of("flat");
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = tensor.global_shape = shape;
    tensor.global_offset = origin;
    tensor.fragments = one;
    tensor.is_flattened = 1;
    tensor.flat_begin = 30 * rank / ranks;
    tensor.flat_end = 30 * (rank + 1) / ranks;
    tensor.data = held->flat + tensor.flat_begin;
    assert_int_equal(reshard_sharded_add(held->sharded, &tensor, NULL), RESHARD_OK);
}

static inline void values_add(struct held *held, int64_t rank, int64_t ranks)
{
    char json[32];
    const int64_t grid[] = { ranks }, cell[] = { rank };
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    snprintf(json, sizeof(json), "[\"part\",%d]", (int)rank);
    object.key = text_of("rng");
    object.rank = 1;
    object.global_shape = grid;
    object.global_offset = cell;
    object.json = text_of(json);
    assert_int_equal(reshard_sharded_add_object(held->sharded, &object, NULL), RESHARD_OK);
    value.key = text_of("iteration");
    value.json = text_of("7");
    assert_int_equal(reshard_sharded_add_value(held->sharded, &value, NULL), RESHARD_OK);
    value.kind = RESHARD_VALUE_LOCAL;
    value.key = text_of("local");
    value.json = text_of(json);
    assert_int_equal(reshard_sharded_add_value(held->sharded, &value, NULL), RESHARD_OK);
}

/* Columns lie column by column in memory. */
static inline struct held *held_new(int64_t rank, int64_t ranks)
{
    struct held *held = calloc(1, sizeof(*held));
    const int64_t rows[] = { ROWS / ranks, 3 }, columns[] = { 5, COLUMNS / ranks }, by_column[] = { 1, 5 }, layer[] = { 4 }, copy[] = { 7 };
    const reshard_rank_offset row = { 0, rank, ranks }, column = { 1, rank, ranks };
    assert_non_null(held);
    assert_int_equal(reshard_sharded_new(&held->sharded, NULL), RESHARD_OK);
    tensor_add(held, "rows", 2, 0, rows, &row, 0, held->rows, NULL);
    tensor_add(held, "columns", 2, 0, columns, &column, 0, held->columns, by_column);
    for (int64_t i = rank * (LAYERS / ranks); i < (rank + 1) * (LAYERS / ranks); i++) {
        const reshard_rank_offset at = { 0, i, LAYERS };
        tensor_add(held, "layers", 2, 1, layer, &at, 0, held->layers[i], NULL);
    }
    tensor_add(held, "copy", 1, 0, copy, NULL, rank, held->copy, NULL);
    tensor_add(held, "scalar", 0, 0, NULL, NULL, rank, &held->scalar, NULL);
    flat_add(held, rank, ranks);
    values_add(held, rank, ranks);
    return held;
}

static inline void held_free(struct held *held)
{
    reshard_sharded_free(held->sharded);
    free(held);
}

/* Sets the values, or counts those that are not as they should be. */
static inline int held_walk(struct held *held, int64_t rank, int64_t ranks, bool sets)
{
    int64_t rows = ROWS / ranks, columns = COLUMNS / ranks, layers = LAYERS / ranks;
    int wrong = 0;
#define AT(place, expected)                                         \
    do {                                                            \
        if (sets)                                                   \
            (place) = (expected) + held->more;                      \
        else                                                        \
            wrong += (place) != (expected) + held->more;            \
    } while (0)
    for (int64_t i = 0; i < rows * 3; i++)
        AT(held->rows[i], value_of(1, rank * rows * 3 + i));
    for (int64_t i = 0; i < 5 * columns; i++)
        AT(held->columns[i], value_of(2, i % 5 * COLUMNS + rank * columns + i / 5));
    for (int64_t i = rank * layers * 4; i < (rank + 1) * layers * 4; i++)
        AT(held->layers[i / 4][i % 4], value_of(3, i));
    for (int64_t i = 0; i < 7; i++)
        AT(held->copy[i], value_of(4, i));
    for (int64_t i = 30 * rank / ranks; i < 30 * (rank + 1) / ranks; i++)
        AT(held->flat[i], value_of(5, i));
    AT(held->scalar, value_of(6, 0));
    return wrong;
}

#endif
