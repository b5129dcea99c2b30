/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_relate.h"

#include "base/array.h"

#include <stdlib.h>

#define STEPS_MAX 8

/* Names of what is in folders and files of no framework. */
#define CONTAINER_NAMES "hf"

/* The number by which callers ask for masters as weights. */
#define MASTERS_NUMBER "masters"

struct walk {
    const struct mapping_rules *rules;
    const struct mapping_goal *goal;
    uint64_t goals;                   /* nodes */
    unsigned distance[MAPPING_NODES_MAX]; /* to the nearest goal, in texts; STEPS_MAX + 1: out of reach */
    bool is_used[1024];               /* by relation */
    struct mapping_walked *out;
    struct buffer *said;              /* the result's */
};

bool mapping_is_container(const char *name_space)
{
    static const char *const containers[] = { CONTAINER_NAMES, "paddle", "paddle_uc" };
    for (size_t i = 0; name_space && i < sizeof(containers) / sizeof(containers[0]); i++) {
        if (strcmp(name_space, containers[i]) == 0)
            return true;
    }
    return !name_space;
}

uint64_t mapping_names_of(const struct mapping_rules *rules, const char *name_space, const struct map_space *space)
{
    uint64_t own = mapping_recognise(rules, space, mapping_nodes_of(rules, name_space));
    if (!own && !name_space)
        own = mapping_recognise(rules, space, mapping_nodes_of(rules, CONTAINER_NAMES));
    if (own)
        return own;
    /* Optimizer state by parameter has a legacy Megatron checkpoint listed under the names of distributed ones. */
    return mapping_is_container(name_space) ? mapping_recognise(rules, space, UINT64_MAX) : mapping_recognise_spelling(rules, space);
}

/* With a family named, relations of others do not count. */
static bool is_allowed(const struct walk *walk, const struct mapping_relation *relation)
{
    return !walk->goal->family.size || !relation->family_count || mapping_relation_has_family(relation, walk->goal->family);
}

/* Without keys to recognise on the way back there is one only where the family is named. */
static bool leads_back(const struct walk *walk, const struct mapping_relation *relation)
{
    return relation->back_count || (walk->goal->family.size && relation->family_count);
}

/* By relations that are not used yet. */
static void mapping_relate_measure(struct walk *walk)
{
    for (uint32_t i = 0; i < MAPPING_NODES_MAX; i++)
        walk->distance[i] = walk->goals >> i & 1 ? 0 : STEPS_MAX + 1;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < walk->rules->relation_count; i++) {
            const struct mapping_relation *relation = &walk->rules->relations[i];
            unsigned *from = &walk->distance[relation->from], *to = &walk->distance[relation->to];
            if (!is_allowed(walk, relation) || walk->is_used[i])
                continue;
            if (*to + 1 < *from) {
                *from = *to + 1;
                changed = true;
            }
            if (leads_back(walk, relation) && *from + 1 < *to) {
                *to = *from + 1;
                changed = true;
            }
        }
    }
}

struct step {
    const struct mapping_relation *relation;
    bool is_back;
    uint32_t end;
    bool is_tie; /* another one is as good */
};

/* Whether a is better than b: fewer texts; else towards the plain name space. */
static bool is_better(const struct walk *walk, const struct step *a, const struct step *b)
{
    unsigned x = walk->distance[a->end], y = walk->distance[b->end];
    if (x != y)
        return x < y;
    return mapping_node_is_plain(walk->rules, a->end) && !mapping_node_is_plain(walk->rules, b->end);
}

static void take_better(const struct walk *walk, struct step *best, const struct step *other)
{
    if (!best->relation || is_better(walk, other, best))
        *best = *other;
    else if (!is_better(walk, best, other) && best->relation->text.data != other->relation->text.data)
        best->is_tie = true;
}

/* How relations are looked for, the narrower way first. */
enum search {
    SEARCH_NEARER,     /* towards the goal, by keys */
    SEARCH_NAMED,      /* towards the goal, the family's whatever the keys are */
    SEARCH_ANY,        /* by keys, also on a way round */
    SEARCH_NAMED_ANY,
    SEARCH_COUNT
};

/* Whether a step that leads away from the goal arrives there without going back by the same relation: else it is a dead end. */
static bool leads_round(struct walk *walk, const struct step *step)
{
    bool *is_used = &walk->is_used[step->relation - walk->rules->relations];
    *is_used = true;
    mapping_relate_measure(walk);
    const bool arrives = walk->distance[step->end] <= STEPS_MAX;
    *is_used = false;
    mapping_relate_measure(walk);
    return arrives;
}

