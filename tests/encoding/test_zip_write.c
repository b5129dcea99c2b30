/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32.h"
#include "base/cursor.h"
#include "encoding/zip.h"

#include "check.h"

#define FOUR_GIB (UINT64_C(1) << 32)
#define BIG UINT64_C(0xFFFFFFFF)

static reshard_error err;

/* The whole archive in memory, for small members. */
static void write_archive(struct zip_plan_member *members, const struct str *contents, uint32_t count, uint32_t alignment,
                          struct buffer *out)
{
    uint64_t directory_offset, archive_bytes;
    for (uint32_t i = 0; i < count; i++) {
        members[i].bytes = contents[i].size;
        members[i].crc32 = crc32_zip(0, contents[i].data, contents[i].size);
    }
    CHECK_OK(zip_plan(members, count, alignment, &directory_offset, &archive_bytes, &err));
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(out->size, members[i].header_offset);
        zip_write_header(&members[i], alignment, out);
        assert_int_equal(out->size, members[i].payload_offset);
        buffer_append_str(out, contents[i]);
        assert_int_equal(out->size, members[i].descriptor_offset);
        zip_write_descriptor(&members[i], out);
    }
    assert_int_equal(out->size, directory_offset);
    zip_write_directory(members, count, directory_offset, out);
    assert_int_equal(out->size, archive_bytes);
    assert_false(out->failed);
}

TEST(what_is_written_is_read_back_at_every_alignment)
{
    static const struct str names[] = { STR("top/data.pkl"), STR("top/empty"), STR("top/data/0"), STR("top/\xc3\xa9"), STR("top/version") };
    static const struct str contents[] = { STR("a pickle"), STR(""), STR("0123456789012345678901234567890123456789"), STR("x"),
                                           STR("3\n") };
    enum { COUNT = 5 };
    for (uint32_t alignment = 1; alignment <= 32768; alignment *= 2) {
        struct zip_plan_member members[COUNT] = { 0 };
        struct buffer bytes = { 0 };
        struct zip_archive archive = { 0 };
        for (int i = 0; i < COUNT; i++)
            members[i].name = names[i];
        write_archive(members, contents, COUNT, alignment, &bytes);
        struct reader reader = reader_over_memory(bytes.data, bytes.size, "archive");
        CHECK_OK(zip_open(&reader, &limits_default, &archive, &err));
        assert_int_equal(archive.member_count, COUNT);
        assert_true(str_is(archive.top, "top"));
        for (int i = 0; i < COUNT; i++) {
            struct buffer content = { 0 };
            assert_int_equal(members[i].payload_offset % alignment, 0);
            assert_int_equal(archive.members[i].payload_offset, members[i].payload_offset);
            CHECK_OK(zip_read_member(&reader, &archive, &archive.members[i], &limits_default, &content, &err));
            assert_true(str_equal(buffer_str(&content), contents[i]));
            buffer_release(&content);
        }
        zip_release(&archive);
        buffer_release(&bytes);
    }
}

/* Spec torch-file.md 2.1 and 2.2: torch's own offsets for the file x.pt. */
TEST(offsets_are_those_that_torch_writes)
{
    static const struct {
        const char *name;
        uint64_t bytes, header, payload;
    } cases[] = {
        { "x/data.pkl", 418, 0, 64 },
        { "x/.format_version", 1, 498, 576 },
        { "x/.storage_alignment", 2, 593, 704 },
        { "x/byteorder", 6, 722, 768 },
        { "x/data/0", 24, 790, 832 },
        { "x/data/1", 6, 872, 960 },
        { "x/data/2", 0, 982, 1024 },
        { "x/data/3", 4, 1024, 1088 },
        { "x/version", 2, 1108, 1152 },
        { "x/.data/serialization_id", 40, 1170, 1280 },
    };
    enum { COUNT = sizeof(cases) / sizeof(cases[0]) };
    struct zip_plan_member members[COUNT] = { 0 };
    uint64_t directory_offset, archive_bytes;
    for (int i = 0; i < COUNT; i++) {
        members[i].name = str_of(cases[i].name);
        members[i].bytes = cases[i].bytes;
    }
    CHECK_OK(zip_plan(members, COUNT, 64, &directory_offset, &archive_bytes, &err));
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(members[i].header_offset, cases[i].header);
        assert_int_equal(members[i].payload_offset, cases[i].payload);
    }
    assert_int_equal(directory_offset, 1336);
    assert_int_equal(archive_bytes, 2017);
}

