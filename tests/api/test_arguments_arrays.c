/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of structs, whose members lie as far apart as programs of any version have them. */
#include "api/arguments.h"

#include "reshard/sharded.h"

#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"

static const int64_t four[] = { 4 }, two[] = { 2 }, zero[] = { 0 };
static float numbers[4], others[4];
static reshard_checkpoint *source;
static reshard_shards *list;
static char source_path[4096];

static reshard_status call_limits(const void *array, size_t stride, size_t count)
{
    reshard_open_options options = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *opened = NULL;
    options.limits = array, options.limit_stride = stride, options.limit_count = count;
    reshard_status status = reshard_open(source_path, &options, &opened, &err);
    reshard_close(opened);
    return status;
}

static reshard_status map_parse(const reshard_map_input *input)
{
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_status status = reshard_map_parse(input, &output, &err);
    reshard_map_output_release(&output);
    return status;
}

static reshard_status call_map_limits(const void *array, size_t stride, size_t count)
{
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    input.text = "w -> v\n", input.size = 7;
    input.limits = array, input.limit_stride = stride, input.limit_count = count;
    return map_parse(&input);
}

static reshard_status call_map_constants(const void *array, size_t stride, size_t count)
{
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    input.text = "w -> v\n", input.size = 7;
    input.constants = array, input.constant_stride = stride, input.constant_count = count;
    return map_parse(&input);
}

static reshard_status map_estimate(const reshard_map_options *map)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.to = "hf";
    options.map = map;
    reshard_status status = reshard_estimate(source, NULL, &options, NULL, &report, &err);
    reshard_report_release(&report);
    return status;
}

static reshard_status call_texts(const void *array, size_t stride, size_t count)
{
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    map.texts = array, map.text_stride = stride, map.text_count = count;
    return map_estimate(&map);
}

static reshard_status call_constants(const void *array, size_t stride, size_t count)
{
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    map.rules = "none";
    map.constants = array, map.constant_stride = stride, map.constant_count = count;
    return map_estimate(&map);
}

static reshard_status call_boxes(const void *array, size_t stride, size_t count)
{
    reshard_box_list boxes = RESHARD_BOX_LIST_INIT;
    unsigned char is_done[2] = { 9, 9 };
    boxes.boxes = array, boxes.box_stride = stride, boxes.box_count = count, boxes.is_done = is_done;
    reshard_status status = reshard_read_many(source, &boxes, NULL, &err);
    assert_true(is_done[0] == !status && is_done[1] == !status);
    return status;
}

static reshard_status call_operations(const void *array, size_t stride, size_t count)
{
    const reshard_shard from = { sizeof(from), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, numbers, NULL, NULL, NULL, NULL },
                        to = { sizeof(to), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, others, NULL, NULL, NULL, NULL };
    reshard_slice_copy copy = { sizeof(copy), &from, &from, &to, &to, array, stride, count };
    return reshard_assign_slice(&copy, NULL, &err);
}

static reshard_status split(const reshard_split_input *input)
{
    reshard_shards *made = NULL;
    reshard_status status = reshard_shards_split(input, &made, &err);
    reshard_shards_free(made);
    return status;
}

static const reshard_local_tensor tensors[] = { { { "w", 1 }, "F32", 1, four, numbers, NULL }, { { "v", 1 }, "F32", 1, two, NULL, NULL } };

static reshard_status call_split_tensors(const void *array, size_t stride, size_t count)
{
    reshard_split_input input = RESHARD_SPLIT_INPUT_INIT;
    input.tensors = array, input.tensor_stride = stride, input.tensor_count = count;
    return split(&input);
}

static reshard_status call_split_rules(const void *array, size_t stride, size_t count)
{
    reshard_split_input input = RESHARD_SPLIT_INPUT_INIT;
    input.tensors = tensors, input.tensor_count = 2, input.parts = 2;
    input.rules = array, input.rule_stride = stride, input.rule_count = count;
    return split(&input);
}

static reshard_status call_state_kind(const void *array, size_t stride, size_t count)
{
    int64_t kind = 9;
    reshard_status status = reshard_state_kind(array, stride, count, &kind, &err);
    assert_int_equal(kind, status ? RESHARD_STATE_EMPTY : RESHARD_STATE_PLAIN);
    return status;
}