/* The step by a relation that leads on from any of the nodes; false if it does not. */
static bool may_step(struct walk *walk, uint64_t here, const struct map_space *space, enum search search, uint32_t index, bool is_back,
                     struct step *out)
{
    const struct mapping_relation *relation = &walk->rules->relations[index];
    bool is_nearer = search == SEARCH_NEARER || search == SEARCH_NAMED, by_name = search == SEARCH_NAMED || search == SEARCH_NAMED_ANY;
    uint32_t begin = is_back ? relation->to : relation->from;
    *out = (struct step){ relation, is_back, is_back ? relation->from : relation->to, false };
    if (walk->is_used[index] || !is_allowed(walk, relation) || !(here >> begin & 1) || walk->distance[out->end] > STEPS_MAX)
        return false;
    const bool is_away = walk->distance[out->end] >= walk->distance[begin];
    if (is_nearer && is_away)
        return false;
    bool is_named = by_name && relation->family_count && walk->goal->family.size;
    return (is_named || mapping_relation_fits(relation, space, is_back)) && (!is_away || leads_round(walk, out));
}

/* The best relation that leads on from any of the nodes; relation NULL if there is none. */
static struct step find_step(struct walk *walk, uint64_t here, const struct map_space *space, enum search search)
{
    struct step best = { 0 };
    for (uint32_t i = 0; i < walk->rules->relation_count; i++) {
        for (int back = 0; back < (leads_back(walk, &walk->rules->relations[i]) ? 2 : 1); back++) {
            struct step step;
            if (may_step(walk, here, space, search, i, back, &step))
                take_better(walk, &best, &step);
        }
    }
    return best;
}

static void say_step(struct walk *walk, const struct step *step)
{
    buffer_printf(walk->said, "%s%s%s", walk->said->size ? ", " : "", step->relation->name, step->is_back ? " backwards" : "");
}

/* Names of the relations that fit as well as the best one. */
static void say_tie(struct walk *walk, const struct step *best, uint64_t here, const struct map_space *space, enum search search)
{
    buffer_clear(walk->said);
    for (uint32_t i = 0; i < walk->rules->relation_count; i++) {
        struct step step = { 0 };
        bool is_one = may_step(walk, here, space, search, i, false, &step);
        if (!is_one && leads_back(walk, &walk->rules->relations[i]))
            is_one = may_step(walk, here, space, search, i, true, &step);
        if (is_one && !is_better(walk, best, &step))
            buffer_printf(walk->said, "%s%s", walk->said->size ? ", " : "", step.relation->name);
    }
}

/* Numbers that the weights of a space show, behind those that are given. */
struct ratios {
    struct arena arena;
    struct mapping_constant *constants;
};

static void ratios_release(struct ratios *ratios)
{
    free(ratios->constants);
    arena_release(&ratios->arena);
}

static bool mapping_relate_has_constant(const struct mapping_options *options, struct str name)
{
    for (size_t i = 0; i < options->constant_count; i++) {
        if (str_is(name, options->constants[i].name))
            return true;
    }
    return false;
}

/* Puts the ratios that the weights show behind the constants, which then lie in out; what is known goes before. */
static reshard_status find_ratios(const struct mapping_relation *relation, const struct map_space *space, struct mapping_options *options,
                                  struct ratios *out, reshard_error *err)
{
    out->constants = array_zeroed(options->constant_count + relation->ratio_count, sizeof(*out->constants));
    if (!out->constants)
        return error_set_memory(err);
    for (size_t i = 0; i < options->constant_count; i++)
        out->constants[i] = options->constants[i];
    options->constants = out->constants;
    for (uint32_t i = 0; i < relation->ratio_count; i++) {
        const struct mapping_ratio *ratio = &relation->ratios[i];
        int64_t value;
        if (mapping_relate_has_constant(options, ratio->name) || !mapping_ratio_find(ratio, space, &value))
            continue;
        char *name = arena_copy(&out->arena, ratio->name.data, ratio->name.size);
        if (!name)
            return error_set_memory(err);
        out->constants[options->constant_count++] = (struct mapping_constant){ name, value };
    }
    return RESHARD_OK;
}

/* Whether masters are to be the weights, which the number says. */
static bool wants_masters(const struct mapping_options *options)
{
    for (size_t i = 0; options && i < options->constant_count; i++) {
        if (strcmp(options->constants[i].name, MASTERS_NUMBER) == 0)
            return options->constants[i].value != 0;
    }
    return false;
}

/* Runs a relation's text: its spelling is put around what comes out, or taken off before. Ratios are numbers that the text may name. */
static reshard_status take_step(const struct walk *walk, const struct step *step, const struct mapping_context *context,
                                const struct catalog *source, struct mapping_stage **stage, reshard_error *err)
{
    static const struct mapping_options defaults = { 0 };
    const struct mapping_relation *relation = step->relation;
    struct mapping_text text = { relation->name, relation->text, step->is_back };
    struct mapping_context own = *context;
    struct mapping_options options = context->options ? *context->options : defaults;
    const char *names = walk->goal->name_space;
    bool is_kept = (!names || strcmp(names, CONTAINER_NAMES) == 0) && !relation->spelling.masters_below.size;
    uint32_t made = 0;
    enum mapping_masters back = is_kept ? MAPPING_MASTERS_AS_STORED : MAPPING_MASTERS_ARE_STATES;
    enum mapping_masters forth = wants_masters(context->options) ? MAPPING_MASTERS_ARE_WEIGHTS : MAPPING_MASTERS_AS_STORED;
    reshard_status status = step->is_back ? mapping_apply_spelling(stage, &relation->spelling, true, back,
                                                                   walk->goal->has_weights ? &walk->goal->weights : NULL, &made, err)
                                          : RESHARD_OK;
    if (status || !relation->ratio_count) {
        if (!status)
            status = mapping_apply(stage, source, context, &text, false, err);
    } else {
        struct ratios ratios = { 0 };
        status = find_ratios(relation, (*stage)->space, &options, &ratios, err);
        own.options = &options;
        if (!status)
            status = mapping_apply(stage, source, &own, &text, false, err);
        ratios_release(&ratios);
    }
    if (!status && !step->is_back)
        status = mapping_apply_spelling(stage, &relation->spelling, false, forth, NULL, &made, err);
    walk->out->made += made;
    return status;
}

