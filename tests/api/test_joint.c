/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving and loading by several ranks, which are threads here: every layout is saved in several formats and loaded under other numbers of
 * ranks; strictness as Megatron Core's own loads show it (also.strict of the fixture); and what happens when one rank fails.
 *
 * RESHARD_JOINT_FOLDER: where what is saved goes, and stays. RESHARD_JOINT_LOAD: a checkpoint with the same tensors that another program
 * has saved, which is loaded, too. tests/live/joint_test.py sets them.
 */
#include "check.h"

#include "api/joint_ranks.h"
#include "base/digest.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- saving and loading a state ---- */

/* context: options of the format, or NULL. */
static void save_rank(struct rank_call *call)
{
    struct held *held = held_new(call->rank, call->ranks);
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    char layout[32];
    held_walk(held, call->rank, call->ranks, true);
    convert.to = call->format;
    convert.format_options = call->context;
    convert.no_sync = 1;
    convert.overwrite = 1;
    if (strcmp(call->format, "atorch") == 0) { /* a flat parameter of all, a piece of it for each rank */
        snprintf(layout, sizeof(layout), "ranks=%d", (int)call->ranks);
        convert.layout = layout;
        convert.wrap = "root";
    }
    options.convert = &convert;
    call->status = reshard_save(call->comm, call->path, held->sharded, &options, NULL, &call->err);
    held_free(held);
}

static int value_is(const reshard_sharded *sharded, int64_t kind, const char *key, const char *json)
{
    for (size_t i = 0; i < reshard_sharded_value_count(sharded); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        assert_int_equal(reshard_sharded_value_at(sharded, i, &value), RESHARD_OK);
        if (value.kind == kind && value.key.size == strlen(key) && memcmp(value.key.data, key, value.key.size) == 0)
            return !json || (value.json.size == strlen(json) && memcmp(value.json.data, json, value.json.size) == 0);
    }
    return 0;
}

/* context: the rank count that saved it, if items and objects are there; else NULL. */
static void load_rank(struct rank_call *call)
{
    struct held *held = held_new(call->rank, call->ranks);
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *result;
    const int64_t *saved = call->context;
    options.strict = saved && *saved == call->ranks ? RESHARD_STRICT_RAISE_ALL : RESHARD_STRICT_IGNORE_ALL;
    if (!saved || *saved != call->ranks) { /* objects are of the grid that they were saved in */
        reshard_sharded_free(held->sharded);
        struct held *again = held_new(call->rank, call->ranks);
        reshard_sharded *without;
        assert_int_equal(reshard_sharded_new(&without, NULL), RESHARD_OK);
        for (size_t i = 0; i < reshard_sharded_count(again->sharded); i++) {
            reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
            reshard_sharded_at(again->sharded, i, &tensor);
            tensor.data = (char *)held + ((char *)tensor.data - (char *)again);
            assert_int_equal(reshard_sharded_add(without, &tensor, NULL), RESHARD_OK);
        }
        held_free(again);
        held->sharded = without;
    }
    call->status = reshard_load(call->comm, call->path, held->sharded, &options, NULL, &result, &call->err);
    int wrong = call->status ? 0 : held_walk(held, call->rank, call->ranks, false);
    if (!call->status && wrong) {
        call->status = RESHARD_DIFFERS;
        snprintf(call->err.message, sizeof(call->err.message), "%d values are wrong", wrong);
    }
    if (!call->status && saved && !value_is(result, RESHARD_VALUE_COMMON, "iteration", "7")) {
        call->status = RESHARD_DIFFERS;
        snprintf(call->err.message, sizeof(call->err.message), "the iteration is not there");
    }
    if (!call->status && saved && *saved == call->ranks) {
        char json[32];
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        snprintf(json, sizeof(json), "[\"part\",%d]", (int)call->rank);
        assert_int_equal(reshard_sharded_object_at(result, 0, &object), RESHARD_OK);
        if (!value_is(result, RESHARD_VALUE_LOCAL, "local", json) || object.json.size < 10 ||
            !memmem(object.json.data, object.json.size, "part", 4))
            call->status = RESHARD_DIFFERS;
    }
    reshard_sharded_free(result);
    held_free(held);
}

