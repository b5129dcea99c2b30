/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "check.h"
#include "fail_malloc.h"
#include "sample.h"

static void check_target(const struct sample *sample, struct store *store, const char *name)
{
    reshard_error err;
    for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
        struct buffer bytes = { 0 };
        char path[64];
        snprintf(path, sizeof(path), "%s/o%u", name, i);
        CHECK_OK(store_read_all(store, path, AT_MOST(1 << 30), &bytes, &err));
        sample_check_object(sample, i, bytes.data, bytes.size);
        buffer_release(&bytes);
    }
}

static void run_and_check(const struct sample_options *options, const struct engine_options *engine_options)
{
    reshard_error err;
    struct sample sample;
    struct plan *plan;
    sample_make(&sample, options);
    CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
    uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
    reshard_status status = sample_run(&sample, plan, sample.store, sample.store, "t", engine_options, false, crcs, &err);
    if (status)
        fail_msg("seed %llu: status %d: %s", (unsigned long long)options->seed, status, err.message);
    check_target(&sample, sample.store, "t");
    sample_check_crcs(&sample, crcs);
    free(crcs);
    plan_free(plan);
    sample_release(&sample);
}

static uint64_t rounds(void)
{
    const char *more = getenv("RESHARD_TEST_ROUNDS");
    return more ? strtoull(more, NULL, 10) : 1;
}

TEST(any_layout_becomes_any_other)
{
    for (uint64_t seed = 1; seed <= 300 * rounds(); seed++) {
        struct sample_options options = { .seed = seed,
                                          .elements_max = seed % 7 ? 400 : 20000,
                                          .tensors = 1 + (int)(seed % 5),
                                          .encoded = seed % 3 == 0,
                                          .crc = seed % 2,
                                          .parts = seed % 4 > 1 };
        struct engine_options engine = { .memory_bytes = seed % 2 ? 65536 : 20000,
                                         .threads = 1 + (unsigned)(seed % 4),
                                         .no_sync = true,
                                         .io = seed % 5 == 0   ? ENGINE_IO_AUTO
                                               : seed % 5 == 1 ? ENGINE_IO_DIRECT
                                                               : ENGINE_IO_BUFFERED };
        run_and_check(&options, &engine);
    }
}

TEST(large_tensors_are_cut_and_tiled)
{
    for (uint64_t seed = 1000; seed < 1000 + 12 * rounds(); seed++) {
        struct sample_options options = {
            .seed = seed, .elements_max = 300000, .tensors = 2, .encoded = seed % 4 == 0, .parts = true, .crc = seed % 3 == 0
        };
        struct engine_options engine = { .memory_bytes = seed % 2 ? 65536 : 2 << 20,
                                         .threads = 1 + (unsigned)(seed % 3),
                                         .no_sync = true,
                                         .io = seed % 3 ? ENGINE_IO_BUFFERED : ENGINE_IO_AUTO };
        run_and_check(&options, &engine);
    }
}

TEST(plain_runs_are_left_to_the_store)
{
    for (uint64_t seed = 2000; seed < 2000 + 4 * rounds(); seed++) {
        struct sample_options options = { .seed = seed, .elements_max = 2000000, .tensors = 3, .plain = true };
        struct engine_options engine = { .memory_bytes = 1 << 20, .threads = 2 };
        run_and_check(&options, &engine);
    }
}

static reshard_status run_parts(const struct sample *sample, const struct plan *plan, uint32_t count, uint32_t first,
                                struct store_object **objects, uint32_t *crcs, reshard_error *err)
{
    struct engine_options options = { .memory_bytes = 65536, .threads = 1 + first % 2, .no_sync = true };
    struct engine_source source = { .store = sample->store, .catalog = sample->source, .limits = &limits_default };
    uint64_t written = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        uint32_t *apart = calloc((size_t)sample->target->chunk_count + 1, sizeof(*apart));
        struct plan *part;
        status = plan_split(plan, (first + i) % count, count, &part, err);
        if (!status) {
            status = engine_run(part, &source, objects, apart, NULL, &options, err);
            written += part->write_bytes;
            plan_free(part);
        }
        for (uint32_t c = 0; c < sample->target->chunk_count; c++)
            crcs[c] += apart[c];
        free(apart);
    }
    assert_int_equal(written, plan->write_bytes);
    return status;
}

