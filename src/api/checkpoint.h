/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle behind reshard_checkpoint, and what the functions of this folder share. Public tensor indices count the listed tensors;
 * hidden ones (payload of opaque items) keep their catalog index only.
 */
#ifndef API_CHECKPOINT_H
#define API_CHECKPOINT_H

#include "reshard/reshard.h"

#include "engine/engine.h"
#include "formats/driver.h"

#define API_EXPORT __attribute__((visibility("default")))

struct reshard_checkpoint {
    struct source *source;
    char *path;
    uint32_t *listed;        /* catalog index by public index */
    uint32_t *public_index;  /* and back; CATALOG_NONE for hidden tensors */
    uint32_t listed_count;
    uint32_t *sorted;        /* public indices by key; made on first use */
    reshard_path_part *parts; /* scratch of reshard_path_of */
    size_t part_capacity;
    size_t json_item, members_item; /* 1 + the last one shown: going back begins another run, with a full budget of work */
    struct buffer class_name; /* scratch of reshard_item_at */
    reshard_checkpoint *related; /* the same with optimizer state of parameters; made on first use, borrows the store */
};

static inline const struct catalog *checkpoint_catalog(const reshard_checkpoint *checkpoint)
{
    return checkpoint->source->catalog;
}

/* Public indices in the order of keys: bytewise; equal keys by index, last first. Owned by the handle; NULL without memory. */
const uint32_t *checkpoint_sorted(reshard_checkpoint *checkpoint);

/* Fills listed and public_index. */
reshard_status checkpoint_list_tensors(reshard_checkpoint *checkpoint, reshard_error *err);

/*
 * The view in which optimizer state is one tensor for each parameter and kind of state: the checkpoint itself, unless it stores state by
 * bucket or flattened. The result belongs to the checkpoint.
 */
reshard_status checkpoint_relate(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err);

/* The views of two checkpoints that can be compared: as they are stored if only one stores state so and the other holds the same tensors,
 * else by parameter. What cannot be related is taken as it is stored, with a warning. */
reshard_status checkpoint_relate_both(reshard_checkpoint **a, reshard_checkpoint **b, reshard_error *err);

/* The engine's view of the handle, and its options from the public ones (NULL: defaults), which must outlive the result. */
struct engine_source checkpoint_engine_source(const reshard_checkpoint *checkpoint);
reshard_status run_options_read(const reshard_run_options *run, struct engine_options *out, reshard_error *err);

/* malloc'd copy of text; NULL without memory. */
char *copy_text(const char *text, size_t size);

/* A finding with a formatted line, handed to a sink (which may be NULL). */
struct finding_sink {
    reshard_finding_sink sink;
    void *context;
    uint64_t failures, warnings;
};
void finding_report(struct finding_sink *sink, int severity, const char *kind, struct str key, const char *format, ...) PRINTF_LIKE(5, 6);

/* The same with numbers. */
void finding_report_values(struct finding_sink *sink, struct str key, const char *text, int64_t index, uint64_t count,
                           double max_difference);

#endif
