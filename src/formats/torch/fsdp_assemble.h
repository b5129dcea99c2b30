/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the files of all ranks together into one catalog. */
#ifndef FORMATS_TORCH_FSDP_ASSEMBLE_H
#define FORMATS_TORCH_FSDP_ASSEMBLE_H

#include "formats/torch/fsdp_groups.h"
#include "formats/shared/torch_source.h"

reshard_status fsdp_read_catalog(struct source *source, reshard_error *err);

#endif