static reshard_status layer(const reshard_layer *given)
{
    reshard_shards *made;
    CHECK_OK(reshard_shards_new(&made, &err));
    reshard_status status = reshard_layer_shards(given, NULL, made, &err);
    if (!status)
        assert_int_equal(reshard_shards_count(made), 2);
    reshard_shards_free(made);
    return status;
}

static reshard_status call_layer_tensors(const void *array, size_t stride, size_t count)
{
    reshard_layer given = RESHARD_LAYER_INIT;
    given.tensors = array, given.tensor_stride = stride, given.tensor_count = count;
    return layer(&given);
}

static reshard_status call_front_axes(const void *array, size_t stride, size_t count)
{
    reshard_layer given = RESHARD_LAYER_INIT;
    given.tensors = tensors, given.tensor_count = 2;
    given.front_axes = array, given.front_axis_stride = stride, given.front_axis_count = count;
    return layer(&given);
}

static reshard_status optimizer(reshard_optimizer *given)
{
    reshard_shards *made;
    CHECK_OK(reshard_shards_new(&made, &err));
    given->model = list;
    reshard_status status = reshard_optimizer_shards(given, made, &err);
    if (status)
        assert_int_equal(reshard_shards_count(made), 0);
    reshard_shards_free(made);
    return status;
}

static const reshard_optimizer_tensor states[] = { { -1, { "w", 1 }, { "exp_avg", 7 }, "F32", 1, four, others, 0, 0, 0 },
                                                   { -1, { "w", 1 }, { "exp_avg_sq", 10 }, "F32", 1, four, others, 0, 0, 0 } };

static reshard_status call_states(const void *array, size_t stride, size_t count)
{
    reshard_optimizer given = RESHARD_OPTIMIZER_INIT;
    given.tensors = array, given.tensor_stride = stride, given.tensor_count = count;
    return optimizer(&given);
}

static reshard_status call_excluded(const void *array, size_t stride, size_t count)
{
    reshard_optimizer given = RESHARD_OPTIMIZER_INIT;
    given.tensors = states, given.tensor_count = 2;
    given.excluded = array, given.excluded_stride = stride, given.excluded_count = count;
    return optimizer(&given);
}

/* What is filled in is so as far as the caller's members go; behind that lies what nobody may touch. */
static reshard_status call_sharding(const void *array, size_t stride, size_t count)
{
    uint8_t *parameters = (uint8_t *)(uintptr_t)array;
    reshard_status status = reshard_sharding_assign(RESHARD_SHARDING_1_V2, 2, (void *)parameters, stride, count, &err);
    for (size_t i = 0; array && stride >= sizeof(reshard_sharding_parameter) && i < count; i++) {
        const reshard_sharding_parameter *made = (const void *)(parameters + i * stride);
        int64_t begin = 9, end = 9;
        if (!status) {
            assert_true(made->part > 0 && made->padded >= made->elements);
            CHECK_OK(reshard_sharding_range(made, stride, 0, &begin, &end, &err));
            assert_true(begin == 0 && (end > 0 || i > 0));
        }
    }
    return status;
}

static reshard_status call_range(const void *array, size_t stride, size_t count)
{
    int64_t begin = 9, end = 9;
    (void)count;
    reshard_status status = reshard_sharding_range(array, stride, 0, &begin, &end, &err);
    if (status)
        assert_true(begin == 0 && end == 0);
    return status;
}

static reshard_status call_flat(const void *array, size_t stride, size_t count)
{
    uint8_t *parameters = (uint8_t *)(uintptr_t)array;
    int64_t piece = 9;
    reshard_status status = reshard_flat_assign(4, 2, 0, (void *)parameters, stride, count, &piece, &err);
    assert_int_equal(piece, status ? 0 : 6);
    if (!status && stride >= sizeof(reshard_flat_parameter)) {
        const reshard_flat_parameter *second = (const void *)(parameters + stride);
        assert_int_equal(second->start, 8);
        assert_int_equal(second->is_there, 0);
    }
    return status;
}

