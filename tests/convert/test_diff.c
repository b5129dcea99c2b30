/* SPDX-License-Identifier: Apache-2.0 */
/* What two checkpoints differ in: what becomes of each tensor, what is told of it, and the sums of it all. */
#include "../formats/memory_checkpoint.h"
#include "check.h"
#include "fail_malloc.h"

#include "convert/diff.h"
#include "kernels/difference.h"

static reshard_error err;
static struct store *stores[2];
static struct checkpoint *sides[2];

static void open_side(int side, const char *header, const void *data, size_t bytes)
{
    struct source *source = NULL;
    struct buffer file = { 0 };
    stores[side] = store_new_memory();
    buffer_append_u64le(&file, strlen(header));
    buffer_append_text(&file, header);
    buffer_append(&file, data, bytes);
    assert_false(file.failed);
    memory_put(stores[side], "m.safetensors", file.data, file.size);
    buffer_release(&file);
    CHECK_OK(memory_open(stores[side], "m.safetensors", false, &source, &err));
    CHECK_OK(checkpoint_of(source, "m.safetensors", &sides[side], &err));
}

static void close_sides(void)
{
    for (int side = 0; side < 2; side++) {
        checkpoint_close(sides[side]);
        store_free(stores[side]);
    }
}

#define TENSOR(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

/* A letter for each outcome, as the enum has them. */
static const char outcomes[] = "=vmust";

struct told {
    struct buffer tensors, findings; /* lines */
    unsigned left;                   /* findings until the receiver has had enough */
};

static void take_tensor(void *context, const struct diff_tensor *tensor)
{
    struct told *told = context;
    buffer_printf(&told->tensors, "%.*s %c %u elements %u bytes %u changed %g %g\n", STR_ARG(tensor->key), outcomes[tensor->outcome],
                  (unsigned)tensor->elements, (unsigned)tensor->bytes, (unsigned)tensor->changed_elements, tensor->max_absolute,
                  tensor->max_relative);
}

static reshard_status take_finding(void *context, const struct finding *finding)
{
    static const char severities[] = "nwf";
    struct told *told = context;
    buffer_printf(&told->findings, "%c %s %.*s: %s\n", severities[finding->severity], finding->kind, STR_ARG(finding->key), finding->text);
    return --told->left ? RESHARD_OK : RESHARD_ERR_CANCELLED;
}

static reshard_status compare(struct diff_options *options, unsigned threads, struct told *told)
{
    struct engine_options engine = { .threads = threads };
    struct finding_sink sink = { .receive = take_finding, .context = told };
    told->left = told->left ? told->left : 100;
    buffer_clear(&told->tensors);
    buffer_clear(&told->findings);
    options->tensor = take_tensor;
    options->tensor_context = told;
    reshard_status status = diff_run(sides[0], sides[1], options, &engine, &sink, &err);
    buffer_append_byte(&told->tensors, 0);
    buffer_append_byte(&told->findings, 0);
    return status;
}

static void told_release(struct told *told)
{
    buffer_release(&told->tensors);
    buffer_release(&told->findings);
}

/* Of each kind of difference one, and two that are as they were. */
static void open_all_kinds(void)
{
    static const char first[] = "{" TENSOR("half", "U8", "2,4", "0", "8") "," TENSOR("lost", "U8", "0", "8", "8") ","
        TENSOR("only.a", "I16", "2", "8", "12") "," TENSOR("same", "F32", "", "12", "16") "," TENSOR("shape", "U8", "2,3", "16", "22") ","
        TENSOR("type", "U8", "2", "22", "24") "," TENSOR("values", "F32", "3", "24", "36") ","
        "\"__metadata__\":{\"both\":\"1\",\"changed\":\"1\"}}";
    static const char second[] = "{" TENSOR("half", "U8", "2,2", "0", "4") "," TENSOR("lost", "U8", "3,0", "4", "4") ","
        TENSOR("only.b", "I64", "", "4", "12") "," TENSOR("same", "F32", "", "12", "16") "," TENSOR("shape", "U8", "3,2", "16", "22") ","
        TENSOR("type", "I8", "2", "22", "24") "," TENSOR("values", "F32", "3", "24", "36") ","
        "\"__metadata__\":{\"both\":\"1\",\"changed\":\"2\"}}";
    uint8_t data[36] = { 0 };
    const float ones[3] = { 1, 4, 1 }, others[3] = { 1, 2, 1 };
    memcpy(data + 24, ones, 12);
    open_side(0, first, data, 36);
    memcpy(data + 24, others, 12);
    open_side(1, second, data, 36);
}

