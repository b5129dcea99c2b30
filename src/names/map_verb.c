/* SPDX-License-Identifier: Apache-2.0 */
/* What each verb of `reshard map` puts out, for people and as JSON. */
#include "names/map_verb.h"

#include "names/map_inverse.h"

static reshard_status map_verb_write_parse(struct map_session *session, void *context, struct buffer *text, struct buffer *json,
                                           reshard_error *err)
{
    (void)context, (void)err;
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
static bool is_line_continued(const struct map_session *session, uint32_t index)
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
static uint32_t print_line(const struct map_session *session, uint32_t index, struct buffer *line)
{
    const struct map_statement *statements = session->expanded.statements;
    buffer_clear(line);
    map_statement_print(&statements[index], line);
    for (index++; index < session->expanded.count && is_line_continued(session, index); index++) {
        uint32_t end = statements[index - 1].span.offset + statements[index - 1].span.size;
        buffer_append(line, session->text.data + end, statements[index].span.offset - end);
        map_statement_print(&statements[index], line);
    }
    return index;
}

static reshard_status map_verb_write_expand(struct map_session *session, void *context, struct buffer *text, struct buffer *json,
                                            reshard_error *err)
{
    struct buffer line = { 0 };
    buffer_append_text(json, "{\"schema\":\"reshard-map-expand/1\",\"statements\":[");
    for (uint32_t i = 0; i < session->expanded.count;) {
        buffer_append_text(json, i ? "," : "");
        i = print_line(session, i, &line);
        json->failed |= line.failed;
        buffer_append_str(text, buffer_str(&line));
        buffer_append_text(text, "\n");
        buffer_append_json_visible(json, buffer_str(&line));
    }
    buffer_append_text(json, "]}");
    buffer_release(&line);
    (void)context, (void)err;
    return RESHARD_OK;
}

static reshard_status map_verb_write_check(struct map_session *session, void *context, struct buffer *text, struct buffer *json,
                                           reshard_error *err)
{
    struct map_report report = { 0 };
    (void)context;
    reshard_status status = map_report_make(&session->result, session->engine.source, &session->limits, &report, err);
    if (!status) {
        map_report_print(&report, &session->result, session->engine.source, text);
        map_report_json(&report, &session->result, session->engine.source, json);
    }
    map_report_release(&report);
    return status;
}

static reshard_status map_verb_write_eval(struct map_session *session, void *context, struct buffer *text, struct buffer *json,
                                          reshard_error *err)
{
    const struct map_verb_input *input = context;
    double initial = input->target ? input->target->initial : 0;
    buffer_append_text(json, "{\"schema\":\"reshard-map-eval/1\",\"tensors\":");
    reshard_status status = map_values_evaluate(&session->result, input->source, initial, &session->limits, json, err);
    buffer_append_text(json, "}");
    buffer_append_str(text, buffer_str(json));
    buffer_append_text(text, "\n");
    return status;
}

reshard_status map_verb_run(enum map_verb verb, const struct map_verb_input *input, struct map_session_output *output, reshard_error *err)
{
    static const struct {
        enum map_session_stage stage;
        map_session_writer write;
    } verbs[] = {
        [MAP_VERB_PARSE] = { MAP_SESSION_PARSE, map_verb_write_parse },  [MAP_VERB_EXPAND] = { MAP_SESSION_EXPAND, map_verb_write_expand },
        [MAP_VERB_CHECK] = { MAP_SESSION_CHECK, map_verb_write_check },  [MAP_VERB_EVAL] = { MAP_SESSION_EXECUTE, map_verb_write_eval },
        [MAP_VERB_INVERT] = { MAP_SESSION_EXECUTE, map_inverse_write },
    };
    struct map_session_input session = input->session;
    session.source = input->source ? &input->source->space : NULL;
    session.target = input->target ? &input->target->space : NULL;
    *output = (struct map_session_output){ 0 };
    if (verb != MAP_VERB_PARSE && !session.source)
        return error_set(err, RESHARD_ERR_USAGE, "map input: the source is missing");
    return map_session_run(&session, verbs[verb].stage, verbs[verb].write, (void *)input, output, err);
}
