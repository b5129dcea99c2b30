/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/read_back.h"

#include "base/array.h"
#include "convert/conversion_second.h"
#include "convert/tensor_digests.h"
#include "convert/written_names.h"

#include <stdlib.h>

/* Digests of tensors that a mapping makes, by wanted tensor. They come one after the other, so one digest serves them all. */
struct made_digests {
    struct digest *digest;
    char (*hex)[DIGEST_HEX_MAX];
};

static reshard_status made_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    struct made_digests *made = context;
    (void)offset, (void)err;
    digest_update(made->digest, bytes, size);
    if (is_last) {
        digest_hex(made->digest, made->hex[tensor]);
        digest_reset(made->digest);
    }
    return RESHARD_OK;
}

static reshard_status digest_made(const struct conversion *conversion, const uint32_t *wanted, uint32_t count, char (*hex)[DIGEST_HEX_MAX],
                                  reshard_error *err)
{
    struct engine_source source = conversion_engine_source(conversion);
    struct engine_made made = { conversion->selection.wanted, conversion->selection.table.recipes, conversion->selection.table.first };
    const struct recipe_table *table = &conversion->selection.table;
    struct engine_options options = conversion->engine;
    struct made_digests digests = { 0 };
    uint32_t *tensors, tensor_count;
    options.threads = 1;
    reshard_status status = recipes_read(table->recipes, table->count, source.catalog->tensor_count, &tensors, &tensor_count, err);
    if (!status && !conversion->second.joined)
        status = source_resolve(conversion->source->source, tensors, tensor_count, err);
    free(tensors);
    if (status)
        return status;
    digests = (struct made_digests){ digest_new(DIGEST_XXH3), hex };
    status = digests.digest ? engine_stream_made(&source, &made, wanted, count, &options, made_sink, &digests, err) : error_set_memory(err);
    digest_free(digests.digest);
    return status;
}

/* What rounds of digests work with: tensors of the source, and by tensor of the source the type that is wanted of it and the digest. */
struct digest_round {
    uint32_t *tensors;
    enum dtype *as;
    char (*by_source)[DIGEST_HEX_MAX];
    char (*hex)[DIGEST_HEX_MAX]; /* by wanted tensor; empty: to be done */
};

/* Takes each tensor of the source once. *is_left: as another type, too. */
static reshard_status digest_round(const struct conversion *conversion, const uint32_t *wanted, uint32_t count,
                                   const struct digest_round *round, bool *is_left, reshard_error *err)
{
    const struct catalog_tensor *target = conversion->target.catalog->tensors;
    const uint32_t *from = conversion->selection.wanted_source;
    uint32_t taken = 0;
    memset(round->by_source, 0, conversion->source->source->catalog->tensor_count * sizeof(*round->by_source));
    for (uint32_t i = 0; i < count; i++) {
        if (round->hex[wanted[i]][0] || round->by_source[from[wanted[i]]][0])
            continue;
        round->tensors[taken++] = from[wanted[i]];
        round->as[from[wanted[i]]] = target[wanted[i]].dtype;
        round->by_source[from[wanted[i]]][0] = '?';
    }
    reshard_status status = tensor_digests(conversion->source, DIGEST_XXH3, round->tensors, taken, round->as, &conversion->engine,
                                           round->by_source, err);
    *is_left = false;
    for (uint32_t i = 0; i < count && !status; i++) {
        if (round->hex[wanted[i]][0])
            continue;
        bool is_done = round->as[from[wanted[i]]] == target[wanted[i]].dtype;
        if (is_done)
            memcpy(round->hex[wanted[i]], round->by_source[from[wanted[i]]], DIGEST_HEX_MAX);
        *is_left |= !is_done;
    }
    return status;
}

/* Digests of what the source's tensors are under the wanted types, by wanted tensor. */
static reshard_status digest_selected(const struct conversion *conversion, const uint32_t *wanted, uint32_t count,
                                      char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    const struct catalog *source = conversion->source->source->catalog;
    uint32_t *tensors = array_new(count, sizeof(*tensors));
    enum dtype *as = array_new(source->tensor_count, sizeof(*as));
    char(*by_source)[DIGEST_HEX_MAX] = array_zeroed(source->tensor_count, sizeof(*by_source));
    bool is_left = tensors && as && by_source;
    reshard_status status = is_left ? RESHARD_OK : error_set_memory(err);
    /* A state of tied weights may be wanted twice, as two types: as one in each round. */
    while (is_left && !status)
        status = digest_round(conversion, wanted, count, &(struct digest_round){ tensors, as, by_source, hex }, &is_left, err);
    free(tensors);
    free(as);
    free(by_source);
    return status;
}

