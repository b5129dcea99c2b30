/* SPDX-License-Identifier: Apache-2.0 */
#include "api/selection.h"

#include "kernels/copy.h"

#include <stdlib.h>

static bool matches_any(struct str key, const char *const *globs)
{
    for (size_t i = 0; globs && globs[i]; i++) {
        if (str_matches_glob(key, str_of(globs[i])))
            return true;
    }
    return false;
}

static bool is_selected(struct str key, const reshard_convert_options *options)
{
    bool included = !options->include || !options->include[0] || matches_any(key, options->include);
    return included && !matches_any(key, options->exclude);
}

/* "bf16" asks for every floating tensor, "GLOB=bf16" for whatever matches. */
static reshard_status dtype_for(struct str key, enum dtype source, const char *const *rules, enum dtype *out, reshard_error *err)
{
    *out = source;
    for (size_t i = 0; rules && rules[i]; i++) {
        struct str rule = str_of(rules[i]), glob = { 0 }, name = rule;
        for (size_t at = rule.size; at-- > 0;) {
            if (rule.data[at] == '=') {
                glob = (struct str){ rule.data, at };
                name = (struct str){ rule.data + at + 1, rule.size - at - 1 };
                break;
            }
        }
        enum dtype wanted;
        if (!dtype_from_name(name, &wanted))
            return error_set(err, RESHARD_ERR_USAGE, "unknown dtype '%.*s'", STR_ARG(name));
        bool applies = glob.data ? str_matches_glob(key, glob) : dtype_info(source)->class_ == DTYPE_CLASS_FLOAT;
        if (!applies)
            continue;
        if (!copy_can_cast(source, wanted))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': no cast from %s to %s", STR_ARG(key), dtype_info(source)->name,
                             dtype_info(wanted)->name);
        *out = wanted;
    }
    return RESHARD_OK;
}

static reshard_status select_tensor(const struct catalog *catalog, uint32_t index, const reshard_convert_options *options, struct selection *out,
                                    uint32_t *wanted_of, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    bool hidden = tensor->flags & TENSOR_HIDDEN;
    if (hidden ? options->drop_items : !is_selected(tensor->key, options)) {
        out->is_whole = false;
        return RESHARD_OK;
    }
    enum dtype dtype = tensor->dtype;
    reshard_status status = hidden ? RESHARD_OK : dtype_for(tensor->key, tensor->dtype, options->dtypes, &dtype, err);
    if (status)
        return status;
    uint32_t wanted;
    status = catalog_add_tensor(out->wanted, tensor->key, dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape), &wanted, err);
    if (status)
        return status;
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_tensor_path(catalog, tensor, &single, &parts);
    if (tensor->path != CATALOG_NONE) {
        status = catalog_set_tensor_path(out->wanted, wanted, parts, count, err);
        if (status)
            return status;
    }
    struct catalog_tensor *copy = &out->wanted->tensors[wanted];
    copy->flags = tensor->flags;
    copy->storage_group = tensor->storage_group;
    copy->tied_to = CATALOG_NONE;
    if (tensor->tied_to != CATALOG_NONE && tensor->tied_to < index && wanted_of[tensor->tied_to] != CATALOG_NONE &&
        out->wanted->tensors[wanted_of[tensor->tied_to]].dtype == dtype)
        copy->tied_to = wanted_of[tensor->tied_to];
    out->wanted_source[wanted] = index;
    wanted_of[index] = wanted;
    return RESHARD_OK;
}

static reshard_status select_item(const struct catalog *catalog, uint32_t index, const reshard_convert_options *options, struct selection *out,
                                  reshard_error *err)
{
    const struct catalog_item *item = &catalog->items[index];
    bool is_part_of_format = item->kind == ITEM_FILE || str_is(item->key, "__metadata__");
    if (options->drop_items || (!is_part_of_format && !is_selected(item->key, options))) {
        out->is_whole = false;
        return RESHARD_OK;
    }
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_item_path(catalog, item, &single, &parts);
    struct catalog_item copy = *item;
    uint32_t wanted;
    if (item->kind == ITEM_BLOB || item->kind == ITEM_RAW || item->kind == ITEM_FILE) {
        const struct catalog_object *object = &catalog->objects[item->object];
        reshard_status status = catalog_add_object(out->wanted, object->name, object->bytes, &copy.object, err);
        if (status)
            return status;
    }
    reshard_status status = catalog_add_item(out->wanted, &copy, parts, item->path == CATALOG_NONE ? 0 : count, &wanted, err);
    if (!status)
        out->wanted_items[wanted] = index;
    return status;
}

reshard_status selection_make(const reshard_checkpoint *source, const char *format, const reshard_convert_options *options, struct selection *out,
                              reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(source);
    struct selection made = { .is_whole = true };
    reshard_status status = RESHARD_OK;
    uint32_t *wanted_of = malloc(((size_t)catalog->tensor_count + 1) * sizeof(uint32_t));
    made.wanted = catalog_new(format);
    made.wanted_source = malloc(((size_t)catalog->tensor_count + 1) * sizeof(uint32_t));
    made.wanted_items = malloc(((size_t)catalog->item_count + 1) * sizeof(uint32_t));
    if (!wanted_of || !made.wanted || !made.wanted_source || !made.wanted_items) {
        status = error_set_memory(err);
        goto out;
    }
    memset(wanted_of, 0xFF, (size_t)catalog->tensor_count * sizeof(uint32_t));
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++)
        status = select_tensor(catalog, i, options, &made, wanted_of, err);
    for (uint32_t i = 0; i < catalog->item_count && !status; i++)
        status = select_item(catalog, i, options, &made, err);
    if (!status && made.wanted->tensor_count == 0 && catalog->tensor_count > 0 && (options->include || options->exclude))
        status = error_set(err, RESHARD_ERR_USAGE, "no tensor is left after --include and --exclude");

out:
    free(wanted_of);
    if (status)
        selection_release(&made);
    else
        *out = made;
    return status;
}

void selection_release(struct selection *selection)
{
    catalog_free(selection->wanted);
    free(selection->wanted_source);
    free(selection->wanted_items);
    *selection = (struct selection){ 0 };
}
