/* SPDX-License-Identifier: Apache-2.0 */
/* One mapping text on its way through the stages: lexed, parsed, expanded, executed. */
#ifndef NAMES_MAP_SESSION_H
#define NAMES_MAP_SESSION_H

#include "mapping/map_config.h"
#include "mapping/map_expand.h"
#include "mapping/map_report.h"

enum map_session_stage {
    MAP_SESSION_PARSE,
    MAP_SESSION_EXPAND, /* with strict, what upstream's macros cannot do is an error */
    MAP_SESSION_EXECUTE,
    MAP_SESSION_CHECK   /* as EXECUTE; with strict, what upstream's engine cannot do is an error */
};

/* A number that attributes of a mapping may name: num_heads=num_attention_heads. */
struct mapping_constant {
    const char *name;
    int64_t value;
};

struct map_session_input {
    const char *name;                         /* of the text, for diagnoses: a file name */
    struct str text;
    const struct map_space *source;           /* not needed by MAP_SESSION_PARSE */
    const struct map_space *target;           /* NULL: everything that is assigned or left over, and not used, is put out */
    bool strict;                              /* refuse what Paddle's own engine does not know */
    bool reverse;                             /* read the text backwards */
    struct limits limits;
    struct str config;                        /* JSON object: its integers are constants; may be empty */
    const struct mapping_constant *constants; /* these win over the config, and both over what the text defines */
    size_t constant_count;
};

struct map_session {
    const struct map_session_input *input;
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

/* What a session puts out. Texts are malloc'd and end with NUL. */
struct map_session_output {
    char *text, *json; /* NULL on failure */
    char *diagnoses;   /* errors and warnings: written on failure too; "" if there are none */
    size_t error_count, warning_count;
};
void map_session_output_release(struct map_session_output *output);

typedef reshard_status (*map_session_writer)(struct map_session *session, void *context, struct buffer *text, struct buffer *json,
                                             reshard_error *err);

/* Runs the stages up to the given one. If no diagnosis is an error, calls write to fill the output. */
reshard_status map_session_run(const struct map_session_input *input, enum map_session_stage stage, map_session_writer write, void *context,
                               struct map_session_output *output, reshard_error *err);

/* Releases what the stages made. */
void map_session_release(struct map_session *session);

#endif
