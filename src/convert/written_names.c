/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/written_names.h"

#include "base/array.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

/* ---- making them ---- */

static reshard_status take_written_name(const struct stored_name *name, void *context, reshard_error *err)
{
    struct written_names *names = context;
    uint32_t number = name_map_intern(&names->map, name->name, NULL);
    if (number == NAME_NONE || !ARRAY_ROOM(names->tensors, number, names->capacity))
        return error_set_memory(err);
    names->tensors[number] = *name;
    return RESHARD_OK;
}

static reshard_status take_hidden(struct written_names *names, reshard_error *err)
{
    const struct catalog *catalog = names->catalog;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++)
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            status = take_written_name(&(struct stored_name){ .name = catalog->tensors[i].key, .tensor = i }, names, err);
    return status;
}

reshard_status written_names_make(const struct conversion *conversion, const struct source *written, struct written_names *out,
                                  reshard_error *err)
{
    *out = (struct written_names){ .conversion = conversion, .catalog = written->catalog };
    reshard_status status = conversion->target.hidden_keys ? take_hidden(out, err) : RESHARD_OK;
    if (!status && written->driver->each_stored_name)
        status = written->driver->each_stored_name(written, take_written_name, out, err);
    return status;
}

void written_names_release(struct written_names *names)
{
    name_map_release(&names->map);
    free(names->tensors);
}

/* ---- finding ---- */

/* By key, or where keys are ambiguous by path. */
static uint32_t written_listed(const struct written_names *names, uint32_t wanted)
{
    const struct conversion *conversion = names->conversion;
    const struct catalog *in = names->catalog;
    uint32_t found = catalog_find(in, target_read_key(&conversion->target, wanted));
    if (found == CATALOG_NONE || !(in->tensors[found].flags & TENSOR_AMBIGUOUS))
        return found;
    struct path_part single, other_single;
    const struct path_part *parts, *other;
    size_t count = catalog_tensor_path(conversion->selection.wanted, &conversion->selection.wanted->tensors[wanted], &single, &parts);
    for (uint32_t i = 0; i < in->tensor_count; i++) {
        size_t other_count = catalog_tensor_path(in, &in->tensors[i], &other_single, &other);
        if (path_equal(parts, count, other, other_count))
            return i;
    }
    return CATALOG_NONE;
}

/* By the name in the files: a parameter's, or that of the parameter whose state it is. */
static reshard_status written_stored(const struct written_names *names, struct str key, struct stored_name *out, reshard_error *err)
{
    struct state_key state = { .kind = STATE_KEY_NONE };
    bool is_state = state_key_read(key, &state) && state.kind == STATE_KEY_PARAMETER;
    uint32_t number = name_map_find(&names->map, is_state ? state.parameter : key);
    struct buffer text = { 0 };
    if (number == NAME_NONE)
        return RESHARD_OK;
    *out = names->tensors[number];
    if (!is_state)
        return RESHARD_OK;
    buffer_append_str(&text, (struct str){ key.data, (size_t)(state.parameter.data - key.data) });
    bool good = buffer_append_str(&text, names->catalog->tensors[out->tensor].key);
    out->tensor = catalog_find(names->catalog, buffer_str(&text));
    buffer_release(&text);
    return good ? RESHARD_OK : error_set_memory(err);
}

reshard_status written_find(const struct written_names *names, uint32_t wanted, struct stored_name *out, reshard_error *err)
{
    const struct target *target = &names->conversion->target;
    struct str hidden = target->hidden_keys ? target->hidden_keys[wanted] : (struct str){ 0 };
    uint32_t number = hidden.data ? name_map_find(&names->map, hidden) : NAME_NONE;
    *out = number == NAME_NONE ? (struct stored_name){ .tensor = CATALOG_NONE } : names->tensors[number];
    if (number != NAME_NONE || target->catalog->tensors[wanted].flags & TENSOR_HIDDEN)
        return RESHARD_OK;
    out->tensor = written_listed(names, wanted);
    return out->tensor == CATALOG_NONE ? written_stored(names, target_read_key(target, wanted), out, err) : RESHARD_OK;
}

reshard_status written_find_parts(const struct written_names *names, uint32_t wanted, struct written_parts *out, reshard_error *err)
{
    const struct target_parts *all = names->conversion->target.read_parts, *parts = all ? &all[wanted] : NULL;
    *out = (struct written_parts){ 0 };
    if (!parts || !parts->count)
        return RESHARD_OK;
    out->tensors = array_new(parts->count, sizeof(*out->tensors));
    if (!out->tensors)
        return error_set_memory(err);
    for (; out->count < parts->count; out->count++) {
        out->tensors[out->count] = catalog_find(names->catalog, parts->keys[out->count]);
        if (out->tensors[out->count] == CATALOG_NONE)
            break;
    }
    if (out->count < parts->count) {
        free(out->tensors);
        *out = (struct written_parts){ 0 };
    }
    return RESHARD_OK;
}
