/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of a mapping text: names, numbers, strings and the marks -> = : [ ] , and the end of a line. Names may hold digits of any script,
 * as upstream's do. Ours beyond upstream, refused in strict mode: `# …` to the end of the line, names in back quotes, {begin:end} inside a
 * name, and + - * / between blanks.
 *
 * A character that is no part of any token is diagnosed once, and the rest of its line becomes one TOKEN_BAD, so that the parser goes on
 * behind it.
 */
#ifndef MAPPING_MAP_LEX_H
#define MAPPING_MAP_LEX_H

#include "base/limits.h"
#include "mapping/map_diagnosis.h"

enum map_token_kind {
    TOKEN_NAME,
    TOKEN_NUMBER,
    TOKEN_STRING, /* the span has the quotes */
    TOKEN_ARROW,
    TOKEN_EQUAL,
    TOKEN_COLON,
    TOKEN_OPEN,
    TOKEN_CLOSE,
    TOKEN_COMMA,
    TOKEN_OPERATOR,
    TOKEN_LINE_END,
    TOKEN_BAD, /* was diagnosed */
    TOKEN_END
};

struct map_token {
    uint8_t kind; /* enum map_token_kind */
    struct map_span span;
};

struct map_tokens {
    struct map_token *rows; /* the last one is TOKEN_END, with a TOKEN_LINE_END before it */
    uint32_t count, capacity;
};

/* Cuts the text. Fails without memory, or above limits->map_text_bytes; a bad text is a diagnosis, no failure. */
reshard_status map_lex(struct str text, bool strict, const struct limits *limits, struct map_tokens *out, struct map_diagnoses *diagnoses,
                       reshard_error *err);
void map_tokens_release(struct map_tokens *tokens);

/* What a token is called in a message: "','", "a name", "the end of the line". */
const char *map_token_name(enum map_token_kind kind);

/* Value of the decimal digit of any script that starts at text.data[at], and its size in bytes; -1 if there is none. */
int map_digit_value(struct str text, size_t at, size_t *size);

/* Whether a name can be written without back quotes. */
bool map_is_plain_name(struct str name);

#endif
