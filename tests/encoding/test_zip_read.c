/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32.h"
#include "base/cursor.h"
#include "encoding/zip.h"
#include "fail_malloc.h"

#include "check.h"

#include <endian.h>

static reshard_error err;

/* ---- fixtures ---- */

/* The bytes of a case of tests/fixtures/torch-file. */
static struct buffer load(const char *name)
{
    struct buffer bytes = { 0 };
    char path[1024], step[4096];
    size_t got;
    snprintf(path, sizeof(path), "%s/torch-file/%s/ckpt.pt", test_fixtures(), name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s: no such fixture", path);
    while ((got = fread(step, 1, sizeof(step), file)) > 0)
        assert_true(buffer_append(&bytes, step, got));
    fclose(file);
    return bytes;
}

/* A reader that counts what is asked of it. */
struct counted {
    const struct buffer *bytes;
    unsigned calls;
    uint64_t total;
};

static reshard_status counted_read(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *error)
{
    struct counted *counted = (struct counted *)(uintptr_t)reader->context;
    counted->calls++;
    counted->total += size;
    struct reader inner = reader_over_memory(counted->bytes->data, counted->bytes->size, "counted");
    return reader_read(&inner, offset, out, size, error);
}

static struct reader counted_reader(struct counted *counted)
{
    return (struct reader){ .read_at = counted_read, .size = counted->bytes->size, .context = counted, .name = "counted" };
}

static reshard_status open_bytes(const struct buffer *bytes, struct zip_archive *out)
{
    struct reader reader = reader_over_memory(bytes->data, bytes->size, "bytes");
    return zip_open(&reader, &limits_default, out, &err);
}

/* Opens and reads every member in both ways. */
static reshard_status read_all(const struct buffer *bytes)
{
    struct reader reader = reader_over_memory(bytes->data, bytes->size, "bytes");
    struct zip_archive archive = { 0 };
    reshard_status status = zip_open(&reader, &limits_default, &archive, &err);
    for (uint32_t i = 0; i < archive.member_count && !status; i++) {
        struct buffer content = { 0 };
        status = zip_read_member(&reader, &archive, &archive.members[i], &limits_default, &content, &err);
        if (!status)
            assert_int_equal(content.size, archive.members[i].bytes);
        else
            assert_int_equal(content.size, 0);
        reshard_status streamed = zip_check_member(&reader, &archive, &archive.members[i], &limits_default, NULL);
        assert_int_equal(streamed, status);
        buffer_release(&content);
    }
    zip_release(&archive);
    return status;
}

TEST(archives_of_torch_and_of_zip_tools_are_read)
{
    static const char *const names[] = {
        "torch-file-plain",
        "torch-file-align-1",
        "torch-file-align-4096",
        "torch-file-buffer",
        "torch-file-crc-off",
        "torch-file-skip-data",
        "torch-file-many",
        "torch-file-renamed",
        "torch-file-non-ascii-name",
        "torch-file-scalars-empties",
        "odd-torch-file-comment",
        "odd-torch-file-crc-all-zero",
        "odd-torch-file-deflated",
        "odd-torch-file-deflated-all",
        "odd-torch-file-zip64-extra",
        "odd-torch-file-directory-entries",
        "odd-torch-file-rezipped-stored",
        "odd-torch-file-rezipped-deflated",
        "odd-torch-file-zip64-missing",
        "odd-torch-file-unknown-members",
        "odd-torch-file-trailing-bytes",
        "odd-torch-file-alignment-lies",
        "odd-torch-file-upper-case-pickle",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct buffer bytes = load(names[i]);
        reshard_status status = read_all(&bytes);
        if (status)
            fail_msg("%s: status %d: %s", names[i], status, err.message);
        buffer_release(&bytes);
    }
}

TEST(damaged_and_ambiguous_archives_are_refused_where_they_are_wrong)
{
    static const struct {
        const char *name;
        reshard_status expected;
        int64_t offset;
        const char *message;
    } cases[] = {
        { "bad-torch-file-central-offset-wrong", RESHARD_ERR_FORMAT, 1663, "has to end at byte 1587" },
        { "bad-torch-file-central-size-huge", RESHARD_ERR_FORMAT, 1663, "2147483647 bytes" },
        { "bad-torch-file-comment-with-end-record", RESHARD_ERR_FORMAT, 1685, "has to end at byte 1685" },
        { "bad-torch-file-count-too-high", RESHARD_ERR_FORMAT, 1663, "cannot hold them" },
        { "bad-torch-file-count-too-low", RESHARD_ERR_FORMAT, 1450, "137 bytes follow the 6 members" },
        { "bad-torch-file-deflate-garbage", RESHARD_ERR_FORMAT, 641, "invalid deflate data" },
        { "bad-torch-file-deflate-same-size", RESHARD_ERR_FORMAT, 645, "invalid deflate data" },
        { "bad-torch-file-deflate-short", RESHARD_ERR_FORMAT, 640, "less than the 24 bytes" },
        { "bad-torch-file-empty-file", RESHARD_ERR_FORMAT, 0, "too few" },
        { "bad-torch-file-encrypted-both", RESHARD_ERR_UNSUPPORTED, 1330, "encrypted" },
        { "bad-torch-file-strong-encryption-bit", RESHARD_ERR_UNSUPPORTED, 1330, "encrypted" },
        { "bad-torch-file-entry-beyond-file", RESHARD_ERR_FORMAT, 1330, "reach beyond the directory" },
        { "bad-torch-file-entry-offset-beyond-file", RESHARD_ERR_FORMAT, 1330, "reach beyond the directory" },
        { "bad-torch-file-head-missing", RESHARD_ERR_FORMAT, 0, "not with a zip signature" },
        { "bad-torch-file-prefix", RESHARD_ERR_FORMAT, 0, "not with a zip signature" },
        { "bad-torch-file-local-signature", RESHARD_ERR_FORMAT, 335, "local header" },
        { "bad-torch-file-method-unknown", RESHARD_ERR_UNSUPPORTED, 1330, "method 12" },
        { "bad-torch-file-name-too-long", RESHARD_ERR_FORMAT, 1064, "beyond the directory" },
        { "bad-torch-file-truncated-before-central", RESHARD_ERR_FORMAT, 1064, "no end record" },
        { "bad-torch-file-truncated-before-end", RESHARD_ERR_FORMAT, 1587, "no end record" },
        { "bad-torch-file-truncated-in-central", RESHARD_ERR_FORMAT, 1164, "no end record" },
        { "bad-torch-file-truncated-in-end", RESHARD_ERR_FORMAT, 1675, "no end record" },
        { "bad-torch-file-truncated-in-first-header", RESHARD_ERR_FORMAT, 0, "too few" },
        { "bad-torch-file-truncated-in-payload", RESHARD_ERR_FORMAT, 647, "no end record" },
        { "bad-torch-file-truncated-last-byte", RESHARD_ERR_FORMAT, 1684, "no end record" },
        { "bad-torch-file-two-archives", RESHARD_ERR_FORMAT, 1479, "zip64" },
        { "bad-torch-file-zip64-count-differs", RESHARD_ERR_FORMAT, 1587, "disagree on the number of members" },
        { "bad-torch-file-zip64-offset-differs", RESHARD_ERR_FORMAT, 1587, "disagree on the directory's offset" },
        { "bad-torch-file-zip64-extra-absent", RESHARD_ERR_FORMAT, 1330, "there is no zip64 field" },
        { "bad-torch-file-zip64-extra-huge", RESHARD_ERR_FORMAT, 1330, "reach beyond the directory" },
        { "bad-torch-file-zip64-extra-short", RESHARD_ERR_FORMAT, 1330, "too short" },
        { "bad-torch-file-zip64-locator-beyond", RESHARD_ERR_FORMAT, 1643, "zip64 locator" },
        { "odd-torch-file-zip64-locator-zero", RESHARD_ERR_FORMAT, 0, "zip64 locator" },
        { "odd-torch-file-bit-flip-in-data", RESHARD_ERR_FORMAT, 640, "CRC-32" },
        { "odd-torch-file-bit-flip-in-pickle", RESHARD_ERR_FORMAT, 64, "CRC-32" },
        { "odd-torch-file-crc-wrong", RESHARD_ERR_FORMAT, 640, "recorded is 12345678" },
        { "odd-torch-file-deflate-bomb", RESHARD_ERR_LIMIT, -1, "inflate_ratio" },
        { "odd-torch-file-deflate-long", RESHARD_ERR_FORMAT, 640, "more than the 24 bytes" },
        { "odd-torch-file-duplicate-by-case", RESHARD_ERR_FORMAT, 1064, "differ only in case" },
        { "odd-torch-file-duplicate-pickle", RESHARD_ERR_FORMAT, 1064, "occurs twice" },
        { "odd-torch-file-duplicate-record", RESHARD_ERR_FORMAT, 1064, "occurs twice" },
        { "odd-torch-file-encrypted-local", RESHARD_ERR_FORMAT, 582, "encryption flags" },
        { "odd-torch-file-extra-field-overruns", RESHARD_ERR_FORMAT, 1330, "extra field" },
        { "odd-torch-file-local-method-differs", RESHARD_ERR_FORMAT, 582, "method 8, the directory says 0" },
        { "odd-torch-file-local-name-differs", RESHARD_ERR_FORMAT, 582, "archive/data/9" },
        { "odd-torch-file-local-name-differs-in-length", RESHARD_ERR_FORMAT, 582, "archive/data/0000" },
        { "odd-torch-file-local-size-differs", RESHARD_ERR_FORMAT, 582, "the directory says 24" },
        { "odd-torch-file-multi-disk", RESHARD_ERR_UNSUPPORTED, 1663, "several disks" },
        { "odd-torch-file-nul-in-name", RESHARD_ERR_FORMAT, 1064, "holds a NUL" },
        { "odd-torch-file-overlapping-entries", RESHARD_ERR_FORMAT, 582, "overlaps" },
        { "odd-torch-file-path-escape-member", RESHARD_ERR_FORMAT, 1064, "leaves the archive" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = load(cases[i].name);
        reshard_status status = read_all(&bytes);
        if (status != cases[i].expected || err.offset != cases[i].offset || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d at %ld: %s", cases[i].name, status, (long)err.offset, err.message);
        buffer_release(&bytes);
    }
}

TEST(every_cut_of_an_archive_is_refused)
{
    struct buffer bytes = load("torch-file-plain");
    size_t whole = bytes.size;
    for (bytes.size = 0; bytes.size < whole; bytes.size++)
        assert_int_equal(read_all(&bytes), RESHARD_ERR_FORMAT);
    bytes.size = whole;
    CHECK_OK(read_all(&bytes));
    buffer_release(&bytes);
}

/* Whatever bit is flipped: no crash, and content is right or refused. Names, times and paddings may change unseen. */
TEST(flipped_bits_never_change_content_unseen)
{
    struct buffer bytes = load("torch-file-plain"), before = { 0 };
    struct reader reader = reader_over_memory(bytes.data, bytes.size, "bytes");
    struct zip_archive archive = { 0 };
    CHECK_OK(zip_open(&reader, &limits_default, &archive, &err));
    CHECK_OK(zip_read_member(&reader, &archive, zip_find(&archive, STR("data.pkl")), &limits_default, &before, &err));
    zip_release(&archive);
    for (size_t bit = 0; bit < bytes.size * 8; bit++) {
        bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct buffer after = { 0 };
        if (!zip_open(&reader, &limits_default, &archive, NULL)) {
            const struct zip_member *member = zip_find(&archive, STR("data.pkl"));
            if (member && !zip_read_member(&reader, &archive, member, &limits_default, &after, NULL))
                assert_true(str_equal(buffer_str(&after), buffer_str(&before)));
            zip_release(&archive);
        }
        buffer_release(&after);
        bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    buffer_release(&before);
    buffer_release(&bytes);
}

TEST(members_are_found_below_the_top_directory)
{
    static const char *const names[] = { "torch-file-plain", "torch-file-many" }; /* few and many members */
    for (int i = 0; i < 2; i++) {
        struct buffer bytes = load(names[i]);
        struct zip_archive archive = { 0 };
        CHECK_OK(open_bytes(&bytes, &archive));
        assert_true(str_is(archive.top, "ckpt"));
        assert_non_null(zip_find(&archive, STR("data.pkl")));
        assert_true(str_is(zip_find(&archive, STR("data/1"))->name, "ckpt/data/1"));
        assert_null(zip_find(&archive, STR("DATA.PKL")));
        assert_null(zip_find(&archive, STR("ckpt/data.pkl")));
        assert_null(zip_find(&archive, STR("")));
        for (uint32_t m = 0; m < archive.member_count; m++) {
            struct str name = archive.members[m].name;
            assert_ptr_equal(zip_find(&archive, (struct str){ name.data + 5, name.size - 5 }), &archive.members[m]);
            assert_int_equal(archive.members[m].payload_offset % 64, 0);
        }
        zip_release(&archive);
        buffer_release(&bytes);
    }
}

/* An archive of members of a byte each, the number of the member; the names repeat. */
static struct buffer numbered_archive(const char *const *names, uint32_t name_count, uint32_t count)
{
    struct zip_plan_member members[64] = { 0 };
    struct buffer bytes = { 0 };
    uint64_t directory, size;
    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t content = (uint8_t)i;
        members[i] = (struct zip_plan_member){ .name = str_of(names[i % name_count]), .bytes = 1, .crc32 = crc32_zip(0, &content, 1) };
    }
    CHECK_OK(zip_plan(members, count, 1, &directory, &size, &err));
    for (uint32_t i = 0; i < count; i++) {
        zip_write_header(&members[i], 1, &bytes);
        buffer_append_byte(&bytes, (uint8_t)i);
        zip_write_descriptor(&members[i], &bytes);
    }
    zip_write_directory(members, count, directory, &bytes);
    return bytes;
}

/* As Python's zipfile has it, with which zarr-python appends; whoever else opens such an archive refuses it. */
TEST(the_last_member_of_a_name_counts_where_archives_are_appended_to)
{
    static const char *const names[] = { "a/w", "a/W" };
    static const uint32_t counts[] = { 3, 4, 5, 15, 50 }; /* few and many members */
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        struct buffer bytes = numbered_archive(names, 2, counts[i]), content = { 0 };
        struct reader reader = reader_over_memory(bytes.data, bytes.size, "bytes");
        struct zip_archive archive = { 0 };
        CHECK_OK(zip_open_rewritten(&reader, &limits_default, &archive, &err));
        assert_int_equal(archive.member_count, counts[i]);
        assert_int_equal(archive.superseded_count, counts[i] - 2);
        for (uint32_t m = 0; m < counts[i]; m++)
            assert_int_equal(archive.members[m].is_superseded, m + 2 < counts[i]);
        assert_ptr_equal(zip_find(&archive, STR("w")), &archive.members[counts[i] - 1 - !(counts[i] % 2)]);
        assert_ptr_equal(zip_find(&archive, STR("W")), &archive.members[counts[i] - 1 - counts[i] % 2]);
        CHECK_OK(zip_read_member(&reader, &archive, zip_find(&archive, STR("w")), &limits_default, &content, &err));
        assert_int_equal(content.data[0], counts[i] - 1 - !(counts[i] % 2));
        buffer_release(&content);
        zip_release(&archive);
        CHECK_FAILS(zip_open(&reader, &limits_default, &archive, &err), RESHARD_ERR_FORMAT);
        CHECK_FAILS(zip_open_cased(&reader, &limits_default, &archive, &err), RESHARD_ERR_FORMAT);
        buffer_release(&bytes);
    }
}

TEST(what_is_unpacked_costs_work)
{
    struct buffer bytes = load("odd-torch-file-deflated-all"), content = { 0 };
    struct reader reader = reader_over_memory(bytes.data, bytes.size, "bytes");
    struct zip_archive archive = { 0 };
    struct limits limits = limits_default;
    struct work work;
    CHECK_OK(zip_open(&reader, &limits, &archive, &err));
    const struct zip_member *member = zip_find(&archive, STR("data.pkl"));
    assert_true(member->stored_bytes < member->bytes);
    limits.budget = &work;
    work_begin(&work, 0);
    CHECK_OK(zip_read_member(&reader, &archive, member, &limits, &content, &err));
    assert_int_equal(work_left(&work, UINT64_MAX), member->stored_bytes * WORK_PER_BYTE - member->bytes);
    assert_false(work_take(&work, UINT64_MAX));
    buffer_clear(&content);
    CHECK_FAILS(zip_read_member(&reader, &archive, member, &limits, &content, &err), RESHARD_ERR_LIMIT);
    assert_int_equal(content.size, 0);
    zip_release(&archive);
    buffer_release(&content);
    buffer_release(&bytes);
}

TEST(members_in_no_common_directory_leave_the_top_empty)
{
    static const char *const names[] = { "bad-torch-file-no-top-directory", "bad-torch-file-two-top-directories",
                                         "bad-torch-file-stray-second-directory" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct buffer bytes = load(names[i]);
        struct zip_archive archive = { 0 };
        CHECK_OK(open_bytes(&bytes, &archive));
        assert_int_equal(archive.top.size, 0);
        zip_release(&archive);
        buffer_release(&bytes);
    }
}

TEST(offsets_and_sizes_are_those_of_the_worked_example)
{
    struct buffer bytes = load("torch-file-plain");
    struct zip_archive archive = { 0 };
    CHECK_OK(open_bytes(&bytes, &archive));
    assert_int_equal(bytes.size, 3249);
    const struct zip_member *pickle = zip_find(&archive, STR("data.pkl")), *first = zip_find(&archive, STR("data/0"));
    assert_int_equal(pickle->header_offset, 0);
    assert_int_equal(pickle->payload_offset, 64);
    assert_int_equal(pickle->bytes, 724);
    assert_int_equal(first->payload_offset, 1280);
    assert_int_equal(first->bytes, 140);
    assert_int_equal(first->crc32, 0x6781c14b);
    assert_false(archive.crc_is_off);
    zip_release(&archive);
    buffer_release(&bytes);
}

/* ---- reads ---- */

TEST(opening_costs_few_reads)
{
    static const struct {
        const char *name;
        unsigned calls;
        uint64_t total;
    } cases[] = {
        { "torch-file-plain", 1, 3249 },         { "torch-file-slice-of-big", 2, 8192 }, { "torch-file-many", 10, 1 << 20 },
        { "odd-torch-file-deep-tuples", 2, 8192 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = load(cases[i].name), pickle = { 0 };
        struct counted counted = { .bytes = &bytes };
        struct reader reader = counted_reader(&counted);
        struct zip_archive archive = { 0 };
        CHECK_OK(zip_open(&reader, &limits_default, &archive, &err));
        if (counted.calls > cases[i].calls || counted.total > cases[i].total)
            fail_msg("%s: %u reads of %lu bytes", cases[i].name, counted.calls, (unsigned long)counted.total);
        if (bytes.size < 32768) {
            CHECK_OK(zip_read_member(&reader, &archive, zip_find(&archive, STR("data.pkl")), &limits_default, &pickle, &err));
            assert_int_equal(counted.calls, cases[i].calls);
        }
        zip_release(&archive);
        buffer_release(&pickle);
        buffer_release(&bytes);
    }
}

TEST(limits_are_named)
{
    struct buffer bytes = load("torch-file-plain"), content = { 0 };
    struct reader reader = reader_over_memory(bytes.data, bytes.size, "bytes");
    struct zip_archive archive = { 0 };
    struct limits limits = limits_default;
    limits.zip_entries = 11;
    CHECK_FAILS(zip_open(&reader, &limits, &archive, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.hint, "reshard_open_options.limits zip_entries=12"));
    limits = limits_default;
    CHECK_OK(zip_open(&reader, &limits, &archive, &err));
    limits.metadata_bytes = 700;
    CHECK_FAILS(zip_read_member(&reader, &archive, zip_find(&archive, STR("data.pkl")), &limits, &content, &err), RESHARD_ERR_LIMIT);
    zip_release(&archive);
    buffer_release(&bytes);
}

TEST(each_allocation_that_fails_is_reported)
{
    static const char *const names[] = { "torch-file-plain", "torch-file-many", "odd-torch-file-deflated-all" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct buffer bytes = load(names[i]);
        struct reader reader = reader_over_memory(bytes.data, bytes.size, "bytes");
        unsigned long nth = 0;
        bool was_hit;
        do {
            struct zip_archive archive = { 0 };
            struct buffer content = { 0 };
            fail_malloc_at(++nth);
            reshard_status status = zip_open(&reader, &limits_default, &archive, &err);
            if (!status)
                status = zip_read_member(&reader, &archive, &archive.members[0], &limits_default, &content, &err);
            if (!status)
                status = zip_check_member(&reader, &archive, &archive.members[0], &limits_default, &err);
            was_hit = fail_malloc_was_hit();
            /* An arena tries once more with a smaller block: not every failure shows. */
            assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY));
            zip_release(&archive);
            buffer_release(&content);
        } while (was_hit);
        buffer_release(&bytes);
    }
}

/* ---- hand-made ---- */

TEST(a_directory_hidden_before_the_directory_is_refused)
{
    /* The old directory and end record stay in front of a second directory that leaves members out or renames them. */
    struct buffer bytes = load("odd-torch-file-zip64-missing");
    struct cursor end = cursor_over(bytes.data + bytes.size - 22, 22);
    uint32_t directory_bytes = 0, directory_offset = 0;
    assert_true(cursor_skip(&end, 12) && cursor_u32le(&end, &directory_bytes) && cursor_u32le(&end, &directory_offset));
    struct buffer copy = { 0 };
    buffer_append(&copy, bytes.data, bytes.size);
    buffer_append(&copy, bytes.data + directory_offset, bytes.size - directory_offset);
    size_t field = copy.size - 6;
    for (int i = 0; i < 4; i++)
        copy.data[field + (size_t)i] = (uint8_t)(bytes.size >> (8 * i));
    CHECK_FAILS(read_all(&copy), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "hides between"));
    assert_int_equal(err.offset, bytes.size - 22);
    buffer_release(&copy);
    buffer_release(&bytes);
}

