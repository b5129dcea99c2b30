/* SPDX-License-Identifier: Apache-2.0 */
/* Structs as programs of any version may pass them, to what opens, looks, reads, converts and checks; error records, defaults and lists. */
#include "api/arguments.h"
#include "api/public_members.h"

#include <stdbool.h>
#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"
#define DAMAGED "torch-dcp/bad-dcp-gap/ckpt"
#define MARK 0xA5

static reshard_checkpoint *source, *damaged;
static char source_path[4096];

/* ---- what is called with a struct ---- */

static const char map_text[] = "w -> v\n";

static int go_on(const reshard_progress *progress, void *context)
{
    (void)progress, (void)context;
    return 0;
}

static reshard_status call_open(void *given)
{
    reshard_checkpoint *opened = NULL;
    reshard_status status = reshard_open(source_path, given, &opened, &err);
    assert_true((status == RESHARD_OK) == (opened != NULL));
    reshard_close(opened);
    return status;
}

static reshard_status call_run(void *given)
{
    uint8_t bytes[4096];
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(source, 0, &tensor);
    return reshard_read_into(source, 0, NULL, NULL, given, bytes, tensor.bytes, &err);
}

static reshard_status call_read_many(void *given)
{
    return reshard_read_many(source, given, NULL, &err);
}

static reshard_status estimate(const reshard_convert_options *options, reshard_report *report)
{
    return reshard_estimate(source, NULL, options, NULL, report, &err);
}

static reshard_status call_convert(void *given)
{
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_status status = estimate(given, &report);
    assert_true((status == RESHARD_OK) == (report.lists != NULL));
    reshard_report_release(&report);
    assert_null(report.lists);
    return unless_lacking(status);
}

static reshard_status call_map(void *given)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.to = "hf";
    options.map = given;
    reshard_status status = estimate(&options, &report);
    reshard_report_release(&report);
    return status;
}

static reshard_status call_verify(void *given)
{
    return reshard_verify(source, given, NULL, NULL, NULL, &err);
}

static reshard_status call_coverage(void *given)
{
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    options.coverage = given;
    return reshard_verify(source, &options, NULL, NULL, NULL, &err);
}

static reshard_status call_diff(void *given)
{
    return reshard_diff(source, source, given, NULL, NULL, NULL, &err);
}

static reshard_status call_map_input(void *given)
{
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_status status = reshard_map_parse(given, &output, &err);
    assert_true((status == RESHARD_OK) == (output.text != NULL));
    reshard_map_output_release(&output);
    return status;
}

static reshard_status call_map_output(void *given)
{
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    input.text = map_text;
    input.size = sizeof(map_text) - 1;
    reshard_status status = reshard_map_parse(&input, given, &err);
    reshard_map_output_release(given);
    return status;
}

static reshard_status call_report(void *given)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = "hf";
    reshard_status status = estimate(&options, given);
    reshard_report_release(given);
    return status;
}

static reshard_report kept; /* of a conversion with a note */

