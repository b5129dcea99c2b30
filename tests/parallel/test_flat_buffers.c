/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of Megatron's distributed optimizer, against the offsets that the real one computed. */
#include "check.h"

#include <glob.h>

#include "encoding/json.h"
#include "parallel/flat_buffers.h"

#define PARAMETERS_MAX 512

struct model {
    struct rank_parameter parameters[PARAMETERS_MAX];
    int64_t shapes[PARAMETERS_MAX][8];
    int64_t starts[PARAMETERS_MAX], buckets[PARAMETERS_MAX];
    uint32_t count;
};

static const struct flat_buffer_rules usual = { .dp = 2, .alignment = 64, .bucket_multiple = 128, .bucketed_chunks = 1 };

static void add(struct model *model, const char *name, int64_t rows, int64_t columns)
{
    struct rank_parameter *parameter = &model->parameters[model->count];
    model->shapes[model->count][0] = rows;
    model->shapes[model->count][1] = columns;
    *parameter = (struct rank_parameter){ .name = str_of(name),
                                          .param_dtype = DTYPE_BF16,
                                          .grad_dtype = DTYPE_F32,
                                          .rank = columns ? 2 : 1,
                                          .shape = model->shapes[model->count] };
    model->count++;
}

static void three_parameters(struct model *model)
{
    *model = (struct model){ 0 };
    add(model, "a.weight", 10, 10);
    add(model, "a.bias", 10, 0);
    add(model, "b.weight", 20, 10);
}

TEST(parameters_lie_in_reverse_order_at_multiples_of_64)
{
    reshard_error err = { 0 };
    struct model model;
    struct flat_buffers buffers;
    three_parameters(&model);
    CHECK_OK(flat_buffers_make(model.parameters, model.count, false, &usual, &buffers, &err));
    assert_int_equal(buffers.buffer_count, 1);
    assert_int_equal(buffers.bucket_count, 1);
    const int64_t starts[] = { 0, 256, 320 }, counts[] = { 200, 10, 100 };
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(buffers.places[i].parameter, 2 - i);
        assert_int_equal(buffers.places[i].start, starts[i]);
        assert_int_equal(buffers.places[i].count, counts[i]);
    }
    assert_int_equal(buffers.buckets[0].unpadded, 420);
    assert_int_equal(buffers.buckets[0].count, 512);
    flat_buffers_release(&buffers);
}

TEST(a_full_bucket_is_closed_and_padded)
{
    reshard_error err = { 0 };
    struct model model;
    struct flat_buffers buffers;
    struct flat_buffer_rules rules = usual;
    rules.bucket_size = 150;
    three_parameters(&model);
    CHECK_OK(flat_buffers_make(model.parameters, model.count, false, &rules, &buffers, &err));
    assert_int_equal(buffers.bucket_count, 2);
    assert_int_equal(buffers.buckets[0].unpadded, 200);
    assert_int_equal(buffers.buckets[0].count, 256);
    assert_int_equal(buffers.buckets[1].start, 256);
    assert_int_equal(buffers.buckets[1].packed_start, 200);
    assert_int_equal(buffers.buckets[1].unpadded, 164);
    assert_int_equal(buffers.places[2].start, 320);
    assert_int_equal(flat_packed_start(&buffers, &buffers.places[2]), 264);
    assert_int_equal(buffers.buffers[0].unpadded, 364);
    flat_buffers_release(&buffers);
    /* As many elements as the bucket is to have fill it. */
    rules.bucket_size = 200;
    CHECK_OK(flat_buffers_make(model.parameters, model.count, false, &rules, &buffers, &err));
    assert_int_equal(buffers.bucket_count, 2);
    assert_int_equal(buffers.buckets[0].unpadded, 200);
    flat_buffers_release(&buffers);
    rules.bucket_size = 201;
    CHECK_OK(flat_buffers_make(model.parameters, model.count, false, &rules, &buffers, &err));
    assert_int_equal(buffers.bucket_count, 2);
    assert_int_equal(buffers.buckets[0].unpadded, 266);
    flat_buffers_release(&buffers);
}

