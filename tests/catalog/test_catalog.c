/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "catalog/catalog.h"
#include "fail_malloc.h"

static reshard_error err;

static uint32_t add_tensor(struct catalog *catalog, const char *key, int rank, const int64_t *shape)
{
    uint32_t index = 0;
    CHECK_OK(catalog_add_tensor(catalog, str_of(key), DTYPE_F32, rank, shape, &index, &err));
    return index;
}

static struct catalog_chunk *add_chunk(struct catalog *catalog, uint32_t tensor, const int64_t *start, const int64_t *extent)
{
    uint32_t object = 0;
    struct catalog_chunk *chunk = NULL;
    CHECK_OK(catalog_add_object(catalog, STR("file"), 100, &object, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, start, extent, object, catalog->chunk_count, 4, &chunk, &err));
    return chunk;
}

TEST(equal_vectors_have_equal_indices)
{
    struct catalog *catalog = catalog_new("test");
    int64_t values[3] = { 1, 2, 3 };
    uint32_t three = catalog_vector(catalog, values, 3), two = catalog_vector(catalog, values, 2);
    assert_int_not_equal(three, two);
    for (int64_t i = 0; i < 5000; i++) {
        int64_t vector[2] = { i, i * 7 };
        uint32_t index = catalog_vector(catalog, vector, 2);
        assert_int_equal(index, catalog_vector(catalog, vector, 2));
        assert_memory_equal(catalog_vector_at(catalog, index), vector, sizeof(vector));
    }
    assert_int_equal(three, catalog_vector(catalog, values, 3));
    assert_int_equal(two, catalog_vector(catalog, catalog_vector_at(catalog, two), 2));
    assert_int_equal(catalog_vector(catalog, NULL, 0), catalog_vector(catalog, values, 0));
    assert_int_equal(catalog_vector(catalog, values, RANK_MAX + 1), CATALOG_NONE);
    catalog_free(catalog);
}

