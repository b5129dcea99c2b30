/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_rules.h"

#include "base/array.h"
#include "base/model_data.h"
#include "mapping/map_pattern.h"

#include <stdlib.h>

#define DIRECTIVE "#:"

static void release_relation(struct mapping_relation *relation)
{
    free(relation->families);
    free(relation->keys);
    free(relation->back);
    free(relation->alike);
    free(relation->spelling.pairs);
    free(relation->ratios);
}

void mapping_rules_release(struct mapping_rules *rules)
{
    for (uint32_t i = 0; i < rules->relation_count; i++)
        release_relation(&rules->relations[i]);
    free(rules->relations);
    free(rules->numbers);
    free(rules->marks);
    free(rules->weights);
    free(rules->nodes);
    arena_release(&rules->arena);
    *rules = (struct mapping_rules){ 0 };
}

/* ---- words and lines ---- */

static bool append_str(struct str **list, uint32_t *count, struct str value)
{
    struct str *larger = reallocarray(*list, (size_t)*count + 1, sizeof(*larger));
    if (!larger)
        return false;
    *list = larger;
    larger[(*count)++] = value;
    return true;
}

static reshard_status node_of(struct mapping_rules *rules, struct str name, uint32_t *out, reshard_error *err)
{
    for (*out = 0; *out < rules->node_count; (*out)++) {
        if (str_equal(rules->nodes[*out], name))
            return RESHARD_OK;
    }
    if (rules->node_count == MAPPING_NODES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "more than %d name spaces", MAPPING_NODES_MAX);
    return append_str(&rules->nodes, &rules->node_count, name) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status add_relation(struct mapping_rules *rules, const char *name, struct str text, struct str from, reshard_error *err)
{
    if (!ARRAY_ROOM(rules->relations, rules->relation_count, rules->relation_capacity))
        return error_set_memory(err);
    struct mapping_relation *relation = &rules->relations[rules->relation_count];
    *relation = (struct mapping_relation){ .name = name, .text = text, .to = UINT32_MAX };
    reshard_status status = node_of(rules, from, &relation->from, err);
    if (!status)
        rules->relation_count++;
    return status;
}

/* number = NAME ITEM.MEMBER [ "if" MEMBER ] */
static reshard_status mapping_rules_add_number(struct mapping_rules *rules, struct str rest, reshard_error *err)
{
    struct str name = str_take_word(&rest), place = str_take_word(&rest), condition = { 0 };
    size_t dot;
    if (str_is(str_take_word(&rest), "if"))
        condition = str_take_word(&rest);
    if (!name.size || !str_find_char(place, '.', &dot))
        return RESHARD_OK;
    if (!ARRAY_ROOM(rules->numbers, rules->number_count, rules->number_capacity))
        return error_set_memory(err);
    rules->numbers[rules->number_count++] =
        (struct mapping_number){ name, { place.data, dot }, { place.data + dot + 1, place.size - dot - 1 }, condition };
    return RESHARD_OK;
}

/* where = ITEM.MEMBER TEXT, not = ITEM.MEMBER list|true */
static bool add_mark(struct mapping_rules *rules, uint32_t node, struct str rest, bool is_exclusion)
{
    struct str place = str_take_word(&rest), text = str_take_word(&rest);
    size_t dot;
    if (!text.size || !str_find_char(place, '.', &dot))
        return true;
    struct mapping_mark *larger = reallocarray(rules->marks, (size_t)rules->mark_count + 1, sizeof(*larger));
    if (!larger)
        return false;
    rules->marks = larger;
    larger[rules->mark_count++] =
        (struct mapping_mark){ node, { place.data, dot }, { place.data + dot + 1, place.size - dot - 1 }, text, is_exclusion };
    return true;
}

/* weights = DTYPE ITEM.MEMBER | DTYPE "if" FACT TEXT */
static bool add_weights(struct mapping_rules *rules, struct str rest)
{
    struct str name = str_take_word(&rest), place = str_take_word(&rest);
    enum dtype dtype;
    size_t dot = 0;
    bool is_fact = str_is(place, "if");
    if (!dtype_from_name(name, &dtype) || (!is_fact && !str_find_char(place, '.', &dot)))
        return true;
    struct mapping_weights *larger = reallocarray(rules->weights, (size_t)rules->weights_count + 1, sizeof(*larger));
    if (!larger)
        return false;
    rules->weights = larger;
    struct mapping_weights *added = &larger[rules->weights_count++];
    *added = (struct mapping_weights){ .dtype = dtype };
    if (is_fact) {
        added->fact = str_take_word(&rest);
        added->text = str_take_word(&rest);
    } else {
        added->item = (struct str){ place.data, dot };
        added->member = (struct str){ place.data + dot + 1, place.size - dot - 1 };
    }
    return true;
}

static bool mapping_rules_read_axis(struct str word, int *out)
{
    *out = word.size == 1 ? word.data[0] - '0' : -1;
    return *out >= 0 && *out < RANK_MAX;
}

/* ratio = NAME KEY AXIS [KEY AXIS] */
static bool add_ratio(struct mapping_relation *relation, struct str rest)
{
    struct mapping_ratio ratio = { .name = str_take_word(&rest) };
    ratio.key = str_take_word(&rest);
    bool is_good = mapping_rules_read_axis(str_take_word(&rest), &ratio.axis);
    ratio.by = str_take_word(&rest);
    if (!is_good || (ratio.by.size && !mapping_rules_read_axis(str_take_word(&rest), &ratio.by_axis)))
        return true;
    struct mapping_ratio *larger = reallocarray(relation->ratios, (size_t)relation->ratio_count + 1, sizeof(*larger));
    if (!larger)
        return false;
    relation->ratios = larger;
    larger[relation->ratio_count++] = ratio;
    return true;
}

/* respell = PART PART */
static bool add_pair(struct mapping_spelling *spelling, struct str rest)
{
    struct mapping_pair pair = { .part = str_take_word(&rest) },
                        *larger = reallocarray(spelling->pairs, (size_t)spelling->pair_count + 1, sizeof(*larger));
    if (!larger)
        return false;
    pair.spelled = str_take_word(&rest);
    spelling->pairs = larger;
    larger[spelling->pair_count++] = pair;
    return true;
}

/* How keys of `to` are spelled around the names of the text. */
static void read_spelling(struct mapping_spelling *spelling, struct str word, struct str rest)
{
    if (str_is(word, "below")) {
        spelling->below = str_take_word(&rest);
        spelling->apart = str_take_word(&rest);
    } else if (str_is(word, "states")) {
        spelling->states = str_take_word(&rest);
        spelling->states_below = str_take_word(&rest);
    } else if (str_is(word, "beside")) {
        spelling->beside = str_take_word(&rest);
    } else if (str_is(word, "without")) {
        spelling->without = str_take_word(&rest);
    } else if (str_is(word, "masters")) {
        spelling->masters = rest;
    } else if (str_is(word, "masters-below")) {
        spelling->masters_below = str_take_word(&rest);
    } else if (str_is(word, "state-words")) {
        spelling->words = rest;
    } else if (str_is(word, "alias")) {
        spelling->alias = str_take_word(&rest);
        spelling->alias_of = str_take_word(&rest);
    }
}

/* One line behind "#:". Lines of a relation follow its `from`; words that are not known are remarks. */
static reshard_status mapping_rules_read_directive(struct mapping_rules *rules, const char *name, struct str text, struct str rest,
                                                   bool *has_relation, reshard_error *err)
{
    struct str word = str_take_word(&rest);
    struct mapping_relation *relation = *has_relation ? &rules->relations[rules->relation_count - 1] : NULL;
    bool done = true;
    if (str_is(word, "from")) {
        *has_relation = true;
        return add_relation(rules, name, text, str_take_word(&rest), err);
    }
    if (str_is(word, "number"))
        return mapping_rules_add_number(rules, rest, err);
    if (str_is(word, "weights"))
        return add_weights(rules, rest) ? RESHARD_OK : error_set_memory(err);
    if (!relation)
        return RESHARD_OK;
    if (str_is(word, "to"))
        return node_of(rules, str_take_word(&rest), &relation->to, err);
    if (str_is(word, "onward"))
        relation->is_onward = true;
    else if (str_is(word, "family"))
        done = append_str(&relation->families, &relation->family_count, str_take_word(&rest));
    else if (str_is(word, "keys"))
        done = append_str(&relation->keys, &relation->key_count, rest);
    else if (str_is(word, "back"))
        done = append_str(&relation->back, &relation->back_count, rest);
    else if (str_is(word, "where") || str_is(word, "not"))
        done = relation->to == UINT32_MAX || add_mark(rules, relation->to, rest, str_is(word, "not"));
    else if (str_is(word, "alike"))
        done = append_str(&relation->alike, &relation->alike_count, str_take_word(&rest));
    else if (str_is(word, "respell"))
        done = add_pair(&relation->spelling, rest);
    else if (str_is(word, "ratio") || str_is(word, "extent"))
        done = add_ratio(relation, rest);
    else
        read_spelling(&relation->spelling, word, rest);
    return done ? RESHARD_OK : error_set_memory(err);
}

static reshard_status mapping_rules_read_text(struct mapping_rules *rules, const char *name, struct str text, reshard_error *err)
{
    struct str rest = text;
    bool has_relation = false;
    uint32_t first = rules->relation_count;
    reshard_status status = RESHARD_OK;
    while (!status && rest.size) {
        struct str line = str_take(&rest, '\n');
        if (str_starts_with(line, DIRECTIVE))
            status = mapping_rules_read_directive(
                rules, name, text, (struct str){ line.data + strlen(DIRECTIVE), line.size - strlen(DIRECTIVE) }, &has_relation, err);
    }
    for (uint32_t i = first; i < rules->relation_count && !status; i++) {
        if (rules->relations[i].to == UINT32_MAX)
            status = error_set(err, RESHARD_ERR_USAGE, "%s: 'from' without 'to'", name);
    }
    return status;
}

static void drop_families(struct mapping_rules *rules)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < rules->relation_count; i++) {
        struct mapping_relation *relation = &rules->relations[i];
        if (!relation->family_count) {
            rules->relations[kept++] = *relation;
            continue;
        }
        release_relation(relation);
    }
    rules->relation_count = kept;
}

