/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading as a group, where one allocation fails: an error that says so, never fewer tensors, keys or warnings. */
#include "check.h"
#include "fail_malloc.h"

#include "api/held.h"
#include "test_folder.h"

#include <sys/stat.h>

static char path[200];
static unsigned long at; /* which allocation fails */
static const reshard_run_options run = { .struct_size = sizeof(run), .threads = 1 };
static const reshard_run_options run_in_rounds = { .struct_size = sizeof(run), .threads = 1, .memory_bytes = 200 };
static bool by_functions; /* what is asked for is filled through them, but for what has strides */

static reshard_status save_once(struct held *held, reshard_error *err)
{
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    convert.to = "torch_dist";
    convert.overwrite = 1;
    options.convert = &convert;
    return reshard_save(NULL, path, held->sharded, &options, &run, err);
}

static int place_write(const void *bytes, uint64_t offset, size_t size, void *context)
{
    memcpy((char *)context + offset, bytes, size);
    return 0;
}

/* What is asked for: all but "copy", and two keys more that nothing has. */
static struct held *asked_new(void)
{
    static const int64_t shape[] = { 7 };
    struct held *all = held_new(0, 1), *asked = calloc(1, sizeof(*asked));
    assert_non_null(asked);
    assert_int_equal(reshard_sharded_new(&asked->sharded, NULL), RESHARD_OK);
    for (size_t i = 0; i < reshard_sharded_count(all->sharded); i++) {
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_at(all->sharded, i, &tensor);
        if (tensor.key.size == 4 && memcmp(tensor.key.data, "copy", 4) == 0)
            continue;
        tensor.data = (char *)asked + ((char *)tensor.data - (char *)all); /* the same place of what is filled */
        if (by_functions && !tensor.strides) {
            tensor.context = tensor.data;
            tensor.data = NULL;
            tensor.write = place_write;
        }
        assert_int_equal(reshard_sharded_add(asked->sharded, &tensor, NULL), RESHARD_OK);
    }
    tensor_add(asked, "stranger", 1, 0, shape, NULL, 0, asked->copy, NULL);
    tensor_add(asked, "another", 1, 0, shape, NULL, 0, asked->copy, NULL);
    held_free(all);
    return asked;
}

/* The kind, key and text of each value of the result, one a line. */
static void describe(const reshard_sharded *result, char *out, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < reshard_sharded_value_count(result); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        reshard_sharded_value_at(result, i, &value);
        used += (size_t)snprintf(out + used, size - used, "%d %.*s\n", (int)value.kind, (int)value.key.size, value.key.data);
    }
}

static reshard_status load_once(struct held *asked, int64_t strict, char *said, size_t size, reshard_error *err)
{
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *result = NULL;
    options.strict = strict;
    *said = 0;
    reshard_status status = reshard_load(NULL, path, asked->sharded, &options, by_functions ? &run_in_rounds : &run, &result, err);
    if (!status)
        describe(result, said, size);
    reshard_sharded_free(result);
    return status;
}

static int save_whole(void **state)
{
    struct held *held = held_new(0, 1);
    reshard_error err = RESHARD_ERROR_INIT;
    assert_int_equal(test_folder_make(state), 0);
    snprintf(path, sizeof(path), "%s/saved", test_folder);
    held_walk(held, 0, 1, true);
    CHECK_OK(save_once(held, &err));
    held_free(held);
    return 0;
}

/* A run that was not hit, or that got along without, says and fills the same. */
static void must_load_alike(int64_t strict, const char *expected)
{
    for (unsigned long nth = 1;; nth = fail_next(nth)) {
        struct held *asked = asked_new();
        reshard_error err = RESHARD_ERROR_INIT;
        char said[4000];
        fail_malloc_at(nth);
        reshard_status status = load_once(asked, strict, said, sizeof(said), &err);
        bool is_hit = fail_malloc_was_hit();
        if (status && (!is_hit || status != RESHARD_ERR_MEMORY))
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        if (!status && strcmp(said, expected) != 0)
            fail_msg("allocation %lu: %s", nth, said);
        for (int i = 0; !status && i < ROWS * 3; i++)
            assert_true(asked->rows[i] == value_of(1, i));
        held_free(asked);
        if (!is_hit)
            break;
    }
}

TEST(a_load_without_memory_hides_no_key)
{
    must_load_alike(RESHARD_STRICT_RETURN_ALL, "2 copy\n2 rng\n3 another\n3 stranger\n0 iteration\n0 content_metadata\n");
}

TEST(a_load_in_rounds_without_memory_hides_no_key)
{
    by_functions = true;
    must_load_alike(RESHARD_STRICT_RETURN_ALL, "2 copy\n2 rng\n3 another\n3 stranger\n0 iteration\n0 content_metadata\n");
    by_functions = false;
}

TEST(a_load_without_memory_hides_no_warning)
{
    must_load_alike(RESHARD_STRICT_LOG_ALL, "4 Unexpected keys (for this rank): {'another', 'stranger'}. Missing keys (for all ranks): "
                                            "{'copy', 'rng'}.\n0 iteration\n0 content_metadata\n");
}

