/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/conversion_second.h"

#include <stdlib.h>

#define SECOND_PREFIX "missing"

reshard_status second_open(struct conversion *conversion, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    const char *path = options->selection.missing;
    struct second *second = &conversion->second;
    if (!selection_missing_is_path(path))
        return RESHARD_OK;
    reshard_status status = checkpoint_open(path, &options->open, &second->opened, err);
    second->view = second->opened;
    const struct source *stored = conversion->source->source->stored;
    if (!status && stored && stored->has_other_view)
        status = checkpoint_relate(second->opened, &second->view, err);
    if (!status)
        status = conversion_pair(conversion, &second->view, err);
    if (!status)
        return RESHARD_OK;
    error_prefix(err, "missing tensors");
    error_hint(err, "reshard_convert_options.missing is error, zeros, a number or the path of a checkpoint");
    return status;
}

void second_release(struct conversion *conversion)
{
    struct second *second = &conversion->second;
    catalog_free(second->joined);
    store_free(second->store);
    checkpoint_close(second->opened);
    *second = (struct second){ 0 };
}

const struct catalog *conversion_read_catalog(const struct conversion *conversion)
{
    return conversion->second.joined ? conversion->second.joined : conversion->source->source->catalog;
}

struct engine_source conversion_engine_source(const struct conversion *conversion)
{
    struct engine_source source = checkpoint_engine_source(conversion->source);
    if (conversion->second.joined) {
        source.catalog = conversion->second.joined;
        source.store = conversion->second.store;
    }
    return source;
}

/* All that was selected, read or not: nothing can be found any more once it is copied. */
static reshard_status second_resolve(struct conversion *conversion, reshard_error *err)
{
    const struct selection *selection = &conversion->selection;
    struct source *source = conversion->source->source;
    uint32_t *tensors, count, own = 0;
    reshard_status status = recipes_read(selection->table.recipes, selection->table.count,
                                         source->catalog->tensor_count + selection->borrowed_count, &tensors, &count, err);
    while (!status && own < count && tensors[own] < source->catalog->tensor_count)
        own++;
    if (!status)
        status = source_resolve(source, tensors, own, err);
    if (!status)
        status = source_resolve(conversion->second.view->source, selection->borrowed, selection->borrowed_count, err);
    free(tensors);
    return status;
}

static bool is_prefix_taken(const struct catalog *catalog, struct str prefix)
{
    bool is_taken = false;
    for (uint32_t i = 0; i < catalog->object_count && !is_taken; i++)
        is_taken = str_starts_with(catalog->objects[i].name, prefix.data);
    return is_taken;
}

/* One that no file of the source begins with. */
static bool make_prefix(const struct catalog *catalog, struct buffer *out)
{
    bool good = buffer_append_text(out, SECOND_PREFIX) && buffer_append_text(out, ":") && buffer_append_byte(out, 0);
    while (good && is_prefix_taken(catalog, buffer_str(out))) {
        out->data[out->size - 1] = ':';
        good = buffer_append_byte(out, 0);
    }
    return good;
}

static reshard_status join_catalogs(struct conversion *conversion, const char *prefix, reshard_error *err)
{
    const struct selection *selection = &conversion->selection;
    const struct source *source = conversion->source->source;
    struct catalog *joined = conversion->second.joined = catalog_new(source->catalog->format);
    struct catalog_copying copying = { .from = source->catalog };
    if (!joined)
        return error_set_memory(err);
    joined->limits = source->limits;
    joined->limits.budget = NULL; /* each was held to its limits when it was opened */
    reshard_status status = catalog_copy(joined, &copying, err);
    for (uint32_t i = 0; i < selection->borrowed_count && !status; i++)
        status = catalog_copy_one(joined, conversion->second.view->source->catalog, selection->borrowed[i], prefix, err);
    free(copying.tensors);
    free(copying.items);
    return status ? status : catalog_seal(joined, true, err);
}

reshard_status second_join(struct conversion *conversion, bool is_run, reshard_error *err)
{
    struct buffer prefix = { 0 };
    reshard_status status = is_run ? second_resolve(conversion, err) : RESHARD_OK;
    if (!status && !make_prefix(conversion->source->source->catalog, &prefix))
        status = error_set_memory(err);
    if (!status)
        status = join_catalogs(conversion, (const char *)prefix.data, err);
    if (!status) {
        conversion->second.store =
            store_new_joined(conversion->source->source->store, conversion->second.view->source->store, (const char *)prefix.data);
        status = conversion->second.store ? RESHARD_OK : error_set_memory(err);
    }
    buffer_release(&prefix);
    return status;
}
