/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutators that know how inputs are built: what they change keeps its lengths and checksums right, so that the change gets past them to
 * what reads it. Each changes bytes[0..size) in place, to at most size_max, and returns the new size. Where an input is not built as
 * expected libFuzzer's own mutations take over; now and then they do in any case, so that wrong lengths and checksums are tried as well.
 */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* libFuzzer's, over plain bytes. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t size, size_t size_max);

/* What libFuzzer calls: each target with a mutator defines it in one line. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* Opcodes are deleted, repeated, moved, exchanged, replaced, inserted; arguments change with their lengths; frames fit afterwards. */
size_t mutate_pickle(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* Members are dropped, repeated, renamed, exchanged; their contents change (a .pkl as a pickle); the archive is written anew. */
size_t mutate_zip(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* u64 size of a JSON header, header, data. */
size_t mutate_safetensors(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* Packed files (packed.h): files are dropped, repeated, exchanged; one of them changes as what its first bytes say it is. */
size_t mutate_packed(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* A file of any of these kinds. */
size_t mutate_file(uint8_t *bytes, size_t size, size_t size_max, unsigned seed);

/* Next number of a sequence; few mutations need many. */
static inline unsigned mutate_next(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 16 & 0x7FFF;
}

#endif
