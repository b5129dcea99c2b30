/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A team: ranks that look at the same checkpoints together. All open them and make the same calls; what takes long, reading values, is
 * shared out, and what each has found is told to all, so that every rank goes on as if it had read everything itself.
 *
 * Every step begins with an agreement under one name. So a rank that fails between two steps leaves, and its team_finish meets the others'
 * next step: all of them return its failure, and nobody waits in vain.
 */
#ifndef CONVERT_TEAM_H
#define CONVERT_TEAM_H

#include "base/buffer.h"
#include "comm/comm.h"
#include "convert/finding.h"

struct team {
    struct comm *comm;
    const char *call; /* that all make */
    bool is_over;     /* the ranks know that it failed */
};

/* In all that follows a team that is NULL is a process on its own, for which nothing is done. */
uint32_t team_rank(const struct team *team);
uint32_t team_size(const struct team *team);

/* Shares out `count` pieces of work in order: owners[i] is whose piece i is, of bytes[i] bytes. Each rank's lie together. */
void team_share(const struct team *team, const uint64_t *bytes, uint32_t count, uint32_t *owners);

/* How this rank has fared, and then, if all fared well, what it has to tell; the parts of *out are all ranks'. Release it, also on
 * failure. */
reshard_status team_exchange(struct team *team, reshard_status status, const struct buffer *own, struct comm_gathered *out,
                           reshard_error *err);

/* Rows of a table that every rank has: row i is filled in by rank owners[i], and is then everywhere. places, if not NULL, says where in the
 * table row i lies. */
reshard_status team_rows(struct team *team, reshard_status status, const uint32_t *owners, uint32_t count, void *table, size_t row_bytes,
                         const uint32_t *places, reshard_error *err);

/* Findings of a step, kept until all ranks have made it. */
struct team_findings {
    struct finding_sink sink; /* where the step reports to */
    struct buffer packed; /* to be released */
};
/* What the step reports to: `findings` itself for a process on its own. */
struct finding_sink *team_findings_begin(struct team *team, struct team_findings *out, struct finding_sink *findings);

/* Ends the step: all ranks report what any has found, those about chunks first, by order[chunk] of `chunks` (NULL: by rank). */
reshard_status team_findings_end(struct team *team, struct team_findings *kept, reshard_status status, const uint32_t *order,
                                 uint32_t chunks, struct finding_sink *findings, reshard_error *err);

/* The end of the call, whatever it has come to: RESHARD_OK and RESHARD_DIFFERS, on which ranks may differ, stay as they are. */
reshard_status team_finish(struct team *team, reshard_status status, reshard_error *err);

#endif
