/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of a folder belong to a Unified Checkpoint: decided by names alone. */
#include "formats/paddle/unified.h"

#include "formats/shared/safetensors_names.h"

#include <stdlib.h>

#define SUFFIX ".safetensors"
#define RANK_DIGITS_MAX 9

const char *const uc_stems[UC_FAMILIES] = { "model", "peft_model", "optimizer", "master_weights" };

bool uc_family_is_there(const struct uc_folder *folder, enum uc_family family)
{
    const struct uc_members *members = &folder->families[family];
    return members->index.size || members->single.size || members->numbered_count || members->ranked_count;
}

bool uc_is_side_file(struct str base)
{
    static const char *const globs[] = { "scheduler.pdparams", "scaler.pdparams", "rng_state*.pth", "training_args.bin",
                                         "trainer_state.bin" };
    for (size_t i = 0; i < sizeof(globs) / sizeof(globs[0]); i++) {
        if (str_matches_glob(base, str_of(globs[i])))
            return true;
    }
    return st_name_is_side_file(base);
}

/* Digits behind a word such as tp; at least two, as ranks are printed. */
static bool unified_folder_take_rank(struct str *rest, const char *word, uint32_t *out)
{
    struct str after = *rest;
    uint64_t number = 0;
    size_t digits = 0;
    if (!st_name_take_text(&after, word))
        return false;
    while (digits < after.size && digits < RANK_DIGITS_MAX && after.data[digits] >= '0' && after.data[digits] <= '9')
        number = number * 10 + (uint64_t)(after.data[digits++] - '0');
    if (digits < 2)
        return false;
    *out = (uint32_t)number;
    *rest = (struct str){ after.data + digits, after.size - digits };
    return true;
}

/* tp00_pp00_shard00_moe00, of which any may lack, then the end of the name. */
static bool unified_folder_parse_ranks(struct str rest, struct uc_ranked *out)
{
    const struct {
        const char *word;
        uint32_t *number;
    } parts[] = { { "tp", &out->tp }, { "pp", &out->pp }, { "shard", &out->shard }, { "moe_sharding", &out->moe }, { "moe", &out->moe } };
    uint32_t rank, found = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!unified_folder_take_rank(&rest, parts[i].word, parts[i].number))
            continue;
        found++;
        st_name_take_text(&rest, "_");
    }
    if (!found || !st_name_take_text(&rest, SUFFIX))
        return false;
    return !rest.size || unified_folder_take_rank(&rest, "_shard_", &rank);
}

static void unified_folder_take_entry(struct uc_members *members, const char *stem, struct str name, struct str rest)
{
    struct uc_ranked ranked = { .name = name };
    struct str whole = rest, found;
    uint64_t file, count;
    if (!st_name_take_text(&rest, stem))
        return;
    if (str_is(rest, SUFFIX))
        members->single = name;
    else if (str_is(rest, SUFFIX ".index.json"))
        members->index = name;
    else if (st_name_parse_numbered(whole, &found, &file, &count) && str_is(found, stem))
        members->numbered[members->numbered_count++] = name;
    else if (st_name_take_text(&rest, ".") && unified_folder_parse_ranks(rest, &ranked))
        members->ranked[members->ranked_count++] = ranked;
}

static int unified_folder_compare_ranks(const void *a, const void *b)
{
    const struct uc_ranked *x = a, *y = b;
    const uint32_t numbers[][2] = { { x->tp, y->tp }, { x->pp, y->pp }, { x->moe, y->moe }, { x->shard, y->shard } };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i][0] != numbers[i][1])
            return numbers[i][0] < numbers[i][1] ? -1 : 1;
    return str_compare(x->name, y->name);
}

reshard_status uc_folder_scan(struct store *store, const char *name, struct arena *arena, struct uc_folder *out, reshard_error *err)
{
    const char *directory = store_join(arena, name, STR(""));
    if (!directory)
        return error_set_memory(err);
    out->directory = str_of(directory);
    reshard_status status = store_list(store, name, arena, &out->entries, &out->entry_count, err);
    if (status)
        return status;
    for (int f = 0; f < UC_FAMILIES; f++) {
        struct uc_members *members = &out->families[f];
        members->numbered = arena_array(arena, out->entry_count, sizeof(*members->numbered));
        members->ranked = arena_array(arena, out->entry_count, sizeof(*members->ranked));
        if (!members->numbered || !members->ranked)
            return error_set_memory(err);
    }
    for (size_t i = 0; i < out->entry_count; i++) {
        struct str path = out->entries[i].name, base = str_base_name(path);
        for (int f = 0; f < UC_FAMILIES && !out->entries[i].is_directory; f++)
            unified_folder_take_entry(&out->families[f], uc_stems[f], path, base);
    }
    for (int f = 0; f < UC_FAMILIES; f++)
        qsort(out->families[f].ranked, out->families[f].ranked_count, sizeof(struct uc_ranked), unified_folder_compare_ranks);
    return RESHARD_OK;
}
