/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of transfers as they are read back: what is taken comes out the same, and its transfers stay within the shards. A plan that is not
 * the one of its descriptions is refused by its last byte; so that what lies behind that is reached, the plan of the descriptions is
 * written down then, and has to be taken.
 */
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

static void transfers_check(const struct kept_transfers *kept)
{
    const struct transfers *transfers = &kept->transfers;
    for (uint32_t i = 0; i < transfers->plan->step_count; i++) {
        struct kept_transfer transfer;
        const struct plan_step *step = &transfers->plan->steps[i];
        const struct shard *source = transfers_source(transfers, i);
        const struct shard *target = &transfers->targets.shards[transfers->target->chunks[step->target_chunk].object];
        if (kept_transfer_at(kept, i, &transfer, NULL))
            break;
        const struct copy_spec *spec = &transfer.spec;
        outcome_number(transfer.source_offset);
        outcome_number(transfer.target_offset);
        if (!is_inside(source, transfer.source_offset, spec, spec->source_stride, spec->source_dtype) ||
            !is_inside(target, transfer.target_offset, spec, spec->target_stride, spec->target_dtype))
            abort();
    }
}

/* Bytes that were written of a plan are that plan. */
static void kept_check(const struct kept_transfers *kept, struct str bytes)
{
    struct buffer packed = { 0 };
    if (kept_transfers_pack(kept, &packed, NULL) || packed.size != bytes.size || memcmp(packed.data, bytes.data, bytes.size) != 0)
        abort();
    transfers_check(kept);
    buffer_release(&packed);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct kept_transfers kept, again;
    struct buffer packed = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(kept_transfers_unpack((struct str){ (const char *)bytes, size }, &kept, &err), &err)) {
        kept_check(&kept, (struct str){ (const char *)bytes, size });
    } else if (kept.transfers.plan && !kept_transfers_pack(&kept, &packed, NULL)) {
        if (kept_transfers_unpack(buffer_str(&packed), &again, &err))
            abort();
        kept_check(&again, buffer_str(&packed));
        kept_transfers_release(&again);
    }
    buffer_release(&packed);
    kept_transfers_release(&kept);
    return 0;
}
