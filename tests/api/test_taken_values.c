/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State whose values lie where this process cannot reach: opened, compared and saved through a function that gives them, filled through
 * one that takes them, by one process and by ranks, a round at a time; and functions that fail. Under other names: test_load_mapped.c.
 */
#include "check.h"

#include "comm/ranks.h"
#include "fail_malloc.h"
#include "test_folder.h"

#include "reshard/async.h"

#include <stdatomic.h>
#include <stdbool.h>

#define ROWS 6
#define COLUMNS 4
#define VALUES (ROWS * COLUMNS)
#define TENSORS 5
#define RANKS 3

static reshard_error err;
static char path[100];

static float value_of(int tensor, int64_t i, int64_t j)
{
    return (float)(tensor * 100 + i * 10 + j);
}

/* Memory that only functions reach. */
struct device {
    union {
        char bytes[VALUES * 2 * sizeof(double)];
        float floats[VALUES * 2];
        double doubles[VALUES * 2];
    } values;
    size_t size, written;
    pthread_t thread;        /* that may write */
    const char *first, *end; /* of what was written from */
    bool fails_to_read, fails_to_write, is_disordered;
    atomic_int reads;
};

static int device_read(void *out, uint64_t offset, size_t size, void *context)
{
    struct device *device = context;
    atomic_fetch_add(&device->reads, 1);
    if (device->fails_to_read || offset > device->size || size > device->size - offset)
        return 1;
    memcpy(out, device->values.bytes + offset, size);
    return 0;
}

static int device_write(const void *bytes, uint64_t offset, size_t size, void *context)
{
    struct device *device = context;
    device->is_disordered |= offset != device->written || size > device->size - offset || !pthread_equal(device->thread, pthread_self());
    if (device->is_disordered || device->fails_to_write)
        return 7;
    memcpy(device->values.bytes + offset, bytes, size);
    device->written += size;
    device->first = device->first && device->first < (const char *)bytes ? device->first : bytes;
    device->end = device->end > (const char *)bytes + size ? device->end : (const char *)bytes + size;
    return 0;
}

/* ---- one process ---- */

static const int64_t whole[] = { ROWS, COLUMNS }, origin[] = { 0, 0 };
static const char *const keys[TENSORS + 1] = { "v", "w", "x", "y", "z", "absent" };

static reshard_str key_of(int tensor)
{
    return (reshard_str){ keys[tensor], strlen(keys[tensor]) };
}

static reshard_shard shard_of(int tensor, const char *dtype, struct device *device)
{
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = key_of(tensor);
    shard.dtype = dtype;
    shard.rank = 2;
    shard.global_shape = shard.extent = whole;
    shard.start = origin;
    shard.read = device_read;
    shard.write = device_write;
    shard.context = device;
    device->thread = pthread_self();
    return shard;
}

static reshard_shards *state_shards(struct device *devices)
{
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (int t = 0; t < TENSORS; t++) {
        const reshard_shard shard = shard_of(t, "F32", &devices[t]);
        devices[t].size = VALUES * sizeof(float);
        for (int n = 0; n < VALUES; n++)
            devices[t].values.floats[n] = value_of(t, n / COLUMNS, n % COLUMNS);
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    return shards;
}

static reshard_checkpoint *state_open(reshard_shards *shards)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *opened;
    state.shards = shards;
    CHECK_OK(reshard_open_shards(&state, NULL, &opened, &err));
    return opened;
}

/* Saves the tensors at `path`. */
static void state_save(const char *format)
{
    static struct device devices[TENSORS];
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_shards *shards = state_shards(devices);
    reshard_checkpoint *state = state_open(shards);
    snprintf(path, sizeof(path), "%s/saved-%s", test_folder, format);
    options.to = format;
    options.no_sync = options.overwrite = options.verify = 1;
    CHECK_OK(reshard_convert(state, path, &options, NULL, NULL, &err));
    reshard_close(state);
    reshard_shards_free(shards);
}

