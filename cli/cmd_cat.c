/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"
#include "commands.h"
#include "near_names.h"
#include "number_text.h"
#include "tensor_slice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DOCUMENT_ELEMENTS_MAX (1 << 20)

static int write_raw(const void *bytes, size_t size, void *context)
{
    (void)context;
    if (fwrite(bytes, 1, size, stdout) == size)
        return 0;
    output_note_failure(errno);
    return -1;
}

/* Prints elements as they come; a window may end inside one. */
struct text_output {
    const char *dtype;
    size_t element_bytes, held;
    uint8_t element[16];
    int64_t row, column; /* elements in a line: the last axis */
    bool is_json, is_behind;
};

static void print_element(struct text_output *text)
{
    text->held = 0;
    if (text->is_json) {
        fputs(text->is_behind ? "," : "", stdout);
        text->is_behind = true;
        number_print_json(stdout, text->dtype, text->element);
        return;
    }
    number_print(stdout, text->dtype, text->element);
    text->column++;
    putchar(text->column == text->row ? '\n' : '\t');
    if (text->column == text->row)
        text->column = 0;
}

static int write_text(const void *bytes, size_t size, void *context)
{
    struct text_output *text = context;
    const uint8_t *next = bytes;
    for (; size; size--) {
        text->element[text->held++] = *next++;
        if (text->held == text->element_bytes)
            print_element(text);
    }
    return ferror(stdout) ? -1 : 0;
}

/* Printed elements in a row of the box. Types without a text of their own are printed as bytes, of which an element may be a part. */
static int64_t row_length(const reshard_tensor *tensor, const int64_t *extent, size_t printed_bytes)
{
    uint64_t elements = 1, bits;
    for (int i = 0; i < tensor->rank; i++)
        elements *= (uint64_t)tensor->shape[i];
    if (elements == 0 || tensor->rank == 0)
        return 1;
    bits = (uint64_t)extent[tensor->rank - 1] * (tensor->bytes * 8 / elements);
    return bits >= 8 * printed_bytes ? (int64_t)(bits / 8 / printed_bytes) : 1;
}

static void print_json(const char *json, size_t size)
{
    /* JSON may hold control characters beyond ASCII's: not on a terminal. */
    if (is_terminal())
        print_text(stdout, json, size);
    else
        fwrite(json, 1, size, stdout);
    putchar('\n');
}

/* The member "data" and what follows come later. */
static void begin_json(reshard_str key)
{
    fputs("{\"schema\":\"reshard-cat/1\",\"key\":", stdout);
    json_string(stdout, key.data, key.size);
}

/* An item, or a member of one. */
static void print_value(const struct options *options, reshard_str key, const char *json, size_t size)
{
    if (!options->json) {
        print_json(json, size);
        return;
    }
    begin_json(key);
    fputs(",\"value\":", stdout);
    fwrite(json, 1, size, stdout);
    puts("}");
}

static int cat_item(const struct options *options, reshard_checkpoint *checkpoint, int64_t index)
{
    reshard_error err = { 0 };
    char *json;
    size_t size;
    reshard_status status = reshard_item_json(checkpoint, (size_t)index, &json, &size, &err);
    if (status)
        return print_error(options, status, &err);
    reshard_item item = RESHARD_ITEM_INIT;
    if (!reshard_item_at(checkpoint, (size_t)index, &item))
        print_value(options, item.key, json, size);
    reshard_free(json);
    return 0;
}

struct member_search {
    const struct options *options;
    const char *key;
    bool is_found, is_for_tensors; /* the latter: only these are wanted */
};

static int print_member(const reshard_item *member, const char *json, size_t size, void *context)
{
    struct member_search *search = context;
    if (!json || member->key.size != strlen(search->key) || memcmp(member->key.data, search->key, member->key.size) != 0)
        return 0;
    search->is_found = true;
    if (!search->is_for_tensors)
        print_value(search->options, member->key, json, size);
    return 1;
}

