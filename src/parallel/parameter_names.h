/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of parameters: as ranks register them, in which order, and as distributed checkpoints call them. They are data
 * (models/megatron.names says how they are written).
 *
 * A parameter is a line of the table and the numbers of its layer and expert, counted through the whole model.
 */
#ifndef PARALLEL_PARAMETER_NAMES_H
#define PARALLEL_PARAMETER_NAMES_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "parallel/training_args.h"

#define NAME_NUMBERS_MAX 4

/* What lines may depend on. */
enum name_condition { NAME_LOCAL = 1, NAME_MLA = 2, NAME_GROUPED = 4, NAME_HYBRID = 8, NAME_SINCE_0_17 = 16, NAME_SINCE_0_19 = 32 };

/* The experts of one matrix are named as if they were modules. */
unsigned name_conditions_of(const struct training_args *args);

struct name_line {
    unsigned wanted, unwanted; /* conditions that must and must not hold */
    struct str name, key;      /* patterns */
    bool is_buffer;
    bool has_rest;             /* both end with * */
    bool keeps_number;         /* the first one stays in keys, whatever becomes of others */
    int number_count;
    uint32_t group[NAME_NUMBERS_MAX]; /* first line with the same name up to number i: they repeat together */
};

struct parameter_names {
    struct name_line *lines;
    uint32_t count, capacity;
};

struct parameter_name {
    uint32_t line;
    int number_count;
    int64_t numbers[NAME_NUMBERS_MAX]; /* -1: dropped, an axis stands for it */
    struct str rest;                   /* what * stands for; part of the text that was read */
};

/* Patterns are kept in the arena. FORMAT errors name the line. */
reshard_status parameter_names_parse(struct str text, struct arena *arena, struct parameter_names *out, reshard_error *err);

/* What a registered name, or a key, means under the conditions; false if no line fits. */
bool parameter_name_read(const struct parameter_names *names, unsigned conditions, struct str name, struct parameter_name *out);
bool parameter_key_read(const struct parameter_names *names, unsigned conditions, struct str key, struct parameter_name *out);

/* Appends the registered name, for which all numbers must be there. */
void parameter_name_write(const struct parameter_names *names, const struct parameter_name *parameter, struct buffer *out);

/* How many numbers stay in the parameter's key where `kept` of others' do. */
int parameter_key_kept(const struct parameter_names *names, const struct parameter_name *parameter, int kept);

/* Appends the key with its first `kept` numbers, as parameter_key_kept gives them; the others are dropped. */
void parameter_key_write(const struct parameter_names *names, const struct parameter_name *parameter, int kept, struct buffer *out);

/* Order of registration: negative if a comes before b. */
int parameter_name_compare(const struct parameter_names *names, const struct parameter_name *a, const struct parameter_name *b);

#endif
