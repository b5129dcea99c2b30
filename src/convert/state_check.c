/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/state_check.h"

#include "base/array.h"
#include "base/buffer.h"
#include "convert/tensor_digests.h"
#include "mapping/map_state.h"

#include <stdlib.h>

#define NAMES_SHOWN 12

/* A weight, and which of its states there are. */
struct weight_states {
    uint32_t tensor; /* CATALOG_NONE: only states are there */
    uint32_t states; /* bits by enum map_state */
    bool is_shared;  /* the same bytes as a weight that has states */
};

struct state_check {
    struct checkpoint *checkpoint;
    const struct catalog *catalog;
    struct name_map names;
    struct weight_states *weights;
    uint32_t capacity;
    uint32_t seen;   /* states that some weight has */
    bool is_paddle;
    struct buffer text;
};

#define STATE_BIT(state) (UINT32_C(1) << (state))

/* ---- reading keys ---- */

/* The first reading that names a tensor, else the first one. */
static bool read_other_spelling(const struct catalog *catalog, struct str key, struct map_state_key *out)
{
    struct map_state_key reading;
    bool is_found = map_state_reading(key, 0, out);
    for (int index = 0; is_found && map_state_reading(key, index, &reading); index++) {
        if (catalog_find(catalog, reading.name) != CATALOG_NONE) {
            *out = reading;
            return true;
        }
    }
    return is_found;
}

/* Sets out->state to WEIGHT for what is no state. */
static void state_key_of(struct state_check *check, struct str key, struct map_state_key *out)
{
    *out = (struct map_state_key){ .name = key };
    out->state = map_state_of(key, &out->name);
    if (out->state == MAP_STATE_WEIGHT && !map_state_of_family(key, out)) {
        if (!read_other_spelling(check->catalog, key, out))
            *out = (struct map_state_key){ .name = key };
    } else {
        check->is_paddle = true;
    }
}

static bool keys_read(struct state_check *check)
{
    for (uint32_t i = 0; i < check->checkpoint->listed_count; i++) {
        struct map_state_key found;
        bool was_new;
        uint32_t tensor = check->checkpoint->listed[i];
        state_key_of(check, check->catalog->tensors[tensor].key, &found);
        uint32_t weight = name_map_intern(&check->names, found.name, &was_new);
        if (weight == NAME_NONE || !ARRAY_ROOM(check->weights, weight, check->capacity))
            return false;
        if (was_new)
            check->weights[weight] = (struct weight_states){ .tensor = CATALOG_NONE };
        if (found.state == MAP_STATE_WEIGHT)
            check->weights[weight].tensor = tensor;
        else
            check->weights[weight].states |= STATE_BIT(found.state);
        check->seen |= found.state == MAP_STATE_WEIGHT ? 0 : STATE_BIT(found.state);
    }
    return true;
}

/* ---- what is expected ---- */

/* Statistics and tables that no optimizer changes. */
static bool is_buffer(struct str name)
{
    static const char *const globs[] = { "*e_score_correction_bias", "*expert_bias", "*moe_statics.*", "*inv_freq", "*running_mean",
                                         "*running_var", "*num_batches_tracked", "*._mean", "*._variance", "*_extra_state*",
                                         "*position_ids", "*.tokens_per_expert", NULL };
    for (int i = 0; globs[i]; i++) {
        if (str_matches_glob(name, str_of(globs[i])))
            return true;
    }
    return false;
}

static bool is_trainable(const struct state_check *check, uint32_t weight)
{
    const struct weight_states *entry = &check->weights[weight];
    if (entry->is_shared || is_buffer(name_map_at(&check->names, weight)))
        return false;
    return entry->tensor == CATALOG_NONE || dtype_info(check->catalog->tensors[entry->tensor].dtype)->class_ == DTYPE_CLASS_FLOAT;
}

static uint32_t expected_states(const struct state_check *check, const struct weight_states *weight)
{
    bool has_momentum = (check->seen & STATE_BIT(MAP_STATE_MOMENTUM)) && !(check->seen & STATE_BIT(MAP_STATE_MOMENT1));
    uint32_t expected = check->seen & ~STATE_BIT(MAP_STATE_MASTER);
    expected |= has_momentum ? STATE_BIT(MAP_STATE_MOMENTUM) : STATE_BIT(MAP_STATE_MOMENT1) | STATE_BIT(MAP_STATE_MOMENT2);
    if (check->is_paddle && !has_momentum)
        expected |= STATE_BIT(MAP_STATE_BETA1) | STATE_BIT(MAP_STATE_BETA2);
    bool is_half = weight->tensor != CATALOG_NONE && dtype_info(check->catalog->tensors[weight->tensor].dtype)->bits < 32;
    if (is_half && (check->is_paddle || check->seen & STATE_BIT(MAP_STATE_MASTER)))
        expected |= STATE_BIT(MAP_STATE_MASTER);
    return expected;
}

