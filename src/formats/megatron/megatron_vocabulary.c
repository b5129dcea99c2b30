/* SPDX-License-Identifier: Apache-2.0 */
/* How many rows the vocabulary gets: as the option says, as the reference has it, or as a run with the target's TP pads it. */
#include "formats/megatron/megatron_target.h"

#include "base/str.h"
#include "parallel/vocabulary.h"

#include <inttypes.h>

static reshard_status option_rows(const struct layout_request *request, const struct training_args *args, int64_t *rows,
                                  reshard_error *err)
{
    const char *text = layout_option(request, "padded-vocab");
    uint64_t number;
    *rows = 0;
    if (!text)
        return RESHARD_OK;
    if (!str_to_u64(str_of(text), &number) || number < 1 || number > INT64_MAX / 4)
        return error_set(err, RESHARD_ERR_USAGE, "option padded-vocab='%s': expected a number", text);
    *rows = (int64_t)number;
    if (*rows < args->vocabulary) {
        error_set(err, RESHARD_ERR_USAGE, "option padded-vocab=%s: the vocabulary has %" PRId64 " tokens, whose rows would be lost", text,
                  args->vocabulary);
        error_hint(err, "%" PRId64 " or more are its rows and padding", args->vocabulary);
        return RESHARD_ERR_USAGE;
    }
    return RESHARD_OK;
}

reshard_status megatron_choose_vocabulary(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct training_args *args = &state->args;
    int64_t least, most;
    reshard_status status = option_rows(request, args, &state->padded_vocabulary, err);
    if (status || state->padded_vocabulary > 0)
        return status;
    if (like && like->args.padded_vocabulary > 0 && !layout_number(request, "tp") &&
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
    return target_note_changed(target, NOTE_VOCABULARY, (struct str){ 0 }, err,
                               "the vocabulary keeps its %" PRId64 " rows: a run with tp=%" PRId64 " pads it to %" PRId64
                               " or more up to %" PRId64 ", as its tokenizer says. Megatron takes them with --use-checkpoint-args; "
                               "reshard_convert_options.format_options padded-vocab=N writes others",
                               args->padded_vocabulary, state->layout.tp, least, most);
}
