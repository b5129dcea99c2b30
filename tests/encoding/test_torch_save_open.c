/* SPDX-License-Identifier: Apache-2.0 */
/* The three containers, from small hand-made bytes, and under lack of memory. Whole files of the real library run in the fixture tests. */
#include "torch_blob.h"

#include "encoding/torch_save_parts.h"
#include "fail_malloc.h"

static reshard_error err;

/* ---- a legacy stream of {'w': two floats} ---- */

static const char legacy_magic[] = "\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19.";

struct legacy_change {
    const char *version, *keys;
    int64_t elements;
    const char *tail;
};

static void put_bytes(struct buffer *out, const char *bytes, size_t size)
{
    assert_true(buffer_append(out, bytes, size));
}

#define PUT(out, literal) put_bytes(out, literal, sizeof(literal) - 1)

static void legacy_make(const struct legacy_change *change, struct buffer *out)
{
    PUT(out, legacy_magic);
    put_bytes(out, change->version, strlen(change->version));
    PUT(out, "\x80\x02}.");
    PUT(out, "\x80\x02}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\2\0\0\0"
             "10X\3\0\0\0cpuK\2NtQ"
             "K\0K\2\x85K\1\x85\x89}tRs.");
    put_bytes(out, change->keys, strlen(change->keys));
    buffer_append_u64le(out, (uint64_t)change->elements);
    PUT(out, "\0\0\x80?\0\0\0@");
    put_bytes(out, change->tail, strlen(change->tail));
}

#define LEGACY_GOOD { "M\xE9\3.", "]U\2" "10a.", 2, "" }

TEST(legacy_streams_say_what_is_wrong)
{
    static const struct {
        struct legacy_change change;
        reshard_status status;
        const char *message;
    } cases[] = {
        { LEGACY_GOOD, RESHARD_OK, NULL },
        { { "M\xE9\3.", "]U\2" "10a.", 2, "tail" }, RESHARD_OK, NULL },
        { { "M\xEA\3.", "]U\2" "10a.", 2, "" }, RESHARD_ERR_FORMAT, "legacy protocol version 1002 is not known" },
        { { "N.", "]U\2" "10a.", 2, "" }, RESHARD_ERR_FORMAT, "is not known" },
        { { "M\xE9\3.", "]U\2" "11a.", 2, "" }, RESHARD_ERR_FORMAT, "storage key 11 is not in the pickle" },
        { { "M\xE9\3.", "].", 2, "" }, RESHARD_ERR_FORMAT, "storage 10 has no data" },
        { { "M\xE9\3.", "]K\x0A" "a.", 2, "" }, RESHARD_ERR_FORMAT, "storage key is not a string" },
        { { "M\xE9\3.", "}.", 2, "" }, RESHARD_ERR_FORMAT, "list of storage keys is a dict" },
        { { "M\xE9\3.", "]U\2" "10a.", 3, "" }, RESHARD_ERR_FORMAT, "storage 10 has 3 elements" },
        { { "M\xE9\3.", "]U\2" "10a.", -1, "" }, RESHARD_ERR_FORMAT, "negative size" },
        { { "M\xE9\3.", "]U\2" "10a.", INT64_MAX, "" }, RESHARD_ERR_FORMAT, "storage 10 has" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer file = { 0 };
        struct torch_archive archive;
        legacy_make(&cases[i].change, &file);
        struct reader reader = reader_over_memory(file.data, file.size, "legacy");
        err = (reshard_error){ 0 };
        reshard_status status = torch_save_open(&reader, &limits_default, -1, &archive, &err);
        if (status != cases[i].status)
            fail_msg("case %zu: status %d: %s", i, status, err.message);
        if (cases[i].message && !strstr(err.message, cases[i].message))
            fail_msg("case %zu: '%s' lacks '%s'", i, err.message, cases[i].message);
        if (!status) {
            assert_int_equal(archive.container, TORCH_LEGACY);
            assert_int_equal(archive.tensor_count, 1);
            assert_memory_equal(file.data + archive.storages[0].offset, "\0\0\x80?\0\0\0@", 8);
            assert_int_equal(archive.warning_count, cases[i].change.tail[0] ? 1 : 0);
            torch_save_release(&archive);
        }
        buffer_release(&file);
    }
}

/* ---- a tar of the same ---- */

static void tar_member(struct buffer *out, const char *name, const struct buffer *content)
{
    uint8_t block[512] = { 0 };
    unsigned sum = 0;
    snprintf((char *)block, 100, "%s", name);
    snprintf((char *)block + 124, 12, "%011zo", content->size);
    memset(block + 148, ' ', 8);
    block[156] = '0';
    memcpy(block + 257, "ustar\0" "00", 8);
    for (size_t i = 0; i < sizeof(block); i++)
        sum += block[i];
    snprintf((char *)block + 148, 8, "%06o", sum);
    buffer_append(out, block, sizeof(block));
    buffer_append(out, content->data, content->size);
    buffer_append_fill(out, 0, (512 - content->size % 512) % 512);
}

static void tar_make(int64_t offset, const char *views, struct buffer *out)
{
    struct buffer storages = { 0 }, tensors = { 0 }, pickle = { 0 };
    PUT(&storages, "\x80\x02K\1.\x80\x02K\1U\3cpuctorch\nFloatStorage\n\x87.");
    buffer_append_u64le(&storages, 3);
    PUT(&storages, "\0\0\x80?\0\0\0@\0\0@@");
    put_bytes(&storages, views, strlen(views));
    PUT(&tensors, "\x80\x02K\1.\x80\x02K\7K\1ctorch\nFloatTensor\n\x87.\1\0\0\0\0\0\0\0");
    buffer_append_u64le(&tensors, 2);
    buffer_append_u64le(&tensors, 1);
    buffer_append_u64le(&tensors, (uint64_t)offset);
    PUT(&pickle, "\x80\x02}U\1wU\1" "7Qs.");
    tar_member(out, "storages", &storages);
    tar_member(out, "tensors", &tensors);
    tar_member(out, "pickle", &pickle);
    buffer_append_fill(out, 0, 1024);
    buffer_release(&storages);
    buffer_release(&tensors);
    buffer_release(&pickle);
}

/* However far the file goes on behind what is read at a time: it is said how much of the string there is. */
TEST(a_legacy_stream_that_ends_inside_a_string_says_how_much_follows)
{
    static const size_t there[] = { 10, 65000, 66000, 100000, 199999 };
    for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++) {
        struct buffer file = { 0 };
        struct torch_archive archive;
        char expected[80];
        PUT(&file, legacy_magic);
        PUT(&file, "M\xE9\3.\x80\x02}.\x80\x02X");
        buffer_append_u32le(&file, 200000);
        buffer_append_fill(&file, 'y', there[i]);
        struct reader reader = reader_over_memory(file.data, file.size, "legacy");
        CHECK_FAILS(torch_save_open(&reader, &limits_default, -1, &archive, &err), RESHARD_ERR_FORMAT);
        snprintf(expected, sizeof(expected), "a string of 200000 bytes, but only %zu follow", there[i]);
        if (!strstr(err.message, expected))
            fail_msg("%zu bytes: %s", there[i], err.message);
        buffer_release(&file);
    }
}

