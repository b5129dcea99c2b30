/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_expand.h"

#include "mapping/map_chain.h"

reshard_status map_emit(const struct map_macro_context *context, struct map_program *list, const struct map_statement *statement, reshard_error *err)
{
    if (!map_program_append(list, statement))
        return error_set_memory(err);
    if (list->name_count > context->limits->map_names)
        return error_set_limit(err, "map_names", list->name_count, context->limits->map_names);
    return RESHARD_OK;
}

enum stage { STAGE_OFFSET, STAGE_IDS, STAGE_ARRAYS, STAGE_STARS, STAGE_TRANSPOSES, STAGE_FUSED, STAGE_COUNT };

static reshard_status run_stage(const struct map_macro_context *context, enum stage stage, const struct map_chain *chain, const struct map_program *in,
                                struct map_program *out, reshard_error *err)
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

reshard_status map_expand(struct map_macro_context *context, const struct map_program *program, struct map_program *out, reshard_error *err)
{
    struct map_chain chain = { 0 };
    struct map_program lists[2] = { 0 };
    const struct map_program *in = program;
    reshard_status status = RESHARD_OK;
    uint64_t work = 0;
    context->arena = &out->arena;
    context->work = &work;
    for (enum stage stage = 0; stage < STAGE_COUNT && !status; stage++) {
        struct map_program *next = &lists[stage % 2];
        map_program_release(next);
        status = run_stage(context, stage, &chain, in, next, err);
        if (stage == STAGE_STARS && !status) {
            map_macro_check_sides(context, next);
            status = map_chain_record(next, &chain, err);
        }
        in = next;
    }
    if (!status && context->diagnoses->no_memory)
        status = error_set_memory(err);
    if (!status) {
        struct map_program *last = &lists[(STAGE_COUNT - 1) % 2];
        out->statements = last->statements;
        out->count = last->count;
        out->capacity = last->capacity;
        out->name_count = last->name_count;
        *last = (struct map_program){ 0 };
    }
    context->work = NULL;
    map_program_release(&lists[0]);
    map_program_release(&lists[1]);
    map_chain_release(&chain);
    return status;
}
