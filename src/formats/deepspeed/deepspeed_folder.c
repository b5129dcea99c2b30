/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing says how many files there should be: of so many ranks all must be there, and no others, which an earlier run may have left. */
#include "formats/deepspeed/deepspeed_source.h"

#include <inttypes.h>

static bool folder_skip_text(struct str *rest, const char *text)
{
    size_t size = strlen(text);
    if (!str_starts_with(*rest, text))
        return false;
    *rest = (struct str){ rest->data + size, rest->size - size };
    return true;
}

/* Digits, with zeros in front or not. */
static bool folder_skip_number(struct str *rest, uint64_t *out)
{
    size_t zeros = 0, end = 0;
    while (end < rest->size && rest->data[end] >= '0' && rest->data[end] <= '9')
        end++;
    while (zeros + 1 < end && rest->data[zeros] == '0')
        zeros++;
    if (!end || !str_to_u64((struct str){ rest->data + zeros, end - zeros }, out))
        return false;
    *rest = (struct str){ rest->data + end, rest->size - end };
    return true;
}

enum deepspeed_file_kind deepspeed_file_of(struct str base, uint64_t *rank, uint64_t *part)
{
    struct str rest = base;
    *rank = *part = 0;
    if (!str_ends_with(base, "_states.pt"))
        return DEEPSPEED_BESIDE;
    if (str_starts_with(base, "expp_rank_") || str_starts_with(base, "expert_"))
        return DEEPSPEED_EXPERT;
    if (str_starts_with(base, "layer_"))
        return memmem(base.data, base.size, "_expert_", 8) ? DEEPSPEED_EXPERT : DEEPSPEED_PIPELINE;
    bool is_typed = folder_skip_text(&rest, "bf16_") || folder_skip_text(&rest, "fp16_");
    bool has_rank = folder_skip_text(&rest, "zero_pp_rank_");
    if ((has_rank && (!folder_skip_number(&rest, rank) || !folder_skip_text(&rest, "_"))) || !folder_skip_text(&rest, "mp_rank_") ||
        !folder_skip_number(&rest, part))
        return DEEPSPEED_BESIDE;
    if (str_is(rest, "_optim_states.pt") && has_rank)
        return DEEPSPEED_OPTIMIZER;
    if (!str_is(rest, "_model_states.pt") || is_typed)
        return DEEPSPEED_BESIDE;
    return has_rank ? DEEPSPEED_MODEL_OF_RANK : DEEPSPEED_MODEL;
}

struct folder_listing {
    const struct store_entry *entries;
    size_t count;
    bool is_universal;
    uint32_t counts[DEEPSPEED_BESIDE + 1];      /* of the first part, by kind */
    uint32_t part_counts[DEEPSPEED_BESIDE + 1]; /* of rank 0, beyond it */
};

/* What no run of data-parallel ranks alone has. */
static reshard_status folder_refuse(const struct store_entry *entry, enum deepspeed_file_kind kind, reshard_error *err)
{
    static const char *const what[] = { [DEEPSPEED_PIPELINE] = "a layer of a pipeline", [DEEPSPEED_EXPERT] = "of experts" };
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is %s: such checkpoints of DeepSpeed are not read",
              STR_ARG(str_base_name(entry->name)), kind < DEEPSPEED_PIPELINE ? "one of several tensor-parallel parts" : what[kind]);
    error_object(err, "%.*s", STR_ARG(str_base_name(entry->name)));
    error_hint(err, "what ds_to_universal.py makes of it is read, and what data-parallel ranks alone write, ZeRO 0 to 3");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status folder_count(struct folder_listing *listing, reshard_error *err)
{
    for (size_t i = 0; i < listing->count; i++) {
        uint64_t rank, part;
        enum deepspeed_file_kind kind = deepspeed_file_of(str_base_name(listing->entries[i].name), &rank, &part);
        if (listing->entries[i].is_directory || kind == DEEPSPEED_BESIDE)
            continue;
        if (!listing->is_universal && (part || kind >= DEEPSPEED_PIPELINE))
            return folder_refuse(&listing->entries[i], kind, err);
        listing->counts[kind] += !part;
        listing->part_counts[kind] += part && !rank;
    }
    return RESHARD_OK;
}

