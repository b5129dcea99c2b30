/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/read_back.h"

#include "convert/conversion_second.h"
#include "convert/tensor_digests.h"

#include <stdlib.h>

/* The hidden tensors of the written checkpoint by their keys: those of an optimizer that lies within an item. */
struct hidden_names {
    struct name_map map;
    uint32_t *tensors; /* by number */
};

static void hidden_names_release(struct hidden_names *names)
{
    name_map_release(&names->map);
    free(names->tensors);
}

static reshard_status hidden_names_make(const struct catalog *catalog, struct hidden_names *out, reshard_error *err)
{
    out->tensors = malloc(((size_t)catalog->tensor_count + 1) * sizeof(*out->tensors));
    if (!out->tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        if (!(catalog->tensors[i].flags & TENSOR_HIDDEN))
            continue;
        uint32_t number = name_map_intern(&out->map, catalog->tensors[i].key, NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        out->tensors[number] = i;
    }
    return RESHARD_OK;
}

static struct str hidden_key(const struct target *target, uint32_t tensor)
{
    return target->hidden_keys ? target->hidden_keys[tensor] : (struct str){ 0 };
}

/* The target's tensor for a wanted one: by key, or where keys are ambiguous by path. */
static uint32_t listed_tensor(const struct conversion *conversion, const struct checkpoint *written, uint32_t wanted)
{
    const struct catalog *in = written->source->catalog;
    uint32_t found = catalog_find(in, target_read_key(&conversion->target, wanted));
    if (found == CATALOG_NONE || !(in->tensors[found].flags & TENSOR_AMBIGUOUS))
        return found;
    struct path_part single, other_single;
    const struct path_part *parts, *other;
    size_t count = catalog_tensor_path(conversion->selection.wanted, &conversion->selection.wanted->tensors[wanted], &single, &parts);
    for (uint32_t i = 0; i < in->tensor_count; i++) {
        size_t other_count = catalog_tensor_path(in, &in->tensors[i], &other_single, &other);
        if (path_equal(parts, count, other, other_count))
            return i;
    }
    return CATALOG_NONE;
}

static uint32_t written_tensor(const struct conversion *conversion, const struct checkpoint *written, const struct hidden_names *hidden,
                               uint32_t wanted)
{
    struct str key = hidden_key(&conversion->target, wanted);
    uint32_t number = key.data ? name_map_find(&hidden->map, key) : NAME_NONE;
    if (number != NAME_NONE)
        return hidden->tensors[number];
    bool is_hidden = conversion->target.catalog->tensors[wanted].flags & TENSOR_HIDDEN;
    return is_hidden ? CATALOG_NONE : listed_tensor(conversion, written, wanted);
}

static bool is_compared(const struct conversion *conversion, uint32_t wanted)
{
    uint32_t flags = conversion->target.catalog->tensors[wanted].flags;
    return !(flags & TENSOR_NO_DATA) && (!(flags & TENSOR_HIDDEN) || hidden_key(&conversion->target, wanted).data);
}

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

/* Digests of what the source's tensors are under the wanted types, by wanted tensor. */
static reshard_status digest_selected(const struct conversion *conversion, const uint32_t *wanted, uint32_t count,
                                      char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    const struct catalog *source = conversion->source->source->catalog;
    uint32_t *tensors = malloc(((size_t)count + 1) * sizeof(*tensors));
    enum dtype *as = malloc(((size_t)source->tensor_count + 1) * sizeof(*as));
    char(*by_source)[DIGEST_HEX_MAX] = calloc((size_t)source->tensor_count + 1, sizeof(*by_source));
    reshard_status status = tensors && as && by_source ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        tensors[i] = conversion->selection.wanted_source[wanted[i]];
        as[tensors[i]] = conversion->target.catalog->tensors[wanted[i]].dtype;
    }
    if (!status)
        status = tensor_digests(conversion->source, DIGEST_XXH3, tensors, count, as, &conversion->engine, by_source, err);
    for (uint32_t i = 0; i < count && !status; i++)
        memcpy(hex[wanted[i]], by_source[tensors[i]], DIGEST_HEX_MAX);
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
    uint32_t *wanted, *found; /* found: by place in wanted */
    uint32_t count;
    char (*before)[DIGEST_HEX_MAX], (*after)[DIGEST_HEX_MAX]; /* by wanted tensor, by tensor of the target */
};

