/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/header_items.h"

#include "base/array.h"
#include "formats/shared/safetensors_items.h"

#include <stdlib.h>
#include <string.h>

static bool is_header_item(const struct catalog_item *item)
{
    return str_is(item->key, ST_METADATA_KEY) || str_is(item->key, ST_INDEX_METADATA_KEY);
}

/* What another format knows without being told. */
static bool is_bare_key(struct str item, const struct value *key)
{
    struct str text;
    if (!value_as_str(key, &text))
        return false;
    return str_is(item, ST_METADATA_KEY) ? str_is(text, "format") : str_is(text, "total_size") || str_is(text, "total_parameters");
}

static reshard_status header_pairs(struct source *source, uint32_t item, struct value ***pairs, size_t *count, bool *out,
                                   reshard_error *err)
{
    reshard_status status = source_load_item(source, item, err);
    *out = !status && value_as_mapping(source->catalog->items[item].value, pairs, count);
    return status;
}

reshard_status header_item_is_bare(struct source *source, uint32_t item, bool *out, reshard_error *err)
{
    const struct catalog_item *found = &source->catalog->items[item];
    struct value **pairs;
    size_t count;
    *out = false;
    if (!is_header_item(found))
        return RESHARD_OK;
    reshard_status status = header_pairs(source, item, &pairs, &count, out, err);
    for (size_t i = 0; *out && i < count; i += 2)
        *out = is_bare_key(found->key, pairs[i]);
    return status;
}

/* One note for each text that is lost. */
static reshard_status header_texts_note(struct source *source, uint32_t item, const struct format_driver *target, struct note_list *losses,
                                        struct arena *notes, reshard_error *err)
{
    struct str key = source->catalog->items[item].key, text;
    struct value **pairs;
    size_t count;
    bool is_known;
    reshard_status status = header_pairs(source, item, &pairs, &count, &is_known, err);
    for (size_t i = 0; is_known && !status && i < count; i += 2) {
        if (is_bare_key(key, pairs[i]) || !value_as_str(pairs[i], &text))
            continue;
        const struct str name = ARENA_JOIN(notes, key, STR("."), text);
        status = name.data ? note_add(losses, notes, NOTE_NO_PLACE, name, err, "%s beside the tensors of safetensors, which %s cannot hold",
                                      value_kind_name(pairs[i + 1]), target->name)
                           : error_set_memory(err);
    }
    return status;
}

reshard_status header_items_leave_out(struct source *source, const struct format_driver *target, const uint8_t *lost,
                                      struct note_list *losses, struct arena *notes, uint8_t **is_left_out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    reshard_status status = RESHARD_OK;
    if (!(source->driver->abilities & FORMAT_NAMES_FRAMEWORK) || target->abilities & FORMAT_NAMES_FRAMEWORK)
        return RESHARD_OK;
    *is_left_out = array_zeroed(catalog->item_count, sizeof(**is_left_out));
    if (!*is_left_out)
        return error_set_memory(err);
    if (lost && catalog->item_count)
        memcpy(*is_left_out, lost, catalog->item_count);
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        if ((*is_left_out)[i] || !is_header_item(&catalog->items[i]))
            continue;
        (*is_left_out)[i] = 1;
        status = header_texts_note(source, i, target, losses, notes, err);
    }
    return status;
}
