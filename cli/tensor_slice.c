/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_slice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A number, if there is one; *text moves behind it. */
static bool parse_number(const char **text, int64_t *out)
{
    char *end;
    if (strchr("0123456789-", **text) == NULL || **text == '\0')
        return true;
    errno = 0;
    long long value = strtoll(*text, &end, 10);
    if (end == *text || errno)
        return false;
    *text = end;
    *out = value;
    return true;
}

/* A position on an axis of that size, its end included; negative ones count from there. */
static bool parse_position(const char **text, int64_t size, int64_t *out)
{
    int64_t value = *out;
    if (!parse_number(text, &value))
        return false;
    if (value < 0)
        value += size;
    *out = value;
    return value >= 0 && value <= size;
}

static bool parse_axis(const char **text, int64_t size, struct tensor_slice *out, int axis)
{
    const char *begins = *text;
    int64_t begin = 0, stop = size, step = 1;
    if (!parse_position(text, size, &begin))
        return false;
    if (**text != ':') {
        if (*text == begins || begin == size)
            return false;
        stop = begin + 1;
    } else {
        ++*text;
        if (!parse_position(text, size, &stop))
            return false;
        if (**text == ':') {
            ++*text;
            if (!parse_number(text, &step))
                return false;
        }
    }
    if (step < 1 || stop < begin)
        return false;
    out->start[axis] = begin;
    out->step[axis] = step;
    out->count[axis] = stop > begin ? (stop - begin - 1) / step + 1 : 0;
    out->extent[axis] = out->count[axis] ? (out->count[axis] - 1) * step + 1 : 0;
    out->is_stepped = out->is_stepped || (step > 1 && out->count[axis] > 1);
    return true;
}

/* How many axes the text names; "..." is none. */
static int named_axes(const char *text)
{
    int count = 0;
    for (; *text; text += strcspn(text, ","), text += *text == ',')
        count += strncmp(text, "...", 3) != 0;
    return count;
}

static bool element_bytes(const reshard_tensor *tensor, size_t *out)
{
    uint64_t elements = 1;
    for (int i = 0; i < tensor->rank; i++)
        elements *= (uint64_t)tensor->shape[i];
    *out = elements ? tensor->bytes / elements : 1;
    return elements == 0 || (*out && tensor->bytes % elements == 0);
}

bool tensor_slice_parse(const char *text, const reshard_tensor *tensor, struct tensor_slice *out)
{
    int axis = 0, named = named_axes(text);
    bool has_rest = false;
    *out = (struct tensor_slice){ .rank = tensor->rank };
    if (tensor->rank > SLICE_AXES_MAX || named > tensor->rank)
        return false;
    for (int i = 0; i < tensor->rank; i++) {
        out->extent[i] = out->count[i] = tensor->shape[i];
        out->step[i] = 1;
    }
    while (*text) {
        if (strncmp(text, "...", 3) == 0) {
            if (has_rest)
                return false;
            has_rest = true;
            axis += tensor->rank - named;
            text += 3;
        } else if (!parse_axis(&text, tensor->shape[axis], out, axis)) {
            return false;
        } else {
            axis++;
        }
        if (*text && *text++ != ',')
            return false;
    }
    return element_bytes(tensor, &out->element_bytes) || !out->is_stepped;
}

static bool is_taken(const struct tensor_slice *slice)
{
    for (int i = 0; i < slice->rank; i++) {
        if (slice->at[i] % slice->step[i])
            return false;
    }
    return true;
}

static void next_element(struct tensor_slice *slice)
{
    slice->used = 0;
    for (int i = slice->rank - 1; i >= 0 && ++slice->at[i] == slice->extent[i]; i--)
        slice->at[i] = 0;
}

int tensor_slice_pick(const void *bytes, size_t size, void *context)
{
    struct tensor_slice *slice = context;
    const char *next = bytes;
    while (size) {
        size_t part = slice->element_bytes - slice->used < size ? slice->element_bytes - slice->used : size;
        int stop = is_taken(slice) ? slice->sink(next, part, slice->context) : 0;
        if (stop)
            return stop;
        next += part;
        size -= part;
        slice->used += part;
        if (slice->used == slice->element_bytes)
            next_element(slice);
    }
    return 0;
}
