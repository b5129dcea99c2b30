/* SPDX-License-Identifier: Apache-2.0 */
/* Which texts a conversion or a comparison needs, and the constants that they may name. */
#include "api/mapping_stage.h"

#include <stdlib.h>

#define CONFIG_NAME "config.json"

/* The config.json that the checkpoint carries beside its weights, for its numbers. Nothing is appended if there is none. */
static reshard_status read_config(const reshard_checkpoint *checkpoint, struct buffer *out, reshard_error *err)
{
    const struct source *source = checkpoint->source;
    const struct catalog *catalog = source->catalog;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct catalog_item *item = &catalog->items[i];
        if (item->kind != ITEM_FILE || !str_is(item->key, CONFIG_NAME))
            continue;
        char *name = copy_text(catalog->objects[item->object].name.data, catalog->objects[item->object].name.size);
        reshard_status status = name ? store_read_all(source->store, name, source->limits.json_bytes, out, err) : error_set_memory(err);
        free(name);
        return status;
    }
    return RESHARD_OK;
}

static reshard_status run_texts(const struct mapping_request *request, const struct mapping_context *context, struct mapping_stage **stage, reshard_error *err)
{
    const reshard_map_options *options = request->options;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < options->text_count && !status; i++) {
        struct mapping_text text = { options->texts[i].name ? options->texts[i].name : "mapping", { options->texts[i].text, options->texts[i].size }, false };
        status = mapping_apply(stage, checkpoint_catalog(request->source), context, &text, i + 1 == options->text_count, err);
    }
    return status;
}

reshard_status mapping_make(const struct mapping_request *request, struct mapping_stage **out, reshard_error *err)
{
    const reshard_map_options *given = request->options;
    *out = NULL;
    if (given && given->struct_size < sizeof(*given))
        return error_set(err, RESHARD_ERR_USAGE, "map options: struct_size is %zu, expected %zu", given->struct_size, sizeof(*given));
    if (!given || !given->text_count)
        return RESHARD_OK;
    struct buffer config = { 0 };
    struct mapping_stage *stage = NULL;
    reshard_map_options options = *given;
    struct mapping_context context = { .options = &options, .limits = &request->source->source->limits, .reference = request->reference, .pattern = request->pattern };
    reshard_status status = RESHARD_OK;
    if (!options.config) {
        status = read_config(request->source, &config, err);
        options.config = (const char *)config.data;
        options.config_size = config.size;
    }
    if (!status)
        status = mapping_begin(request->source, &stage, err);
    if (!status)
        status = run_texts(request, &context, &stage, err);
    buffer_release(&config);
    if (status)
        mapping_free(stage);
    else
        *out = stage;
    return status;
}
