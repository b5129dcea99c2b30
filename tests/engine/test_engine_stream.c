/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "check.h"
#include "sample.h"

#define TENSORS_MAX 4096

/* What a sink has seen of each tensor, by catalog index. */
struct seen {
    struct buffer bytes[TENSORS_MAX];
    bool is_last[TENSORS_MAX];
    uint32_t order[TENSORS_MAX], order_count; /* of the ends */
    size_t window_max;
    uint64_t total;
    bool keep_bytes;
    uint64_t fail_after; /* calls; 0 never */
    uint64_t calls;
    pthread_mutex_t lock;
};

static struct seen *seen_new(void)
{
    struct seen *seen = calloc(1, sizeof(*seen));
    pthread_mutex_init(&seen->lock, NULL);
    seen->keep_bytes = true;
    return seen;
}

static void seen_free(struct seen *seen)
{
    for (uint32_t i = 0; i < TENSORS_MAX; i++)
        buffer_release(&seen->bytes[i]);
    pthread_mutex_destroy(&seen->lock);
    free(seen);
}

/* Windows of a tensor follow each other without gap; none comes after the last one. */
static reshard_status see(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last, reshard_error *err)
{
    struct seen *seen = context;
    reshard_status status = RESHARD_OK;
    pthread_mutex_lock(&seen->lock);
    if (seen->is_last[tensor] || (seen->keep_bytes && offset != seen->bytes[tensor].size))
        status = error_set(err, RESHARD_ERR_USAGE, "window at %llu of tensor %u", (unsigned long long)offset, tensor);
    if (seen->keep_bytes)
        buffer_append(&seen->bytes[tensor], bytes, size);
    seen->is_last[tensor] = is_last;
    if (is_last)
        seen->order[seen->order_count++] = tensor;
    seen->window_max = size > seen->window_max ? size : seen->window_max;
    seen->total += size;
    if (++seen->calls == seen->fail_after)
        status = error_set(err, RESHARD_ERR_CANCELLED, "enough");
    pthread_mutex_unlock(&seen->lock);
    return status;
}

static struct sample_options options_of(uint64_t seed)
{
    return (struct sample_options){
        .seed = seed, .elements_max = seed % 7 ? 400 : 30000, .tensors = 1 + (int)(seed % 7), .encoded = seed % 3 == 0
    };
}

static struct engine_options engine_options_of(uint64_t seed)
{
    return (struct engine_options){ .memory_bytes = seed % 2 ? 65536 : 20000,
                                    .threads = 1 + (unsigned)(seed % 4),
                                    .io = seed % 5 == 0   ? ENGINE_IO_BUFFERED
                                          : seed % 5 == 1 ? ENGINE_IO_DIRECT
                                                          : ENGINE_IO_AUTO };
}

static void check_bytes(const struct buffer *found, const void *expected, size_t size, uint64_t seed)
{
    if (found->size != size || (size && memcmp(found->data, expected, size) != 0))
        fail_msg("seed %llu: %zu bytes differ from the expected %zu", (unsigned long long)seed, found->size, size);
}

TEST(tensors_arrive_whole_and_in_order)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        reshard_error err;
        struct sample sample;
        struct sample_options options = options_of(seed);
        struct engine_options engine = engine_options_of(seed);
        uint32_t tensors[SAMPLE_TENSORS_MAX];
        sample_make(&sample, &options);
        struct engine_source source = { sample.store, sample.source, &limits_default, NULL };
        struct seen *seen = seen_new();
        uint32_t count = sample.source->tensor_count;
        for (uint32_t i = 0; i < count; i++)
            tensors[i] = count - 1 - i;
        CHECK_OK(engine_stream(&source, tensors, count, NULL, NULL, &engine, see, seen, &err));
        assert_int_equal(seen->order_count, count);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(seen->is_last[i]);
            if (engine.threads == 1)
                assert_int_equal(seen->order[i], tensors[i]);
            check_bytes(&seen->bytes[i], sample.values[i], sample_source_bytes(&sample, i), seed);
        }
        seen_free(seen);
        sample_release(&sample);
    }
}

