/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of a conversion that does as it was asked, where that may not be what is meant. */
#include "convert/conversion.h"

#include "convert/paddle_keys.h"
#include "convert/target_names.h"
#include "mapping/map_state.h"
#include "parallel/state_keys.h"
#include "parallel/state_owner.h"

#include <inttypes.h>

#define REMARK_LISTED_MAX 3

struct lacking {
    struct name_map written;
    struct key_filter filter;
    uint64_t count;
    struct buffer listed;
};

static reshard_status lacking_count(struct lacking *lacking, const struct catalog *reference, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < reference->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &reference->tensors[i];
        bool is_wanted;
        if (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA) || name_map_find(&lacking->written, tensor->key) != NAME_NONE)
            continue;
        status = key_filter_wants(&lacking->filter, tensor->key, &is_wanted, err);
        if (status || !is_wanted)
            continue;
        if (lacking->count++ < REMARK_LISTED_MAX)
            buffer_printf(&lacking->listed, "%s'%.*s'", lacking->count > 1 ? ", " : "", STR_ARG(tensor->key));
    }
    return status || !lacking->listed.failed ? status : error_set_memory(err);
}

reshard_status conversion_remark_lacking(struct conversion *conversion, const struct selection_options *options, reshard_error *err)
{
    struct lacking lacking = { 0 };
    if (!conversion->like || options->missing || options->choose_missing)
        return RESHARD_OK;
    reshard_status status = key_filter_begin(&lacking.filter, options->include, options->exclude, err);
    if (!status)
        status = target_names_add(&conversion->selection, conversion->source->source->catalog, options, &lacking.written, err);
    if (!status)
        status = lacking_count(&lacking, conversion->named->source->catalog, err);
    if (!status && lacking.count)
        status = note_add(&conversion->warnings, &conversion->notes, NOTE_MISSING, STR(""), err,
                          "%" PRIu64 " tensors of the reference are not written, as the source lacks them: %.*s%s; "
                          "reshard_convert_options.missing says what they are to be",
                          lacking.count, (int)lacking.listed.size, (const char *)lacking.listed.data,
                          lacking.count > REMARK_LISTED_MAX ? ", …" : "");
    key_filter_release(&lacking.filter);
    name_map_release(&lacking.written);
    buffer_release(&lacking.listed);
    return status;
}

reshard_status conversion_remark_root(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    bool is_within = false;
    for (uint32_t i = 0; i < target->object_count && !is_within; i++) {
        struct str rest = target->objects[i].name, first = str_take(&rest, '/');
        is_within = rest.size && str_starts_with(first, "iter_") && str_is(first, conversion->file_name);
    }
    if (!is_within)
        return RESHARD_OK;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_TARGET, STR(""), err,
                    "the target is the folder of all iterations: '%s' gets a folder '%s'", conversion->file_name, conversion->file_name);
}

#define ACCELERATE_MODEL "pytorch_model_fsdp_0"

reshard_status conversion_remark_parts(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *reference = conversion->like ? conversion->like->source->catalog : NULL;
    bool is_part = false;
    for (uint32_t i = 0; reference && i < reference->object_count && !is_part; i++)
        is_part = str_starts_with(reference->objects[i].name, ACCELERATE_MODEL "/");
    if (!is_part || conversion->target.driver != conversion->like->source->driver)
        return RESHARD_OK;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_REFERENCE, STR(""), err,
                    "the reference is a folder of accelerate's, and what is written is the DCP of the model alone: accelerate looks for it "
                    "in a folder '" ACCELERATE_MODEL "', under names that reshard_convert_options.add_prefix 'model.' gives");
}

/* ---- state that nobody looks for ---- */

/* Whether the key is of state as Megatron or torch spells it, by parameter, by number or by bucket. */
static bool is_others_state(const struct state_owners *owners, struct str key)
{
    struct state_key read;
    struct owned_state owned;
    struct map_state_key known;
    if (state_owners_read(owners, key, &owned)) /* any two names may be a and a-b */
        return owned.words != STATE_WORDS_FLAT || map_state_reading(key, 0, &known);
    return state_key_read(key, &read) &&
           (read.kind == STATE_KEY_PARAMETER || read.kind == STATE_KEY_NUMBERED || read.kind == STATE_KEY_BUCKET);
}

/* Whether names are kept because the caller says so, or are those that a program gives to what it has in memory. */
static bool names_are_meant(const struct conversion *conversion)
{
    const struct mapping_options *map = conversion->options->map;
    return !conversion->source->source->driver->probe || (map && map->rules && strcmp(map->rules, "none") == 0);
}

/* Targets whose runs look for optimizer state by some name. */
#define STATE_IS_NAMED \
    (FORMAT_PADDLE_STATE | FORMAT_STATE_BY_PARAMETER | FORMAT_STATE_BY_NUMBER | FORMAT_TORCH_STATE | FORMAT_STATE_FLAT)

reshard_status conversion_remark_state(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog, *like = conversion->like ? conversion->like->source->catalog : NULL;
    const unsigned abilities = conversion->target.driver->abilities;
    const bool is_paddle = abilities & FORMAT_PADDLE_STATE;
    struct state_owners owners = { 0 }; /* of others' spellings, which are looked for in Paddle's formats alone */
    struct str first = { 0 };
    uint64_t count = 0;
    if (!(abilities & STATE_IS_NAMED) || names_are_meant(conversion))
        return RESHARD_OK;
    if (is_paddle)
        state_owners_begin(&owners, target);
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        struct str key = target->tensors[i].key;
        if (target->tensors[i].flags & TENSOR_HIDDEN || (like && catalog_find(like, key) != CATALOG_NONE) ||
            !(is_paddle ? !paddle_key_is_state(target, key) && is_others_state(&owners, key) : paddle_key_is_state(target, key)))
            continue;
        first = count++ ? first : key;
    }
    if (!count)
        return RESHARD_OK;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                    "%" PRIu64 " tensors of optimizer state keep the names that %s, for which a run that loads %s does not look: '%.*s'%s; "
                    "reshard_convert_options.renames gives them others, reshard_convert_options.exclude leaves them out",
                    count, is_paddle ? "other frameworks give them" : "Paddle gives them", conversion->target.driver->name, STR_ARG(first),
                    count > 1 ? ", …" : "");
}
