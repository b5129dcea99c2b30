/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/gguf.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/safetensors_header.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

#define MAGIC "GGUF"
#define PAGE_BYTES ((uint64_t)64 << 10)
#define NAME_BYTES_MAX 65535 /* of keys, as the format says; of tensors' names llama.cpp allows 64 */
#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_KEY "general.alignment"
#define PAIR_BYTES_MIN 13 /* length of a key, type, a byte */
#define INFO_BYTES_MIN 24 /* length of a name, axes, type, offset */

/* ---- bytes ---- */

void gguf_scan_release(struct gguf_scan *scan)
{
    buffer_release(&scan->page);
}

static reshard_status page_read(struct gguf_scan *scan, uint64_t size, reshard_error *err)
{
    uint64_t left = scan->reader->size - scan->at, wanted = size > PAGE_BYTES ? size : PAGE_BYTES, end;
    wanted = wanted < left ? wanted : left;
    end = scan->at + wanted;
    if (end > scan->counted) {
        work_add_input(scan->limits->budget, end - (scan->at > scan->counted ? scan->at : scan->counted));
        scan->counted = end;
    }
    buffer_clear(&scan->page);
    scan->page_at = scan->at;
    reshard_status status = work_spend(scan->limits->budget, wanted, err);
    return status ? status : reader_append(scan->reader, scan->at, wanted, &scan->page, err);
}

reshard_status gguf_scan_take(struct gguf_scan *scan, uint64_t size, const char *what, const uint8_t **out, reshard_error *err)
{
    uint64_t end;
    if (!range_fits(scan->at, size, scan->reader->size))
        return error_set_at(err, RESHARD_ERR_FORMAT, scan->at, "file of %" PRIu64 " bytes ends inside %s", scan->reader->size, what);
    end = scan->at + size;
    if (end > scan->limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", end, scan->limits->metadata_bytes);
    if (!scan->page.size || scan->at < scan->page_at || end > scan->page_at + scan->page.size) {
        reshard_status status = page_read(scan, size, err);
        if (status)
            return status;
    }
    *out = scan->page.data ? scan->page.data + (scan->at - scan->page_at) : (const uint8_t *)"";
    scan->at = end;
    return RESHARD_OK;
}

reshard_status gguf_scan_number(struct gguf_scan *scan, int bytes, const char *what, uint64_t *out, reshard_error *err)
{
    const uint8_t *at;
    reshard_status status = gguf_scan_take(scan, (uint64_t)bytes, what, &at, err);
    if (status)
        return status;
    *out = load_le(at, bytes);
    if (scan->is_swapped)
        *out = __builtin_bswap64(*out) >> (64 - 8 * bytes);
    return RESHARD_OK;
}

reshard_status gguf_scan_length(struct gguf_scan *scan, const char *what, uint64_t *out, reshard_error *err)
{
    uint64_t at = scan->at;
    reshard_status status = gguf_scan_number(scan, 8, what, out, err);
    if (!status && *out > scan->reader->size - scan->at)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "%s of %" PRIu64 " bytes, %" PRIu64 " are left", what, *out,
                              scan->reader->size - scan->at);
    return status;
}

/* A key or a name, which is text and new. */
static reshard_status name_take(struct gguf_scan *scan, struct name_map *names, const char *what, reshard_error *err)
{
    uint64_t at = scan->at, size;
    const uint8_t *bytes;
    size_t bad;
    bool was_new;
    reshard_status status = gguf_scan_length(scan, what, &size, err);
    if (!status && size > NAME_BYTES_MAX)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "%s of %" PRIu64 " bytes, at most %d are allowed", what, size, NAME_BYTES_MAX);
    if (!status)
        status = gguf_scan_take(scan, size, what, &bytes, err);
    if (!status)
        status = work_spend(scan->limits->budget, sizeof(struct gguf_tensor) + size, err);
    if (status)
        return status;
    struct str name = { (const char *)bytes, (size_t)size };
    if (!str_is_utf8(name, false, &bad))
        return error_set_at(err, RESHARD_ERR_FORMAT, at + 8 + bad, "%s '%.*s' is no UTF-8", what, STR_ARG(name));
    if (name_map_intern(names, name, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "%s '%.*s' is there twice", what, STR_ARG(name));
    return RESHARD_OK;
}

