/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/flat_unit.h"

bool flat_unit_part_of(int64_t piece, int64_t pieces, int64_t number, int64_t start, int64_t elements, struct flat_unit_part *out)
{
    int64_t from = piece * number, to = from + piece, end = start + elements;
    int64_t begin = start > from ? start : from;
    if (end > to)
        end = to;
    bool is_there = elements ? begin < end : start >= from && start < to;
    if (!elements && start == piece * pieces && number + 1 == pieces)
        is_there = true;
    *out = (struct flat_unit_part){ begin - start, elements ? end - begin : 0, begin - from };
    return is_there;
}
