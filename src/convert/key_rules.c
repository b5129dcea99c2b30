/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/key_rules.h"

#include "base/array.h"
#include "kernels/copy.h"

#include <stdlib.h>

/* "bf16" asks for every floating tensor, "GLOB=bf16" for whatever matches. */
struct dtype_rule {
    struct key_filter_pattern pattern;
    bool has_pattern;
    enum dtype dtype;
};

/* Names that others give these types, and what they are called here. */
static const char *const usual_dtypes[][2] = {
    { "fp16", "F16" }, { "fp32", "F32" }, { "fp64", "F64" }, { "bfloat", "BF16" }, { "fp8", "F8_E4M3" }, { "float8", "F8_E4M3" },
};

static reshard_status fail_dtype(struct str name, reshard_error *err)
{
    struct buffer known = { 0 };
    struct str bare = name;
    enum dtype dtype;
    const char *meant = NULL;
    if (str_starts_with(name, "torch."))
        bare = (struct str){ name.data + strlen("torch."), name.size - strlen("torch.") };
    if (dtype_from_name(bare, &dtype))
        meant = dtype_info(dtype)->name;
    for (size_t i = 0; i < sizeof(usual_dtypes) / sizeof(usual_dtypes[0]); i++) {
        if (str_is(bare, usual_dtypes[i][0]))
            meant = usual_dtypes[i][1];
    }
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_table[i].class_ == DTYPE_CLASS_FLOAT)
            buffer_printf(&known, "%s%s", known.size ? ", " : "", dtype_table[i].name);
    }
    error_set(err, RESHARD_ERR_USAGE, "unknown dtype '%.*s'", STR_ARG(name));
    if (meant)
        error_hint(err, "did you mean '%s'?", meant);
    else
        error_hint(err, "types of numbers with fractions: %.*s", STR_ARG(buffer_str(&known)));
    buffer_release(&known);
    return RESHARD_ERR_USAGE;
}

/* Whole numbers in place of all weights are zeros for most of them: nobody means that who does not name the tensors. */
static reshard_status fail_whole_dtype(struct str name, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "dtype '%.*s' has no fractions, which all floating tensors would lose", STR_ARG(name));
    error_hint(err, "reshard_convert_options.dtypes GLOB=%.*s casts the tensors that are named", STR_ARG(name));
    return RESHARD_ERR_USAGE;
}

static bool is_whole_number(enum dtype dtype)
{
    const unsigned class_ = dtype_info(dtype)->class_;
    return class_ == DTYPE_CLASS_BOOL || class_ == DTYPE_CLASS_UINT || class_ == DTYPE_CLASS_INT;
}

static reshard_status dtype_rule_read(struct str text, struct dtype_rule *out, reshard_error *err)
{
    struct str name = text;
    size_t at = text.size;
    while (at > 0 && text.data[at - 1] != '=')
        at--;
    if (at > 0)
        name = (struct str){ text.data + at, text.size - at };
    if (!dtype_from_name(name, &out->dtype))
        return fail_dtype(name, err);
    if (at == 0)
        return is_whole_number(out->dtype) ? fail_whole_dtype(name, err) : RESHARD_OK;
    reshard_status status = key_filter_pattern_begin(&out->pattern, (struct str){ text.data, at - 1 }, err);
    out->has_pattern = !status;
    return status;
}

reshard_status key_rules_begin(struct key_rules *rules, const char *const *include, const char *const *exclude, const char *const *dtypes,
                               reshard_error *err)
{
    *rules = (struct key_rules){ 0 };
    reshard_status status = key_filter_begin(&rules->filter, include, exclude, err);
    while (dtypes && dtypes[rules->dtype_count])
        rules->dtype_count++;
    rules->dtypes = array_zeroed(rules->dtype_count, sizeof(*rules->dtypes));
    if (!status && !rules->dtypes)
        status = error_set_memory(err);
    for (uint32_t i = 0; i < rules->dtype_count && !status; i++)
        status = dtype_rule_read(str_of(dtypes[i]), &rules->dtypes[i], err);
    return status;
}

reshard_status key_rules_dtype(struct key_rules *rules, struct str key, enum dtype source, enum dtype *out, reshard_error *err)
{
    *out = source;
    for (uint32_t i = 0; i < rules->dtype_count; i++) {
        struct dtype_rule *rule = &rules->dtypes[i];
        bool applies = dtype_info(source)->class_ == DTYPE_CLASS_FLOAT;
        reshard_status status = rule->has_pattern ? key_filter_pattern_match(&rule->pattern, key, &applies, err) : RESHARD_OK;
        if (status)
            return status;
        if (!applies)
            continue;
        if (!copy_can_cast(source, rule->dtype))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': no cast from %s to %s", STR_ARG(key), dtype_info(source)->name,
                             dtype_info(rule->dtype)->name);
        *out = rule->dtype;
    }
    return RESHARD_OK;
}

reshard_status key_rules_check(const struct key_rules *rules, reshard_error *err)
{
    reshard_status status = key_filter_check(&rules->filter, err);
    for (uint32_t i = 0; i < rules->dtype_count && !status; i++)
        if (rules->dtypes[i].has_pattern)
            status = key_filter_pattern_check(&rules->dtypes[i].pattern, "dtype", err);
    return status;
}

void key_rules_release(struct key_rules *rules)
{
    for (uint32_t i = 0; rules->dtypes && i < rules->dtype_count; i++)
        key_filter_pattern_release(&rules->dtypes[i].pattern);
    free(rules->dtypes);
    key_filter_release(&rules->filter);
    *rules = (struct key_rules){ 0 };
}
