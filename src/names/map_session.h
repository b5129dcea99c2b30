/* SPDX-License-Identifier: Apache-2.0 */
/* One mapping text on its way through the stages: lexed, parsed, expanded, executed. */
#ifndef NAMES_MAP_SESSION_H
#define NAMES_MAP_SESSION_H

#include "names/map_values.h"
#include "mapping/map_config.h"
#include "mapping/map_expand.h"
#include "mapping/map_report.h"

enum map_session_stage {
    MAP_SESSION_PARSE,
    MAP_SESSION_EXPAND, /* with strict, what upstream's macros cannot do is an error */
    MAP_SESSION_EXECUTE,
    MAP_SESSION_CHECK   /* as EXECUTE; with strict, what upstream's engine cannot do is an error */
};

struct map_session {
    const reshard_map_input *input;
    struct limits limits;
    struct str name, text;
    struct map_text file; /* that the text was taken from; what diagnoses show */
    bool is_reverse;
    struct map_diagnoses diagnoses;
    struct map_tokens tokens;
    struct map_constants constants;
    struct map_program written, expanded;
    struct map_engine_input engine;
    struct map_result result;
};

typedef reshard_status (*map_session_writer)(struct map_session *session, struct buffer *text, struct buffer *json, reshard_error *err);

/* Runs the stages up to the given one. If no diagnosis is an error, calls write to fill the output. */
reshard_status map_session_run(const reshard_map_input *input, enum map_session_stage stage, map_session_writer write,
                               reshard_map_output *output, reshard_error *err);

/* Releases what the stages made. */
void map_session_release(struct map_session *session);

#endif
