/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of a parameter's state in a stored vector: every element of a rank's part has its own place in the vector, whichever way the
 * parameter is cut and the vector stored; in as few chunks as its runs and parts are. What lies where comes from loops over indices.
 */
#include "check.h"

#include "base/model_data.h"
#include "catalog/catalog.h"
#include "parallel/vector_chunks.h"

#include <stdlib.h>

#define PARTS_MAX 16
#define START 7 /* of the parameter in the vector */

static struct arena arena;
static struct partition_rules rules;

static int load(void **state)
{
    (void)state;
    const struct model_data *data = model_data_find(STR("megatron.rules"));
    reshard_error err = { 0 };
    return data && partition_rules_parse(data->text, &arena, &rules, &err) == RESHARD_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

/* Where each element of the whole lies, as the pieces of the rank say: its number in the rank's part, or -1. */
struct expectation {
    const struct cut *cut;
    int64_t *place;
};

static reshard_status expect_piece(const struct cut_piece *piece, void *context, reshard_error *err)
{
    struct expectation *expected = context;
    const struct cut *cut = expected->cut;
    int64_t strides[RANK_MAX], local_strides[RANK_MAX], index[RANK_MAX] = { 0 };
    (void)err;
    strides_row_major(cut->rank, cut->shape, strides);
    strides_row_major(cut->rank, cut->local, local_strides);
    for (int64_t i = 0; i < box_volume(cut->rank, piece->extent); i++) {
        int64_t whole = 0, local = 0;
        for (int axis = 0; axis < cut->rank; axis++) {
            whole += (piece->start[axis] + index[axis]) * strides[axis];
            local += (piece->local_start[axis] + index[axis] * piece->step[axis]) * local_strides[axis];
        }
        assert_int_equal(expected->place[whole], -1);
        expected->place[whole] = local;
        for (int axis = cut->rank - 1; axis >= 0 && ++index[axis] == piece->extent[axis]; axis--)
            index[axis] = 0;
    }
    return RESHARD_OK;
}

/* A vector of float32 in parts of these sizes: part i lies in object i % 2 at byte 1000 * i. */
struct stored {
    struct vector_part parts[PARTS_MAX];
    struct stored_vector vector;
};

static void store(struct stored *stored, int count, const int64_t *sizes)
{
    *stored = (struct stored){ .vector = { .dtype = DTYPE_F32, .parts = stored->parts, .part_count = (uint32_t)count } };
    for (int i = 0; i < count; i++) {
        stored->parts[i] = (struct vector_part){ .start = stored->vector.count, .count = sizes[i], .object = (uint32_t)i % 2,
                                                 .offset = 1000 * (uint64_t)i, .bytes = 4 * (uint64_t)sizes[i] };
        stored->vector.count += sizes[i];
    }
}

static struct catalog *catalog_of(int rank, const int64_t *shape, uint32_t *tensor)
{
    reshard_error err = { 0 };
    struct catalog *catalog = catalog_new("test");
    uint32_t object;
    assert_non_null(catalog);
    CHECK_OK(catalog_add_object(catalog, STR("a"), 1 << 20, &object, &err));
    CHECK_OK(catalog_add_object(catalog, STR("b"), 1 << 20, &object, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_F32, rank, shape, tensor, &err));
    return catalog;
}

/* The element of the vector that lies at the byte of the object. */
static int64_t element_at(const struct stored *stored, uint32_t object, uint64_t byte)
{
    for (uint32_t i = 0; i < stored->vector.part_count; i++) {
        const struct vector_part *part = &stored->parts[i];
        if (part->object == object && byte >= part->offset && byte < part->offset + part->bytes && byte % 4 == 0)
            return part->start + (int64_t)(byte - part->offset) / 4;
    }
    fail_msg("byte %llu of object %u is no element's", (unsigned long long)byte, object);
    return -1;
}

/* Takes the chunks' elements off what was expected: `place` counts from START on, and is -1 afterwards. */
static void take_chunk(const struct catalog *catalog, const struct catalog_chunk *chunk, int rank, const int64_t *shape,
                       const struct stored *stored, int64_t *place)
{
    const int64_t *start = catalog_vector_at(catalog, chunk->start), *extent = catalog_vector_at(catalog, chunk->extent);
    int64_t begin = 0, count = box_volume(rank, extent), strides[RANK_MAX];
    if (chunk->layout && catalog->layouts[chunk->layout - 1].flat_count >= 0) {
        begin = catalog->layouts[chunk->layout - 1].flat_begin;
        count = catalog->layouts[chunk->layout - 1].flat_count;
    }
    assert_true(!chunk->layout || count < box_volume(rank, extent)); /* a chunk of all of its box needs no record */
    assert_int_equal(chunk->bytes, 4 * count);
    strides_row_major(rank, shape, strides);
    for (int64_t i = 0; i < count; i++) {
        int64_t whole = 0, left = begin + i;
        for (int axis = rank - 1; axis >= 0; axis--) {
            whole += (start[axis] + left % extent[axis]) * strides[axis];
            left /= extent[axis];
        }
        assert_int_equal(element_at(stored, chunk->object, chunk->offset + 4 * (uint64_t)i), START + place[whole]);
        place[whole] = -1;
    }
}

static uint32_t check_chunks(const struct catalog *catalog, int rank, const int64_t *shape, const struct stored *stored, int64_t *place)
{
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        take_chunk(catalog, &catalog->chunks[i], rank, shape, stored, place);
    for (int64_t i = 0; i < box_volume(rank, shape); i++)
        assert_int_equal(place[i], -1);
    return catalog->chunk_count;
}

static struct cut_context context_of(struct training_args *args, int64_t tp, int64_t ep, bool is_gated, int version_order)
{
    training_args_read(NULL, args);
    return (struct cut_context){ .rules = &rules, .args = args, .layout = { tp, 1, 1, ep, tp }, .is_gated = is_gated,
                                 .version_order = version_order };
}

/* How many chunks one rank's state has, each of whose elements was looked at. */
static uint32_t chunks_of(const struct cut *cut, const struct rank_place *place, int count, const int64_t *sizes)
{
    struct stored stored;
    uint32_t tensor;
    reshard_error err = { 0 };
    int64_t volume = box_volume(cut->rank, cut->shape), *expected = malloc((size_t)volume * sizeof(*expected));
    assert_non_null(expected);
    memset(expected, -1, (size_t)volume * sizeof(*expected));
    CHECK_OK(cut_pieces(cut, place, expect_piece, &(struct expectation){ cut, expected }, &err));
    store(&stored, count, sizes);
    struct catalog *catalog = catalog_of(cut->rank, cut->shape, &tensor);
    struct model_parameter parameter = { .tensor = tensor, .text = STR("w"), .cut = cut };
    CHECK_OK(vector_chunks_add(catalog, tensor, &parameter, place, &stored.vector, START, &err));
    uint32_t chunks = check_chunks(catalog, cut->rank, cut->shape, &stored, expected);
    catalog_free(catalog);
    free(expected);
    return chunks;
}

/* The cut of a parameter of this name: whole has the shape, or every rank's tensor. */
static struct cut cut_of(const struct cut_context *context, const char *name, bool is_local, int rank, const int64_t *shape)
{
    struct partition_key key;
    struct cut cut;
    reshard_error err = { 0 };
    assert_true(partition_key_read(&rules, str_of(name), &key));
    CHECK_OK((is_local ? cut_from_local : cut_from_whole)(context, key.rule, rank, shape, &cut, &err));
    return cut;
}

#define FC1 "decoder.layers.0.mlp.linear_fc1.weight"
#define FC2 "decoder.layers.0.mlp.linear_fc2.weight"
#define NORM "decoder.layers.0.input_layernorm.weight"
#define QKV_OLD "language_model.encoder.layers.0.self_attention.query_key_value.weight"
#define EXPERTS "decoder.layers.0.mlp.experts.linear_fc1.weight"
#define GROUPED "decoder.layers.0.mlp.experts.weight1"

TEST(a_run_is_one_chunk)
{
    struct training_args args;
    struct cut_context context = context_of(&args, 2, 1, false, 2);
    static const int64_t one[] = { 1000 };
    struct cut rows = cut_of(&context, FC1, false, 2, (int64_t[]){ 24, 5 });
    struct cut columns = cut_of(&context, FC2, false, 2, (int64_t[]){ 5, 12 });
    struct cut uncut = cut_of(&context, NORM, false, 1, (int64_t[]){ 5 });
    struct cut experts = cut_of(&context, EXPERTS, false, 3, (int64_t[]){ 6, 8, 5 });
    for (int64_t tp = 0; tp < 2; tp++) {
        struct rank_place place = { tp, 0, 0, tp };
        assert_int_equal(chunks_of(&rows, &place, 1, one), 1);
        assert_int_equal(chunks_of(&columns, &place, 1, one), 1); /* a run of the rank's part, not of the whole */
        assert_int_equal(chunks_of(&uncut, &place, 1, one), 1);
        assert_int_equal(chunks_of(&experts, &place, 1, one), 1);
    }
    context = context_of(&args, 2, 1, true, 2);
    struct cut halves = cut_of(&context, FC1, false, 2, (int64_t[]){ 24, 5 }); /* of a gate: they lie apart */
    assert_int_equal(chunks_of(&halves, &(struct rank_place){ 1, 0, 0, 1 }, 1, one), 2);
}

TEST(a_run_is_cut_where_the_vector_is)
{
    struct training_args args;
    struct cut_context context = context_of(&args, 2, 1, false, 2);
    struct rank_place place = { 1, 0, 0, 1 };
    struct cut rows = cut_of(&context, FC1, false, 2, (int64_t[]){ 24, 5 });
    struct cut columns = cut_of(&context, FC2, false, 2, (int64_t[]){ 10, 12 });
    /* Elements 7 to 66: parts end within a row, at its end, and at the parameter's; an empty part is none. */
    static const int64_t sizes[] = { 7, 3, 12, 0, 20, 25, 40 };
    assert_int_equal(chunks_of(&rows, &place, 7, sizes), 4);
    assert_int_equal(chunks_of(&columns, &place, 7, sizes), 4);
}

TEST(other_orders_are_shorter_runs)
{
    struct training_args args;
    struct rank_place place = { 1, 0, 0, 1 };
    static const int64_t one[] = { 1000 }, sizes[] = { 11, 30, 1, 400 };
    for (int order = 0; order < 2; order++) {
        struct cut_context context = context_of(&args, 2, 1, false, order);
        args.head_size = 2;
        struct cut heads = cut_of(&context, QKV_OLD, true, 2, (int64_t[]){ 12, 3 });
        /* Two heads of three times two rows: six runs of two rows, or each row by itself. */
        assert_int_equal(chunks_of(&heads, &place, 1, one), order == 0 ? 6 : 12);
        chunks_of(&heads, &place, 4, sizes);
    }
    struct cut_context context = context_of(&args, 2, 3, true, 2);
    args.experts = 6;
    struct cut apart = cut_of(&context, EXPERTS, false, 3, (int64_t[]){ 6, 8, 5 }),
               grouped = cut_of(&context, GROUPED, false, 2, (int64_t[]){ 5, 6 * 8 });
    for (place.ep = 0; place.ep < 3; place.ep++) {
        chunks_of(&apart, &place, 4, sizes);
        chunks_of(&grouped, &place, 4, sizes);
    }
}

/* A rank's experts in one matrix: one after another, each transposed; the tensor has an axis in front for them. */
TEST(experts_of_one_matrix_are_transposed)
{
    static const int64_t sizes[] = { 9, 22, 40, 200 };
    int64_t shape[] = { 6, 4, 3 };
    struct cut cut = { .rank = 2, .shape = { 4, 3 }, .local = { 4, 3 }, .axis = -1, .parts = 1, .expert_axis = -1, .expert_parts = 1,
                       .repeats = 1 };
    struct stored stored;
    uint32_t tensor;
    reshard_error err = { 0 };
    int64_t expected[6 * 4 * 3];
    memset(expected, -1, sizeof(expected));
    for (int64_t expert = 0; expert < 3; expert++)
        for (int64_t row = 0; row < 4; row++)
            for (int64_t column = 0; column < 3; column++)
                expected[(expert + 2) * 12 + row * 3 + column] = expert * 12 + column * 4 + row;
    store(&stored, 4, sizes);
    struct catalog *catalog = catalog_of(3, shape, &tensor);
    struct model_parameter parameter = { .tensor = tensor, .text = STR("w"), .cut = &cut, .lead_count = 1, .lead = { 2 },
                                         .matrix_experts = 3 };
    CHECK_OK(vector_chunks_add(catalog, tensor, &parameter, &(struct rank_place){ 0 }, &stored.vector, START, &err));
    check_chunks(catalog, 3, shape, &stored, expected);
    catalog_free(catalog);
}

TEST(what_the_vector_lacks_is_named)
{
    struct cut cut = { .rank = 1, .shape = { 10 }, .local = { 10 }, .axis = -1, .parts = 1, .expert_axis = -1, .expert_parts = 1,
                       .repeats = 1 };
    struct stored stored;
    uint32_t tensor;
    reshard_error err = { 0 };
    struct catalog *catalog = catalog_of(1, (int64_t[]){ 10 }, &tensor);
    struct model_parameter parameter = { .tensor = tensor, .text = STR("w"), .cut = &cut };
    store(&stored, 2, (int64_t[]){ 10, 7 });
    CHECK_OK(vector_chunks_add(catalog, tensor, &parameter, &(struct rank_place){ 0 }, &stored.vector, START, &err)); /* up to its end */
    static const int64_t starts[] = { 8, -1, INT64_MAX };
    for (int i = 0; i < 3; i++) {
        CHECK_FAILS(vector_chunks_add(catalog, tensor, &parameter, &(struct rank_place){ 0 }, &stored.vector, starts[i], &err),
                    RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "'w' lies outside the stored state of 17 elements"));
    }
    stored.parts[1].start++; /* a hole */
    CHECK_FAILS(vector_chunks_add(catalog, tensor, &parameter, &(struct rank_place){ 0 }, &stored.vector, START, &err),
                RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "elements 10 to 17 of the stored state, which belong to 'w', are missing"));
    catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_one_chunk),
        cmocka_unit_test(a_run_is_cut_where_the_vector_is),
        cmocka_unit_test(other_orders_are_shorter_runs),
        cmocka_unit_test(experts_of_one_matrix_are_transposed),
        cmocka_unit_test(what_the_vector_lacks_is_named),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