/* Looks for the key among the members of the items whose name it begins with. */
static int cat_member(const struct options *options, reshard_checkpoint *checkpoint, struct member_search *search)
{
    for (size_t i = 0; i < reshard_item_count(checkpoint) && !search->is_found; i++) {
        reshard_error err = { 0 };
        reshard_item item = RESHARD_ITEM_INIT;
        reshard_status looked = reshard_item_at(checkpoint, i, &item);
        if (looked)
            return print_failure(options, looked, NULL, "item %zu cannot be looked at", i);
        if (strncmp(search->key, item.key.data, item.key.size) != 0 || search->key[item.key.size] != '.')
            continue;
        reshard_status status = reshard_item_members(checkpoint, i, print_member, search, &err);
        if (status && !search->is_found)
            return print_error(options, status, &err);
    }
    return 0;
}

static void begin_tensor_json(const reshard_tensor *tensor, const int64_t *extent)
{
    begin_json(tensor->key);
    fputs(",\"dtype\":", stdout);
    json_text(stdout, tensor->dtype);
    fputs(",\"shape\":", stdout);
    json_ints(stdout, extent, tensor->rank);
    fputs(",\"data\":[", stdout);
}

static int refuse_slice(const struct options *options, const reshard_tensor *tensor)
{
    char *shape = NULL;
    size_t size;
    FILE *out = open_memstream(&shape, &size);
    if (out) {
        print_shape(out, tensor->shape, tensor->rank);
        fclose(out);
    }
    int status = print_failure(options, RESHARD_ERR_USAGE,
                               "begin:end:step per axis, ':' for a whole one, '...' for all that are left; -1 is the last: 0:2,...,-1",
                               "--slice '%s' does not fit shape %s", options->slice, shape ? shape : "");
    free(shape);
    return status;
}

/* Reads what the slice takes of the tensor, in the order of its elements. */
static reshard_status read_slice(const reshard_checkpoint *checkpoint, size_t index, struct tensor_slice *slice,
                                 const reshard_run_options *run, int (*sink)(const void *bytes, size_t size, void *context),
                                 void *context, reshard_error *err)
{
    slice->sink = sink;
    slice->context = context;
    return reshard_read(checkpoint, index, slice->start, slice->extent, run, slice->is_stepped ? tensor_slice_pick : sink,
                        slice->is_stepped ? slice : context, err);
}

static reshard_status cat_text(const struct options *options, const reshard_checkpoint *checkpoint, size_t index,
                               struct tensor_slice *slice, const reshard_run_options *run, reshard_error *err)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(checkpoint, index, &tensor);
    struct text_output text = { .dtype = tensor.dtype, .element_bytes = number_bytes(tensor.dtype), .is_json = options->json };
    text.row = row_length(&tensor, slice->count, text.element_bytes);
    uint64_t elements = 1;
    for (int i = 0; i < tensor.rank; i++)
        if (__builtin_mul_overflow(elements, (uint64_t)slice->count[i], &elements))
            elements = UINT64_MAX;
    if (options->json && elements <= DOCUMENT_ELEMENTS_MAX)
        document_begin(); /* larger ones come as they are read */
    if (options->json)
        begin_tensor_json(&tensor, slice->count);
    reshard_status status = read_slice(checkpoint, index, slice, run, write_text, &text, err);
    if (!status && options->json)
        puts("]}");
    else if (!status && text.column)
        putchar('\n');
    document_end(!status);
    return status;
}

static reshard_status cat_bytes(const reshard_checkpoint *checkpoint, size_t index, struct tensor_slice *slice, bool is_npy,
                                const reshard_run_options *run, reshard_error *err)
{
    void *header = NULL;
    size_t size = 0;
    reshard_status status = is_npy ? reshard_npy_header(checkpoint, index, slice->count, &header, &size, err) : RESHARD_OK;
    if (!status && size)
        status = write_raw(header, size, NULL) ? RESHARD_ERR_IO : RESHARD_OK;
    reshard_free(header);
    return status ? status : read_slice(checkpoint, index, slice, run, write_raw, NULL, err);
}