TEST(any_number_of_ranks_loads_what_any_other_saved)
{
    static const struct {
        const char *format;
        bool holds_items;
    } formats[] = { { "torch_dist", true }, { "torch-dcp", true }, { "paddle-flex", false }, { "hf", false }, { "safetensors", false },
                    { "atorch", false },   { "torch", true } };
    static const int64_t counts[] = { 1, 2, 3, 4 };
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        for (size_t s = 0; s < 4; s++) {
            int64_t saved = counts[s];
            char name[64];
            snprintf(name, sizeof(name), "%s-%d", formats[f].format, (int)saved);
            const struct rank_call save = { .path = path_in(name), .format = formats[f].format, .work = save_rank };
            ranks_must(&save, counts[s]);
            for (size_t l = 0; l < 4; l++) {
                const struct rank_call load = { .path = save.path, .work = load_rank, .context = formats[f].holds_items ? &saved : NULL };
                ranks_must(&load, counts[l]);
            }
        }
    }
}

TEST(each_rank_writes_a_file_of_its_own)
{
    const struct rank_call save = { .path = path_in("files"), .format = "torch-dcp", .work = save_rank };
    struct stat info;
    char name[300];
    ranks_must(&save, 3);
    for (int r = 0; r < 3; r++) {
        snprintf(name, sizeof(name), "%s/__%d_0.distcp", save.path, r);
        assert_int_equal(stat(name, &info), 0);
        assert_true(info.st_size > 0);
    }
}

/* The folder stays, for other programs to look at. */
TEST(what_ranks_saved_loses_what_is_removed)
{
    static const char *const formats[] = { "torch-dcp", "torch_dist" };
    for (int f = 0; f < 2; f++) {
        reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
        reshard_checkpoint *checkpoint;
        char name[64];
        snprintf(name, sizeof(name), "removed-%s", formats[f]);
        const struct rank_call save = { .path = path_in(name), .format = formats[f], .work = save_rank };
        ranks_must(&save, 3);
        CHECK_OK(reshard_remove(save.path, text_of("co"), NULL, &report, &err)); /* columns, copy */
        assert_int_equal(report.tensors, 2);
        assert_int_equal(report.files, 0);
        CHECK_OK(reshard_open(save.path, NULL, &checkpoint, &err));
        assert_true(reshard_tensor_find(checkpoint, "columns", 7) < 0);
        assert_true(reshard_tensor_find(checkpoint, "rows", 4) >= 0);
        reshard_close(checkpoint);
    }
}

/* Of archives in which one rank wrote a member, and in which several did; and digests of the files that all wrote. */
TEST(checksums_of_what_ranks_wrote_are_right)
{
    static const char *const formats[] = { "torch-dcp", "torch_dist", "torch", "torch_dist" };
    const char *integrity[] = { "integrity=yes", NULL };
    for (int f = 0; f < 4; f++) {
        struct rank_call save = { .path = path_in("checked"), .format = formats[f], .work = save_rank };
        save.context = f == 3 ? integrity : NULL;
        reshard_checkpoint *checkpoint;
        reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
        ranks_must(&save, 4);
        options.deep = 1;
        CHECK_OK(reshard_open(save.path, NULL, &checkpoint, &err));
        CHECK_OK(reshard_verify(checkpoint, &options, NULL, NULL, NULL, &err));
        reshard_close(checkpoint);
        char command[400];
        snprintf(command, sizeof(command), "test \"$(find %s -name integrity.json | wc -l)\" = %d", save.path, f == 3);
        assert_int_equal(system(command), 0);
        assert_int_equal(test_tree_remove(save.path), 0);
    }
}

/* ---- common values ---- */

enum common_case { COMMON_AS_IT_IS, COMMON_WITHOUT_RANK, COMMON_STOPS };

struct common_call {
    enum common_case what;
    const struct rank_call *call;
};

static char common_warnings[1000];

static void common_warn(const char *text, void *context)
{
    (void)context;
    snprintf(common_warnings + strlen(common_warnings), sizeof(common_warnings) - strlen(common_warnings), "%s\n", text);
}

static int common_preprocess(reshard_sharded *common, void *context)
{
    const struct common_call *given = context;
    const reshard_str rank[] = { { "args", 4 }, { "rank", 4 } };
    if (given->what == COMMON_STOPS && given->call->rank == 2)
        return 1;
    return given->what == COMMON_WITHOUT_RANK ? reshard_sharded_remove_value(common, rank, 2, NULL) != RESHARD_OK : 0;
}

