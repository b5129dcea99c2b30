/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_records_parts.h"

#include "base/array.h"

#include <stdlib.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define BINGET_ENTRIES 256 /* may be asked for by a byte that is too common to look for */

static inline void note_get(struct records *m, size_t position)
{
    if (m->input.size - position < 5)
        return;
    uint64_t index = load_le(m->data + position + 1, 4);
    if (index < m->memo_bit_count)
        m->memo_bits[index >> 6] |= UINT64_C(1) << (index & 63);
}

#ifdef __SSE2__
#define BLOCK 64

/* Bit i is set if byte i of the block is wanted. */
static inline uint64_t block_hits(const uint8_t *bytes, uint8_t wanted)
{
    __m128i pattern = _mm_set1_epi8((char)wanted);
    uint64_t hits = 0;
    for (int i = 0; i < 4; i++) {
        __m128i part = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * i));
        hits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(part, pattern)) << (16 * i);
    }
    return hits;
}
#else
#define BLOCK 8

/* The lowest bit of every wanted byte, gathered by the multiplication. */
static inline uint64_t block_hits(const uint8_t *bytes, uint8_t wanted)
{
    const uint64_t low = UINT64_C(0x0101010101010101), seven = UINT64_C(0x7F7F7F7F7F7F7F7F);
    uint64_t word = load_le(bytes, 8) ^ low * wanted;
    uint64_t zero = ~(((word & seven) + seven) | word | seven) >> 7;
    return zero * UINT64_C(0x0102040810204080) >> 56;
}
#endif

/* Every byte that equals LONG_BINGET is taken for one. */
static void scan_gets(struct records *m)
{
    size_t size = m->input.size, position = 0;
    for (; size - position >= BLOCK; position += BLOCK)
        for (uint64_t hits = block_hits(m->data + position, 'j'); hits; hits &= hits - 1)
            note_get(m, position + (size_t)__builtin_ctzll(hits));
    for (; position < size; position++)
        if (m->data[position] == 'j')
            note_get(m, position);
}

enum records_step records_memo_scan(struct records *m)
{
    /* Each entry takes a byte of the pickle at least. */
    uint64_t words = m->input.size / 64 + BINGET_ENTRIES / 64 + 1;
    m->memo_bits = array_zeroed(words, sizeof(*m->memo_bits));
    if (!m->memo_bits)
        return records_fail(m, error_set_memory(m->err));
    m->memo_bit_count = words * 64;
    for (int i = 0; i < BINGET_ENTRIES / 64; i++)
        m->memo_bits[i] = UINT64_MAX;
    scan_gets(m);

    while (!m->memo_bits[words - 1])
        words--;
    m->memo_bit_count = words * 64;
    m->memo_ranks = array_new(words, sizeof(*m->memo_ranks));
    uint64_t kept = 0;
    for (uint64_t i = 0; m->memo_ranks && i < words; i++) {
        m->memo_ranks[i] = (uint32_t)kept;
        kept += (unsigned)__builtin_popcountll(m->memo_bits[i]);
    }
    m->memo = array_zeroed(kept, sizeof(*m->memo));
    if (!m->memo_ranks || !m->memo)
        return records_fail(m, error_set_memory(m->err));
    return kept > UINT32_MAX ? RECORDS_GIVE_UP : RECORDS_ON;
}

/* Keeps the topmost value. What it refers to must stay; an object without state gets a place where its built form can be put. */
static enum records_step keep(struct records *m, uint64_t index)
{
    records_word *top = &m->stack[m->stack_count - 1];
    uint64_t payload = records_payload(*top);
    switch (records_tag(*top)) {
    case RECORDS_NEW:
        if (m->slot_count == m->slot_capacity) {
            enum records_step step = records_grow(m, &m->slots, &m->slot_capacity, sizeof(*m->slots));
            if (step)
                return step;
        }
        m->slots[m->slot_count] = *top;
        *top = records_word_of(RECORDS_SLOT, m->slot_count++);
        break;
    case RECORDS_LIST:
    case RECORDS_DICT:
        if (m->container_floor <= payload)
            m->container_floor = payload + 1;
        break;
    case RECORDS_TUPLE:
        m->pool_floor = m->pool_count;
        m->container_floor = m->container_count;
        break;
    default:
        break;
    }
    *records_memo_slot(m, index) = *top;
    return RECORDS_ON;
}

enum records_step records_memoize(struct records *m)
{
    if (m->stack_count == m->fence || m->uses_put)
        return RECORDS_GIVE_UP;
    m->uses_memoize = true;
    uint64_t index = m->memo_count++;
    return records_memo_is_kept(m, index) ? keep(m, index) : RECORDS_ON;
}

enum records_step records_memo_put(struct records *m, uint64_t index)
{
    if (m->stack_count == m->fence || m->uses_memoize || index > m->memo_count + m->limits->memo_gap)
        return RECORDS_GIVE_UP;
    m->uses_put = true;
    m->memo_count++;
    return records_memo_is_kept(m, index) ? keep(m, index) : RECORDS_ON;
}