static int cat_tensor(const struct options *options, reshard_checkpoint *checkpoint, size_t index)
{
    struct tensor_slice slice;
    reshard_error err = { 0 };
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(checkpoint, index, &tensor);
    if (!tensor_slice_parse(options->slice ? options->slice : "", &tensor, &slice))
        return refuse_slice(options, &tensor);
    const char *as = options->as ? options->as : "text";
    if (options->json && strcmp(as, "text") != 0)
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "--json and --as %s exclude each other", as);
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "cat");
    reshard_status status = strcmp(as, "text") == 0 ? cat_text(options, checkpoint, index, &slice, &run, &err)
                                                    : cat_bytes(checkpoint, index, &slice, strcmp(as, "npy") == 0, &run, &err);
    progress_end(&progress);
    return status ? print_error(options, status, &err) : 0;
}

#define KEYS_OFFERED_MAX 100000

/* A slice that was typed behind the key, as in Python: how it is asked for. */
static bool hint_slice(const reshard_checkpoint *checkpoint, const char *key, char *out, size_t size)
{
    const char *bracket = strrchr(key, '['), *end = key + strlen(key);
    if (!bracket || end - bracket < 3 || end[-1] != ']' || reshard_tensor_find(checkpoint, key, (size_t)(bracket - key)) < 0)
        return false;
    snprintf(out, size, "did you mean '%.*s --slice %.*s'?", (int)(bracket - key), key, (int)(end - bracket - 2), bracket + 1);
    return true;
}

/* "did you mean": the keys that are nearest, of parameters, buffers and all else. */
static void hint_keys(const struct options *options, const reshard_checkpoint *checkpoint, const char *key, char *out, size_t size)
{
    if (hint_slice(checkpoint, key, out, size))
        return;
    struct near_names near = { .word = key };
    size_t count = reshard_tensor_count(checkpoint) < KEYS_OFFERED_MAX ? reshard_tensor_count(checkpoint) : KEYS_OFFERED_MAX;
    char **names = calloc(count + 1, sizeof(*names)), otherwise[200];
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    for (size_t i = 0; names && i < count && reshard_tensor_at(checkpoint, i, &tensor) == RESHARD_OK; i++) {
        names[i] = strndup(tensor.key.data ? tensor.key.data : "", tensor.key.size);
        if (names[i])
            near_names_offer(&near, names[i]);
    }
    snprintf(otherwise, sizeof(otherwise), "'reshard ls --items %s' lists them", shown_path(options->paths[0]));
    near_names_hint(&near, otherwise, out, size);
    for (size_t i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
}

/* Items have neither elements nor an order of bytes. */
static int refuse_item(const struct options *options, const char *key)
{
    const bool is_slice = options->slice != NULL;
    return print_failure(options, RESHARD_ERR_USAGE, "items are printed as JSON", "'%s' is an item, and %s%s is for tensors", key,
                         is_slice ? "--slice" : "--as ", is_slice ? "" : options->as);
}

int command_cat(const struct options *options)
{
    int exit_status = 0;
    const char *key = options->paths[1];
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    int64_t tensor = reshard_tensor_find(checkpoint, key, strlen(key));
    int64_t item = tensor < 0 ? reshard_item_find(checkpoint, key, strlen(key)) : -1;
    const bool is_for_tensors = options->slice || (options->as && strcmp(options->as, "text") != 0);
    struct member_search search = { options, key, false, is_for_tensors };
    if (tensor >= 0) {
        exit_status = cat_tensor(options, checkpoint, (size_t)tensor);
    } else if (item >= 0 && is_for_tensors) {
        exit_status = refuse_item(options, key);
    } else if (item >= 0) {
        exit_status = cat_item(options, checkpoint, item);
    } else {
        exit_status = cat_member(options, checkpoint, &search);
        if (search.is_found && is_for_tensors)
            exit_status = refuse_item(options, key);
    }
    if (tensor < 0 && item < 0 && !search.is_found && !exit_status) {
        char hint[800];
        hint_keys(options, checkpoint, key, hint, sizeof(hint));
        exit_status = print_failure(options, RESHARD_ERR_USAGE, hint, "'%s' has no tensor or item '%s'", shown_path(options->paths[0]),
                                    key);
    }
    reshard_close(checkpoint);
    return exit_status;
}
