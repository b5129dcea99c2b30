/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog_cover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "tensor/box_join.h"

/* Working memory for one tensor after the other. */
struct cover {
    struct catalog *catalog;
    bool allow_holes;
    struct join_box *pieces;
    uint32_t piece_count, piece_capacity;
    uint32_t *slots; /* first piece + 1 of each chunk that is no replica, by the hash of its pieces; 0 is free */
    size_t slots_capacity;
    struct arena run_boxes; /* boxes of the current tensor's flat runs */
    struct box_joiner joiner;
    uint64_t seed;
};

const char *box_text(int rank, const int64_t *start, const int64_t *extent, char out[BOX_TEXT_MAX])
{
    size_t size = 0;
    out[size++] = '[';
    for (int axis = 0; axis < rank; axis++) {
        if (size > BOX_TEXT_MAX - 64) {
            size += (size_t)snprintf(out + size, BOX_TEXT_MAX - size, ", …");
            break;
        }
        uint64_t end = (uint64_t)start[axis] + (uint64_t)extent[axis]; /* hostile boxes are printed too: wrap, do not trap */
        size += (size_t)snprintf(out + size, BOX_TEXT_MAX - size, "%s%" PRId64 ":%" PRId64, axis ? ", " : "", start[axis], (int64_t)end);
    }
    snprintf(out + size, BOX_TEXT_MAX - size, "]");
    return out;
}

static bool piece_append(struct cover *cover, const int64_t *start, const int64_t *extent, uint32_t chunk)
{
    if (!ARRAY_ROOM(cover->pieces, cover->piece_count, cover->piece_capacity))
        return false;
    cover->pieces[cover->piece_count++] = (struct join_box){ start, extent, chunk };
    return true;
}

struct run_context {
    struct cover *cover;
    const int64_t *box_start;
    int rank;
    uint32_t chunk;
};

static bool run_box_append(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct run_context *run = context;
    (void)flat_index;
    int64_t *kept = arena_array(&run->cover->run_boxes, 2 * (size_t)run->rank, sizeof(*kept));
    if (!kept)
        return false;
    for (int axis = 0; axis < run->rank; axis++) {
        kept[axis] = run->box_start[axis] + start[axis];
        kept[run->rank + axis] = extent[axis];
    }
    return piece_append(run->cover, kept, kept + run->rank, run->chunk);
}

/* Appends the boxes that a chunk's elements fill; none if it is empty. */
static reshard_status chunk_pieces(struct cover *cover, const struct catalog_tensor *tensor, uint32_t chunk_index, reshard_error *err)
{
    const struct catalog_chunk *chunk = &cover->catalog->chunks[chunk_index];
    const struct chunk_layout *layout = catalog_layout_of(cover->catalog, chunk);
    const int64_t *start = catalog_vector_at(cover->catalog, chunk->start);
    const int64_t *extent = catalog_vector_at(cover->catalog, chunk->extent);
    int64_t volume = box_volume(tensor->rank, extent);

    if (layout && layout->flat_count >= 0) {
        if (layout->flat_begin < 0 || layout->flat_begin > volume || layout->flat_count > volume - layout->flat_begin)
            return error_set(err, RESHARD_ERR_FORMAT,
                             "tensor '%.*s': flat run of %" PRId64 " elements from %" PRId64 " leaves its box of %" PRId64 " elements",
                             STR_ARG(tensor->key), layout->flat_count, layout->flat_begin, volume);
        if (layout->flat_count == 0)
            return RESHARD_OK;
        if (layout->flat_count < volume) {
            struct run_context run = { cover, start, tensor->rank, chunk_index };
            bool is_done = flat_run_boxes(tensor->rank, extent, layout->flat_begin, layout->flat_count, run_box_append, &run);
            return is_done ? RESHARD_OK : error_set_memory(err);
        }
    }
    if (volume == 0)
        return RESHARD_OK;
    return piece_append(cover, start, extent, chunk_index) ? RESHARD_OK : error_set_memory(err);
}

static bool same_pieces(const struct cover *cover, int rank, uint32_t earlier, uint32_t first)
{
    uint32_t earlier_chunk = cover->pieces[earlier].owner, count = cover->piece_count - first;
    for (uint32_t i = 0; i < count; i++) {
        const struct join_box *a = &cover->pieces[earlier + i], *b = &cover->pieces[first + i];
        if (a->owner != earlier_chunk || !box_equal(rank, a->start, a->extent, b->start, b->extent))
            return false;
    }
    return cover->pieces[earlier + count].owner != earlier_chunk; /* exists: the pieces from first on follow */
}