TEST(what_cannot_be_right_is_refused_when_added)
{
    static const int64_t shape[2] = { 4, 6 }, negative[1] = { -1 }, huge[2] = { INT64_MAX, 2 };
    static const int64_t start[2] = { 0, 4 }, extent[2] = { 4, 3 };
    struct catalog *catalog = catalog_new("test");
    uint32_t tensor;
    struct catalog_chunk *chunk;
    CHECK_FAILS(catalog_add_tensor(catalog, STR("n"), DTYPE_F32, 1, negative, &tensor, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(catalog_add_tensor(catalog, STR("h"), DTYPE_F32, 2, huge, &tensor, &err), RESHARD_ERR_FORMAT);
    tensor = add_tensor(catalog, "w", 2, shape);
    CHECK_FAILS(catalog_add_chunk(catalog, tensor, start, extent, 0, 0, 0, &chunk, &err), RESHARD_ERR_FORMAT);
    assert_string_equal(err.message, "tensor 'w': chunk [0:4, 4:7] lies outside the tensor on axis 1, which has 6 elements");
    assert_string_equal(err.object, "w");
    catalog->limits.tensors = 1;
    CHECK_FAILS(catalog_add_tensor(catalog, STR("x"), DTYPE_F32, 2, shape, &tensor, &err), RESHARD_ERR_LIMIT);
    catalog_free(catalog);
}

TEST(a_known_object_name_gives_the_old_index)
{
    struct catalog *catalog = catalog_new("test");
    uint32_t a, b, again;
    CHECK_OK(catalog_add_object(catalog, STR("a"), 1, &a, &err));
    CHECK_OK(catalog_add_object(catalog, STR("b"), 2, &b, &err));
    CHECK_OK(catalog_add_object(catalog, STR("a"), 3, &again, &err));
    assert_int_equal(a, again);
    assert_int_equal(catalog->object_count, 2);
    assert_int_equal(catalog->objects[a].bytes, 1);
    assert_int_equal(catalog->objects[b].bytes, 2);
    catalog_free(catalog);
}

TEST(sealing_groups_chunks_by_tensor_and_keeps_their_order)
{
    struct catalog *catalog = catalog_new("test");
    uint64_t seed = 7;
    int64_t shape[1] = { 40 }, next[50] = { 0 };
    uint32_t tensors[50];
    for (int t = 0; t < 50; t++) {
        char key[16];
        snprintf(key, sizeof(key), "t%d", t);
        tensors[t] = add_tensor(catalog, key, 1, shape);
    }
    for (int added = 0; added < 50 * 40;) {
        int t = (int)(test_random(&seed) % 50);
        if (next[t] == 40)
            continue;
        int64_t start = next[t]++, one = 1;
        add_chunk(catalog, tensors[t], &start, &one)->driver_data = (uint32_t)start;
        added++;
    }
    CHECK_OK(catalog_seal(catalog, false, &err));
    for (uint32_t t = 0; t < 50; t++) {
        const struct catalog_tensor *tensor = &catalog->tensors[t];
        assert_int_equal(tensor->chunk_count, 40);
        for (uint32_t c = 0; c < 40; c++) {
            assert_int_equal(catalog->chunks[tensor->first_chunk + c].tensor, t);
            assert_int_equal(catalog->chunks[tensor->first_chunk + c].driver_data, c);
        }
    }
    catalog_free(catalog);
}

TEST(keys_find_tensors_and_doubles_are_marked)
{
    struct catalog *catalog = catalog_new("test");
    static const int64_t shape[1] = { 0 };
    struct catalog_item item = { .key = STR("a"), .kind = ITEM_RAW, .object = CATALOG_NONE };
    add_tensor(catalog, "a", 1, shape);
    add_tensor(catalog, "b", 1, shape);
    add_tensor(catalog, "b", 1, shape);
    uint32_t hidden = add_tensor(catalog, "hidden", 1, shape);
    catalog->tensors[hidden].flags |= TENSOR_HIDDEN;
    uint32_t clear = add_tensor(catalog, "clear", 1, shape);
    CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, NULL, &err));
    item.key = STR("i");
    CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, NULL, &err));
    CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, NULL, &err));
    item.key = STR("own");
    CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, NULL, &err));
    CHECK_OK(catalog_seal(catalog, false, &err));

    assert_int_equal(catalog_find(catalog, STR("a")), 0);
    assert_int_equal(catalog_find(catalog, STR("b")), 2);
    assert_int_equal(catalog_find(catalog, STR("clear")), clear);
    assert_int_equal(catalog_find(catalog, STR("hidden")), CATALOG_NONE);
    assert_int_equal(catalog_find(catalog, STR("none")), CATALOG_NONE);
    static const bool ambiguous[5] = { true, true, true, false, false }, items[4] = { true, true, true, false };
    for (int i = 0; i < 5; i++)
        assert_int_equal((catalog->tensors[i].flags & TENSOR_AMBIGUOUS) != 0, ambiguous[i]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(catalog->items[i].is_ambiguous, items[i]);
    catalog_free(catalog);
}

TEST(paths_are_kept_and_share_the_bytes_of_their_key)
{
    struct catalog *catalog = catalog_new("test");
    static const int64_t shape[1] = { 0 };
    const struct path_part spelled[] = {
        { PATH_KEY, STR("model"), 0 }, { PATH_INDEX, { 0 }, 3 }, { PATH_KEY, STR("w.b"), 0 }, { PATH_INT_KEY, { 0 }, -4 }
    };
    const struct path_part other[] = { { PATH_KEY, STR("model"), 0 }, { PATH_KEY, STR("somewhere"), 0 } };
    uint32_t a = add_tensor(catalog, "model.3.w.b.-4", 1, shape), b = add_tensor(catalog, "model.else", 1, shape);
    uint32_t c = add_tensor(catalog, "plain.key", 1, shape);
    /* What the key does not spell is copied. */
    char own[] = "somewhere";
    const struct path_part passing[] = { { PATH_KEY, STR("model"), 0 }, { PATH_KEY, { own, sizeof(own) - 1 }, 0 } };
    CHECK_OK(catalog_set_tensor_path(catalog, a, spelled, 4, &err));
    CHECK_OK(catalog_set_tensor_path(catalog, b, passing, 2, &err));
    memset(own, 'x', sizeof(own) - 1);

    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_tensor_path(catalog, &catalog->tensors[a], &single, &parts);
    assert_true(path_equal(parts, count, spelled, 4));
    assert_ptr_equal(parts[2].key.data, catalog->tensors[a].key.data + 8);
    struct buffer joined = { 0 };
    assert_true(path_join(parts, count, &joined));
    assert_true(str_equal(buffer_str(&joined), catalog->tensors[a].key));
    buffer_release(&joined);
    count = catalog_tensor_path(catalog, &catalog->tensors[b], &single, &parts);
    assert_true(path_equal(parts, count, other, 2));
    assert_false(path_equal(parts, count, spelled, 2));
    const struct path_part index = { PATH_INDEX, { 0 }, 3 }, integer = { PATH_INT_KEY, { 0 }, 3 };
    assert_false(path_equal(&index, 1, &integer, 1));
    count = catalog_tensor_path(catalog, &catalog->tensors[c], &single, &parts);
    assert_int_equal(count, 1);
    assert_true(str_is(parts[0].key, "plain.key"));
    catalog_free(catalog);
}

