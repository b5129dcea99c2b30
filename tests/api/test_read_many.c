/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of many tensors into memory of the caller's, against the same tensors read whole; by threads at once; and with a file that fails.
 */
#include "check.h"

#include "reshard/reshard.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#define BOXES_MAX 60
#define THREADS 6
#define MARK 0xA5

static const char *const samples[] = { "torch-dcp/dcp-fsdp2-4/ckpt", "torch-dcp/dcp-small/ckpt", "megatron/megatron-sem-async/ckpt" };
static reshard_error err;

static reshard_checkpoint *open_path(const char *path)
{
    reshard_checkpoint *opened = NULL;
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

static reshard_checkpoint *open_sample(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", test_fixtures(), name);
    return open_path(path);
}

/* One box: where it was asked for, and what the tensor holds. */
struct wanted {
    reshard_tensor tensor;
    uint8_t *whole;
    int64_t start[RANK_MAX], extent[RANK_MAX], strides[RANK_MAX], span;
    uint64_t element;
    uint8_t *out;
};

static uint8_t *read_whole(const reshard_checkpoint *checkpoint, size_t index, uint64_t bytes)
{
    uint8_t *whole = malloc(bytes + 1);
    assert_non_null(whole);
    reshard_error mine = RESHARD_ERROR_INIT; /* threads come here too */
    if (reshard_read_into(checkpoint, index, NULL, NULL, NULL, whole, bytes, &mine))
        fail_msg("%s", mine.message);
    return whole;
}

/* A box anywhere in the tensor, for memory whose axes are permuted and padded. */
static void box_choose(struct wanted *wanted, uint64_t *seed)
{
    int rank = (int)wanted->tensor.rank;
    int64_t stride = 1, volume = 1;
    for (int i = 0; i < rank; i++) {
        int64_t size = wanted->tensor.shape[i];
        wanted->start[i] = size ? (int64_t)(test_random(seed) % (uint64_t)size) : 0;
        wanted->extent[i] = size ? 1 + (int64_t)(test_random(seed) % (uint64_t)(size - wanted->start[i])) : 0;
        volume *= size;
    }
    bool is_reversed = test_random(seed) % 2;
    for (int i = 0; i < rank; i++) {
        int axis = is_reversed ? i : rank - 1 - i;
        wanted->strides[axis] = stride;
        stride *= wanted->extent[axis] + (int64_t)(test_random(seed) % 3);
    }
    wanted->element = volume ? wanted->tensor.bytes / (uint64_t)volume : 1;
    assert_true(strides_span(rank, wanted->extent, wanted->strides, &wanted->span));
}

static void wanted_make(struct wanted *wanted, const reshard_checkpoint *checkpoint, size_t index, uint64_t *seed)
{
    wanted->tensor = (reshard_tensor)RESHARD_TENSOR_INIT;
    assert_int_equal(reshard_tensor_at(checkpoint, index, &wanted->tensor), RESHARD_OK);
    wanted->whole = read_whole(checkpoint, index, wanted->tensor.bytes);
    box_choose(wanted, seed);
    size_t bytes = (size_t)wanted->span * wanted->element;
    wanted->out = malloc(bytes + 1);
    assert_non_null(wanted->out);
    memset(wanted->out, MARK, bytes + 1);
}

static reshard_box box_of(struct wanted *wanted, size_t index)
{
    return (reshard_box){ .tensor = index,
                          .start = wanted->start,
                          .extent = wanted->extent,
                          .strides = wanted->strides,
                          .out = wanted->out,
                          .size = (size_t)wanted->span * wanted->element };
}

/* Every element of the box where it belongs, and nothing in between. */
static void wanted_check(struct wanted *wanted)
{
    int rank = (int)wanted->tensor.rank;
    int64_t at[RANK_MAX] = { 0 }, full[RANK_MAX];
    size_t bytes = (size_t)wanted->span * wanted->element;
    uint8_t *expected = malloc(bytes + 1);
    assert_non_null(expected);
    memset(expected, MARK, bytes + 1);
    strides_row_major(rank, wanted->tensor.shape, full);
    for (bool goes_on = !box_is_empty(rank, wanted->extent); goes_on;) {
        int64_t from = 0, to = 0;
        for (int i = 0; i < rank; i++) {
            from += (wanted->start[i] + at[i]) * full[i];
            to += at[i] * wanted->strides[i];
        }
        memcpy(expected + (size_t)to * wanted->element, wanted->whole + (size_t)from * wanted->element, wanted->element);
        goes_on = false;
        for (int i = rank - 1; i >= 0 && !goes_on; i--) {
            goes_on = ++at[i] < wanted->extent[i];
            at[i] = goes_on ? at[i] : 0;
        }
    }
    assert_memory_equal(wanted->out, expected, bytes + 1);
    free(expected);
}

static void wanted_free(struct wanted *wanted)
{
    free(wanted->whole);
    free(wanted->out);
}

static void read_random_boxes(const reshard_checkpoint *checkpoint, size_t count, uint64_t seed)
{
    static const reshard_box_list no_boxes = RESHARD_BOX_LIST_INIT;
    struct wanted *wanted = calloc(count, sizeof(*wanted));
    reshard_box boxes[BOXES_MAX];
    unsigned char is_done[BOXES_MAX];
    reshard_error mine = RESHARD_ERROR_INIT;
    assert_non_null(wanted);
    for (size_t i = 0; i < count; i++) {
        size_t index = test_random(&seed) % reshard_tensor_count(checkpoint);
        wanted_make(&wanted[i], checkpoint, index, &seed);
        boxes[i] = box_of(&wanted[i], index);
    }
    reshard_box_list list = no_boxes;
    list.boxes = boxes;
    list.box_count = count;
    list.is_done = is_done;
    reshard_status status = reshard_read_many(checkpoint, &list, NULL, &mine);
    if (status)
        fail_msg("seed %" PRIu64 ": %s", seed, mine.message);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(is_done[i], 1);
        wanted_check(&wanted[i]);
        wanted_free(&wanted[i]);
    }
    free(wanted);
}

