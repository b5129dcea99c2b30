/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/vocabulary.h"

static int64_t padded(int64_t tokens, int64_t unit)
{
    return (tokens + unit - 1) / unit * unit;
}

/* Megatron's tokenizer without a text says it: vocab_size, and in releases before 0.18, which know of no other end of text, one more. -1:
 * another one. */
static int64_t said_tokens(const struct training_args *args)
{
    const struct value *type = args->members ? value_dict_get(args->members, "tokenizer_type") : NULL;
    if (!type || type->kind != VALUE_STR || !str_is(type->text, "NullTokenizer") || args->vocabulary <= 0 ||
        args->vocabulary > INT64_MAX / 4)
        return -1;
    return args->vocabulary + (value_dict_get(args->members, "null_tokenizer_eod_id") ? 0 : 1);
}

bool padded_vocabulary_rows(const struct training_args *args, int64_t tp, int64_t *least, int64_t *most)
{
    int64_t unit = args->vocabulary_unit, old = args->padded_vocabulary, said = said_tokens(args);
    if (unit <= 0 || old <= 0 || args->tp <= 0 || tp <= 0 || unit > INT32_MAX || old > INT64_MAX / 4 || args->tp > INT32_MAX ||
        tp > INT32_MAX || unit > INT64_MAX / 4 / args->tp || unit > INT64_MAX / 4 / tp)
        return false;
    int64_t lowest = old - unit * args->tp + 1, highest = old;
    if (said > 0 && said <= old)
        lowest = highest = said;
    else if (old % (unit * args->tp))
        return false;
    else if (args->vocabulary >= lowest && args->vocabulary <= highest)
        lowest = highest = args->vocabulary;
    *least = padded(lowest, unit * tp);
    *most = padded(highest, unit * tp);
    return true;
}