TEST(a_save_without_memory_leaves_the_old_one)
{
    for (unsigned long nth = 1;; nth = fail_next(nth)) {
        struct held *held = held_new(0, 1), *asked = asked_new();
        reshard_error err = RESHARD_ERROR_INIT;
        char said[4000];
        held_walk(held, 0, 1, true);
        fail_malloc_at(nth);
        reshard_status status = save_once(held, &err);
        bool is_hit = fail_malloc_was_hit();
        if (status && (!is_hit || status != RESHARD_ERR_MEMORY))
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        CHECK_OK(load_once(asked, RESHARD_STRICT_IGNORE_ALL, said, sizeof(said), &err));
        assert_true(asked->rows[ROWS * 3 - 1] == value_of(1, ROWS * 3 - 1) && asked->scalar == value_of(6, 0));
        held_free(held);
        held_free(asked);
        if (!is_hit)
            break;
    }
}

/* ---- state dicts ---- */

static int build_parts(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context)
{
    static const int64_t half[] = { 2, 3 };
    (void)context;
    for (int64_t i = 0; i < 2; i++) {
        const reshard_rank_offset at_half = { 0, i, 2 };
        reshard_sharded_tensor part = *whole;
        part.local_shape = half;
        part.data = (float *)whole->data + 6 * i;
        if (reshard_sharded_add_offsets(parts, &part, &at_half, sizeof(at_half), 1, NULL))
            return 1;
    }
    return 0;
}

/* Every kind of member, all calls on keys, and what is asked of all ranks. */
static reshard_status dict_once(reshard_error *err)
{
    static const int64_t shape[] = { 4, 3 }, grid[] = { 1 }, cell[] = { 0 };
    static float data[12];
    struct held *held = held_new(0, 1);
    reshard_sharded_tensor whole = RESHARD_SHARDED_TENSOR_INIT;
    reshard_sharded_factory factory = RESHARD_SHARDED_FACTORY_INIT;
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    const reshard_str text[] = { text_of("rows"), text_of("lines") };
    char *differs = NULL;
    whole.key = text_of("fused");
    whole.dtype = "F32";
    whole.rank = 2;
    whole.local_shape = shape;
    whole.data = data;
    factory.whole = &whole;
    factory.build = build_parts;
    object.key = text_of("object");
    object.rank = 1;
    object.global_shape = grid;
    object.global_offset = cell;
    object.json = text_of("{\"a\":[1,2]}");
    value.key = text_of("args");
    value.json = text_of("{\"b\":null}");
    fail_malloc_at(at);
    reshard_status status = reshard_sharded_add_factory(held->sharded, &factory, err);
    status = status ? status : reshard_sharded_add_object(held->sharded, &object, err);
    status = status ? status : reshard_sharded_add_object_key(held->sharded, text_of("rng2/shard_0_2"), err);
    status = status ? status : reshard_sharded_add_value(held->sharded, &value, err);
    status = status ? status : reshard_sharded_expand(held->sharded, err);
    status = status ? status : reshard_sharded_map_prefixes(held->sharded, &text[0], &text[1], 1, err);
    status = status ? status : reshard_sharded_add_prefix(held->sharded, text_of("model."), err);
    status = status ? status : reshard_sharded_replace_prefix(held->sharded, text_of("model."), text_of("m."), err);
    const reshard_sharded *const ranks[] = { held->sharded };
    status = status ? status : reshard_sharded_spread(&held->sharded, 1, err);
    status = status ? status : reshard_sharded_compare_common(held->sharded, held->sharded, 1, &differs, err);
    if (!status && reshard_sharded_check(ranks, 1, err) == RESHARD_ERR_MEMORY) /* a grid of two has one cell here: that is refused */
        status = RESHARD_ERR_MEMORY;
    status = status ? status : reshard_sharded_merge(held->sharded, err);
    reshard_free(differs);
    held_free(held);
    return status;
}

TEST(state_dicts_without_memory_say_so)
{
    for (at = 1;; at++) {
        reshard_error err = RESHARD_ERROR_INIT;
        reshard_status status = dict_once(&err);
        bool is_hit = fail_malloc_was_hit();
        bool is_told = status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_CANCELLED; /* by a factory, in its own words */
        if (status && (!is_hit || !is_told))
            fail_msg("allocation %lu: status %d: %s", at, status, err.message);
        if (!is_hit)
            break;
    }
    assert_in_range(at, 20, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_without_memory_hides_no_key),
        cmocka_unit_test(a_load_in_rounds_without_memory_hides_no_key),
        cmocka_unit_test(a_load_without_memory_hides_no_warning),
        cmocka_unit_test(a_save_without_memory_leaves_the_old_one),
        cmocka_unit_test(state_dicts_without_memory_say_so),
    };
    return cmocka_run_group_tests_name("joint memory", tests, save_whole, test_folder_remove);
}