static reshard_status call_offsets(const void *array, size_t stride, size_t count)
{
    reshard_sharded *made;
    const reshard_sharded_tensor tensor = { .struct_size = sizeof(tensor), .key = { "w", 1 }, .dtype = "F32", .rank = 1,
                                            .local_shape = four, .data = numbers };
    CHECK_OK(reshard_sharded_new(&made, &err));
    reshard_status status = reshard_sharded_add_offsets(made, &tensor, array, stride, count, &err);
    assert_int_equal(reshard_sharded_count(made), status ? 0 : 1);
    reshard_sharded_free(made);
    return status;
}

static reshard_status call_state_items(const void *array, size_t stride, size_t count)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *opened = NULL;
    state.shards = list, state.items = array, state.item_stride = stride, state.item_count = count;
    reshard_status status = reshard_open_shards(&state, NULL, &opened, &err);
    reshard_close(opened);
    return status;
}

static reshard_status writer(const reshard_writer_input *input)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer *made = NULL;
    options.to = "safetensors";
    reshard_status status = reshard_writer_open(input, "/tmp/reshard-arguments-arrays", &options, NULL, NULL, &made, &err);
    reshard_writer_free(made);
    return status;
}

static reshard_status call_writer_tensors(const void *array, size_t stride, size_t count)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    input.tensors = array, input.tensor_stride = stride, input.tensor_count = count;
    return writer(&input);
}

static const reshard_writer_tensor written[] = { { { "w", 1 }, "F32", 1, four }, { { "v", 1 }, "F32", 1, two } };

static reshard_status call_writer_items(const void *array, size_t stride, size_t count)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    input.tensors = written, input.tensor_count = 2;
    input.items = array, input.item_stride = stride, input.item_count = count;
    return writer(&input);
}

static const reshard_limit_change limits[] = { { "json_depth", 100 }, { "tensors", 100000 } };
static const reshard_map_constant constants[] = { { "n", 1 }, { "m", 2 } };
static const reshard_map_text texts[] = { { "a", "w -> v\n", 7 }, { "b", "v -> u\n", 7 } };
static const reshard_slice_operation operations[] = { { "F64", NULL }, { "F32", NULL } };
static const reshard_split_rule rules[] = { { { "w", 1 }, 0 }, { { "v", 1 }, 0 } };
static const reshard_front_axis front_axes[] = { { 0, 2 }, { 1, 3 } };
static const reshard_str excluded[] = { { "step", 4 }, { "exp_avg", 7 } };
static const reshard_sharding_parameter parameters[] = { { 100, "F32", 0, 0, 0, 0 }, { 7, "F32", 0, 0, 0, 0 } };
static const reshard_sharding_parameter assigned[] = { { 100, "F32", 0, 128, 64, -1 } };
static const reshard_flat_parameter flat[] = { { 7, 0, 0, 0, 0, 0 }, { 4, 0, 0, 0, 0, 0 } };
static const reshard_rank_offset offsets[] = { { 0, 1, 2 } };
static const reshard_state_item items[] = { { { "i", 1 }, { "7", 1 } }, { { "k", 1 }, { "8", 1 } } };
static reshard_box boxes[2];