static reshard_status call_tensor(void *given) { return reshard_tensor_at(source, 0, given); }
static reshard_status fail_tensor(void *given) { return reshard_tensor_at(source, SIZE_MAX, given); }
static reshard_status call_chunk(void *given) { return reshard_chunk_at(source, 0, 0, given); }
static reshard_status fail_chunk(void *given) { return reshard_chunk_at(source, 0, SIZE_MAX, given); }
static reshard_status call_tensor_path(void *given) { return reshard_tensor_path_at(source, 0, 0, given); }
static reshard_status fail_tensor_path(void *given) { return reshard_tensor_path_at(NULL, 0, 0, given); }
static reshard_status call_item_path(void *given) { return reshard_item_path_at(source, 0, 0, given); }
static reshard_status fail_item_path(void *given) { return reshard_item_path_at(source, SIZE_MAX, 0, given); }
static reshard_status call_fact(void *given) { return reshard_fact_at(source, 0, given); }
static reshard_status fail_fact(void *given) { return reshard_fact_at(NULL, 0, given); }
static reshard_status call_file(void *given) { return reshard_file_at(source, 0, given); }
static reshard_status fail_file(void *given) { return reshard_file_at(source, SIZE_MAX, given); }
static reshard_status call_item(void *given) { return reshard_item_at(source, 0, given); }
static reshard_status fail_item(void *given) { return reshard_item_at(source, SIZE_MAX, given); }
static reshard_status call_report_file(void *given) { return reshard_report_file_at(&kept, 0, given); }
static reshard_status fail_report_file(void *given) { return reshard_report_file_at(NULL, 0, given); }
static reshard_status call_note(void *given) { return reshard_report_note_at(&kept, 0, given); }
static reshard_status fail_note(void *given) { return reshard_report_note_at(&kept, SIZE_MAX, given); }
static reshard_status call_move(void *given) { return reshard_report_move_at(&kept, 0, given); }
static reshard_status fail_move(void *given) { return reshard_report_move_at(&kept, SIZE_MAX, given); }
static reshard_status call_format(void *given) { return reshard_format_at(0, given); }
static reshard_status fail_format(void *given) { return reshard_format_at(SIZE_MAX, given); }
static reshard_status call_dtype(void *given) { return reshard_dtype_find("bf16", given); }
static reshard_status fail_dtype(void *given) { return reshard_dtype_find("none", given); }
static reshard_status call_dtype_at(void *given) { return reshard_dtype_at(0, given); }
static reshard_status fail_dtype_at(void *given) { return reshard_dtype_at(SIZE_MAX, given); }
static reshard_status call_limit(void *given) { return reshard_limit_at(0, given); }
static reshard_status fail_limit(void *given) { return reshard_limit_at(SIZE_MAX, given); }
static reshard_status call_format_option(void *given)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    size_t index = 0;
    while (!reshard_format_at(index, &format) && !format.option_count)
        index++;
    return reshard_format_option_at(index, 0, given);
}

static reshard_status call_format_word(void *given)
{
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    size_t index = 0;
    while (reshard_format_word_at(index, 0, &word))
        index++;
    return reshard_format_word_at(index, 0, given);
}

static reshard_status call_value_info(void *given)
{
    const reshard_value *value;
    CHECK_OK(reshard_item_value(source, 0, &value, &err));
    return reshard_value_look(source, value, given);
}

static reshard_status fail_format_option(void *given) { return reshard_format_option_at(SIZE_MAX, 0, given); }
static reshard_status fail_format_word(void *given) { return reshard_format_word_at(0, SIZE_MAX, given); }
static reshard_status fail_value_info(void *given) { return reshard_value_look(source, NULL, given); }

/* A warning: of a checkpoint with a hole in it, which is opened to look at. */
static reshard_status call_warning(void *given) { return reshard_warning_at(damaged, 0, given); }
static reshard_status fail_warning(void *given) { return reshard_warning_at(damaged, SIZE_MAX, given); }

static reshard_status fail_report(void *given)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = "no such format";
    return reshard_convert(source, "/tmp/never", &options, NULL, given, &err);
}

static reshard_status call_preview(void *given)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *shown = NULL;
    options.to = "hf";
    reshard_status status = reshard_preview(source, NULL, &options, NULL, given, &shown, &err);
    assert_true((status == RESHARD_OK) == (shown != NULL));
    reshard_close(shown);
    reshard_report_release(given);
    return status;
}

static reshard_status fail_preview(void *given)
{
    reshard_checkpoint *shown = source;
    reshard_status status = reshard_preview(source, NULL, NULL, NULL, given, &shown, &err);
    assert_null(shown);
    return status;
}

