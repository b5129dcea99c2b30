/* SPDX-License-Identifier: Apache-2.0 */
/* What the fast decoder makes of tuples, calls, objects and containers. */
#include "encoding/pickle_records_parts.h"

#include "base/buffer.h"
#include "encoding/pickle_names.h"
#include "tensor/box.h"

#include <stdlib.h>

/* More are left to the general way, which spends work on them. */
#define ATTRIBUTES_MAX 1024

static bool pickle_records_shapes_is_callable(const struct records *m, records_word w)
{
    w = records_resolve(m, w);
    return records_tag(w) == RECORDS_GLOBAL || w == RECORDS_OPAQUE_OBJECT;
}

/* ---- tuples ---- */

enum records_step records_shape_tuple(struct records *m, const records_word *items, size_t count)
{
    int64_t numbers[RANK_MAX];
    bool is_vector = count <= RANK_MAX;
    for (size_t i = 0; i < count && is_vector; i++) {
        is_vector = records_tag(items[i]) == RECORDS_INT;
        numbers[i] = records_int(items[i]);
    }
    if (is_vector) {
        uint32_t vector;
        enum records_step step = records_vector(m, numbers, count, &vector);
        return step ? step : records_push(m, records_word_of(RECORDS_VECTOR, vector));
    }
    while (m->pool_capacity - m->pool_count < count + 1) {
        enum records_step step = records_grow(m, &m->pool, &m->pool_capacity, sizeof(*m->pool));
        if (step)
            return step;
    }
    size_t start = m->pool_count;
    m->pool[start] = count;
    memcpy(m->pool + start + 1, items, count * sizeof(*items));
    m->pool_count += count + 1;
    return records_push(m, records_word_of(RECORDS_TUPLE, start));
}

/* Gives the room of a tuple back if it is the newest and the memo does not hold it. */
static void tuple_drop(struct records *m, records_word w)
{
    if (records_tag(w) != RECORDS_TUPLE || records_payload(w) < m->pool_floor)
        return;
    if (records_payload(w) + 1 + m->pool[records_payload(w)] == m->pool_count)
        m->pool_count = (size_t)records_payload(w);
}

/* ---- globals ---- */

static enum records_step global_add(struct records *m, struct str module, struct str name, uint32_t index)
{
    if (m->global_count == m->global_capacity) {
        enum records_step step = records_grow(m, &m->globals, &m->global_capacity, sizeof(*m->globals));
        if (step)
            return step;
    }
    /* The map's copy outlives both the input and what was modernised: module, line feed, name. */
    struct str full = name_map_at(&m->global_names, index);
    struct records_global *global = &m->globals[m->global_count++];
    *global = (struct records_global){ .module = { full.data, module.size }, .name = { full.data + module.size + 1, name.size } };
    reshard_status status = m->shapes->classify(m, global);
    return status ? records_fail(m, status) : RECORDS_ON;
}

enum records_step records_shape_global(struct records *m, struct str module, struct str name)
{
    size_t unused;
    if (!module.size || !name.size || !str_is_utf8(module, true, NULL) || !str_is_utf8(name, true, NULL) ||
        str_find_char(module, '\n', &unused))
        return RECORDS_GIVE_UP;
    if (m->protocol < 3)
        pickle_name_modernise(&module, &name);
    struct buffer full = { 0 };
    buffer_append_str(&full, module);
    buffer_append_byte(&full, '\n');
    buffer_append_str(&full, name);
    uint32_t index = full.failed ? NAME_NONE : name_map_intern(&m->global_names, buffer_str(&full), NULL);
    buffer_release(&full);
    if (index == NAME_NONE)
        return records_fail(m, error_set_memory(m->err));
    if (index == m->global_count) {
        enum records_step step = global_add(m, module, name, index);
        if (step)
            return step;
    }
    return records_push(m, records_word_of(RECORDS_GLOBAL, index));
}

/* ---- containers ---- */

enum records_step records_shape_container(struct records *m, bool is_dict)
{
    if (m->container_count == m->container_capacity) {
        enum records_step step = records_grow(m, &m->containers, &m->container_capacity, sizeof(*m->containers));
        if (step)
            return step;
    }
    struct records_container *made = &m->containers[m->container_count];
    bool is_reused = m->container_count < m->container_made;
    *made = (struct records_container){
        .is_dict = is_dict,
        .items = is_reused ? made->items : NULL,
        .capacity = is_reused ? made->capacity : 0,
        .pool_before = m->pool_count,
    };
    if (!is_reused)
        m->container_made++;
    return records_push(m, records_word_of(is_dict ? RECORDS_DICT : RECORDS_LIST, m->container_count++));
}

