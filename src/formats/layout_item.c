/* SPDX-License-Identifier: Apache-2.0 */
/* The items that a lay-out works with: of an open checkpoint, or of whoever else loads them. */
#include "formats/driver.h"

static reshard_status load_of_source(void *context, uint32_t item, reshard_error *err)
{
    return source_load_item(context, item, err);
}

static reshard_status storage_of_source(void *context, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    return source_read_item_storage(context, item, storage, out, err);
}

void layout_of_source(struct layout_request *request, struct source *source)
{
    request->source = source;
    request->source_catalog = source->catalog;
    request->items = (struct item_loader){ .load = load_of_source,
                                           .read_storage = source->driver->read_item_storage ? storage_of_source : NULL,
                                           .context = source };
}

const struct catalog_item *layout_item_stored(const struct layout_request *request, uint32_t wanted)
{
    uint32_t item = request->wanted_items[wanted];
    return item == CATALOG_NONE ? &request->wanted->items[wanted] : &request->source_catalog->items[item];
}

reshard_status layout_item(const struct layout_request *request, uint32_t wanted, const struct catalog_item **out, reshard_error *err)
{
    uint32_t item = request->wanted_items[wanted];
    *out = layout_item_stored(request, wanted);
    return item == CATALOG_NONE || (*out)->value ? RESHARD_OK : request->items.load(request->items.context, item, err);
}

reshard_status layout_item_named(const struct layout_request *request, const char *key, const struct catalog_item **out, reshard_error *err)
{
    uint32_t item = catalog_find_item(request->source_catalog, str_of(key));
    *out = NULL;
    if (item != CATALOG_NONE) {
        *out = &request->source_catalog->items[item];
        return (*out)->value ? RESHARD_OK : request->items.load(request->items.context, item, err);
    }
    uint32_t made = catalog_find_item(request->wanted, str_of(key));
    if (made != CATALOG_NONE && request->wanted_items[made] == CATALOG_NONE)
        *out = &request->wanted->items[made];
    return RESHARD_OK;
}

reshard_status layout_item_storage(const struct layout_request *request, uint32_t wanted, uint32_t storage, struct buffer *out,
                                   reshard_error *err)
{
    return request->items.read_storage(request->items.context, request->wanted_items[wanted], storage, out, err);
}