static reshard_status fail_map_output(void *given)
{
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_status status = reshard_map_invert(&input, given, NULL);
    reshard_map_output_release(given);
    return status ? reshard_map_parse(NULL, given, &err) : RESHARD_OK;
}

static reshard_status fail_coverage(void *given)
{
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    options.coverage = given;
    return reshard_verify(NULL, &options, NULL, NULL, NULL, &err);
}

static reshard_status call_summary(void *given)
{
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    options.summary = given;
    return reshard_diff(source, source, &options, NULL, NULL, NULL, &err);
}

static reshard_status fail_summary(void *given)
{
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    options.summary = given;
    return reshard_diff(source, NULL, &options, NULL, NULL, NULL, &err);
}

static reshard_status call_view(void *given)
{
    reshard_checkpoint *opened;
    CHECK_OK(reshard_open(source_path, NULL, &opened, NULL));
    reshard_status status = reshard_checkpoint_view(opened, given, &err);
    reshard_close(opened);
    return status;
}

static int take_stats(size_t tensor, const reshard_tensor_stats *stats, void *context)
{
    (void)tensor, (void)stats, (void)context;
    return 0;
}

static reshard_status call_stats(void *given)
{
    return reshard_stats(source, given, NULL, take_stats, NULL, &err);
}

/* This call takes no error record: the message is what its reader would say. */
static reshard_status stats_status(reshard_status status, const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof(size));
    if (status)
        snprintf(err.message, sizeof(err.message), "reshard_tensor_stats of %zu bytes", size);
    return status;
}

static reshard_status call_stats_part(void *given)
{
    reshard_tensor_stats into = RESHARD_TENSOR_STATS_INIT;
    return stats_status(reshard_stats_join(&into, given), given);
}

static reshard_status call_stats_into(void *given)
{
    const reshard_tensor_stats part = { .struct_size = sizeof(part), .count = 3, .mean = 2, .norm = 4, .positive = { 1 } };
    return stats_status(reshard_stats_join(given, &part), given);
}

static char scratch[TEST_FOLDER_SIZE];

static reshard_status salvage(const char *path, const reshard_salvage_options *options, reshard_salvage_counts *counts)
{
    char target[64];
    snprintf(target, sizeof(target), "%s/salvaged", scratch);
    reshard_status status = reshard_salvage(path, target, options, NULL, NULL, NULL, counts, &err);
    assert_int_equal(test_tree_remove(target), 0);
    return status;
}

static reshard_status call_salvage(void *given) { return salvage(source_path, given, NULL); }
static reshard_status call_counts(void *given) { return salvage(source_path, NULL, given); }
static reshard_status fail_counts(void *given) { return salvage("/no/such/file", NULL, given); }

/* Ends a call once it has written. */
static int stop_writing(const reshard_progress *progress, void *context)
{
    (void)context;
    return progress->bytes_written > 0;
}

/* What was found is not told of a target that is not written. */
static reshard_status fail_counts_late(void *given)
{
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    run.progress = stop_writing;
    char target[64];
    snprintf(target, sizeof(target), "%s/never-written", scratch);
    reshard_status status = reshard_salvage(source_path, target, NULL, &run, NULL, NULL, given, &err);
    assert_int_equal(status, RESHARD_ERR_CANCELLED);
    return status;
}

/* ---- the same structs elsewhere ---- */

static reshard_status call_open_against(void *given)
{
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    options.open = given;
    options.against = source_path;
    return reshard_verify(source, &options, NULL, NULL, NULL, &err);
}

static reshard_status call_open_like(void *given)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.like = source_path;
    options.open = given;
    reshard_status status = estimate(&options, &report);
    reshard_report_release(&report);
    return status;
}

static reshard_status call_open_salvage(void *given)
{
    reshard_salvage_options options = RESHARD_SALVAGE_OPTIONS_INIT;
    options.open = given;
    return salvage(source_path, &options, NULL);
}

