/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NULL for every pointer of every function: what is needed is named, what was to be filled in is zeroed, and what ends things does nothing.
 */
#include "api/arguments.h"

#define SOURCE "torch-dcp/dcp-small/ckpt"

/* Functions without a status do nothing, or return nothing. */
#define HARMLESS(call) call
#define HARMLESS_STATUS(call) HARMLESS(call)
#define NOTHING(call) assert_true(!(HARMLESS(call)))

static const int64_t four[] = { 4 }, zero[] = { 0 };
static const reshard_sharded_tensor whole = {
    .struct_size = sizeof(whole), .key = { "w", 1 }, .dtype = "F32", .rank = 1, .local_shape = four
};
static reshard_checkpoint *source;
static reshard_map_space *space;
static reshard_shards *list;
static reshard_report kept;
static char source_path[4096];

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

static int any_stats(size_t tensor, const reshard_tensor_stats *stats, void *context)
{
    (void)tensor, (void)stats, (void)context;
    return 0;
}

static int any_member(const reshard_item *member, const char *json, size_t size, void *context)
{
    (void)member, (void)json, (void)size, (void)context;
    return 0;
}

TEST(null_is_refused_by_what_opens)
{
    reshard_checkpoint *opened = source;
    REFUSED(reshard_open(NULL, NULL, &opened, &err));
    assert_null(opened);
    assert_string_equal(err.message, "reshard_open: path is NULL");
    REFUSED(reshard_open(source_path, NULL, NULL, &err));
    assert_int_equal(reshard_open("/no/such/file", NULL, &opened, NULL), RESHARD_ERR_IO);
    HARMLESS(reshard_close(NULL));
    HARMLESS(reshard_free(NULL));
    REFUSED(reshard_checkpoint_view(NULL, &(const reshard_view)RESHARD_VIEW_INIT, &err));
    NOTHING(reshard_checkpoint_format(NULL));
    NOTHING(reshard_checkpoint_path(NULL));
    NOTHING(reshard_path_shown(NULL));
    NOTHING(reshard_tensor_count(NULL));
    NOTHING(reshard_item_count(NULL));
    NOTHING(reshard_warning_count(NULL));
    NOTHING(reshard_fact_count(NULL));
    NOTHING(reshard_file_count(NULL));
    NOTHING(reshard_tensor_path_count(NULL, 0));
    NOTHING(reshard_item_path_count(NULL, 0));
    NOTHING(reshard_tensor_find(NULL, "w", 1) + 1);
    NOTHING(reshard_tensor_find(source, NULL, 1) + 1);
    NOTHING(reshard_item_find(NULL, "step", 4) + 1);
    NOTHING(reshard_item_find(source, NULL, 4) + 1);
    NOTHING(reshard_visible_char(NULL, 1));
}

