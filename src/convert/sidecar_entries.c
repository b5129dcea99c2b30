/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a sidecar: what tensors and items are called in it, and what stands behind the name. */
#include "convert/sidecar_parts.h"

#include "base/array.h"
#include "convert/checkpoint_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)256 << 10)

/* ---- names ---- */

static bool sidecar_entries_put_path(const struct path_part *parts, size_t count, struct buffer *out)
{
    buffer_append_byte(out, '[');
    for (size_t i = 0; i < count; i++) {
        buffer_append_text(out, i ? "," : "");
        if (parts[i].kind == PATH_KEY)
            buffer_append_json_string(out, parts[i].key);
        else
            buffer_printf(out, parts[i].kind == PATH_INDEX ? "%" PRId64 : "{\"int\":%" PRId64 "}", parts[i].index);
    }
    return buffer_append_byte(out, ']');
}

/* What JSON cannot hold (bytes that are no text, lone surrogates) is escaped. Of one name twice the first counts. */
static reshard_status add_name(struct sidecar_names *names, struct str name, uint32_t index, reshard_error *err)
{
    struct buffer escaped = { 0 };
    bool was_new = false, is_text = str_is_utf8(name, false, NULL);
    if (!is_text)
        buffer_append_escaped(&escaped, name);
    uint32_t number = escaped.failed ? NAME_NONE : name_map_intern(&names->map, is_text ? name : buffer_str(&escaped), &was_new);
    buffer_release(&escaped);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (was_new)
        names->indices[number] = index;
    return RESHARD_OK;
}

static reshard_status add_path(struct sidecar_names *names, const struct path_part *parts, size_t count, uint32_t index, reshard_error *err)
{
    struct buffer path = { 0 };
    reshard_status status =
        sidecar_entries_put_path(parts, count, &path) ? add_name(names, buffer_str(&path), index, err) : error_set_memory(err);
    buffer_release(&path);
    return status;
}

reshard_status sidecar_names_of_tensors(const struct checkpoint *checkpoint, struct sidecar_names *out, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    struct path_part single;
    const struct path_part *parts;
    uint32_t count_listed;
    const uint32_t *listed = checkpoint_whole_listing(checkpoint, &count_listed);
    *out = (struct sidecar_names){ .indices = array_zeroed(count_listed, sizeof(uint32_t)) };
    reshard_status status = out->indices ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < count_listed && !status; i++) {
        uint32_t index = listed[i];
        const struct catalog_tensor *tensor = &catalog->tensors[index];
        if (!(tensor->flags & TENSOR_AMBIGUOUS)) {
            status = add_name(out, tensor->key, index, err);
            continue;
        }
        size_t count = catalog_tensor_path(catalog, tensor, &single, &parts);
        status = add_path(out, parts, count, index, err);
    }
    return status;
}

reshard_status sidecar_names_of_items(const struct checkpoint *checkpoint, struct sidecar_names *out, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    struct path_part single;
    const struct path_part *parts;
    *out = (struct sidecar_names){ .indices = array_zeroed(catalog->item_count, sizeof(uint32_t)) };
    reshard_status status = out->indices ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        const struct catalog_item *item = &catalog->items[i];
        if (!item->is_ambiguous) {
            status = add_name(out, item->key, i, err);
            continue;
        }
        size_t count = catalog_item_path(catalog, item, &single, &parts);
        status = add_path(out, parts, count, i, err);
    }
    return status;
}

void sidecar_names_release(struct sidecar_names *names)
{
    name_map_release(&names->map);
    free(names->indices);
    *names = (struct sidecar_names){ 0 };
}

void sidecar_put_type(const struct catalog *catalog, uint32_t tensor, struct buffer *out)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    const int64_t *shape = catalog_vector_at(catalog, entry->shape);
    buffer_printf(out, "%s [", dtype_info(entry->dtype)->name);
    for (int axis = 0; axis < entry->rank; axis++)
        buffer_printf(out, "%s%" PRId64, axis ? "," : "", shape[axis]);
    buffer_append_byte(out, ']');
}

/* ---- items ---- */

reshard_status item_digests_begin(const struct source *source, enum digest_kind kind, struct item_digests *out, reshard_error *err)
{
    *out = (struct item_digests){ .source = source, .digest = digest_new(kind), .object = CATALOG_NONE, .window = malloc(WINDOW_BYTES) };
    return out->digest && out->window ? RESHARD_OK : error_set_memory(err);
}

void item_digests_end(struct item_digests *digests)
{
    store_object_close(digests->file);
    digest_free(digests->digest);
    free(digests->window);
    *digests = (struct item_digests){ 0 };
}

static reshard_status sidecar_entries_open_file(struct item_digests *digests, uint32_t object, reshard_error *err)
{
    if (digests->file && digests->object == object)
        return RESHARD_OK;
    store_object_close(digests->file);
    digests->file = NULL;
    digests->object = object;
    struct str name = digests->source->catalog->objects[object].name;
    char *plain = str_copy(name);
    reshard_status status = plain ? store_open_object(digests->source->store, plain, &digests->file, err) : error_set_memory(err);
    free(plain);
    return status;
}

static reshard_status digest_extent(struct item_digests *digests, const struct catalog_item *item, reshard_error *err)
{
    reshard_status status = sidecar_entries_open_file(digests, item->object, err);
    for (uint64_t at = 0; at < item->bytes && !status;) {
        size_t size = item->bytes - at < WINDOW_BYTES ? (size_t)(item->bytes - at) : WINDOW_BYTES;
        status = store_read_at(digests->file, item->offset + at, digests->window, size, err);
        if (!status)
            digest_update(digests->digest, digests->window, size);
        at += size;
    }
    return status;
}

reshard_status item_digest(struct item_digests *digests, uint32_t index, char out[ITEM_DIGEST_MAX], reshard_error *err)
{
    const struct catalog_item *item = &digests->source->catalog->items[index];
    char hex[DIGEST_HEX_MAX];
    reshard_status status = RESHARD_OK;
    digest_reset(digests->digest);
    if (item->kind != ITEM_VALUE)
        status = digest_extent(digests, item, err);
    else if (item->value && !value_digest(item->value, item->graph->count, digests->source->limits.budget, digests->digest))
        status = work_error(digests->source->limits.budget, err);
    if (status)
        return status;
    digest_hex(digests->digest, hex);
    snprintf(out, ITEM_DIGEST_MAX, "%s:%s", item->kind == ITEM_VALUE ? "value" : "bytes", hex);
    return RESHARD_OK;
}