static reshard_status call_map_diff(void *given)
{
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    options.map = given;
    reshard_status status = reshard_diff(source, source, &options, NULL, NULL, NULL, &err);
    return status == RESHARD_DIFFERS ? RESHARD_OK : status;
}

static int any_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor, (void)hex, (void)context;
    return 0;
}

static reshard_status call_run_hash(void *given) { return reshard_hash(source, "xxh3", given, any_hash, NULL, &err); }
static reshard_status call_run_stats(void *given) { return reshard_stats(source, NULL, given, take_stats, NULL, &err); }
static reshard_status call_run_verify(void *given) { return reshard_verify(source, NULL, given, NULL, NULL, &err); }
static reshard_status call_run_diff(void *given) { return reshard_diff(source, source, NULL, given, NULL, NULL, &err); }

/* ---- the structs ---- */

static const reshard_map_text text_member = { "t", map_text, sizeof(map_text) - 1 };
static const reshard_limit_change limit_member = { "json_depth", 100 };
static const reshard_map_constant constant_member = { "n", 1 };
static const char *const all_keys[] = { "*", NULL }, *const no_dtypes[] = { NULL };

static const reshard_open_options open_init = { sizeof(open_init),    NULL, 0,     0,    1, 1, 1, &limit_member,
                                                sizeof(limit_member), 1,    go_on, NULL, 1 };
static const reshard_view view_init = { sizeof(view_init), "none.", no_dtypes, "a.", all_keys, no_dtypes };
static const reshard_box_list boxes_init = { sizeof(boxes_init), NULL, sizeof(reshard_box), 0, NULL };
static const reshard_run_options run_init = { sizeof(run_init), 1 << 20, 1, "buffered", go_on, NULL, NULL };
static const reshard_convert_options convert_init = { .struct_size = sizeof(convert_init), .to = "hf", .include = all_keys,
                                                      .dtypes = no_dtypes, .max_shard_bytes = 1 << 20, .drop_items = 1, .overwrite = 1,
                                                      .no_sync = 1, .verify = 1, .checksum = "crc32c", .add_prefix = "a.",
                                                      .no_space_check = 1 };
static const reshard_map_options map_init = { sizeof(map_init), &text_member, sizeof(text_member), 1, "none", NULL, 0, "{}", 2,
                                              &constant_member, sizeof(constant_member), 1, NULL, NULL };
static const reshard_verify_options verify_init = { .struct_size = sizeof(verify_init), .deep = 1 };
static const reshard_diff_options diff_init = { .struct_size = sizeof(diff_init), .absolute_tolerance = 1, .relative_tolerance = 1,
                                                .ignore_items = 1, .include = all_keys, .explain = 1 };
static const reshard_stats_options stats_init = { sizeof(stats_init), all_keys, no_dtypes };
static const reshard_tensor_stats part_init = { .struct_size = sizeof(part_init), .count = 3, .mean = 2, .norm = 4, .positive = { 1 } };
static const reshard_salvage_options salvage_init = { sizeof(salvage_init), "torch-dcp", NULL, NULL, 1, 1, NULL, NULL };
static const reshard_map_input map_input_init = { sizeof(map_input_init), "t", map_text, sizeof(map_text) - 1, NULL, NULL, 0, 0,
                                                  &limit_member, sizeof(limit_member), 1, NULL, 0, &constant_member,
                                                  sizeof(constant_member), 1 };

