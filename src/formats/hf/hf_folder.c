/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_folder.h"

#include "formats/shared/safetensors_names.h"

#include <inttypes.h>

#define SUFFIX ".safetensors"

/* Where a folder holds several models, these names are the model. */
static const char *const preferred_stems[] = { "model", "diffusion_pytorch_model", "adapter_model", "pytorch_model" };

#define PREFERRED_COUNT (sizeof(preferred_stems) / sizeof(preferred_stems[0]))

/* ---- names ---- */

bool hf_parse_shard_name(struct str base, uint64_t *plan, uint64_t *file, uint64_t *file_count)
{
    return st_name_take_text(&base, "shard-") && st_name_take_number(&base, plan) && st_name_take_text(&base, "-model-") &&
           st_name_take_number(&base, file) && st_name_take_text(&base, "-of-") && st_name_take_number(&base, file_count) &&
           str_is(base, SUFFIX);
}

/* ---- choosing ---- */

/* The one of several names that starts with a preferred stem and goes on with tail; NULL if none does. */
static const struct str *find_preferred(const struct str *names, size_t count, const char *tail)
{
    for (size_t s = 0; s < PREFERRED_COUNT; s++) {
        for (size_t i = 0; i < count; i++) {
            struct str rest = str_base_name(names[i]);
            if (st_name_take_text(&rest, preferred_stems[s]) && str_is(rest, tail))
                return &names[i];
        }
    }
    return NULL;
}

static reshard_status choose_index(struct hf_folder *folder, const struct str *indexes, size_t count, reshard_error *err)
{
    const struct str *chosen = count == 1 ? &indexes[0] : find_preferred(indexes, count, SUFFIX ".index.json");
    if (!chosen) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "%zu index files, such as '%.*s' and '%.*s': which model is meant?", count,
                  STR_ARG(indexes[0]), STR_ARG(indexes[1]));
        error_hint(err, "open one of them by its own path");
        return RESHARD_ERR_UNSUPPORTED;
    }
    folder->kind = HF_INDEXED;
    folder->index = *chosen;
    if (count > 1)
        folder->other_index = indexes[chosen == &indexes[0] ? 1 : 0];
    return RESHARD_OK;
}

/* Whether all files are of one set -0000i-of-0000N, and what it lacks. Names are sorted, so the numbers must come in their order. */
static bool check_numbered(struct hf_folder *folder)
{
    struct str first_stem = { 0 }, stem;
    uint64_t expected = 1, missing = 0, first_missing = 0, total = 0;
    for (size_t i = 0; i < folder->file_count; i++) {
        uint64_t number, own_total;
        if (!st_name_parse_numbered(str_base_name(folder->files[i]), &stem, &number, &own_total))
            return false;
        if (i == 0) {
            first_stem = stem;
            total = own_total;
        }
        if (!str_equal(stem, first_stem) || own_total != total || number < expected || number > total)
            return false;
        first_missing = !missing && number > expected ? expected : first_missing;
        missing += number - expected;
        expected = number + 1;
    }
    if (!missing && expected <= total)
        first_missing = expected;
    folder->numbered_total = total;
    folder->missing_first = first_missing;
    folder->missing_count = missing + (total + 1 - expected);
    return true;
}

/* Among files that are no one set: one whose set -0000i-of-0000N is not there as a whole. Names are sorted. */
static struct str find_incomplete(const struct hf_folder *folder)
{
    struct str stem = { 0 }, last = { 0 };
    uint64_t expected = 1, wanted_total = 0; /* the number that comes next in the set at hand; behind wanted_total: none is open */
    for (size_t i = 0; i < folder->file_count; i++) {
        struct str own;
        uint64_t number, total;
        if (!st_name_parse_numbered(str_base_name(folder->files[i]), &own, &number, &total))
            continue;
        bool goes_on = str_equal(own, stem) && total == wanted_total;
        if (!goes_on && expected <= wanted_total)
            return last;
        if (number != (goes_on ? expected : 1))
            return folder->files[i];
        stem = own;
        last = folder->files[i];
        wanted_total = total;
        expected = number + 1;
    }
    return expected <= wanted_total ? last : (struct str){ 0 };
}

