/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/training_args.h"

struct value *namespace_new(struct value_graph *graph, struct value *members)
{
    struct value *made = value_new(graph, VALUE_NEW);
    struct value **states = arena_array(&graph->arena, 1, sizeof(*states));
    if (!made || !states || !members)
        return NULL;
    states[0] = members;
    made->object->callable = value_new_global(graph, "argparse", "Namespace");
    made->object->args = value_new_list(graph, VALUE_TUPLE, NULL, 0);
    made->object->states = states;
    made->object->state_count = 1;
    return made->object->callable && made->object->args ? made : NULL;
}

const struct value *namespace_members(const struct value *namespace)
{
    if (!namespace || (namespace->kind != VALUE_NEW && namespace->kind != VALUE_CALL))
        return NULL;
    if (namespace->object->state_count > 0) {
        const struct value *state = namespace->object->states[namespace->object->state_count - 1];
        return state->kind == VALUE_DICT ? state : NULL;
    }
    return NULL;
}

static bool value_number(const struct value *value, int64_t *out)
{
    if (value->kind == VALUE_BOOL) {
        *out = value->boolean;
        return true;
    }
    return value_as_int(value, out);
}

int64_t training_args_int(const struct training_args *args, const char *name)
{
    int64_t number;
    const struct value *value = args->members && name[0] ? value_dict_get(args->members, name) : NULL;
    return value && value_number(value, &number) ? number : TRAINING_ARG_UNKNOWN;
}

/* Layers of several kinds: by a list of layers, or every N-th. */
static bool is_mixed(const struct training_args *args, const char *name)
{
    const struct value *value = args->members ? value_dict_get(args->members, name) : NULL;
    int64_t every;
    if (!value || value->kind == VALUE_NONE)
        return false;
    return value_as_int(value, &every) ? every > 1 : value->kind == VALUE_LIST || value->kind == VALUE_TUPLE;
}

static bool is_set(const struct training_args *args, const char *name)
{
    const struct value *value = args->members ? value_dict_get(args->members, name) : NULL;
    return value && value->kind != VALUE_NONE && !(value->kind == VALUE_BOOL && !value->boolean);
}

void training_args_read(const struct value *namespace, struct training_args *out)
{
    static const struct {
        size_t offset;
        const char *name, *alias;
    } fields[] = {
#define X(field, name, alias) { offsetof(struct training_args, field), name, alias },
        TRAINING_ARGS(X)
#undef X
    };
    *out = (struct training_args){ .members = namespace_members(namespace) };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        int64_t number = training_args_int(out, fields[i].name);
        if (number == TRAINING_ARG_UNKNOWN)
            number = training_args_int(out, fields[i].alias);
        memcpy((char *)out + fields[i].offset, &number, sizeof(number));
    }
    if (!out->members)
        return;
    const struct value *layout = value_dict_get(out->members, "pipeline_model_parallel_layout");
    if (layout && layout->kind == VALUE_STR)
        out->layout = layout->text;
    const struct value *spec = value_dict_get(out->members, "transformer_impl");
    out->is_local_spec = spec && spec->kind == VALUE_STR && str_is(spec->text, "local");
    out->is_hybrid = is_set(out, "hybrid_layer_pattern") || is_set(out, "hybrid_override_pattern");
    out->has_mixed_layers = is_mixed(out, "moe_layer_freq") || is_mixed(out, "linear_attention_freq") ||
                            out->is_hybrid || is_set(out, "mla_down_proj_fusion") ||
                            is_set(out, "heterogeneous_layers_config_path") || is_set(out, "hetereogenous_dist_checkpoint");
    out->parts_by_etp = value_dict_get(out->members, PARTS_EXPERTS_BY_ETP) != NULL;
    out->is_since_0_17 = value_dict_get(out->members, SINCE_0_17) != NULL;
    out->spreads_rng = value_dict_get(out->members, SINCE_0_16) && !out->is_since_0_17;
    out->norm_follows_layers = (value_dict_get(out->members, SINCE_0_16) || out->is_since_0_17) && out->mtp_layers != TRAINING_ARG_UNKNOWN;
}

bool training_args_are_gated(const struct training_args *args)
{
    return args->is_swiglu == 1 || args->is_geglu == 1;
}

bool training_args_say_gates(const struct training_args *args)
{
    return args->is_swiglu != TRAINING_ARG_UNKNOWN || args->is_geglu != TRAINING_ARG_UNKNOWN;
}

bool experts_are_apart(bool parts_by_etp, int64_t tp, int64_t ep, int64_t etp)
{
    return ep > 1 || (parts_by_etp && etp != tp);
}

bool experts_are_matrices(const struct training_args *args)
{
    return training_args_int(args, "moe_grouped_gemm") == 1 &&
           (args->is_local_spec || training_args_int(args, "moe_use_legacy_grouped_gemm") == 1);
}
