/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records that make up nearly all of a large table, read in one go. CPython writes each as
 *
 *   GET class  EMPTY_TUPLE NEWOBJ MEMOIZE EMPTY_DICT MEMOIZE MARK  (GET key, value)...  SETITEMS BUILD
 *
 * with MEMOIZE after every new tuple, size and string. The same GET comes back record after record, so each place in a record
 * remembers what its bytes led to. A record with anything else in it (a frame, a put, another value) is left to the opcodes.
 */
#include "encoding/pickle_records_parts.h"

#include "tensor/box.h"

/* MEMOIZEs that are looked at together. Most records have fewer: of the object, its dict, and of each value: tuple, argument tuple and
 * size. */
#define MEMOIZES_MAX (2 + 3 * RECORDS_KEYS_MAX)

/* What a record has given so far. Nothing of it is in the decoder until the record is complete. */
struct record {
    const uint8_t *at, *end;
    uint64_t memo;               /* index of the next MEMOIZE */
    const struct records_shape *shape;
    struct records_seen *seen;
    struct records_values values;
    unsigned has;                /* bitmap of fields */
    uint64_t free_until;         /* no MEMOIZE of this record before it is asked for */
};

/* What a GET that was not seen at this place before leads to. */
static bool pickle_records_take_look_up(struct records *m, struct record *r, struct records_get *role, records_word *out)
{
    uint64_t index = *r->at == 'j' ? load_le(r->at + 1, 4) : r->at[1];
    if (*r->at != 'j' && *r->at != 'h')
        return false;
    records_word value = records_memo_get(m, index);
    if (records_tag(value) == RECORDS_UNSET || records_tag(value) == RECORDS_SLOT)
        return false;
    role->size = *r->at == 'j' ? 5 : 2;
    role->mask = (UINT64_C(1) << (8 * role->size)) - 1;
    role->bytes = load_le(r->at, 8) & role->mask;
    role->value = *out = value;
    r->at += role->size;
    return true;
}

/* A GET that leads to a kept value. Entries made by MEMOIZE never change, so that equal bytes mean the equal value. */
static inline bool read_get(struct records *m, struct record *r, struct records_get *role, records_word *out)
{
    if (r->end - r->at < 8)
        return false;
    if (!role->mask || (load_le(r->at, 8) & role->mask) != role->bytes)
        return pickle_records_take_look_up(m, r, role, out);
    r->at += role->size;
    *out = role->value;
    return true;
}

/* The bytes given, or false. */
static inline bool read_exact(struct record *r, const char *bytes, size_t size)
{
    if ((size_t)(r->end - r->at) < size || memcmp(r->at, bytes, size) != 0)
        return false;
    r->at += size;
    return true;
}

static inline bool memo_is_asked_for(const struct records *m, const struct record *r)
{
    return r->memo >= r->free_until && records_memo_is_kept(m, r->memo);
}

static inline bool read_int(struct record *r, int64_t *out)
{
    size_t left = (size_t)(r->end - r->at);
    if (left < 2)
        return false;
    if (*r->at == 'K') {
        *out = r->at[1];
        r->at += 2;
        return true;
    }
    if (*r->at == 'M' && left >= 3) {
        *out = (int64_t)load_le(r->at + 1, 2);
        r->at += 3;
        return true;
    }
    if (*r->at == 'J' && left >= 5) {
        *out = (int32_t)load_le(r->at + 1, 4);
        r->at += 5;
        return true;
    }
    /* LONG1: above 2^31, offsets in large files. */
    if (*r->at == 0x8A && r->at[1] > 0 && r->at[1] <= 7 && left >= 2 + (size_t)r->at[1] && !(r->at[1 + r->at[1]] & 0x80)) {
        *out = (int64_t)load_le(r->at + 2, r->at[1]);
        r->at += 2 + r->at[1];
        return *out <= RECORDS_INT_MAX;
    }
    return false;
}

/* A MEMOIZE whose entry nobody asks for. */
static inline bool skip_memoize(const struct records *m, struct record *r)
{
    if (r->at == r->end || *r->at != 0x94 || memo_is_asked_for(m, r))
        return false;
    r->at++;
    r->memo++;
    return true;
}

/* The MEMOIZE of a value that others may share. That it is kept now does no harm if the record turns out to be for the opcodes. */
static inline bool memoize_value(struct records *m, struct record *r, records_word w)
{
    if (r->at == r->end || *r->at != 0x94)
        return false;
    r->at++;
    if (memo_is_asked_for(m, r))
        *records_memo_slot(m, r->memo) = w;
    r->memo++;
    return true;
}

