/* SPDX-License-Identifier: Apache-2.0 */
/* Which piece of a Hugging Face folder goes to which file. */
#ifndef FORMATS_HF_ASSIGN_H
#define FORMATS_HF_ASSIGN_H

#include "formats/driver.h"
#include "formats/shared/safetensors_pieces.h"

#define HF_SHARD_BYTES INT64_C(5000000000) /* the hub's default */

struct hf_assignment {
    struct str *files; /* names relative to the folder; a piece's `file` counts them */
    uint32_t file_count, file_capacity;
    struct str index_name; /* empty: no index is written */
    bool is_dcp;           /* the files get DCP_SHARDING_INFO */
};

/*
 * Sets `file` of every piece and names the files; names live in arena. Pieces may be replaced by parts of themselves. In order of
 * precedence: as request->like has it; cut over request->ranks; split by size as huggingface_hub does.
 */
reshard_status hf_assign(const struct layout_request *request, struct arena *arena, struct st_pieces *pieces, struct hf_assignment *out,
                         reshard_error *err);
void hf_assignment_release(struct hf_assignment *assignment);

/* The hub's rule: sets `file` of each piece, in their order, so that no file takes more than bytes_max (0: no limit) unless one tensor
 * alone does; returns the number of files. */
uint32_t hf_split(struct st_pieces *pieces, uint64_t bytes_max);

#endif
