/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_stage.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

void mapping_free(struct mapping_stage *stage)
{
    while (stage) {
        struct mapping_stage *before = stage->before;
        recipe_table_release(&stage->table);
        map_result_release(&stage->result);
        map_space_release(&stage->own);
        name_map_release(&stage->kept);
        arena_release(&stage->arena);
        free(stage);
        stage = before;
    }
}

reshard_status mapping_check_keys(const struct catalog *catalog, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        if ((tensor->flags & TENSOR_HIDDEN) || !(tensor->flags & TENSOR_AMBIGUOUS))
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "a mapping needs keys that tell tensors apart: more than one tensor or item has the key '%.*s'", STR_ARG(tensor->key));
        error_hint(err, "convert without reshard_map_options.texts and reshard_map_options.rules first, to a format that keeps keys flat");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

static reshard_status identity_recipes(const struct catalog *catalog, struct mapping_stage *stage, reshard_error *err)
{
    uint32_t target = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        struct recipe recipe = { .source_tensor = i, .target_tensor = target++, .is_whole = true };
        status = recipe_table_append(&stage->table, &recipe, err);
    }
    return status ? status : recipe_table_close(&stage->table, target, err);
}

reshard_status mapping_begin(const struct catalog *catalog, struct mapping_stage **out, reshard_error *err)
{
    struct mapping_stage *stage = calloc(1, sizeof(*stage));
    if (!stage)
        return error_set_memory(err);
    stage->space = &stage->own;
    reshard_status status = mapping_check_keys(catalog, err);
    if (!status)
        status = map_space_from_catalog(catalog, &stage->own, err);
    if (!status)
        status = identity_recipes(catalog, stage, err);
    if (status)
        mapping_free(stage);
    else
        *out = stage;
    return status;
}

/* ---- running a text ---- */

/* What the writer of a session needs, which takes its result out. */
struct application {
    struct mapping_stage *stage;
    bool is_free; /* whatever comes out is taken, also where a target helped to read the text */
};

static reshard_status execute_freely(struct map_session *session, reshard_error *err)
{
    bool strict = session->input->strict;
    session->engine = (struct map_engine_input){ .program = &session->expanded,
                                                 .source = session->input->source,
                                                 .strict = strict,
                                                 .reverse = session->is_reverse,
                                                 .limits = &session->limits,
                                                 .diagnoses = &session->diagnoses,
                                                 .text_size = (uint32_t)session->text.size };
    reshard_status status = map_execute(&session->engine, &session->result, err);
    return status ? status : map_diagnoses_status(&session->diagnoses, session->name, session->file.file, strict, err);
}

/* What keeps its initial value has a shape only where a reference says so. */
static reshard_status check_kept(struct map_session *session, reshard_error *err)
{
    const struct map_space *made = session->result.target;
    for (uint32_t i = 0; i < session->expanded.count; i++) {
        const struct map_statement *statement = &session->expanded.statements[i];
        const struct map_name *left = session->is_reverse ? statement->right : statement->left,
                              *right = session->is_reverse ? statement->left : statement->right;
        if (!map_is_hole(left) || map_is_hole(right) || map_space_find(made, right->text) != MAP_NONE)
            continue;
        map_diagnose(&session->diagnoses, MAP_ERROR, statement->span,
                     "reshard_convert_options.like REFERENCE says what shape and type it has, or leave the statement out",
                     "nothing says what '%.*s' is", STR_ARG(right->text));
    }
    return map_diagnoses_status(&session->diagnoses, session->name, session->file.file, session->input->strict, err);
}

