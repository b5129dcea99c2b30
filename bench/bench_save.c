/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans a save of a model of 405B parameters over many simulated ranks, as one of them does in reshard_save: what all have described is
 * read, checked, spread and laid out as torch_dist; and as it does for the next save of the same, with a reshard_kept. No values.
 * bench_save [DP] with tp 8 and pp 16: DP 70 are 8,960 ranks. Prints seconds by step.
 */
#include "api/save_kept.h"
#include "bench.h"
#include "convert/joint_save.h"
#include "parallel/sharded_dict.h"

#include <inttypes.h>

#define TP 8
#define PP 16
#define LAYERS 126
#define HIDDEN 16384
#define FFN 53248
#define VOCAB 128256

static reshard_error err;

/* axis -1: every rank has all of it. Rows and columns are those of a tensor-parallel rank. */
static const struct matrix {
    const char *name;
    int64_t rows, columns;
    int axis;
} matrices[] = {
    { "decoder.layers.self_attention.linear_qkv.weight", (HIDDEN + 2 * 1024) / TP, HIDDEN, 0 },
    { "decoder.layers.self_attention.linear_qkv.layer_norm_weight", HIDDEN, 0, -1 },
    { "decoder.layers.self_attention.linear_proj.weight", HIDDEN, HIDDEN / TP, 1 },
    { "decoder.layers.mlp.linear_fc1.layer_norm_weight", HIDDEN, 0, -1 },
    { "decoder.layers.mlp.linear_fc1.weight", 2 * FFN / TP, HIDDEN, 0 },
    { "decoder.layers.mlp.linear_fc2.weight", HIDDEN, FFN / TP, 1 },
};
#define MATRICES (sizeof(matrices) / sizeof(matrices[0]))

struct place {
    int64_t tp, dp, count; /* of data-parallel ranks */
};

/* A weight, which all data-parallel ranks have, or their part of a state of the optimizer: a run of its piece. */
static void add(struct sharded_dict *dict, const char *key, const struct matrix *matrix, int64_t layer, const struct place *place,
                int64_t begin, int64_t end)
{
    const int64_t local[] = { matrix->rows, matrix->columns };
    const int64_t replica[] = { 0, matrix->axis < 0 ? place->tp : 0, end < 0 ? place->dp : 0 };
    int prepended = layer >= 0;
    const struct rank_offset offsets[] = { { 0, layer, LAYERS }, { matrix->axis + prepended, place->tp, TP } };
    const struct sharded_tensor tensor = { .shard = { .key = str_of(key),
                                                      .dtype = end < 0 ? DTYPE_BF16 : DTYPE_F32,
                                                      .rank = prepended + (matrix->columns ? 2 : 1),
                                                      .extent = local,
                                                      .is_flattened = end >= 0,
                                                      .flat_begin = end < 0 ? 0 : begin,
                                                      .flat_end = end < 0 ? 0 : end,
                                                      .is_elsewhere = true },
                                           .prepended = prepended,
                                           .replica = { replica, 3 } };
    must(sharded_add_offsets(dict, &tensor, offsets + !prepended, (size_t)prepended + (matrix->axis >= 0), &err));
}

/* The optimizer's buffer of a stage is cut evenly: a rank has what its part meets. */
static void add_matrix(struct sharded_dict *dict, const struct matrix *matrix, int64_t layer, const struct place *place, int64_t *at,
                       int64_t share)
{
    static const char *const states[] = { "exp_avg", "exp_avg_sq", "param" };
    int64_t volume = matrix->rows * (matrix->columns ? matrix->columns : 1);
    int64_t begin = place->dp * share - *at, end = begin + share;
    char key[160];
    add(dict, matrix->name, matrix, layer, place, 0, -1);
    begin = begin < 0 ? 0 : begin;
    end = end > volume ? volume : end;
    *at += volume;
    if (matrix->axis < 0 && place->tp)
        return;
    for (int s = 0; s < 3 && begin < end; s++) {
        snprintf(key, sizeof(key), "optimizer.state.%s.%s", states[s], matrix->name);
        add(dict, key, matrix, layer, place, begin, end);
    }
}

static void rank_make(struct sharded_dict *dict, const struct place *place, int64_t stage)
{
    static const struct matrix ends[] = { { "embedding.word_embeddings.weight", VOCAB / TP, HIDDEN, 0 },
                                          { "output_layer.weight", VOCAB / TP, HIDDEN, 0 } };
    int64_t first = stage * LAYERS / PP, last = (stage + 1) * LAYERS / PP, total = 0, at = 0;
    for (size_t m = 0; m < MATRICES; m++)
        total += (last - first) * matrices[m].rows * (matrices[m].columns ? matrices[m].columns : 1);
    total += stage == 0 || stage == PP - 1 ? ends[0].rows * ends[0].columns : 0;
    int64_t share = (total + place->count - 1) / place->count;
    if (stage == 0)
        add_matrix(dict, &ends[0], -1, place, &at, share);
    for (int64_t layer = first; layer < last; layer++) {
        for (size_t m = 0; m < MATRICES; m++)
            add_matrix(dict, &matrices[m], layer, place, &at, share);
    }
    if (stage == PP - 1)
        add_matrix(dict, &ends[1], -1, place, &at, share);
}

