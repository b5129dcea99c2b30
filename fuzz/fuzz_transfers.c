/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of transfers as they are read back: what is taken comes out the same, and its transfers stay within the shards. */
#include "convert/kept_transfers.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static bool is_inside(const struct shard *shard, uint64_t offset, const struct copy_spec *spec, const int64_t *strides, enum dtype dtype)
{
    uint64_t span, end = offset + dtype_element_bytes(dtype);
    for (int axis = 0; axis < spec->rank; axis++)
        end += (uint64_t)(spec->extent[axis] - 1) * (uint64_t)strides[axis];
    return shard_span(shard, &span) && end <= span;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct kept_transfers kept;
    struct buffer packed = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(kept_transfers_unpack((struct str){ (const char *)bytes, size }, &kept, &err), &err)) {
        const struct transfers *transfers = &kept.transfers;
        if (kept_transfers_pack(&kept, &packed, NULL) || packed.size != size || memcmp(packed.data, bytes, size) != 0)
            abort();
        for (uint32_t i = 0; i < transfers->plan->step_count; i++) {
            struct kept_transfer transfer;
            const struct plan_step *step = &transfers->plan->steps[i];
            const struct shard *source = transfers_source(transfers, i);
            const struct shard *target = &transfers->targets.shards[transfers->target->chunks[step->target_chunk].object];
            if (kept_transfer_at(&kept, i, &transfer, NULL))
                break;
            const struct copy_spec *spec = &transfer.spec;
            outcome_number(transfer.source_offset);
            outcome_number(transfer.target_offset);
            if (!is_inside(source, transfer.source_offset, spec, spec->source_stride, spec->source_dtype) ||
                !is_inside(target, transfer.target_offset, spec, spec->target_stride, spec->target_dtype))
                abort();
        }
    }
    buffer_release(&packed);
    kept_transfers_release(&kept);
    return 0;
}
