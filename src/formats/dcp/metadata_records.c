/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The three records that make up nearly all of a large `.metadata`, read in one go. CPython writes each as
 *
 *   GET class  EMPTY_TUPLE NEWOBJ MEMOIZE EMPTY_DICT MEMOIZE MARK  (GET key, value)...  SETITEMS BUILD
 *
 * with MEMOIZE after every new tuple, size and string. The same GET comes back record after record, so each place in a record
 * remembers what its bytes led to. A record with anything else in it (a frame, a put, another value) is left to the machine.
 */
#include "formats/dcp/metadata_machine.h"

#include "tensor/box.h"

/* Of the object, its dict, and of each value: tuple, argument tuple and size. */
#define MEMOIZES_MAX (2 + 3 * RECORD_KEYS_MAX)

enum record_kind { RECORD_CHUNK, RECORD_INDEX, RECORD_RANGE };

/* What a record has given so far. Nothing of it is in the machine until the record is complete. */
struct record {
    const uint8_t *at, *end;
    uint64_t memo;               /* index of the next MEMOIZE */
    struct record_roles *roles;
    uint32_t vectors[2];         /* offsets and sizes; offset */
    int64_t numbers[2];          /* index; offset and length */
    bool has[3];
    bool is_free;                /* no MEMOIZE of this record is asked for */
    uint32_t string;
};

/* What a GET that was not seen at this place before leads to. */
static bool look_up(struct machine *m, struct record *r, struct get_role *role, word *out)
{
    uint64_t index = *r->at == 'j' ? load_le(r->at + 1, 4) : r->at[1];
    if (*r->at != 'j' && *r->at != 'h')
        return false;
    word value = dcp_memo_get(m, index);
    if (word_tag(value) == WORD_UNSET || word_tag(value) == WORD_SLOT)
        return false;
    role->size = *r->at == 'j' ? 5 : 2;
    role->mask = (UINT64_C(1) << (8 * role->size)) - 1;
    role->bytes = load_le(r->at, 8) & role->mask;
    role->value = *out = value;
    r->at += role->size;
    return true;
}

/* A GET that leads to a kept value. Entries made by MEMOIZE never change, so that equal bytes mean the equal value. */
static inline bool read_get(struct machine *m, struct record *r, struct get_role *role, word *out)
{
    if (r->end - r->at < 8)
        return false;
    if (!role->mask || (load_le(r->at, 8) & role->mask) != role->bytes)
        return look_up(m, r, role, out);
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
        return *out <= WORD_INT_MAX;
    }
    return false;
}

/* A MEMOIZE whose entry nobody asks for. */
static inline bool skip_memoize(const struct machine *m, struct record *r)
{
    if (r->at == r->end || *r->at != 0x94 || (!r->is_free && dcp_memo_is_kept(m, r->memo)))
        return false;
    r->at++;
    r->memo++;
    return true;
}

/* A size: GET of one, or the call of torch.Size with up to RANK_MAX numbers. */
static bool read_size(struct machine *m, struct record *r, uint32_t *out)
{
    int64_t values[RANK_MAX];
    size_t count = 0;
    word class;
    if (!read_get(m, r, &r->roles->size_class, &class))
        return false;
    if (word_tag(class) == WORD_SIZE) {
        *out = (uint32_t)word_payload(class);
        return true;
    }
    if (word_tag(class) != WORD_GLOBAL || m->globals[word_payload(class)].class != DCP_CLASS_SIZE)
        return false;
    bool is_marked = r->at < r->end && *r->at == '(';
    r->at += is_marked;
    while (count < RANK_MAX && read_int(r, &values[count]))
        count++;
    if (r->at == r->end)
        return false;
    uint8_t opcode = *r->at++;
    bool is_tuple = is_marked ? opcode == 't' && count > 0 : count == 0 ? opcode == ')' : count <= 3 && opcode == 0x84 + count;
    if (!is_tuple || (count && !skip_memoize(m, r)))
        return false;
    if (!read_exact(r, "\x85", 1) || !skip_memoize(m, r) || !read_exact(r, "R", 1))
        return false;
    if (dcp_vector(m, values, count, out))
        return false;
    if (r->at == r->end || *r->at != 0x94)
        return false;
    r->at++;
    /* Others may share the size. That it is kept now does no harm if the record turns out to be for the machine. */
    if (!r->is_free && dcp_memo_is_kept(m, r->memo))
        *dcp_memo_slot(m, r->memo) = word_make(WORD_SIZE, *out);
    r->memo++;
    return true;
}

/* A string that is to be a name or a text: GET of one, or a new one. */
static bool read_text(struct machine *m, struct record *r, bool is_name, uint32_t *out)
{
    word w;
    struct get_role before = r->roles->strings;
    if (r->end - r->at > 2 && *r->at == 0x8C) {
        size_t behind;
        if (dcp_read_string(m, (size_t)(r->at - m->data), &w, &behind))
            return false;
        r->at = m->data + behind;
        if (dcp_memo_is_kept(m, r->memo) && r->at < r->end && *r->at == 0x94) {
            *dcp_memo_slot(m, r->memo++) = w;
            r->at++;
        } else if (!skip_memoize(m, r)) {
            return false;
        }
        r->roles->strings.mask = 0;
    } else if (!read_get(m, r, &r->roles->strings, &w) || word_tag(w) != WORD_STR) {
        return false;
    } else if (before.mask && before.value == w) {
        *out = r->roles->string_id;
        return true;
    }
    if (is_name ? dcp_word_name(m, w, out) : dcp_word_to_text(m, w, out))
        return false;
    r->roles->string_id = *out;
    return true;
}

