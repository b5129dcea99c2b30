/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and objects taken out of checkpoints where they lie: the result is what Megatron Core's remove_sharded_tensors leaves. */
#include "check.h"
#include "fail_malloc.h"

#include "reshard/sharded.h"
#include "store/store.h"
#include "test_folder.h"

#include <dirent.h>
#include <stdbool.h>
#include <unistd.h>

static reshard_error err;
static char path[100];

static void take_copy(const char *fixture)
{
    char command[1300];
    snprintf(command, sizeof(command), "rm -rf '%s' && cp -rL '%s/%s' '%s' && chmod -R u+w '%s'", path, test_fixtures(), fixture, path,
             path);
    assert_int_equal(system(command), 0);
}

static reshard_status take_out(const char *prefix, reshard_remove_report *report)
{
    return reshard_remove(path, (reshard_str){ prefix, strlen(prefix) }, NULL, report, &err);
}

/* Differences of what is at path from a checkpoint; items too. */
static int differences(const char *fixture)
{
    char other[1024];
    reshard_checkpoint *a, *b;
    snprintf(other, sizeof(other), "%s/%s", test_fixtures(), fixture);
    CHECK_OK(reshard_open(path, NULL, &a, &err));
    CHECK_OK(reshard_open(other, NULL, &b, &err));
    reshard_status status = reshard_diff(a, b, NULL, NULL, NULL, NULL, &err);
    assert_true(status == RESHARD_OK || status == RESHARD_DIFFERS);
    reshard_close(a);
    reshard_close(b);
    return status ? 1 : 0;
}

static reshard_status verified(void)
{
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_checkpoint *checkpoint;
    options.deep = 1;
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    reshard_status status = reshard_verify(checkpoint, &options, NULL, NULL, NULL, &err);
    reshard_close(checkpoint);
    return status;
}

static int files_count(const char *prefix)
{
    DIR *stream = opendir(path);
    int count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(stream);
    return count;
}

static bool has_item(const char *key)
{
    reshard_checkpoint *checkpoint;
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    const bool found = reshard_item_find(checkpoint, key, strlen(key)) >= 0;
    reshard_close(checkpoint);
    return found;
}

static bool has_tensor(const char *key)
{
    reshard_checkpoint *checkpoint;
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    const bool found = reshard_tensor_find(checkpoint, key, strlen(key)) >= 0;
    reshard_close(checkpoint);
    return found;
}

TEST(what_megatron_removes_is_removed)
{
    reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
    take_copy("megatron/megatron-sem-hint/ckpt");
    assert_int_equal(files_count("typed__"), 4);
    CHECK_OK(take_out("typed", &report));
    assert_int_equal(report.tensors, 6);
    assert_int_equal(report.objects, 0);
    assert_int_equal(report.files, 4);
    assert_true(report.bytes > 1000);
    assert_int_equal(files_count("typed__"), 0);
    assert_int_equal(files_count("__"), 4);
    assert_int_equal(files_count("."), 3); /* ".", "..", ".metadata" */
    assert_int_equal(differences("megatron/megatron-sem-removed/ckpt"), 0);
    assert_int_equal(verified(), RESHARD_OK);
    CHECK_FAILS(take_out("typed", &report), RESHARD_ERR_USAGE); /* it is gone */
    assert_int_equal(report.tensors, 0);
    assert_non_null(strstr(err.message, "no tensor or object begins with 'typed'"));
}

TEST(objects_and_tensors_that_share_files_are_removed)
{
    reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
    take_copy("megatron/megatron-sem-integrity/ckpt");
    assert_int_equal(verified(), RESHARD_OK);
    CHECK_OK(take_out("obj", &report));
    assert_int_equal(report.tensors, 0);
    assert_int_equal(report.objects, 1 + 4 + 8);
    assert_int_equal(report.files, 0);
    assert_false(has_item("objA/shard_0_1"));
    assert_true(has_item("iteration"));
    assert_int_equal(verified(), RESHARD_OK); /* integrity.json has the new digest */
    assert_int_equal(files_count("integrity.json"), 1);
    CHECK_OK(take_out("layers.", &report));
    assert_int_equal(report.tensors, 2);
    assert_int_equal(verified(), RESHARD_OK);
    assert_int_equal(differences("megatron/megatron-sem-plain/ckpt"), 1);
}

