/* SPDX-License-Identifier: Apache-2.0 */
/* Long texts for a receiver of the caller's, a window at a time. */
#ifndef API_PRINTING_H
#define API_PRINTING_H

#include "base/buffer.h"
#include "reshard/reshard.h"

struct printing {
    struct buffer text;
    reshard_sink sink;
    void *context;
};

/* Hands over what has been printed once it is a whole window. */
reshard_status printing_step(struct printing *printing, reshard_error *err);

/* Hands over the rest, if there is any and status is RESHARD_OK, and releases the text. */
reshard_status printing_end(struct printing *printing, reshard_status status, reshard_error *err);

/* "name": [1, 2] */
void print_numbers(struct buffer *out, const char *name, const int64_t *numbers, size_t count);

#endif
