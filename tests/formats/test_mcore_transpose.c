/* SPDX-License-Identifier: Apache-2.0 */
/* Flattened state of experts in one matrix, which Megatron Core up to 0.15 stored as the matrix has it, not as the weights are stored. */
#include "check.h"

#include "../base/value_text.h"
#include "formats/mcore/mcore_transpose.h"
#include "tensor/box.h"

#define WEIGHT "decoder.layers.mlp.experts.experts.linear_fc1.weight"
#define OTHER "decoder.layers.self_attention.linear_proj.weight"
#define STATE "optimizer.state.exp_avg."
#define ARGS(matrices)                                                                                                                    \
    "argparse.Namespace() ^ {'num_layers': 2, 'hidden_size': 4, 'num_attention_heads': 2, 'kv_channels': 2, 'num_query_groups': 2, "       \
    "'ffn_hidden_size': 3, 'moe_ffn_hidden_size': 3, 'num_experts': 2, 'moe_grouped_gemm': True, "                                         \
    "'moe_use_legacy_grouped_gemm': " matrices ", 'add_bias_linear': False, 'swiglu': False, 'tensor_model_parallel_size': 1, "            \
    "'pipeline_model_parallel_size': 1, 'expert_model_parallel_size': 1, 'expert_tensor_parallel_size': 1}"

enum { LAYERS = 2, EXPERTS = 2, ROWS = 3, COLUMNS = 4, EACH = ROWS * COLUMNS };

static reshard_error err;

/* The weights of a model, and state whose last axes are these. */
static struct catalog *make_model(int64_t state_rows, int64_t state_columns, uint32_t *states)
{
    static const int64_t weight[4] = { LAYERS, EXPERTS, ROWS, COLUMNS }, square[3] = { LAYERS, COLUMNS, COLUMNS };
    const int64_t shape[4] = { LAYERS, EXPERTS, state_rows, state_columns };
    struct catalog *catalog = catalog_new("test");
    uint32_t tensor, object;
    struct catalog_chunk *chunk;
    CHECK_OK(catalog_add_object(catalog, STR("f"), 1 << 20, &object, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR(WEIGHT), DTYPE_BF16, 4, weight, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, 2 * LAYERS * EXPERTS * EACH, &chunk, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR(OTHER), DTYPE_BF16, 3, square, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 500, 2 * LAYERS * COLUMNS * COLUMNS, &chunk, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR(STATE OTHER), DTYPE_F32, 3, square, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 1000, 4 * LAYERS * COLUMNS * COLUMNS, &chunk, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR(STATE WEIGHT), DTYPE_F32, 4, shape, states, &err));
    return catalog;
}

/* Pieces of `step` elements of each expert's state, which is one cell; a blob has one piece. */
static void add_pieces(struct catalog *catalog, uint32_t states, int64_t step)
{
    for (int64_t cell = 0; cell < (int64_t)LAYERS * EXPERTS; cell++) {
        for (int64_t at = 0; at < EACH; at += step) {
            const int64_t start[4] = { cell / EXPERTS, cell % EXPERTS, 0, 0 }, extent[4] = { 1, 1, COLUMNS, ROWS };
            struct catalog_chunk *chunk;
            uint64_t offset = 10000 * (uint64_t)(cell * EACH + at);
            CHECK_OK(catalog_add_chunk(catalog, states, start, extent, 0, offset, 4 * (uint64_t)step, &chunk, &err));
            chunk->flags |= CHUNK_UNRESOLVED;
            if (step == EACH)
                continue;
            struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
            layout->flat_begin = at;
            layout->flat_count = EACH - at < step ? EACH - at : step;
        }
    }
}

static uint32_t find_tensor(const struct catalog *catalog, const char *key)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        if (str_is(catalog->tensors[i].key, key))
            return i;
    fail_msg("no tensor %s", key);
    return 0;
}

