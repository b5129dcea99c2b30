/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/paddle_save_write.h"

#include "base/array.h"
#include "encoding/paddle_save.h"

#include <stdlib.h>

/* What the pickle has named so far: memo numbers, PICKLE_NO_MEMO for what has not occurred. */
struct writing {
    struct pickle_stream stream;
    const struct paddle_content *content;
    uint32_t *keys;      /* memo of each key, PICKLE_NO_MEMO for what is not in the table */
    uint64_t *offsets;   /* may be NULL */
    uint32_t dtypes[DTYPE_COUNT]; /* of NumPy's types, by the type of that layout */
    uint32_t numpy, reconstruct, ndarray, dtype, frombuffer, little, none, order, b, empty, builtins, tuple;
    struct pickle_items *open; /* containers, the outermost first */
    size_t open_count, open_capacity;
};

/* NumPy's type string of elements, as Paddle stores them; NULL if it cannot. *stored: the type that stands for all with the same string. */
static const char *numpy_type(enum dtype dtype, enum dtype *stored)
{
    *stored = dtype;
    switch (dtype) {
    case DTYPE_BOOL: return "b1";
    case DTYPE_U8: return "u1";
    case DTYPE_I8: return "i1";
    case DTYPE_I16: return "i2";
    case DTYPE_I32: return "i4";
    case DTYPE_I64: return "i8";
    case DTYPE_F16: return "f2";
    case DTYPE_F32: return "f4";
    case DTYPE_F64: return "f8";
    case DTYPE_C64: return "c8";
    case DTYPE_C128: return "c16";
    case DTYPE_BF16:
        *stored = DTYPE_U16;
        return "u2";
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2:
        *stored = DTYPE_I8;
        return "i1";
    default: return NULL;
    }
}

bool paddle_save_can_hold(enum dtype dtype)
{
    enum dtype stored;
    return numpy_type(dtype, &stored) != NULL;
}

/* dtype('<f4'), once for each type. */
static void put_dtype(struct writing *w, enum dtype dtype)
{
    struct pickle_stream *stream = &w->stream;
    enum dtype stored;
    const char *name = numpy_type(dtype, &stored);
    if (w->dtypes[stored] != PICKLE_NO_MEMO) {
        pickle_stream_get(stream, w->dtypes[stored]);
        return;
    }
    pickle_stream_object(stream);
    if (w->dtype == PICKLE_NO_MEMO)
        w->dtype = pickle_stream_global(stream, "numpy", "dtype", &w->numpy);
    else
        pickle_stream_get(stream, w->dtype);
    pickle_stream_object(stream);
    pickle_stream_str(stream, str_of(name));
    pickle_stream_bool(stream, false);
    pickle_stream_bool(stream, true);
    pickle_stream_opcode(stream, PICKLE_TUPLE3);
    pickle_stream_memoize(stream);
    pickle_stream_opcode(stream, PICKLE_REDUCE);
    w->dtypes[stored] = pickle_stream_memoize(stream);
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, PICKLE_MARK);
    pickle_stream_int(stream, 3);
    if (dtype_element_bytes(dtype) == 1)
        pickle_stream_str_once(stream, STR("|"), &w->none);
    else
        pickle_stream_str_once(stream, STR("<"), &w->little);
    for (int i = 0; i < 3; i++)
        pickle_stream_none(stream);
    pickle_stream_int(stream, -1);
    pickle_stream_int(stream, -1);
    pickle_stream_int(stream, 0);
    pickle_stream_opcode(stream, PICKLE_TUPLE);
    pickle_stream_memoize(stream);
    pickle_stream_opcode(stream, PICKLE_BUILD);
}

/* _reconstruct(ndarray, (0,), b'b'), once a name each; the bytes are a payload that is known. */
static void put_reconstruct(struct writing *w)
{
    struct pickle_stream *stream = &w->stream;
    uint32_t module = PICKLE_NO_MEMO;
    pickle_stream_object(stream);
    if (w->reconstruct == PICKLE_NO_MEMO)
        w->reconstruct = pickle_stream_global(stream, w->content->is_numpy2 ? "numpy._core.multiarray" : "numpy.core.multiarray",
                                              "_reconstruct", &module);
    else
        pickle_stream_get(stream, w->reconstruct);
    pickle_stream_object(stream);
    if (w->ndarray == PICKLE_NO_MEMO)
        w->ndarray = pickle_stream_global(stream, "numpy", "ndarray", &w->numpy);
    else
        pickle_stream_get(stream, w->ndarray);
    pickle_stream_int_tuple(stream, (int64_t[]){ 0 }, 1);
    pickle_stream_object(stream);
    if (w->b == PICKLE_NO_MEMO) {
        pickle_stream_opcode(stream, 'C');
        pickle_stream_opcode(stream, 1);
        pickle_stream_opcode(stream, 'b');
        w->b = pickle_stream_memoize(stream);
    } else {
        pickle_stream_get(stream, w->b);
    }
    pickle_stream_opcode(stream, PICKLE_TUPLE3);
    pickle_stream_memoize(stream);
    pickle_stream_opcode(stream, PICKLE_REDUCE);
    pickle_stream_memoize(stream);
}