TEST(every_tensor_is_told_with_what_became_of_it)
{
    struct diff_summary found;
    struct diff_options options = { .summary = &found };
    struct told told = { 0 };
    open_all_kinds();
    CHECK_FAILS(compare(&options, 1, &told), RESHARD_DIFFERS);
    assert_string_equal((char *)told.tensors.data, "half s 8 elements 8 bytes 0 changed 0 0\n"
                                                   "lost = 0 elements 0 bytes 0 changed 0 0\n"
                                                   "only.a m 2 elements 4 bytes 0 changed 0 0\n"
                                                   "shape s 6 elements 6 bytes 0 changed 0 0\n"
                                                   "type t 2 elements 2 bytes 0 changed 0 0\n"
                                                   "only.b u 1 elements 8 bytes 0 changed 0 0\n"
                                                   "same = 1 elements 4 bytes 0 changed 0 0\n"
                                                   "values v 3 elements 12 bytes 1 changed 2 1\n");
    assert_string_equal((char *)told.findings.data,
                        "f shape half: shape [2,4] against [2,2], axis 1 is 2 times as long: is one of them the part of one "
                        "tensor-parallel rank, not merged?\n"
                        "w shape lost: shape [0] against [3,0], both without elements\n"
                        "f missing only.a: missing in the second: I16\n"
                        "f shape shape: shape [2,3] against [3,2]\n"
                        "f dtype type: dtype U8 against I8\n"
                        "f unexpected only.b: only in the second: I64\n"
                        "f values values: values differ: 1 elements, first at flat index 1, max abs 2, max rel 1\n"
                        "f item __metadata__: items differ\n");
    assert_int_equal(found.items, 1);
    assert_int_equal(found.different_items, 1);
    assert_int_equal(found.tensors, 8);
    static const unsigned by_outcome[DIFF_OUTCOMES] = { 2, 1, 1, 1, 2, 1 };
    for (int i = 0; i < DIFF_OUTCOMES; i++)
        assert_int_equal(found.by_outcome[i], by_outcome[i]);
    assert_int_equal(found.elements, 4);
    assert_int_equal(found.bytes, 16);
    assert_int_equal(found.changed_elements, 1);
    assert_int_equal(found.changed_bytes, 4);
    assert_true(found.max_absolute == 2 && found.max_relative == 1);
    told_release(&told);
    close_sides();
}

TEST(what_is_left_out_or_tolerated_is_no_difference)
{
    static const char *const include[] = { "same", "values", "lost", NULL }, *const exclude[] = { "values", NULL };
    static const char *const absent[] = { "none", NULL };
    struct diff_summary found;
    struct diff_options options = { .summary = &found, .include = include, .ignore_items = true };
    struct told told = { 0 };
    open_all_kinds();
    CHECK_FAILS(compare(&options, 1, &told), RESHARD_DIFFERS);
    options.absolute_tolerance = 2;
    CHECK_OK(compare(&options, 1, &told));
    assert_int_equal(found.tensors, 3);
    assert_int_equal(found.by_outcome[DIFF_SAME], 3);
    assert_int_equal(found.changed_elements, 1); /* whatever the tolerance */
    assert_int_equal(found.items, 0);
    assert_true(found.max_absolute == 0);
    options.absolute_tolerance = 0;
    options.exclude = exclude;
    CHECK_OK(compare(&options, 1, &told));
    assert_int_equal(found.tensors, 2);
    options.ignore_items = false;
    CHECK_FAILS(compare(&options, 1, &told), RESHARD_DIFFERS);
    options.include = absent;
    CHECK_FAILS(compare(&options, 1, &told), RESHARD_ERR_USAGE);
    told_release(&told);
    close_sides();
}

TEST(a_receiver_that_has_had_enough_ends_it)
{
    struct diff_options options = { 0 };
    open_all_kinds();
    for (unsigned left = 1; left <= 8; left++) {
        struct told told = { .left = left };
        CHECK_FAILS(compare(&options, 1, &told), RESHARD_ERR_CANCELLED);
        unsigned lines = 0;
        for (const char *at = (char *)told.findings.data; *at; at++)
            lines += *at == '\n';
        assert_int_equal(lines, left);
        told_release(&told);
    }
    close_sides();
}

