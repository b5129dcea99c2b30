/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph is written depth first with an explicit stack of frames. A node that occurs more than once is put into the
 * memo as soon as it is on the reader's stack: a container before its items, a call after its arguments.
 *
 * A tuple or call may contain itself by way of a list, a dict or an object's state. It is then met again while its parts are
 * being written, and written in full inside; when the outer writing comes to its end and finds the node in the memo, it
 * throws its parts away and fetches it. So does CPython. It ends because in a graph with cycles every node goes into the
 * memo: each round writes at least one list, dict or object less.
 *
 * A list that only the arguments of such a call know is still being filled when the call is written inside it. If an object's
 * state led there, the list is written once more: the call must find it filled (a set of objects that know their set).
 */
#include "encoding/pickle_write.h"

#include "base/array.h"
#include "base/hash.h"
#include "encoding/pickle_names.h"

#include <stdlib.h>

#define BATCH 1000 /* items that one APPENDS or SETITEMS takes: what CPython writes, and what keeps readers' stacks short */
#define MEMO_NONE UINT32_MAX
#define REOPENED_MAX 1000 /* plus ten a node: bounds what cycles make longer */

enum { OP_POP = '0', OP_POP_MARK = '1', OP_LONG_BINGET = 'j', OP_BINGET = 'h', OP_LONG_BINPUT = 'r', OP_BINPUT = 'q', OP_ADDITEMS = 0x90,
       OP_STACK_GLOBAL = 0x93, OP_LONG1 = 0x8A, OP_LONG4 = 0x8B, OP_BINBYTES = 'B', OP_BINBYTES8 = 0x8E };

/* What comes next in the writing of a CALL or NEW. */
enum object_stage { OBJECT_CALLABLE, OBJECT_ARGS, OBJECT_KWARGS, OBJECT_MAKE, OBJECT_LIST, OBJECT_DICT, OBJECT_SET, OBJECT_STATES };

/* What is being written: a node, or a run of items of one. */
struct frame {
    const struct value *node;   /* of a run: the list or dict that it fills, or NULL */
    struct value *const *items; /* a run: NULL if the frame is a node's */
    size_t filling;             /* 1 + index of the nearest frame below that gives an object its items or state, 0: none */
    uint32_t stage;             /* node: what comes next */
    uint32_t state;             /* node: states written */
    size_t position, count;     /* run */
    size_t filled_before;       /* run: the writer's filled_by of the node before this frame */
    size_t batch_end;
    uint8_t unit, single, many; /* run: nodes an item, opcode for one item, opcode for a batch (0: none, and no marks) */
};

/* What is known of a node that others refer to, or that has parts. */
struct note {
    uint32_t id;
    uint32_t open;      /* how often the node is being written just now */
    uint32_t opened_at; /* progress when it was last begun */
    uint32_t memo;      /* index in the reader's memo */
    size_t filled_by;   /* 1 + index of the frame that fills the list or dict */
    bool is_shared;     /* occurs more than once */
};

struct slot {
    uint32_t id, number; /* 1 + index of the id's note, 0: free */
};

struct writer {
    struct buffer *out;
    struct frame *frames;
    size_t frame_count, frame_capacity;
    struct note *notes; /* of the nodes that the root reaches, which may be few of a large graph */
    uint32_t note_count, note_capacity;
    struct slot *slots; /* hash table, at most half full */
    size_t slot_count;  /* a power of two, or 0 */
    uint64_t multiplier;
    bool has_cycle;
    uint32_t progress;  /* grows with each node put into the memo and each one written once more */
    uint64_t reopened;  /* how often a node was begun while it was open */
    uint32_t memo_next;
    uint32_t node_count;
    bool is_part;       /* of a pickle of protocol 4 or 5; else it is a whole one of protocol 2 */
    struct work *work;
    pickle_substitute substitute;
    void *context;
    reshard_error *err;
};

/* ---- notes ---- */

/* A number or constant, which is written anew each time. */
static bool pickle_write_is_plain(const struct value *node)
{
    return node->kind == VALUE_NONE || node->kind == VALUE_BOOL || node->kind == VALUE_INT || node->kind == VALUE_FLOAT ||
           node->kind == VALUE_BIGINT;
}