reshard_status mapping_rules_load(const struct mapping_text *own, struct mapping_rules *out, reshard_error *err)
{
    struct mapping_rules rules = { 0 };
    const struct model_data *data;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && (data = model_data_at(i)); i++) {
        if (str_ends_with(str_of(data->name), ".map"))
            status = mapping_rules_read_text(&rules, data->name, data->text, err);
    }
    if (!status && own) {
        drop_families(&rules);
        uint32_t before = rules.relation_count;
        status = mapping_rules_read_text(&rules, own->name, own->text, err);
        if (!status && rules.relation_count == before) {
            status = error_set(err, RESHARD_ERR_USAGE, "%s: no line `#: from NAMES` and `#: to NAMES` says what it relates", own->name);
            error_hint(err, "reshard_map_options.texts FILE runs a text as it is");
        }
    }
    if (status)
        mapping_rules_release(&rules);
    else
        *out = rules;
    return status;
}

/* ---- recognising ---- */

#define ALL_HOLES (1u << MAP_HOLE_EXPERT | 1u << MAP_HOLE_LAYER | 1u << MAP_HOLE_STAR)

/* The first weight that a name with placeholders matches, and what they stand for; or MAP_NONE. */
static uint32_t find_key(const struct map_space *space, struct str name, struct str values[MAP_HOLE_KINDS])
{
    struct map_pattern pattern;
    uint32_t first, end;
    if (!map_pattern_of(name, ALL_HOLES, false, &pattern))
        return MAP_NONE;
    if (!pattern.count)
        return map_space_find(space, name);
    map_space_prefix(space, pattern.literals[0], &first, &end);
    for (uint32_t i = first; i < end; i++) {
        memset(values, 0, MAP_HOLE_KINDS * sizeof(*values));
        if (map_pattern_match(&pattern, space->weights[space->sorted[i]].name, values))
            return space->sorted[i];
    }
    return MAP_NONE;
}

