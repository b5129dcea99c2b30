/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of torch count their steps with every parameter, in a tensor of one element. Megatron knows one step for all parameters of an
 * optimizer (Optimizer._extract_common_per_param_step), and so does every other format: it is read, where all are the same.
 */
#include "formats/megatron/optimizer_source.h"

#include "formats/shared/step_number.h"
#include "formats/shared/torch_item.h"

#include <inttypes.h>

#define STEP_STORAGE_MAX 4096 /* bytes, which are read for each parameter; larger ones hold no steps */

struct step_reading {
    struct source *source;
    const struct torch_file *file;
    struct store_object *object; /* opened for the first tensor */
    struct buffer bytes;
};

static reshard_status read_step_tensor(struct step_reading *reading, const struct torch_tensor *tensor, struct value **out,
                                       reshard_error *err)
{
    struct source *source = reading->source;
    const struct torch_storage *storage = &reading->file->archive.storages[tensor->storage];
    unsigned size = dtype_element_bytes(tensor->dtype);
    reshard_status status = RESHARD_OK;
    if (storage->bytes > STEP_STORAGE_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a step lies in a storage of %" PRIu64 " bytes, expected at most %d", storage->bytes,
                         STEP_STORAGE_MAX);
    if (storage->bytes < size || tensor->offset_bytes > storage->bytes - size)
        return error_set(err, RESHARD_ERR_FORMAT, "a step lies behind the end of its storage");
    if (!reading->object) {
        struct str file = source->catalog->objects[reading->file->object].name;
        const char *name = arena_copy(&megatron_source_of(source)->arena, file.data, file.size);
        status = name ? store_open_object(source->store, name, &reading->object, err) : error_set_memory(err);
    }
    buffer_clear(&reading->bytes);
    if (status)
        return status;
    struct reader reader = store_object_reader(reading->object);
    status = torch_item_storage(&reading->file->archive, &reader, &source->limits, tensor->storage, &reading->bytes, err);
    return status ? status
                  : step_of_element(reading->file->graph, tensor->dtype, reading->bytes.data + tensor->offset_bytes,
                                    tensor->flags & TORCH_TENSOR_SWAP, out, err);
}

/* The step of one parameter; *out NULL: it has none that is a number. */
static reshard_status read_step(struct step_reading *reading, const struct value *entry, struct value **out, reshard_error *err)
{
    struct value *value = entry->kind == VALUE_DICT ? value_dict_get(entry, "step") : NULL;
    const struct torch_archive *archive = &reading->file->archive;
    *out = value && (value->kind == VALUE_INT || value->kind == VALUE_FLOAT) ? value : NULL;
    if (!value || *out || value->tensor == 0 || value->tensor > archive->tensor_count || archive->tensors[value->tensor - 1].rank != 0)
        return RESHARD_OK;
    return read_step_tensor(reading, &archive->tensors[value->tensor - 1], out, err);
}

static reshard_status read_steps(struct step_reading *reading, const struct value *state, struct value **out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < state->list.count && !status; i += 2) {
        struct value *step;
        status = read_step(reading, state->list.items[i + 1], &step, err);
        if (status || !step)
            continue;
        if (*out && step_as_real(*out) != step_as_real(step))
            status = error_set(err, RESHARD_ERR_UNSUPPORTED,
                               "the optimizer's step is %g for one parameter and %g for another; Megatron knows one for all",
                               step_as_real(*out), step_as_real(step));
        *out = *out ? *out : step;
    }
    return status;
}

reshard_status megatron_common_step(struct source *source, const struct megatron_rank *rank, const struct value *state, struct value **out,
                                    reshard_error *err)
{
    struct megatron_source *own = megatron_source_of(source);
    struct step_reading reading = { .source = source, .file = &own->torch.files[rank->file] };
    reshard_error reason = { 0 };
    *out = NULL;
    reshard_status status = state->kind == VALUE_DICT ? read_steps(&reading, state, out, &reason) : RESHARD_OK;
    store_object_close(reading.object);
    buffer_release(&reading.bytes);
    if (!status)
        return RESHARD_OK;
    *out = NULL;
    if (status != RESHARD_ERR_UNSUPPORTED && !megatron_may_lack(source)) {
        if (err)
            *err = reason;
        return status;
    }
    error_prefix(&reason, "'%.*s/%s'", STR_ARG(rank->folder), MEGATRON_MODEL_FILE);
    if (!own->no_common_step)
        own->no_common_step = arena_copy(&own->arena, reason.message, strlen(reason.message));
    return own->no_common_step ? RESHARD_OK : error_set_memory(err);
}
