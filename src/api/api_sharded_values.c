/* SPDX-License-Identifier: Apache-2.0 */
/* Objects and values of sharded state dicts. */
#include "api/sharded_handle.h"

#include <inttypes.h>

/* ---- objects ---- */

static reshard_status object_take_given(const reshard_sharded_object *object, struct sharded_object *out, reshard_error *err)
{
    reshard_sharded_object given;
    reshard_status status = struct_take(&given, sizeof(given), object, "reshard_sharded_object", err);
    if (status)
        return status;
    *out = (struct sharded_object){ .key = given_str(given.key),
                                    .rank = (int)given.rank,
                                    .shape = given.global_shape,
                                    .offset = given.global_offset,
                                    .replica = { given.replica_ids, given.replica_count },
                                    .json = given_str(given.json),
                                    .bytes = given_str(given.bytes),
                                    .file = given_str(given.file) };
    if (given.rank > RANK_MAX || (given.rank && (!given.global_shape || !given.global_offset)) ||
        (given.replica_count && !given.replica_ids))
        return error_set(err, RESHARD_ERR_USAGE, "object '%.*s': a vector is NULL, or its grid has more than %d axes", STR_ARG(out->key),
                         RANK_MAX);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_sharded_add_object(reshard_sharded *sharded, const reshard_sharded_object *object, reshard_error *err)
{
    struct sharded_object taken;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(object, err);
    reshard_status status = object_take_given(object, &taken, err);
    return status ? status : sharded_add_object(&sharded->dict, &taken, err);
}

API_EXPORT size_t reshard_sharded_object_count(const reshard_sharded *sharded)
{
    return sharded ? sharded->dict.object_count : 0;
}

API_EXPORT reshard_status reshard_sharded_object_at(const reshard_sharded *sharded, size_t index, reshard_sharded_object *out)
{
    if (!entry_begin(out, "reshard_sharded_object", index, reshard_sharded_object_count(sharded)))
        return RESHARD_ERR_USAGE;
    const struct sharded_object *object = &sharded->dict.objects[index];
    const reshard_sharded_object made = { .key = { object->key.data ? object->key.data : "", object->key.size },
                                          .rank = (size_t)object->rank,
                                          .global_shape = object->shape,
                                          .global_offset = object->offset,
                                          .replica_ids = object->replica.ids,
                                          .replica_count = object->replica.count,
                                          .json = { object->json.data, object->json.size },
                                          .bytes = { object->bytes.data, object->bytes.size },
                                          .file = { object->file.data, object->file.size } };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_object_key(const reshard_sharded_object *object, char **out, reshard_error *err)
{
    struct sharded_object taken;
    struct sharded_dict checked = { 0 };
    struct buffer text = { 0 };
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(object, err);
    reshard_status status = object_take_given(object, &taken, err);
    if (!status)
        status = sharded_add_object(&checked, &taken, err);
    if (!status && (!sharded_object_key(&taken, &text) || !buffer_append_byte(&text, '\0')))
        status = error_set_memory(err);
    sharded_dict_release(&checked);
    if (status)
        buffer_release(&text);
    else
        *out = (char *)text.data;
    return status;
}

API_EXPORT reshard_status reshard_sharded_add_object_key(reshard_sharded *sharded, reshard_str text, reshard_error *err)
{
    struct sharded_object object;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    reshard_status status = sharded_object_of_key(given_str(text), &sharded->dict.arena, &object, err);
    return status ? status : sharded_add_object(&sharded->dict, &object, err);
}

/* ---- values ---- */

API_EXPORT reshard_status reshard_sharded_add_value(reshard_sharded *sharded, const reshard_sharded_value *value, reshard_error *err)
{
    reshard_sharded_value given;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(value, err);
    reshard_status status = struct_take(&given, sizeof(given), value, "reshard_sharded_value", err);
    if (status)
        return status;
    if (given.kind < 0 || given.kind >= SHARDED_VALUE_KINDS)
        return error_set(err, RESHARD_ERR_USAGE, "%" PRId64 " is no kind of value", given.kind);
    const struct sharded_value taken = { (enum sharded_value_kind)given.kind, given_str(given.key), given_str(given.json),
                                         given_str(given.file) };
    return sharded_add_value(&sharded->dict, &taken, err);
}

API_EXPORT size_t reshard_sharded_value_count(const reshard_sharded *sharded)
{
    return sharded ? sharded->dict.value_count : 0;
}

API_EXPORT reshard_status reshard_sharded_value_at(const reshard_sharded *sharded, size_t index, reshard_sharded_value *out)
{
    if (!entry_begin(out, "reshard_sharded_value", index, reshard_sharded_value_count(sharded)))
        return RESHARD_ERR_USAGE;
    const struct sharded_value *value = &sharded->dict.values[index];
    const reshard_sharded_value made = { .kind = value->kind,
                                         .key = { value->key.data ? value->key.data : "", value->key.size },
                                         .json = { value->json.data ? value->json.data : "", value->json.size },
                                         .file = { value->file.data, value->file.size } };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}