/* ~GLOB: of the keys of tensors, states too. */
static bool has_globbed(const struct map_space *space, struct str glob)
{
    for (uint32_t i = 0; i < map_space_tensor_count(space); i++) {
        if (str_matches_glob(space->tensors[i].key, glob))
            return true;
    }
    return false;
}

static bool has_key(const struct map_space *space, struct str name)
{
    struct str values[MAP_HOLE_KINDS];
    if (name.size && name.data[0] == '~')
        return has_globbed(space, (struct str){ name.data + 1, name.size - 1 });
    return find_key(space, name, values) != MAP_NONE;
}

/* The weight of a name whose placeholders stand for the given values; or MAP_NONE. */
static uint32_t find_filled(const struct map_space *space, struct str name, const struct str values[MAP_HOLE_KINDS])
{
    struct map_pattern pattern;
    struct buffer text = { 0 };
    if (!map_pattern_of(name, ALL_HOLES, false, &pattern))
        return MAP_NONE;
    for (int i = 0; i <= pattern.count; i++) {
        buffer_append_str(&text, pattern.literals[i]);
        if (i < pattern.count)
            buffer_append_str(&text, values[pattern.holes[i]]);
    }
    uint32_t found = text.failed ? MAP_NONE : map_space_find(space, buffer_str(&text));
    buffer_release(&text);
    return found;
}