TEST(boxes_hold_what_the_tensor_holds)
{
    for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
        reshard_checkpoint *checkpoint = open_sample(samples[i]);
        read_random_boxes(checkpoint, BOXES_MAX, i + 1);
        reshard_close(checkpoint);
    }
}

struct reading {
    const reshard_checkpoint *checkpoint;
    uint64_t seed;
};

static void *read_in_thread(void *context)
{
    const struct reading *reading = context;
    for (uint64_t i = 0; i < 2; i++)
        read_random_boxes(reading->checkpoint, 6, reading->seed * 100 + i);
    return NULL;
}

/* From the first moment on, when nobody knows yet where the payload lies. */
TEST(threads_read_one_handle_at_once)
{
    for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
        reshard_checkpoint *checkpoint = open_sample(samples[i]);
        pthread_t threads[THREADS];
        struct reading readings[THREADS];
        for (size_t t = 0; t < THREADS; t++) {
            readings[t] = (struct reading){ checkpoint, t + 1 };
            assert_int_equal(pthread_create(&threads[t], NULL, read_in_thread, &readings[t]), 0);
        }
        for (size_t t = 0; t < THREADS; t++)
            pthread_join(threads[t], NULL);
        reshard_close(checkpoint);
    }
}

/* ---- casts, wrong boxes, damage: two safetensors files of F32 ---- */

#define VALUES 1000

static char work[TEST_FOLDER_SIZE];

static void file_write(const char *name, const void *bytes, size_t size)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", work, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void shard_write(const char *name, const char *key)
{
    uint8_t bytes[256 + VALUES * 4];
    int size = snprintf((char *)bytes + 8, 200, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d,10],\"data_offsets\":[0,%d]}}", key, VALUES / 10,
                        VALUES * 4);
    uint64_t header = (uint64_t)size;
    memcpy(bytes, &header, 8);
    for (int i = 0; i < VALUES; i++) {
        float value = (float)i / 4;
        memcpy(bytes + 8 + size + i * 4, &value, 4);
    }
    file_write(name, bytes, 8 + (size_t)size + VALUES * 4);
}

static reshard_checkpoint *pair_open(void)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}";
    assert_non_null(test_mkdtemp(work));
    shard_write("model-00001-of-00002.safetensors", "a");
    shard_write("model-00002-of-00002.safetensors", "b");
    file_write("model.safetensors.index.json", index, sizeof(index) - 1);
    return open_path(work);
}

static void pair_remove(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", work);
    assert_int_equal(system(command), 0);
}

static reshard_status read_pair(const reshard_checkpoint *checkpoint, const reshard_box *boxes, size_t count, unsigned char *is_done)
{
    reshard_box_list list = RESHARD_BOX_LIST_INIT;
    list.boxes = boxes;
    list.box_count = count;
    list.is_done = is_done;
    return reshard_read_many(checkpoint, &list, NULL, &err);
}