/*
 * Slot of the id's note, or the free one where it belongs. Nodes made one after the other, which are mostly written so, lie side by side.
 * The multiplier is random, so that no file can choose what else falls there.
 */
static size_t pickle_write_slot_of(const struct writer *w, uint32_t id)
{
    size_t mask = w->slot_count - 1, at = ((size_t)((id / 16 * w->multiplier) >> 36) * 16 + id % 16) & mask;
    while (w->slots[at].number && w->slots[at].id != id)
        at = (at + 1) & mask;
    return at;
}

/* The note of a node that the root reaches and that is not plain. */
static struct note *note_of(const struct writer *w, const struct value *node)
{
    return &w->notes[w->slots[pickle_write_slot_of(w, node->id)].number - 1];
}

static bool more_slots(struct writer *w)
{
    size_t count = w->slot_count ? w->slot_count * 2 : 16;
    struct slot *slots = array_zeroed(count, sizeof(*slots));
    if (!slots)
        return false;
    free(w->slots);
    w->slots = slots;
    w->slot_count = count;
    for (uint32_t i = 0; i < w->note_count; i++)
        slots[pickle_write_slot_of(w, w->notes[i].id)] = (struct slot){ w->notes[i].id, i + 1 };
    return true;
}

/* Index of the node's note, which may be new; false without memory. */
static bool take_note(struct writer *w, const struct value *node, uint32_t *out, bool *is_new)
{
    if (w->note_count >= w->slot_count / 2 && !more_slots(w))
        return false;
    size_t at = pickle_write_slot_of(w, node->id);
    *is_new = !w->slots[at].number;
    if (*is_new) {
        if (!ARRAY_ROOM(w->notes, w->note_count, w->note_capacity))
            return false;
        w->notes[w->note_count] = (struct note){ .id = node->id, .memo = MEMO_NONE };
        w->slots[at] = (struct slot){ node->id, ++w->note_count };
    }
    *out = w->slots[at].number - 1;
    return true;
}

/* ---- counting uses ---- */

static size_t part_count(const struct value *node)
{
    switch (node->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_SET:
    case VALUE_FROZENSET:
    case VALUE_DICT:
        return node->list.count;
    case VALUE_CALL:
    case VALUE_NEW:
        return 3 + (size_t)node->object->state_count + node->object->list_count + node->object->dict_count + node->object->set_count;
    case VALUE_PERSID:
        return 1;
    default:
        return 0;
    }
}

/* Part index of a node; NULL for one that is absent. */
static const struct value *pickle_write_part_at(const struct value *node, size_t index)
{
    if (node->kind == VALUE_PERSID)
        return node->inner;
    if (node->kind != VALUE_CALL && node->kind != VALUE_NEW)
        return node->list.items[index];
    const struct value_object *object = node->object;
    if (index < 3)
        return index == 0 ? object->callable : index == 1 ? object->args : object->kwargs;
    index -= 3;
    if (index < object->state_count)
        return object->states[index];
    index -= object->state_count;
    if (index < object->list_count)
        return object->list_items[index];
    index -= object->list_count;
    return index < object->dict_count ? object->dict_items[index] : object->set_items[index - object->dict_count];
}

struct visit {
    const struct value *node;
    size_t next;
    uint32_t note;
};

struct visits {
    struct visit *stack;
    size_t count, capacity;
};

/* Notes that the node occurs; its parts are to be visited if it is new. false without memory. */
static bool note_use(struct writer *w, struct visits *visits, const struct value *node)
{
    uint32_t number;
    bool is_new;
    if (pickle_write_is_plain(node))
        return true;
    if (!take_note(w, node, &number, &is_new))
        return false;
    struct note *note = &w->notes[number];
    w->has_cycle |= note->open != 0;
    note->is_shared = !is_new;
    if (!is_new || !part_count(node))
        return true;
    if (!ARRAY_ROOM(visits->stack, visits->count, visits->capacity))
        return false;
    note->open = 1;
    visits->stack[visits->count++] = (struct visit){ node, 0, number };
    return true;
}