/* Each element of the tensor comes once, from the blob that holds it and from its place there. */
static void check_places(const struct catalog *catalog, int64_t step)
{
    uint32_t tensor = find_tensor(catalog, STATE WEIGHT);
    const int64_t *shape = catalog_vector_at(catalog, catalog->tensors[tensor].shape);
    assert_int_equal(shape[2], ROWS);
    assert_int_equal(shape[3], COLUMNS);
    bool found[LAYERS * EXPERTS * EACH] = { false };
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (chunk->tensor != tensor)
            continue;
        const int64_t *start = catalog_vector_at(catalog, chunk->start), *extent = catalog_vector_at(catalog, chunk->extent);
        assert_true(chunk->flags & CHUNK_UNRESOLVED);
        assert_true(extent[0] == 1 && extent[1] == 1 && extent[3] == 1);
        for (int64_t row = start[2]; row < start[2] + extent[2]; row++) {
            int64_t cell = start[0] * EXPERTS + start[1];
            int64_t stored = start[3] * ROWS + row; /* in the cell: transposed */
            assert_int_equal(chunk->offset, 10000 * (uint64_t)(cell * EACH + stored / step * step));
            assert_int_equal(chunk->driver_data, 1 + stored % step - (row - start[2]));
            assert_false(found[(cell * ROWS + row) * COLUMNS + start[3]]);
            found[(cell * ROWS + row) * COLUMNS + start[3]] = true;
        }
    }
    for (size_t i = 0; i < sizeof(found); i++)
        assert_true(found[i]);
}

TEST(each_piece_becomes_columns_of_its_weight)
{
    static const int64_t steps[] = { EACH, 1, 2, 3, 5, 7, 11 };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct value_graph graph = { 0 };
        uint32_t states;
        struct catalog *catalog = make_model(COLUMNS, ROWS, &states);
        add_pieces(catalog, states, steps[i]);
        CHECK_OK(mcore_transpose_states(catalog, value_from_text(&graph, ARGS("True")), &err));
        assert_int_equal(catalog->tensor_count, 4);
        check_places(catalog, steps[i]);
        /* State of what is no expert's stays as it is. */
        const struct catalog_tensor *other = &catalog->tensors[find_tensor(catalog, STATE OTHER)];
        assert_int_equal(other->rank, 3);
        catalog_free(catalog);
        value_graph_release(&graph);
    }
}

TEST(nothing_changes_where_experts_are_no_matrices)
{
    struct value_graph graph = { 0 };
    const struct value *none[] = { NULL, value_from_text(&graph, ARGS("False")) };
    for (int i = 0; i < 2; i++) {
        uint32_t states;
        struct catalog *catalog = make_model(COLUMNS, ROWS, &states);
        add_pieces(catalog, states, 5);
        uint32_t chunks = catalog->chunk_count;
        CHECK_OK(mcore_transpose_states(catalog, none[i], &err));
        assert_int_equal(catalog->chunk_count, chunks);
        assert_int_equal(catalog_vector_at(catalog, catalog->tensors[find_tensor(catalog, STATE WEIGHT)].shape)[2], COLUMNS);
        catalog_free(catalog);
    }
    value_graph_release(&graph);
}

TEST(state_that_is_no_transposed_matrix_is_refused)
{
    struct value_graph graph = { 0 };
    const struct value *args = value_from_text(&graph, ARGS("True"));
    uint32_t states;
    struct catalog *catalog = make_model(ROWS, COLUMNS, &states);
    CHECK_FAILS(mcore_transpose_states(catalog, args, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "with the last two axes exchanged"));
    catalog_free(catalog);
    catalog = make_model(COLUMNS, ROWS, &states);
    add_pieces(catalog, states, EACH);
    catalog->chunks[catalog->chunk_count - 1].flags &= ~(unsigned)CHUNK_UNRESOLVED;
    CHECK_FAILS(mcore_transpose_states(catalog, args, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "is not stored as flattened state is"));
    catalog_free(catalog);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_piece_becomes_columns_of_its_weight),
        cmocka_unit_test(nothing_changes_where_experts_are_no_matrices),
        cmocka_unit_test(state_that_is_no_transposed_matrix_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
