/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes an optimizer's state as FSDP1 keeps it (fsdp_flat.h): each rank's pieces of flat parameters, for any number of ranks and any
 * wrapping. Units are those of the reference, else of the rule that --wrap is, else of the source.
 */
#ifndef FORMATS_TORCH_FSDP_FLAT_CUT_H
#define FORMATS_TORCH_FSDP_FLAT_CUT_H

#include "formats/torch/fsdp_flat.h"
#include "formats/torch/fsdp_target.h"

/* What all files of the optimizer need to know. */
struct fsdp_flat_plan {
    const struct fsdp_flat *source; /* NULL: state is not written so */
    bool is_original, owns_units;
    struct fsdp_shards shards;
    const struct wrap_parameter *parameters; /* in the units' order */
    uint32_t parameter_count;
    uint32_t *number_of;     /* by parameter: its number in the source's item, or CATALOG_NONE */
    uint32_t *target_number; /* by number in the source's item: that in the target's; CATALOG_NONE: it has none there */
    uint32_t *parameter_of;  /* by number in the source's item; CATALOG_NONE: none of the target's */
    uint32_t number_count;
    uint32_t *members, *first_member; /* parameters by unit: those of unit u are members[first_member[u]] … [first_member[u + 1] - 1] */
    const struct fsdp_flat *stored;   /* not NULL: pieces are as long as there, of the numbers in the target */
    struct wrap_units units;
    struct fsdp_flat *made; /* source, where that was no such optimizer */
    const char *dropped;    /* why the optimizer cannot be written; NULL: it can */
    struct arena arena;
};

/* USAGE where --wrap has nothing to wrap. Where pieces become DTensors, spread says so afterwards. */
reshard_status fsdp_flat_plan_make(const struct layout_request *request, struct fsdp_spread *spread, struct fsdp_flat_plan *out,
                                   reshard_error *err);
void fsdp_flat_plan_release(struct fsdp_flat_plan *plan);

/* Makes the copied item `optimizer` that of the file's rank: its pieces become records of the file. wanted_of: by source tensor. */
struct fsdp_cutting {
    const struct layout_request *request;
    const struct fsdp_flat_plan *plan;
    struct fsdp_target_file *file;
    struct value_graph *graph;
    const uint32_t *wanted_of;
};
reshard_status fsdp_flat_cut(const struct fsdp_cutting *cutting, struct value *optimizer, reshard_error *err);

#endif
