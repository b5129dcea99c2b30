/* SPDX-License-Identifier: Apache-2.0 */
/* A view of a checkpoint in which optimizer state is spelled in another way: other keys, some tensors more, some less. */
#ifndef CONVERT_STATE_VIEW_H
#define CONVERT_STATE_VIEW_H

#include "convert/checkpoint.h"

/* A tensor that is there once more, under that key. */
struct state_again {
    uint32_t tensor;
    struct str key;
};

/* A float32 that nobody has stored. */
struct state_number {
    struct str key;
    float number;
    int rank; /* 0, or 1 with the one extent 1 */
};

/* Texts outlive the view, arrays do not. */
struct state_view {
    struct str *keys;        /* by tensor: another key, or data NULL */
    uint8_t *is_left_out;    /* by tensor: it is in the view, as its numbers count, but hidden */
    uint8_t *skips_item;     /* by item */
    struct state_again *again;
    uint32_t again_count, again_capacity;
    struct state_number *numbers;
    uint32_t number_count, number_capacity;
    const char *item;        /* one more, or NULL, */
    struct value_graph *graph; /* of its value, the root, which the view takes over */
};

/* What is there is set by tensor and item of the catalog, all empty. Released by state_view_release, also on failure. */
reshard_status state_view_begin(struct state_view *view, const struct catalog *catalog, reshard_error *err);
void state_view_release(struct state_view *view);

/* Another checkpoint, which borrows from this one and is the caller's to close, before it. */
reshard_status state_view_make(struct checkpoint *checkpoint, struct state_view *view, struct checkpoint **out, reshard_error *err);

#endif