/* The files of a kind by rank, or those of rank 0 by part, from 1 on. */
static reshard_status folder_take(const struct folder_listing *listing, enum deepspeed_file_kind kind, bool by_part, struct arena *arena,
                                  const struct store_entry ***out, reshard_error *err)
{
    uint32_t count = by_part ? listing->part_counts[kind] : listing->counts[kind];
    *out = count ? arena_zalloc(arena, (size_t)count * sizeof(**out)) : NULL;
    if (count && !*out)
        return error_set_memory(err);
    for (size_t i = 0; i < listing->count; i++) {
        uint64_t rank, part;
        const struct store_entry *entry = &listing->entries[i];
        struct str base = str_base_name(entry->name);
        if (entry->is_directory || deepspeed_file_of(base, &rank, &part) != kind || (by_part ? rank || !part : part))
            continue;
        uint64_t place = by_part ? part - 1 : rank;
        const char *wrong = place >= count ? "of so many ranks one is missing, or this file was left by another run" : NULL;
        if (!wrong && (*out)[place])
            wrong = "another file is of the same rank";
        if (wrong) {
            error_set(err, RESHARD_ERR_FORMAT, "'%.*s', one of %" PRIu32 " such files: %s", STR_ARG(base), count, wrong);
            error_object(err, "%.*s", STR_ARG(base));
            return RESHARD_ERR_FORMAT;
        }
        (*out)[place] = entry;
    }
    return RESHARD_OK;
}

static reshard_status folder_fill(struct folder_listing *listing, struct deepspeed_folder *out, reshard_error *err)
{
    reshard_status status = folder_count(listing, err);
    if (status)
        return status;
    const uint32_t *counts = listing->counts;
    if (counts[DEEPSPEED_MODEL] && counts[DEEPSPEED_MODEL_OF_RANK])
        return error_set(err, RESHARD_ERR_FORMAT, "there are model files of one rank and of all: two checkpoints lie in this folder");
    out->is_split = counts[DEEPSPEED_MODEL_OF_RANK] > 0;
    enum deepspeed_file_kind kind = out->is_split ? DEEPSPEED_MODEL_OF_RANK : DEEPSPEED_MODEL;
    if (!counts[kind])
        return error_set(err, RESHARD_ERR_FORMAT, "there is no file *_model_states.pt, which says what the parameters are");
    out->model_count = counts[kind];
    out->part_count = listing->part_counts[kind];
    status = folder_take(listing, kind, false, &out->arena, &out->models, err);
    if (!status)
        status = folder_take(listing, kind, true, &out->arena, &out->parts, err);
    if (status || listing->is_universal)
        return status;
    out->optimizer_count = counts[DEEPSPEED_OPTIMIZER];
    status = folder_take(listing, DEEPSPEED_OPTIMIZER, false, &out->arena, &out->optimizers, err);
    if (!status && out->is_split && out->model_count != out->optimizer_count)
        status = error_set(err, RESHARD_ERR_FORMAT, "%" PRIu32 " files *_model_states.pt and %" PRIu32
                           " files *_optim_states.pt: at ZeRO 3 each rank has one of both", out->model_count, out->optimizer_count);
    return status;
}

reshard_status deepspeed_folder_read(const struct source *source, bool is_universal, struct deepspeed_folder *out, reshard_error *err)
{
    struct folder_listing listing = { .is_universal = is_universal };
    struct store_entry *entries;
    *out = (struct deepspeed_folder){ 0 };
    reshard_status status = store_list(source->store, source->name, &out->arena, &entries, &listing.count, err);
    listing.entries = status ? NULL : entries;
    return status ? status : folder_fill(&listing, out, err);
}

void deepspeed_folder_release(struct deepspeed_folder *folder)
{
    arena_release(&folder->arena);
}