TEST(warnings_beyond_the_maximum_are_counted)
{
    struct catalog *catalog = catalog_new("test");
    for (int i = 0; i < CATALOG_WARNINGS_MAX + 5; i++)
        catalog_warn(catalog, i == 0, "warning %d\n", i);
    assert_int_equal(catalog->warning_count, CATALOG_WARNINGS_MAX + 1);
    assert_int_equal(catalog->warnings_dropped, 4);
    assert_int_equal(catalog->damage_dropped, 0);
    for (int i = 1; i < CATALOG_WARNINGS_MAX + 2; i++)
        catalog_warn(catalog, true, "damage %d", i);
    assert_int_equal(catalog->warning_count, 2 * CATALOG_WARNINGS_MAX);
    assert_int_equal(catalog->damage_count, CATALOG_WARNINGS_MAX);
    assert_int_equal(catalog->damage_dropped, 2);
    assert_int_equal(catalog->warnings_dropped, 4);
    assert_true(catalog->warnings[0].is_damage);
    assert_true(str_is(catalog->warnings[7].text, "warning 7\\n"));
    CHECK_OK(catalog_add_fact(catalog, "ranks", &err, "%d", 4));
    assert_true(str_is(catalog->facts[0].value, "4"));
    assert_true(catalog_memory(catalog) > sizeof(*catalog));
    catalog_free(catalog);
}

TEST(a_million_chunks_stay_near_64_bytes_each)
{
    struct catalog *catalog = catalog_new("test");
    static const int64_t shape[2] = { 4096, 4096 };
    catalog->limits.tensor_expansion = UINT64_MAX; /* the chunks are larger than their places */
    for (int t = 0; t < 1000; t++) {
        char key[64];
        snprintf(key, sizeof(key), "model.layers.%d.mlp.weight", t);
        uint32_t tensor = add_tensor(catalog, key, 2, shape);
        for (int64_t row = 0; row < 32; row++)
            for (int64_t column = 0; column < 32; column++)
                add_chunk(catalog, tensor, (int64_t[2]){ row * 128, column * 128 }, (int64_t[2]){ 128, 128 });
    }
    CHECK_OK(catalog_seal(catalog, false, &err));
    assert_true(catalog_memory(catalog) / catalog->chunk_count < 64);
    catalog_free(catalog);
}

enum added { TENSORS, CHUNKS, OBJECTS, ITEMS, LAYOUTS, PATHS, WARNINGS, FACTS, VECTORS, KEYS, GRAPHS, ADDED };

/* Adds the i-th of a kind, to one tensor and one object where it needs them. */
static void add_one(struct catalog *catalog, enum added kind, int i)
{
    static const int64_t shape[1] = { 1000000 }, one[1] = { 1 };
    const struct path_part parts[2] = { { PATH_INT_KEY, { 0 }, i }, { PATH_INT_KEY, { 0 }, 1 } };
    const struct catalog_item item = { .key = STR("item"), .kind = ITEM_RAW, .object = CATALOG_NONE };
    struct value_graph graph = { 0 };
    struct catalog_chunk *chunk;
    char name[32];
    uint32_t index;
    snprintf(name, sizeof(name), "the name of number %d", i);
    switch (kind) {
    case TENSORS: case KEYS:
        add_tensor(catalog, kind == KEYS ? name : "t", 1, shape);
        break;
    case CHUNKS:
        add_chunk(catalog, 0, one, one);
        break;
    case OBJECTS:
        CHECK_OK(catalog_add_object(catalog, str_of(name), 1, &index, &err));
        break;
    case ITEMS:
        CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, &index, &err));
        break;
    case LAYOUTS:
        chunk = add_chunk(catalog, 0, one, one);
        assert_non_null(catalog_chunk_layout(catalog, chunk));
        break;
    case PATHS:
        CHECK_OK(catalog_set_tensor_path(catalog, 0, parts, 2, &err));
        break;
    case WARNINGS:
        catalog_warn(catalog, false, "%s%01000d", name, 0);
        break;
    case FACTS:
        CHECK_OK(catalog_add_fact(catalog, "fact", &err, "%d", i));
        break;
    case VECTORS:
        assert_true(catalog_vector(catalog, (int64_t[4]){ i, 1, 2, 3 }, 4) != CATALOG_NONE);
        break;
    default:
        assert_non_null(arena_alloc(&graph.arena, 1000));
        assert_non_null(catalog_adopt_graph(catalog, graph));
    }
}