/* A later value of the same key counts, so that None takes back what was there. */
static bool read_none_number(struct record *r, int64_t *out)
{
    *out = -1;
    return read_exact(r, "N", 1);
}

static bool read_none_vector(struct record *r, uint32_t *out)
{
    *out = DCP_NONE;
    return read_exact(r, "N", 1);
}

static bool read_value(struct machine *m, struct record *r, enum record_kind kind, enum dcp_attribute attribute)
{
    switch (attribute) {
    case DCP_ATTR_OFFSETS:
        r->has[0] = true;
        return kind == RECORD_CHUNK && read_size(m, r, &r->vectors[0]);
    case DCP_ATTR_SIZES:
        r->has[1] = true;
        return kind == RECORD_CHUNK && read_size(m, r, &r->vectors[1]);
    case DCP_ATTR_FQN:
        r->has[0] = true;
        return kind == RECORD_INDEX && read_text(m, r, true, &r->string);
    case DCP_ATTR_INDEX:
        return kind == RECORD_INDEX && (read_none_number(r, &r->numbers[0]) || read_int(r, &r->numbers[0]));
    case DCP_ATTR_OFFSET:
        r->has[1] = true;
        if (kind == RECORD_RANGE)
            return read_int(r, &r->numbers[0]) && r->numbers[0] >= 0;
        return kind == RECORD_INDEX && (read_none_vector(r, &r->vectors[0]) || read_size(m, r, &r->vectors[0]));
    case DCP_ATTR_RELATIVE_PATH:
        r->has[0] = true;
        return kind == RECORD_RANGE && read_text(m, r, false, &r->string);
    case DCP_ATTR_LENGTH:
        r->has[2] = true;
        return kind == RECORD_RANGE && read_int(r, &r->numbers[1]) && r->numbers[1] >= 0;
    case DCP_ATTR_TRANSFORMS:
        return kind == RECORD_RANGE && read_exact(r, "N", 1);
    default:
        return false;
    }
}

static bool read_record(struct machine *m, struct record *r, enum record_kind kind)
{
    r->is_free = dcp_memo_is_free(m, r->memo, MEMOIZES_MAX);
    if (!read_exact(r, ")\x81\x94}\x94(", 6) || (!r->is_free && !dcp_memo_is_free(m, r->memo, 2)))
        return false;
    r->memo += 2;
    for (int key = 0; r->at < r->end && *r->at != 'u'; key++) {
        word name;
        if (key == RECORD_KEYS_MAX || !read_get(m, r, &r->roles->keys[key], &name) || !read_value(m, r, kind, word_attribute(name)))
            return false;
    }
    if (!read_exact(r, "ub", 2))
        return false;
    return r->has[0] && (kind == RECORD_INDEX || r->has[1]) && (kind != RECORD_RANGE || r->has[2]);
}

static reshard_status build_record(struct machine *m, const struct record *r, enum record_kind kind, word *out)
{
    uint32_t number = 0;
    reshard_status status;
    if (kind == RECORD_CHUNK) {
        status = dcp_build_chunk(m->build, r->vectors[0], r->vectors[1], &number);
        *out = word_make(WORD_CHUNK, number);
    } else if (kind == RECORD_INDEX) {
        int64_t hint = r->numbers[0] < 0 ? -1 : r->numbers[0];
        status = dcp_build_index(m->build, (struct dcp_index){ .name = r->string, .offset = r->vectors[0], .index = hint }, &number);
        *out = word_make(WORD_INDEX, number);
    } else {
        struct dcp_range range = { (uint64_t)r->numbers[0], (uint64_t)r->numbers[1], r->string, DCP_NONE };
        status = dcp_build_range(m->build, range, &number);
        *out = word_make(WORD_RANGE, number);
    }
    return status;
}

enum step dcp_record(struct machine *m, enum dcp_class class)
{
    enum record_kind kind = class == DCP_CLASS_CHUNK ? RECORD_CHUNK : class == DCP_CLASS_INDEX ? RECORD_INDEX : RECORD_RANGE;
    struct record r = {
        .at = m->data + m->input.pos, .end = m->data + m->input.size, .memo = m->memo_count, .roles = &m->roles[kind],
        .vectors = { DCP_NONE, DCP_NONE }, .numbers = { -1, -1 },
    };
    if (m->uses_put || !read_record(m, &r, kind))
        return m->status ? STEP_FAILED : STEP_ON;
    word built;
    reshard_status status = build_record(m, &r, kind, &built);
    if (status)
        return dcp_machine_fail(m, status);
    m->stack[m->stack_count - 1] = built;
    m->input.pos = (size_t)(r.at - m->data);
    m->memo_count = r.memo;
    m->uses_memoize = true;
    return STEP_ON;
}
