/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/pipeline.h"

#include "base/buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYOUT_BYTES_MAX (1u << 20)

const char *divisors_text(int64_t number, char out[DIVISORS_TEXT_MAX])
{
    size_t size = 0;
    out[0] = '\0';
    for (int64_t i = 1; i <= number && i <= 65536 && size + 24 < DIVISORS_TEXT_MAX; i++)
        if (number % i == 0)
            size += (size_t)snprintf(out + size, DIVISORS_TEXT_MAX - size, "%s%" PRId64, size ? ", " : "", i);
    return out;
}

int64_t pipeline_first_layer(const struct pipeline_split *pipeline, int64_t stage)
{
    int64_t offset = 0;
    for (int64_t i = 0; i < stage; i++)
        offset += pipeline->counts[i];
    return offset;
}

int64_t pipeline_stage_of(const struct pipeline_split *pipeline, int64_t layer)
{
    int64_t stages = pipeline->pp * pipeline->vp, stage = 0;
    while (stage < stages && layer >= pipeline->counts[stage])
        layer -= pipeline->counts[stage++];
    return stage;
}

int64_t pipeline_stage_of_key(const struct pipeline_split *pipeline, const struct partition_rules *rules, struct str name,
                              const struct partition_key *key)
{
    if (key->stack && !key->stack->is_own)
        return pipeline_stage_of(pipeline, key->layer);
    switch (partition_key_place(rules, name)) {
    case PLACE_LAST: return pipeline->pp * pipeline->vp - 1;
    case PLACE_NORM: return pipeline->norm_stage;
    case PLACE_MTP: return pipeline->mtp_stage;
    default: return 0;
    }
}

static reshard_status pipeline_fail_division(const char *what, int64_t layers, int64_t stages, reshard_error *err)
{
    char divisors[DIVISORS_TEXT_MAX];
    error_set(err, RESHARD_ERR_UNSUPPORTED, "%" PRId64 " %s do not divide evenly over %" PRId64 " pipeline stages (pp times vp)", layers,
              what, stages);
    error_hint(err, "pp times vp may be %s; uneven pipelines are taken from a reference: reshard_convert_options.like",
               divisors_text(layers, divisors));
    return RESHARD_ERR_UNSUPPORTED;
}

/* Every stage alike, apart from what the embedding and the loss stand for. */
static reshard_status place_uniform(const struct training_args *args, struct pipeline_split *out, reshard_error *err)
{
    int64_t stages = out->pp * out->vp, embedding = args->with_embedding == 1, loss = args->with_loss == 1;
    int64_t total = args->num_layers + embedding + loss;
    if (total % stages)
        return pipeline_fail_division(embedding + loss ? "layers (embedding and loss counted)" : "layers", total, stages, err);
    for (int64_t i = 0; i < stages; i++)
        out->counts[i] = total / stages;
    out->counts[0] -= embedding;
    out->counts[stages - 1] -= loss;
    if (out->counts[0] < 0 || out->counts[stages - 1] < 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "pp=%" PRId64 " leaves no layer beside embedding and loss", out->pp);
    return RESHARD_OK;
}

/* The first or the last rank has a number of its own. */
static reshard_status place_ends(const struct training_args *args, struct pipeline_split *out, reshard_error *err)
{
    bool has_first = args->first_layers != TRAINING_ARG_UNKNOWN, has_last = args->last_layers != TRAINING_ARG_UNKNOWN;
    int64_t first = has_first ? args->first_layers : 0, last = has_last ? args->last_layers : 0;
    int64_t middle_ranks = out->pp - has_first - has_last;
    if (first < 0 || last < 0 || first > args->num_layers || last > args->num_layers - first || middle_ranks < 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "pp=%" PRId64 " with %" PRId64 " layers on the first and %" PRId64 " on the last rank does not place %" PRId64
                         " layers",
                         out->pp, first, last, args->num_layers);
    int64_t middle = args->num_layers - first - last, parts = middle_ranks * out->vp;
    if (first % out->vp || last % out->vp || (parts == 0 ? middle != 0 : middle % parts != 0))
        return pipeline_fail_division("layers of the other ranks", middle, parts, err);
    for (int64_t chunk = 0; chunk < out->vp; chunk++) {
        for (int64_t rank = 0; rank < out->pp; rank++) {
            int64_t count = parts ? middle / parts : 0;
            if (has_first && rank == 0)
                count = first / out->vp;
            else if (has_last && rank == out->pp - 1)
                count = last / out->vp;
            out->counts[chunk * out->pp + rank] = count;
        }
    }
    return RESHARD_OK;
}

/* ---- layout texts: "Et|(tt|)*2tL" ---- */

static bool repeat_count(struct str text, size_t *at, uint64_t *out)
{
    size_t begin = *at;
    while (*at < text.size && text.data[*at] >= '0' && text.data[*at] <= '9')
        (*at)++;
    return str_to_u64((struct str){ text.data + begin, *at - begin }, out) && *out <= LAYOUT_BYTES_MAX;
}