TEST(what_a_catalog_takes_is_counted)
{
    static const int64_t shape[1] = { 1000000 };
    const size_t name = strlen("the name of number 999") + sizeof(struct str) + sizeof(uint32_t);
    const size_t least[ADDED] = {
        sizeof(struct catalog_tensor),
        sizeof(struct catalog_chunk),
        sizeof(struct catalog_object) + name,
        sizeof(struct catalog_item),
        sizeof(struct catalog_chunk) + sizeof(struct chunk_layout),
        2 * sizeof(struct path_part),
        sizeof(struct catalog_warning) + 1020,
        sizeof(struct catalog_fact),
        4 * sizeof(int64_t) + 2 * sizeof(uint32_t),
        sizeof(struct catalog_tensor) + sizeof(uint32_t) + name,
        sizeof(struct value_graph) + 1000,
    };
    for (int kind = 0; kind < ADDED; kind++) {
        struct catalog *catalog = catalog_new("test");
        const int count = kind == WARNINGS ? CATALOG_WARNINGS_MAX : 3000;
        add_tensor(catalog, "w", 1, shape);
        const uint64_t before = catalog_memory(catalog);
        for (int i = 0; i < count; i++)
            add_one(catalog, (enum added)kind, i);
        if (kind == KEYS)
            CHECK_OK(catalog_seal(catalog, true, &err));
        const uint64_t grown = catalog_memory(catalog) - before, expected = (uint64_t)count * least[kind];
        if (grown < expected - 1024 || grown > 4 * expected + 65536)
            fail_msg("kind %d: %ju bytes more, %ju expected at least", kind, (uintmax_t)grown, (uintmax_t)expected);
        catalog_free(catalog);
    }
}

/* A catalog with everything in it: many tensors, paths, flat runs, replicas, items, facts. */
static reshard_status build_all(struct catalog *catalog)
{
    static const int64_t shape[2] = { 40, 30 };
    struct catalog_item item = { .key = STR("item"), .kind = ITEM_RAW, .object = CATALOG_NONE };
    const struct path_part parts[2] = { { PATH_KEY, STR("a"), 0 }, { PATH_INT_KEY, { 0 }, 5 } };
    reshard_status status = RESHARD_OK;
    uint32_t object = 0, tensor = 0;
    for (int t = 0; t < 20 && !status; t++) {
        char key[16];
        snprintf(key, sizeof(key), "t%d", t);
        status = catalog_add_object(catalog, str_of(key), 1, &object, &err);
        if (!status)
            status = catalog_add_tensor(catalog, str_of(key), DTYPE_F32, 2, shape, &tensor, &err);
        if (!status)
            status = catalog_set_tensor_path(catalog, tensor, parts, 2, &err);
        for (int64_t row = 0; row < 40 && !status; row += 4)
            status = catalog_add_chunk(catalog, tensor, (int64_t[2]){ row, 0 }, (int64_t[2]){ 4, 30 }, object, 0, 1, NULL, &err);
    }
    for (int64_t begin = 0; begin < 1200 && !status; begin += 400) {
        struct catalog_chunk *chunk;
        if (begin == 0)
            status = catalog_add_tensor(catalog, STR("flat"), DTYPE_F32, 2, shape, &tensor, &err);
        if (!status)
            status = catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, 1, &chunk, &err);
        struct chunk_layout *layout = status ? NULL : catalog_chunk_layout(catalog, chunk);
        if (!layout)
            return RESHARD_ERR_MEMORY;
        layout->flat_begin = begin;
        layout->flat_count = 400;
    }
    if (!status)
        status = catalog_add_item(catalog, &item, parts, 2, NULL, &err);
    if (!status)
        status = catalog_add_fact(catalog, "fact", &err, "%d", 1);
    catalog_warn(catalog, false, "warning");
    struct value_graph graph = { 0 };
    if (!status && !catalog_adopt_graph(catalog, graph))
        status = RESHARD_ERR_MEMORY;
    return status ? status : catalog_seal(catalog, false, &err);
}

