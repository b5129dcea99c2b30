/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapping at work: the tensors of a checkpoint under the names, shapes and types that mapping texts give them, and the recipes that make
 * them. Texts run one after the other; each sees the names that the one before it made.
 */
#ifndef NAMES_MAPPING_STAGE_H
#define NAMES_MAPPING_STAGE_H

#include "catalog/catalog.h"
#include "formats/notes.h"
#include "names/map_session.h"
#include "names/mapping_recipes.h"

/* A text to run, and where its name shows in diagnoses. */
struct mapping_text {
    const char *name;
    struct str text;
    bool reverse; /* read from right to left */
};

/* How the names, shapes and types of a checkpoint's tensors are to change; zeroed: as the names themselves tell. */
struct mapping_options {
    const struct mapping_text *texts; /* run one after the other: each sees the names that the one before it made */
    size_t text_count;
    const char *rules;                /* family of the model, which relates name spaces; "none"; NULL: detected where there are no texts */
    const struct mapping_text *rules_text; /* such a text from elsewhere, in place of a built-in one; or NULL */
    bool strict;                      /* refuse what Paddle's own engine does not know */
    struct str config;                /* JSON object, such as a model's config.json; empty: the source's own, if it has one */
    const struct mapping_constant *constants;
    size_t constant_count;
    void (*diagnose)(const char *diagnoses, size_t error_count, void *context); /* may be NULL */
    void *context;
};

/* What is the same for all texts of a run. */
struct mapping_context {
    const struct mapping_options *options; /* may be NULL: the defaults */
    const struct limits *limits;
    const struct catalog *reference; /* the last text makes this one's tensors; NULL: whatever comes out */
    const struct catalog *pattern;   /* names of the right side are looked up here, but other tensors may come out; NULL: nowhere */
};

struct mapping_stage {
    struct mapping_stage *before;  /* owns what recipes may share */
    struct map_result result;      /* of the text; empty in the first stage */
    struct map_space own;          /* names: of the checkpoint, or of the reference */
    const struct map_space *space; /* own, or those that the result made */
    struct name_map kept;          /* `_ -> name`, where no reference says what that is: who has such a weight leaves it as it is */
    struct recipe_table table;     /* from tensors of the checkpoint's catalog to those of the space */
    struct arena arena;
};

/* Statements name tensors by their keys, so every key must be one tensor's; else RESHARD_ERR_UNSUPPORTED. */
reshard_status mapping_check_keys(const struct catalog *catalog, reshard_error *err);

/* The checkpoint as it is. */
reshard_status mapping_begin(const struct catalog *source, struct mapping_stage **out, reshard_error *err);

/* Puts the text behind *stage, which then is what it made. is_last: the context's reference and pattern count. On failure *stage stays as
 * it was. */
reshard_status mapping_apply(struct mapping_stage **stage, const struct catalog *source, const struct mapping_context *context,
                             const struct mapping_text *text, bool is_last, reshard_error *err);
void mapping_free(struct mapping_stage *stage);

/* Notes what of the checkpoint does not arrive. Texts lie in arena. */
reshard_status mapping_losses(const struct mapping_stage *stage, const struct catalog *source, struct arena *arena, struct note_list *out,
                              reshard_error *err);

#endif
