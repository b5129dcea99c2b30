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
    struct family_ranks ranks = { -1, -1, -1, -1 };
    const struct {
        const char *word;
        int32_t *number;
    } parts[] = { { "tp", &ranks.tp },
                  { "pp", &ranks.pp },
                  { "shard", &ranks.shard },
                  { "moe_sharding", &ranks.ep }, /* the trainer's word for the rank of expert parallelism, beside sharding */
                  { "moe", &ranks.ep },
                  { "ep", &ranks.ep } }; /* in model_meta.json */
    bool found = true;
    while (found) {
        found = false;
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !found; i++)
            found = *parts[i].number < 0 && names_take_number(rest, parts[i].word, parts[i].number);
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

bool family_read_name(struct str base, struct family_file *out)
{
    static const struct {
        const char *stem, *extension;
        enum family_role role;
    } kinds[] = { { "model_state", ".pdparams", FAMILY_MODEL },
                  { "lora_model_state", ".pdparams", FAMILY_MODEL }, /* weights of adapters */
                  { "vera_model_state", ".pdparams", FAMILY_MODEL },
                  { "lokr_model_state", ".pdparams", FAMILY_MODEL },
                  { "prefix_model_state", ".pdparams", FAMILY_MODEL },
                  { "optimizer", ".pdopt", FAMILY_OPTIMIZER },
                  { "master_weights", ".pdparams", FAMILY_MASTER },
                  { "master_weights", ".pdopt", FAMILY_MASTER } };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct str rest = base;
        out->ranks = (struct family_ranks){ -1, -1, -1, -1 };
        out->role = kinds[i].role;
        if (!st_name_take_text(&rest, kinds[i].stem))
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
