/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: texts that say how the configuration of a model is written in two ways, such as config.json and the arguments of a Megatron
 * run. One text is read in both directions (the files .settings of models/, docs/models.md).
 *
 *   statement   hidden_size <-> hidden_size            the same value under both names
 *               tie_word_embeddings = true <-> untie_embeddings_and_output_weights = false
 *               sliding_window = $w <-> window_size = ($w - 1, 0), optional
 *   default     config: num_attention_heads = $h -> num_key_value_heads = $h
 *   demand      demand args: swiglu = true
 *               demand args: moe_layer_freq = 1 or moe_layer_freq = [1]*$n
 *   requirement require args: attention_output_gate = false
 *
 * A statement counts if everything on the side it is read from is there and fits; it then says what stands on the other side. What an
 * earlier statement said stays.
 */
#ifndef MAPPING_SETTINGS_H
#define MAPPING_SETTINGS_H

#include "base/value.h"

#define SETTINGS_VARIABLES_MAX 12
#define SETTINGS_TERMS_MAX 24

enum settings_side {
    SETTINGS_CONFIG, /* left of the arrow */
    SETTINGS_ARGS
};

/* A number, or a variable that stands for one. */
struct settings_operand {
    int64_t number;
    int variable; /* -1: the number counts */
};

enum settings_pattern_kind {
    PATTERN_LITERAL,
    PATTERN_ABSENT,     /* the member is not there, not even as null */
    PATTERN_VARIABLE,   /* a: the variable */
    PATTERN_FLOAT,      /* float($x): the number as one with a fraction */
    PATTERN_WHOLE,      /* whole($x): the number without a fraction, where it has none */
    PATTERN_SUM,        /* a + b */
    PATTERN_DIFFERENCE,
    PATTERN_PRODUCT,
    PATTERN_QUOTIENT,
    PATTERN_ROUNDED,    /* rounded($a, $b): up to a multiple of b */
    PATTERN_LIST,       /* [$a, 0], [0]*$k + [1]*$m: segments */
    PATTERN_TUPLE,      /* ($a, 0) */
    PATTERN_MARKS,      /* marks($p, $n): a list of b numbers, 0 at the positions that the list a has and 1 elsewhere */
    PATTERN_EVERY       /* every($f, $n): a list of b numbers, 1 at each multiple of a and 0 elsewhere; made, not matched */
};

struct settings_pattern {
    enum settings_pattern_kind kind;
    const struct value *literal;
    struct settings_operand a, b;
    uint32_t first_segment, segment_count;
};

/* One element as often as count says. */
struct settings_segment {
    struct settings_pattern element; /* no list */
    struct settings_operand count;
};

struct settings_term {
    const char *path;  /* names joined with dots */
    struct settings_pattern pattern;
};

struct settings_statement {
    struct settings_term *terms[2];
    uint32_t counts[2];
    bool reads[2];     /* whether it is read from this side towards the other */
    bool is_default, is_demand, is_optional;
    bool is_required;    /* a demand without which the tensors are others, too */
    bool is_alternative; /* a demand that the one before may hold in place of */
    enum settings_side side; /* of a default or a demand; the terms of a default are then those of its condition and its result */
    uint32_t line;
};

struct settings {
    struct value_graph literals; /* and all that the text is made of */
    struct settings_statement *statements;
    struct settings_segment *segments;
    struct str *families, *keys, *rather, *asked, *ignored;
    struct str warning;      /* what neither side can say of the model as it is; empty: nothing */
    struct str *vocabulary;  /* the name of the vocabulary's size in config.json, then the weights that have that many rows */
    uint32_t statement_count, segment_count, family_count, key_count, rather_count, asked_count, ignored_count, vocabulary_count;
};

/* Parses a text; a text named behind `#: with` is looked up among those that are compiled in and stands in that place. */
reshard_status settings_parse(const char *name, struct str text, struct settings *out, reshard_error *err);
void settings_release(struct settings *settings);

/* What is translated. Names in extra go before those in members. All may be NULL. */
struct settings_input {
    const struct value *members, *extra; /* DICTs */
    uint32_t members_count, extra_count; /* nodes of their graphs */
};

struct settings_result {
    struct value_graph graph;
    struct value *members;        /* DICT of the other side */
    struct buffer missing;        /* names of the other side that nothing gives, with ", " between them */
    struct buffer unused;         /* names of this side that no statement reads */
};

/* Reads all statements from one side towards the other. given, of the other side, goes before what statements say (may be NULL). */
reshard_status settings_run(const struct settings *settings, enum settings_side from, const struct settings_input *input,
                            const struct value *given, uint32_t given_count, struct settings_result *out, reshard_error *err);
void settings_result_release(struct settings_result *result);

enum settings_verdict {
    SETTINGS_FIT,
    SETTINGS_UNFIT,  /* a demand does not hold */
    SETTINGS_REFUSED /* one that is required does not */
};

/* Whether all demands on a side hold; if not, *why gets the first that does not, in words, those that are required before others. */
reshard_status settings_fit(const struct settings *settings, enum settings_side side, const struct settings_input *input,
                            enum settings_verdict *out, struct buffer *why, reshard_error *err);

/* Whether a statement names a path on that side, or it is one of config.json that is asked for. */
bool settings_mention(const struct settings *settings, enum settings_side side, struct str path);

/* A member by a path of names joined with dots, or NULL. None counts as absent. */
const struct value *settings_find(const struct value *members, const char *path);

#endif