/* Finds out which nodes occur more than once, and looks for cycles; open marks the nodes on the way down. */
static reshard_status count_uses(struct writer *w, const struct value *root)
{
    struct visits visits = { 0 };
    bool good = note_use(w, &visits, root);
    while (good && visits.count) {
        struct visit *visit = &visits.stack[visits.count - 1];
        if (visit->next == part_count(visit->node)) {
            w->notes[visit->note].open = 0;
            visits.count--;
            continue;
        }
        const struct value *part = pickle_write_part_at(visit->node, visit->next++);
        good = work_take(w->work, WORK_STEP) && (!part || note_use(w, &visits, part));
    }
    free(visits.stack);
    return good ? RESHARD_OK : work_error(w->work, w->err);
}

/* ---- pieces ---- */

static void pickle_write_put_memo(struct writer *w, const struct value *node)
{
    struct note *note = note_of(w, node);
    if ((!note->is_shared && !w->has_cycle) || note->memo != MEMO_NONE)
        return;
    uint32_t index = w->memo_next++;
    note->memo = index;
    w->progress++;
    pickle_put_opcode(w->out, index < 256 ? OP_BINPUT : OP_LONG_BINPUT);
    if (index < 256)
        buffer_append_byte(w->out, (uint8_t)index);
    else
        buffer_append_u32le(w->out, index);
}

static void put_get(struct writer *w, const struct note *note)
{
    uint32_t index = note->memo;
    pickle_put_opcode(w->out, index < 256 ? OP_BINGET : OP_LONG_BINGET);
    if (index < 256)
        buffer_append_byte(w->out, (uint8_t)index);
    else
        buffer_append_u32le(w->out, index);
}

/* The note of a node that is in the reader's memo, else NULL. */
static const struct note *in_memo(const struct writer *w, const struct value *node)
{
    const struct note *note = note_of(w, node);
    return note->memo != MEMO_NONE ? note : NULL;
}

static void pickle_write_put_global(struct writer *w, const struct value *node)
{
    struct str module = node->global.module, name = node->global.name;
    size_t index;
    bool is_nested = node->reserved & NODE_NESTED_NAME;
    if (!is_nested && !w->is_part)
        pickle_name_age(&module, &name);
    struct str back_module = module, back_name = name;
    pickle_name_modernise(&back_module, &back_name);
    /* What protocol 2 would take for an old name, or would not look up, is said under protocol 4. */
    bool is_modern =
        !w->is_part && (is_nested || !str_equal(back_module, node->global.module) || !str_equal(back_name, node->global.name));
    if (is_modern)
        buffer_append(w->out, "\x80\x04", 2);
    if (str_find_char(module, '\n', &index) || str_find_char(name, '\n', &index)) {
        pickle_put_str(w->out, module);
        pickle_put_str(w->out, name);
        pickle_put_opcode(w->out, OP_STACK_GLOBAL);
    } else {
        buffer_append_byte(w->out, 'c');
        buffer_append_str(w->out, module);
        buffer_append_byte(w->out, '\n');
        buffer_append_str(w->out, name);
        buffer_append_byte(w->out, '\n');
    }
    if (is_modern)
        buffer_append(w->out, "\x80\x02", 2);
}

static void put_bigint(struct writer *w, struct str bytes)
{
    if (bytes.size < 256) {
        pickle_put_opcode(w->out, OP_LONG1);
        buffer_append_byte(w->out, (uint8_t)bytes.size);
    } else {
        pickle_put_opcode(w->out, OP_LONG4);
        buffer_append_u32le(w->out, (uint32_t)bytes.size);
    }
    buffer_append_str(w->out, bytes);
}

/* Bytes as text: each byte is the character of that number. */
static void put_latin1(struct writer *w, struct str bytes)
{
    uint64_t size = bytes.size;
    for (size_t i = 0; i < bytes.size; i++)
        size += (uint8_t)bytes.data[i] >> 7;
    buffer_append_byte(w->out, size <= UINT32_MAX ? 'X' : 0x8D);
    if (size <= UINT32_MAX)
        buffer_append_u32le(w->out, (uint32_t)size);
    else
        buffer_append_u64le(w->out, size);
    uint8_t *text = buffer_extend(w->out, size);
    for (size_t i = 0; text && i < bytes.size; i++) {
        uint8_t c = (uint8_t)bytes.data[i];
        if (c >= 0x80)
            *text++ = (uint8_t)(0xC0 | c >> 6);
        *text++ = c < 0x80 ? c : (uint8_t)(0x80 | (c & 0x3F));
    }
}