TEST(null_is_refused_by_lists)
{
    reshard_tensor listed = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_path_part part = RESHARD_PATH_PART_INIT;
    reshard_warning warning = RESHARD_WARNING_INIT;
    reshard_fact fact = RESHARD_FACT_INIT;
    reshard_file file = RESHARD_FILE_INIT;
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_note note = RESHARD_NOTE_INIT;
    reshard_report_file report_file = RESHARD_REPORT_FILE_INIT;
    reshard_dtype dtype = RESHARD_DTYPE_INIT;
    reshard_move move = RESHARD_MOVE_INIT;
    const size_t *order;
    REFUSED(reshard_tensor_at(NULL, 0, &listed));
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
    REFUSED(reshard_report_move_at(NULL, 0, &move));
    REFUSED(reshard_report_move_at(&kept, 0, NULL));
    REFUSED(reshard_format_at(0, NULL));
    REFUSED(reshard_format_option_at(0, 0, NULL));
    REFUSED(reshard_format_word_at(0, 0, NULL));
    REFUSED(reshard_dtype_at(0, NULL));
    REFUSED(reshard_dtype_find(NULL, &dtype));
    REFUSED(reshard_dtype_find("bf16", NULL));
    REFUSED(reshard_limit_at(0, NULL));
    REFUSED(reshard_family_at(0, NULL));
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
    NOTHING(reshard_value_find(NULL, item_value, "a", 1));
    NOTHING(reshard_value_find(source, NULL, "a", 1));
    NOTHING(reshard_value_find(source, item_value, NULL, 1));
    REFUSED(reshard_value_json(NULL, item_value, &text, &size, &err));
    REFUSED(reshard_value_json(source, NULL, &text, &size, &err));
    REFUSED(reshard_value_json(source, item_value, NULL, &size, &err));
    REFUSED(reshard_value_json(source, item_value, &text, NULL, &err));
    REFUSED(reshard_item_json(NULL, 0, &text, &size, &err));
    REFUSED(reshard_item_json(source, 0, NULL, &size, &err));
    REFUSED(reshard_item_json(source, 0, &text, NULL, &err));
    void *file;
    REFUSED(reshard_item_file(NULL, 0, &file, &size, &err));
    assert_null(file);
    REFUSED(reshard_item_file(source, 0, NULL, &size, &err));
    REFUSED(reshard_item_file(source, 0, &file, NULL, &err));
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
    HARMLESS(reshard_report_release(NULL));
    REFUSED(reshard_commit(NULL, "/tmp/never", &convert, NULL, &report, &err));
    REFUSED(reshard_commit(source, NULL, &convert, NULL, &report, &err));
    REFUSED(reshard_commit(source, "/tmp/never", NULL, NULL, &report, &err));
    REFUSED(reshard_part_words(NULL, &text, &size, &err));
    REFUSED(reshard_part_words("/tmp/never", NULL, &size, &err));
    REFUSED(reshard_part_words("/tmp/never", &text, NULL, &err));
    reshard_checkpoint *shown = source;
    REFUSED(reshard_preview(NULL, NULL, &convert, NULL, &report, &shown, &err));
    assert_null(shown);
    REFUSED(reshard_preview(source, NULL, NULL, NULL, &report, &shown, &err));
    REFUSED(reshard_preview(source, NULL, &convert, NULL, &report, NULL, &err));
    REFUSED(reshard_stats(NULL, NULL, NULL, any_stats, NULL, &err));
    REFUSED(reshard_stats(source, NULL, NULL, NULL, NULL, &err));
    reshard_tensor_stats stats = RESHARD_TENSOR_STATS_INIT;
    REFUSED(reshard_stats_join(NULL, &stats));
    REFUSED(reshard_stats_join(&stats, NULL));
    REFUSED(reshard_salvage(NULL, "/tmp/never", NULL, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_salvage(source_path, NULL, NULL, NULL, NULL, NULL, NULL, &err));
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
    HARMLESS(reshard_map_space_free(NULL));
    HARMLESS(reshard_map_output_release(NULL));
    REFUSED(reshard_map_parse(NULL, &output, &err));
    REFUSED(reshard_map_parse(&input, NULL, &err));
    REFUSED(reshard_map_expand(NULL, &output, &err));
    REFUSED(reshard_map_expand(&input, NULL, &err));
    REFUSED(reshard_map_check(NULL, &output, &err));
    REFUSED(reshard_map_check(&input, NULL, &err));
    REFUSED(reshard_map_eval(NULL, &output, &err));
    REFUSED(reshard_map_eval(&input, NULL, &err));
    REFUSED(reshard_map_invert(NULL, &output, &err));
    REFUSED(reshard_map_invert(&input, NULL, &err));
}

TEST(null_is_refused_by_geometry)
{
    int64_t numbers[2] = { 9, 9 }, flat = 9;
    int overlaps = 1;
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_shards *made = list;
    reshard_split_input input = RESHARD_SPLIT_INPUT_INIT;
    REFUSED(reshard_ravel(1, NULL, numbers, &flat, &err));
    assert_int_equal(flat, 0);
    REFUSED(reshard_ravel(1, four, NULL, &flat, &err));
    REFUSED(reshard_ravel(1, four, numbers, NULL, &err));
    REFUSED(reshard_unravel(1, NULL, 0, numbers, &err));
    assert_int_equal(numbers[0], 0);
    REFUSED(reshard_unravel(1, four, 0, NULL, &err));
    REFUSED(reshard_minimal_box(1, NULL, 0, 1, numbers, numbers, &err));
    REFUSED(reshard_minimal_box(1, four, 0, 1, NULL, numbers, &err));
    REFUSED(reshard_minimal_box(1, four, 0, 1, numbers, NULL, &err));
    REFUSED(reshard_range_in_box(1, NULL, zero, four, 0, 1, numbers, &flat, &err));
    REFUSED(reshard_range_in_box(1, four, NULL, four, 0, 1, numbers, &flat, &err));
    REFUSED(reshard_range_in_box(1, four, zero, NULL, 0, 1, numbers, &flat, &err));
    REFUSED(reshard_range_in_box(1, four, zero, four, 0, 1, NULL, &flat, &err));
    REFUSED(reshard_range_in_box(1, four, zero, four, 0, 1, numbers, NULL, &err));
    REFUSED(reshard_overlap(1, NULL, four, zero, four, &overlaps, NULL, NULL, NULL, NULL, &err));
    assert_int_equal(overlaps, 0);
    REFUSED(reshard_overlap(1, zero, NULL, zero, four, &overlaps, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_overlap(1, zero, four, NULL, four, &overlaps, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_overlap(1, zero, four, zero, NULL, &overlaps, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_overlap(1, zero, four, zero, four, NULL, NULL, NULL, NULL, NULL, &err));
    REFUSED(reshard_shard_describe(NULL, &shard, &err));
    REFUSED(reshard_shard_describe(&shard, NULL, &err));
    REFUSED(reshard_assign_slice(NULL, NULL, &err));
    REFUSED(reshard_assign_slice(&(const reshard_slice_copy)RESHARD_SLICE_COPY_INIT, NULL, &err));
    REFUSED(reshard_shards_new(NULL, &err));
    HARMLESS(reshard_shards_free(NULL));
    REFUSED(reshard_shards_add(NULL, &shard, &err));
    REFUSED(reshard_shards_add(list, NULL, &err));
    NOTHING(reshard_shards_count(NULL));
    REFUSED(reshard_shards_at(NULL, 0, &shard));
    REFUSED(reshard_shards_at(list, 0, NULL));
    REFUSED(reshard_shards_merge(NULL, 1, &made, &err));
    assert_null(made);
    REFUSED(reshard_shards_merge((const reshard_shards *const[]){ NULL }, 1, &made, &err));
    REFUSED(reshard_shards_merge((const reshard_shards *const[]){ list }, 1, NULL, &err));
    REFUSED(reshard_shards_check(NULL, list, &err));
    REFUSED(reshard_shards_split(NULL, &made, &err));
    REFUSED(reshard_shards_split(&input, NULL, &err));
    REFUSED(reshard_state_kind(NULL, sizeof(reshard_local_tensor), 1, &flat, &err));
    REFUSED(reshard_state_kind(NULL, sizeof(reshard_local_tensor), 0, NULL, &err));
    REFUSED(reshard_state_kinds_join(NULL, 1, &flat, &err));
    REFUSED(reshard_state_kinds_join(numbers, 1, NULL, &err));
}

TEST(null_is_refused_by_layers)
{
    int64_t replica[3] = { 9, 9, 9 }, begin = 9, end = 9;
    const reshard_layer layer = RESHARD_LAYER_INIT;
    const reshard_optimizer optimizer = RESHARD_OPTIMIZER_INIT;
    reshard_sharding_parameter parameter = { .elements = 4, .dtype = "F32" };
    reshard_flat_parameter flat = { .elements = 4 };
    char *key = source_path;
    size_t size = 9;
    REFUSED(reshard_layer_shards(NULL, NULL, list, &err));
    REFUSED(reshard_layer_shards(&layer, NULL, NULL, &err));
    REFUSED(reshard_layer_replica(NULL, NULL, (reshard_str){ "w", 1 }, replica, &err));
    assert_int_equal(replica[0] + replica[1] + replica[2], 0);
    REFUSED(reshard_layer_replica(&layer, NULL, (reshard_str){ "w", 1 }, NULL, &err));
    REFUSED(reshard_expert_key((reshard_str){ "w", 1 }, 0, 1, NULL, &size, &err));
    REFUSED(reshard_expert_key((reshard_str){ "w", 1 }, 0, 1, &key, NULL, &err));
    REFUSED(reshard_optimizer_ids(NULL, 1, replica, &err));
    REFUSED(reshard_optimizer_ids((const void *const[]){ four }, 1, NULL, &err));
    REFUSED(reshard_optimizer_shards(NULL, list, &err));
    REFUSED(reshard_optimizer_shards(&optimizer, NULL, &err));
    REFUSED(reshard_optimizer_shards(&optimizer, list, &err));
    REFUSED(reshard_sharding_assign(RESHARD_SHARDING_1_V1, 2, NULL, sizeof(parameter), 1, &err));
    REFUSED(reshard_sharding_range(NULL, sizeof(parameter), 0, &begin, &end, &err));
    assert_true(begin == 0 && end == 0);
    REFUSED(reshard_sharding_range(&parameter, sizeof(parameter), 0, NULL, &end, &err));
    REFUSED(reshard_sharding_range(&parameter, sizeof(parameter), 0, &begin, NULL, &err));
    REFUSED(reshard_flat_assign(1, 2, 0, NULL, sizeof(flat), 1, &begin, &err));
    REFUSED(reshard_flat_assign(1, 2, 0, &flat, sizeof(flat), 1, NULL, &err));
}

TEST(null_is_refused_by_groups)
{
    reshard_comm *made = (void *)source_path;
    const reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    const void *parts[1];
    size_t sizes[1];
    void *all = source_path;
    REFUSED(reshard_comm_new(NULL, NULL, &made, &err));
    assert_null(made);
    REFUSED(reshard_comm_new(&callbacks, NULL, &made, &err));
    REFUSED(reshard_comm_new(&callbacks, NULL, NULL, &err));
    REFUSED(reshard_comm_threads(1, NULL, NULL, &err));
    REFUSED(reshard_comm_processes(NULL, 0, 1, NULL, &made, &err));
    REFUSED(reshard_comm_processes("name", 0, 1, NULL, NULL, &err));
    NOTHING(reshard_comm_rank(NULL));
    NOTHING(reshard_comm_size(NULL));
    REFUSED(reshard_comm_barrier(NULL, &err));
    HARMLESS(reshard_comm_abort(NULL, "reason"));
    HARMLESS(reshard_comm_free(NULL));
    REFUSED(reshard_comm_memory_new(NULL, 1, &all, &err));
    assert_null(all);
    HARMLESS(reshard_comm_memory_free(NULL, sizes));
    REFUSED(reshard_comm_all_gather(NULL, "a", 1, parts, sizes, &all, &err));
    assert_null(all);
    CHECK_OK(reshard_comm_threads(1, NULL, &made, &err));
    REFUSED(reshard_comm_all_gather(made, NULL, 1, parts, sizes, &all, &err));
    REFUSED(reshard_comm_all_gather(made, "a", 1, NULL, sizes, &all, &err));
    REFUSED(reshard_comm_all_gather(made, "a", 1, parts, NULL, &all, &err));
    REFUSED(reshard_comm_all_gather(made, "a", 1, parts, sizes, NULL, &err));
    REFUSED(reshard_comm_memory_new(made, 1, NULL, &err));
    CHECK_FAILS(reshard_comm_memory_new(made, SIZE_MAX, &all, &err), RESHARD_ERR_LIMIT);
    HARMLESS(reshard_comm_memory_free(made, NULL));
    HARMLESS(reshard_comm_memory_free(made, sizes));
    REFUSED(reshard_comm_agree(NULL, RESHARD_OK, &err));
    CHECK_FAILS(reshard_comm_agree(made, RESHARD_ERR_IO, NULL), RESHARD_ERR_IO);
    HARMLESS(reshard_comm_abort(made, NULL));
    reshard_comm_free(made);
    REFUSED(reshard_redistribute(NULL, list, list, NULL, NULL, &err));
}

TEST(null_is_refused_by_transfers)
{
    const reshard_shards *const lists[] = { list };
    reshard_transfers *made = (void *)source_path, *good = NULL;
    reshard_transfer transfer = RESHARD_TRANSFER_INIT;
    reshard_comm *alone = NULL;
    void *bytes = source_path;
    size_t size = 9;
    CHECK_OK(reshard_comm_threads(1, NULL, &alone, &err));
    REFUSED(reshard_transfers_new(NULL, list, list, NULL, &made, &err));
    assert_null(made);
    REFUSED(reshard_transfers_new(alone, list, list, NULL, NULL, &err));
    REFUSED(reshard_transfers_plan(lists, lists, 1, NULL, NULL, &err));
    CHECK_OK(reshard_transfers_plan(NULL, NULL, 1, NULL, &good, &err));
    HARMLESS(reshard_transfers_free(NULL));
    assert_int_equal(reshard_transfers_run(NULL, alone, list, list, NULL, &err), RESHARD_ERR_USAGE);
    REFUSED(reshard_transfers_run(good, NULL, list, list, NULL, &err));
    NOTHING(reshard_transfers_hash(NULL));
    NOTHING(reshard_transfers_ranks(NULL));
    NOTHING(reshard_transfers_pair_bytes(NULL, 0, 0));
    NOTHING(reshard_transfers_count(NULL));
    REFUSED(reshard_transfers_at(NULL, 0, &transfer, &err));
    REFUSED(reshard_transfers_at(good, 0, NULL, &err));
    REFUSED(reshard_transfers_print(NULL, any_sink, NULL, &err));
    REFUSED(reshard_transfers_print(good, NULL, NULL, &err));
    REFUSED(reshard_transfers_export(NULL, &bytes, &size, &err));
    assert_true(!bytes && !size);
    REFUSED(reshard_transfers_export(good, NULL, &size, &err));
    REFUSED(reshard_transfers_export(good, &bytes, NULL, &err));
    REFUSED(reshard_transfers_import(NULL, 1, &made, &err));
    REFUSED(reshard_transfers_import("a", 1, NULL, &err));
    reshard_transfers_free(good);
    reshard_comm_free(alone);
}

TEST(null_is_refused_by_state)
{
    reshard_items *items = NULL;
    reshard_checkpoint *opened = source;
    const reshard_state empty = RESHARD_STATE_INIT;
    const reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    reshard_value *value = (void *)source_path;
    const reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    REFUSED(reshard_items_new(NULL, &err));
    HARMLESS(reshard_items_free(NULL));
    CHECK_OK(reshard_items_new(&items, &err));
    REFUSED(reshard_items_add(NULL, NULL, (reshard_str){ "k", 1 }, &info, &value, &err));
    assert_null(value);
    REFUSED(reshard_items_add(items, NULL, (reshard_str){ "k", 1 }, NULL, &value, &err));
    REFUSED(reshard_items_add_file(NULL, (reshard_str){ "k", 1 }, "f", 1, &err));
    REFUSED(reshard_items_add_file(items, (reshard_str){ "k", 1 }, NULL, 1, &err));
    REFUSED(reshard_items_copy(NULL, source, 0, (reshard_str){ NULL, 0 }, &err));
    REFUSED(reshard_items_copy(items, NULL, 0, (reshard_str){ NULL, 0 }, &err));
    reshard_items_free(items);
    REFUSED(reshard_open_shards(NULL, NULL, &opened, &err));
    assert_null(opened);
    REFUSED(reshard_open_shards(&empty, NULL, &opened, &err));
    REFUSED(reshard_open_shards(&empty, NULL, NULL, &err));
    REFUSED(reshard_load_shards(NULL, list, NULL, &err));
    REFUSED(reshard_load_shards(source, NULL, NULL, &err));
    REFUSED(reshard_load_shards_mapped(NULL, list, &map, NULL, &err));
    REFUSED(reshard_load_shards_mapped(source, NULL, &map, NULL, &err));
    REFUSED(reshard_load_shards_mapped(source, list, NULL, NULL, &err));
}

TEST(null_is_refused_by_sharded_state)
{
    reshard_sharded *made = NULL;
    reshard_sharded_tensor got = RESHARD_SHARDED_TENSOR_INIT;
    const reshard_sharded_factory factory = RESHARD_SHARDED_FACTORY_INIT;
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    char *text = source_path;
    REFUSED(reshard_sharded_new(NULL, &err));
    HARMLESS(reshard_sharded_free(NULL));
    REFUSED(reshard_kept_new(NULL, &err));
    HARMLESS(reshard_kept_free(NULL));
    NOTHING(reshard_kept_uses(NULL));
    CHECK_OK(reshard_sharded_new(&made, &err));
    REFUSED(reshard_sharded_add(NULL, &whole, &err));
    REFUSED(reshard_sharded_add(made, NULL, &err));
    REFUSED(reshard_sharded_add_offsets(NULL, &whole, NULL, sizeof(reshard_rank_offset), 0, &err));
    REFUSED(reshard_sharded_add_offsets(made, NULL, NULL, sizeof(reshard_rank_offset), 0, &err));
    REFUSED(reshard_sharded_add_offsets(made, &whole, NULL, sizeof(reshard_rank_offset), 1, &err));
    NOTHING(reshard_sharded_count(NULL));
    NOTHING(reshard_sharded_object_count(NULL));
    NOTHING(reshard_sharded_value_count(NULL));
    REFUSED(reshard_sharded_at(NULL, 0, &got));
    REFUSED(reshard_sharded_at(made, 0, NULL));
    REFUSED(reshard_sharded_object_at(NULL, 0, &object));
    REFUSED(reshard_sharded_object_at(made, 0, NULL));
    REFUSED(reshard_sharded_value_at(NULL, 0, &value));
    REFUSED(reshard_sharded_value_at(made, 0, NULL));
    REFUSED(reshard_sharded_add_narrow(NULL, &whole, 0, 0, 1, &err));
    REFUSED(reshard_sharded_add_narrow(made, NULL, 0, 0, 1, &err));
    REFUSED(reshard_sharded_add_factory(NULL, &factory, &err));
    REFUSED(reshard_sharded_add_factory(made, NULL, &err));
    REFUSED(reshard_sharded_add_factory(made, &factory, &err));
    REFUSED(reshard_sharded_expand(NULL, &err));
    REFUSED(reshard_sharded_merge(NULL, &err));
    REFUSED(reshard_sharded_add_object(NULL, &object, &err));
    REFUSED(reshard_sharded_add_object(made, NULL, &err));
    REFUSED(reshard_object_key(NULL, &text, &err));
    assert_null(text);
    REFUSED(reshard_object_key(&object, NULL, &err));
    REFUSED(reshard_sharded_add_object_key(NULL, (reshard_str){ "a", 1 }, &err));
    REFUSED(reshard_sharded_add_value(NULL, &value, &err));
    REFUSED(reshard_sharded_add_value(made, NULL, &err));
    REFUSED(reshard_sharded_remove_value(NULL, &(reshard_str){ "a", 1 }, 1, &err));
    REFUSED(reshard_sharded_remove_value(made, NULL, 1, &err));
    reshard_sharded_free(made);
}

TEST(null_is_refused_by_grids)
{
    int64_t numbers[1];
    REFUSED(reshard_sharded_cell(NULL, numbers, &err));
    REFUSED(reshard_sharded_cell(&whole, NULL, &err));
    REFUSED(reshard_sharded_slice(NULL, numbers, numbers, &err));
    REFUSED(reshard_sharded_slice(&whole, NULL, numbers, &err));
    REFUSED(reshard_sharded_slice(&whole, numbers, NULL, &err));
    REFUSED(reshard_sharded_largest_chunk(NULL, numbers, &err));
    REFUSED(reshard_sharded_largest_chunk(&whole, NULL, &err));
    NOTHING(!reshard_replica_is_main(NULL, 1));
}

TEST(null_is_refused_by_all_ranks_together)
{
    reshard_sharded *made = NULL;
    int64_t strict = 9;
    char *text = source_path;
    CHECK_OK(reshard_sharded_new(&made, &err));
    REFUSED(reshard_sharded_add_prefix(NULL, (reshard_str){ "a", 1 }, &err));
    REFUSED(reshard_sharded_replace_prefix(NULL, (reshard_str){ "a", 1 }, (reshard_str){ "b", 1 }, &err));
    REFUSED(reshard_sharded_map_prefixes(NULL, NULL, NULL, 0, &err));
    REFUSED(reshard_sharded_map_prefixes(made, NULL, (const reshard_str[]){ { "a", 1 } }, 1, &err));
    REFUSED(reshard_sharded_map_prefixes(made, (const reshard_str[]){ { "a", 1 } }, NULL, 1, &err));
    REFUSED(reshard_sharded_check(NULL, 1, &err));
    REFUSED(reshard_sharded_check((const reshard_sharded *const[]){ NULL }, 1, &err));
    REFUSED(reshard_sharded_spread(NULL, 1, &err));
    REFUSED(reshard_sharded_spread((reshard_sharded *const[]){ NULL }, 1, &err));
    REFUSED(reshard_sharded_compare_common(NULL, made, 1, &text, &err));
    assert_null(text);
    REFUSED(reshard_sharded_compare_common(made, NULL, 1, &text, &err));
    REFUSED(reshard_sharded_compare_common(made, made, 1, NULL, &err));
    REFUSED(reshard_strict_find(NULL, &strict, &err));
    assert_int_equal(strict, 0);
    REFUSED(reshard_strict_find("log_all", NULL, &err));
    reshard_sharded_free(made);
}

TEST(null_is_refused_by_saving_and_loading_together)
{
    const reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    REFUSED(reshard_kept_new(NULL, &err));
    HARMLESS(reshard_kept_free(NULL));
    NOTHING(reshard_kept_uses(NULL));
    reshard_sharded *made = NULL, *result;
    CHECK_OK(reshard_sharded_new(&made, &err));
    result = made;
    REFUSED(reshard_remove(NULL, (reshard_str){ "w", 1 }, NULL, NULL, &err));
    REFUSED(reshard_remove("/tmp/never", (reshard_str){ NULL, 1 }, NULL, NULL, &err));
    REFUSED(reshard_save(NULL, NULL, made, &options, NULL, &err));
    REFUSED(reshard_save(NULL, "/tmp/never", NULL, &options, NULL, &err));
    REFUSED(reshard_save(NULL, "/tmp/never", made, NULL, NULL, &err));
    REFUSED(reshard_save(NULL, "/tmp/never", made, &options, NULL, &err));
    REFUSED(reshard_load(NULL, NULL, made, NULL, NULL, &result, &err));
    assert_null(result);
    REFUSED(reshard_load(NULL, "/tmp/never", NULL, NULL, NULL, &result, &err));
    result = made;
    REFUSED(reshard_sharded_metadata(NULL, &result, &err));
    assert_null(result);
    REFUSED(reshard_sharded_metadata(source, NULL, &err));
    reshard_sharded_free(made);
}

TEST(null_is_refused_by_plans)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_plan *plan = (void *)source_path, *made = NULL;
    reshard_plan_step step = RESHARD_PLAN_STEP_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.to = "hf";
    REFUSED(reshard_plan_new(NULL, "/tmp/never", &options, NULL, &plan, &err));
    assert_null(plan);
    REFUSED(reshard_plan_new(source, NULL, &options, NULL, &plan, &err));
    REFUSED(reshard_plan_new(source, "/tmp/never", NULL, NULL, &plan, &err));
    REFUSED(reshard_plan_new(source, "/tmp/never", &options, NULL, NULL, &err));
    CHECK_OK(reshard_plan_new(source, "/tmp/never", &options, NULL, &made, &err));
    HARMLESS(reshard_plan_free(NULL));
    REFUSED(reshard_plan_report(NULL, &report, &err));
    REFUSED(reshard_plan_report(made, NULL, &err));
    NOTHING(reshard_plan_hash(NULL));
    NOTHING(reshard_plan_step_count(NULL));
    REFUSED(reshard_plan_step_at(NULL, 0, &step, &err));
    REFUSED(reshard_plan_step_at(made, 0, NULL, &err));
    REFUSED(reshard_plan_print(NULL, 0, any_sink, NULL, &err));
    REFUSED(reshard_plan_print(made, 0, NULL, NULL, &err));
    plan = made;
    REFUSED(reshard_plan_part(NULL, 0, 1, &plan, &err));
    assert_null(plan);
    REFUSED(reshard_plan_part(made, 0, 1, NULL, &err));
    REFUSED(reshard_plan_run(NULL, "/tmp/never", &err));
    REFUSED(reshard_plan_commit(NULL, "/tmp/never", &err));
    reshard_plan_free(made);
}

TEST(null_is_refused_by_writers_and_stores)
{
    const reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    const reshard_store store = RESHARD_STORE_INIT;
    const reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer *writer = (void *)source_path;
    reshard_checkpoint *opened = source;
    options.to = "safetensors";
    REFUSED(reshard_writer_open(NULL, "/tmp/never", &options, NULL, NULL, &writer, &err));
    assert_null(writer);
    REFUSED(reshard_writer_open(&input, NULL, &options, NULL, NULL, &writer, &err));
    REFUSED(reshard_writer_open(&input, "/tmp/never", NULL, NULL, NULL, &writer, &err));
    REFUSED(reshard_writer_open(&input, "/tmp/never", &options, NULL, NULL, NULL, &err));
    REFUSED(reshard_writer_put(NULL, &piece, &err));
    CHECK_OK(reshard_writer_open(&input, "/tmp/reshard-arguments-null", &options, NULL, NULL, &writer, &err));
    REFUSED(reshard_writer_put(writer, NULL, &err));
    HARMLESS(reshard_writer_free(writer));
    REFUSED(reshard_writer_finish(NULL, &err));
    REFUSED(reshard_writer_commit(NULL, "/tmp/never", &options, NULL, NULL, &err));
    REFUSED(reshard_writer_commit(&input, NULL, &options, NULL, NULL, &err));
    REFUSED(reshard_writer_commit(&input, "/tmp/never", NULL, NULL, NULL, &err));
    HARMLESS(reshard_writer_free(NULL));
    REFUSED(reshard_open_in(NULL, "a", NULL, &opened, &err));
    assert_null(opened);
    REFUSED(reshard_open_in(&store, "a", NULL, &opened, &err));
    REFUSED(reshard_open_in(&store, NULL, NULL, &opened, &err));
    REFUSED(reshard_open_in(&store, "a", NULL, NULL, &err));
}

TEST(null_is_refused_by_savers)
{
    reshard_saver *saver = NULL;
    const reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    int64_t number = 9;
    REFUSED(reshard_saver_open(NULL, NULL, &err));
    CHECK_OK(reshard_saver_open(NULL, &saver, &err));
    REFUSED(reshard_saver_save(NULL, &request, &number, &err));
    assert_int_equal(number, -1);
    REFUSED(reshard_saver_save(saver, NULL, &number, &err));
    REFUSED(reshard_saver_save(saver, &request, &number, &err));
    REFUSED(reshard_saver_test(NULL, &number, &err));
    assert_int_equal(number, 0);
    CHECK_OK(reshard_saver_test(saver, NULL, &err));
    REFUSED(reshard_saver_wait(NULL, -1, &err));
    HARMLESS(reshard_saver_close(NULL, &err));
    CHECK_OK(reshard_saver_close(saver, &err));
    assert_true(HARMLESS_STATUS(reshard_saver_serve(-1, &err)) != RESHARD_OK);
    /* The record of an older program: nothing is written behind it. */
    err.struct_size = offsetof(reshard_error, hint);
    memset(err.hint, 'x', sizeof(err.hint));
    assert_true(reshard_saver_serve(-1, &err) != RESHARD_OK && err.hint[0] == 'x');
    err = (reshard_error)RESHARD_ERROR_INIT;
}

static int set_up(void **state)
{
    (void)state;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    options.to = "safetensors";
    kept = (reshard_report)RESHARD_REPORT_INIT;
    return reshard_open(source_path, NULL, &source, &err) || reshard_estimate(source, NULL, &options, NULL, &kept, &err) ||
           reshard_map_space_of(source, &space, &err) || reshard_shards_new(&list, &err);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_shards_free(list);
    reshard_report_release(&kept);
    reshard_map_space_free(space);
    reshard_close(source);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_refused_by_what_opens),
        cmocka_unit_test(null_is_refused_by_lists),
        cmocka_unit_test(null_is_refused_by_values),
        cmocka_unit_test(null_is_refused_by_runs),
        cmocka_unit_test(null_is_refused_by_mappings),
        cmocka_unit_test(null_is_refused_by_geometry),
        cmocka_unit_test(null_is_refused_by_layers),
        cmocka_unit_test(null_is_refused_by_groups),
        cmocka_unit_test(null_is_refused_by_transfers),
        cmocka_unit_test(null_is_refused_by_state),
        cmocka_unit_test(null_is_refused_by_sharded_state),
        cmocka_unit_test(null_is_refused_by_grids),
        cmocka_unit_test(null_is_refused_by_all_ranks_together),
        cmocka_unit_test(null_is_refused_by_saving_and_loading_together),
        cmocka_unit_test(null_is_refused_by_plans),
        cmocka_unit_test(null_is_refused_by_writers_and_stores),
        cmocka_unit_test(null_is_refused_by_savers),
    };
    return cmocka_run_group_tests_name("arguments that are NULL", tests, set_up, tear_down);
}
