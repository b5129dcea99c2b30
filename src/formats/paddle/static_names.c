/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/static_names.h"

#include "base/array.h"

#include <stdlib.h>

#define STATIC_FILES UINT32_MAX

reshard_status static_names_add(struct static_names *names, struct str key, struct str name, uint32_t file, reshard_error *err)
{
    bool is_new_key, is_new_name;
    uint32_t number = name_map_intern(&names->keys, key, &is_new_key), called = name_map_intern(&names->names, name, &is_new_name);
    if (number == NAME_NONE || called == NAME_NONE || !ARRAY_ROOM(names->name_of, number, names->key_capacity) ||
        !ARRAY_ROOM(names->file_of, called, names->name_capacity))
        return error_set_memory(err);
    if (is_new_name)
        names->file_of[called] = file;
    if (!is_new_key && names->name_of[number] == called)
        return RESHARD_OK; /* another rank's copy */
    if (is_new_key)
        names->name_of[number] = called;
    if (names->file_of[called] != file)
        names->file_of[called] = STATIC_FILES;
    return RESHARD_OK;
}

struct str static_names_at(const struct static_names *names, uint32_t key)
{
    uint32_t name = names->name_of[key];
    return names->file_of[name] == STATIC_FILES ? (struct str){ 0 } : name_map_at(&names->names, name);
}

struct str static_names_find(const struct static_names *names, struct str key)
{
    uint32_t number = name_map_find(&names->keys, key);
    return number == NAME_NONE ? (struct str){ 0 } : static_names_at(names, number);
}

void static_names_release(struct static_names *names)
{
    name_map_release(&names->keys);
    name_map_release(&names->names);
    free(names->name_of);
    free(names->file_of);
    *names = (struct static_names){ 0 };
}