/* Takes off the container and all that was made after it, as far as the memo holds none of it. */
static void containers_drop(struct records *m, size_t first)
{
    if (first < m->container_floor)
        first = m->container_floor;
    if (first >= m->container_count)
        return;
    size_t pool_before = (size_t)m->containers[first].pool_before;
    if (pool_before < m->pool_floor)
        pool_before = m->pool_floor;
    if (pool_before < m->pool_count)
        m->pool_count = pool_before;
    m->container_count = first;
}

/* Whether the words go on with the run that container is, or begin one if it is empty. */
static bool pickle_records_shapes_run_goes_on(const struct records_shapes *shapes, const struct records_container *container,
                                              const records_word *items, size_t count, uint32_t *first, uint32_t *value)
{
    size_t unit = container->is_dict ? 2 : 1;
    uint64_t done = container->count / unit;
    if (container->count && !container->is_run)
        return false;
    int tag = container->is_dict ? shapes->key_tag : shapes->list_tag;
    *first = container->count ? container->run_first : (uint32_t)records_payload(items[0]);
    *value = container->count ? container->run_value : container->is_dict ? (uint32_t)records_payload(items[1]) : 0;
    for (size_t i = 0; i < count; i += unit, done++) {
        if (items[i] != records_word_of(tag, *first + done))
            return false;
        if (container->is_dict && items[i + 1] != records_word_of(shapes->value_tag, *value + done))
            return false;
    }
    return true;
}

static enum records_step container_reserve(struct records *m, struct records_container *container, uint64_t needed)
{
    if (needed <= container->capacity)
        return RECORDS_ON;
    uint64_t capacity = container->capacity + container->capacity / 2 + 8;
    if (capacity < needed)
        capacity = needed;
    records_word *items = reallocarray(container->items, capacity, sizeof(*items));
    if (!items)
        return records_fail(m, error_set_memory(m->err));
    container->items = items;
    container->capacity = capacity;
    return RECORDS_ON;
}

static records_word container_at(const struct records_shapes *shapes, const struct records_container *container, uint64_t index)
{
    if (!container->is_dict)
        return records_word_of(shapes->list_tag, container->run_first + index);
    return index % 2 ? records_word_of(shapes->value_tag, container->run_value + index / 2)
                     : records_word_of(shapes->key_tag, container->run_first + index / 2);
}

static enum records_step container_append(struct records *m, struct records_container *container, const records_word *items, size_t count)
{
    uint32_t first, value;
    if (!count)
        return RECORDS_ON;
    if (pickle_records_shapes_run_goes_on(m->shapes, container, items, count, &first, &value)) {
        container->is_run = true;
        container->run_first = first;
        container->run_value = value;
        container->count += count;
        return RECORDS_ON;
    }
    enum records_step step = container_reserve(m, container, container->count + count);
    if (step)
        return step;
    if (container->is_run) {
        for (uint64_t i = 0; i < container->count; i++)
            container->items[i] = container_at(m->shapes, container, i);
        container->is_run = false;
    }
    memcpy(container->items + container->count, items, count * sizeof(*items));
    container->count += count;
    return RECORDS_ON;
}

/* Lists and dicts are no keys, nor are tuples that hold one: whether the inner ones do is not worth finding out. */
static bool is_plain_key(const struct records *m, records_word w)
{
    size_t count;
    if (records_tag(w) == RECORDS_LIST || records_tag(w) == RECORDS_DICT)
        return false;
    if (records_tag(w) != RECORDS_TUPLE)
        return true;
    const records_word *items = records_tuple(m, w, &count);
    for (size_t i = 0; i < count; i++)
        if (records_tag(items[i]) == RECORDS_LIST || records_tag(items[i]) == RECORDS_DICT || records_tag(items[i]) == RECORDS_TUPLE)
            return false;
    return true;
}

enum records_step records_shape_add(struct records *m, const records_word *items, size_t count, bool is_dict)
{
    records_word target = m->stack[m->stack_count - 1];
    if (is_dict && count % 2)
        return RECORDS_GIVE_UP;
    for (size_t i = 0; is_dict && i < count; i += 2)
        if (!is_plain_key(m, items[i]))
            return RECORDS_GIVE_UP;
    if (target == RECORDS_OPAQUE_OBJECT)
        return RECORDS_ON;
    if (records_tag(target) != (is_dict ? RECORDS_DICT : RECORDS_LIST) || m->containers[records_payload(target)].is_taken)
        return RECORDS_GIVE_UP;
    if (records_payload(target) < m->container_floor) {
        m->container_floor = m->container_count;
        m->pool_floor = m->pool_count;
    }
    return container_append(m, &m->containers[records_payload(target)], items, count);
}

