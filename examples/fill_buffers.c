/* SPDX-License-Identifier: Apache-2.0 */
/* A server's loader: each rank fills one buffer with its rows of every tensor, as bfloat16, from any checkpoint: fill_buffers PATH RANK
 * RANKS */
#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>

/* Which rows of the tensor the rank has; what does not divide is whole on all. Returns how many elements that is. */
static size_t part_of(const reshard_tensor *tensor, int64_t rank, int64_t ranks, int64_t *start, int64_t *extent)
{
    const int is_cut = tensor->rank > 1 && tensor->shape[0] % ranks == 0;
    size_t count = 1;
    for (int axis = 0; axis < tensor->rank; axis++) {
        extent[axis] = is_cut && !axis ? tensor->shape[0] / ranks : tensor->shape[axis];
        start[axis] = is_cut && !axis ? rank * extent[0] : 0;
        count *= (size_t)extent[axis];
    }
    return count;
}

int main(int argc, char **argv)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_box_list list = RESHARD_BOX_LIST_INIT;
    const int64_t rank = argc == 4 ? atoll(argv[2]) : 0, ranks = argc == 4 ? atoll(argv[3]) : 0;
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return fputs("usage: fill_buffers PATH RANK RANKS\n", stderr), 2;
    reshard_status status = reshard_open(argv[1], NULL, &checkpoint, &err);
    const size_t count = reshard_tensor_count(checkpoint);
    reshard_box *boxes = (reshard_box *)calloc(count + 1, sizeof(*boxes));
    int64_t(*places)[2][8] = (int64_t(*)[2][8])calloc(count + 1, sizeof(*places));
    size_t size = 0;
    for (size_t i = 0; i < count && boxes && places; i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        if (reshard_tensor_at(checkpoint, i, &tensor) || tensor.rank > 8)
            continue;
        reshard_box *box = &boxes[list.box_count++];
        box->tensor = i;
        box->start = places[i][0];
        box->extent = places[i][1];
        box->dtype = "BF16";
        box->size = 2 * part_of(&tensor, rank, ranks, places[i][0], places[i][1]);
        size += box->size;
    }
    char *buffer = (char *)malloc(size + 1), *at = buffer; /* a server has it already: pinned, or mapped by a GPU */
    for (size_t i = 0; i < list.box_count && buffer; at += boxes[i++].size)
        boxes[i].out = at;
    list.boxes = boxes;
    status = status ? status : reshard_read_many(checkpoint, &list, NULL, &err);
    if (status)
        fprintf(stderr, "fill_buffers: %s\n", err.message);
    else
        printf("rank %lld of %lld: %zu tensors, %zu bytes\n", (long long)rank, (long long)ranks, list.box_count, size);
    free(buffer), free(places), free(boxes);
    reshard_close(checkpoint);
    return reshard_status_exit(status);
}
