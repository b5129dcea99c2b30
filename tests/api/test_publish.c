/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every writable format, written in parts and by several processes, holds the bytes of one run: one conversion is planned once; its plan is
 * split and the parts run in any order; objects are published in reverse; commit comes last.
 */
#include "convert/conversion.h"
#include "test_folder.h"

#include "check.h"

#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OBJECTS_MAX 512

static reshard_error err;

static const struct format_case {
    const char *format, *fixture, *layout, *option;
} cases[] = {
    { "safetensors", "torch-dcp/dcp-fsdp2-4", NULL, NULL },
    { "hf", "megatron/megatron-dense-dist-tp2pp2", NULL, NULL },
    { "torch", "megatron/megatron-optim-dense-legacy-tp1", NULL, NULL },
    { "torch", "torch-dcp/dcp-fsdp2-4", NULL, NULL },
    { "torch-dcp", "torch-dcp/dcp-fsdp2-4", "ranks=3", NULL },
    { "torch-dcp", "megatron/megatron-optim-dense-full-tp2dp2", "ranks=4", NULL },
    { "atorch", "atorch-fsdp/atorch-w3", "ranks=2", NULL },
    { "atorch", "atorch-fsdp/atorch-moe", NULL, NULL },
    { "megatron", "megatron/megatron-moe-gmm-dist-ep2", "tp=2,ep=2", NULL },
    { "megatron", "megatron/megatron-optim-dense-legacy-tp2dp2", "tp=1,dp=4", NULL },
    { "megatron", "megatron/megatron-optim-old-modelspace-v0.14.0-dp2", "pp=2,dp=2", NULL },
    { "torch_dist", "megatron/megatron-optim-dense-legacy-tp2dp2", "tp=2,dp=2", NULL },
    { "torch_dist", "megatron/megatron-optim-dense-full-tp2dp2", "tp=1,dp=4", "optimizer=dp_reshardable" },
    { "torch_dist", "megatron/megatron-sem-integrity", NULL, NULL },
    { "torch_dcp", "megatron/megatron-dense-dist-tp2pp2", NULL, NULL },
    { "fsdp_dtensor", "megatron/megatron-dense-dist-tp2pp2", NULL, NULL },
    { "fsdp-ranks", "torch-dcp/dcp-fsdp2-4", "ranks=3", NULL },
    { "fsdp-ranks", "verl/verl-hsdp", NULL, NULL },
    { "paddle", "paddle/paddle-strategy-tp2", NULL, NULL },
    { "paddle-flex", "torch-dcp/dcp-fsdp2-4", "tp=2,dp=2", NULL },
    { "paddle-flex", "paddle/paddle-strategy-tp2", "sharding=2,stage=1v2", "protocol=5" },
    { "paddle-uc", "paddle/paddle-uc-tp1", "tp=2", NULL },
    { "zarr", "torch-dcp/dcp-fsdp2-4", NULL, "chunks=3" },
    { "zarr", "torch-dcp/dcp-fsdp2-4", NULL, "codec=zstd" },
    { "zarr", "megatron/megatron-core-zarr-v0.8.0", NULL, NULL },
    { "npz", "bytecheckpoint/bytecheckpoint-fsdp2", NULL, NULL },
    { "npy", "bytecheckpoint/bytecheckpoint-fsdp2", NULL, NULL },
};

/* ---- folders ---- */

static void file_read(const char *folder, const char *name, struct buffer *out)
{
    char path[4096];
    uint8_t window[65536];
    size_t got;
    snprintf(path, sizeof(path), "%s%s%s", folder, *name ? "/" : "", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    while ((got = fread(window, 1, sizeof(window), file)) > 0)
        buffer_append(out, window, got);
    fclose(file);
}

static void targets_compare(const struct conversion *conversion, const char *a, const char *b, const char *what)
{
    const struct catalog *catalog = conversion->target.catalog;
    bool is_folder = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    for (uint32_t i = 0; i < catalog->object_count; i++) {
        struct buffer bytes[2] = { { 0 } };
        const char *name = is_folder ? catalog->objects[i].name.data : "";
        file_read(a, name, &bytes[0]);
        file_read(b, name, &bytes[1]);
        assert_true(catalog->objects[i].packing || bytes[0].size == catalog->objects[i].bytes);
        if (bytes[0].size != bytes[1].size || memcmp(bytes[0].data, bytes[1].data, bytes[0].size) != 0)
            fail_msg("%s to %s, %s: '%s' differs", conversion->source->path, conversion->target.driver->name, what, name);
        buffer_release(&bytes[0]);
        buffer_release(&bytes[1]);
    }
}

/* ---- a run in parts ---- */

struct parts_run {
    struct conversion *conversion;
    struct store_object *objects[OBJECTS_MAX];
    uint32_t *crcs; /* shared with processes that are forked */
    uint32_t count; /* of parts */
    struct publish_job job;
};

static reshard_status part_run(const struct parts_run *run, uint32_t number, uint32_t *crcs)
{
    struct engine_source source = checkpoint_engine_source(run->conversion->source);
    struct plan *part;
    reshard_status status = plan_split(run->conversion->plan, number, run->count, &part, &err);
    if (status)
        return status;
    status = engine_run(part, &source, (struct store_object **)run->objects, crcs, NULL, &run->conversion->engine, &err);
    plan_free(part);
    return status;
}

/* Publishes the objects whose numbers leave `rest`, backwards. */
static reshard_status objects_publish(const struct parts_run *run, uint32_t modulus, uint32_t rest)
{
    const struct target *target = &run->conversion->target;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = target->catalog->object_count; i-- > 0 && !status;)
        if (i % modulus == rest)
            status = target->driver->publish_object(&run->job, i, &err);
    return status;
}

