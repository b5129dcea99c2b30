/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where blobs go. By default everything lies in __0_0.distcp, byte items first as torch writes them; with ranks=N every tensor is cut on
 * axis 0 as DTensor's Shard(0) over N files. Pieces that a flavour makes are spread evenly. With a reference, boxes, files and order are
 * those of the tensor or item of that name there.
 */
#include "formats/dcp/dcp_target.h"

#include "base/array.h"
#include "base/checked.h"
#include "formats/dcp/dcp_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What the reference does not place follows what it does. */
#define ORDER_AFTER_REFERENCE (UINT64_C(1) << 62)

/* ---- files ---- */

static reshard_status dcp_place_add_file(struct dcp_placing *placing, struct str name, uint32_t rank, uint32_t number, uint32_t *out,
                               reshard_error *err)
{
    struct arena *arena = &placing->target->catalog->arena;
    if (!ARRAY_ROOM(placing->files, placing->file_count, placing->file_capacity))
        return error_set_memory(err);
    struct dcp_out_file file = { .rank = rank, .number = number };
    const char *folder = dcp_target_state(placing->target)->folder;
    const char *text = name.size ? ARENA_JOIN(arena, str_of(folder), name).data
                                 : arena_printf(arena, "%s__%" PRIu32 "_%" PRIu32 ".distcp", folder, rank, number);
    if (!text)
        return error_set_memory(err);
    file.name = str_of(text);
    reshard_status status = catalog_add_object(placing->target->catalog, file.name, 0, &file.object, err);
    if (status)
        return status;
    *out = placing->file_count;
    placing->files[placing->file_count++] = file;
    return RESHARD_OK;
}

/* The file of that name in the folder. Names are objects of the target, and files are added together with them, one to one. */
static reshard_status named_file(struct dcp_placing *placing, struct str name, uint32_t *out, reshard_error *err)
{
    struct buffer *path = &placing->path;
    buffer_clear(path);
    if (!buffer_append_text(path, dcp_target_state(placing->target)->folder) || !buffer_append_str(path, name))
        return error_set_memory(err);
    uint32_t object = name_map_find(&placing->target->catalog->object_names, buffer_str(path));
    for (uint32_t i = object < placing->file_count ? object : 0; object != NAME_NONE && i < placing->file_count; i++) {
        if (placing->files[i].object == object) {
            *out = i;
            return RESHARD_OK;
        }
    }
    return dcp_place_add_file(placing, name, CATALOG_NONE, 0, out, err);
}

/* The newest file of a rank. */
static reshard_status rank_file(struct dcp_placing *placing, uint32_t rank, uint32_t *out, reshard_error *err)
{
    if (placing->like) {
        char name[64];
        int size = snprintf(name, sizeof(name), "__%" PRIu32 "_0.distcp", rank);
        return named_file(placing, (struct str){ name, (size_t)size }, out, err);
    }
    while (placing->file_count <= rank) {
        uint32_t added;
        reshard_status status = dcp_place_add_file(placing, (struct str){ 0 }, placing->file_count, 0, &added, err);
        if (status)
            return status;
    }
    *out = rank;
    return RESHARD_OK;
}

/* ---- the reference ---- */

static struct str dcp_place_base_name(const struct source *like, uint32_t object)
{
    size_t prefix = strlen(((const struct dcp_source *)like->driver_state)->directory);
    struct str name = like->catalog->objects[object].name;
    return prefix < name.size ? (struct str){ name.data + prefix, name.size - prefix } : name;
}

/* Whether the reference has the tensor, in chunks that can be written here. */
static const struct catalog_tensor *like_tensor(const struct dcp_placing *placing, uint32_t wanted_index)
{
    const struct source *like = placing->like;
    const struct catalog *wanted = placing->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[wanted_index];
    uint32_t index = like ? catalog_find(like->catalog, tensor->key) : CATALOG_NONE;
    if (index == CATALOG_NONE)
        return NULL;
    const struct catalog_tensor *found = &like->catalog->tensors[index];
    bool same_shape = catalog_same_shape(like->catalog, found, wanted, tensor);
    for (uint32_t i = 0; same_shape && i < found->chunk_count; i++) {
        const struct catalog_chunk *chunk = &like->catalog->chunks[found->first_chunk + i];
        const struct chunk_layout *layout = catalog_layout_of(like->catalog, chunk);
        same_shape = (!layout || layout->flat_count < 0) && chunk->driver_data == 0;
    }
    return same_shape && found->chunk_count > 0 ? found : NULL;
}

