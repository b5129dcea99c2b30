/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal_text.h"

#include "base/array.h"

#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DIGITS_MAX 17

/* 0.d1d2d3… * 10^point */
struct decimal {
    char digits[DIGITS_MAX + 1];
    int count, point;
};

/* Only digits are taken from the mantissa, because its decimal point is that of the host program's locale. */
static void decimal_split(const char *text, struct decimal *out)
{
    out->count = 0;
    while (*text && *text != 'e') {
        if (*text >= '0' && *text <= '9' && out->count < DIGITS_MAX)
            out->digits[out->count++] = *text;
        text++;
    }
    while (out->count > 1 && out->digits[out->count - 1] == '0')
        out->count--;
    out->point = *text == 'e' ? atoi(text + 1) + 1 : 1;
}

bool buffer_append_integer(struct buffer *buffer, int64_t value)
{
    char digits[20]; /* a sign and the 19 of 2^63 */
    size_t at = sizeof(digits);
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (value < 0)
        digits[--at] = '-';
    return buffer_append(buffer, digits + at, sizeof(digits) - at);
}

/*
 * Below a power of two doubles lie twice as dense as above, so of the decimals of 16 digits the nearest, below, may miss it
 * and the next, above, still hit. Without a decimal point strtod reads alike in every locale.
 */
static bool decimal_above(double value, const char *text, struct decimal *out)
{
    char next[64];
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (bits << 12)
        return false;
    decimal_split(text, out);
    while (out->count < DIGITS_MAX - 1)
        out->digits[out->count++] = '0';
    if (out->digits[out->count - 1] == '9')
        return false;
    out->digits[out->count - 1]++;
    snprintf(next, sizeof(next), "%.*se%d", out->count, out->digits, out->point - out->count);
    return strtod(next, NULL) == value;
}

/*
 * A decimal of 15 digits survives the way through a normal double, so if a shorter one exists, it is the 15 digits
 * without their trailing zeros. Subnormal numbers have fewer significant digits, and are tried from one digit on.
 */
static void decimal_shortest(double value, struct decimal *out)
{
    char text[64];
    for (int digits = value < DBL_MIN ? 1 : DBL_DIG; digits <= DIGITS_MAX; digits++) {
        snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value)
            break;
        if (digits == DIGITS_MAX - 1 && decimal_above(value, text, out))
            return;
    }
    decimal_split(text, out);
}

static bool append_fixed(struct buffer *buffer, const struct decimal *decimal, bool bare)
{
    int zeros_before = decimal->point <= 0 ? -decimal->point : 0;
    int whole = decimal->point <= 0 ? 0 : decimal->point < decimal->count ? decimal->point : decimal->count;
    int zeros_after = decimal->point > decimal->count ? decimal->point - decimal->count : 0;
    bool ok = whole ? buffer_append(buffer, decimal->digits, (size_t)whole) : buffer_append_byte(buffer, '0');
    ok = ok && buffer_append_fill(buffer, '0', (size_t)zeros_after);
    if (whole == decimal->count)
        return ok && (bare || buffer_append_text(buffer, ".0"));
    return ok && buffer_append_byte(buffer, '.') && buffer_append_fill(buffer, '0', (size_t)zeros_before) &&
           buffer_append(buffer, decimal->digits + whole, (size_t)(decimal->count - whole));
}

static bool append_scientific(struct buffer *buffer, const struct decimal *decimal)
{
    int exponent = decimal->point - 1;
    bool ok = buffer_append(buffer, decimal->digits, 1);
    if (decimal->count > 1)
        ok = ok && buffer_append_byte(buffer, '.') && buffer_append(buffer, decimal->digits + 1, (size_t)decimal->count - 1);
    return ok && buffer_printf(buffer, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static bool append_double(struct buffer *buffer, double value, bool bare)
{
    if (isnan(value))
        return buffer_append_text(buffer, "nan");
    if (signbit(value) && !buffer_append_byte(buffer, '-'))
        return false;
    if (isinf(value))
        return buffer_append_text(buffer, "inf");
    struct decimal decimal;
    decimal_shortest(fabs(value), &decimal);
    if (decimal.point > -4 && decimal.point <= 16)
        return append_fixed(buffer, &decimal, bare);
    return append_scientific(buffer, &decimal);
}

bool buffer_append_double(struct buffer *buffer, double value)
{
    return append_double(buffer, value, false);
}

bool buffer_append_double_bare(struct buffer *buffer, double value)
{
    return append_double(buffer, value, true);
}

/* The absolute value as 32-bit words, least significant first. */
static void magnitude(struct str bytes, bool negative, uint32_t *words, size_t word_count)
{
    uint64_t carry = negative;
    for (size_t i = 0; i < word_count; i++) {
        uint32_t word = 0;
        for (size_t b = 0; b < 4; b++) {
            size_t at = i * 4 + b;
            uint8_t byte = at < bytes.size ? (uint8_t)bytes.data[at] : negative ? 0xFF : 0;
            word |= (uint32_t)byte << (8 * b);
        }
        uint64_t sum = (uint64_t)(negative ? ~word : word) + carry;
        words[i] = (uint32_t)sum;
        carry = sum >> 32;
    }
}

/* Divides by 10^9 in place and returns the remainder. */
static uint32_t divide(uint32_t *words, size_t count)
{
    uint64_t rest = 0;
    for (size_t i = count; i-- > 0;) {
        uint64_t part = rest << 32 | words[i];
        words[i] = (uint32_t)(part / 1000000000);
        rest = part % 1000000000;
    }
    return (uint32_t)rest;
}

/* A word more than the bytes need holds the magnitude of the most negative number; 32 bits give at most 10 digits. */
bool buffer_append_bigint(struct buffer *buffer, struct str bytes)
{
    size_t word_count = bytes.size / 4 + 2, group_count = 0;
    uint32_t *words = array_zeroed(word_count * 2 + word_count / 8 + 2, sizeof(*words));
    if (!words) {
        buffer->failed = true;
        return false;
    }
    uint32_t *groups = words + word_count;
    bool negative = bytes.size && ((uint8_t)bytes.data[bytes.size - 1] & 0x80);
    magnitude(bytes, negative, words, word_count);
    for (size_t used = word_count; used;) {
        while (used && words[used - 1] == 0)
            used--;
        if (used || group_count == 0)
            groups[group_count++] = divide(words, used);
    }
    bool ok = (!negative || buffer_append_byte(buffer, '-')) && buffer_printf(buffer, "%" PRIu32, groups[group_count - 1]);
    for (size_t i = group_count - 1; ok && i-- > 0;)
        ok = buffer_printf(buffer, "%09" PRIu32, groups[i]);
    free(words);
    return ok;
}

/* What is neither digit, sign nor letter is the decimal point of the host program's locale, of one byte or more. */
const char *decimal_short(double value, char out[DECIMAL_SHORT_BYTES])
{
    char text[DECIMAL_SHORT_BYTES];
    size_t used = 0;
    bool was_point = false;
    snprintf(text, sizeof(text), "%g", value);
    for (const char *at = text; *at; at++) {
        bool is_point = !strchr("+-0123456789efinaEFINA", *at);
        if (!is_point || !was_point)
            out[used++] = is_point ? '.' : *at;
        was_point = is_point;
    }
    out[used] = '\0';
    return out;
}

bool decimal_parse(const char *text, double *out)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return false;
    *out = strtod_l(text, NULL, plain);
    freelocale(plain);
    return true;
}