/* ---- pairs ---- */

static reshard_status gguf_pair_take(struct gguf_scan *scan, struct gguf_header *header, reshard_error *err)
{
    uint64_t at, type;
    if (!ARRAY_ROOM(header->pairs, (size_t)header->keys.count, header->pair_capacity))
        return error_set_memory(err);
    reshard_status status = name_take(scan, &header->keys, "key", err);
    if (status)
        return status;
    struct str key = name_map_at(&header->keys, header->keys.count - 1);
    struct gguf_pair *pair = &header->pairs[header->keys.count - 1];
    at = scan->at;
    status = gguf_scan_number(scan, 4, "a value's type", &type, err);
    if (status)
        return status;
    if (type >= GGUF_TYPE_COUNT)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "key '%.*s': a value of type %" PRIu64 ", which GGUF does not have", STR_ARG(key),
                            type);
    *pair = (struct gguf_pair){ .type = (enum gguf_type)type, .offset = scan->at };
    if (gguf_type_bytes(pair->type))
        status = gguf_scan_number(scan, gguf_type_bytes(pair->type), "a value", &pair->bits, err);
    else
        status = gguf_value_skip(scan, pair->type, err);
    if (!status && scan->at > scan->limits->metadata_bytes) /* what was passed over counts too */
        status = error_set_limit(err, "metadata_bytes", scan->at, scan->limits->metadata_bytes);
    if (status)
        error_prefix(err, "key '%.*s'", STR_ARG(key));
    pair->bytes = scan->at - pair->offset;
    return status;
}

bool gguf_header_integer(const struct gguf_header *header, const char *key, int64_t *out)
{
    uint32_t number = name_map_find(&header->keys, str_of(key));
    if (number == NAME_NONE)
        return false;
    const struct gguf_pair *pair = &header->pairs[number];
    int width = 8 * gguf_type_bytes(pair->type);
    switch (pair->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
        *out = (int64_t)pair->bits;
        return true;
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        *out = (int64_t)(pair->bits << (64 - width)) >> (64 - width);
        return true;
    case GGUF_U64:
        *out = (int64_t)pair->bits;
        return pair->bits <= INT64_MAX;
    default:
        return false;
    }
}

static reshard_status alignment_find(struct gguf_header *header, reshard_error *err)
{
    uint32_t number = name_map_find(&header->keys, STR(ALIGNMENT_KEY));
    header->alignment = ALIGNMENT_DEFAULT;
    if (number == NAME_NONE)
        return RESHARD_OK;
    const struct gguf_pair *pair = &header->pairs[number];
    header->alignment = pair->bits;
    if (pair->type == GGUF_U32 && pair->bits && (pair->bits & (pair->bits - 1)) == 0)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_FORMAT, pair->offset,
                        "'" ALIGNMENT_KEY "' is %" PRIu64 " (type %d), expected a power of two of type %d", pair->bits, (int)pair->type,
                        GGUF_U32);
}

/* ---- tensors ---- */

static void type_find(struct gguf_tensor *tensor)
{
    static const struct {
        uint32_t number;
        enum dtype dtype;
    } plain[] = { { 0, DTYPE_F32 },  { 1, DTYPE_F16 },  { 24, DTYPE_I8 },  { 25, DTYPE_I16 },
                  { 26, DTYPE_I32 }, { 27, DTYPE_I64 }, { 28, DTYPE_F64 }, { 30, DTYPE_BF16 } };
    tensor->kind = ggml_block_find(tensor->number, &tensor->block) ? GGUF_BLOCKS : GGUF_UNKNOWN;
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        if (plain[i].number == tensor->number) {
            tensor->kind = GGUF_PLAIN;
            tensor->dtype = plain[i].dtype;
        }
    }
}

