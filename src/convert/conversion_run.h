/* SPDX-License-Identifier: Apache-2.0 */
/* What runs of conversions consist of: those of a whole, and those of parts. Nobody else includes this. */
#ifndef CONVERT_CONVERSION_RUN_H
#define CONVERT_CONVERSION_RUN_H

#include "convert/conversion.h"

struct run {
    struct conversion *conversion;
    struct store *store;           /* the caller's that the target goes to; NULL: the file system */
    struct store_txn *txn;
    struct store_object **objects; /* by target catalog object */
    uint32_t *crcs;                /* by target chunk */
    struct buffer sidecar;         /* of the target, if one is wanted */
    char *sidecar_name;            /* in a directory */
    bool is_moved;                 /* all payload is */
};

bool run_is_directory(const struct conversion *conversion);

/* Whether objects are compressed once their payload is there. */
bool run_is_packed(const struct conversion *conversion);

/* Of a resumable run: what is planned, under which names, and the source files as they are. A name that the store cannot take counts as no
 * file. */
uint64_t run_identity(const struct conversion *conversion);

/* Up to here nothing is written, and the caller's process may as well end; it learns from this call that this is over. */
reshard_status run_announce(const struct conversion *conversion, reshard_error *err);

/* Creates the objects into which the part of the plan has steps; NULL: all. */
reshard_status run_create_objects(struct run *run, const struct plan *part, reshard_error *err);
void run_close_objects(struct run *run);
reshard_status run_publish(struct run *run, reshard_error *err);

/* What precedes the payload of a whole, and what follows it up to run_check: nothing is visible yet. */
reshard_status run_begin(struct run *run, const char *target_path, reshard_error *err);
reshard_status run_end(struct run *run, reshard_error *err);

/* Reads the unpublished target back, as a stranger would; but what the source needed raised limits for, the target may need them for too.
 */
reshard_status run_check(struct run *run, reshard_error *err);

/* Asks once more, then replaces what was there. */
reshard_status run_commit(struct run *run, const char *target_path, reshard_error *err);

/* What is left when the transaction has ended. */
void run_release(struct run *run);

/* Writes options->part of the payload, and leaves it beside the target. */
reshard_status conversion_run_part(struct conversion *conversion, const char *target_path, reshard_error *err);

#endif
