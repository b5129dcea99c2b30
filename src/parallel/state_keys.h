/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of optimizer state, and what they say. With several optimizers a key has chained_<k>. in front.
 *
 *   optimizer.state.<state>.<parameter>                       by parameter; <state> is exp_avg, …, and param or fp32_param for masters
 *   optimizer.state.module.<parameter>.<state>                Megatron-FSDP: the parameter, which is named below module, comes first
 *   optimizer.state.<number>.<state>                          by number, as torch's optimizers have it
 *   optimizer.param_to_group_meta.<parameter>.<member>        an item: a setting of the parameter's group
 *   optimizer.distributed.dp_group_idx_<i>.<what>             of the ranks that share buffers, where <what> is
 *     gbuf_idx_<g>.dtype_(<p>, <g>).bucket_idx_<b>.<state>      a vector: the state of the parameters in one bucket
 *     param_state/shard_0_1                                     an object: buffers of all kinds of state
 *     per_bucket_numel/shard_0_1                                an object: how large buckets are,
 *     per_bucket_numel_unpadded/shard_0_1                         and without the padding at their ends
 *     optimizer/shard_0_1, grad_scaler/shard_0_1                objects: parameter groups, scaler of the loss
 *
 * This is the only place that reads them.
 */
#ifndef PARALLEL_STATE_KEYS_H
#define PARALLEL_STATE_KEYS_H

#include "base/buffer.h"
#include "base/str.h"
#include "tensor/dtype.h"

#define STATE_KEY_ANY "optimizer."          /* of keys of state, however it is stored */
#define STATE_KEY_PREFIX "optimizer.state." /* of keys by parameter */
#define STATE_KEY_META "optimizer.param_to_group_meta."
#define STATE_KEY_GROUP "optimizer.distributed.dp_group_idx_"
#define STATE_KEY_DENSE "chained_0."        /* in front, where experts have an optimizer of their own */
#define STATE_KEY_EXPERTS "chained_1."
#define STATE_MASTER "param"                /* the distributed optimizer's fp32 copies of parameters */
#define STATE_PLAIN_MASTER "fp32_param"     /* those of an optimizer that is not distributed */

enum state_key_kind {
    STATE_KEY_NONE,            /* no optimizer state */
    STATE_KEY_OTHER,           /* the optimizer's, but nothing of the above: optimizer.state.common_step */
    STATE_KEY_PARAMETER,
    STATE_KEY_NUMBERED,
    STATE_KEY_GROUP_META,
    STATE_KEY_BUCKET,
    STATE_KEY_BUFFERS,
    STATE_KEY_BUCKET_SIZES,
    STATE_KEY_UNPADDED_SIZES,
    STATE_KEY_GROUPS,
    STATE_KEY_SCALER
};

/* Numbers are -1 and texts empty where the key says nothing. Texts are parts of the key. */
struct state_key {
    enum state_key_kind kind;
    int64_t chain;             /* which optimizer of several */
    struct str plain;          /* the key without it */
    struct str state;          /* "exp_avg"; of group meta the member */
    struct str parameter;      /* its key */
    bool is_master;            /* the state is the parameter in high precision */
    int64_t group, buffer, bucket;
    enum dtype param_dtype, grad_dtype; /* of a bucket */
    struct str shard;          /* of an object, behind the slash: "shard_0_1" */
};

/* False if the key is no optimizer state. */
bool state_key_read(struct str key, struct state_key *out);

/* Whether it is optimizer state, stored in whatever way. */
bool state_key_is_any(struct str key);

/*
 * What a key may say in the spelling of any framework, where only the names of states are known:
 *   optimizer.state.exp_avg.w    Megatron     (`state`, the state's name, the weight, behind anything)
 *   optim.state.w.exp_avg        torch (DCP)  (`state`, the weight, the state's name, behind anything)
 *   w-exp_avg                    FSDP files
 *   w.exp_avg                    others
 */
struct state_spelling {
    struct str state;  /* its name */
    struct str name;   /* of the weight */
    struct str before; /* what stands before the word `state`: "app.optim." */
};

/* The index-th way to read the key; false if there are no more. */
bool state_spelling_read(struct str key, int index, bool (*is_state)(struct str word), struct state_spelling *out);

/* Masters have one of two names, by the kind of optimizer. Writes the key with the other one; false if it is no master's, or without memory
 * (out->failed). */
bool state_key_other_master(struct str key, struct buffer *out);

/*
 * Masters of dtype I16 are remainders, as precision-aware optimizers keep them (store_param_remainders): the low 16 bits, whose high ones
 * are the weight in bf16. They are no numbers, and mean nothing apart from that weight. Fails, and says so of the tensor of that key.
 */
reshard_status state_refuse_remainders(struct str key, reshard_error *err);

/* Whether it is one of this kind; an object must be whole: /shard_0_1. */
bool state_key_is(struct str key, enum state_key_kind kind);

#endif
