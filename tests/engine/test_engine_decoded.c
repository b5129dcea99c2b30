/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that are decoded once for all workers: what is kept, what makes room, and who waits for what. A wait that does not end is red. */
#include "check.h"
#include "fail_malloc.h"

#include "engine/engine_decoded.h"

#include <time.h>
#include <unistd.h>

#define SLOTS 1024
#define BYTES 16 /* of each chunk but the last, which has no bytes of its own */
#define NONE UINT32_MAX

static reshard_error err;

/* What is read, with a gate in front of one chunk. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t closed;  /* the chunk that nobody can read now */
    uint32_t failing; /* the one whose reading fails */
    unsigned waiting, reads;
} gate = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static struct store *store;
static struct catalog *catalog;
static struct engine_source source;
static struct origins origins;
static struct decoded_chunks decoded;
static uint32_t chunk_count;

static reshard_status read_stored(void *context, uint64_t offset, void *out, size_t size, reshard_error *error)
{
    const uint32_t chunk = (uint32_t)(offset / BYTES);
    (void)context;
    pthread_mutex_lock(&gate.lock);
    gate.reads++;
    gate.waiting++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.closed == chunk)
        pthread_cond_wait(&gate.changed, &gate.lock);
    gate.waiting--;
    const bool fails = gate.failing == chunk;
    pthread_mutex_unlock(&gate.lock);
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = (uint8_t)((offset + i) * 7 + (offset + i) / 251);
    return fails ? error_set(error, RESHARD_ERR_IO, "cannot read") : RESHARD_OK;
}

