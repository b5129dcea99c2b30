/* SPDX-License-Identifier: Apache-2.0 */
/* What is wanted of a key's tensor: whether, and as which type. */
#ifndef CONVERT_KEY_RULES_H
#define CONVERT_KEY_RULES_H

#include "convert/key_filter.h"
#include "tensor/dtype.h"

struct key_rules {
    struct key_filter filter;
    struct dtype_rule *dtypes;
    uint32_t dtype_count;
};

/* Lists end with NULL, and may be NULL. dtypes: "bf16", of all floating tensors, or "GLOB=f32". Must be released, whatever this returns. */
reshard_status key_rules_begin(struct key_rules *rules, const char *const *include, const char *const *exclude, const char *const *dtypes,
                               reshard_error *err);

/* The last rule that applies counts. UNSUPPORTED: there is no such cast. */
reshard_status key_rules_dtype(struct key_rules *rules, struct str key, enum dtype source, enum dtype *out, reshard_error *err);

/* As key_filter_check, of dtypes too. */
reshard_status key_rules_check(const struct key_rules *rules, reshard_error *err);
void key_rules_release(struct key_rules *rules);

#endif
