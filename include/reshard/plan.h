/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of conversions, to be kept: made once, looked at, compared by their hash, run as often as the values change, onto one path or many,
 * as a whole or in parts. Making one reads metadata only.
 *
 * Threads. Any number may look at a plan and make parts of it at once; one at a time runs or commits it or its parts, and its source is
 * used by nobody else meanwhile.
 *
 * Failures. A plan whose run or commit has failed is as it was: it may be looked at and run again. Its target then is as reshard_convert
 * leaves it.
 */
#ifndef RESHARD_PLAN_H
#define RESHARD_PLAN_H

#include "reshard/reshard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_plan reshard_plan;

/*
 * Plans what reshard_convert would do. target_path names the target where its name is part of what is written; it need not be writable yet.
 * The plan needs its source (as reshard_convert does, alone while it runs), and what options and run point to, until it is freed. What lies
 * under the source may change its values, as shards in memory do, but nothing else.
 */
reshard_status reshard_plan_new(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                const reshard_run_options *run, reshard_plan **out, reshard_error *err);

/* Parts first. NULL is fine. */
void reshard_plan_free(reshard_plan *plan);

/* What running it does, as reshard_estimate tells; of a part, its own steps and bytes. */
reshard_status reshard_plan_report(const reshard_plan *plan, reshard_report *report, reshard_error *err);

/* Changes with the layout of the source, of the target, and with what goes where; not with values, nor with paths, but for the length of
 * the target's name in formats that write it into their files (torch, torch-dcp, torch_dist). Equal on every machine and in every
 * process that runs the same version of the library. 0 if plan is NULL. */
uint64_t reshard_plan_hash(const reshard_plan *plan);

/* One move: a box of a tensor of the target comes from one place of the source, and goes to one of the target. */
typedef struct reshard_plan_step {
    size_t struct_size;
    reshard_str key, source_key;        /* of the target's tensor and the source's; source_key is "" where a number is filled in */
    const int64_t *start, *extent;      /* the box, of the target's tensor */
    size_t rank;
    reshard_str file, source_file;      /* relative to target and source */
    uint64_t offset, source_offset;     /* bytes where its first element lies; of compressed chunks, in what they hold */
    uint64_t bytes;                     /* of the target */
} reshard_plan_step;
#define RESHARD_PLAN_STEP_INIT { sizeof(reshard_plan_step), { NULL, 0 }, { NULL, 0 }, NULL, NULL, 0, { NULL, 0 }, { NULL, 0 }, 0, 0, 0 }

/* Steps are in the order of the target's files and offsets. */
size_t reshard_plan_step_count(const reshard_plan *plan);
reshard_status reshard_plan_step_at(const reshard_plan *plan, size_t index, reshard_plan_step *out, reshard_error *err);

/* All steps as text: a line each, or, with as_json, one JSON object {"hash", "read_bytes", "write_bytes", "steps": [{"key", "start",
 * "extent", "file", "offset", "source_key", "source_file", "source_offset", "bytes"}, …]}, the hash as 16 hexadecimal digits. */
reshard_status reshard_plan_print(const reshard_plan *plan, int as_json, reshard_sink sink, void *context, reshard_error *err);

/*
 * Part number `part`, counted from 0, of `count` that are near equal in bytes and files. Running it leaves the part beside the target, as
 * reshard_convert with options.part does; the options of the plan name no part. Free it before the plan.
 */
reshard_status reshard_plan_part(const reshard_plan *plan, uint64_t part, uint64_t count, reshard_plan **out, reshard_error *err);

/* Runs a plan or a part, as reshard_convert does; target_path NULL: the one that it was made with. Again and again; each time all of it. */
reshard_status reshard_plan_run(reshard_plan *plan, const char *target_path, reshard_error *err);

/* Makes visible what the parts of the plan have written, as reshard_commit does. */
reshard_status reshard_plan_commit(reshard_plan *plan, const char *target_path, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
