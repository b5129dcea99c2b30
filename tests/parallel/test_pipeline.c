/* SPDX-License-Identifier: Apache-2.0 */
/* Where Megatron puts layers: even, uneven and virtual pipelines, layout texts; names of rank folders. */
#include "check.h"

#include "base/model_data.h"
#include "formats/megatron/megatron_files.h"
#include "parallel/pipeline.h"

#define U TRAINING_ARG_UNKNOWN

struct placement {
    const char *why;
    int64_t layers, pp, vp, first, last, embedding, loss;
    const char *layout;
    int64_t counts[16];
};

TEST(layers_are_where_megatron_puts_them)
{
    static const struct placement cases[] = {
        { "even", 8, 4, 1, U, U, U, U, "", { 2, 2, 2, 2 } },
        { "even, virtual: stage 0 has {0,1} and {4,5}", 8, 2, 2, U, U, U, U, "", { 2, 2, 2, 2 } },
        { "first and last counts", 22, 4, 1, 4, 2, U, U, "", { 4, 8, 8, 2 } },
        { "first count alone", 4, 2, 1, 1, U, U, U, "", { 1, 3 } },
        { "last count alone", 7, 3, 1, U, 1, U, U, "", { 3, 3, 1 } },
        { "first and last, virtual", 20, 4, 2, 2, 2, U, U, "", { 1, 4, 4, 1, 1, 4, 4, 1 } },
        { "embedding and loss count as layers", 6, 4, 1, U, U, 1, 1, "", { 1, 2, 2, 1 } },
        { "embedding counts", 7, 2, 2, U, U, 1, 0, "", { 1, 2, 2, 2 } },
        { "layout text", 6, 4, 1, U, U, U, U, "Et|(tt|)*2tL", { 1, 2, 2, 1 } },
        { "layout text with an empty stage, virtual", 4, 2, 2, U, U, U, U, "Et|tt||tL", { 1, 2, 0, 1 } },
        { "layout text with counts and commas", 5, 2, 1, U, U, U, U, "E,t*3|t*2,L", { 3, 2 } },
        { "a layout text with the highest digit", 19, 2, 1, U, U, U, U, "Et*9|t*9tL", { 9, 10 } },
        { "the last parts of a layout text may be another kind of layer", 3, 2, 1, U, U, U, U, "Ett|tmL", { 2, 1 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct placement *c = &cases[i];
        struct arena arena = { 0 };
        struct training_args args;
        struct pipeline_split pipeline;
        reshard_error err = { 0 };
        training_args_read(NULL, &args);
        args.num_layers = c->layers, args.pp = c->pp, args.vp = c->vp, args.first_layers = c->first, args.last_layers = c->last;
        args.with_embedding = c->embedding, args.with_loss = c->loss, args.layout = str_of(c->layout);
        if (pipeline_split_make(&args, &arena, &pipeline, &err))
            fail_msg("%s: %s", c->why, err.message);
        int64_t layer = 0;
        for (int64_t stage = 0; stage < c->pp * c->vp; stage++) {
            if (pipeline.counts[stage] != c->counts[stage])
                fail_msg("%s: stage %lld has %lld layers, expected %lld", c->why, (long long)stage, (long long)pipeline.counts[stage],
                         (long long)c->counts[stage]);
            assert_int_equal(pipeline_first_layer(&pipeline, stage), layer);
            for (int64_t k = 0; k < c->counts[stage]; k++)
                assert_int_equal(pipeline_stage_of(&pipeline, layer++), stage);
        }
        assert_int_equal(layer, c->layers);
        assert_int_equal(pipeline_stage_of(&pipeline, layer), c->pp * c->vp);
        arena_release(&arena);
    }
}

/* Multi-token prediction is where the layout has it. Megatron Core from 0.16 on then has the norm on the last layer's stage. */
TEST(ends_are_where_megatron_has_them)
{
    static const struct {
        const char *why;
        int64_t layers, pp, vp, loss;
        const char *layout;
        int64_t last_layer, mtp;
    } cases[] = {
        { "even", 4, 2, 1, U, "", 1, 1 },
        { "layers end before the last stage, which has multi-token prediction", 4, 3, 1, U, "Ett|tt|mL", 1, 2 },
        { "the loss is alone", 4, 3, 1, U, "Ett|ttm|L", 1, 1 },
        { "between both", 4, 4, 1, U, "Ett|tt|m|L", 1, 2 },
        { "virtual", 4, 2, 2, U, "Ett|t|tm|L", 2, 2 },
        { "the loss has the last stage for itself", 3, 4, 1, 1, "", 2, 3 },
        { "no layers at all", 0, 2, 1, U, "", 0, 1 },
    };
    static const char *const names[] = { "decoder.final_layernorm.weight", "mtp.layers.0.enorm.weight", "output_layer.weight",
                                         "embedding.word_embeddings.weight", "unheard.of" };
    struct arena arena = { 0 };
    struct partition_rules rules;
    reshard_error err = { 0 };
    CHECK_OK(partition_rules_parse(model_data_find(STR("megatron.rules"))->text, &arena, &rules, &err));
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const bool follows = i % 2;
        struct training_args args;
        struct pipeline_split pipeline;
        training_args_read(NULL, &args);
        args.num_layers = cases[i / 2].layers, args.pp = cases[i / 2].pp, args.vp = cases[i / 2].vp, args.with_loss = cases[i / 2].loss;
        args.layout = str_of(cases[i / 2].layout), args.norm_follows_layers = follows;
        CHECK_OK(pipeline_split_make(&args, &arena, &pipeline, &err));
        const int64_t last = args.pp * args.vp - 1;
        assert_true(pipeline_shares_output(&pipeline, &args));
        args.mtp_layers = 1;
        assert_int_equal(pipeline_shares_output(&pipeline, &args), cases[i / 2].mtp != last);
        const int64_t expected[] = { follows ? cases[i / 2].last_layer : last, cases[i / 2].mtp, last, 0, 0 };
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
            struct partition_key key;
            assert_true(partition_key_read(&rules, str_of(names[k]), &key));
            int64_t stage = pipeline_stage_of_key(&pipeline, &rules, str_of(names[k]), &key);
            if (stage != expected[k])
                fail_msg("%s: '%s' is on stage %lld, expected %lld", cases[i / 2].why, names[k], (long long)stage, (long long)expected[k]);
        }
    }
    arena_release(&arena);
}

