/* SPDX-License-Identifier: Apache-2.0 */
/* Loading together: what keys are there and wanted, and what becomes of those that are not both. */
#include "api/load_call.h"
#include "base/array.h"
#include "base/hash.h"
#include "convert/checkpoint_identity.h"
#include "convert/load_rounds.h"
#include "names/mapping_pack.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- strictness ---- */

enum strict_action { STRICT_IGNORES, STRICT_LOGS, STRICT_RAISES, STRICT_RETURNS, STRICT_LEAVES };

static const struct strict_rule {
    const char *name;
    enum strict_action unexpected, missing;
} strict_rules[] = {
    { "assume_ok_unexpected", STRICT_LEAVES, STRICT_IGNORES }, { "log_unexpected", STRICT_LOGS, STRICT_IGNORES },
    { "log_all", STRICT_LOGS, STRICT_LOGS },                   { "raise_unexpected", STRICT_RAISES, STRICT_IGNORES },
    { "raise_all", STRICT_RAISES, STRICT_RAISES },             { "return_unexpected", STRICT_RETURNS, STRICT_IGNORES },
    { "return_all", STRICT_RETURNS, STRICT_RETURNS },          { "ignore_all", STRICT_IGNORES, STRICT_IGNORES },
};
#define STRICT_COUNT ((int64_t)(sizeof(strict_rules) / sizeof(strict_rules[0])))

API_EXPORT const char *reshard_strict_name(int64_t strict)
{
    return strict >= 0 && strict < STRICT_COUNT ? strict_rules[strict].name : NULL;
}

API_EXPORT reshard_status reshard_strict_find(const char *name, int64_t *strict, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(strict, err);
    *strict = 0;
    NEEDS(name, err);
    for (int64_t i = 0; i < STRICT_COUNT; i++) {
        if (strcmp(strict_rules[i].name, name) == 0) {
            *strict = i;
            return RESHARD_OK;
        }
    }
    return error_set(err, RESHARD_ERR_USAGE, "Invalid strict flag: %s", name);
}

/* ---- keys ---- */

static void load_release(struct load_call *call)
{
    group_release(&call->group);
    memory_names_release(&call->names);
    map_call_release(&call->map);
    reshard_close(call->checkpoint);
    reshard_sharded_free(call->result);
    name_map_release(&call->stored);
    name_map_release(&call->wanted);
    free(call->unexpected);
    free(call->missing);
}

static struct str item_key(const reshard_checkpoint *checkpoint, size_t index)
{
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_item_at(checkpoint, index, &item);
    return given_str(item.key);
}

static struct str tensor_key(const reshard_checkpoint *checkpoint, size_t index)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(checkpoint, index, &tensor);
    return given_str(tensor.key);
}

/* What the mapping makes of the checkpoint, in the order in which it makes it. */
static bool mapped_collect(struct load_call *call)
{
    const struct mapping_stage *stage = call->names.made.stage;
    const struct catalog *catalog = call->named->source->catalog;
    bool is_good = true;
    for (uint32_t i = 0; is_good && stage && i < map_space_tensor_count(stage->space); i++)
        is_good = name_map_intern(&call->stored, stage->space->tensors[i].key, NULL) != NAME_NONE;
    for (uint32_t i = 0; is_good && !stage && i < catalog->tensor_count; i++)
        is_good = catalog->tensors[i].flags & TENSOR_HIDDEN ||
                  name_map_intern(&call->stored, catalog->tensors[i].key, NULL) != NAME_NONE;
    return is_good;
}

static reshard_status stored_collect(struct load_call *call, reshard_error *err)
{
    bool is_good = !call->named || mapped_collect(call);
    struct str key;
    for (size_t i = 0; is_good && !call->named && i < reshard_tensor_count(call->checkpoint); i++)
        is_good = name_map_intern(&call->stored, tensor_key(call->checkpoint, i), NULL) != NAME_NONE;
    for (size_t i = 0; is_good && i < reshard_item_count(call->checkpoint); i++) {
        if (sharded_key_is_object(item_key(call->checkpoint, i), &key))
            is_good = name_map_intern(&call->stored, key, NULL) != NAME_NONE;
    }
    return is_good ? RESHARD_OK : error_set_memory(err);
}

bool load_is_stored(const struct load_call *call, struct str key)
{
    return name_map_find(&call->stored, key) != NAME_NONE;
}

