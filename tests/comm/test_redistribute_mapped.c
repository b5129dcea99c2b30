/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resharding in memory under other names: sources cut at random become targets cut at random that a mapping makes of them, over threads
 * that share memory and over messages, at once and by kept plans; every element is what a formula says, and nothing else is written.
 */
#include "check.h"

#include "comm/ranks.h"
#include "comm/relay.h"
#include "reshard/transfers.h"

#include <math.h>

#define RANKS_MAX 5
#define ROWS_MAX 12
#define PIECES_MAX 4
#define LEFT (-7.0f) /* what no call may touch */

static const char text[] = "a^T -> a_t\n"
                           "b -> b0, b1, axis=0\n"
                           "c, d -> cd, axis=0\n"
                           "l.$LAYER_ID.w -> layer.$LAYER_ID.weight\n"
                           "n -> narrow, dtype=\"float16\"\n"
                           "f -> f, fused_ffn\n"
                           "g -> _\n"
                           "g, h -> gh, axis=0\n"
                           "_ -> kept\n";

struct side_tensor {
    const char *key;
    int64_t rows, columns;
};

static const struct side_tensor sources[] = { { "a", 6, 4 },     { "b", 8, 3 },     { "c", 2, 5 }, { "d", 3, 5 }, { "l.0.w", 4, 4 },
                                              { "l.1.w", 5, 2 }, { "n", 3, 3 },     { "f", 2, 8 }, { "g", 2, 2 }, { "h", 2, 2 },
                                              { "same", 7, 3 },  { "spare", 1, 2 } };
static const struct side_tensor wanted[] = { { "a_t", 4, 6 },  { "b0", 4, 3 },     { "b1", 4, 3 },
                                             { "cd", 5, 5 },   { "layer.0.weight", 4, 4 }, { "layer.1.weight", 5, 2 },
                                             { "narrow", 3, 3 }, { "f", 2, 8 },    { "gh", 4, 2 },
                                             { "kept", 2, 2 }, { "same", 7, 3 },
                                             { "unknown", 1, 1 } };
#define SOURCES (int)(sizeof(sources) / sizeof(sources[0]))
#define WANTED (int)(sizeof(wanted) / sizeof(wanted[0]) - 1)
#define TENSOR_F 7 /* fused_ffn: source ranks cut it in two, target ranks do not */

static float value_of(const char *key, int64_t row, int64_t column)
{
    for (int i = 0; i < SOURCES; i++)
        if (strcmp(sources[i].key, key) == 0)
            return (float)(1000 * i + 50) + (float)(row * sources[i].columns + column) + 0.3f;
    fail_msg("no source '%s'", key);
    return 0;
}

/* What the text says, said again in another way. */
static float wanted_value(int tensor, int64_t i, int64_t j)
{
    static const int64_t half[8] = { 0, 1, 4, 5, 2, 3, 6, 7 }; /* [gate0 up0 | gate1 up1] to [gate0 gate1 up0 up1] */
    switch (tensor) {
    case 0: return value_of("a", j, i);
    case 1: return value_of("b", i, j);
    case 2: return value_of("b", 4 + i, j);
    case 3: return i < 2 ? value_of("c", i, j) : value_of("d", i - 2, j);
    case 4: return value_of("l.0.w", i, j);
    case 5: return value_of("l.1.w", i, j);
    case 6: return (float)(_Float16)value_of("n", i, j);
    case 7: return value_of("f", i, half[j]);
    case 8: return i < 2 ? LEFT : value_of("h", i - 2, j);
    case 9: return LEFT;
    default: return value_of("same", i, j);
    }
}

/* ---- random cuts ---- */

struct cut_piece {
    int tensor, owner;
    int64_t start[2], extent[2];
    float *memory;
};

struct mapped_case {
    struct cut_piece have[SOURCES * ROWS_MAX * 2], want[WANTED * PIECES_MAX];
    int have_count, want_count, ranks, uses_messages, is_kept_plan;
    int other_text; /* the rank that has another text; -1: none */
    uint64_t seed;
};

static int64_t mapped_random(struct mapped_case *given, int64_t count)
{
    return (int64_t)(test_random(&given->seed) % (uint64_t)count);
}

static void piece_put(struct mapped_case *given, struct cut_piece *out, int tensor, const struct side_tensor *whole, int64_t axis,
                      int64_t begin, int64_t end)
{
    *out = (struct cut_piece){ .tensor = tensor, .extent = { whole->rows, whole->columns } };
    out->owner = (int)mapped_random(given, given->ranks);
    out->start[axis] = begin;
    out->extent[axis] = end - begin;
}