/* A number that is a call, or a GET of one: scalars of numpy. GET class, GET type, SHORT_BINBYTES, TUPLE2, REDUCE. */
static bool read_scalar(struct records *m, struct record *r, int64_t *out)
{
    struct records_get unused = { 0 };
    records_word w, type;
    if (!read_get(m, r, &unused, &w))
        return false;
    if (records_tag(w) == RECORDS_INT) {
        *out = records_int(w);
        return true;
    }
    unused.mask = 0;
    if (records_tag(w) != RECORDS_GLOBAL || m->globals[records_payload(w)].role != RECORDS_IS_SCALAR || !m->shapes->scalar ||
        !read_get(m, r, &unused, &type) || records_tag(type) < RECORDS_OWN || r->end - r->at < 2 || r->at[0] != 'C' ||
        r->end - r->at < 2 + r->at[1])
        return false;
    struct str bytes = { (const char *)r->at + 2, r->at[1] };
    r->at += 2 + bytes.size;
    if (!m->shapes->scalar(m, type, bytes, out) || *out > RECORDS_INT_MAX || *out < -RECORDS_INT_MAX || !skip_memoize(m, r) ||
        !read_exact(r, "\x86", 1) || !skip_memoize(m, r) || !read_exact(r, "R", 1))
        return false;
    return memoize_value(m, r, records_word_of(RECORDS_INT, (uint64_t)*out));
}

static inline bool take_number(struct records *m, struct record *r, int64_t *out)
{
    if (read_int(r, out))
        return true;
    const uint8_t *at = r->at;
    uint64_t memo = r->memo;
    if (at < r->end && (*at == 'h' || *at == 'j') && read_scalar(m, r, out))
        return true;
    r->at = at;
    r->memo = memo;
    return false;
}

/* A tuple of up to RANK_MAX numbers, without the MEMOIZE behind it. */
static inline bool pickle_records_take_read_numbers(struct records *m, struct record *r, int64_t *values, size_t *count)
{
    bool is_marked = r->at < r->end && *r->at == '(';
    *count = 0;
    r->at += is_marked;
    while (*count < RANK_MAX && take_number(m, r, &values[*count]))
        ++*count;
    if (r->at == r->end)
        return false;
    uint8_t opcode = *r->at++;
    return is_marked ? opcode == 't' && *count > 0 : *count == 0 ? opcode == ')' : *count <= 3 && opcode == 0x84 + *count;
}

/* A size: GET of one, or the call of torch.Size with a tuple. */
static bool read_size(struct records *m, struct record *r, uint32_t *out)
{
    int64_t values[RANK_MAX];
    size_t count;
    records_word class;
    if (!read_get(m, r, &r->seen->size_class, &class))
        return false;
    if (records_tag(class) == RECORDS_SIZE) {
        *out = (uint32_t)records_payload(class);
        return true;
    }
    if (records_tag(class) != RECORDS_GLOBAL || m->globals[records_payload(class)].role != RECORDS_IS_SIZE)
        return false;
    if (!pickle_records_take_read_numbers(m, r, values, &count) || (count && !skip_memoize(m, r)))
        return false;
    if (!read_exact(r, "\x85", 1) || !skip_memoize(m, r) || !read_exact(r, "R", 1))
        return false;
    return !records_vector(m, values, count, out) && memoize_value(m, r, records_word_of(RECORDS_SIZE, *out));
}

/* A tuple of numbers: GET of one, or a new one. */
static bool read_tuple(struct records *m, struct record *r, uint32_t *out)
{
    int64_t values[RANK_MAX];
    size_t count;
    records_word known;
    if (r->at < r->end && (*r->at == 'h' || *r->at == 'j')) {
        const uint8_t *before = r->at;
        if (read_get(m, r, &r->seen->size_class, &known) && records_tag(known) == RECORDS_VECTOR) {
            *out = (uint32_t)records_payload(known);
            return true;
        }
        r->at = before; /* it may be the first of two or three numbers */
    }
    if (!pickle_records_take_read_numbers(m, r, values, &count) || records_vector(m, values, count, out))
        return false;
    return count == 0 || memoize_value(m, r, records_word_of(RECORDS_VECTOR, *out));
}

/* A string: GET of one, or a new one. */
static bool pickle_records_take_read_text(struct records *m, struct record *r, int space, uint32_t *out)
{
    records_word w;
    struct records_get *seen = &r->seen->strings[space], before = *seen;
    if (r->end - r->at > 2 && *r->at == 0x8C) {
        size_t behind;
        if (records_read_string(m, (size_t)(r->at - m->data), &w, &behind))
            return false;
        r->at = m->data + behind;
        if (records_memo_is_kept(m, r->memo) && r->at < r->end && *r->at == 0x94) {
            *records_memo_slot(m, r->memo++) = w;
            r->at++;
        } else if (!skip_memoize(m, r)) {
            return false;
        }
        seen->mask = 0;
    } else if (!read_get(m, r, seen, &w) || records_tag(w) != RECORDS_STR) {
        return false;
    } else if (before.mask && before.value == w) {
        *out = r->seen->string_ids[space];
        return true;
    }
    if (records_string(m, space, w, out))
        return false;
    r->seen->string_ids[space] = *out;
    return true;
}

