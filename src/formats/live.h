/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live state: shards in memory as a source. It is no format: nothing is probed for it, and it cannot be asked for by name; but everything
 * that takes a source takes it.
 */
#ifndef FORMATS_LIVE_H
#define FORMATS_LIVE_H

#include "formats/driver.h"
#include "tensor/shard.h"

struct live_item {
    struct str key, json;
    struct str file;           /* in place of json: a file of torch.save, whose object is the value */
    const struct value *value; /* in place of both; copied */
    uint32_t value_count;      /* of the graph that it is in */
};

/* What the source is made of. All of it is copied but the values, which must outlive the source. */
struct live_state {
    const struct shard *shards;
    size_t shard_count;
    const struct live_item *items;
    size_t item_count;
};

/* A source that is the catalog, for those who look at names alone: there is no store, and nothing to free. */
void live_source_of(struct catalog *catalog, const struct limits *limits, struct source *out);

reshard_status live_source_open(const struct live_state *state, const struct open_options *options, struct source **out,
                                reshard_error *err);

#endif
