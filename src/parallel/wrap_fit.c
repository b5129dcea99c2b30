/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/wrap_fit.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "base/name_map.h"
#include "parallel/flat_unit.h"
#include "parallel/wrap_rule.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX (UINT64_C(1) << 26) /* places of parameters looked at: beyond, fewer paths are tried together */
#define ALIGNMENT_BYTES 16
#define HALF_BYTES 2 /* of an element of BF16 and F16, in which mixed precision computes */

struct fitting {
    const struct wrap_parameter *parameters;
    uint32_t count;
    struct name_map modules; /* in the order of the model */
    struct name_map paths;   /* of modules, with * for numbers */
    uint32_t *outer, *path;  /* by module: 1 + the module around it, or 0; its path */
    uint32_t *inner;         /* by parameter: 1 + its module, or 0: the root's */
    bool *is_chosen;         /* by path */
    uint32_t *unit;          /* by module: 1 + the module whose unit its parameters belong to, or 0 */
    uint32_t *number;        /* by 1 + module: 1 + its unit's number */
    struct wrap_units trial;
};

static void fitting_release(struct fitting *fitting)
{
    name_map_release(&fitting->modules);
    name_map_release(&fitting->paths);
    free(fitting->outer);
    free(fitting->path);
    free(fitting->inner);
    free(fitting->is_chosen);
    free(fitting->unit);
    free(fitting->number);
    wrap_units_release(&fitting->trial);
}

void wrap_units_release(struct wrap_units *units)
{
    free(units->places);
    free(units->ends);
    *units = (struct wrap_units){ 0 };
}

/* ---- modules ---- */

/* Appends a part of a module's name, or * for a number. */
static void put_part(struct str part, struct buffer *out)
{
    bool is_number = part.size > 0;
    for (size_t i = 0; i < part.size; i++)
        is_number = is_number && isdigit((unsigned char)part.data[i]);
    buffer_append_byte(out, '.');
    buffer_append_str(out, is_number ? STR("*") : part);
}

/* The modules around a parameter, the outermost first. *inner: 1 + the last. */
static bool add_modules(struct fitting *fitting, struct str name, struct buffer *path, uint32_t *inner)
{
    struct str rest = name;
    buffer_clear(path);
    *inner = 0;
    while (rest.size) {
        bool was_new;
        struct str part = str_take(&rest, '.');
        if (!rest.size)
            break;
        put_part(part, path);
        uint32_t kind = name_map_intern(&fitting->paths, buffer_str(path), NULL);
        struct str whole = { name.data, (size_t)(part.data + part.size - name.data) };
        uint32_t module = name_map_intern(&fitting->modules, whole, &was_new);
        if (path->failed || kind == NAME_NONE || module == NAME_NONE)
            return false;
        if (was_new) {
            fitting->outer[module] = *inner;
            fitting->path[module] = kind;
        }
        *inner = module + 1;
    }
    return true;
}

static size_t count_parts(const struct wrap_parameter *parameters, uint32_t count)
{
    size_t parts = 1;
    for (uint32_t i = 0; i < count; i++)
        for (size_t j = 0; j < parameters[i].name.size; j++)
            parts += parameters[i].name.data[j] == '.';
    return parts;
}

static reshard_status fitting_begin(struct fitting *fitting, const struct wrap_parameter *parameters, uint32_t count, reshard_error *err)
{
    size_t parts = count_parts(parameters, count);
    struct buffer path = { 0 };
    int64_t total = 0;
    *fitting = (struct fitting){ .parameters = parameters, .count = count };
    for (uint32_t i = 0; i < count; i++)
        if (parameters[i].elements < 0 || !checked_add_i64(total, parameters[i].elements, &total) ||
            !checked_add_i64(total, ALIGNMENT_BYTES, &total) || total > INT64_MAX / 2)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "the model's parameters have too many elements");
    fitting->outer = array_zeroed(parts, sizeof(*fitting->outer));
    fitting->path = array_zeroed(parts, sizeof(*fitting->path));
    fitting->inner = array_zeroed(count, sizeof(*fitting->inner));
    fitting->is_chosen = array_zeroed(parts, sizeof(*fitting->is_chosen));
    fitting->unit = array_zeroed(parts, sizeof(*fitting->unit));
    fitting->number = array_zeroed(parts, sizeof(*fitting->number));
    fitting->trial.places = array_zeroed(count, sizeof(*fitting->trial.places));
    fitting->trial.ends = array_zeroed(parts, sizeof(*fitting->trial.ends));
    bool good = fitting->outer && fitting->path && fitting->inner && fitting->is_chosen && fitting->unit && fitting->number &&
                fitting->trial.places && fitting->trial.ends;
    for (uint32_t i = 0; good && i < count; i++)
        good = add_modules(fitting, parameters[i].name, &path, &fitting->inner[i]);
    buffer_release(&path);
    return good ? RESHARD_OK : error_set_memory(err);
}

