/* SPDX-License-Identifier: Apache-2.0 */
/* State of optimizers on its way into a conversion: by parameter, or left out. */
#include "convert/conversion.h"

#include "parallel/state_keys.h"

#include <string.h>

/* Whether names are to become those of another framework, as far as options tell before anything is looked at. */
static bool names_may_change(const struct conversion *conversion)
{
    const struct mapping_options *map = conversion->options->map;
    const char *own = conversion->source->source->driver->name_space,
               *other = conversion->like ? conversion->like->source->driver->name_space : NULL;
    bool is_asked = map && (map->rules_text || (map->rules && strcmp(map->rules, "none") != 0));
    return is_asked || (own && other && strcmp(own, other) != 0);
}

/* Whether there is state as it is stored, and the patterns leave all of it out. */
static reshard_status leaves_state_out(const struct conversion *conversion, bool *out, reshard_error *err)
{
    const struct catalog *catalog = conversion->source->source->catalog;
    const struct selection_options *selection = &conversion->options->selection;
    struct key_filter filter;
    bool is_there = false, is_wanted = false;
    reshard_status status = key_filter_begin(&filter, selection->include, selection->exclude, err);
    for (uint32_t i = 0; i < catalog->tensor_count && !status && !is_wanted; i++) {
        struct str key = catalog->tensors[i].key;
        if (catalog->tensors[i].flags & TENSOR_HIDDEN || !state_key_is_any(key))
            continue;
        is_there = true;
        status = key_filter_wants(&filter, key, &is_wanted, err);
    }
    key_filter_release(&filter);
    *out = !status && is_there && !is_wanted;
    return status;
}

/* What is compared with state by parameter is state by parameter. */
static reshard_status relate_reference(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    struct checkpoint *like = conversion->like;
    if (!like)
        return RESHARD_OK;
    conversion->has_one_master = like->source->driver == driver && driver->abilities & FORMAT_STATE_BY_PARAMETER;
    return checkpoint_relate_if_possible(like, &conversion->named, err);
}

reshard_status conversion_relate_state(struct conversion *conversion, reshard_error *err)
{
    const struct format_driver *driver;
    conversion->named = conversion->like;
    reshard_status status = conversion_driver(conversion, &driver, err);
    if (status || (!(driver->abilities & FORMAT_STATE_BY_PARAMETER) && !names_may_change(conversion)))
        return status;
    reshard_error reason = { 0 };
    bool is_left_out = false;
    status = relate_reference(conversion, driver, err);
    if (status)
        return status;
    status = checkpoint_relate(conversion->source, &conversion->source, &reason);
    if (status != RESHARD_ERR_UNSUPPORTED && status != RESHARD_ERR_FORMAT) {
        if (status && err)
            *err = reason;
        return status;
    }
    reshard_status asked = leaves_state_out(conversion, &is_left_out, err);
    if (asked || is_left_out)
        return asked;
    if (err)
        *err = reason;
    error_hint(err, "reshard_convert_options.exclude 'optimizer*' leaves the state out; "
                    "reshard_convert_options.to torch-dcp keeps it as it is stored");
    return status;
}