static void choose_files(struct hf_folder *folder)
{
    const struct str *preferred = find_preferred(folder->files, folder->file_count, SUFFIX);
    struct str stem;
    uint64_t number, total;
    if (preferred || (folder->file_count == 1 && !st_name_parse_numbered(str_base_name(folder->files[0]), &stem, &number, &total))) {
        folder->files[0] = preferred ? *preferred : folder->files[0];
        folder->file_count = 1;
        folder->kind = HF_SINGLE;
        return;
    }
    folder->kind = check_numbered(folder) ? HF_NUMBERED : HF_LOOSE;
    if (folder->kind == HF_LOOSE)
        folder->incomplete = find_incomplete(folder);
}

/* ---- scanning ---- */

/* Another format's metadata file says better what the safetensors files beside it are. */
static bool is_foreign_metadata(struct str base)
{
    return str_ends_with(base, ".metadata");
}

static void sort_files(const struct hf_folder *folder, struct str *whole, size_t *whole_count, struct str *shards, size_t *shard_count,
                       struct str *indexes, size_t *index_count, bool *has_foreign)
{
    uint64_t plan, file, total;
    for (size_t i = 0; i < folder->entry_count; i++) {
        struct str name = folder->entries[i].name, base = str_base_name(name);
        if (folder->entries[i].is_directory)
            continue;
        if (hf_parse_shard_name(base, &plan, &file, &total))
            shards[(*shard_count)++] = name;
        else if (str_ends_with(base, SUFFIX))
            whole[(*whole_count)++] = name;
        else if (st_name_is_index(base))
            indexes[(*index_count)++] = name;
        *has_foreign = *has_foreign || is_foreign_metadata(base);
    }
}

static reshard_status hf_folder_choose(struct hf_folder *folder, struct arena *arena, reshard_error *err)
{
    size_t count = folder->entry_count + 1, whole_count = 0, shard_count = 0, index_count = 0;
    bool has_foreign = false;
    struct str *whole = arena_array(arena, count, sizeof(*whole)), *shards = arena_array(arena, count, sizeof(*shards));
    struct str *indexes = arena_array(arena, count, sizeof(*indexes));
    if (!whole || !shards || !indexes)
        return error_set_memory(err);
    sort_files(folder, whole, &whole_count, shards, &shard_count, indexes, &index_count, &has_foreign);
    if (folder->index.size)
        return RESHARD_OK;
    if (index_count)
        return choose_index(folder, indexes, index_count, err);
    if (has_foreign)
        return RESHARD_OK;
    if (whole_count) {
        folder->files = whole;
        folder->file_count = whole_count;
        choose_files(folder);
        return RESHARD_OK;
    }
    if (shard_count) {
        folder->kind = HF_DCP;
        folder->files = shards;
        folder->file_count = shard_count;
    }
    return RESHARD_OK;
}

static bool is_index_file(struct store *store, struct str name)
{
    return st_name_is_index(name) && store_is_file(store, name.data);
}

reshard_status hf_folder_scan(struct store *store, const char *name, struct arena *arena, struct hf_folder *out, reshard_error *err)
{
    struct hf_folder folder = { 0 };
    struct str path = str_of(name);
    if (is_index_file(store, path)) {
        folder.kind = HF_INDEXED;
        if (!arena_str(arena, path, &folder.index))
            return error_set_memory(err);
        path = str_without_slashes(str_folder(path));
    }
    const char *listed = arena_copy(arena, path.data, path.size), *directory = listed ? store_join(arena, listed, STR("")) : NULL;
    if (!directory)
        return error_set_memory(err);
    folder.directory = str_of(directory);
    reshard_status status = store_list(store, listed, arena, &folder.entries, &folder.entry_count, err);
    if (status)
        return status;
    status = hf_folder_choose(&folder, arena, err);
    if (!status)
        *out = folder;
    return status;
}
