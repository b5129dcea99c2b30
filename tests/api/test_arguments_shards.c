/* SPDX-License-Identifier: Apache-2.0 */
/* Structs as programs of any version may pass them, to what makes, joins, saves and loads shards, and to groups of ranks. */
#include "api/arguments.h"
#include "api/public_members.h"

#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"

static const int64_t four[] = { 4 }, zero[] = { 0 }, one[] = { 1 };
static float numbers[4], others[4];
static char scratch[TEST_FOLDER_SIZE], source_path[4096], saved_path[64];
static reshard_checkpoint *source;
static reshard_sharded *held;
static reshard_shards *list; /* of one shard with values */

/* ---- shards ---- */

static const reshard_shard shard_init = { sizeof(shard_init), { "w", 1 }, "F32", 1, four, zero, four, 1, 0, 4, numbers, NULL,
                                          NULL, NULL, NULL };
static const reshard_shard other_init = { sizeof(other_init), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, others, NULL,
                                          NULL, NULL, NULL };
static const reshard_slice_operation operation_member = { "F32", NULL };
static const reshard_slice_copy slice_init = { sizeof(slice_init), &shard_init, &shard_init, &other_init, &other_init,
                                               &operation_member,  sizeof(operation_member),  1 };
static const reshard_local_tensor tensor_member = { { "w", 1 }, "F32", 1, four, numbers, NULL };
static const reshard_split_rule rule_member = { { "w", 1 }, 0 };
static const reshard_split_input split_init = { sizeof(split_init), &tensor_member, sizeof(tensor_member), 1, &rule_member,
                                                sizeof(rule_member), 1, { "p", 1 }, 0, 2 };

static reshard_status call_shard(void *given)
{
    reshard_shard out = RESHARD_SHARD_INIT;
    return unless_lacking(reshard_shard_describe(given, &out, &err));
}

static reshard_status call_describe(void *given) { return reshard_shard_describe(&shard_init, given, &err); }
static reshard_status call_slice(void *given) { return unless_lacking(reshard_assign_slice(given, NULL, &err)); }