/* What ranks saved, and one file each has: the last that has a file is gone with it. */
TEST(files_that_nothing_needs_are_removed)
{
    static const int64_t shape[] = { 4 };
    float values[] = { 1, 2, 3, 4 };
    reshard_shards *shards;
    reshard_state held = RESHARD_STATE_INIT;
    reshard_checkpoint *checkpoint;
    reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    const char *keys[] = { "model.w", "optimizer.w", "model.v" };
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (int i = 0; i < 3; i++) {
        const int64_t start[] = { 0 };
        reshard_shard shard = RESHARD_SHARD_INIT;
        shard.key = (reshard_str){ keys[i], strlen(keys[i]) };
        shard.dtype = "F32";
        shard.rank = 1;
        shard.global_shape = shard.extent = shape;
        shard.start = start;
        shard.data = values;
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    held.shards = shards;
    CHECK_OK(reshard_open_shards(&held, NULL, &checkpoint, &err));
    options.to = "torch-dcp";
    options.checksum = "sha256";
    options.overwrite = 1;
    take_copy("megatron/megatron-sem-plain/ckpt");
    CHECK_OK(reshard_convert(checkpoint, path, &options, NULL, NULL, &err));
    assert_int_equal(files_count("reshard.json"), 1);
    CHECK_OK(take_out("optimizer.", &report));
    assert_int_equal(report.tensors, 1);
    assert_int_equal(report.files, 0);
    assert_int_equal(files_count("reshard.json"), 0);
    assert_int_equal(verified(), RESHARD_OK);
    CHECK_OK(take_out("model.", &report));
    assert_int_equal(report.tensors, 2);
    assert_int_equal(report.files, 1);
    assert_int_equal(files_count("__"), 0);
    reshard_close(checkpoint);
    reshard_shards_free(shards);
}

TEST(other_formats_and_no_prefix_are_refused)
{
    reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
    take_copy("megatron/megatron-sem-zarr-v0.5.0/ckpt");
    CHECK_FAILS(take_out("typed", &report), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "nothing can be taken out of a checkpoint where it lies"));
    take_copy("torch-dcp/dcp-per-rank-sharded/ckpt");
    CHECK_FAILS(take_out("a", &report), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "every rank has a metadata file of its own"));
    CHECK_FAILS(take_out("", &report), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_remove(NULL, (reshard_str){ "a", 1 }, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_remove("/nowhere", (reshard_str){ "a", 1 }, NULL, NULL, &err), RESHARD_ERR_IO);
    take_copy("megatron/megatron-sem-hint/ckpt");
    CHECK_FAILS(take_out("nothing", &report), RESHARD_ERR_USAGE);
    assert_int_equal(differences("megatron/megatron-sem-hint/ckpt"), 0);
}

/* While something else writes the metadata, all stays as it is. */
TEST(what_cannot_be_replaced_stays_as_it_is)
{
    char metadata[120];
    struct store_txn *txn;
    const struct store_txn_options options = { .overwrite = true };
    take_copy("megatron/megatron-sem-integrity/ckpt");
    snprintf(metadata, sizeof(metadata), "%s/.metadata", path);
    CHECK_OK(store_txn_begin(metadata, &options, &txn, &err));
    CHECK_FAILS(take_out("typed", NULL), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "another run is writing this target"));
    store_txn_abort(txn, false);
    assert_int_equal(differences("megatron/megatron-sem-integrity/ckpt"), 0);
    assert_int_equal(verified(), RESHARD_OK);
    assert_int_equal(files_count("integrity.json"), 1);
    CHECK_OK(take_out("typed", NULL));
    assert_int_equal(verified(), RESHARD_OK);
}

/* Without memory at any moment: the old checkpoint, or the new one; and the call may be made again. */
TEST(removing_survives_every_failed_allocation)
{
    bool was_hit = true, is_old = false;
    for (unsigned long nth = 1; was_hit; nth = fail_next(nth)) {
        reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
        if (!is_old)
            take_copy("megatron/megatron-sem-integrity/ckpt");
        fail_malloc_at(nth);
        reshard_status status = take_out("typed", &report);
        was_hit = fail_malloc_was_hit();
        if (status && status != RESHARD_ERR_MEMORY)
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        assert_int_equal(status ? 0 : 6, report.tensors);
        is_old = status && has_tensor("typed.mask");
        assert_true(has_tensor("rows"));
        assert_true(status || !has_tensor("typed.mask"));
        if (status && !is_old)
            CHECK_FAILS(take_out("typed", &report), RESHARD_ERR_USAGE); /* nothing is left to take out */
    }
    assert_int_equal(verified(), RESHARD_OK);
}

/* No file but one of data is removed, whatever the metadata says. */
TEST(only_files_of_data_are_removed)
{
    char command[400];
    reshard_remove_report report = RESHARD_REMOVE_REPORT_INIT;
    take_copy("megatron/megatron-sem-hint/ckpt");
    snprintf(command, sizeof(command), "cd %s && for r in 0 1 2 3; do mv typed__${r}_1.distcp typed__${r}_1.distcq; done && "
             "sed -i 's/\\(typed__[0-3]_1.distc\\)p/\\1q/g' .metadata", path);
    assert_int_equal(system(command), 0);
    CHECK_OK(take_out("typed", &report));
    assert_int_equal(report.tensors, 6);
    assert_int_equal(report.files, 0);
    assert_int_equal(files_count("typed__"), 4);
}

static int folder_make(void **state)
{
    if (test_folder_make(state))
        return -1;
    snprintf(path, sizeof(path), "%s/ckpt", test_folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_megatron_removes_is_removed),
        cmocka_unit_test(objects_and_tensors_that_share_files_are_removed),
        cmocka_unit_test(files_that_nothing_needs_are_removed),
        cmocka_unit_test(other_formats_and_no_prefix_are_refused),
        cmocka_unit_test(what_cannot_be_replaced_stays_as_it_is),
        cmocka_unit_test(removing_survives_every_failed_allocation),
        cmocka_unit_test(only_files_of_data_are_removed),
    };
    return cmocka_run_group_tests_name("remove", tests, folder_make, test_folder_remove);
}
