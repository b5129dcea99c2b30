/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank writes what: the words of the layout make ranks, and what several of them hold is written by one. */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WORLD_MAX 65536

static const char *const stages[] = { "1v1", "1v2", "2", "3", NULL }; /* in the order of enum sharding_stage, behind SHARDING_NONE */

const struct layout_word flex_words[] = {
    { .name = "ranks", .unit = "ranks", .help = "ranks in all: dp is what the others leave", .is_rank_count = true },
    { .name = "tp", .unit = "ranks", .help = "tensor parallel" },
    { .name = "pp", .unit = "ranks", .help = "pipeline parallel" },
    { .name = "vp", .unit = "chunks", .help = "virtual pipeline: model chunks of each stage" },
    { .name = "ep", .unit = "ranks", .help = "expert parallel, over the ranks of dp, sharding and tp" },
    { .name = "dp", .unit = "ranks", .help = "data parallel", .is_rank_count = true },
    { .name = "sharding", .unit = "ranks", .help = "ranks that share optimizer state" },
    { .name = "stage", .unit = "stage", .help = "how they share it", .choices = stages },
    { 0 },
};

/* ---- degrees ---- */

static uint32_t flex_place_at_least_one(uint32_t number)
{
    return number ? number : 1;
}

static reshard_status read_segment(const struct layout_request *request, int64_t *out, reshard_error *err)
{
    const char *value = layout_option(request, "segment-size");
    uint64_t number = SHARDING_SEGMENT;
    if (value && (!str_to_u64(str_of(value), &number) || number > INT64_MAX))
        return error_set(err, RESHARD_ERR_USAGE, "format option segment-size=%s: a number of elements is wanted", value);
    *out = (int64_t)number;
    return RESHARD_OK;
}

reshard_status flex_degrees_read(const struct layout_request *request, struct flex_degrees *out, reshard_error *err)
{
    uint32_t ranks = layout_number(request, "ranks"), dp = layout_number(request, "dp"), stage = layout_number(request, "stage");
    struct flex_degrees degrees = { .tp = flex_place_at_least_one(layout_number(request, "tp")),
                                    .pp = flex_place_at_least_one(layout_number(request, "pp")),
                                    .vp = flex_place_at_least_one(layout_number(request, "vp")),
                                    .ep = flex_place_at_least_one(layout_number(request, "ep")),
                                    .sharding = flex_place_at_least_one(layout_number(request, "sharding")) };
    uint64_t others = (uint64_t)degrees.tp * degrees.pp, world;
    degrees.dp = flex_place_at_least_one(dp);
    if (!checked_mul_u64(others, degrees.sharding, &others) || others > WORLD_MAX)
        return error_set_limit(err, "ranks", others, WORLD_MAX);
    if (ranks && (ranks % others || (dp && ranks / others != dp)))
        return error_set(err, RESHARD_ERR_USAGE, "ranks=%" PRIu32 " is not tp times pp times sharding, %" PRIu64 ", times dp", ranks,
                         others);
    if (ranks)
        degrees.dp = (uint32_t)(ranks / others);
    const uint64_t places = (uint64_t)degrees.sharding * degrees.tp;
    degrees.is_ep_over_tp = degrees.ep > 1 && degrees.tp > 1;
    while (!ranks && !dp && degrees.dp < degrees.ep && degrees.dp * places % degrees.ep)
        degrees.dp++;
    if (degrees.dp * places % degrees.ep) {
        error_set(err, RESHARD_ERR_USAGE, "ep=%" PRIu32 " does not divide the %" PRIu64 " ranks of dp, sharding and tp", degrees.ep,
                  degrees.dp * places);
        error_hint(err, "experts are spread over these ranks: without dp= there are as many as ep needs");
        return RESHARD_ERR_USAGE;
    }
    if (!checked_mul_u64(others, degrees.dp, &world) || world > WORLD_MAX)
        return error_set_limit(err, "ranks", world, WORLD_MAX);
    degrees.world = (uint32_t)world;
    degrees.stage = degrees.sharding == 1 ? SHARDING_NONE : stage ? (enum sharding_stage)stage : SHARDING_1_V1;
    *out = degrees;
    return read_segment(request, &out->segment, err);
}

