/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "names/map_verb.h"

#include <stdlib.h>

struct reshard_map_space {
    struct map_description described;
};

API_EXPORT reshard_status reshard_map_space_describe(const char *json, size_t size, reshard_map_space **out, reshard_error *err)
{
    struct limits limits = limits_default;
    reshard_map_space *space = calloc(1, sizeof(*space));
    if (!space)
        return error_set_memory(err);
    reshard_status status = map_description_read((struct str){ json, size }, &limits, &space->described, err);
    if (status) {
        reshard_map_space_free(space);
        return status;
    }
    *out = space;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_map_space_of(const reshard_checkpoint *checkpoint, reshard_map_space **out, reshard_error *err)
{
    reshard_map_space *space = calloc(1, sizeof(*space));
    if (!space)
        return error_set_memory(err);
    reshard_status status = map_space_from_catalog(checkpoint_catalog(checkpoint), &space->described.space, err);
    if (status) {
        reshard_map_space_free(space);
        return status;
    }
    *out = space;
    return RESHARD_OK;
}

API_EXPORT void reshard_map_space_free(reshard_map_space *space)
{
    if (!space)
        return;
    map_description_release(&space->described);
    free(space);
}

API_EXPORT void reshard_map_output_release(reshard_map_output *output)
{
    if (!output)
        return;
    free(output->text);
    free(output->json);
    free(output->diagnoses);
    *output = (reshard_map_output){ 0 };
}

static reshard_status map_input_read(const reshard_map_input *input, struct mapping_constant **constants, struct map_verb_input *out,
                                     reshard_error *err)
{
    if (input->struct_size < sizeof(*input))
        return error_set(err, RESHARD_ERR_USAGE, "map input: struct_size is %zu, expected %zu", input->struct_size, sizeof(*input));
    *out = (struct map_verb_input){
        .session = { .name = input->name ? input->name : "mapping",
                     .text = { input->text, input->size },
                     .strict = input->strict != 0,
                     .reverse = input->reverse != 0,
                     .config = { input->config, input->config_size },
                     .constant_count = input->constant_count },
        .source = input->source ? &input->source->described : NULL,
        .target = input->target ? &input->target->described : NULL,
    };
    reshard_status status = limits_read(input->limits, input->limit_count, &out->session.limits, err);
    if (!status)
        status = constants_read(input->constants, input->constant_count, constants, err);
    out->session.constants = *constants;
    return status;
}

static reshard_status run_verb(enum map_verb verb, const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    struct map_verb_input read;
    struct map_session_output made = { 0 };
    struct mapping_constant *constants = NULL;
    reshard_status status = map_input_read(input, &constants, &read, err);
    if (!status)
        status = map_verb_run(verb, &read, &made, err);
    free(constants);
    *output = (reshard_map_output){ .text = made.text,
                                    .json = made.json,
                                    .diagnoses = made.diagnoses,
                                    .error_count = made.error_count,
                                    .warning_count = made.warning_count };
    return status;
}

API_EXPORT reshard_status reshard_map_parse(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(MAP_VERB_PARSE, input, output, err);
}

API_EXPORT reshard_status reshard_map_expand(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(MAP_VERB_EXPAND, input, output, err);
}

API_EXPORT reshard_status reshard_map_check(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(MAP_VERB_CHECK, input, output, err);
}

API_EXPORT reshard_status reshard_map_eval(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(MAP_VERB_EVAL, input, output, err);
}

API_EXPORT reshard_status reshard_map_invert(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return run_verb(MAP_VERB_INVERT, input, output, err);
}
