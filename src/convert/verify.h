/* SPDX-License-Identifier: Apache-2.0 */
/* Verify: what opening proves already (structure, coverage), then stored checksums, replicas, the sidecar and, deep, the values. */
#ifndef CONVERT_VERIFY_H
#define CONVERT_VERIFY_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/team.h"

/*
 * What verify has looked at. "Checked" is what a stored checksum or the sidecar covers, so that damage cannot go unnoticed; of the rest
 * only the structure was proved: sizes, and that every element is stored exactly once.
 */
struct verify_coverage {
    uint64_t tensors, bytes, checked_tensors, checked_bytes; /* a tensor counts with all its bytes, as it is shown */
    uint64_t items, checked_items;
    uint64_t replicas; /* copies of chunks, each compared with its first */
    bool names_are_checked, has_sidecar;
    uint64_t elements;
    uint64_t read_bytes, checksums; /* of payload, however often; that were compared */
};

enum verify_fail { VERIFY_FAIL_NAN = 1, VERIFY_FAIL_INF = 2, VERIFY_FAIL_ZERO = 4 };

struct verify_options {
    bool is_deep;                     /* also read all values */
    bool expects_optimizer;           /* every trainable weight must have its optimizer states */
    const char *against;              /* path of what names and shapes are compared with; NULL: nothing */
    const struct open_options *open;  /* how that is opened; needed with it */
    unsigned fail_on;                 /* VERIFY_FAIL_…: what else is a failure; all values are read then */
    struct verify_coverage *coverage; /* is filled unless verify stops with an error; may be NULL */
    void (*uncovered)(void *context, struct str key,
                      uint64_t bytes); /* is told each tensor with values that no checksum covers; may be NULL */
    void *context;
    struct team *team; /* ranks that share the reading; all get the same result. NULL: none */
};

/* Whether a stored checksum or the sidecar covers all bytes of a tensor, so that damage cannot go unnoticed. */
struct sidecar_cover;
bool verify_is_checked(const struct catalog *catalog, uint32_t tensor, const struct sidecar_cover *cover);

/* RESHARD_OK or RESHARD_DIFFERS (there was a failure), or the error that stopped it. */
reshard_status verify_run(struct checkpoint *checkpoint, const struct verify_options *options, const struct engine_options *engine,
                          struct finding_sink *findings, reshard_error *err);

#endif
