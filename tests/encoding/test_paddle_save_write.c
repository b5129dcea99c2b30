/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "base/digest.h"
#include "encoding/paddle_save_write.h"
#include "encoding/pickle.h"

static reshard_error err;

struct sample {
    int64_t shape[4];
    int rank;
    enum dtype dtype;
    char key[80], name[80];
    const struct value *value;
    uint32_t graph_count;
};

struct samples {
    struct sample *items;
    struct paddle_content content;
};

static reshard_status sample_at(void *context, uint64_t index, struct paddle_member *out, reshard_error *error)
{
    const struct sample *item = &((struct samples *)context)->items[index];
    (void)error;
    *out = (struct paddle_member){ .key = str_of(item->key),
                                   .name = str_of(item->name),
                                   .dtype = item->dtype,
                                   .rank = item->rank,
                                   .shape = item->shape,
                                   .value = item->value,
                                   .value_graph_count = item->graph_count };
    return RESHARD_OK;
}

static void samples_make(struct samples *samples, uint64_t count, int protocol, bool is_numpy2)
{
    samples->items = calloc(count + 1, sizeof(*samples->items));
    samples->content =
        (struct paddle_content){ .count = count, .member = sample_at, .context = samples, .protocol = protocol, .is_numpy2 = is_numpy2 };
}

static void sample_set(struct samples *samples, uint64_t index, const char *key, const char *name, enum dtype dtype, int rank,
                       const int64_t *shape)
{
    struct sample *item = &samples->items[index];
    snprintf(item->key, sizeof(item->key), "%s", key);
    snprintf(item->name, sizeof(item->name), "%s", name);
    item->dtype = dtype;
    item->rank = rank;
    for (int i = 0; i < rank; i++)
        item->shape[i] = shape[i];
}

static reshard_status into_buffer(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *error)
{
    struct buffer *out = context;
    (void)error;
    if (offset + size > out->size)
        fail_msg("byte %llu lies beyond the file", (unsigned long long)(offset + size));
    memcpy(out->data + offset, bytes, size);
    return RESHARD_OK;
}

/* The file with its payload: byte j of array i is 7i + j, or what elements says. */
static void samples_write(struct samples *samples, const void *const *elements, struct buffer *out)
{
    uint64_t *offsets = calloc(samples->content.count + 1, sizeof(*offsets)), bytes;
    CHECK_OK(paddle_save_plan(&samples->content, offsets, &bytes, &err));
    assert_non_null(buffer_extend(out, bytes));
    memset(out->data, 0xEE, bytes);
    for (uint64_t i = 0; i < samples->content.count; i++) {
        const struct sample *item = &samples->items[i];
        uint64_t size = (uint64_t)box_volume(item->rank, item->shape) * dtype_element_bytes(item->dtype);
        for (uint64_t j = 0; j < size && !item->value; j++)
            out->data[offsets[i] + j] = elements ? ((const uint8_t *)elements[i])[j] : (uint8_t)(7 * i + j);
    }
    CHECK_OK(paddle_save_write(&samples->content, into_buffer, out, &err));
    free(offsets);
    free(samples->items);
}

static void check_digest(struct buffer *file, uint64_t bytes, const char *expected)
{
    char hex[DIGEST_HEX_MAX];
    struct digest *digest = digest_new(DIGEST_SHA256);
    digest_update(digest, file->data, file->size);
    digest_hex(digest, hex);
    digest_free(digest);
    assert_int_equal(file->size, bytes);
    assert_string_equal(hex, expected);
    buffer_release(file);
}

