/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/chain.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/crc32.h"
#include "base/cursor.h"
#include "encoding/chain_parts.h"

#define CHECKSUM_BYTES 4
#define SLOW_FACTOR 4 /* bz2 and lzma take that much longer for a byte than the others */
#define SLACK_BYTES ((uint64_t)64 << 10)

#ifndef RESHARD_WITH_LZ4
#error "the build says which libraries there are"
#endif

static reshard_status chain_take_checksum(struct chain_call *call, reshard_error *err);
static reshard_status take_slice(struct chain_call *call, reshard_error *err);

static const struct chain_row {
    const char *name;
    chain_decoder decode;
    const char *library; /* what is missing; NULL: nothing */
    bool is_view;        /* the result is a part of the input: call->out is set to it */
    chain_packer pack;
    enum { UNCHECKED, MAY_BE_CHECKED, CHECKED } check; /* whether what it decodes carries a checksum */
} rows[CHAIN_KIND_COUNT] = {
    [CHAIN_ZLIB] = { "zlib", chain_inflate, NULL, false, chain_zlib_pack, CHECKED },
    [CHAIN_GZIP] = { "gzip", chain_inflate, NULL, false, chain_zlib_pack, CHECKED },
    [CHAIN_DEFLATE] = { "deflate", chain_inflate, NULL, false, NULL },
    [CHAIN_ZSTD] = { "zstd", chain_unzstd, NULL, false, chain_zstd_pack, MAY_BE_CHECKED },
    [CHAIN_LZ4] = { "lz4", chain_unlz4, RESHARD_WITH_LZ4 ? NULL : "liblz4", false, chain_lz4_pack },
    [CHAIN_BLOSC] = { "blosc", chain_unblosc, RESHARD_WITH_BLOSC ? NULL : "libblosc", false, chain_blosc_pack },
    [CHAIN_BZ2] = { "bz2", chain_unbz2, RESHARD_WITH_BZ2 ? NULL : "libbz2", false, NULL, CHECKED },
    [CHAIN_LZMA] = { "lzma", chain_unlzma, RESHARD_WITH_LZMA ? NULL : "liblzma", false, NULL, MAY_BE_CHECKED },
    [CHAIN_CRC32C] = { "crc32c", chain_take_checksum, NULL, true, NULL, CHECKED },
    [CHAIN_CRC32] = { "crc32", chain_take_checksum, NULL, true, NULL, CHECKED },
    [CHAIN_ADLER32] = { "adler32", chain_take_checksum, NULL, true, NULL, CHECKED },
    [CHAIN_SLICE] = { "slice", take_slice, NULL, true, NULL },
    [CHAIN_SHUFFLE] = { "shuffle", chain_unshuffle, NULL, false, NULL },
    [CHAIN_DELTA] = { "delta", chain_undelta, NULL, false, NULL },
    [CHAIN_ASTYPE] = { "astype", chain_unastype, NULL, false, NULL },
    [CHAIN_SCALE] = { "fixedscaleoffset", chain_unscale, NULL, false, NULL },
    [CHAIN_PACKBITS] = { "packbits", chain_unpackbits, NULL, false, NULL },
    [CHAIN_BLOCKS] = { "blocks", chain_unblock, NULL, false, NULL },
};

const char *chain_kind_name(enum chain_kind kind)
{
    return rows[kind].name;
}

const char *chain_step_name(const struct chain_step *step)
{
    return step->kind == CHAIN_BLOCKS ? ggml_block_info(step->block)->name : chain_kind_name(step->kind);
}

bool chain_kind_is_built_in(enum chain_kind kind, const char **library)
{
    if (!rows[kind].library)
        return true;
    *library = rows[kind].library;
    return false;
}

/* ---- checksums ---- */

bool chain_may_check(const struct chain *chain)
{
    for (uint32_t i = 0; i < chain->step_count; i++) {
        if (rows[chain->steps[i].kind].check != UNCHECKED)
            return true;
    }
    return false;
}