static reshard_status call_split(void *given)
{
    reshard_shards *made = NULL;
    reshard_status status = reshard_shards_split(given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_shards_free(made);
    return status;
}

static reshard_status fail_describe(void *given) { return reshard_shard_describe(NULL, given, &err); }
static reshard_status call_shard_at(void *given) { return reshard_shards_at(list, 0, given); }
static reshard_status fail_shard_at(void *given) { return reshard_shards_at(list, 1, given); }

static reshard_status call_shard_add(void *given)
{
    reshard_shards *made;
    CHECK_OK(reshard_shards_new(&made, &err));
    reshard_status status = unless_lacking(reshard_shards_add(made, given, &err));
    reshard_shards_free(made);
    return status;
}

/* Each of the four shards of a slice is of a size of its own. */
static reshard_status call_slice_shard(void *given)
{
    reshard_slice_copy copy = slice_init;
    copy.target = given;
    return unless_lacking(reshard_assign_slice(&copy, NULL, &err));
}

/* ---- layers ---- */

static const reshard_front_axis front_member = { 1, 2 };
static const reshard_coordinates at_init = { sizeof(at_init), 1, 2, 1, 2, 1, 2, 1, 1 };
static const reshard_layer layer_init = { sizeof(layer_init),   RESHARD_LAYER_COLUMN, { "p.", 2 }, 0, 0, 1, 1, 0, &front_member,
                                          sizeof(front_member), 1,                    &tensor_member, sizeof(tensor_member), 1 };
static const void *const parameter_places[] = { numbers };
static const reshard_str excluded_member = { "step", 4 };
static const reshard_optimizer_tensor state_member = { -1, { "w", 1 }, { "exp_avg", 7 }, "F32", 1, four, others, 0, 0, 0 };
static reshard_optimizer optimizer_init = { sizeof(optimizer_init), NULL, parameter_places, 1, "{parameter}.{state}", &excluded_member,
                                            sizeof(excluded_member), 1, &state_member, sizeof(state_member), 1 };

static reshard_status layer_add(const reshard_layer *layer, const reshard_coordinates *at)
{
    int64_t replica[3];
    reshard_shards *made;
    CHECK_OK(reshard_shards_new(&made, &err));
    reshard_status status = reshard_layer_shards(layer, at, made, &err);
    if (status)
        assert_int_equal(reshard_shards_count(made), 0);
    reshard_shards_free(made);
    return status ? status : reshard_layer_replica(layer, at, tensor_member.name, replica, &err);
}

static reshard_status call_layer(void *given) { return layer_add(given, &at_init); }

/* Cut before a group's size, a rank may be none of the group. */
static reshard_status call_coordinates(void *given)
{
    reshard_status status = layer_add(&layer_init, given);
    return status && strstr(err.message, "rank 1 of 1") ? RESHARD_OK : status;
}

static reshard_status call_replica(void *given)
{
    int64_t replica[3] = { 9, 9, 9 };
    reshard_status status = reshard_layer_replica(given, &at_init, tensor_member.name, replica, &err);
    assert_true(!status || (replica[0] == 0 && replica[1] == 0 && replica[2] == 0));
    return status;
}

static reshard_status call_optimizer(void *given)
{
    reshard_shards *made;
    CHECK_OK(reshard_shards_new(&made, &err));
    reshard_status status = unless_lacking(reshard_optimizer_shards(given, made, &err));
    reshard_shards_free(made);
    return status;
}

/* ---- groups ---- */

static int gather(const void *bytes, size_t bytes_size, void **all, size_t *sizes, void *context)
{
    (void)context;
    *all = malloc(bytes_size + 1);
    memcpy(*all, bytes, bytes_size);
    sizes[0] = bytes_size;
    return 0;
}

static int send_none(int64_t to, const void *bytes, size_t bytes_size, void *context)
{
    (void)to, (void)bytes, (void)bytes_size, (void)context;
    return 1;
}

static int receive_none(int64_t from, void *bytes, size_t bytes_size, void *context)
{
    (void)from, (void)bytes, (void)bytes_size, (void)context;
    return 1;
}

static int run_none(void *context)
{
    (void)context;
    return 0;
}

static int released;
static void count_release(void *context)
{
    (void)context;
    released++;
}

static const reshard_comm_options comm_init = { sizeof(comm_init), 5 };
static const reshard_comm_callbacks callbacks_init = { sizeof(callbacks_init), 0, 1, gather, send_none, receive_none, run_none, NULL,
                                                       count_release, NULL, NULL };

/* After a failure release was not called, and no handle is there. */
static reshard_status comm_new(const reshard_comm_callbacks *callbacks, const reshard_comm_options *options)
{
    reshard_comm *made = NULL;
    released = 0;
    reshard_status status = reshard_comm_new(callbacks, options, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    assert_int_equal(released, 0);
    if (made)
        CHECK_OK(reshard_comm_barrier(made, &err));
    reshard_comm_free(made);
    return status;
}

static reshard_status call_comm(void *given) { return comm_new(&callbacks_init, given); }

/* Without the number of its ranks there is no group. */
static reshard_status call_callbacks(void *given)
{
    reshard_status status = comm_new(given, &comm_init);
    return status && strstr(err.message, "a group of 0 ranks") ? RESHARD_OK : unless_lacking(status);
}

static reshard_status call_threads(void *given)
{
    reshard_comm *ends[2] = { (void *)ends, (void *)ends };
    reshard_status status = reshard_comm_threads(2, given, ends, &err);
    assert_true((status == RESHARD_OK) == (ends[0] != NULL) && !ends[0] == !ends[1]);
    reshard_comm_free(ends[0]);
    reshard_comm_free(ends[1]);
    return status;
}

static reshard_status call_processes(void *given)
{
    char name[64];
    reshard_comm *made = (void *)name;
    snprintf(name, sizeof(name), "arguments-%d", (int)getpid());
    reshard_status status = reshard_comm_processes(name, 0, 1, given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_comm_free(made);
    return status;
}

static const reshard_redistribute_options redistribute_init = { .struct_size = sizeof(redistribute_init), .scratch_bytes = 1 << 20 };

/* What is wrong with an argument of one rank is said with its number. */
static reshard_status redistribute(const reshard_redistribute_options *options, reshard_redistribute_report *report)
{
    reshard_comm *alone = NULL;
    CHECK_OK(reshard_comm_threads(1, NULL, &alone, &err));
    reshard_status status = reshard_redistribute(alone, list, NULL, options, report, &err);
    reshard_comm_free(alone);
    return status;
}

static reshard_status call_redistribute(void *given) { return redistribute(given, NULL); }
static reshard_status call_redistributed(void *given) { return redistribute(NULL, given); }
static reshard_status fail_redistributed(void *given) { return reshard_redistribute(NULL, list, list, NULL, given, &err); }

static reshard_transfers *transfers, *moves; /* of the list to nothing, and to itself */

static reshard_status call_transfers(void *given)
{
    const reshard_shards *const lists[] = { list };
    reshard_transfers *made = transfers;
    reshard_status status = reshard_transfers_plan(lists, lists, 1, given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_transfers_free(made);
    return status;
}

static reshard_status call_transfers_new(void *given)
{
    reshard_comm *alone = NULL;
    reshard_transfers *made = transfers;
    CHECK_OK(reshard_comm_threads(1, NULL, &alone, &err));
    reshard_status status = reshard_transfers_new(alone, list, NULL, given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_transfers_free(made);
    reshard_comm_free(alone);
    return status;
}

static reshard_status call_transferred(void *given)
{
    reshard_comm *alone = NULL;
    CHECK_OK(reshard_comm_threads(1, NULL, &alone, &err));
    reshard_status status = reshard_transfers_run(transfers, alone, list, NULL, given, &err);
    reshard_comm_free(alone);
    return status;
}

static reshard_status fail_transferred(void *given) { return reshard_transfers_run(transfers, NULL, list, NULL, given, &err); }
static reshard_status call_transfer(void *given) { return reshard_transfers_at(moves, 0, given, &err); }
static reshard_status fail_transfer(void *given) { return reshard_transfers_at(moves, SIZE_MAX, given, &err); }
static reshard_status fail_transfer_none(void *given) { return reshard_transfers_at(NULL, 0, given, &err); }

/* ---- state ---- */

static const reshard_state_item item_member = { { "i", 1 }, { "7", 1 } };
static reshard_state state_init = { sizeof(state_init), NULL, &item_member, sizeof(item_member), 1, "job", NULL };
static const reshard_value_info value_init = { .struct_size = sizeof(value_init), .kind = RESHARD_VALUE_TEXT, .text = { "x", 1 } };
static const reshard_open_options open_init = { .struct_size = sizeof(open_init), .limit_stride = sizeof(reshard_limit_change) };
static const reshard_run_options run_init = { sizeof(run_init), 1 << 20, 1, "buffered", NULL, NULL, NULL };

static reshard_status open_shards(const reshard_state *state, const reshard_open_options *options)
{
    reshard_checkpoint *opened = source;
    reshard_status status = reshard_open_shards(state, options, &opened, &err);
    assert_true((status == RESHARD_OK) == (opened != NULL));
    reshard_close(opened);
    return status;
}

static reshard_status call_state(void *given) { return unless_lacking(open_shards(given, NULL)); }
static reshard_status call_open_shards(void *given) { return open_shards(&state_init, given); }

static reshard_status call_load_shards(void *given)
{
    reshard_checkpoint *opened;
    CHECK_OK(reshard_open_shards(&state_init, NULL, &opened, &err));
    reshard_status status = reshard_load_shards(opened, list, given, &err);
    reshard_close(opened);
    return status;
}

static const reshard_map_options mapped_init = { .struct_size = sizeof(mapped_init),
                                                 .text_stride = sizeof(reshard_map_text),
                                                 .rules = "none",
                                                 .config = "{}",
                                                 .config_size = 2,
                                                 .constant_stride = sizeof(reshard_map_constant) };

static reshard_status load_shards_mapped(const reshard_map_options *map, const reshard_run_options *run)
{
    reshard_checkpoint *opened;
    CHECK_OK(reshard_open_shards(&state_init, NULL, &opened, &err));
    reshard_status status = reshard_load_shards_mapped(opened, list, map, run, &err);
    reshard_close(opened);
    return status;
}

static reshard_status call_load_mapped(void *given) { return load_shards_mapped(given, NULL); }
static reshard_status call_load_mapped_run(void *given) { return load_shards_mapped(&mapped_init, given); }

static reshard_status call_value(void *given)
{
    reshard_items *items;
    reshard_value *made = (void *)&items;
    CHECK_OK(reshard_items_new(&items, &err));
    reshard_status status = reshard_items_add(items, NULL, (reshard_str){ "k", 1 }, given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_items_free(items);
    return status;
}

/* ---- sharded state dicts ---- */

static const reshard_sharded_tensor sharded_init = { sizeof(sharded_init), { "w", 1 }, "F32", 1, 0, four,    four, zero, one,
                                                     zero,                 1,          1,     1, 0, 3, numbers, NULL, NULL, NULL, NULL };
static const reshard_sharded_object object_init = { sizeof(object_init), { "o", 1 }, 1, one, zero, zero, 1, { "[1]", 3 }, { NULL, 0 },
                                                     { NULL, 0 } };
static const reshard_sharded_value common_init = { sizeof(common_init), RESHARD_VALUE_COMMON, { "i", 1 }, { "7", 1 }, { NULL, 0 } };

static int build_none(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context)
{
    (void)parts, (void)context;
    return whole->struct_size != sizeof(*whole);
}

static const reshard_sharded_factory factory_init = { sizeof(factory_init), &sharded_init, build_none, NULL, NULL };

static reshard_sharded *sharded_new(void)
{
    reshard_sharded *made;
    CHECK_OK(reshard_sharded_new(&made, &err));
    return made;
}

/* What was refused is not in the list. */
static reshard_status sharded_end(reshard_sharded *made, reshard_status status)
{
    if (status)
        assert_int_equal(reshard_sharded_count(made) + reshard_sharded_object_count(made) + reshard_sharded_value_count(made), 0);
    reshard_sharded_free(made);
    return unless_lacking(status);
}

static reshard_status call_sharded(void *given)
{
    reshard_sharded *made = sharded_new();
    return sharded_end(made, reshard_sharded_add(made, given, &err));
}

static reshard_status call_sharded_offsets(void *given)
{
    reshard_sharded *made = sharded_new();
    return sharded_end(made, reshard_sharded_add_offsets(made, given, NULL, sizeof(reshard_rank_offset), 0, &err));
}

static reshard_status call_sharded_narrow(void *given)
{
    reshard_sharded *made = sharded_new();
    reshard_status status = sharded_end(made, reshard_sharded_add_narrow(made, given, 0, 0, 2, &err));
    return status && strstr(err.message, "axis 0 of 0") ? RESHARD_OK : status; /* cut before its rank */
}

static reshard_status call_grid(void *given)
{
    int64_t first[1] = { 9 }, second[1] = { 9 };
    reshard_status status = reshard_sharded_cell(given, first, &err);
    if (!status)
        status = reshard_sharded_slice(given, first, second, &err);
    if (!status)
        status = reshard_sharded_largest_chunk(given, first, &err);
    return unless_lacking(status);
}

static reshard_status factory_add(const reshard_sharded_factory *factory)
{
    reshard_sharded *made = sharded_new();
    reshard_status status = reshard_sharded_add_factory(made, factory, &err);
    if (!status)
        status = reshard_sharded_expand(made, &err);
    return sharded_end(made, status);
}

static reshard_status call_factory(void *given) { return factory_add(given); }

static reshard_status call_factory_whole(void *given)
{
    const reshard_sharded_factory factory = { sizeof(factory), given, build_none, NULL, NULL };
    return factory_add(&factory);
}

static reshard_status call_object(void *given)
{
    reshard_sharded *made = sharded_new();
    return sharded_end(made, reshard_sharded_add_object(made, given, &err));
}

static reshard_status call_object_key(void *given)
{
    char *key = scratch;
    reshard_status status = reshard_object_key(given, &key, &err);
    assert_true((status == RESHARD_OK) == (key != NULL));
    reshard_free(key);
    return unless_lacking(status);
}

static reshard_status call_common(void *given)
{
    reshard_sharded *made = sharded_new();
    return sharded_end(made, reshard_sharded_add_value(made, given, &err));
}

static reshard_status call_sharded_at(void *given) { return reshard_sharded_at(held, 0, given); }
static reshard_status fail_sharded_at(void *given) { return reshard_sharded_at(held, SIZE_MAX, given); }
static reshard_status call_object_at(void *given) { return reshard_sharded_object_at(held, 0, given); }
static reshard_status fail_object_at(void *given) { return reshard_sharded_object_at(NULL, 0, given); }
static reshard_status call_value_at(void *given) { return reshard_sharded_value_at(held, 0, given); }
static reshard_status fail_value_at(void *given) { return reshard_sharded_value_at(held, 1, given); }

/* ---- saving and loading together ---- */

static const reshard_convert_options convert_init = {
    .struct_size = sizeof(convert_init), .to = "torch_dist", .overwrite = 1, .no_sync = 1
};
static const reshard_save_options save_init = { sizeof(save_init), &convert_init, "job", 1, 1, NULL, NULL, NULL, NULL };
static const reshard_load_options load_init = { sizeof(load_init), &open_init, RESHARD_STRICT_LOG_ALL, 1, 1, NULL, 0 };

static reshard_status save(const reshard_save_options *options, const reshard_run_options *run)
{
    return unless_lacking(reshard_save(NULL, saved_path, held, options, run, &err));
}

static reshard_status load(const reshard_load_options *options, const reshard_run_options *run)
{
    reshard_sharded *result = held;
    reshard_status status = reshard_load(NULL, saved_path, held, options, run, &result, &err);
    assert_true((status == RESHARD_OK) == (result != NULL));
    reshard_sharded_free(result);
    return status;
}

static reshard_status call_save(void *given) { return save(given, NULL); }
static reshard_status call_save_run(void *given) { return save(&save_init, given); }
static reshard_status call_load(void *given) { return load(given, NULL); }

static const reshard_remove_options remove_init = { sizeof(remove_init), &open_init, 1 };

static reshard_status remove_saved(const reshard_remove_options *options, reshard_remove_report *report)
{
    char path[100];
    snprintf(path, sizeof(path), "%s-less", saved_path);
    CHECK_OK(reshard_save(NULL, path, held, &save_init, NULL, &err));
    return reshard_remove(path, (reshard_str){ "w", 1 }, options, report, &err);
}

static reshard_status call_remove(void *given) { return remove_saved(given, NULL); }
static reshard_status call_removed(void *given) { return remove_saved(NULL, given); }
static reshard_status fail_removed(void *given) { return reshard_remove("/nowhere", (reshard_str){ "w", 1 }, NULL, given, &err); }
static reshard_status call_load_run(void *given) { return load(&load_init, given); }

static reshard_status call_save_convert(void *given)
{
    char path[80];
    reshard_save_options options = save_init;
    options.convert = given;
    snprintf(path, sizeof(path), "%s-again", saved_path);
    reshard_status status = unless_lacking(reshard_save(NULL, path, held, &options, NULL, &err));
    assert_int_equal(test_tree_remove(path), 0);
    return status;
}

static reshard_status call_load_open(void *given)
{
    reshard_load_options options = load_init;
    options.open = given;
    return load(&options, NULL);
}

static const struct struct_case cases[] = {
    IN(reshard_shard, &other_init, call_shard),
    IN(reshard_shard, &other_init, call_shard_add),
    IN(reshard_shard, &other_init, call_slice_shard),
    OUT(reshard_shard, call_describe, fail_describe),
    OUT(reshard_shard, call_shard_at, fail_shard_at),
    IN(reshard_slice_copy, &slice_init, call_slice),
    IN(reshard_split_input, &split_init, call_split),
    IN(reshard_layer, &layer_init, call_layer),
    IN(reshard_layer, &layer_init, call_replica),
    IN(reshard_coordinates, &at_init, call_coordinates),
    IN(reshard_optimizer, &optimizer_init, call_optimizer),
    IN(reshard_comm_options, &comm_init, call_comm),
    IN(reshard_comm_options, &comm_init, call_threads),
    IN(reshard_comm_options, &comm_init, call_processes),
    IN(reshard_comm_callbacks, &callbacks_init, call_callbacks),
    IN(reshard_redistribute_options, &redistribute_init, call_redistribute),
    IN(reshard_redistribute_options, &redistribute_init, call_transfers),
    IN(reshard_redistribute_options, &redistribute_init, call_transfers_new),
    OUT(reshard_redistribute_report, call_redistributed, fail_redistributed),
    OUT(reshard_redistribute_report, call_transferred, fail_transferred),
    OUT(reshard_transfer, call_transfer, fail_transfer),
    OUT(reshard_transfer, call_transfer, fail_transfer_none),
    IN(reshard_state, &state_init, call_state),
    IN(reshard_open_options, &open_init, call_open_shards),
    IN(reshard_run_options, &run_init, call_load_shards),
    IN(reshard_map_options, &mapped_init, call_load_mapped),
    IN(reshard_run_options, &run_init, call_load_mapped_run),
    IN(reshard_value_info, &value_init, call_value),
    IN(reshard_sharded_tensor, &sharded_init, call_sharded),
    IN(reshard_sharded_tensor, &sharded_init, call_sharded_offsets),
    IN(reshard_sharded_tensor, &sharded_init, call_sharded_narrow),
    IN(reshard_sharded_tensor, &sharded_init, call_grid),
    IN(reshard_sharded_tensor, &sharded_init, call_factory_whole),
    OUT(reshard_sharded_tensor, call_sharded_at, fail_sharded_at),
    IN(reshard_sharded_factory, &factory_init, call_factory),
    IN(reshard_sharded_object, &object_init, call_object),
    IN(reshard_sharded_object, &object_init, call_object_key),
    OUT(reshard_sharded_object, call_object_at, fail_object_at),
    IN(reshard_sharded_value, &common_init, call_common),
    OUT(reshard_sharded_value, call_value_at, fail_value_at),
    IN(reshard_save_options, &save_init, call_save),
    IN(reshard_convert_options, &convert_init, call_save_convert),
    IN(reshard_run_options, &run_init, call_save_run),
    IN(reshard_remove_options, &remove_init, call_remove),
    OUT(reshard_remove_report, call_removed, fail_removed),
    IN(reshard_load_options, &load_init, call_load),
    IN(reshard_open_options, &open_init, call_load_open),
    IN(reshard_run_options, &run_init, call_load_run),
};

STRUCT_TESTS(cases)

static int set_up(void **state)
{
    (void)state;
    const reshard_sharded_tensor whole = { .struct_size = sizeof(whole), .key = { "w", 1 }, .dtype = "F32", .rank = 1, .local_shape = four,
                                           .data = numbers };
    const reshard_shard alone = { sizeof(alone), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, numbers, NULL, NULL, NULL, NULL };
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    reshard_status status = test_mkdtemp(scratch) ? reshard_open(source_path, NULL, &source, &err) : RESHARD_ERR_IO;
    snprintf(saved_path, sizeof(saved_path), "%s/saved", scratch);
    if (!status)
        status = reshard_shards_new(&list, &err) || reshard_shards_add(list, &alone, &err);
    state_init.shards = optimizer_init.model = list;
    const reshard_shards *const lists[] = { list }, *const nothing[] = { NULL };
    if (!status)
        status = reshard_transfers_plan(lists, nothing, 1, NULL, &transfers, &err) ||
                 reshard_transfers_plan(lists, lists, 1, NULL, &moves, &err);
    if (!status)
        status = reshard_sharded_new(&held, &err) ||
                 reshard_sharded_add_offsets(held, &whole, NULL, sizeof(reshard_rank_offset), 0, &err) ||
                 reshard_sharded_add_object(held, &object_init, &err) || reshard_sharded_add_value(held, &common_init, &err);
    return status ? status : reshard_save(NULL, saved_path, held, &save_init, NULL, &err);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_transfers_free(transfers);
    reshard_transfers_free(moves);
    reshard_sharded_free(held);
    reshard_shards_free(list);
    reshard_close(source);
    return test_tree_remove(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = { STRUCT_TEST_NAMES };
    return cmocka_run_group_tests_name("arguments of shards", tests, set_up, tear_down);
}
