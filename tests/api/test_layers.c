/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of layers and of optimizer state: numbers of the documents, and the boxes of checkpoints that real frameworks wrote. */
#include "check.h"
#include "fail_malloc.h"

#include "reshard/layers.h"

#include <stdbool.h>

static reshard_error err = RESHARD_ERROR_INIT;

#define NAME(text) ((reshard_str){ (text), sizeof(text) - 1 })

static reshard_shards *list_new(void)
{
    reshard_shards *list;
    CHECK_OK(reshard_shards_new(&list, &err));
    return list;
}

static reshard_local_tensor tensor_of(const char *name, size_t rank, const int64_t *shape)
{
    return (reshard_local_tensor){ { name, strlen(name) }, "bfloat16", rank, shape, NULL, NULL };
}

static void check_shard(const reshard_shards *list, size_t index, const char *key, const int64_t *shape, const int64_t *start,
                        const int64_t *extent)
{
    reshard_shard shard = RESHARD_SHARD_INIT;
    assert_int_equal(reshard_shards_at(list, index, &shard), RESHARD_OK);
    assert_int_equal(shard.key.size, strlen(key));
    assert_memory_equal(shard.key.data, key, strlen(key));
    assert_memory_equal(shard.global_shape, shape, shard.rank * sizeof(*shape));
    assert_memory_equal(shard.start, start, shard.rank * sizeof(*shape));
    assert_memory_equal(shard.extent, extent, shard.rank * sizeof(*shape));
}

#define V(...) ((const int64_t[]){ __VA_ARGS__ })

/* ---- rules ---- */

/* Which axis of a weight (6, 10) and of its bias (10) is cut for rank 1 of 2; -1: none. */
static void check_axes(int64_t kind, int is_in_out, int is_transposed, int weight_axis, int bias_axis)
{
    const int64_t weight[] = { 6, 10 }, bias[] = { 10 };
    const reshard_local_tensor tensors[] = { tensor_of("weight", 2, weight), tensor_of("bias", 1, bias) };
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    reshard_shards *list = list_new();
    int64_t shape[] = { 6, 10 }, start[] = { 0, 0 }, whole = 10, from = 0;
    at.tp_rank = 1;
    at.tp_size = 2;
    layer.kind = kind;
    layer.is_in_out = is_in_out;
    layer.is_transposed = is_transposed;
    layer.prefix = NAME("layers.0.");
    layer.tensors = tensors;
    layer.tensor_count = kind == RESHARD_LAYER_VOCABULARY ? 1 : 2;
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    if (weight_axis >= 0) {
        start[weight_axis] = shape[weight_axis];
        shape[weight_axis] *= 2;
    }
    if (bias_axis >= 0)
        whole = 20, from = 10;
    check_shard(list, 0, "layers.0.weight", shape, start, weight);
    if (layer.tensor_count == 2)
        check_shard(list, 1, "layers.0.bias", &whole, &from, bias);
    reshard_shards_free(list);
}

TEST(each_kind_cuts_its_axis)
{
    check_axes(RESHARD_LAYER_COLUMN, 1, 0, 1, 0);
    check_axes(RESHARD_LAYER_COLUMN, 0, 0, 0, 0);
    check_axes(RESHARD_LAYER_ROW, 1, 0, 0, -1);
    check_axes(RESHARD_LAYER_ROW, 0, 0, 1, -1);
    check_axes(RESHARD_LAYER_VOCABULARY, 1, 0, 0, -1);
    check_axes(RESHARD_LAYER_VOCABULARY, 0, 0, 0, -1);
    check_axes(RESHARD_LAYER_HEAD, 1, 0, 1, 0);
    check_axes(RESHARD_LAYER_HEAD, 1, 1, 0, 0);
    check_axes(RESHARD_LAYER_HEAD, 0, 0, 0, 0);
    check_axes(RESHARD_LAYER_WHOLE, 1, 0, -1, -1);
}

/* ShardedTensor.from_rank_offsets: shape (12, 8), one axis in front, (0, 5, 24) and (1, 1, 2). */
TEST(axes_stand_in_front)
{
    const reshard_front_axis front[] = { { 5, 24 } };
    const reshard_local_tensor tensors[] = { tensor_of("linear_fc1.weight", 2, V(12, 8)),
                                             tensor_of("linear_fc1.layer_norm_weight", 1, V(8)) };
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    reshard_shards *list = list_new();
    at.tp_rank = 1;
    at.tp_size = 2;
    layer.kind = RESHARD_LAYER_COLUMN;
    layer.front_axes = front;
    layer.front_axis_count = 1;
    layer.tensors = tensors;
    layer.tensor_count = 2;
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    check_shard(list, 0, "linear_fc1.weight", V(24, 24, 8), V(5, 12, 0), V(1, 12, 8));
    check_shard(list, 1, "linear_fc1.layer_norm_weight", V(24, 8), V(5, 0), V(1, 8));
    reshard_shards_free(list);
}