/* Whether a key that is asked for is not there, and the mapping does not say that it stays as it is. */
static bool is_unexpected(const struct load_call *call, struct str key)
{
    return !load_is_stored(call, key) && !(call->named && memory_names_keep(&call->names, key));
}

/* Every rank makes the same of what all ask for. */
static reshard_status names_make(struct load_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    struct shard_list wanted = { 0 };
    if (!call->given.map)
        return RESHARD_OK;
    work_renew(&checkpoint_source(call->checkpoint)->work);
    reshard_status status = checkpoint_relate_if_possible(call->checkpoint->opened, &call->named, err);
    for (uint32_t r = 0; r < group->size; r++)
        for (size_t i = 0; i < group->ranks[r]->tensor_count && !status; i++)
            status = shard_list_add(&wanted, &group->ranks[r]->tensors[i].shard, err);
    if (!status)
        status = memory_names_make(call->named->source, &wanted, &call->map.options, &call->names, err);
    shard_list_release(&wanted);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return str_compare(*(const struct str *)a, *(const struct str *)b);
}

/* What this rank asks for and is not there, each once; and what is there and nobody asks for. */
static reshard_status keys_compare(struct load_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    struct name_map unexpected = { 0 };
    bool is_good = true, is_new;
    for (uint32_t r = 0; r < group->size; r++) {
        const struct sharded_dict *dict = group->ranks[r];
        for (size_t i = 0; is_good && i < dict->tensor_count + dict->object_count; i++) {
            struct str key = i < dict->tensor_count ? dict->tensors[i].shard.key : dict->objects[i - dict->tensor_count].key;
            is_good = name_map_intern(&call->wanted, key, NULL) != NAME_NONE;
            if (r == group->rank && is_unexpected(call, key))
                is_good = is_good && name_map_intern(&unexpected, key, &is_new) != NAME_NONE;
        }
    }
    call->unexpected = array_zeroed(unexpected.count, sizeof(*call->unexpected));
    call->missing = array_zeroed(call->stored.count, sizeof(*call->missing));
    is_good = is_good && call->unexpected && call->missing;
    for (uint32_t i = 0; is_good && i < unexpected.count; i++)
        call->unexpected[call->unexpected_count++] = call->wanted.names[name_map_find(&call->wanted, unexpected.names[i])];
    for (uint32_t i = 0; is_good && i < call->stored.count; i++) {
        if (name_map_find(&call->wanted, call->stored.names[i]) == NAME_NONE)
            call->missing[call->missing_count++] = call->stored.names[i];
    }
    name_map_release(&unexpected);
    if (!is_good)
        return error_set_memory(err);
    qsort(call->unexpected, call->unexpected_count, sizeof(*call->unexpected), by_text);
    qsort(call->missing, call->missing_count, sizeof(*call->missing), by_text);
    return RESHARD_OK;
}

static void names_put(struct buffer *out, const char *title, const struct str *names, size_t count)
{
    buffer_printf(out, "%s%s: {", out->size ? " " : "", title);
    for (size_t i = 0; i < count; i++)
        buffer_printf(out, "%s'%.*s'", i ? ", " : "", STR_ARG(names[i]));
    buffer_append_text(out, "}.");
}

static reshard_status value_put(struct load_call *call, enum sharded_value_kind kind, struct str key, reshard_error *err)
{
    const struct sharded_value value = { .kind = kind, .key = key };
    return sharded_add_value(&call->result->dict, &value, err);
}

static reshard_status keys_return(struct load_call *call, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; call->rule->missing == STRICT_RETURNS && i < call->missing_count && !status; i++)
        status = value_put(call, SHARDED_MISSING, call->missing[i], err);
    for (size_t i = 0; call->rule->unexpected == STRICT_RETURNS && i < call->unexpected_count && !status; i++)
        status = value_put(call, SHARDED_UNEXPECTED, call->unexpected[i], err);
    return status;
}

/* Raises, or warns, as the rule says. */
static reshard_status keys_say(struct load_call *call, enum strict_action action, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    if (call->rule->unexpected == action && call->unexpected_count)
        names_put(&text, "Unexpected keys (for this rank)", call->unexpected, call->unexpected_count);
    if (call->rule->missing == action && call->missing_count)
        names_put(&text, "Missing keys (for all ranks)", call->missing, call->missing_count);
    if (text.failed)
        status = error_set_memory(err);
    else if (text.size && action == STRICT_RAISES)
        status = error_set(err, RESHARD_ERR_USAGE, "%.*s", STR_ARG(buffer_str(&text)));
    else if (text.size)
        status = value_put(call, SHARDED_WARNING, buffer_str(&text), err);
    buffer_release(&text);
    return status;
}

