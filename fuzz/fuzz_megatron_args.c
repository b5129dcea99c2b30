/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any JSON object as the arguments of a Megatron run: what they say about the pipeline, the vocabulary, the ranks and the sizes of blocks.
 * A pipeline that is made holds every layer once; a rank's folder names its place.
 */
#include "base/model_data.h"
#include "encoding/json.h"
#include "formats/megatron/megatron_files.h"
#include "outcome.h"
#include "parallel/pipeline.h"
#include "parallel/vocabulary.h"
#include "run_args.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define STAGES_MAX 4096
#define LAYERS_MAX 4096
#define PLACES_MAX 512

static void check_pipeline(const struct training_args *args, struct arena *arena)
{
    struct pipeline_split pipeline;
    reshard_error err = RESHARD_ERROR_INIT;
    if (args->pp < 1 || args->vp < 1 || args->num_layers < 0 ||
        outcome_status(pipeline_split_make(args, arena, &pipeline, &err), &err))
        return;
    int64_t total = 0, stages = pipeline.pp * pipeline.vp;
    for (int64_t stage = 0; stage < stages; stage++) {
        if (pipeline.counts[stage] < 0 || pipeline.counts[stage] > args->num_layers ||
            (stage < STAGES_MAX && pipeline_first_layer(&pipeline, stage) != total))
            abort();
        total += pipeline.counts[stage];
        outcome_number((uint64_t)pipeline.counts[stage]);
    }
    if (total != args->num_layers)
        abort();
    for (int64_t layer = 0; layer < total && layer < LAYERS_MAX && stages < STAGES_MAX; layer++) {
        outcome_number((uint64_t)pipeline_stage_of(&pipeline, layer));
        if (pipeline_stage_of(&pipeline, layer) >= stages)
            abort();
    }
}

struct places {
    struct arena *arena;
    const struct parallel_layout *layout;
    int count;
};

static reshard_status check_place(const struct rank_place *place, int64_t global_rank, void *context, reshard_error *err)
{
    struct places *places = context;
    struct rank_folder folder;
    struct rank_place again;
    (void)global_rank, (void)err;
    const char *name = rank_folder_name(places->arena, places->layout, place);
    if (name && (!rank_folder_parse(str_of(name), &folder) ||
                 (rank_folder_place(&folder, places->layout, &again) && (again.tp != place->tp || again.pp != place->pp))))
        abort();
    outcome_text(str_of(name ? name : ""));
    return ++places->count < PLACES_MAX ? RESHARD_OK : RESHARD_ERR_LIMIT;
}

static int64_t at_least_one(int64_t number)
{
    return number < 1 ? 1 : number;
}

static void check_ranks(const struct training_args *args, struct arena *arena)
{
    const struct parallel_layout layout = { at_least_one(args->tp), at_least_one(args->pp), at_least_one(args->vp), at_least_one(args->ep),
                                            at_least_one(args->etp) };
    if (layout.tp > 64 || layout.pp > 64 || layout.ep > 64 || layout.etp > 64 || layout.vp > 64)
        return;
    for (int is_for_all = 0; is_for_all < 2; is_for_all++) {
        struct places places = { arena, &layout, 0 };
        outcome_status(rank_places(&layout, is_for_all, check_place, &places, NULL), NULL);
    }
}

static void check_sizes(const struct training_args *args, struct arena *arena)
{
    const struct model_data *data = model_data_find(STR("megatron.rules"));
    struct partition_rules rules = { 0 };
    if (!data || partition_rules_parse(data->text, arena, &rules, NULL))
        abort();
    for (uint32_t i = 0; i < rules.size_count; i++) {
        int64_t value = -1;
        if (partition_size_value(&rules, args, rules.sizes[i].name, &value) && value < 0)
            abort();
        outcome_number((uint64_t)value);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct value_graph graph = { 0 };
    struct arena arena = { 0 };
    struct limits limits = limits_default;
    if (!outcome_status(json_parse(bytes, size, &limits, &graph, NULL), NULL) && graph.root->kind == VALUE_DICT) {
        struct run_args run;
        struct training_args args;
        int64_t least = 0, most = 0;
        run_args_read(&run, graph.root, &args);
        if (padded_vocabulary_rows(&args, at_least_one(args.tp), &least, &most) && least > most)
            abort();
        outcome_number((uint64_t)least);
        outcome_number((uint64_t)most);
        outcome_number(experts_are_matrices(&args));
        check_pipeline(&args, &arena);
        check_ranks(&args, &arena);
        check_sizes(&args, &arena);
    }
    arena_release(&arena);
    value_graph_release(&graph);
    return 0;
}