/* ---- weights that share their states ---- */

static bool state_check_same_kind(const struct catalog *catalog, uint32_t a, uint32_t b)
{
    const struct catalog_tensor *x = &catalog->tensors[a], *y = &catalog->tensors[b];
    return x->dtype == y->dtype && x->rank == y->rank && x->shape == y->shape;
}

static bool is_stateless(const struct state_check *check, uint32_t weight)
{
    const struct weight_states *entry = &check->weights[weight];
    return entry->tensor != CATALOG_NONE && !entry->states && check->catalog->tensors[entry->tensor].rank > 1;
}

/* Lists the weights without states that may be copies of one with states, and those, which get a mark. */
static uint32_t shared_candidates(const struct state_check *check, bool *marks, uint32_t *tensors)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < check->names.count; i++) {
        for (uint32_t k = 0; is_stateless(check, i) && k < check->names.count; k++) {
            const struct weight_states *other = &check->weights[k];
            if (other->tensor == CATALOG_NONE || !other->states ||
                !state_check_same_kind(check->catalog, check->weights[i].tensor, other->tensor))
                continue;
            marks[check->weights[i].tensor] = marks[other->tensor] = true;
        }
    }
    for (uint32_t t = 0; t < check->catalog->tensor_count; t++) {
        if (marks[t] && !catalog_tensor_is_torn(check->catalog, t))
            tensors[count++] = t;
    }
    return count;
}

static void shared_mark(struct state_check *check, char (*hex)[DIGEST_HEX_MAX], struct finding_sink *findings)
{
    for (uint32_t i = 0; i < check->names.count; i++) {
        struct weight_states *weight = &check->weights[i];
        for (uint32_t k = 0; k < check->names.count && is_stateless(check, i) && !weight->is_shared; k++) {
            const struct weight_states *other = &check->weights[k];
            if (!other->states || other->tensor == CATALOG_NONE || !hex[weight->tensor][0] ||
                !state_check_same_kind(check->catalog, weight->tensor, other->tensor) ||
                strcmp(hex[weight->tensor], hex[other->tensor]) != 0)
                continue;
            struct str partner = check->catalog->tensors[other->tensor].key;
            weight->is_shared = true;
            finding_report(findings, FINDING_NOTE, "alias", check->catalog->tensors[weight->tensor].key,
                           "the same bytes as '%.*s', whose states it shares", STR_ARG(partner));
        }
    }
}

static reshard_status shared_find(struct state_check *check, struct team *team, const struct engine_options *engine,
                                  struct finding_sink *findings, reshard_error *err)
{
    size_t count = check->catalog->tensor_count;
    uint32_t *tensors = array_zeroed(count, sizeof(*tensors));
    char(*hex)[DIGEST_HEX_MAX] = array_zeroed(count, sizeof(*hex));
    bool *marks = array_zeroed(count, sizeof(*marks));
    uint64_t stateless = 0;
    for (uint32_t i = 0; i < check->names.count; i++)
        stateless += is_stateless(check, i);
    reshard_status status = tensors && hex && marks ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = work_spend_steps(check->checkpoint->source->limits.budget, 2 * stateless * check->names.count, err);
    uint32_t found = status ? 0 : shared_candidates(check, marks, tensors);
    if (found)
        status = tensor_digests_shared(team, check->checkpoint, DIGEST_XXH3, tensors, found, engine, hex, err);
    if (!status && found)
        shared_mark(check, hex, findings);
    free(marks);
    free(tensors);
    free(hex);
    return status;
}

/* ---- reporting ---- */

/* "a, b, c and 5 more" */
static void name_append(struct buffer *text, struct str name, uint32_t at)
{
    if (at < NAMES_SHOWN) {
        buffer_append_text(text, at ? ", " : "");
        buffer_append_str(text, name);
    }
}

