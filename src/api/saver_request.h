/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save in the background, as bytes beside the copies of its values: who writes reads it from memory that the other side can still change,
 * so it is copied first, and read as anything from outside is.
 */
#ifndef API_SAVER_REQUEST_H
#define API_SAVER_REQUEST_H

#include "reshard/sharded.h"

#include "api/items_pack.h"
#include "base/buffer.h"
#include "parallel/shard_list.h"
#include "parallel/sharded_dict.h"

/* What a caller asks for; versions have been dealt with. */
struct saver_request {
    const struct shard_list *shards; /* or NULL, and: */
    const struct sharded_dict *sharded;
    const reshard_state_item *items;
    size_t item_count;
    const struct reshard_items *values; /* or NULL */
    const char *name, *path;
    const reshard_convert_options *options;
    const reshard_run_options *run;
};

size_t saver_request_count(const struct saver_request *request);
const struct shard *saver_request_shard(const struct saver_request *request, size_t index);

/* USAGE names a member that has no place in a save in the background. */
reshard_status saver_request_check(const struct saver_request *request, reshard_error *err);

/* Appends the request. offsets: by shard, where the copy of its values begins; of a tensor without values it does not matter. */
reshard_status saver_request_write(const struct saver_request *request, const uint64_t *offsets, struct buffer *out, reshard_error *err);

/* A request that has been read: what is to be saved, open, and how. { 0 } is valid and empty. */
struct saver_work {
    struct arena arena;
    reshard_convert_options options;
    reshard_run_options run;
    const char *path, *name;
    reshard_shards *shards;
    struct packed_items items;
    reshard_checkpoint *live;
    reshard_sharded *sharded; /* in place of the two */
};

/* Reads a request, whose bytes are the caller's own and stay; its values are those at `values`. FORMAT if it is none. Release *out on
 * failure too. */
reshard_status saver_work_read(const uint8_t *bytes, size_t size, const uint8_t *values, uint64_t values_size, struct saver_work *out,
                               reshard_error *err);
void saver_work_release(struct saver_work *work);

/* Reads it and does it, with all ranks of the group if there is one. */
reshard_status saver_request_run(const uint8_t *bytes, size_t size, const uint8_t *values, uint64_t values_size, reshard_comm *comm,
                                 reshard_error *err);

#endif
