/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static int base64_digit(char c)
{
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

bool base64_decode(struct str text, struct buffer *out)
{
    uint32_t bits = 0;
    size_t size = text.size;
    if (size % 4)
        return false;
    for (int i = 0; i < 2 && size && text.data[size - 1] == '='; i++)
        size--;
    for (size_t i = 0; i < size; i++) {
        int digit = base64_digit(text.data[i]);
        if (digit < 0)
            return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4)
            buffer_append_byte(out, (uint8_t)(bits >> (6 - 2 * (i % 4))));
    }
    return !out->failed;
}

bool base64_encode(struct str bytes, struct buffer *out)
{
    for (size_t at = 0; at < bytes.size; at += 3) {
        const size_t size = bytes.size - at < 3 ? bytes.size - at : 3;
        uint32_t bits = 0;
        for (size_t i = 0; i < 3; i++)
            bits = bits << 8 | (i < size ? (uint8_t)bytes.data[at + i] : 0);
        for (size_t i = 0; i < 4; i++)
            buffer_append_byte(out, i <= size ? (uint8_t)digits[bits >> (18 - 6 * i) & 63] : '=');
    }
    return !out->failed;
}
