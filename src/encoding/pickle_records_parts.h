/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fast decoder share. Only encoding/pickle_records*.c include this. */
#ifndef ENCODING_PICKLE_RECORDS_PARTS_H
#define ENCODING_PICKLE_RECORDS_PARTS_H

#include "encoding/pickle_records.h"

#define RECORDS_OPAQUE_OBJECT records_word_of(RECORDS_OPAQUE, 1)

/* ---- pickle_records_memo.c ---- */

/* Finds the memo entries that may be asked for. */
enum records_step records_memo_scan(struct records *m);
enum records_step records_memo_put(struct records *m, uint64_t index);
enum records_step records_memoize(struct records *m);

static inline bool records_memo_is_kept(const struct records *m, uint64_t index)
{
    return index < m->memo_bit_count && m->memo_bits[index >> 6] >> (index & 63) & 1;
}

static inline records_word *records_memo_slot(struct records *m, uint64_t index)
{
    uint64_t below = m->memo_bits[index >> 6] & ((UINT64_C(1) << (index & 63)) - 1);
    return &m->memo[m->memo_ranks[index >> 6] + (unsigned)__builtin_popcountll(below)];
}

/* Whether none of the count (at most 32) entries from index on is kept. */
static inline bool records_memo_is_free(const struct records *m, uint64_t index, unsigned count)
{
    uint64_t place = index >> 6, window = 0;
    unsigned shift = index & 63;
    if (index < m->memo_bit_count)
        window = m->memo_bits[place] >> shift;
    if (shift > 32 && (place + 1) << 6 < m->memo_bit_count)
        window |= m->memo_bits[place + 1] << (64 - shift);
    return !(window & ((UINT64_C(1) << count) - 1));
}

/* The entry, or a word of tag UNSET. */
static inline records_word records_memo_get(struct records *m, uint64_t index)
{
    return records_memo_is_kept(m, index) ? *records_memo_slot(m, index) : 0;
}

/* ---- pickle_records.c ---- */

static inline enum records_step records_push(struct records *m, records_word w)
{
    if (m->stack_count == m->stack_capacity) {
        enum records_step step = records_grow(m, &m->stack, &m->stack_capacity, sizeof(*m->stack));
        if (step)
            return step;
    }
    m->stack[m->stack_count++] = w;
    return RECORDS_ON;
}

/* A STR word for the string opcode at position, checked; *end is behind it. */
enum records_step records_read_string(struct records *m, size_t position, records_word *out, size_t *end);

static inline enum records_step records_vector(struct records *m, const int64_t *values, size_t count, uint32_t *out)
{
    reshard_status status = m->shapes->keep_vector(m, values, count, out);
    return status ? records_fail(m, status) : RECORDS_ON;
}

/* ---- pickle_records_shapes.c: what the opcodes that end a shape do ---- */

enum records_step records_shape_tuple(struct records *m, const records_word *items, size_t count);
enum records_step records_shape_global(struct records *m, struct str module, struct str name);
enum records_step records_shape_reduce(struct records *m);
enum records_step records_shape_newobj(struct records *m);
enum records_step records_shape_build(struct records *m);
enum records_step records_shape_container(struct records *m, bool is_dict);
enum records_step records_shape_add(struct records *m, const records_word *items, size_t count, bool is_dict);

/* ---- pickle_records_take.c ---- */

/*
 * Called after a GET has pushed a class that has a shape: if a whole record follows in the form that CPython writes, takes it in one go and
 * replaces the class by the finished object. Otherwise nothing happens.
 */
enum records_step records_take(struct records *m, unsigned shape);

#endif
