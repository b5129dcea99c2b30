/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition rules: which axis of which parameter is cut by which parallel dimension, in which blocks. They are data (models/megatron.rules
 * says how they are written), read into a table once per checkpoint.
 */
#ifndef PARALLEL_PARTITION_RULES_H
#define PARALLEL_PARTITION_RULES_H

#include "catalog/catalog.h"
#include "parallel/training_args.h"

#define RULE_COMPONENTS_MAX 8
#define RULE_BLOCKS_MAX 8

enum partition_group { PARTITION_TP, PARTITION_ETP };

struct partition_rule {
    struct str components[RULE_COMPONENTS_MAX]; /* of the pattern, the last one first; "*" any */
    int component_count;
    bool is_item;
    bool is_assumed;         /* replicated, because nothing is known */
    bool is_cut;
    int axis;
    enum partition_group group;
    bool is_vocabulary, is_gated, is_grouped;
    bool is_expert;          /* the number in the pattern is a local expert's */
    int expert_axis;         /* the experts lie along this axis; -1: along none */
    int versions;            /* parts of a head that lay apart in old versions; 0: none */
    struct str blocks[RULE_BLOCKS_MAX]; /* names of sizes */
    int block_count;
    struct str unless;       /* name of a size, "" if there is none */
};

struct partition_stack {
    struct str path;         /* "decoder.layers" */
    bool is_own;
};

/* Which stage of the pipeline has what stands outside of layers. */
enum partition_place {
    PLACE_UNKNOWN,
    PLACE_FIRST,
    PLACE_LAST,
    PLACE_NORM, /* behind the layers: the last one, or the last layer's */
    PLACE_MTP   /* multi-token prediction: the last one, or where the layout of the pipeline has it */
};

struct partition_stage {
    struct str prefix;
    enum partition_place place;
};

struct partition_copy {
    struct str copy, original;
};

struct partition_grouping {
    struct str matrix, member; /* the member's '#' is the expert */
};

struct partition_gate {
    struct str wide, narrow;
};

struct partition_size {
    struct str name, expression;
};

struct partition_rules {
    struct partition_rule *rules;
    struct partition_stack *stacks;
    struct partition_stage *stages;
    struct partition_copy *copies;
    struct partition_size *sizes;
    struct partition_gate *gates;
    struct partition_grouping *groupings;
    uint32_t grouping_count, gate_count, rule_count, stack_count, stage_count, copy_count, size_count;
};

/* Whether its parameters are those of experts: of one, of some that lie along an axis, or of all of a rank in one matrix. */
bool partition_rule_has_experts(const struct partition_rule *rule);

/* Reads a text of rules; its strings stay in text, which must live as long as the rules. FORMAT errors name line and word. */
reshard_status partition_rules_parse(struct str text, struct arena *arena, struct partition_rules *out, reshard_error *err);

/* What a key says. */
struct partition_key {
    const struct partition_rule *rule;
    const struct partition_stack *stack;  /* NULL: no layer */
    size_t layer_at, layer_size;          /* digits of the layer's number in the key */
    size_t expert_at, expert_size;        /* of the expert's, size 0: none */
    int64_t layer, expert;                /* -1: none */
};
bool partition_key_read(const struct partition_rules *rules, struct str key, struct partition_key *out);

/* The grouping that an expert's parameter belongs to; NULL if it belongs to none. *prefix: bytes of its name before the part that the rule
 * names. */
const struct partition_grouping *partition_grouping_of(const struct partition_rules *rules, struct str name,
                                                       const struct partition_key *key, size_t *prefix);

/* Appends bytes [begin, end) of the key with the layer's and the expert's number replaced. */
bool partition_renumber(struct buffer *out, struct str name, const struct partition_key *key, size_t begin, size_t end, int64_t layer,
                        int64_t expert);

/* The same for the parts of the path whose joined form is name; new texts lie in arena. */
reshard_status partition_renumber_parts(struct arena *arena, struct str name, const struct partition_key *key, struct path_part *parts,
                                        size_t count, int64_t layer, int64_t expert, reshard_error *err);

/* Where a key outside of layers belongs. */
enum partition_place partition_key_place(const struct partition_rules *rules, struct str key);

/* The value of a named size; false if no arguments for it are known, or it makes no sense. */
bool partition_size_value(const struct partition_rules *rules, const struct training_args *args, struct str name, int64_t *out);

#endif