TEST(state_that_a_function_gives_is_a_checkpoint_like_others)
{
    static const char *const formats[] = { "torch-dcp", "torch_dist", "paddle-flex", "hf", "torch", "zarr" };
    static struct device devices[TENSORS];
    reshard_diff_options values = RESHARD_DIFF_OPTIONS_INIT;
    values.ignore_items = 1; /* some formats have items of their own */
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        float found[VALUES];
        reshard_checkpoint *saved, *live;
        state_save(formats[f]);
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        for (int t = 0; t < TENSORS; t++) {
            const int64_t index = reshard_tensor_find(saved, keys[t], 1);
            assert_true(index >= 0);
            CHECK_OK(reshard_read_into(saved, (size_t)index, NULL, NULL, NULL, found, sizeof(found), &err));
            for (int n = 0; n < VALUES; n++)
                assert_true(found[n] == value_of(t, n / COLUMNS, n % COLUMNS));
        }
        reshard_shards *shards = state_shards(devices);
        live = state_open(shards);
        CHECK_OK(reshard_diff(live, saved, &values, NULL, NULL, NULL, &err));
        devices[3].values.floats[7] += 1; /* values are asked for when they are needed */
        assert_int_equal(reshard_diff(live, saved, &values, NULL, NULL, NULL, &err), RESHARD_DIFFERS);
        devices[3].fails_to_read = true;
        assert_int_equal(reshard_diff(live, saved, &values, NULL, NULL, NULL, &err), RESHARD_ERR_CANCELLED);
        if (!strstr(err.message, "the function that gives values failed"))
            fail_msg("%s", err.message);
        devices[3].fails_to_read = false;
        reshard_close(live);
        reshard_close(saved);
        reshard_shards_free(shards);
    }
}

