/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversion would write, against what it writes: tensors, chunks, files and the bytes that move. */
#include "store/temp_directory.h"

#include "reshard/reshard.h"

#include <inttypes.h>

static reshard_error err;

static reshard_checkpoint *open_sample(void)
{
    char path[4096];
    reshard_checkpoint *opened;
    snprintf(path, sizeof(path), "%s/torch-dcp/dcp-fsdp2-4/ckpt", test_fixtures());
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

/* The only file of a preview of a single file has no name. */
static bool name_same(reshard_str found, reshard_str planned)
{
    return !planned.size || (found.size == planned.size && memcmp(found.data, planned.data, planned.size) == 0);
}

static bool box_same(const reshard_chunk *a, const reshard_chunk *b, int rank)
{
    size_t bytes = (size_t)rank * sizeof(int64_t);
    return memcmp(a->start, b->start, bytes) == 0 && memcmp(a->extent, b->extent, bytes) == 0;
}

/* A chunk of the written tensor with the same box in the same file, at the same place where the file has no containers. */
static void find_chunk(const reshard_checkpoint *written, size_t tensor, const reshard_tensor *entry, const reshard_chunk *wanted)
{
    for (size_t i = 0; i < entry->chunk_count; i++) {
        reshard_chunk found = RESHARD_CHUNK_INIT;
        CHECK_OK(reshard_chunk_at(written, tensor, i, &found));
        if (box_same(&found, wanted, entry->rank) && name_same(found.file, wanted->file)) {
            if (found.is_resolved && wanted->is_resolved && (found.offset != wanted->offset || found.bytes != wanted->bytes))
                fail_msg("%.*s at %" PRIu64 ", not %" PRIu64 ", %" PRIu64 " bytes, not %" PRIu64, (int)entry->key.size, entry->key.data,
                         wanted->offset, found.offset, wanted->bytes, found.bytes);
            return;
        }
    }
    fail_msg("no such chunk of %.*s in '%.*s'", (int)entry->key.size, entry->key.data, (int)wanted->file.size, wanted->file.data);
}

static void compare_tensors(const reshard_checkpoint *preview, const reshard_checkpoint *written)
{
    assert_int_equal(reshard_tensor_count(preview), reshard_tensor_count(written));
    for (size_t i = 0; i < reshard_tensor_count(preview); i++) {
        reshard_tensor planned = RESHARD_TENSOR_INIT, found = RESHARD_TENSOR_INIT;
        CHECK_OK(reshard_tensor_at(preview, i, &planned));
        int64_t at = reshard_tensor_find(written, planned.key.data, planned.key.size);
        if (at < 0)
            fail_msg("%.*s was not written", (int)planned.key.size, planned.key.data);
        CHECK_OK(reshard_tensor_at(written, (size_t)at, &found));
        assert_string_equal(planned.dtype, found.dtype);
        assert_int_equal(planned.rank, found.rank);
        assert_int_equal(planned.bytes, found.bytes);
        assert_int_equal(planned.chunk_count, found.chunk_count);
        assert_memory_equal(planned.shape, found.shape, (size_t)found.rank * sizeof(int64_t));
        for (size_t j = 0; j < planned.chunk_count; j++) {
            reshard_chunk chunk = RESHARD_CHUNK_INIT;
            CHECK_OK(reshard_chunk_at(preview, i, j, &chunk));
            find_chunk(written, (size_t)at, &found, &chunk);
        }
    }
}

static bool has_file(const reshard_checkpoint *checkpoint, reshard_str name)
{
    for (size_t i = 0; i < reshard_file_count(checkpoint); i++) {
        reshard_file file = RESHARD_FILE_INIT;
        CHECK_OK(reshard_file_at(checkpoint, i, &file));
        if (name_same(file.name, name))
            return true;
    }
    return false;
}

static int str_order(reshard_str a, reshard_str b)
{
    int order = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
    return order ? order : a.size < b.size ? -1 : a.size > b.size;
}

/* Every byte that is written comes from somewhere, and no pair of files comes twice. */
static void check_moves(const reshard_checkpoint *source, const reshard_checkpoint *written, const reshard_report *report)
{
    reshard_move before = RESHARD_MOVE_INIT;
    uint64_t bytes = 0;
    assert_true(report->move_count > 0);
    for (size_t i = 0; i < report->move_count; i++) {
        reshard_move move = RESHARD_MOVE_INIT;
        CHECK_OK(reshard_report_move_at(report, i, &move));
        assert_true(has_file(source, move.from) && has_file(written, move.to));
        if (i) {
            int order = str_order(before.from, move.from);
            assert_true(order < 0 || (order == 0 && str_order(before.to, move.to) < 0));
        }
        bytes += move.bytes;
        before = move;
    }
    assert_int_equal(bytes, report->write_bytes);
    assert_int_not_equal(reshard_report_move_at(report, report->move_count, &before), RESHARD_OK);
}

static void preview_is_what_is_written(const char *format, const char *layout, uint64_t shard_bytes)
{
    static const char *const exclude[] = { "extra.f8", NULL }; /* Paddle has no such type */
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *source = open_sample(), *preview, *written;
    reshard_tensor first = RESHARD_TENSOR_INIT;
    const char *path = temp_path("target");
    char buffer[65536];
    options.to = format;
    options.layout = layout;
    options.exclude = exclude;
    options.max_shard_bytes = shard_bytes;
    options.no_sync = options.overwrite = 1;
    CHECK_OK(reshard_preview(source, path, &options, NULL, &report, &preview, &err));
    assert_int_not_equal(access(path, F_OK), 0);
    CHECK_OK(reshard_convert(source, path, &options, NULL, NULL, &err));
    CHECK_OK(reshard_open(path, NULL, &written, &err));
    compare_tensors(preview, written);
    check_moves(source, written, &report);
    reshard_close(source); /* the preview lives without it */
    assert_int_equal(reshard_item_count(preview), 0);
    CHECK_OK(reshard_tensor_at(preview, 0, &first));
    CHECK_FAILS(reshard_read_into(preview, 0, NULL, NULL, NULL, buffer, first.bytes, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a preview"));
    CHECK_FAILS(reshard_convert(preview, "/tmp/never", &options, NULL, NULL, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a preview"));
    reshard_report_release(&report);
    reshard_close(preview);
    reshard_close(written);
    char command[300];
    snprintf(command, sizeof(command), "rm -r %s", path);
    assert_int_equal(system(command), 0);
}

TEST(previews_are_what_is_written)
{
    preview_is_what_is_written("safetensors", NULL, 0);
    preview_is_what_is_written("hf", NULL, 700);
    preview_is_what_is_written("torch", NULL, 0);
    preview_is_what_is_written("torch-dcp", "ranks=3", 0);
    preview_is_what_is_written("paddle-flex", "ranks=2", 0);
}

TEST(a_preview_needs_somewhere_to_go)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *source = open_sample(), *preview = source;
    options.to = "no such format";
    assert_int_equal(reshard_preview(source, NULL, &options, NULL, NULL, &preview, &err), RESHARD_ERR_USAGE);
    assert_null(preview);
    assert_int_equal(reshard_preview(source, NULL, &options, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    reshard_close(source);
}

/* Of estimates and conversions, plans and writers alike: they read their options by one function. */
TEST(names_of_targets_say_their_format)
{
    static const char *const names[][2] = {
        { "/x/a.safetensors", "safetensors" }, { "a.pt", "torch" },         { "a.pth", "torch" },     { "/x/pytorch_model.bin", "torch" },
        { "a.npz", "npz" },                    { "a.pdparams", "paddle" },  { "a.pdopt", "paddle" },  { "/x/a", NULL },
        { "/x/.npz", NULL },                   { "/x.npz/a", NULL },        { "/x/a.npz/", NULL },    { NULL, NULL },
    };
    static const char *const model[] = { "model.*.weight", NULL };
    reshard_checkpoint *source = open_sample();
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
        reshard_report report = RESHARD_REPORT_INIT;
        options.include = model; /* others have types that NumPy and Paddle lack */
        reshard_status status = reshard_estimate(source, names[i][0], &options, NULL, &report, &err);
        assert_int_equal(status, names[i][1] ? RESHARD_OK : RESHARD_ERR_USAGE);
        if (!status)
            assert_string_equal(report.target_format, names[i][1]);
        reshard_report_release(&report);
        options.to = "hf"; /* what is said goes before */
        CHECK_OK(reshard_estimate(source, names[i][0], &options, NULL, &report, &err));
        assert_string_equal(report.target_format, "hf");
        reshard_report_release(&report);
    }
    reshard_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(previews_are_what_is_written),
        cmocka_unit_test(a_preview_needs_somewhere_to_go),
        cmocka_unit_test(names_of_targets_say_their_format),
    };
    return cmocka_run_group_tests_name("preview", tests, test_folder_make, test_folder_remove);
}
