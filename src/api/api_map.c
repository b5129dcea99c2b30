/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "names/map_verb.h"

#include <stdlib.h>

struct reshard_map_space {
    struct map_description described;
};

/* Behind an output: the texts. */
struct reshard_map_texts {
    struct map_session_output made;
};

API_EXPORT reshard_status reshard_map_space_describe(const char *json, size_t size, reshard_map_space **out, reshard_error *err)
{
    struct limits limits = limits_default;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(json, err);
    reshard_map_space *space = calloc(1, sizeof(*space));
    if (!space)
        return error_set_memory(err);
    reshard_status status = map_description_read((struct str){ json, size }, &limits, &space->described, err);
    if (status)
        reshard_map_space_free(space);
    else
        *out = space;
    return status;
}

API_EXPORT reshard_status reshard_map_space_of(const reshard_checkpoint *checkpoint, reshard_map_space **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(checkpoint, err);
    reshard_map_space *space = calloc(1, sizeof(*space));
    if (!space)
        return error_set_memory(err);
    reshard_status status = map_space_from_catalog(checkpoint_catalog(checkpoint), &space->described.space, err);
    if (status)
        reshard_map_space_free(space);
    else
        *out = space;
    return status;
}

API_EXPORT void reshard_map_space_free(reshard_map_space *space)
{
    if (!space)
        return;
    map_description_release(&space->described);
    free(space);
}

static void texts_free(struct reshard_map_texts *texts)
{
    if (texts)
        map_session_output_release(&texts->made);
    free(texts);
}

API_EXPORT void reshard_map_output_release(reshard_map_output *output)
{
    if (struct_reaches(output, offsetof(reshard_map_output, texts) + sizeof(output->texts)))
        texts_free(output->texts);
    struct_clear(output, "reshard_map_output", NULL);
}

/* given: where the caller's struct is kept for as long as what is read of it. */
static reshard_status map_input_read(const reshard_map_input *input, reshard_map_input *given, struct mapping_constant **constants,
                                     struct map_verb_input *out, reshard_error *err)
{
    reshard_status status = struct_take(given, sizeof(*given), input, "reshard_map_input", err);
    if (status)
        return status;
    if (!given->text && given->size)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_map_input.text is NULL");
    *out = (struct map_verb_input){
        .session = { .name = given->name ? given->name : "mapping",
                     .text = { given->text ? given->text : "", given->size },
                     .strict = given->strict != 0,
                     .reverse = given->reverse != 0,
                     .config = { given->config, given->config ? given->config_size : 0 },
                     .constant_count = given->constant_count },
        .source = given->source ? &given->source->described : NULL,
        .target = given->target ? &given->target->described : NULL,
    };
    status = limits_read(given->limits, given->limit_count, given->limit_stride, &out->session.limits, err);
    if (!status)
        status = constants_read(given->constants, given->constant_count, given->constant_stride, constants, err);
    out->session.constants = *constants;
    return status;
}

/* Takes what was made over. */
static reshard_status map_output_give(struct map_session_output *made, reshard_map_output *output, reshard_error *err)
{
    struct reshard_map_texts *texts = calloc(1, sizeof(*texts));
    if (!texts) {
        map_session_output_release(made);
        return error_set_memory(err);
    }
    texts->made = *made;
    const reshard_map_output public = { .texts = texts,
                                        .text = made->text,
                                        .json = made->json,
                                        .diagnoses = made->diagnoses,
                                        .error_count = made->error_count,
                                        .warning_count = made->warning_count };
    struct_give(output, &public, sizeof(public));
    if (!struct_reaches(output, offsetof(reshard_map_output, texts) + sizeof(output->texts)))
        texts_free(texts);
    return RESHARD_OK;
}

static reshard_status run_verb(const char *function, enum map_verb verb, const reshard_map_input *input, reshard_map_output *output,
                               reshard_error *err)
{
    struct map_verb_input read;
    struct map_session_output made = { 0 };
    struct mapping_constant *constants = NULL;
    reshard_map_input given;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(output, "reshard_map_output", err);
    if (status)
        return status;
    if (!input || !output)
        return argument_missing(function, input ? "output" : "input", err);
    status = map_input_read(input, &given, &constants, &read, err);
    if (!status)
        status = map_verb_run(verb, &read, &made, err);
    free(constants);
    reshard_status given_out = map_output_give(&made, output, status ? NULL : err);
    return status ? status : given_out;
}

API_EXPORT reshard_status reshard_map_parse(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(__func__, MAP_VERB_PARSE, input, output, err);
}

API_EXPORT reshard_status reshard_map_expand(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(__func__, MAP_VERB_EXPAND, input, output, err);
}

API_EXPORT reshard_status reshard_map_check(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(__func__, MAP_VERB_CHECK, input, output, err);
}

API_EXPORT reshard_status reshard_map_eval(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(__func__, MAP_VERB_EVAL, input, output, err);
}

API_EXPORT reshard_status reshard_map_invert(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(__func__, MAP_VERB_INVERT, input, output, err);
}