static const struct struct_case cases[] = {
    IN(reshard_open_options, &open_init, call_open),
    IN(reshard_open_options, &open_init, call_open_against),
    IN(reshard_open_options, &open_init, call_open_like),
    IN(reshard_open_options, &open_init, call_open_salvage),
    IN(reshard_view, &view_init, call_view),
    IN(reshard_run_options, &run_init, call_run),
    IN(reshard_run_options, &run_init, call_run_hash),
    IN(reshard_run_options, &run_init, call_run_stats),
    IN(reshard_run_options, &run_init, call_run_verify),
    IN(reshard_run_options, &run_init, call_run_diff),
    IN(reshard_box_list, &boxes_init, call_read_many),
    IN(reshard_convert_options, &convert_init, call_convert),
    IN(reshard_map_options, &map_init, call_map),
    IN(reshard_map_options, &map_init, call_map_diff),
    IN(reshard_verify_options, &verify_init, call_verify),
    IN(reshard_diff_options, &diff_init, call_diff),
    IN(reshard_stats_options, &stats_init, call_stats),
    IN(reshard_tensor_stats, &part_init, call_stats_part),
    IN(reshard_tensor_stats, &part_init, call_stats_into),
    IN(reshard_salvage_options, &salvage_init, call_salvage),
    IN(reshard_map_input, &map_input_init, call_map_input),
    OUT(reshard_tensor, call_tensor, fail_tensor),
    OUT(reshard_chunk, call_chunk, fail_chunk),
    OUT(reshard_path_part, call_tensor_path, fail_tensor_path),
    OUT(reshard_path_part, call_item_path, fail_item_path),
    OUT(reshard_warning, call_warning, fail_warning),
    OUT(reshard_fact, call_fact, fail_fact),
    OUT(reshard_file, call_file, fail_file),
    OUT(reshard_item, call_item, fail_item),
    OUT(reshard_value_info, call_value_info, fail_value_info),
    OUT(reshard_report, call_report, fail_report),
    OUT(reshard_report, call_preview, fail_preview),
    OUT(reshard_report_file, call_report_file, fail_report_file),
    OUT(reshard_note, call_note, fail_note),
    OUT(reshard_move, call_move, fail_move),
    OUT(reshard_coverage, call_coverage, fail_coverage),
    OUT(reshard_diff_summary, call_summary, fail_summary),
    OUT(reshard_salvage_counts, call_counts, fail_counts),
    OUT(reshard_salvage_counts, call_counts, fail_counts_late),
    OUT(reshard_format, call_format, fail_format),
    OUT(reshard_format_option, call_format_option, fail_format_option),
    OUT(reshard_format_word, call_format_word, fail_format_word),
    OUT(reshard_dtype, call_dtype, fail_dtype),
    OUT(reshard_dtype, call_dtype_at, fail_dtype_at),
    OUT(reshard_limit, call_limit, fail_limit),
    OUT(reshard_map_output, call_map_output, fail_map_output),
};

STRUCT_TESTS(cases)

/* ---- defaults ---- */

TEST(a_struct_with_nothing_but_its_size_asks_for_the_defaults)
{
    reshard_open_options open = { .struct_size = sizeof(open) };
    reshard_run_options run = { .struct_size = sizeof(run) };
    reshard_verify_options verify = { .struct_size = sizeof(verify) };
    reshard_diff_options diff = { .struct_size = sizeof(diff) };
    reshard_map_options map = { .struct_size = sizeof(map) };
    CHECK_OK(call_open(&open));
    CHECK_OK(call_run(&run));
    CHECK_OK(call_verify(&verify));
    CHECK_OK(call_diff(&diff));
    CHECK_OK(call_map(&map));
    /* As many files as with no struct at all: zero is no limit of zero bytes, and not "no limit". */
    reshard_convert_options zeroed = { .struct_size = sizeof(zeroed), .to = "hf" }, limited = zeroed, both = zeroed;
    reshard_report report = RESHARD_REPORT_INIT, small = RESHARD_REPORT_INIT;
    limited.max_shard_bytes = 100;
    both.max_shard_bytes = 100;
    both.no_shard_limit = 1;
    CHECK_OK(estimate(&zeroed, &report));
    CHECK_OK(estimate(&limited, &small));
    assert_true(small.file_count > report.file_count);
    reshard_report_release(&small);
    CHECK_FAILS(estimate(&both, &small), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "no_shard_limit"));
    reshard_report_release(&report);
    open.has_iteration = 1;
    open.iteration = -1;
    CHECK_FAILS(call_open(&open), RESHARD_ERR_USAGE);
}