/* One plan, run as a whole into one target and in parts, in some order, into others. */
TEST(parts_of_a_plan_make_the_whole)
{
    for (uint64_t seed = 5000; seed < 5060; seed++) {
        reshard_error err;
        struct sample sample;
        struct plan *plan;
        struct sample_options options = { .seed = seed, .elements_max = 2000, .tensors = 4, .parts = true, .crc = true };
        sample_make(&sample, &options);
        CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
        uint64_t hash = plan_hash(plan);
        for (uint32_t count = 1; count <= 5; count++) {
            struct store_txn_options txn_options = { .is_directory = true, .overwrite = true };
            struct store_object *objects[SAMPLE_OBJECTS];
            struct store_txn *txn;
            uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
            CHECK_OK(store_txn_begin_in(sample.store, "t", &txn_options, &txn, &err));
            for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++) {
                char name[16];
                snprintf(name, sizeof(name), "o%u", i);
                CHECK_OK(store_txn_create(txn, name, sample.target->objects[i].bytes, &objects[i], &err));
            }
            CHECK_OK(run_parts(&sample, plan, count, (uint32_t)(seed % count), objects, crcs, &err));
            for (uint32_t i = 0; i < SAMPLE_OBJECTS; i++)
                store_object_close(objects[i]);
            CHECK_OK(store_txn_commit(txn, &err));
            check_target(&sample, sample.store, "t");
            sample_check_crcs(&sample, crcs);
            free(crcs);
        }
        assert_true(plan_hash(plan) == hash);
        plan_free(plan);
        sample_release(&sample);
    }
}

TEST(no_fault_ever_gives_wrong_data)
{
    for (uint64_t seed = 3000; seed < 3008; seed++) {
        reshard_error err;
        struct sample sample;
        struct plan *plan;
        bool plain = seed >= 3006;
        struct sample_options options = {
            .seed = seed, .elements_max = 3000, .tensors = 3, .parts = true, .encoded = seed % 2, .crc = true
        };
        struct engine_options engine = { .memory_bytes = plain ? 1 << 20 : 65536,
                                         .threads = 1 + (unsigned)(seed % 2),
                                         .io = seed % 3 ? ENGINE_IO_BUFFERED : ENGINE_IO_AUTO };
        if (plain)
            options = (struct sample_options){ .seed = seed, .elements_max = 2000000, .tensors = 3, .plain = true };
        sample_make(&sample, &options);
        CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
        uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
        for (int kind = FAULT_IO; kind <= FAULT_DISK_FULL; kind++) {
            bool was_hit = true;
            for (uint64_t nth = 1; was_hit && nth < 400; nth += fail_stride()) {
                struct store *fault = store_new_fault(sample.store, (enum fault_kind)kind, nth);
                reshard_status status = sample_run(&sample, plan, fault, fault, "t", &engine, false, crcs, &err);
                was_hit = store_fault_was_hit(fault);
                if (!status) {
                    check_target(&sample, sample.store, "t");
                    sample_check_crcs(&sample, crcs);
                } else {
                    assert_true(was_hit);
                    assert_true(err.message[0] != 0);
                }
                store_free(fault);
            }
        }
        free(crcs);
        plan_free(plan);
        sample_release(&sample);
    }
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing)
{
    for (uint64_t seed = 3500; seed < 3504; seed++) {
        reshard_error err;
        struct sample sample;
        struct plan *plan;
        struct sample_options options = {
            .seed = seed, .elements_max = 3000, .tensors = 3, .parts = true, .encoded = seed % 2, .crc = true
        };
        struct engine_options engine = { .memory_bytes = 65536, .threads = 1 + (unsigned)(seed % 2), .io = ENGINE_IO_BUFFERED };
        sample_make(&sample, &options);
        CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
        uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
        unsigned long nth = 0;
        reshard_status status;
        do {
            fail_malloc_at(nth += fail_stride());
            status = sample_run(&sample, plan, sample.store, sample.store, "t", &engine, seed % 4 > 1, crcs, &err);
        } while (fail_malloc_was_hit());
        assert_int_equal(status, RESHARD_OK);
        assert_true(nth > 10);
        check_target(&sample, sample.store, "t");
        sample_check_crcs(&sample, crcs);
        free(crcs);
        plan_free(plan);
        sample_release(&sample);
    }
}

