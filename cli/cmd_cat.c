/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"
#include "number_text.h"

#include <stdlib.h>
#include <string.h>

#define AXES_MAX 64

/* "0:2,:,3": begin:end per axis; ':' is all of it, one number is that index. Axes left out are whole. */
static bool parse_slice(const char *text, const reshard_tensor *tensor, int64_t *start, int64_t *extent)
{
    int axis = 0;
    for (int i = 0; i < tensor->rank; i++) {
        start[i] = 0;
        extent[i] = tensor->shape[i];
    }
    while (*text) {
        char *end;
        if (axis == tensor->rank)
            return false;
        int64_t size = tensor->shape[axis], begin = 0, stop = size;
        if (*text != ':') {
            begin = strtoll(text, &end, 10);
            if (end == text)
                return false;
            text = end;
            stop = begin + 1;
        }
        if (*text == ':') {
            text++;
            stop = size;
            if (*text && *text != ',') {
                stop = strtoll(text, &end, 10);
                if (end == text)
                    return false;
                text = end;
            }
        }
        if (begin < 0 || stop < begin || stop > size)
            return false;
        start[axis] = begin;
        extent[axis++] = stop - begin;
        if (*text == ',')
            text++;
        else if (*text)
            return false;
    }
    return true;
}

static reshard_status write_raw(const void *bytes, size_t size, void *context)
{
    (void)context;
    return fwrite(bytes, 1, size, stdout) == size ? RESHARD_OK : RESHARD_ERR_IO;
}

/* Prints elements as they come; a window may end inside one. */
struct text_output {
    const char *dtype;
    size_t element_bytes, held;
    uint8_t element[16];
    int64_t row, column; /* elements in a line: the last axis */
};

static void print_element(struct text_output *text)
{
    number_print(stdout, text->dtype, text->element);
    text->held = 0;
    text->column++;
    putchar(text->column == text->row ? '\n' : '\t');
    if (text->column == text->row)
        text->column = 0;
}

static reshard_status write_text(const void *bytes, size_t size, void *context)
{
    struct text_output *text = context;
    const uint8_t *next = bytes;
    for (; size; size--) {
        text->element[text->held++] = *next++;
        if (text->held == text->element_bytes)
            print_element(text);
    }
    return ferror(stdout) ? RESHARD_ERR_IO : RESHARD_OK;
}

static int cat_item(const struct options *options, reshard_checkpoint *checkpoint, int64_t index)
{
    reshard_error err = { 0 };
    char *json;
    size_t size;
    reshard_status status = reshard_item_json(checkpoint, (size_t)index, &json, &size, &err);
    if (status)
        return print_error(options, status, &err);
    fwrite(json, 1, size, stdout);
    putchar('\n');
    reshard_free(json);
    return 0;
}

static int cat_tensor(const struct options *options, reshard_checkpoint *checkpoint, size_t index)
{
    int64_t start[AXES_MAX], extent[AXES_MAX];
    reshard_error err = { 0 };
    reshard_tensor tensor;
    reshard_tensor_at(checkpoint, index, &tensor);
    if (!parse_slice(options->slice ? options->slice : "", &tensor, start, extent)) {
        fprintf(stderr, "reshard: --slice '%s' does not fit shape ", options->slice);
        print_shape(stderr, tensor.shape, tensor.rank);
        fputs("\nhint: begin:end per axis, ':' for a whole axis, for example 0:2,:\n", stderr);
        return 2;
    }
    const char *as = options->as ? options->as : "text";
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "cat");
    reshard_status status = RESHARD_OK;
    if (strcmp(as, "text") == 0) {
        struct text_output text = { .dtype = tensor.dtype, .element_bytes = number_bytes(tensor.dtype) };
        text.row = tensor.rank && extent[tensor.rank - 1] > 0 ? extent[tensor.rank - 1] : 1;
        status = reshard_read(checkpoint, index, start, extent, &run, write_text, &text, &err);
        if (!status && text.column)
            putchar('\n');
    } else {
        void *header = NULL;
        size_t size = 0;
        if (strcmp(as, "npy") == 0)
            status = reshard_npy_header(checkpoint, index, extent, &header, &size, &err);
        if (!status && size)
            status = write_raw(header, size, NULL);
        reshard_free(header);
        if (!status)
            status = reshard_read(checkpoint, index, start, extent, &run, write_raw, NULL, &err);
    }
    progress_end(&progress);
    return status ? print_error(options, status, &err) : 0;
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
    if (tensor >= 0) {
        exit_status = cat_tensor(options, checkpoint, (size_t)tensor);
    } else if (item >= 0) {
        exit_status = cat_item(options, checkpoint, item);
    } else {
        fprintf(stderr, "reshard: '%s' has no tensor or item '%s'\nhint: 'reshard ls --items %s' lists them\n", options->paths[0], key, options->paths[0]);
        exit_status = 2;
    }
    reshard_close(checkpoint);
    return exit_status;
}