/* As types and boxes of the saved tensors: "v" whole, "w" as F64, "x" a flat run of its lower half, "y" in memory, "z" its right half. */
static void targets_add(reshard_shards *shards, struct device *devices, float *memory)
{
    static const int64_t half[] = { ROWS / 2, COLUMNS }, lower[] = { ROWS / 2, 0 }, right[] = { 0, COLUMNS / 2 },
                         narrow[] = { ROWS, COLUMNS / 2 };
    for (int t = 0; t < TENSORS; t++) {
        reshard_shard shard = shard_of(t, t == 1 ? "F64" : "F32", &devices[t]);
        devices[t].size = VALUES * (t == 1 ? sizeof(double) : sizeof(float));
        if (t == 2) {
            shard.start = lower, shard.extent = half;
            shard.is_flattened = 1, shard.flat_begin = 3, shard.flat_end = 11;
            devices[t].size = 8 * sizeof(float);
        }
        if (t == 3) {
            shard.data = memory;
            shard.read = NULL, shard.write = NULL;
        }
        if (t == 4) {
            shard.start = right, shard.extent = narrow;
            devices[t].size /= 2;
        }
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
}

static void targets_check(const struct device *devices, const float *memory)
{
    for (int64_t n = 0; n < VALUES; n++) {
        const int64_t i = n / COLUMNS, j = n % COLUMNS, flat = n + ROWS / 2 * COLUMNS + 3;
        assert_true(devices[0].values.floats[n] == value_of(0, i, j));
        assert_true(devices[1].values.doubles[n] == (double)value_of(1, i, j));
        if (n < 8)
            assert_true(devices[2].values.floats[n] == value_of(2, flat / COLUMNS, flat % COLUMNS));
        assert_true(memory[n] == value_of(3, i, j));
        if (j < COLUMNS / 2)
            assert_true(devices[4].values.floats[i * COLUMNS / 2 + j] == value_of(4, i, COLUMNS / 2 + j));
    }
}

/* What floats of a tensor take of the memory that they come by, whose unit is 64 bytes. The five take 2, 4, 1, 0 and 1 units. */
#define UNIT 64

TEST(lists_are_filled_through_functions_a_round_at_a_time)
{
    static const uint64_t budgets[] = { 0, 1, 2 * UNIT, 6 * UNIT, 7 * UNIT };
    static const size_t spans[] = { 8 * UNIT, 4 * UNIT, 4 * UNIT, 6 * UNIT, 7 * UNIT };
    state_save("torch-dcp");
    for (size_t b = 0; b < sizeof(budgets) / sizeof(*budgets); b++) {
        struct device devices[TENSORS] = { 0 };
        float memory[VALUES] = { 0 };
        reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
        reshard_checkpoint *saved;
        reshard_shards *shards;
        const char *first = NULL, *end = NULL;
        run.memory_bytes = budgets[b];
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        CHECK_OK(reshard_shards_new(&shards, &err));
        targets_add(shards, devices, memory);
        CHECK_OK(reshard_load_shards(saved, shards, &run, &err));
        targets_check(devices, memory);
        for (int t = 0; t < TENSORS; t++) {
            assert_int_equal(devices[t].written, t == 3 ? 0 : devices[t].size);
            assert_int_equal(devices[t].reads, 0);
            if (devices[t].first && (!first || devices[t].first < first))
                first = devices[t].first;
            end = devices[t].end > end ? devices[t].end : end;
        }
        if ((size_t)(end - first) > spans[b]) /* no more memory than that was used */
            fail_msg("%zu bytes for a budget of %d", (size_t)(end - first), (int)budgets[b]);
        reshard_shards_free(shards);
        reshard_close(saved);
    }
}

TEST(a_list_without_memory_is_filled_or_refused)
{
    state_save("torch-dcp");
    for (unsigned long nth = 1;; nth = fail_next(nth)) {
        struct device devices[TENSORS] = { 0 };
        float memory[VALUES] = { 0 };
        reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
        reshard_checkpoint *saved;
        reshard_shards *shards;
        run.memory_bytes = 6 * UNIT;
        run.threads = 1;
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        CHECK_OK(reshard_shards_new(&shards, &err));
        targets_add(shards, devices, memory);
        fail_malloc_at(nth);
        reshard_status status = reshard_load_shards(saved, shards, &run, &err);
        const bool is_hit = fail_malloc_was_hit();
        if (status && (!is_hit || status != RESHARD_ERR_MEMORY))
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        if (!status)
            targets_check(devices, memory);
        reshard_shards_free(shards);
        reshard_close(saved);
        if (!is_hit)
            break;
    }
}

struct told {
    uint64_t done, total;
    int calls;
    bool goes_back;
};

static int progress_told(const reshard_progress *progress, void *context)
{
    struct told *told = context;
    told->goes_back |= progress->bytes_done < told->done || progress->bytes_done > progress->bytes_total ||
                       (told->calls++ && progress->bytes_total != told->total);
    told->done = progress->bytes_done;
    told->total = progress->bytes_total;
    return 0;
}

TEST(rounds_tell_their_progress_as_one)
{
    state_save("torch-dcp");
    struct device devices[TENSORS] = { 0 };
    float memory[VALUES] = { 0 };
    struct told told = { .calls = 0 };
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_checkpoint *saved;
    reshard_shards *shards;
    run.memory_bytes = 1;
    run.progress = progress_told;
    run.context = &told;
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    CHECK_OK(reshard_shards_new(&shards, &err));
    targets_add(shards, devices, memory);
    CHECK_OK(reshard_load_shards(saved, shards, &run, &err));
    assert_false(told.goes_back);
    assert_true(told.calls >= 4);
    assert_int_equal(told.total, VALUES * (4 + 8 + 4) + 32 + VALUES * 2);
    assert_int_equal(told.done, told.total);
    reshard_shards_free(shards);
    reshard_close(saved);
}

TEST(what_can_only_be_read_is_not_loaded)
{
    static const char text[] = "v -> u\n";
    const reshard_map_text texts[] = { { "text", text, strlen(text) } };
    struct device device = { .size = VALUES * sizeof(float) };
    reshard_shard shard = shard_of(0, "F32", &device);
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_checkpoint *saved;
    state_save("torch-dcp");
    map.texts = texts;
    map.text_count = 1;
    shard.write = NULL;
    for (int is_mapped = 0; is_mapped < 2; is_mapped++) {
        reshard_shards *shards;
        if (is_mapped)
            shard.key = (reshard_str){ "u", 1 };
        CHECK_OK(reshard_shards_new(&shards, &err));
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        reshard_status status = is_mapped ? reshard_load_shards_mapped(saved, shards, &map, NULL, &err)
                                          : reshard_load_shards(saved, shards, NULL, &err);
        assert_int_equal(status, RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "it has a function that gives values (read), and none that takes them"));
        reshard_shards_free(shards);
        reshard_close(saved);
    }
}

