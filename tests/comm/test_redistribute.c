/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resharding in memory: random layouts against a naive model, over threads that share memory and over messages with little scratch; that
 * no more bytes move than have to; and that what cannot be names tensor and ranks on all of them.
 */
#include "check.h"

#include "comm/layouts.h"
#include "comm/ranks.h"
#include "comm/relay.h"

#include <unistd.h>

#define CASES 5000
#define MESSAGE_CASES 400

/* ---- random layouts ---- */

struct redistribute_case {
    struct layouts layouts;
    int uses_messages;
    uint64_t scratch_bytes;
    uint64_t moved[LAYOUT_RANKS_MAX], received[LAYOUT_RANKS_MAX], sent[LAYOUT_RANKS_MAX];
};

static void rank_redistributes(struct test_rank *rank)
{
    struct redistribute_case *given = rank->context;
    struct layout_rank own;
    reshard_redistribute_options options = RESHARD_REDISTRIBUTE_OPTIONS_INIT;
    reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
    reshard_comm *comm = given->uses_messages ? relay_new(rank->comm, &rank->err) : rank->comm;
    options.scratch_bytes = given->scratch_bytes;
    rank->status = layout_rank_make(&given->layouts, (int)rank->rank, &own, &rank->err);
    if (!rank->status)
        rank->status = reshard_redistribute(comm, own.source, own.target, &options, &report, &rank->err);
    if (!rank->status && !layout_rank_is_good(&given->layouts, &own))
        rank->status = RESHARD_DIFFERS;
    given->moved[rank->rank] = report.bytes_moved;
    given->received[rank->rank] = report.bytes_received;
    given->sent[rank->rank] = report.bytes_sent;
    layout_rank_release(&own);
    if (given->uses_messages)
        reshard_comm_free(comm);
}

static void run_case(uint64_t seed, int uses_messages)
{
    static struct redistribute_case given;
    struct test_rank ranks[LAYOUT_RANKS_MAX];
    uint64_t choice = seed * 7919;
    int count = 1 + (int)(test_random(&choice) % LAYOUT_RANKS_MAX);
    layouts_make(&given.layouts, seed, count);
    given.uses_messages = uses_messages;
    given.scratch_bytes = UINT64_C(1) << test_random(&choice) % 16;
    test_ranks(count, 30, &given, rank_redistributes, ranks);
    uint64_t minimum = layouts_minimum(&given.layouts), sent = 0, received = 0;
    for (int i = 0; i < count; i++) {
        if (ranks[i].status || given.moved[i] != minimum)
            fail_msg("seed %llu, rank %d of %d, %s: status %d '%s', moved %llu, minimum %llu", (unsigned long long)seed, i, count,
                     uses_messages ? "messages" : "threads", ranks[i].status, ranks[i].err.message, (unsigned long long)given.moved[i],
                     (unsigned long long)minimum);
        sent += given.sent[i];
        received += given.received[i];
    }
    if (sent != received)
        fail_msg("seed %llu: %llu bytes sent, %llu received", (unsigned long long)seed, (unsigned long long)sent,
                 (unsigned long long)received);
}

TEST(random_layouts_over_threads)
{
    for (uint64_t seed = 1; seed <= CASES; seed += test_step(5))
        run_case(seed, 0);
}

TEST(random_layouts_over_messages)
{
    for (uint64_t seed = 1; seed <= MESSAGE_CASES; seed++)
        run_case(seed + CASES, 1);
}

/* ---- what cannot be ---- */

static float memory_of_fault[LAYOUT_RANKS_MAX][64];

enum fault { FAULT_OVERLAP, FAULT_HOLE, FAULT_SHAPE, FAULT_TYPE, FAULT_KEY, FAULT_NO_VALUES, FAULT_DIES };

static reshard_status fault_add(reshard_shards *list, const char *key, const char *dtype, int64_t rows, int64_t first, int64_t count,
                                void *data, reshard_error *err)
{
    reshard_shard shard = RESHARD_SHARD_INIT;
    int64_t shape[2] = { rows, 4 }, start[2] = { first, 0 }, extent[2] = { count, 4 };
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = dtype;
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = data;
    return reshard_shards_add(list, &shard, err);
}

/* Three ranks with two rows each of (6, 4), who want the whole; rank 2 is at fault. */
static void rank_at_fault(struct test_rank *rank)
{
    const enum fault fault = rank->rank == 2 ? *(enum fault *)rank->context : (enum fault)-1;
    reshard_shards *source, *target;
    float *memory = memory_of_fault[rank->rank];
    reshard_shards_new(&source, NULL);
    reshard_shards_new(&target, NULL);
    int64_t first = rank->rank * 2 - (fault == FAULT_OVERLAP), rows = 6 + (fault == FAULT_SHAPE);
    fault_add(source, "w", fault == FAULT_TYPE ? "F16" : "F32", rows, first, fault == FAULT_HOLE ? 1 : 2,
              fault == FAULT_NO_VALUES ? NULL : memory, &rank->err);
    fault_add(target, fault == FAULT_KEY ? "v" : "w", "F32", 6, 0, 6, memory + 8, &rank->err);
    if (fault == FAULT_DIES) {
        reshard_comm_free(rank->comm);
        rank->comm = NULL;
    } else {
        rank->status = reshard_redistribute(rank->comm, source, target, NULL, NULL, &rank->err);
    }
    reshard_shards_free(source);
    reshard_shards_free(target);
}

static void check_fault(enum fault fault, reshard_status status, const char *tensor, const char *culprit)
{
    struct test_rank ranks[3];
    test_ranks(3, 5, &fault, rank_at_fault, ranks);
    for (int i = 0; i < 3; i++) {
        if (i == 2 && fault == FAULT_DIES)
            continue;
        const char *said = ranks[i].err.message;
        if (ranks[i].status != status || !strstr(said, tensor) || !strstr(said, culprit))
            fail_msg("fault %d, rank %d: status %d '%s' lacks '%s' or '%s'", (int)fault, i, ranks[i].status, said, tensor, culprit);
    }
}

TEST(what_cannot_be_names_tensor_and_rank)
{
    check_fault(FAULT_OVERLAP, RESHARD_ERR_FORMAT, "'w'", "rank 2, shard 0");
    check_fault(FAULT_HOLE, RESHARD_ERR_FORMAT, "'w'", "20 of the 24 elements");
    check_fault(FAULT_SHAPE, RESHARD_ERR_USAGE, "'w'", "rank 2");
    check_fault(FAULT_TYPE, RESHARD_ERR_USAGE, "'w'", "rank 2");
    check_fault(FAULT_KEY, RESHARD_ERR_USAGE, "'v'", "rank 2");
    check_fault(FAULT_NO_VALUES, RESHARD_ERR_USAGE, "'w'", "rank 2");
    check_fault(FAULT_DIES, RESHARD_ERR_IO, "", "rank 2 has left");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts_over_threads),
        cmocka_unit_test(random_layouts_over_messages),
        cmocka_unit_test(what_cannot_be_names_tensor_and_rank),
    };
    if (argc > 1) {
        run_case(strtoull(argv[1], NULL, 10), argc > 2);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
