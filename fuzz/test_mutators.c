/* SPDX-License-Identifier: Apache-2.0 */
/* Mutators: what they change stays an archive, a pickle, a header, a packed checkpoint, with right lengths and checksums. */
#include "check.h"

#include "base/limits.h"
#include "encoding/pickle.h"
#include "encoding/zip.h"
#include "mutate.h"
#include "packed.h"

#define ROUNDS 2000
#define ROOM 4096

static unsigned random_state;

/* In libFuzzer's place: sometimes more bytes, sometimes fewer, and one of them changed. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t size_max)
{
    unsigned what = mutate_next(&random_state);
    if (what % 4 == 0 && size < size_max)
        bytes[size++] = (uint8_t)(what >> 3);
    else if (what % 4 == 1 && size > 1)
        size--;
    if (size)
        bytes[mutate_next(&random_state) % size] ^= (uint8_t)(1 + what % 255);
    return size;
}

static void put_member(struct buffer *local, struct buffer *directory, const char *name, const char *content, size_t size)
{
    size_t header = local->size;
    struct buffer fields = { 0 };
    buffer_append_fill(&fields, 0, 8);
    buffer_append_u32le(&fields, 0); /* the checksum: what is written anew must have it right */
    buffer_append_u32le(&fields, (uint32_t)size);
    buffer_append_u32le(&fields, (uint32_t)size);
    buffer_append_u16le(&fields, (uint16_t)strlen(name));
    buffer_append_u16le(&fields, 0);
    buffer_append_text(local, "PK\3\4");
    buffer_append_u16le(local, 20);
    buffer_append(local, fields.data, fields.size);
    buffer_append_text(local, name);
    buffer_append(local, content, size);
    buffer_append_text(directory, "PK\1\2");
    buffer_append_u32le(directory, 20 << 16);
    buffer_append(directory, fields.data, fields.size);
    buffer_append_fill(directory, 0, 10);
    buffer_append_u32le(directory, (uint32_t)header);
    buffer_append_text(directory, name);
    buffer_release(&fields);
}

static size_t make_zip(uint8_t *out)
{
    static const char pickle[] = "\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01K\x02""es.";
    struct buffer zip = { 0 }, directory = { 0 };
    put_member(&zip, &directory, "a/data.pkl", pickle, sizeof(pickle) - 1);
    put_member(&zip, &directory, "a/version", "3\n", 2);
    put_member(&zip, &directory, "a/data/0", "01234567", 8);
    size_t at = zip.size;
    buffer_append(&zip, directory.data, directory.size);
    buffer_append_text(&zip, "PK\5\6");
    buffer_append_u32le(&zip, 0);
    buffer_append_u16le(&zip, 3);
    buffer_append_u16le(&zip, 3);
    buffer_append_u32le(&zip, (uint32_t)directory.size);
    buffer_append_u32le(&zip, (uint32_t)at);
    buffer_append_u16le(&zip, 0);
    size_t size = zip.size;
    assert_true(size < ROOM);
    memcpy(out, zip.data, size);
    buffer_release(&zip);
    buffer_release(&directory);
    return size;
}

/* How many members can be read; -1: no archive. */
static int readable_members(const uint8_t *bytes, size_t size, uint32_t *count)
{
    struct reader reader = reader_over_memory(bytes, size, "mutated");
    struct limits limits = limits_default;
    struct zip_archive archive = { 0 };
    int readable = 0;
    if (zip_open(&reader, &limits, &archive, NULL))
        return -1;
    for (uint32_t i = 0; i < archive.member_count; i++) {
        struct buffer content = { 0 };
        readable += !zip_read_member(&reader, &archive, &archive.members[i], &limits, &content, NULL);
        buffer_release(&content);
    }
    *count = archive.member_count;
    zip_release(&archive);
    return readable;
}

TEST(a_mutated_archive_has_right_checksums)
{
    uint8_t seed[ROOM], bytes[ROOM];
    size_t seed_size = make_zip(seed);
    unsigned whole = 0, changed = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t count = 0;
        memcpy(bytes, seed, seed_size);
        size_t size = mutate_zip(bytes, seed_size, ROOM, round * 7919);
        assert_true(size <= ROOM);
        int readable = readable_members(bytes, size, &count);
        whole += readable >= 0 && (uint32_t)readable == count;
        changed += size != seed_size || memcmp(bytes, seed, size) != 0;
    }
    /* One in eight is left to plain mutations; names may come to be refused. */
    assert_in_range(whole, ROUNDS * 7 / 10, ROUNDS);
    assert_in_range(changed, ROUNDS * 9 / 10, ROUNDS);
}