TEST(tars_are_read_in_place)
{
    static const struct {
        int64_t offset;
        const char *views;
        reshard_status status;
    } cases[] = {
        { 1, "].", RESHARD_OK },
        { 2, "].", RESHARD_ERR_FORMAT },
        { -1, "].", RESHARD_ERR_FORMAT },
        { 0, "](K\2K\1K\1K\2ta.", RESHARD_OK },
        { 0, "](K\2K\1K\2K\2ta.", RESHARD_ERR_FORMAT },
        { 0, "](K\2K\11K\1K\2ta.", RESHARD_ERR_FORMAT },
        { 0, "](K\1K\1K\1K\2ta.", RESHARD_ERR_FORMAT },             /* the root's own key */
        { 0, "](K\2K\1K\1K\2ta(K\2K\1K\1K\2ta.", RESHARD_ERR_FORMAT }, /* twice */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer file = { 0 };
        struct torch_archive archive;
        tar_make(cases[i].offset, cases[i].views, &file);
        struct reader reader = reader_over_memory(file.data, file.size, "tar");
        reshard_status status = torch_save_open(&reader, &limits_default, -1, &archive, &err);
        if (status != cases[i].status)
            fail_msg("case %zu: status %d: %s", i, status, err.message);
        if (!status) {
            const struct torch_tensor *tensor = &archive.tensors[0];
            assert_int_equal(archive.container, TORCH_TAR);
            assert_int_equal(archive.graph.root->list.items[1]->tensor, 1);
            assert_int_equal(tensor->offset_bytes, cases[i].offset * 4);
            assert_memory_equal(file.data + archive.storages[tensor->storage].offset, "\0\0\x80?", 4);
            torch_save_release(&archive);
        }
        buffer_release(&file);
    }
}

/* ---- all ---- */