TEST(boxes_are_cast)
{
    reshard_checkpoint *checkpoint = pair_open();
    double out[VALUES];
    const int64_t start[] = { 50, 0 }, extent[] = { 2, 10 };
    reshard_box box = { .tensor = 1, .start = start, .extent = extent, .dtype = "F64", .out = out, .size = sizeof(out) };
    CHECK_OK(read_pair(checkpoint, &box, 1, NULL));
    for (int i = 0; i < 20; i++)
        assert_true(out[i] == (500 + i) / 4.0);
    reshard_close(checkpoint);
    pair_remove();
}

TEST(wrong_boxes_are_refused_before_anything_is_read)
{
    reshard_checkpoint *checkpoint = pair_open();
    float out[VALUES], mark = 7;
    out[0] = mark;
    const int64_t start[] = { 99, 0 }, extent[] = { 2, 10 }, inside[] = { 1, 10 }, shared[] = { 5, 1 }, negative[] = { -10, 1 };
    const reshard_box good = { .out = out, .size = sizeof(out) };
    const reshard_box wrong[] = {
        { .tensor = 2, .out = out, .size = sizeof(out) },
        { .out = out, .size = sizeof(out) - 1 },
        { .start = start, .extent = extent, .out = out, .size = sizeof(out) },
        { .start = start, .out = out, .size = sizeof(out) },
        { .strides = shared, .out = out, .size = sizeof(out) },
        { .strides = negative, .out = out, .size = sizeof(out) },
        { .start = start, .extent = inside, .dtype = "F33", .out = out, .size = sizeof(out) },
        { .out = NULL, .size = sizeof(out) },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const reshard_box boxes[] = { good, wrong[i] };
        unsigned char is_done[2] = { 1, 1 };
        assert_int_equal(read_pair(checkpoint, boxes, 2, is_done), RESHARD_ERR_USAGE);
        assert_true(out[0] == mark);
        assert_int_equal(is_done[0] + is_done[1], 0);
    }
    reshard_close(checkpoint);
    pair_remove();
}

TEST(what_was_read_is_told_when_a_file_fails)
{
    reshard_checkpoint *checkpoint = pair_open();
    float a[VALUES], b[VALUES];
    unsigned char is_done[2];
    char path[256];
    snprintf(path, sizeof(path), "%s/model-00002-of-00002.safetensors", work);
    assert_int_equal(truncate(path, 2000), 0);
    const reshard_box boxes[] = { { .tensor = 0, .out = a, .size = sizeof(a) }, { .tensor = 1, .out = b, .size = sizeof(b) } };
    assert_int_not_equal(read_pair(checkpoint, boxes, 2, is_done), RESHARD_OK);
    assert_non_null(strstr(err.message, "model-00002-of-00002.safetensors"));
    assert_int_equal(is_done[1], 0);
    if (is_done[0])
        assert_true(a[VALUES - 1] == (VALUES - 1) / 4.0f);
    reshard_close(checkpoint);
    pair_remove();
}

/* A file that was read stays open: it may be replaced, and the handle still reads what it opened. */
TEST(files_stay_open)
{
    reshard_checkpoint *checkpoint = pair_open();
    float a[VALUES] = { 0 };
    const reshard_box box = { .tensor = 0, .out = a, .size = sizeof(a) };
    CHECK_OK(read_pair(checkpoint, &box, 1, NULL));
    pair_remove();
    memset(a, 0, sizeof(a));
    CHECK_OK(read_pair(checkpoint, &box, 1, NULL));
    assert_true(a[VALUES - 1] == (VALUES - 1) / 4.0f);
    reshard_close(checkpoint);
}

TEST(no_boxes_are_no_work)
{
    reshard_checkpoint *checkpoint = open_sample(samples[0]);
    CHECK_OK(read_pair(checkpoint, NULL, 0, NULL));
    reshard_close(checkpoint);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest threads[] = { cmocka_unit_test(threads_read_one_handle_at_once) };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_hold_what_the_tensor_holds),
        cmocka_unit_test(threads_read_one_handle_at_once),
        cmocka_unit_test(boxes_are_cast),
        cmocka_unit_test(wrong_boxes_are_refused_before_anything_is_read),
        cmocka_unit_test(what_was_read_is_told_when_a_file_fails),
        cmocka_unit_test(files_stay_open),
        cmocka_unit_test(no_boxes_are_no_work),
    };
    if (argc > 1 && strcmp(argv[1], "threads") == 0)
        return cmocka_run_group_tests_name("reading by threads", threads, NULL, NULL);
    return cmocka_run_group_tests_name("read many", tests, NULL, NULL);
}