/* ---- one way ---- */

/* Sets trial: fitting->unit is set, parameters go into their units. by_member: units are numbered as their first parameters come. */
static void lay(struct fitting *fitting, int64_t alignment, bool by_member)
{
    struct wrap_units *trial = &fitting->trial;
    size_t modules = (size_t)fitting->modules.count + 1;
    memset(fitting->number, 0, modules * sizeof(*fitting->number));
    trial->count = 0;
    trial->alignment = alignment;
    for (uint32_t i = 0; i < fitting->count; i++) {
        uint32_t at = fitting->inner[i] ? fitting->unit[fitting->inner[i] - 1] : 0;
        trial->places[i].unit = at;
        if (!fitting->number[at])
            fitting->number[at] = by_member ? ++trial->count : 1;
    }
    for (size_t at = 0; !by_member && at < modules; at++)
        if (fitting->number[at])
            fitting->number[at] = ++trial->count;
    memset(trial->ends, 0, trial->count * sizeof(*trial->ends));
    for (uint32_t i = 0; i < fitting->count; i++) {
        struct wrap_place *place = &trial->places[i];
        place->unit = fitting->number[place->unit] - 1;
        place->start = flat_unit_next(trial->ends[place->unit], alignment);
        trial->ends[place->unit] = place->start + fitting->parameters[i].elements;
    }
}

static bool sizes_agree(const struct fitting *fitting, const struct wrap_sight *sight)
{
    bool agrees = fitting->trial.count == sight->size_count;
    for (uint32_t unit = 0; agrees && unit < sight->size_count; unit++)
        agrees = flat_unit_piece(fitting->trial.ends[unit], sight->shards) == sight->sizes[unit];
    return agrees;
}

static bool pieces_agree(const struct fitting *fitting, const struct wrap_sight *sight)
{
    for (uint32_t i = 0; i < fitting->count; i++) {
        const struct wrap_place *place = &fitting->trial.places[i];
        const int64_t *seen = sight->pieces + (size_t)i * sight->shards;
        int64_t piece = flat_unit_piece(fitting->trial.ends[place->unit], sight->shards);
        for (uint32_t shard = 0; shard < sight->shards && seen[0] >= 0; shard++) {
            struct flat_unit_part part;
            bool is_there = flat_unit_part_of(piece, sight->shards, shard, place->start, fitting->parameters[i].elements, &part);
            if (seen[shard] != (is_there ? part.count : 0))
                return false;
        }
    }
    return true;
}

bool wrap_units_equal(const struct wrap_units *a, const struct wrap_units *b, uint32_t count)
{
    bool same = a->count == b->count;
    for (uint32_t i = 0; same && i < count; i++)
        same = a->places[i].unit == b->places[i].unit && a->places[i].start == b->places[i].start;
    return same;
}

static reshard_status keep_units(const struct fitting *fitting, struct wrap_units *out, reshard_error *err)
{
    const struct wrap_units *trial = &fitting->trial;
    out->places = array_zeroed(fitting->count, sizeof(*out->places));
    out->ends = array_zeroed(trial->count, sizeof(*out->ends));
    if (!out->places || !out->ends)
        return error_set_memory(err);
    memcpy(out->places, trial->places, fitting->count * sizeof(*out->places));
    memcpy(out->ends, trial->ends, trial->count * sizeof(*out->ends));
    out->count = trial->count;
    out->alignment = trial->alignment;
    return RESHARD_OK;
}

/* ---- all ways ---- */

static void unite_chosen(struct fitting *fitting)
{
    for (uint32_t module = 0; module < fitting->modules.count; module++) {
        uint32_t outer = fitting->outer[module];
        fitting->unit[module] = fitting->is_chosen[fitting->path[module]] ? module + 1 : outer ? fitting->unit[outer - 1] : 0;
    }
}

static reshard_status unite_by_rule(struct fitting *fitting, const char *text, reshard_error *err)
{
    struct wrap_rule *rule = NULL;
    reshard_status status = wrap_rule_parse(text, &rule, err);
    for (uint32_t i = 0; !status && i < fitting->count; i++) {
        struct str module;
        status = wrap_rule_module(rule, fitting->parameters[i].name, &module, err);
        uint32_t found = status || !module.size ? NAME_NONE : name_map_find(&fitting->modules, module);
        if (fitting->inner[i])
            fitting->unit[fitting->inner[i] - 1] = found == NAME_NONE ? 0 : found + 1;
    }
    wrap_rule_free(rule);
    return status;
}

