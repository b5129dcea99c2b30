/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as text: each byte is the code point of that number, in UTF-8, which takes one byte below 0x80 and two from there on. */
#include "encoding/compress_parts.h"

#include <stdlib.h>
#include <string.h>

#define LEAD_LOW 0xC2  /* U+0080 to U+00BF */
#define LEAD_HIGH 0xC3 /* U+00C0 to U+00FF */

struct latin1_state {
    uint8_t lead; /* first byte of a character whose second is still to come; 0: none */
};

static void *latin1_open(void)
{
    return calloc(1, sizeof(struct latin1_state));
}

static void latin1_close(void *state)
{
    free(state);
}

static bool latin1_may_end(const void *state)
{
    return !((const struct latin1_state *)state)->lead;
}

/* One byte of text, with which a character may end; false if it cannot stand here. */
static bool latin1_take(struct latin1_state *state, uint8_t byte, struct codec_span *span)
{
    if (state->lead) {
        if ((byte & 0xC0) != 0x80)
            return false;
        *span->out++ = (uint8_t)(state->lead << 6 | (byte & 0x3F));
        span->out_size--;
        state->lead = 0;
        return true;
    }
    if (byte < 0x80) {
        *span->out++ = byte;
        span->out_size--;
        return true;
    }
    state->lead = byte;
    return byte == LEAD_LOW || byte == LEAD_HIGH;
}

static enum codec_result latin1_decode(void *state, struct codec_span *span)
{
    while (span->in_size && span->out_size) {
        if (!latin1_take(state, *span->in, span))
            return CODEC_DAMAGED;
        span->in++;
        span->in_size--;
    }
    return CODEC_MORE;
}

static const char *latin1_complaint(const void *state)
{
    (void)state;
    return "a character beyond U+00FF, or no UTF-8 at all";
}

static reshard_status latin1_encode(int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    (void)level;
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < size; i++) {
        if (byte[i] >= 0x80)
            buffer_append_byte(out, (uint8_t)(0xC0 | byte[i] >> 6));
        buffer_append_byte(out, byte[i] < 0x80 ? byte[i] : (uint8_t)(0x80 | (byte[i] & 0x3F)));
    }
    return out->failed ? buffer_error(out, err) : RESHARD_OK;
}

const struct codec_library codec_latin1 = {
    .name = "latin1",
    .open = latin1_open,
    .close = latin1_close,
    .may_end = latin1_may_end,
    .decode = latin1_decode,
    .complaint = latin1_complaint,
    .encode = latin1_encode,
};
