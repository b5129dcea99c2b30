/* SPDX-License-Identifier: Apache-2.0 */
/* A dict as the argparse.Namespace that a Megatron run keeps its arguments in. */
#ifndef FUZZ_RUN_ARGS_H
#define FUZZ_RUN_ARGS_H

#include "parallel/training_args.h"

struct run_args {
    struct value namespace, *state;
    struct value_object object;
};

/* dict lives as long as the result; NULL: no arguments. */
static inline void run_args_read(struct run_args *run, struct value *dict, struct training_args *out)
{
    *run = (struct run_args){ .state = dict, .object = { .states = &run->state, .state_count = 1 } };
    run->namespace.kind = VALUE_NEW;
    run->namespace.object = &run->object;
    training_args_read(dict ? &run->namespace : NULL, out);
}

#endif