/* State of halves that lie between each other lies so too. */
static void check_strided_state(const reshard_shards *model, const float *values)
{
    double state[6 * 2];
    const void *const parameters[] = { values };
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    reshard_optimizer_tensor tensor = { -1, NAME("in_out.weight"), NAME("exp_avg"), "float64", 2, V(6, 2), state, 0, 0, 0 };
    reshard_shards *list = list_new();
    optimizer.model = model;
    optimizer.parameters = parameters;
    optimizer.parameter_count = 1;
    optimizer.tensors = &tensor;
    optimizer.tensor_count = 1;
    CHECK_OK(reshard_optimizer_shards(&optimizer, list, &err));
    assert_int_equal(reshard_shards_count(list), 2);
    check_shard(list, 1, "optimizer.state.exp_avg.in_out.weight", V(6, 4), V(0, 3), V(6, 1));
    CHECK_OK(reshard_shards_at(list, 1, &shard));
    assert_ptr_equal(shard.data, state + 1);
    assert_memory_equal(shard.strides, V(2, 1), sizeof(int64_t[2]));
    tensor.is_flattened = 1;
    tensor.flat_end = 5;
    tensor.rank = 1;
    tensor.shape = V(5);
    CHECK_FAILS(reshard_optimizer_shards(&optimizer, list, &err), RESHARD_ERR_UNSUPPORTED);
    reshard_shards_free(list);
}

TEST(halves_of_a_gated_layer_are_cut_each)
{
    float values[6 * 2] = { 0 };
    reshard_local_tensor tensor = { NAME("weight"), "float32", 2, V(6, 2), values, NULL };
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    reshard_shards *list = list_new();
    reshard_shard shard = RESHARD_SHARD_INIT;
    at.tp_rank = 1;
    at.tp_size = 2;
    layer.kind = RESHARD_LAYER_COLUMN;
    layer.is_gated = 1;
    layer.tensors = &tensor;
    layer.tensor_count = 1;
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    check_shard(list, 0, "weight", V(12, 2), V(3, 0), V(3, 2));
    check_shard(list, 1, "weight", V(12, 2), V(9, 0), V(3, 2));
    CHECK_OK(reshard_shards_at(list, 1, &shard));
    assert_ptr_equal(shard.data, values + 6);
    layer.is_in_out = 1;
    layer.prefix = NAME("in_out.");
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    check_shard(list, 2, "in_out.weight", V(6, 4), V(0, 1), V(6, 1));
    check_shard(list, 3, "in_out.weight", V(6, 4), V(0, 3), V(6, 1));
    CHECK_OK(reshard_shards_at(list, 3, &shard));
    assert_ptr_equal(shard.data, values + 1);
    assert_memory_equal(shard.strides, V(2, 1), sizeof(int64_t[2]));
    check_strided_state(list, values);
    at.tp_rank = 0;
    at.tp_size = 1;
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    check_shard(list, 4, "in_out.weight", V(6, 2), V(0, 0), V(6, 2));
    reshard_shards_free(list);
}

/* Rank 1 of 2 with 2 experts each, in one tensor: the experts' tensor parallel group is another than that of the rest. */
TEST(experts_lie_along_an_axis)
{
    const reshard_local_tensor tensors[] = { tensor_of("linear_fc2.weight", 3, V(2, 8, 5)), tensor_of("linear_fc2.bias", 2, V(2, 8)) };
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    reshard_shards *list = list_new();
    int64_t replica[3];
    at.tp_rank = 3;
    at.tp_size = 4;
    at.ep_rank = 1;
    at.ep_size = 2;
    at.expert_tp_rank = 1;
    at.expert_tp_size = 2;
    at.dp_rank = 7;
    at.expert_dp_rank = 5;
    layer.kind = RESHARD_LAYER_ROW;
    layer.is_expert = layer.has_expert_axis = 1;
    layer.tensors = tensors;
    layer.tensor_count = 2;
    CHECK_OK(reshard_layer_shards(&layer, &at, list, &err));
    check_shard(list, 0, "linear_fc2.weight", V(4, 8, 10), V(2, 0, 5), V(2, 8, 5));
    check_shard(list, 1, "linear_fc2.bias", V(4, 8), V(2, 0), V(2, 8));
    CHECK_OK(reshard_layer_replica(&layer, &at, NAME("linear_fc2.weight"), replica, &err));
    assert_memory_equal(replica, V(0, 0, 5), sizeof(replica));
    CHECK_OK(reshard_layer_replica(&layer, &at, NAME("linear_fc2.bias"), replica, &err));
    assert_memory_equal(replica, V(0, 1, 5), sizeof(replica));
    layer.is_expert = 0;
    CHECK_OK(reshard_layer_replica(&layer, &at, NAME("linear_fc2.bias"), replica, &err));
    assert_memory_equal(replica, V(0, 3, 7), sizeof(replica));
    reshard_shards_free(list);
}

