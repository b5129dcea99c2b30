/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion: everything that is known before a byte moves. Source and options in; selection, laid-out target, recipes and plan out.
 * reshard_plan reports it, reshard_convert runs it.
 */
#ifndef CONVERT_CONVERSION_H
#define CONVERT_CONVERSION_H

#include "formats/notes.h"
#include "names/mapping_make.h"
#include "convert/request_words.h"
#include "convert/selection.h"
#include "plan/plan.h"

struct conversion {
    reshard_checkpoint *source;
    reshard_checkpoint *like;
    const reshard_convert_options *options;
    struct mapping_made mapping;   /* stage NULL: names and shapes are the source's */
    struct note_list losses;       /* what the mapping leaves behind */
    struct arena notes;            /* of the losses' texts */
    struct selection selection;
    struct request_words said;
    struct layout_request request;
    char *file_name;
    struct target target;
    uint32_t own_items;            /* of the source; behind them are those that the conversion lends it */
    bool lends_items;
    struct recipe *recipes;
    uint32_t recipe_count, tensor_count; /* tensors with a chunk in the target */
    struct plan *plan;
    struct engine_options engine;
};

/* resolve_source: also find the payload of every source chunk, which a run needs and a report does not. */
reshard_status conversion_prepare(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                  const reshard_run_options *run, bool resolve_source, struct conversion *out, reshard_error *err);
void conversion_release(struct conversion *conversion);

/* conversion_settings.c: adds the configuration that the model has under its new names, as an item, and says so. */
reshard_status conversion_add_settings(struct conversion *conversion, const struct format_driver *driver, reshard_error *err);

/* Fills a report; on failure nothing is left in it. */
reshard_status conversion_report(const struct conversion *conversion, reshard_report *out, reshard_error *err);

#endif
