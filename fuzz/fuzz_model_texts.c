/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as one of the texts of models/: byte 0, 0: partition rules, 1: names of parameters, 2: settings. What follows a NUL is used
 * with what was parsed: lines of keys, or the JSON of a configuration; behind a second NUL, the arguments of a run.
 */
#include "encoding/json.h"
#include "parallel/partition_rules.h"
#include "parallel/parameter_names.h"
#include "mapping/settings.h"
#include "outcome.h"
#include "run_args.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define JSON_BYTES_MAX (64 << 10)

static const char some_keys[] = "decoder.layers.3.mlp.experts.local_experts.1.linear_fc1.weight\n"
                                "embedding.word_embeddings.weight\n"
                                "module.decoder.layers.0.self_attention.linear_qkv.weight\n"
                                "optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.layer_norm_weight\n"
                                "output_layer.weight\n"
                                "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight\n"
                                "decoder.layers.1.self_attention.core_attention._extra_state";
static const char some_config[] = "{\"hidden_size\":64,\"num_attention_heads\":4,\"num_hidden_layers\":4,\"vocab_size\":96,\"a\":[0,1,1],"
                                  "\"b\":{\"c\":true},\"d\":1.5,\"e\":null}";
static const char some_args[] = "{\"hidden_size\":64,\"num_attention_heads\":4,\"num_query_groups\":2,\"num_layers\":4,\"swiglu\":true,"
                                "\"kv_channels\":16,\"num_experts\":4}";

static void check_renumbered(struct str key, const struct partition_key *read)
{
    struct buffer out = { 0 };
    outcome_number((uint64_t)read->layer << 32 | (uint32_t)read->expert);
    if (partition_renumber(&out, key, read, 0, key.size, read->layer, read->expert) && out.size > key.size)
        abort();
    outcome_text(buffer_str(&out));
    buffer_release(&out);
}

static void use_rules(struct str text, struct str keys, struct value_graph *args)
{
    struct arena arena = { 0 };
    struct partition_rules rules = { 0 };
    struct training_args known;
    struct run_args run;
    run_args_read(&run, args->root->kind == VALUE_DICT ? args->root : NULL, &known);
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(partition_rules_parse(text, &arena, &rules, &err), &err)) {
        while (keys.size) {
            struct str key = str_take(&keys, '\n');
            struct partition_key read;
            const enum partition_place place = partition_key_place(&rules, key);
            size_t prefix = 0;
            outcome_number(place != PLACE_UNKNOWN);
            outcome_number(place >= PLACE_LAST);
            if (!partition_key_read(&rules, key, &read))
                continue;
            check_renumbered(key, &read);
            outcome_number(partition_grouping_of(&rules, key, &read, &prefix) != NULL);
            outcome_number(prefix);
        }
        for (uint32_t i = 0; i < rules.size_count; i++) {
            int64_t value = -1;
            outcome_number(partition_size_value(&rules, &known, rules.sizes[i].name, &value));
            outcome_number((uint64_t)value);
        }
    }
    arena_release(&arena);
}

/* Registered names and keys are read, and written from what was read. */
static void use_names(struct str text, struct str keys)
{
    struct arena arena = { 0 };
    struct parameter_names names = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(parameter_names_parse(text, &arena, &names, &err), &err)) {
        struct parameter_name previous = { 0 };
        bool has_previous = false;
        for (unsigned conditions = 0; keys.size; conditions = (conditions + 1) & 7) {
            struct str key = str_take(&keys, '\n');
            struct parameter_name parameter;
            struct buffer out = { 0 };
            bool is_name = parameter_name_read(&names, conditions, key, &parameter);
            outcome_number(is_name);
            if (is_name)
                parameter_name_write(&names, &parameter, &out);
            if (is_name && !out.failed && !str_equal(buffer_str(&out), key))
                abort();
            if (is_name || parameter_key_read(&names, conditions, key, &parameter)) {
                parameter_key_write(&names, &parameter, parameter.number_count, &out);
                if (has_previous &&
                    parameter_name_compare(&names, &previous, &parameter) * (long)parameter_name_compare(&names, &parameter, &previous) > 0)
                    abort();
                outcome_number((uint64_t)(has_previous ? parameter_name_compare(&names, &previous, &parameter) : 0));
                previous = parameter;
                has_previous = true;
            }
            outcome_text(buffer_str(&out));
            buffer_release(&out);
        }
    }
    arena_release(&arena);
}

static void run_settings(const struct settings *settings, enum settings_side from, const struct value_graph *members,
                         const struct value_graph *given)
{
    struct settings_input input = { members->root, NULL, members->count, 0 };
    struct settings_result result = { 0 };
    struct buffer why = { 0 }, json = { 0 };
    enum settings_verdict verdict = SETTINGS_FIT;
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(settings_run(settings, from, &input, given->root, given->count, &result, &err), &err)) {
        value_to_json(result.members, &json, AT_MOST(JSON_BYTES_MAX), NULL);
        outcome_text(buffer_str(&json));
        settings_result_release(&result);
    }
    outcome_status(settings_fit(settings, from, &input, &verdict, &why, &err), &err);
    outcome_number(verdict == SETTINGS_FIT ? 1 : verdict == SETTINGS_UNFIT ? 0 : 2);
    outcome_number(settings_mention(settings, from, STR("hidden_size")));
    buffer_release(&why);
    buffer_release(&json);
}

static void use_settings(struct str text, const struct value_graph *config, const struct value_graph *args)
{
    struct settings settings = { 0 };
    const struct value_graph nothing = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(settings_parse("fuzz", text, &settings, &err), &err))
        return;
    if (config->root && config->root->kind == VALUE_DICT) {
        run_settings(&settings, SETTINGS_CONFIG, config, &nothing);
        if (args->root && args->root->kind == VALUE_DICT)
            run_settings(&settings, SETTINGS_CONFIG, config, args);
    }
    if (args->root && args->root->kind == VALUE_DICT)
        run_settings(&settings, SETTINGS_ARGS, args, &nothing);
    settings_release(&settings);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    struct limits limits = limits_default;
    struct str rest = { (const char *)bytes + 1, size - 1 }, text = str_take(&rest, '\0'), use = str_take(&rest, '\0');
    bool has_keys = bytes[0] % 3 != 2;
    struct str config = use.size ? use : str_of(some_config), args = rest.size ? rest : str_of(some_args);
    struct value_graph config_graph = { 0 }, args_graph = { 0 };
    if (json_parse(args.data, args.size, &limits, &args_graph, NULL) == RESHARD_OK) {
        if (bytes[0] % 3 == 0)
            use_rules(text, use.size ? use : str_of(some_keys), &args_graph);
        else if (bytes[0] % 3 == 1)
            use_names(text, use.size ? use : str_of(some_keys));
        else if (!has_keys && json_parse(config.data, config.size, &limits, &config_graph, NULL) == RESHARD_OK)
            use_settings(text, &config_graph, &args_graph);
    }
    value_graph_release(&config_graph);
    value_graph_release(&args_graph);
    return 0;
}
