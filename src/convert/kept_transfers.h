/* SPDX-License-Identifier: Apache-2.0 */
/* A plan of resharding in memory that is kept: made once, run again and again, written down and read back. */
#ifndef CONVERT_KEPT_TRANSFERS_H
#define CONVERT_KEPT_TRANSFERS_H

#include "convert/redistribute.h"

struct kept_transfers {
    struct transfers transfers;
    uint64_t scratch_bytes;
    struct buffer map; /* the mapping as bytes (names/mapping_pack.h); empty: none */
    uint64_t hash;     /* of all that kept_transfers_pack writes */
};
void kept_transfers_release(struct kept_transfers *kept);

/* What is asked for: scratch, and a mapping. */
struct kept_transfers_options {
    uint64_t scratch_bytes;
    const struct mapping_options *map; /* or NULL */
};

/* Collective. Release *out on failure too. */
reshard_status kept_transfers_make(struct comm *comm, const struct shard_list *source, const struct shard_list *target,
                                   const struct kept_transfers_options *options, struct kept_transfers *out, reshard_error *err);

/* Of the lists of all ranks, which need no values. Release *out on failure too. */
reshard_status kept_transfers_plan(const struct shard_list *const *sources, const struct shard_list *const *targets, uint32_t ranks,
                                   const struct kept_transfers_options *options, struct kept_transfers *out, reshard_error *err);

/* Collective: the lists are those of the plan, with values anywhere. */
reshard_status kept_transfers_run(struct kept_transfers *kept, struct comm *comm, const struct shard_list *source,
                                  const struct shard_list *target, struct redistribution *redistribution, reshard_error *err);

/* A step with ranks and places: shards are counted within the lists of their ranks, spec is simplified. */
struct kept_transfer {
    struct exchange_step step;
    struct str key, source_key;         /* of the target's tensor, and of the source's */
    uint32_t source_shard, target_shard;
    uint64_t source_offset, target_offset, bytes;
    struct copy_spec spec;
};
reshard_status kept_transfer_at(const struct kept_transfers *kept, uint32_t index, struct kept_transfer *out, reshard_error *err);

/* include/reshard/transfers.h says what the bytes are. Nothing that comes in is trusted. Release *out on failure too. */
reshard_status kept_transfers_pack(const struct kept_transfers *kept, struct buffer *out, reshard_error *err);
reshard_status kept_transfers_unpack(struct str bytes, struct kept_transfers *out, reshard_error *err);

#endif
