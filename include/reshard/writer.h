/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing from memory, piece by piece. Tensors are declared first, so that the target can be laid out; then their values come in any order,
 * from any number of threads, as boxes or flat runs, from memory or from a callback, and go where they belong at once; then the target
 * appears, whole. Memory does not grow with the tensors. What is written is what reshard_convert would write of a checkpoint with these
 * tensors and items: in every format, in every layout, under mapped or other names, cast.
 *
 * Threads. Any thread opens, finishes, commits and frees a writer; while one does, no other uses it. Only reshard_writer_put may be called
 * by many at once.
 */
#ifndef RESHARD_WRITER_H
#define RESHARD_WRITER_H

#include "reshard/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor that is to be written. An array's member. */
typedef struct reshard_writer_tensor {
    reshard_str key;
    const char *dtype;    /* "BF16", "bfloat16", "paddle.bfloat16" */
    size_t rank;
    const int64_t *shape;
} reshard_writer_tensor;

typedef struct reshard_writer_input {
    size_t struct_size;
    const reshard_writer_tensor *tensors; /* each key once */
    size_t tensor_stride, tensor_count;
    const reshard_state_item *items;      /* as JSON texts, */
    size_t item_stride, item_count;
    const reshard_items *values;          /* and as values; NULL: none. No key may be in both */
    const char *name;                     /* of the whole, for messages; NULL: "memory" */
} reshard_writer_input;
#define RESHARD_WRITER_INPUT_INIT                                                                                                          \
    {                                                                                                                                      \
        sizeof(reshard_writer_input), NULL, sizeof(reshard_writer_tensor), 0, NULL, sizeof(reshard_state_item), 0, NULL, NULL              \
    }

/* Some elements of a tensor. */
typedef struct reshard_piece {
    size_t struct_size;
    size_t tensor;                  /* its place in reshard_writer_input.tensors */
    const int64_t *start, *extent;  /* a box of it; both NULL: all of it */
    int64_t is_flattened, flat_begin, flat_end; /* only these elements of the row-major order of the box */
    const char *dtype;              /* of the values, which are cast; NULL: the tensor's */
    const int64_t *strides;         /* of the memory, in elements; NULL: row-major. Not of a flat range */
    const void *data;               /* element (0, ..., 0) of the box, or the first of the range */
    size_t size;                    /* bytes from data on, at least those that the piece spans */
    /* In place of data: gives bytes [offset, offset + size) of the values, row-major or in the order of the range. Several threads may ask
     * at once, for some bytes more than once, until reshard_writer_put returns. */
    int (*read)(void *out, uint64_t offset, size_t size, void *context);
    void *context;
} reshard_piece;
#define RESHARD_PIECE_INIT { sizeof(reshard_piece), 0, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, 0, NULL, NULL }

typedef struct reshard_writer reshard_writer;

/*
 * Lays the target out, and begins it beside target_path: nothing is visible there before reshard_writer_finish. input is copied; what
 * options and run point to must be there until the writer is freed. options are those of reshard_convert but for resume and verify,
 * which are RESHARD_ERR_USAGE (checksum is not); run.memory_bytes counts for each piece on its way (0: 32 MiB), run.progress is called
 * once, before anything is written. report may be NULL.
 */
reshard_status reshard_writer_open(const reshard_writer_input *input, const char *target_path, const reshard_convert_options *options,
                                   const reshard_run_options *run, reshard_report *report, reshard_writer **out, reshard_error *err);

/*
 * Writes a piece; its memory is the caller's again at the return. Any number of threads may put pieces at once. RESHARD_ERR_USAGE: the
 * piece does not fit, or some of it was written already (the message names key and region); it is not taken, and others may still come.
 * Any other failure ends the writer: every later call fails, and reshard_writer_free removes what was written. RESHARD_ERR_CANCELLED: read
 * has failed. Elements of tensors that the target leaves out go nowhere.
 */
reshard_status reshard_writer_put(reshard_writer *writer, const reshard_piece *piece, reshard_error *err);

/*
 * Writes what is beside the values and makes the target visible, in one step, when no other thread puts pieces any more. If elements are
 * missing it is RESHARD_ERR_USAGE, which names the first tensor and a region of it, and nothing has happened: they may still come. Any
 * other failure ends the writer, and leaves what was at target_path before. After success all other calls but free fail.
 */
reshard_status reshard_writer_finish(reshard_writer *writer, reshard_error *err);

/*
 * Makes visible what writers with options.part 0 to part_count - 1 have written, in any order and in any number of processes, on one
 * machine or on many that see the same storage, without a word between them: input and options are those of the parts, each of which has
 * put the pieces that it has, and finished. RESHARD_DIFFERS names a part that is missing or of another run, or elements that no part or
 * that two parts have written; nothing is visible then, and what is there stays. A part that failed, or whose process died, is written
 * again.
 *
 * input and options may both be NULL: part 0 keeps what it was opened with, but for run options, so that anybody who sees the storage can
 * commit, as `reshard commit` does. It keeps nothing, and this is RESHARD_ERR_UNSUPPORTED, if it has part_words, or options with open, map,
 * rename, choose_missing or store.
 */
reshard_status reshard_writer_commit(const reshard_writer_input *input, const char *target_path, const reshard_convert_options *options,
                                     const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* Ends a writer; NULL is fine. What was not finished is removed, as if it had never been, but for that of a part, which others may need. No
 * other thread may use the writer. A process that was forked since, without exec, neither uses nor frees it: the lock and the
 * files are those of the process that has opened it. */
void reshard_writer_free(reshard_writer *writer);

#ifdef __cplusplus
}
#endif

#endif
