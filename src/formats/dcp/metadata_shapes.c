/* SPDX-License-Identifier: Apache-2.0 */
/* What the fast way makes of tuples, calls, objects and containers. */
#include "formats/dcp/metadata_machine.h"

#include "base/buffer.h"
#include "encoding/pickle_names.h"
#include "tensor/box.h"

#include <stdlib.h>

/* More are left to the general way, which spends work on them. */
#define ATTRIBUTES_MAX 1024

#define OPAQUE_OBJECT word_make(WORD_OPAQUE, 1)

static bool is_callable(const struct machine *m, word w)
{
    w = dcp_resolve(m, w);
    return word_tag(w) == WORD_GLOBAL || w == OPAQUE_OBJECT;
}

/* ---- tuples ---- */

enum step dcp_shape_tuple(struct machine *m, const word *items, size_t count)
{
    int64_t numbers[RANK_MAX];
    bool is_vector = count <= RANK_MAX;
    for (size_t i = 0; i < count && is_vector; i++) {
        is_vector = word_tag(items[i]) == WORD_INT;
        numbers[i] = word_int(items[i]);
    }
    if (is_vector) {
        uint32_t vector;
        enum step step = dcp_vector(m, numbers, count, &vector);
        return step ? step : dcp_push(m, word_make(WORD_VECTOR, vector));
    }
    while (m->pool_capacity - m->pool_count < count + 1) {
        enum step step = dcp_machine_grow(m, &m->pool, &m->pool_capacity, sizeof(*m->pool));
        if (step)
            return step;
    }
    size_t start = m->pool_count;
    m->pool[start] = count;
    memcpy(m->pool + start + 1, items, count * sizeof(*items));
    m->pool_count += count + 1;
    return dcp_push(m, word_make(WORD_TUPLE, start));
}

/* The items of a TUPLE. Those of a VECTOR are none of its business. */
static const word *tuple_items(const struct machine *m, word w, size_t *count)
{
    *count = (size_t)m->pool[word_payload(w)];
    return m->pool + word_payload(w) + 1;
}

/* Gives the room of a tuple back if it is the newest and the memo does not hold it. */
static void tuple_drop(struct machine *m, word w)
{
    if (word_tag(w) != WORD_TUPLE || word_payload(w) < m->pool_floor)
        return;
    if (word_payload(w) + 1 + m->pool[word_payload(w)] == m->pool_count)
        m->pool_count = (size_t)word_payload(w);
}

/* ---- globals ---- */