/* Pieces along an axis, at random places; some are there twice. */
static void source_cut(struct mapped_case *given, int tensor)
{
    const int64_t axis = tensor == TENSOR_F ? 1 : mapped_random(given, 2), length = axis ? sources[tensor].columns : sources[tensor].rows;
    int64_t begin = 0;
    while (begin < length) {
        int64_t end = begin + 1 + mapped_random(given, length - begin);
        if (tensor == TENSOR_F)
            end = begin + 4;
        piece_put(given, &given->have[given->have_count++], tensor, &sources[tensor], axis, begin, end);
        if (mapped_random(given, 4) == 0) {
            given->have[given->have_count] = given->have[given->have_count - 1];
            given->have[given->have_count++].owner = (int)mapped_random(given, given->ranks);
        }
        begin = end;
    }
}

static void case_make(struct mapped_case *given, uint64_t seed, int uses_messages)
{
    *given = (struct mapped_case){ .seed = seed, .uses_messages = uses_messages, .is_kept_plan = (int)(seed % 2), .other_text = -1 };
    given->ranks = 1 + (int)mapped_random(given, RANKS_MAX);
    for (int i = 0; i < SOURCES; i++)
        source_cut(given, i);
    for (int i = 0; i < WANTED; i++) {
        const int64_t count = i == TENSOR_F ? 1 : mapped_random(given, PIECES_MAX);
        for (int64_t n = 0; n < count; n++) {
            const int64_t axis = i == TENSOR_F ? 0 : mapped_random(given, 2), length = axis ? wanted[i].columns : wanted[i].rows;
            const int64_t begin = i == TENSOR_F ? 0 : mapped_random(given, length);
            piece_put(given, &given->want[given->want_count++], i, &wanted[i], axis, begin,
                      i == TENSOR_F ? length : begin + 1 + mapped_random(given, length - begin));
        }
    }
}

static reshard_status piece_add(reshard_shards *list, const struct side_tensor *whole, struct cut_piece *piece, reshard_error *err)
{
    const int64_t shape[] = { whole->rows, whole->columns };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ whole->key, strlen(whole->key) };
    shard.dtype = "F32";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = piece->start;
    shard.extent = piece->extent;
    shard.data = piece->memory;
    return reshard_shards_add(list, &shard, err);
}

static void piece_fill(struct cut_piece *piece, int is_source)
{
    piece->memory = malloc((size_t)(piece->extent[0] * piece->extent[1]) * sizeof(float));
    for (int64_t i = 0; i < piece->extent[0]; i++)
        for (int64_t j = 0; j < piece->extent[1]; j++)
            piece->memory[i * piece->extent[1] + j] =
                is_source ? value_of(sources[piece->tensor].key, piece->start[0] + i, piece->start[1] + j) : LEFT;
}

static void piece_check(const struct cut_piece *piece, uint64_t seed)
{
    for (int64_t i = 0; i < piece->extent[0]; i++) {
        for (int64_t j = 0; j < piece->extent[1]; j++) {
            const float expected = wanted_value(piece->tensor, piece->start[0] + i, piece->start[1] + j);
            const float found = piece->memory[i * piece->extent[1] + j];
            if (found != expected)
                fail_msg("seed %llu: '%s' (%d, %d): %f, expected %f", (unsigned long long)seed, wanted[piece->tensor].key,
                         (int)(piece->start[0] + i), (int)(piece->start[1] + j), (double)found, (double)expected);
        }
    }
}

/* ---- ranks ---- */

static reshard_status kept_run(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                               const reshard_redistribute_options *options, reshard_error *err)
{
    reshard_transfers *plan = NULL, *back = NULL;
    void *bytes = NULL;
    size_t size = 0;
    reshard_status status = reshard_transfers_new(comm, source, target, options, &plan, err);
    if (!status)
        status = reshard_transfers_export(plan, &bytes, &size, err);
    if (!status)
        status = reshard_transfers_import(bytes, size, &back, err);
    if (!status && reshard_transfers_hash(plan) != reshard_transfers_hash(back))
        status = RESHARD_DIFFERS;
    if (!status)
        status = reshard_transfers_run(back, comm, source, target, NULL, err);
    reshard_free(bytes);
    reshard_transfers_free(plan);
    reshard_transfers_free(back);
    return status;
}

