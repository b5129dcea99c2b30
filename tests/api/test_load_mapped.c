/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading under other names: what ranks saved in several formats, filled into tensors that a mapping makes of it, by other numbers of
 * ranks, with and without an exchange, into memory and through functions; strictness about the names that come out; and the names of a
 * framework that are recognised.
 */
#include "check.h"

#include "api/held.h"
#include "comm/ranks.h"
#include "test_folder.h"

#include <math.h>
#include <unistd.h>

#define RANKS_MAX 4
#define LEFT (-7.0f)


static const char text[] = "a^T -> a_t\n"
                           "b -> b0, b1, axis=0\n"
                           "a, a -> twice, axis=1\n"
                           "n -> n, dtype=\"float16\"\n"
                           "f -> f, fused_ffn\n"
                           "_ -> kept\n"
                           "g -> _\n"
                           "g, h -> gh, axis=1\n";

struct load_case {
    const char *path, *format, *text;
    int64_t saves, loads, no_exchange, strict;
    bool wants_unknown, by_functions;
    int64_t other_text; /* the rank that has another text; -1: none */
};

static float stored_value(char tensor, int64_t i, int64_t j)
{
    return (float)(tensor * 100 + i * 10 + j) + 0.3f;
}

/* ---- saving: rows over ranks, "f" in columns by two ---- */

struct stored {
    char name;
    int64_t rows, columns;
};
static const struct stored stored[] = { { 'a', 12, 4 }, { 'b', 24, 3 }, { 'n', 12, 2 }, { 's', 12, 1 }, { 'g', 12, 2 }, { 'h', 12, 3 } };
#define STORED (int)(sizeof(stored) / sizeof(stored[0]))

static void part_add(reshard_sharded *sharded, const char *key, const int64_t *local, const reshard_rank_offset *offset, float *data)
{
    static const int64_t main_copy[] = { 0 };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    tensor.key = text_of(key);
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = local;
    tensor.replica_ids = main_copy;
    tensor.replica_count = 1;
    tensor.data = data;
    CHECK_OK(reshard_sharded_add_offsets(sharded, &tensor, offset, sizeof(*offset), offset ? 1 : 0, &err));
}

static void rank_saves(struct test_rank *rank)
{
    const struct load_case *given = rank->context;
    static float memory[RANKS_MAX][STORED + 1][24 * 4];
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    rank->status = reshard_sharded_new(&sharded, &rank->err);
    for (int t = 0; t < STORED && !rank->status; t++) {
        const char key[] = { stored[t].name, 0 };
        const int64_t local[] = { stored[t].rows / rank->size, stored[t].columns };
        const reshard_rank_offset offset = { 0, rank->rank, rank->size };
        float *data = memory[rank->rank][t];
        for (int64_t i = 0; i < local[0]; i++)
            for (int64_t j = 0; j < local[1]; j++)
                data[i * local[1] + j] = stored_value(stored[t].name, rank->rank * local[0] + i, j);
        part_add(sharded, key, local, &offset, data);
    }
    if (rank->size == 2 && !rank->status) { /* [gate up] of each of two ranks */
        static const int64_t local[] = { 2, 4 };
        const reshard_rank_offset offset = { 1, rank->rank, 2 };
        for (int64_t n = 0; n < 8; n++)
            memory[rank->rank][STORED][n] = stored_value('f', n / 4, rank->rank * 4 + n % 4);
        part_add(sharded, "f", local, &offset, memory[rank->rank][STORED]);
    }
    convert.to = given->format;
    convert.no_sync = convert.overwrite = 1;
    options.convert = &convert;
    if (!rank->status)
        rank->status = reshard_save(rank->comm, given->path, sharded, &options, NULL, &rank->err);
    reshard_sharded_free(sharded);
}

/* ---- loading ---- */

struct made {
    const char *key;
    int64_t rows, columns, axis; /* cut along it, -1: every rank has it whole */
};
static const struct made made[] = { { "a_t", 4, 12, 1 }, { "b0", 12, 3, 0 }, { "b1", 12, 3, -1 }, { "twice", 12, 8, 0 },
                                    { "n", 12, 2, -1 },  { "s", 12, 1, 0 },  { "kept", 2, 2, -1 }, { "gh", 12, 5, -1 },
                                    { "f", 2, 8, -1 } };
#define MADE (int)(sizeof(made) / sizeof(made[0]))
#define MADE_F (MADE - 1)

/* What lies there before on a rank. */
static float left_value(int64_t rank)
{
    return LEFT - (float)rank;
}