TEST(every_failed_allocation_is_reported_and_leaks_nothing)
{
    unsigned long nth = 0;
    bool was_hit;
    do {
        fail_malloc_at(++nth);
        struct catalog *catalog = catalog_new("test");
        reshard_status status = catalog ? build_all(catalog) : RESHARD_ERR_MEMORY;
        was_hit = fail_malloc_was_hit();
        if (status && status != RESHARD_ERR_MEMORY)
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        if (!was_hit)
            assert_int_equal(status, RESHARD_OK);
        catalog_free(catalog);
    } while (was_hit);
    assert_true(nth > 30);
}

TEST(every_part_of_an_arena_that_is_refused_is_reported)
{
    unsigned long nth = 0;
    bool was_hit;
    do {
        struct catalog *catalog = catalog_new("test");
        assert_non_null(catalog);
        fail_arena_at(++nth);
        reshard_status status = build_all(catalog);
        was_hit = fail_malloc_was_hit();
        if (status != (was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK))
            fail_msg("part %lu: status %d: %s", nth, status, err.message);
        catalog_free(catalog);
    } while (was_hit);
    assert_true(nth > 60);
}

/* Tensors of 2.25 GiB, the limit, on one extent of an object. */
static reshard_status seal_expanded(uint64_t object_bytes, uint64_t stored, int tensors, bool is_tied, bool is_open)
{
    static const int64_t shape[1] = { 9 << 26 };
    struct catalog *catalog = catalog_new("test");
    uint32_t object = 0;
    CHECK_OK(catalog_add_object(catalog, STR("file"), object_bytes, &object, &err));
    for (int i = 0; i < tensors; i++) {
        char key[] = { 'w', (char)('0' + i), 0 };
        struct catalog_chunk *chunk = NULL;
        uint32_t tensor = add_tensor(catalog, key, 1, shape);
        CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, stored, &chunk, &err));
        chunk->flags |= is_open ? CHUNK_UNRESOLVED : 0;
        catalog->tensors[tensor].tied_to = is_tied && i ? 0 : CATALOG_NONE;
    }
    reshard_status status = catalog_seal(catalog, false, &err);
    catalog_free(catalog);
    return status;
}

TEST(what_is_shown_beyond_what_is_stored_is_bounded_in_all)
{
    uint64_t whole = UINT64_C(9) << 28;
    CHECK_OK(seal_expanded(4, 4, 1, false, false)); /* just below */
    CHECK_OK(seal_expanded(whole, whole, 2, false, false));        /* one extent under two names: as much more than stored as may be */
    CHECK_OK(seal_expanded(whole, whole, 9, true, false));         /* ties are one */
    CHECK_OK(seal_expanded(whole / 9, whole / 9, 1, false, true)); /* a compressed blob, not opened yet */
    CHECK_OK(seal_expanded(whole, 4, 2, false, false)); /* files that are large enough may be read anywhere */
    CHECK_FAILS(seal_expanded(whole - 1, 4, 2, false, false), RESHARD_ERR_LIMIT);
    CHECK_FAILS(seal_expanded(whole, whole, 3, false, false), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "tensor_expansion"));
    CHECK_FAILS(seal_expanded(whole / 9, whole / 9, 3, false, true), RESHARD_ERR_LIMIT);
    CHECK_FAILS(seal_expanded(4, 4, 2, false, false), RESHARD_ERR_LIMIT); /* stride 0, twice */
}

TEST(what_is_decoded_counts_as_held_stream_by_stream)
{
    static const int64_t shape[1] = { 9 << 26 };
    for (uint64_t apart = 0; apart < 2; apart++) {
        struct catalog *catalog = catalog_new("test");
        uint32_t object = 0;
        CHECK_OK(catalog_add_object(catalog, STR("file"), 400, &object, &err));
        for (uint64_t i = 0; i < 4; i++) {
            struct catalog_chunk *chunk = NULL;
            uint32_t tensor = add_tensor(catalog, (char[]){ 'w', (char)('0' + i), 0 }, 1, shape);
            CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, UINT64_C(9) << 28, &chunk, &err));
            struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
            assert_non_null(layout);
            layout->codec = CODEC_ZSTD;
            layout->coded_offset = apart * i * 100;
            layout->coded_bytes = 100;
        }
        reshard_status status = catalog_seal(catalog, false, &err);
        if (status != (apart ? RESHARD_OK : RESHARD_ERR_LIMIT))
            fail_msg("%d: %s", (int)apart, err.message);
        catalog_free(catalog);
    }
}