static reshard_status size_find(struct gguf_tensor *tensor, uint64_t at, reshard_error *err)
{
    int64_t volume, row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    if (!shape_volume(tensor->rank, tensor->shape, &volume))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "its shape has more than 2^63 elements");
    if (tensor->kind == GGUF_PLAIN && !dtype_bytes(tensor->dtype, (uint64_t)volume, &tensor->bytes))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "%" PRId64 " elements are no number of bytes", volume);
    if (tensor->kind != GGUF_BLOCKS)
        return RESHARD_OK;
    const struct ggml_block_info *block = ggml_block_info(tensor->block);
    if (row % block->elements)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "rows of %" PRId64 " elements, blocks of %s have %u", row, block->name,
                            block->elements);
    tensor->bytes = (uint64_t)volume / block->elements * block->bytes; /* of at most 2^63 elements: none is of more than a byte */
    return RESHARD_OK;
}

/* What follows the name: rank, dims, type and offset. */
static reshard_status info_fill(struct gguf_scan *scan, struct gguf_tensor *tensor, reshard_error *err)
{
    uint64_t at = scan->at, rank, dim, number;
    reshard_status status = gguf_scan_number(scan, 4, "a tensor's number of axes", &rank, err);
    if (!status && rank > GGUF_AXES_MAX)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "%" PRIu64 " axes, GGUF has at most %d", rank, GGUF_AXES_MAX);
    tensor->rank = status ? 0 : (int)rank;
    for (int i = tensor->rank; i-- > 0 && !status;) {
        uint64_t dim_at = scan->at;
        status = gguf_scan_number(scan, 8, "a tensor's shape", &dim, err);
        if (!status && dim > INT64_MAX)
            status = error_set_at(err, RESHARD_ERR_FORMAT, dim_at, "an axis of %" PRIu64 " elements", dim);
        tensor->shape[i] = status ? 0 : (int64_t)dim;
    }
    if (!status)
        status = gguf_scan_number(scan, 4, "a tensor's type", &number, err);
    if (!status) {
        tensor->number = (uint32_t)number;
        type_find(tensor);
        status = gguf_scan_number(scan, 8, "a tensor's offset", &tensor->offset, err);
    }
    return status ? status : size_find(tensor, at, err);
}

static reshard_status info_take(struct gguf_scan *scan, struct gguf_header *header, reshard_error *err)
{
    if (!ARRAY_ROOM(header->tensors, (size_t)header->names.count, header->tensor_capacity))
        return error_set_memory(err);
    reshard_status status = name_take(scan, &header->names, "tensor", err);
    if (status)
        return status;
    struct gguf_tensor *tensor = &header->tensors[header->names.count - 1];
    *tensor = (struct gguf_tensor){ 0 };
    status = info_fill(scan, tensor, err);
    if (status)
        error_prefix(err, "tensor '%.*s'", STR_ARG(name_map_at(&header->names, header->names.count - 1)));
    return status;
}

static int gguf_offset_order(const void *a, const void *b, void *context)
{
    const struct gguf_tensor *tensors = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (tensors[x].offset != tensors[y].offset)
        return tensors[x].offset < tensors[y].offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Offsets from the file's beginning on from here, aligned, and no two tensors in one place. */
static reshard_status offsets_check(struct gguf_header *header, uint32_t *order, reshard_error *err)
{
    uint32_t count = 0, last = NAME_NONE;
    for (uint32_t i = 0; i < header->names.count; i++) {
        struct gguf_tensor *tensor = &header->tensors[i];
        uint64_t end, stored = tensor->offset;
        if (!checked_add_u64(header->data_start, stored, &tensor->offset) || !checked_add_u64(tensor->offset, tensor->bytes, &end))
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': offset %" PRIu64 " lies beyond all files",
                             STR_ARG(name_map_at(&header->names, i)), stored);
        if (stored % header->alignment)
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': offset %" PRIu64 " is no multiple of %" PRIu64,
                             STR_ARG(name_map_at(&header->names, i)), stored, header->alignment);
        if (tensor->bytes)
            order[count++] = i;
    }
    qsort_r(order, count, sizeof(*order), gguf_offset_order, header->tensors);
    for (uint32_t i = 0; i < count; last = order[i++]) {
        const struct gguf_tensor *before = last == NAME_NONE ? NULL : &header->tensors[last], *tensor = &header->tensors[order[i]];
        if (before && tensor->offset < before->offset + before->bytes)
            return error_set(err, RESHARD_ERR_FORMAT,
                             "tensor '%.*s' at byte %" PRIu64 " overlaps '%.*s', which ends at byte %" PRIu64,
                             STR_ARG(name_map_at(&header->names, order[i])), tensor->offset, STR_ARG(name_map_at(&header->names, last)),
                             before->offset + before->bytes);
    }
    return RESHARD_OK;
}

