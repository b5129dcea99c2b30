/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf.h"
#include "formats/shared/parallel_words.h"

#include "formats/hf/hf_folder.h"
#include "formats/shared/kept_items.h"
#include "formats/shared/safetensors_target.h"

/* A folder that cannot be told apart, or lacks a file, is still one of this format: reading it says what is wrong. */
#define SCORE_DAMAGED 60

static int hf_probe(struct store *store, const char *name, reshard_error *err)
{
    static const int scores[] = {
        [HF_NOTHING] = 0, [HF_INDEXED] = 90, [HF_SINGLE] = 85, [HF_NUMBERED] = 80, [HF_LOOSE] = 40, [HF_DCP] = 90
    };
    struct arena arena = { 0 };
    struct hf_folder folder = { 0 };
    bool is_directory = true;
    uint64_t bytes;
    if (name[0] && !store_exists(store, name, &is_directory, &bytes))
        return 0;
    if (!is_directory && !str_ends_with(str_of(name), ".json"))
        return 0;
    reshard_status status = hf_folder_scan(store, name, &arena, &folder, err);
    bool is_damaged = status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_UNSUPPORTED || (!status && folder.missing_count);
    int score = is_damaged ? SCORE_DAMAGED : status ? 0 : scores[folder.kind];
    arena_release(&arena);
    return score;
}

static const struct format_option hf_options[] = {
    { "stem", "NAME", "", "beginning of the file names; without it adapter_model or diffusion_pytorch_model as in the source, else model" },
    { "tied", "copy|drop", "copy", "tensors that share their bytes: write each, or one and record the others" },
    { "framework", "NAME|none", "", "the format key of __metadata__; without it as the reference or the source has it, else pt" },
    { 0 },
};

static const char *const folder_entries[] = { "*.safetensors", "*.safetensors.index*.json", "model.*.index.json", KEPT_ITEMS_NAME,
                                              "sharded/", NULL };

const struct format_driver format_hf = {
    .name = "hf",
    .name_space = "hf",
    .summary = "Hugging Face folder: safetensors files, an index if there are several, side files",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HOLDS_CONFIG |
                 FORMAT_NAMES_FRAMEWORK,
    .words = rank_words,
    .options = hf_options,
    .folder_entries = folder_entries,
    .probe = hf_probe,
    .read_catalog = hf_read_catalog,
    .lay_out = hf_lay_out,
    .publish_object = st_target_publish_object,
    .commit = st_target_commit,
    .close_target = st_target_close,
};