bool chain_is_checked(const struct chain *chain, const uint8_t *head, size_t size)
{
    static const uint8_t zstd[] = { 0x28, 0xB5, 0x2F, 0xFD }, xz[] = { 0xFD, '7', 'z', 'X', 'Z', 0 };
    bool at_start = true; /* head is what the step gets */
    for (uint32_t i = 0; i < chain->step_count; i++) {
        enum chain_kind kind = chain->steps[i].kind;
        if (rows[kind].check == CHECKED)
            return true;
        if (at_start && kind == CHAIN_ZSTD && size > sizeof(zstd) && memcmp(head, zstd, sizeof(zstd)) == 0 && head[4] & 4)
            return true;
        if (at_start && kind == CHAIN_LZMA && size >= CHAIN_HEAD_BYTES && memcmp(head, xz, sizeof(xz)) == 0 && head[7] & 15)
            return true;
        at_start = at_start && kind == CHAIN_SLICE;
    }
    return false;
}

/* ---- steps that only look ---- */

/* Adler-32 sums of up to this many bytes do not overflow 32 bits before the remainder is taken. */
#define ADLER_RUN 5552
#define ADLER_BASE 65521

static uint32_t adler32_of(const uint8_t *bytes, size_t size)
{
    uint32_t a = 1, b = 0;
    while (size) {
        size_t run = size < ADLER_RUN ? size : ADLER_RUN;
        for (size_t i = 0; i < run; i++) {
            a += bytes[i];
            b += a;
        }
        a %= ADLER_BASE;
        b %= ADLER_BASE;
        bytes += run;
        size -= run;
    }
    return b << 16 | a;
}

static uint32_t checksum_of(enum chain_kind kind, const uint8_t *bytes, size_t size)
{
    switch (kind) {
    case CHAIN_CRC32C:
        return crc32c(0, bytes, size);
    case CHAIN_CRC32:
        return crc32_zip(0, bytes, size);
    default:
        return adler32_of(bytes, size);
    }
}

static reshard_status chain_take_checksum(struct chain_call *call, reshard_error *err)
{
    const char *name = rows[call->step->kind].name;
    if (call->in_size < CHECKSUM_BYTES)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes, fewer than the %s behind them takes", call->in_size, name);
    size_t size = call->in_size - CHECKSUM_BYTES;
    const uint8_t *bytes = call->in + (call->step->at_start ? CHECKSUM_BYTES : 0);
    uint32_t stored = (uint32_t)load_le(call->step->at_start ? call->in : call->in + size, CHECKSUM_BYTES);
    uint32_t found = checksum_of(call->step->kind, bytes, size);
    if (found != stored)
        return error_set(err, RESHARD_ERR_FORMAT, "%s of %zu bytes is %08" PRIx32 ", stored %08" PRIx32, name, size, found, stored);
    call->out = (uint8_t *)(uintptr_t)bytes;
    call->made = size;
    return RESHARD_OK;
}

static reshard_status take_slice(struct chain_call *call, reshard_error *err)
{
    const struct chain_step *step = call->step;
    if (call->in_size != step->slice_within || !range_fits(step->slice_offset, step->slice_bytes, call->in_size))
        return error_set(err, RESHARD_ERR_FORMAT, "the %" PRIu64 " bytes from %" PRIu64 " on reach beyond the shard's %zu",
                         step->slice_bytes, step->slice_offset, call->in_size);
    call->out = (uint8_t *)(uintptr_t)(call->in + step->slice_offset);
    call->made = (size_t)step->slice_bytes;
    return RESHARD_OK;
}

/* ---- sizes ---- */

/* Size of what a step makes `decoded` bytes of, where that depends on nothing else. false: it depends on the content. */
static bool stored_bytes(const struct chain_step *step, uint64_t decoded, uint64_t *out)
{
    unsigned stored = dtype_element_bytes(step->stored.dtype), shown = dtype_element_bytes(step->shown.dtype);
    const struct ggml_block_info *block;
    switch (step->kind) {
    case CHAIN_CRC32C:
    case CHAIN_CRC32:
    case CHAIN_ADLER32:
        return checked_add_u64(decoded, CHECKSUM_BYTES, out);
    case CHAIN_SHUFFLE:
        *out = decoded;
        return true;
    case CHAIN_DELTA:
    case CHAIN_ASTYPE:
    case CHAIN_SCALE:
        return shown && decoded % shown == 0 && checked_mul_u64(decoded / shown, stored, out);
    case CHAIN_PACKBITS:
        *out = 1 + (decoded + 7) / 8;
        return true;
    case CHAIN_SLICE:
        *out = step->slice_within;
        return true;
    case CHAIN_BLOCKS:
        block = ggml_block_info(step->block);
        *out = decoded / (block->elements * sizeof(float)) * block->bytes;
        return decoded % (block->elements * sizeof(float)) == 0;
    default:
        return false;
    }
}

