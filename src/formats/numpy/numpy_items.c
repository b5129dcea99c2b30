/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of arrays that are no tensors: texts, bytes and Python objects, as lists in the order of rows, or the one value of an array
 * without axes. The pickle behind a header of objects is read, and nothing in it is called.
 */
#include "formats/numpy/numpy_source.h"

#include "base/cursor.h"
#include "encoding/pickle.h"
#include "encoding/pickle_arrays.h"

#include <inttypes.h>

/* ---- lists of lists ---- */

/* Where the element of that number, counted by rows, is stored. */
static size_t stored_place(int rank, const int64_t *shape, bool is_fortran, size_t number)
{
    int64_t index[RANK_MAX];
    size_t place = 0;
    if (!is_fortran)
        return number;
    for (int i = rank; i-- > 0;) {
        index[i] = (int64_t)(number % (size_t)shape[i]);
        number /= (size_t)shape[i];
    }
    for (int i = rank; i-- > 0;)
        place = place * (size_t)shape[i] + (size_t)index[i];
    return place;
}

/* Lists of the values, axis by axis from the last on; an array without elements is an empty list. NULL: work_error tells. */
static struct value *values_nest(struct value_graph *graph, struct value **values, int rank, const int64_t *shape)
{
    size_t count = (size_t)box_volume(rank, shape);
    if (!count)
        return value_new_list(graph, VALUE_LIST, values, 0);
    for (int axis = rank; axis-- > 0;) {
        const size_t extent = (size_t)shape[axis], lists = count / extent;
        struct value **outer = arena_array(&graph->arena, lists, sizeof(struct value *));
        for (size_t i = 0; outer && i < lists; i++)
            if (!(outer[i] = value_new_list(graph, VALUE_LIST, values + i * extent, extent)))
                return NULL;
        if (!outer)
            return NULL;
        values = outer;
        count = lists;
    }
    return values[0];
}

/* ---- texts and bytes ---- */

/* The code points of one element; *out is NULL where one is none. */
static bool decode_text(struct arena *arena, const uint8_t *bytes, uint64_t size, bool is_big_endian, struct str *out)
{
    char *text = arena_alloc(arena, (size_t)size); /* a code point has no more bytes in UTF-8 */
    uint64_t used = 0, whole = 0;
    *out = (struct str){ 0 };
    for (uint64_t i = 0; text && i < size; i += 4) {
        uint32_t point = (uint32_t)load_le(bytes + i, 4);
        point = is_big_endian ? __builtin_bswap32(point) : point;
        if (point > 0x10FFFF)
            return true;
        used += str_put_utf8(point, text + used);
        whole = point ? used : whole;
    }
    *out = (struct str){ text, (size_t)whole };
    return text != NULL;
}

static bool decode_string(struct arena *arena, const uint8_t *bytes, uint64_t size, struct str *out)
{
    while (size && !bytes[size - 1])
        size--;
    return arena_str(arena, (struct str){ (const char *)bytes, (size_t)size }, out);
}

static reshard_status texts_decode(const struct npy_header *header, struct str data, struct value_graph *graph, reshard_error *err)
{
    const size_t count = (size_t)box_volume(header->rank, header->shape);
    struct work *work = graph->arena.work;
    bool is_text = header->content == NPY_TEXTS;
    reshard_status status = work_spend_steps(work, count, err);
    if (status)
        return status;
    struct value **values = arena_array(&graph->arena, count, sizeof(*values));
    for (size_t i = 0; values && i < count; i++) {
        const size_t place = stored_place(header->rank, header->shape, header->is_fortran, i) * (size_t)header->element_bytes;
        const uint8_t *element = (const uint8_t *)data.data + place;
        struct value *value = values[i] = value_new(graph, is_text ? VALUE_STR : VALUE_BYTES);
        if (!value || !(is_text ? decode_text(&graph->arena, element, header->element_bytes, header->is_big_endian, &value->text)
                                : decode_string(&graph->arena, element, header->element_bytes, &value->text)))
            return work_error(work, err);
        if (!value->text.data)
            return error_set_at(err, RESHARD_ERR_FORMAT, header->data_offset + place,
                                "the text at byte %" PRIu64 " has a code point above U+10FFFF", header->data_offset + place);
    }
    graph->root = values ? values_nest(graph, values, header->rank, header->shape) : NULL;
    return graph->root ? RESHARD_OK : work_error(work, err);
}

/* ---- objects ---- */

/* The pickle is of the array itself; its elements are what people mean. What is spelled in another way is shown as it is. */
static reshard_status objects_unwrap(const struct npy_header *header, struct value_graph *graph, reshard_error *err)
{
    struct pickle_object_array array;
    struct work *work = graph->arena.work;
    if (!pickle_array_objects(graph->root, &array))
        return RESHARD_OK;
    if (!shape_equal(array.rank, array.shape, header->rank, header->shape))
        return error_set_at(err, RESHARD_ERR_FORMAT, header->data_offset, "the pickled array has another shape than the header");
    reshard_status status = work_spend_steps(work, array.count, err);
    struct value **values = status ? NULL : arena_array(&graph->arena, array.count, sizeof(*values));
    if (status || !values)
        return status ? status : work_error(work, err);
    for (size_t i = 0; i < array.count; i++)
        values[i] = array.items[stored_place(array.rank, array.shape, array.is_fortran, i)];
    graph->root = values_nest(graph, values, array.rank, array.shape);
    return graph->root ? RESHARD_OK : work_error(work, err);
}

static reshard_status objects_decode(const struct npy_header *header, struct str data, const struct limits *limits,
                                     struct value_graph *graph, reshard_error *err)
{
    struct pickle_report report = { 0 };
    reshard_status status = pickle_parse(data.data, data.size, header->data_offset, limits, graph, &report, err);
    if (!status && report.consumed < data.size)
        status = error_set_at(err, RESHARD_ERR_FORMAT, header->data_offset + report.consumed, "%zu bytes follow the pickle",
                              data.size - report.consumed);
    return status ? status : objects_unwrap(header, graph, err);
}

/* ---- all of them ---- */

static reshard_status raw_decode(struct str data, struct value_graph *graph, reshard_error *err)
{
    graph->root = value_new(graph, VALUE_BYTES);
    if (!graph->root)
        return work_error(graph->arena.work, err);
    graph->root->text = data;
    return RESHARD_OK;
}

reshard_status numpy_value_decode(const struct npy_header *header, const struct buffer *bytes, const struct limits *limits,
                                  struct value_graph *graph, reshard_error *err)
{
    *graph = (struct value_graph){ .arena.work = limits->budget };
    /* A copy that stays with the graph, whose texts may point into it. */
    struct str data = { arena_copy(&graph->arena, bytes->data ? (const char *)bytes->data : "", bytes->size), bytes->size };
    if (!data.data)
        return work_error(limits->budget, err);
    if (!header)
        return raw_decode(data, graph, err);
    data = (struct str){ data.data + header->data_offset, data.size - (size_t)header->data_offset };
    return header->content == NPY_OBJECTS ? objects_decode(header, data, limits, graph, err) : texts_decode(header, data, graph, err);
}
