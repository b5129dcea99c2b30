/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint against its sidecar. */
#include "convert/sidecar.h"
#include "base/array.h"
#include "convert/checkpoint_view.h"

#include "convert/sidecar_parts.h"
#include "convert/tensor_digests.h"
#include "encoding/json.h"
#include "formats/source_root.h"

#include <stdlib.h>

/* ---- finding it ---- */

/*
 * Before version 2 a root of iterations had the sidecar, not the iteration. It is about an iteration for sure only where there is one: the
 * name of the root's sidecar then, else NULL.
 */
static reshard_status name_in_root(const struct source *source, char **out, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0, directories = 0;
    reshard_status status = RESHARD_OK;
    *out = NULL;
    if (source->is_in_root && !strchr(source->name, '/'))
        status = store_list(source->store, "", &arena, &entries, &count, err);
    for (size_t i = 0; i < count && !status; i++)
        directories += entries[i].is_directory;
    arena_release(&arena);
    if (!status && directories == 1 && !(*out = str_copy(STR(SIDECAR_NAME))))
        return error_set_memory(err);
    return status;
}

/* *out stays NULL if there is no sidecar. */
static reshard_status find_sidecar(const struct source *source, char **out, reshard_error *err)
{
    char *name = sidecar_name(source);
    reshard_status status = name ? RESHARD_OK : error_set_memory(err);
    if (name && !store_is_file(source->store, name)) {
        free(name);
        status = name_in_root(source, &name, err);
    }
    if (name && !store_is_file(source->store, name)) {
        free(name);
        name = NULL;
    }
    if (!status && !name)
        status = store_failure(source->store, err);
    *out = name;
    /* Digests that cannot be looked for are not missing; who saves what is left does without. */
    return status == RESHARD_ERR_IO && source->is_salvage ? RESHARD_OK : status;
}

bool sidecar_is_there(const struct source *source)
{
    char *name = NULL;
    bool is_there = !find_sidecar(source, &name, NULL) && name;
    free(name);
    return is_there;
}

/* ---- reading it ---- */

struct sidecar {
    char *name;
    struct value_graph graph;
    enum digest_kind kind;
    const struct value *tensors, *types, *items; /* types and items: NULL in old ones */
};

static void sidecar_release(struct sidecar *sidecar)
{
    free(sidecar->name);
    value_graph_release(&sidecar->graph);
}

static const struct value *sidecar_member(const struct sidecar *sidecar, const char *name)
{
    const struct value *found = value_dict_get(sidecar->graph.root, name);
    return found && found->kind == VALUE_DICT ? found : NULL;
}

static reshard_status take_members(struct sidecar *sidecar, reshard_error *err)
{
    const struct value *root = sidecar->graph.root;
    const struct value *schema = root->kind == VALUE_DICT ? value_dict_get(root, "schema") : NULL;
    const struct value *digest = root->kind == VALUE_DICT ? value_dict_get(root, "digest") : NULL;
    struct str text = { 0 }, kind = { 0 };
    if (!schema || !value_as_str(schema, &text) || !(str_is(text, SIDECAR_SCHEMA) || str_is(text, SIDECAR_SCHEMA_OLD)))
        return error_set(err, text.size ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT, "schema '%.*s', expected '" SIDECAR_SCHEMA "'",
                         STR_ARG(text));
    if (!digest || !value_as_str(digest, &kind) || !digest_from_name(kind, &sidecar->kind) ||
        sidecar->kind == DIGEST_MD5)
        return error_set(err, RESHARD_ERR_FORMAT, "no \"digest\" that reshard knows");
    sidecar->tensors = sidecar_member(sidecar, "tensors");
    if (!sidecar->tensors)
        return error_set(err, RESHARD_ERR_FORMAT, "no \"tensors\"");
    if (str_is(text, SIDECAR_SCHEMA_OLD))
        return RESHARD_OK;
    sidecar->types = sidecar_member(sidecar, "types");
    sidecar->items = sidecar_member(sidecar, "items");
    return sidecar->types && sidecar->items ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "no \"types\" and \"items\"");
}

static reshard_status sidecar_read(const struct source *source, struct sidecar *out, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = find_sidecar(source, &out->name, err);
    if (status || !out->name)
        return status;
    status = store_read_all(source->store, out->name, NAMED_LIMIT(&source->limits, json_bytes), &text, err);
    if (!status)
        status = json_parse(text.data, text.size, &source->limits, &out->graph, err);
    if (!status)
        status = take_members(out, err);
    if (status) {
        error_prefix(err, "'%s'", out->name);
        error_object(err, "%s", out->name);
    }
    buffer_release(&text);
    return status;
}