static float made_value(int tensor, int64_t i, int64_t j, int64_t rank)
{
    static const int64_t half[] = { 0, 1, 4, 5, 2, 3, 6, 7 };
    switch (tensor) {
    case 0: return stored_value('a', j, i);
    case 1: return stored_value('b', i, j);
    case 2: return stored_value('b', 12 + i, j);
    case 3: return stored_value('a', i, j % 4);
    case 4: return (float)(_Float16)stored_value('n', i, j);
    case 5: return stored_value('s', i, j);
    case 6: return left_value(rank);
    case 7: return j < 2 ? left_value(rank) : stored_value('h', i, j - 2);
    default: return stored_value('f', i, half[j]);
    }
}

struct loaded {
    int64_t shape[2], first[2];
    float values[12 * 12];
};

static int loaded_write(const void *bytes, uint64_t offset, size_t size, void *context)
{
    struct loaded *loaded = context;
    const size_t whole = (size_t)(loaded->shape[0] * loaded->shape[1]) * sizeof(*loaded->values);
    if (offset > whole || size > whole - offset)
        return 1;
    memcpy((char *)loaded->values + offset, bytes, size);
    return 0;
}

static int loaded_read(void *out, uint64_t offset, size_t size, void *context)
{
    const struct loaded *loaded = context;
    memcpy(out, (const char *)loaded->values + offset, size);
    return 0;
}

static void loaded_add(struct loaded *out, const struct made *tensor, int64_t rank, int64_t size, bool by_functions,
                       reshard_sharded *sharded)
{
    const bool is_cut = tensor->axis >= 0;
    const reshard_rank_offset offset = { tensor->axis, rank, size };
    *out = (struct loaded){ .shape = { tensor->rows, tensor->columns } };
    if (is_cut) {
        out->shape[tensor->axis] /= size;
        out->first[tensor->axis] = rank * out->shape[tensor->axis];
    }
    for (int i = 0; i < 12 * 12; i++)
        out->values[i] = left_value(rank);
    int64_t replica = is_cut ? 0 : rank;
    reshard_sharded_tensor one = RESHARD_SHARDED_TENSOR_INIT;
    one.key = text_of(tensor->key);
    one.dtype = "F32";
    one.rank = 2;
    one.local_shape = out->shape;
    one.replica_ids = &replica;
    one.replica_count = 1;
    one.data = by_functions ? NULL : out->values;
    one.read = by_functions ? loaded_read : NULL;
    one.write = by_functions ? loaded_write : NULL;
    one.context = out;
    assert_int_equal(reshard_sharded_add_offsets(sharded, &one, &offset, sizeof(offset), is_cut, NULL), RESHARD_OK);
}

static void loaded_check(struct test_rank *rank, int tensor, const struct loaded *loaded)
{
    for (int64_t i = 0; i < loaded->shape[0] && !rank->status; i++) {
        for (int64_t j = 0; j < loaded->shape[1] && !rank->status; j++) {
            const float found = loaded->values[i * loaded->shape[1] + j];
            const float expected = made_value(tensor, loaded->first[0] + i, loaded->first[1] + j, rank->rank);
            if (found == expected)
                continue;
            rank->status = RESHARD_DIFFERS;
            snprintf(rank->err.message, sizeof(rank->err.message), "'%s' (%d, %d): %f, expected %f", made[tensor].key,
                     (int)(loaded->first[0] + i), (int)(loaded->first[1] + j), (double)found, (double)expected);
        }
    }
}