TEST(any_box_can_be_read)
{
    for (uint64_t seed = 500; seed < 700; seed++) {
        reshard_error err;
        struct sample sample;
        struct sample_options options = options_of(seed);
        struct engine_options engine = engine_options_of(seed);
        sample_make(&sample, &options);
        struct engine_source source = { sample.store, sample.source, &limits_default, NULL };
        for (uint32_t t = 0; t < sample.source->tensor_count; t++) {
            const struct catalog_tensor *tensor = &sample.source->tensors[t];
            const int64_t *shape = catalog_vector_at(sample.source, tensor->shape);
            int64_t start[RANK_MAX] = { 0 }, extent[RANK_MAX] = { 0 };
            uint64_t random = seed;
            for (int axis = 0; axis < tensor->rank; axis++) {
                start[axis] = (int64_t)(test_random(&random) % (uint64_t)(shape[axis] + 1));
                extent[axis] = (int64_t)(test_random(&random) % (uint64_t)(shape[axis] - start[axis] + 1));
            }
            struct seen *seen = seen_new();
            struct buffer expected = { 0 };
            sample_source_box(&sample, t, start, extent, &expected);
            CHECK_OK(engine_stream(&source, &t, 1, start, extent, &engine, see, seen, &err));
            assert_true(seen->is_last[t]);
            check_bytes(&seen->bytes[t], expected.data, expected.size, seed);
            buffer_release(&expected);
            seen_free(seen);
        }
        sample_release(&sample);
    }
}

TEST(a_chunk_arrives_in_its_own_order_also_if_it_is_a_replica)
{
    for (uint64_t seed = 800; seed < 900; seed++) {
        reshard_error err;
        struct sample sample;
        struct sample_options options = options_of(seed);
        struct engine_options engine = engine_options_of(seed);
        sample_make(&sample, &options);
        struct engine_source source = { sample.store, sample.source, &limits_default, NULL };
        for (uint32_t c = 0; c < sample.source->chunk_count; c++) {
            const struct catalog_chunk *chunk = &sample.source->chunks[c];
            const struct chunk_layout *layout = catalog_layout_of(sample.source, chunk);
            size_t element = dtype_element_bytes(sample.source->tensors[chunk->tensor].dtype);
            struct seen *seen = seen_new();
            struct buffer expected = { 0 };
            sample_source_box(&sample, chunk->tensor, catalog_vector_at(sample.source, chunk->start),
                              catalog_vector_at(sample.source, chunk->extent), &expected);
            bool is_run = layout && layout->flat_count >= 0;
            CHECK_OK(engine_stream_chunk(&source, c, &engine, see, seen, &err));
            check_bytes(&seen->bytes[chunk->tensor], expected.data + (is_run ? (size_t)layout->flat_begin * element : 0),
                        is_run ? (size_t)layout->flat_count * element : expected.size, seed);
            buffer_release(&expected);
            seen_free(seen);
        }
        sample_release(&sample);
    }
}

TEST(what_the_sink_says_stops_the_stream)
{
    reshard_error err;
    struct sample sample;
    struct sample_options options = { .seed = 77, .elements_max = 30000, .tensors = 6 };
    struct engine_options engine = { .memory_bytes = 65536, .threads = 3 };
    uint32_t tensors[SAMPLE_TENSORS_MAX] = { 0, 1, 2, 3, 4, 5 };
    sample_make(&sample, &options);
    struct engine_source source = { sample.store, sample.source, &limits_default, NULL };
    for (uint64_t after = 1; after < 6; after++) {
        struct seen *seen = seen_new();
        seen->fail_after = after;
        CHECK_FAILS(engine_stream(&source, tensors, 6, NULL, NULL, &engine, see, seen, &err), RESHARD_ERR_CANCELLED);
        assert_string_equal(err.message, "enough");
        seen_free(seen);
    }
    sample_release(&sample);
}

/* A store with one object, and a catalog to add tensors to. */
static struct store *store_with(const void *bytes, size_t size, struct catalog **catalog)
{
    reshard_error err;
    struct store *store = store_new_memory();
    struct store_txn *txn;
    struct store_object *object;
    struct store_txn_options options = { 0 };
    uint32_t index;
    CHECK_OK(store_txn_begin_in(store, "o", &options, &txn, &err));
    CHECK_OK(store_txn_create(txn, "", size, &object, &err));
    CHECK_OK(store_write_at(object, 0, bytes, size, &err));
    store_object_close(object);
    CHECK_OK(store_txn_commit(txn, &err));
    *catalog = catalog_new("test");
    CHECK_OK(catalog_add_object(*catalog, STR("o"), size, &index, &err));
    return store;
}