struct watch {
    uint64_t calls, done, total, resumed;
    uint64_t stop_after;
};

static bool watch_progress(const struct engine_progress *progress, void *context)
{
    struct watch *watch = context;
    assert_true(progress->bytes_done >= watch->done);
    assert_true(progress->bytes_done <= progress->bytes_total);
    watch->done = progress->bytes_done;
    watch->total = progress->bytes_total;
    watch->resumed = progress->bytes_resumed;
    return ++watch->calls <= watch->stop_after;
}

TEST(an_interrupted_run_is_taken_up_again)
{
    for (uint64_t seed = 4000; seed < 4004; seed++) {
        reshard_error err;
        struct sample sample;
        struct plan *plan;
        struct sample_options options = {
            .seed = seed, .elements_max = 20000, .tensors = 4, .parts = true, .encoded = seed % 2, .crc = true
        };
        struct engine_options engine = { .memory_bytes = 65536, .threads = 1 + (unsigned)(seed % 2), .io = ENGINE_IO_BUFFERED };
        sample_make(&sample, &options);
        CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
        uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
        int failures = 0;
        for (uint64_t nth = 7; nth < 2000; nth += 11) {
            struct store *fault = store_new_fault(sample.store, FAULT_IO, nth);
            reshard_status status = sample_run(&sample, plan, fault, fault, "t", &engine, true, crcs, &err);
            store_free(fault);
            if (!status)
                break;
            failures++;
        }
        /* What a cancelled run has done is not done again. */
        struct watch watch = { .stop_after = UINT64_MAX };
        struct watch cancel = { .stop_after = 0 };
        engine.progress = watch_progress;
        engine.context = &cancel;
        CHECK_FAILS(sample_run(&sample, plan, sample.store, sample.store, "u", &engine, true, crcs, &err), RESHARD_ERR_CANCELLED);
        engine.context = &watch;
        CHECK_OK(sample_run(&sample, plan, sample.store, sample.store, "u", &engine, true, crcs, &err));
        assert_true(watch.resumed > 0);
        assert_int_equal(watch.done, watch.total);
        check_target(&sample, sample.store, "u");
        sample_check_crcs(&sample, crcs);
        engine.progress = NULL;
        CHECK_OK(sample_run(&sample, plan, sample.store, sample.store, "t", &engine, true, crcs, &err));
        assert_true(failures > 0);
        check_target(&sample, sample.store, "t");
        sample_check_crcs(&sample, crcs);
        free(crcs);
        plan_free(plan);
        sample_release(&sample);
    }
}

/* The journal of a target that was begun: read into text, or begun with text. */
static void with_journal(const struct sample *sample, const struct plan *plan, const char *name, struct buffer *text, bool is_read)
{
    struct store_txn_options options = { .is_directory = true, .resume = true, .identity = plan_hash(plan), .overwrite = true };
    struct store_txn *txn;
    reshard_error err;
    CHECK_OK(store_txn_begin_in(sample->store, name, &options, &txn, &err));
    CHECK_OK(is_read ? store_txn_journal_read(txn, text, &err) : store_txn_journal_append(txn, text->data, text->size, &err));
    store_txn_abort(txn, true);
}