bool mapping_ratio_find(const struct mapping_ratio *ratio, const struct map_space *space, int64_t *out)
{
    struct str values[MAP_HOLE_KINDS] = { { 0 } };
    uint32_t weight = find_key(space, ratio->key, values),
             other = weight == MAP_NONE || !ratio->by.size ? MAP_NONE : find_filled(space, ratio->by, values);
    const struct map_tensor *a = weight == MAP_NONE ? NULL : map_space_shaped(space, weight),
                            *b = other == MAP_NONE ? NULL : map_space_shaped(space, other);
    if (!a || ratio->axis >= a->rank || (ratio->by.size && (!b || ratio->by_axis >= b->rank)))
        return false;
    int64_t extent = a->shape[ratio->axis], by = b ? b->shape[ratio->by_axis] : 1;
    *out = by ? extent / by : 0;
    return by && extent % by == 0;
}

bool mapping_keys_fit(const struct map_space *space, const struct str *lines, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct str rest = lines[i], word;
        bool fits = true;
        while (fits && (word = str_take_word(&rest)).size) {
            bool is_absent = word.data[0] == '!';
            struct str name = { word.data + is_absent, word.size - is_absent };
            fits = has_key(space, name) != is_absent;
        }
        if (fits)
            return true;
    }
    return false;
}

/* The number at the beginning of a name behind a prefix, and what follows it; false if there is none. */
static bool cut_number(struct str name, size_t prefix, uint64_t *number, struct str *rest)
{
    size_t end = prefix;
    while (end < name.size && name.data[end] >= '0' && name.data[end] <= '9')
        end++;
    *rest = (struct str){ name.data + end, name.size - end };
    return end > prefix && rest->size && rest->data[0] == '.' && str_to_u64((struct str){ name.data + prefix, end - prefix }, number);
}

static bool mapping_rules_same_shape(const struct map_space *space, uint32_t a, uint32_t b)
{
    const struct map_tensor *x = map_space_shaped(space, a), *y = map_space_shaped(space, b);
    if (!x || !y || x->rank != y->rank)
        return x == y;
    return memcmp(x->shape, y->shape, (size_t)x->rank * sizeof(*x->shape)) == 0;
}

/* Whether the numbers behind a prefix are 0, 1, … and what follows them is the same for each. Sorted, the names of a number follow each
 * other. */
