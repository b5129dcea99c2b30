/* SPDX-License-Identifier: Apache-2.0 */
/* One element as text, from the little-endian bytes that the library hands out. */
#ifndef CLI_NUMBER_TEXT_H
#define CLI_NUMBER_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Bytes of an element of the type that `cat --as text` prints; 1 for types that are printed as hex bytes. */
size_t number_bytes(const char *dtype);
void number_print(FILE *out, const char *dtype, const uint8_t *bytes);

/* The same as JSON: what JSON has no number for (nan, inf, complex numbers, hex bytes) is a string. */
void number_print_json(FILE *out, const char *dtype, const uint8_t *bytes);

#endif
