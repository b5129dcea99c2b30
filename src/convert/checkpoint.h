/* SPDX-License-Identifier: Apache-2.0 */
/* An open checkpoint: its source, where it lies, which of its tensors are listed, and the view with optimizer state by parameter. */
#ifndef CONVERT_CHECKPOINT_H
#define CONVERT_CHECKPOINT_H

#include "engine/engine.h"
#include "formats/driver.h"
#include "formats/live.h"

struct checkpoint_view;
struct checkpoint {
    struct source *source;
    char *path;
    uint32_t *listed; /* catalog indices of the tensors that people see; hidden ones are payload of opaque items */
    uint32_t listed_count;
    struct checkpoint_view *view; /* what of it is seen, and under which names (checkpoint_view.h); NULL: all */
    struct checkpoint *paired;  /* the same with F4 in pairs (formats/source_pairs.h); made on first use, borrows the store */
    struct checkpoint *related; /* the same with optimizer state of parameters; made on first use, borrows the store */
};

/* How one is opened: what formats need, and flags of the store. */
struct checkpoint_options {
    struct open_options open;
    unsigned store_flags;
};

reshard_status checkpoint_open(const char *path, const struct checkpoint_options *options, struct checkpoint **out, reshard_error *err);

/* The same of what lies in a store, as format_open opens it. path is what it is called. */
reshard_status checkpoint_open_in(struct store *store, const char *name, const struct open_options *open, const char *path,
                                  struct checkpoint **out, reshard_error *err);

/* The same of what lies in a store of the caller's, whose functions are copied. */
struct store_calls;
reshard_status checkpoint_open_calls(const struct store_calls *calls, const char *path, const struct checkpoint_options *options,
                                     struct checkpoint **out, reshard_error *err);

/* Shards in memory, under that name. */
reshard_status checkpoint_open_live(const struct live_state *state, const struct open_options *open, const char *name,
                                    struct checkpoint **out, reshard_error *err);

/* That of an opened source, which it takes over in every case. */
reshard_status checkpoint_of(struct source *source, const char *path, struct checkpoint **out, reshard_error *err);
void checkpoint_close(struct checkpoint *checkpoint);

/*
 * The view in which optimizer state is one tensor for each parameter and kind of state: the checkpoint itself, unless it stores state by
 * bucket or flattened. The result belongs to the checkpoint.
 */
reshard_status checkpoint_relate(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err);

/* The view in which F4 is in pairs, as torch has it: the checkpoint itself if it has none. The result belongs to the checkpoint. */
reshard_status checkpoint_pair(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err);

/* The same as checkpoint_relate; what cannot be related is taken as it is stored, with a warning. */
reshard_status checkpoint_relate_if_possible(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err);

/* The views of two checkpoints that can be compared: as they are stored if only one stores state so and the other holds the same tensors,
 * else by parameter. What cannot be related is taken as it is stored, with a warning. */
reshard_status checkpoint_relate_both(struct checkpoint **a, struct checkpoint **b, reshard_error *err);

/* What the engine reads. */
static inline struct engine_source checkpoint_engine_source(const struct checkpoint *checkpoint)
{
    const struct source *source = checkpoint->source;
    return (struct engine_source){ .store = source->store, .catalog = source->catalog, .limits = &source->limits };
}

#endif