reshard_status load_unexpected_error(const struct load_call *call, struct str key, reshard_error *err)
{
    struct buffer text = { 0 };
    struct str *names = array_zeroed(call->stored.count, sizeof(*names));
    if (!names)
        return error_set_memory(err);
    memcpy(names, call->stored.names, call->stored.count * sizeof(*names));
    qsort(names, call->stored.count, sizeof(*names), by_text);
    for (uint32_t i = 0; i < call->stored.count; i++)
        buffer_printf(&text, "%s'%.*s'", i ? ", " : "", STR_ARG(names[i]));
    reshard_status status = error_set(err, RESHARD_ERR_USAGE, "%.*s from model not in state dict: [%.*s]", STR_ARG(key),
                                      STR_ARG(buffer_str(&text)));
    error_object(err, "%.*s", STR_ARG(key));
    const char *warning = call->names.made.warning; /* why names were not changed */
    error_hint(err, "%s", warning ? warning : "reshard_load_options.strict says what becomes of such keys");
    free(names);
    buffer_release(&text);
    return status;
}

static reshard_status targets_check(const struct load_call *call, reshard_error *err)
{
    const struct sharded_dict *own = call->group.ranks[call->group.rank];
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < own->tensor_count && !status; i++) {
        status = load_target_check(&own->tensors[i].shard, err);
        if (!status && call->named)
            status = memory_names_check(&call->names, &own->tensors[i].shard, err);
    }
    return status;
}

static reshard_status strictness_apply(struct load_call *call, reshard_error *err)
{
    reshard_status status = names_make(call, err);
    if (!status)
        status = targets_check(call, err);
    if (!status)
        status = stored_collect(call, err);
    if (!status)
        status = keys_compare(call, err);
    if (!status)
        status = keys_say(call, STRICT_RAISES, err);
    if (!status)
        status = keys_say(call, STRICT_LOGS, err);
    if (!status)
        status = keys_return(call, err);
    if (!status && !call->given.no_check)
        status = sharded_check(call->group.ranks, call->group.size, err);
    for (size_t i = 0; !status && call->rule->unexpected == STRICT_LEAVES && i < call->group.ranks[call->group.rank]->tensor_count; i++) {
        struct str key = call->group.ranks[call->group.rank]->tensors[i].shard.key;
        if (is_unexpected(call, key))
            status = load_unexpected_error(call, key, err);
    }
    if (!status && call->rule->unexpected == STRICT_LEAVES && call->unexpected_count)
        status = load_unexpected_error(call, call->unexpected[0], err);
    return status;
}

/* ---- objects and values ---- */

#define AS_FILES_OR_JSON 2

/* A file that lies beside the checkpoint's own is no value of a state. */
static bool is_side_file(const reshard_checkpoint *checkpoint, size_t item)
{
    return checkpoint_catalog(checkpoint)->items[checkpoint_item_at(checkpoint->opened, item)].kind == ITEM_FILE;
}

/* As JSON, or as a file; malloc'd, and to be freed whatever is returned. */
static reshard_status item_content(const reshard_checkpoint *checkpoint, int64_t as_files, size_t item, struct str *json, struct str *file,
                                   reshard_error *err)
{
    const bool is_file = as_files && !(as_files == AS_FILES_OR_JSON && is_side_file(checkpoint, item));
    void *bytes = NULL;
    char *text = NULL;
    size_t size = 0;
    reshard_status status = is_file ? reshard_item_file(checkpoint, item, &bytes, &size, err)
                                    : reshard_item_json(checkpoint, item, &text, &size, err);
    *json = (struct str){ text, text ? size : 0 };
    *file = (struct str){ bytes, bytes ? size : 0 };
    return status;
}

