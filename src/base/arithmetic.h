/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of the small text languages: statements of names, settings, partition rules. */
#ifndef BASE_ARITHMETIC_H
#define BASE_ARITHMETIC_H

#include <stdbool.h>
#include <stdint.h>

/* a operator b, for + - * and /. false, and *out is left alone: it does not fit, or a quotient is no whole number. */
static inline bool arithmetic_apply(char operator, int64_t a, int64_t b, int64_t *out)
{
    int64_t result;
    bool fits = true;
    switch (operator) {
    case '+': fits = !__builtin_add_overflow(a, b, &result); break;
    case '-': fits = !__builtin_sub_overflow(a, b, &result); break;
    case '*': fits = !__builtin_mul_overflow(a, b, &result); break;
    default:
        if (b == 0 || b == -1 || a % b != 0) /* -1 has no need of a quotient, and its smallest has none */
            return false;
        result = a / b;
    }
    if (fits)
        *out = result;
    return fits;
}

#endif