static struct flex_place place_of(const struct flex_degrees *degrees, uint32_t rank)
{
    struct flex_place place = { .part = rank % degrees->tp };
    rank /= degrees->tp;
    place.shard = rank % degrees->sharding;
    rank /= degrees->sharding;
    place.stage = rank % degrees->pp;
    place.data = rank / degrees->pp;
    return place;
}

/* ---- what ranks hold ---- */

struct deduping {
    const struct flex_cutting *cutting;
    const struct target *target;
    uint32_t folder;    /* a trainer's rank hands in what is in one folder at a time */
    uint32_t *first_id; /* by tensor: the number of its first piece */
    uint32_t id_count;
    uint32_t *order;  /* ranks as their file names sort */
    uint32_t *chosen; /* by piece: the rank that writes it */
    uint32_t *seen;   /* pieces as they are first met */
    uint32_t seen_count;
    uint64_t *first_holder; /* by piece: its place in holders, and one past the last piece */
    uint32_t *holders;      /* ranks, in the order of their file names */
};

typedef void (*held_visit)(struct deduping *deduping, uint32_t id, uint32_t rank);

static bool flex_place_is_here(const struct deduping *deduping, uint32_t tensor)
{
    const struct catalog_tensor *wanted = &deduping->cutting->wanted->tensors[tensor];
    return flex_is_stored(wanted) && flex_folder_of(deduping->target, wanted->key) == deduping->folder;
}

static void visit_rank(struct deduping *deduping, uint32_t rank, held_visit visit)
{
    struct flex_place place = place_of(&deduping->cutting->degrees, rank);
    struct flex_held held;
    for (uint32_t i = 0; i < deduping->cutting->order_count; i++) {
        uint32_t t = deduping->cutting->order[i];
        if (flex_place_is_here(deduping, t) && flex_held_of(deduping->cutting, t, &place, &held))
            visit(deduping, deduping->first_id[t] + held.number, rank);
    }
}

static void note_seen(struct deduping *deduping, uint32_t id, uint32_t rank)
{
    deduping->first_holder[id + 1]++;
    if (deduping->chosen[id] != CATALOG_NONE)
        return;
    deduping->chosen[id] = rank;
    deduping->seen[deduping->seen_count++] = id;
}

static void note_holder(struct deduping *deduping, uint32_t id, uint32_t rank)
{
    deduping->holders[deduping->first_holder[id]++] = rank;
}

static int by_file_name(const void *a, const void *b)
{
    char x[32], y[32];
    snprintf(x, sizeof(x), "%" PRIu32 "_", *(const uint32_t *)a);
    snprintf(y, sizeof(y), "%" PRIu32 "_", *(const uint32_t *)b);
    return strcmp(x, y);
}

/* The ranks that hold each piece, as their names sort; chosen is the first of them by number. */
static reshard_status list_holders(struct deduping *deduping, reshard_error *err)
{
    uint32_t world = deduping->cutting->degrees.world;
    uint64_t total;
    for (uint32_t rank = 0; rank < world; rank++)
        visit_rank(deduping, rank, note_seen);
    for (uint32_t id = 0; id < deduping->id_count; id++)
        deduping->first_holder[id + 1] += deduping->first_holder[id];
    total = deduping->first_holder[deduping->id_count];
    deduping->holders = array_new(total, sizeof(*deduping->holders));
    if (!deduping->holders)
        return error_set_memory(err);
    for (uint32_t rank = 0; rank < world; rank++)
        deduping->order[rank] = rank;
    qsort(deduping->order, world, sizeof(*deduping->order), by_file_name);
    for (uint32_t i = 0; i < world; i++)
        visit_rank(deduping, deduping->order[i], note_holder);
    memmove(deduping->first_holder + 1, deduping->first_holder, (size_t)deduping->id_count * sizeof(*deduping->first_holder));
    deduping->first_holder[0] = 0;
    return RESHARD_OK;
}