static bool is_alike(const struct map_space *space, struct str prefix)
{
    uint32_t first, end, size = 0, at = 0;
    uint64_t number, before = 0, greatest = 0, count = 0;
    struct str rest, wanted;
    map_space_prefix(space, prefix, &first, &end);
    for (uint32_t i = first; i < end; i++, at++) {
        if (!cut_number(space->weights[space->sorted[i]].name, prefix.size, &number, &rest))
            return false;
        if (count == 0 || number != before) {
            if (count > 1 && at != size)
                return false;
            size = count == 1 ? at : size;
            at = 0;
            count++;
        }
        before = number;
        greatest = number > greatest ? number : greatest;
        if (count == 1)
            continue;
        if (at >= size || !cut_number(space->weights[space->sorted[first + at]].name, prefix.size, &number, &wanted) ||
            !str_equal(rest, wanted) || !mapping_rules_same_shape(space, space->sorted[i], space->sorted[first + at]))
            return false;
    }
    return count < 2 || (at == size && greatest == count - 1);
}

bool mapping_relation_fits(const struct mapping_relation *relation, const struct map_space *space, bool is_back)
{
    if (is_back)
        return mapping_keys_fit(space, relation->back, relation->back_count);
    bool fits = mapping_keys_fit(space, relation->keys, relation->key_count);
    for (uint32_t i = 0; i < relation->alike_count && fits; i++)
        fits = is_alike(space, relation->alike[i]);
    return fits;
}

/* The nodes that relations of families, or all others, recognise. */
static uint64_t mapping_rules_recognise(const struct mapping_rules *rules, const struct map_space *space, uint64_t allowed,
                                        bool of_families)
{
    uint64_t found = 0;
    for (uint32_t i = 0; i < rules->relation_count; i++) {
        const struct mapping_relation *relation = &rules->relations[i];
        if ((relation->family_count > 0) != of_families)
            continue;
        uint64_t from = UINT64_C(1) << relation->from, to = UINT64_C(1) << relation->to;
        if (from & allowed && !(from & found) && mapping_relation_fits(relation, space, false))
            found |= from;
        if (to & allowed && !(to & found) && mapping_relation_fits(relation, space, true))
            found |= to;
    }
    return found;
}

/* Relations of spellings know better which one it is than those of families, for which several will do. */
uint64_t mapping_recognise(const struct mapping_rules *rules, const struct map_space *space, uint64_t allowed)
{
    uint64_t found = mapping_rules_recognise(rules, space, allowed, false);
    return found ? found : mapping_rules_recognise(rules, space, allowed, true);
}

uint64_t mapping_recognise_spelling(const struct mapping_rules *rules, const struct map_space *space)
{
    return mapping_rules_recognise(rules, space, UINT64_MAX, false);
}

uint64_t mapping_nodes_of(const struct mapping_rules *rules, const char *name_space)
{
    uint64_t found = 0;
    size_t size = name_space ? strlen(name_space) : 0;
    for (uint32_t i = 0; i < rules->node_count && name_space; i++) {
        struct str node = rules->nodes[i];
        if (str_starts_with(node, name_space) && (node.size == size || node.data[size] == '-'))
            found |= UINT64_C(1) << i;
    }
    return found;
}

bool mapping_relation_has_family(const struct mapping_relation *relation, struct str family)
{
    for (uint32_t i = 0; i < relation->family_count; i++) {
        if (str_equal(relation->families[i], family))
            return true;
    }
    return false;
}

bool mapping_family_at(const struct mapping_rules *rules, size_t index, struct str *out)
{
    for (uint32_t i = 0; i < rules->relation_count; i++) {
        const struct mapping_relation *relation = &rules->relations[i];
        for (uint32_t f = 0; f < relation->family_count; f++) {
            bool is_new = true;
            for (uint32_t before = 0; before < i && is_new; before++)
                is_new = !mapping_relation_has_family(&rules->relations[before], relation->families[f]);
            *out = relation->families[f];
            if (is_new && !index--)
                return true;
        }
    }
    return false;
}

bool mapping_node_is_plain(const struct mapping_rules *rules, uint32_t node)
{
    size_t hyphen;
    return !str_find_char(rules->nodes[node], '-', &hyphen);
}