/* An array as protocol 4 has it. */
static uint64_t put_array_by_state(struct writing *w, const struct paddle_member *member, uint64_t bytes)
{
    struct pickle_stream *stream = &w->stream;
    put_reconstruct(w);
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, PICKLE_MARK);
    pickle_stream_int(stream, 1);
    pickle_stream_int_tuple(stream, member->shape, (size_t)member->rank);
    put_dtype(w, member->dtype);
    pickle_stream_bool(stream, false);
    uint64_t offset = 0;
    if (bytes || w->empty == PICKLE_NO_MEMO)
        offset = pickle_stream_payload(stream, bytes, false);
    else
        pickle_stream_get(stream, w->empty);
    if (!bytes && w->empty == PICKLE_NO_MEMO)
        w->empty = stream->memo_count - 1;
    pickle_stream_opcode(stream, PICKLE_TUPLE);
    pickle_stream_memoize(stream);
    pickle_stream_opcode(stream, PICKLE_BUILD);
    return offset;
}

/* An array as protocol 5 has it. */
static uint64_t put_array_of_buffer(struct writing *w, const struct paddle_member *member, uint64_t bytes)
{
    struct pickle_stream *stream = &w->stream;
    uint32_t module = PICKLE_NO_MEMO;
    pickle_stream_object(stream);
    if (w->frombuffer == PICKLE_NO_MEMO)
        w->frombuffer = pickle_stream_global(stream, w->content->is_numpy2 ? "numpy._core.numeric" : "numpy.core.numeric", "_frombuffer",
                                             &module);
    else
        pickle_stream_get(stream, w->frombuffer);
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, PICKLE_MARK);
    uint64_t offset = pickle_stream_payload(stream, bytes, true);
    put_dtype(w, member->dtype);
    pickle_stream_int_tuple(stream, member->shape, (size_t)member->rank);
    pickle_stream_str_once(stream, STR("C"), &w->order);
    pickle_stream_opcode(stream, PICKLE_TUPLE);
    pickle_stream_memoize(stream);
    pickle_stream_opcode(stream, PICKLE_REDUCE);
    pickle_stream_memoize(stream);
    return offset;
}

/* tuple((name, array)): what stands before the array. */
static void paddle_begin_pair(struct writing *w, const struct paddle_member *member)
{
    struct pickle_stream *stream = &w->stream;
    pickle_stream_object(stream);
    if (w->tuple == PICKLE_NO_MEMO)
        w->tuple = pickle_stream_global(stream, "builtins", "tuple", &w->builtins);
    else
        pickle_stream_get(stream, w->tuple);
    pickle_stream_str(stream, member->name.size ? member->name : member->key);
}

static void paddle_end_pair(struct writing *w)
{
    static const uint8_t opcodes[] = { PICKLE_TUPLE2, PICKLE_TUPLE1, PICKLE_REDUCE };
    for (size_t i = 0; i < sizeof(opcodes); i++) {
        pickle_stream_opcode(&w->stream, opcodes[i]);
        pickle_stream_memoize(&w->stream);
    }
}