static const struct array_case cases[] = {
    ARRAY(reshard_open_options, limit_stride, reshard_limit_change, limits, call_limits),
    ARRAY(reshard_map_input, limit_stride, reshard_limit_change, limits, call_map_limits),
    ARRAY(reshard_map_input, constant_stride, reshard_map_constant, constants, call_map_constants),
    ARRAY(reshard_map_options, text_stride, reshard_map_text, texts, call_texts),
    ARRAY(reshard_map_options, constant_stride, reshard_map_constant, constants, call_constants),
    ARRAY(reshard_box_list, box_stride, reshard_box, boxes, call_boxes),
    ARRAY(reshard_slice_copy, operation_stride, reshard_slice_operation, operations, call_operations),
    ARRAY(reshard_split_input, tensor_stride, reshard_local_tensor, tensors, call_split_tensors),
    ARRAY(reshard_split_input, rule_stride, reshard_split_rule, rules, call_split_rules),
    ARRAY(reshard_state_kind, stride, reshard_local_tensor, tensors, call_state_kind),
    ARRAY(reshard_layer, front_axis_stride, reshard_front_axis, front_axes, call_front_axes),
    ARRAY(reshard_layer, tensor_stride, reshard_local_tensor, tensors, call_layer_tensors),
    ARRAY(reshard_optimizer, excluded_stride, reshard_str, excluded, call_excluded),
    ARRAY(reshard_optimizer, tensor_stride, reshard_optimizer_tensor, states, call_states),
    ARRAY(reshard_sharding_assign, stride, reshard_sharding_parameter, parameters, call_sharding),
    ARRAY(reshard_sharding_range, stride, reshard_sharding_parameter, assigned, call_range),
    ARRAY(reshard_flat_assign, stride, reshard_flat_parameter, flat, call_flat),
    ARRAY(reshard_sharded_add_offsets, offset_stride, reshard_rank_offset, offsets, call_offsets),
    ARRAY(reshard_state, item_stride, reshard_state_item, items, call_state_items),
    ARRAY(reshard_writer_input, tensor_stride, reshard_writer_tensor, written, call_writer_tensors),
    ARRAY(reshard_writer_input, item_stride, reshard_state_item, items, call_writer_items),
};

TEST(members_of_arrays_may_be_longer_and_shorter)
{
    check_arrays(cases, sizeof(cases) / sizeof(cases[0]));
}

/* One member that is pointed to alone, whose size is that of the array beside it. */
TEST(a_mapping_of_rules_is_of_its_texts_size)
{
    struct {
        reshard_map_text text;
        uint64_t unknown;
    } longer = { { "r", "w -> v\n", 7 }, 0 };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    map.rules_text = &longer.text;
    map.text_stride = sizeof(longer);
    map_estimate(&map);
    assert_null(strstr(err.message, "reshard_map_text of"));
    longer.unknown = 1;
    CHECK_FAILS(map_estimate(&map), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_map_text of 32 bytes"));
}

TEST(what_is_filled_in_is_zeroed_on_failure)
{
    reshard_sharding_parameter given[2] = { { 100, "F32", 9, 9, 9, 9 }, { -1, "F32", 9, 9, 9, 9 } };
    reshard_flat_parameter flat_given[2] = { { 7, 9, 9, 9, 9, 9 }, { -1, 9, 9, 9, 9, 9 } };
    const uint64_t nothing[5] = { 0 };
    int64_t piece = 9;
    CHECK_FAILS(reshard_sharding_assign(RESHARD_SHARDING_1_V2, 2, given, sizeof(given[0]), 2, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_flat_assign(4, 2, 0, flat_given, sizeof(flat_given[0]), 2, &piece, &err), RESHARD_ERR_USAGE);
    assert_int_equal(piece, 0);
    for (size_t i = 0; i < 2; i++) {
        assert_memory_equal(&given[i].start, nothing, sizeof(given[i]) - offsetof(reshard_sharding_parameter, start));
        assert_memory_equal(&flat_given[i].start, nothing, sizeof(flat_given[i]) - offsetof(reshard_flat_parameter, start));
    }
    assert_int_equal(given[0].elements, 100);
    assert_int_equal(flat_given[0].elements, 7);
}

static int set_up(void **state)
{
    (void)state;
    const reshard_shard shard = { sizeof(shard), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, numbers, NULL, NULL, NULL, NULL };
    static uint8_t memory[2][65536];
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    reshard_status status = reshard_open(source_path, NULL, &source, &err) || reshard_shards_new(&list, &err) ||
                            reshard_shards_add(list, &shard, &err) || reshard_tensor_at(source, 0, &tensor);
    for (size_t i = 0; i < 2 && !status; i++)
        boxes[i] = (reshard_box){ .out = memory[i], .size = tensor.bytes };
    return status || tensor.bytes > sizeof(memory[0]);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_shards_free(list);
    reshard_close(source);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_of_arrays_may_be_longer_and_shorter),
        cmocka_unit_test(a_mapping_of_rules_is_of_its_texts_size),
        cmocka_unit_test(what_is_filled_in_is_zeroed_on_failure),
    };
    return cmocka_run_group_tests_name("arguments in arrays", tests, set_up, tear_down);
}
