/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that copies of shards are kept in until they are written: anonymous, growing to what the largest save needs, and kept from save to
 * save. Another process can be handed its descriptor, and cannot make it shorter under our hands, nor we under its.
 */
#ifndef API_SAVER_STAGING_H
#define API_SAVER_STAGING_H

#include "api/saver_request.h"

struct saver_staging {
    int fd; /* -1: none yet */
    uint8_t *memory;
    uint64_t size;
    uint64_t request_at, request_size; /* behind the values: what is to be done */
};
#define SAVER_STAGING_NONE                                                                                                                 \
    {                                                                                                                                      \
        .fd = -1                                                                                                                           \
    }

typedef int (*saver_copy)(void *to, const void *from, size_t bytes, void *context);

/* Copies all values and writes the request. copy: NULL: memcpy. */
reshard_status saver_stage(struct saver_staging *staging, const struct saver_request *request, saver_copy copy, void *context,
                           reshard_error *err);
void saver_staging_release(struct saver_staging *staging);

/* Does what is staged, in this process; with all ranks of a group, if there is one. */
reshard_status saver_staging_run(const struct saver_staging *staging, reshard_comm *comm, reshard_error *err);

/* The same of a descriptor from another process, which it closes. FORMAT if it is no such memory. */
reshard_status saver_staging_run_foreign(int fd, uint64_t request_at, uint64_t request_size, reshard_error *err);

#endif