reshard_status dcp_place_begin(struct dcp_placing *placing, reshard_error *err)
{
    const struct source *like = placing->like;
    if (!like)
        return RESHARD_OK;
    const struct catalog *catalog = like->catalog;
    placing->like_item = array_zeroed(catalog->item_count, sizeof(*placing->like_item));
    if (!placing->like_item)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        bool was_new;
        uint32_t index = name_map_intern(&placing->like_items, catalog->items[i].key, &was_new);
        if (index == NAME_NONE)
            return error_set_memory(err);
        if (was_new)
            placing->like_item[index] = i;
    }
    for (uint32_t i = 0; i < catalog->layout_count; i++) {
        if (catalog->layouts[i].codec == CODEC_ZSTD)
            return target_note_changed(placing->target, NOTE_COMPRESSION, (struct str){ 0 }, err,
                                       "compression: the reference's blobs are zstd frames, these are not compressed");
    }
    return RESHARD_OK;
}

/* ---- pieces ---- */

static reshard_status dcp_place_add_piece(struct dcp_placing *placing, const struct dcp_piece *piece, reshard_error *err)
{
    if (placing->piece_count >= DCP_IN_RUN - 1)
        return error_set_limit(err, "chunks", placing->piece_count, DCP_IN_RUN - 1);
    if (!ARRAY_ROOM(placing->pieces, placing->piece_count, placing->piece_capacity))
        return error_set_memory(err);
    placing->pieces[placing->piece_count++] = *piece;
    return RESHARD_OK;
}

static reshard_status add_tensor_piece(struct dcp_placing *placing, uint32_t index, const int64_t *start, const int64_t *extent,
                                       uint32_t file, uint64_t order, reshard_error *err)
{
    struct catalog *catalog = placing->target->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    struct torch_frame frame;
    struct dcp_piece piece = { .index = index, .file = file, .order = order, .is_free = file == CATALOG_NONE };
    reshard_status status = dcp_chunk_frame(dcp_target_state(placing->target), catalog, index, start, extent, &frame, err);
    if (status)
        return status;
    piece.payload_offset = (uint32_t)frame.members[frame.first_storage].payload_offset;
    piece.bytes = frame.bytes;
    torch_frame_release(&frame);
    piece.start = catalog_vector(catalog, start, tensor->rank);
    piece.extent = catalog_vector(catalog, extent, tensor->rank);
    if (piece.start == CATALOG_NONE || piece.extent == CATALOG_NONE)
        return error_set_memory(err);
    return dcp_place_add_piece(placing, &piece, err);
}

/* The piece of a run. With a reference it lies in the file of the rank that has it. */
static reshard_status place_run(struct dcp_placing *placing, const struct dcp_vectors *vectors, uint32_t run, reshard_error *err)
{
    struct torch_frame frame;
    reshard_status status = dcp_run_frame(vectors, run, &frame, err);
    if (status)
        return status;
    struct dcp_piece piece = { .is_run = true,
                               .is_free = !placing->like,
                               .index = run,
                               .bytes = frame.bytes,
                               .payload_offset = (uint32_t)frame.members[frame.first_storage].payload_offset,
                               .file = CATALOG_NONE,
                               .order = ORDER_AFTER_REFERENCE + placing->piece_count };
    torch_frame_release(&frame);
    if (!piece.is_free)
        status = rank_file(placing, vectors->runs[run].rank, &piece.file, err);
    return status ? status : dcp_place_add_piece(placing, &piece, err);
}

reshard_status dcp_place_piece(struct dcp_placing *placing, uint32_t index, const int64_t *start, const int64_t *extent, reshard_error *err)
{
    return add_tensor_piece(placing, index, start, extent, CATALOG_NONE, ORDER_AFTER_REFERENCE + placing->piece_count, err);
}

