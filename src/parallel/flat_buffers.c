/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/flat_buffers.h"

#include "base/array.h"
#include "base/checked.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

/* State of filling one buffer. */
struct filling {
    const struct rank_parameter *parameters;
    const struct flat_buffer_rules *rules;
    struct flat_buffers *out;
    int64_t bucket_multiple;  /* lcm of the rules' with dp */
    int64_t bucket_size;      /* 0: one bucket */
    int64_t position;         /* where the next parameter may begin */
    int64_t bucket_start, packed;
    uint32_t bucket_first_place;
};

static bool flat_round_up(int64_t value, int64_t multiple, int64_t *out)
{
    int64_t sum;
    if (!checked_add_i64(value, multiple - 1, &sum))
        return false;
    *out = sum - sum % multiple;
    return true;
}

static bool least_common_multiple(int64_t a, int64_t b, int64_t *out)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return checked_mul_i64(a / x, b, out);
}

static bool close_bucket(struct filling *filling, int64_t end)
{
    struct flat_buffers *out = filling->out;
    struct flat_bucket *bucket = &out->buckets[out->bucket_count];
    int64_t padded;
    if (!flat_round_up(end, filling->bucket_multiple, &padded))
        return false;
    *bucket = (struct flat_bucket){ .start = filling->bucket_start,
                                    .packed_start = filling->packed,
                                    .count = padded - filling->bucket_start,
                                    .unpadded = end - filling->bucket_start,
                                    .first_place = filling->bucket_first_place,
                                    .place_count = out->place_count - filling->bucket_first_place };
    filling->packed += bucket->unpadded;
    filling->bucket_start = filling->position = padded;
    filling->bucket_first_place = out->place_count;
    out->bucket_count++;
    return true;
}

/* Puts a parameter behind what is there. Its bucket is the open one, whose number is that of the next to be closed. */
static bool flat_add_parameter(struct filling *filling, uint32_t parameter)
{
    struct flat_buffers *out = filling->out;
    const struct rank_parameter *info = &filling->parameters[parameter];
    int64_t count, start, end;
    if (!shape_volume(info->rank, info->shape, &count) || !flat_round_up(filling->position, filling->rules->alignment, &start))
        return false;
    bool is_open = out->place_count > filling->bucket_first_place;
    if (info->is_shared_embedding && is_open) {
        if (!close_bucket(filling, start))
            return false;
        start = filling->position;
    }
    if (!checked_add_i64(start, count, &end))
        return false;
    out->places[out->place_count++] =
        (struct flat_place){ .parameter = parameter, .bucket = out->bucket_count, .start = start, .count = count };
    filling->position = end;
    bool is_full = filling->bucket_size && end - filling->bucket_start >= filling->bucket_size;
    return info->is_shared_embedding || is_full ? close_bucket(filling, end) : true;
}

static bool same_buffer(const struct flat_buffer *buffer, const struct rank_parameter *parameter)
{
    return buffer->chunk == parameter->chunk && buffer->param_dtype == parameter->param_dtype &&
           buffer->grad_dtype == parameter->grad_dtype;
}

static bool fill_buffer(struct filling *filling, struct flat_buffer *buffer, bool is_expert)
{
    struct flat_buffers *out = filling->out;
    filling->bucket_size = buffer->chunk < filling->rules->bucketed_chunks ? filling->rules->bucket_size : 0;
    filling->position = filling->bucket_start = filling->packed = 0;
    filling->bucket_first_place = buffer->first_place = out->place_count;
    buffer->first_bucket = out->bucket_count;
    for (uint32_t i = buffer->end_parameter; i-- > buffer->first_parameter;) {
        const struct rank_parameter *parameter = &filling->parameters[i];
        if (parameter->is_expert == is_expert && same_buffer(buffer, parameter) && !flat_add_parameter(filling, i))
            return false;
    }
    if (out->place_count > filling->bucket_first_place && !close_bucket(filling, filling->position))
        return false;
    buffer->place_count = out->place_count - buffer->first_place;
    buffer->bucket_count = out->bucket_count - buffer->first_bucket;
    buffer->count = filling->bucket_start;
    buffer->unpadded = filling->packed;
    return true;
}

/* One buffer for each pair of dtypes in each chunk, in the order in which parameters name them. */
static void find_buffers(const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct flat_buffers *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct rank_parameter *parameter = &parameters[i];
        if (parameter->is_expert != is_expert)
            continue;
        /* Chunks follow each other, and a chunk has a handful of dtypes: the latest buffers are the ones to look at. */
        uint32_t found = out->buffer_count;
        while (found > 0 && out->buffers[found - 1].chunk == parameter->chunk && !same_buffer(&out->buffers[found - 1], parameter))
            found--;
        if (found == 0 || !same_buffer(&out->buffers[found - 1], parameter)) {
            found = ++out->buffer_count;
            out->buffers[found - 1] = (struct flat_buffer){
                .param_dtype = parameter->param_dtype, .grad_dtype = parameter->grad_dtype, .chunk = parameter->chunk, .first_parameter = i
            };
        }
        out->buffers[found - 1].end_parameter = i + 1;
    }
}

