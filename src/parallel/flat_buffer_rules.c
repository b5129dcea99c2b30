/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/flat_buffer_rules.h"

#include "base/checked.h"
#include "tensor/box.h"

#include <inttypes.h>

#define BUCKET_SIZE_MIN 40000000   /* default: the larger of this and so many elements a rank */
#define BUCKET_SIZE_PER_RANK 1000000
#define PARAMETER_ALIGNMENT 64
#define BUCKET_MULTIPLE 128
#define BUCKET_MULTIPLE_NCCL 65536

static int64_t argument(const struct value *args, const char *name, int64_t fallback)
{
    const struct value *value = args ? value_dict_get(args, name) : NULL;
    int64_t number;
    return value && value_as_int(value, &number) ? number : fallback;
}

/* Ranks that share dense parameters, and ranks that share an expert; 1 where the arguments do not say. */
static bool data_parallel_sizes(const struct value *args, int64_t *dense, int64_t *expert)
{
    int64_t tp = argument(args, "tensor_model_parallel_size", argument(args, "model_parallel_size", 1));
    int64_t pp = argument(args, "pipeline_model_parallel_size", 1), ep = argument(args, "expert_model_parallel_size", 1);
    int64_t etp = argument(args, "expert_tensor_parallel_size", tp), world = argument(args, "world_size", 0);
    int64_t model, expert_model;
    if (tp < 1 || pp < 1 || ep < 1 || etp < 1 || world < 0 || !checked_mul_i64(tp, pp, &model) ||
        !checked_mul_i64(ep, etp, &expert_model) || !checked_mul_i64(expert_model, pp, &expert_model))
        return false;
    *dense = world / model;
    *expert = world / expert_model;
    if (*dense < 1)
        *dense = 1;
    if (*expert < 1)
        *expert = 1;
    return true;
}

static bool total_elements(const struct rank_parameter *parameters, uint32_t count, int64_t *out)
{
    int64_t sum = 0, one;
    for (uint32_t i = 0; i < count; i++) {
        if (!shape_volume(parameters[i].rank, parameters[i].shape, &one) || !checked_add_i64(sum, one, &sum))
            return false;
    }
    *out = sum;
    return true;
}

/* Buckets exist so that gradients can be reduced while later ones are computed; without that there is one. */
static bool bucket_size(const struct training_run *run, const struct rank_parameter *parameters, uint32_t count, int64_t dense_ranks,
                        int64_t *out)
{
    const struct value *args = run->args;
    int64_t buckets = argument(args, "ddp_num_buckets", 0), total, scaled;
    *out = 0;
    if (!value_dict_is_true(args, "overlap_grad_reduce"))
        return true;
    if (buckets > 0) {
        if (!total_elements(parameters, count, &total))
            return false;
        *out = (run->elements ? run->elements : total) / buckets;
        return true;
    }
    if (!checked_mul_i64(dense_ranks, BUCKET_SIZE_PER_RANK, &scaled))
        return false;
    *out = argument(args, "ddp_bucket_size", scaled > BUCKET_SIZE_MIN ? scaled : BUCKET_SIZE_MIN);
    return *out >= 0;
}

reshard_status flat_buffer_rules_of(const struct training_run *run, const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                    struct flat_buffer_rules *out, reshard_error *err)
{
    int64_t dense = 1, expert = 1;
    *out = (struct flat_buffer_rules){ .alignment = PARAMETER_ALIGNMENT, .bucket_multiple = BUCKET_MULTIPLE };
    if (!data_parallel_sizes(run->args, &dense, &expert) || !bucket_size(run, parameters, count, dense, &out->bucket_size))
        return error_set(err, RESHARD_ERR_FORMAT, "impossible numbers in args: parallel sizes, world_size or ddp_bucket_size");
    out->dp = is_expert ? expert : dense;
    if (value_dict_is_true(run->args, "ddp_pad_buckets_for_high_nccl_busbw"))
        out->bucket_multiple = BUCKET_MULTIPLE_NCCL;
    bool is_bucketed = run->stage == 0 && !value_dict_is_true(run->args, "overlap_param_gather_with_optimizer_step");
    out->bucketed_chunks = is_bucketed ? 1 : 0;
    return RESHARD_OK;
}
