/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that keep the plan of one save for the next. */
#include "api/joint_ranks.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* The saves of a loop, one after the other: what is other than before, and whether the plan can be used again. */
static const struct kept_step {
    const char *what, *iteration, *parent;
    enum { NONE_MORE, LAST_MORE, BOTH_MORE } more; /* the last rank has a tensor more, and the first as well */
    bool checksum, no_spread, uses;
} kept_steps[] = {
    { "the first", "7", "a", NONE_MORE, false, false, false },
    { "the same", "7", "b", NONE_MORE, false, false, true },
    { "another value", "123", "c", NONE_MORE, false, false, true },
    { "again", "123", "d", NONE_MORE, false, false, true },
    { "a tensor more", "123", "e", LAST_MORE, false, false, false },
    { "the same more", "124", "f", LAST_MORE, false, false, true },
    { "one of the first rank's", "124", "g", BOTH_MORE, false, false, false },
    { "the same of both", "124", "h", BOTH_MORE, false, false, true },
    { "options", "124", "i", BOTH_MORE, true, false, false },
    { "no spread", "124", "j", BOTH_MORE, true, true, false },
    { "last", "124", "k", BOTH_MORE, true, true, true },
};

/* What was saved, for who calls to free: memory of the next save is other memory then. */
static struct held *kept_step_save(struct rank_call *call, const struct kept_step *step, reshard_kept *kept, const char *path)
{
    static const int64_t shape[] = { 3 };
    float more[] = { 1, 2, 3 };
    struct held *held = held_new(call->rank, call->ranks);
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    char *format = strdup(call->format); /* what options point to need not outlive the call */
    held->more = (float)(step - kept_steps) * 10000;
    held_walk(held, call->rank, call->ranks, true);
    value.key = text_of("step");
    value.json = text_of(step->iteration);
    assert_int_equal(reshard_sharded_add_value(held->sharded, &value, NULL), RESHARD_OK);
    if (step->more && call->rank == call->ranks - 1)
        tensor_add(held, "more", 1, 0, shape, NULL, 0, more, NULL);
    if (step->more == BOTH_MORE && call->rank == 0)
        tensor_add(held, "more-of-first", 1, 0, shape, NULL, 0, more, NULL);
    convert.to = format;
    convert.no_sync = 1;
    convert.checksum = step->checksum ? "crc32c" : NULL;
    options.no_spread = step->no_spread;
    options.convert = &convert;
    options.kept = kept;
    call->status = reshard_save(call->comm, path, held->sharded, &options, NULL, &call->err);
    free(format);
    return held;
}

static void kept_check(struct rank_call *call, const char *what, const reshard_kept *kept, uint64_t uses)
{
    if (call->status || reshard_kept_uses(kept) == uses)
        return;
    call->status = RESHARD_DIFFERS;
    snprintf(call->err.message, sizeof(call->err.message), "%s: %d uses in place of %d", what, (int)reshard_kept_uses(kept), (int)uses);
}

/* Every save with what is kept is byte for byte that of a save that keeps nothing; one that fails leaves nothing to be used. */
static void kept_rank(struct rank_call *call)
{
    const size_t count = sizeof(kept_steps) / sizeof(*kept_steps);
    struct held *held[sizeof(kept_steps) / sizeof(*kept_steps)] = { NULL };
    reshard_kept *kept;
    char path[300];
    uint64_t uses = 0;
    call->status = reshard_kept_new(&kept, &call->err);
    for (size_t i = 0; i < count && !call->status; i++) {
        for (int with = 0; with < 2 && !call->status; with++) {
            snprintf(path, sizeof(path), "%s/%s-%d/step-%s%s", call->path, kept_steps[i].parent, with, call->format, i % 2 ? "-x" : "-y");
            struct held *saved = kept_step_save(call, &kept_steps[i], with ? kept : NULL, path);
            if (with)
                held[i] = saved;
            else
                held_free(saved);
        }
        uses += kept_steps[i].uses;
        kept_check(call, kept_steps[i].what, kept, uses);
    }
    for (int again = 0; again < 2 && !call->status; again++) { /* where there is something already; and after that */
        held_free(kept_step_save(call, &kept_steps[count - 1], kept, again ? strcat(path, "-new") : path));
        call->status = again ? call->status : call->status == RESHARD_ERR_IO ? RESHARD_OK : RESHARD_DIFFERS;
        kept_check(call, "after a failure", kept, uses + 1);
    }
    for (size_t i = 0; i < count; i++)
        if (held[i])
            held_free(held[i]);
    reshard_kept_free(kept);
}