/* Whether an earlier chunk has the same pieces as those from first on, which are the last ones; remembers them if not. */
static bool pieces_are_replica(struct cover *cover, int rank, uint32_t first)
{
    uint64_t hash = cover->seed;
    for (uint32_t i = first; i < cover->piece_count; i++) {
        hash = hash64(cover->pieces[i].start, (size_t)rank * sizeof(int64_t), hash);
        hash = hash64(cover->pieces[i].extent, (size_t)rank * sizeof(int64_t), hash);
    }
    size_t mask = cover->slots_capacity - 1, at = (size_t)hash & mask;
    for (; cover->slots[at]; at = (at + 1) & mask)
        if (same_pieces(cover, rank, cover->slots[at] - 1, first))
            return true;
    cover->slots[at] = first + 1;
    return false;
}

static bool slots_clear(struct cover *cover, uint32_t chunk_count)
{
    size_t wanted = 16;
    while (wanted < (size_t)chunk_count * 2)
        wanted *= 2;
    if (wanted > cover->slots_capacity) {
        uint32_t *slots = reallocarray(cover->slots, wanted, sizeof(*slots));
        if (!slots)
            return false;
        cover->slots = slots;
    }
    cover->slots_capacity = wanted;
    memset(cover->slots, 0, wanted * sizeof(*cover->slots));
    return true;
}

/* Pieces of all chunks of the tensor but replicas, which are marked. */
static reshard_status tensor_pieces(struct cover *cover, const struct catalog_tensor *tensor, reshard_error *err)
{
    cover->piece_count = 0;
    arena_release(&cover->run_boxes);
    if (!slots_clear(cover, tensor->chunk_count))
        return error_set_memory(err);
    for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; c++) {
        uint32_t first = cover->piece_count;
        reshard_status status = chunk_pieces(cover, tensor, c, err);
        if (status)
            return status;
        if (cover->piece_count > first && pieces_are_replica(cover, tensor->rank, first)) {
            cover->catalog->chunks[c].flags |= CHUNK_REPLICA;
            cover->piece_count = first;
        }
    }
    return RESHARD_OK;
}

#define OVERLAP_TEXT "tensor '%.*s': its chunks %s in '%.*s' and %s in '%.*s' overlap but are not equal"

/* An error that names two chunks; or, for who only looks, a warning. */
static reshard_status overlap_report(const struct cover *cover, const struct catalog_tensor *tensor, const uint32_t pair[2],
                                    reshard_error *err)
{
    char boxes[2][BOX_TEXT_MAX];
    struct str objects[2];
    for (int i = 0; i < 2; i++) {
        const struct join_box *piece = &cover->pieces[pair[i]];
        uint32_t object = cover->catalog->chunks[piece->owner].object;
        box_text(tensor->rank, piece->start, piece->extent, boxes[i]);
        objects[i] = object < cover->catalog->object_count ? cover->catalog->objects[object].name : STR("");
    }
    if (cover->catalog->shows_overlaps) {
        cover->catalog->has_overlaps = true;
        catalog_warn(cover->catalog, true, OVERLAP_TEXT, STR_ARG(tensor->key), boxes[0], STR_ARG(objects[0]), boxes[1],
                     STR_ARG(objects[1]));
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_FORMAT, OVERLAP_TEXT, STR_ARG(tensor->key), boxes[0], STR_ARG(objects[0]), boxes[1], STR_ARG(objects[1]));
    error_object(err, "%.*s", STR_ARG(tensor->key));
    return RESHARD_ERR_FORMAT;
}

static int compare_spans(const void *a, const void *b)
{
    const int64_t *left = a, *right = b;
    return (left[0] > right[0]) - (left[0] < right[0]);
}

