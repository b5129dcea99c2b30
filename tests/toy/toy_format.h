/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A toy format, as docs/adding-a-format.md shows it: a folder with one index, and a file for each rank.
 *
 *   toy.json      {"tensors": {KEY: {"dtype": "F32", "shape": [4,8], "parts": [[OFFSET, ROWS]]}}, "items": {KEY: value}}
 *   rank_0.bin    elements, row-major and little-endian, of the first part of each tensor; a scalar has one row
 */
#ifndef TOY_FORMAT_H
#define TOY_FORMAT_H

#include "formats/driver.h"

extern const struct format_driver format_toy; /* "toy" */

#endif