/* A later value of the same key counts, so that None takes back what was there. */
static bool read_none(struct record *r, const struct records_field *field)
{
    if (field->type == RECORDS_FIELD_SIZE || field->type == RECORDS_FIELD_TUPLE)
        r->values.vectors[field->slot] = RECORDS_ABSENT;
    else if (field->type == RECORDS_FIELD_STRING)
        r->values.strings[field->slot] = RECORDS_ABSENT;
    else if (field->type != RECORDS_FIELD_NONE)
        r->values.numbers[field->slot] = -1;
    r->at++;
    return true;
}

static inline bool read_bool(struct record *r, int64_t *out)
{
    if (r->at == r->end || (*r->at != 0x88 && *r->at != 0x89))
        return false;
    *out = *r->at++ == 0x88;
    return true;
}

static inline bool pickle_records_take_read_value(struct records *m, struct record *r, const struct records_field *field)
{
    int64_t *number = &r->values.numbers[field->slot];
    if (field->may_be_none && r->at < r->end && *r->at == 'N')
        return read_none(r, field);
    switch (field->type) {
    case RECORDS_FIELD_TUPLE:
        return read_tuple(m, r, &r->values.vectors[field->slot]);
    case RECORDS_FIELD_SIZE:
        return read_size(m, r, &r->values.vectors[field->slot]);
    case RECORDS_FIELD_NUMBER:
        return read_int(r, number);
    case RECORDS_FIELD_BOOL:
        return read_bool(r, number);
    case RECORDS_FIELD_NATURAL:
        return read_int(r, number) && *number >= 0;
    case RECORDS_FIELD_STRING:
        return pickle_records_take_read_text(m, r, field->slot, &r->values.strings[field->slot]);
    default:
        return false;
    }
}

/* The field of a key; NULL if the record has none of that name. Remembered with what the key's bytes led to. */
static inline const struct records_field *pickle_records_take_read_key(struct records *m, struct record *r, struct records_get *role)
{
    records_word name, before = role->value;
    if (!read_get(m, r, role, &name))
        return NULL;
    if (name == before && role->field)
        return role->field;
    unsigned attribute = records_attribute(name);
    role->field = NULL;
    for (unsigned i = 0; attribute && i < r->shape->field_count; i++) {
        if (r->shape->fields[i].attribute == attribute)
            role->field = &r->shape->fields[i];
    }
    return role->field;
}

static bool has_required(const struct record *r)
{
    for (unsigned i = 0; i < r->shape->field_count; i++) {
        if (r->shape->fields[i].is_required && !(r->has >> i & 1))
            return false;
    }
    return true;
}

static bool pickle_records_take_read_record(struct records *m, struct record *r)
{
    r->free_until = records_memo_is_free(m, r->memo, MEMOIZES_MAX) ? r->memo + MEMOIZES_MAX : r->memo;
    if (!read_exact(r, ")\x81\x94}\x94(", 6) || (r->free_until == r->memo && !records_memo_is_free(m, r->memo, 2)))
        return false;
    r->memo += 2;
    for (int key = 0; r->at < r->end && *r->at != 'u'; key++) {
        const struct records_field *field = key < RECORDS_KEYS_MAX ? pickle_records_take_read_key(m, r, &r->seen->keys[key]) : NULL;
        if (!field || !pickle_records_take_read_value(m, r, field))
            return false;
        r->has |= 1u << (field - r->shape->fields);
    }
    return read_exact(r, "ub", 2) && has_required(r);
}

enum records_step records_take(struct records *m, unsigned shape)
{
    struct record r = {
        .at = m->data + m->input.pos, .end = m->data + m->input.size, .memo = m->memo_count, .shape = &m->shapes->shapes[shape],
        .seen = &m->seen[shape],
        .values = { .vectors = { RECORDS_ABSENT, RECORDS_ABSENT, RECORDS_ABSENT, RECORDS_ABSENT },
                    .strings = { RECORDS_ABSENT, RECORDS_ABSENT },
                    .numbers = { -1, -1, -1, -1 } },
    };
    if (m->uses_put || !pickle_records_take_read_record(m, &r))
        return m->status ? RECORDS_FAILED : RECORDS_ON;
    records_word built;
    reshard_status status = r.shape->make(m, &r.values, &built);
    if (status)
        return records_fail(m, status);
    m->stack[m->stack_count - 1] = built;
    m->input.pos = (size_t)(r.at - m->data);
    m->memo_count = r.memo;
    m->uses_memoize = true;
    return RECORDS_ON;
}