static struct buffer load(const char *name)
{
    struct buffer bytes = { 0 };
    char path[1024], step[4096];
    snprintf(path, sizeof(path), "%s/torch-file/%s/ckpt.pt", test_fixtures(), name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (size_t got; (got = fread(step, 1, sizeof(step), file)) > 0;)
        assert_true(buffer_append(&bytes, step, got));
    fclose(file);
    return bytes;
}

TEST(the_members_of_a_torch_file_make_the_same_file_again)
{
    static const struct {
        const char *name;
        uint32_t alignment;
    } cases[] = {
        { "torch-file-plain", 64 }, { "torch-file-buffer", 64 }, { "torch-file-align-1", 1 }, { "torch-file-align-4096", 4096 },
        { "torch-file-many", 64 },  { "torch-file-scalars-empties", 64 }, { "torch-file-renamed", 64 }, { "torch-file-training", 64 },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct buffer original = load(cases[c].name), copy = { 0 };
        struct reader reader = reader_over_memory(original.data, original.size, cases[c].name);
        struct zip_archive archive = { 0 };
        CHECK_OK(zip_open(&reader, &limits_default, &archive, &err));
        struct zip_plan_member *members = calloc(archive.member_count, sizeof(*members));
        struct str *contents = calloc(archive.member_count, sizeof(*contents));
        for (uint32_t i = 0; i < archive.member_count; i++) {
            members[i].name = archive.members[i].name;
            contents[i] = (struct str){ (const char *)original.data + archive.members[i].payload_offset, (size_t)archive.members[i].bytes };
        }
        write_archive(members, contents, archive.member_count, cases[c].alignment, &copy);
        if (!str_equal(buffer_str(&copy), buffer_str(&original)))
            fail_msg("%s: %zu bytes became %zu other bytes", cases[c].name, original.size, copy.size);
        free(members);
        free(contents);
        zip_release(&archive);
        buffer_release(&original);
        buffer_release(&copy);
    }
}

static void assert_bytes(const struct buffer *found, const char *expected_hex)
{
    struct buffer hex = { 0 };
    for (size_t i = 0; i < found->size; i++)
        buffer_printf(&hex, "%02x", found->data[i]);
    buffer_append_byte(&hex, 0);
    assert_string_equal((const char *)hex.data, expected_hex);
    buffer_release(&hex);
}

TEST(headers_hold_the_bytes_that_torch_writes)
{
    struct zip_plan_member member = { .name = STR("t/a"), .bytes = 5, .crc32 = 0x12345678, .header_offset = 0x100 };
    struct buffer out = { 0 };
    zip_write_header(&member, 16, &out); /* ends at 0x100 + 30 + 3 + 4 = 0x125: 11 bytes of padding */
    assert_bytes(&out, "504b0304"
                       "0000" "0808" "0000" "00000000" "00000000" "00000000" "00000000" "0300" "0f00"
                       "742f61" "46420b00" "5a5a5a5a5a5a5a5a5a5a5a");
    buffer_clear(&out);
    zip_write_descriptor(&member, &out);
    assert_bytes(&out, "504b0708" "78563412" "05000000" "05000000");
    buffer_clear(&out);
    member.bytes = 0;
    zip_write_header(&member, 1, &out);
    assert_bytes(&out, "504b0304" "0000" "0008" "0000" "00000000" "00000000" "00000000" "00000000" "0300" "0400" "742f61" "46420000");
    buffer_clear(&out);
    zip_write_descriptor(&member, &out);
    assert_int_equal(out.size, 0);
    member.bytes = 5;
    zip_write_directory(&member, 1, 0x200, &out);
    assert_bytes(&out, "504b0102" "0000" "0000" "0808" "0000" "00000000" "78563412" "05000000" "05000000" "0300" "0000" "0000" "0000" "0000"
                       "00000000" "00010000" "742f61"
                       "504b0606" "2c00000000000000" "1e03" "2d00" "00000000" "00000000" "0100000000000000" "0100000000000000"
                       "3100000000000000" "0002000000000000"
                       "504b0607" "00000000" "3102000000000000" "01000000"
                       "504b0506" "0000" "0000" "0100" "0100" "31000000" "00020000" "0000");
    buffer_release(&out);
}

/* The chain observed in spec 3, and the limit value itself. */
TEST(big_members_and_offsets_take_the_zip64_form)
{
    struct zip_plan_member members[3] = { { .name = STR("archive/data/0"), .bytes = FOUR_GIB + 100 },
                                          { .name = STR("archive/version"), .bytes = 2 },
                                          { .name = STR("archive/empty"), .bytes = 0 } };
    uint64_t directory_offset, archive_bytes;
    struct buffer out = { 0 };
    CHECK_OK(zip_plan(members, 3, 64, &directory_offset, &archive_bytes, &err));
    zip_write_header(&members[0], 64, &out);
    assert_int_equal(out.size, members[0].payload_offset);
    assert_memory_equal(out.data + 28, "\x54\x00", 2); /* 4 + 16 + 4 + 60 of padding */
    assert_memory_equal(out.data + 44, "\x01\x00\x10\x00\x64\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0FB", 22);
    buffer_clear(&out);
    zip_write_descriptor(&members[0], &out);
    assert_int_equal(out.size, 24);
    assert_memory_equal(out.data + 8, "\x64\0\0\0\x01\0\0\0\x64\0\0\0\x01\0\0\0", 16);
    buffer_clear(&out);
    assert_int_equal(members[1].header_offset, members[0].payload_offset + FOUR_GIB + 100 + 24);
    zip_write_header(&members[1], 64, &out);
    assert_memory_equal(out.data + 45, "\x01\x00\x08\x00", 4);
    assert_int_equal(load_le(out.data + 49, 8), members[1].header_offset);
    assert_int_equal(members[1].payload_offset % 64, 0);
    buffer_clear(&out);
    zip_write_descriptor(&members[1], &out);
    assert_int_equal(out.size, 24); /* small, but past 4 GiB */
    buffer_clear(&out);
    zip_write_descriptor(&members[2], &out);
    assert_int_equal(out.size, 0);
    zip_write_directory(members, 3, directory_offset, &out);
    assert_int_equal(out.size, archive_bytes - directory_offset);
    const uint8_t *end = out.data + out.size - 22;
    assert_int_equal(load_le(end + 16, 4), BIG);
    assert_int_equal(load_le(end + 10, 2), 3);
    buffer_release(&out);

    struct zip_plan_member edge[2] = { { .name = STR("a/b"), .bytes = BIG - 1 }, { .name = STR("a/c"), .bytes = BIG } };
    CHECK_OK(zip_plan(edge, 2, 64, &directory_offset, &archive_bytes, &err));
    assert_int_equal(edge[1].header_offset, edge[0].descriptor_offset + 16);
    assert_int_equal(directory_offset, edge[1].descriptor_offset + 24);
}

/* A sparse archive of more than 4 GiB through a reader that gives zeros where nothing was written. */
struct sparse {
    struct buffer pieces[8];
    uint64_t offsets[8];
    int count;
};

static reshard_status sparse_read(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *error)
{
    const struct sparse *sparse = reader->context;
    (void)error;
    memset(out, 0, size);
    for (int i = 0; i < sparse->count; i++) {
        for (size_t j = 0; j < sparse->pieces[i].size; j++) {
            uint64_t at = sparse->offsets[i] + j;
            if (at >= offset && at - offset < size)
                ((uint8_t *)out)[at - offset] = sparse->pieces[i].data[j];
        }
    }
    return RESHARD_OK;
}

TEST(an_archive_beyond_four_gib_is_read_back)
{
    struct zip_plan_member members[3] = { { .name = STR("a/data.pkl"), .bytes = 3, .crc32 = 1 },
                                          { .name = STR("a/data/0"), .bytes = 2 * FOUR_GIB + 1 },
                                          { .name = STR("a/version"), .bytes = 2, .crc32 = 2 } };
    uint64_t directory_offset, archive_bytes;
    struct sparse sparse = { .count = 7 };
    CHECK_OK(zip_plan(members, 3, 64, &directory_offset, &archive_bytes, &err));
    for (int i = 0; i < 3; i++) {
        sparse.offsets[2 * i] = members[i].header_offset;
        zip_write_header(&members[i], 64, &sparse.pieces[2 * i]);
        sparse.offsets[2 * i + 1] = members[i].descriptor_offset;
        zip_write_descriptor(&members[i], &sparse.pieces[2 * i + 1]);
    }
    sparse.offsets[6] = directory_offset;
    zip_write_directory(members, 3, directory_offset, &sparse.pieces[6]);
    struct reader reader = { .read_at = sparse_read, .size = archive_bytes, .context = &sparse };
    struct zip_archive archive = { 0 };
    CHECK_OK(zip_open(&reader, &limits_default, &archive, &err));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(archive.members[i].payload_offset, members[i].payload_offset);
        assert_int_equal(archive.members[i].header_offset, members[i].header_offset);
        assert_int_equal(archive.members[i].bytes, members[i].bytes);
        assert_int_equal(archive.members[i].crc32, members[i].crc32);
    }
    zip_release(&archive);
    for (int i = 0; i < sparse.count; i++)
        buffer_release(&sparse.pieces[i]);
}