/* The module of Python's own names. */
static const char *builtins_of(const struct writer *w)
{
    return w->is_part ? "builtins" : "__builtin__";
}

static void put_plain_bytes(struct writer *w, struct str bytes)
{
    buffer_append_byte(w->out, bytes.size <= UINT32_MAX ? OP_BINBYTES : OP_BINBYTES8);
    if (bytes.size <= UINT32_MAX)
        buffer_append_u32le(w->out, (uint32_t)bytes.size);
    else
        buffer_append_u64le(w->out, bytes.size);
    buffer_append_str(w->out, bytes);
}

/* Protocol 2 has no bytes: a call makes them of text. */
static void pickle_write_put_bytes(struct writer *w, const struct value *node)
{
    bool is_array = node->kind == VALUE_BYTEARRAY;
    if (w->is_part && !is_array) {
        put_plain_bytes(w, node->text);
        pickle_write_put_memo(w, node);
        return;
    }
    if (is_array || !node->text.size)
        pickle_put_global(w->out, builtins_of(w), is_array ? "bytearray" : "bytes");
    else
        pickle_put_global(w->out, "_codecs", "encode");
    if (node->text.size) {
        put_latin1(w, node->text);
        pickle_put_str(w->out, is_array ? STR("latin-1") : STR("latin1"));
        pickle_put_opcode(w->out, PICKLE_TUPLE2);
    } else {
        pickle_put_opcode(w->out, PICKLE_EMPTY_TUPLE);
    }
    pickle_put_opcode(w->out, PICKLE_REDUCE);
    pickle_write_put_memo(w, node);
}

/* ---- frames ---- */

/* 1 + index of the topmost frame that gives an object its items or state. */
static size_t filling_frame(const struct writer *w)
{
    if (!w->frame_count)
        return 0;
    const struct frame *top = &w->frames[w->frame_count - 1];
    bool is_object = !top->items && (top->node->kind == VALUE_CALL || top->node->kind == VALUE_NEW);
    return is_object && top->stage >= OBJECT_LIST ? w->frame_count : top->filling;
}

static struct frame *frame_push(struct writer *w)
{
    size_t filling = filling_frame(w);
    if (!ARRAY_ROOM(w->frames, w->frame_count, w->frame_capacity))
        return NULL;
    struct frame *frame = &w->frames[w->frame_count++];
    *frame = (struct frame){ .filling = filling };
    return frame;
}

static reshard_status run_push(struct writer *w, struct value *const *items, size_t count, uint8_t unit, uint8_t single, uint8_t many)
{
    if (!count)
        return RESHARD_OK;
    struct frame *frame = frame_push(w);
    if (!frame)
        return error_set_memory(w->err);
    frame->items = items;
    frame->count = count;
    frame->unit = unit;
    frame->single = single;
    frame->many = many;
    frame->batch_end = many ? 0 : count;
    return RESHARD_OK;
}

/* The items of a list or dict that has just been begun. */
static reshard_status fill_push(struct writer *w, const struct value *node)
{
    bool is_dict = node->kind == VALUE_DICT;
    size_t count = is_dict ? node->list.count & ~(size_t)1 : node->list.count;
    reshard_status status = is_dict ? run_push(w, node->list.items, count, 2, PICKLE_SETITEM, PICKLE_SETITEMS)
                                    : run_push(w, node->list.items, count, 1, PICKLE_APPEND, PICKLE_APPENDS);
    if (!status && count) {
        struct note *note = note_of(w, node);
        w->frames[w->frame_count - 1].node = node;
        w->frames[w->frame_count - 1].filled_before = note->filled_by;
        note->open++;
        note->filled_by = w->frame_count;
    }
    return status;
}

