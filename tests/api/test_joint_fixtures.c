/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What frameworks saved with several ranks is loaded by other numbers of ranks, in uneven rows, in columns with strides, and whole; digests
 * are those that the framework computed of what it had saved. Then the same ranks save it, and one loads that.
 */
#include "check.h"

#include "base/digest.h"
#include "comm/ranks.h"
#include "encoding/json.h"
#include "reshard/sharded.h"
#include "test_folder.h"

#include <unistd.h>

#define RANKS_MAX 4
#define AXES_MAX 8

static reshard_error err;

static const struct fixture {
    const char *name;
    const char *format; /* in which ranks save it again; NULL: they do not */
} fixtures[] = {
    { "megatron/megatron-sem-plain", "torch_dist" },
    { "megatron/megatron-sem-async", "torch-dcp" },
    { "megatron/megatron-sem-fpsave", "paddle-flex" },
    { "megatron/megatron-sem-hint", "hf" },
    { "megatron/megatron-sem-integrity", "torch_dist" },
    { "megatron/megatron-sem-removed", "torch" },
    { "megatron/megatron-sem-uneven-v0.16.1", "torch_dist" },
    { "megatron/megatron-sem-v0.12.3", "torch_dist" },
    { "megatron/megatron-sem-v0.19.0", "torch_dist" },
    { "megatron/megatron-sem-flat-v0.12.3", "torch-dcp" },
    { "megatron/megatron-sem-flat-v0.15.3", "hf" },
    { "megatron/megatron-sem-zarr-v0.5.0", "torch_dist" },
    { "torch-dcp/dcp-fsdp2-4", "torch-dcp" },
    { "paddle/paddle-fc-2ranks-uneven", "paddle-flex" },
    { "paddle/paddle-fc-4ranks-grid", "torch-dcp" },
    { "paddle/paddle-fc-flat", "paddle-flex" },
    { "paddle/paddle-fc-replicas", "hf" },
    { "paddle/paddle-strategy-tp2-sdv2-2", NULL },
    { "atorch-fsdp/atorch-w4", NULL },
    { "atorch-fsdp/atorch-noorig-w2", NULL },
    { "atorch-fsdp/atorch-v0", NULL },
};

/* A tensor of the checkpoint, and where ranks put it. */
struct wanted {
    char key[200], dtype[16];
    size_t rank, element, bytes;
    int64_t shape[AXES_MAX], strides[AXES_MAX];
    char *memory, *copies[RANKS_MAX]; /* of all ranks, who fill parts of it; or each rank's own */
};

enum cut { CUT_ROWS, CUT_COLUMNS, CUT_NOT };

struct job {
    const struct fixture *fixture;
    char path[600], saved[300];
    reshard_checkpoint *checkpoint; /* to look at */
    struct wanted *tensors;
    size_t count;
};

static enum cut cut_of(const struct wanted *tensor, size_t index)
{
    if (tensor->rank == 0 || tensor->bytes == 0 || index % 3 == 2)
        return CUT_NOT;
    return index % 3 == 1 && tensor->rank > 1 ? CUT_COLUMNS : CUT_ROWS;
}

/* Of an axis: rank r has what lies between r * r and (r + 1) * (r + 1) of ranks * ranks, which may be nothing. */
static int64_t bound(int64_t extent, int64_t rank, int64_t ranks)
{
    return extent * rank * rank / (ranks * ranks);
}

static void piece_add(reshard_sharded *sharded, const struct wanted *wanted, size_t index, int64_t rank, int64_t ranks)
{
    const enum cut cut = cut_of(wanted, index);
    const size_t axis = cut == CUT_COLUMNS ? wanted->rank - 1 : 0;
    int64_t start[AXES_MAX] = { 0 }, extent[AXES_MAX], replica = cut == CUT_NOT ? rank : 0;
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    memcpy(extent, wanted->shape, sizeof(extent));
    tensor.data = cut == CUT_NOT ? wanted->copies[rank] : wanted->memory;
    if (cut != CUT_NOT) {
        start[axis] = bound(wanted->shape[axis], rank, ranks);
        extent[axis] = bound(wanted->shape[axis], rank + 1, ranks) - start[axis];
        tensor.data = wanted->memory + (size_t)(start[axis] * wanted->strides[axis]) * wanted->element;
        if (extent[axis] == 0)
            return;
    }
    tensor.key = (reshard_str){ wanted->key, strlen(wanted->key) };
    tensor.dtype = wanted->dtype;
    tensor.rank = wanted->rank;
    tensor.local_shape = extent;
    tensor.global_shape = wanted->shape;
    tensor.global_offset = start;
    tensor.replica_ids = &replica;
    tensor.replica_count = 1;
    tensor.strides = cut == CUT_COLUMNS ? wanted->strides : NULL;
    CHECK_OK(reshard_sharded_add(sharded, &tensor, &err));
}