/* How many bytes a run believes to be done already that begins with this journal. */
static uint64_t resumed_bytes(const struct sample *sample, const struct plan *plan, struct buffer *text, uint32_t *crcs)
{
    static unsigned number;
    char name[16];
    struct watch cancel = { .stop_after = 0 };
    struct engine_options engine = { .memory_bytes = 65536, .threads = 1, .progress = watch_progress, .context = &cancel };
    snprintf(name, sizeof(name), "j%u", number++);
    with_journal(sample, plan, name, text, false);
    sample_run(sample, plan, sample->store, sample->store, name, &engine, true, crcs, NULL);
    return cancel.resumed;
}

/* A run that was cancelled at once, and its journal. */
struct interrupted {
    struct sample sample;
    struct plan *plan;
    uint32_t *crcs;
    struct buffer text;
    uint64_t done; /* bytes that the journal says are */
};

static void interrupted_make(struct interrupted *run, uint64_t seed)
{
    reshard_error err;
    struct sample_options options = { .seed = seed, .elements_max = 20000, .tensors = 4, .parts = true, .crc = true };
    struct watch cancel = { .stop_after = 0 };
    struct engine_options engine = { .memory_bytes = 65536, .threads = 1, .progress = watch_progress, .context = &cancel };
    struct sample *sample = &run->sample;
    *run = (struct interrupted){ 0 };
    sample_make(sample, &options);
    CHECK_OK(plan_new(sample->source, sample->target, sample->recipes, sample->recipe_count, &run->plan, &err));
    run->crcs = calloc((size_t)sample->target->chunk_count + 1, sizeof(*run->crcs));
    CHECK_FAILS(sample_run(sample, run->plan, sample->store, sample->store, "u", &engine, true, run->crcs, &err), RESHARD_ERR_CANCELLED);
    with_journal(sample, run->plan, "u", &run->text, true);
    run->done = resumed_bytes(sample, run->plan, &run->text, run->crcs);
    assert_true(run->done > 0);
}

static void interrupted_release(struct interrupted *run)
{
    buffer_release(&run->text);
    free(run->crcs);
    plan_free(run->plan);
    sample_release(&run->sample);
}

/* Notes that are there twice count once; notes that are damaged, wherever, do not count. */
TEST(a_journal_is_believed_as_far_as_its_digests_hold)
{
    struct interrupted run;
    struct buffer *text = &run.text, twice = { 0 };
    interrupted_make(&run, 4100);
    assert_true(buffer_append(&twice, text->data, text->size) && buffer_append(&twice, text->data, text->size));
    assert_int_equal(resumed_bytes(&run.sample, run.plan, &twice, run.crcs), run.done);
    for (size_t i = 0; i < text->size; i += 1 + text->size / 200) {
        text->data[i] ^= 1;
        assert_true(resumed_bytes(&run.sample, run.plan, text, run.crcs) < run.done);
        text->data[i] ^= 1;
    }
    buffer_release(&twice);
    interrupted_release(&run);
}

/* A record: magic, identity, u32 payload bytes; then of each job its number, its count of checksums and, of the first, a chunk. */
enum { RECORD_SIZE_AT = 16, RECORD_JOB_AT = 20, JOB_COUNT_AT = 4, JOB_CHUNK_AT = 8 };

/* The first job in the first record that has checksums. */
static size_t record_job_with_checksums(const struct buffer *text)
{
    uint32_t size, count = 0;
    size_t at = RECORD_JOB_AT;
    memcpy(&size, text->data + RECORD_SIZE_AT, sizeof(size));
    for (; at + JOB_CHUNK_AT < RECORD_JOB_AT + (size_t)size; at += JOB_CHUNK_AT) {
        memcpy(&count, text->data + at + JOB_COUNT_AT, sizeof(count));
        if (count)
            return at;
    }
    fail_msg("no job has checksums");
    return 0;
}