/* Saves twice, the second time with what was kept: values that differ by rank, as a trainer's arguments do. */
static void common_rank(struct rank_call *call)
{
    const struct common_call given = { *(const enum common_case *)call->context, call };
    struct held *held = held_new(call->rank, call->ranks);
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    reshard_kept *kept;
    char json[64];
    snprintf(json, sizeof(json), "{\"rank\":%d,\"layers\":%d}", (int)call->rank, call->rank == 1 ? 3 : 2);
    held_walk(held, call->rank, call->ranks, true);
    value.key = text_of("args");
    value.json = text_of(json);
    assert_int_equal(reshard_sharded_add_value(held->sharded, &value, NULL), RESHARD_OK);
    convert.to = call->format;
    convert.no_sync = convert.overwrite = 1;
    options.convert = &convert;
    options.warn = common_warn;
    options.preprocess = common_preprocess;
    options.context = (void *)&given;
    call->status = reshard_kept_new(&kept, &call->err);
    options.kept = kept;
    const size_t values = reshard_sharded_value_count(held->sharded);
    for (int save = 0; save < 2 && !call->status; save++)
        call->status = reshard_save(call->comm, call->path, held->sharded, &options, NULL, &call->err);
    if (!call->status && (reshard_kept_uses(kept) != 1 || !value_is(held->sharded, RESHARD_VALUE_COMMON, "args", json)))
        call->status = RESHARD_DIFFERS;
    if (reshard_sharded_value_count(held->sharded) != values)
        call->status = RESHARD_DIFFERS;
    reshard_kept_free(kept);
    held_free(held);
}

TEST(common_values_are_compared_as_they_are_prepared)
{
    static const char of_all[] = "Mismatched keys: [(('args', 'layers'), int, int), (('args', 'rank'), int, int)]";
    struct rank_call calls[RANKS_MAX];
    enum common_case what;
    const struct rank_call save = { .path = path_in("common"), .format = "torch_dist", .work = common_rank, .context = &what };
    for (what = COMMON_AS_IT_IS; what <= COMMON_WITHOUT_RANK; what++) {
        reshard_sharded *asked, *result;
        common_warnings[0] = 0;
        ranks_must(&save, 3);
        assert_int_equal(strstr(common_warnings, "Rank 2 common state dict differs") == NULL, what == COMMON_WITHOUT_RANK);
        assert_int_equal(strstr(common_warnings, of_all) == NULL, what == COMMON_WITHOUT_RANK);
        assert_non_null(strstr(common_warnings, "Rank 1 common state dict differs"));
        assert_non_null(strstr(common_warnings, "(('args', 'layers'), int, int)"));
        CHECK_OK(reshard_sharded_new(&asked, &err)); /* what is saved is rank 0's, whole */
        CHECK_OK(reshard_load(NULL, save.path, asked, NULL, NULL, &result, &err));
        assert_true(value_is(result, RESHARD_VALUE_COMMON, "args", "{\"rank\": 0, \"layers\": 2}"));
        reshard_sharded_free(asked);
        reshard_sharded_free(result);
    }
    ranks_run(calls, 3, &save); /* rank 2's stops: all are told */
    for (int r = 0; r < 3; r++) {
        assert_int_equal(calls[r].status, RESHARD_ERR_CANCELLED);
        assert_non_null(strstr(calls[r].err.message, "rank 2: reshard_save_options.preprocess stopped the call"));
    }
}

/* The members of a dictionary come first in the value of that key: torch_dist adds members that Megatron-LM asks for. */
static bool value_begins(const reshard_sharded *sharded, const char *key, const char *json)
{
    for (size_t i = 0; i < reshard_sharded_value_count(sharded); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        assert_int_equal(reshard_sharded_value_at(sharded, i, &value), RESHARD_OK);
        if (value.kind == RESHARD_VALUE_COMMON && value.key.size == strlen(key) && memcmp(value.key.data, key, value.key.size) == 0)
            return value.json.size >= strlen(json) && memcmp(value.json.data, json, strlen(json) - 1) == 0;
    }
    return false;
}