/* Every rank asks for all objects. */
static void objects_add(const struct job *job, reshard_sharded *sharded, int64_t rank)
{
    reshard_sharded *all;
    CHECK_OK(reshard_sharded_metadata(job->checkpoint, &all, &err));
    for (size_t i = 0; i < reshard_sharded_object_count(all); i++) {
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        reshard_sharded_object_at(all, i, &object);
        object.replica_ids = &rank;
        object.replica_count = 1;
        CHECK_OK(reshard_sharded_add_object(sharded, &object, &err));
    }
    reshard_sharded_free(all);
}

/* Objects and common values that were loaded are the checkpoint's items, all of them. */
static const char *values_wrong(const struct job *job, const reshard_sharded *result)
{
    size_t common = 0, objects = reshard_sharded_object_count(result);
    for (size_t i = 0; i < objects; i++) {
        reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
        char *key, *json;
        size_t size;
        reshard_sharded_object_at(result, i, &object);
        if (reshard_object_key(&object, &key, NULL))
            return "an object's key";
        const int64_t item = reshard_item_find(job->checkpoint, key, strlen(key));
        reshard_free(key);
        if (item < 0 || reshard_item_json(job->checkpoint, (size_t)item, &json, &size, NULL))
            return "an object that is no item";
        const bool is_same = size == object.json.size && memcmp(json, object.json.data, size) == 0;
        reshard_free(json);
        if (!is_same)
            return "an object's value";
    }
    for (size_t i = 0; i < reshard_sharded_value_count(result); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        reshard_sharded_value_at(result, i, &value);
        if (value.kind != RESHARD_VALUE_COMMON || reshard_item_find(job->checkpoint, value.key.data, value.key.size) < 0)
            return "a value that is no item";
        common++;
    }
    return common + objects == reshard_item_count(job->checkpoint) ? NULL : "the number of values";
}

static void rank_loads(struct test_rank *rank)
{
    const struct job *job = rank->context;
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *sharded, *result = NULL;
    options.strict = RESHARD_STRICT_RAISE_ALL;
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    for (size_t i = 0; i < job->count; i++)
        piece_add(sharded, &job->tensors[i], i, rank->rank, rank->size);
    objects_add(job, sharded, rank->rank);
    rank->status = reshard_load(rank->comm, job->path, sharded, &options, NULL, &result, &rank->err);
    const char *wrong = rank->status ? NULL : values_wrong(job, result);
    if (wrong) {
        rank->status = RESHARD_DIFFERS;
        snprintf(rank->err.message, sizeof(rank->err.message), "%s", wrong);
    }
    reshard_sharded_free(result);
    reshard_sharded_free(sharded);
}

static void rank_saves(struct test_rank *rank)
{
    const struct job *job = rank->context;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    for (size_t i = 0; i < job->count; i++)
        piece_add(sharded, &job->tensors[i], i, rank->rank, rank->size);
    convert.to = job->fixture->format;
    convert.no_sync = convert.overwrite = 1;
    options.convert = &convert;
    rank->status = reshard_save(rank->comm, job->saved, sharded, &options, NULL, &rank->err);
    reshard_sharded_free(sharded);
}

/* ---- tensors and their digests ---- */

static void memory_clear(struct job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        memset(job->tensors[i].memory, 0x5a, job->tensors[i].bytes);
        for (int r = 0; r < RANKS_MAX; r++)
            memset(job->tensors[i].copies[r], 0x5a, job->tensors[i].bytes);
    }
}

static void tensors_list(struct job *job)
{
    job->count = reshard_tensor_count(job->checkpoint);
    job->tensors = calloc(job->count + 1, sizeof(*job->tensors));
    for (size_t i = 0; i < job->count; i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        reshard_dtype type = RESHARD_DTYPE_INIT;
        struct wanted *wanted = &job->tensors[i];
        reshard_tensor_at(job->checkpoint, i, &tensor);
        snprintf(wanted->key, sizeof(wanted->key), "%.*s", (int)tensor.key.size, tensor.key.data);
        snprintf(wanted->dtype, sizeof(wanted->dtype), "%s", tensor.dtype);
        assert_in_range(tensor.rank, 0, AXES_MAX);
        assert_int_equal(reshard_dtype_find(tensor.dtype, &type), RESHARD_OK);
        wanted->rank = (size_t)tensor.rank;
        wanted->element = (size_t)type.bits / 8;
        wanted->bytes = wanted->element;
        for (size_t axis = wanted->rank; axis-- > 0;) {
            wanted->shape[axis] = tensor.shape[axis];
            wanted->strides[axis] = (int64_t)(wanted->bytes / wanted->element);
            wanted->bytes *= (size_t)tensor.shape[axis];
        }
        wanted->memory = malloc(wanted->bytes + 1);
        for (int r = 0; r < RANKS_MAX; r++)
            wanted->copies[r] = malloc(wanted->bytes + 1);
    }
}