/* Ties name tensors by their number, which changes; one to a tensor that is gone is none. */
TEST(ties_follow_tensors_that_are_left)
{
    static const int64_t shape[1] = { 4 };
    static const uint8_t is_removed[5] = { 0, 1, 0, 0, 0 };
    struct catalog *catalog = catalog_new("test");
    static const char *const keys[5] = { "b", "gone", "c", "d", "e" };
    static const uint32_t ties[5] = { 3, CATALOG_NONE, CATALOG_NONE, CATALOG_NONE, 1 };
    static const uint32_t wanted[4] = { 2, CATALOG_NONE, CATALOG_NONE, CATALOG_NONE };
    for (uint32_t i = 0; i < 5; i++) {
        const uint32_t tensor = add_tensor(catalog, keys[i], 1, shape);
        catalog->tensors[tensor].tied_to = ties[i];
    }
    CHECK_OK(catalog_remove_tensors(catalog, is_removed, &err));
    assert_int_equal(catalog->tensor_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(str_is(catalog->tensors[i].key, keys[i ? i + 1 : 0]));
        assert_int_equal(catalog->tensors[i].tied_to, wanted[i]);
    }
    catalog_free(catalog);
}

TEST(adding_spends_work)
{
    static const int64_t shape[1] = { 4 };
    struct catalog *catalog = catalog_new("test");
    struct work work;
    uint32_t tensor, object = 0;
    work_begin(&work, 10000);
    catalog->limits.budget = &work;
    struct path_part parts[100] = { { .kind = PATH_INDEX, .index = 0 } };
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_F32, 1, shape, &tensor, &err));
    CHECK_OK(catalog_set_tensor_path(catalog, tensor, parts, 100, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, 16, NULL, &err));
    work_begin(&work, 10);
    CHECK_FAILS(catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, 16, NULL, &err), RESHARD_ERR_LIMIT);
    work_begin(&work, 10);
    CHECK_FAILS(catalog_add_tensor(catalog, STR("x"), DTYPE_F32, 1, shape, &tensor, &err), RESHARD_ERR_LIMIT);
    work_begin(&work, 1000);
    CHECK_FAILS(catalog_set_tensor_path(catalog, 0, parts, 100, &err), RESHARD_ERR_LIMIT);
    struct catalog_item item = { .kind = ITEM_VALUE, .key = STR("an item") };
    work_begin(&work, sizeof(item) + item.key.size - 1);
    CHECK_FAILS(catalog_add_item(catalog, &item, NULL, 0, &object, &err), RESHARD_ERR_LIMIT);
    work_begin(&work, 10000);
    CHECK_OK(catalog_add_item(catalog, &item, NULL, 0, &object, &err));
    /* Names of files are input: as much as they allow is there for what is made of them. */
    work_begin(&work, 0);
    CHECK_OK(catalog_add_object(catalog, STR("model-00001-of-00002.safetensors"), 100, &object, &err));
    assert_int_equal(work_left(&work, UINT64_MAX), strlen("model-00001-of-00002.safetensors") * WORK_PER_BYTE);
    catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_vectors_have_equal_indices),
        cmocka_unit_test(what_cannot_be_right_is_refused_when_added),
        cmocka_unit_test(a_known_object_name_gives_the_old_index),
        cmocka_unit_test(sealing_groups_chunks_by_tensor_and_keeps_their_order),
        cmocka_unit_test(keys_find_tensors_and_doubles_are_marked),
        cmocka_unit_test(paths_are_kept_and_share_the_bytes_of_their_key),
        cmocka_unit_test(warnings_beyond_the_maximum_are_counted),
        cmocka_unit_test(what_a_catalog_takes_is_counted),
        cmocka_unit_test(a_million_chunks_stay_near_64_bytes_each),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaks_nothing),
        cmocka_unit_test(every_part_of_an_arena_that_is_refused_is_reported),
        cmocka_unit_test(what_is_shown_beyond_what_is_stored_is_bounded_in_all),
        cmocka_unit_test(what_is_decoded_counts_as_held_stream_by_stream),
        cmocka_unit_test(ties_follow_tensors_that_are_left),
        cmocka_unit_test(adding_spends_work),
    };
    return cmocka_run_group_tests_name("catalog", tests, NULL, NULL);
}
