/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/paddle_save_write.h"

#include "base/array.h"
#include "encoding/paddle_save.h"

#include <stdlib.h>

/* Stands for the memo of a key that is no text, and is written again. */
#define KEY_AGAIN (PICKLE_NO_MEMO - 1)

/* A container of which members are still to come. */
struct open_container {
    enum paddle_step step;
    uint64_t count;
    struct pickle_items items;
    const struct value *object; /* PADDLE_OPEN_OBJECT: whose attributes come behind the members; else NULL */
    uint32_t graph_count;
};

/* What the pickle has named so far: memo numbers, PICKLE_NO_MEMO for what has not occurred. */
struct writing {
    struct pickle_stream stream;
    const struct paddle_content *content;
    uint32_t *keys;      /* memo of each key, PICKLE_NO_MEMO for what is not in the table */
    uint64_t *offsets;   /* may be NULL */
    uint32_t dtypes[DTYPE_COUNT]; /* of NumPy's types, by the type of that layout */
    uint32_t numpy, reconstruct, ndarray, dtype, frombuffer, little, none, order, b, empty, builtins, tuple;
    struct pickle_words words; /* modules and names of the classes of dict-like objects */
    struct open_container *open; /* the outermost first */
    size_t open_count, open_capacity;
};

/* NumPy's type string of elements, as Paddle stores them; NULL if it cannot. *stored: the type that stands for all with the same string. */
static const char *numpy_type(enum dtype dtype, enum dtype *stored)
{
    *stored = dtype;
    switch (dtype) {
    case DTYPE_BOOL: return "b1";
    case DTYPE_U8: return "u1";
    case DTYPE_U16: return "u2";
    case DTYPE_U32: return "u4";
    case DTYPE_U64: return "u8";
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

bool paddle_save_can_hold_bare(enum dtype dtype)
{
    enum dtype stored;
    return numpy_type(dtype, &stored) != NULL;
}

/* Paddle takes uint16 for bfloat16, and has no longer unsigned integers. */
bool paddle_save_can_hold(enum dtype dtype)
{
    return dtype != DTYPE_U16 && dtype != DTYPE_U32 && dtype != DTYPE_U64 && paddle_save_can_hold_bare(dtype);
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
    bool fits = member->is_bare ? paddle_save_can_hold_bare(member->dtype) : paddle_save_can_hold(member->dtype);
    if (!fits || !shape_volume(member->rank, member->shape, &elements) ||
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

/* ---- containers ---- */

const struct value *paddle_save_class_argument(const struct value *object)
{
    const struct value *args = object->object->args;
    bool takes_one = value_is_call(object, "collections", "defaultdict");
    return takes_one && args && args->list.count ? args->list.items[0] : NULL;
}

/* An empty object of the class, as REDUCE makes it. */
static void paddle_begin_object(struct writing *w, const struct paddle_member *member)
{
    struct pickle_stream *stream = &w->stream;
    const struct value *class = member->value->object->callable, *argument = paddle_save_class_argument(member->value);
    pickle_stream_object(stream);
    pickle_stream_word(stream, &w->words, class->global.module);
    pickle_stream_word(stream, &w->words, class->global.name);
    pickle_stream_opcode(stream, PICKLE_STACK_GLOBAL);
    pickle_stream_memoize(stream);
    pickle_stream_tuple_begin(stream, argument ? 1 : 0);
    if (argument)
        pickle_stream_value(stream, argument, member->graph_count, w->content->work);
    pickle_stream_tuple_end(stream, argument ? 1 : 0);
    pickle_stream_opcode(stream, PICKLE_REDUCE);
    pickle_stream_memoize(stream);
}

static reshard_status paddle_open_container(struct writing *w, const struct paddle_member *member, uint64_t count, reshard_error *err)
{
    struct pickle_stream *stream = &w->stream;
    if (!ARRAY_ROOM(w->open, w->open_count, w->open_capacity))
        return error_set_memory(err);
    struct open_container *open = &w->open[w->open_count++];
    *open = (struct open_container){ .step = member->step, .count = count };
    if (member->step == PADDLE_OPEN_TUPLE) {
        pickle_stream_tuple_begin(stream, (size_t)count);
        return RESHARD_OK;
    }
    enum pickle_items_kind kind = PICKLE_ITEMS_PAIRS;
    if (member->step == PADDLE_OPEN_OBJECT) {
        paddle_begin_object(w, member);
        open->object = member->is_stateless ? NULL : member->value;
        open->graph_count = member->graph_count;
    } else {
        kind = member->step == PADDLE_OPEN_LIST ? PICKLE_ITEMS_LIST : PICKLE_ITEMS_DICT;
        pickle_stream_container(stream, member->step == PADDLE_OPEN_LIST ? PICKLE_EMPTY_LIST : PICKLE_EMPTY_DICT);
    }
    open->items = pickle_stream_items_begin(stream, count, kind);
    return RESHARD_OK;
}

static void paddle_close_container(struct writing *w)
{
    struct open_container *open = &w->open[--w->open_count];
    if (open->step == PADDLE_OPEN_TUPLE) {
        pickle_stream_tuple_end(&w->stream, (size_t)open->count);
        return;
    }
    pickle_stream_items_end(&w->stream, &open->items);
    for (uint32_t i = 0; open->object && i < open->object->object->state_count; i++) {
        pickle_stream_value(&w->stream, open->object->object->states[i], open->graph_count, w->content->work);
        pickle_stream_opcode(&w->stream, PICKLE_BUILD);
    }
}

/* ---- members ---- */

/* The key of a member; its memo if it is a text. */
static uint32_t write_key(struct writing *w, const struct paddle_member *member)
{
    if (member->key_kind == PADDLE_KEY_TEXT)
        return pickle_stream_str(&w->stream, member->key);
    if (member->key_kind == PADDLE_KEY_NUMBER)
        pickle_stream_int(&w->stream, member->key_number);
    else if (member->key_kind == PADDLE_KEY_VALUE)
        pickle_stream_value(&w->stream, member->key_value, member->graph_count, w->content->work);
    return KEY_AGAIN;
}

static reshard_status write_member(struct writing *w, uint64_t index, const struct paddle_member *member, reshard_error *err)
{
    uint32_t key = KEY_AGAIN;
    w->keys[index] = PICKLE_NO_MEMO;
    if (w->offsets)
        w->offsets[index] = 0;
    if (member->step == PADDLE_CLOSE) {
        paddle_close_container(w);
        return RESHARD_OK;
    }
    if (w->open_count && w->open[w->open_count - 1].step != PADDLE_OPEN_TUPLE) {
        pickle_stream_item(&w->stream, &w->open[w->open_count - 1].items);
        key = write_key(w, member);
    }
    if (member->step != PADDLE_LEAF)
        return paddle_open_container(w, member, member->member_count, err);
    if (!member->value) {
        w->keys[index] = member->is_bare || w->open_count != 1 ? PICKLE_NO_MEMO : key;
        return write_array(w, index, member, err);
    }
    pickle_stream_value(&w->stream, member->value, member->value_graph_count, w->content->work);
    return RESHARD_OK;
}

static void write_name(struct writing *w, const struct paddle_member *member, uint32_t key)
{
    if (key == KEY_AGAIN)
        write_key(w, member);
    else
        pickle_stream_get(&w->stream, key);
    if (member->name.size || key == KEY_AGAIN)
        pickle_stream_str(&w->stream, member->name);
    else
        pickle_stream_get(&w->stream, key);
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
        write_name(w, &member, w->keys[i]);
    }
    pickle_stream_items_end(stream, &items);
    return RESHARD_OK;
}

static reshard_status put_members(struct writing *w, reshard_error *err)
{
    const struct paddle_content *content = w->content;
    reshard_status status = RESHARD_OK;
    for (uint64_t i = 0; i < content->count && !w->stream.status && !status; i++) {
        struct paddle_member member = { 0 };
        status = content->member(content->context, i, &member, err);
        if (!status)
            status = write_member(w, i, &member, err);
    }
    return status;
}

static reshard_status put_root(struct writing *w, reshard_error *err)
{
    static const struct paddle_member dict = { .step = PADDLE_OPEN_DICT };
    const struct paddle_content *content = w->content;
    const struct paddle_member *root = content->root ? content->root : &dict;
    bool has_names = !content->has_no_names && (root->step == PADDLE_OPEN_DICT || root->step == PADDLE_OPEN_OBJECT);
    reshard_status status = paddle_open_container(w, root, content->root || content->member_count ? content->member_count + has_names
                                                                                                  : content->count + has_names, err);
    if (!status)
        status = put_members(w, err);
    if (!status && !w->stream.status && has_names) {
        pickle_stream_item(&w->stream, &w->open[0].items);
        status = write_names(w, err);
    }
    if (!status && !w->stream.status)
        paddle_close_container(w);
    return status;
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
    w.keys = array_new(content->count, sizeof(*w.keys));
    if (!w.keys)
        return error_set_memory(err);
    pickle_stream_begin(&w.stream, content->protocol, sink, context);
    reshard_status status = content->is_one ? put_members(&w, err) : put_root(&w, err);
    reshard_status end = pickle_stream_end(&w.stream, bytes, status ? NULL : err);
    pickle_words_release(&w.words);
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