/* Megatron's test_content_metadata: what says how the rest is to be read survives, in the folder and in what is loaded. */
static void content_rank(struct rank_call *call)
{
    struct held *held = held_new(call->rank, call->ranks);
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_load_options loading = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    reshard_sharded *result = NULL;
    held_walk(held, call->rank, call->ranks, true);
    value.key = text_of("content_metadata");
    value.json = text_of(call->context);
    assert_int_equal(reshard_sharded_add_value(held->sharded, &value, NULL), RESHARD_OK);
    convert.to = call->format;
    convert.no_sync = convert.overwrite = 1;
    options.convert = &convert;
    loading.strict = RESHARD_STRICT_RAISE_ALL;
    call->status = reshard_save(call->comm, call->path, held->sharded, &options, NULL, &call->err);
    if (!call->status)
        call->status = reshard_load(call->comm, call->path, held->sharded, &loading, NULL, &result, &call->err);
    if (!call->status && !value_begins(result, "content_metadata", call->context))
        call->status = RESHARD_DIFFERS;
    reshard_sharded_free(result);
    held_free(held);
}

TEST(content_metadata_survives)
{
    static const char *const contents[] = { "{\"a\": 3}", "{\"nested\": {\"a\": 3}, \"flat\": [5, {\"6\": null}]}", "{}" };
    for (int i = 0; i < 3; i++) {
        reshard_checkpoint *checkpoint;
        reshard_sharded *metadata;
        const struct rank_call save = {
            .path = path_in("content"), .format = "torch_dist", .work = content_rank, .context = (void *)contents[i]
        };
        ranks_must(&save, 2);
        CHECK_OK(reshard_open(save.path, NULL, &checkpoint, &err));
        CHECK_OK(reshard_sharded_metadata(checkpoint, &metadata, &err));
        assert_true(value_begins(metadata, "content_metadata", contents[i]));
        reshard_sharded_free(metadata);
        reshard_close(checkpoint);
    }
}

/* ---- uneven pieces ---- */

/* Of each rank up to three pieces, in the order of the tensor; 0 ends them. */
struct uneven {
    int64_t source[RANKS_MAX][4], target[RANKS_MAX][4];
};

#define UNEVEN_SIZE 24

/* Adds a rank's pieces; values are where they belong. */
static reshard_sharded *pieces_new(int64_t (*pieces)[4], int64_t rank, float *values)
{
    static const int64_t whole[] = { UNEVEN_SIZE };
    reshard_sharded *sharded;
    int64_t start = 0;
    assert_int_equal(reshard_sharded_new(&sharded, NULL), RESHARD_OK);
    for (int64_t r = 0; r <= rank; r++) {
        for (int64_t *size = pieces[r]; *size; start += *size, size++) {
            reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
            tensor.key = text_of("uneven");
            tensor.dtype = "F32";
            tensor.rank = 1;
            tensor.local_shape = size;
            tensor.global_shape = whole;
            tensor.global_offset = &start;
            tensor.data = values + start;
            if (r == rank)
                assert_int_equal(reshard_sharded_add(sharded, &tensor, NULL), RESHARD_OK);
        }
    }
    return sharded;
}

static void uneven_rank(struct rank_call *call)
{
    struct uneven *given = call->context;
    float values[UNEVEN_SIZE] = { 0 };
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    convert.to = call->format;
    convert.no_sync = convert.overwrite = 1;
    options.convert = &convert;
    for (int i = 0; i < UNEVEN_SIZE; i++)
        values[i] = (float)i;
    reshard_sharded *sharded = pieces_new(given->source, call->rank, values);
    call->status = reshard_save(call->comm, call->path, sharded, &options, NULL, &call->err);
    reshard_sharded_free(sharded);
    memset(values, 0, sizeof(values));
    sharded = pieces_new(given->target, call->rank, values);
    if (!call->status)
        call->status = reshard_load(call->comm, call->path, sharded, NULL, NULL, NULL, &call->err);
    for (size_t i = 0; i < reshard_sharded_count(sharded) && !call->status; i++) {
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_at(sharded, i, &tensor);
        for (int64_t k = 0; k < tensor.local_shape[0]; k++)
            if (((float *)tensor.data)[k] != (float)(tensor.global_offset[0] + k))
                call->status = RESHARD_DIFFERS;
    }
    reshard_sharded_free(sharded);
}