/* What each rank sends. */
static struct buffer *ranks_pack(uint32_t ranks, int64_t dp)
{
    struct buffer *packed = calloc(ranks, sizeof(*packed));
    for (uint32_t r = 0; packed && r < ranks; r++) {
        struct sharded_dict dict = { 0 };
        const struct place place = { r % TP, r / TP % dp, dp };
        rank_make(&dict, &place, r / TP / dp);
        if (!sharded_pack(&dict, true, &packed[r]))
            exit(1);
        sharded_dict_release(&dict);
    }
    return packed;
}

/* The next save: what this rank has now is described and compared, and the plan turns to another target. */
static void kept_again(const struct sharded_dict *own, struct joint_save *save, const struct shard *shards,
                       const struct conversion_options *options, const struct engine_options *engine)
{
    uint64_t before = kept_description(own);
    struct buffer values = { 0 };
    bool is_good = false;
    double started = now();
    bool is_same = kept_description(own) == before && kept_values_pack(own, &values);
    must(joint_turn_to(save, shards, "/tmp/bench_save.tarxyz", options, engine, &is_good, &err));
    printf("the next save of the same: %.3f ms%s\n", 1e3 * (now() - started), is_same && is_good ? "" : ", which was not kept");
    buffer_release(&values);
}

static void plan_all(struct sharded_dict *dicts, const struct sharded_dict *const *ranks, uint32_t count)
{
    struct spread_owner **owners;
    struct joint_save save;
    size_t shard_count = 0, total = 0;
    const struct conversion_options options = { .to = "torch_dist", .by_writer = true, .max_shard_bytes = -1 };
    const struct engine_options engine = { .threads = 1 };
    double started = now();
    must(sharded_check(ranks, count, &err));
    double checked = now();
    must(sharded_owners_new(ranks, count, &owners, &err));
    must(sharded_spread(ranks, count, SPREAD_TO_SAVE, owners, &err));
    for (uint32_t r = 0; r < count; r++) {
        sharded_take_owners(&dicts[r], r, owners[r]);
        total += ranks[r]->tensor_count;
    }
    sharded_owners_free(owners, count);
    double spread = now();
    struct shard *shards = calloc(total + 1, sizeof(*shards));
    for (uint32_t r = 0; shards && r < count; r++) {
        for (size_t i = 0; i < ranks[r]->tensor_count; i++) {
            if (!replica_is_main(&ranks[r]->tensors[i].replica))
                continue;
            shards[shard_count] = ranks[r]->tensors[i].shard;
            shards[shard_count].is_elsewhere = true;
            shards[shard_count++].writer = r;
        }
    }
    const struct joint_input input = { .shards = shards, .shard_count = shard_count, .name = "model" };
    must(joint_prepare(&save, &input, "/tmp/bench_save.target", &options, &engine, &err));
    double planned = now();
    printf("%zu shards of %" PRIu32 " ranks, %zu of them saved in %" PRIu32 " chunks: check %.3f s, spread %.3f s, "
           "lay out and plan %.3f s\n",
           total, count, shard_count, save.feeding.conversion.target.catalog->chunk_count, checked - started, spread - checked,
           planned - spread);
    kept_again(&dicts[0], &save, shards, &options, &engine);
    joint_release(&save);
    free(shards);
}

int main(int argc, char **argv)
{
    int64_t dp = argc > 1 ? atoi(argv[1]) : 70;
    uint32_t ranks = (uint32_t)(dp * TP * PP);
    struct buffer *packed = ranks_pack(ranks, dp);
    struct sharded_dict *dicts = calloc(ranks, sizeof(*dicts));
    const struct sharded_dict **pointers = calloc(ranks, sizeof(const struct sharded_dict *));
    uint64_t bytes = 0;
    double started = now();
    for (uint32_t r = 0; dicts && pointers && r < ranks; r++) {
        must(sharded_unpack(packed[r].data, packed[r].size, &dicts[r], &err));
        pointers[r] = &dicts[r];
        bytes += packed[r].size;
    }
    double read = now();
    plan_all(dicts, pointers, ranks);
    printf("%" PRIu64 " bytes of descriptions read in %.3f s; in all %.3f s\n", bytes, read - started, now() - started);
    for (uint32_t r = 0; r < ranks; r++) {
        sharded_dict_release(&dicts[r]);
        buffer_release(&packed[r]);
    }
    free(packed);
    free(dicts);
    free((void *)pointers);
    return 0;
}