/* A step's result: exactly so many bytes, or at most. */
struct chain_size {
    uint64_t bytes;
    bool is_exact;
};

/* What each step has to make: known from the end as far as sizes follow from each other, bounded before. */
static bool chain_sizes_of(const struct chain *chain, struct chain_size *sizes)
{
    struct chain_size size = { chain->decoded_bytes, true };
    for (uint32_t i = chain->step_count; i > 0; i--) {
        const struct chain_step *step = &chain->steps[i - 1];
        uint64_t stored;
        sizes[i - 1] = size;
        bool is_compressor = step->kind < CHAIN_CRC32C;
        if (!is_compressor && !stored_bytes(step, size.bytes, &stored))
            return false;
        if (is_compressor) {
            /* A compressor adds a little at most to what it cannot compress. */
            uint64_t spare = size.bytes / 16 + SLACK_BYTES;
            stored = UINT64_MAX - spare < size.bytes ? UINT64_MAX : size.bytes + spare;
        }
        size.is_exact = step->kind == CHAIN_SLICE || (size.is_exact && !is_compressor);
        size.bytes = stored;
    }
    return true;
}

reshard_status chain_check(const struct chain *chain, reshard_error *err)
{
    struct chain_size sizes[CHAIN_STEPS_MAX];
    if (chain->step_count > CHAIN_STEPS_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%" PRIu32 " codecs one after the other, at most %d are supported",
                         chain->step_count, CHAIN_STEPS_MAX);
    for (uint32_t i = 0; i < chain->step_count; i++) {
        const char *library;
        if (!chain_kind_is_built_in(chain->steps[i].kind, &library))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%s' needs %s, and this reshard was built without it",
                             rows[chain->steps[i].kind].name, library);
    }
    if (!chain_sizes_of(chain, sizes))
        return error_set(err, RESHARD_ERR_FORMAT, "the filters do not fit a chunk of %" PRIu64 " bytes", chain->decoded_bytes);
    return RESHARD_OK;
}

/* ---- decoding ---- */

reshard_status chain_too_long(const struct chain_call *call, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "%s data of %zu bytes decodes to more than the %zu expected", rows[call->step->kind].name,
                     call->in_size, call->room);
}

/* Never where the step's input lies: that is in the other one. */
static reshard_status room_make(struct chain_call *call, uint64_t room, reshard_error *err)
{
    struct buffer *between = &call->scratch->between[call->rooms++ % 2];
    buffer_clear(between);
    call->out = buffer_extend(between, room ? (size_t)room : 1);
    call->room = (size_t)room;
    return call->out ? RESHARD_OK : error_set_memory(err);
}

/* The last step that makes bytes of its own, counted from 1: it writes them where they are wanted. */
static uint32_t last_maker(const struct chain *chain)
{
    uint32_t last = chain->step_count;
    while (last > 0 && rows[chain->steps[last - 1].kind].is_view)
        last--;
    return last;
}

static bool step_writes_result(const struct chain *chain, const struct chain_size *sizes, uint32_t step)
{
    return step + 1 == last_maker(chain) && sizes[step].is_exact && sizes[step].bytes == chain->decoded_bytes;
}

uint64_t chain_between_bytes(const struct chain *chain)
{
    struct chain_size sizes[CHAIN_STEPS_MAX];
    uint64_t largest[2] = { 0, 0 }, sum;
    unsigned rooms = 0;
    if (chain->literal || !chain_sizes_of(chain, sizes))
        return 0;
    for (uint32_t i = 0; i < chain->step_count; i++) {
        if (rows[chain->steps[i].kind].is_view || step_writes_result(chain, sizes, i))
            continue;
        uint64_t *room = &largest[rooms++ % 2];
        *room = sizes[i].bytes > *room ? sizes[i].bytes : *room;
    }
    return checked_add_u64(largest[0], largest[1], &sum) ? sum : UINT64_MAX;
}