/* Between a zip64 end record and its locator nothing may hide: the record's size has to reach the locator. */
TEST(a_zip64_end_record_of_another_size_is_refused)
{
    struct buffer bytes = load("torch-file-plain");
    size_t record = bytes.size - 22 - 20 - 56; /* end record, locator, zip64 end record without extensions */
    assert_memory_equal(bytes.data + record, "PK\x06\x06\x2c\0\0\0\0\0\0\0", 12);
    static const uint64_t sizes[] = { 0, 43, 45, 100, UINT64_MAX - 11, UINT64_MAX };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        memcpy(bytes.data + record + 4, &(uint64_t){ htole64(sizes[i]) }, 8);
        CHECK_FAILS(read_all(&bytes), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "its locator follows after 44"));
        assert_int_equal(err.offset, record);
    }
    buffer_release(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archives_of_torch_and_of_zip_tools_are_read),
        cmocka_unit_test(damaged_and_ambiguous_archives_are_refused_where_they_are_wrong),
        cmocka_unit_test(every_cut_of_an_archive_is_refused),
        cmocka_unit_test(flipped_bits_never_change_content_unseen),
        cmocka_unit_test(members_are_found_below_the_top_directory),
        cmocka_unit_test(the_last_member_of_a_name_counts_where_archives_are_appended_to),
        cmocka_unit_test(what_is_unpacked_costs_work),
        cmocka_unit_test(members_in_no_common_directory_leave_the_top_empty),
        cmocka_unit_test(offsets_and_sizes_are_those_of_the_worked_example),
        cmocka_unit_test(opening_costs_few_reads),
        cmocka_unit_test(limits_are_named),
        cmocka_unit_test(each_allocation_that_fails_is_reported),
        cmocka_unit_test(a_directory_hidden_before_the_directory_is_refused),
        cmocka_unit_test(a_zip64_end_record_of_another_size_is_refused),
    };
    return cmocka_run_group_tests_name("zip_read", tests, NULL, NULL);
}
