/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of literals (JSON, Python) and of YAML share. */
#ifndef MAPPING_MAP_CONFIG_PARTS_H
#define MAPPING_MAP_CONFIG_PARTS_H

#include "mapping/map_config.h"

#define CONFIG_DEPTH_MAX 64 /* of brackets, or of members, in each other */

struct config_reader {
    struct str file;
    size_t at;
    struct map_text *out;
    struct map_diagnoses *diagnoses;
    bool has_statements, has_reverse;
    size_t statements_in, reverse_in; /* where the objects begin whose members they are */
};

/* Notes where aoa_statements and aoa_config_reverse were found, in an object that begins at an offset. One of each is read, of one object:
 * false and a diagnosis otherwise. */
bool config_found_statements(struct config_reader *reader, size_t at, size_t object);
bool config_found_reverse(struct config_reader *reader, size_t at, size_t object, bool is_reverse);

/* Appends bytes of the file, or one byte that stands for a part of it, to the text. */
void config_emit(struct config_reader *reader, size_t from, size_t size);
void config_emit_byte(struct config_reader *reader, char byte, size_t origin);

/* Ends a statement. */
void config_emit_end(struct config_reader *reader);

/* Diagnoses at an offset of the file; returns false. */
bool config_fail(struct config_reader *reader, size_t at, const char *hint, const char *message);

/* A quoted string that begins at reader->at: JSON, Python (also in three quotes) and YAML in double quotes. is_yaml: single quotes know no
 * escape but ''. emits: its value goes to the text. *value: the bytes between the quotes, as they stand. */
bool config_string(struct config_reader *reader, bool is_yaml, bool emits, struct str *value);

/* A value that begins with a bracket, at reader->at: a list is the statements (if is_statements: of the object that begins at `object`), an
 * object is searched for the members. */
bool config_literal(struct config_reader *reader, bool is_statements, size_t object);

/* What is behind a value of JSON or Python is nothing but blanks, comments and semicolons. */
bool config_literal_end(struct config_reader *reader);

/* The whole file as YAML. */
bool config_yaml(struct config_reader *reader);

/* true, True, yes, on: 1; false, …: 0; else -1. */
int config_truth(struct str word);

#endif