static enum step global_add(struct machine *m, struct str module, struct str name, uint32_t index)
{
    bool is_harmless;
    if (m->global_count == m->global_capacity) {
        enum step step = dcp_machine_grow(m, &m->globals, &m->global_capacity, sizeof(*m->globals));
        if (step)
            return step;
    }
    /* The map's copy outlives both the input and what was modernised: module, line feed, name. */
    struct str full = name_map_at(&m->global_names, index);
    m->globals[m->global_count++] = (struct machine_global){
        .module = { full.data, module.size },
        .name = { full.data + module.size + 1, name.size },
        .class = dcp_class_of(module, name, &is_harmless),
    };
    reshard_status status = dcp_build_note_global(m->build, module, name);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

enum step dcp_shape_global(struct machine *m, struct str module, struct str name)
{
    size_t unused;
    if (!module.size || !name.size || !str_is_utf8(module, true, NULL) || !str_is_utf8(name, true, NULL) ||
        str_find_char(module, '\n', &unused))
        return STEP_GIVE_UP;
    if (m->protocol < 3)
        pickle_name_modernise(&module, &name);
    struct buffer full = { 0 };
    buffer_append_str(&full, module);
    buffer_append_byte(&full, '\n');
    buffer_append_str(&full, name);
    uint32_t index = full.failed ? NAME_NONE : name_map_intern(&m->global_names, buffer_str(&full), NULL);
    buffer_release(&full);
    if (index == NAME_NONE)
        return dcp_machine_fail(m, error_set_memory(m->build->err));
    if (index == m->global_count) {
        enum step step = global_add(m, module, name, index);
        if (step)
            return step;
    }
    return dcp_push(m, word_make(WORD_GLOBAL, index));
}

/* ---- containers ---- */

enum step dcp_shape_container(struct machine *m, bool is_dict)
{
    if (m->container_count == m->container_capacity) {
        enum step step = dcp_machine_grow(m, &m->containers, &m->container_capacity, sizeof(*m->containers));
        if (step)
            return step;
    }
    struct container *made = &m->containers[m->container_count];
    bool is_reused = m->container_count < m->container_made;
    *made = (struct container){
        .is_dict = is_dict,
        .items = is_reused ? made->items : NULL,
        .capacity = is_reused ? made->capacity : 0,
        .pool_before = m->pool_count,
    };
    if (!is_reused)
        m->container_made++;
    return dcp_push(m, word_make(is_dict ? WORD_DICT : WORD_LIST, m->container_count++));
}

/* Takes off the container and all that was made after it, as far as the memo holds none of it. */
static void containers_drop(struct machine *m, size_t first)
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
static bool run_goes_on(const struct container *container, const word *items, size_t count, uint32_t *first, uint32_t *value)
{
    size_t unit = container->is_dict ? 2 : 1;
    uint64_t done = container->count / unit;
    if (container->count && !container->is_run)
        return false;
    enum word_tag tag = container->is_dict ? WORD_INDEX : WORD_CHUNK;
    *first = container->count ? container->run_first : (uint32_t)word_payload(items[0]);
    *value = container->count ? container->run_value : container->is_dict ? (uint32_t)word_payload(items[1]) : 0;
    for (size_t i = 0; i < count; i += unit, done++) {
        if (items[i] != word_make(tag, *first + done))
            return false;
        if (container->is_dict && items[i + 1] != word_make(WORD_RANGE, *value + done))
            return false;
    }
    return true;
}

static enum step container_reserve(struct machine *m, struct container *container, uint64_t needed)
{
    if (needed <= container->capacity)
        return STEP_ON;
    uint64_t capacity = container->capacity + container->capacity / 2 + 8;
    if (capacity < needed)
        capacity = needed;
    word *items = reallocarray(container->items, capacity, sizeof(*items));
    if (!items)
        return dcp_machine_fail(m, error_set_memory(m->build->err));
    container->items = items;
    container->capacity = capacity;
    return STEP_ON;
}

static word container_at(const struct container *container, uint64_t index)
{
    if (!container->is_run)
        return container->items[index];
    if (!container->is_dict)
        return word_make(WORD_CHUNK, container->run_first + index);
    return index % 2 ? word_make(WORD_RANGE, container->run_value + index / 2) : word_make(WORD_INDEX, container->run_first + index / 2);
}

static enum step container_append(struct machine *m, struct container *container, const word *items, size_t count)
{
    uint32_t first, value;
    if (!count)
        return STEP_ON;
    if (run_goes_on(container, items, count, &first, &value)) {
        container->is_run = true;
        container->run_first = first;
        container->run_value = value;
        container->count += count;
        return STEP_ON;
    }
    enum step step = container_reserve(m, container, container->count + count);
    if (step)
        return step;
    if (container->is_run) {
        for (uint64_t i = 0; i < container->count; i++)
            container->items[i] = container_at(container, i);
        container->is_run = false;
    }
    memcpy(container->items + container->count, items, count * sizeof(*items));
    container->count += count;
    return STEP_ON;
}

/* Lists and dicts are no keys, nor are tuples that hold one: whether the inner ones do is not worth finding out. */
static bool is_plain_key(const struct machine *m, word w)
{
    size_t count;
    if (word_tag(w) == WORD_LIST || word_tag(w) == WORD_DICT)
        return false;
    if (word_tag(w) != WORD_TUPLE)
        return true;
    const word *items = tuple_items(m, w, &count);
    for (size_t i = 0; i < count; i++)
        if (word_tag(items[i]) == WORD_LIST || word_tag(items[i]) == WORD_DICT || word_tag(items[i]) == WORD_TUPLE)
            return false;
    return true;
}

enum step dcp_shape_add(struct machine *m, const word *items, size_t count, bool is_dict)
{
    word target = m->stack[m->stack_count - 1];
    if (is_dict && count % 2)
        return STEP_GIVE_UP;
    for (size_t i = 0; is_dict && i < count; i += 2)
        if (!is_plain_key(m, items[i]))
            return STEP_GIVE_UP;
    if (target == OPAQUE_OBJECT)
        return STEP_ON;
    if (word_tag(target) != (is_dict ? WORD_DICT : WORD_LIST) || m->containers[word_payload(target)].is_taken)
        return STEP_GIVE_UP;
    if (word_payload(target) < m->container_floor) {
        m->container_floor = m->container_count;
        m->pool_floor = m->pool_count;
    }
    return container_append(m, &m->containers[word_payload(target)], items, count);
}

/* ---- calls ---- */

static enum step push_path(struct machine *m, word args)
{
    size_t count = 0;
    const word *items = word_tag(args) == WORD_TUPLE ? tuple_items(m, args, &count) : NULL;
    struct str parts[RANK_MAX];
    if (!count || count > RANK_MAX)
        return STEP_GIVE_UP;
    for (size_t i = 0; i < count; i++) {
        if (word_tag(items[i]) != WORD_STR)
            return STEP_GIVE_UP;
        parts[i] = dcp_word_text(m, items[i]);
    }
    uint32_t text;
    reshard_status status = dcp_build_joined(m->build, parts, count, &text);
    return status ? dcp_machine_fail(m, status) : dcp_push(m, word_make(WORD_PATH, text));
}

enum step dcp_shape_reduce(struct machine *m)
{
    word args = m->stack[m->stack_count - 1], callable = m->stack[m->stack_count - 2];
    if (!is_callable(m, callable) || (word_tag(args) != WORD_TUPLE && word_tag(args) != WORD_VECTOR))
        return STEP_GIVE_UP;
    m->stack_count -= 2;
    enum dcp_class class = dcp_word_class(m, callable);
    enum step step;
    if (class == DCP_CLASS_SIZE) {
        size_t count = 0;
        const word *items = word_tag(args) == WORD_TUPLE ? tuple_items(m, args, &count) : NULL;
        if (count != 1 || word_tag(items[0]) != WORD_VECTOR)
            return STEP_GIVE_UP;
        step = dcp_push(m, word_make(WORD_SIZE, word_payload(items[0])));
    } else if (class == DCP_CLASS_PATH) {
        step = push_path(m, args);
    } else {
        step = dcp_push(m, OPAQUE_OBJECT);
    }
    tuple_drop(m, args);
    return step;
}

enum step dcp_shape_newobj(struct machine *m)
{
    word args = m->stack[m->stack_count - 1], class = m->stack[m->stack_count - 2];
    if (!is_callable(m, class) || (word_tag(args) != WORD_TUPLE && word_tag(args) != WORD_VECTOR))
        return STEP_GIVE_UP;
    m->stack_count -= 2;
    tuple_drop(m, args);
    enum dcp_class kind = dcp_word_class(m, class);
    bool is_known = kind >= DCP_CLASS_METADATA && kind <= DCP_CLASS_STORAGE_META;
    return dcp_push(m, is_known ? word_make(WORD_NEW, word_payload(class)) : OPAQUE_OBJECT);
}

/* ---- objects ---- */

/* The attributes that an object's state gives, by name. */
struct attributes {
    word values[DCP_ATTR_COUNT]; /* UNSET if absent */
};

static bool read_attributes(struct machine *m, word state, struct attributes *out)
{
    *out = (struct attributes){ { 0 } };
    if (word_tag(state) != WORD_DICT)
        return false;
    struct container *container = &m->containers[word_payload(state)];
    container->is_taken = true;
    if (container->is_run || container->count > ATTRIBUTES_MAX)
        return false;
    for (uint64_t i = 0; i < container->count; i += 2) {
        if (word_tag(container->items[i]) != WORD_STR)
            return false;
        out->values[word_attribute(container->items[i])] = dcp_resolve(m, container->items[i + 1]);
    }
    return true;
}

/* torch.Size or a tuple of integers. */
static bool vector_of(word w, uint32_t *out)
{
    *out = (uint32_t)word_payload(w);
    return word_tag(w) == WORD_SIZE || word_tag(w) == WORD_VECTOR;
}

static bool is_absent(word w)
{
    return word_tag(w) == WORD_UNSET || word_tag(w) == WORD_NONE;
}

static enum step build_chunk(struct machine *m, const struct attributes *given, word *out)
{
    uint32_t offsets, sizes, number;
    if (!vector_of(given->values[DCP_ATTR_OFFSETS], &offsets) || !vector_of(given->values[DCP_ATTR_SIZES], &sizes))
        return STEP_GIVE_UP;
    reshard_status status = dcp_build_chunk(m->build, offsets, sizes, &number);
    *out = word_make(WORD_CHUNK, number);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

static enum step build_index(struct machine *m, const struct attributes *given, word *out)
{
    struct dcp_index index = { .offset = DCP_NONE, .index = -1 };
    word fqn = given->values[DCP_ATTR_FQN], hint = given->values[DCP_ATTR_INDEX], offset = given->values[DCP_ATTR_OFFSET];
    uint32_t number;
    if (word_tag(fqn) != WORD_STR || (!is_absent(offset) && !vector_of(offset, &index.offset)) ||
        (!is_absent(hint) && word_tag(hint) != WORD_INT))
        return STEP_GIVE_UP;
    if (word_tag(hint) == WORD_INT && word_int(hint) >= 0)
        index.index = word_int(hint);
    enum step step = dcp_word_name(m, fqn, &index.name);
    if (step)
        return step;
    reshard_status status = dcp_build_index(m->build, index, &number);
    *out = word_make(WORD_INDEX, number);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

static enum step transforms_of(struct machine *m, word list, uint32_t *out)
{
    uint32_t texts[RANK_MAX];
    if (word_tag(list) != WORD_LIST)
        return STEP_GIVE_UP;
    struct container *container = &m->containers[word_payload(list)];
    container->is_taken = true;
    if (container->is_run || container->count > RANK_MAX)
        return STEP_GIVE_UP;
    for (uint64_t i = 0; i < container->count; i++) {
        if (word_tag(container->items[i]) != WORD_STR)
            return STEP_GIVE_UP;
        enum step step = dcp_word_to_text(m, container->items[i], &texts[i]);
        if (step)
            return step;
    }
    reshard_status status = dcp_build_transforms(m->build, texts, (size_t)container->count, out);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

static enum step build_range(struct machine *m, const struct attributes *given, word *out)
{
    word path = given->values[DCP_ATTR_RELATIVE_PATH], offset = given->values[DCP_ATTR_OFFSET], length = given->values[DCP_ATTR_LENGTH];
    struct dcp_range range = { .transforms = DCP_NONE };
    uint32_t number;
    if (word_tag(path) != WORD_STR || word_tag(offset) != WORD_INT || word_int(offset) < 0 || word_tag(length) != WORD_INT ||
        word_int(length) < 0)
        return STEP_GIVE_UP;
    range.offset = (uint64_t)word_int(offset);
    range.length = (uint64_t)word_int(length);
    enum step step = dcp_word_to_text(m, path, &range.path);
    if (!step && !is_absent(given->values[DCP_ATTR_TRANSFORMS]))
        step = transforms_of(m, given->values[DCP_ATTR_TRANSFORMS], &range.transforms);
    if (step)
        return step;
    reshard_status status = dcp_build_range(m->build, range, &number);
    *out = word_make(WORD_RANGE, number);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

/* The chunks of a list that is no run are put once more behind all others, in their order. */
static enum step gather_chunks(struct machine *m, const struct container *list, uint32_t *first)
{
    *first = m->build->out->chunk_count;
    for (uint64_t i = 0; i < list->count; i++) {
        word chunk = dcp_resolve(m, list->items[i]);
        uint32_t number;
        if (word_tag(chunk) != WORD_CHUNK)
            return STEP_GIVE_UP;
        struct dcp_chunk copy = m->build->out->chunks[word_payload(chunk)];
        reshard_status status = dcp_build_chunk(m->build, copy.offsets, copy.sizes, &number);
        if (status)
            return dcp_machine_fail(m, status);
    }
    return STEP_ON;
}

static enum step build_tensor(struct machine *m, const struct attributes *given, word *out)
{
    word properties = given->values[DCP_ATTR_PROPERTIES], chunks = given->values[DCP_ATTR_CHUNKS];
    struct machine_tensor tensor = { .dtype = (uint32_t)word_payload(properties) };
    if (word_tag(properties) != WORD_PROPERTIES || !vector_of(given->values[DCP_ATTR_SIZE], &tensor.size) || word_tag(chunks) != WORD_LIST)
        return STEP_GIVE_UP;
    struct container *list = &m->containers[word_payload(chunks)];
    list->is_taken = true;
    if (list->count > UINT32_MAX)
        return STEP_GIVE_UP;
    tensor.chunk_count = (uint32_t)list->count;
    tensor.first_chunk = list->run_first;
    if (!list->is_run) {
        enum step step = gather_chunks(m, list, &tensor.first_chunk);
        if (step)
            return step;
    }
    if (m->tensor_count == m->tensor_capacity) {
        enum step step = dcp_machine_grow(m, &m->tensors, &m->tensor_capacity, sizeof(*m->tensors));
        if (step)
            return step;
    }
    m->tensors[m->tensor_count] = tensor;
    *out = word_make(WORD_TENSOR, m->tensor_count++);
    return STEP_ON;
}

/* State: (dtype, layout, requires_grad, memory format, pin_memory), or a dict. */
static enum step build_properties(struct machine *m, word state, word *out)
{
    struct attributes given;
    size_t count = 0;
    word dtype;
    if (word_tag(state) == WORD_TUPLE) {
        const word *items = tuple_items(m, state, &count);
        dtype = items[0];
    } else if (read_attributes(m, state, &given)) {
        dtype = given.values[DCP_ATTR_DTYPE];
    } else {
        return STEP_GIVE_UP;
    }
    if (word_tag(dtype) != WORD_GLOBAL || dcp_word_class(m, dtype) != DCP_CLASS_DTYPE)
        return STEP_GIVE_UP;
    uint32_t text;
    reshard_status status = dcp_build_text(m->build, m->globals[word_payload(dtype)].name, &text);
    *out = word_make(WORD_PROPERTIES, text);
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

static enum step build_storage_meta(struct machine *m, const struct attributes *given, word *out)
{
    word ids[] = { given->values[DCP_ATTR_CHECKPOINT_ID], given->values[DCP_ATTR_SAVE_ID], given->values[DCP_ATTR_LOAD_ID] };
    for (int i = 0; i < 3; i++)
        if (!is_absent(ids[i]) && word_tag(ids[i]) != WORD_STR && (word_tag(ids[i]) != WORD_PATH || i))
            return STEP_GIVE_UP;
    m->checkpoint_id = ids[0];
    m->save_id = ids[1];
    m->load_id = ids[2];
    *out = word_make(WORD_STORAGE_META, 0);
    return STEP_ON;
}

/* Its attributes are read at the end, so what they hold must stay. */
static enum step build_root(struct machine *m, word object, word state, word *out)
{
    const struct machine_global *class = &m->globals[word_payload(object)];
    reshard_status status = dcp_build_class_name(m->build, class->module, class->name, &m->build->out->root_class);
    m->container_floor = m->container_count;
    m->pool_floor = m->pool_count;
    *out = word_make(WORD_ROOT, word_payload(state));
    return status ? dcp_machine_fail(m, status) : STEP_ON;
}

static enum step build_known(struct machine *m, word object, enum dcp_class class, word state, word *out)
{
    struct attributes given;
    if (class == DCP_CLASS_PROPERTIES)
        return build_properties(m, state, out);
    if (!read_attributes(m, state, &given))
        return STEP_GIVE_UP;
    switch (class) {
    case DCP_CLASS_CHUNK:
        return build_chunk(m, &given, out);
    case DCP_CLASS_INDEX:
        return build_index(m, &given, out);
    case DCP_CLASS_RANGE:
        return build_range(m, &given, out);
    case DCP_CLASS_TENSOR:
        return build_tensor(m, &given, out);
    case DCP_CLASS_STORAGE_META:
        return build_storage_meta(m, &given, out);
    case DCP_CLASS_BYTES:
        *out = object;
        return STEP_ON;
    case DCP_CLASS_METADATA:
        return build_root(m, object, state, out);
    default:
        return STEP_GIVE_UP;
    }
}

enum step dcp_shape_build(struct machine *m)
{
    word state = dcp_resolve(m, m->stack[m->stack_count - 1]), *top = &m->stack[m->stack_count - 2];
    word object = dcp_resolve(m, *top), built = OPAQUE_OBJECT;
    if (object != OPAQUE_OBJECT) {
        if (word_tag(object) != WORD_NEW)
            return STEP_GIVE_UP;
        enum step step = build_known(m, object, m->globals[word_payload(object)].class, state, &built);
        if (step)
            return step;
    }
    if (word_tag(*top) == WORD_SLOT)
        m->slots[word_payload(*top)] = built;
    *top = built;
    m->stack_count--;
    if (word_tag(state) == WORD_DICT)
        containers_drop(m, (size_t)word_payload(state));
    tuple_drop(m, state);
    return STEP_ON;
}
