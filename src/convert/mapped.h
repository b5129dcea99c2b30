/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one checkpoint under the names, shapes and types of another, as far as a mapping relates them. */
#ifndef CONVERT_MAPPED_H
#define CONVERT_MAPPED_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/selection.h"
#include "names/mapping_make.h"

struct mapped {
    const struct catalog *catalog; /* a's own, or what the mapping makes of it */
    struct mapping_made mapping;   /* mapping.stage NULL: nothing changes */
    struct selection selection;
};

/* a under b's names; options may be NULL. takes_types: and with the floating types that b's tensors have. A note says which texts relate
 * them. Release *out on failure too. */
reshard_status mapped_make(const struct checkpoint *a, const struct checkpoint *b, const struct mapping_options *options,
                           const struct naming_options *naming, bool takes_types, struct finding_sink *findings, struct mapped *out,
                           reshard_error *err);

/* a under the names of the model of that config.json, whose tensors these are. */
reshard_status mapped_make_model(const struct checkpoint *a, const struct catalog *model, struct str config,
                                 struct finding_sink *findings, struct mapped *out, reshard_error *err);
void mapped_release(struct mapped *mapped);

#endif
