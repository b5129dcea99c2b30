/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers in a key: steps between dots that are all digits, without zeros before them (007 is a name) and at most 15 of them. They
 * are what the keys of layers and experts differ in.
 */
#ifndef CLI_KEY_NUMBERS_H
#define CLI_KEY_NUMBERS_H

#include "reshard/reshard.h"

#include <stdbool.h>
#include <stdio.h>

#define NO_NUMBER (-1)
#define KEY_NUMBERS_MAX 8

struct key_step {
    size_t begin, end; /* in the key; end: of the dot, or of the key */
    int64_t number;    /* or NO_NUMBER */
};

/* The step that begins at *at, which becomes the place of the next one; false: there is none. Starts at 0. */
bool key_step_next(reshard_str key, size_t *at, struct key_step *step);

int64_t key_step_number(const char *step, size_t size);

/* The first of a key's numbers, and where they lie. */
struct key_numbers {
    size_t begin[KEY_NUMBERS_MAX], end[KEY_NUMBERS_MAX], count;
    int64_t value[KEY_NUMBERS_MAX];
};
void key_numbers_find(reshard_str key, struct key_numbers *out);

/* "{0..31}", "{0,2,4..7}", or the number alone; after `most` ranges, dots. Numbers ascend and may repeat. */
void key_numbers_print(FILE *out, const int64_t *numbers, size_t count, size_t most);

#endif
