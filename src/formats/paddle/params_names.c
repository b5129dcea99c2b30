/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the files that ranks write: model_state.tp00_pp01.pdparams, optimizer_shard02.pdopt, model_state-00001-of-00002.pdparams. */
#include "formats/paddle/params_family.h"

#include "formats/shared/safetensors_names.h"

#define RANK_MAX_DIGITS 9

static bool names_take_number(struct str *rest, const char *word, int32_t *out)
{
    struct str after = *rest;
    size_t digits = 0;
    int32_t number = 0;
    if (!st_name_take_text(&after, word))
        return false;
    for (; digits < after.size && digits < RANK_MAX_DIGITS && after.data[digits] >= '0' && after.data[digits] <= '9'; digits++)
        number = number * 10 + (after.data[digits] - '0');
    if (!digits)
        return false;
    *out = number;
    *rest = (struct str){ after.data + digits, after.size - digits };
    return true;
}

/* tp00_pp00_shard00_moe00: any of them, in any order, each once. */
static bool names_take_ranks(struct str *rest, struct family_ranks *out)
{
    struct family_ranks ranks = { -1, -1, -1, -1, false };
    const struct {
        const char *word;
        int32_t *number;
        bool is_spread;
    } parts[] = { { "tp", &ranks.tp, false },
                  { "pp", &ranks.pp, false },
                  { "shard", &ranks.shard, false },
                  { "moe_sharding", &ranks.ep, true },
                  { "moe", &ranks.ep, false },
                  { "ep", &ranks.ep, true } }; /* in model_meta.json */
    bool found = true;
    while (found) {
        found = false;
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !found; i++) {
            found = *parts[i].number < 0 && names_take_number(rest, parts[i].word, parts[i].number);
            ranks.is_spread |= found && parts[i].is_spread;
        }
        if (found)
            st_name_take_text(rest, "_");
    }
    *out = ranks;
    return ranks.tp >= 0 || ranks.pp >= 0 || ranks.shard >= 0 || ranks.ep >= 0;
}

bool family_read_ranks(struct str text, struct family_ranks *out)
{
    return names_take_ranks(&text, out) && !text.size;
}

/* -00001-of-00002 */
static bool names_take_part(struct str *rest, int32_t *part, int32_t *count)
{
    struct str after = *rest;
    if (!names_take_number(&after, "-", part) || !names_take_number(&after, "-of-", count) || *part < 1 || *part > *count) {
        *part = *count = 0;
        return false;
    }
    *rest = after;
    return true;
}

bool family_read_name(struct str base, bool is_group, struct family_file *out)
{
    static const struct {
        const char *stem, *extension;
        enum family_role role;
        bool is_group;
    } kinds[] = { { "model_state", ".pdparams", FAMILY_MODEL, false },
                  { "lora_model_state", ".pdparams", FAMILY_MODEL, false }, /* weights of adapters */
                  { "vera_model_state", ".pdparams", FAMILY_MODEL, false },
                  { "lokr_model_state", ".pdparams", FAMILY_MODEL, false },
                  { "prefix_model_state", ".pdparams", FAMILY_MODEL, false },
                  { "optimizer", ".pdopt", FAMILY_OPTIMIZER, false },
                  { "master_weights", ".pdparams", FAMILY_MASTER, false },
                  { "master_weights", ".pdopt", FAMILY_MASTER, false },
                  { "model", ".pdmodel", FAMILY_MODEL, true },
                  { "model", ".pdopt", FAMILY_OPTIMIZER, true } };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct str rest = base;
        out->ranks = (struct family_ranks){ -1, -1, -1, -1, false };
        out->role = kinds[i].role;
        if ((kinds[i].is_group && !is_group) || !st_name_take_text(&rest, kinds[i].stem))
            continue;
        struct str behind = rest;
        if ((st_name_take_text(&behind, ".") || st_name_take_text(&behind, "_")) && names_take_ranks(&behind, &out->ranks))
            rest = behind;
        names_take_part(&rest, &out->part, &out->part_count);
        if (str_is(rest, kinds[i].extension))
            return true;
    }
    return false;
}
