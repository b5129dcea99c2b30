/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/model_check.h"

#include <stdlib.h>

#include "convert/against.h"

#define CONFIG_KEY "config.json"
#define KEYS_NAMED 3

/* What is wrong in one way. */
struct model_fault {
    const char *kind, *words;
    uint32_t count;
    struct buffer keys; /* the first few */
};

struct model_faults {
    struct model_fault of[3];
};

static reshard_status take_fault(void *context, const struct finding *finding)
{
    struct model_faults *faults = context;
    for (size_t i = 0; i < sizeof(faults->of) / sizeof(faults->of[0]); i++) {
        struct model_fault *fault = &faults->of[i];
        if (strcmp(fault->kind, finding->kind) != 0)
            continue;
        if (fault->count++ < KEYS_NAMED)
            buffer_printf(&fault->keys, "%s'%.*s'", fault->count > 1 ? ", " : "", STR_ARG(finding->key));
    }
    return RESHARD_OK;
}

/* The text of the config.json that is written; nothing is appended if there is none. */
static reshard_status model_check_config(const struct conversion *conversion, struct buffer *out, reshard_error *err)
{
    const struct catalog *wanted = conversion->selection.wanted;
    const struct source *source = conversion->source->source;
    uint32_t index = 0;
    while (index < wanted->item_count && !str_is(wanted->items[index].key, CONFIG_KEY))
        index++;
    if (index == wanted->item_count)
        return RESHARD_OK;
    const struct catalog_item *item = &wanted->items[index];
    if (item->kind == ITEM_VALUE && item->value && item->value->kind == VALUE_BYTES)
        return buffer_append_str(out, item->value->text) ? RESHARD_OK : error_set_memory(err);
    if (item->kind != ITEM_FILE)
        return RESHARD_OK;
    char *name = str_copy(source->catalog->objects[layout_item_stored(&conversion->request, index)->object].name);
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), out, err) : error_set_memory(err);
    free(name);
    return status;
}

static reshard_status warn_of_fault(struct conversion *conversion, const struct model_fault *fault, reshard_error *err)
{
    return note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, STR(CONFIG_KEY), err, "%u tensors %s: %.*s%s", fault->count,
                    fault->words, STR_ARG(buffer_str(&fault->keys)), fault->count > KEYS_NAMED ? ", …" : "");
}

reshard_status model_check(struct conversion *conversion, reshard_error *err)
{
    const struct selection_options *chosen = &conversion->options->selection;
    const bool is_part = (chosen->include && chosen->include[0]) || (chosen->exclude && chosen->exclude[0]);
    struct model_faults faults = { { { .kind = "missing", .words = "that it asks for are missing" },
                                     { .kind = "shape", .words = "have another shape than it asks for" },
                                     { .kind = "unexpected", .words = "are none that it asks for" } } };
    struct finding_sink sink = { .receive = take_fault, .context = &faults };
    struct buffer config = { 0 };
    reshard_error problem = { 0 };
    if (!(conversion->target.driver->abilities & FORMAT_HOLDS_CONFIG))
        return RESHARD_OK;
    reshard_status status = model_check_config(conversion, &config, err);
    if (!status && config.size &&
        against_config(conversion->target.catalog, buffer_str(&config), &conversion->request.limits, &sink, &problem))
        status = note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, STR(CONFIG_KEY), err,
                          "names and shapes were not held against it: %s", problem.message);
    for (size_t i = is_part ? 1 : 0; i < sizeof(faults.of) / sizeof(faults.of[0]) && !status; i++) {
        if (faults.of[i].count)
            status = warn_of_fault(conversion, &faults.of[i], err);
    }
    for (size_t i = 0; i < sizeof(faults.of) / sizeof(faults.of[0]); i++)
        buffer_release(&faults.of[i].keys);
    buffer_release(&config);
    return status;
}