TEST(nothing_is_written_of_a_list_that_the_checkpoint_lacks)
{
    static const int64_t other[] = { ROWS, COLUMNS + 1 };
    state_save("torch-dcp");
    for (int wrong = 0; wrong < 3; wrong++) {
        struct device devices[TENSORS] = { 0 };
        reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
        reshard_checkpoint *saved;
        reshard_shards *shards;
        run.memory_bytes = 1; /* a round for each */
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        CHECK_OK(reshard_shards_new(&shards, &err));
        for (int t = 0; t < TENSORS; t++) {
            reshard_shard shard = shard_of(t == 4 && wrong == 0 ? TENSORS : t, "F32", &devices[t]);
            devices[t].size = VALUES * sizeof(float);
            devices[t].fails_to_write = wrong == 2 && t == 3;
            if (t == 4 && wrong == 1)
                shard.global_shape = other;
            CHECK_OK(reshard_shards_add(shards, &shard, &err));
        }
        CHECK_FAILS(reshard_load_shards(saved, shards, &run, &err), wrong == 2 ? RESHARD_ERR_CANCELLED : RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, wrong == 2 ? "'y': the function that takes values failed" : wrong ? "'z'" : "'absent'"));
        assert_int_equal(devices[2].written, wrong == 2 ? devices[2].size : 0);
        assert_int_equal(devices[4].written, 0);
        reshard_shards_free(shards);
        reshard_close(saved);
    }
}

TEST(functions_are_in_place_of_memory)
{
    static const int64_t strides[] = { COLUMNS, 1 };
    struct device device = { .size = 0 };
    float memory[VALUES];
    reshard_shards *shards, *taken;
    CHECK_OK(reshard_shards_new(&shards, &err));
    CHECK_OK(reshard_shards_new(&taken, &err));
    for (int wrong = 0; wrong < 4; wrong++) {
        reshard_shard shard = shard_of(0, "F32", &device);
        if (wrong / 2)
            shard.strides = strides;
        else
            shard.data = memory;
        if (wrong % 2)
            shard.read = NULL;
        else
            shard.write = NULL;
        assert_int_equal(reshard_shards_add(shards, &shard, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "'v': read and write go with neither data nor strides"));
    }
    reshard_shard shard = shard_of(0, "F32", &device), found = RESHARD_SHARD_INIT;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    CHECK_OK(reshard_shards_at(shards, 0, &found));
    assert_true(found.read == device_read && found.write == device_write && found.context == &device);
    CHECK_OK(reshard_shard_describe(&shard, &found, &err));
    assert_true(!found.read && !found.write && !found.context);
    /* Nor are they memory for what wants some. */
    reshard_slice_copy copy = RESHARD_SLICE_COPY_INIT;
    copy.source_region = copy.source = copy.target_region = copy.target = &shard;
    assert_int_equal(reshard_assign_slice(&copy, NULL, &err), RESHARD_ERR_USAGE);
    /* A state whose values are only taken has none. */
    reshard_state given = RESHARD_STATE_INIT;
    reshard_checkpoint *opened;
    shard.read = NULL;
    CHECK_OK(reshard_shards_add(taken, &shard, &err));
    given.shards = taken;
    assert_int_equal(reshard_open_shards(&given, NULL, &opened, &err), RESHARD_ERR_USAGE);
    reshard_shards_free(taken);
    reshard_shards_free(shards);
}

/* ---- ranks ---- */

/*
 * What a rank asks for: its rows of "v"; all of "w", as the others do; of "x" columns with strides on rank 1, through functions elsewhere;
 * all of "y", in memory on rank 2; a larger "z" than was saved, with strides on rank 0; of that the rows alone that nothing was saved of;
 * and something that is not there.
 */