TEST(each_pair_of_dtypes_chunk_and_kind_has_its_own_buffer)
{
    reshard_error err = { 0 };
    struct model model = { 0 };
    struct flat_buffers buffers;
    add(&model, "a", 3, 0);
    add(&model, "b", 5, 0);
    add(&model, "c", 7, 0);
    add(&model, "d", 9, 0);
    add(&model, "e", 11, 0);
    model.parameters[1].param_dtype = DTYPE_F32;
    model.parameters[3].chunk = model.parameters[4].chunk = 1;
    model.parameters[4].is_expert = true;
    CHECK_OK(flat_buffers_make(model.parameters, model.count, false, &usual, &buffers, &err));
    assert_int_equal(buffers.buffer_count, 3);
    assert_int_equal(buffers.places[0].parameter, 2);
    assert_int_equal(buffers.places[1].parameter, 0);
    assert_int_equal(buffers.places[2].parameter, 1);
    assert_int_equal(buffers.places[3].parameter, 3);
    assert_int_equal(buffers.buffers[1].param_dtype, DTYPE_F32);
    assert_int_equal(buffers.buffers[2].chunk, 1);
    flat_buffers_release(&buffers);
    CHECK_OK(flat_buffers_make(model.parameters, model.count, true, &usual, &buffers, &err));
    assert_int_equal(buffers.buffer_count, 1);
    assert_int_equal(buffers.places[0].parameter, 4);
    flat_buffers_release(&buffers);
}

TEST(sizes_of_a_file_choose_the_rules)
{
    reshard_error err = { 0 };
    struct model model;
    struct flat_buffers buffers;
    const struct {
        int64_t unpadded, bucket_size, alignment;
        bool changed;
    } cases[] = { { 364, 150, 64, false }, { 420, 0, 64, true }, { 310, 150, 1, true } };
    three_parameters(&model);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct flat_buffer_rules rules = usual;
        bool changed;
        rules.bucket_size = 150;
        struct flat_sizes sizes = { .unpadded = &cases[i].unpadded, .buffer_count = 1 };
        CHECK_OK(flat_buffers_match(model.parameters, model.count, false, &rules, &sizes, &buffers, &changed, &err));
        assert_int_equal(rules.bucket_size, cases[i].bucket_size);
        assert_int_equal(rules.alignment, cases[i].alignment);
        assert_int_equal(changed, cases[i].changed);
        flat_buffers_release(&buffers);
    }
}

TEST(sizes_that_nothing_explains_are_named)
{
    reshard_error err = { 0 };
    struct model model;
    struct flat_buffers buffers;
    struct flat_buffer_rules rules = usual;
    bool changed;
    int64_t unpadded = 421;
    struct flat_sizes sizes = { .unpadded = &unpadded, .buffer_count = 1 };
    three_parameters(&model);
    CHECK_FAILS(flat_buffers_match(model.parameters, model.count, false, &rules, &sizes, &buffers, &changed, &err),
                RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "421"));
    assert_non_null(strstr(err.message, "420"));
    sizes.buffer_count = 2;
    CHECK_FAILS(flat_buffers_match(model.parameters, model.count, false, &rules, &sizes, &buffers, &changed, &err),
                RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "2 buffers"));
}

TEST(impossible_numbers_are_refused)
{
    reshard_error err = { 0 };
    struct model model;
    struct flat_buffers buffers;
    three_parameters(&model);
    const struct flat_buffer_rules rules[] = { { .dp = 0, .alignment = 64, .bucket_multiple = 128 },
                                               { .dp = 1, .alignment = 0, .bucket_multiple = 128 },
                                               { .dp = 1, .alignment = 64, .bucket_multiple = 0 },
                                               { .dp = INT64_MAX, .alignment = 64, .bucket_multiple = 128 },
                                               { .dp = 1, .alignment = 64, .bucket_multiple = 128, .bucket_size = -1 } };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        CHECK_FAILS(flat_buffers_make(model.parameters, model.count, false, &rules[i], &buffers, &err), RESHARD_ERR_FORMAT);
    model.shapes[1][0] = INT64_MAX - 5;
    CHECK_FAILS(flat_buffers_make(model.parameters, model.count, false, &usual, &buffers, &err), RESHARD_ERR_FORMAT);
    CHECK_OK(flat_buffers_make(model.parameters, 0, false, &usual, &buffers, &err));
    assert_int_equal(buffers.buffer_count, 0);
    flat_buffers_release(&buffers);
}

