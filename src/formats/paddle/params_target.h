/* SPDX-License-Identifier: Apache-2.0 */
/* A .pdparams file to be written: the members of its pickle, in order. */
#ifndef FORMATS_PADDLE_PARAMS_TARGET_H
#define FORMATS_PADDLE_PARAMS_TARGET_H

#include "encoding/paddle_save_write.h"
#include "formats/driver.h"
#include "formats/shared/path_tree.h"

struct params_step {
    uint32_t node;
    enum paddle_step step;
    bool has_key; /* false in a list */
};

/* driver_state of a target. What it points to of the request's lives as long as the target does. */
struct params_target {
    struct path_tree tree;
    const struct catalog *wanted;
    struct params_step *steps;
    uint32_t step_count, step_capacity;
    const struct value *names; /* key -> the framework's name; NULL: every key is its own */
    struct name_map name_index;
    struct str *name_of; /* by number in name_index */
    bool is_nested;    /* a tensor lies deeper than in the outermost dict: then tensors are pairs, and there is no table */
    struct paddle_content content;
};

reshard_status params_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status params_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
void params_close_target(struct target *target);

#endif