/* Counts a node that is begun while it is open: each time something must have gone into the memo since. */
static reshard_status check_reopening(struct writer *w, const struct note *note)
{
    if (!note->open)
        return RESHARD_OK;
    if (note->opened_at == w->progress)
        return error_set(w->err, RESHARD_ERR_FORMAT, "a tuple or call contains itself directly: no pickle can say that");
    if (++w->reopened > REOPENED_MAX + (uint64_t)w->node_count * 10)
        return error_set(w->err, RESHARD_ERR_LIMIT, "tuples and calls that contain themselves are too entangled to be written");
    return RESHARD_OK;
}

static reshard_status node_push(struct writer *w, const struct value *node)
{
    struct note *note = note_of(w, node);
    reshard_status status = check_reopening(w, note);
    if (status)
        return status;
    struct frame *frame = frame_push(w);
    if (!frame)
        return error_set_memory(w->err);
    frame->node = node;
    note->open++;
    note->opened_at = w->progress;
    return RESHARD_OK;
}

static void node_pop(struct writer *w)
{
    note_of(w, w->frames[--w->frame_count].node)->open--;
}

/* See the top of the file. It ends because each object is filled once. */
static bool must_be_repeated(const struct writer *w, const struct value *node)
{
    const struct note *note = note_of(w, node);
    return (node->kind == VALUE_LIST || node->kind == VALUE_DICT) && !note->is_shared && note->open && filling_frame(w) > note->filled_by;
}

static reshard_status write_container(struct writer *w, const struct value *node)
{
    pickle_put_opcode(w->out, node->kind == VALUE_DICT ? PICKLE_EMPTY_DICT : PICKLE_EMPTY_LIST);
    pickle_write_put_memo(w, node);
    w->progress += note_of(w, node)->open != 0;
    return fill_push(w, node);
}

/* Writes a node, or pushes the frame that will. */
static reshard_status write_node(struct writer *w, const struct value *node)
{
    const struct note *known = pickle_write_is_plain(node) ? NULL : in_memo(w, node);
    if (known && !must_be_repeated(w, node)) {
        put_get(w, known);
        return RESHARD_OK;
    }
    if (w->substitute && w->substitute(node, w->out, w->context))
        return RESHARD_OK;
    switch ((enum value_kind)node->kind) {
    case VALUE_NONE:
        pickle_put_none(w->out);
        return RESHARD_OK;
    case VALUE_BOOL:
        pickle_put_bool(w->out, node->boolean);
        return RESHARD_OK;
    case VALUE_INT:
        pickle_put_int(w->out, node->integer);
        return RESHARD_OK;
    case VALUE_FLOAT:
        pickle_put_float(w->out, node->real);
        return RESHARD_OK;
    case VALUE_BIGINT:
        put_bigint(w, node->text);
        return RESHARD_OK;
    case VALUE_STR:
        pickle_put_str(w->out, node->text);
        pickle_write_put_memo(w, node);
        return RESHARD_OK;
    case VALUE_BYTES:
    case VALUE_BYTEARRAY:
        pickle_write_put_bytes(w, node);
        return RESHARD_OK;
    case VALUE_GLOBAL:
        pickle_write_put_global(w, node);
        pickle_write_put_memo(w, node);
        return RESHARD_OK;
    case VALUE_LIST:
    case VALUE_DICT:
        return write_container(w, node);
    case VALUE_TUPLE:
    case VALUE_SET:
    case VALUE_FROZENSET:
    case VALUE_CALL:
    case VALUE_NEW:
    case VALUE_PERSID:
        return node_push(w, node);
    }
    return error_set(w->err, RESHARD_ERR_FORMAT, "a value of unknown kind %d", node->kind);
}

static void run_pop(struct writer *w, const struct frame *frame)
{
    if (frame->node) {
        struct note *note = note_of(w, frame->node);
        note->open--;
        note->filled_by = frame->filled_before;
    }
    w->frame_count--;
}

/* Next item of a run. */
static reshard_status step_run(struct writer *w, struct frame *frame)
{
    if (frame->position == frame->batch_end) {
        size_t batch = (size_t)BATCH * frame->unit, left = frame->count - frame->position;
        if (frame->many && frame->position) {
            size_t written = frame->position % batch ? frame->position % batch : batch;
            pickle_put_opcode(w->out, frame->single && written == frame->unit ? frame->single : frame->many);
        }
        if (!left) {
            run_pop(w, frame);
            return RESHARD_OK;
        }
        frame->batch_end = frame->position + (left < batch ? left : batch);
        if (left > frame->unit || !frame->single)
            pickle_put_opcode(w->out, PICKLE_MARK);
    }
    return write_node(w, frame->items[frame->position++]);
}

