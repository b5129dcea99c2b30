/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors. What is not quantised is a chunk of the file. What is, is cut into pieces that are decoded one by one: boxes that lie in one
 * piece in the file, of about a million numbers, so that a part of a tensor costs about as much as it is.
 */
#include "formats/gguf/gguf_source.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>

#define PIECE_ELEMENTS ((int64_t)1 << 20) /* a multiple of the elements of every kind of block */
#define CHUNK_UNITS 256                   /* of work: what a chunk takes of the catalog */

static reshard_status chain_take(struct gguf_reading *reading, const struct chain_step *step, uint64_t bytes, bool is_rest,
                                 const struct chain **out, reshard_error *err)
{
    struct arena *arena = &reading->source->catalog->arena;
    const struct chain *last = reading->chains[is_rest];
    if (last && last->decoded_bytes == bytes && last->steps[0].block == step->block) {
        *out = last;
        return RESHARD_OK;
    }
    struct chain *chain = arena_zalloc(arena, sizeof(*chain));
    struct chain_step *steps = arena_array(arena, 1, sizeof(*steps));
    if (!chain || !steps)
        return error_set_memory(err);
    steps[0] = *step;
    *chain = (struct chain){ .steps = steps, .step_count = 1, .decoded_bytes = bytes };
    *out = reading->chains[is_rest] = chain;
    return chain_check(chain, err);
}

/* A tensor that is being cut along one axis: those before it go one by one, those behind it are whole. */
struct gguf_cut {
    const struct gguf_part *part;
    const struct gguf_tensor *tensor;
    uint32_t number; /* in the catalog */
    int axis;
    int64_t step;    /* along the axis */
    int64_t start[GGUF_AXES_MAX], extent[GGUF_AXES_MAX];
    uint64_t offset; /* of the next piece */
};

static reshard_status piece_add(struct gguf_reading *reading, struct gguf_cut *cut, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    const struct gguf_tensor *tensor = cut->tensor;
    const struct ggml_block_info *block = ggml_block_info(tensor->block);
    const struct chain_step step = { .kind = CHAIN_BLOCKS, .block = tensor->block, .is_swapped = cut->part->header.is_swapped };
    uint64_t elements = (uint64_t)box_volume(tensor->rank, cut->extent), stored = elements / block->elements * block->bytes;
    const struct chain *chain;
    struct catalog_chunk *chunk;
    bool is_rest = cut->extent[cut->axis] != cut->step;
    reshard_status status = work_spend(reading->source->limits.budget, CHUNK_UNITS, err);
    if (!status)
        status = chain_take(reading, &step, elements * sizeof(float), is_rest, &chain, err);
    if (!status)
        status = catalog_add_chunk(catalog, cut->number, cut->start, cut->extent, cut->part->object, 0, elements * sizeof(float), &chunk,
                                   err);
    if (!status)
        status = catalog_chunk_set_chain(catalog, chunk, chain, cut->offset, stored, err);
    cut->offset += stored;
    return status;
}

/* Along the axis, then on to the next place of those before it; false behind the last. */
static bool cut_goes_on(struct gguf_cut *cut)
{
    int axis = cut->axis;
    cut->start[axis] += cut->extent[axis];
    while (axis > 0 && cut->start[axis] >= cut->tensor->shape[axis]) {
        cut->start[axis] = 0;
        cut->start[--axis]++;
    }
    return cut->start[axis] < cut->tensor->shape[axis];
}

static reshard_status blocks_add(struct gguf_reading *reading, const struct gguf_part *part, const struct gguf_tensor *tensor,
                                 uint32_t number, reshard_error *err)
{
    struct gguf_cut cut = { .part = part, .tensor = tensor, .number = number, .axis = tensor->rank - 1, .offset = tensor->offset };
    int64_t within = 1; /* elements of one step along the axis */
    reshard_status status;
    reading->block_counts[tensor->block]++;
    while (cut.axis > 0 && within * tensor->shape[cut.axis] <= PIECE_ELEMENTS)
        within *= tensor->shape[cut.axis--];
    cut.step = PIECE_ELEMENTS / within;
    for (int i = 0; i < tensor->rank; i++)
        cut.extent[i] = i < cut.axis ? 1 : tensor->shape[i];
    if (cut.step > tensor->shape[cut.axis])
        cut.step = tensor->shape[cut.axis];
    do {
        int64_t left = tensor->shape[cut.axis] - cut.start[cut.axis];
        cut.extent[cut.axis] = left < cut.step ? left : cut.step;
        status = piece_add(reading, &cut, err);
    } while (!status && cut_goes_on(&cut));
    return status;
}