static void comparing_release(struct comparing *comparing)
{
    free(comparing->wanted);
    free(comparing->found);
    free(comparing->before);
    free(comparing->after);
}

/* Hidden ones that are not found are not known to be read under a name. */
static reshard_status find_compared(const struct conversion *conversion, const struct checkpoint *written, struct comparing *out,
                                    reshard_error *err)
{
    const struct catalog *wanted = conversion->target.catalog, *target = written->source->catalog;
    struct hidden_names hidden = { 0 };
    reshard_status status = conversion->target.hidden_keys ? hidden_names_make(target, &hidden, err) : RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        if (!is_compared(conversion, i))
            continue;
        uint32_t found = written_tensor(conversion, written, &hidden, i);
        if (found == CATALOG_NONE && wanted->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        if (found == CATALOG_NONE)
            status = written_lacks(target, wanted->tensors[i].key, err);
        out->wanted[out->count] = i;
        out->found[out->count++] = found;
    }
    hidden_names_release(&hidden);
    return status;
}

static reshard_status digest_compared(const struct conversion *conversion, struct checkpoint *written, struct comparing *comparing,
                                      reshard_error *err)
{
    uint32_t *tensors = malloc(((size_t)comparing->count + 1) * sizeof(*tensors)), count = 0;
    bool *is_taken = calloc((size_t)written->source->catalog->tensor_count + 1, sizeof(*is_taken));
    reshard_status status = tensors && is_taken ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < comparing->count && !status; i++) {
        if (!is_taken[comparing->found[i]])
            tensors[count++] = comparing->found[i];
        is_taken[comparing->found[i]] = true;
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

/* Hidden tensors' keys begin with a NUL, which ends a text in messages. */
static struct str shown_key(struct str key)
{
    return key.size && key.data[0] == '\0' ? (struct str){ key.data + 1, key.size - 1 } : key;
}

static reshard_status compare_one(struct conversion *conversion, struct checkpoint *written, const struct comparing *comparing, uint32_t at,
                                  reshard_error *err)
{
    uint32_t wanted = comparing->wanted[at], found = comparing->found[at];
    const struct catalog_tensor *tensor = &conversion->target.catalog->tensors[wanted];
    const char *before = comparing->before[wanted], *after = comparing->after[found];
    bool is_same = strcmp(after, before) == 0;
    reshard_status status = is_same ? RESHARD_OK : read_back_compare_rows(conversion, wanted, written, found, before, &is_same, err);
    if (!status && !is_same)
        status = error_set(err, RESHARD_DIFFERS, "tensor '%.*s': digest %s, the source has %s", STR_ARG(shown_key(tensor->key)), after,
                           before);
    if (!status && conversion_stores(conversion, wanted)) {
        conversion->verified.tensors++;
        conversion->verified.bytes += catalog_tensor_bytes(conversion->target.catalog, tensor);
    }
    return status;
}

reshard_status read_back_compare(struct conversion *conversion, struct checkpoint *written, reshard_error *err)
{
    uint32_t wanted = conversion->target.catalog->tensor_count, there = written->source->catalog->tensor_count;
    struct comparing comparing = { .wanted = calloc((size_t)wanted + 1, sizeof(*comparing.wanted)),
                                   .found = calloc((size_t)wanted + 1, sizeof(*comparing.found)),
                                   .before = calloc((size_t)wanted + 1, sizeof(*comparing.before)),
                                   .after = calloc((size_t)there + 1, sizeof(*comparing.after)) };
    bool has_memory = comparing.wanted && comparing.found && comparing.before && comparing.after;
    reshard_status status = has_memory ? find_compared(conversion, written, &comparing, err) : error_set_memory(err);
    if (!status)
        status = digest_compared(conversion, written, &comparing, err);
    for (uint32_t i = 0; i < comparing.count && !status; i++)
        status = compare_one(conversion, written, &comparing, i, err);
    comparing_release(&comparing);
    return status;
}
