/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of resharding that are kept: run again with values elsewhere, over threads and as messages; what they list, carried out by a naive
 * loop, fills all targets, each element once; as bytes and back; and what comes in changed, or does not fit, is refused.
 */
#include "check.h"

#include "comm/layouts.h"
#include "comm/ranks.h"
#include "comm/relay.h"
#include "reshard/transfers.h"

#define CASES 300

struct transfers_case {
    struct layouts layouts;
    int uses_messages;
    uint64_t hash[LAYOUT_RANKS_MAX], moved[LAYOUT_RANKS_MAX];
    void *bytes; /* of rank 0's plan; NULL: it was not made */
    size_t size;
};

/* Values in memory of their own. */
static reshard_status run_once(const struct transfers_case *given, struct test_rank *rank, reshard_comm *comm, reshard_transfers *plan,
                               reshard_redistribute_report *report)
{
    struct layout_rank own;
    reshard_status status = layout_rank_make(&given->layouts, (int)rank->rank, &own, &rank->err);
    if (!status)
        status = reshard_transfers_run(plan, comm, own.source, own.target, report, &rank->err);
    if (!status && !layout_rank_is_good(&given->layouts, &own))
        status = RESHARD_DIFFERS;
    layout_rank_release(&own);
    return status;
}

static void rank_keeps(struct test_rank *rank)
{
    struct transfers_case *given = rank->context;
    struct layout_rank first;
    reshard_transfers *plan = NULL, *back = NULL;
    void *bytes = NULL;
    size_t size = 0;
    reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
    reshard_comm *comm = given->uses_messages ? relay_new(rank->comm, &rank->err) : rank->comm;
    rank->status = layout_rank_make(&given->layouts, (int)rank->rank, &first, &rank->err);
    if (!rank->status)
        rank->status = reshard_transfers_new(comm, first.source, first.target, NULL, &plan, &rank->err);
    layout_rank_release(&first);
    for (int i = 0; i < 2 && !rank->status; i++)
        rank->status = run_once(given, rank, comm, plan, &report);
    if (!rank->status)
        rank->status = reshard_transfers_export(plan, &bytes, &size, &rank->err);
    if (!rank->status)
        rank->status = reshard_transfers_import(bytes, size, &back, &rank->err);
    if (!rank->status)
        rank->status = run_once(given, rank, comm, back, &report);
    given->hash[rank->rank] = reshard_transfers_hash(back);
    given->moved[rank->rank] = report.bytes_moved;
    reshard_transfers_free(plan);
    reshard_transfers_free(back);
    if (rank->rank == 0) {
        given->bytes = bytes;
        given->size = size;
    } else {
        reshard_free(bytes);
    }
    if (given->uses_messages)
        reshard_comm_free(comm);
}

/* ---- the naive loop ---- */

static void block_run(const reshard_transfer *transfer, const uint8_t *source, uint8_t *target, uint8_t *written)
{
    int64_t count = 1, index[LAYOUT_AXES_MAX + 1];
    for (size_t i = 0; i < transfer->rank; i++)
        count *= transfer->extent[i];
    for (int64_t n = 0; n < count; n++) {
        int64_t left = n, from = (int64_t)transfer->source_offset, to = (int64_t)transfer->target_offset;
        for (size_t i = transfer->rank; i-- > 0;) {
            index[i] = left % transfer->extent[i];
            left /= transfer->extent[i];
            from += index[i] * transfer->source_strides[i];
            to += index[i] * transfer->target_strides[i];
        }
        uint32_t value = 0;
        const int is_wide = strcmp(transfer->source_dtype, "F32") == 0, will_be_wide = strcmp(transfer->target_dtype, "F32") == 0;
        memcpy(is_wide ? (uint8_t *)&value : (uint8_t *)&value + 2, source + from, is_wide ? 4 : 2);
        memcpy(target + to, will_be_wide ? (uint8_t *)&value : (uint8_t *)&value + 2, will_be_wide ? 4 : 2);
        assert_int_equal(written[to]++, 0);
    }
}

