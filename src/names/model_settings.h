/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of a model whose names change: config.json of what was saved with the arguments of a Megatron run, or these arguments
 * of a config.json. What says what is data (models/<family>.settings); here is which family it is, and what goes in and comes out.
 */
#ifndef NAMES_MODEL_SETTINGS_H
#define NAMES_MODEL_SETTINGS_H

#include "names/mapping_relate.h"
#include "formats/driver.h"
#include "mapping/settings.h"

struct model_settings {
    struct settings settings;
    struct str family;                 /* of the settings */
    bool is_config_made;               /* config.json is made of arguments, not they of it */
    struct value_graph parsed;         /* the config.json that is read */
    const struct value *members;       /* of the source's side; NULL: it says nothing */
    uint32_t members_count;
    struct value_graph constants;      /* what the caller set, a DICT */
    char *config;                      /* a config.json that is given goes as it is; NULL: none */
    size_t config_size;
    int64_t kept_rows;                 /* of weights with more, which are padded; 0: none are */
    char *remark;                      /* why no config.json is made; NULL: it is, or there is nothing to say */
};

struct model_settings_request {
    const struct mapping_walked *walked;
    struct source *source;
    const struct mapping_options *given;   /* by the caller: constants; may be NULL */
    const struct mapping_options *options; /* the config.json that counts */
    struct str family;                  /* that was asked for, or empty */
    bool is_lenient;                    /* a family that does not fit is no error: then no settings are known */
    bool is_asked;                      /* for names to change: then it is an error if several families fit */
    bool has_own_config;                /* the source carries that config.json itself */
};

/* Whether settings speak of the two sides of a relation. */
bool model_settings_relate(const struct mapping_rules *rules, const struct mapping_relation *relation);

/* *out NULL: no settings are known for the model. Fails if the family that was asked for, or that config.json names, is not the model's. */
reshard_status model_settings_make(const struct model_settings_request *request, struct model_settings **out, reshard_error *err);
void model_settings_free(struct model_settings *made);

/* Fails where arguments of the run say that its tensors are others than those that the relation, walked back, takes apart. */
reshard_status model_settings_check(const struct mapping_relation *relation, struct source *source, reshard_error *err);

/* What the tensors that are written tell; a type of DTYPE_COUNT and 0 rows: not known. */
struct model_facts {
    enum dtype dtype;
    int64_t vocabulary_rows, tensor_ranks;
};
reshard_status model_settings_run(const struct model_settings *made, const struct model_facts *facts, struct settings_result *out,
                                  reshard_error *err);

/* The vocabulary's size by what is read alone; 0: not known. */
reshard_status model_settings_vocabulary(const struct model_settings *made, int64_t *out, reshard_error *err);

/* The first weight that has the rows of the vocabulary; empty: not known. */
struct str model_settings_embedding(const struct model_settings *made);

#endif
