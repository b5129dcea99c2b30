/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tensor_digests.h"

#include "convert/tensor_fold.h"
#include "kernels/cast.h"

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
