/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syntax tree of a mapping: a list of statements `left, … -> right, … [, attribute=value …]`.
 *
 * The same structs hold a program as it was written and as macros rewrite it. Texts point into the source text or into the program's
 * arena; spans always point to where in the source text a part comes from, so that every later diagnosis can show it.
 */
#ifndef MAPPING_MAP_SYNTAX_H
#define MAPPING_MAP_SYNTAX_H

#include "base/name_map.h"
#include "mapping/map_lex.h"

struct map_name {
    struct str text;        /* "_" is the hole of add and delete */
    struct map_span span;
    bool is_made;           /* made by a macro: never the same as a name that somebody wrote */
    bool is_quoted;         /* was written in back quotes */
    bool has_array;         /* name[begin:end], until the array macro */
    bool is_inline;         /* …{begin:end}…: each number stands in the place of the braces, and array_suffix behind each */
    int64_t begin, end;
    struct str transpose_of; /* made for name^T: that name */
    struct str array_suffix; /* upstream glues what follows the bracket to the last name */
};

enum map_flag { MAP_FLAG_NONE, MAP_FLAG_FFN, MAP_FLAG_QKV, MAP_FLAG_QKV_OLD };

struct map_attribute {
    struct str key, value; /* value without quotes; digits of a number as they were written */
    struct map_span key_span, value_span;
    bool is_number;
    bool is_huge;          /* a number beyond int64 */
    int64_t number;
    char quote;            /* of a string */
};

struct map_statement {
    struct map_name *left, *right;
    struct map_attribute *attributes;
    uint32_t left_count, right_count, attribute_count;
    enum map_flag flag;
    struct map_span flag_span, span;
    bool is_expanded; /* a macro made or changed it: diagnoses show its text */
    bool is_optional; /* `optional`: without a key for its first name it means nothing; ours, and gone behind the id macro */
    const int64_t *shares; /* made by a macro: the left names' extents on the axis relate like these numbers; NULL: they may be anything */
    bool is_glued;         /* stands on one line with the statement before it */
    bool is_off;           /* a condition on constants does not hold */
};

struct map_program {
    struct arena arena;
    struct map_statement *statements;
    uint32_t count, capacity;
    uint64_t name_count; /* in all statements, for the limit */
};

/* Named numbers: `num_heads=num_attention_heads`. Ours, not upstream's. */
struct map_constants {
    struct name_map names;
    int64_t *values;
    bool *is_fixed; /* given from outside: what the text says is only a default */
    uint32_t capacity;
};

/* Sets a constant, unless it is fixed already. false without memory. */
bool map_constants_set(struct map_constants *constants, struct str name, int64_t value, bool is_fixed);
bool map_constants_find(const struct map_constants *constants, struct str name, int64_t *out);
void map_constants_release(struct map_constants *constants);

enum map_grammar {
    MAP_GRAMMAR_FULL, /* with name[a:b] and the flags of fused macros: what users write */
    MAP_GRAMMAR_CORE  /* what upstream's parser sees behind all macros */
};

/*
 * Parses tokens into *out (released by the caller, on failure too). Bad statements are diagnosed and left out. Fails only without memory.
 * constants: what attributes may name, and where lines `name = number` go; NULL: neither is known, as in strict AOA.
 */
reshard_status map_parse(struct str text, const struct map_tokens *tokens, enum map_grammar grammar, struct map_constants *constants,
                         struct map_program *out, struct map_diagnoses *diagnoses, reshard_error *err);

/* Appends a statement; false without memory. */
bool map_program_append(struct map_program *program, const struct map_statement *statement);

/* Attribute of a statement by key, or NULL. */
const struct map_attribute *map_attribute_find(const struct map_statement *statement, const char *key);

/* The flag that a word is, or MAP_FLAG_NONE. */
enum map_flag map_flag_of(struct str word);
const char *map_flag_name(enum map_flag flag);

static inline bool map_is_hole(const struct map_name *name)
{
    return !name->is_made && !name->is_quoted && name->text.size == 1 && name->text.data[0] == '_';
}

/* Appends the statement as text of the language, without a line end. */
bool map_statement_print(const struct map_statement *statement, struct buffer *out);

/* Appends `[{"left": […], "right": […], "attrs": [[key, value], …], "line": n}, …]`. */
bool map_program_json(const struct map_program *program, struct str text, struct buffer *out);

void map_program_release(struct map_program *program);

#endif
