/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a `.metadata`: what the fast way decodes, the general way must decode to the same. */
#include "../tests/formats/dcp_metadata_text.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct limits limits = limits_default;
    struct dcp_metadata fast, general;
    struct buffer a = { 0 }, b = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    limits.memo_gap = 10000;
    limits.chunks = 100000;
    reshard_status fast_status = outcome_status(dcp_metadata_decode(data, size, &limits, DCP_DECODE_BEST, &fast, &err), &err);
    reshard_status general_status = outcome_status(dcp_metadata_decode(data, size, &limits, DCP_DECODE_GENERAL, &general, &err), &err);
    if (fast_status != general_status && fast_status != RESHARD_ERR_LIMIT && general_status != RESHARD_ERR_LIMIT)
        abort();
    if (!general_status) {
        dcp_metadata_text(&b, &general);
        outcome_text(buffer_str(&b));
    }
    if (!fast_status && !general_status && fast.is_fast) {
        outcome_number(fast.is_fast);
        dcp_metadata_text(&a, &fast);
        if (!str_equal(buffer_str(&a), buffer_str(&b)))
            abort();
    }
    buffer_release(&a);
    buffer_release(&b);
    dcp_metadata_release(&fast);
    dcp_metadata_release(&general);
    return 0;
}
