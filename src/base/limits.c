/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <inttypes.h>
#include <stdio.h>

#define FIELD(field) offsetof(struct limits, field)

const struct limits limits_default = {
#define X(name, value, help) .name = value,
    LIMITS(X)
#undef X
};

static const struct limit_row {
    const char *name, *help;
    size_t field;
} limit_rows[] = {
#define X(name, value, help) { #name, help, FIELD(name) },
    LIMITS(X)
#undef X
};

#define LIMIT_COUNT ((int)(sizeof(limit_rows) / sizeof(limit_rows[0])))

static uint64_t *limit_field(struct limits *limits, int index)
{
    return (uint64_t *)(void *)((char *)limits + limit_rows[index].field);
}

reshard_status limit_error_bytes(reshard_error *err, struct named_limit limit, const char *what, uint64_t found)
{
    char size[40] = "more";
    if (found)
        snprintf(size, sizeof(size), "%" PRIu64 " bytes", found);
    if (!limit.name)
        return error_set(err, RESHARD_ERR_LIMIT, "%s: %s, at most %" PRIu64 " bytes are possible", what, size, limit.value);
    error_set(err, RESHARD_ERR_LIMIT, "%s: %s, the limit %s is %" PRIu64, what, size, limit.name, limit.value);
    /* A size that is not known is tried in large steps. */
    uint64_t wanted = found ? found : limit.value > UINT64_MAX / 4 ? UINT64_MAX : limit.value * 4;
    error_hint(err, "raise it with reshard_open_options.limits %s=%" PRIu64, limit.name, wanted);
    return RESHARD_ERR_LIMIT;
}

bool limits_set(struct limits *limits, struct str name, uint64_t value)
{
    for (int i = 0; i < LIMIT_COUNT; i++) {
        if (str_is(name, limit_rows[i].name)) {
            *limit_field(limits, i) = value;
            return true;
        }
    }
    return false;
}

struct limits limits_raised(const struct limits *limits)
{
    struct limits raised = limits_default, given = *limits;
    for (int i = 0; i < LIMIT_COUNT; i++) {
        uint64_t *field = limit_field(&raised, i), *other = limit_field(&given, i);
        *field = *other > *field ? *other : *field;
    }
    return raised;
}

const char *limits_describe(int index, const char **help, uint64_t *value)
{
    if (index < 0 || index >= LIMIT_COUNT)
        return NULL;
    struct limits defaults = limits_default;
    *help = limit_rows[index].help;
    *value = *limit_field(&defaults, index);
    return limit_rows[index].name;
}