static reshard_status place_like_tensor(struct dcp_placing *placing, uint32_t index, const struct catalog_tensor *like, reshard_error *err)
{
    const struct source *reference = placing->like;
    const struct catalog *catalog = reference->catalog;
    uint32_t first = placing->piece_count;
    bool is_empty = box_is_empty(like->rank, catalog_vector_at(catalog, like->shape));
    for (uint32_t i = 0; i < like->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[like->first_chunk + i];
        bool is_void = box_is_empty(like->rank, catalog_vector_at(catalog, chunk->extent));
        uint32_t file;
        /* Empty chunks of a tensor that has data say nothing, and several may lie at one offset. */
        if (chunk->flags & CHUNK_REPLICA || (is_void && !(is_empty && placing->piece_count == first)))
            continue;
        reshard_status status = named_file(placing, dcp_place_base_name(reference, chunk->object), &file, err);
        if (!status)
            status = add_tensor_piece(placing, index, catalog_vector_at(catalog, chunk->start), catalog_vector_at(catalog, chunk->extent),
                                      file, catalog_chunk_span(catalog, chunk).offset, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* A chunk of the source, in the file of the rank that has it; of a flat run, the boxes that it is. */
struct written_walk {
    struct dcp_placing *placing;
    const int64_t *start;
    reshard_error *err;
    reshard_status status;
    uint32_t index, file;
    int rank;
};

static bool place_written_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct written_walk *walk = context;
    int64_t moved[RANK_MAX + 1];
    (void)flat_index;
    for (int axis = 0; axis < walk->rank; axis++)
        moved[axis] = walk->start[axis] + start[axis];
    walk->status = add_tensor_piece(walk->placing, walk->index, moved, extent, walk->file,
                                    ORDER_AFTER_REFERENCE + walk->placing->piece_count, walk->err);
    return !walk->status;
}

static reshard_status place_written_tensor(struct dcp_placing *placing, uint32_t index, const struct catalog_tensor *tensor,
                                           reshard_error *err)
{
    static const int64_t origin[RANK_MAX + 1];
    const struct catalog *catalog = placing->request->source_catalog;
    uint32_t first = placing->piece_count;
    bool is_empty = box_is_empty(tensor->rank, catalog_vector_at(catalog, tensor->shape));
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
        const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
        const int64_t *extent = catalog_vector_at(catalog, chunk->extent);
        struct written_walk walk = {
            .placing = placing, .start = catalog_vector_at(catalog, chunk->start), .err = err, .index = index, .rank = tensor->rank
        };
        bool is_void = box_is_empty(tensor->rank, extent);
        if (chunk->flags & CHUNK_REPLICA || (is_void && !(is_empty && placing->piece_count == first)))
            continue;
        walk.status = rank_file(placing, chunk->writer, &walk.file, err);
        if (!walk.status && layout && layout->flat_count >= 0)
            flat_run_boxes(tensor->rank, extent, layout->flat_begin, layout->flat_count, place_written_box, &walk);
        else if (!walk.status)
            place_written_box(origin, extent, 0, &walk);
        if (walk.status)
            return walk.status;
    }
    return RESHARD_OK;
}

static const struct catalog_tensor *tensor_of_writers(const struct dcp_placing *placing, uint32_t index)
{
    const struct layout_request *request = placing->request;
    return request->by_writer ? catalog_written_tensor(request->source_catalog, request->wanted_source[index], request->wanted, index)
                              : NULL;
}

reshard_status dcp_place_like(struct dcp_placing *placing, uint32_t index, bool *done, reshard_error *err)
{
    const struct catalog_tensor *written = tensor_of_writers(placing, index);
    *done = written != NULL;
    if (written)
        return place_written_tensor(placing, index, written, err);
    const struct catalog_tensor *like = like_tensor(placing, index);
    *done = like != NULL;
    return like ? place_like_tensor(placing, index, like, err) : RESHARD_OK;
}

/* DTensor's Shard(0): ceil(rows / ranks) rows a rank, the last ones may get fewer or none. */
static reshard_status place_rows(struct dcp_placing *placing, uint32_t index, uint32_t ranks, reshard_error *err)
{
    const struct catalog *wanted = placing->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[index];
    int64_t start[RANK_MAX] = { 0 }, extent[RANK_MAX];
    if (tensor->rank)
        memcpy(extent, catalog_vector_at(wanted, tensor->shape), (size_t)tensor->rank * sizeof(*extent));
    int64_t rows = tensor->rank ? extent[0] : 1, each = rows / ranks + (rows % ranks != 0);
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < ranks && !status; rank++) {
        int64_t first = each * rank;
        uint32_t file;
        /* An empty tensor has one chunk, of rank 0. */
        if (rank > 0 && first >= rows)
            break;
        if (tensor->rank) {
            start[0] = first;
            extent[0] = rows - first < each ? rows - first : each;
        }
        status = rank_file(placing, rank, &file, err);
        if (!status)
            status = add_tensor_piece(placing, index, start, extent, file, ORDER_AFTER_REFERENCE + placing->piece_count, err);
    }
    return status;
}