/* The names that keep their initial value, for those who have one. */
static reshard_status take_kept(const struct map_session *session, struct name_map *out, reshard_error *err)
{
    for (uint32_t i = 0; i < session->expanded.count; i++) {
        const struct map_statement *statement = &session->expanded.statements[i];
        const struct map_name *left = session->is_reverse ? statement->right : statement->left,
                              *right = session->is_reverse ? statement->left : statement->right;
        if (map_is_hole(left) && !map_is_hole(right) && name_map_intern(out, right->text, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* Takes the result out of the session, which is about to end. */
static reshard_status take_result(struct map_session *session, void *context, struct buffer *text, struct buffer *json, reshard_error *err)
{
    const struct application *application = context;
    struct mapping_stage *stage = application->stage;
    reshard_status status = application->is_free ? execute_freely(session, err) : RESHARD_OK;
    (void)text, (void)json;
    if (!status && application->is_free)
        status = take_kept(session, &stage->kept, err);
    if (!status && !application->is_free && !session->input->target)
        status = check_kept(session, err);
    if (status)
        return status;
    bool is_made = session->result.target == &session->result.made;
    stage->result = session->result;
    session->result = (struct map_result){ 0 };
    if (is_made)
        stage->result.target = &stage->result.made;
    stage->space = stage->result.target;
    return RESHARD_OK;
}

static reshard_status run_session(const struct mapping_stage *before, const struct map_space *target, const struct mapping_context *context,
                                  const struct mapping_text *text, bool is_free, bool is_quiet, struct mapping_stage *stage,
                                  reshard_error *err)
{
    static const struct mapping_options defaults = { 0 };
    const struct mapping_options *options = context->options ? context->options : &defaults;
    struct application application = { stage, is_free };
    struct map_session_output output;
    struct map_session_input input = {
        .name = text->name,
        .text = text->text,
        .source = before->space,
        .target = target,
        .strict = options->strict,
        .reverse = text->reverse,
        .limits = *context->limits,
        .config = options->config,
        .constants = options->constants,
        .constant_count = options->constant_count,
    };
    input.limits.budget = NULL;
    reshard_status status =
        map_session_run(&input, is_free ? MAP_SESSION_EXPAND : MAP_SESSION_CHECK, take_result, &application, &output, err);
    if (options->diagnose && output.diagnoses && output.diagnoses[0] && (status || !is_quiet))
        options->diagnose(output.diagnoses, output.error_count, options->context);
    map_session_output_release(&output);
    return status;
}

/*
 * A reference says which tensors there are, and their shapes. Their types are what comes out, as in a conversion without a mapping: a first
 * run finds them.
 */
static reshard_status reference_space(const struct map_space *reference, const struct map_space *made, struct map_space *out,
                                      reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < map_space_tensor_count(reference) && !status; i++) {
        const struct map_tensor *tensor = &reference->tensors[i];
        uint32_t found = name_map_find(&made->keys, tensor->key);
        enum dtype dtype = found == NAME_NONE ? tensor->dtype : made->tensors[found].dtype;
        status = map_space_add(out, tensor->key, dtype, tensor->rank, tensor->shape, tensor->shards, tensor->shard_count, err);
    }
    return status ? status : map_space_seal(out, err);
}

static reshard_status run_towards(const struct mapping_stage *before, const struct catalog *reference,
                                  const struct mapping_context *context, const struct mapping_text *text, struct mapping_stage *stage,
                                  reshard_error *err)
{
    struct map_space space = { 0 };
    struct mapping_stage first = { 0 };
    reshard_status status = mapping_check_keys(reference, err);
    if (!status)
        status = map_space_from_catalog(reference, &space, err);
    if (!status)
        status = run_session(before, &space, context, text, true, true, &first, err);
    if (!status)
        status = reference_space(&space, first.space, &stage->own, err);
    map_result_release(&first.result);
    name_map_release(&first.kept);
    map_space_release(&space);
    return status ? status : run_session(before, &stage->own, context, text, false, false, stage, err);
}

static reshard_status run_text(const struct mapping_stage *before, const struct mapping_context *context, const struct mapping_text *text,
                               bool is_last, struct mapping_stage *stage, reshard_error *err)
{
    struct map_space space = { 0 };
    if (is_last && context->reference)
        return run_towards(before, context->reference, context, text, stage, err);
    if (!is_last || !context->pattern)
        return run_session(before, NULL, context, text, false, false, stage, err);
    reshard_status status = mapping_check_keys(context->pattern, err);
    if (!status)
        status = map_space_from_catalog(context->pattern, &space, err);
    if (!status)
        status = run_session(before, &space, context, text, true, false, stage, err);
    map_space_release(&space);
    return status;
}

/* ---- recipes ---- */

static struct recipe_side *sides_of_space(const struct map_space *space)
{
    struct recipe_side *sides = array_zeroed((size_t)map_space_tensor_count(space), sizeof(*sides));
    for (uint32_t i = 0; sides && i < map_space_tensor_count(space); i++)
        sides[i] = (struct recipe_side){ space->tensors[i].dtype, space->tensors[i].rank };
    return sides;
}

static struct recipe_side *sides_of_catalog(const struct catalog *catalog)
{
    struct recipe_side *sides = array_zeroed(catalog->tensor_count, sizeof(*sides));
    for (uint32_t i = 0; sides && i < catalog->tensor_count; i++)
        sides[i] = (struct recipe_side){ catalog->tensors[i].dtype, catalog->tensors[i].rank };
    return sides;
}

static reshard_status mapping_stage_make_recipes(const struct mapping_stage *before, const struct catalog *source,
                                                 struct mapping_stage *stage, uint64_t box_checks, reshard_error *err)
{
    struct recipe_table own = { 0 };
    struct recipe_side *sides[3] = { sides_of_catalog(source), sides_of_space(before->space), sides_of_space(stage->space) };
    struct recipe_chain chain = {
        .source = sides[0], .middle = sides[1], .target = sides[2], .before = &before->table, .after = &own, .box_checks = box_checks
    };
    reshard_status status = sides[0] && sides[1] && sides[2] ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = recipes_of_result(&stage->result, before->space, &stage->arena, &own, err);
    if (!status)
        status = recipes_compose(&chain, &stage->arena, &stage->table, err);
    recipe_table_release(&own);
    for (int i = 0; i < 3; i++)
        free(sides[i]);
    return status;
}

reshard_status mapping_apply(struct mapping_stage **stage, const struct catalog *source, const struct mapping_context *context,
                             const struct mapping_text *text, bool is_last, reshard_error *err)
{
    struct mapping_stage *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    reshard_status status = run_text(*stage, context, text, is_last, made, err);
    if (!status)
        status = mapping_stage_make_recipes(*stage, source, made, context->limits->box_checks, err);
    if (status) {
        mapping_free(made);
        return status;
    }
    made->before = *stage;
    *stage = made;
    return RESHARD_OK;
}

/* ---- losses ---- */

/* Elements that arrive, each counted as often as it does: where more arrive than there are, none need be missing. */
reshard_status mapping_losses(const struct mapping_stage *stage, const struct catalog *source, struct arena *arena, struct note_list *out,
                              reshard_error *err)
{
    int64_t *read = array_zeroed(source->tensor_count, sizeof(*read));
    reshard_status status = read ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < stage->table.count && !status; i++) {
        const struct recipe *recipe = &stage->table.recipes[i];
        const struct map_tensor *target = &stage->space->tensors[recipe->target_tensor];
        int64_t volume = box_volume(target->rank, recipe->is_whole ? target->shape : recipe->extent);
        if (recipe->source_tensor != RECIPE_FILL &&
            __builtin_add_overflow(read[recipe->source_tensor], volume, &read[recipe->source_tensor]))
            read[recipe->source_tensor] = INT64_MAX;
    }
    for (uint32_t i = 0; i < source->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &source->tensors[i];
        int64_t volume = box_volume(tensor->rank, catalog_vector_at(source, tensor->shape));
        if (tensor->flags & TENSOR_HIDDEN || read[i] >= volume)
            continue;
        status = read[i] ? note_add(out, arena, NOTE_MAPPING, tensor->key, err, "%" PRId64 " of its %" PRId64 " elements, by the mapping",
                                    volume - read[i], volume)
                         : note_add(out, arena, NOTE_MAPPING, tensor->key, err, "by the mapping");
    }
    free(read);
    return status;
}
