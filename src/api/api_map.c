/* SPDX-License-Identifier: Apache-2.0 */
#include "api/checkpoint.h"
#include "names/map_inverse.h"

#include <stdlib.h>

API_EXPORT reshard_status reshard_map_space_describe(const char *json, size_t size, reshard_map_space **out, reshard_error *err)
{
    struct limits limits = limits_default;
    reshard_map_space *space = calloc(1, sizeof(*space));
    if (!space)
        return error_set_memory(err);
    reshard_status status = map_space_describe((struct str){ json, size }, &limits, space, err);
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
    reshard_status status = map_space_from_catalog(checkpoint_catalog(checkpoint), &space->space, err);
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
    map_space_handle_release(space);
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

static reshard_status write_parse(struct map_session *session, struct buffer *text, struct buffer *json, reshard_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < session->written.count; i++) {
        map_statement_print(&session->written.statements[i], text);
        buffer_append_text(text, "\n");
    }
    buffer_append_text(json, "{\"schema\":\"reshard-map-parse/1\",\"statements\":");
    map_program_json(&session->written, session->text, json);
    buffer_append_text(json, "}");
    return RESHARD_OK;
}

/* Upstream keeps what stands on one line as one text; in strict AOA statements that no macro changed are put out so. */
static bool is_continued(const struct map_session *session, uint32_t index)
{
    const struct map_statement *statements = session->expanded.statements;
    if (!session->input->strict || !index || !statements[index].is_glued || statements[index].is_expanded ||
        statements[index - 1].is_expanded)
        return false;
    for (uint32_t at = statements[index - 1].span.offset + statements[index - 1].span.size; at < statements[index].span.offset; at++) {
        if (session->text.data[at] != ' ' && session->text.data[at] != '\t')
            return false;
    }
    return true;
}

/* The statement at index, and those behind it that belong to the same text; the index behind them. */
static uint32_t print_text(const struct map_session *session, uint32_t index, struct buffer *line)
{
    const struct map_statement *statements = session->expanded.statements;
    buffer_clear(line);
    map_statement_print(&statements[index], line);
    for (index++; index < session->expanded.count && is_continued(session, index); index++) {
        uint32_t end = statements[index - 1].span.offset + statements[index - 1].span.size;
        buffer_append(line, session->text.data + end, statements[index].span.offset - end);
        map_statement_print(&statements[index], line);
    }
    return index;
}

static reshard_status write_expand(struct map_session *session, struct buffer *text, struct buffer *json, reshard_error *err)
{
    struct buffer line = { 0 };
    buffer_append_text(json, "{\"schema\":\"reshard-map-expand/1\",\"statements\":[");
    for (uint32_t i = 0; i < session->expanded.count;) {
        buffer_append_text(json, i ? "," : "");
        i = print_text(session, i, &line);
        json->failed |= line.failed;
        buffer_append_str(text, buffer_str(&line));
        buffer_append_text(text, "\n");
        buffer_append_json_visible(json, buffer_str(&line));
    }
    buffer_append_text(json, "]}");
    buffer_release(&line);
    (void)err;
    return RESHARD_OK;
}

static reshard_status write_check(struct map_session *session, struct buffer *text, struct buffer *json, reshard_error *err)
{
    struct map_report report = { 0 };
    reshard_status status = map_report_make(&session->result, session->engine.source, &session->limits, &report, err);
    if (!status) {
        map_report_print(&report, &session->result, session->engine.source, text);
        map_report_json(&report, &session->result, session->engine.source, json);
    }
    map_report_release(&report);
    return status;
}

static reshard_status write_eval(struct map_session *session, struct buffer *text, struct buffer *json, reshard_error *err)
{
    double initial = session->input->target ? session->input->target->initial : 0;
    buffer_append_text(json, "{\"schema\":\"reshard-map-eval/1\",\"tensors\":");
    reshard_status status = map_values_evaluate(&session->result, session->input->source, initial, &session->limits, json, err);
    buffer_append_text(json, "}");
    buffer_append_str(text, buffer_str(json));
    buffer_append_text(text, "\n");
    return status;
}

API_EXPORT reshard_status reshard_map_parse(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return map_session_run(input, MAP_SESSION_PARSE, write_parse, output, err);
}

API_EXPORT reshard_status reshard_map_expand(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return map_session_run(input, MAP_SESSION_EXPAND, write_expand, output, err);
}

API_EXPORT reshard_status reshard_map_check(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return map_session_run(input, MAP_SESSION_CHECK, write_check, output, err);
}

API_EXPORT reshard_status reshard_map_eval(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return map_session_run(input, MAP_SESSION_EXECUTE, write_eval, output, err);
}

API_EXPORT reshard_status reshard_map_invert(const reshard_map_input *input, reshard_map_output *output, reshard_error *err)
{
    return map_session_run(input, MAP_SESSION_EXECUTE, map_inverse_write, output, err);
}
