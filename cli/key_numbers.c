/* SPDX-License-Identifier: Apache-2.0 */
#include "key_numbers.h"

#include <inttypes.h>

#define DIGITS_MAX 15 /* longer ones are names */

int64_t key_step_number(const char *step, size_t size)
{
    int64_t number = 0;
    if (size == 0 || size > DIGITS_MAX || (step[0] == '0' && size > 1))
        return NO_NUMBER;
    for (size_t i = 0; i < size; i++) {
        if (step[i] < '0' || step[i] > '9')
            return NO_NUMBER;
        number = 10 * number + (step[i] - '0');
    }
    return number;
}

bool key_step_next(reshard_str key, size_t *at, struct key_step *step)
{
    if (*at >= key.size)
        return false;
    step->begin = step->end = *at;
    while (step->end < key.size && key.data[step->end] != '.')
        step->end++;
    step->number = key_step_number(key.data + step->begin, step->end - step->begin);
    *at = step->end + 1;
    return true;
}

void key_numbers_find(reshard_str key, struct key_numbers *out)
{
    struct key_step step;
    out->count = 0;
    for (size_t at = 0; out->count < KEY_NUMBERS_MAX && key_step_next(key, &at, &step);) {
        if (step.number == NO_NUMBER)
            continue;
        out->begin[out->count] = step.begin;
        out->end[out->count] = step.end;
        out->value[out->count++] = step.number;
    }
}

void key_numbers_print(FILE *out, const int64_t *numbers, size_t count, size_t most)
{
    bool is_alone = numbers[0] == numbers[count - 1];
    fputs(is_alone ? "" : "{", out);
    for (size_t i = 0, shown = 0, last; i < count; i = last + 1) {
        for (last = i; last + 1 < count && numbers[last + 1] - numbers[last] <= 1;)
            last++;
        if (shown == most) {
            fputs(",…", out);
            break;
        }
        fprintf(out, "%s%" PRId64, shown++ ? "," : "", numbers[i]);
        if (numbers[last] != numbers[i]) /* two are written as two */
            fprintf(out, numbers[last] - numbers[i] == 1 ? ",%" PRId64 : "..%" PRId64, numbers[last]);
    }
    fputs(is_alone ? "" : "}", out);
}