/* The units that there are now with each alignment that there is. */
static reshard_status try_units(struct fitting *fitting, const struct wrap_sight *sight, enum wrap_fit *found, struct wrap_units *out,
                                reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    const int64_t own = sight->pieces && sight->element_bytes ? ALIGNMENT_BYTES / sight->element_bytes : 1;
    const int64_t alignments[] = { own > 0 ? own : 1, ALIGNMENT_BYTES / HALF_BYTES };
    size_t ways = sight->pieces && alignments[0] != alignments[1] ? 2 : 1;
    for (size_t way = 0; !status && way < ways; way++) {
        lay(fitting, alignments[way], sight->pieces != NULL);
        if (!(sight->pieces ? pieces_agree(fitting, sight) : sizes_agree(fitting, sight)))
            continue;
        if (*found == WRAP_FITS_NOT)
            status = keep_units(fitting, out, err);
        if (*found == WRAP_FITS && !wrap_units_equal(&fitting->trial, out, fitting->count))
            *found = WRAP_FITS_TWICE;
        else if (*found == WRAP_FITS && alignments[way] != out->alignment)
            out->other_alignment = alignments[way];
        else if (*found == WRAP_FITS_NOT)
            *found = WRAP_FITS;
    }
    return status;
}

static void choose_paths(struct fitting *fitting, const uint32_t *chosen, bool is_chosen)
{
    for (int i = 0; i < WRAP_FIT_PATHS; i++)
        if (chosen[i] < fitting->paths.count)
            fitting->is_chosen[chosen[i]] = is_chosen;
}

/* The next choice of paths, in rising order; the number of paths stands for none. */
static bool next_choice(uint32_t paths, int most, uint32_t *chosen)
{
    int at = WRAP_FIT_PATHS - 1;
    while (at >= WRAP_FIT_PATHS - most && chosen[at] == paths)
        at--;
    if (at < WRAP_FIT_PATHS - most)
        return false;
    chosen[at]++;
    for (int i = at + 1; i < WRAP_FIT_PATHS; i++)
        chosen[i] = chosen[i - 1] < paths ? chosen[i - 1] + 1 : paths;
    return true;
}

/* How many paths are tried together. */
static int together(const struct fitting *fitting)
{
    uint64_t each = (uint64_t)fitting->modules.count + fitting->count + 1, paths = fitting->paths.count, ways = 1, all = 1;
    int most = 0;
    while (most < WRAP_FIT_PATHS && paths < UINT16_MAX) {
        ways = ways * (paths - (uint64_t)most) / (uint64_t)(most + 1); /* to choose one more */
        all += ways;
        if ((uint64_t)most >= paths || all > STEPS_MAX / each)
            break;
        most++;
    }
    return most;
}

static reshard_status try_all(struct fitting *fitting, const struct wrap_sight *sight, struct work *work, enum wrap_fit *found,
                              struct wrap_units *out, reshard_error *err)
{
    uint32_t paths = fitting->paths.count, chosen[WRAP_FIT_PATHS];
    int most = together(fitting);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < WRAP_FIT_PATHS; i++) {
        uint32_t place = i + (uint32_t)most - WRAP_FIT_PATHS; /* the first of `most` */
        chosen[i] = i + (uint32_t)most < WRAP_FIT_PATHS || place >= paths ? paths : place;
    }
    do {
        choose_paths(fitting, chosen, true);
        status = work_spend(work, (uint64_t)fitting->modules.count + fitting->count, err);
        unite_chosen(fitting);
        if (!status)
            status = try_units(fitting, sight, found, out, err);
        choose_paths(fitting, chosen, false);
    } while (!status && *found != WRAP_FITS_TWICE && next_choice(paths, most, chosen));
    return status;
}

reshard_status wrap_fit(const struct wrap_sight *sight, struct work *work, enum wrap_fit *found, struct wrap_units *out, reshard_error *err)
{
    struct fitting fitting;
    *found = WRAP_FITS_NOT;
    *out = (struct wrap_units){ 0 };
    reshard_status status = fitting_begin(&fitting, sight->parameters, sight->count, err);
    if (!status && sight->rule)
        status = unite_by_rule(&fitting, sight->rule, err);
    if (!status)
        status = sight->rule ? try_units(&fitting, sight, found, out, err) : try_all(&fitting, sight, work, found, out, err);
    if (status || *found == WRAP_FITS_TWICE)
        wrap_units_release(out);
    fitting_release(&fitting);
    return status;
}

reshard_status wrap_units_of_rule(const struct wrap_parameter *parameters, uint32_t count, const char *rule, int64_t alignment,
                                  struct wrap_units *out, reshard_error *err)
{
    struct fitting fitting;
    *out = (struct wrap_units){ 0 };
    reshard_status status = fitting_begin(&fitting, parameters, count, err);
    if (!status)
        status = unite_by_rule(&fitting, rule, err);
    if (!status) {
        lay(&fitting, alignment, false);
        status = keep_units(&fitting, out, err);
    }
    fitting_release(&fitting);
    return status;
}