#define LARGE 8
#define ABSENT TENSORS
#define BEYOND (TENSORS + 1)
#define ASKED (TENSORS + 2)
struct asked {
    struct device devices[ASKED];
    float columns[LARGE * COLUMNS], memory[VALUES];
};

static bool has_memory(int tensor, int64_t rank)
{
    return (tensor == 2 && rank == 1) || (tensor == 3 && rank == 2) || (tensor == 4 && rank == 0);
}

static void asked_add(struct asked *asked, int tensor, int64_t rank, reshard_sharded *sharded)
{
    static const int64_t rows[] = { ROWS / RANKS, COLUMNS }, large[] = { LARGE, COLUMNS }, rest[] = { LARGE - ROWS, COLUMNS };
    static const int64_t behind[] = { ROWS, 0 }, strides[] = { 1, ROWS }, large_strides[] = { 1, LARGE };
    const int64_t at[] = { rank * ROWS / RANKS, 0 };
    const bool is_large = tensor == 4 || tensor == BEYOND;
    struct device *device = &asked->devices[tensor];
    reshard_sharded_tensor one = RESHARD_SHARDED_TENSOR_INIT;
    one.key = key_of(tensor == BEYOND ? 4 : tensor);
    one.dtype = "F32";
    one.rank = 2;
    one.local_shape = tensor == 0 ? rows : tensor == 4 ? large : tensor == BEYOND ? rest : whole;
    one.global_shape = is_large ? large : whole;
    one.global_offset = tensor == 0 ? at : tensor == BEYOND ? behind : origin;
    one.allow_shape_mismatch = is_large;
    one.replica_ids = &rank;
    one.replica_count = tensor != 0;
    device->thread = pthread_self();
    device->size = (size_t)(one.local_shape[0] * COLUMNS) * sizeof(float);
    memset(device->values.bytes, 0x55, sizeof(device->values.bytes));
    if (has_memory(tensor, rank)) {
        one.data = tensor == 3 ? asked->memory : asked->columns;
        one.strides = tensor == 2 ? strides : tensor == 4 ? large_strides : NULL;
    } else {
        one.write = device_write;
        one.read = rank ? device_read : NULL;
        one.context = device;
    }
    CHECK_OK(reshard_sharded_add(sharded, &one, &err));
}

static bool asked_is_filled(const struct asked *asked, int64_t rank)
{
    bool is_good = true;
    for (int64_t n = 0; n < LARGE * COLUMNS; n++) {
        const int64_t i = n / COLUMNS, j = n % COLUMNS;
        const struct device *found = asked->devices;
        is_good &= n >= ROWS / RANKS * COLUMNS || found[0].values.floats[n] == value_of(0, rank * ROWS / RANKS + i, j);
        is_good &= (rank == 0 ? asked->columns[j * LARGE + i] : found[4].values.floats[n]) == (i < ROWS ? value_of(4, i, j) : 0);
        is_good &= i >= LARGE - ROWS || found[BEYOND].values.floats[n] == 0;
        if (i >= ROWS)
            continue;
        is_good &= found[1].values.floats[n] == value_of(1, i, j);
        is_good &= (rank == 1 ? asked->columns[j * ROWS + i] : found[2].values.floats[n]) == value_of(2, i, j);
        is_good &= (rank == 2 ? asked->memory[n] : found[3].values.floats[n]) == value_of(3, i, j);
    }
    for (int t = 0; t < ASKED; t++)
        is_good &= asked->devices[t].written == (t == ABSENT || has_memory(t, rank) ? 0 : asked->devices[t].size);
    return is_good;
}

struct loads {
    bool no_exchange, fails;
    uint64_t memory;
};

static void rank_loads(struct test_rank *rank)
{
    const struct loads *loads = rank->context;
    struct asked asked = { .columns = { 0 } };
    memset(asked.columns, 0x55, sizeof(asked.columns));
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_sharded *sharded;
    rank->status = reshard_sharded_new(&sharded, &rank->err);
    for (int t = 0; t < ASKED; t++)
        asked_add(&asked, rank->rank == 2 ? ASKED - 1 - t : t, rank->rank, sharded);
    asked.devices[1].fails_to_write = loads->fails && rank->rank == 1;
    options.no_exchange = loads->no_exchange;
    options.strict = RESHARD_STRICT_IGNORE_ALL;
    options.no_check = 1;
    run.memory_bytes = rank->rank == 2 ? loads->memory : 0; /* that of one counts for all */
    if (!rank->status)
        rank->status = reshard_load(rank->comm, path, sharded, &options, &run, NULL, &rank->err);
    if (!rank->status && !asked_is_filled(&asked, rank->rank))
        rank->status = RESHARD_DIFFERS;
    reshard_sharded_free(sharded);
}

