/* SPDX-License-Identifier: Apache-2.0 */
#include "number_text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum text_kind { TEXT_HEX, TEXT_BOOL, TEXT_UNSIGNED, TEXT_SIGNED, TEXT_FLOAT, TEXT_POWER }; /* TEXT_POWER: an exponent of two and no more */

/* How a float's largest exponent is used: IEEE infinities and NaN; only all ones is NaN; only the code of -0 is NaN. */
enum special { SPECIAL_IEEE, SPECIAL_ALL_ONES, SPECIAL_NEGATIVE_ZERO };

static const struct number_type {
    const char *name;
    enum text_kind kind;
    uint8_t bytes, parts, exponent_bits, mantissa_bits;
    int16_t bias;
    enum special special;
    uint8_t digits; /* that tell any two values apart */
} types[] = {
    { "BOOL", TEXT_BOOL, 1, 1, 0, 0, 0, 0, 0 },
    { "U8", TEXT_UNSIGNED, 1, 1, 0, 0, 0, 0, 0 },
    { "U16", TEXT_UNSIGNED, 2, 1, 0, 0, 0, 0, 0 },
    { "U32", TEXT_UNSIGNED, 4, 1, 0, 0, 0, 0, 0 },
    { "U64", TEXT_UNSIGNED, 8, 1, 0, 0, 0, 0, 0 },
    { "I8", TEXT_SIGNED, 1, 1, 0, 0, 0, 0, 0 },
    { "I16", TEXT_SIGNED, 2, 1, 0, 0, 0, 0, 0 },
    { "I32", TEXT_SIGNED, 4, 1, 0, 0, 0, 0, 0 },
    { "I64", TEXT_SIGNED, 8, 1, 0, 0, 0, 0, 0 },
    { "F8_E8M0", TEXT_POWER, 1, 1, 8, 0, 127, SPECIAL_ALL_ONES, 3 },
    { "F8_E5M2", TEXT_FLOAT, 1, 1, 5, 2, 15, SPECIAL_IEEE, 3 },
    { "F8_E4M3", TEXT_FLOAT, 1, 1, 4, 3, 7, SPECIAL_ALL_ONES, 3 },
    { "F8_E5M2FNUZ", TEXT_FLOAT, 1, 1, 5, 2, 16, SPECIAL_NEGATIVE_ZERO, 3 },
    { "F8_E4M3FNUZ", TEXT_FLOAT, 1, 1, 4, 3, 8, SPECIAL_NEGATIVE_ZERO, 3 },
    { "F16", TEXT_FLOAT, 2, 1, 5, 10, 15, SPECIAL_IEEE, 5 },
    { "BF16", TEXT_FLOAT, 2, 1, 8, 7, 127, SPECIAL_IEEE, 4 },
    { "F32", TEXT_FLOAT, 4, 1, 8, 23, 127, SPECIAL_IEEE, 9 },
    { "F64", TEXT_FLOAT, 8, 1, 11, 52, 1023, SPECIAL_IEEE, 17 },
    { "complex32", TEXT_FLOAT, 2, 2, 5, 10, 15, SPECIAL_IEEE, 5 },
    { "C64", TEXT_FLOAT, 4, 2, 8, 23, 127, SPECIAL_IEEE, 9 },
    { "C128", TEXT_FLOAT, 8, 2, 11, 52, 1023, SPECIAL_IEEE, 17 },
};

#define PLAIN_EXPONENT_MAX 16 /* as Python's repr: from 10^16 on, and below 10^-4, with a power of ten */

static const struct number_type hex = { "", TEXT_HEX, 1, 1, 0, 0, 0, 0, 0 };

static const struct number_type *find_type(const char *dtype)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, dtype) == 0)
            return &types[i];
    }
    return &hex;
}

size_t number_bytes(const char *dtype)
{
    const struct number_type *type = find_type(dtype);
    return (size_t)type->bytes * type->parts;
}