/* As upstream does: pieces as they are first met, each to the file that has fewest so far, of equal ones the first by name. */
static reshard_status choose_balanced(struct deduping *deduping, reshard_error *err)
{
    uint32_t *loads = array_zeroed(deduping->cutting->degrees.world, sizeof(*loads));
    if (!loads)
        return error_set_memory(err);
    for (uint32_t i = 0; i < deduping->seen_count; i++) {
        uint32_t id = deduping->seen[i];
        const uint32_t *holders = deduping->holders + deduping->first_holder[id];
        uint64_t count = deduping->first_holder[id + 1] - deduping->first_holder[id];
        uint32_t best = holders[0];
        for (uint64_t j = 1; j < count; j++)
            if (loads[holders[j]] < loads[best])
                best = holders[j];
        deduping->chosen[id] = best;
        loads[best]++;
    }
    free(loads);
    return RESHARD_OK;
}

static reshard_status deduping_make(struct deduping *deduping, reshard_error *err)
{
    const struct catalog *wanted = deduping->cutting->wanted;
    uint64_t ids = 0;
    deduping->first_id = array_new(wanted->tensor_count, sizeof(*deduping->first_id));
    for (uint32_t t = 0; deduping->first_id && t < wanted->tensor_count; t++) {
        deduping->first_id[t] = (uint32_t)ids;
        ids += flex_place_is_here(deduping, t) ? flex_piece_numbers(deduping->cutting, t) : 0;
        if (ids >= CATALOG_NONE)
            return error_set_limit(err, "chunks", ids, CATALOG_NONE);
    }
    deduping->id_count = (uint32_t)ids;
    deduping->order = array_new(deduping->cutting->degrees.world, sizeof(*deduping->order));
    deduping->chosen = array_new(ids, sizeof(*deduping->chosen));
    deduping->seen = array_new(ids, sizeof(*deduping->seen));
    deduping->first_holder = array_zeroed(ids + 2, sizeof(*deduping->first_holder));
    if (!deduping->first_id || !deduping->order || !deduping->chosen || !deduping->seen || !deduping->first_holder)
        return error_set_memory(err);
    memset(deduping->chosen, 0xFF, ids * sizeof(*deduping->chosen));
    return list_holders(deduping, err);
}

static void deduping_release(struct deduping *deduping)
{
    free(deduping->first_id);
    free(deduping->order);
    free(deduping->chosen);
    free(deduping->seen);
    free(deduping->first_holder);
    free(deduping->holders);
}

/* ---- pieces ---- */

/* The number of a copy: 0 for the one that balancing chooses, the others in the order of their names. */
static int32_t replica_number(const struct deduping *deduping, uint32_t id, uint32_t rank)
{
    int32_t number = 0;
    uint64_t at = deduping->first_holder[id];
    if (rank == deduping->chosen[id])
        return 0;
    for (; deduping->holders[at] != rank; at++)
        number += deduping->holders[at] != deduping->chosen[id];
    return number + 1;
}

static reshard_status add_held(const struct deduping *deduping, struct target *target, uint32_t tensor, uint32_t rank, uint32_t file,
                               const struct flex_held *held, reshard_error *err)
{
    uint32_t id = deduping->first_id[tensor] + held->number;
    bool are_copies_kept = flex_target_state(target)->dedupe == FLEX_DEDUPE_NONE;
    int axes = deduping->cutting->wanted->tensors[tensor].rank;
    if (!are_copies_kept && deduping->chosen[id] != rank)
        return RESHARD_OK;
    struct flex_piece piece = { .tensor = tensor,
                                .start = catalog_vector(target->catalog, held->start, axes),
                                .extent = catalog_vector(target->catalog, held->extent, axes),
                                .begin = held->begin,
                                .count = held->count,
                                .file = file,
                                .replica = are_copies_kept ? replica_number(deduping, id, rank) : -1 };
    if (piece.start == CATALOG_NONE || piece.extent == CATALOG_NONE)
        return error_set_memory(err);
    return flex_target_add_piece(target, &piece, err);
}