TEST(first_bytes_tell_the_container)
{
    struct buffer zip = { 0 }, legacy = { 0 }, tar = { 0 };
    enum torch_container container;
    blob_tensor(DTYPE_F32, 1, (int64_t[]){ 2 }, &zip);
    legacy_make(&(struct legacy_change)LEGACY_GOOD, &legacy);
    tar_make(0, "].", &tar);
    const struct buffer *files[] = { &zip, &legacy, &tar };
    for (int i = 0; i < 3; i++) {
        struct reader reader = reader_over_memory(files[i]->data, files[i]->size, "file");
        assert_int_equal(torch_save_probe(&reader, &container, NULL), RESHARD_OK);
        assert_int_equal(container, TORCH_ZIP + i);
    }
    struct reader bare = reader_over_memory("\x80\x02}.", 4, "bare pickle");
    assert_int_equal(torch_save_probe(&bare, &container, NULL), RESHARD_OK);
    assert_int_equal(container, TORCH_NO_CONTAINER);
    struct reader none = reader_over_memory("", 0, "nothing");
    assert_int_equal(torch_save_probe(&none, &container, NULL), RESHARD_OK);
    assert_int_equal(container, TORCH_NO_CONTAINER);
    buffer_release(&zip);
    buffer_release(&legacy);
    buffer_release(&tar);
}

static void open_without_memory(const struct buffer *file)
{
    struct reader reader = reader_over_memory(file->data, file->size, "file");
    struct torch_archive archive;
    unsigned long nth = 0;
    bool was_hit;
    do {
        fail_malloc_at(++nth);
        reshard_status status = torch_save_open(&reader, &limits_default, -1, &archive, &err);
        was_hit = fail_malloc_was_hit();
        if (!status)
            torch_save_release(&archive);
        else if (!was_hit || status != RESHARD_ERR_MEMORY)
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
    } while (was_hit);
    assert_true(nth > 5);
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing)
{
    struct buffer zip = { 0 }, legacy = { 0 }, tar = { 0 };
    blob_tensor(DTYPE_F32, 1, (int64_t[]){ 2 }, &zip);
    legacy_make(&(struct legacy_change)LEGACY_GOOD, &legacy);
    tar_make(0, "](K\2K\1K\1K\2ta.", &tar);
    open_without_memory(&zip);
    open_without_memory(&legacy);
    open_without_memory(&tar);
    buffer_release(&zip);
    buffer_release(&legacy);
    buffer_release(&tar);
}

/* ---- the pickle's meaning ---- */

static struct torch_archive open_pickle(const char *bytes, size_t size, reshard_status expected)
{
    struct buffer pickle = { 0 }, blob = { 0 };
    struct torch_archive archive = { 0 };
    put_bytes(&pickle, bytes, size);
    blob_make("archive", &pickle, (struct blob_storage[]){ { "abcdefgh", 8 } }, 1, 64, &blob);
    struct reader reader = reader_over_memory(blob.data, blob.size, "blob");
    err = (reshard_error){ 0 };
    reshard_status status = torch_save_open(&reader, &limits_default, -1, &archive, &err);
    if (status != expected)
        fail_msg("status %d: %s", status, err.message);
    buffer_release(&blob); /* the archive keeps its own copy of the pickle */
    return archive;
}

#define STORAGE "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" "0X\3\0\0\0cpuK\2tQ"
#define TENSOR "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0K\2\x85K\1\x85\x89}tR"
#define OPEN(literal, expected) open_pickle(literal, sizeof(literal) - 1, expected)

TEST(what_is_named_is_judged_and_never_called)
{
    struct torch_archive archive = OPEN("\x80\x02(cos\nsystem\nU\4true\x85R" TENSOR "cos\nsystem\nt.", RESHARD_OK);
    assert_int_equal(archive.unknown_global_count, 1);
    assert_true(str_is(archive.unknown_globals[0], "os.system"));
    assert_true(str_is(archive.weights_only_blocker, "global os.system"));
    assert_int_equal(archive.graph.root->list.items[1]->tensor, 1);
    torch_save_release(&archive);

    archive = OPEN("\x80\x02(cargparse\nNamespace\n)\x81" TENSOR "t.", RESHARD_OK);
    assert_int_equal(archive.unknown_global_count, 0);
    assert_true(str_is(archive.weights_only_blocker, "global argparse.Namespace"));
    torch_save_release(&archive);

    archive = OPEN("\x80\x02" TENSOR ".", RESHARD_OK);
    assert_int_equal(archive.weights_only_blocker.size, 0);
    torch_save_release(&archive);
}

