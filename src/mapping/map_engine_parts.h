/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the engine share: executing statements (map_execute.c, map_execute_axes.c) and looking at what they made
 * (map_output.c). */
#ifndef MAPPING_MAP_ENGINE_PARTS_H
#define MAPPING_MAP_ENGINE_PARTS_H

#include "mapping/map_engine.h"

/* What was assigned to a name. */
struct map_symbol {
    const struct map_variable *variable; /* NULL: never assigned */
    bool is_consumed, is_removed, is_kept;
    struct map_span span;                /* of the name, where it was assigned or kept last */
};

struct map_machine {
    const struct map_engine_input *input;
    struct map_result *result;
    struct map_workshop workshop;
    struct name_map names;               /* of symbols; made names begin with a byte that no name can hold */
    struct map_symbol *symbols;
    uint32_t symbol_capacity;
    const struct map_variable **inputs;  /* by source weight, made on first use */
    const struct map_statement *statement; /* the one being executed, sides exchanged in reverse mode */
    struct buffer text;                  /* scratch */
};

/* Diagnosis at a span, with the expanded statement as a hint where macros changed it. Returns false. */
bool map_machine_fail(struct map_machine *machine, struct map_span span, const char *hint, const char *format, ...) PRINTF_LIKE(4, 5);

/* The variable of a source weight. */
reshard_status map_machine_input(struct map_machine *machine, uint32_t weight, const struct map_variable **out, reshard_error *err);

/* The weight of the source whose name is most like a given one, for a hint; empty if none is, and behind the first few errors: each search
 * goes through all names. */
#define NEAREST_TOLD_MAX 10
struct str map_machine_nearest(const struct map_machine *machine, struct str name);

/* Symbol of a written name, or NULL. */
struct map_symbol *map_machine_symbol(const struct map_machine *machine, struct str name);

/* What a name stands for: *out is NULL if it was diagnosed. */
reshard_status map_machine_read(struct map_machine *machine, const struct map_name *name, const struct map_variable **out,
                                reshard_error *err);

/* Assigns a variable, which the machine's arena holds, to a name. */
reshard_status map_machine_assign(struct map_machine *machine, const struct map_name *name, struct map_variable *variable,
                                  reshard_error *err);

/* The attribute that changes the statement's number of axes, or NULL; and executing such a statement. */
const struct map_attribute *map_machine_axes_attribute(const struct map_machine *machine);
reshard_status map_machine_change_axes(struct map_machine *machine, const struct map_attribute *attribute, reshard_error *err);

/* Fills the result from what the statements left. */
reshard_status map_machine_output(struct map_machine *machine, reshard_error *err);

#define MAP_MADE_MARK '\x01' /* first byte of made names */

#endif
