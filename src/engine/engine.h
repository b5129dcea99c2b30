/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine: runs plans. It knows no format and takes no decision about content. It owns the threads, one memory budget, and all reads
 * and writes of payload.
 *
 * Work is cut into jobs: slabs of target tensors, or groups of small ones, each within its share of the budget. A job reads the source
 * ranges it needs once, merged and ordered, copies them into place in memory, and writes the target ranges, merged. Large blocks that are
 * plain runs on both sides are copied in the kernel. Memory does not grow with the checkpoint.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "plan/plan.h"
#include "store/store.h"

enum engine_io { ENGINE_IO_AUTO, ENGINE_IO_BUFFERED, ENGINE_IO_DIRECT, ENGINE_IO_MMAP };

struct engine_progress {
    uint64_t bytes_done, bytes_total; /* of target payload */
    uint64_t bytes_resumed; /* of those done: by an earlier run */
    uint64_t bytes_read, bytes_written, memory_bytes;
};

struct engine_options {
    uint64_t memory_bytes; /* budget for buffers; 0: 128 MiB, more where chunks are decoded as a whole */
    uint64_t chunk_memory; /* for one chunk that is decoded as a whole; 0: memory_bytes, 448 MiB if that is 0 */
    unsigned threads;      /* 0: number of CPUs, at most 8; of a source that is far, 16 */
    enum engine_io io;
    bool no_sync;
    /* Called from one thread at a time, at most some 20 times a second; false cancels. */
    bool (*progress)(const struct engine_progress *progress, void *context);
    void *context;
};

/* How many threads these options ask for: as many as they name, else one a CPU that the process may use, at most 8; 16 where what is read
 * is far (catalog.h). */
unsigned engine_threads(const struct engine_options *options, bool is_far);

/* The flags with which a store opens what is read that way (store_open_object_as). */
unsigned engine_access(enum engine_io io);

struct engine_files;

/* Where a plan's source chunks are read: a sealed catalog whose chunks in question are resolved, and the store that its object
 * names are relative to. */
struct engine_source {
    struct store *store;
    const struct catalog *catalog;
    const struct limits *limits;
    struct engine_files *files; /* NULL: each run opens its objects */
};

/*
 * Objects of a source that stay open from run to run, up to a bound: for many small reads. Any number of runs may use them at once; what
 * lies in source must outlive them. Runs that ask for a way of reading of their own (io) open objects themselves.
 */
reshard_status engine_files_new(const struct engine_source *source, struct engine_files **out, reshard_error *err);
void engine_files_free(struct engine_files *files); /* NULL is fine */

/* Memory that one such chunk takes while it is decoded, and the most that one may. */
uint64_t engine_chunk_memory(const struct catalog *catalog, const struct catalog_chunk *chunk);
uint64_t engine_chunk_memory_max(const struct engine_options *options);

/* Peak of the buffers that a run with these options will use. */
uint64_t engine_memory_estimate(const struct plan *plan, const struct engine_options *options);

/*
 * Moves all payload of the plan into the objects of a transaction. objects[i] is target catalog object i, created; those without a step
 * may be NULL. crcs, by target chunk, which the caller has zeroed, is filled where CHUNK_WANT_CRC and a step of the plan writes the chunk:
 * where parts of a plan (plan_split) run apart, the CRCs of all are the sum of theirs. journal, if not NULL, makes the run resumable: jobs
 * recorded in it are skipped (their CRC parts come from it).
 */
reshard_status engine_run(const struct plan *plan, const struct engine_source *source, struct store_object **objects, uint32_t *crcs,
                          struct store_txn *journal, const struct engine_options *options, reshard_error *err);

/*
 * Compresses the target's objects that have a packing, each as a whole, once their payload is written: object by object, in as many threads
 * as the memory allows two buffers of its size. Until then they take their full size on the disk. written_bytes: of payload, which is what
 * progress says is done.
 */
reshard_status engine_pack(const struct catalog *target, struct store_object **objects, uint64_t written_bytes,
                           const struct engine_options *options, reshard_error *err);

/*
 * Streams tensors as row-major little-endian bytes: for each given tensor, in order, calls sink with consecutive windows of its full
 * content (or of box start/extent if given: then count must be 1). sink(tensor, offset, bytes, size, is_last); a false from sink cancels.
 * With threads > 1 several tensors are in flight; the calls for one tensor are in order and from one thread at a time. Replicas are not
 * compared (verify does).
 */
typedef reshard_status (*engine_sink)(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                      reshard_error *err);
reshard_status engine_stream(const struct engine_source *source, const uint32_t *tensors, uint32_t count, const int64_t *start,
                             const int64_t *extent, const struct engine_options *options, engine_sink sink, void *context,
                             reshard_error *err);

/* The same for tensors that recipes make: tensors are those of `made` (keys, types, shapes; chunks do not count), each once; recipes come
 * by target tensor, ascending, and first[t] is the first of tensor t, first[t + 1] the one behind its last. The sink is told tensors of
 * `made`. */
struct engine_made {
    const struct catalog *made;
    const struct recipe *recipes;
    const uint32_t *first;
};
reshard_status engine_stream_made(const struct engine_source *source, const struct engine_made *made, const uint32_t *tensors,
                                  uint32_t count, const struct engine_options *options, engine_sink sink, void *context,
                                  reshard_error *err);

/* A box of a tensor, and the memory that it is to fill. */
struct engine_box {
    uint32_t tensor;
    const int64_t *start, *extent; /* both NULL: the whole tensor */
    enum dtype dtype;              /* that of the elements in memory: the tensor's, or one that it can be cast to */
    const int64_t *strides;        /* of the memory, in elements, not negative; NULL: row-major. No two elements may have one place */
    int64_t flat_begin, flat_count; /* only this run of the box's row-major order, without strides; flat_count 0: all of the box */
    void *out;
    uint64_t bytes;                /* from out on; more than the elements span is left alone */
    bool is_done;                  /* set: all elements are there, also where the run has failed */
};

/* Bytes that the memory of a box of a tensor of that rank spans from box->out on, and those of its elements. USAGE, UNSUPPORTED: its
 * strides, its type or its room do not fit. */
reshard_status engine_box_measure(const struct engine_box *box, struct str key, int rank, const int64_t *extent, uint64_t *span,
                                  uint64_t *payload, reshard_error *err);

/*
 * Fills the boxes, whose start and extent lie in their tensors. All are one run: source ranges are merged and read in order of file and
 * offset, by the threads and within the memory that the options allow. Memory of different boxes must not overlap.
 */
reshard_status engine_read_boxes(const struct engine_source *source, struct engine_box *boxes, uint32_t count,
                                 const struct engine_options *options, reshard_error *err);

/* Streams one chunk's own content (row-major order of its box), for comparing replicas and checking parts. */
reshard_status engine_stream_chunk(const struct engine_source *source, uint32_t chunk, const struct engine_options *options,
                                   engine_sink sink, void *context, reshard_error *err);

#endif