/* The shapes of Megatron's test_uneven_1d_sharding and test_uneven_1d_sharding_multiple_shards, on fewer ranks. */
TEST(pieces_may_be_uneven_and_many_or_none)
{
    static struct uneven cases[] = {
        { { { 6 }, { 6 }, { 6 }, { 6 } }, { { 1 }, { 2 }, { 3 }, { 18 } } },
        { { { 1 }, { 5 }, { 7 }, { 11 } }, { { 14 }, { 0 }, { 6 }, { 4 } } },
        { { { 24 }, { 0 }, { 0 }, { 0 } }, { { 0 }, { 0 }, { 12 }, { 12 } } },
        { { { 0 }, { 0 }, { 0 }, { 12, 12 } }, { { 3, 3 }, { 6 }, { 0 }, { 5, 1, 6 } } },
        { { { 4 }, { 7, 5 }, { 1, 1, 1 }, { 3, 2 } }, { { 2, 4 }, { 0 }, { 9, 5 }, { 1, 1, 2 } } },
    };
    static const char *const formats[] = { "torch_dist", "torch-dcp", "paddle-flex", "hf" };
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        for (size_t f = 0; f < 4; f++) {
            const struct rank_call like = { .path = path_in("uneven"), .format = formats[f], .work = uneven_rank, .context = &cases[c] };
            struct rank_call calls[RANKS_MAX];
            ranks_run(calls, RANKS_MAX, &like);
            for (int r = 0; r < RANKS_MAX; r++)
                if (calls[r].status)
                    fail_msg("case %zu, %s, rank %d: status %d: %s", c, formats[f], r, calls[r].status, calls[r].err.message);
        }
    }
}

/* ---- strictness ---- */

struct strict_case {
    const char *path;
    int64_t strict;
    bool adds, removes;
    const struct value *expected;
};

static bool is_key(reshard_str key, const char *text)
{
    return key.size == strlen(text) && memcmp(key.data, text, key.size) == 0;
}

/* All that is stored, as every rank's copy; with or without what is to be unexpected or missing. */
static reshard_sharded *request_make(const struct strict_case *given, int64_t rank, float **memory)
{
    static const int64_t three[] = { 3 }, one[] = { 1 }, zero[] = { 0 };
    reshard_checkpoint *checkpoint;
    reshard_sharded *all, *request;
    reshard_error own = RESHARD_ERROR_INIT;
    assert_int_equal(reshard_open(given->path, NULL, &checkpoint, &own), RESHARD_OK);
    assert_int_equal(reshard_sharded_metadata(checkpoint, &all, &own), RESHARD_OK);
    assert_int_equal(reshard_sharded_new(&request, &own), RESHARD_OK);
    *memory = calloc(100000, sizeof(**memory));
    float *next = *memory;
    for (size_t i = 0; i < reshard_sharded_count(all); i++) {
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_at(all, i, &tensor);
        if (given->removes && is_key(tensor.key, "rep"))
            continue;
        tensor.replica_ids = &rank;
        tensor.replica_count = 1;
        tensor.data = next;
        next += 1000;
        assert_int_equal(reshard_sharded_add(request, &tensor, &own), RESHARD_OK);
    }
    for (size_t i = 0; i < reshard_sharded_object_count(all); i++) {
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        reshard_sharded_object_at(all, i, &object);
        object.replica_ids = &rank;
        object.replica_count = 1;
        if (!given->removes || !is_key(object.key, "objB"))
            assert_int_equal(reshard_sharded_add_object(request, &object, &own), RESHARD_OK);
    }
    if (given->adds) {
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        tensor.key = text_of("TenD");
        tensor.dtype = "F32";
        tensor.rank = object.rank = 1;
        tensor.local_shape = three;
        tensor.replica_ids = object.replica_ids = &rank;
        tensor.replica_count = object.replica_count = 1;
        tensor.data = next;
        object.key = text_of("ObjD");
        object.global_shape = one;
        object.global_offset = zero;
        assert_int_equal(reshard_sharded_add_offsets(request, &tensor, NULL, sizeof(reshard_rank_offset), 0, &own), RESHARD_OK);
        assert_int_equal(reshard_sharded_add_object(request, &object, &own), RESHARD_OK);
    }
    reshard_sharded_free(all);
    reshard_close(checkpoint);
    return request;
}

