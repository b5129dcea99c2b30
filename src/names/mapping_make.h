/* SPDX-License-Identifier: Apache-2.0 */
/* The mapping of a conversion or a comparison: which texts run, and with which numbers. */
#ifndef NAMES_MAPPING_MAKE_H
#define NAMES_MAPPING_MAKE_H

#include "formats/driver.h"
#include "names/mapping_stage.h"
#include "names/model_settings.h"

struct mapping_request {
    struct source *source;
    struct source *other;               /* whose names are wanted: the reference, or what it is compared with; NULL: none */
    const struct catalog *model;        /* instead of other: the tensors of a model, in the name space of containers; NULL: none */
    const char *target_names;           /* name space of the target's format, or NULL */
    bool wants_torch_words;             /* keys of optimizer state become torch's, whether names change or not (mapping_words.h) */
    struct str torch_prefix;            /* of weights, without which torch's keys of state have their names */
    bool is_comparison;                 /* what comes out need not be just the other's tensors */
    const struct mapping_options *options; /* may be NULL */
    /* A model whose names are Hugging Face's, before a text of its family runs with these numbers; NULL: nobody looks at it. */
    reshard_status (*check_model)(void *context, const struct map_space *model, const struct mapping_options *numbers, reshard_error *err);
    void *context;
};

struct mapping_made {
    struct mapping_stage *stage; /* NULL: nothing changes */
    char *names;                 /* which relations between name spaces were used, in words; NULL: none */
    char *warning;               /* why none was, though one was wanted; NULL: nothing to say */
    struct model_settings *settings; /* of the model whose names change; NULL: none are known */
};

reshard_status mapping_make(const struct mapping_request *request, struct mapping_made *out, reshard_error *err);
void mapping_made_release(struct mapping_made *made);

#endif
