/* SPDX-License-Identifier: Apache-2.0 */
#include "names/map_inverse.h"

#include "mapping/map_invert.h"

#define LOST_SHOWN_MAX 10

/* Whether the text, run from the target to the source, undoes the session's mapping. */
static reshard_status prove(const struct map_session *session, struct str text, bool *is_inverse, reshard_error *err)
{
    struct map_session back = { .limits = session->limits, .text = text };
    uint32_t bad;
    *is_inverse = false;
    reshard_status status = map_lex(text, false, &back.limits, &back.tokens, &back.diagnoses, err);
    if (!status)
        status = map_parse(text, &back.tokens, MAP_GRAMMAR_FULL, NULL, &back.written, &back.diagnoses, err);
    if (!status && !back.diagnoses.error_count) {
        struct map_macro_context context = {
            .source = session->result.target, .target = session->engine.source, .limits = &back.limits, .diagnoses = &back.diagnoses
        };
        status = map_expand(&context, &back.written, &back.expanded, err);
    }
    if (!status && !back.diagnoses.error_count) {
        back.engine = (struct map_engine_input){ .program = &back.expanded,
                                                 .source = session->result.target,
                                                 .target = session->engine.source,
                                                 .limits = &back.limits,
                                                 .diagnoses = &back.diagnoses,
                                                 .text_size = (uint32_t)text.size };
        status = map_execute(&back.engine, &back.result, err);
    }
    if (!status && !back.diagnoses.error_count)
        status = map_compose_is_identity(&session->result, &back.result, session->engine.source, &back.limits, is_inverse, &bad, err);
    map_session_release(&back);
    return status;
}

/* Turns a program round and proves the result. *found says whether out holds an inverse now; else out is empty. */
static reshard_status try_program(struct map_session *session, const struct map_program *program, struct buffer *out, bool *found,
                                  reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *found = map_invert(program, &session->expanded, &session->result, out, NULL);
    if (out->failed)
        return error_set_memory(err);
    if (*found)
        status = prove(session, buffer_str(out), found, err);
    if (!*found)
        buffer_clear(out);
    return status;
}

/* The statement that removes a weight, or the end of the text. */
static struct map_span removal_of(const struct map_session *session, struct str name)
{
    for (uint32_t i = 0; i < session->expanded.count; i++) {
        const struct map_statement *statement = &session->expanded.statements[i];
        if (map_is_hole(&statement->right[0]) && str_equal(statement->left[0].text, name))
            return statement->span;
    }
    return (struct map_span){ (uint32_t)session->text.size, 0 };
}

static reshard_status blame_lost(struct map_session *session, reshard_error *err)
{
    const struct map_space *source = session->engine.source;
    struct map_report report = { 0 };
    uint32_t shown = 0;
    reshard_status status = map_report_make(&session->result, source, &session->limits, &report, err);
    for (uint32_t i = 0; i < map_space_tensor_count(source) && !status && shown < LOST_SHOWN_MAX; i++) {
        const struct map_tensor *tensor = &source->tensors[i];
        if (report.uses[i].read >= report.uses[i].elements || !map_state_is_shaped[tensor->state])
            continue;
        shown++;
        map_diagnose(&session->diagnoses, MAP_ERROR, removal_of(session, source->weights[tensor->weight].name), NULL,
                     "%lld of %lld elements of '%.*s' are not in the target: they cannot come back",
                     (long long)(report.uses[i].elements - report.uses[i].read), (long long)report.uses[i].elements, STR_ARG(tensor->key));
    }
    map_report_release(&report);
    return status;
}

static reshard_status blame(struct map_session *session, reshard_error *err)
{
    struct buffer scratch = { 0 };
    reshard_status status = blame_lost(session, err);
    if (!status && !session->diagnoses.error_count)
        map_invert(&session->expanded, &session->expanded, &session->result, &scratch, &session->diagnoses);
    buffer_release(&scratch);
    if (!status && !session->diagnoses.error_count)
        map_diagnose(&session->diagnoses, MAP_ERROR, (struct map_span){ (uint32_t)session->text.size, 0 }, NULL,
                     "no exact inverse was found: turned round, the statements do not give back the source");
    return status ? status : map_diagnoses_status(&session->diagnoses, session->name, session->file.file, false, err);
}

static void write_json(struct str text, struct buffer *json)
{
    buffer_append_text(json, "{\"schema\":\"reshard-map-invert/1\",\"exact\":true,\"statements\":[");
    for (size_t at = 0; at < text.size;) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        size_t size = end ? (size_t)(end - text.data) - at : text.size - at;
        buffer_append_text(json, at ? "," : "");
        buffer_append_json_visible(json, (struct str){ text.data + at, size });
        at += size + 1;
    }
    buffer_append_text(json, "]}");
}

reshard_status map_inverse_write(struct map_session *session, void *context, struct buffer *text, struct buffer *json, reshard_error *err)
{
    bool found;
    (void)context;
    if (session->is_reverse)
        return error_set(err, RESHARD_ERR_USAGE, "the inverse of a text that is read backwards is the same text, read forwards");
    reshard_status status = try_program(session, &session->written, text, &found, err);
    if (!status && !found)
        status = try_program(session, &session->expanded, text, &found, err);
    if (!status && !found)
        status = blame(session, err);
    if (!status)
        write_json(buffer_str(text), json);
    return status;
}