/* ---- errors and results ---- */

TEST(an_error_record_of_any_size_is_filled_as_far_as_it_goes)
{
    static const size_t sizes[] = { sizeof(size_t), offsetof(reshard_error, code), offsetof(reshard_error, sys_errno),
                                    offsetof(reshard_error, message), offsetof(reshard_error, hint), sizeof(reshard_error) };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *given = malloc(sizes[i]);
        reshard_checkpoint *opened;
        assert_non_null(given);
        memset(given, MARK, sizes[i]);
        memcpy(given, &sizes[i], sizeof(sizes[i]));
        CHECK_FAILS(reshard_open("/no/such/file", NULL, &opened, (reshard_error *)(void *)given), RESHARD_ERR_IO);
        const reshard_error *record = (const void *)given;
        assert_int_equal(record->struct_size, sizes[i]);
        if (sizes[i] > offsetof(reshard_error, code))
            assert_int_equal(record->code, RESHARD_ERR_IO);
        if (sizes[i] > offsetof(reshard_error, message))
            assert_non_null(strstr(record->message, "/no/such/file"));
        free(given);
    }
    reshard_comm *alone;
    CHECK_OK(reshard_comm_threads(1, NULL, &alone, &err));
    for (size_t i = 1; i < sizeof(sizes) / sizeof(sizes[0]); i++) { /* one that is handed in */
        reshard_error *given = calloc(1, sizes[i]);
        memcpy(given, &sizes[i], sizeof(sizes[i]));
        CHECK_FAILS(reshard_comm_agree(alone, RESHARD_ERR_IO, given), RESHARD_ERR_IO);
        assert_int_equal(given->struct_size, sizes[i]);
        free(given);
    }
    reshard_comm_free(alone);
    reshard_error zeroed = { 0 };
    reshard_checkpoint *opened;
    CHECK_FAILS(reshard_open("/no/such/file", NULL, &opened, &zeroed), RESHARD_ERR_IO);
    assert_int_equal(zeroed.struct_size, 0);
    assert_non_null(strstr(zeroed.message, "/no/such/file"));
}

TEST(results_are_zeroed_on_failure_and_releasing_them_is_harmless)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT, zeroed = { 0 };
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT, zeroed_output = { 0 };
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    memset((uint8_t *)&report + sizeof(size_t), MARK, sizeof(report) - sizeof(size_t));
    memset((uint8_t *)&output + sizeof(size_t), MARK, sizeof(output) - sizeof(size_t));
    memset((uint8_t *)&tensor + sizeof(size_t), MARK, sizeof(tensor) - sizeof(size_t));
    options.to = "no such format";
    CHECK_FAILS(reshard_convert(source, "/tmp/never", &options, NULL, &report, &err), RESHARD_ERR_USAGE);
    assert_null(report.lists);
    assert_null(report.source_format);
    reshard_report_release(&report);
    reshard_report_release(&report);
    reshard_report_release(&zeroed);
    input.text = map_text;
    input.size = sizeof(map_text) - 1;
    CHECK_FAILS(reshard_map_check(&input, &output, &err), RESHARD_ERR_USAGE); /* without a source */
    assert_null(output.text);
    reshard_map_output_release(&output);
    reshard_map_output_release(&zeroed_output);
    CHECK_FAILS(reshard_tensor_at(source, SIZE_MAX, &tensor), RESHARD_ERR_USAGE);
    assert_null(tensor.shape);
}

/* ---- lists ---- */

