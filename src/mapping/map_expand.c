/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_expand.h"

#include "mapping/map_chain.h"

reshard_status map_memory_error(const struct arena *arena, reshard_error *err)
{
    if (!arena->is_full)
        return error_set_memory(err);
    error_set(err, RESHARD_ERR_LIMIT, "map_bytes: the mapping takes more than the %zu bytes that are the limit", arena->bytes_max);
    error_hint(err, "raise it with reshard_open_options.limits map_bytes=%zu",
               arena->bytes_max > SIZE_MAX / 2 ? SIZE_MAX : 2 * arena->bytes_max);
    return RESHARD_ERR_LIMIT;
}

reshard_status map_emit(const struct map_macro_context *context, struct map_program *list, const struct map_statement *statement,
                        reshard_error *err)
{
    if (!map_program_append(list, statement))
        return error_set_memory(err);
    if (list->name_count > context->limits->map_names)
        return error_set_limit(err, "map_names", list->name_count, context->limits->map_names);
    return RESHARD_OK;
}

enum stage { STAGE_OFFSET, STAGE_IDS, STAGE_ARRAYS, STAGE_STARS, STAGE_TRANSPOSES, STAGE_FUSED, STAGE_COUNT };

static reshard_status run_stage(const struct map_macro_context *context, enum stage stage, const struct map_chain *chain,
                                const struct map_program *in, struct map_program *out, reshard_error *err)
{
    switch (stage) {
    case STAGE_OFFSET: return map_macro_ids(context, true, in, out, err);
    case STAGE_IDS: return map_macro_ids(context, false, in, out, err);
    case STAGE_ARRAYS: return map_macro_arrays(context, in, out, err);
    case STAGE_STARS: return map_macro_stars(context, in, out, err);
    case STAGE_TRANSPOSES: return map_macro_transposes(context, in, out, err);
    default: return map_macro_fused(context, chain, in, out, err);
    }
}

static bool name_needs(enum stage stage, const struct map_name *name)
{
    struct str base;
    switch (stage) {
    case STAGE_ARRAYS: return name->has_array;
    case STAGE_STARS: return memchr(name->text.data, '*', name->text.size) != NULL;
    case STAGE_TRANSPOSES: return map_strip_transpose(name->text, &base);
    default: return false;
    }
}

/* Whether a macro has anything to do; copying a million statements for nothing takes time. */
static bool is_needed(enum stage stage, const struct map_program *list)
{
    bool any = stage <= STAGE_IDS;
    for (uint32_t i = 0; i < list->count && !any; i++) {
        const struct map_statement *statement = &list->statements[i];
        any = stage == STAGE_FUSED && statement->flag;
        for (uint32_t j = 0; j < statement->left_count && !any; j++)
            any = name_needs(stage, &statement->left[j]);
        for (uint32_t j = 0; j < statement->right_count && !any; j++)
            any = name_needs(stage, &statement->right[j]);
    }
    return any;
}

/* Runs all macros; *last is the one of the two lists that holds the result. */
static reshard_status map_expand_run_stages(const struct map_macro_context *context, const struct map_program *program,
                                            struct map_chain *chain, struct map_program lists[2], int *last, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *last = 1;
    for (enum stage stage = 0; stage < STAGE_COUNT && !status; stage++) {
        const struct map_program *in = stage ? &lists[*last] : program;
        if (is_needed(stage, in)) {
            struct map_program *next = &lists[!*last];
            map_program_release(next);
            status = run_stage(context, stage, chain, in, next, err);
            *last = !*last;
        }
        if (stage == STAGE_STARS && !status) {
            map_macro_check_sides(context, &lists[*last]);
            status = map_chain_record(&lists[*last], chain, err);
        }
    }
    return status;
}

reshard_status map_expand(struct map_macro_context *context, const struct map_program *program, struct map_program *out, reshard_error *err)
{
    struct map_chain chain = { 0 };
    struct map_program lists[2] = { 0 };
    uint64_t work = 0;
    int last;
    out->arena.bytes_max = context->limits->map_bytes < SIZE_MAX ? (size_t)context->limits->map_bytes : SIZE_MAX;
    context->arena = &out->arena;
    context->work = &work;
    reshard_status status = map_expand_run_stages(context, program, &chain, lists, &last, err);
    if (!status && context->diagnoses->no_memory)
        status = error_set_memory(err);
    if (status == RESHARD_ERR_MEMORY)
        status = map_memory_error(&out->arena, err);
    if (!status) {
        out->statements = lists[last].statements;
        out->count = lists[last].count;
        out->capacity = lists[last].capacity;
        out->name_count = lists[last].name_count;
        lists[last] = (struct map_program){ 0 };
    }
    context->work = NULL;
    map_program_release(&lists[0]);
    map_program_release(&lists[1]);
    map_chain_release(&chain);
    return status;
}
