/* SPDX-License-Identifier: Apache-2.0 */
#include "natural_order.h"

static size_t digits_at(reshard_str text, size_t at)
{
    size_t count = 0;
    while (at + count < text.size && text.data[at + count] >= '0' && text.data[at + count] <= '9')
        count++;
    return count;
}

static void zeros_skip(reshard_str text, size_t *at, size_t *digits)
{
    while (*digits > 1 && text.data[*at] == '0') {
        ++*at;
        --*digits;
    }
}

int natural_order(reshard_str a, reshard_str b)
{
    size_t i = 0, j = 0;
    while (i < a.size && j < b.size) {
        size_t left = digits_at(a, i), right = digits_at(b, j);
        if (left && right) {
            zeros_skip(a, &i, &left);
            zeros_skip(b, &j, &right);
            if (left != right)
                return left < right ? -1 : 1;
        }
        size_t same = left && right ? left : 1;
        for (; same; same--, i++, j++) {
            if (a.data[i] != b.data[j])
                return (unsigned char)a.data[i] < (unsigned char)b.data[j] ? -1 : 1;
        }
    }
    return (i < a.size) - (j < b.size);
}