reshard_status flat_buffers_make(const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                 const struct flat_buffer_rules *rules, struct flat_buffers *out, reshard_error *err)
{
    struct filling filling = { .parameters = parameters, .rules = rules, .out = out };
    *out = (struct flat_buffers){ 0 };
    if (rules->dp < 1 || rules->alignment < 1 || rules->bucket_multiple < 1 || rules->bucket_size < 0 ||
        !least_common_multiple(rules->dp, rules->bucket_multiple, &filling.bucket_multiple))
        return error_set(err, RESHARD_ERR_FORMAT, "impossible optimizer buffers: data-parallel size %" PRId64 ", bucket size %" PRId64,
                         rules->dp, rules->bucket_size);
    /* Of what is given, a parameter makes at most one buffer, one place and two buckets. */
    out->buffers = array_zeroed(count, sizeof(*out->buffers));
    out->places = array_zeroed(count, sizeof(*out->places));
    out->buckets = array_zeroed(count, 2 * sizeof(*out->buckets));
    if (!out->buffers || !out->places || !out->buckets) {
        flat_buffers_release(out);
        return error_set_memory(err);
    }
    find_buffers(parameters, count, is_expert, out);
    for (uint32_t i = 0; i < out->buffer_count; i++) {
        if (!fill_buffer(&filling, &out->buffers[i], is_expert)) {
            flat_buffers_release(out);
            return error_set(err, RESHARD_ERR_FORMAT, "the sizes of the parameters of optimizer buffer %" PRIu32 " overflow", i);
        }
    }
    return RESHARD_OK;
}

void flat_buffers_release(struct flat_buffers *buffers)
{
    free(buffers->buffers);
    free(buffers->buckets);
    free(buffers->places);
    *buffers = (struct flat_buffers){ 0 };
}

int64_t flat_packed_start(const struct flat_buffers *buffers, const struct flat_place *place)
{
    const struct flat_bucket *bucket = &buffers->buckets[place->bucket];
    return bucket->packed_start + (place->start - bucket->start);
}

/* ---- which rules a file was written with ---- */

static bool fits(const struct flat_buffers *buffers, const struct flat_sizes *sizes)
{
    if (buffers->buffer_count != sizes->buffer_count)
        return false;
    for (uint32_t i = 0; i < sizes->buffer_count; i++) {
        bool is_padded = sizes->may_be_padded && buffers->buffers[i].bucket_count == 1 && buffers->buffers[i].count == sizes->unpadded[i];
        if (buffers->buffers[i].unpadded != sizes->unpadded[i] && !is_padded)
            return false;
    }
    if (!sizes->per_bucket_unpadded)
        return true;
    if (buffers->bucket_count != sizes->bucket_count)
        return false;
    for (uint32_t i = 0; i < sizes->bucket_count; i++) {
        if (buffers->buckets[i].unpadded != sizes->per_bucket_unpadded[i] ||
            (sizes->per_bucket && buffers->buckets[i].count != sizes->per_bucket[i]))
            return false;
    }
    return true;
}

/* The state may be whole: parameters that are not trained have none, and which those are is stored nowhere. */
static reshard_status explain(const struct flat_buffers *buffers, const struct flat_sizes *sizes, reshard_error *err)
{
    if (buffers->buffer_count != sizes->buffer_count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the optimizer state has %" PRIu32 " buffers, the parameters make %" PRIu32,
                         sizes->buffer_count, buffers->buffer_count);
    for (uint32_t i = 0; i < sizes->buffer_count; i++) {
        const struct flat_buffer *buffer = &buffers->buffers[i];
        if (buffer->unpadded != sizes->unpadded[i])
            return error_set(err, RESHARD_ERR_UNSUPPORTED,
                             "optimizer buffer %" PRIu32 " has %" PRId64 " elements, its %" PRIu32 " parameters make %" PRId64
                             " in %" PRIu32 " buckets",
                             i, sizes->unpadded[i], buffer->place_count, buffer->unpadded, buffer->bucket_count);
    }
    return error_set(err, RESHARD_ERR_UNSUPPORTED,
                     "the optimizer state has %" PRIu32 " buckets of other sizes than the %" PRIu32 " that the parameters make",
                     sizes->bucket_count, buffers->bucket_count);
}

/* The given rules, then those without buckets, each also without alignment. */
static struct flat_buffer_rules variant(const struct flat_buffer_rules *rules, int number)
{
    struct flat_buffer_rules made = *rules;
    if (number & 1)
        made.bucket_size = 0;
    if (number & 2)
        made.alignment = 1;
    return made;
}

reshard_status flat_buffers_match(const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct flat_buffer_rules *rules,
                                  const struct flat_sizes *sizes, struct flat_buffers *out, bool *changed, reshard_error *err)
{
    const struct flat_buffer_rules given = *rules;
    *changed = false;
    for (int i = 0; i < 4; i++) {
        struct flat_buffer_rules tried = variant(&given, i);
        reshard_status status = flat_buffers_make(parameters, count, is_expert, &tried, out, err);
        if (status)
            return status;
        if (fits(out, sizes)) {
            *rules = tried;
            *changed = i > 0;
            return RESHARD_OK;
        }
        flat_buffers_release(out);
    }
    reshard_status status = flat_buffers_make(parameters, count, is_expert, &given, out, err);
    if (!status)
        status = explain(out, sizes, err);
    flat_buffers_release(out);
    return status;
}
