/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face folder: safetensors files that are one model.
 *
 *   model.safetensors                                       one file, or
 *   model-00001-of-00002.safetensors … and                  several with an index:
 *   model.safetensors.index.json      {"metadata":{"total_size":N},"weight_map":{"NAME":"FILE",…}}, or
 *   shard-00001-model-00001-of-00002.safetensors …          pieces of tensors (torch DCP's HuggingFaceStorageWriter); where each piece lies
 *                                                           is in its file's __metadata__: DCP_SHARDING_INFO
 *                                                           {"NAME":{"saved_offsets":[0,2]},…}
 *   config.json, tokenizer.json, …                          side files, carried along, as are those in
 *   additional_chat_templates/, 1_Pooling/                  chat templates by name, and modules of sentence-transformers, weights and all
 *
 * Other stems (adapter_model, diffusion_pytorch_model, model.fp16) are read alike.
 */
#ifndef FORMATS_HF_H
#define FORMATS_HF_H

#include "formats/driver.h"

#define HF_SHARDING_INFO "DCP_SHARDING_INFO"
#define HF_DCP_VERSION "DCP_VERSION"

extern const struct format_driver format_hf;

/* What a source remembers about itself, for targets that shall look like it. Lives in the catalog's arena. */
struct hf_state {
    struct str directory;  /* prefix of its files' names, with the '/'; empty in the store's root */
    struct str index_name; /* of the index file, without the directory; empty: it has none */
    bool is_dcp;           /* its tensors are in pieces */
    struct str *left;      /* folders beside the weights that are not carried along, without the directory */
    size_t left_count;
};

reshard_status hf_read_catalog(struct source *source, reshard_error *err);
reshard_status hf_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

#endif
