/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relations between name spaces: mapping texts with directives that say what they relate and how to recognise it (models/README.md). A name
 * space is a node, a relation an edge that can be walked both ways; the part of a node's name before a hyphen is the name space as formats
 * call it, what follows is a spelling of it.
 */
#ifndef NAMES_MAPPING_RULES_H
#define NAMES_MAPPING_RULES_H

#include "names/mapping_spelling.h"
#include "names/mapping_stage.h"

#define MAPPING_NODES_MAX 64

/* A number that a text names: the extent of an axis of one weight, by that of another if `by` is there. Patterns; the first line that has
 * all of them counts. */
struct mapping_ratio {
    struct str name, key, by;
    int axis, by_axis;
};

struct mapping_relation {
    const char *name;               /* of the text's file */
    struct str text;
    uint32_t from, to;              /* nodes */
    bool is_onward;                 /* names of `from` are only kept where this relation does not fit */
    struct str *families, *keys, *back; /* back: as keys, on the side of `to` */
    struct str *alike; /* of `from`: the numbers behind each of these beginnings of keys all have the same keys, of the same shapes */
    struct mapping_ratio *ratios;
    struct mapping_spelling spelling; /* of `to`, around the names that the text gives */
    uint32_t family_count, key_count, back_count, alike_count, ratio_count;
};

/* A number that mappings may name, from a member of an item; not where the member `condition` of that item, if there is one, is false. */
struct mapping_number {
    struct str name, item, member, condition;
};

/* What a member of an item is where the names are those of a node. Keys alone do not tell every spelling from another. */
struct mapping_mark {
    uint32_t node;
    struct str item, member, text;
    bool is_exclusion; /* text is "list", "true" or "text": where the member is that, the names that are made are not those of the node */
};

/* What dtype the weights of a run have, if a member of an item is true, or if a fact of the checkpoint is that text. */
struct mapping_weights {
    enum dtype dtype;
    struct str item, member;
    struct str fact, text;
};

struct mapping_rules {
    struct arena arena;
    struct mapping_relation *relations;
    struct mapping_number *numbers;
    struct mapping_mark *marks;
    struct mapping_weights *weights;
    struct str *nodes;
    uint32_t relation_count, relation_capacity, number_count, number_capacity, mark_count, weights_count, node_count;
};

/* The built-in relations; with `own`, a text from elsewhere, those of it in place of built-in ones of model families. */
reshard_status mapping_rules_load(const struct mapping_text *own, struct mapping_rules *out, reshard_error *err);
void mapping_rules_release(struct mapping_rules *rules);

/* Nodes of a name space, as bits; none for NULL. */
uint64_t mapping_nodes_of(const struct mapping_rules *rules, const char *name_space);

/* Which nodes the keys are recognised as, of those allowed. */
uint64_t mapping_recognise(const struct mapping_rules *rules, const struct map_space *space, uint64_t allowed);

/* Of all nodes, by relations between the spellings of a framework only, not by those of model families. */
uint64_t mapping_recognise_spelling(const struct mapping_rules *rules, const struct map_space *space);

/* Whether the keys are recognised as what the relation reads: from left to right, or back. */
bool mapping_relation_fits(const struct mapping_relation *relation, const struct map_space *space, bool is_back);

/* Whether some line's patterns all have a key in the space, and those with ! before them none. ~GLOB: a glob on keys of any tensors. */
bool mapping_keys_fit(const struct map_space *space, const struct str *lines, uint32_t count);

/* What a ratio is in a space; false if its weights are not there, or it is no whole number. */
bool mapping_ratio_find(const struct mapping_ratio *ratio, const struct map_space *space, int64_t *out);

/* Names of families, each once, in the order of the relations; false past the last. */
bool mapping_family_at(const struct mapping_rules *rules, size_t index, struct str *out);

bool mapping_relation_has_family(const struct mapping_relation *relation, struct str family);

/* A node that is the whole name space, not a spelling of it. */
bool mapping_node_is_plain(const struct mapping_rules *rules, uint32_t node);

#endif