static void plan_is_whole(const struct layouts *layouts, const reshard_transfers *plan)
{
    static struct layout_rank ranks[LAYOUT_RANKS_MAX];
    uint8_t *written[LAYOUT_RANKS_MAX][LAYOUT_SHARDS_MAX * 4];
    reshard_error err = RESHARD_ERROR_INIT;
    uint64_t moved = 0, pairs = 0;
    for (int r = 0; r < layouts->ranks; r++) {
        CHECK_OK(layout_rank_make(layouts, r, &ranks[r], &err));
        for (int i = 0; i < ranks[r].count; i++)
            written[r][i] = calloc((size_t)layout_span(layouts, ranks[r].of[i]), layout_bytes(ranks[r].of[i]));
    }
    for (size_t i = 0; i < reshard_transfers_count(plan); i++) {
        reshard_transfer transfer = RESHARD_TRANSFER_INIT;
        CHECK_OK(reshard_transfers_at(plan, i, &transfer, &err));
        const struct layout_rank *from = &ranks[transfer.from], *to = &ranks[transfer.to];
        const int target = to->first_target + (int)transfer.target_shard;
        block_run(&transfer, from->memory[transfer.source_shard], to->memory[target], written[transfer.to][target]);
        moved += transfer.from != transfer.to ? transfer.bytes : 0;
    }
    for (int r = 0; r < layouts->ranks; r++)
        for (int to = 0; to < layouts->ranks; to++)
            pairs += r != to ? reshard_transfers_pair_bytes(plan, r, to) : 0;
    assert_int_equal(moved, layouts_minimum(layouts));
    assert_int_equal(pairs, moved);
    for (int r = 0; r < layouts->ranks; r++) {
        assert_true(layout_rank_is_good(layouts, &ranks[r]));
        for (int i = 0; i < ranks[r].count; i++)
            free(written[r][i]);
        layout_rank_release(&ranks[r]);
    }
}

/* The plan of one process for all ranks, whose shards have no values. */
static reshard_transfers *plan_alone(const struct layouts *layouts)
{
    reshard_shards *sources[LAYOUT_RANKS_MAX], *targets[LAYOUT_RANKS_MAX];
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_transfers *plan;
    for (int r = 0; r < layouts->ranks; r++) {
        CHECK_OK(reshard_shards_new(&sources[r], &err));
        CHECK_OK(reshard_shards_new(&targets[r], &err));
    }
    for (int i = 0; i < layouts->source_count; i++) {
        const reshard_shard shard = layout_public(layouts, &layouts->sources[i], NULL);
        CHECK_OK(reshard_shards_add(sources[layouts->sources[i].owner], &shard, &err));
    }
    for (int i = 0; i < layouts->target_count; i++) {
        const reshard_shard shard = layout_public(layouts, &layouts->targets[i], NULL);
        CHECK_OK(reshard_shards_add(targets[layouts->targets[i].owner], &shard, &err));
    }
    CHECK_OK(reshard_transfers_plan((const reshard_shards *const *)sources, (const reshard_shards *const *)targets, layouts->ranks, NULL,
                                    &plan, &err));
    for (int r = 0; r < layouts->ranks; r++) {
        reshard_shards_free(sources[r]);
        reshard_shards_free(targets[r]);
    }
    return plan;
}

static struct transfers_case *case_run(uint64_t seed, int uses_messages)
{
    static struct transfers_case given;
    struct test_rank ranks[LAYOUT_RANKS_MAX];
    uint64_t choice = seed * 7919;
    int count = 1 + (int)(test_random(&choice) % LAYOUT_RANKS_MAX);
    layouts_make(&given.layouts, seed, count);
    given.uses_messages = uses_messages;
    test_ranks(count, 30, &given, rank_keeps, ranks);
    for (int i = 0; i < count; i++)
        if (ranks[i].status || given.moved[i] != layouts_minimum(&given.layouts) || given.hash[i] != given.hash[0])
            fail_msg("seed %llu, rank %d of %d: status %d '%s'", (unsigned long long)seed, i, count, ranks[i].status,
                     ranks[i].err.message);
    return &given;
}

TEST(plans_run_again_and_are_whole)
{
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct transfers_case *given = case_run(seed, seed % 4 == 0);
        reshard_transfers *plan = plan_alone(&given->layouts);
        assert_int_equal(reshard_transfers_hash(plan), given->hash[0]);
        plan_is_whole(&given->layouts, plan);
        reshard_transfers_free(plan);
        reshard_free(given->bytes);
    }
}

/* ---- as bytes ---- */

TEST(what_comes_in_changed_is_refused)
{
    struct transfers_case *given = case_run(12, 0);
    uint8_t *bytes = given->bytes;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_transfers *plan;
    assert_true(given->size > 500);
    for (size_t i = 0; i < given->size; i++) {
        bytes[i] ^= 1 << i % 8;
        reshard_status status = reshard_transfers_import(bytes, given->size, &plan, &err);
        if (!status || plan || !err.message[0])
            fail_msg("byte %zu: status %d '%s'", i, (int)status, err.message);
        bytes[i] ^= 1 << i % 8;
        CHECK_FAILS(reshard_transfers_import(bytes, i, &plan, &err), RESHARD_ERR_FORMAT);
    }
    CHECK_FAILS((bytes[8] = 2, reshard_transfers_import(bytes, given->size, &plan, &err)), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "version 2"));
    reshard_free(bytes);
}

