/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_padding.h"

/* 42 in bits: 1.3125 * 2^5. Integers cannot be flat parameters. */
static const struct padding_bits {
    enum dtype dtype;
    uint64_t bits;
} padding_bits[] = {
    { DTYPE_F64, UINT64_C(0x4045000000000000) },
    { DTYPE_F32, UINT64_C(0x42280000) },
    { DTYPE_F16, UINT64_C(0x5140) },
    { DTYPE_BF16, UINT64_C(0x4228) },
};

bool atorch_padding_fill(enum dtype dtype, bool is_original, uint8_t *out, size_t count)
{
    size_t size = dtype_element_bytes(dtype);
    if (!is_original) {
        memset(out, 0, size * count);
        return true;
    }
    for (size_t i = 0; i < sizeof(padding_bits) / sizeof(padding_bits[0]); i++) {
        if (padding_bits[i].dtype != dtype)
            continue;
        for (size_t k = 0; k < size * count; k++)
            out[k] = (uint8_t)(padding_bits[i].bits >> (8 * (k % size)));
        return true;
    }
    return false;
}

/* First parameter of the unit that ends behind the element. */
static uint32_t first_behind(const struct atorch_model *model, const struct atorch_unit *unit, int64_t element)
{
    uint32_t low = 0, high = unit->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct atorch_parameter *parameter = &model->parameters[unit->first + middle];
        if (parameter->start + parameter->numel <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void atorch_gaps_begin(const struct atorch_model *model, const struct atorch_unit *unit, uint32_t rank, struct atorch_gaps *out)
{
    uint32_t expert, shard;
    atorch_place_of(unit, rank, &expert, &shard);
    *out = (struct atorch_gaps){ .model = model, .unit = unit, .from = unit->shard * shard, .at = unit->shard * shard };
    out->next = first_behind(model, unit, out->from);
}

bool atorch_gaps_next(struct atorch_gaps *gaps, struct atorch_gap *out)
{
    const struct atorch_unit *unit = gaps->unit;
    int64_t to = gaps->from + unit->shard;
    while (gaps->at < to) {
        const struct atorch_parameter *parameter = gaps->next < unit->count ? &gaps->model->parameters[unit->first + gaps->next++] : NULL;
        int64_t begin = parameter && parameter->start < to ? parameter->start : to, at = gaps->at;
        gaps->at = parameter && parameter->start < to ? parameter->start + parameter->numel : to;
        if (gaps->at > to)
            gaps->at = to;
        if (begin > at) {
            *out = (struct atorch_gap){ at - gaps->from, begin - at };
            return true;
        }
    }
    return false;
}
