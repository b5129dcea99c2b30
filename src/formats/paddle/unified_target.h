/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing half of paddle-uc shares. */
#ifndef FORMATS_PADDLE_UNIFIED_TARGET_H
#define FORMATS_PADDLE_UNIFIED_TARGET_H

#include "formats/paddle/unified.h"
#include "formats/shared/safetensors_pieces.h"

/* Weights and their float32 copies are written; the copies alone, under the names of the weights; the weights alone. */
enum uc_mode { UC_MODE_WHOLE, UC_MODE_SKIP, UC_MODE_REMOVE };

/* Pieces that are left out since the trainer makes them of others. */
struct uc_leaving {
    struct target *target;
    const struct catalog *wanted;
    const struct name_map *others;
    const char *mode, *what;
    bool may_stay; /* a float32 one that no other is for */
};

extern const struct format_option uc_options[];
reshard_status uc_mode_read(const struct layout_request *request, enum uc_mode *out, reshard_error *err);

/* Takes out of the families (by uc_family) what the mode leaves out, noted as dropped, and gives the master weights their place. */
reshard_status uc_mode_apply(enum uc_mode mode, const struct layout_request *request, struct target *target, struct st_pieces *families,
                             reshard_error *err);

#endif