TEST(a_mutated_pickle_has_right_lengths)
{
    static const uint8_t seed[] = "\x80\x04\x95\x1b\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x03key\x94]\x94(K\x01M\x02\x03"
                                  "e\x8c\x01"
                                  "bC\x02xyu.";
    unsigned good = 0, changed = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint8_t bytes[ROOM];
        struct limits limits = limits_default;
        struct value_graph graph = { 0 };
        struct pickle_report report;
        reshard_error err = { 0 };
        memcpy(bytes, seed, sizeof(seed) - 1);
        size_t size = mutate_pickle(bytes, sizeof(seed) - 1, ROOM, round * 7919);
        assert_true(size <= ROOM);
        reshard_status status = pickle_parse_with_ids(bytes, size, 0, &limits, &graph, &report, &err);
        good += !status || !strstr(err.message, "frame");
        changed += size != sizeof(seed) - 1 || memcmp(bytes, seed, size) != 0;
        value_graph_release(&graph);
    }
    assert_in_range(good, ROUNDS * 9 / 10, ROUNDS);
    assert_in_range(changed, ROUNDS * 8 / 10, ROUNDS);
}

TEST(a_mutated_header_has_its_length)
{
    static const uint8_t seed[] = "\x12\0\0\0\0\0\0\0{\"a\":{\"b\":[0,1]}} 0123";
    unsigned right = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint8_t bytes[ROOM];
        memcpy(bytes, seed, sizeof(seed) - 1);
        size_t size = mutate_safetensors(bytes, sizeof(seed) - 1, ROOM, round * 7919);
        right += size >= 12 && bytes[0] + 12u == size && memcmp(bytes + size - 4, "0123", 4) == 0;
    }
    assert_in_range(right, ROUNDS * 9 / 10, ROUNDS);
}

TEST(packed_files_come_out_as_they_went_in)
{
    struct packed *packed = calloc(1, sizeof(*packed)), *again = calloc(1, sizeof(*again));
    uint8_t bytes[ROOM];
    assert_non_null(packed);
    assert_non_null(again);
    *packed = (struct packed){ .options = { 1, 2, 3, 4, 5, 6, 7, 8 }, .count = 2 };
    packed->files[0] =
        (struct packed_file){ .name = "w/c/0", .repairs = REPAIR_INDEX_AT_END | 1 << REPAIR_COUNT_SHIFT, .bytes = malloc(24), .size = 24 };
    packed->files[1] = (struct packed_file){ .name = "x", .repairs = REPAIR_CRC32C, .bytes = malloc(13), .size = 13 };
    memcpy(packed->files[0].bytes, "data0123456789abcdef....", 24);
    memcpy(packed->files[1].bytes, "123456789....", 13);
    size_t size = packed_write(packed, bytes, sizeof(bytes));
    assert_true(size > 0);
    assert_true(packed_read(bytes, size, again));
    assert_int_equal(again->count, 2);
    assert_memory_equal(again->options, packed->options, PACKED_OPTIONS);
    assert_string_equal(again->files[0].name, "w/c/0");
    assert_memory_equal(again->files[0].bytes, packed->files[0].bytes, 24);

    struct store *store = store_new_memory();
    struct buffer stored = { 0 };
    assert_string_equal(packed_store(again, store), "");
    assert_int_equal(store_read_all(store, "x", AT_MOST(100), &stored, NULL), RESHARD_OK);
    /* The check value of CRC-32C. */
    assert_memory_equal(stored.data, "123456789\x83\x92\x06\xe3", 13);
    buffer_release(&stored);
    store_free(store);
    packed_release(again);

    for (unsigned round = 0; round < ROUNDS / 4; round++) {
        size_t mutated = mutate_packed(bytes, size, sizeof(bytes), round * 7919);
        assert_true(mutated > 0 && mutated <= sizeof(bytes));
        assert_true(packed_read(bytes, mutated, again));
        size = packed_write(packed, bytes, sizeof(bytes));
        packed_release(again);
    }
    packed_release(packed);
    free(packed);
    free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mutated_archive_has_right_checksums),
        cmocka_unit_test(a_mutated_pickle_has_right_lengths),
        cmocka_unit_test(a_mutated_header_has_its_length),
        cmocka_unit_test(packed_files_come_out_as_they_went_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