/* ---- checking ---- */

/* A sidecar's entry: what it says of the tensor or item with the catalog index, CATALOG_NONE if there is none. */
typedef reshard_status (*entry_check)(void *context, struct str name, uint32_t index, struct str says, reshard_error *err);

static reshard_status each_entry(const struct value *listed, const struct sidecar_names *names, entry_check check, void *context,
                                 reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < listed->list.count && !status; i += 2) {
        struct str name, says;
        if (!value_as_str(listed->list.items[i], &name) || !value_as_str(listed->list.items[i + 1], &says))
            return error_set(err, RESHARD_ERR_FORMAT, SIDECAR_NAME ": an entry is no pair of strings");
        uint32_t number = name_map_find(&names->map, name);
        status = check(context, name, number == NAME_NONE ? CATALOG_NONE : names->indices[number], says, err);
    }
    return status;
}

struct checking {
    struct checkpoint *checkpoint;
    const uint8_t *is_gone; /* by tensor; or NULL */
    struct team *team;
    struct finding_sink *findings;
    char (*hex)[DIGEST_HEX_MAX]; /* by tensor */
    struct item_digests *items;
    struct buffer type;
    bool *is_covered; /* tensors, or items */
};

static bool is_gone(const struct checking *checking, uint32_t tensor)
{
    return (checking->is_gone && checking->is_gone[tensor]) || catalog_tensor_is_torn(checking->checkpoint->source->catalog, tensor);
}

static reshard_status check_digest(void *context, struct str key, uint32_t tensor, struct str wanted, reshard_error *err)
{
    struct checking *checking = context;
    struct finding_sink *findings = checking->findings;
    char(*hex)[DIGEST_HEX_MAX] = checking->hex;
    (void)err;
    if (tensor != CATALOG_NONE)
        checking->is_covered[tensor] = true;
    if (tensor == CATALOG_NONE)
        finding_report(findings, FINDING_FAILURE, "missing", key, "listed in " SIDECAR_NAME " and not in the checkpoint");
    else if (checkpoint_shows(checking->checkpoint, tensor) && !is_gone(checking, tensor) && !str_is(wanted, hex[tensor]))
        finding_report(findings, FINDING_FAILURE, "checksum", key, "digest %s, " SIDECAR_NAME " says %.*s", hex[tensor], STR_ARG(wanted));
    return RESHARD_OK;
}

static reshard_status check_type(void *context, struct str key, uint32_t tensor, struct str wanted, reshard_error *err)
{
    struct checking *checking = context;
    struct buffer *type = &checking->type;
    size_t blank, wanted_blank;
    if (tensor == CATALOG_NONE)
        return RESHARD_OK; /* the digests say so */
    buffer_clear(type);
    sidecar_put_type(checking->checkpoint->source->catalog, tensor, type);
    if (type->failed)
        return error_set_memory(err);
    if (str_equal(buffer_str(type), wanted))
        return RESHARD_OK;
    bool is_dtype = !str_find_char(buffer_str(type), ' ', &blank) || !str_find_char(wanted, ' ', &wanted_blank) || blank != wanted_blank ||
                    memcmp(type->data, wanted.data, blank) != 0;
    finding_report(checking->findings, FINDING_FAILURE, is_dtype ? "dtype" : "shape", key, "is %.*s, " SIDECAR_NAME " says %.*s",
                   STR_ARG(buffer_str(type)), STR_ARG(wanted));
    return RESHARD_OK;
}

static reshard_status check_item(void *context, struct str key, uint32_t item, struct str wanted, reshard_error *err)
{
    struct checking *checking = context;
    char found[ITEM_DIGEST_MAX];
    if (item == CATALOG_NONE) {
        finding_report(checking->findings, FINDING_FAILURE, "missing", key, "item listed in " SIDECAR_NAME " and not in the checkpoint");
        return RESHARD_OK;
    }
    checking->is_covered[item] = true;
    reshard_error seen = { 0 };
    reshard_status status = item_digest(checking->items, item, found, &seen);
    if (status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_IO) { /* says nothing of the others */
        finding_report(checking->findings, FINDING_FAILURE, "checksum", key, "item cannot be read: %s", seen.message);
        return RESHARD_OK;
    }
    if (status)
        *err = seen;
    if (!status && !str_is(wanted, found))
        finding_report(checking->findings, FINDING_FAILURE, "checksum", key, "item's digest is %s, " SIDECAR_NAME " says %.*s", found,
                       STR_ARG(wanted));
    return status;
}