static reshard_status object_result(struct load_call *call, const struct sharded_object *object, reshard_error *err)
{
    struct sharded_object loaded = *object;
    struct buffer key = { 0 };
    struct str json = { 0 }, file = { 0 };
    reshard_status status = sharded_object_key(object, &key) ? RESHARD_OK : error_set_memory(err);
    int64_t item = status ? -1 : reshard_item_find(call->checkpoint, (const char *)key.data, key.size);
    if (!status && item < 0)
        status = error_set(err, RESHARD_ERR_USAGE, "the checkpoint has no '%.*s': objects are loaded in the grid that they were saved in",
                           STR_ARG(buffer_str(&key)));
    if (!status)
        status = item_content(call->checkpoint, call->given.as_files, (size_t)item, &json, &file, err);
    if (!status) {
        loaded.json = json;
        loaded.file = file;
        loaded.bytes = (struct str){ 0 };
        status = sharded_add_object(&call->result->dict, &loaded, err);
    }
    free((char *)json.data);
    free((char *)file.data);
    buffer_release(&key);
    return status;
}

static reshard_status common_result(const reshard_checkpoint *checkpoint, int64_t as_files, reshard_sharded *result, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < reshard_item_count(checkpoint) && !status; i++) {
        struct sharded_value value = { .kind = SHARDED_COMMON, .key = item_key(checkpoint, i) };
        struct str key;
        if (sharded_key_is_object(value.key, &key) || (as_files && as_files != AS_FILES_OR_JSON && is_side_file(checkpoint, i)))
            continue;
        status = item_content(checkpoint, as_files, i, &value.json, &value.file, err);
        if (!status)
            status = sharded_add_value(&result->dict, &value, err);
        free((char *)value.json.data);
        free((char *)value.file.data);
    }
    return status;
}

static reshard_status values_result(struct load_call *call, reshard_error *err)
{
    const struct sharded_dict *own = &call->sharded->dict;
    reshard_status status = common_result(call->checkpoint, call->given.as_files, call->result, err);
    for (size_t i = 0; i < own->value_count && !status; i++) {
        if (own->values[i].kind == SHARDED_LOCAL)
            status = sharded_add_value(&call->result->dict, &own->values[i], err);
    }
    for (size_t i = 0; i < own->object_count && !status; i++) {
        if (load_is_stored(call, own->objects[i].key))
            status = object_result(call, &own->objects[i], err);
    }
    return status;
}

/* ---- loading ---- */

static reshard_status load_open(struct load_call *call, const char *path, const reshard_load_options *options, reshard_error *err)
{
    reshard_status status = struct_take(&call->given, sizeof(call->given), options, "reshard_load_options", err);
    if (status)
        return status;
    if (!reshard_strict_name(call->given.strict))
        return error_set(err, RESHARD_ERR_USAGE, "Invalid strict flag: %" PRId64, call->given.strict);
    call->rule = &strict_rules[call->given.strict];
    status = run_options_read(call->run, &call->running, err);
    if (status)
        return status;
    RUN_WAITS(&call->running);
    status = reshard_sharded_new(&call->result, err);
    if (!status)
        status = reshard_open(path, call->given.open, &call->checkpoint, err);
    return status || !call->given.map ? status : map_options_read(call->given.map, &call->map, err);
}

/* What each rank tells the others of its options, and of what it has opened; the path follows. */
struct options_said {
    uint64_t map; /* a hash */
    uint64_t staging_bytes;
    int64_t strict, no_exchange;
    struct checkpoint_identity identity;
};

static reshard_status options_say(struct load_call *call, const char *path, struct buffer *out, reshard_error *err)
{
    struct buffer map = { 0 };
    struct options_said own = { .staging_bytes = load_staging_budget(&call->running.engine),
                                .strict = call->given.strict,
                                .no_exchange = call->given.no_exchange != 0 };
    bool is_good = !call->given.map || mapping_pack(&call->map.options, &map);
    own.map = map.size ? hash64(map.data, map.size, 0) : 0;
    buffer_release(&map);
    if (call->group.size > 1)
        checkpoint_identify(call->checkpoint->opened, &own.identity);
    call->staging_bytes = own.staging_bytes;
    buffer_append(out, &own, sizeof(own));
    buffer_append_text(out, path);
    return is_good && !out->failed ? RESHARD_OK : error_set_memory(err);
}

