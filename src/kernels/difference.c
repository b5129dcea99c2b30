/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/difference.h"

#include <math.h>
#include <string.h>

#include "kernels/cast.h"

#define BLOCK_ELEMENTS 512

static void difference_note(struct difference *difference, int64_t index, double absolute, double relative)
{
    if (difference->count++ == 0)
        difference->first_index = index;
    if (absolute > difference->max_absolute || isnan(absolute))
        difference->max_absolute = absolute;
    if (relative > difference->max_relative)
        difference->max_relative = relative;
}

/* Of two integers of 64 bits, which doubles hold rounded: near ones would be the same. */
static double difference_wide(enum dtype dtype, const uint8_t *a, const uint8_t *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    bool is_greater = dtype == DTYPE_I64 ? (int64_t)x > (int64_t)y : x > y;
    return (double)(is_greater ? x - y : y - x);
}

/* One element of `parts` numbers whose bits differ. exact: how far apart they are, where that is known; or negative. */
static void difference_element(struct difference *difference, const struct tolerance *tolerance, const double *x, const double *y,
                               unsigned parts, double exact, int64_t index)
{
    double absolute = 0, magnitude = 0;
    bool both_nan = true;
    for (unsigned i = 0; i < parts; i++) {
        double distance = exact >= 0 ? exact : fabs(x[i] - y[i]);
        absolute = distance > absolute || isnan(distance) ? distance : absolute;
        magnitude = fmax(magnitude, fabs(y[i]));
        both_nan = both_nan && isnan(x[i]) && isnan(y[i]);
    }
    bool is_tolerant = tolerance->absolute > 0 || tolerance->relative > 0;
    if (is_tolerant && (both_nan || absolute <= tolerance->absolute + tolerance->relative * magnitude))
        return;
    double relative = absolute > 0 ? absolute / magnitude : 0;
    if (!isfinite(absolute))
        relative = both_nan ? 0 : INFINITY;
    difference_note(difference, index, absolute, relative);
}

static void difference_block(struct difference *difference, enum dtype dtype, const struct tolerance *tolerance, const uint8_t *a,
                             const uint8_t *b, size_t count, int64_t first_index)
{
    const to_double_function to_double = cast_to_double_find(dtype);
    const unsigned width = dtype_element_bytes(dtype) ? dtype_element_bytes(dtype) : 1;
    const unsigned parts = dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX ? 2 : 1;
    const bool is_wide = dtype == DTYPE_I64 || dtype == DTYPE_U64;
    double x[2 * BLOCK_ELEMENTS], y[2 * BLOCK_ELEMENTS];
    if (to_double) {
        to_double(a, x, count);
        to_double(b, y, count);
    }
    for (size_t i = 0; i < count; i++) {
        if (memcmp(a + i * width, b + i * width, width) == 0)
            continue;
        difference->changed++;
        if (to_double)
            difference_element(difference, tolerance, x + i * parts, y + i * parts, parts,
                               is_wide ? difference_wide(dtype, a + i * width, b + i * width) : -1, first_index + (int64_t)i);
        else
            difference_note(difference, first_index + (int64_t)i, NAN, 0);
    }
}

void difference_add(struct difference *difference, enum dtype dtype, const struct tolerance *tolerance, const void *a, const void *b,
                    size_t count, int64_t first_index)
{
    const unsigned width = dtype_element_bytes(dtype) ? dtype_element_bytes(dtype) : 1;
    const uint8_t *x = a, *y = b;
    if (memcmp(x, y, count * width) == 0)
        return;
    for (size_t done = 0; done < count; done += BLOCK_ELEMENTS) {
        size_t part = count - done < BLOCK_ELEMENTS ? count - done : BLOCK_ELEMENTS;
        if (memcmp(x + done * width, y + done * width, part * width) != 0)
            difference_block(difference, dtype, tolerance, x + done * width, y + done * width, part, first_index + (int64_t)done);
    }
}
