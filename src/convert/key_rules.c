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

static reshard_status dtype_rule_read(struct str text, struct dtype_rule *out, reshard_error *err)
{
    struct str name = text;
    size_t at = text.size;
    while (at > 0 && text.data[at - 1] != '=')
        at--;
    if (at > 0)
        name = (struct str){ text.data + at, text.size - at };
    if (!dtype_from_name(name, &out->dtype))
        return error_set(err, RESHARD_ERR_USAGE, "unknown dtype '%.*s'", STR_ARG(name));
    if (at == 0)
        return RESHARD_OK;
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