static int text_append(const void *bytes, size_t size, void *context)
{
    strncat(context, bytes, size);
    return 0;
}

static void shards_of(reshard_shards **out, const char *key, int64_t first, int64_t count, float *data)
{
    reshard_error err = RESHARD_ERROR_INIT;
    const int64_t shape[] = { 4, 3 }, start[] = { first, 0 }, extent[] = { count, 3 };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = "F32";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = data;
    CHECK_OK(reshard_shards_new(out, &err));
    CHECK_OK(reshard_shards_add(*out, &shard, &err));
}

TEST(a_plan_is_printed)
{
    char text[4096] = "";
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_shards *sources[2], *targets[2] = { NULL, NULL };
    reshard_transfers *plan;
    shards_of(&sources[0], "w", 0, 2, NULL);
    shards_of(&sources[1], "w", 2, 2, NULL);
    shards_of(&targets[1], "w", 1, 3, NULL);
    CHECK_OK(reshard_transfers_plan((const reshard_shards *const *)sources, (const reshard_shards *const *)targets, 2, NULL, &plan, &err));
    CHECK_OK(reshard_transfers_print(plan, text_append, text, &err));
    assert_non_null(strstr(text, "\"ranks\": 2, \"bytes_moved\": 12, \"pairs\": [{\"from\": 0, \"to\": 1, \"bytes\": 12}, "
                                 "{\"from\": 1, \"to\": 1, \"bytes\": 24}], \"transfers\": [\n"
                                 "  {\"from\": 0, \"to\": 1, \"key\": \"w\", \"source_shard\": 0, \"source_dtype\": \"F32\", "
                                 "\"source_offset\": 12, \"source_strides\": [4], \"target_shard\": 0, \"target_dtype\": \"F32\", "
                                 "\"target_offset\": 0, \"target_strides\": [4], \"extent\": [3], \"bytes\": 12},\n"));
    reshard_transfers_free(plan);
    reshard_shards_free(sources[0]);
    reshard_shards_free(sources[1]);
    reshard_shards_free(targets[1]);
}

/* ---- what does not fit ---- */

enum misfit { MISFIT_LAYOUT, MISFIT_COUNT, MISFIT_PLAN, MISFIT_VALUES };

static void rank_misfits(struct test_rank *rank)
{
    const enum misfit misfit = rank->rank == 1 ? *(enum misfit *)rank->context : (enum misfit)-1;
    float memory[2][12] = { { 0 } };
    reshard_shards *source, *target, *other;
    reshard_transfers *plan = NULL, *wrong = NULL;
    shards_of(&source, "w", rank->rank * 2, 2, memory[0]);
    shards_of(&target, "w", 0, 4, memory[1]);
    shards_of(&other, "w", 0, misfit == MISFIT_LAYOUT ? 3 : 4, misfit == MISFIT_VALUES ? NULL : memory[1]);
    rank->status = reshard_transfers_new(rank->comm, source, target, NULL, &plan, &rank->err);
    if (!rank->status)
        rank->status = reshard_transfers_new(rank->comm, source, source, NULL, &wrong, &rank->err);
    if (!rank->status)
        rank->status = reshard_transfers_run(misfit == MISFIT_PLAN ? wrong : plan, rank->comm, source, misfit == MISFIT_COUNT  ? NULL
                                                                                                       : misfit == MISFIT_PLAN ? source
                                                                                                                               : other,
                                             NULL, &rank->err);
    if (rank->status == RESHARD_ERR_USAGE && reshard_transfers_run(plan, rank->comm, source, target, NULL, NULL))
        rank->status = RESHARD_DIFFERS; /* it must still be good */
    reshard_transfers_free(plan);
    reshard_transfers_free(wrong);
    reshard_shards_free(source);
    reshard_shards_free(target);
    reshard_shards_free(other);
}

TEST(what_does_not_fit_is_named_on_all_ranks)
{
    static const char *const words[] = { "the layout has changed", "the list 0", "another plan", "has no values" };
    for (int i = 0; i < 4; i++) {
        enum misfit misfit = (enum misfit)i;
        struct test_rank ranks[3];
        test_ranks(2, 5, &misfit, rank_misfits, ranks);
        for (int r = 0; r < 2; r++)
            if (ranks[r].status != RESHARD_ERR_USAGE || !strstr(ranks[r].err.message, words[i]) || !strstr(ranks[r].err.message, "rank 1"))
                fail_msg("misfit %d, rank %d: status %d '%s'", i, r, (int)ranks[r].status, ranks[r].err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_run_again_and_are_whole),
        cmocka_unit_test(what_comes_in_changed_is_refused),
        cmocka_unit_test(a_plan_is_printed),
        cmocka_unit_test(what_does_not_fit_is_named_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