static reshard_status step_tuple(struct writer *w, struct frame *frame)
{
    static const uint8_t small[] = { PICKLE_EMPTY_TUPLE, PICKLE_TUPLE1, PICKLE_TUPLE2, PICKLE_TUPLE3 };
    const struct value *node = frame->node;
    size_t count = node->list.count;
    if (frame->stage == 0) {
        frame->stage = 1;
        if (count > 3)
            pickle_put_opcode(w->out, PICKLE_MARK);
        return run_push(w, node->list.items, count, 1, 0, 0);
    }
    const struct note *known = in_memo(w, node);
    if (known) {
        if (count > 3)
            pickle_put_opcode(w->out, OP_POP_MARK);
        for (size_t i = 0; count <= 3 && i < count; i++)
            pickle_put_opcode(w->out, OP_POP);
        put_get(w, known);
    } else {
        pickle_put_opcode(w->out, count > 3 ? PICKLE_TUPLE : small[count]);
        if (count)
            pickle_write_put_memo(w, node);
    }
    node_pop(w);
    return RESHARD_OK;
}

/* set([...]): protocol 2 knows no sets. */
static reshard_status step_set(struct writer *w, struct frame *frame)
{
    const struct value *node = frame->node;
    if (frame->stage == 0) {
        frame->stage = 1;
        pickle_put_global(w->out, builtins_of(w), node->kind == VALUE_SET ? "set" : "frozenset");
        pickle_put_opcode(w->out, PICKLE_EMPTY_LIST);
        return run_push(w, node->list.items, node->list.count, 1, PICKLE_APPEND, PICKLE_APPENDS);
    }
    const struct note *known = in_memo(w, node);
    if (known) {
        pickle_put_opcode(w->out, OP_POP);
        pickle_put_opcode(w->out, OP_POP);
        put_get(w, known);
    } else {
        pickle_put_opcode(w->out, PICKLE_TUPLE1);
        pickle_put_opcode(w->out, PICKLE_REDUCE);
        pickle_write_put_memo(w, node);
    }
    node_pop(w);
    return RESHARD_OK;
}

static reshard_status step_persid(struct writer *w, struct frame *frame)
{
    const struct value *node = frame->node;
    if (frame->stage == 0) {
        frame->stage = 1;
        return write_node(w, node->inner);
    }
    const struct note *known = in_memo(w, node);
    if (known) {
        pickle_put_opcode(w->out, OP_POP);
        put_get(w, known);
    } else {
        pickle_put_opcode(w->out, PICKLE_BINPERSID);
        pickle_write_put_memo(w, node);
    }
    node_pop(w);
    return RESHARD_OK;
}

/* INST and OBJ without arguments make the object without calling its class, which no other opcode does for every class. */
static bool is_bare_instance(const struct value *node)
{
    return node->via_inst && !node->object->kwargs && node->object->args->list.count == 0;
}

/* The opcode that makes the object of what lies on the stack. */
static void put_construction(struct writer *w, const struct value *node)
{
    bool is_call = node->kind == VALUE_CALL || node->via_inst;
    if (node->object->kwargs)
        pickle_put_opcode(w->out, PICKLE_TUPLE3);
    if (is_bare_instance(node))
        pickle_put_opcode(w->out, 'o');
    else
        pickle_put_opcode(w->out, is_call || node->object->kwargs ? PICKLE_REDUCE : PICKLE_NEWOBJ);
}