/* Not known, or nonsense: all layers are in one stage. Without memory that is said. */
TEST(stages_that_are_not_known_are_one)
{
    static const int64_t numbers[] = { U, 0, -3, 1 };
    for (int i = 0; i < 16; i++) {
        struct arena arena = { 0 }, full = { .bytes_max = 1 };
        struct training_args args;
        struct pipeline_split pipeline;
        reshard_error err = { 0 };
        training_args_read(NULL, &args);
        args.num_layers = 6, args.pp = numbers[i / 4], args.vp = numbers[i % 4];
        CHECK_FAILS(pipeline_split_make(&args, &full, &pipeline, &err), RESHARD_ERR_MEMORY);
        CHECK_OK(pipeline_split_make(&args, &arena, &pipeline, &err));
        assert_true(pipeline.pp == 1 && pipeline.vp == 1 && pipeline.counts[0] == 6);
        arena_release(&arena);
    }
}

TEST(what_cannot_be_placed_says_what_would_work)
{
    static const struct {
        int64_t layers, pp, vp, first;
        const char *layout;
        reshard_status status;
        const char *message, *hint;
    } cases[] = {
        { 4, 3, 1, U, "", RESHARD_ERR_UNSUPPORTED, "4 layers do not divide evenly over 3", "1, 2, 4" },
        { 4, 2, 1, 5, "", RESHARD_ERR_UNSUPPORTED, "does not place 4 layers", "" },
        { 4, 3, 1, 1, "", RESHARD_ERR_UNSUPPORTED, "3 layers of the other ranks do not divide evenly over 2", "1, 3" },
        { 4, 2, 1, U, "Et|ttL", RESHARD_ERR_FORMAT, "2 stages with 3 layers, expected 2 with 4", "" },
        { 4, 2, 1, U, "Ett|t|tL", RESHARD_ERR_FORMAT, "3 stages", "" },
        { 4, 2, 1, U, "Ett|xL", RESHARD_ERR_FORMAT, "'x' is none of", "" },
        { 4, 2, 1, U, "E(tt|tL", RESHARD_ERR_FORMAT, "cannot be read", "" },
        { 4, 2, 1, U, "E(t*9999999|)*99999999999tL", RESHARD_ERR_FORMAT, "cannot be read", "" },
        { 4, 2, 1, U, "Et*1000000000|tL", RESHARD_ERR_FORMAT, "cannot be read", "" },
        { U, 2, 1, U, "", RESHARD_ERR_UNSUPPORTED, "number of layers is not known", "" },
        { -2, 2, 1, U, "", RESHARD_ERR_UNSUPPORTED, "number of layers is not known", "" },
        { INT64_C(1) << 31, 2, 1, U, "", RESHARD_ERR_UNSUPPORTED, "number of layers is not known", "" },
        { INT32_MAX, 1, 1, U, "", RESHARD_OK, "", "" },
        { 4, 65536, 2, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 4, 65537, 1, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 4, 1, 65537, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 4, INT64_C(1) << 62, 4, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 4, 4, INT64_C(1) << 62, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 0, 1, 1, U, "", RESHARD_OK, "", "" },
        { 4, INT64_C(1) << 32, INT64_C(1) << 32, U, "", RESHARD_ERR_LIMIT, "pipeline stages", "" },
        { 65536, 256, 256, U, "", RESHARD_OK, "", "" },
        { 65536, 65536, 1, U, "", RESHARD_OK, "", "" },
        { 65536, 1, 65536, U, "", RESHARD_OK, "", "" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct arena arena = { 0 };
        struct training_args args;
        struct pipeline_split pipeline;
        reshard_error err = { 0 };
        training_args_read(NULL, &args);
        args.num_layers = cases[i].layers, args.pp = cases[i].pp, args.vp = cases[i].vp, args.first_layers = cases[i].first,
        args.layout = str_of(cases[i].layout);
        assert_int_equal(pipeline_split_make(&args, &arena, &pipeline, &err), cases[i].status);
        if (!strstr(err.message, cases[i].message) || !strstr(err.hint, cases[i].hint))
            fail_msg("case %zu: '%s', hint '%s'", i, err.message, err.hint);
        arena_release(&arena);
    }
}

TEST(rank_folders_have_two_and_three_digits)
{
    static const struct {
        const char *name;
        int count;
        int64_t numbers[3];
    } cases[] = {
        { "mp_rank_00", 1, { 0 } },
        { "mp_rank_07", 1, { 7 } },
        { "mp_rank_128", 1, { 128 } },
        { "mp_rank_01_002", 2, { 1, 2 } },
        { "mp_rank_01_002_003", 3, { 1, 2, 3 } },
        { "mp_rank_0", 0, { 0 } },
        { "mp_rank_00_01", 0, { 0 } },
        { "mp_rank_00_001_002_003", 0, { 0 } },
        { "mp_rank_", 0, { 0 } },
        { "mp_rank_00x", 0, { 0 } },
        { "xmp_rank_00", 0, { 0 } },
        { "mp_rank_00_", 0, { 0 } },
        { "mp_rank_0000000000000000001", 0, { 0 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rank_folder folder;
        bool parsed = rank_folder_parse(str_of(cases[i].name), &folder);
        if (parsed != (cases[i].count > 0))
            fail_msg("'%s' is %s", cases[i].name, parsed ? "taken" : "refused");
        for (int k = 0; parsed && k < cases[i].count; k++)
            assert_int_equal(folder.numbers[k], cases[i].numbers[k]);
    }
}

struct listed {
    const struct parallel_layout *layout;
    struct arena arena;
    char text[512];
};

static reshard_status list_rank(const struct rank_place *place, int64_t global_rank, void *context, reshard_error *err)
{
    struct listed *listed = context;
    (void)global_rank, (void)err;
    char *name = rank_folder_name(&listed->arena, listed->layout, place);
    assert_non_null(name);
    snprintf(listed->text + strlen(listed->text), sizeof(listed->text) - strlen(listed->text), "%s ", name + 8);
    struct rank_folder folder;
    struct rank_place back;
    assert_true(rank_folder_parse(str_of(name), &folder));
    assert_true(rank_folder_place(&folder, listed->layout, &back));
    assert_int_equal(back.tp, place->tp);
    assert_int_equal(back.pp, place->pp);
    assert_int_equal(back.ep, place->ep);
    assert_int_equal(back.etp, place->etp);
    return RESHARD_OK;
}

TEST(every_rank_of_the_least_world_has_a_folder)
{
    static const struct {
        struct parallel_layout layout;
        bool is_for_all;
        const char *folders;
        int64_t world;
    } cases[] = {
        { { 1, 1, 1, 1, 1 }, false, "00 ", 1 },
        { { 2, 1, 1, 1, 2 }, false, "00 01 ", 2 },
        { { 2, 2, 1, 1, 2 }, false, "00_000 01_000 00_001 01_001 ", 4 },
        { { 1, 2, 2, 2, 1 }, false, "00_000_000 00_000_001 00_001_000 00_001_001 ", 4 },
        { { 2, 1, 1, 2, 2 }, false, "00_000 01_000 00_001 01_001 ", 4 },
        { { 2, 1, 1, 2, 1 }, false, "00_000 01_001 ", 2 },
        { { 3, 1, 1, 2, 1 }, false, "00_000 01_001 02_000 ", 6 },
        { { 3, 1, 1, 2, 1 }, true, "00_000 01_001 02_000 00_001 01_000 02_001 ", 6 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct listed listed = { .layout = &cases[i].layout };
        assert_int_equal(rank_places(&cases[i].layout, cases[i].is_for_all, list_rank, &listed, NULL), RESHARD_OK);
        assert_string_equal(listed.text, cases[i].folders);
        assert_int_equal(least_world(&cases[i].layout), cases[i].world);
        arena_release(&listed.arena);
    }
    const struct parallel_layout shared = { 2, 1, 1, 2, 4 };
    reshard_error err = { 0 };
    struct listed listed = { .layout = &shared };
    assert_int_equal(rank_places(&shared, true, list_rank, &listed, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "etp=4 does not divide tp=2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_where_megatron_puts_them),
        cmocka_unit_test(ends_are_where_megatron_has_them),
        cmocka_unit_test(stages_that_are_not_known_are_one),
        cmocka_unit_test(what_cannot_be_placed_says_what_would_work),
        cmocka_unit_test(rank_folders_have_two_and_three_digits),
        cmocka_unit_test(every_rank_of_the_least_world_has_a_folder),
    };
    return cmocka_run_group_tests_name("megatron_pipeline", tests, NULL, NULL);
}
