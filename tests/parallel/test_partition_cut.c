/* SPDX-License-Identifier: Apache-2.0 */
/* Partition rules: which rule a key has, how the text is read, and that the pieces of all ranks are the whole tensor in the stated order.
 */
#include "check.h"

#include "base/model_data.h"
#include "parallel/partition_cut.h"

#include <stdlib.h>

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

TEST(a_key_has_the_first_rule_that_fits_its_end)
{
    static const struct {
        const char *key;
        int axis; /* -1: replicated, -2: item */
        enum partition_group group;
        int64_t layer, expert;
    } cases[] = {
        { "embedding.word_embeddings.weight", 0, PARTITION_TP, -1, -1 },
        { "embedding.position_embeddings.weight", -1, PARTITION_TP, -1, -1 },
        { "output_layer.weight", 0, PARTITION_TP, -1, -1 },
        { "decoder.layers.3.self_attention.linear_qkv.weight", 0, PARTITION_TP, 3, -1 },
        { "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight", -1, PARTITION_TP, 3, -1 },
        { "decoder.layers.3.self_attention.linear_proj.weight", 1, PARTITION_TP, 3, -1 },
        { "decoder.layers.3.self_attention.linear_proj.bias", -1, PARTITION_TP, 3, -1 },
        { "decoder.layers.12.mlp.linear_fc1.weight", 0, PARTITION_TP, 12, -1 },
        { "decoder.layers.12.mlp.linear_fc1.layer_norm_weight", -1, PARTITION_TP, 12, -1 },
        { "decoder.layers.12.mlp.linear_fc2.weight", 1, PARTITION_TP, 12, -1 },
        { "decoder.layers.0.mlp.experts.local_experts.5.linear_fc1.weight", 0, PARTITION_ETP, 0, 5 },
        { "decoder.layers.0.mlp.experts.local_experts.5.linear_fc2.bias", -1, PARTITION_TP, 0, 5 },
        { "decoder.layers.0.mlp.experts.linear_fc2.weight11", 1, PARTITION_ETP, 0, 11 },
        { "decoder.layers.0.mlp.experts.linear_fc2.weight", 2, PARTITION_ETP, 0, -1 },
        { "decoder.layers.0.mlp.experts.local_experts.5.linear_fc1._extra_state", -2, PARTITION_TP, 0, 5 },
        { "decoder.layers.0.mlp.shared_experts.linear_fc1.weight", 0, PARTITION_TP, 0, -1 },
        { "decoder.layers.0.mlp.router.weight", -1, PARTITION_TP, 0, -1 },
        { "language_model.encoder.layers.7.self_attention.query_key_value.bias", 0, PARTITION_TP, 7, -1 },
        { "language_model.transformer.layers.7.attention.dense.weight", 1, PARTITION_TP, 7, -1 },
        { "language_model.pooler.dense.weight", -1, PARTITION_TP, -1, -1 },
        { "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight", 1, PARTITION_TP, 0, -1 },
        { "module.decoder.layers.1.self_attention._extra_state", -2, PARTITION_TP, 1, -1 },
        { "decoder.layers.x.mlp.linear_fc2.weight", 1, PARTITION_TP, -1, -1 },
        { "decoder.layers.2.self_attention.linear_q_proj.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.self_attention.linear_q_up_proj.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.self_attention.linear_kv_up_proj.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.self_attention.kv_layernorm.weight", -1, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.mixer.in_proj.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.mixer.conv1d.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.mixer.out_proj.weight", 1, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.mixer.dt_bias", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.self_attention.in_proj.weight", 0, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.self_attention.out_proj.weight", 1, PARTITION_TP, 2, -1 },
        { "decoder.layers.2.cross_attention.linear_kv.weight", 0, PARTITION_TP, 2, -1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct partition_key key;
        assert_true(partition_key_read(&rules, str_of(cases[i].key), &key));
        int axis = key.rule->is_item ? -2 : key.rule->is_cut ? key.rule->axis : -1;
        if (axis != cases[i].axis || (axis >= 0 && key.rule->group != cases[i].group) || key.layer != cases[i].layer ||
            key.expert != cases[i].expert)
            fail_msg("'%s': axis %d, group %d, layer %lld, expert %lld", cases[i].key, axis, (int)key.rule->group, (long long)key.layer,
                     (long long)key.expert);
    }
}

TEST(what_is_only_assumed_is_no_known_name)
{
    static const struct {
        const char *key;
        bool is_assumed;
    } cases[] = {
        { "decoder.layers.0.input_layernorm.weight", false },
        { "decoder.layers.0.self_attention.kv_layernorm.weight", false },
        { "decoder.layers.0.mixer.norm.weight", false },
        { "decoder.layers.0.norm.weight", false },
        { "decoder.layers.0.self_attention.out_norm.weight", false },
        { "decoder.layers.0.cross_attention.linear_proj.bias", false },
        { "decoder.layers.0.mlp.router.expert_bias", false },
        { "decoder.layers.0.mlp.shared_experts.gate_weight", false },
        { "mtp.layers.0.mtp_model_layer.layers.3.mixer.in_proj.weight", false },
        { "lm_head.layer_norm.bias", false },
        { "embedding.tokentype_embeddings.weight", false },
        { "decoder.layers.0.self_attention.mystery.weight", true },
        { "vision.patch_embed.weight", true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct partition_key key;
        assert_true(partition_key_read(&rules, str_of(cases[i].key), &key));
        if (key.rule->is_assumed != cases[i].is_assumed)
            fail_msg("'%s'", cases[i].key);
    }
}

TEST(a_bad_rule_names_its_line)
{
    static const struct {
        const char *text, *message;
        int line;
    } cases[] = {
        { "a.b replicated\nc.d cut x by tp", "cut AXIS by tp or etp", 2 },
        { "c.d cut 0 by pp", "tp or etp", 1 },
        { "c.d cut 0 by tp cut 1 by tp", "once", 1 },
        { "\n\nc.d sliced", "a word of a partition rule", 3 },
        { "c..d replicated", "components", 1 },
        { "c.{a,b replicated", "'}' after '{'", 1 },
        { "{a,b}.{a,b}.{a,b}.{a,b} replicated", "up to three times", 1 },
        { "c.d", "a pattern and words", 1 },
        { "layers a.b", "layers KEY.#", 1 },
        { "stage middle a", "stage WHERE KEY", 1 },
        { "copy a b", "copy KEY of KEY", 1 },
        { "let a b", "let NAME = EXPRESSION", 1 },
        { "c.d cut 0 by tp versions", "number of parts", 1 },
        { "c.d cut 0 by tp versions 1", "number of parts", 1 },
        { "c.d cut 0 by tp versions 17", "number of parts", 1 },
        { "c.d cut 8 by tp", "cut AXIS by tp or etp", 1 },
        { "c.d cut 0 of tp", "cut AXIS by tp or etp", 1 },
        { "c.d cut 0 by", "cut AXIS by tp or etp", 1 },
        { "c.d cut 0 by tp blocks a b c d e f g h i", "fewer blocks", 1 },
        { "1.2.3.4.5.6.7.8.9 replicated", "up to 8 components", 1 },
        { ".c replicated", "components", 1 },
        { "c.}a{ replicated", "'}' after '{'", 1 },
        { "layers a.#.b", "layers KEY.#", 1 },
        { "layers a.# others", "layers KEY.#", 1 },
        { "stage first", "stage WHERE KEY", 1 },
        { "copy a by b", "copy KEY of KEY", 1 },
        { "group a b", "group KEY of KEY", 1 },
        { "group a by b", "group KEY of KEY", 1 },
        { "gate a b", "gate KEY by KEY", 1 },
        { "gate a of b", "gate KEY by KEY", 1 },
        { "let a b = c", "let NAME = EXPRESSION", 1 },
        { "let a =", "let NAME = EXPRESSION", 1 },
        { "c.d experts 8", "a word of a partition rule", 1 },
        { "c.{a,} replicated", "components", 1 },
#define SIXTEEN "gated gated gated gated gated gated gated gated gated gated gated gated gated gated gated gated "
        { "c.d " SIXTEEN SIXTEEN, "fewer words", 1 },
        { "c.d unless", "a word of a partition rule", 1 },
        { "c.d blocks", "a word of a partition rule", 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct arena own = { 0 };
        struct partition_rules parsed;
        reshard_error err = { 0 };
        assert_int_equal(partition_rules_parse(str_of(cases[i].text), &own, &parsed, &err), RESHARD_ERR_FORMAT);
        if (!strstr(err.message, cases[i].message) || err.line != cases[i].line)
            fail_msg("'%s': line %d: %s", cases[i].text, err.line, err.message);
        arena_release(&own);
    }
}

/* Rules are a table of a fixed size, and memory is asked for before any is read. */
TEST(rules_have_limits)
{
    struct buffer text = { 0 };
    reshard_error err = { 0 };
    struct arena own = { 0 };
    struct partition_rules parsed;
    for (int i = 0; i < 4096; i++)
        buffer_printf(&text, "a.b%d replicated\n", i);
    CHECK_OK(partition_rules_parse(buffer_str(&text), &own, &parsed, &err));
    arena_release(&own);
    buffer_append_text(&text, "one.more replicated");
    CHECK_FAILS(partition_rules_parse(buffer_str(&text), &own, &parsed, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "partition rules"));
    arena_release(&own);
    buffer_release(&text);
    reshard_status status = RESHARD_ERR_MEMORY;
    size_t memory = 0;
    for (; status == RESHARD_ERR_MEMORY; memory += 512) {
        struct arena small = { .bytes_max = memory + 1 };
        status = partition_rules_parse(STR("layers a.#\na.{b,c} replicated\n"), &small, &parsed, &err);
        arena_release(&small);
    }
    CHECK_OK(status);
    assert_in_range(memory, 1000, 10000000);
}

/* Every word of the language, and what the table has of it. */
TEST(rules_say_what_their_words_say)
{
    static const char text[] = "# a comment\nlayers dec.# own\nlayers enc.#\nstage first emb\nstage last out\nstage norm norm\n"
                               "stage mtp dec.\ncopy b of a\n"
                               "group m.w of m.#.w\ngate up by down\nlet width = heads * 2\n"
                               "a.{b,c}.1.2.3.4.5.6 cut 7 by etp vocabulary gated grouped versions 16 unless x blocks p q\n"
                               "*.w experts replicated # another\nx.# experts 7 item assumed\n";
    struct arena own = { 0 };
    struct partition_rules parsed;
    reshard_error err = { 0 };
    CHECK_OK(partition_rules_parse(str_of(text), &own, &parsed, &err));
    assert_int_equal(parsed.stack_count, 2);
    assert_true(str_is(parsed.stacks[0].path, "dec") && parsed.stacks[0].is_own && !parsed.stacks[1].is_own);
    assert_int_equal(parsed.stage_count, 4);
    assert_true(str_is(parsed.stages[1].prefix, "out") && parsed.stages[1].place == PLACE_LAST && parsed.stages[0].place == PLACE_FIRST);
    assert_true(parsed.stages[2].place == PLACE_NORM && parsed.stages[3].place == PLACE_MTP);
    assert_true(parsed.copy_count == 1 && str_is(parsed.copies[0].copy, "b") && str_is(parsed.copies[0].original, "a"));
    assert_true(parsed.grouping_count == 1 && str_is(parsed.groupings[0].matrix, "m.w") && str_is(parsed.groupings[0].member, "m.#.w"));
    assert_true(parsed.gate_count == 1 && str_is(parsed.gates[0].wide, "up") && str_is(parsed.gates[0].narrow, "down"));
    assert_true(parsed.size_count == 1 && str_is(parsed.sizes[0].name, "width") && str_is(parsed.sizes[0].expression, "heads * 2"));
    assert_int_equal(parsed.rule_count, 4);
    const struct partition_rule *cut = &parsed.rules[1], *experts = &parsed.rules[2], *item = &parsed.rules[3];
    assert_int_equal(cut->component_count, 8);
    assert_true(str_is(cut->components[0], "6") && str_is(cut->components[6], "c") && str_is(cut->components[7], "a"));
    assert_true(cut->is_cut && cut->axis == 7 && cut->group == PARTITION_ETP && cut->versions == 16 && cut->expert_axis == -1);
    assert_true(cut->is_vocabulary && cut->is_gated && cut->is_grouped && !cut->is_expert && !cut->is_item && !cut->is_assumed);
    assert_true(cut->block_count == 2 && str_is(cut->blocks[1], "q") && str_is(cut->unless, "x"));
    assert_true(experts->is_expert && experts->expert_axis == -1 && !experts->is_cut && !experts->versions);
    assert_true(!item->is_expert && item->expert_axis == 7 && item->is_item && item->is_assumed);
    arena_release(&own);
}

/* ---- pieces ---- */

/* A whole tensor of numbers 0, 1, 2 …, and what one rank's tensor holds by the pieces. */
struct filling {
    const struct cut *cut;
    int64_t *local;
    uint8_t *seen;
};

static reshard_status fill(const struct cut_piece *piece, void *context, reshard_error *err)
{
    struct filling *filling = context;
    const struct cut *cut = filling->cut;
    (void)err;
    int64_t strides[RANK_MAX], local_strides[RANK_MAX], index[RANK_MAX] = { 0 };
    strides_row_major(cut->rank, cut->shape, strides);
    strides_row_major(cut->rank, cut->local, local_strides);
    for (int64_t i = 0; i < box_volume(cut->rank, piece->extent); i++) {
        int64_t whole = 0, local = 0;
        for (int axis = 0; axis < cut->rank; axis++) {
            whole += (piece->start[axis] + index[axis]) * strides[axis];
            local += (piece->local_start[axis] + index[axis] * piece->step[axis]) * local_strides[axis];
        }
        assert_in_range(local, 0, box_volume(cut->rank, cut->local) - 1);
        assert_int_equal(filling->local[local], -1);
        filling->local[local] = whole;
        filling->seen[whole]++;
        for (int axis = cut->rank - 1; axis >= 0 && ++index[axis] == piece->extent[axis]; axis--)
            index[axis] = 0;
    }
    return RESHARD_OK;
}

static struct cut_context context_of(struct training_args *args, int64_t tp, int64_t ep, int64_t etp, bool is_gated)
{
    training_args_read(NULL, args);
    return (struct cut_context){ .rules = &rules, .args = args, .layout = { tp, 1, 1, ep, etp }, .is_gated = is_gated, .version_order = 2 };
}

/* Every element in exactly one of the parts that differ; every place of every rank's tensor filled. Both ways give the same cut. */
static void check_tiling(const struct cut_context *context, const char *name, int rank, const int64_t *shape, uint8_t times)
{
    struct partition_key key;
    struct cut cut, again;
    reshard_error err = { 0 };
    assert_true(partition_key_read(&rules, str_of(name), &key));
    if (cut_from_whole(context, key.rule, rank, shape, &cut, &err))
        fail_msg("%s: %s", name, err.message);
    if (cut_from_local(context, key.rule, rank, cut.local, &again, &err))
        fail_msg("%s: %s", name, err.message);
    assert_memory_equal(again.shape, shape, (size_t)rank * sizeof(*shape));
    int64_t volume = box_volume(rank, shape), part = box_volume(rank, cut.local);
    uint8_t *seen = calloc((size_t)volume, 1);
    int64_t *local = malloc((size_t)part * sizeof(*local));
    assert_true(seen && local);
    for (int64_t tp = 0; tp < context->layout.tp; tp++) {
        for (int64_t ep = 0; ep < context->layout.ep; ep++) {
            struct rank_place place = { tp, 0, ep, tp % context->layout.etp };
            struct filling filling = { &cut, local, seen };
            memset(local, -1, (size_t)part * sizeof(*local));
            assert_int_equal(cut_pieces(&cut, &place, fill, &filling, &err), RESHARD_OK);
            for (int64_t i = 0; i < part; i++)
                assert_int_not_equal(local[i], -1);
        }
    }
    for (int64_t i = 0; i < volume; i++)
        if (seen[i] != times)
            fail_msg("%s: element %lld is held %d times, expected %d", name, (long long)i, seen[i], times);
    free(seen);
    free(local);
}

/* The rows of the whole that a tensor in a rank's file holds, in its order. */
static void check_rows(const struct cut_context *context, const char *name, int64_t rows, int64_t tp, const int64_t *expected)
{
    struct partition_key key;
    struct cut cut;
    reshard_error err = { 0 };
    int64_t shape[] = { rows / context->layout.tp, 3 }, local[128];
    uint8_t seen[256] = { 0 };
    assert_true(partition_key_read(&rules, str_of(name), &key));
    if (cut_from_local(context, key.rule, 2, shape, &cut, &err))
        fail_msg("%s: %s", name, err.message);
    struct rank_place place = { tp, 0, 0, 0 };
    struct filling filling = { &cut, local, seen };
    memset(local, -1, sizeof(local));
    assert_int_equal(cut_pieces(&cut, &place, fill, &filling, &err), RESHARD_OK);
    assert_int_equal(cut.shape[0], rows);
    for (int64_t i = 0; i < cut.local[0]; i++)
        if (local[3 * i] != 3 * expected[i])
            fail_msg("%s, rank %lld: row %lld is row %lld of the whole, expected %lld", name, (long long)tp, (long long)i,
                     (long long)local[3 * i] / 3, (long long)expected[i]);
}

/*
 * Megatron's own _get_qkv conversions (checkpoint_version 0 and 1): 4 heads of 2 rows for each of query, key and value. A rank's file had
 * all its queries, then its keys, then its values; version 1 had the three beside each other row by row; today head by head.
 */
TEST(fused_heads_of_old_versions_are_put_in_todays_order)
{
    static const struct {
        const char *name;
        int order;
        int64_t rows, ranks[2][12];
    } cases[] = {
        { "language_model.encoder.layers.0.self_attention.query_key_value.weight",
          0,
          24,
          { { 0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11 }, { 12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23 } } },
        { "language_model.encoder.layers.0.self_attention.query_key_value.weight",
          1,
          24,
          { { 0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11 }, { 12, 14, 16, 13, 15, 17, 18, 20, 22, 19, 21, 23 } } },
        { "language_model.encoder.layers.0.self_attention.query_key_value.weight",
          2,
          24,
          { { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, { 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23 } } },
        { "language_model.decoder.layers.0.inter_attention.key_value.weight",
          0,
          16,
          { { 0, 1, 4, 5, 2, 3, 6, 7 }, { 8, 9, 12, 13, 10, 11, 14, 15 } } },
        { "language_model.decoder.layers.0.inter_attention.key_value.weight",
          1,
          16,
          { { 0, 2, 1, 3, 4, 6, 5, 7 }, { 8, 10, 9, 11, 12, 14, 13, 15 } } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct training_args args;
        struct cut_context context = context_of(&args, 2, 1, 2, false);
        args.head_size = 2;
        context.version_order = cases[i].order;
        for (int64_t tp = 0; tp < 2; tp++)
            check_rows(&context, cases[i].name, cases[i].rows, tp, cases[i].ranks[tp]);
    }
}

TEST(the_ranks_pieces_are_the_whole)
{
    struct training_args args;
    struct cut_context context = context_of(&args, 4, 1, 4, true);
    check_tiling(&context, "decoder.layers.0.mlp.linear_fc1.weight", 2, (int64_t[]){ 24, 5 }, 1);
    check_tiling(&context, "decoder.layers.0.mlp.linear_fc1.bias", 1, (int64_t[]){ 24 }, 1);
    check_tiling(&context, "decoder.layers.0.mlp.linear_fc2.weight", 2, (int64_t[]){ 5, 12 }, 1);
    check_tiling(&context, "decoder.layers.0.input_layernorm.weight", 1, (int64_t[]){ 5 }, 4);
    context = context_of(&args, 2, 3, 2, true);
    check_tiling(&context, "decoder.layers.0.mlp.experts.linear_fc1.weight", 3, (int64_t[]){ 6, 8, 5 }, 1);
    check_tiling(&context, "decoder.layers.0.mlp.experts.linear_fc2.weight", 3, (int64_t[]){ 6, 5, 8 }, 1);
    check_tiling(&context, "decoder.layers.0.mlp.experts.linear_fc2.bias", 2, (int64_t[]){ 6, 5 }, 2);
    context = context_of(&args, 2, 1, 2, false);
    args.hidden_size = 6;
    check_tiling(&context, "decoder.layers.0.mixer.A_log", 1, (int64_t[]){ 8 }, 1);
}

/* The whole is [expert, in, out] in memory, and so is each rank's part. */
static void check_grouped(int64_t tp, int64_t ep, int64_t experts, int64_t in, int64_t out, bool is_gated)
{
    struct training_args args;
    struct cut_context context = context_of(&args, tp, ep, tp, is_gated);
    args.experts = experts;
    int64_t one[2] = { in, experts * out }, two[2] = { experts * out, in }, each = experts / ep, half = is_gated ? 2 : 1,
            width = out / tp / half;
    check_tiling(&context, "decoder.layers.0.mlp.experts.weight1", 2, one, 1);
    check_tiling(&context, "decoder.layers.0.mlp.experts.weight2", 2, two, 1);
    struct partition_key key;
    struct cut cut;
    assert_true(partition_key_read(&rules, STR("decoder.layers.0.mlp.experts.weight1"), &key));
    assert_int_equal(cut_from_whole(&context, key.rule, 2, one, &cut, NULL), RESHARD_OK);
    int64_t part = box_volume(2, cut.local), *local = malloc((size_t)part * sizeof(*local));
    uint8_t *seen = calloc((size_t)(in * experts * out), 1);
    assert_true(local && seen);
    for (int64_t t = 0; t < tp; t++) {
        for (int64_t e = 0; e < ep; e++) {
            struct rank_place place = { t, 0, e, t };
            struct filling filling = { &cut, local, seen };
            memset(local, -1, (size_t)part * sizeof(*local));
            assert_int_equal(cut_pieces(&cut, &place, fill, &filling, NULL), RESHARD_OK);
            for (int64_t i = 0; i < part; i++) {
                int64_t column = i % (out / tp), row = i / (out / tp) % in, expert = e * each + i / (out / tp) / in;
                int64_t whole = (expert * in + row) * out + column / width * (out / half) + t * width + column % width;
                if (local[i] != whole)
                    fail_msg("tp %lld ep %lld: place %lld holds element %lld, expected %lld", (long long)tp, (long long)ep, (long long)i,
                             (long long)local[i], (long long)whole);
            }
        }
    }
    free(local);
    free(seen);
}

TEST(a_matrix_of_experts_is_cut_in_memory_order)
{
    check_grouped(1, 1, 4, 3, 4, true);
    check_grouped(2, 1, 4, 3, 4, true);
    check_grouped(1, 2, 4, 3, 4, true);
    check_grouped(2, 2, 4, 3, 8, true);
    check_grouped(2, 3, 6, 5, 4, false);
    check_grouped(1, 4, 8, 7, 2, true);
    check_grouped(3, 2, 2, 1, 6, true);
}

TEST(blocks_of_state_space_models_are_cut_each)
{
    struct training_args args;
    struct value_graph graph = { 0 };
    const struct {
        const char *name;
        int64_t number;
    } members[] = {
        { "hidden_size", 8 }, { "mamba_num_heads", 4 }, { "mamba_head_dim", 4 }, { "mamba_num_groups", 2 }, { "mamba_state_dim", 3 }
    };
    struct value *items[10], *namespace = value_new(&graph, VALUE_NEW);
    for (int i = 0; i < 5; i++) {
        items[2 * i] = value_new_str(&graph, str_of(members[i].name));
        items[2 * i + 1] = value_new_int(&graph, members[i].number);
    }
    struct value *states[1] = { value_new_list(&graph, VALUE_DICT, items, 10) };
    namespace->object->states = states;
    namespace->object->state_count = 1;
    struct cut_context context = context_of(&args, 2, 1, 2, false);
    training_args_read(namespace, &args);
    check_tiling(&context, "decoder.layers.0.mixer.in_proj.weight", 2, (int64_t[]){ 16 + 16 + 6 + 6 + 4, 8 }, 1);
    check_tiling(&context, "decoder.layers.0.mixer.conv1d.weight", 3, (int64_t[]){ 16 + 6 + 6, 1, 4 }, 1);
    /* z and x of 16 rows, B and C of 2 groups of 3 states, dt of 4 heads: a rank has its half of each. */
    static const int64_t ranks[2][24] = {
        { 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 32, 33, 34, 38, 39, 40, 44, 45 },
        { 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31, 35, 36, 37, 41, 42, 43, 46, 47 }
    };
    static const int64_t convolution[2][14] = { { 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 22, 23, 24 },
                                                { 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 25, 26, 27 } };
    for (int64_t tp = 0; tp < 2; tp++) {
        check_rows(&context, "decoder.layers.0.mixer.in_proj.weight", 48, tp, ranks[tp]);
        check_rows(&context, "decoder.layers.0.mixer.conv1d.weight", 28, tp, convolution[tp]);
    }
    struct partition_key key;
    struct cut cut;
    reshard_error err = { 0 };
    assert_true(partition_key_read(&rules, STR("decoder.layers.0.mixer.in_proj.weight"), &key));
    assert_int_equal(cut_from_whole(&context, key.rule, 2, (int64_t[]){ 49, 8 }, &cut, &err), RESHARD_ERR_UNSUPPORTED);
    value_graph_release(&graph);
}

TEST(an_odd_division_names_the_axis)
{
    struct training_args args;
    struct cut_context context = context_of(&args, 3, 1, 3, true);
    struct partition_key key;
    struct cut cut;
    reshard_error err = { 0 };
    assert_true(partition_key_read(&rules, STR("decoder.layers.0.mlp.linear_fc1.weight"), &key));
    assert_int_equal(cut_from_whole(&context, key.rule, 2, (int64_t[]){ 20, 5 }, &cut, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "tp=3 does not divide axis 0 of 10 entries"));
    assert_int_equal(cut_from_local(&context, key.rule, 2, (int64_t[]){ 3, 5 }, &cut, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(cut_from_local(&context, key.rule, 2, (int64_t[]){ INT64_MAX / 2 - 1, 5 }, &cut, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "its size times the number of ranks is too large"));
    context.layout.ep = 4;
    assert_true(partition_key_read(&rules, STR("decoder.layers.0.mlp.experts.linear_fc2.bias"), &key));
    assert_int_equal(cut_from_whole(&context, key.rule, 2, (int64_t[]){ 6, 5 }, &cut, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "ep=4 does not divide axis 0 of 6 entries"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_the_first_rule_that_fits_its_end),
        cmocka_unit_test(what_is_only_assumed_is_no_known_name),
        cmocka_unit_test(a_bad_rule_names_its_line),
        cmocka_unit_test(rules_have_limits),
        cmocka_unit_test(rules_say_what_their_words_say),
        cmocka_unit_test(fused_heads_of_old_versions_are_put_in_todays_order),
        cmocka_unit_test(the_ranks_pieces_are_the_whole),
        cmocka_unit_test(a_matrix_of_experts_is_cut_in_memory_order),
        cmocka_unit_test(blocks_of_state_space_models_are_cut_each),
        cmocka_unit_test(an_odd_division_names_the_axis),
    };
    return cmocka_run_group_tests_name("megatron_cut", tests, load, unload);
}