static reshard_status step_object_parts(struct writer *w, struct frame *frame)
{
    const struct value_object *object = frame->node->object;
    switch ((enum object_stage)frame->stage++) {
    case OBJECT_LIST:
        return run_push(w, object->list_items, object->list_count, 1, PICKLE_APPEND, PICKLE_APPENDS);
    case OBJECT_DICT:
        return run_push(w, object->dict_items, object->dict_count & ~UINT32_C(1), 2, PICKLE_SETITEM, PICKLE_SETITEMS);
    case OBJECT_SET:
        return run_push(w, object->set_items, object->set_count, 1, 0, OP_ADDITEMS);
    default:
        frame->stage = OBJECT_STATES;
        if (frame->state)
            pickle_put_opcode(w->out, PICKLE_BUILD);
        if (frame->state < object->state_count)
            return write_node(w, object->states[frame->state++]);
        node_pop(w);
        return RESHARD_OK;
    }
}

/* copyreg.__newobj_ex__(class, args, kwargs) stands for NEWOBJ_EX, which protocol 2 lacks. */
static reshard_status step_object(struct writer *w, struct frame *frame)
{
    const struct value *node = frame->node;
    const struct value_object *object = node->object;
    const struct note *known;
    switch (frame->stage) {
    case OBJECT_CALLABLE:
        frame->stage = OBJECT_ARGS;
        if (object->kwargs)
            pickle_put_global(w->out, w->is_part ? "copyreg" : "copy_reg", "__newobj_ex__");
        if (is_bare_instance(node))
            pickle_put_opcode(w->out, PICKLE_MARK);
        return write_node(w, object->callable);
    case OBJECT_ARGS:
        frame->stage = OBJECT_KWARGS;
        return is_bare_instance(node) ? RESHARD_OK : write_node(w, object->args);
    case OBJECT_KWARGS:
        frame->stage = OBJECT_MAKE;
        return object->kwargs ? write_node(w, object->kwargs) : RESHARD_OK;
    case OBJECT_MAKE:
        known = in_memo(w, node);
        if (!known) {
            put_construction(w, node);
            pickle_write_put_memo(w, node);
            frame->stage = OBJECT_LIST;
            return RESHARD_OK;
        }
        if (is_bare_instance(node))
            pickle_put_opcode(w->out, OP_POP_MARK);
        else
            for (int i = object->kwargs ? 4 : 2; i > 0; i--)
                pickle_put_opcode(w->out, OP_POP);
        put_get(w, known);
        node_pop(w);
        return RESHARD_OK;
    default:
        return step_object_parts(w, frame);
    }
}

static reshard_status step(struct writer *w)
{
    struct frame *frame = &w->frames[w->frame_count - 1];
    if (frame->items)
        return step_run(w, frame);
    switch ((enum value_kind)frame->node->kind) {
    case VALUE_TUPLE:
        return step_tuple(w, frame);
    case VALUE_SET:
    case VALUE_FROZENSET:
        return step_set(w, frame);
    case VALUE_PERSID:
        return step_persid(w, frame);
    default:
        return step_object(w, frame);
    }
}

static void writer_release(struct writer *w)
{
    free(w->notes);
    free(w->slots);
    free(w->frames);
}

/* All that the root reaches. */
static reshard_status write_root(struct writer *w, const struct value *root)
{
    w->multiplier = hash_random_seed() | 1;
    reshard_status status = count_uses(w, root);
    if (status)
        return status;
    if (!w->is_part)
        pickle_put_begin(w->out);
    status = write_node(w, root);
    while (!status && w->frame_count && !w->out->failed)
        status = step(w);
    if (!w->is_part)
        pickle_put_end(w->out);
    return !status && w->out->failed ? buffer_error(w->out, w->err) : status;
}

reshard_status pickle_write(const struct value *root, uint32_t graph_count, struct work *work, pickle_substitute substitute, void *context,
                            struct buffer *out, reshard_error *err)
{
    struct writer w = { .out = out, .node_count = graph_count, .work = work, .substitute = substitute, .context = context, .err = err };
    reshard_status status = write_root(&w, root);
    writer_release(&w);
    return status;
}

reshard_status pickle_write_part(const struct value *root, uint32_t graph_count, struct work *work, uint32_t *memo_count,
                                 struct buffer *out, reshard_error *err)
{
    struct writer w = { .out = out, .node_count = graph_count, .work = work, .memo_next = *memo_count, .is_part = true, .err = err };
    reshard_status status = write_root(&w, root);
    *memo_count = w.memo_next;
    writer_release(&w);
    return status;
}