/* ---- calls ---- */

/* (type, bytes): a number. */
static enum records_step scalar_call(struct records *m, records_word args, records_word *out)
{
    size_t count = 0;
    int64_t number;
    const records_word *items = records_tag(args) == RECORDS_TUPLE ? records_tuple(m, args, &count) : NULL;
    if (count != 2 || records_tag(items[0]) < RECORDS_OWN || records_tag(items[1]) != RECORDS_BYTES || !m->shapes->scalar ||
        !m->shapes->scalar(m, items[0], records_bytes(m, items[1]), &number) || number > RECORDS_INT_MAX || number < -RECORDS_INT_MAX)
        return RECORDS_GIVE_UP;
    *out = records_word_of(RECORDS_INT, (uint64_t)number);
    return RECORDS_ON;
}

enum records_step records_shape_reduce(struct records *m)
{
    records_word args = m->stack[m->stack_count - 1], callable = m->stack[m->stack_count - 2];
    if (!pickle_records_shapes_is_callable(m, callable) || (records_tag(args) != RECORDS_TUPLE && records_tag(args) != RECORDS_VECTOR))
        return RECORDS_GIVE_UP;
    m->stack_count -= 2;
    const struct records_global *class = records_class(m, callable);
    enum records_role role = class ? class->role : RECORDS_IS_OPAQUE;
    records_word made = RECORDS_OPAQUE_OBJECT;
    enum records_step step = RECORDS_ON;
    if (role == RECORDS_IS_SIZE) {
        size_t count = 0;
        const records_word *items = records_tag(args) == RECORDS_TUPLE ? records_tuple(m, args, &count) : NULL;
        if (count != 1 || records_tag(items[0]) != RECORDS_VECTOR)
            return RECORDS_GIVE_UP;
        made = records_word_of(RECORDS_SIZE, records_payload(items[0]));
    } else if (role == RECORDS_IS_SCALAR) {
        step = scalar_call(m, args, &made);
    } else if (role == RECORDS_IS_CALL) {
        step = m->shapes->call(m, class->kind, args, &made);
    }
    if (!step)
        step = records_push(m, made);
    tuple_drop(m, args);
    return step;
}

enum records_step records_shape_newobj(struct records *m)
{
    records_word args = m->stack[m->stack_count - 1], class = m->stack[m->stack_count - 2];
    if (!pickle_records_shapes_is_callable(m, class) || (records_tag(args) != RECORDS_TUPLE && records_tag(args) != RECORDS_VECTOR))
        return RECORDS_GIVE_UP;
    m->stack_count -= 2;
    tuple_drop(m, args);
    const struct records_global *global = records_class(m, class);
    bool is_known = global && global->role == RECORDS_IS_OBJECT;
    return records_push(m, is_known ? records_word_of(RECORDS_NEW, records_payload(class)) : RECORDS_OPAQUE_OBJECT);
}

/* ---- objects ---- */

bool records_read_attributes(struct records *m, records_word state, records_word *values, unsigned count)
{
    memset(values, 0, count * sizeof(*values));
    if (records_tag(state) != RECORDS_DICT)
        return false;
    const struct records_container *container = records_take_container(m, state);
    if (container->is_run || container->count > ATTRIBUTES_MAX)
        return false;
    for (uint64_t i = 0; i < container->count; i += 2) {
        if (records_tag(container->items[i]) != RECORDS_STR)
            return false;
        values[records_attribute(container->items[i])] = records_resolve(m, container->items[i + 1]);
    }
    return true;
}

enum records_step records_shape_build(struct records *m)
{
    records_word state = records_resolve(m, m->stack[m->stack_count - 1]), *top = &m->stack[m->stack_count - 2];
    records_word object = records_resolve(m, *top), built = RECORDS_OPAQUE_OBJECT;
    if (object != RECORDS_OPAQUE_OBJECT) {
        enum records_step step = RECORDS_GIVE_UP;
        if (records_tag(object) == RECORDS_NEW)
            step = m->shapes->build(m, object, state, &built);
        else if (records_tag(object) >= RECORDS_OWN && m->shapes->restate)
            step = m->shapes->restate(m, object, state, &built);
        if (step)
            return step;
    }
    if (records_tag(*top) == RECORDS_SLOT)
        m->slots[records_payload(*top)] = built;
    *top = built;
    m->stack_count--;
    if (records_tag(state) == RECORDS_DICT)
        containers_drop(m, (size_t)records_payload(state));
    tuple_drop(m, state);
    return RECORDS_ON;
}
