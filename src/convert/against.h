/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a checkpoint has the tensors that it should have: those of another checkpoint, of an index, or of a model by its config.json. */
#ifndef CONVERT_AGAINST_H
#define CONVERT_AGAINST_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "names/map_session.h"

/* What a checkpoint is compared with: one of any format, an index of a folder, a config.json, or a folder with one of these. */
struct reference {
    struct store *store;
    struct checkpoint *checkpoint; /* NULL: there is only a text */
    char *file_name;               /* in the store; empty: the path is a folder */
    char *text;                    /* name of the JSON file; NULL: it is compared as a checkpoint */
    reshard_error refused;         /* why it is not */
};

/* Before anything is read of what is to be compared. On failure nothing is left. */
reshard_status reference_open(const char *path, const struct open_options *options, struct reference *out, reshard_error *err);
void reference_release(struct reference *reference);

/* Findings of the kinds "missing", "unexpected" and "shape" are failures, "dtype" is a warning. Only an error that stops is one. */
reshard_status against_run(struct checkpoint *checkpoint, struct reference *reference, struct finding_sink *findings, reshard_error *err);

/* A config.json that tensors are held against. */
struct against_model {
    struct str config;                        /* its text */
    const struct mapping_constant *constants; /* numbers that go before its own */
    size_t constant_count;
    bool leaves_state;                        /* optimizer state is no matter of it */
};

/* The same with the text of a config.json; does nothing where the model's family is not known. */
reshard_status against_config(const struct catalog *catalog, const struct against_model *model, const struct limits *limits,
                              struct finding_sink *findings, reshard_error *err);

#endif