static reshard_status place_rank(const struct deduping *deduping, struct target *target, uint32_t rank, reshard_error *err)
{
    struct flex_place place = place_of(&deduping->cutting->degrees, rank);
    struct flex_held held;
    uint32_t file;
    reshard_status status = flex_target_add_rank_file(target, deduping->folder, rank, &file, err);
    for (uint32_t t = 0; t < deduping->cutting->wanted->tensor_count && !status; t++)
        if (flex_place_is_here(deduping, t) && flex_held_of(deduping->cutting, t, &place, &held))
            status = add_held(deduping, target, t, rank, file, &held, err);
    return status;
}

static reshard_status flex_place_place_ranks(const struct flex_cutting *cutting, struct target *target, uint32_t folder, reshard_error *err)
{
    struct deduping deduping = { .cutting = cutting, .target = target, .folder = folder };
    reshard_status status = deduping_make(&deduping, err);
    if (!status && flex_target_state(target)->dedupe != FLEX_DEDUPE_FIRST)
        status = choose_balanced(&deduping, err);
    for (uint32_t rank = 0; rank < cutting->degrees.world && !status; rank++)
        status = place_rank(&deduping, target, rank, err);
    deduping_release(&deduping);
    return status;
}

/* ---- without words ---- */

/* Whole tensors, as many a file as max_shard_bytes allow. */
static reshard_status place_whole(const struct layout_request *request, struct target *target, uint32_t folder, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    uint64_t limit = request->max_shard_bytes > 0 ? (uint64_t)request->max_shard_bytes : UINT64_MAX, bytes = 0;
    uint32_t file = CATALOG_NONE, rank = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t t = 0; t < wanted->tensor_count && !status; t++) {
        const struct catalog_tensor *tensor = &wanted->tensors[t];
        uint64_t size = catalog_tensor_bytes(wanted, tensor);
        int64_t zero[RANK_MAX] = { 0 };
        if (!flex_is_stored(tensor) || flex_folder_of(target, tensor->key) != folder)
            continue;
        if (file == CATALOG_NONE || (bytes && size > limit - (bytes < limit ? bytes : limit))) {
            status = flex_target_add_rank_file(target, folder, rank++, &file, err);
            bytes = 0;
        }
        bytes += size;
        struct flex_piece piece = { .tensor = t, .count = -1, .file = file, .replica = -1 };
        piece.start = catalog_vector(target->catalog, zero, tensor->rank);
        piece.extent = catalog_vector(target->catalog, catalog_vector_at(wanted, tensor->shape), tensor->rank);
        if (!status && (piece.start == CATALOG_NONE || piece.extent == CATALOG_NONE))
            status = error_set_memory(err);
        if (!status)
            status = flex_target_add_piece(target, &piece, err);
    }
    if (!status && file == CATALOG_NONE)
        status = flex_target_add_rank_file(target, folder, 0, &file, err);
    return status;
}

/* ---- by the ranks that have them ---- */

/* Files of one rank: the dict of a file has one piece of each key, so that further ones go to files of ranks that there are not. */
struct written_files {
    uint32_t *file;   /* by writer and turn: of turn t, writer w it is file[t * writers + w] */
    uint32_t writers, turns;
};

static reshard_status written_file(struct written_files *files, struct target *target, uint32_t folder, uint32_t writer, uint32_t turn,
                                   uint32_t *out, reshard_error *err)
{
    while (files->turns <= turn) {
        uint32_t *grown = reallocarray(files->file, (size_t)files->turns + 1, files->writers * sizeof(*grown));
        if (!grown)
            return error_set_memory(err);
        memset(grown + (size_t)files->turns * files->writers, 0xFF, files->writers * sizeof(*grown));
        files->file = grown;
        files->turns++;
    }
    uint32_t *file = &files->file[(size_t)turn * files->writers + writer];
    reshard_status status = RESHARD_OK;
    if (*file == CATALOG_NONE) {
        uint32_t rank = turn * files->writers + writer;
        status = flex_target_add_rank_file(target, folder, rank, file, err);
    }
    *out = *file;
    return status;
}