TEST(ranks_are_filled_through_functions)
{
    static const uint64_t memory[] = { 0, 1, 3 * UNIT, 5 * UNIT, 10 * UNIT };
    state_save("torch-dcp");
    for (int i = 0; i < 10; i++) {
        struct loads loads = { i % 2, false, memory[i / 2] };
        struct test_rank ranks[RANKS];
        test_ranks(RANKS, 20, &loads, rank_loads, ranks);
        for (int r = 0; r < RANKS; r++)
            if (ranks[r].status)
                fail_msg("%d, rank %d: %d %s", i, r, ranks[r].status, ranks[r].err.message);
    }
}

TEST(a_function_that_takes_nothing_ends_the_load_of_all)
{
    state_save("torch-dcp");
    for (int i = 0; i < 4; i++) {
        struct loads loads = { i % 2, true, (uint64_t)(i / 2) };
        struct test_rank ranks[RANKS];
        test_ranks(RANKS, 20, &loads, rank_loads, ranks);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(ranks[r].status, RESHARD_ERR_CANCELLED);
            assert_non_null(strstr(ranks[r].err.message, "rank 1: 'w': the function that takes values failed"));
        }
    }
}

/* Savers of a group refuse what has no values, as the others do. */
static void rank_saves(struct test_rank *rank)
{
    struct device device = { .size = 0 };
    float memory[VALUES] = { 0 };
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    reshard_sharded *sharded;
    reshard_saver *saver;
    reshard_sharded_tensor one = RESHARD_SHARDED_TENSOR_INIT, other = RESHARD_SHARDED_TENSOR_INIT;
    CHECK_OK(reshard_sharded_new(&sharded, &rank->err));
    one.key = key_of(0), other.key = key_of(1);
    one.dtype = other.dtype = "F32";
    one.rank = other.rank = 2;
    one.local_shape = other.local_shape = one.global_shape = other.global_shape = whole;
    one.global_offset = other.global_offset = origin;
    one.replica_ids = other.replica_ids = &rank->rank;
    one.replica_count = other.replica_count = 1;
    one.data = memory;
    other.write = device_write;
    other.context = &device;
    CHECK_OK(reshard_sharded_add(sharded, &one, &rank->err));
    CHECK_OK(reshard_sharded_add(sharded, &other, &rank->err));
    convert.to = "torch-dcp";
    options.comm = rank->comm;
    request.sharded = sharded;
    request.path = path;
    request.options = &convert;
    CHECK_OK(reshard_saver_open(&options, &saver, &rank->err));
    rank->status = reshard_saver_save(saver, &request, NULL, &rank->err);
    if (!rank->status)
        rank->status = reshard_saver_wait(saver, -1, &rank->err);
    reshard_saver_close(saver, NULL);
    reshard_sharded_free(sharded);
}

TEST(savers_refuse_what_values_only_go_to)
{
    struct test_rank ranks[RANKS];
    snprintf(path, sizeof(path), "%s/none", test_folder);
    test_ranks(RANKS, 20, NULL, rank_saves, ranks);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].status, RESHARD_ERR_USAGE);
        assert_non_null(strstr(ranks[r].err.message, "'w' has no values"));
    }
}

/* ---- what a mapping leaves ---- */

