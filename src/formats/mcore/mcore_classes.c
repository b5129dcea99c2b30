/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes in the common state. Megatron Core loads it by torch.load(weights_only=True) after registering a few classes; one that is not
 * among them makes the load fail. Such values come from old runs or other programs. They are written all the same, and reported.
 */
#include "formats/mcore/mcore_items.h"

#include "encoding/torch_save.h"
#include "formats/mcore/mcore_target.h"

/* "module name", of 0.19. */
static const char *const registered[] = {
    "argparse Namespace",
    "types SimpleNamespace",
    "pathlib PosixPath",
    "signal Signals",
    "_io BytesIO",
    "io BytesIO",
    "torch._C Generator",
    "numpy ndarray",
    "numpy dtype",
    "numpy.dtypes UInt32DType",
    "numpy.core.multiarray _reconstruct",
    "numpy._core.multiarray _reconstruct",
    "megatron.core.enums ModelType",
    "megatron.core.transformer.enums AttnBackend",
    "megatron.core.transformer.enums CudaGraphScope",
    "megatron.core.transformer.enums CudaGraphModule",
    "megatron.core.transformer.enums InferenceCudaGraphScope",
    "megatron.core.rerun_state_machine RerunDiagnostic",
    "megatron.core.rerun_state_machine RerunMode",
    "megatron.core.rerun_state_machine RerunState",
    "megatron.core.optimizer.optimizer_config OptimizerConfig",
};

static bool is_registered(struct str module, struct str name)
{
    for (size_t i = 0; i < sizeof(registered) / sizeof(registered[0]); i++) {
        struct str entry = str_of(registered[i]);
        if (entry.size == module.size + 1 + name.size && memcmp(entry.data, module.data, module.size) == 0 &&
            entry.data[module.size] == ' ' && memcmp(entry.data + module.size + 1, name.data, name.size) == 0)
            return true;
    }
    return torch_global_is_weights_only(module, name);
}

static bool find_blocker(const struct value *value, void *context)
{
    const struct value **found = context;
    if (value->kind == VALUE_GLOBAL && !is_registered(value->global.module, value->global.name))
        *found = value;
    return !*found;
}

reshard_status mcore_classes_note(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct path_tree *tree = &mcore_target_state(target)->dcp.tree;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < tree->node_count && !status; i++) {
        const struct path_tree_node *node = &tree->nodes[i];
        const struct value *blocker = NULL;
        bool no_memory = false;
        if (!node->is_leaf || node->is_left_out || node->wanted == CATALOG_NONE)
            continue;
        const struct catalog_item *item = layout_item_stored(request, node->wanted);
        if (!item->value || !item->graph ||
            value_walk(item->value, item->graph->count, request->limits.budget, find_blocker, &blocker, &no_memory))
            continue;
        if (no_memory)
            return error_set_memory(err);
        if (blocker)
            status = target_note_changed(target, NOTE_RELEASE, item->key, err,
                                         "it is of or holds %.*s.%.*s, which Megatron Core from 0.14 on refuses to load",
                                         STR_ARG(blocker->global.module), STR_ARG(blocker->global.name));
    }
    return status;
}