/* Finds an axis on which no piece lies somewhere: then the hole has a simple name. */
static bool gap_find(const struct cover *cover, const struct catalog_tensor *tensor, int *gap_axis, int64_t *gap_begin, int64_t *gap_end)
{
    const int64_t *shape = catalog_vector_at(cover->catalog, tensor->shape);
    int64_t(*spans)[2] = array_new((size_t)cover->piece_count + 1, sizeof(*spans));
    bool found = false;
    for (int axis = 0; spans && axis < tensor->rank && !found; axis++) {
        int64_t covered = 0;
        for (uint32_t i = 0; i < cover->piece_count; i++) {
            spans[i][0] = cover->pieces[i].start[axis];
            spans[i][1] = spans[i][0] + cover->pieces[i].extent[axis];
        }
        spans[cover->piece_count][0] = spans[cover->piece_count][1] = shape[axis];
        qsort(spans, (size_t)cover->piece_count + 1, sizeof(*spans), compare_spans);
        for (uint32_t i = 0; i <= cover->piece_count && !found; i++) {
            found = spans[i][0] > covered;
            *gap_axis = axis;
            *gap_begin = covered;
            *gap_end = spans[i][0];
            covered = spans[i][1] > covered ? spans[i][1] : covered;
        }
    }
    free(spans);
    return found;
}

/* The tensor lacks elements: an error, or a warning if holes are allowed. */
static reshard_status hole_report(struct cover *cover, const struct catalog_tensor *tensor, int64_t covered, reshard_error *err)
{
    char where[128] = "";
    int axis;
    int64_t begin, end, volume = box_volume(tensor->rank, catalog_vector_at(cover->catalog, tensor->shape));

    const bool is_told = !cover->allow_holes || cover->catalog->damage_count < CATALOG_WARNINGS_MAX; /* others are counted alone */
    if (is_told && covered > 0 && gap_find(cover, tensor, &axis, &begin, &end))
        snprintf(where, sizeof(where), ", nothing holds %" PRId64 ":%" PRId64 " of axis %d", begin, end, axis);
    if (cover->allow_holes) {
        catalog_warn(cover->catalog, true, "tensor '%.*s': its %" PRIu32 " chunks hold %" PRId64 " of %" PRId64 " elements%s",
                     STR_ARG(tensor->key), tensor->chunk_count, covered, volume, where);
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': its %" PRIu32 " chunks hold %" PRId64 " of %" PRId64 " elements%s",
              STR_ARG(tensor->key), tensor->chunk_count, covered, volume, where);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    return RESHARD_ERR_FORMAT;
}

/* What is told as damage, and borne, is marked. */
static reshard_status tensor_torn(struct catalog_tensor *tensor, reshard_status status)
{
    tensor->flags |= status ? 0 : TENSOR_TORN;
    return status;
}

static reshard_status tensor_check(struct cover *cover, struct catalog_tensor *tensor, reshard_error *err)
{
    int64_t volume = box_volume(tensor->rank, catalog_vector_at(cover->catalog, tensor->shape)), covered = 0;
    bool overlaps = false;
    uint32_t pair[2];

    cover->piece_count = 0;
    if (tensor->chunk_count == 0)
        return volume == 0 || tensor->flags & TENSOR_NO_DATA ? RESHARD_OK : tensor_torn(tensor, hole_report(cover, tensor, 0, err));
    const struct catalog_chunk *only = &cover->catalog->chunks[tensor->first_chunk];
    if (tensor->chunk_count == 1 && !only->layout && only->extent == tensor->shape)
        return RESHARD_OK;

    reshard_status status = tensor_pieces(cover, tensor, err);
    if (!status)
        status = boxes_overlap(&cover->joiner, tensor->rank, cover->pieces, cover->piece_count, &overlaps, pair, err);
    if (status == RESHARD_ERR_LIMIT)
        error_prefix(err, "tensor '%.*s': its %" PRIu32 " chunks are cut very irregularly", STR_ARG(tensor->key), tensor->chunk_count);
    if (status)
        return status;
    if (overlaps)
        return tensor_torn(tensor, overlap_report(cover, tensor, pair, err));
    for (uint32_t i = 0; i < cover->piece_count; i++)
        covered += box_volume(tensor->rank, cover->pieces[i].extent);
    return covered == volume ? RESHARD_OK : tensor_torn(tensor, hole_report(cover, tensor, covered, err));
}

reshard_status catalog_check_cover(struct catalog *catalog, bool allow_holes, reshard_error *err)
{
    struct cover cover = { .catalog = catalog, .allow_holes = allow_holes, .seed = hash_table_seed() };
    reshard_status status = RESHARD_OK;
    cover.joiner.misses_max = catalog->limits.box_checks;
    for (uint32_t t = 0; t < catalog->tensor_count && !status; t++)
        status = tensor_check(&cover, &catalog->tensors[t], err);
    free(cover.pieces);
    free(cover.slots);
    arena_release(&cover.run_boxes);
    box_joiner_release(&cover.joiner);
    return status;
}