static void digest_check(const struct job *job, const struct wanted *tensor, const char *memory, const char *expected, int64_t ranks)
{
    struct digest *digest = digest_new(DIGEST_SHA256);
    char hex[DIGEST_HEX_MAX];
    digest_update(digest, memory, tensor->bytes);
    digest_hex(digest, hex);
    digest_free(digest);
    if (strncmp(hex, expected, 64) != 0)
        fail_msg("%s, %d ranks: '%s' is other than what was saved", job->fixture->name, (int)ranks, tensor->key);
}

static void digests_check(const struct job *job, const struct value *tensors, int64_t ranks)
{
    for (size_t i = 0; i < job->count; i++) {
        const struct wanted *tensor = &job->tensors[i];
        struct str expected;
        const struct value *said = value_dict_get(tensors, tensor->key);
        if (!said || !value_as_str(value_dict_get(said, "sha256"), &expected))
            fail_msg("%s: '%s' is not in the manifest", job->fixture->name, tensor->key);
        if (cut_of(tensor, i) != CUT_NOT)
            digest_check(job, tensor, tensor->memory, expected.data, ranks);
        for (int64_t r = 0; r < ranks && cut_of(tensor, i) == CUT_NOT; r++)
            digest_check(job, tensor, tensor->copies[r], expected.data, ranks);
    }
}

static void ranks_must(struct job *job, int64_t ranks, test_rank_run run)
{
    struct test_rank done[RANKS_MAX];
    test_ranks(ranks, 20, job, run, done);
    for (int64_t r = 0; r < ranks; r++)
        if (done[r].status)
            fail_msg("%s, rank %d of %d: status %d: %s", job->fixture->name, (int)r, (int)ranks, done[r].status, done[r].err.message);
}

/* ---- a fixture ---- */

static char *text_read(const char *path, size_t *size)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(1, *size + 1);
    assert_int_equal(fread(text, 1, *size, file), *size);
    fclose(file);
    for (char *at = text; (at = strstr(at, "Infinity")); at += 8) /* Python's, and none of JSON's */
        memcpy(at, "12345678", 8);
    for (char *at = text; (at = strstr(at, ": NaN")); at += 5)
        memcpy(at, ": 123", 5);
    return text;
}

static void saved_check(struct job *job, const struct value *tensors)
{
    struct test_rank alone = { .size = 1, .context = job, .err = RESHARD_ERROR_INIT };
    snprintf(job->path, sizeof(job->path), "%s", job->saved);
    reshard_close(job->checkpoint);
    CHECK_OK(reshard_open(job->path, NULL, &job->checkpoint, &err));
    memory_clear(job);
    rank_loads(&alone);
    if (alone.status)
        fail_msg("%s as %s: status %d: %s", job->fixture->name, job->fixture->format, alone.status, alone.err.message);
    digests_check(job, tensors, 1);
    assert_int_equal(test_tree_remove(job->saved), 0);
}

static void fixture_check(const struct fixture *fixture)
{
    static const int64_t counts[] = { 1, 3, 4 };
    struct job job = { .fixture = fixture };
    struct value_graph manifest = { 0 };
    size_t size;
    snprintf(job.path, sizeof(job.path), "%s/%s/manifest.json", test_fixtures(), fixture->name);
    char *text = text_read(job.path, &size);
    CHECK_OK(json_parse(text, size, &limits_default, &manifest, &err));
    const struct value *tensors = value_dict_get(manifest.root, "tensors");
    snprintf(job.path, sizeof(job.path), "%s/%s/ckpt", test_fixtures(), fixture->name);
    snprintf(job.saved, sizeof(job.saved), "%s/saved", test_folder);
    CHECK_OK(reshard_open(job.path, NULL, &job.checkpoint, &err));
    tensors_list(&job);
    assert_int_equal(job.count * 2, tensors->list.count);
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        memory_clear(&job);
        ranks_must(&job, counts[c], rank_loads);
        digests_check(&job, tensors, counts[c]);
    }
    if (fixture->format) {
        ranks_must(&job, 4, rank_saves);
        saved_check(&job, tensors);
    }
    for (size_t i = 0; i < job.count; i++) {
        free(job.tensors[i].memory);
        for (int r = 0; r < RANKS_MAX; r++)
            free(job.tensors[i].copies[r]);
    }
    free(job.tensors);
    reshard_close(job.checkpoint);
    value_graph_release(&manifest);
    free(text);
}

TEST(ranks_load_what_frameworks_saved_and_save_it_again)
{
    for (size_t i = 0; i < sizeof(fixtures) / sizeof(*fixtures); i++)
        fixture_check(&fixtures[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(ranks_load_what_frameworks_saved_and_save_it_again) };
    return cmocka_run_group_tests_name("joint fixtures", tests, test_folder_make, test_folder_remove);
}
