/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation fails once, those from arenas by themselves, while a checkpoint of each format is opened and planned into another layout:
 * that is told, and nothing leaks. */
#include "check.h"

#include "fail_malloc.h"

#include "reshard/reshard.h"

#include <unistd.h>

static const struct {
    const char *source, *to, *layout, *option;
} cases[] = {
    { "safetensors/safetensors-hf-sharded/ckpt", "hf", NULL, NULL },
    { "torch-file/torch-file-training/ckpt.pt", "torch", NULL, NULL },
    { "torch-dcp/dcp-fsdp2-4/ckpt", "torch-dcp", "ranks=3", NULL },
    { "torch-file/torch-file-fsdp2-ranks/ckpt", "safetensors", NULL, NULL },
    { "verl/verl-fsdp1/ckpt", "fsdp-ranks", "ranks=3", NULL },
    { "verl/verl-fsdp1-shardedtensor/ckpt", "torch", NULL, NULL },
    { "atorch-fsdp/atorch-w2/ckpt", "atorch", "ranks=3", NULL },
    { "atorch-fsdp/atorch-v0/ckpt", "atorch", NULL, NULL },
    { "bytecheckpoint/bytecheckpoint-fsdp2/ckpt", "torch-dcp", NULL, NULL },
    { "deepspeed/ds-zero2-bf16/ckpt", "torch-dcp", NULL, NULL },
    { "deepspeed/ds-zero3-fp32/ckpt", "hf", NULL, NULL },
    { "deepspeed/ds-uc-zero2-bf16/ckpt", "torch", NULL, NULL },
    { "deepspeed/ds-uc-zero3-fp32/ckpt", "hf", NULL, NULL },
    { "gguf/gguf-big/ckpt/model.gguf", "torch-dcp", NULL, NULL },
    { "gguf/gguf-split/ckpt", "hf", NULL, NULL },
    { "numpy/npz-compressed/ckpt.npz", "npy", NULL, NULL },
    { "numpy/npy/ckpt", "npz", NULL, NULL },
    { "torch_checkpointing/torch-checkpointing-odd/ckpt", "torch-dcp", NULL, NULL },
    { "torchsnapshot/torchsnapshot-ranks/ckpt", "torch-dcp", NULL, NULL },
    { "torchsnapshot/torchsnapshot-single/ckpt", "torch", NULL, NULL },
    { "orbax/orbax-ocdbt-zarr3/ckpt", "hf", NULL, NULL },
    { "orbax/orbax-plain/ckpt", "torch", NULL, NULL },
    { "zarr/zarr2-zip/ckpt.zip", "zarr", NULL, "zarr-format=3" },
    { "megatron/megatron-repad-legacy-tp1/ckpt", "megatron", "tp=2", NULL },
    { "megatron/megatron-moe-gmm-legacy-tp1/ckpt", "fsdp_dtensor", NULL, NULL },
    { "megatron/megatron-optim-dense-dpr-dp2/ckpt", "torch_dist", "tp=2", "optimizer=fully_reshardable" },
    { "megatron/megatron-optim-dense-full-tp2dp2/ckpt", "torch_dist", NULL, "optimizer=dp_reshardable" },
    { "megatron/megatron-sem-zarr-v0.5.0/ckpt", "zarr", NULL, "flavour=megatron" },
    { "paddle/paddle-fc-2ranks-uneven/ckpt", "paddle-flex", "ranks=3", NULL },
    { "paddle/paddle-uc-tp2/ckpt", "paddle-uc", NULL, NULL },
    { "paddle/paddle331-params-p4/ckpt.pdparams", "paddle", NULL, NULL },
    { "paddle/paddle331-mesh2/ckpt", "paddle", NULL, NULL },
};

static reshard_status plan(reshard_checkpoint *checkpoint, size_t number, reshard_error *err)
{
    const char *const format_options[] = { cases[number].option, NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *target = NULL;
    options.to = cases[number].to;
    options.layout = cases[number].layout;
    options.format_options = format_options;
    run.threads = 1;
    reshard_status status = reshard_preview(checkpoint, "/tmp/reshard-nothing", &options, &run, &report, &target, err);
    reshard_report_release(&report);
    reshard_close(target);
    return status;
}

/* Opens the source, or plans what is open. What went well without some memory is as good as any other. */
static unsigned long fail_step(size_t number, const char *source, reshard_checkpoint *checkpoint, void (*fail_at)(unsigned long nth),
                               bool may_do_with_less)
{
    unsigned long nth = 0;
    bool was_hit;
    do {
        reshard_error err = { 0 };
        reshard_checkpoint *opened = NULL;
        fail_at(nth = fail_next(nth));
        reshard_status status = checkpoint ? plan(checkpoint, number, &err) : reshard_open(source, NULL, &opened, &err);
        was_hit = fail_malloc_was_hit();
        bool is_told = status == RESHARD_ERR_MEMORY || (!status && may_do_with_less);
        if (was_hit ? !is_told : status != RESHARD_OK)
            fail_msg("%s, allocation %lu: status %d: %s", cases[number].source, nth, status, err.message);
        if (was_hit && opened)
            CHECK_OK(plan(opened, number, &err));
        reshard_close(opened);
    } while (was_hit);
    return nth - 1;
}

static void fail_each(size_t number, void (*fail_at)(unsigned long nth), bool may_do_with_less)
{
    char source[4096];
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = { 0 };
    snprintf(source, sizeof(source), "%s/%s", test_fixtures(), cases[number].source);
    unsigned long to_open = fail_step(number, source, NULL, fail_at, may_do_with_less), to_plan;
    CHECK_OK(reshard_open(source, NULL, &checkpoint, &err));
    to_plan = fail_step(number, source, checkpoint, fail_at, may_do_with_less);
    reshard_close(checkpoint);
    print_message("# %s: %lu and %lu allocations\n", cases[number].source, to_open, to_plan);
}

TEST(without_memory_in_arenas_no_format_goes_on)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fail_each(i, fail_arena_at, false);
}

/* Arenas, and what is kept for the next time only, do with less. */
TEST(without_memory_no_format_goes_wrong)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fail_each(i, fail_malloc_at, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_memory_in_arenas_no_format_goes_on),
        cmocka_unit_test(without_memory_no_format_goes_wrong),
    };
    return cmocka_run_group_tests_name("format_faults", tests, NULL, NULL);
}
