/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that go in, as the structs of the layers below. Public structs may be older and shorter than ours: what the caller does
 * not know keeps its default. */
#ifndef API_PUBLIC_OPTIONS_H
#define API_PUBLIC_OPTIONS_H

#include "reshard/reshard.h"

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "names/mapping_stage.h"

reshard_status limits_read(const reshard_limit *given, size_t count, struct limits *out, reshard_error *err);

/* malloc'd. */
reshard_status constants_read(const reshard_map_constant *given, size_t count, struct mapping_constant **out, reshard_error *err);

/* options may be NULL: defaults. What is read points into the options, which must outlive it. */
reshard_status open_options_read(const reshard_open_options *options, struct checkpoint_options *out, reshard_error *err);
reshard_status run_options_read(const reshard_run_options *options, struct engine_options *out, reshard_error *err);

struct map_options {
    struct mapping_options options;
    struct mapping_text *texts;
    struct mapping_text rules_text;
    struct mapping_constant *constants;
};

/* Release *out on failure too. Do not move it: its options point into it. */
reshard_status map_options_read(const reshard_map_options *options, struct map_options *out, reshard_error *err);
void map_options_release(struct map_options *options);

/* A receiver of findings that hands them to a public one, which may be NULL. */
struct public_sink {
    reshard_finding_sink sink;
    void *context;
};
struct finding_sink public_sink_findings(struct public_sink *sink);

#endif
