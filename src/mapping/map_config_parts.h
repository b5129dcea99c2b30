/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of literals (JSON, Python) and of YAML share. */
#ifndef MAPPING_MAP_CONFIG_PARTS_H
#define MAPPING_MAP_CONFIG_PARTS_H

#include "mapping/map_config.h"

struct config_reader {
    struct str file;
    size_t at;
    struct map_text *out;
    struct map_diagnoses *diagnoses;
    bool has_statements;
};

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

/* A value that begins with a bracket, at reader->at: a list is the statements (if is_statements), an object is searched for the members. */
bool config_literal(struct config_reader *reader, bool is_statements);

/* The whole file as YAML. */
bool config_yaml(struct config_reader *reader);

/* true, True, yes, on: 1; false, …: 0; else -1. */
int config_truth(struct str word);

#endif