static reshard_status report_state(struct state_check *check, enum map_state state, struct finding_sink *findings, reshard_error *err)
{
    uint32_t missing = 0, wanted = 0;
    struct str first = { 0 };
    buffer_clear(&check->text);
    for (uint32_t i = 0; i < check->names.count; i++) {
        const struct weight_states *weight = &check->weights[i];
        if (!is_trainable(check, i) || !(expected_states(check, weight) & STATE_BIT(state)))
            continue;
        wanted++;
        if (weight->states & STATE_BIT(state))
            continue;
        if (!missing)
            first = name_map_at(&check->names, i);
        name_append(&check->text, name_map_at(&check->names, i), missing++);
    }
    if (missing > NAMES_SHOWN)
        buffer_printf(&check->text, " and %u more", missing - NAMES_SHOWN);
    if (missing == wanted && missing)
        buffer_append_text(&check->text, "; states that are offloaded while a checkpoint is saved are missing like this");
    if (check->text.failed)
        return buffer_error(&check->text, err);
    if (missing)
        finding_report(findings, FINDING_FAILURE, "optimizer", first, "%s is missing for %u of %u weights: %.*s", map_state_name[state],
                       missing, wanted, STR_ARG(buffer_str(&check->text)));
    return finding_sink_status(findings, err);
}

static void check_release(struct state_check *check)
{
    name_map_release(&check->names);
    buffer_release(&check->text);
    free(check->weights);
}

reshard_status state_check_optimizer(struct checkpoint *checkpoint, struct team *team, const struct engine_options *engine,
                                     struct finding_sink *findings, reshard_error *err)
{
    struct state_check check = { .checkpoint = checkpoint, .catalog = checkpoint->source->catalog };
    reshard_status status = keys_read(&check) ? RESHARD_OK : error_set_memory(err);
    if (!status && check.seen)
        status = shared_find(&check, team, engine, findings, err);
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT && !status; state++)
        status = report_state(&check, state, findings, err);
    check_release(&check);
    return status;
}

/* ---- copies ---- */

/* The number behind the last "experts." of a key; false if there is none. */
static bool expert_number(struct str key, size_t *begin, size_t *end)
{
    static const char word[] = "experts.";
    for (size_t at = key.size; at-- > 0;) {
        if (key.size - at < sizeof(word) || memcmp(key.data + at, word, sizeof(word) - 1) != 0)
            continue;
        *begin = *end = at + sizeof(word) - 1;
        while (*end < key.size && key.data[*end] >= '0' && key.data[*end] <= '9')
            (*end)++;
        return *end > *begin;
    }
    return false;
}

static bool is_embedding(struct str key)
{
    static const char *const globs[] = { "*embed*weight", "*lm_head.weight", "*output_layer.weight", "*wte.weight", NULL };
    for (int i = 0; globs[i]; i++) {
        if (str_matches_glob(key, str_of(globs[i])))
            return true;
    }
    return false;
}

/* What tensors that may be copies of each other have in common: a key whose number of the expert is left out, or just that they embed.
 * Empty if it is neither. */
static bool copies_group(struct str key, struct buffer *out)
{
    size_t begin, end;
    buffer_clear(out);
    if (expert_number(key, &begin, &end))
        return buffer_append(out, key.data, begin) && buffer_append(out, key.data + end, key.size - end);
    return !is_embedding(key) || buffer_append_text(out, "embeddings");
}

struct copy_check {
    struct state_check check;
    struct name_map groups;  /* group, and digest within it */
    uint32_t *tensors;
    uint32_t *firsts, capacity; /* by group and digest: the first tensor */
    uint32_t count;
    struct buffer group;
};

static reshard_status copies_collect(struct copy_check *copies, reshard_error *err)
{
    const struct checkpoint *checkpoint = copies->check.checkpoint;
    copies->tensors = array_zeroed(checkpoint->listed_count, sizeof(*copies->tensors));
    if (!copies->tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        uint32_t tensor = checkpoint->listed[i];
        const struct catalog_tensor *entry = &copies->check.catalog->tensors[tensor];
        struct map_state_key found;
        state_key_of(&copies->check, entry->key, &found);
        if (!copies_group(entry->key, &copies->group))
            return buffer_error(&copies->group, err);
        bool is_whole = entry->tied_to == CATALOG_NONE && !catalog_tensor_is_torn(copies->check.catalog, tensor);
        if (found.state == MAP_STATE_WEIGHT && copies->group.size && entry->rank > 1 && is_whole)
            copies->tensors[copies->count++] = tensor;
    }
    return RESHARD_OK;
}