static reshard_status plain_add(struct gguf_reading *reading, const struct gguf_part *part, const struct gguf_tensor *tensor,
                                uint32_t number, reshard_error *err)
{
    struct catalog_chunk *chunk;
    uint64_t offset = tensor->bytes ? tensor->offset : 0;
    reshard_status status =
        catalog_add_chunk(reading->source->catalog, number, NULL, NULL, part->object, offset, tensor->bytes, &chunk, err);
    if (!status && part->header.is_swapped && dtype_info(tensor->dtype)->swap_bytes > 1)
        chunk->flags |= CHUNK_SWAP;
    return status;
}

/* A tensor that cannot be read: left out where that is wanted, else an error. */
static reshard_status gguf_refuse(struct gguf_reading *reading, const struct gguf_part *part, struct str name, const char *what,
                             reshard_error *err)
{
    if (reading->source->skip_unsupported) {
        source_warn_left_out(reading->source, name, true, "%s", what);
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': tensor '%.*s': %s", part->name, STR_ARG(name), what);
    error_hint(err, "llama-quantize --allow-requantize IN.gguf OUT.gguf F16 writes it as numbers that are read");
    error_hint(err, "reshard_open_options.skip_unsupported leaves such tensors out");
    return RESHARD_ERR_UNSUPPORTED;
}

/* Whether the tensor is left out, or that is an error. */
static reshard_status check_readable(struct gguf_reading *reading, const struct gguf_part *part, const struct gguf_tensor *tensor,
                                     struct str name, bool *is_left_out, reshard_error *err)
{
    char what[160];
    bool is_known = tensor->kind != GGUF_UNKNOWN;
    const char *kind = tensor->kind == GGUF_BLOCKS ? ggml_block_info(tensor->block)->name : "";
    *is_left_out = !is_known || (tensor->kind == GGUF_BLOCKS && !ggml_block_is_read(tensor->block, part->header.is_swapped));
    if (!*is_left_out)
        return RESHARD_OK;
    if (!is_known)
        snprintf(what, sizeof(what), "type number %" PRIu32 ", which no release of llama.cpp that is known here writes", tensor->number);
    else if (ggml_block_is_read(tensor->block, false))
        snprintf(what, sizeof(what), "quantised as %s, which is not read from big-endian files", kind);
    else
        snprintf(what, sizeof(what), "quantised as %s, which is not read", kind);
    return gguf_refuse(reading, part, name, what, err);
}

reshard_status gguf_add_tensor(struct gguf_reading *reading, const struct gguf_part *part, uint32_t index, reshard_error *err)
{
    const struct gguf_tensor *tensor = &part->header.tensors[index];
    struct source *source = reading->source;
    struct str name = name_map_at(&part->header.names, index);
    bool is_left_out;
    uint32_t number;
    reshard_status status = check_readable(reading, part, tensor, name, &is_left_out, err);
    if (status || is_left_out)
        return status;
    if (tensor->bytes && !range_fits(tensor->offset, tensor->bytes, part->reader.size)) {
        if (!source_bears_loss(source))
            return error_set_at(err, RESHARD_ERR_FORMAT, tensor->offset,
                                "'%s': tensor '%.*s': file of %" PRIu64 " bytes ends inside its %" PRIu64 " bytes at byte %" PRIu64,
                                part->name, STR_ARG(name), part->reader.size, tensor->bytes, tensor->offset);
        catalog_warn_lost(source->catalog, name, "'%s' ends before tensor '%.*s' does, which is lost", part->name, STR_ARG(name));
        return RESHARD_OK;
    }
    status = catalog_add_tensor(source->catalog, name, tensor->kind == GGUF_PLAIN ? tensor->dtype : DTYPE_F32, tensor->rank, tensor->shape,
                                &number, err);
    if (status)
        return status;
    return tensor->kind == GGUF_BLOCKS && tensor->bytes ? blocks_add(reading, part, tensor, number, err)
                                                        : plain_add(reading, part, tensor, number, err);
}