TEST(plans_that_no_archive_can_hold_are_refused)
{
    static char long_name[70000];
    memset(long_name, 'a', sizeof(long_name));
    uint64_t directory_offset, archive_bytes;
    struct zip_plan_member member = { .name = STR("a/b"), .bytes = 1 };
    CHECK_FAILS(zip_plan(&member, 1, 0, &directory_offset, &archive_bytes, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(zip_plan(&member, 1, 48, &directory_offset, &archive_bytes, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(zip_plan(&member, 1, 65536, &directory_offset, &archive_bytes, &err), RESHARD_ERR_USAGE);
    member.bytes = UINT64_MAX - 10;
    CHECK_FAILS(zip_plan(&member, 1, 64, &directory_offset, &archive_bytes, &err), RESHARD_ERR_UNSUPPORTED);
    member = (struct zip_plan_member){ .name = { long_name, sizeof(long_name) } };
    CHECK_FAILS(zip_plan(&member, 1, 64, &directory_offset, &archive_bytes, &err), RESHARD_ERR_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back_at_every_alignment),
        cmocka_unit_test(offsets_are_those_that_torch_writes),
        cmocka_unit_test(the_members_of_a_torch_file_make_the_same_file_again),
        cmocka_unit_test(headers_hold_the_bytes_that_torch_writes),
        cmocka_unit_test(big_members_and_offsets_take_the_zip64_form),
        cmocka_unit_test(an_archive_beyond_four_gib_is_read_back),
        cmocka_unit_test(plans_that_no_archive_can_hold_are_refused),
    };
    return cmocka_run_group_tests_name("zip_write", tests, NULL, NULL);
}