/* What is read of one side waits in a ring of 8 MiB; the element that lies over its end is put together again. */
TEST(elements_that_are_read_in_parts_are_compared_whole)
{
    enum { COUNT = 1200000, CUT = 1048575, SIZE = COUNT * 8 + 9 };
    static const char header[] = "{" TENSOR("a", "U8", "1", "0", "1") "," TENSOR("b", "I64", "1200000", "1", "9600001") ","
        TENSOR("c", "I64", "", "9600001", "9600009") "}";
    static const uint32_t changed[] = { 0, CUT - 1, CUT, CUT + 1, COUNT - 1, COUNT };
    uint8_t *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (uint8_t)(i * 7 >> 4);
    for (size_t i = 0; i < sizeof(changed) / sizeof(*changed); i++) {
        for (unsigned threads = 1; threads <= 8; threads += 7) {
            struct diff_summary found;
            struct diff_options options = { .summary = &found };
            struct told told = { 0 };
            char expected[200];
            open_side(0, header, data, SIZE);
            data[1 + changed[i] * 8] ^= 1;
            open_side(1, header, data, SIZE);
            data[1 + changed[i] * 8] ^= 1;
            CHECK_FAILS(compare(&options, threads, &told), RESHARD_DIFFERS);
            assert_int_equal(found.changed_elements, 1);
            assert_int_equal(found.changed_bytes, 8);
            assert_int_equal(found.elements, COUNT + 2);
            snprintf(expected, sizeof(expected), "f values %s: values differ: 1 elements, first at flat index %u,",
                     changed[i] == COUNT ? "c" : "b", changed[i] % COUNT);
            assert_memory_equal(told.findings.data, expected, strlen(expected));
            told_release(&told);
            close_sides();
        }
    }
    free(data);
}

/* Doubles hold these as one number. */
TEST(large_integers_are_subtracted_before_they_are_rounded)
{
    static const uint64_t pairs[][2] = { { (UINT64_C(1) << 60) + 1, UINT64_C(1) << 60 },
                                         { UINT64_C(1) << 60, (UINT64_C(1) << 60) + 1 },
                                         { UINT64_MAX, UINT64_MAX - 1 },
                                         { UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1 } };
    static const enum dtype kinds[] = { DTYPE_I64, DTYPE_U64 };
    const struct tolerance half = { 0.5, 0 }, one = { 1, 0 }, relative = { 0, 1e-18 };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        for (size_t j = 0; j < 2; j++) {
            struct difference found = { .first_index = -1 }, tolerated = found, of_all = found;
            difference_add(&found, kinds[j], &half, &pairs[i][0], &pairs[i][1], 1, 7);
            difference_add(&tolerated, kinds[j], &one, &pairs[i][0], &pairs[i][1], 1, 7);
            difference_add(&of_all, kinds[j], &relative, &pairs[i][0], &pairs[i][1], 1, 7);
            assert_int_equal(found.count, 1);
            assert_int_equal(found.first_index, 7);
            assert_true(found.max_absolute == 1);
            assert_int_equal(tolerated.count, 0);
            assert_int_equal(of_all.count, kinds[j] == DTYPE_I64 && i == 2); /* against -2 */
        }
    }
    const int64_t ends[] = { INT64_MIN, INT64_MAX };
    struct difference found = { .first_index = -1 };
    difference_add(&found, DTYPE_I64, &half, &ends[0], &ends[1], 1, 0);
    assert_true(found.max_absolute == 0x1p64 && found.max_relative == 2);
}

TEST(want_of_memory_is_an_error)
{
    unsigned long nth = 0;
    bool is_hit;
    do {
        struct diff_options options = { .explains = true };
        struct engine_options engine = { .threads = 1 };
        struct finding_sink sink = { 0 };
        open_all_kinds();
        nth = fail_next(nth);
        fail_malloc_at(nth);
        reshard_status status = diff_run(sides[0], sides[1], &options, &engine, &sink, &err);
        is_hit = fail_malloc_was_hit();
        assert_true(status == RESHARD_DIFFERS || (is_hit && status == RESHARD_ERR_MEMORY));
        close_sides();
    } while (is_hit);
    assert_true(nth > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tensor_is_told_with_what_became_of_it),
        cmocka_unit_test(what_is_left_out_or_tolerated_is_no_difference),
        cmocka_unit_test(a_receiver_that_has_had_enough_ends_it),
        cmocka_unit_test(elements_that_are_read_in_parts_are_compared_whole),
        cmocka_unit_test(large_integers_are_subtracted_before_they_are_rounded),
        cmocka_unit_test(want_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
