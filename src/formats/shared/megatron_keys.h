/* SPDX-License-Identifier: Apache-2.0 */
/* What the keys of a state dict tell about Megatron: its checkpoints in plain containers bear no other mark. */
#ifndef FORMATS_SHARED_MEGATRON_KEYS_H
#define FORMATS_SHARED_MEGATRON_KEYS_H

#include "catalog/catalog.h"

/* What the keys of Megatron-FSDP hold, and no others; the second, which others have too, tells only beside other marks of Megatron. */
#define MEGATRON_FSDP_GROUPS "optimizer.param_to_group_meta."
#define MEGATRON_FSDP_MODEL "model.module."

/* Adds the fact `flavour` where the keys are Megatron's: it saves checkpoint_version, and its FSDP wraps the module once more. */
reshard_status megatron_keys_note(struct catalog *catalog, reshard_error *err);

#endif