static void gate_set(uint32_t closed, uint32_t failing)
{
    pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    gate.failing = failing;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

/* Until somebody waits at the gate. */
static void gate_await(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.waiting)
        pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

static void start(uint32_t count, uint64_t bytes_max, unsigned scratches)
{
    static const struct chain_step step = { .kind = CHAIN_SHUFFLE, .element_bytes = 2 };
    static const struct chain chain = { &step, 1, BYTES, NULL }, literal = { &step, 0, BYTES, (const uint8_t *)"literally, so be" };
    const struct store_region region = { .bytes = (uint64_t)count * BYTES, .read = read_stored };
    const struct engine_budget budget = { .decoded_bytes = bytes_max, .chunk_bytes = BYTES, .decodes_max = scratches };
    const int64_t shape[1] = { (int64_t)(count + 1) * BYTES }, extent[1] = { BYTES };
    uint32_t object, tensor;
    catalog = catalog_new("test");
    CHECK_OK(store_new_over(&region, 1, &store, &err));
    CHECK_OK(catalog_add_object(catalog, STR("shard 0"), region.bytes, &object, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_U8, 1, shape, &tensor, &err));
    for (uint32_t i = 0; i <= count; i++) {
        const int64_t begin[1] = { (int64_t)i * BYTES };
        struct catalog_chunk *chunk;
        CHECK_OK(catalog_add_chunk(catalog, tensor, begin, extent, object, 0, BYTES, &chunk, &err));
        struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
        assert_non_null(layout);
        layout->chain = i < count ? &chain : &literal;
        layout->coded_offset = (uint64_t)i * BYTES;
        layout->coded_bytes = i < count ? BYTES : 0;
    }
    chunk_count = count;
    gate_set(NONE, NONE);
    gate.reads = 0;
    source = (struct engine_source){ .store = store, .catalog = catalog, .limits = &limits_default };
    CHECK_OK(origins_init(&origins, &source, ENGINE_IO_AUTO, &err));
    CHECK_OK(decoded_init(&decoded, &origins, &budget, &err));
    alarm(60);
}

static void stop(void)
{
    alarm(0);
    decoded_release(&decoded);
    origins_release(&origins);
    catalog_free(catalog);
    store_free(store);
}

static void check_bytes(uint32_t chunk, const uint8_t *bytes)
{
    for (uint32_t i = 0; i < BYTES; i++) {
        const uint32_t at = chunk * BYTES + i % 2 * (BYTES / 2) + i / 2;
        assert_int_equal(bytes[i], (uint8_t)(at * 7 + at / 251));
    }
}

/* Takes the chunk; what had to be read must be so many bytes. */
static const uint8_t *take(uint32_t chunk, uint64_t expected_read)
{
    const uint8_t *bytes;
    uint64_t read = 9;
    CHECK_OK(decoded_take(&decoded, chunk, &bytes, &read, &err));
    assert_int_equal(read, expected_read);
    check_bytes(chunk, bytes);
    return bytes;
}

static void take_and_give(uint32_t chunk, uint64_t expected_read, bool is_spent)
{
    take(chunk, expected_read);
    decoded_give(&decoded, chunk, is_spent);
}

/* ---- one worker ---- */

TEST(what_there_is_room_for_is_decoded_once)
{
    start(4, 2 * BYTES, 1);
    const uint8_t *first = take(0, BYTES);
    assert_ptr_equal(take(0, 0), first);
    decoded_give(&decoded, 0, false);
    decoded_give(&decoded, 0, false);
    take_and_give(1, BYTES, false);
    take_and_give(0, 0, false);
    take_and_give(2, BYTES, false); /* in place of 1, which was used before 0 */
    take_and_give(0, 0, false);
    take_and_give(1, BYTES, false);
    take_and_give(0, 0, true);
    take_and_give(3, BYTES, false); /* in place of 0, which is spent, though 1 is older */
    take_and_give(1, 0, false);
    assert_int_equal(decoded.bytes, 2 * BYTES);
    stop();
}

TEST(of_what_is_spent_the_last_one_used_gives_way)
{
    start(5, 2 * BYTES, 1);
    take_and_give(0, BYTES, true);
    take_and_give(1, BYTES, false); /* where 0 was */
    take_and_give(2, BYTES, false);
    take_and_give(1, 0, true);
    take_and_give(2, 0, true);
    take_and_give(3, BYTES, false);
    take_and_give(1, 0, false);
    stop();
    start(2, 2 * BYTES, 1);
    const uint8_t *bytes = take(0, BYTES);
    take(0, 0);
    decoded_give(&decoded, 0, true); /* the other one still reads it */
    take_and_give(1, BYTES, false);
    check_bytes(0, bytes);
    decoded_give(&decoded, 0, true);
    stop();
}

TEST(large_chunks_take_the_room_of_several)
{
    static const struct chain_step step = { .kind = CHAIN_SHUFFLE, .element_bytes = 2 };
    static const struct chain wide = { &step, 1, 4 * BYTES, NULL };
    const uint8_t *bytes;
    uint64_t read;
    start(8, 5 * BYTES, 1);
    catalog->layouts[4].chain = &wide;
    catalog->layouts[4].coded_bytes = 4 * BYTES;
    for (uint32_t i = 0; i < 4; i++)
        take_and_give(i, BYTES, false);
    CHECK_OK(decoded_take(&decoded, 4, &bytes, &read, &err));
    decoded_give(&decoded, 4, false);
    assert_int_equal(read, 4 * BYTES);
    assert_int_equal(decoded.bytes, 5 * BYTES);
    take_and_give(3, 0, false);
    take_and_give(0, BYTES, false); /* the large one goes */
    assert_int_equal(decoded.bytes, 2 * BYTES);
    take_and_give(3, 0, false);
    stop();
    start(1, BYTES / 2, 1); /* one is decoded whatever it takes */
    take_and_give(0, BYTES, false);
    stop();
}

/* Chunks whose numbers are alike. */
TEST(each_is_found_again_when_another_has_gone)
{
    static const uint32_t alike[] = { 5, 5 + SLOTS, 5 + 2 * SLOTS };
    for (int gone = 0; gone < 3; gone++) {
        start(3 * SLOTS, 3 * BYTES, 1);
        for (int i = 0; i < 3; i++)
            take_and_give(alike[i], BYTES, false);
        for (int i = 0; i < 3; i++)
            if (i != gone)
                take_and_give(alike[i], 0, false);
        take_and_give(7, BYTES, false);
        for (int i = 0; i < 3; i++)
            if (i != gone)
                take_and_give(alike[i], 0, false);
        take_and_give(alike[gone], BYTES, false);
        stop();
    }
}

TEST(a_literal_chunk_takes_no_room)
{
    const uint8_t *bytes;
    uint8_t copy[BYTES];
    uint64_t read = 9;
    start(1, BYTES, 1);
    CHECK_OK(decoded_take(&decoded, 1, &bytes, &read, &err));
    assert_memory_equal(bytes, "literally, so be", BYTES);
    assert_int_equal(read, 0);
    CHECK_OK(decoded_copy(&decoded, 1, copy, &read, &err));
    assert_memory_equal(copy, bytes, BYTES);
    assert_true(decoded_hold(&decoded, 1));
    decoded_unhold(&decoded, 1);
    assert_false(decoded_load_ahead(&decoded, 1, &read) || decoded_is_loading(&decoded, 1));
    decoded_give(&decoded, 1, false);
    assert_int_equal(gate.reads, 0);
    assert_int_equal(decoded.bytes, 0);
    stop();
}

TEST(a_copy_takes_what_is_at_hand_and_keeps_nothing)
{
    uint8_t copy[BYTES];
    uint64_t read = 9;
    start(3, BYTES, 1);
    take_and_give(0, BYTES, false);
    CHECK_OK(decoded_copy(&decoded, 1, copy, &read, &err));
    assert_int_equal(read, BYTES);
    check_bytes(1, copy);
    CHECK_OK(decoded_copy(&decoded, 0, copy, &read, &err));
    assert_int_equal(read, 0);
    check_bytes(0, copy);
    assert_int_equal(gate.reads, 2);
    take_and_give(2, BYTES, false); /* nobody uses 0 any more */
    assert_int_equal(decoded.bytes, BYTES);
    stop();
}

TEST(what_is_held_leaves_room_for_the_largest_chunk)
{
    start(5, 3 * BYTES, 1);
    take(0, BYTES);
    take(1, BYTES);
    take(2, BYTES);
    assert_true(decoded_hold(&decoded, 0));
    assert_true(decoded_hold(&decoded, 1));
    assert_false(decoded_hold(&decoded, 2));
    assert_false(decoded_hold(&decoded, 3)); /* nobody has it */
    decoded_unhold(&decoded, 0);
    assert_true(decoded_hold(&decoded, 2));
    decoded_unhold(&decoded, 1);
    decoded_unhold(&decoded, 2);
    assert_int_equal(decoded.bytes_held, 0);
    for (uint32_t i = 0; i < 3; i++)
        decoded_give(&decoded, i, false);
    stop();
}

TEST(what_is_loaded_ahead_makes_nobody_give_way)
{
    uint64_t read = 9;
    start(4, 2 * BYTES, 1);
    assert_true(decoded_load_ahead(&decoded, 0, &read));
    assert_int_equal(read, BYTES);
    assert_false(decoded_load_ahead(&decoded, 0, &read)); /* it is there */
    assert_int_equal(read, 0);
    assert_true(decoded_load_ahead(&decoded, 1, &read));
    assert_false(decoded_load_ahead(&decoded, 2, &read)); /* it is full */
    take_and_give(0, 0, false);
    take_and_give(1, 0, true);
    assert_true(decoded_load_ahead(&decoded, 2, &read)); /* in place of what is spent */
    take_and_give(0, 0, false);
    take_and_give(2, 0, true);
    gate_set(NONE, 3);
    assert_false(decoded_load_ahead(&decoded, 3, &read)); /* is left to those that want it */
    gate_set(NONE, NONE);
    take_and_give(3, BYTES, false);
    stop();
}

TEST(a_chunk_that_cannot_be_decoded_is_tried_again)
{
    const uint8_t *bytes;
    uint8_t copy[BYTES];
    uint64_t read;
    start(2, BYTES, 1);
    gate_set(NONE, 1);
    CHECK_FAILS(decoded_take(&decoded, 1, &bytes, &read, &err), RESHARD_ERR_IO);
    CHECK_FAILS(decoded_copy(&decoded, 1, copy, &read, &err), RESHARD_ERR_IO);
    take_and_give(0, BYTES, false);
    CHECK_FAILS(decoded_take(&decoded, 1, &bytes, &read, &err), RESHARD_ERR_IO);
    gate_set(NONE, NONE);
    take_and_give(1, BYTES, false);
    take_and_give(1, 0, false);
    stop();
}

TEST(a_chunk_that_lies_beyond_its_file_is_refused)
{
    const uint8_t *bytes;
    uint64_t read;
    start(2, BYTES, 1);
    catalog->layouts[1].coded_offset++;
    CHECK_FAILS(decoded_take(&decoded, 1, &bytes, &read, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(err.offset, BYTES + 1);
    assert_non_null(strstr(err.message, "file of 32 bytes ends inside the 16 bytes at 17"));
    assert_int_equal(gate.reads, 0);
    stop();
}

/* More chunks than there are slots: the oldest give way though there is memory. */
TEST(slots_are_used_again)
{
    enum { COUNT = 2 * SLOTS + 50 };
    start(COUNT, UINT64_C(1) << 30, 1);
    for (uint32_t i = 0; i < COUNT; i++)
        take_and_give(i, BYTES, false);
    for (uint32_t i = COUNT; i-- > COUNT - SLOTS;)
        take_and_give(i, 0, false);
    take_and_give(0, BYTES, false);
    assert_int_equal(decoded.slot_count, SLOTS);
    assert_int_equal(decoded.bytes, SLOTS * BYTES);
    stop();
}

TEST(want_of_memory_is_an_error)
{
    bool is_hit = true;
    unsigned failed = 0;
    start(2, 2 * BYTES, 1);
    decoded_release(&decoded);
    for (unsigned long nth = 1; is_hit; nth++) {
        const struct engine_budget budget = { .decoded_bytes = 2 * BYTES, .chunk_bytes = BYTES };
        const uint8_t *bytes;
        uint8_t copy[BYTES];
        uint64_t read;
        fail_malloc_at(nth);
        reshard_status status = decoded_init(&decoded, &origins, &budget, &err);
        if (!status)
            status = decoded_take(&decoded, 0, &bytes, &read, &err);
        if (!status)
            decoded_give(&decoded, 0, false);
        if (!status)
            status = decoded_copy(&decoded, 1, copy, &read, &err);
        is_hit = fail_malloc_was_hit();
        assert_int_equal(status, is_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        failed += is_hit;
        decoded_release(&decoded);
        decoded_release(&decoded); /* once more is fine */
    }
    assert_true(failed >= 4);
    stop();
}

/* ---- several ---- */

struct helper {
    pthread_t thread;
    uint32_t chunk;
    bool copies;
    const uint8_t *bytes;
    uint8_t copy[BYTES];
    uint64_t read;
    reshard_status status;
    reshard_error err;
};

static void *helper_run(void *context)
{
    struct helper *helper = context;
    helper->status = helper->copies ? decoded_copy(&decoded, helper->chunk, helper->copy, &helper->read, &helper->err)
                                    : decoded_take(&decoded, helper->chunk, &helper->bytes, &helper->read, &helper->err);
    return NULL;
}

/* Begins, and has had time enough to come to where it waits. */
static void helper_start(struct helper *helper, uint32_t chunk, bool copies)
{
    *helper = (struct helper){ .chunk = chunk, .copies = copies };
    assert_int_equal(pthread_create(&helper->thread, NULL, helper_run, helper), 0);
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
}

static void helper_end(struct helper *helper, reshard_status status, uint64_t read)
{
    pthread_join(helper->thread, NULL);
    assert_int_equal(helper->status, status);
    if (status)
        return;
    assert_int_equal(helper->read, read);
    check_bytes(helper->chunk, helper->copies ? helper->copy : helper->bytes);
    if (!helper->copies)
        decoded_give(&decoded, helper->chunk, false);
}

TEST(who_wants_what_another_decodes_waits_for_it)
{
    for (int copies = 0; copies < 2; copies++) {
        struct helper first, second;
        uint64_t read;
        start(2, BYTES, 2);
        gate_set(0, NONE);
        helper_start(&first, 0, false);
        gate_await();
        assert_true(decoded_is_loading(&decoded, 0));
        assert_false(decoded_is_loading(&decoded, 1));
        assert_false(decoded_load_ahead(&decoded, 0, &read));
        helper_start(&second, 0, copies);
        gate_set(NONE, NONE);
        helper_end(&first, RESHARD_OK, BYTES);
        helper_end(&second, RESHARD_OK, 0);
        assert_int_equal(gate.reads, 1);
        assert_false(decoded_is_loading(&decoded, 0));
        stop();
    }
}

TEST(who_waited_for_what_failed_tries_for_himself)
{
    struct helper first, second;
    start(2, BYTES, 1);
    gate_set(0, 0);
    helper_start(&first, 0, false);
    gate_await();
    helper_start(&second, 0, false);
    gate_set(NONE, 0);
    helper_end(&first, RESHARD_ERR_IO, 0);
    helper_end(&second, RESHARD_ERR_IO, 0);
    assert_int_equal(gate.reads, 2);
    gate_set(NONE, NONE);
    take_and_give(0, BYTES, false);
    stop();
}

/* Both who decodes into memory of the chunks and who decodes into his own has the only scratch. */
TEST(who_wants_a_scratch_waits_until_one_is_given_back)
{
    for (int copies = 0; copies < 4; copies++) {
        struct helper first, second;
        uint64_t read;
        start(3, 3 * BYTES, 1);
        gate_set(0, copies & 1 ? 0 : NONE);
        helper_start(&first, 0, copies & 1);
        gate_await();
        helper_start(&second, 1, copies >> 1);
        assert_false(decoded_load_ahead(&decoded, 2, &read)); /* waits for nobody */
        gate_set(NONE, gate.failing);
        helper_end(&first, copies & 1 ? RESHARD_ERR_IO : RESHARD_OK, BYTES);
        helper_end(&second, RESHARD_OK, BYTES);
        stop();
    }
}

TEST(who_wants_room_waits_until_a_chunk_is_given_back)
{
    for (int uses = 1; uses <= 2; uses++) {
        struct helper second;
        start(2, BYTES, 2);
        take(0, BYTES);
        if (uses == 2)
            take(0, 0);
        helper_start(&second, 1, false);
        assert_int_equal(gate.reads, 1);
        if (uses == 2)
            decoded_give(&decoded, 0, false);
        check_bytes(0, take(0, 0)); /* still there */
        decoded_give(&decoded, 0, false);
        decoded_give(&decoded, 0, false);
        helper_end(&second, RESHARD_OK, BYTES);
        assert_int_equal(decoded.bytes, BYTES);
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_there_is_room_for_is_decoded_once),
        cmocka_unit_test(of_what_is_spent_the_last_one_used_gives_way),
        cmocka_unit_test(large_chunks_take_the_room_of_several),
        cmocka_unit_test(each_is_found_again_when_another_has_gone),
        cmocka_unit_test(a_literal_chunk_takes_no_room),
        cmocka_unit_test(a_copy_takes_what_is_at_hand_and_keeps_nothing),
        cmocka_unit_test(what_is_held_leaves_room_for_the_largest_chunk),
        cmocka_unit_test(what_is_loaded_ahead_makes_nobody_give_way),
        cmocka_unit_test(a_chunk_that_cannot_be_decoded_is_tried_again),
        cmocka_unit_test(a_chunk_that_lies_beyond_its_file_is_refused),
        cmocka_unit_test(slots_are_used_again),
        cmocka_unit_test(want_of_memory_is_an_error),
        cmocka_unit_test(who_wants_what_another_decodes_waits_for_it),
        cmocka_unit_test(who_waited_for_what_failed_tries_for_himself),
        cmocka_unit_test(who_wants_a_scratch_waits_until_one_is_given_back),
        cmocka_unit_test(who_wants_room_waits_until_a_chunk_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