static void rank_loads(struct test_rank *rank)
{
    static struct loaded memory[RANKS_MAX][MADE + 1];
    const struct load_case *given = rank->context;
    const char *own = rank->rank == given->other_text ? "a -> a_t" : given->text;
    const reshard_map_text texts[] = { { "text", own, strlen(own) } };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_sharded *sharded, *result = NULL;
    const int count = given->saves == 2 ? MADE : MADE_F;
    map.texts = texts;
    map.text_count = 1;
    options.map = &map;
    options.no_exchange = given->no_exchange;
    options.strict = given->strict;
    assert_int_equal(reshard_sharded_new(&sharded, NULL), RESHARD_OK);
    for (int t = 0; t < count; t++)
        loaded_add(&memory[rank->rank][t], &made[t], rank->rank, rank->size, given->by_functions && (t + rank->rank) % 3, sharded);
    if (given->wants_unknown)
        loaded_add(&memory[rank->rank][MADE], &(struct made){ "unknown", 2, 2, -1 }, rank->rank, rank->size, given->by_functions, sharded);
    run.memory_bytes = given->by_functions ? (uint64_t)(200 + 100 * rank->rank) : 0; /* two tensors or three in a round */
    rank->status = reshard_load(rank->comm, given->path, sharded, &options, &run, &result, &rank->err);
    for (int t = 0; t < count && !rank->status; t++)
        loaded_check(rank, t, &memory[rank->rank][t]);
    for (size_t i = 0, listed = 0; given->strict == RESHARD_STRICT_RETURN_ALL && !rank->status && i < 100; i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        const bool is_there = !reshard_sharded_value_at(result, i, &value);
        listed += is_there && value.kind == RESHARD_VALUE_UNEXPECTED && value.key.size == 7 && memcmp(value.key.data, "unknown", 7) == 0;
        listed += is_there && value.kind == RESHARD_VALUE_UNEXPECTED ? 10 : 0;
        if (!is_there && i == 99 && listed != 11)
            rank->status = RESHARD_DIFFERS;
    }
    reshard_sharded_free(result);
    reshard_sharded_free(sharded);
}

static void ranks_run(struct load_case *given, int64_t count, test_rank_run run, reshard_status status, const char *word)
{
    struct test_rank ranks[RANKS_MAX];
    test_ranks(count, 20, given, run, ranks);
    for (int64_t r = 0; r < count; r++)
        if (ranks[r].status != status || !strstr(ranks[r].err.message, word))
            fail_msg("%s, saved by %d, loaded by %d, rank %d: status %d '%s', expected %d '%s'", given->format, (int)given->saves,
                     (int)given->loads, (int)r, ranks[r].status, ranks[r].err.message, status, word);
}

static char path[100], without_f[sizeof(text)];

static struct load_case case_of(const char *format, int64_t saves)
{
    struct load_case given = { .path = path, .format = format, .text = text, .saves = saves, .other_text = -1 };
    snprintf(path, sizeof(path), "%s/%s-%d", test_folder, format, (int)saves);
    snprintf(without_f, sizeof(without_f), "%s", text);
    char *line = strstr(without_f, "f -> f");
    memmove(line, strstr(line, "_ ->"), strlen(strstr(line, "_ ->")) + 1);
    if (saves != 2)
        given.text = without_f;
    ranks_run(&given, saves, rank_saves, RESHARD_OK, "");
    return given;
}

TEST(ranks_load_what_the_text_makes_of_a_checkpoint)
{
    static const char *const formats[] = { "torch_dist", "torch-dcp", "paddle-flex" };
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        for (int64_t saves = 1; saves <= 3; saves++) {
            struct load_case given = case_of(formats[f], saves);
            for (given.loads = 1; given.loads <= RANKS_MAX; given.loads++) {
                for (int i = 0; i < 4; i++) {
                    given.no_exchange = i % 2;
                    given.by_functions = i / 2;
                    ranks_run(&given, given.loads, rank_loads, RESHARD_OK, "");
                }
            }
        }
    }
}

TEST(strictness_is_about_the_names_that_come_out)
{
    struct load_case given = case_of("torch-dcp", 2);
    given.loads = 2;
    given.strict = RESHARD_STRICT_RAISE_ALL; /* `kept` is not unexpected, `a` and `b` are no longer there */
    ranks_run(&given, 2, rank_loads, RESHARD_OK, "");
    given.wants_unknown = true;
    ranks_run(&given, 2, rank_loads, RESHARD_ERR_USAGE, "Unexpected keys (for this rank): {'unknown'}");
    given.strict = RESHARD_STRICT_RETURN_ALL;
    ranks_run(&given, 2, rank_loads, RESHARD_OK, "");
    given.strict = RESHARD_STRICT_ASSUME_OK_UNEXPECTED;
    ranks_run(&given, 2, rank_loads, RESHARD_ERR_USAGE, "unknown");
}

TEST(ranks_load_by_one_mapping)
{
    struct load_case given = case_of("torch-dcp", 2);
    given.loads = 3;
    given.other_text = 2;
    ranks_run(&given, 3, rank_loads, RESHARD_ERR_USAGE, "rank 2 has another mapping than rank 0");
    given.other_text = -1;
    given.text = "absent -> a_t";
    ranks_run(&given, 3, rank_loads, RESHARD_ERR_USAGE, "'absent'");
}

/* ---- one process for all ranks ---- */

