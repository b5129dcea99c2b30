/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Hugging Face folder of torch.save shards: pytorch_model-00001-of-00003.bin … and pytorch_model.bin.index.json, which says in
 * "weight_map" where each key is; or one pytorch_model.bin. PEFT's adapters are called adapter_model, diffusers' parts
 * diffusion_pytorch_model.
 */
#ifndef FORMATS_TORCH_TORCH_FOLDER_H
#define FORMATS_TORCH_TORCH_FOLDER_H

#include "formats/shared/torch_source.h"

bool torch_folder_probe(struct store *store, const char *directory, reshard_error *err);
reshard_status torch_folder_read(struct source *source, reshard_error *err);

#endif
