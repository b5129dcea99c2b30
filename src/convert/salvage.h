/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Salvage: writes what is left of a damaged checkpoint, and says what is lost and what nobody can prove.
 *
 * It is opened with what is there; files that only say where things lie may come from a sibling, a checkpoint of the same layout. A tensor
 * is lost if any of its bytes is missing or goes against a stored checksum, in all copies that there are. What no checksum covers is
 * written, and called unproved. No byte of a value comes from anywhere but the damaged checkpoint.
 */
#ifndef CONVERT_SALVAGE_H
#define CONVERT_SALVAGE_H

#include "convert/conversion.h"
#include "convert/finding.h"

struct salvage_options {
    const char *to;   /* format; NULL: the one that is found */
    const char *like; /* path of a sibling, or NULL */
    bool overwrite, no_sync;
    struct checkpoint_options open;
    const char *const *include, *const *exclude; /* as of selection_options: nothing else is looked at, written or told of */
};

struct salvage_counts {
    uint64_t tensors, proved_tensors, unproved_tensors, lost_tensors;
    uint64_t items, proved_items, unproved_items, lost_items;
};

/* RESHARD_DIFFERS: something is lost; the findings say what: "lost" (failures), "unproved" (notes), "sibling" (warnings), and what was
 * wrong. Any other status: nothing was written. */
reshard_status salvage_run(const char *path, const char *target_path, const struct salvage_options *options,
                           const struct engine_options *engine, struct finding_sink *findings, struct salvage_counts *counts,
                           reshard_error *err);

#endif
