/* SPDX-License-Identifier: Apache-2.0 */
/* zlib, gzip and bare deflate data, whole: ISA-L is some three times as fast as zlib here. */
#include "encoding/chain_parts.h"

#include <isa-l/igzip_lib.h>
#include <stdlib.h>

void chain_inflate_free(void *state)
{
    free(state);
}

static const char *complaint_of(int result)
{
    switch (result) {
    case ISAL_END_INPUT:
        return "the data ends in the middle";
    case ISAL_INVALID_BLOCK:
        return "invalid block";
    case ISAL_INVALID_SYMBOL:
        return "invalid symbol";
    case ISAL_INVALID_LOOKBACK:
        return "distance too far back";
    case ISAL_INVALID_WRAPPER:
        return "invalid header";
    case ISAL_UNSUPPORTED_METHOD:
        return "unknown method";
    case ISAL_INCORRECT_CHECKSUM:
        return "wrong checksum";
    case ISAL_NEED_DICT:
        return "a dictionary is needed";
    default:
        return "the stream makes no sense";
    }
}

static uint32_t flavour_of(enum chain_kind kind)
{
    return kind == CHAIN_ZLIB ? ISAL_ZLIB : kind == CHAIN_GZIP ? ISAL_GZIP : ISAL_DEFLATE;
}

reshard_status chain_inflate(struct chain_call *call, reshard_error *err)
{
    const char *name = chain_kind_name(call->step->kind);
    struct inflate_state *state = call->scratch->inflate;
    if (!state)
        state = call->scratch->inflate = malloc(sizeof(*state));
    if (!state)
        return error_set_memory(err);
    if (call->in_size > UINT32_MAX || call->room > UINT32_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s data of %zu bytes for %zu: at most 2^32 - 1 are supported", name, call->in_size,
                         call->room);
    size_t left = call->in_size;
    const uint8_t *next = call->in;
    do {
        uint8_t nowhere;
        isal_inflate_init(state);
        state->crc_flag = flavour_of(call->step->kind);
        state->next_in = (uint8_t *)(uintptr_t)next;
        state->avail_in = (uint32_t)left;
        state->next_out = call->room > call->made ? call->out + call->made : &nowhere;
        state->avail_out = (uint32_t)(call->room - call->made);
        int result = isal_inflate_stateless(state);
        if (result == ISAL_OUT_OVERFLOW)
            return chain_too_long(call, err);
        if (result != ISAL_DECOMP_OK)
            return error_set(err, RESHARD_ERR_FORMAT, "invalid %s data: %s", name, complaint_of(result));
        call->made += state->total_out;
        /* Whole bytes that were taken ahead into the bit buffer are not used up. */
        size_t unused = state->avail_in + (state->read_in_length > 0 ? (size_t)state->read_in_length / 8 : 0);
        next += left - unused;
        left = unused;
    } while (left > 0 && call->step->kind == CHAIN_GZIP); /* members of a gzip file follow each other */
    if (left > 0)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes follow the end of the %s stream", left, name);
    return RESHARD_OK;
}