static reshard_status gguf_places_find(struct gguf_header *header, reshard_error *err)
{
    uint32_t *order = array_new(header->names.count, sizeof(*order));
    reshard_status status = order ? offsets_check(header, order, err) : error_set_memory(err);
    free(order);
    return status;
}

/* ---- the whole ---- */

/* Of files of the other byte order the version's low half is zero. */
static reshard_status version_take(struct gguf_scan *scan, struct gguf_header *header, reshard_error *err)
{
    const uint8_t *magic;
    uint64_t version;
    reshard_status status = gguf_scan_take(scan, sizeof(MAGIC) - 1, "its first bytes", &magic, err);
    if (!status && memcmp(magic, MAGIC, sizeof(MAGIC) - 1) != 0)
        status = error_set_at(err, RESHARD_ERR_FORMAT, 0, "it does not start with '" MAGIC "'");
    if (!status)
        status = gguf_scan_number(scan, 4, "its version", &version, err);
    if (status)
        return status;
    scan->is_swapped = header->is_swapped = (version & 0xFFFF) == 0;
    header->version = scan->is_swapped ? __builtin_bswap32((uint32_t)version) : (uint32_t)version;
    if (header->version == 2 || header->version == 3)
        return RESHARD_OK;
    error_set_at(err, header->version ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT, sizeof(MAGIC) - 1,
                 "GGUF version %" PRIu32 ", versions 2 and 3 are read", header->version);
    if (header->version == 1)
        error_hint(err, "convert the model again with llama.cpp's convert_hf_to_gguf.py: version 1 was in use for a few weeks of 2023");
    return header->version ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT;
}

static reshard_status count_take(struct gguf_scan *scan, const char *what, uint64_t least, uint64_t *out, reshard_error *err)
{
    uint64_t at = scan->at;
    reshard_status status = gguf_scan_number(scan, 8, what, out, err);
    if (!status && *out > scan->reader->size / least)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "%" PRIu64 " %s in a file of %" PRIu64 " bytes", *out, what, scan->reader->size);
    return status;
}

static reshard_status gguf_header_fill(struct gguf_scan *scan, struct gguf_header *header, reshard_error *err)
{
    uint64_t tensors = 0, pairs = 0, rest;
    reshard_status status = version_take(scan, header, err);
    if (!status)
        status = count_take(scan, "tensors", INFO_BYTES_MIN, &tensors, err);
    if (!status)
        status = count_take(scan, "keys", PAIR_BYTES_MIN, &pairs, err);
    for (uint64_t i = 0; i < pairs && !status; i++)
        status = gguf_pair_take(scan, header, err);
    if (!status)
        status = alignment_find(header, err);
    if (!status && tensors > scan->limits->tensors)
        status = error_set_limit(err, "tensors", tensors, scan->limits->tensors);
    for (uint64_t i = 0; i < tensors && !status; i++)
        status = info_take(scan, header, err);
    if (status)
        return status;
    rest = scan->at % header->alignment;
    header->data_start = rest ? scan->at + (header->alignment - rest) : scan->at;
    return gguf_places_find(header, err);
}

reshard_status gguf_header_read(const struct reader *reader, const struct limits *limits, struct gguf_header *out, reshard_error *err)
{
    struct gguf_scan scan = { .reader = reader, .limits = limits };
    struct gguf_header header = { 0 };
    reshard_status status = gguf_header_fill(&scan, &header, err);
    gguf_scan_release(&scan);
    if (status) {
        st_error_place(err, "header");
        gguf_header_release(&header);
    } else {
        *out = header;
    }
    return status;
}

void gguf_header_release(struct gguf_header *header)
{
    name_map_release(&header->keys);
    name_map_release(&header->names);
    free(header->pairs);
    free(header->tensors);
    *header = (struct gguf_header){ 0 };
}