uint64_t chain_made_bytes(const struct chain *chain)
{
    uint64_t largest = chain->decoded_bytes, cost;
    bool is_slow = false;
    for (uint32_t i = 0; i < chain->step_count; i++) {
        if (chain->steps[i].kind == CHAIN_SLICE && chain->steps[i].slice_within > largest)
            largest = chain->steps[i].slice_within;
        is_slow |= chain->steps[i].kind == CHAIN_BZ2 || chain->steps[i].kind == CHAIN_LZMA;
    }
    return !is_slow ? largest : checked_mul_u64(largest, SLOW_FACTOR, &cost) ? cost : UINT64_MAX;
}

reshard_status chain_decode(const struct chain *chain, const void *in, size_t size, void *out, struct chain_scratch *scratch,
                            reshard_error *err)
{
    struct chain_size sizes[CHAIN_STEPS_MAX];
    struct chain_call call = { .scratch = scratch, .out = (uint8_t *)(uintptr_t)in, .made = size };
    if (!chain_sizes_of(chain, sizes))
        return error_set(err, RESHARD_ERR_FORMAT, "the filters do not fit a chunk of %" PRIu64 " bytes", chain->decoded_bytes);
    for (uint32_t i = 0; i < chain->step_count; i++) {
        const struct chain_row *row = &rows[chain->steps[i].kind];
        reshard_status status = RESHARD_OK;
        call.step = &chain->steps[i];
        call.in = call.out;
        call.in_size = call.made;
        call.made = 0;
        if (!row->is_view && step_writes_result(chain, sizes, i)) {
            call.out = out;
            call.room = (size_t)sizes[i].bytes;
        } else if (!row->is_view) {
            status = room_make(&call, sizes[i].bytes, err);
        }
        if (!status)
            status = row->decode(&call, err);
        if (status)
            return status;
        if (call.made != sizes[i].bytes && (sizes[i].is_exact || call.made > sizes[i].bytes))
            return error_set(err, RESHARD_ERR_FORMAT, "%s data of %zu bytes decodes to %zu bytes, expected %" PRIu64, row->name,
                             call.in_size, call.made, sizes[i].bytes);
    }
    if (call.made != chain->decoded_bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu decoded bytes, expected %" PRIu64, call.made, chain->decoded_bytes);
    if (call.out != out && call.made)
        memcpy(out, call.out, call.made);
    return RESHARD_OK;
}

reshard_status chain_decode_bounded(const struct chain_step *steps, uint32_t count, const void *in, size_t size, uint64_t bytes_max,
                                    struct chain_scratch *scratch, struct buffer *out, reshard_error *err)
{
    struct chain_call call = { .scratch = scratch, .out = (uint8_t *)(uintptr_t)in, .made = size };
    for (uint32_t i = 0; i < count; i++) {
        reshard_status status = RESHARD_OK;
        call.step = &steps[i];
        call.in = call.out;
        call.in_size = call.made;
        call.made = 0;
        if (!rows[steps[i].kind].is_view)
            status = room_make(&call, bytes_max, err);
        if (!status)
            status = rows[steps[i].kind].decode(&call, err);
        if (status)
            return status;
    }
    return buffer_append(out, call.out, call.made) ? RESHARD_OK : error_set_memory(err);
}

void chain_scratch_release(struct chain_scratch *scratch)
{
    buffer_release(&scratch->between[0]);
    buffer_release(&scratch->between[1]);
    chain_inflate_free(scratch->inflate);
    chain_unzstd_free(scratch->zstd);
    *scratch = (struct chain_scratch){ 0 };
}

reshard_status chain_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    const char *library;
    if (!chain_kind_is_built_in(packing->kind, &library))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%s' needs %s, and this reshard was built without it",
                         rows[packing->kind].name, library);
    if (!rows[packing->kind].pack)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%s' can only be read", rows[packing->kind].name);
    return rows[packing->kind].pack(packing, bytes, size, out, err);
}