TEST(an_expanded_tensor_streams_in_bounded_memory)
{
    reshard_error err;
    uint8_t bytes[1024];
    struct catalog *catalog;
    struct catalog_chunk *chunk;
    const int64_t shape[] = { 1 << 18, 1024 }, strides[] = { 0, 1 };
    uint32_t tensor;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    struct store *store = store_with(bytes, sizeof(bytes), &catalog);
    CHECK_OK(catalog_add_tensor(catalog, STR("x"), DTYPE_U8, 2, shape, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, 0, 0, sizeof(bytes), &chunk, &err));
    uint32_t vector = catalog_vector(catalog, strides, 2);
    catalog_chunk_layout(catalog, chunk)->strides = vector;
    CHECK_OK(catalog_seal(catalog, false, &err));
    struct seen *seen = seen_new();
    seen->keep_bytes = false;
    struct engine_options engine = { .memory_bytes = 1 << 20, .threads = 2, .io = ENGINE_IO_BUFFERED };
    struct engine_source source = { store, catalog, &limits_default, NULL };
    CHECK_OK(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err));
    assert_int_equal(seen->total, UINT64_C(1) << 28);
    assert_true(seen->window_max <= 1 << 20);
    seen_free(seen);
    catalog_free(catalog);
    store_free(store);
}

TEST(packed_elements_move_in_whole_bytes)
{
    reshard_error err;
    uint8_t bytes[60000];
    struct catalog *catalog;
    const int64_t shape[] = { 300, 400 }, starts[2][2] = { { 0, 0 }, { 101, 0 } }, extents[2][2] = { { 101, 400 }, { 199, 400 } };
    const int64_t odd_start[] = { 0, 1 }, odd_extent[] = { 300, 2 }, rows_start[] = { 7, 0 }, rows_extent[] = { 200, 400 };
    uint32_t tensor;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 31 >> 3);
    struct store *store = store_with(bytes, sizeof(bytes), &catalog);
    CHECK_OK(catalog_add_tensor(catalog, STR("x"), DTYPE_F4, 2, shape, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, starts[0], extents[0], 0, 0, 20200, NULL, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, starts[1], extents[1], 0, 20200, 39800, NULL, &err));
    CHECK_OK(catalog_seal(catalog, false, &err));
    struct engine_source source = { store, catalog, &limits_default, NULL };
    struct engine_options engine = { .memory_bytes = 20000, .threads = 2, .io = ENGINE_IO_BUFFERED };
    struct seen *seen = seen_new();
    CHECK_OK(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err));
    check_bytes(&seen->bytes[0], bytes, sizeof(bytes), 0);
    seen_free(seen);
    seen = seen_new();
    CHECK_OK(engine_stream(&source, &tensor, 1, rows_start, rows_extent, &engine, see, seen, &err));
    check_bytes(&seen->bytes[0], bytes + 1400, 40000, 0);
    CHECK_FAILS(engine_stream(&source, &tensor, 1, odd_start, odd_extent, &engine, see, seen, &err), RESHARD_ERR_UNSUPPORTED);
    seen_free(seen);
    catalog_free(catalog);
    store_free(store);
}

TEST(many_tiny_tensors_share_reads)
{
    reshard_error err;
    static uint8_t bytes[TENSORS_MAX * 24];
    static uint32_t tensors[TENSORS_MAX];
    struct catalog *catalog;
    const int64_t shape[] = { 5 };
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 131 >> 2);
    struct store *store = store_with(bytes, sizeof(bytes), &catalog);
    for (uint32_t i = 0; i < TENSORS_MAX; i++) {
        char key[16];
        snprintf(key, sizeof(key), "t%u", i);
        CHECK_OK(catalog_add_tensor(catalog, str_of(key), DTYPE_F32, 1, shape, &tensors[i], &err));
        CHECK_OK(catalog_add_chunk(catalog, tensors[i], NULL, NULL, 0, (uint64_t)i * 24 + 3, 20, NULL, &err));
    }
    CHECK_OK(catalog_seal(catalog, false, &err));
    /* Every read is counted: the fault never comes, its number says how many calls there are at most. */
    struct store *counting = store_new_fault(store, FAULT_SHORT_READ, 12);
    struct engine_source source = { counting, catalog, &limits_default, NULL };
    struct engine_options engine = { .io = ENGINE_IO_BUFFERED };
    struct seen *seen = seen_new();
    CHECK_OK(engine_stream(&source, tensors, TENSORS_MAX, NULL, NULL, &engine, see, seen, &err));
    assert_false(store_fault_was_hit(counting));
    for (uint32_t i = 0; i < TENSORS_MAX; i++)
        check_bytes(&seen->bytes[i], bytes + i * 24 + 3, 20, i);
    seen_free(seen);
    store_free(counting);
    catalog_free(catalog);
    store_free(store);
}