static reshard_status place_written_chunk(const struct layout_request *request, struct target *target, uint32_t index,
                                          const struct catalog_chunk *chunk, uint32_t file, reshard_error *err)
{
    const struct catalog *stored = request->source_catalog;
    const struct chunk_layout *layout = catalog_layout_of(stored, chunk);
    int rank = request->wanted->tensors[index].rank;
    bool is_run = layout && layout->flat_count >= 0;
    struct flex_piece piece = { .tensor = index,
                                .start = catalog_vector(target->catalog, catalog_vector_at(stored, chunk->start), rank),
                                .extent = catalog_vector(target->catalog, catalog_vector_at(stored, chunk->extent), rank),
                                .begin = is_run ? layout->flat_begin : 0,
                                .count = is_run ? layout->flat_count : -1,
                                .file = file,
                                .replica = -1 };
    if (piece.start == CATALOG_NONE || piece.extent == CATALOG_NONE)
        return error_set_memory(err);
    return flex_target_add_piece(target, &piece, err);
}

static reshard_status flex_place_written(const struct layout_request *request, struct target *target, uint32_t folder, uint32_t index,
                                           struct written_files *files, uint32_t *turns, reshard_error *err)
{
    const struct catalog *stored = request->source_catalog;
    const struct catalog_tensor *tensor = catalog_written_tensor(stored, request->wanted_source[index], request->wanted, index);
    bool is_empty = tensor && box_is_empty(tensor->rank, catalog_vector_at(stored, tensor->shape)), has_piece = false;
    if (!tensor)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is no tensor of the ranks, but made of others",
                         STR_ARG(request->wanted->tensors[index].key));
    memset(turns, 0, files->writers * sizeof(*turns));
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &stored->chunks[tensor->first_chunk + i];
        bool is_void = box_is_empty(tensor->rank, catalog_vector_at(stored, chunk->extent));
        uint32_t file;
        if (chunk->flags & CHUNK_REPLICA || (is_void && !(is_empty && !has_piece)))
            continue;
        reshard_status status = written_file(files, target, folder, chunk->writer, turns[chunk->writer]++, &file, err);
        if (!status)
            status = place_written_chunk(request, target, index, chunk, file, err);
        if (status)
            return status;
        has_piece = true;
    }
    return RESHARD_OK;
}

static uint32_t writer_count(const struct catalog *stored)
{
    uint32_t count = 1;
    for (uint32_t i = 0; i < stored->chunk_count; i++)
        count = stored->chunks[i].writer >= count ? (uint32_t)stored->chunks[i].writer + 1 : count;
    return count;
}

static reshard_status place_written(const struct layout_request *request, struct target *target, uint32_t folder, reshard_error *err)
{
    struct written_files files = { .writers = writer_count(request->source_catalog) };
    uint32_t *turns = array_zeroed(files.writers, sizeof(*turns)), file;
    reshard_status status = turns ? written_file(&files, target, folder, 0, 0, &file, err) : error_set_memory(err);
    for (uint32_t t = 0; t < request->wanted->tensor_count && !status; t++) {
        const struct catalog_tensor *tensor = &request->wanted->tensors[t];
        if (flex_is_stored(tensor) && flex_folder_of(target, tensor->key) == folder)
            status = flex_place_written(request, target, folder, t, &files, turns, err);
    }
    free(files.file);
    free(turns);
    return status;
}

reshard_status flex_place(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const uint32_t folders = flex_target_state(target)->folder_count;
    struct flex_degrees degrees;
    struct flex_cutting cutting = { 0 };
    reshard_status status = RESHARD_OK;
    bool has_words = layout_has_words(request);
    if (has_words)
        status = flex_degrees_read(request, &degrees, err);
    if (has_words && !status)
        status = flex_cutting_make(request, &degrees, &cutting, err);
    for (uint32_t folder = 0; folder < folders && !status; folder++)
        status = has_words             ? flex_place_place_ranks(&cutting, target, folder, err)
                 : request->by_writer ? place_written(request, target, folder, err)
                                      : place_whole(request, target, folder, err);
    flex_cutting_release(&cutting);
    return status;
}
