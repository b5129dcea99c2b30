/* SPDX-License-Identifier: Apache-2.0 */
#include "names/map_session.h"

#include "names/map_values.h"

#include <stdlib.h>

/* The integers of a config.json; then single constants, which win. */
static reshard_status session_constants(struct map_session *session, reshard_error *err)
{
    const struct map_session_input *input = session->input;
    reshard_status status = RESHARD_OK;
    if (input->config.size)
        status = map_config_constants(input->config, &session->limits, &session->constants, err);
    for (size_t i = 0; i < input->constant_count && !status; i++) {
        if (!map_constants_set(&session->constants, str_of(input->constants[i].name), input->constants[i].value, true))
            status = error_set_memory(err);
    }
    return status;
}

static reshard_status parse(struct map_session *session, enum map_session_stage stage, reshard_error *err)
{
    bool strict = session->input->strict;
    enum map_grammar grammar = strict && stage == MAP_SESSION_PARSE ? MAP_GRAMMAR_CORE : MAP_GRAMMAR_FULL;
    struct str file = session->input->text.size ? session->input->text : STR("");
    reshard_status status = session_constants(session, err);
    if (!status)
        status = map_text_read(file, &session->limits, &session->file, &session->diagnoses, err);
    session->text = session->file.text;
    session->is_reverse = session->input->reverse || session->file.is_reverse;
    if (status || session->diagnoses.error_count)
        return status;
    status = map_lex(session->text, strict, &session->limits, &session->tokens, &session->diagnoses, err);
    if (!status)
        status = map_parse(session->text, &session->tokens, grammar, strict ? NULL : &session->constants, &session->written,
                           &session->diagnoses, err);
    map_tokens_release(&session->tokens);
    return status;
}

static reshard_status expand(struct map_session *session, reshard_error *err)
{
    const struct map_session_input *input = session->input;
    struct map_macro_context context = {
        .source = input->source,
        .target = input->target,
        .strict = input->strict,
        .reverse = session->is_reverse,
        .limits = &session->limits,
        .diagnoses = &session->diagnoses,
    };
    return map_expand(&context, &session->written, &session->expanded, err);
}

static reshard_status map_session_execute(struct map_session *session, reshard_error *err)
{
    const struct map_session_input *input = session->input;
    session->engine = (struct map_engine_input){
        .program = &session->expanded,
        .source = input->source,
        .target = input->target,
        .strict = input->strict,
        .reverse = session->is_reverse,
        .limits = &session->limits,
        .diagnoses = &session->diagnoses,
        .text_size = (uint32_t)session->text.size,
    };
    return map_execute(&session->engine, &session->result, err);
}

/* Whether what upstream's engine cannot do is an error. */
static bool is_strict(const struct map_session *session, enum map_session_stage stage)
{
    return session->input->strict && (stage == MAP_SESSION_EXPAND || stage == MAP_SESSION_CHECK);
}

/* Macros look only at a text that is well-formed: what is missing from it would only raise questions that do not exist. */
static reshard_status map_session_run_stages(struct map_session *session, enum map_session_stage stage, reshard_error *err)
{
    reshard_status status = parse(session, stage, err);
    if (!status && stage >= MAP_SESSION_EXPAND && !session->diagnoses.error_count)
        status = expand(session, err);
    if (!status && stage >= MAP_SESSION_EXECUTE && !session->diagnoses.error_count)
        status = map_session_execute(session, err);
    bool strict = is_strict(session, stage);
    return status ? status : map_diagnoses_status(&session->diagnoses, session->name, session->file.file, strict, err);
}

/* The buffer's bytes as text of its own; NULL without memory. */
static char *map_session_take_text(struct buffer *buffer)
{
    if (!buffer_append_byte(buffer, '\0'))
        return NULL;
    char *text = (char *)buffer->data;
    *buffer = (struct buffer){ 0 };
    return text;
}

static reshard_status write_diagnoses(const struct map_session *session, enum map_session_stage stage, struct map_session_output *output,
                                      reshard_error *err)
{
    struct buffer text = { 0 };
    map_diagnoses_render(&session->diagnoses, session->name, session->file.file, is_strict(session, stage), &text);
    output->diagnoses = text.failed ? NULL : map_session_take_text(&text);
    output->error_count = session->diagnoses.error_count + (is_strict(session, stage) ? session->diagnoses.unportable_count : 0);
    output->warning_count = session->diagnoses.warning_count;
    buffer_release(&text);
    return output->diagnoses ? RESHARD_OK : error_set_memory(err);
}

static reshard_status write_output(struct map_session *session, map_session_writer write, void *context, struct map_session_output *output,
                                   reshard_error *err)
{
    struct buffer text = { 0 }, json = { 0 };
    reshard_status status = write(session, context, &text, &json, err);
    if (!status) {
        output->text = text.failed ? NULL : map_session_take_text(&text);
        output->json = json.failed ? NULL : map_session_take_text(&json);
        status = output->text && output->json ? RESHARD_OK : error_set_memory(err);
    }
    buffer_release(&text);
    buffer_release(&json);
    return status;
}

void map_session_release(struct map_session *session)
{
    map_result_release(&session->result);
    map_program_release(&session->expanded);
    map_program_release(&session->written);
    map_tokens_release(&session->tokens);
    map_constants_release(&session->constants);
    map_text_release(&session->file);
    map_diagnoses_release(&session->diagnoses);
}

void map_session_output_release(struct map_session_output *output)
{
    free(output->text);
    free(output->json);
    free(output->diagnoses);
    *output = (struct map_session_output){ 0 };
}

reshard_status map_session_run(const struct map_session_input *input, enum map_session_stage stage, map_session_writer write, void *context,
                               struct map_session_output *output, reshard_error *err)
{
    struct map_session session = { .input = input, .limits = input->limits, .name = str_of(input->name) };
    *output = (struct map_session_output){ 0 };
    reshard_status status = map_session_run_stages(&session, stage, err);
    if (!status)
        status = write_output(&session, write, context, output, err);
    reshard_status written = write_diagnoses(&session, stage, output, status ? NULL : err);
    status = status ? status : written;
    map_session_release(&session);
    if (status && status != RESHARD_ERR_USAGE) {
        free(output->text);
        free(output->json);
        output->text = output->json = NULL;
    }
    return status;
}
