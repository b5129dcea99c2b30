/* SPDX-License-Identifier: Apache-2.0 */
/* What targets do with a checkpoint in a memory store: an open one, and everything that can be read through it. */
#ifndef FUZZ_WHOLE_H
#define FUZZ_WHOLE_H

#include "convert/checkpoint.h"

/* Limits at which a target stays fast; whatever they bound is seen all the same. */
struct limits whole_limits(void);

struct whole_options {
    const char *format; /* NULL: probed */
    bool lenient;
};

/* Over a store that it borrows; NULL if it cannot be opened. */
struct checkpoint *whole_open(struct store *store, const char *name, const struct whole_options *options, reshard_error *err);

/* One thread and little memory. */
struct engine_options whole_run(void);

/* Whether there is little enough payload to read it all. */
bool whole_is_small(const struct catalog *catalog);

/* All values of items, printed; verification, deep where asked; the payload of every tensor. Returns what the payloads hash to. */
void whole_load_items(struct source *source);
void whole_verify(struct checkpoint *checkpoint, bool deep);
reshard_status whole_hash_on(struct checkpoint *checkpoint, uint32_t tensor, uint64_t *hash, reshard_error *err); /* behind others */
reshard_status whole_hash(struct checkpoint *checkpoint, uint32_t tensor, uint64_t *hash, reshard_error *err);

#endif
