/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/paddle.h"
#include "formats/paddle/unified_quantised.h"
#include "formats/paddle/unified_target.h"

#include "formats/shared/safetensors_target.h"

#define UC_NAMES "paddle_uc"

/* Weights alone are what Hugging Face has too: then that driver takes them, unless this one is asked for. */
static int unified_driver_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct uc_folder folder = { 0 };
    if (!store_is_directory(store, name))
        return 0;
    int score = 0;
    if (!uc_folder_scan(store, name, &arena, &folder, err)) {
        bool is_own = uc_family_is_there(&folder, UC_OPTIMIZER) || uc_family_is_there(&folder, UC_MASTERS) ||
                      uc_family_is_there(&folder, UC_PEFT);
        score = is_own ? 95 : uc_family_is_there(&folder, UC_MODEL) ? 30 : 0;
    }
    arena_release(&arena);
    return score;
}

static const char *const unified_entries[] = {
    "model*.safetensors", "peft_model*.safetensors", "optimizer*.safetensors*", "master_weights*.safetensors*",
    "*.safetensors.index.json", "scheduler.pdparams", "scaler.pdparams", "rng_state*.pth", "training_args.bin",
    "trainer_state.bin", NULL,
};

/* Names with optimizer states are dealt over the families; those of weights alone stay, all of one family. */
static const char *unified_driver_names(const struct layout_request *request)
{
    const struct catalog *catalog = request->source_catalog;
    bool has_own = request->source && request->source->driver->name_space &&
                   strcmp(request->source->driver->name_space, UC_NAMES) == 0;
    for (uint32_t i = 0; i < catalog->tensor_count && !has_own; i++)
        has_own = str_ends_with(catalog->tensors[i].key, ".moment1_0") || str_ends_with(catalog->tensors[i].key, ".w_0");
    return has_own ? UC_NAMES : "paddle";
}

const struct format_driver format_paddle_uc = {
    .name = "paddle-uc",
    .name_space = UC_NAMES,
    .target_names = unified_driver_names,
    .summary = "Paddle Unified Checkpoint: safetensors files of weights, optimizer states and master weights, with indexes",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_STATE_BY_NAME |
                 FORMAT_PADDLE_STATE,
    .options = uc_options,
    .words = uc_words,
    .folder_entries = unified_entries,
    .probe = unified_driver_probe,
    .read_catalog = uc_read_catalog,
    .view_by_parameter = uc_view_by_parameter,
    .close_source = uc_close,
    .lay_out = uc_lay_out,
    .publish_object = st_target_publish_object,
    .commit = st_target_commit,
    .close_target = st_target_close,
};
