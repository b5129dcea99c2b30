/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron pads the vocabulary to a multiple of a unit and TP, so a run with another TP may have other padding, and refuses files with
 * other rows. How many tokens there are is said by few tokenizers only. But the rows of the source are padded from at least so many and at
 * most so many, and often all of them are padded alike.
 */
#include "formats/megatron/megatron_target.h"

#include "base/str.h"

#include <inttypes.h>

static int64_t padded(int64_t tokens, int64_t unit)
{
    return (tokens + unit - 1) / unit * unit;
}

/* Megatron's tokenizer without a text says it: vocab_size, and in releases before 0.18, which know of no other end of text, one more. -1:
 * another one. */
static int64_t said_tokens(const struct training_args *args)
{
    const struct value *type = args->members ? value_dict_get(args->members, "tokenizer_type") : NULL;
    if (!type || type->kind != VALUE_STR || !str_is(type->text, "NullTokenizer") || args->vocabulary <= 0 ||
        args->vocabulary > INT64_MAX / 4)
        return -1;
    return args->vocabulary + (value_dict_get(args->members, "null_tokenizer_eod_id") ? 0 : 1);
}

bool padded_vocabulary_rows(const struct training_args *args, int64_t tp, int64_t *least, int64_t *most)
{
    int64_t unit = args->vocabulary_unit, old = args->padded_vocabulary, said = said_tokens(args);
    if (unit <= 0 || old <= 0 || args->tp <= 0 || tp <= 0 || unit > INT32_MAX || old > INT64_MAX / 4 || args->tp > INT32_MAX ||
        tp > INT32_MAX || unit > INT64_MAX / 4 / args->tp || unit > INT64_MAX / 4 / tp)
        return false;
    int64_t lowest = old - unit * args->tp + 1, highest = old;
    if (said > 0 && said <= old)
        lowest = highest = said;
    else if (old % (unit * args->tp))
        return false;
    else if (args->vocabulary >= lowest && args->vocabulary <= highest)
        lowest = highest = args->vocabulary;
    *least = padded(lowest, unit * tp);
    *most = padded(highest, unit * tp);
    return true;
}

static reshard_status option_rows(const struct layout_request *request, int64_t *rows, reshard_error *err)
{
    const char *text = layout_option(request, "padded-vocab");
    uint64_t number;
    *rows = 0;
    if (!text)
        return RESHARD_OK;
    if (!str_to_u64(str_of(text), &number) || number < 1 || number > INT64_MAX / 4)
        return error_set(err, RESHARD_ERR_USAGE, "option padded-vocab='%s': expected a number", text);
    *rows = (int64_t)number;
    return RESHARD_OK;
}

reshard_status megatron_choose_vocabulary(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct training_args *args = &state->args;
    int64_t least, most;
    reshard_status status = option_rows(request, &state->padded_vocabulary, err);
    if (status || state->padded_vocabulary > 0)
        return status;
    if (like && like->args.padded_vocabulary > 0 && !request->words.tp &&
        (args->vocabulary <= 0 || like->args.vocabulary == args->vocabulary)) {
        state->padded_vocabulary = like->args.padded_vocabulary;
        return RESHARD_OK;
    }
    if (!padded_vocabulary_rows(args, state->layout.tp, &least, &most))
        return RESHARD_OK;
    if (least == most) {
        state->padded_vocabulary = least;
        return RESHARD_OK;
    }
    return target_note_changed(target, err,
                               "the vocabulary keeps its %" PRId64 " rows: a run with tp=%" PRId64 " pads it to %" PRId64
                               " or more up to %" PRId64
                               ", as its tokenizer says. Megatron takes them with --use-checkpoint-args; -o padded-vocab=N writes others",
                               args->padded_vocabulary, state->layout.tp, least, most);
}
