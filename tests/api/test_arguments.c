/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs and pointers as programs of any version may pass them: every struct cut after each of its members, and longer than ours with and
 * without something in what we do not know; and NULL for every pointer of every function.
 */
#include "check.h"

#include "reshard/geometry.h"

#include <stdbool.h>
#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"
#define PLAIN "safetensors/odd-safetensors-escaped-names/ckpt.safetensors" /* without checksums */
#define UNKNOWN_BYTES 24
#define OFFSETS_MAX 32
#define MARK 0xA5

static reshard_checkpoint *source;
static reshard_map_space *space;
static char source_path[4096];
static reshard_error err;

/* ---- what is called with a struct ---- */

static const char map_text[] = "w -> v\n";

static int go_on(const reshard_progress *progress, void *context)
{
    (void)context;
    return progress->struct_size != sizeof(*progress);
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
    /* Cut before `to`, nothing says what to write: that is not the size's fault. */
    return status == RESHARD_ERR_USAGE && strstr(err.message, "neither a target format") ? RESHARD_OK : status;
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
static reshard_status call_chunk(void *given) { return reshard_chunk_at(source, 0, 0, given); }
static reshard_status call_tensor_path(void *given) { return reshard_tensor_path_at(source, 0, 0, given); }
static reshard_status call_item_path(void *given) { return reshard_item_path_at(source, 0, 0, given); }
static reshard_status call_fact(void *given) { return reshard_fact_at(source, 0, given); }
static reshard_status call_file(void *given) { return reshard_file_at(source, 0, given); }
static reshard_status call_item(void *given) { return reshard_item_at(source, 0, given); }
static reshard_status call_report_file(void *given) { return reshard_report_file_at(&kept, 0, given); }
static reshard_status call_note(void *given) { return reshard_report_note_at(&kept, 0, given); }
static reshard_status call_format(void *given) { return reshard_format_at(0, given); }
static reshard_status call_dtype(void *given) { return reshard_dtype_find("bf16", given); }
static reshard_status call_limit(void *given) { return reshard_limit_at(0, given); }

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

static const int64_t four[] = { 4 }, zero[] = { 0 };
static float numbers[4], others[4];
static const reshard_shard shard_init = { sizeof(shard_init), { "w", 1 }, "F32", 1, four, zero, four, 1, 0, 4, numbers, NULL };
static const reshard_shard other_init = { sizeof(other_init), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, others, NULL };
static const reshard_slice_operation operation_member = { "F32", NULL };
static const reshard_slice_copy slice_init = { sizeof(slice_init), &shard_init, &shard_init, &other_init, &other_init,
                                               &operation_member,  sizeof(operation_member),  1 };
static const reshard_local_tensor tensor_member = { { "w", 1 }, "F32", 1, four, numbers, NULL };
static const reshard_split_rule rule_member = { { "w", 1 }, 0 };
static const reshard_split_input split_init = { sizeof(split_init), &tensor_member, sizeof(tensor_member), 1, &rule_member,
                                                sizeof(rule_member), 1, { "p", 1 }, 0, 2 };

/* Without the boxes, or the shards, there is nothing to describe or to copy: that is not the size's fault. */
static reshard_status unless_missing(reshard_status status)
{
    return status == RESHARD_ERR_USAGE && (strstr(err.message, " is NULL") || strstr(err.message, "has no dtype")) ? RESHARD_OK : status;
}

static reshard_status call_shard(void *given)
{
    reshard_shard out = RESHARD_SHARD_INIT;
    return unless_missing(reshard_shard_describe(given, &out, &err));
}

static reshard_status call_describe(void *given) { return reshard_shard_describe(&shard_init, given, &err); }
static reshard_status call_slice(void *given) { return unless_missing(reshard_assign_slice(given, NULL, &err)); }

static reshard_status call_split(void *given)
{
    reshard_shards *made = NULL;
    reshard_status status = reshard_shards_split(given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_shards_free(made);
    return status;
}

/* No fixture with a warning is needed: what is past the end is refused, whatever the struct. */
static reshard_status call_warning(void *given)
{
    return reshard_warning_at(source, reshard_warning_count(source), given) == RESHARD_ERR_USAGE ? RESHARD_OK : RESHARD_ERR_FORMAT;
}

/* ---- the structs ---- */

static const reshard_map_text text_member = { "t", map_text, sizeof(map_text) - 1 };
static const reshard_limit_change limit_member = { "json_depth", 100 };
static const reshard_map_constant constant_member = { "n", 1 };

static const reshard_open_options open_init = {
    sizeof(open_init), NULL, 0, 0, 1, 1, 1, &limit_member, sizeof(limit_member), 1, go_on, NULL, 0
};
static const reshard_box_list boxes_init = { sizeof(boxes_init), NULL, sizeof(reshard_box), 0, NULL };
static const reshard_run_options run_init = { sizeof(run_init), 1 << 20, 1, "buffered", go_on, NULL };
static const reshard_convert_options convert_init = RESHARD_CONVERT_OPTIONS_INIT;
static const reshard_map_options map_init = { sizeof(map_init), &text_member, sizeof(text_member), 1, "none", NULL, 0, "{}", 2,
                                              &constant_member, sizeof(constant_member), 1, NULL, NULL };
static const reshard_verify_options verify_init = { .struct_size = sizeof(verify_init), .deep = 1 };
static const reshard_diff_options diff_init = {
    .struct_size = sizeof(diff_init), .absolute_tolerance = 1, .relative_tolerance = 1, .ignore_items = 1
};
static const reshard_map_input map_input_init = { sizeof(map_input_init),
                                                  "t",
                                                  map_text,
                                                  sizeof(map_text) - 1,
                                                  NULL,
                                                  NULL,
                                                  0,
                                                  0,
                                                  &limit_member,
                                                  sizeof(limit_member),
                                                  1,
                                                  NULL,
                                                  0,
                                                  &constant_member,
                                                  sizeof(constant_member),
                                                  1 };

#define AT(type, member) offsetof(type, member)
#define IN(type, init, call, ...) { #type, sizeof(type), true, init, call, { __VA_ARGS__ } }
#define OUT(type, call, ...) { #type, sizeof(type), false, NULL, call, { __VA_ARGS__ } }

static const struct struct_case {
    const char *name;
    size_t size;
    bool is_in;
    const void *init;
    reshard_status (*call)(void *given);
    size_t members[OFFSETS_MAX]; /* where those behind struct_size begin */
} cases[] = {
#define X(m) AT(reshard_open_options, m)
    IN(reshard_open_options, &open_init, call_open, X(format), X(iteration), X(has_iteration), X(follow_links), X(lenient),
       X(skip_unsupported), X(limits), X(limit_stride), X(limit_count), X(progress), X(context)),
#undef X
#define X(m) AT(reshard_run_options, m)
    IN(reshard_run_options, &run_init, call_run, X(memory_bytes), X(threads), X(io), X(progress), X(context)),
#undef X
#define X(m) AT(reshard_box_list, m)
    IN(reshard_box_list, &boxes_init, call_read_many, X(boxes), X(box_stride), X(box_count), X(is_done)),
#undef X
#define X(m) AT(reshard_convert_options, m)
    IN(reshard_convert_options, &convert_init, call_convert, X(to), X(like), X(layout), X(include), X(exclude), X(dtypes),
       X(format_options), X(max_shard_bytes), X(no_shard_limit), X(drop_items), X(overwrite), X(resume), X(no_sync), X(verify), X(checksum),
       X(open), X(map), X(wrap), X(strip_prefix), X(add_prefix), X(renames), X(rename), X(missing), X(choose_missing),
       X(context)),
#undef X
#define X(m) AT(reshard_map_options, m)
    IN(reshard_map_options, &map_init, call_map, X(texts), X(text_stride), X(text_count), X(rules), X(rules_text), X(strict), X(config),
       X(config_size), X(constants), X(constant_stride), X(constant_count), X(diagnose), X(context)),
#undef X
#define X(m) AT(reshard_verify_options, m)
    IN(reshard_verify_options, &verify_init, call_verify, X(coverage), X(uncovered), X(context), X(deep), X(expect_optimizer),
       X(against), X(open), X(fail_on)),
#undef X
#define X(m) AT(reshard_diff_options, m)
    IN(reshard_diff_options, &diff_init, call_diff, X(absolute_tolerance), X(relative_tolerance), X(map), X(ignore_items), X(include),
       X(exclude), X(summary), X(tensor), X(context), X(explain), X(strip_prefix), X(add_prefix), X(renames)),
#undef X
#define X(m) AT(reshard_map_input, m)
    IN(reshard_map_input, &map_input_init, call_map_input, X(name), X(text), X(size), X(source), X(target), X(strict), X(reverse),
       X(limits), X(limit_stride), X(limit_count), X(config), X(config_size), X(constants), X(constant_stride), X(constant_count)),
#undef X
#define X(m) AT(reshard_tensor, m)
    OUT(reshard_tensor, call_tensor, X(key), X(dtype), X(shape), X(bytes), X(chunk_count), X(replica_count), X(tied_to), X(rank),
        X(is_ambiguous)),
#undef X
#define X(m) AT(reshard_chunk, m)
    OUT(reshard_chunk, call_chunk, X(start), X(extent), X(file), X(offset), X(bytes), X(flat_begin), X(flat_count), X(encoding),
        X(is_replica), X(is_resolved)),
#undef X
#define X(m) AT(reshard_path_part, m)
    OUT(reshard_path_part, call_tensor_path, X(key), X(index), X(kind)),
    OUT(reshard_path_part, call_item_path, X(key), X(index), X(kind)),
#undef X
    OUT(reshard_warning, call_warning, AT(reshard_warning, text), AT(reshard_warning, is_damage)),
    OUT(reshard_fact, call_fact, AT(reshard_fact, name), AT(reshard_fact, value)),
    OUT(reshard_file, call_file, AT(reshard_file, name), AT(reshard_file, bytes)),
#define X(m) AT(reshard_item, m)
    OUT(reshard_item, call_item, X(key), X(kind), X(class_name), X(bytes)),
#undef X
#define X(m) AT(reshard_value_info, m)
    OUT(reshard_value_info, call_value_info, X(kind), X(integer), X(real), X(text), X(count)),
#undef X
#define X(m) AT(reshard_report, m)
    OUT(reshard_report, call_report, X(lists), X(source_format), X(target_format), X(tensors), X(items), X(source_chunks), X(target_chunks),
        X(steps), X(read_bytes), X(write_bytes), X(target_bytes), X(peak_memory_bytes), X(file_count), X(note_count)),
#undef X
#define X(m) AT(reshard_report_file, m)
    OUT(reshard_report_file, call_report_file, X(name), X(bytes), X(chunks), X(sources)),
#undef X
#define X(m) AT(reshard_note, m)
    OUT(reshard_note, call_note, X(what), X(kind), X(key), X(reason), X(text)),
#undef X
#define X(m) AT(reshard_coverage, m)
    OUT(reshard_coverage, call_coverage, X(tensors), X(bytes), X(checked_tensors), X(checked_bytes), X(items), X(checked_items),
        X(replicas), X(names_are_checked), X(has_sidecar)),
#undef X
#define X(m) AT(reshard_format, m)
    OUT(reshard_format, call_format, X(name), X(summary), X(reads), X(writes), X(is_directory), X(holds_items), X(option_count)),
#undef X
#define X(m) AT(reshard_format_option, m)
    OUT(reshard_format_word, call_format_word, AT(reshard_format_word, name), AT(reshard_format_word, help),
        AT(reshard_format_word, choices)),
    OUT(reshard_format_option, call_format_option, X(name), X(type), X(default_value), X(help)),
#undef X
    OUT(reshard_dtype, call_dtype, AT(reshard_dtype, name), AT(reshard_dtype, torch_name), AT(reshard_dtype, bits)),
    OUT(reshard_limit, call_limit, AT(reshard_limit, name), AT(reshard_limit, help), AT(reshard_limit, default_value)),
#define X(m) AT(reshard_shard, m)
    IN(reshard_shard, &other_init, call_shard, X(key), X(dtype), X(rank), X(global_shape), X(start), X(extent), X(is_flattened),
       X(flat_begin), X(flat_end), X(data)),
    OUT(reshard_shard, call_describe, X(key), X(dtype), X(rank), X(global_shape), X(start), X(extent), X(is_flattened), X(flat_begin),
        X(flat_end), X(data)),
#undef X
#define X(m) AT(reshard_slice_copy, m)
    IN(reshard_slice_copy, &slice_init, call_slice, X(source_region), X(source), X(target_region), X(target), X(operations),
       X(operation_stride), X(operation_count)),
#undef X
#define X(m) AT(reshard_split_input, m)
    IN(reshard_split_input, &split_init, call_split, X(tensors), X(tensor_stride), X(tensor_count), X(rules), X(rule_stride), X(rule_count),
       X(prefix), X(part), X(parts)),
#undef X
#define X(m) AT(reshard_map_output, m)
    OUT(reshard_map_output, call_map_output, X(texts), X(text), X(json), X(diagnoses), X(error_count), X(warning_count)),
#undef X
};

#define CASES (sizeof(cases) / sizeof(cases[0]))

/* Its own block of exactly this size: AddressSanitizer sees a byte too far, and the mark behind it those who write there. */
static uint8_t *struct_of(const struct struct_case *one, size_t size)
{
    uint8_t *made = malloc(size + 1);
    assert_non_null(made);
    memset(made, one->is_in ? 0 : MARK, size);
    if (one->is_in)
        memcpy(made, one->init, size < one->size ? size : one->size);
    memcpy(made, &size, sizeof(size));
    made[size] = MARK;
    return made;
}

static reshard_status call_with(const struct struct_case *one, size_t size)
{
    uint8_t *given = struct_of(one, size);
    reshard_status status = one->call(given);
    size_t left;
    memcpy(&left, given, sizeof(left));
    assert_int_equal(left, size);
    assert_int_equal(given[size], MARK);
    for (size_t i = one->size; !one->is_in && i < size; i++)
        assert_int_equal(given[i], 0);
    free(given);
    return status;
}

TEST(a_struct_may_be_cut_after_every_member)
{
    for (size_t i = 0; i < CASES; i++) {
        for (size_t m = 0; m < OFFSETS_MAX && cases[i].members[m]; m++) {
            if (call_with(&cases[i], cases[i].members[m]))
                fail_msg("%s cut at %zu: %s", cases[i].name, cases[i].members[m], err.message);
        }
        if (call_with(&cases[i], cases[i].size))
            fail_msg("%s: %s", cases[i].name, err.message);
    }
}

TEST(a_struct_without_a_size_is_refused)
{
    for (size_t i = 0; i < CASES; i++) {
        uint8_t *given = struct_of(&cases[i], cases[i].size);
        memset(given, 0, sizeof(size_t));
        err.message[0] = '\0';
        assert_true(cases[i].call(given) != RESHARD_OK || cases[i].call == call_warning);
        if (cases[i].is_in)
            assert_non_null(strstr(err.message, cases[i].name));
        free(given);
    }
}

TEST(a_longer_struct_is_taken_unless_what_is_not_known_is_set)
{
    for (size_t i = 0; i < CASES; i++) {
        size_t size = cases[i].size + UNKNOWN_BYTES;
        char expected[128];
        if (call_with(&cases[i], size))
            fail_msg("%s of %zu: %s", cases[i].name, size, err.message);
        snprintf(expected, sizeof(expected), "%s of %zu bytes", cases[i].name, size);
        for (size_t at = cases[i].size; cases[i].is_in && at < size; at++) {
            uint8_t *given = struct_of(&cases[i], size);
            given[at] = 1;
            CHECK_FAILS(cases[i].call(given), RESHARD_ERR_USAGE);
            if (!strstr(err.message, expected))
                fail_msg("%s, byte %zu: %s", cases[i].name, at, err.message);
            free(given);
        }
    }
}

/* ---- arrays ---- */

struct longer_text { reshard_map_text text; uint64_t unknown; };
struct longer_limit { reshard_limit_change limit; uint64_t unknown; };
struct longer_constant { reshard_map_constant constant; uint64_t unknown; };

TEST(members_of_arrays_may_be_longer_too)
{
    struct longer_text texts[2] = { { { "a", "w -> v\n", 7 }, 0 }, { { "b", "v -> u\n", 7 }, 0 } };
    struct longer_limit limits[2] = { { { "json_depth", 100 }, 0 }, { { "tensors", 100 }, 0 } };
    struct longer_constant constants[2] = { { { "n", 1 }, 0 }, { { "m", 2 }, 0 } };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    map.texts = &texts[0].text;
    map.text_count = 2;
    map.text_stride = sizeof(texts[0]);
    map.constants = &constants[0].constant;
    map.constant_count = 2;
    map.constant_stride = sizeof(constants[0]);
    open.limits = &limits[0].limit;
    open.limit_count = 2;
    open.limit_stride = sizeof(limits[0]);
    CHECK_OK(call_map(&map));
    CHECK_OK(call_open(&open));
    texts[1].unknown = limits[1].unknown = 1;
    CHECK_FAILS(call_map(&map), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_map_text of 32 bytes"));
    texts[1].unknown = 0;
    constants[1].unknown = 1;
    CHECK_FAILS(call_map(&map), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_map_constant of 24 bytes"));
    CHECK_FAILS(call_open(&open), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_limit_change of 24 bytes"));
    open.limit_stride = 0;
    CHECK_FAILS(call_open(&open), RESHARD_ERR_USAGE);
    open.limits = NULL;
    CHECK_FAILS(call_open(&open), RESHARD_ERR_USAGE);
}

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

/* ---- NULL ---- */

static int any_sink(const void *bytes, size_t size, void *context)
{
    (void)bytes, (void)size, (void)context;
    return 0;
}

static int any_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor, (void)hex, (void)context;
    return 0;
}

static int any_member(const reshard_item *member, const char *json, size_t size, void *context)
{
    (void)member, (void)json, (void)size, (void)context;
    return 0;
}

#define REFUSED(call) assert_int_equal(call, RESHARD_ERR_USAGE)

TEST(null_is_refused_by_what_opens)
{
    reshard_checkpoint *opened = source;
    REFUSED(reshard_open(NULL, NULL, &opened, &err));
    assert_null(opened);
    assert_string_equal(err.message, "reshard_open: path is NULL");
    REFUSED(reshard_open(source_path, NULL, NULL, &err));
    assert_int_equal(reshard_open("/no/such/file", NULL, &opened, NULL), RESHARD_ERR_IO);
    reshard_close(NULL);
    reshard_free(NULL);
    assert_null(reshard_checkpoint_format(NULL));
    assert_null(reshard_checkpoint_path(NULL));
    assert_int_equal(reshard_tensor_count(NULL) + reshard_item_count(NULL) + reshard_warning_count(NULL) + reshard_fact_count(NULL) +
                         reshard_file_count(NULL) + reshard_tensor_path_count(NULL, 0) + reshard_item_path_count(NULL, 0),
                     0);
    assert_int_equal(reshard_tensor_find(NULL, "w", 1), -1);
    assert_int_equal(reshard_tensor_find(source, NULL, 1), -1);
    assert_int_equal(reshard_item_find(NULL, "step", 4), -1);
    assert_int_equal(reshard_item_find(source, NULL, 4), -1);
    assert_int_equal(reshard_visible_char(NULL, 1), 0);
}

TEST(null_is_refused_by_lists)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_path_part part = RESHARD_PATH_PART_INIT;
    reshard_warning warning = RESHARD_WARNING_INIT;
    reshard_fact fact = RESHARD_FACT_INIT;
    reshard_file file = RESHARD_FILE_INIT;
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_note note = RESHARD_NOTE_INIT;
    reshard_report_file report_file = RESHARD_REPORT_FILE_INIT;
    reshard_dtype dtype = RESHARD_DTYPE_INIT;
    const size_t *order;
    REFUSED(reshard_tensor_at(NULL, 0, &tensor));
    REFUSED(reshard_tensor_at(source, 0, NULL));
    REFUSED(reshard_chunk_at(NULL, 0, 0, &chunk));
    REFUSED(reshard_chunk_at(source, 0, 0, NULL));
    REFUSED(reshard_tensor_path_at(NULL, 0, 0, &part));
    REFUSED(reshard_tensor_path_at(source, 0, 0, NULL));
    REFUSED(reshard_item_path_at(NULL, 0, 0, &part));
    REFUSED(reshard_item_path_at(source, 0, 0, NULL));
    REFUSED(reshard_warning_at(NULL, 0, &warning));
    REFUSED(reshard_warning_at(source, 0, NULL));
    REFUSED(reshard_fact_at(NULL, 0, &fact));
    REFUSED(reshard_fact_at(source, 0, NULL));
    REFUSED(reshard_file_at(NULL, 0, &file));
    REFUSED(reshard_file_at(source, 0, NULL));
    REFUSED(reshard_item_at(NULL, 0, &item));
    REFUSED(reshard_item_at(source, 0, NULL));
    REFUSED(reshard_tensor_order(NULL, &order, &err));
    REFUSED(reshard_tensor_order(source, NULL, &err));
    REFUSED(reshard_report_file_at(NULL, 0, &report_file));
    REFUSED(reshard_report_file_at(&kept, 0, NULL));
    REFUSED(reshard_report_note_at(NULL, 0, &note));
    REFUSED(reshard_report_note_at(&kept, 0, NULL));
    REFUSED(reshard_format_at(0, NULL));
    REFUSED(reshard_format_option_at(0, 0, NULL));
    REFUSED(reshard_format_word_at(0, 0, NULL));
    REFUSED(reshard_dtype_at(0, NULL));
    REFUSED(reshard_dtype_find(NULL, &dtype));
    REFUSED(reshard_dtype_find("bf16", NULL));
    REFUSED(reshard_limit_at(0, NULL));
}

TEST(null_is_refused_by_values)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    const reshard_value *value = NULL, *item_value;
    char *text;
    size_t size;
    REFUSED(reshard_item_value(NULL, 0, &value, &err));
    REFUSED(reshard_item_value(source, 0, NULL, &err));
    CHECK_OK(reshard_item_value(source, 0, &item_value, NULL));
    REFUSED(reshard_value_look(NULL, item_value, &info));
    REFUSED(reshard_value_look(source, NULL, &info));
    REFUSED(reshard_value_look(source, item_value, NULL));
    REFUSED(reshard_value_at(NULL, item_value, 0, NULL, &value));
    REFUSED(reshard_value_at(source, NULL, 0, NULL, &value));
    REFUSED(reshard_value_at(source, item_value, 0, NULL, NULL));
    assert_null(reshard_value_find(NULL, item_value, "a", 1));
    assert_null(reshard_value_find(source, NULL, "a", 1));
    assert_null(reshard_value_find(source, item_value, NULL, 1));
    REFUSED(reshard_value_json(NULL, item_value, &text, &size, &err));
    REFUSED(reshard_value_json(source, NULL, &text, &size, &err));
    REFUSED(reshard_value_json(source, item_value, NULL, &size, &err));
    REFUSED(reshard_value_json(source, item_value, &text, NULL, &err));
    REFUSED(reshard_item_json(NULL, 0, &text, &size, &err));
    REFUSED(reshard_item_json(source, 0, NULL, &size, &err));
    REFUSED(reshard_item_json(source, 0, &text, NULL, &err));
    REFUSED(reshard_item_members(NULL, 0, any_member, NULL, &err));
    REFUSED(reshard_item_members(source, 0, NULL, NULL, &err));
}

TEST(null_is_refused_by_runs)
{
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    char *text;
    void *header;
    size_t size;
    REFUSED(reshard_read(NULL, 0, NULL, NULL, NULL, any_sink, NULL, &err));
    REFUSED(reshard_read(source, 0, NULL, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_read_into(NULL, 0, NULL, NULL, NULL, &text, sizeof(text), &err));
    REFUSED(reshard_read_into(source, 0, NULL, NULL, NULL, NULL, 1, &err));
    reshard_box_list boxes = RESHARD_BOX_LIST_INIT;
    REFUSED(reshard_read_many(NULL, &boxes, NULL, &err));
    REFUSED(reshard_read_many(source, NULL, NULL, &err));
    boxes.box_count = 1;
    REFUSED(reshard_read_many(source, &boxes, NULL, &err));
    REFUSED(reshard_npy_header(NULL, 0, NULL, &header, &size, &err));
    REFUSED(reshard_npy_header(source, 0, NULL, NULL, &size, &err));
    REFUSED(reshard_npy_header(source, 0, NULL, &header, NULL, &err));
    REFUSED(reshard_hash(NULL, "xxh3", NULL, any_hash, NULL, &err));
    REFUSED(reshard_hash(source, NULL, NULL, any_hash, NULL, &err));
    REFUSED(reshard_hash(source, "xxh3", NULL, NULL, NULL, &err));
    convert.to = "hf";
    REFUSED(reshard_convert(NULL, "/tmp/never", &convert, NULL, &report, &err));
    REFUSED(reshard_convert(source, NULL, &convert, NULL, &report, &err));
    REFUSED(reshard_convert(source, "/tmp/never", NULL, NULL, &report, &err));
    REFUSED(reshard_estimate(NULL, NULL, &convert, NULL, &report, &err));
    REFUSED(reshard_estimate(source, NULL, NULL, NULL, &report, &err));
    REFUSED(reshard_estimate(source, NULL, &convert, NULL, NULL, &err));
    reshard_report_release(NULL);
    REFUSED(reshard_verify(NULL, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_latest_good(NULL, NULL, NULL, NULL, NULL, NULL, &text, &err));
    REFUSED(reshard_latest_good(source_path, NULL, NULL, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_diff(NULL, source, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_diff(source, NULL, NULL, NULL, NULL, NULL, &err));
}

TEST(null_is_refused_by_mappings)
{
    reshard_map_space *made = space;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    REFUSED(reshard_map_space_describe(NULL, 0, &made, &err));
    assert_null(made);
    REFUSED(reshard_map_space_describe("{}", 2, NULL, &err));
    REFUSED(reshard_map_space_of(NULL, &made, &err));
    REFUSED(reshard_map_space_of(source, NULL, &err));
    reshard_map_space_free(NULL);
    reshard_map_output_release(NULL);
    reshard_status (*const verbs[])(const reshard_map_input *, reshard_map_output *, reshard_error *) = {
        reshard_map_parse, reshard_map_expand, reshard_map_check, reshard_map_eval, reshard_map_invert
    };
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        REFUSED(verbs[i](NULL, &output, &err));
        REFUSED(verbs[i](&input, NULL, &err));
    }
}

/* ---- callbacks ---- */

struct stopping {
    size_t calls, stop_at;
};

static int count_call(struct stopping *stopping)
{
    return ++stopping->calls == stopping->stop_at;
}

static int stop_progress(const reshard_progress *progress, void *context)
{
    (void)progress;
    return count_call(context);
}

static int stop_sink(const void *bytes, size_t size, void *context)
{
    (void)bytes, (void)size;
    return count_call(context);
}

static int stop_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor, (void)hex;
    return count_call(context);
}

static int stop_uncovered(reshard_str key, uint64_t bytes, void *context)
{
    (void)key, (void)bytes;
    return count_call(context);
}

static int stop_diagnose(const char *diagnoses, size_t error_count, void *context)
{
    (void)diagnoses, (void)error_count;
    return count_call(context);
}

static int stop_finding(const reshard_finding *finding, void *context)
{
    assert_int_equal(finding->struct_size, sizeof(*finding));
    return count_call(context);
}

#define STOPPED(call, stopping)                                \
    do {                                                       \
        assert_int_equal(call, RESHARD_ERR_CANCELLED);         \
        assert_int_equal((stopping).calls, (stopping).stop_at); \
        (stopping).calls = 0;                                  \
    } while (0)

TEST(every_callback_stops_its_call_with_anything_but_zero)
{
    struct stopping stopping = { .stop_at = 1 };
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    reshard_checkpoint *opened = NULL;
    char *path = NULL;
    open.progress = stop_progress;
    open.context = run.context = verify.context = map.context = &stopping;
    STOPPED(reshard_open(source_path, &open, &opened, &err), stopping);
    stopping.stop_at = 2;
    STOPPED(reshard_open(source_path, &open, &opened, &err), stopping);
    stopping.stop_at = 1;
    STOPPED(reshard_read(source, 0, NULL, NULL, NULL, stop_sink, &stopping, &err), stopping);
    stopping.stop_at = 2;
    STOPPED(reshard_hash(source, "xxh3", NULL, stop_hash, &stopping, &err), stopping);
    verify.uncovered = stop_uncovered;
    stopping.stop_at = 1;
    char plain_path[4096];
    snprintf(plain_path, sizeof(plain_path), "%s/" PLAIN, test_fixtures());
    CHECK_OK(reshard_open(plain_path, NULL, &opened, &err));
    STOPPED(reshard_verify(opened, &verify, NULL, NULL, NULL, &err), stopping);
    reshard_close(opened);
    map.texts = &(const reshard_map_text){ "bad", "nothing -> x", 12 };
    map.text_count = 1;
    map.diagnose = stop_diagnose;
    diff.map = &map;
    STOPPED(reshard_diff(source, source, &diff, NULL, NULL, NULL, &err), stopping);
    /* Below a root of one folder whose name ends in a number; what is in it is no checkpoint. */
    char root[] = "/tmp/reshard-arguments-XXXXXX", folder[64];
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof(folder), "%s/step-1", root);
    char command[5000];
    snprintf(command, sizeof(command), "cp -r '%s' '%s'", source_path, folder);
    assert_int_equal(system(command), 0);
    STOPPED(reshard_latest_good(root, &open, NULL, NULL, NULL, NULL, &path, &err), stopping);
    assert_null(path);
    snprintf(command, sizeof(command), "rm -f '%s'/*", folder);
    assert_int_equal(system(command), 0);
    STOPPED(reshard_latest_good(root, NULL, NULL, NULL, stop_finding, &stopping, &path, &err), stopping);
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
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
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    options.to = "safetensors"; /* which has no place for items */
    kept = (reshard_report)RESHARD_REPORT_INIT;
    return reshard_open(source_path, NULL, &source, &err) || reshard_estimate(source, NULL, &options, NULL, &kept, &err) ||
           reshard_map_space_of(source, &space, &err);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_report_release(&kept);
    reshard_map_space_free(space);
    reshard_close(source);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_struct_may_be_cut_after_every_member),
        cmocka_unit_test(a_struct_without_a_size_is_refused),
        cmocka_unit_test(a_longer_struct_is_taken_unless_what_is_not_known_is_set),
        cmocka_unit_test(members_of_arrays_may_be_longer_too),
        cmocka_unit_test(a_struct_with_nothing_but_its_size_asks_for_the_defaults),
        cmocka_unit_test(an_error_record_of_any_size_is_filled_as_far_as_it_goes),
        cmocka_unit_test(results_are_zeroed_on_failure_and_releasing_them_is_harmless),
        cmocka_unit_test(null_is_refused_by_what_opens),
        cmocka_unit_test(null_is_refused_by_lists),
        cmocka_unit_test(null_is_refused_by_values),
        cmocka_unit_test(null_is_refused_by_runs),
        cmocka_unit_test(null_is_refused_by_mappings),
        cmocka_unit_test(every_callback_stops_its_call_with_anything_but_zero),
        cmocka_unit_test(lists_end_where_their_count_says),
        cmocka_unit_test(notes_have_a_key_a_kind_and_a_reason),
    };
    return cmocka_run_group_tests_name("arguments", tests, set_up, tear_down);
}