/* The digest at the end of the first record, after a change. */
static void record_seal(struct buffer *text)
{
    uint32_t size;
    memcpy(&size, text->data + RECORD_SIZE_AT, sizeof(size));
    uint64_t digest = hash64(text->data, RECORD_JOB_AT + (size_t)size, 0);
    memcpy(text->data + RECORD_JOB_AT + size, &digest, sizeof(digest));
}

/* Notes of jobs and chunks that there are not, under digests that hold, are not believed, and nothing is written beyond what there is. */
TEST(a_journal_of_other_jobs_is_not_believed)
{
    static const uint32_t wrong[][2] = { { 0, UINT32_MAX }, { 0, 100000 }, { JOB_COUNT_AT, UINT32_MAX },
                                         { JOB_COUNT_AT, 100000 }, { JOB_CHUNK_AT, UINT32_MAX }, { JOB_CHUNK_AT, 100000 } };
    struct interrupted run;
    interrupted_make(&run, 4001);
    size_t job = record_job_with_checksums(&run.text);
    record_seal(&run.text);
    assert_int_equal(resumed_bytes(&run.sample, run.plan, &run.text, run.crcs), run.done);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint32_t right;
        uint8_t *at = run.text.data + job + wrong[i][0];
        memcpy(&right, at, sizeof(right));
        memcpy(at, &wrong[i][1], sizeof(right));
        record_seal(&run.text);
        if (resumed_bytes(&run.sample, run.plan, &run.text, run.crcs) >= run.done)
            fail_msg("%u at %u is believed", wrong[i][1], wrong[i][0]);
        memcpy(at, &right, sizeof(right));
    }
    interrupted_release(&run);
}

TEST(progress_reaches_its_total_and_can_cancel)
{
    reshard_error err;
    struct sample sample;
    struct plan *plan;
    struct sample_options options = { .seed = 5000, .elements_max = 20000, .tensors = 6 };
    struct watch watch = { .stop_after = UINT64_MAX };
    struct engine_options engine = { .memory_bytes = 65536, .threads = 2, .progress = watch_progress, .context = &watch };
    sample_make(&sample, &options);
    CHECK_OK(plan_new(sample.source, sample.target, sample.recipes, sample.recipe_count, &plan, &err));
    uint32_t *crcs = calloc((size_t)sample.target->chunk_count + 1, sizeof(*crcs));
    CHECK_OK(sample_run(&sample, plan, sample.store, sample.store, "t", &engine, false, crcs, &err));
    assert_int_equal(watch.done, plan->write_bytes);
    assert_int_equal(watch.total, plan->write_bytes);
    watch = (struct watch){ .stop_after = 0 };
    CHECK_FAILS(sample_run(&sample, plan, sample.store, sample.store, "v", &engine, false, crcs, &err), RESHARD_ERR_CANCELLED);
    assert_false(store_exists(sample.store, "v/o0", NULL, NULL));
    free(crcs);
    plan_free(plan);
    sample_release(&sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_becomes_any_other),
        cmocka_unit_test(large_tensors_are_cut_and_tiled),
        cmocka_unit_test(plain_runs_are_left_to_the_store),
        cmocka_unit_test(parts_of_a_plan_make_the_whole),
        cmocka_unit_test(no_fault_ever_gives_wrong_data),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(an_interrupted_run_is_taken_up_again),
        cmocka_unit_test(a_journal_is_believed_as_far_as_its_digests_hold),
        cmocka_unit_test(a_journal_of_other_jobs_is_not_believed),
        cmocka_unit_test(progress_reaches_its_total_and_can_cancel),
    };
    return cmocka_run_group_tests_name("engine_run", tests, NULL, NULL);
}
