/* SPDX-License-Identifier: Apache-2.0 */
#include "map_run.h"

#include "check.h"

static reshard_status run_text(struct map_run *run, const char *text, const struct map_space *source, const struct map_space *target,
                               bool strict, bool reverse, reshard_error *err)
{
    struct map_macro_context context = {
        .source = source, .target = target, .strict = strict, .reverse = reverse, .limits = &limits_default, .diagnoses = &run->diagnoses
    };
    *run = (struct map_run){ 0 };
    reshard_status status = map_lex(str_of(text), strict, &limits_default, &run->tokens, &run->diagnoses, err);
    if (!status)
        status =
            map_parse(str_of(text), &run->tokens, MAP_GRAMMAR_FULL, strict ? NULL : &run->constants, &run->written, &run->diagnoses, err);
    if (!status && !run->diagnoses.error_count)
        status = map_expand(&context, &run->written, &run->expanded, err);
    if (status || run->diagnoses.error_count)
        return status;
    struct map_engine_input input = { .program = &run->expanded, .source = source, .target = target, .strict = strict, .reverse = reverse,
                                      .limits = &limits_default, .diagnoses = &run->diagnoses, .text_size = (uint32_t)strlen(text) };
    return map_execute(&input, &run->result, err);
}

reshard_status map_run(struct map_run *run, const char *text, const struct map_space *source, const struct map_space *target, bool strict,
                       reshard_error *err)
{
    return run_text(run, text, source, target, strict, false, err);
}

reshard_status map_run_backwards(struct map_run *run, const char *text, const struct map_space *source, const struct map_space *target,
                                 reshard_error *err)
{
    return run_text(run, text, source, target, false, true, err);
}

void map_run_release(struct map_run *run)
{
    map_constants_release(&run->constants);
    map_result_release(&run->result);
    map_program_release(&run->expanded);
    map_program_release(&run->written);
    map_tokens_release(&run->tokens);
    map_diagnoses_release(&run->diagnoses);
}

void map_cases_check(const struct map_case *cases, size_t count, enum map_reading reading, void (*make_source)(struct map_space *space),
                     map_print print)
{
    for (size_t i = 0; i < count; i++) {
        struct map_space source = { 0 };
        struct map_run run;
        struct buffer out = { 0 };
        reshard_error err = { 0 };
        make_source(&source);
        CHECK_OK(run_text(&run, cases[i].text, &source, NULL, reading == STRICT, reading == BACKWARDS, &err));
        print(&run, cases[i].text, reading, &out);
        buffer_append_byte(&out, '\0');
        if (strcmp((const char *)out.data, cases[i].expected) != 0)
            fail_msg("%s:\n%s\ninstead of\n%s", cases[i].why, (const char *)out.data, cases[i].expected);
        buffer_release(&out);
        map_run_release(&run);
        map_space_release(&source);
    }
}
