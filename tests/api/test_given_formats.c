/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in memory goes into every format that holds it, whichever call writes it; and what no format can make of it is said at once. */
#include "test_folder.h"

#include "reshard/async.h"
#include "reshard/comm.h"
#include "reshard/sharded.h"
#include "reshard/state.h"
#include "reshard/writer.h"

#include <stdlib.h>

#define S(text) ((reshard_str){ text, sizeof(text) - 1 })

static reshard_error err;
static const uint8_t quarters[] = { 0x21, 0x43, 0x65, 0x87 };
static const int64_t eight[] = { 8 };

static char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", test_folder, name);
    return path;
}

/* ---- F4, which torch's formats have in pairs ---- */

static reshard_shards *shards_make(const char *dtype, const void *data)
{
    static const int64_t origin[1];
    reshard_shards *shards;
    reshard_shard shard = RESHARD_SHARD_INIT;
    CHECK_OK(reshard_shards_new(&shards, &err));
    shard.key = S("w");
    shard.dtype = dtype;
    shard.rank = 1;
    shard.global_shape = shard.extent = eight;
    shard.start = origin;
    shard.data = (void *)(uintptr_t)data;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    return shards;
}

static void by_conversion(const char *path, const reshard_convert_options *options)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *opened;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_shards *shards = shards_make("F4", quarters);
    state.shards = shards;
    CHECK_OK(reshard_open_shards(&state, NULL, &opened, &err));
    CHECK_OK(reshard_estimate(opened, path, options, NULL, &report, &err));
    CHECK_OK(reshard_convert(opened, path, options, NULL, NULL, &err));
    reshard_report_release(&report);
    reshard_close(opened);
    reshard_shards_free(shards);
}

static void by_saver(const char *path, const reshard_convert_options *options)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    reshard_saver *saver;
    reshard_shards *shards = shards_make("F4", quarters);
    state.shards = shards;
    request.state = &state;
    request.path = path;
    request.options = options;
    CHECK_OK(reshard_saver_open(NULL, &saver, &err));
    CHECK_OK(reshard_saver_save(saver, &request, NULL, &err));
    CHECK_OK(reshard_saver_close(saver, &err));
    reshard_shards_free(shards);
}

static void by_ranks(const char *path, const reshard_convert_options *options)
{
    static const int64_t origin[1];
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_save_options save = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    tensor.key = S("w");
    tensor.dtype = "F4";
    tensor.rank = 1;
    tensor.local_shape = tensor.global_shape = eight;
    tensor.global_offset = origin;
    tensor.data = (void *)(uintptr_t)quarters;
    CHECK_OK(reshard_sharded_add(sharded, &tensor, &err));
    save.convert = options;
    CHECK_OK(reshard_save(NULL, path, sharded, &save, NULL, &err));
    reshard_sharded_free(sharded);
}

