/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as `<uid>.metadata` of Flex Checkpoint: what the fast way decodes, the general way must decode to the same. */
#include "../tests/formats/flex_metadata_text.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct limits limits = limits_default;
    struct flex_metadata fast, general;
    struct buffer a = { 0 }, b = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    limits.memo_gap = 10000;
    limits.chunks = 100000;
    reshard_status fast_status = outcome_status(flex_metadata_decode(data, size, &limits, FLEX_DECODE_BEST, &fast, &err), &err);
    reshard_status general_status = outcome_status(flex_metadata_decode(data, size, &limits, FLEX_DECODE_GENERAL, &general, &err), &err);
    if (fast_status != general_status && fast_status != RESHARD_ERR_LIMIT && general_status != RESHARD_ERR_LIMIT)
        abort();
    if (!general_status) {
        flex_text_of(&b, &general);
        outcome_text(buffer_str(&b));
    }
    if (!fast_status && !general_status && fast.is_fast) {
        outcome_number(fast.is_fast);
        flex_text_of(&a, &fast);
        if (!str_equal(buffer_str(&a), buffer_str(&b)))
            abort();
    }
    buffer_release(&a);
    buffer_release(&b);
    flex_metadata_release(&fast);
    flex_metadata_release(&general);
    return 0;
}