TEST(strides_that_leave_the_chunk_are_an_error)
{
    reshard_error err;
    uint8_t bytes[100] = { 0 };
    struct catalog *catalog;
    struct catalog_chunk *chunk;
    const int64_t shape[] = { 4, 4 };
    const int64_t bad[][2] = { { 30, 1 }, { INT64_MAX / 2, 1 }, { -1, 1 }, { INT64_MAX, INT64_MAX } };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint32_t tensor;
        struct store *store = store_with(bytes, sizeof(bytes), &catalog);
        CHECK_OK(catalog_add_tensor(catalog, STR("x"), DTYPE_U8, 2, shape, &tensor, &err));
        CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, 0, 10, 90, &chunk, &err));
        uint32_t vector = catalog_vector(catalog, bad[i], 2);
        catalog_chunk_layout(catalog, chunk)->strides = vector;
        CHECK_OK(catalog_seal(catalog, false, &err));
        struct engine_source source = { store, catalog, &limits_default, NULL };
        struct engine_options engine = { .memory_bytes = 20000, .threads = 1 };
        struct seen *seen = seen_new();
        CHECK_FAILS(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "'x'"));
        seen_free(seen);
        catalog_free(catalog);
        store_free(store);
    }
}

/* The limits of the checkpoint, which a user may have raised or lowered, hold for the catalog of what is streamed as well. */
TEST(limits_of_the_source_hold_for_the_stream)
{
    reshard_error err;
    uint8_t bytes[16] = { 0 };
    struct catalog *catalog;
    const int64_t shape[] = { 16 }, start[] = { 0 }, extent[] = { 8 };
    uint32_t tensor;
    struct store *store = store_with(bytes, sizeof(bytes), &catalog);
    CHECK_OK(catalog_add_tensor(catalog, STR("x"), DTYPE_U8, 1, shape, &tensor, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, 0, 0, sizeof(bytes), NULL, &err));
    CHECK_OK(catalog_seal(catalog, false, &err));
    struct engine_source source = { store, catalog, &limits_default, NULL };
    struct engine_options engine = { .memory_bytes = 20000, .threads = 1, .io = ENGINE_IO_BUFFERED };
    struct seen *seen = seen_new();
    catalog->limits.tensors = 0;
    CHECK_FAILS(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "tensors"));
    CHECK_FAILS(engine_stream(&source, &tensor, 1, start, extent, &engine, see, seen, &err), RESHARD_ERR_LIMIT);
    CHECK_FAILS(engine_stream_chunk(&source, 0, &engine, see, seen, &err), RESHARD_ERR_LIMIT);
    catalog->limits.tensors = 1;
    CHECK_OK(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err));
    seen_free(seen);
    catalog_free(catalog);
    store_free(store);
}

static bool see_memory(const struct engine_progress *progress, void *context)
{
    *(uint64_t *)context = progress->memory_bytes;
    return true;
}

/* A caller may stream thousands of small chunks one by one. */
TEST(little_takes_little_memory)
{
    reshard_error err;
    struct sample sample;
    struct sample_options options = { .seed = 7, .elements_max = 100, .tensors = 1 };
    uint64_t memory = 0;
    uint32_t tensor = 0;
    struct engine_options engine = { .threads = 1, .progress = see_memory, .context = &memory };
    sample_make(&sample, &options);
    struct engine_source source = { sample.store, sample.source, &limits_default, NULL };
    struct seen *seen = seen_new();
    CHECK_OK(engine_stream(&source, &tensor, 1, NULL, NULL, &engine, see, seen, &err));
    assert_in_range(memory, 1, 1 << 20);
    seen_free(seen);
    sample_release(&sample);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_arrive_whole_and_in_order),
        cmocka_unit_test(any_box_can_be_read),
        cmocka_unit_test(a_chunk_arrives_in_its_own_order_also_if_it_is_a_replica),
        cmocka_unit_test(what_the_sink_says_stops_the_stream),
        cmocka_unit_test(an_expanded_tensor_streams_in_bounded_memory),
        cmocka_unit_test(packed_elements_move_in_whole_bytes),
        cmocka_unit_test(many_tiny_tensors_share_reads),
        cmocka_unit_test(strides_that_leave_the_chunk_are_an_error),
        cmocka_unit_test(limits_of_the_source_hold_for_the_stream),
        cmocka_unit_test(little_takes_little_memory),
    };
    return cmocka_run_group_tests_name("engine_stream", tests, NULL, NULL);
}
