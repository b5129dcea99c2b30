/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A distributed optimizer keeps the state of a rank's parameters in flat buffers: where each parameter lies in them. Pure arithmetic over
 * the parameters in registration order, chunk after chunk; the same function serves reading and writing. The numbers that frameworks
 * choose differently (sizes of buckets, alignment) are rules that the caller gives.
 *
 * A buffer holds the parameters of one model chunk that have the same pair of dtypes, in reverse order of registration. It is cut into
 * buckets; every data-parallel rank owns an equal part of each bucket. Files hold the buckets without the padding at their ends.
 */
#ifndef PARALLEL_FLAT_BUFFERS_H
#define PARALLEL_FLAT_BUFFERS_H

#include "base/error.h"
#include "base/str.h"
#include "tensor/dtype.h"

/* A parameter of one rank. The order of an array of them is the order of registration: that of the dict `model` in the rank's own file. */
struct rank_parameter {
    struct str name;           /* as the rank calls it, for messages */
    enum dtype param_dtype;    /* of the weight */
    enum dtype grad_dtype;     /* of its gradient buffer: F32, or the weight's where gradients are reduced in 16 bits */
    int rank;
    const int64_t *shape;      /* the local one */
    uint32_t chunk;            /* virtual pipeline chunk */
    bool is_expert;            /* belongs to the expert-parallel optimizer: an expert's weight, and EP > 1 */
    bool is_embedding;         /* embedding or output layer: may have a learning rate of its own */
    bool is_shared_embedding;  /* tied embedding on the first or last of several stages: has a bucket of its own */
};

struct flat_buffer_rules {
    int64_t dp;                /* ranks that share a buffer: DP x CP, for experts their own DP */
    int64_t bucket_size;       /* elements from which on a bucket is closed; 0: one bucket */
    int64_t alignment;         /* of a parameter's start: 64, and 1 up to Megatron Core 0.6 */
    int64_t
        bucket_multiple; /* a bucket's padded size is a multiple of lcm(dp, this): 128; 65536 for high NCCL bandwidth; 1 in old versions */
    uint32_t
        bucketed_chunks; /* chunks before this one have buckets of bucket_size, the others one bucket: 1, and 0 on stages after the first */
};

struct flat_place {
    uint32_t parameter;        /* index into the parameters */
    uint32_t bucket;           /* of the buffers' buckets */
    int64_t start, count;      /* elements of the buffer, padding counted */
};

struct flat_bucket {
    int64_t start;             /* in the buffer, padding counted */
    int64_t packed_start;      /* in the buffer without the padding at the ends of buckets */
    int64_t count;             /* with the padding at its end */
    int64_t unpadded;          /* without it */
    uint32_t first_place, place_count;
};

struct flat_buffer {
    enum dtype param_dtype, grad_dtype;
    uint32_t chunk;
    uint32_t first_parameter, end_parameter; /* its parameters are among these */
    uint32_t first_bucket, bucket_count;
    uint32_t first_place, place_count;
    int64_t count, unpadded;   /* sums over its buckets */
};

/* Buffers in the order of their numbers in files (gbuf_idx); places in the order of a buffer. */
struct flat_buffers {
    struct flat_buffer *buffers;
    struct flat_bucket *buckets;
    struct flat_place *places;
    uint32_t buffer_count, bucket_count, place_count;
};

/* The buffers of the parameters with is_expert as given. Sizes are checked; on failure *out is empty. */
reshard_status flat_buffers_make(const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                 const struct flat_buffer_rules *rules, struct flat_buffers *out, reshard_error *err);
void flat_buffers_release(struct flat_buffers *buffers);

/* Where the place begins in the buffer without the padding at the ends of buckets: its offset in distrib_optim.pt. */
int64_t flat_packed_start(const struct flat_buffers *buffers, const struct flat_place *place);

/*
 * What files say about the sizes of one optimizer's buffers, in order. A rule set that gives other sizes is not the one that the file was
 * written with.
 */
struct flat_sizes {
    const int64_t *unpadded;     /* by buffer */
    uint32_t buffer_count;
    bool may_be_padded;          /* old files: the sizes may count the padding at the end of the buffer's last bucket */
    const int64_t *per_bucket, *per_bucket_unpadded; /* by bucket of all buffers, or NULL; per_bucket may be NULL alone */
    uint32_t bucket_count;
};

/*
 * Finds the rules that explain the sizes: the given ones first, then without buckets, then without alignment. *changed says that the given
 * ones do not. MALFORMED names the buffer, its size and what the rules give, if none does.
 */
reshard_status flat_buffers_match(const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct flat_buffer_rules *rules,
                                  const struct flat_sizes *sizes, struct flat_buffers *out, bool *changed, reshard_error *err);

#endif