/* Whether tensors are made, by a mapping or of nothing. */
static bool is_any_made(const struct conversion *conversion)
{
    bool is_made = conversion->mapping.stage != NULL;
    for (uint32_t i = 0; i < conversion->selection.wanted->tensor_count && !is_made; i++)
        is_made = conversion->selection.wanted_source[i] == CATALOG_NONE;
    return is_made;
}

/* ---- rows of padding ---- */

/*
 * A vocabulary's rows of padding come and go with the number of ranks: then the rows that both sides have are compared. expected: digest of
 * the whole as it was wanted. *is_same: set where the numbers of rows differ, and nothing else does.
 */
static reshard_status read_back_compare_rows(const struct conversion *conversion, uint32_t wanted, struct checkpoint *written,
                                             uint32_t found, const char *expected, bool *is_same, reshard_error *err)
{
    const struct catalog *was = conversion->target.catalog, *is = written->source->catalog;
    const struct catalog_tensor *x = &was->tensors[wanted], *y = &is->tensors[found];
    const int64_t *old = catalog_vector_at(was, x->shape), *now = catalog_vector_at(is, y->shape);
    uint32_t from = conversion->selection.wanted_source[wanted];
    char first[DIGEST_HEX_MAX], second[DIGEST_HEX_MAX];
    *is_same = false;
    if (x->rank == 0 || old[0] == now[0] || !shape_equal(x->rank - 1, old + 1, y->rank - 1, now + 1))
        return RESHARD_OK;
    bool is_shorter = now[0] < old[0], is_plain = from != CATALOG_NONE && !conversion->mapping.stage &&
                                                  conversion->source->source->catalog->tensors[from].dtype == y->dtype;
    if (is_shorter && !is_plain)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "tensor '%.*s' lost rows of padding on a way that changes it: 'reshard diff' compares it", STR_ARG(x->key));
    reshard_status status = tensor_digest_rows(written->source, found, is_shorter ? now[0] : old[0], &conversion->engine, second, err);
    if (!status && is_shorter)
        status = tensor_digest_rows(conversion->source->source, from, now[0], &conversion->engine, first, err);
    *is_same = !status && strcmp(second, is_shorter ? first : expected) == 0;
    return status;
}

/* A target may keep an optimizer's tensors within an item where nothing names them: that is not to be called missing. */
static reshard_status written_lacks(const struct catalog *written, struct str key, reshard_error *err)
{
    struct str rest = key, item = str_take(&rest, '.');
    if (catalog_find_item(written, item) == CATALOG_NONE)
        return error_set(err, RESHARD_DIFFERS, "tensor '%.*s' is missing", STR_ARG(key));
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' lies within the item '%.*s', where it cannot be compared", STR_ARG(key),
              STR_ARG(item));
    error_hint(err, "nothing is known to be wrong: without reshard_convert_options.verify it is written");
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- all of it ---- */

/* Tensors that are compared: what they are in the target, and what their digests are. */
struct comparing {
    struct written_names names;
    uint32_t *wanted;
    struct stored_name *found;   /* by place in wanted */
    struct written_parts *parts; /* the same; without tensors where it is found as a whole */
    uint32_t count;
    char (*before)[DIGEST_HEX_MAX]; /* by wanted tensor */
    char (*after)[DIGEST_HEX_MAX];  /* by tensor of the target */
};

static void comparing_release(struct comparing *comparing)
{
    written_names_release(&comparing->names);
    for (uint32_t i = 0; comparing->parts && i < comparing->count; i++)
        free(comparing->parts[i].tensors);
    free(comparing->parts);
    free(comparing->wanted);
    free(comparing->found);
    free(comparing->before);
    free(comparing->after);
}