/* Piece by piece: half a pair is refused where the format has pairs. */
static void by_pieces(const char *path, const reshard_convert_options *options)
{
    const reshard_writer_tensor tensor = { { "w", 1 }, "F4", 1, eight };
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer;
    input.tensors = &tensor;
    input.tensor_count = 1;
    for (int half = 0; half < 2; half++) {
        CHECK_OK(reshard_writer_open(&input, path, options, NULL, NULL, &writer, &err));
        for (int64_t begin = 0; begin < 8; begin += 4) {
            const int64_t start[] = { begin + half }, extent[] = { 4 - 2 * half };
            piece.start = start;
            piece.extent = extent;
            piece.data = quarters + begin / 2;
            piece.size = half ? 1 : 2;
            reshard_status status = reshard_writer_put(writer, &piece, &err);
            if (!half)
                CHECK_OK(status);
            else if (begin == 0 && strcmp(options->to, "safetensors") != 0 && strcmp(options->to, "hf") != 0)
                assert_non_null(strstr(err.message, "whole pairs"));
        }
        if (half)
            assert_int_not_equal(reshard_writer_finish(writer, &err), RESHARD_OK);
        else
            CHECK_OK(reshard_writer_finish(writer, &err));
        reshard_writer_free(writer);
        if (!half)
            assert_int_equal(test_tree_remove(path), 0);
    }
    CHECK_OK(reshard_writer_open(&input, path, options, NULL, NULL, &writer, &err));
    piece.start = piece.extent = NULL;
    piece.data = quarters;
    piece.size = sizeof(quarters);
    CHECK_OK(reshard_writer_put(writer, &piece, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
}

TEST(values_of_4_bits_go_into_every_format)
{
    static void (*const ways[])(const char *path, const reshard_convert_options *options) = {
        by_conversion, by_saver, by_ranks, by_pieces
    };
    static const char *const formats[] = { "torch", "torch-dcp", "fsdp-ranks", "safetensors", "hf" };
    for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        for (size_t j = 0; j < sizeof(ways) / sizeof(*ways); j++) {
            reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
            reshard_checkpoint *opened;
            uint8_t found[sizeof(quarters)] = { 0 };
            options.to = formats[i];
            options.no_sync = 1;
            ways[j](path_of("four"), &options);
            CHECK_OK(reshard_open(path_of("four"), NULL, &opened, &err));
            CHECK_OK(reshard_read_into(opened, 0, NULL, NULL, NULL, found, sizeof(found), &err));
            assert_memory_equal(found, quarters, sizeof(found));
            reshard_close(opened);
            assert_int_equal(test_tree_remove(path_of("four")), 0);
        }
    }
}

/* ---- large objects ---- */

TEST(objects_of_many_megabytes_are_work_that_their_size_allows)
{
    enum { BYTES = 24 << 20 };
    static const int64_t one[] = { 1 }, origin[1];
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options save = RESHARD_SAVE_OPTIONS_INIT;
    char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    memset(bytes, 'x', BYTES);
    options.to = "torch_dist";
    options.no_sync = options.overwrite = 1;
    save.convert = &options;
    object.key = S("rng");
    object.rank = 1;
    object.global_shape = one;
    object.global_offset = origin;
    for (int is_json = 0; is_json < 2; is_json++) {
        reshard_sharded *sharded;
        bytes[0] = bytes[BYTES - 1] = is_json ? '"' : 'x';
        object.bytes = is_json ? (reshard_str){ NULL, 0 } : (reshard_str){ bytes, BYTES };
        object.json = is_json ? (reshard_str){ bytes, BYTES } : (reshard_str){ NULL, 0 };
        CHECK_OK(reshard_sharded_new(&sharded, &err));
        CHECK_OK(reshard_sharded_add_object(sharded, &object, &err));
        CHECK_OK(reshard_save(NULL, path_of("large"), sharded, &save, NULL, &err));
        reshard_sharded_free(sharded);
    }
    free(bytes);
}

/* What is written opens again without any limit being raised. */
TEST(items_that_could_not_be_read_again_are_told_as_dropped)
{
    enum { BYTES = 51 << 20 }; /* of which JSON makes twice as many */
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_state given = RESHARD_STATE_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *opened;
    reshard_items *items;
    char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    memset(bytes, 'x', BYTES);
    info.kind = RESHARD_VALUE_BYTES;
    info.text = (reshard_str){ bytes, BYTES };
    CHECK_OK(reshard_items_new(&items, &err));
    CHECK_OK(reshard_items_add(items, NULL, S("blob"), &info, NULL, &err));
    free(bytes);
    reshard_shards *shards = shards_make("U8", "12345678");
    given.shards = shards;
    given.values = items;
    CHECK_OK(reshard_open_shards(&given, NULL, &opened, &err));
    options.to = "hf";
    options.no_sync = 1;
    CHECK_OK(reshard_convert(opened, path_of("hf"), &options, NULL, &report, &err));
    reshard_close(opened);
    assert_int_equal(report.note_count, 1);
    reshard_note note = RESHARD_NOTE_INIT;
    CHECK_OK(reshard_report_note_at(&report, 0, &note));
    assert_non_null(memmem(note.text.data, note.text.size, "torch-dcp holds it", 18));
    reshard_report_release(&report);
    CHECK_OK(reshard_open(path_of("hf"), NULL, &opened, &err));
    assert_int_equal(reshard_tensor_count(opened), 1);
    reshard_close(opened);
    reshard_items_free(items);
    reshard_shards_free(shards);
}

/* ---- what is said at once ---- */

TEST(digests_that_sidecars_do_not_have_are_refused_before_anything_is_written)
{
    static const char *const wrong[] = { "md5", "SHA256", "", "foo" };
    const reshard_writer_tensor tensor = { { "w", 1 }, "U8", 1, eight };
    reshard_shards *shards = shards_make("U8", "12345678");
    reshard_state given = RESHARD_STATE_INIT;
    reshard_checkpoint *opened;
    given.shards = shards;
    CHECK_OK(reshard_open_shards(&given, NULL, &opened, &err));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
        reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
        reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
        reshard_report report = RESHARD_REPORT_INIT;
        reshard_writer *writer;
        reshard_saver *saver;
        input.tensors = &tensor;
        input.tensor_count = 1;
        options.to = "hf";
        options.checksum = wrong[i];
        request.state = &given;
        request.path = path_of("never");
        request.options = &options;
        CHECK_FAILS(reshard_estimate(opened, path_of("never"), &options, NULL, &report, &err), RESHARD_ERR_USAGE);
        CHECK_FAILS(reshard_writer_open(&input, path_of("never"), &options, NULL, NULL, &writer, &err), RESHARD_ERR_USAGE);
        CHECK_OK(reshard_saver_open(NULL, &saver, &err));
        CHECK_FAILS(reshard_saver_save(saver, &request, NULL, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "crc32c, sha256 or xxh3"));
        CHECK_OK(reshard_saver_close(saver, &err));
    }
    assert_int_equal(test_entries_count(test_folder, ""), 0);
    reshard_close(opened);
    reshard_shards_free(shards);
}

TEST(headers_of_npy_are_of_boxes_of_the_tensor)
{
    static const int64_t wrong[][1] = { { -1 }, { 9 }, { INT64_MIN } };
    const int64_t five[] = { 5 };
    reshard_shards *shards = shards_make("U8", "12345678");
    reshard_state given = RESHARD_STATE_INIT;
    reshard_checkpoint *opened;
    void *header;
    size_t size;
    given.shards = shards;
    CHECK_OK(reshard_open_shards(&given, NULL, &opened, &err));
    CHECK_OK(reshard_npy_header(opened, 0, five, &header, &size, &err));
    reshard_free(header);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        CHECK_FAILS(reshard_npy_header(opened, 0, wrong[i], &header, &size, &err), RESHARD_ERR_USAGE);
    reshard_close(opened);
    reshard_shards_free(shards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(values_of_4_bits_go_into_every_format),
        TEST_IN_FOLDER(objects_of_many_megabytes_are_work_that_their_size_allows),
        TEST_IN_FOLDER(items_that_could_not_be_read_again_are_told_as_dropped),
        TEST_IN_FOLDER(digests_that_sidecars_do_not_have_are_refused_before_anything_is_written),
        TEST_IN_FOLDER(headers_of_npy_are_of_boxes_of_the_tensor),
    };
    return cmocka_run_group_tests_name("given formats", tests, NULL, NULL);
}