/* ---- spreading ---- */

static int by_size(const void *a, const void *b, void *context)
{
    const struct dcp_piece *pieces = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (pieces[i].bytes != pieces[j].bytes)
        return pieces[i].bytes > pieces[j].bytes ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* A rank in the heap of loads: the least loaded on top, of equal ones the lowest. */
struct rank_load {
    uint64_t bytes;
    uint32_t rank;
};

static bool is_less(const struct rank_load *a, const struct rank_load *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->rank < b->rank;
}

static void sink_top(struct rank_load *heap, uint32_t count)
{
    struct rank_load moved = heap[0];
    uint32_t at = 0;
    for (uint32_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && is_less(&heap[child + 1], &heap[child]))
            child++;
        if (!is_less(&heap[child], &moved))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The largest first, each to the rank that has least so far. */
static reshard_status spread(struct dcp_placing *placing, const uint32_t *order, uint32_t count, struct rank_load *heap, uint32_t ranks,
                             reshard_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct dcp_piece *piece = &placing->pieces[order[i]];
        reshard_status status = rank_file(placing, heap[0].rank, &piece->file, err);
        if (status)
            return status;
        if (!checked_add_u64(heap[0].bytes, piece->bytes, &heap[0].bytes))
            return error_set(err, RESHARD_ERR_LIMIT, "a file would have more than 2^64 bytes");
        sink_top(heap, ranks);
    }
    return RESHARD_OK;
}

/* Gives free pieces files of the ranks 0 to ranks - 1, so that these fill evenly. */
static reshard_status place_evenly(struct dcp_placing *placing, uint32_t ranks, reshard_error *err)
{
    uint32_t count = 0;
    uint32_t *order = array_new(placing->piece_count, sizeof(*order));
    struct rank_load *heap = array_zeroed(ranks, sizeof(*heap));
    reshard_status status = order && heap ? RESHARD_OK : error_set_memory(err);
    if (status)
        goto out;
    for (uint32_t i = 0; i < placing->piece_count; i++) {
        if (placing->pieces[i].is_free)
            order[count++] = i;
    }
    for (uint32_t i = 0; i < ranks; i++)
        heap[i].rank = i;
    qsort_r(order, count, sizeof(*order), by_size, placing->pieces);
    status = spread(placing, order, count, heap, ranks, err);

out:
    free(order);
    free(heap);
    return status;
}

/* ---- tensors and items ---- */

static bool dcp_place_is_stored(const struct catalog_tensor *tensor)
{
    return !(tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

/* Many enough that no file is much larger than this, so that several readers find work. */
#define EVEN_FILE_BYTES (UINT64_C(4) << 30)
#define EVEN_FILES_MAX 256

static uint32_t even_ranks(const struct dcp_placing *placing)
{
    uint64_t total = 0;
    uint32_t spread = dcp_target_state(placing->target)->spread;
    if (placing->request->ranks)
        return placing->request->ranks;
    if (spread)
        return spread < EVEN_FILES_MAX ? spread : EVEN_FILES_MAX;
    for (uint32_t i = 0; i < placing->piece_count; i++)
        total += placing->pieces[i].is_free ? placing->pieces[i].bytes : 0;
    uint64_t count = total / EVEN_FILE_BYTES + 1;
    return count < EVEN_FILES_MAX ? (uint32_t)count : EVEN_FILES_MAX;
}

static reshard_status place_tensor(struct dcp_placing *placing, uint32_t index, reshard_error *err)
{
    const struct dcp_flavour *flavour = dcp_target_state(placing->target)->flavour;
    bool done;
    if (flavour->place_tensor)
        return flavour->place_tensor(placing, index, err);
    reshard_status status = dcp_place_like(placing, index, &done, err);
    return status || done ? status : place_rows(placing, index, placing->request->ranks ? placing->request->ranks : 1, err);
}

reshard_status dcp_place_tensors(struct dcp_placing *placing, reshard_error *err)
{
    const struct layout_request *request = placing->request;
    const struct dcp_vectors *vectors = &dcp_target_state(placing->target)->vectors;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &request->wanted->tensors[i];
        if (tensor->flags & TENSOR_NO_DATA && !(tensor->flags & TENSOR_HIDDEN))
            status = target_note_dropped(placing->target, NOTE_NO_DATA, tensor->key, err, "a tensor without data");
        if (status || !dcp_place_is_stored(tensor))
            continue;
        status = place_tensor(placing, i, err);
        if (status)
            error_prefix(err, "tensor '%.*s'", STR_ARG(tensor->key));
    }
    for (uint32_t i = 0; vectors->are_blobs && i < vectors->run_count && !status; i++)
        status = place_run(placing, vectors, i, err);
    return status ? status : place_evenly(placing, even_ranks(placing), err);
}

reshard_status dcp_place_item(struct dcp_placing *placing, uint32_t item, uint64_t bytes, reshard_error *err)
{
    const struct source *like = placing->like;
    struct dcp_piece piece = { .is_item = true, .index = item, .bytes = bytes, .order = ORDER_AFTER_REFERENCE + placing->piece_count };
    uint32_t found = like ? name_map_find(&placing->like_items, dcp_target_state(placing->target)->items[item].key) : NAME_NONE;
    const struct catalog_item *there = found == NAME_NONE ? NULL : &like->catalog->items[placing->like_item[found]];
    reshard_status status;
    if (there && there->kind == ITEM_BLOB) {
        piece.order = there->offset;
        status = named_file(placing, dcp_place_base_name(like, there->object), &piece.file, err);
    } else {
        status = rank_file(placing, 0, &piece.file, err);
    }
    return status ? status : dcp_place_add_piece(placing, &piece, err);
}

/* ---- offsets ---- */

static int by_file(const void *a, const void *b, void *context)
{
    const struct dcp_piece *pieces = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct dcp_piece *x = &pieces[i], *y = &pieces[j];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return i < j ? -1 : i > j;
}

/* A full file is followed by the rank's next one. */
static reshard_status next_file_if_full(struct dcp_placing *placing, uint64_t bytes, uint32_t *file, reshard_error *err)
{
    int64_t bytes_max = placing->request->max_shard_bytes;
    const struct dcp_out_file *current = &placing->files[*file];
    bool is_full =
        bytes_max > 0 && current->bytes > 0 && (current->bytes > (uint64_t)bytes_max || bytes > (uint64_t)bytes_max - current->bytes);
    if (!is_full || current->rank == CATALOG_NONE)
        return RESHARD_OK;
    return dcp_place_add_file(placing, (struct str){ 0 }, current->rank, current->number + 1, file, err);
}

reshard_status dcp_place_finish(struct dcp_placing *placing, reshard_error *err)
{
    uint32_t *order = array_new(placing->piece_count, sizeof(*order));
    if (!order)
        return error_set_memory(err);
    for (uint32_t i = 0; i < placing->piece_count; i++)
        order[i] = i;
    qsort_r(order, placing->piece_count, sizeof(*order), by_file, placing->pieces);
    reshard_status status = RESHARD_OK;
    uint32_t planned = CATALOG_NONE, file = 0;
    for (uint32_t i = 0; i < placing->piece_count && !status; i++) {
        struct dcp_piece *piece = &placing->pieces[order[i]];
        if (piece->file != planned)
            planned = file = piece->file;
        status = next_file_if_full(placing, piece->bytes, &file, err);
        if (status)
            break;
        struct dcp_out_file *target = &placing->files[file];
        piece->file = file;
        piece->offset = target->bytes;
        if (!checked_add_u64(target->bytes, piece->bytes, &target->bytes))
            status = error_set(err, RESHARD_ERR_LIMIT, "file '%.*s' would have more than 2^64 bytes", STR_ARG(target->name));
    }
    for (uint32_t i = 0; i < placing->file_count && !status; i++)
        placing->target->catalog->objects[placing->files[i].object].bytes = placing->files[i].bytes;
    free(order);
    return status;
}

void dcp_placing_release(struct dcp_placing *placing)
{
    free(placing->pieces);
    free(placing->files);
    free(placing->like_item);
    buffer_release(&placing->path);
    name_map_release(&placing->like_items);
}