/* What it was said of that the target has none: those that were left out, and ties that were recorded alone. */
struct absent_names {
    struct name_map dropped, recorded;
    uint32_t *kept; /* by wanted tensor: one of its ties that is stored, or CATALOG_NONE */
};

static void absent_names_release(struct absent_names *names)
{
    name_map_release(&names->dropped);
    name_map_release(&names->recorded);
    free(names->kept);
}

/* A tie points to an earlier tensor, so one pass finds the first of each group, and what of it is stored. */
static reshard_status absent_find_kept(const struct conversion *conversion, struct absent_names *out, reshard_error *err)
{
    const struct catalog *wanted = conversion->selection.wanted;
    uint32_t *root = array_new(wanted->tensor_count, sizeof(*root)), *stored = array_new(wanted->tensor_count, sizeof(*stored));
    out->kept = array_new(wanted->tensor_count, sizeof(*out->kept));
    reshard_status status = root && stored && out->kept ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        uint32_t tied_to = wanted->tensors[i].tied_to;
        root[i] = tied_to < i ? root[tied_to] : i;
        stored[i] = CATALOG_NONE;
        if (stored[root[i]] == CATALOG_NONE && conversion_stores(conversion, i))
            stored[root[i]] = i;
    }
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++)
        out->kept[i] = stored[root[i]];
    free(root);
    free(stored);
    return status;
}

static reshard_status absent_names_make(const struct conversion *conversion, struct absent_names *out, reshard_error *err)
{
    reshard_status status = note_list_keys(&conversion->target.dropped, false, &out->dropped, err);
    if (!status)
        status = note_list_keys(&conversion->target.changed, true, &out->recorded, err);
    return status ? status : absent_find_kept(conversion, out, err);
}

/* A wanted tensor that the target has under none of its names. A tie that is recorded alone has its values in the one that is kept. */
static reshard_status find_absent(const struct conversion *conversion, const struct comparing *comparing, const struct absent_names *names,
                                  uint32_t wanted, struct stored_name *found, reshard_error *err)
{
    struct str key = conversion->target.catalog->tensors[wanted].key;
    bool is_stored = conversion_stores(conversion, wanted);
    reshard_status status = RESHARD_OK;
    if (!is_stored && names->kept[wanted] != CATALOG_NONE && name_map_find(&names->recorded, key) != NAME_NONE)
        status = written_find(&comparing->names, names->kept[wanted], found, err);
    bool is_dropped = !is_stored && name_map_find(&names->dropped, key) != NAME_NONE;
    if (!status && found->tensor == CATALOG_NONE && !is_dropped)
        status = written_lacks(comparing->names.catalog, key, err);
    return status;
}

/* Hidden ones that are not found are not known to be read under a name. */
static reshard_status find_compared(const struct conversion *conversion, struct comparing *out, reshard_error *err)
{
    const struct catalog *wanted = conversion->target.catalog;
    struct absent_names absent = { 0 };
    reshard_status status = absent_names_make(conversion, &absent, err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        struct stored_name *found = &out->found[out->count];
        uint32_t flags = wanted->tensors[i].flags;
        if (flags & TENSOR_NO_DATA)
            continue;
        status = written_find(&out->names, i, found, err);
        struct written_parts *parts = &out->parts[out->count];
        bool is_lacking = !status && found->tensor == CATALOG_NONE && !(flags & TENSOR_HIDDEN);
        if (is_lacking)
            status = written_find_parts(&out->names, i, parts, err);
        if (is_lacking && !status && !parts->tensors)
            status = find_absent(conversion, out, &absent, i, found, err);
        if (found->tensor != CATALOG_NONE || parts->tensors)
            out->wanted[out->count++] = i;
    }
    absent_names_release(&absent);
    return status;
}