/* Appends what is written at *at, repeated if "*n" follows. */
static bool expand_unit(struct str text, size_t *at, struct buffer *out)
{
    struct str unit = { text.data + *at, 1 };
    if (text.data[*at] == '(') {
        size_t close = *at + 1;
        while (close < text.size && text.data[close] != ')')
            close++;
        if (close == text.size)
            return false;
        unit = (struct str){ text.data + *at + 1, close - *at - 1 };
        *at = close;
    }
    (*at)++;
    uint64_t count = 1;
    if (*at < text.size && text.data[*at] == '*') {
        (*at)++;
        if (!repeat_count(text, at, &count))
            return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        for (size_t j = 0; j < unit.size; j++) {
            size_t inner = j;
            struct str rest = { unit.data, unit.size };
            uint64_t again = 1;
            inner++;
            if (inner < rest.size && rest.data[inner] == '*') {
                inner++;
                if (!repeat_count(rest, &inner, &again))
                    return false;
            }
            if (unit.data[j] != ',' && unit.data[j] != ' ' && !buffer_append_fill(out, (uint8_t)unit.data[j], (size_t)again))
                return false;
            j = inner - 1;
        }
    }
    return true;
}

static reshard_status count_stages(struct str letters, const struct training_args *args, struct pipeline_split *out, reshard_error *err)
{
    int64_t stages = out->pp * out->vp, stage = 0, total = 0;
    for (size_t i = 0; i < letters.size; i++) {
        char letter = letters.data[i];
        if (letter == '|') {
            stage++;
        } else if (letter == 't' && stage < stages) {
            out->counts[stage]++;
            total++;
        } else if (letter == 'm' && stage < stages) {
            out->mtp_stage = stage;
        } else if (!strchr("EtmL", letter)) {
            return error_set(err, RESHARD_ERR_FORMAT, "pipeline layout '%.*s': '%c' is none of E, t, m, L", STR_ARG(args->layout), letter);
        }
    }
    if (stage + 1 != stages || (args->num_layers != TRAINING_ARG_UNKNOWN && total != args->num_layers))
        return error_set(err, RESHARD_ERR_FORMAT,
                         "pipeline layout '%.*s': %" PRId64 " stages with %" PRId64 " layers, expected %" PRId64 " with %" PRId64,
                         STR_ARG(args->layout), stage + 1, total, stages, args->num_layers);
    return RESHARD_OK;
}

static reshard_status place_layout(const struct training_args *args, struct pipeline_split *out, reshard_error *err)
{
    struct buffer letters = { .limit = LAYOUT_BYTES_MAX };
    reshard_status status = RESHARD_OK;
    for (size_t at = 0; !status && at < args->layout.size;)
        if (!expand_unit(args->layout, &at, &letters))
            status = letters.failed && !letters.over_limit
                         ? error_set_memory(err)
                         : error_set(err, RESHARD_ERR_FORMAT, "pipeline layout '%.*s' cannot be read", STR_ARG(args->layout));
    if (!status)
        status = count_stages(buffer_str(&letters), args, out, err);
    buffer_release(&letters);
    return status;
}

reshard_status pipeline_split_make(const struct training_args *args, struct arena *arena, struct pipeline_split *out, reshard_error *err)
{
    struct pipeline_split pipeline = { .pp = args->pp > 0 ? args->pp : 1, .vp = args->vp > 0 ? args->vp : 1 };
    if (pipeline.pp > PIPELINE_STAGES_MAX || pipeline.vp > PIPELINE_STAGES_MAX || pipeline.pp * pipeline.vp > PIPELINE_STAGES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%" PRId64 " times %" PRId64 " pipeline stages, at most %d are possible", pipeline.pp,
                         pipeline.vp, PIPELINE_STAGES_MAX);
    pipeline.counts = arena_zalloc(arena, (size_t)(pipeline.pp * pipeline.vp) * sizeof(*pipeline.counts));
    if (!pipeline.counts)
        return error_set_memory(err);
    pipeline.norm_stage = pipeline.mtp_stage = pipeline.pp * pipeline.vp - 1;
    reshard_status status;
    if (args->num_layers == TRAINING_ARG_UNKNOWN || args->num_layers < 0 || args->num_layers > INT32_MAX)
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "the number of layers is not known");
    else if (args->layout.size > 0)
        status = place_layout(args, &pipeline, err);
    else if (args->first_layers != TRAINING_ARG_UNKNOWN || args->last_layers != TRAINING_ARG_UNKNOWN)
        status = place_ends(args, &pipeline, err);
    else
        status = place_uniform(args, &pipeline, err);
    if (status)
        return status;
    while (args->norm_follows_layers && pipeline.norm_stage > 0 && pipeline.counts[pipeline.norm_stage] == 0)
        pipeline.norm_stage--;
    *out = pipeline;
    return RESHARD_OK;
}