static reshard_status walk_on(struct walk *walk, uint64_t here, const struct mapping_context *context, const struct catalog *source,
                              struct mapping_stage **stage, reshard_error *err)
{
    uint64_t fallback = mapping_nodes_of(walk->rules, walk->goal->name_space);
    bool walked = false;
    for (unsigned steps = 0; steps < STEPS_MAX && !(here & walk->goals); steps++) {
        struct step step = { 0 };
        enum search search = 0;
        mapping_relate_measure(walk);
        while (search < SEARCH_COUNT && !(step = find_step(walk, here, (*stage)->space, search)).relation)
            search++;
        if (!step.relation || step.is_tie) {
            /* Where nothing leads on, any spelling of the goal's names will do. */
            if (walked && !step.relation && !walk->goal->reference && here & fallback)
                break;
            if (step.relation)
                say_tie(walk, &step, here, (*stage)->space, search);
            walk->out->way = step.relation ? MAPPING_WAY_AMBIGUOUS : MAPPING_WAY_NONE;
            return RESHARD_OK;
        }
        const struct map_space *before = (*stage)->space;
        bool is_checked = step.relation->family_count && !step.is_back && walk->goal->check;
        reshard_status status = is_checked ? walk->goal->check(walk->goal->context, before, err) : RESHARD_OK;
        if (!status)
            status = take_step(walk, &step, context, source, stage, err);
        if (status)
            return status;
        if (step.relation->family_count) {
            walk->out->family = step.relation;
            walk->out->is_back = step.is_back;
            walk->out->undone = step.is_back ? step.relation : walk->out->undone;
            walk->out->left = step.is_back ? (*stage)->space : before;
        }
        say_step(walk, &step);
        walk->is_used[step.relation - walk->rules->relations] = true;
        here = UINT64_C(1) << step.end;
        walked = true;
    }
    walk->out->way = walked ? MAPPING_WAY_WALKED : MAPPING_WAY_SAME;
    return RESHARD_OK;
}

/* Of several spellings that the keys fit, those that the source's items name; else all that they do not rule out. */
static uint64_t narrow(const struct mapping_goal *goal, uint64_t here)
{
    if (here & goal->named)
        return here & goal->named;
    return here & ~goal->denied ? here & ~goal->denied : here;
}

/* Where to arrive: at the reference's names; without one at the name space, but not at a spelling that is only a way station, unless it
 * leads to one that is excluded. */
static uint64_t goal_nodes(const struct mapping_rules *rules, const struct mapping_goal *goal)
{
    if (goal->reference)
        return mapping_names_of(rules, goal->name_space, goal->reference);
    uint64_t nodes = mapping_nodes_of(rules, goal->name_space);
    for (uint32_t i = 0; i < rules->relation_count; i++) {
        if (rules->relations[i].is_onward && !(goal->excluded >> rules->relations[i].to & 1))
            nodes &= ~(UINT64_C(1) << rules->relations[i].from);
    }
    return nodes & ~goal->excluded ? nodes & ~goal->excluded : nodes;
}

reshard_status mapping_relate(const struct mapping_rules *rules, const char *name_space, const struct mapping_goal *goal,
                              const struct mapping_context *context, const struct catalog *source, struct mapping_stage **stage,
                              struct mapping_walked *out, reshard_error *err)
{
    struct walk walk = { .rules = rules, .goal = goal, .goals = goal_nodes(rules, goal), .out = out, .said = &out->said };
    uint64_t here = narrow(goal, mapping_names_of(rules, name_space, (*stage)->space)), all = mapping_nodes_of(rules, name_space);
    *out = (struct mapping_walked){ .way = MAPPING_WAY_NONE };
    if (rules->relation_count > sizeof(walk.is_used))
        return error_set(err, RESHARD_ERR_LIMIT, "more than %zu relations between names", sizeof(walk.is_used));
    /* A name space without a reference has every spelling. */
    if (here & walk.goals ||
        (!goal->reference && goal->name_space && name_space && strcmp(goal->name_space, name_space) == 0 && here & all)) {
        out->way = MAPPING_WAY_SAME;
        return RESHARD_OK;
    }
    if (!here && goal->family.size)
        here = all ? all : mapping_nodes_of(rules, CONTAINER_NAMES);
    if (!here || !walk.goals)
        return RESHARD_OK;
    return walk_on(&walk, here, context, source, stage, err);
}
