/* SPDX-License-Identifier: Apache-2.0 */
/* A run of the engine: what all workers share, and what each has for itself. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include <stdatomic.h>

#include "base/waiting.h"
#include "engine/engine_decoded.h"
#include "engine/engine_jobs.h"
#include "engine/engine_origin.h"

/* CRC-32 of a part of a target chunk's bytes: those between the elements of a strided chunk count as zeros. */
struct crc_part {
    uint64_t offset, bytes; /* in the chunk */
    uint32_t chunk, crc;
};

/* Which jobs are done, for the next run if this one is killed. */
struct journal {
    struct store_txn *txn; /* NULL: nobody asked */
    uint64_t identity;
    uint8_t *is_done;   /* by job: by an earlier run */
    uint32_t *finished; /* jobs of this run, in the order of their end */
    uint32_t finished_count, recorded_count;
    uint64_t bytes_waiting, write_bytes; /* finished but not recorded; how many are worth a record */
    int64_t last_ns;
    bool is_writing;
    struct buffer record; /* sized before data flows */
    pthread_mutex_t lock;
};

struct worker {
    struct engine *engine;
    struct job_memory memory;
    struct streams streams;
    uint32_t lane;                      /* it works on, or JOB_NONE */
    uint32_t job;                       /* in hand */
    bool copy_refused;                  /* the kernel cannot copy between these stores */
    uint64_t bytes_read, bytes_written; /* of the job in hand */
    reshard_error error;
    pthread_t thread;
    bool has_thread;
};

struct engine {
    const struct plan *plan;
    const struct engine_source *source;
    const struct engine_options *options;
    struct layout_mode mode;
    struct engine_budget budget;
    struct origins own_origins, *origins; /* those of the source, if it keeps them, else its own */
    struct decoded_chunks decoded;
    struct job_list list;
    uint8_t *pool;
    struct worker *workers;

    struct store_object **objects; /* writing: by target object */
    struct crc_part *crc_parts;    /* by the numbers that jobs were given */
    struct journal journal;

    engine_sink sink; /* streaming */
    void *sink_context;
    const uint32_t *sink_tensors; /* what the sink calls target tensor i */

    pthread_mutex_t lock; /* of the queue, turns and the error */
    pthread_cond_t changed;
    uint32_t fresh_lane; /* first that nobody has taken */
    uint32_t help_lane;  /* lanes before it have no job left */
    atomic_bool is_stopped;
    reshard_status status;
    reshard_error error;

    const struct waiting *outer; /* whom the thread that runs the engine asked before */
    pthread_mutex_t progress_lock;
    struct engine_progress progress;
    int64_t progress_ns;
};

/* ---- engine_state.c ---- */

/* Sets everything up but what is for writing or for streaming. On failure nothing is left. */
reshard_status engine_init(struct engine *engine, const struct plan *plan, const struct engine_source *source,
                           const struct engine_options *options, bool is_stream, reshard_error *err);
void engine_release(struct engine *engine);

/* Runs all jobs. */
reshard_status engine_work(struct engine *engine, reshard_error *err);

/* The first error stops all workers; later ones are forgotten. */
void engine_fail(struct engine *engine, reshard_status status, const reshard_error *error);

/* Counts a job as done; RESHARD_ERR_CANCELLED if the caller wants no more. */
reshard_status progress_note(struct engine *engine, struct worker *worker, uint64_t target_bytes, reshard_error *err);
#define PROGRESS_NS 50000000

/* ---- engine_queue.c ---- */

/* The next job for this worker: of its lane, else of a fresh one, else it helps with another. JOB_NONE: no more. */
uint32_t queue_take(struct engine *engine, struct worker *worker);

/* Waits until the jobs before this one in its lane have handed over; false if the run stops meanwhile. */
bool turn_wait(struct engine *engine, uint32_t job);
void turn_end(struct engine *engine, uint32_t job);

/* ---- engine_read.c ---- */

/* Brings a laid-out job's bytes into memory and, where needed, into order. */
reshard_status job_read(struct worker *worker, const struct job_shape *shape, reshard_error *err);
void job_unpin(struct worker *worker);

/* ---- engine_write.c ---- */
reshard_status job_write(struct worker *worker, const struct job *job, const struct job_shape *shape, reshard_error *err);
reshard_status job_copy(struct worker *worker, const struct job_shape *shape, reshard_error *err);

/* ---- engine_sink.c ---- */
reshard_status job_sink(struct worker *worker, const struct job_shape *shape, reshard_error *err);

/* ---- engine_journal.c ---- */

/* Reads what an earlier run left, marks its jobs and takes over its CRCs. txn may be NULL. */
reshard_status journal_open(struct engine *engine, struct store_txn *txn, reshard_error *err);
void journal_release(struct journal *journal);

/* Notes a job of which all bytes are handed to the system; now and then makes the notes durable. */
reshard_status journal_note(struct engine *engine, uint32_t job, reshard_error *err);
reshard_status journal_flush(struct engine *engine, reshard_error *err);

#endif