/* A list of the shards of all ranks; those of `others` without values. */
static reshard_shards *list_new(int64_t ranks, int64_t count, int64_t others, struct loaded (*memory)[MADE + 1])
{
    reshard_shards *list;
    assert_int_equal(reshard_shards_new(&list, NULL), RESHARD_OK);
    for (int64_t r = 0; r < ranks; r++) {
        reshard_sharded *sharded;
        assert_int_equal(reshard_sharded_new(&sharded, NULL), RESHARD_OK);
        for (int t = 0; t < count; t++)
            loaded_add(&memory[r][t], &made[t], r, ranks, (t + r) % 2, sharded);
        for (size_t i = 0; i < reshard_sharded_count(sharded); i++) {
            reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
            reshard_shard shard = RESHARD_SHARD_INIT;
            reshard_sharded_at(sharded, i, &tensor);
            shard.key = tensor.key;
            shard.dtype = tensor.dtype;
            shard.rank = tensor.rank;
            shard.global_shape = tensor.global_shape;
            shard.start = tensor.global_offset;
            shard.extent = tensor.local_shape;
            shard.data = r == others ? NULL : tensor.data;
            shard.read = r == others ? NULL : tensor.read;
            shard.write = r == others ? NULL : tensor.write;
            shard.context = tensor.context;
            assert_int_equal(reshard_shards_add(list, &shard, NULL), RESHARD_OK);
        }
        reshard_sharded_free(sharded);
    }
    return list;
}

static void mapped_list_check(const struct load_case *given, int64_t ranks, int64_t others)
{
    static struct loaded memory[RANKS_MAX][MADE + 1];
    const int count = given->saves == 2 ? MADE : MADE_F;
    const reshard_map_text texts[] = { { "text", given->text, strlen(given->text) } };
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_checkpoint *checkpoint;
    reshard_shards *list = list_new(ranks, count, others, memory);
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    map.texts = texts;
    map.text_count = 1;
    run.memory_bytes = 300;
    CHECK_OK(reshard_open(given->path, NULL, &checkpoint, &err));
    for (int again = 0; again < 2; again++)
        CHECK_OK(reshard_load_shards_mapped(checkpoint, list, &map, again ? &run : NULL, &err));
    for (int64_t r = 0; r < ranks; r++) {
        struct test_rank rank = { .rank = r, .size = ranks, .err = RESHARD_ERROR_INIT };
        for (int t = 0; t < count && r != others; t++)
            loaded_check(&rank, t, &memory[r][t]);
        if (rank.status)
            fail_msg("rank %d: %s", (int)r, rank.err.message);
        if (r == others)
            assert_true(memory[r][0].values[0] == left_value(r));
    }
    reshard_shards_free(list);
    reshard_close(checkpoint);
}

static int diagnoses_keep(const char *diagnoses, size_t error_count, void *context)
{
    (void)error_count;
    snprintf(context, 400, "%s", diagnoses);
    return 0;
}

/* The text makes "f" of "f", and nobody wants that: then it does not matter how many ranks cut it. */
static void mapped_list_some(const struct load_case *given)
{
    static struct loaded memory[RANKS_MAX][MADE + 1];
    const reshard_map_text texts[] = { { "text", given->text, strlen(given->text) } };
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_checkpoint *checkpoint;
    char said[400];
    struct test_rank rank = { .size = 1, .err = RESHARD_ERROR_INIT };
    reshard_shards *list = list_new(1, 2, -1, memory);
    map.texts = texts;
    map.text_count = 1;
    map.diagnose = diagnoses_keep;
    map.context = said;
    CHECK_OK(reshard_open(given->path, NULL, &checkpoint, &err));
    CHECK_OK(reshard_load_shards_mapped(checkpoint, list, &map, NULL, &err));
    assert_non_null(strstr(said, "warning: no key of the target is found for 'f'"));
    for (int t = 0; t < 2; t++)
        loaded_check(&rank, t, &memory[0][t]);
    assert_int_equal(rank.status, RESHARD_OK);
    reshard_shards_free(list);
    reshard_close(checkpoint);
}

