/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random checkpoints for the engine's tests, with the values that they hold: sources cut into boxes and flat runs that lie strided,
 * swapped, negated, compressed and repeated in the objects of a memory store; targets cut differently, strided too, from whole tensors,
 * from parts with permuted axes or from nothing but a constant; and what the target's bytes must be, computed element by element.
 */
#ifndef TESTS_ENGINE_SAMPLE_H
#define TESTS_ENGINE_SAMPLE_H

#include "engine/engine.h"

#define SAMPLE_OBJECTS 3
#define SAMPLE_TENSORS_MAX 8

struct sample_options {
    uint64_t seed;
    int64_t elements_max; /* of a tensor, about */
    int tensors;
    bool encoded; /* compress some chunks */
    bool crc;     /* ask for CRCs */
    bool parts;   /* permuted parts as well as whole tensors */
    bool plain;   /* large plain runs only: what the kernel can copy */
};

struct sample {
    uint64_t seed;
    struct sample_options options;
    struct store *store;
    struct catalog *source, *target;
    struct buffer objects[SAMPLE_OBJECTS]; /* of the source, until they are stored */
    uint8_t *values[SAMPLE_TENSORS_MAX];   /* of source tensors: full content, row-major */
    struct recipe recipes[SAMPLE_TENSORS_MAX * 4];
    uint32_t recipe_count;
    struct buffer expected[SAMPLE_OBJECTS], written[SAMPLE_OBJECTS]; /* target bytes, and 1 where one is written */
    struct arena arena;
};

void sample_make(struct sample *sample, const struct sample_options *options);
void sample_release(struct sample *sample);

/* Expected bytes of one target tensor or of any box of a source tensor, row-major. */
uint64_t sample_source_bytes(const struct sample *sample, uint32_t tensor);
void sample_source_box(const struct sample *sample, uint32_t tensor, const int64_t *start, const int64_t *extent, struct buffer *out);

/* The target object must hold the expected bytes where there are any. Fails the test otherwise. */
void sample_check_object(const struct sample *sample, uint32_t object, const uint8_t *bytes, size_t size);
void sample_check_crcs(const struct sample *sample, const uint32_t *crcs);

/* Runs the plan into target objects "NAME/o0" … of a store and publishes them. */
reshard_status sample_run(const struct sample *sample, const struct plan *plan, struct store *source_store, struct store *target_store,
                          const char *name, const struct engine_options *options, bool resume, uint32_t *crcs, reshard_error *err);

#endif
