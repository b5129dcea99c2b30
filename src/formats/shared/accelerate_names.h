/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What accelerate calls the FSDP checkpoints of the models and optimizers that a run prepared, of which it numbers the further ones:
 *
 *   pytorch_model_fsdp.bin, pytorch_model_fsdp_1.bin      the whole
 *   pytorch_model_fsdp_0/, pytorch_model_fsdp_1/          DCP
 *   pytorch_model_fsdp_0_rankR.bin, …_1_rankR.bin         a file a rank
 *
 * and `optimizer` in place of `pytorch_model_fsdp`.
 */
#ifndef FORMATS_SHARED_ACCELERATE_NAMES_H
#define FORMATS_SHARED_ACCELERATE_NAMES_H

#include "formats/driver.h"

#define ACCELERATE_MODEL "pytorch_model_fsdp"
#define ACCELERATE_OPTIMIZER "optimizer"

/* Whether that is such a name without its extension, and without "rankR"; *number: of the model or optimizer, 0 where none is said. */
bool accelerate_number(struct str stem, const char *word, uint32_t *number);

/* Warns of models in the folder above the number, which is the opened one's. */
reshard_status accelerate_warn_further(struct source *source, const char *directory, uint32_t number, reshard_error *err);

#endif