TEST(a_kept_plan_writes_what_a_new_one_would)
{
    static const char *const formats[] = { "torch-dcp", "torch_dist", "hf", "paddle-flex", "torch" };
    static const int64_t counts[] = { 1, 3 };
    char command[900];
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        for (size_t c = 0; c < 2; c++) {
            char name[64];
            snprintf(name, sizeof(name), "kept-%s-%d", formats[f], (int)counts[c]);
            const struct rank_call save = { .path = path_in(name), .format = formats[f], .work = kept_rank };
            /* With files of other frameworks, the tests run again in the same folder. */
            snprintf(command, sizeof(command), "cd %s && rm -rf %s && mkdir %s && cd %s && "
                     "for x in a b c d e f g h i j k; do mkdir $x-0 $x-1; done", folder, name, name, name);
            assert_int_equal(system(command), 0);
            ranks_must(&save, counts[c]);
            snprintf(command, sizeof(command), "cd %s/%s && rm -rf k-1/*-new* && for x in *-0; do diff -r $x ${x%%-0}-1 || exit; done",
                     folder, name);
            assert_int_equal(system(command), 0);
        }
    }
}

/* Rank 1 is another one from the fourth save on, which has kept nothing and counts anew. */
static void kept_renewed_rank(struct rank_call *call)
{
    reshard_kept *kept;
    char path[300];
    call->status = reshard_kept_new(&kept, &call->err);
    for (int i = 0; i < 9 && !call->status; i++) {
        if (i == 3 && call->rank == 1) {
            reshard_kept_free(kept);
            call->status = reshard_kept_new(&kept, &call->err);
        }
        snprintf(path, sizeof(path), "%s-%d", call->path, i);
        if (!call->status)
            held_free(kept_step_save(call, &kept_steps[0], kept, path));
    }
    kept_check(call, "a rank that was renewed", kept, call->rank == 1 ? 5 : 7);
    reshard_kept_free(kept);
}

TEST(a_rank_that_is_replaced_keeps_a_plan_with_the_others)
{
    const struct rank_call save = { .path = path_in("kept-renewed"), .format = "torch_dist", .work = kept_renewed_rank };
    ranks_must(&save, 2);
}

static reshard_status kept_vectors_save(reshard_kept *kept, const float *values, const char *path)
{
    static const int64_t three[] = { 3 }, zero[] = { 0 };
    struct held held = { .more = 0 };
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    CHECK_OK(reshard_sharded_new(&held.sharded, &err));
    tensor_add(&held, "empty", 1, 0, zero, NULL, 0, NULL, NULL);
    tensor_add(&held, "w", 1, 0, three, NULL, 0, (void *)(uintptr_t)values, NULL);
    convert.to = "torch_dist";
    convert.overwrite = convert.no_sync = 1;
    options.convert = &convert;
    options.kept = kept;
    reshard_status status = reshard_save(NULL, path, held.sharded, &options, NULL, &err);
    reshard_sharded_free(held.sharded);
    return status;
}

/* A plan knows no values: each save must bring them, though it is described as the one before. */
TEST(a_kept_plan_asks_for_values)
{
    static const float values[] = { 1, 2, 3 };
    char path[300];
    reshard_kept *kept;
    snprintf(path, sizeof(path), "%s/kept-values", folder);
    CHECK_OK(reshard_kept_new(&kept, &err));
    CHECK_OK(kept_vectors_save(kept, values, path));
    CHECK_OK(kept_vectors_save(kept, values, path));
    assert_int_equal(reshard_kept_uses(kept), 1);
    CHECK_FAILS(kept_vectors_save(kept, NULL, path), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "rank 0: tensor 'w' has no values"));
    CHECK_OK(kept_vectors_save(kept, values, path));
    reshard_kept_free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kept_plan_writes_what_a_new_one_would),
        cmocka_unit_test(a_rank_that_is_replaced_keeps_a_plan_with_the_others),
        cmocka_unit_test(a_kept_plan_asks_for_values),
    };
    return cmocka_run_group_tests_name("joint_kept", tests, folder_made, folder_removed);
}
