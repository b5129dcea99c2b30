/* SPDX-License-Identifier: Apache-2.0 */
/* Every driver has one row here. The order is that of `reshard formats`, and of probing where two are equally sure. */
#include "formats/driver.h"

#include "formats/atorch/atorch.h"
#include "formats/dcp/dcp.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/gguf/gguf_format.h"
#include "formats/hf/hf.h"
#include "formats/mcore/mcore.h"
#include "formats/megatron/megatron.h"
#include "formats/numpy/numpy.h"
#include "formats/orbax/orbax.h"
#include "formats/paddle/paddle.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/torchsnapshot/torchsnapshot.h"

static const struct format_driver *const registry[] = {
    &format_safetensors,        /* "safetensors" */
    &format_hf,                 /* "hf" */
    &format_torch,              /* "torch" */
    &format_torch_dist,         /* "torch_dist" */
    &format_torch_dcp_megatron, /* "torch_dcp" */
    &format_fsdp_dtensor,       /* "fsdp_dtensor" */
    &format_torch_dcp,          /* "torch-dcp" */
    &format_atorch,             /* "atorch" */
    &format_fsdp_ranks,         /* "fsdp-ranks" */
    &format_torch_checkpointing, /* "torch_checkpointing" */
    &format_deepspeed,          /* "deepspeed" */
    &format_ucp,                /* "ucp" */
    &format_megatron,           /* "megatron" */
    &format_zarr,               /* "zarr" */
    &format_orbax,              /* "orbax" */
    &format_paddle_flex,        /* "paddle-flex" */
    &format_paddle_uc,          /* "paddle-uc" */
    &format_paddle,             /* "paddle" */
    &format_torchsnapshot,      /* "torchsnapshot" */
    &format_gguf,               /* "gguf" */
    &format_npz,                /* "npz" */
    &format_npy,                /* "npy" */
};

#define REGISTRY_COUNT ((int)(sizeof(registry) / sizeof(registry[0])))

const struct format_driver *format_driver_at(int index)
{
    return index >= 0 && index < REGISTRY_COUNT ? registry[index] : NULL;
}

const struct format_driver *format_driver_find(const char *name)
{
    for (int i = 0; i < REGISTRY_COUNT; i++) {
        if (strcmp(registry[i]->name, name) == 0)
            return registry[i];
    }
    return NULL;
}

const struct format_driver *format_driver_of_path(const char *path)
{
    struct str name = str_base_name(str_of(path));
    for (int i = 0; i < REGISTRY_COUNT; i++) {
        const char *const *endings = registry[i]->file_endings;
        for (size_t j = 0; endings && endings[j]; j++) {
            if (name.size > strlen(endings[j]) && str_ends_with(name, endings[j]))
                return registry[i];
        }
    }
    return NULL;
}