static void work_here(const struct parts_run *run)
{
    for (uint32_t i = run->count; i-- > 0;)
        CHECK_OK(part_run(run, (i + 1) % run->count, run->crcs));
    CHECK_OK(engine_pack(run->conversion->target.catalog, (struct store_object **)run->objects, 0, &run->conversion->engine, &err));
    CHECK_OK(objects_publish(run, 1, 0));
}

static void children_wait(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int state;
        assert_true(wait(&state) > 0);
        assert_true(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
}

/* A process for each part, which hands over its CRCs; then two that publish. */
static void work_in_processes(const struct parts_run *run)
{
    uint32_t chunk_count = run->conversion->target.catalog->chunk_count;
    size_t bytes = ((size_t)run->count * chunk_count + 1) * sizeof(uint32_t);
    uint32_t *handed = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(handed != MAP_FAILED);
    fflush(NULL); /* exit, not _exit, so that lines that ran are counted */
    for (uint32_t i = 0; i < run->count; i++)
        if (fork() == 0)
            exit(part_run(run, i, handed + (size_t)i * chunk_count) ? 1 : 0);
    children_wait(run->count);
    for (uint32_t i = 0; i < run->count; i++)
        for (uint32_t c = 0; c < chunk_count; c++)
            run->crcs[c] += handed[(size_t)i * chunk_count + c];
    munmap(handed, bytes);
    CHECK_OK(engine_pack(run->conversion->target.catalog, (struct store_object **)run->objects, 0, &run->conversion->engine, &err));
    for (uint32_t i = 0; i < 2; i++)
        if (fork() == 0)
            exit(objects_publish(run, 2, 1 - i) ? 1 : 0);
    children_wait(2);
}

static void run_in_parts(struct conversion *conversion, const char *path, uint32_t count, void (*work_on)(const struct parts_run *run))
{
    const struct catalog *catalog = conversion->target.catalog;
    bool is_folder = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    struct store_txn_options options = { .is_directory = is_folder, .no_sync = true };
    struct parts_run run = { .conversion = conversion, .count = count };
    struct store_txn *txn;
    assert_true(catalog->object_count <= OBJECTS_MAX);
    run.crcs = calloc((size_t)catalog->chunk_count + 1, sizeof(*run.crcs));
    run.job = (struct publish_job){ .target = &conversion->target,
                                    .source = conversion->source->source,
                                    .objects = run.objects,
                                    .chunk_crcs = run.crcs,
                                    .request = &conversion->request };
    CHECK_OK(store_txn_begin(path, &options, &txn, &err));
    for (uint32_t i = 0; i < catalog->object_count; i++)
        CHECK_OK(store_txn_create(txn, is_folder ? catalog->objects[i].name.data : "", catalog->objects[i].bytes, &run.objects[i], &err));
    work_on(&run);
    if (conversion->target.driver->commit)
        CHECK_OK(conversion->target.driver->commit(&run.job, &err));
    for (uint32_t i = 0; i < catalog->object_count; i++)
        store_object_close(run.objects[i]);
    CHECK_OK(store_txn_commit(txn, &err));
    free(run.crcs);
}

/* ---- all formats ---- */

static void case_check(const struct format_case *one)
{
    char fixture[1024], whole[64], parts[64];
    const char *const format_options[] = { one->option, NULL };
    struct checkpoint_options open = { .open = { .limits = limits_default, .iteration = -1 } };
    struct conversion_options options = { .to = one->format,
                                          .layout = one->layout,
                                          .open = open,
                                          .format_options = one->option ? format_options : NULL,
                                          .max_shard_bytes = strcmp(one->format, "hf") == 0 ? 20000 : -1,
                                          .no_sync = true };
    struct engine_options engine = { .memory_bytes = 1 << 20, .threads = 2, .no_sync = true };
    struct checkpoint *source;
    struct conversion conversion;
    snprintf(fixture, sizeof(fixture), "%s/%s/ckpt", getenv("RESHARD_FIXTURES"), one->fixture);
    snprintf(whole, sizeof(whole), "%s/whole", test_folder);
    snprintf(parts, sizeof(parts), "%s/parts", test_folder);
    CHECK_OK(checkpoint_open(fixture, &open, &source, &err));
    CHECK_OK(conversion_prepare(source, whole, &options, &engine, CONVERSION_TO_RUN, &conversion, &err));
    CHECK_OK(conversion_run(&conversion, whole, &err));
    for (uint32_t count = 2; count <= 5; count++) {
        run_in_parts(&conversion, parts, count, work_here);
        targets_compare(&conversion, whole, parts, "in parts");
        test_tree_remove(parts);
    }
    run_in_parts(&conversion, parts, 3, work_in_processes);
    targets_compare(&conversion, whole, parts, "by processes");
    test_tree_remove(parts);
    test_tree_remove(whole);
    conversion_release(&conversion);
    checkpoint_close(source);
}

TEST(parts_and_processes_make_the_bytes_of_one_run)
{
    assert_int_equal(test_folder_make(state), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        case_check(&cases[i]);
    test_folder_remove(state);
}

TEST(no_writable_format_is_left_out)
{
    for (int i = 0; format_driver_at(i); i++) {
        const struct format_driver *driver = format_driver_at(i);
        bool is_here = false;
        for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++)
            is_here |= strcmp(cases[c].format, driver->name) == 0;
        if (driver->abilities & FORMAT_WRITES && !is_here)
            fail_msg("%s has no case", driver->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_and_processes_make_the_bytes_of_one_run),
        cmocka_unit_test(no_writable_format_is_left_out),
    };
    return cmocka_run_group_tests_name("publish", tests, NULL, NULL);
}
