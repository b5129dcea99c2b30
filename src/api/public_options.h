/* SPDX-License-Identifier: Apache-2.0 */
/* Public structs that go in, as the structs of the layers below; and callbacks, as those of the layers below. */
#ifndef API_PUBLIC_OPTIONS_H
#define API_PUBLIC_OPTIONS_H

#include "reshard/reshard.h"

#include "api/versioned.h"
#include "base/waiting.h"
#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/team.h"
#include "names/mapping_stage.h"

/* What a callback returned, as a status. */
static inline reshard_status callback_status(int returned)
{
    return returned ? RESHARD_ERR_CANCELLED : RESHARD_OK;
}

/* Texts and what else is pointed to must outlive what is read. Do not move these structs: what they are read into points into them. */
struct open_call {
    reshard_open_options given;
    struct checkpoint_options options;
};
reshard_status open_options_read(const reshard_open_options *options, struct open_call *out, reshard_error *err);

struct run_call {
    reshard_run_options given;
    struct engine_options engine;
    struct team team;
    struct engine_progress last; /* that was told */
    struct waiting waiting;
};
reshard_status run_options_read(const reshard_run_options *options, struct run_call *out, reshard_error *err);

/* The same for calls that ranks may make together: *team is theirs, or NULL. */
reshard_status run_options_read_team(const reshard_run_options *options, const char *call, struct run_call *out, struct team **team,
                                     reshard_error *err);

/* Until the scope ends, the call's progress is asked while this thread waits for what it reads, too. */
#define RUN_WAITS(call) \
    const struct waiting *run_waits_before __attribute__((cleanup(run_waits_end), unused)) = run_waits_begin(call)
const struct waiting *run_waits_begin(struct run_call *call);
void run_waits_end(const struct waiting **before);

struct map_call {
    struct mapping_options options;
    struct mapping_text *texts;
    struct mapping_text rules_text;
    struct mapping_constant *constants;
    reshard_map_options given;
    bool is_stopped; /* by diagnose */
};

/* Release *out on failure too. */
reshard_status map_options_read(const reshard_map_options *options, struct map_call *out, reshard_error *err);
void map_call_release(struct map_call *call);

/* The status of a call behind which diagnose may have asked to stop. */
reshard_status map_call_status(const struct map_call *call, reshard_status status, reshard_error *err);

reshard_status limits_read(const reshard_limit_change *given, size_t count, size_t stride, struct limits *out, reshard_error *err);

/* malloc'd. */
reshard_status constants_read(const reshard_map_constant *given, size_t count, size_t stride, struct mapping_constant **out,
                              reshard_error *err);

/* A receiver of findings that hands them to a public one, which may be NULL. */
struct public_sink {
    reshard_finding_sink sink;
    void *context;
};
struct finding_sink public_sink_findings(struct public_sink *sink);

#endif