/* Ranks with different mappings would take one tensor for another, and what one reads is another's value too. */
static reshard_status options_match(uint32_t rank, const struct str *part, const struct str *first_part, uint64_t *staging_bytes,
                                    reshard_error *err)
{
    struct options_said said, first;
    if (part->size < sizeof(said) || first_part->size < sizeof(first))
        return error_set(err, RESHARD_ERR_FORMAT, "rank %" PRIu32 " does not say its options", rank);
    memcpy(&said, part->data, sizeof(said));
    memcpy(&first, first_part->data, sizeof(first));
    if (said.map != first.map)
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " has another mapping than rank 0", rank);
    if (said.strict != first.strict)
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " is %s, rank 0 %s: all are to be as strict", rank,
                         reshard_strict_name(said.strict), reshard_strict_name(first.strict));
    if (said.no_exchange != first.no_exchange)
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " %s what it reads with the others, and rank 0 %s", rank,
                         said.no_exchange ? "does not exchange" : "exchanges", said.no_exchange ? "does" : "does not");
    if (!checkpoint_is_same(&said.identity, &first.identity))
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " loads another checkpoint than rank 0: '%.*s', and '%.*s'", rank,
                         (int)(part->size - sizeof(said)), part->data + sizeof(said), (int)(first_part->size - sizeof(first)),
                         first_part->data + sizeof(first));
    if (said.staging_bytes < *staging_bytes)
        *staging_bytes = said.staging_bytes;
    return RESHARD_OK;
}

/* All ranks have the same rounds. */
static reshard_status options_compare(struct load_call *call, const char *path, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    struct buffer own = { 0 };
    struct comm_gathered gathered = { 0 };
    reshard_status status = group_agree(group, options_say(call, path, &own, err), err);
    if (!status)
        status = group_gather(group, own.data, own.size, &gathered, err);
    buffer_release(&own);
    for (uint32_t r = 0; r < group->size && !status; r++)
        status = options_match(r, &gathered.parts[r], &gathered.parts[0], &call->staging_bytes, err);
    group_gathered_release(group, &gathered);
    return status;
}

API_EXPORT reshard_status reshard_load(reshard_comm *comm, const char *path, reshard_sharded *sharded, const reshard_load_options *options,
                                       const reshard_run_options *run, reshard_sharded **result, reshard_error *err)
{
    struct load_call call = { .run = run, .sharded = sharded };
    reshard_error own = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    err = err ? err : &own;
    if (result)
        *result = NULL;
    reshard_status status =
        path && sharded ? load_open(&call, path, options, err) : argument_missing(__func__, path ? "sharded" : "path", err);
    RUN_WAITS(&call.running);
    status = group_begin(&call.group, comm, "reshard_load", sharded, false, status, err);
    if (!status)
        status = options_compare(&call, path, err);
    if (!status)
        status = group_agree(&call.group, strictness_apply(&call, err), err);
    if (!status)
        status = group_agree(&call.group, values_result(&call, err), err);
    if (!status)
        status = load_values(&call, err);
    if (!status)
        status = group_agree(&call.group, reshard_sharded_merge(sharded, err), err);
    if (!status && result) {
        *result = call.result;
        call.result = NULL;
    }
    load_release(&call);
    return status;
}

/* ---- metadata ---- */

static reshard_status tensor_metadata(const reshard_checkpoint *checkpoint, size_t index, reshard_sharded *out, reshard_error *err)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(checkpoint, index, &tensor);
    reshard_sharded_tensor whole = RESHARD_SHARDED_TENSOR_INIT;
    whole.key = tensor.key;
    whole.dtype = tensor.dtype;
    whole.rank = (size_t)tensor.rank;
    whole.local_shape = tensor.shape;
    return reshard_sharded_add_offsets(out, &whole, NULL, sizeof(reshard_rank_offset), 0, err);
}

API_EXPORT reshard_status reshard_sharded_metadata(const reshard_checkpoint *checkpoint, reshard_sharded **out, reshard_error *err)
{
    reshard_sharded *made = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(checkpoint, err);
    reshard_status status = reshard_sharded_new(&made, err);
    for (size_t i = 0; i < reshard_tensor_count(checkpoint) && !status; i++)
        status = tensor_metadata(checkpoint, i, made, err);
    for (size_t i = 0; i < reshard_item_count(checkpoint) && !status; i++) {
        const struct str name = item_key(checkpoint, i);
        struct sharded_object object;
        struct str key;
        if (!sharded_key_is_object(name, &key))
            continue;
        status = sharded_object_of_key(name, &made->dict.arena, &object, err);
        if (!status)
            status = sharded_add_object(&made->dict, &object, err);
    }
    if (!status)
        status = common_result(checkpoint, false, made, err);
    if (status)
        reshard_sharded_free(made);
    else
        *out = made;
    return status;
}