TEST(wrappers_denote_the_tensor_inside)
{
    struct torch_archive archive = OPEN("\x80\x02" "ctorch._utils\n_rebuild_parameter\n(" TENSOR "\x88}tR.", RESHARD_OK);
    assert_int_equal(archive.tensor_count, 1);
    assert_int_equal(archive.graph.root->tensor, 1);
    assert_int_equal(archive.tensors[0].flags, TORCH_TENSOR_PARAMETER | TORCH_TENSOR_REQUIRES_GRAD);
    torch_save_release(&archive);

    archive = OPEN("\x80\x02" "ctorch\nFloatTensor\n)\x81(" STORAGE "K\0K\2\x85K\1\x85tb.", RESHARD_OK);
    assert_int_equal(archive.graph.root->tensor, 1);
    torch_save_release(&archive);

    archive = OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0K\2\x85K\1\x85\x89}U\4conj\x88stR.", RESHARD_OK);
    assert_int_equal(archive.tensor_count, 0); /* hooks that are not empty: an object */
    assert_true(torch_save_is_tensor_node(archive.graph.root));
    torch_save_release(&archive);

    archive = OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0K\2\x85K\1\x85\x89}}X\3\0\0\0neg\x88stR.", RESHARD_OK);
    assert_int_equal(archive.tensors[0].flags, TORCH_TENSOR_NEG);
    torch_save_release(&archive);
}

TEST(calls_that_cannot_be_right_are_refused)
{
    OPEN("\x80\x02" TENSOR "}b.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02" TENSOR "K\1a.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02K\5)R.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n)R.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(K\1K\0K\2\x85K\1\x85\x89}tR.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0K\3\x85K\1\x85\x89}tR.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02" "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\0\x88\x85K\1\x85\x89}tR.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" "1X\3\0\0\0cpuK\2tQ.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02(X\7\0\0\0storagectorch\nFloatStorage\nX\4\0\0\0../xX\3\0\0\0cpuK\2tQ.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02(" STORAGE "(X\7\0\0\0storagectorch\nLongStorage\nX\1\0\0\0" "0X\3\0\0\0cpuK\1tQt.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02}]K\1s.", RESHARD_ERR_FORMAT);
    OPEN("\x80\x02K\1K\2.", RESHARD_ERR_FORMAT);
}

/* Storages of bytes carry any dtype: their class has had four names in two modules. */
TEST(storages_without_a_type_have_several_names)
{
    static const char *const modules[] = { "torch.storage", "torch" };
    static const char *const names[] = { "UntypedStorage", "_UntypedStorage", "TypedStorage", "_TypedStorage" };
    enum dtype dtype;
    bool is_untyped;
    for (size_t m = 0; m < 2; m++) {
        for (size_t n = 0; n < 4; n++) {
            const struct value global = { .kind = VALUE_GLOBAL, .global = { str_of(modules[m]), str_of(names[n]) } };
            assert_true(torch_storage_class_of(&global, &dtype, &is_untyped) && is_untyped && dtype == DTYPE_U8);
        }
    }
    const struct value typed = { .kind = VALUE_GLOBAL, .global = { STR("torch.cuda"), STR("BFloat16Storage") } };
    assert_true(torch_storage_class_of(&typed, &dtype, &is_untyped) && !is_untyped && dtype == DTYPE_BF16);
    const struct value foreign = { .kind = VALUE_GLOBAL, .global = { STR("evil.storage"), STR("UntypedStorage") } };
    assert_false(torch_storage_class_of(&foreign, &dtype, &is_untyped));
}

TEST(a_storage_class_that_torch_lacks_makes_an_object)
{
    struct torch_archive archive = OPEN("\x80\x02"
                                        "(ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagecevil\nFloatStorage\nX\1\0\0\0"
                                        "0X\3\0\0\0cpuK\2tQ"
                                        "K\0K\2\x85K\1\x85\x89}tR" TENSOR "t.",
                                        RESHARD_OK);
    assert_int_equal(archive.tensor_count, 1);
    assert_int_equal(archive.graph.root->list.items[0]->tensor, 0);
    assert_int_equal(archive.graph.root->list.items[1]->tensor, 1);
    assert_int_equal(archive.storage_count, 2);
    torch_save_release(&archive);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legacy_streams_say_what_is_wrong),
        cmocka_unit_test(a_legacy_stream_that_ends_inside_a_string_says_how_much_follows),
        cmocka_unit_test(tars_are_read_in_place),
        cmocka_unit_test(first_bytes_tell_the_container),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(what_is_named_is_judged_and_never_called),
        cmocka_unit_test(wrappers_denote_the_tensor_inside),
        cmocka_unit_test(calls_that_cannot_be_right_are_refused),
        cmocka_unit_test(storages_without_a_type_have_several_names),
        cmocka_unit_test(a_storage_class_that_torch_lacks_makes_an_object),
    };
    return cmocka_run_group_tests_name("torch_save_open", tests, NULL, NULL);
}
