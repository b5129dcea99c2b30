/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/megatron_keys.h"

reshard_status megatron_keys_note(struct catalog *catalog, reshard_error *err)
{
    bool has_version = false, is_wrapped = false;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        has_version = has_version || str_is(catalog->items[i].key, "checkpoint_version");
        is_wrapped = is_wrapped || str_starts_with(catalog->items[i].key, MEGATRON_FSDP_GROUPS);
    }
    for (uint32_t i = 0; i < catalog->tensor_count && has_version && !is_wrapped; i++)
        is_wrapped = str_starts_with(catalog->tensors[i].key, MEGATRON_FSDP_MODEL);
    if (!has_version && !is_wrapped)
        return RESHARD_OK;
    return catalog_add_fact(catalog, "flavour", err, "Megatron %s", is_wrapped ? "fsdp_dtensor" : "torch_dcp");
}