/* {"w": float32 (2,3), "b": bfloat16 (2,)}, as CPython 3.11 pickles what Paddle gives it. */
TEST(two_arrays)
{
    const float w[] = { 1, 2, 3, 4, 5, 6 };
    const uint16_t b[] = { 0x3F80, 0x4000 };
    static const struct {
        int protocol;
        uint64_t bytes;
        const char *digest;
    } cases[] = { { 4, 321, "2678eb5a0a5e178783041d7a57920835b4303b4551df06f22b6e53b21f072200" },
                  { 5, 295, "c1df02bf252a0eb5a3654c21cdaf91dd3541d927f3e364c57a0a61d081c9e233" } };
    for (size_t i = 0; i < 2; i++) {
        struct samples samples;
        struct buffer file = { 0 };
        samples_make(&samples, 2, cases[i].protocol, false);
        sample_set(&samples, 0, "w", "linear_0.w_0", DTYPE_F32, 2, (int64_t[]){ 2, 3 });
        sample_set(&samples, 1, "b", "linear_0.b_0", DTYPE_BF16, 1, (int64_t[]){ 2 });
        samples_write(&samples, (const void *const[]){ w, b }, &file);
        check_digest(&file, cases[i].bytes, cases[i].digest);
    }
}

/* The sizes at which a payload leaves its frame. */
TEST(payload_of_64_kib_lies_outside_frames)
{
    static const struct {
        int protocol;
        int64_t elements;
        uint64_t bytes;
        const char *digest;
    } cases[] = {
        { 4, 16383, 131322, "daa2201460a4dc8ff715e758b8bf7d9aa86c209e0f4dc292c01a5460b36b6662" },
        { 4, 16384, 131330, "50f9090fbfc9b9d6a406aaa0789742052f6b2f0082580b579d981c0fc57a825e" },
        { 4, 16385, 131338, "29a1d031993ceb162b7b55f9f2d5713defd3d82265219e0c29de4a1f13d22274" },
        { 5, 16383, 131290, "05231c9c68a49a3d6f9f93710d272977e44a76863a005c0976ba65b9a3cbecce" },
        { 5, 16384, 131298, "5e9138332f19ff70417adbf6a312124c5b26142a9e9ac5efe16b1fab0837583b" },
        { 5, 16385, 131306, "c69102fe2d4fd2549020b4d1cace7c9cbddd09cf712a4a8fac735cd0a11786d2" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct samples samples;
        struct buffer file = { 0 };
        samples_make(&samples, 2, cases[i].protocol, true);
        sample_set(&samples, 0, "w", "", DTYPE_F32, 1, &cases[i].elements);
        sample_set(&samples, 1, "v", "", DTYPE_F32, 1, &cases[i].elements);
        samples_write(&samples, NULL, &file);
        check_digest(&file, cases[i].bytes, cases[i].digest);
    }
}

/* Every type, empty arrays, ranks 0 to 4; batches of 1000 that end even and odd; frames in between. */
TEST(many_arrays)
{
    static const enum dtype types[] = { DTYPE_BOOL, DTYPE_U8,  DTYPE_I8,  DTYPE_I16,  DTYPE_I32,  DTYPE_I64,     DTYPE_F16,
                                        DTYPE_F32,  DTYPE_F64, DTYPE_C64, DTYPE_C128, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2 };
    static const struct {
        uint64_t count;
        int protocol;
        uint64_t bytes;
        const char *digest;
    } cases[] = {
        { 0, 4, 47, "17cf1824e5cac7e82618e9555f164465a7b45ad976aa106ed4bf6092d3daa32e" },
        { 1, 4, 208, "cf5bb7b9a79639418599d18ace0d09cb986692ef555446337311b8292800320a" },
        { 14, 4, 2035, "30a42d4bd667e5f964383a167beaab0aab0b30f539949c79fd56c69fc4441279" },
        { 999, 4, 811719, "7cdb0efedbc05886de414c305337294d1ee1c7003d7c69f468185eda508f219b" },
        { 1000, 4, 811799, "f8f998f78b5444ddbbf628fc8ecf35629b579783997cbc6e339d3b20187f4f18" },
        { 1001, 4, 811861, "eaf8a2fba7fcb5725225a642800167eec97942a150e10643a98a39d8c7abc059" },
        { 2500, 4, 2065059, "d9161de35483b0942b84507891d781630f9a9fba2bbdde1115ddbecdf5ba4628" },
        { 999, 5, 806300, "4baa4bc5e89517ab2fd12bac7b6e3ffad8d422c8e213a4e9c6a31dd0de506530" },
        { 2500, 5, 2051596, "0048d7e044a056d224240984eb18628cbaf707320964794e5d444b3282be3405" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct samples samples;
        struct buffer file = { 0 };
        samples_make(&samples, cases[i].count, cases[i].protocol, true);
        for (uint64_t j = 0; j < cases[i].count; j++) {
            char key[32], name[32];
            int64_t shape[4] = { 2 + (int64_t)j % 3, 2, 1 + (int64_t)j % 300, j % 5 == 4 ? 0 : 1 };
            int rank = (int)(j % 5);
            snprintf(key, sizeof(key), "layers.%d.weight", (int)j);
            snprintf(name, sizeof(name), j % 2 ? "linear_%d.w_0" : "", (int)j);
            sample_set(&samples, j, key, name, rank ? types[j % 14] : DTYPE_F32, rank, shape);
        }
        samples_write(&samples, NULL, &file);
        check_digest(&file, cases[i].bytes, cases[i].digest);
    }
}

/* Other members ride along, shared parts of one are shared, and the table does not name them. */
TEST(values_beside_arrays)
{
    struct samples samples;
    struct buffer file = { 0 };
    struct value_graph graph = { 0 }, read = { 0 };
    struct value *name = value_new_str(&graph, STR("cosine")), *bytes = value_new(&graph, VALUE_BYTES);
    bytes->text = STR("\0\xFF");
    struct value **parts = arena_alloc(&graph.arena, 4 * sizeof(*parts));
    parts[0] = parts[1] = name;
    parts[2] = bytes;
    parts[3] = value_new_list(&graph, VALUE_SET, &parts[0], 1);
    samples_make(&samples, 4, 4, true);
    sample_set(&samples, 0, "w", "", DTYPE_F32, 1, (int64_t[]){ 3 });
    sample_set(&samples, 1, "LR_Scheduler", "", DTYPE_F32, 0, NULL);
    samples.items[1].value = value_new_list(&graph, VALUE_LIST, parts, 4);
    sample_set(&samples, 2, "again", "", DTYPE_F32, 0, NULL);
    samples.items[2].value = name;
    sample_set(&samples, 3, "v", "", DTYPE_I64, 1, (int64_t[]){ 1 });
    samples.items[1].graph_count = samples.items[2].graph_count = graph.count;
    samples_write(&samples, NULL, &file);
    struct pickle_report report;
    CHECK_OK(pickle_parse(file.data, file.size, 0, &limits_default, &read, &report, &err));
    struct value *list = value_dict_get(read.root, "LR_Scheduler"), *table = value_dict_get(read.root, "StructuredToParameterName@@");
    assert_int_equal(list->list.count, 4);
    assert_true(value_equal(list->list.items[0], name) && value_equal(list->list.items[1], name));
    assert_true(list->list.items[2]->kind == VALUE_BYTES && str_equal(list->list.items[2]->text, bytes->text));
    assert_true(value_is_call(list->list.items[3], "builtins", "set"));
    assert_true(value_equal(value_dict_get(read.root, "again"), name));
    assert_int_equal(table->list.count, 4);
    assert_int_equal(report.protocol, 4);
    assert_non_null(value_dict_get(table, "w"));
    assert_non_null(value_dict_get(table, "v"));
    value_graph_release(&read);
    value_graph_release(&graph);
    buffer_release(&file);
}

TEST(types_that_paddle_lacks_are_refused)
{
    struct samples samples;
    samples_make(&samples, 1, 4, true);
    sample_set(&samples, 0, "w", "", DTYPE_U32, 1, (int64_t[]){ 3 });
    CHECK_FAILS(paddle_save_plan(&samples.content, NULL, NULL, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "U32"));
    free(samples.items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_arrays),           cmocka_unit_test(payload_of_64_kib_lies_outside_frames), cmocka_unit_test(many_arrays),
        cmocka_unit_test(values_beside_arrays), cmocka_unit_test(types_that_paddle_lacks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