/* ---- what the real optimizer computed: also.buffers of the fixtures ---- */


static const struct value *member(const struct value *list, size_t index)
{
    assert_true(index < list->list.count);
    return list->list.items[index];
}

static int64_t integer(const struct value *list, size_t index)
{
    int64_t out = 0;
    assert_true(value_as_int(member(list, index), &out));
    return out;
}

static int64_t world_size(const struct value *manifest, const char *name)
{
    int64_t out = 0;
    assert_true(value_as_int(value_dict_get(value_dict_get(manifest, "world"), name), &out));
    return out;
}

/* The manifest lists a buffer's parameters from its start: the last one registered comes first. */
static void take_buffer(const struct value *buffer, bool is_expert, bool is_tied, struct model *model)
{
    const struct value *list = value_dict_get(buffer, "params");
    *model = (struct model){ 0 };
    size_t count = list->list.count;
    assert_true(count <= PARAMETERS_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct value *line = member(list, count - 1 - i);
        struct rank_parameter *parameter = &model->parameters[i];
        size_t rank;
        assert_true(value_as_str(member(line, 0), &parameter->name));
        assert_true(value_as_ints(member(line, 1), model->shapes[i], 8, &rank));
        parameter->rank = (int)rank;
        parameter->shape = model->shapes[i];
        parameter->param_dtype = DTYPE_BF16;
        parameter->grad_dtype = DTYPE_F32;
        parameter->is_expert = is_expert;
        parameter->is_shared_embedding =
            is_tied && (str_is(parameter->name, "embedding.word_embeddings.weight") || str_is(parameter->name, "output_layer.weight"));
        model->starts[i] = integer(line, 2);
        model->buckets[i] = integer(line, 4);
    }
    model->count = (uint32_t)count;
}

static void check_buffer(const struct value *buffer, const struct model *model, bool is_expert, struct flat_buffer_rules *rules)
{
    reshard_error err = { 0 };
    struct flat_buffers made;
    const struct value *buckets = value_dict_get(buffer, "buckets");
    int64_t padded[64], unpadded[64], sum = 0;
    for (size_t i = 0; i < buckets->list.count && i < 64; i++) {
        assert_true(value_as_int(value_dict_get(member(buckets, i), "numel"), &padded[i]));
        assert_true(value_as_int(value_dict_get(member(buckets, i), "numel_unpadded"), &unpadded[i]));
        sum += unpadded[i];
    }
    struct flat_sizes sizes = { .unpadded = &sum,
                                .buffer_count = 1,
                                .per_bucket = padded,
                                .per_bucket_unpadded = unpadded,
                                .bucket_count = (uint32_t)buckets->list.count };
    bool changed;
    CHECK_OK(flat_buffers_match(model->parameters, model->count, is_expert, rules, &sizes, &made, &changed, &err));
    assert_false(changed);
    for (uint32_t i = 0; i < made.place_count; i++) {
        const struct flat_place *place = &made.places[i];
        assert_int_equal(place->start, model->starts[place->parameter]);
        assert_int_equal(place->bucket, model->buckets[place->parameter]);
    }
    flat_buffers_release(&made);
}