static bool has_object(const reshard_sharded *result, const char *key)
{
    for (size_t i = 0; i < reshard_sharded_object_count(result); i++) {
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        reshard_sharded_object_at(result, i, &object);
        if (is_key(object.key, key))
            return true;
    }
    return false;
}

/* Whether a tensor of F32 has what the checkpoint has. */
static bool is_loaded(const reshard_sharded *request, const char *path, const char *key)
{
    reshard_error own = RESHARD_ERROR_INIT;
    reshard_checkpoint *checkpoint;
    float stored[100];
    bool is_same = false;
    assert_int_equal(reshard_open(path, NULL, &checkpoint, &own), RESHARD_OK);
    const size_t tensor = (size_t)reshard_tensor_find(checkpoint, key, strlen(key));
    assert_int_equal(reshard_read_into(checkpoint, tensor, NULL, NULL, NULL, stored, 15 * sizeof(float), &own), RESHARD_OK);
    for (size_t i = 0; i < reshard_sharded_count(request); i++) {
        reshard_sharded_tensor found = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_at(request, i, &found);
        is_same |= is_key(found.key, key) && memcmp(found.data, stored, 15 * sizeof(float)) == 0;
    }
    reshard_close(checkpoint);
    return is_same;
}

static bool list_is(const reshard_sharded *result, int64_t kind, const struct value *expected)
{
    size_t at = 0, count = expected ? expected->list.count : 0;
    for (size_t i = 0; i < reshard_sharded_value_count(result); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        reshard_sharded_value_at(result, i, &value);
        if (value.kind != kind)
            continue;
        if (at >= count || !str_equal((struct str){ value.key.data, value.key.size }, expected->list.items[at]->text))
            return false;
        at++;
    }
    return at == count;
}

static const char *error_wrong(const struct strict_case *given, const reshard_error *found)
{
    static const char *const keys[] = { "TenD", "ObjD", "rep", "objB" };
    const struct value *named = value_dict_get(given->expected, "names_key");
    for (size_t k = 0; k < 4; k++) {
        bool is_named = false;
        for (size_t i = 0; i < named->list.count; i++)
            is_named |= str_is(named->list.items[i]->text, keys[k]);
        if (is_named != (strstr(found->message, keys[k]) != NULL))
            return keys[k];
    }
    return NULL;
}

static void strict_rank(struct rank_call *call)
{
    const struct strict_case *given = call->context;
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *result = NULL;
    float *memory;
    reshard_sharded *request = request_make(given, call->rank, &memory);
    struct str outcome;
    const char *wrong = NULL;
    options.strict = given->strict;
    reshard_status status = reshard_load(call->comm, given->path, request, &options, NULL, &result, &call->err);
    value_as_str(value_dict_get(given->expected, "outcome"), &outcome);
    if (str_is(outcome, "raises"))
        wrong = status ? error_wrong(given, &call->err) : "it did not fail";
    else if (status)
        wrong = call->err.message;
    else if (has_object(result, "objB") == given->removes || has_object(result, "ObjD"))
        wrong = "objects";
    else if (!given->removes && !is_loaded(request, given->path, "rep"))
        wrong = "values";
    else if (!list_is(result, RESHARD_VALUE_MISSING, value_dict_get(given->expected, "missing")) ||
             !list_is(result, RESHARD_VALUE_UNEXPECTED, value_dict_get(given->expected, "unexpected")))
        wrong = "lists";
    call->status = wrong ? RESHARD_DIFFERS : RESHARD_OK;
    if (wrong)
        snprintf(call->err.hint, sizeof(call->err.hint), "%s: %s", reshard_strict_name(given->strict), wrong);
    reshard_sharded_free(result);
    reshard_sharded_free(request);
    free(memory);
}

static void strict_run(struct strict_case *given, const char *kind)
{
    struct rank_call calls[RANKS_MAX];
    const struct rank_call like = { .work = strict_rank, .context = given };
    ranks_run(calls, RANKS_MAX, &like);
    for (int r = 0; r < RANKS_MAX; r++)
        if (calls[r].status)
            fail_msg("%s, rank %d: %s (%s)", kind, r, calls[r].err.hint, calls[r].err.message);
}