static void rank_maps(struct test_rank *rank)
{
    struct mapped_case *given = rank->context;
    reshard_shards *source = NULL, *target = NULL;
    const char *own = rank->rank == given->other_text ? "a -> a_t" : text;
    const reshard_map_text texts[] = { { "text", own, strlen(own) } };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_redistribute_options options = RESHARD_REDISTRIBUTE_OPTIONS_INIT;
    reshard_comm *comm = given->uses_messages ? relay_new(rank->comm, &rank->err) : rank->comm;
    map.texts = texts;
    map.text_count = 1;
    options.map = &map;
    options.scratch_bytes = 256;
    rank->status = reshard_shards_new(&source, &rank->err);
    if (!rank->status)
        rank->status = reshard_shards_new(&target, &rank->err);
    for (int i = 0; i < given->have_count && !rank->status; i++)
        if (given->have[i].owner == rank->rank)
            rank->status = piece_add(source, &sources[given->have[i].tensor], &given->have[i], &rank->err);
    for (int i = 0; i < given->want_count && !rank->status; i++)
        if (given->want[i].owner == rank->rank)
            rank->status = piece_add(target, &wanted[given->want[i].tensor], &given->want[i], &rank->err);
    if (!rank->status)
        rank->status = given->is_kept_plan ? kept_run(comm, source, target, &options, &rank->err)
                                           : reshard_redistribute(comm, source, target, &options, NULL, &rank->err);
    reshard_shards_free(source);
    reshard_shards_free(target);
    if (given->uses_messages)
        reshard_comm_free(comm);
}

static void case_run(struct mapped_case *given, struct test_rank *ranks)
{
    for (int i = 0; i < given->have_count; i++)
        piece_fill(&given->have[i], 1);
    for (int i = 0; i < given->want_count; i++)
        piece_fill(&given->want[i], 0);
    test_ranks(given->ranks, 30, given, rank_maps, ranks);
}

static void case_release(struct mapped_case *given)
{
    for (int i = 0; i < given->have_count; i++)
        free(given->have[i].memory);
    for (int i = 0; i < given->want_count; i++)
        free(given->want[i].memory);
}

TEST(sources_become_what_the_text_makes_of_them)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        static struct mapped_case given;
        struct test_rank ranks[RANKS_MAX];
        case_make(&given, seed, seed % 3 == 0);
        case_run(&given, ranks);
        for (int r = 0; r < given.ranks; r++)
            if (ranks[r].status)
                fail_msg("seed %llu, rank %d of %d: status %d '%s'", (unsigned long long)seed, r, given.ranks, ranks[r].status,
                         ranks[r].err.message);
        for (int i = 0; i < given.want_count; i++)
            piece_check(&given.want[i], seed);
        case_release(&given);
    }
}

/* ---- what cannot be ---- */

static void faults_are_named(struct mapped_case *given, const char *word, const char *other)
{
    struct test_rank ranks[RANKS_MAX];
    case_run(given, ranks);
    for (int r = 0; r < given->ranks; r++)
        if (ranks[r].status != RESHARD_ERR_USAGE || !strstr(ranks[r].err.message, word) || !strstr(ranks[r].err.message, other))
            fail_msg("rank %d: status %d '%s' lacks '%s' or '%s'", r, ranks[r].status, ranks[r].err.message, word, other);
    for (int i = 0; i < given->want_count; i++)
        for (int64_t n = 0; n < given->want[i].extent[0] * given->want[i].extent[1]; n++)
            assert_true(given->want[i].memory[n] == LEFT);
    case_release(given);
}

TEST(ranks_have_one_mapping)
{
    static struct mapped_case given;
    for (uint64_t seed = 1; given.ranks < 3; seed++)
        case_make(&given, seed, 0);
    given.other_text = 2;
    faults_are_named(&given, "rank 2", "another mapping");
}

/* One target, nothing else: the text asks how many ranks cut 'f', which nobody wants. */
static void wants_only(struct mapped_case *given, int tensor)
{
    for (uint64_t seed = 1; given->ranks < 2; seed++)
        case_make(given, seed, 0);
    given->want_count = 1;
    given->want[0] = (struct cut_piece){ .tensor = tensor, .owner = 1, .extent = { wanted[tensor].rows, wanted[tensor].columns } };
}

TEST(what_the_mapping_does_not_make_is_named)
{
    static struct mapped_case unknown, lacks;
    wants_only(&unknown, WANTED);
    faults_are_named(&unknown, "'unknown'", "the mapping makes none");
    wants_only(&lacks, 0);
    lacks.have_count = 1;
    faults_are_named(&lacks, "text:2:1", "'b' is neither a weight of the source nor assigned before");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_become_what_the_text_makes_of_them),
        cmocka_unit_test(ranks_have_one_mapping),
        cmocka_unit_test(what_the_mapping_does_not_make_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