/* Parts of tensors get their digests one by one (compare_one). */
static reshard_status digest_compared(const struct conversion *conversion, struct checkpoint *written, struct comparing *comparing,
                                      reshard_error *err)
{
    uint32_t *tensors = array_new(comparing->count, sizeof(*tensors)), count = 0;
    bool *is_taken = array_zeroed(written->source->catalog->tensor_count, sizeof(*is_taken));
    reshard_status status = tensors && is_taken ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < comparing->count && !status; i++) {
        const struct stored_name *found = &comparing->found[i];
        if (comparing->parts[i].tensors || found->lead_count || is_taken[found->tensor])
            continue;
        tensors[count++] = found->tensor;
        is_taken[found->tensor] = true;
    }
    if (!status)
        status = is_any_made(conversion) ? digest_made(conversion, comparing->wanted, comparing->count, comparing->before, err)
                                         : digest_selected(conversion, comparing->wanted, comparing->count, comparing->before, err);
    if (!status)
        status = tensor_digests(written, DIGEST_XXH3, tensors, count, NULL, &conversion->engine, comparing->after, err);
    free(tensors);
    free(is_taken);
    return status;
}

/* Digest of the part at a place along a tensor's first axes. */
static reshard_status digest_part(const struct conversion *conversion, struct checkpoint *written, const struct stored_name *found,
                                  char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    const struct catalog *catalog = written->source->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[found->tensor];
    int64_t start[RANK_MAX] = { 0 }, extent[RANK_MAX];
    memcpy(extent, catalog_vector_at(catalog, tensor->shape), (size_t)tensor->rank * sizeof(*extent));
    for (int i = 0; i < found->lead_count; i++) {
        start[i] = found->lead[i];
        extent[i] = 1;
    }
    return tensor_digest_box(written->source, found->tensor, start, extent, &conversion->engine, hex, err);
}

/* Hidden tensors' keys begin with a NUL, which ends a text in messages. */
static struct str shown_key(struct str key)
{
    return key.size && key.data[0] == '\0' ? (struct str){ key.data + 1, key.size - 1 } : key;
}

static reshard_status compare_one(struct conversion *conversion, struct checkpoint *written, const struct comparing *comparing, uint32_t at,
                                  reshard_error *err)
{
    uint32_t wanted = comparing->wanted[at];
    const struct stored_name *found = &comparing->found[at];
    const struct catalog_tensor *tensor = &conversion->target.catalog->tensors[wanted];
    const struct written_parts *parts = &comparing->parts[at];
    const bool is_apart = parts->tensors || found->lead_count;
    char apart[DIGEST_HEX_MAX];
    reshard_status status = RESHARD_OK;
    if (parts->tensors)
        status = tensor_digest_joined(written->source, parts->tensors, parts->count, &conversion->engine, apart, err);
    else if (found->lead_count)
        status = digest_part(conversion, written, found, apart, err);
    const char *before = comparing->before[wanted], *after = is_apart ? apart : comparing->after[found->tensor];
    bool is_same = !status && strcmp(after, before) == 0;
    if (!status && !is_same && !is_apart)
        status = read_back_compare_rows(conversion, wanted, written, found->tensor, before, &is_same, err);
    if (!status && !is_same)
        status = error_set(err, RESHARD_DIFFERS, "tensor '%.*s': digest %s, the source has %s", STR_ARG(shown_key(tensor->key)), after,
                           before);
    if (!status && conversion->is_counted[wanted]) {
        conversion->verified.tensors++;
        conversion->verified.bytes += catalog_tensor_bytes(conversion->target.catalog, tensor);
    }
    return status;
}

reshard_status read_back_compare(struct conversion *conversion, struct checkpoint *written, reshard_error *err)
{
    uint32_t wanted = conversion->target.catalog->tensor_count, there = written->source->catalog->tensor_count;
    struct comparing comparing = { .wanted = array_zeroed(wanted, sizeof(*comparing.wanted)),
                                   .found = array_zeroed(wanted, sizeof(*comparing.found)),
                                   .parts = array_zeroed(wanted, sizeof(*comparing.parts)),
                                   .before = array_zeroed(wanted, sizeof(*comparing.before)),
                                   .after = array_zeroed(there, sizeof(*comparing.after)) };
    bool has_memory = comparing.wanted && comparing.found && comparing.parts && comparing.before && comparing.after;
    reshard_status status = has_memory ? written_names_make(conversion, written->source, &comparing.names, err) : error_set_memory(err);
    if (!status)
        status = find_compared(conversion, &comparing, err);
    if (!status)
        status = digest_compared(conversion, written, &comparing, err);
    for (uint32_t i = 0; i < comparing.count && !status; i++)
        status = compare_one(conversion, written, &comparing, i, err);
    comparing_release(&comparing);
    return status;
}