TEST(what_a_mapping_leaves_is_fetched_or_refused)
{
    static const int64_t both[] = { 2 * ROWS, COLUMNS };
    static const char text[] = "v -> _\nv, w -> both, axis=0\n";
    const reshard_map_text texts[] = { { "text", text, strlen(text) } };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    map.texts = texts;
    map.text_count = 1;
    state_save("torch-dcp");
    for (int how = 0; how < 3; how++) { /* with read, without, with one that fails */
        struct device device = { .size = 2 * VALUES * sizeof(float) };
        reshard_shard shard = shard_of(0, "F32", &device);
        reshard_checkpoint *saved;
        reshard_shards *shards;
        shard.key = (reshard_str){ "both", 4 };
        shard.global_shape = shard.extent = both;
        shard.read = how == 1 ? NULL : device_read;
        device.fails_to_read = how == 2;
        for (int n = 0; n < 2 * VALUES; n++)
            device.values.floats[n] = -7;
        CHECK_OK(reshard_shards_new(&shards, &err));
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
        CHECK_OK(reshard_open(path, NULL, &saved, &err));
        reshard_status status = reshard_load_shards_mapped(saved, shards, &map, NULL, &err);
        assert_int_equal(status, how == 1 ? RESHARD_ERR_USAGE : how == 2 ? RESHARD_ERR_CANCELLED : RESHARD_OK);
        if (how)
            assert_non_null(strstr(err.message, how == 1 ? "'both': the mapping leaves some values as they are"
                                                         : "'both': the function that gives values failed"));
        for (int n = 0; n < 2 * VALUES; n++)
            assert_true(device.values.floats[n] == (how || n < VALUES ? -7 : value_of(1, n / COLUMNS - ROWS, n % COLUMNS)));
        reshard_shards_free(shards);
        reshard_close(saved);
    }
}

/* ---- where it cannot be ---- */

static void rank_redistributes(struct test_rank *rank)
{
    float memory[VALUES] = { 0 };
    struct device device = { .size = sizeof(memory) };
    reshard_shards *from, *to;
    reshard_shard source = shard_of(0, "F32", &device), target = source;
    source.data = target.data = memory;
    source.read = target.read = NULL;
    source.write = target.write = NULL;
    if (rank->rank == 1) {
        reshard_shard *one = rank->context ? &target : &source;
        one->data = NULL;
        one->read = rank->context ? NULL : device_read;
        one->write = rank->context ? device_write : NULL;
    }
    CHECK_OK(reshard_shards_new(&from, &rank->err));
    CHECK_OK(reshard_shards_new(&to, &rank->err));
    CHECK_OK(reshard_shards_add(from, &source, &rank->err));
    CHECK_OK(reshard_shards_add(to, &target, &rank->err));
    rank->status = reshard_redistribute(rank->comm, from, to, NULL, NULL, &rank->err);
    reshard_shards_free(from);
    reshard_shards_free(to);
}

TEST(what_functions_reach_is_not_redistributed)
{
    for (int i = 0; i < 2; i++) {
        struct test_rank ranks[RANKS];
        test_ranks(RANKS, 20, i ? ranks : NULL, rank_redistributes, ranks);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(ranks[r].status, RESHARD_ERR_USAGE);
            assert_non_null(strstr(ranks[r].err.message, "rank 1: 'v': values that functions give or take are not redistributed"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(state_that_a_function_gives_is_a_checkpoint_like_others),
        TEST_IN_FOLDER(lists_are_filled_through_functions_a_round_at_a_time),
        TEST_IN_FOLDER(a_list_without_memory_is_filled_or_refused),
        TEST_IN_FOLDER(rounds_tell_their_progress_as_one),
        TEST_IN_FOLDER(what_can_only_be_read_is_not_loaded),
        TEST_IN_FOLDER(nothing_is_written_of_a_list_that_the_checkpoint_lacks),
        TEST_IN_FOLDER(functions_are_in_place_of_memory),
        TEST_IN_FOLDER(ranks_are_filled_through_functions),
        TEST_IN_FOLDER(a_function_that_takes_nothing_ends_the_load_of_all),
        TEST_IN_FOLDER(savers_refuse_what_values_only_go_to),
        TEST_IN_FOLDER(what_a_mapping_leaves_is_fetched_or_refused),
        TEST_IN_FOLDER(what_functions_reach_is_not_redistributed),
    };
    return cmocka_run_group_tests_name("taken_values", tests, NULL, NULL);
}
