/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: what of a source is wanted, under which dtypes, as the catalog without chunks that drivers lay out. */
#ifndef CONVERT_SELECTION_H
#define CONVERT_SELECTION_H

#include "convert/key_rules.h"
#include "convert/naming.h"
#include "names/mapping_stage.h"

/* What becomes of a tensor that the source lacks. */
enum missing_choice { MISSING_LEFT_OUT, MISSING_FILLED, MISSING_BORROWED, MISSING_REFUSED };

/* Lists end with NULL, and may be NULL. */
struct selection_options {
    const char *const *include, *const *exclude; /* globs on keys (key_pattern.h); each matches some */
    const char *const *dtypes;                   /* "bf16" or "GLOB=f32", the last match counts */
    const struct catalog *types; /* floating tensors take the floating types that their namesakes have here; NULL: none do */
    bool drop_items;
    const uint8_t *lost_tensors, *lost_items;    /* by number of the source: what there is is damaged; NULL: nothing */
    struct naming_options naming; /* applied before the globs */
    /* Tensors of the reference that the source lacks, and what a mapping leaves as it is: "error", "zeros", a number or a path; NULL: those
     * are left out, these are zeros and listed. */
    const char *missing;
    const struct catalog *second; /* of what lies at that path */
    /* The same for each; *value is what it is filled with. NULL: as missing says. */
    reshard_status (*choose_missing)(const struct catalog *reference, uint32_t tensor, enum missing_choice *choice, double *value,
                                     void *context, reshard_error *err);
    void *missing_context;
    const struct tied_state *tied; /* tensors that the source has under another name (tied_states.h) */
    uint32_t tied_count;
    bool has_one_master; /* optimizer.state.param and .fp32_param are one name: what is written has the reference's */
    bool has_flat_state; /* optimizer state is written as NAME-STATE, whatever the source calls it */
};

/* What the mapping leaves of a wanted tensor as it is, where nothing says what that is in a file: zeros. */
struct unfilled {
    uint32_t tensor;
    int64_t elements;
};

struct selection {
    struct catalog *wanted;
    uint32_t *wanted_source; /* source tensor by wanted tensor, CATALOG_NONE if a mapping made it */
    struct recipe_table table; /* how wanted tensors are made; table.first is by wanted tensor */
    struct arena arena;      /* of the recipes' casts */
    uint32_t *wanted_items;  /* source item by wanted item, with room for one more; CATALOG_NONE: made for the target */
    uint32_t *borrowed;      /* tensors of options.second; recipes count them behind the source's */
    uint32_t borrowed_count, borrowed_capacity;
    struct unfilled *unfilled;
    uint32_t unfilled_count, unfilled_capacity;
    bool is_whole;
};

/* mapping, if not NULL, says under which names, shapes and types the source's tensors come; it must outlive the selection. format: of the
 * catalog that is made. reference: whose tensors may be missing, or NULL. */
reshard_status selection_make(const struct catalog *source, const struct mapping_stage *mapping, const char *format,
                              const struct selection_options *options, const struct catalog *reference, struct selection *out,
                              reshard_error *err);

/* selection_missing.c: adds what the reference has and the selection lacks, and makes what the mapping left, as the options say. */
reshard_status selection_add_missing(struct selection *selection, const struct catalog *source, const struct catalog *reference,
                                     const struct selection_options *options, bool is_mapped, struct key_rules *rules, reshard_error *err);

/* Whether missing tensors come out of a checkpoint there. */
bool selection_missing_is_path(const char *missing);

void selection_release(struct selection *selection);

#endif