static reshard_status write_array(struct writing *w, uint64_t index, const struct paddle_member *member, reshard_error *err)
{
    int64_t elements;
    uint64_t bytes;
    if (!paddle_save_can_hold(member->dtype) || !shape_volume(member->rank, member->shape, &elements) ||
        !dtype_bytes(member->dtype, (uint64_t)elements, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%.*s: paddle.save cannot hold an array of %s of this shape", STR_ARG(member->key),
                         dtype_info(member->dtype)->name);
    if (member->is_pair)
        paddle_begin_pair(w, member);
    uint64_t offset = w->content->protocol >= 5 ? put_array_of_buffer(w, member, bytes) : put_array_by_state(w, member, bytes);
    if (member->is_pair)
        paddle_end_pair(w);
    if (w->offsets)
        w->offsets[index] = offset;
    return RESHARD_OK;
}

static reshard_status paddle_open_container(struct writing *w, bool is_dict, uint64_t count, reshard_error *err)
{
    if (!ARRAY_ROOM(w->open, w->open_count, w->open_capacity))
        return error_set_memory(err);
    pickle_stream_object(&w->stream);
    pickle_stream_opcode(&w->stream, is_dict ? PICKLE_EMPTY_DICT : PICKLE_EMPTY_LIST);
    pickle_stream_memoize(&w->stream);
    w->open[w->open_count++] = pickle_stream_items_begin(&w->stream, count, is_dict ? PICKLE_ITEMS_DICT : PICKLE_ITEMS_LIST);
    return RESHARD_OK;
}

static void paddle_close_container(struct writing *w)
{
    pickle_stream_items_end(&w->stream, &w->open[--w->open_count]);
}

/* The key of a member; its memo if it is a text. */
static uint32_t write_key(struct writing *w, const struct paddle_member *member)
{
    pickle_stream_item(&w->stream, &w->open[w->open_count - 1]);
    if (member->key_kind == PADDLE_KEY_TEXT)
        return pickle_stream_str(&w->stream, member->key);
    if (member->key_kind == PADDLE_KEY_NUMBER)
        pickle_stream_int(&w->stream, member->key_number);
    return PICKLE_NO_MEMO;
}

static reshard_status write_member(struct writing *w, uint64_t index, const struct paddle_member *member, reshard_error *err)
{
    w->keys[index] = PICKLE_NO_MEMO;
    if (w->offsets)
        w->offsets[index] = 0;
    if (member->step == PADDLE_CLOSE) {
        paddle_close_container(w);
        return RESHARD_OK;
    }
    uint32_t key = write_key(w, member);
    if (member->step != PADDLE_LEAF)
        return paddle_open_container(w, member->step == PADDLE_OPEN_DICT, member->member_count, err);
    if (!member->value) {
        w->keys[index] = member->is_bare || w->open_count > 1 ? PICKLE_NO_MEMO : key;
        return write_array(w, index, member, err);
    }
    pickle_stream_value(&w->stream, member->value, member->graph_count, w->content->work);
    return RESHARD_OK;
}

/* The table of names: key -> the framework's. */
static reshard_status write_names(struct writing *w, reshard_error *err)
{
    struct pickle_stream *stream = &w->stream;
    uint64_t count = 0;
    for (uint64_t i = 0; i < w->content->count; i++)
        count += w->keys[i] != PICKLE_NO_MEMO;
    pickle_stream_str(stream, STR(PADDLE_NAME_TABLE));
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, PICKLE_EMPTY_DICT);
    pickle_stream_memoize(stream);
    struct pickle_items items = pickle_stream_items_begin(stream, count, PICKLE_ITEMS_DICT);
    for (uint64_t i = 0; i < w->content->count; i++) {
        struct paddle_member member = { 0 };
        if (w->keys[i] == PICKLE_NO_MEMO)
            continue;
        reshard_status status = w->content->member(w->content->context, i, &member, err);
        if (status)
            return status;
        pickle_stream_item(stream, &items);
        pickle_stream_get(stream, w->keys[i]);
        if (member.name.size)
            pickle_stream_str(stream, member.name);
        else
            pickle_stream_get(stream, w->keys[i]);
    }
    pickle_stream_items_end(stream, &items);
    return RESHARD_OK;
}

static reshard_status put_dict(struct writing *w, reshard_error *err)
{
    const struct paddle_content *content = w->content;
    struct pickle_stream *stream = &w->stream;
    uint64_t members = content->member_count ? content->member_count : content->count;
    reshard_status status = paddle_open_container(w, true, members + !content->has_no_names, err);
    for (uint64_t i = 0; i < content->count && !stream->status && !status; i++) {
        struct paddle_member member = { 0 };
        status = content->member(content->context, i, &member, err);
        if (!status)
            status = write_member(w, i, &member, err);
    }
    if (!status && !stream->status && !content->has_no_names) {
        pickle_stream_item(stream, &w->open[0]);
        status = write_names(w, err);
    }
    if (!status && !stream->status)
        paddle_close_container(w);
    return status;
}

static reshard_status put_one_array(struct writing *w, reshard_error *err)
{
    struct paddle_member member = { 0 };
    reshard_status status = w->content->member(w->content->context, 0, &member, err);
    return status ? status : write_array(w, 0, &member, err);
}

static reshard_status put_all(const struct paddle_content *content, pickle_sink sink, void *context, uint64_t *offsets, uint64_t *bytes,
                              reshard_error *err)
{
    struct writing w = { .content = content, .offsets = offsets };
    w.numpy = w.reconstruct = w.ndarray = w.dtype = w.frombuffer = w.little = w.none = PICKLE_NO_MEMO;
    w.order = w.b = w.empty = w.builtins = w.tuple = PICKLE_NO_MEMO;
    for (int i = 0; i < DTYPE_COUNT; i++)
        w.dtypes[i] = PICKLE_NO_MEMO;
    if (content->count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "a file of more than 2^32 members");
    w.keys = malloc((content->count + 1) * sizeof(*w.keys));
    if (!w.keys)
        return error_set_memory(err);
    pickle_stream_begin(&w.stream, content->protocol, sink, context);
    reshard_status status = content->is_one_array ? put_one_array(&w, err) : put_dict(&w, err);
    reshard_status end = pickle_stream_end(&w.stream, bytes, status ? NULL : err);
    free(w.keys);
    free(w.open);
    return status ? status : end;
}

reshard_status paddle_save_plan(const struct paddle_content *content, uint64_t *offsets, uint64_t *bytes, reshard_error *err)
{
    return put_all(content, NULL, NULL, offsets, bytes, err);
}

reshard_status paddle_save_write(const struct paddle_content *content, pickle_sink sink, void *context, reshard_error *err)
{
    return put_all(content, sink, context, NULL, NULL, err);
}
