/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/safetensors_header.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"

#include <inttypes.h>
#include <stdlib.h>

#define LENGTH_BYTES 8

void st_header_release(struct st_header *header)
{
    name_map_release(&header->names);
    name_map_release(&header->metadata_keys);
    free(header->entries);
    free(header->shapes);
    free(header->metadata_values);
    *header = (struct st_header){ 0 };
}

bool st_metadata_find(const struct st_header *header, const char *key, struct str *value)
{
    uint32_t index = name_map_find(&header->metadata_keys, str_of(key));
    if (index == NAME_NONE)
        return false;
    *value = header->metadata_values[index];
    return true;
}

void st_error_place(reshard_error *err, const char *what)
{
    if (err && err->offset >= 0)
        error_prefix(err, "%s: byte %" PRId64, what, err->offset);
    else
        error_prefix(err, "%s", what);
}

/* A length beyond the file is a broken file, whatever the limit; one within it that is over the limit can be allowed. */
static reshard_status safetensors_header_read_length(const struct reader *reader, const struct limits *limits, uint64_t *out,
                                                     reshard_error *err)
{
    uint8_t bytes[LENGTH_BYTES];
    if (reader->size < LENGTH_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "file of %" PRIu64 " bytes ends inside the header's length", reader->size);
    reshard_status status = reader_read(reader, 0, bytes, sizeof(bytes), err);
    if (status)
        return status;
    uint64_t length = load_le(bytes, LENGTH_BYTES);
    if (length > reader->size - LENGTH_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "header of %" PRIu64 " bytes in a file of %" PRIu64, length, reader->size);
    if (length == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "header is empty");
    if (length > limits->json_bytes)
        return error_set_limit(err, "json_bytes", length, limits->json_bytes);
    *out = length;
    return RESHARD_OK;
}

/*
 * Bytes of a tensor. The product runs from left to right, so that a zero hides an overflow only where it comes first: so does the
 * library, and every reader should agree on what a valid file is.
 */
static reshard_status entry_bytes(const struct st_header *header, uint32_t index, uint64_t *out, reshard_error *err)
{
    const struct st_entry *entry = &header->entries[index];
    const int64_t *shape = st_entry_shape(header, entry);
    struct str name = name_map_at(&header->names, index);
    uint64_t elements = 1, bits;
    bool fits = true;
    for (int i = 0; i < entry->rank && fits; i++)
        fits = checked_mul_u64(elements, (uint64_t)shape[i], &elements);
    if (!fits || !checked_mul_u64(elements, dtype_info(entry->dtype)->bits, &bits))
        return error_set_at(err, RESHARD_ERR_FORMAT, entry->position, "tensor '%.*s': its size overflows", STR_ARG(name));
    if (bits % 8)
        return error_set_at(err, RESHARD_ERR_FORMAT, entry->position,
                            "tensor '%.*s': %" PRIu64 " elements of %s are no whole number of bytes", STR_ARG(name), elements,
                            dtype_info(entry->dtype)->name);
    *out = bits / 8;
    return RESHARD_OK;
}

/* Checks one entry's range, given where the data before it end; moves that on. */
static reshard_status safetensors_header_check_range(const struct st_header *header, uint32_t index, uint64_t *running, reshard_error *err)
{
    const struct st_entry *entry = &header->entries[index];
    struct str name = name_map_at(&header->names, index);
    uint64_t bytes;
    if (entry->begin > entry->end)
        return error_set_at(err, RESHARD_ERR_FORMAT, entry->position, "tensor '%.*s': begins at %" PRIu64 ", after its end %" PRIu64,
                            STR_ARG(name), entry->begin, entry->end);
    if (entry->begin != *running)
        return error_set_at(err, RESHARD_ERR_FORMAT, entry->position, "tensor '%.*s': begins at %" PRIu64 ", %s %" PRIu64, STR_ARG(name),
                            entry->begin, entry->begin > *running ? "a hole after" : "inside the data before it, which end at", *running);
    reshard_status status = entry_bytes(header, index, &bytes, err);
    if (status)
        return status;
    if (entry->end - entry->begin != bytes)
        return error_set_at(err, RESHARD_ERR_FORMAT, entry->position,
                            "tensor '%.*s': data_offsets give %" PRIu64 " bytes, dtype and shape need %" PRIu64, STR_ARG(name),
                            entry->end - entry->begin, bytes);
    *running = entry->end;
    return RESHARD_OK;
}

static int safetensors_header_entry_order(const void *a, const void *b, void *context)
{
    const struct st_entry *entries = context;
    const struct st_entry *x = &entries[*(const uint32_t *)a], *y = &entries[*(const uint32_t *)b];
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static bool is_ordered(const struct st_header *header)
{
    for (uint32_t i = 1; i < header->count; i++) {
        const struct st_entry *before = &header->entries[i - 1], *entry = &header->entries[i];
        if (entry->begin < before->begin || (entry->begin == before->begin && entry->end < before->end))
            return false;
    }
    return true;
}

/* Every byte of the data belongs to exactly one tensor: no holes, no overlap, nothing left over. */
static reshard_status check_ranges(const struct st_header *header, uint64_t data_bytes, bool is_cut_off, reshard_error *err)
{
    uint32_t *order = NULL;
    uint64_t running = 0;
    reshard_status status = RESHARD_OK;
    if (!is_ordered(header)) {
        order = array_new(header->count, sizeof(*order));
        if (!order)
            return error_set_memory(err);
        for (uint32_t i = 0; i < header->count; i++)
            order[i] = i;
        qsort_r(order, header->count, sizeof(*order), safetensors_header_entry_order, header->entries);
    }
    for (uint32_t i = 0; i < header->count && !status; i++)
        status = safetensors_header_check_range(header, order ? order[i] : i, &running, err);
    if (!status && running != data_bytes && !(is_cut_off && running > data_bytes))
        status = error_set_at(err, RESHARD_ERR_FORMAT, header->data_start + (running < data_bytes ? running : data_bytes),
                              "the tensors take %" PRIu64 " bytes, the file has %" PRIu64 " after its header", running, data_bytes);
    free(order);
    return status;
}

static reshard_status safetensors_header_read_text(const struct reader *reader, uint64_t length, const struct limits *limits, bool lenient,
                                struct st_header *out, reshard_error *err)
{
    struct buffer text = { 0 };
    work_add_input(limits->budget, length);
    reshard_status status = reader_append(reader, LENGTH_BYTES, length, &text, err);
    if (!status) {
        out->starts_with_space = text.data[0] != '{';
        status = st_header_parse(buffer_str(&text), LENGTH_BYTES, limits, lenient, out, err);
    }
    buffer_release(&text);
    return status;
}

reshard_status st_header_read(const struct reader *reader, const struct limits *limits, enum st_care care, struct st_header *out,
                              reshard_error *err)
{
    struct st_header header = { 0 };
    uint64_t length;
    reshard_status status = safetensors_header_read_length(reader, limits, &length, err);
    if (status)
        goto out;
    status = safetensors_header_read_text(reader, length, limits, care == ST_LENIENT || care == ST_CUT_OFF, &header, err);
    if (status)
        goto out;
    header.data_start = LENGTH_BYTES + length;
    status = check_ranges(&header, reader->size - header.data_start, care >= ST_CUT_OFF, err);

out:
    if (status) {
        st_error_place(err, "header");
        st_header_release(&header);
    } else {
        *out = header;
    }
    return status;
}