TEST(lists_end_where_their_count_says)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    reshard_limit limit = RESHARD_LIMIT_INIT;
    reshard_dtype dtype = RESHARD_DTYPE_INIT, found = RESHARD_DTYPE_INIT;
    CHECK_OK(reshard_format_at(reshard_format_count() - 1, &format));
    CHECK_FAILS(reshard_format_at(reshard_format_count(), &format), RESHARD_ERR_USAGE);
    CHECK_OK(reshard_limit_at(reshard_limit_count() - 1, &limit));
    CHECK_FAILS(reshard_limit_at(reshard_limit_count(), &limit), RESHARD_ERR_USAGE);
    reshard_str family;
    CHECK_OK(reshard_family_at(0, &family));
    assert_true(family.size > 0);
    CHECK_FAILS(reshard_family_at(SIZE_MAX, &family), RESHARD_ERR_USAGE);
    assert_int_equal(family.size, 0);
    for (size_t i = 0; i < reshard_dtype_count(); i++) {
        CHECK_OK(reshard_dtype_at(i, &dtype));
        CHECK_OK(reshard_dtype_find(dtype.name, &found));
        assert_string_equal(found.name, dtype.name);
        assert_int_equal(found.bits, dtype.bits);
    }
    CHECK_FAILS(reshard_dtype_at(reshard_dtype_count(), &dtype), RESHARD_ERR_USAGE);
    CHECK_OK(reshard_dtype_find("bfloat16", &found));
    assert_string_equal(found.name, "BF16");
    assert_int_equal(found.bits, 16);
    CHECK_FAILS(reshard_dtype_find("no type", &found), RESHARD_ERR_USAGE);
    assert_null(found.name);
}

TEST(notes_have_a_key_a_kind_and_a_reason)
{
    reshard_note note = RESHARD_NOTE_INIT;
    for (size_t i = 0; i < kept.note_count; i++) {
        CHECK_OK(reshard_report_note_at(&kept, i, &note));
        assert_true(note.kind && *note.kind && note.reason.size && note.text.size >= note.reason.size);
        assert_int_equal(strlen(note.text.data), note.text.size);
    }
    CHECK_OK(reshard_report_note_at(&kept, 0, &note));
    assert_int_equal(note.what, RESHARD_NOTE_DROPPED);
    assert_string_equal(note.kind, "no-place");
    char line[256];
    snprintf(line, sizeof(line), "%s: %s", note.key.data, note.reason.data);
    assert_string_equal(note.text.data, line);
    CHECK_FAILS(reshard_report_note_at(&kept, kept.note_count, &note), RESHARD_ERR_USAGE);
}

static int set_up(void **state)
{
    (void)state;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *shown = NULL;
    char damaged_path[4096];
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    snprintf(damaged_path, sizeof(damaged_path), "%s/" DAMAGED, test_fixtures());
    options.to = "zarr"; /* which has no place for items */
    open.shows_damage = 1;
    kept = (reshard_report)RESHARD_REPORT_INIT;
    reshard_status status = test_mkdtemp(scratch) ? reshard_open(source_path, NULL, &source, &err) : RESHARD_ERR_IO;
    if (!status)
        status = reshard_open(damaged_path, &open, &damaged, &err);
    if (!status)
        status = reshard_preview(source, NULL, &options, NULL, &kept, &shown, &err);
    reshard_close(shown);
    return status;
}

static int tear_down(void **state)
{
    (void)state;
    reshard_report_release(&kept);
    reshard_close(damaged);
    reshard_close(source);
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STRUCT_TEST_NAMES,
        cmocka_unit_test(a_struct_with_nothing_but_its_size_asks_for_the_defaults),
        cmocka_unit_test(an_error_record_of_any_size_is_filled_as_far_as_it_goes),
        cmocka_unit_test(results_are_zeroed_on_failure_and_releasing_them_is_harmless),
        cmocka_unit_test(lists_end_where_their_count_says),
        cmocka_unit_test(notes_have_a_key_a_kind_and_a_reason),
    };
    return cmocka_run_group_tests_name("arguments", tests, set_up, tear_down);
}