/* The name under which tensors of one group, shape and digest meet. */
static reshard_status copy_name(struct copy_check *copies, uint32_t tensor, const char *hex, struct name_map *names, uint32_t *out,
                                bool *was_new, reshard_error *err)
{
    const struct catalog_tensor *entry = &copies->check.catalog->tensors[tensor];
    copies_group(entry->key, &copies->group);
    buffer_printf(&copies->group, "\n%u\n%s", entry->shape, hex);
    if (copies->group.failed)
        return buffer_error(&copies->group, err);
    *out = name_map_intern(names, buffer_str(&copies->group), was_new);
    return *out == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
}

/* Leaves out tensors whose first row no other of its group has: few are copies, and only those are read once more. */
static reshard_status copies_sample(struct copy_check *copies, const struct engine_options *engine, reshard_error *err)
{
    const struct catalog *catalog = copies->check.catalog;
    struct name_map rows = { 0 };
    uint32_t *row = array_zeroed(copies->count, sizeof(*row)), *held = array_zeroed(copies->count, sizeof(*held)), kept = 0;
    reshard_status status = row && held ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < copies->count && !status; i++) {
        const uint32_t tensor = copies->tensors[i];
        char hex[DIGEST_HEX_MAX] = "";
        bool was_new;
        if (catalog_vector_at(catalog, catalog->tensors[tensor].shape)[0] > 0)
            status = tensor_digest_rows(copies->check.checkpoint->source, tensor, 1, engine, hex, err);
        if (!status)
            status = copy_name(copies, tensor, hex, &rows, &row[i], &was_new, err);
        if (!status)
            held[row[i]]++;
    }
    for (uint32_t i = 0; i < copies->count && !status; i++) {
        if (held[row[i]] > 1)
            copies->tensors[kept++] = copies->tensors[i];
    }
    copies->count = kept;
    free(row);
    free(held);
    name_map_release(&rows);
    return status;
}

static reshard_status copy_report(struct copy_check *copies, uint32_t tensor, const char *hex, struct finding_sink *findings,
                                  reshard_error *err)
{
    const struct catalog *catalog = copies->check.catalog;
    struct str key = catalog->tensors[tensor].key;
    size_t begin, end;
    bool was_new;
    uint32_t number;
    reshard_status status = copy_name(copies, tensor, hex, &copies->groups, &number, &was_new, err);
    if (status || !ARRAY_ROOM(copies->firsts, number, copies->capacity))
        return status ? status : error_set_memory(err);
    if (was_new)
        copies->firsts[number] = tensor;
    else if (expert_number(key, &begin, &end))
        finding_report(findings, FINDING_WARNING, "expert", key, "the very same bytes as '%.*s': experts that were copied, or synchronised",
                       STR_ARG(catalog->tensors[copies->firsts[number]].key));
    else
        finding_report(findings, FINDING_NOTE, "alias", key, "the very same bytes as '%.*s'",
                       STR_ARG(catalog->tensors[copies->firsts[number]].key));
    return finding_sink_status(findings, err);
}

reshard_status state_check_copies(struct checkpoint *checkpoint, struct team *team, const struct engine_options *engine,
                                  struct finding_sink *findings, reshard_error *err)
{
    struct copy_check copies = { .check = { .checkpoint = checkpoint, .catalog = checkpoint->source->catalog } };
    char(*hex)[DIGEST_HEX_MAX] = NULL;
    reshard_status status = copies_collect(&copies, err);
    if (!status)
        status = copies_sample(&copies, engine, err);
    if (!status && copies.count > 1) {
        hex = array_zeroed(checkpoint->source->catalog->tensor_count, sizeof(*hex));
        status = hex ? tensor_digests_shared(team, checkpoint, DIGEST_XXH3, copies.tensors, copies.count, engine, hex, err)
                     : error_set_memory(err);
    }
    for (uint32_t i = 0; i < copies.count && hex && !status; i++)
        status = copy_report(&copies, copies.tensors[i], hex[copies.tensors[i]], findings, err);
    free(hex);
    free(copies.tensors);
    free(copies.firsts);
    name_map_release(&copies.groups);
    buffer_release(&copies.group);
    check_release(&copies.check);
    return status;
}
