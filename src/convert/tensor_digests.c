/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_digests.h"

#include "base/array.h"
#include "base/sort.h"
#include "convert/tensor_fold.h"
#include "kernels/cast.h"

#include <stdlib.h>

#define CAST_ELEMENTS 4096

struct digest_job {
    const struct catalog *catalog;
    enum digest_kind kind;
    const enum dtype *as;
    struct tensor_fold fold;
    char (*hex)[DIGEST_HEX_MAX];
};

static struct digest *digest_take(struct digest_job *job)
{
    struct digest *digest = tensor_fold_take(&job->fold);
    if (digest)
        digest_reset(digest);
    return digest ? digest : digest_new(job->kind);
}

static void digest_free_state(void *state)
{
    digest_free(state);
}

static void update_cast(struct digest *digest, enum dtype from, enum dtype to, const uint8_t *bytes, size_t size)
{
    uint8_t scratch[CAST_ELEMENTS * 16] __attribute__((aligned(16)));
    struct cast cast;
    if (!cast_find(from, to, &cast))
        return; /* selection has refused such a pair */
    size_t width_from = dtype_element_bytes(from), width_to = dtype_element_bytes(to);
    for (size_t count = size / width_from; count;) {
        size_t part = count < CAST_ELEMENTS ? count : CAST_ELEMENTS;
        cast_run(&cast, bytes, scratch, part);
        digest_update(digest, scratch, part * width_to);
        bytes += part * width_from;
        count -= part;
    }
}

static reshard_status digest_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                  reshard_error *err)
{
    struct digest_job *job = context;
    enum dtype dtype = job->catalog->tensors[tensor].dtype;
    (void)offset;
    struct digest *digest = job->fold.active[tensor];
    if (!digest) {
        digest = digest_take(job);
        if (!digest)
            return error_set_memory(err);
        job->fold.active[tensor] = digest;
    }
    if (job->as && job->as[tensor] != dtype)
        update_cast(digest, dtype, job->as[tensor], bytes, size);
    else
        digest_update(digest, bytes, size);
    if (is_last) {
        digest_hex(digest, job->hex[tensor]);
        tensor_fold_give(&job->fold, tensor);
    }
    return RESHARD_OK;
}

reshard_status tensor_digests(struct checkpoint *checkpoint, enum digest_kind kind, const uint32_t *tensors, uint32_t count,
                              const enum dtype *as, const struct engine_options *options, char (*hex)[DIGEST_HEX_MAX], reshard_error *err)
{
    struct digest_job job = { .catalog = checkpoint->source->catalog, .kind = kind, .as = as, .hex = hex };
    return tensor_fold_run(&job.fold, checkpoint, tensors, count, options, digest_sink, &job, digest_free_state, err);
}

/* ---- shared out ---- */

struct digest_shares {
    struct sort_entry *order; /* positions among the tensors, by the place where the first byte lies; then as much again to sort in */
    uint32_t *places;         /* catalog tensors in that order */
    uint64_t *bytes;          /* in that order, as are the owners */
    uint32_t *owners, *own;
    uint32_t own_count;
};

static bool digest_shares_make(struct digest_shares *shares, const struct team *team, const struct catalog *catalog,
                               const uint32_t *tensors, uint32_t count)
{
    const size_t room = (size_t)count + 1;
    shares->order = array_zeroed(room * 2, sizeof(*shares->order));
    shares->places = array_zeroed(room, sizeof(*shares->places));
    shares->bytes = array_zeroed(room, sizeof(*shares->bytes));
    shares->owners = array_zeroed(room, sizeof(*shares->owners));
    shares->own = array_zeroed(room, sizeof(*shares->own));
    if (!shares->order || !shares->places || !shares->bytes || !shares->owners || !shares->own)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[tensors[i]];
        const uint64_t object = tensor->chunk_count ? catalog->chunks[tensor->first_chunk].object : 0;
        shares->order[i] = (struct sort_entry){ (int64_t)object, i }; /* a file is read by few ranks */
    }
    entries_sort(shares->order, shares->order + count, count);
    for (uint32_t i = 0; i < count; i++) {
        shares->places[i] = tensors[shares->order[i].value];
        shares->bytes[i] = catalog_tensor_bytes(catalog, &catalog->tensors[shares->places[i]]);
    }
    team_share(team, shares->bytes, count, shares->owners);
    for (uint32_t i = 0; i < count; i++)
        if (shares->owners[i] == team_rank(team))
            shares->own[shares->own_count++] = shares->places[i];
    return true;
}

reshard_status tensor_digests_shared(struct team *team, struct checkpoint *checkpoint, enum digest_kind kind, const uint32_t *tensors,
                                     uint32_t count, const struct engine_options *options, char (*hex)[DIGEST_HEX_MAX],
                                     reshard_error *err)
{
    struct digest_shares shares = { 0 };
    if (!team)
        return tensor_digests(checkpoint, kind, tensors, count, NULL, options, hex, err);
    reshard_status status = digest_shares_make(&shares, team, checkpoint->source->catalog, tensors, count) ? RESHARD_OK
                                                                                                            : error_set_memory(err);
    if (!status)
        status = tensor_digests(checkpoint, kind, shares.own, shares.own_count, NULL, options, hex, err);
    if (!status)
        status = team_rows(team, status, shares.owners, count, hex, sizeof(*hex), shares.places, err);
    for (uint32_t i = 0; i < count && !status; i++)
        hex[tensors[i]][DIGEST_HEX_MAX - 1] = 0; /* what came from another rank is text, whatever it is */
    free(shares.order);
    free(shares.places);
    free(shares.bytes);
    free(shares.owners);
    free(shares.own);
    return status;
}

static reshard_status digest_box_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                               reshard_error *err)
{
    (void)tensor, (void)offset, (void)is_last, (void)err;
    digest_update(context, bytes, size);
    return RESHARD_OK;
}

/* start NULL: all of them. */
static reshard_status digest_in_order(struct source *source, const uint32_t *tensors, uint32_t count, const int64_t *start,
                                      const int64_t *extent, const struct engine_options *options, char hex[DIGEST_HEX_MAX],
                                      reshard_error *err)
{
    const struct engine_source from = { .store = source->store, .catalog = source->catalog, .limits = &source->limits };
    struct engine_options run = *options;
    struct digest *digest = digest_new(DIGEST_XXH3);
    run.threads = 1;
    reshard_status status = digest ? source_resolve(source, tensors, count, err) : error_set_memory(err);
    if (!status)
        status = engine_stream(&from, tensors, count, start, extent, &run, digest_box_sink, digest, err);
    if (!status)
        digest_hex(digest, hex);
    digest_free(digest);
    return status;
}

reshard_status tensor_digest_box(struct source *source, uint32_t tensor, const int64_t *start, const int64_t *extent,
                                 const struct engine_options *options, char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    return digest_in_order(source, &tensor, 1, start, extent, options, hex, err);
}

reshard_status tensor_digest_joined(struct source *source, const uint32_t *tensors, uint32_t count, const struct engine_options *options,
                                    char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    return digest_in_order(source, tensors, count, NULL, NULL, options, hex, err);
}

reshard_status tensor_digest_rows(struct source *source, uint32_t tensor, int64_t rows, const struct engine_options *options,
                                  char hex[DIGEST_HEX_MAX], reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_tensor *of = &source->catalog->tensors[tensor];
    int64_t extent[RANK_MAX];
    memcpy(extent, catalog_vector_at(source->catalog, of->shape), (size_t)of->rank * sizeof(*extent));
    extent[0] = rows;
    return tensor_digest_box(source, tensor, origin, extent, options, hex, err);
}