static struct value_graph manifest_read(const char *name)
{
    static char text[1 << 20];
    char path[1024];
    struct value_graph graph = { 0 };
    snprintf(path, sizeof(path), "%s/megatron/%s/manifest.json", test_fixtures(), name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(text, 1, sizeof(text), file);
    fclose(file);
    /* Python's Infinity is none of JSON's numbers. */
    for (char *at = text; (at = strstr(at, "Infinity")); at += 8)
        memcpy(at, "12345678", 8);
    CHECK_OK(json_parse(text, size, &limits_default, &graph, &err));
    return graph;
}

TEST(strictness_is_megatrons)
{
    static const char *const kinds[] = { "exact", "unexpected", "missing", "both" };
    char path[1024];
    struct value_graph graph = manifest_read("megatron-sem-plain");
    const struct value *table = value_dict_get(value_dict_get(value_dict_get(graph.root, "also"), "strict"), "4 ranks");
    assert_non_null(table);
    assert_int_equal(table->list.count, 16);
    snprintf(path, sizeof(path), "%s/megatron/megatron-sem-plain/ckpt", test_fixtures());
    for (size_t i = 0; i + 1 < table->list.count; i += 2) {
        struct strict_case given = { .path = path };
        CHECK_OK(reshard_strict_find(table->list.items[i]->text.data, &given.strict, &err));
        for (size_t k = 0; k < 4; k++) {
            given.adds = k % 2;
            given.removes = k / 2;
            given.expected = value_dict_get(table->list.items[i + 1], kinds[k]);
            assert_non_null(given.expected);
            strict_run(&given, kinds[k]);
        }
    }
    int64_t none;
    CHECK_FAILS(reshard_strict_find("strict", &none, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Invalid strict flag: strict"));
    value_graph_release(&graph);
}

/* ---- other extents ---- */

/* What Megatron's own load of other extents gave. */
static void mismatch_check(const struct value *table, int64_t extent, const float *values)
{
    char name[64], hex[DIGEST_HEX_MAX];
    struct str expected;
    struct digest *digest = digest_new(DIGEST_SHA256);
    snprintf(name, sizeof(name), "extent %d, allow True", (int)extent);
    assert_true(value_as_str(value_dict_get(value_dict_get(table, name), "sha256"), &expected));
    digest_update(digest, values, (size_t)extent * 3 * sizeof(*values));
    digest_hex(digest, hex);
    digest_free(digest);
    assert_memory_equal(hex, expected.data, 64);
}

TEST(extents_may_differ_where_that_is_allowed)
{
    char path[1024];
    struct value_graph graph = manifest_read("megatron-sem-plain");
    const struct value *table = value_dict_get(value_dict_get(graph.root, "also"), "mismatch");
    const int64_t extents[] = { 17, 20, 25 };
    float values[3][25 * 3];
    snprintf(path, sizeof(path), "%s/megatron/megatron-sem-plain/ckpt", test_fixtures());
    for (int e = 0; e < 3; e++) {
        for (int allows = 0; allows < 2; allows++) {
            const int64_t shape[] = { extents[e], 3 };
            reshard_sharded *request;
            reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
            memset(values[e], 0x40, sizeof(values[e]));
            CHECK_OK(reshard_sharded_new(&request, &err));
            tensor.key = text_of("vocab.weight");
            tensor.dtype = "F32";
            tensor.rank = 2;
            tensor.local_shape = shape;
            tensor.allow_shape_mismatch = allows;
            tensor.data = values[e];
            CHECK_OK(reshard_sharded_add_offsets(request, &tensor, NULL, sizeof(reshard_rank_offset), 0, &err));
            if (allows || extents[e] == 20)
                CHECK_OK(reshard_load(NULL, path, request, NULL, NULL, NULL, &err));
            else
                CHECK_FAILS(reshard_load(NULL, path, request, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
            if (allows)
                mismatch_check(table, extents[e], values[e]);
            if (!allows && extents[e] == 17)
                assert_non_null(strstr(err.message, "Global shape mismatch for loaded"));
            reshard_sharded_free(request);
        }
    }
    value_graph_release(&graph);
    assert_memory_equal(values[0], values[1], 17 * 3 * sizeof(float));
    assert_memory_equal(values[2], values[1], 20 * 3 * sizeof(float));
    for (int i = 60; i < 75; i++)
        assert_true(values[2][i] == 0);
}

/* ---- failures ---- */

/* Rank 1 overlaps rank 0. */
static void overlapping_rank(struct rank_call *call)
{
    static const int64_t shape[] = { 2 };
    float values[2] = { 1, 2 };
    const reshard_rank_offset at = { 0, 0, 2 };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    tensor.key = text_of("w");
    tensor.dtype = "F32";
    tensor.rank = 1;
    tensor.local_shape = shape;
    tensor.data = values;
    convert.to = call->context && call->rank == 1 ? "hf" : "torch-dcp";
    options.convert = &convert;
    options.no_check = call->context != NULL;
    assert_int_equal(reshard_sharded_new(&sharded, NULL), RESHARD_OK);
    if (!call->context || call->rank == 0)
        assert_int_equal(reshard_sharded_add_offsets(sharded, &tensor, &at, sizeof(at), call->context ? 0 : 1, NULL), RESHARD_OK);
    call->status = reshard_save(call->comm, call->path, sharded, &options, NULL, &call->err);
    reshard_sharded_free(sharded);
}

TEST(a_failure_is_everybodys)
{
    struct rank_call calls[RANKS_MAX];
    struct rank_call like = { .path = path_in("failed"), .work = overlapping_rank };
    ranks_run(calls, 2, &like);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(calls[r].status, RESHARD_ERR_USAGE);
        assert_non_null(strstr(calls[r].err.message, "Invalid access pattern for 'w'"));
        assert_non_null(strstr(calls[r].err.message, "ranks 0 and 1 have main copies of cell (0,)"));
    }
    like.context = &like;
    ranks_run(calls, 2, &like);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(calls[r].status, RESHARD_ERR_USAGE);
        assert_non_null(strstr(calls[r].err.message, "rank 1 would write another target than rank 0"));
    }
    assert_int_not_equal(access(like.path, F_OK), 0);
}

/* path: of a folder for each rank. */
static void save_elsewhere_rank(struct rank_call *call)
{
    struct rank_call own = *call;
    char path[340];
    mkdir(call->path, 0777);
    snprintf(path, sizeof(path), "%s/%d", call->path, (int)call->rank);
    mkdir(path, 0777);
    own.path = strcat(path, "/saved");
    save_rank(&own);
    *call = own;
}

/* What rank 1 writes to a disk of its own would be zeros in what rank 0 publishes. */
TEST(ranks_whose_paths_differ_save_nothing)
{
    static const char *const formats[] = { "torch_dist", "torch-dcp", "paddle-flex", "hf", "safetensors" };
    struct rank_call calls[RANKS_MAX];
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        const struct rank_call like = { .path = path_in("elsewhere"), .format = formats[f], .work = save_elsewhere_rank };
        ranks_run(calls, 2, &like);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(calls[r].status, RESHARD_ERR_IO);
            assert_non_null(strstr(calls[r].err.message, "rank 1: '.saved.reshard-partial' beside the target"));
            assert_int_equal(rmdir(path_in(r ? "elsewhere/1" : "elsewhere/0")), 0); /* it is empty */
        }
    }
}

TEST(what_others_saved_is_loaded)
{
    const char *path = getenv("RESHARD_JOINT_LOAD");
    const struct rank_call load = { .path = path, .work = load_rank };
    for (int64_t ranks = 1; path && ranks <= RANKS_MAX; ranks++)
        ranks_must(&load, ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_ranks_loads_what_any_other_saved),
        cmocka_unit_test(each_rank_writes_a_file_of_its_own),
        cmocka_unit_test(what_ranks_saved_loses_what_is_removed),
        cmocka_unit_test(checksums_of_what_ranks_wrote_are_right),
        cmocka_unit_test(common_values_are_compared_as_they_are_prepared),
        cmocka_unit_test(content_metadata_survives),
        cmocka_unit_test(pieces_may_be_uneven_and_many_or_none),
        cmocka_unit_test(strictness_is_megatrons),
        cmocka_unit_test(extents_may_differ_where_that_is_allowed),
        cmocka_unit_test(a_failure_is_everybodys),
        cmocka_unit_test(ranks_whose_paths_differ_save_nothing),
        cmocka_unit_test(what_others_saved_is_loaded),
    };
    return cmocka_run_group_tests_name("joint", tests, folder_made, folder_removed);
}