TEST(shards_of_a_list_are_what_the_text_makes_of_a_checkpoint)
{
    static struct loaded memory[RANKS_MAX][MADE + 1];
    reshard_error err = RESHARD_ERROR_INIT;
    for (int64_t saves = 1; saves <= 2; saves++) {
        const struct load_case given = case_of(saves == 1 ? "torch_dist" : "torch-dcp", saves);
        for (int64_t ranks = 1; ranks <= RANKS_MAX; ranks++)
            mapped_list_check(&given, ranks, ranks > 2 ? 1 : -1);
    }
    const struct load_case full = case_of("torch-dcp", 2);
    mapped_list_some(&full);
    const struct load_case given = case_of("torch-dcp", 1);
    static const struct {
        const char *text, *said;
    } wrong[] = { { "a^T -> a_t\na -> b0", "tensor 'b0' has another shape than the shard's global one" },
                  { "a^T -> a_t", "the checkpoint has no tensor 'b0', nor is one made of it" },
                  { "absent -> a_t", "'absent'" } };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        const reshard_map_text texts[] = { { "text", wrong[i].text, strlen(wrong[i].text) } };
        reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
        reshard_checkpoint *checkpoint;
        reshard_shards *list = list_new(1, 2, -1, memory);
        map.texts = texts;
        map.text_count = 1;
        CHECK_OK(reshard_open(given.path, NULL, &checkpoint, &err));
        CHECK_FAILS(reshard_load_shards_mapped(checkpoint, list, &map, NULL, &err), RESHARD_ERR_USAGE);
        if (!strstr(err.message, wrong[i].said))
            fail_msg("%s: %s", wrong[i].text, err.message);
        assert_true(memory[0][0].values[0] == left_value(0));
        reshard_shards_free(list);
        reshard_close(checkpoint);
    }
}

/* ---- names that are recognised ---- */

static const char *const gpt_names[] = { "wte.weight",          "wpe.weight",           "h.0.ln_1.weight",      "h.0.ln_1.bias",
                                         "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias",
                                         "h.0.ln_2.weight",     "h.0.ln_2.bias",        "h.0.mlp.c_fc.weight",  "h.0.mlp.c_fc.bias",
                                         "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias", "ln_f.weight",          "ln_f.bias" };
#define GPT_COUNT (int)(sizeof(gpt_names) / sizeof(gpt_names[0]))

static reshard_sharded *gpt_new(const char *prefix, float (*values)[8])
{
    reshard_sharded *sharded;
    assert_int_equal(reshard_sharded_new(&sharded, NULL), RESHARD_OK);
    for (int i = 0; i < GPT_COUNT; i++) {
        char key[64];
        const bool is_vector = strstr(gpt_names[i], "bias") || strstr(gpt_names[i], "ln_");
        const int64_t matrix[] = { 2, 4 }, vector[] = { 4 };
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        snprintf(key, sizeof(key), "%s%s", prefix, gpt_names[i]);
        tensor.key = text_of(key);
        tensor.dtype = "F32";
        tensor.rank = is_vector ? 1 : 2;
        tensor.local_shape = is_vector ? vector : matrix;
        tensor.data = values[i];
        assert_int_equal(reshard_sharded_add_offsets(sharded, &tensor, NULL, sizeof(reshard_rank_offset), 0, NULL), RESHARD_OK);
    }
    return sharded;
}

TEST(names_that_are_recognised_become_those_that_are_asked_for)
{
    static float from[GPT_COUNT][8], to[GPT_COUNT][8];
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options saving = RESHARD_SAVE_OPTIONS_INIT;
    reshard_load_options loading = RESHARD_LOAD_OPTIONS_INIT;
    const reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    char bare[100];
    snprintf(bare, sizeof(bare), "%s/bare", test_folder);
    for (int i = 0; i < GPT_COUNT * 8; i++)
        from[i / 8][i % 8] = (float)i;
    reshard_sharded *held = gpt_new("", from), *asked = gpt_new("transformer.", to);
    convert.to = "hf";
    convert.no_sync = 1;
    saving.convert = &convert;
    CHECK_OK(reshard_save(NULL, bare, held, &saving, NULL, &err));
    CHECK_FAILS(reshard_load(NULL, bare, asked, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    loading.map = &map;
    CHECK_OK(reshard_load(NULL, bare, asked, &loading, NULL, NULL, &err));
    for (int i = 0; i < GPT_COUNT; i++)
        for (int n = 0; n < 4; n++)
            assert_true(to[i][n] == from[i][n]);
    reshard_sharded_free(held);
    reshard_sharded_free(asked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_load_what_the_text_makes_of_a_checkpoint),
        cmocka_unit_test(strictness_is_about_the_names_that_come_out),
        cmocka_unit_test(ranks_load_by_one_mapping),
        cmocka_unit_test(shards_of_a_list_are_what_the_text_makes_of_a_checkpoint),
        cmocka_unit_test(names_that_are_recognised_become_those_that_are_asked_for),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
