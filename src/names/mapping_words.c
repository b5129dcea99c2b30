/* SPDX-License-Identifier: Apache-2.0 */
/* The order of the words in keys of optimizer state: Megatron has the state's name in front of the weight's, torch behind it. */
#include "names/mapping_words.h"

#include "parallel/state_keys.h"

#include <stdlib.h>

/* Whether the key is of the state of a weight in Megatron's spelling. */
static bool words_are_megatrons(const struct map_space *space, struct str key, struct state_key *read)
{
    return state_key_read(key, read) && read->kind == STATE_KEY_PARAMETER && read->chain < 0 &&
           read->state.data < read->parameter.data && name_map_find(&space->keys, read->parameter) != NAME_NONE;
}

/* What torch calls the weight in the state; what is a weight's own name without the prefix stays the name of that one. */
static struct str torch_words_name(const struct map_space *space, struct str weight, struct str prefix)
{
    const struct str rest = { weight.data + prefix.size, weight.size - prefix.size };
    bool has_it = prefix.size && weight.size > prefix.size && str_begins(weight, prefix);
    return has_it && name_map_find(&space->keys, rest) == NAME_NONE ? rest : weight;
}

static reshard_status words_exchange(const struct mapping_stage *before, struct str prefix, struct mapping_stage *stage, reshard_error *err)
{
    const struct map_space *space = before->space;
    struct buffer made = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < map_space_tensor_count(space) && !status; i++) {
        const struct map_tensor *tensor = &space->tensors[i];
        struct state_key read;
        struct str key = tensor->key;
        buffer_clear(&made);
        if (words_are_megatrons(space, key, &read)) {
            buffer_append_text(&made, STATE_KEY_PREFIX);
            buffer_append_str(&made, torch_words_name(space, read.parameter, prefix));
            buffer_append_byte(&made, '.');
            buffer_append_str(&made, read.state);
            key = buffer_str(&made);
        }
        status = made.failed ? error_set_memory(err)
                             : map_space_add(&stage->own, key, tensor->dtype, tensor->rank, tensor->shape, tensor->shards,
                                             tensor->shard_count, err);
    }
    buffer_release(&made);
    for (uint32_t i = 0; i < before->table.count && !status; i++)
        status = recipe_table_append(&stage->table, &before->table.recipes[i], err);
    if (!status)
        status = recipe_table_close(&stage->table, map_space_tensor_count(space), err);
    return status ? status : map_space_seal(&stage->own, err);
}

static bool words_has_any(const struct map_space *space)
{
    for (uint32_t i = 0; i < map_space_tensor_count(space); i++) {
        struct state_key read;
        if (words_are_megatrons(space, space->tensors[i].key, &read))
            return true;
    }
    return false;
}

reshard_status mapping_torch_words(struct mapping_stage **stage, struct str prefix, reshard_error *err)
{
    if (!words_has_any((*stage)->space))
        return RESHARD_OK;
    struct mapping_stage *made = calloc(1, sizeof(*made));
    reshard_status status = made ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        made->space = &made->own;
        status = words_exchange(*stage, prefix, made, err);
    }
    if (status) {
        mapping_free(made);
        return status;
    }
    made->before = *stage;
    *stage = made;
    return RESHARD_OK;
}
