/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's function that names tensors, asked once of each name, however often the names are needed. */
#ifndef CONVERT_NAMING_MEMO_H
#define CONVERT_NAMING_MEMO_H

#include "base/arena.h"
#include "convert/naming.h"

struct naming_memo {
    const struct naming_options *given;
    struct name_map asked;
    struct str *named; /* by number in asked */
    uint32_t capacity;
    struct arena texts;
};

/* The same options, which ask the memo. What is given must outlive it. */
struct naming_options naming_memo_begin(struct naming_memo *memo, const struct naming_options *given);
void naming_memo_end(struct naming_memo *memo);

#endif