static double decode_float(const struct number_type *type, uint64_t bits)
{
    int width = 1 + type->exponent_bits + type->mantissa_bits;
    uint64_t exponent_mask = ((uint64_t)1 << type->exponent_bits) - 1, mantissa_mask = ((uint64_t)1 << type->mantissa_bits) - 1;
    bool negative = bits >> (width - 1) & 1;
    uint64_t exponent = bits >> type->mantissa_bits & exponent_mask, mantissa = bits & mantissa_mask;
    if (type->special == SPECIAL_IEEE && exponent == exponent_mask)
        return mantissa ? NAN : negative ? -INFINITY : INFINITY;
    if (type->special == SPECIAL_ALL_ONES && exponent == exponent_mask && mantissa == mantissa_mask)
        return NAN;
    if (type->special == SPECIAL_NEGATIVE_ZERO && negative && !exponent && !mantissa)
        return NAN;
    double value = exponent ? ldexp((double)(mantissa | (mantissa_mask + 1)), (int)exponent - type->bias - type->mantissa_bits)
                            : ldexp((double)mantissa, 1 - type->bias - type->mantissa_bits);
    return negative ? -value : value;
}

/* "%.*e" without its power of ten and without zeros at the end of its digits: 5.0e-02 is 0.05. */
static void print_digits(FILE *out, const char *text, int exponent)
{
    char kept[24];
    int count = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text == '-')
            putc('-', out);
        else if (*text != '.')
            kept[count++] = *text;
    }
    while (count > 1 && kept[count - 1] == '0')
        count--;
    const bool is_plain = exponent >= -4 && exponent < PLAIN_EXPONENT_MAX;
    const int point = !is_plain ? 1 : exponent < 0 ? 0 : exponent + 1; /* digits before it */
    if (!point)
        fputs("0.", out);
    for (int i = exponent; !point && i < -1; i++)
        putc('0', out);
    for (int i = 0; i < count || i < point; i++) {
        if (point && i == point)
            putc('.', out);
        putc(i < count ? kept[i] : '0', out);
    }
    if (!is_plain)
        fprintf(out, "e%+03d", exponent);
}

/* The shortest of up to `digits` digits that reads back as the same number; whole numbers as they are. */
static void print_float(FILE *out, const struct number_type *type, double value)
{
    char text[40];
    if (!isfinite(value)) {
        fputs(isnan(value) ? "nan" : value < 0 ? "-inf" : "inf", out);
        return;
    }
    if (value == trunc(value) && fabs(value) < 1e16) {
        fprintf(out, "%.0f", value); /* all its digits: fewer with zeros behind would look like another whole number */
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        double back = strtod(text, NULL);
        bool same = type->bytes == 4 ? (float)back == (float)value : back == value;
        if (digits >= type->digits || same)
            break;
    }
    print_digits(out, text, atoi(strchr(text, 'e') + 1));
}

void number_print(FILE *out, const char *dtype, const uint8_t *bytes)
{
    const struct number_type *type = find_type(dtype);
    for (int part = 0; part < type->parts; part++) {
        uint64_t bits = 0;
        for (int i = type->bytes - 1; i >= 0; i--)
            bits = bits << 8 | bytes[part * type->bytes + i];
        if (part)
            putc(' ', out);
        switch (type->kind) {
        case TEXT_HEX: fprintf(out, "%02x", bytes[0]); break;
        case TEXT_BOOL: fputs(bits ? "true" : "false", out); break;
        case TEXT_UNSIGNED: fprintf(out, "%llu", (unsigned long long)bits); break;
        case TEXT_SIGNED: {
            int shift = 64 - 8 * type->bytes;
            fprintf(out, "%lld", (long long)(int64_t)(bits << shift) >> shift);
            break;
        }
        case TEXT_POWER: print_float(out, type, bits == 0xFF ? NAN : ldexp(1, (int)bits - type->bias)); break;
        case TEXT_FLOAT: print_float(out, type, decode_float(type, bits)); break;
        }
    }
}

void number_print_json(FILE *out, const char *dtype, const uint8_t *bytes)
{
    const struct number_type *type = find_type(dtype);
    char text[160] = "";
    FILE *memory = fmemopen(text, sizeof(text), "w");
    if (!memory)
        return;
    number_print(memory, dtype, bytes);
    fclose(memory);
    const char *digits = text + (text[0] == '-');
    bool is_number = type->kind != TEXT_HEX && type->parts == 1 && digits[0] >= '0' && digits[0] <= '9';
    const char *sign_kept = strcmp(text, "-0") == 0 ? ".0" : ""; /* readers take "-0" for an integer, which has no sign */
    fprintf(out, is_number || type->kind == TEXT_BOOL ? "%s%s" : "\"%s%s\"", text, sign_kept);
}