static uint32_t check_manifest(const char *path)
{
    reshard_error err = { 0 };
    struct value_graph graph = { 0 };
    static char text[4 << 20];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof(text), file);
    fclose(file);
    CHECK_OK(json_parse(text, size, &limits_default, &graph, &err));
    const struct value *args = value_dict_get(value_dict_get(value_dict_get(graph.root, "items"), "args"), "value");
    const struct value *untied = args ? value_dict_get(args, "untie_embeddings_and_output_weights") : NULL;
    bool is_tied = untied && !untied->boolean && world_size(graph.root, "pp") > 1;
    const struct value *ranks = value_dict_get(value_dict_get(graph.root, "also"), "buffers");
    uint32_t checked = 0;
    for (size_t i = 1; ranks && i < ranks->list.count; i += 2) {
        const struct value *optimizers = ranks->list.items[i];
        for (size_t k = 0; k < optimizers->list.count; k++) {
            for (size_t b = 0; b < member(optimizers, k)->list.count; b++) {
                struct model model;
                struct flat_buffer_rules rules = usual;
                rules.dp = world_size(graph.root, "dp") / (k ? world_size(graph.root, "ep") : 1);
                rules.bucket_size = strstr(path, "buckets") ? 900 : 0;
                take_buffer(member(member(optimizers, k), b), k > 0, is_tied, &model);
                check_buffer(member(member(optimizers, k), b), &model, k > 0, &rules);
                checked++;
            }
        }
    }
    value_graph_release(&graph);
    return checked;
}

TEST(buffers_are_those_of_the_real_optimizer)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/megatron/megatron-optim-*/manifest.json", test_fixtures());
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    uint32_t checked = 0;
    for (size_t i = 0; i < found.gl_pathc; i++)
        checked += check_manifest(found.gl_pathv[i]);
    assert_true(checked > 0);
    globfree(&found);
}

/* Numbers of the case megatron-optim-tied-legacy-pp2dp2: first and last stage. */
TEST(a_tied_embedding_has_its_own_bucket)
{
    reshard_error err = { 0 };
    struct flat_buffers buffers;
    struct model first = { 0 }, last = { 0 };
    add(&first, "embedding.word_embeddings.weight", 22, 8);
    add(&first, "embedding.position_embeddings.weight", 16, 8);
    add(&first, "decoder.layers.0.input_layernorm.weight", 8, 0);
    first.parameters[0].is_shared_embedding = true;
    CHECK_OK(flat_buffers_make(first.parameters, first.count, false, &usual, &buffers, &err));
    assert_int_equal(buffers.bucket_count, 2);
    assert_int_equal(buffers.buckets[0].unpadded, 192);
    assert_int_equal(buffers.buckets[1].start, 256);
    assert_int_equal(buffers.buckets[1].unpadded, 176);
    assert_int_equal(flat_packed_start(&buffers, &buffers.places[2]), 192);
    flat_buffers_release(&buffers);
    add(&last, "decoder.final_layernorm.bias", 8, 0);
    add(&last, "output_layer.weight", 22, 8);
    last.parameters[1].is_shared_embedding = true;
    CHECK_OK(flat_buffers_make(last.parameters, last.count, false, &usual, &buffers, &err));
    assert_int_equal(buffers.bucket_count, 2);
    assert_int_equal(buffers.buckets[0].unpadded, 176);
    assert_int_equal(buffers.buckets[0].count, 256);
    assert_int_equal(buffers.places[1].start, 256);
    assert_int_equal(flat_packed_start(&buffers, &buffers.places[1]), 176);
    flat_buffers_release(&buffers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_lie_in_reverse_order_at_multiples_of_64),
        cmocka_unit_test(a_full_bucket_is_closed_and_padded),
        cmocka_unit_test(each_pair_of_dtypes_chunk_and_kind_has_its_own_buffer),
        cmocka_unit_test(sizes_of_a_file_choose_the_rules),
        cmocka_unit_test(sizes_that_nothing_explains_are_named),
        cmocka_unit_test(impossible_numbers_are_refused),
        cmocka_unit_test(a_tied_embedding_has_its_own_bucket),
        cmocka_unit_test(buffers_are_those_of_the_real_optimizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