/* Whoever adds a file beside the weights has not touched the model. */
static void report_unlisted(const struct checking *checking, const struct sidecar_names *names, bool is_items)
{
    const struct catalog *catalog = checking->checkpoint->source->catalog;
    for (uint32_t i = 0; i < names->map.count; i++) {
        uint32_t index = names->indices[i];
        if (checking->is_covered[index])
            continue;
        bool is_side_file = is_items && catalog->items[index].kind == ITEM_FILE;
        finding_report(checking->findings, is_side_file ? FINDING_WARNING : FINDING_FAILURE, "unexpected", name_map_at(&names->map, i),
                       "%s that " SIDECAR_NAME " does not list",
                       is_side_file ? "file"
                       : is_items   ? "item"
                                    : "tensor");
    }
}

/* The digests of what is there. */
static reshard_status take_digests(struct checking *checking, enum digest_kind kind, const struct engine_options *options,
                                   reshard_error *err)
{
    struct checkpoint *checkpoint = checking->checkpoint;
    uint32_t *there = array_new(checkpoint->listed_count, sizeof(*there)), count = 0;
    if (!there)
        return error_set_memory(err);
    for (uint32_t i = 0; i < checkpoint->listed_count; i++)
        if (!is_gone(checking, checkpoint->listed[i]))
            there[count++] = checkpoint->listed[i];
    reshard_status status = tensor_digests_shared(checking->team, checkpoint, kind, there, count, options, checking->hex, err);
    free(there);
    return status;
}

static reshard_status check_tensors(struct checkpoint *checkpoint, const struct sidecar *sidecar, const struct engine_options *options,
                                    struct checking *checking, struct sidecar_cover *cover, reshard_error *err)
{
    uint32_t count = checkpoint->source->catalog->tensor_count;
    struct sidecar_names names = { 0 };
    checking->hex = array_zeroed(count, sizeof(*checking->hex));
    checking->is_covered = cover->tensors = array_zeroed(count, sizeof(bool));
    reshard_status status = checking->hex && cover->tensors ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = take_digests(checking, sidecar->kind, options, err);
    if (!status)
        status = sidecar_names_of_tensors(checkpoint, &names, err);
    if (!status)
        status = each_entry(sidecar->tensors, &names, check_digest, checking, err);
    if (!status && sidecar->types)
        status = each_entry(sidecar->types, &names, check_type, checking, err);
    if (!status)
        report_unlisted(checking, &names, false);
    sidecar_names_release(&names);
    buffer_release(&checking->type);
    free(checking->hex);
    return status;
}

static reshard_status check_items(struct checkpoint *checkpoint, const struct sidecar *sidecar, struct checking *checking,
                                  struct sidecar_cover *cover, reshard_error *err)
{
    struct sidecar_names names = { 0 };
    struct item_digests digests = { 0 };
    checking->is_covered = cover->items = array_zeroed(checkpoint->source->catalog->item_count, sizeof(bool));
    reshard_status status = cover->items ? item_digests_begin(checkpoint->source, sidecar->kind, &digests, err) : error_set_memory(err);
    checking->items = &digests;
    if (!status)
        status = sidecar_names_of_items(checkpoint, &names, err);
    if (!status)
        status = each_entry(sidecar->items, &names, check_item, checking, err);
    if (!status)
        report_unlisted(checking, &names, true);
    sidecar_names_release(&names);
    item_digests_end(&digests);
    return status;
}

void sidecar_cover_release(struct sidecar_cover *cover)
{
    free(cover->tensors);
    free(cover->items);
    *cover = (struct sidecar_cover){ 0 };
}

reshard_status sidecar_verify(struct checkpoint *checkpoint, const uint8_t *is_gone, struct team *team,
                              const struct engine_options *options, struct finding_sink *findings, struct sidecar_cover *cover,
                              reshard_error *err)
{
    struct sidecar sidecar = { 0 };
    struct checking checking = { .checkpoint = checkpoint, .is_gone = is_gone, .team = team, .findings = findings };
    reshard_status status = sidecar_read(checkpoint->source, &sidecar, err);
    if (!status && sidecar.name)
        status = check_tensors(checkpoint, &sidecar, options, &checking, cover, err);
    if (!status && sidecar.items)
        status = check_items(checkpoint, &sidecar, &checking, cover, err);
    sidecar_release(&sidecar);
    return status;
}