TEST(experts_are_renumbered)
{
    char *key;
    size_t size;
    CHECK_OK(reshard_expert_key(NAME("ernie.layers.1.mlp.experts.0.up_gate_proj.weight"), 1, 32, &key, &size, &err));
    assert_string_equal(key, "ernie.layers.1.mlp.experts.32.up_gate_proj.weight");
    assert_int_equal(size, strlen(key));
    reshard_free(key);
    CHECK_OK(reshard_expert_key(NAME("norm.weight"), 1, 32, &key, &size, &err));
    assert_string_equal(key, "norm.weight");
    reshard_free(key);
    CHECK_OK(reshard_expert_key(NAME("norm.weight"), 0, 0, &key, &size, &err)); /* a model without experts */
    assert_string_equal(key, "norm.weight");
    reshard_free(key);
    CHECK_FAILS(reshard_expert_key(NAME("experts.0.w"), 0, 0, &key, &size, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_expert_key(NAME("experts.32.w"), 1, 32, &key, &size, &err), RESHARD_ERR_USAGE);
    assert_null(key);
}

TEST(what_does_not_fit_is_refused)
{
    const reshard_local_tensor tensors[] = { tensor_of("weight", 2, V(6, 4)), tensor_of("bias", 1, V(5)) };
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    reshard_shards *list = list_new();
    layer.tensors = tensors;
    layer.tensor_count = 2;
    layer.kind = RESHARD_LAYER_VOCABULARY;
    CHECK_FAILS(reshard_layer_shards(&layer, &at, list, &err), RESHARD_ERR_USAGE);
    layer.kind = RESHARD_LAYER_COLUMN;
    layer.is_gated = 1;
    at.tp_size = 2;
    CHECK_FAILS(reshard_layer_shards(&layer, &at, list, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "bias"));
    at.tp_rank = 2;
    CHECK_FAILS(reshard_layer_shards(&layer, &at, list, &err), RESHARD_ERR_USAGE);
    layer.kind = 5;
    CHECK_FAILS(reshard_layer_shards(&layer, NULL, list, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_shards_count(list), 0);
    reshard_shards_free(list);
}

/* ---- optimizer state ---- */

TEST(ids_are_first_places)
{
    static const char memory[3];
    const void *const parameters[] = { memory + 1, memory, memory + 1, memory + 2, memory };
    int64_t ids[5];
    CHECK_OK(reshard_optimizer_ids(parameters, 5, ids, &err));
    assert_memory_equal(ids, V(0, 1, 0, 3, 1), sizeof(ids));
}

/* A gated weight in two layers stacked under one key, and a norm. */
struct gated_model {
    float weight[2][4 * 2], norm[3];
    reshard_shards *shards;
    const void *parameters[3];
};

static void gated_model_make(struct gated_model *model)
{
    reshard_coordinates at = RESHARD_COORDINATES_INIT;
    reshard_layer layer = RESHARD_LAYER_INIT;
    at.tp_size = 2;
    model->shards = list_new();
    for (int64_t i = 0; i < 2; i++) {
        const reshard_front_axis front = { i, 2 };
        const reshard_local_tensor tensor = { NAME("fc1.weight"), "float32", 2, V(4, 2), model->weight[i], NULL };
        layer.kind = RESHARD_LAYER_COLUMN;
        layer.is_gated = 1;
        layer.front_axes = &front;
        layer.front_axis_count = 1;
        layer.tensors = &tensor;
        layer.tensor_count = 1;
        CHECK_OK(reshard_layer_shards(&layer, &at, model->shards, &err));
        model->parameters[i] = model->weight[i];
    }
    const reshard_local_tensor norm = { NAME("norm.weight"), "float32", 1, V(3), model->norm, NULL };
    layer.kind = RESHARD_LAYER_WHOLE;
    layer.front_axis_count = 0;
    layer.tensors = &norm;
    CHECK_OK(reshard_layer_shards(&layer, &at, model->shards, &err));
    model->parameters[2] = model->norm;
}

TEST(state_has_the_boxes_of_its_parameter)
{
    struct gated_model model;
    double average[4 * 2], norm[3], step = 0;
    reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    reshard_shards *list = list_new();
    reshard_shard shard = RESHARD_SHARD_INIT;
    const reshard_str excluded = NAME("step");
    reshard_optimizer_tensor tensors[] = {
        { 1, { NULL, 0 }, NAME("exp_avg"), "float64", 2, V(4, 2), average, 0, 0, 0 },
        { 2, { NULL, 0 }, NAME("exp_avg"), "float64", 1, V(3), norm, 0, 0, 0 },
        { 2, { NULL, 0 }, NAME("step"), "float64", 0, NULL, &step, 0, 0, 0 },
    };
    gated_model_make(&model);
    optimizer.model = model.shards;
    optimizer.parameters = model.parameters;
    optimizer.parameter_count = 3;
    optimizer.tensors = tensors;
    optimizer.tensor_count = 3;
    CHECK_OK(reshard_optimizer_shards(&optimizer, list, &err));
    assert_int_equal(reshard_shards_count(list), 4);
    check_shard(list, 0, "optimizer.state.exp_avg.fc1.weight", V(2, 8, 2), V(1, 0, 0), V(1, 2, 2));
    check_shard(list, 1, "optimizer.state.exp_avg.fc1.weight", V(2, 8, 2), V(1, 4, 0), V(1, 2, 2));
    CHECK_OK(reshard_shards_at(list, 1, &shard));
    assert_ptr_equal(shard.data, average + 4);
    assert_string_equal(shard.dtype, "F64");
    check_shard(list, 2, "optimizer.state.exp_avg.norm.weight", V(3), V(0), V(3));
    optimizer.excluded = &excluded;
    optimizer.excluded_count = 1;
    optimizer.keys = "{parameter}.{state}";
    CHECK_OK(reshard_optimizer_shards(&optimizer, list, &err));
    assert_int_equal(reshard_shards_count(list), 7);
    check_shard(list, 6, "norm.weight.exp_avg", V(3), V(0), V(3));
    tensors[0].id = 3;
    CHECK_FAILS(reshard_optimizer_shards(&optimizer, list, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, "Param id 3 does not match any model sharded param");
    tensors[0] = tensors[1];
    tensors[0].shape = V(2);
    CHECK_FAILS(reshard_optimizer_shards(&optimizer, list, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Optimizer shape [2] does not match model shape [3]"));
    tensors[0].shape = V(4);
    CHECK_FAILS(reshard_optimizer_shards(&optimizer, list, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_shards_count(list), 7);
    reshard_shards_free(list);
    reshard_shards_free(model.shards);
}

/* A range of a gated parameter lies in both halves. */
TEST(ranges_are_those_of_the_pieces)
{
    struct gated_model model;
    float part[4];
    reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    reshard_shards *list = list_new();
    reshard_shard shard = RESHARD_SHARD_INIT;
    const reshard_optimizer_tensor tensor = { 0, { NULL, 0 }, NAME("exp_avg"), "float32", 1, V(4), part, 1, 3, 7 };
    gated_model_make(&model);
    optimizer.model = model.shards;
    optimizer.parameters = model.parameters;
    optimizer.parameter_count = 3;
    optimizer.tensors = &tensor;
    optimizer.tensor_count = 1;
    CHECK_OK(reshard_optimizer_shards(&optimizer, list, &err));
    assert_int_equal(reshard_shards_count(list), 2);
    CHECK_OK(reshard_shards_at(list, 0, &shard));
    assert_true(shard.is_flattened && shard.flat_begin == 3 && shard.flat_end == 4 && shard.data == part);
    CHECK_OK(reshard_shards_at(list, 1, &shard));
    assert_true(shard.is_flattened && shard.flat_begin == 0 && shard.flat_end == 3 && shard.data == part + 1);
    reshard_shards_free(list);
    reshard_shards_free(model.shards);
}

/* Whichever allocation fails: told as that, nothing is added, and the next call does it. */
TEST(shards_of_state_take_memory_or_fail_whole)
{
    struct gated_model model;
    double average[4 * 2], norm[3];
    reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    reshard_shards *list = list_new();
    const reshard_optimizer_tensor tensors[] = {
        { 1, { NULL, 0 }, NAME("exp_avg"), "float64", 2, V(4, 2), average, 0, 0, 0 },
        { 2, { NULL, 0 }, NAME("exp_avg"), "float64", 1, V(3), norm, 0, 0, 0 },
    };
    unsigned long nth = 0;
    bool is_hit;
    gated_model_make(&model);
    optimizer.model = model.shards;
    optimizer.parameters = model.parameters;
    optimizer.parameter_count = 3;
    optimizer.tensors = tensors;
    optimizer.tensor_count = 2;
    do {
        fail_malloc_at(++nth);
        const reshard_status status = reshard_optimizer_shards(&optimizer, list, &err);
        is_hit = fail_malloc_was_hit();
        assert_int_equal(status, is_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        assert_int_equal(reshard_shards_count(list), is_hit ? 0 : 3);
    } while (is_hit);
    assert_true(nth > 10);
    reshard_shards_free(list);
    reshard_shards_free(model.shards);
}

/* w, l1.w, l1.b, as bfloat16 over 4 ranks. */
TEST(sharding_v2_owns_ranges)
{
    reshard_sharding_parameter parameters[3] = { { .elements = 2400, .dtype = "bfloat16" },
                                                 { .elements = 10000, .dtype = "paddle.bfloat16" },
                                                 { .elements = 100, .dtype = "BF16" } };
    const int64_t wanted[4][2] = { { 0, 768 }, { 768, 4096 }, { 4096, 7424 }, { 7424, 10000 } };
    int64_t begin, end;
    CHECK_OK(reshard_sharding_assign(RESHARD_SHARDING_1_V2, 4, parameters, sizeof(parameters[0]), 3, &err));
    assert_int_equal(parameters[1].start, 2560);
    assert_int_equal(parameters[1].padded, 10240);
    assert_int_equal(parameters[1].part, 3328);
    for (int64_t rank = 0; rank < 4; rank++) {
        CHECK_OK(reshard_sharding_range(&parameters[1], sizeof(parameters[0]), rank, &begin, &end, &err));
        assert_memory_equal(((int64_t[]){ begin, end }), wanted[rank], sizeof(wanted[rank]));
    }
    CHECK_OK(reshard_sharding_assign(RESHARD_SHARDING_1_V1, 4, parameters, sizeof(parameters[0]), 3, &err));
    assert_int_equal(parameters[1].owner, 0);
    assert_int_equal(parameters[0].owner, 1);
    assert_int_equal(parameters[2].owner, 2);
    CHECK_OK(reshard_sharding_range(&parameters[0], sizeof(parameters[0]), 0, &begin, &end, &err));
    assert_int_equal(begin, end);
    CHECK_OK(reshard_sharding_assign(RESHARD_SHARDING_3, 4, parameters, sizeof(parameters[0]), 3, &err));
    assert_int_equal(parameters[1].owner, -1);
    CHECK_FAILS(reshard_sharding_assign(5, 4, parameters, sizeof(parameters[0]), 3, &err), RESHARD_ERR_USAGE);
    parameters[0].dtype = "int7";
    CHECK_FAILS(reshard_sharding_assign(1, 4, parameters, sizeof(parameters[0]), 3, &err), RESHARD_ERR_USAGE);
}

/* Unit h.0 of a real run: l1.weight 15, l1.bias 5, ln.weight 3, ln.bias 3 over 3 ranks. */
TEST(flat_units_give_intervals)
{
    static const int64_t wanted[3][4][3] = { /* begin, end, place */
                                             { { 0, 11, 0 } },
                                             { { 11, 15, 0 }, { 0, 5, 5 } },
                                             { { 0 }, { 0 }, { 0, 3, 2 }, { 0, 3, 6 } }
    };
    for (int64_t rank = 0; rank < 3; rank++) {
        reshard_flat_parameter parameters[4] = { { .elements = 15 }, { .elements = 5 }, { .elements = 3 }, { .elements = 3 } };
        int64_t piece;
        CHECK_OK(reshard_flat_assign(4, 3, rank, parameters, sizeof(parameters[0]), 4, &piece, &err));
        assert_int_equal(piece, 11);
        for (int i = 0; i < 4; i++) {
            const int64_t found[] = { parameters[i].begin, parameters[i].end, parameters[i].place };
            assert_memory_equal(found, wanted[rank][i], sizeof(found));
            assert_int_equal(parameters[i].is_there, wanted[rank][i][1] > 0);
        }
    }
}

/* ---- real checkpoints ---- */

static bool shard_is_chunk(const reshard_shard *shard, const reshard_chunk *chunk)
{
    const size_t bytes = shard->rank * sizeof(int64_t);
    int64_t volume = 1, begin = shard->flat_begin, end = shard->flat_end;
    if (memcmp(shard->start, chunk->start, bytes) || memcmp(shard->extent, chunk->extent, bytes))
        return false;
    for (size_t i = 0; i < shard->rank; i++)
        volume *= shard->extent[i];
    if (!shard->is_flattened)
        begin = 0, end = volume;
    return chunk->flat_count < 0 ? begin == 0 && end == volume : begin == chunk->flat_begin && end - begin == chunk->flat_count;
}

/* Megatron stores gate and up apart also where one rank has all of both. */
static bool chunk_is_half(const reshard_shard *shard, const reshard_chunk *chunk)
{
    const size_t axis = shard->rank < 2 ? 0 : shard->rank - 2;
    return shard->rank >= 2 && memcmp(shard->start, chunk->start, axis * sizeof(int64_t)) == 0 &&
           shard->extent[axis] == 2 * chunk->extent[axis] && chunk->start[axis] % chunk->extent[axis] == 0 &&
           shard->extent[axis + 1] == chunk->extent[axis + 1];
}

/* Each shard is a chunk of the checkpoint, and each chunk of its tensor a shard. */
static void check_chunks(const reshard_checkpoint *checkpoint, const reshard_shards *list, bool halves_join)
{
    for (size_t t = 0; t < reshard_tensor_count(checkpoint); t++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        size_t found = 0;
        CHECK_OK(reshard_tensor_at(checkpoint, t, &tensor));
        bool *is_met = calloc(tensor.chunk_count + 1, sizeof(*is_met));
        for (size_t s = 0; s < reshard_shards_count(list); s++) {
            reshard_shard shard = RESHARD_SHARD_INIT;
            bool is_chunk = false;
            CHECK_OK(reshard_shards_at(list, s, &shard));
            if (shard.key.size != tensor.key.size || memcmp(shard.key.data, tensor.key.data, tensor.key.size))
                continue;
            assert_int_equal(shard.rank, tensor.rank);
            assert_memory_equal(shard.global_shape, tensor.shape, shard.rank * sizeof(int64_t));
            for (size_t c = 0; c < tensor.chunk_count; c++) {
                reshard_chunk chunk = RESHARD_CHUNK_INIT;
                CHECK_OK(reshard_chunk_at(checkpoint, t, c, &chunk));
                if (shard_is_chunk(&shard, &chunk) || (halves_join && chunk_is_half(&shard, &chunk)))
                    is_chunk = is_met[c] = true;
            }
            if (!is_chunk)
                fail_msg("'%.*s': no chunk is shard %zu", (int)tensor.key.size, tensor.key.data, s);
        }
        for (size_t c = 0; c < tensor.chunk_count; c++)
            found += is_met[c];
        if (found < tensor.chunk_count)
            fail_msg("'%.*s': %zu of %zu chunks are shards", (int)tensor.key.size, tensor.key.data, found, tensor.chunk_count);
        free(is_met);
    }
}

static reshard_checkpoint *fixture_open(const char *name)
{
    reshard_checkpoint *opened;
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s/ckpt", test_fixtures(), name);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

/* What a rank of the model in the paddle-strategy cases has: its local shapes are those of the whole, cut. */
struct paddle_part {
    const char *name;
    int64_t kind;
    const char *dtype;
    size_t rank;
    int64_t shape[3];
    int cut_axis;
};

static const struct paddle_part paddle_parts[] = {
    { "embed_tokens.weight", RESHARD_LAYER_VOCABULARY, "bfloat16", 2, { 28, 52 }, 0 },
    { "layers.0.up_proj.weight", RESHARD_LAYER_COLUMN, "bfloat16", 2, { 52, 44 }, 1 },
    { "layers.0.up_proj.bias", RESHARD_LAYER_COLUMN, "bfloat16", 1, { 44 }, 0 },
    { "layers.0.down_proj.weight", RESHARD_LAYER_ROW, "bfloat16", 2, { 44, 52 }, 0 },
    { "layers.0.down_proj.bias", RESHARD_LAYER_ROW, "bfloat16", 1, { 52 }, -1 },
    { "layers.1.conv.weight", RESHARD_LAYER_WHOLE, "bfloat16", 3, { 13, 11, 17 }, -1 },
    { "layers.1.conv.bias", RESHARD_LAYER_WHOLE, "bfloat16", 1, { 13 }, -1 },
    { "norm.weight", RESHARD_LAYER_WHOLE, "float32", 1, { 52 }, -1 },
    { "norm.bias", RESHARD_LAYER_WHOLE, "float32", 1, { 52 }, -1 },
};
#define PADDLE_PARTS (sizeof(paddle_parts) / sizeof(paddle_parts[0]))

static void paddle_state_add(const reshard_shards *model, const struct paddle_part *part, const int64_t *shape, int64_t begin, int64_t end,
                             int64_t volume, reshard_shards *list)
{
    const int64_t count = end - begin, one = 1;
    const bool is_flat = count < volume;
    const char *const states[] = { "moment1_0", "moment2_0", "w_0", "beta1_pow_acc_0", "beta2_pow_acc_0" };
    reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    for (int i = 0; i < 5 && count > 0; i++) {
        const reshard_str key = { part->name, strlen(part->name) };
        reshard_optimizer_tensor tensor = { -1, key, { states[i], strlen(states[i]) }, "float32", part->rank, shape, NULL, 0, 0, 0 };
        if (i >= 3 || is_flat) {
            tensor.rank = 1;
            tensor.shape = i >= 3 ? &one : &count;
        }
        if (i < 3 && is_flat) {
            tensor.is_flattened = 1;
            tensor.flat_begin = begin;
            tensor.flat_end = end;
        }
        if (i == 2 && strcmp(part->dtype, "float32") == 0)
            continue;
        optimizer.model = model;
        optimizer.keys = "{parameter}.{state}";
        optimizer.tensors = &tensor;
        optimizer.tensor_count = 1;
        CHECK_OK(reshard_optimizer_shards(&optimizer, list, &err));
    }
}

static void paddle_rank_add(const reshard_coordinates *at, int64_t sharding, int64_t rank, int64_t ranks, reshard_shards *list)
{
    reshard_sharding_parameter parameters[PADDLE_PARTS];
    int64_t shapes[PADDLE_PARTS][3], begin, end;
    for (size_t i = 0; i < PADDLE_PARTS; i++) {
        const struct paddle_part *part = &paddle_parts[i];
        parameters[i] = (reshard_sharding_parameter){ .elements = 1, .dtype = part->dtype };
        for (size_t axis = 0; axis < part->rank; axis++) {
            shapes[i][axis] = part->shape[axis] / ((int)axis == part->cut_axis ? at->tp_size : 1);
            parameters[i].elements *= shapes[i][axis];
        }
    }
    CHECK_OK(reshard_sharding_assign(sharding, ranks, parameters, sizeof(parameters[0]), PADDLE_PARTS, &err));
    for (size_t i = 0; i < PADDLE_PARTS; i++) {
        const struct paddle_part *part = &paddle_parts[i];
        const reshard_local_tensor tensor = { { part->name, strlen(part->name) }, part->dtype, part->rank, shapes[i], NULL, NULL };
        reshard_layer layer = RESHARD_LAYER_INIT;
        reshard_shards *model = list_new();
        layer.kind = part->kind;
        layer.is_in_out = 1;
        layer.tensors = &tensor;
        layer.tensor_count = 1;
        CHECK_OK(reshard_layer_shards(&layer, at, model, &err));
        CHECK_OK(reshard_layer_shards(&layer, at, list, &err));
        CHECK_OK(reshard_sharding_range(&parameters[i], sizeof(parameters[0]), rank, &begin, &end, &err));
        paddle_state_add(model, part, shapes[i], begin, end, parameters[i].elements, list);
        reshard_shards_free(model);
    }
}

static void check_paddle(const char *name, int64_t tp, int64_t sharding, int64_t ranks)
{
    reshard_checkpoint *opened = fixture_open(name);
    reshard_shards *list = list_new();
    for (int64_t t = 0; t < tp; t++) {
        reshard_coordinates at = RESHARD_COORDINATES_INIT;
        at.tp_rank = t;
        at.tp_size = tp;
        for (int64_t rank = 0; rank < ranks; rank++)
            paddle_rank_add(&at, sharding, rank, ranks, list);
    }
    CHECK_OK(reshard_shards_check(list, NULL, &err));
    check_chunks(opened, list, false);
    reshard_shards_free(list);
    reshard_close(opened);
}

TEST(paddles_layers_and_optimizers_cut_so)
{
    check_paddle("paddle/paddle-strategy-tp2", 2, RESHARD_SHARDING_NONE, 1);
    check_paddle("paddle/paddle-strategy-tp4", 4, RESHARD_SHARDING_NONE, 1);
    check_paddle("paddle/paddle-strategy-sdv1-2", 1, RESHARD_SHARDING_1_V1, 2);
    check_paddle("paddle/paddle-strategy-sdv1-4", 1, RESHARD_SHARDING_1_V1, 4);
    check_paddle("paddle/paddle-strategy-sdv2-2", 1, RESHARD_SHARDING_1_V2, 2);
    check_paddle("paddle/paddle-strategy-sdv2-4", 1, RESHARD_SHARDING_1_V2, 4);
    check_paddle("paddle/paddle-strategy-tp2-sdv2-2", 2, RESHARD_SHARDING_1_V2, 2);
}

struct megatron_part {
    const char *name;
    int64_t kind, is_gated, layers, experts; /* layers 0: none in front */
    size_t rank;
    int64_t shape[2]; /* on a rank */
};

static void megatron_rank_add(const reshard_coordinates *at, const struct megatron_part *part, reshard_shards *list)
{
    const int64_t experts = part->experts ? part->experts / at->ep_size : 1;
    for (int64_t i = 0; i < (part->layers ? part->layers : 1); i++) {
        for (int64_t e = 0; e < experts; e++) {
            const reshard_front_axis front[2] = { { i, part->layers }, { at->ep_rank * experts + e, part->experts } };
            const reshard_local_tensor tensor = { { part->name, strlen(part->name) }, "bfloat16", part->rank, part->shape, NULL, NULL };
            reshard_layer layer = RESHARD_LAYER_INIT;
            layer.kind = part->kind;
            layer.is_gated = part->is_gated;
            layer.is_expert = part->experts > 0;
            layer.front_axes = front;
            layer.front_axis_count = (size_t)(part->layers > 0) + (part->experts > 0);
            layer.tensors = &tensor;
            layer.tensor_count = 1;
            CHECK_OK(reshard_layer_shards(&layer, at, list, &err));
        }
    }
}

TEST(megatrons_layers_cut_so)
{
    static const struct megatron_part dense[] = {
        { "embedding.word_embeddings.weight", RESHARD_LAYER_VOCABULARY, 0, 0, 0, 2, { 26, 12 } },
        { "decoder.layers.self_attention.linear_qkv.layer_norm_weight", RESHARD_LAYER_COLUMN, 0, 4, 0, 1, { 12 } },
        { "decoder.layers.self_attention.linear_proj.weight", RESHARD_LAYER_ROW, 0, 4, 0, 2, { 12, 12 } },
        { "decoder.layers.self_attention.linear_qkv.weight", RESHARD_LAYER_COLUMN, 0, 4, 0, 2, { 24, 12 } },
        { "decoder.layers.mlp.linear_fc1.layer_norm_weight", RESHARD_LAYER_COLUMN, 0, 4, 0, 1, { 12 } },
        { "decoder.layers.mlp.linear_fc1.weight", RESHARD_LAYER_COLUMN, 1, 4, 0, 2, { 20, 12 } },
        { "decoder.layers.mlp.linear_fc2.weight", RESHARD_LAYER_ROW, 0, 4, 0, 2, { 12, 10 } },
        { "decoder.final_layernorm.weight", RESHARD_LAYER_WHOLE, 0, 0, 0, 1, { 12 } },
        { "output_layer.weight", RESHARD_LAYER_HEAD, 0, 0, 0, 2, { 26, 12 } },
    };
    static const struct megatron_part experts[] = {
        { "embedding.word_embeddings.weight", RESHARD_LAYER_VOCABULARY, 0, 0, 0, 2, { 12, 8 } },
        { "decoder.layers.self_attention.linear_qkv.layer_norm_weight", RESHARD_LAYER_COLUMN, 0, 2, 0, 1, { 8 } },
        { "decoder.layers.self_attention.linear_proj.weight", RESHARD_LAYER_ROW, 0, 2, 0, 2, { 8, 6 } },
        { "decoder.layers.self_attention.linear_qkv.weight", RESHARD_LAYER_COLUMN, 0, 2, 0, 2, { 12, 8 } },
        { "decoder.layers.mlp.linear_fc1.layer_norm_weight", RESHARD_LAYER_WHOLE, 0, 2, 0, 1, { 8 } },
        { "decoder.layers.mlp.router.weight", RESHARD_LAYER_WHOLE, 0, 2, 0, 2, { 4, 8 } },
        { "decoder.layers.mlp.router.expert_bias", RESHARD_LAYER_WHOLE, 0, 2, 0, 1, { 4 } },
        { "decoder.layers.mlp.experts.experts.linear_fc1.weight", RESHARD_LAYER_COLUMN, 1, 2, 4, 2, { 20, 8 } },
        { "decoder.layers.mlp.experts.experts.linear_fc2.weight", RESHARD_LAYER_ROW, 0, 2, 4, 2, { 8, 10 } },
        { "decoder.layers.mlp.shared_experts.linear_fc1.weight", RESHARD_LAYER_COLUMN, 1, 2, 0, 2, { 6, 8 } },
        { "decoder.layers.mlp.shared_experts.linear_fc2.weight", RESHARD_LAYER_ROW, 0, 2, 0, 2, { 8, 3 } },
        { "decoder.final_layernorm.weight", RESHARD_LAYER_WHOLE, 0, 0, 0, 1, { 8 } },
        { "output_layer.weight", RESHARD_LAYER_HEAD, 0, 0, 0, 2, { 12, 8 } },
    };
    for (int is_moe = 0; is_moe < 2; is_moe++) {
        reshard_checkpoint *opened = fixture_open(is_moe ? "megatron/megatron-moe-dist-tp2ep2etp1" : "megatron/megatron-dense-dist-tp2pp2");
        reshard_shards *list = list_new();
        for (int64_t rank = 0; rank < 4; rank++) {
            reshard_coordinates at = RESHARD_COORDINATES_INIT;
            at.tp_rank = rank % 2;
            at.tp_size = 2;
            at.ep_rank = is_moe ? rank / 2 : 0;
            at.ep_size = is_moe ? 2 : 1;
            for (size_t i = 0; i < (is_moe ? 13 : 9); i++)
                megatron_rank_add(&at, is_moe ? &experts[i] : &dense[i], list);
        }
        CHECK_OK(reshard_shards_check(list, NULL, &err));
        check_chunks(opened, list, is_moe);
        reshard_shards_free(list);
        reshard_close(opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_cuts_its_axis),
        cmocka_unit_test(axes_stand_in_front),
        cmocka_unit_test(halves_of_a_gated_layer_are_cut_each),
        cmocka_unit_test(experts_lie_along_an_axis),
        cmocka_unit_test(experts_are_renumbered),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(ids_are_first_places),
        cmocka_unit_test(state_has_the_boxes_of_its_parameter),
        cmocka_unit_test(ranges_are_those_of_the_pieces),
        cmocka_unit_test(shards_of_state_take_memory_or_fail_whole),
        cmocka_unit_test(sharding_v2_owns_ranges),
        cmocka_unit_test(flat_units_give_intervals),
        cmocka_unit_test(paddles_layers_and_optimizers_cut_so),
        cmocka_unit_test(megatrons_layers_cut_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
