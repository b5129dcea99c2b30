/* SPDX-License-Identifier: Apache-2.0 */
/* Four ranks, here threads, save a matrix by rows, and three of them load it by columns: save_and_load FOLDER */
#include <reshard/comm.h>
#include <reshard/sharded.h>

#include <pthread.h>
#include <stdio.h>

static const char *folder;
static reshard_comm *savers[4], *loaders[4]; /* the ends of two groups, by rank; the second has three */
static float columns[4][8 * 4];

/* What a rank has, or wants: its part of a matrix that is cut on an axis into as many parts as the group has ranks. */
static reshard_status part_make(reshard_comm *comm, int64_t axis, float *part, reshard_sharded **out, reshard_error *err)
{
    const int64_t shape[] = { axis ? 8 : 2, axis ? 4 : 12 };
    const reshard_rank_offset offset = { axis, reshard_comm_rank(comm), reshard_comm_size(comm) };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    tensor.key = (reshard_str){ "w", 1 }, tensor.dtype = "float32", tensor.rank = 2;
    tensor.local_shape = shape;
    tensor.data = part;
    reshard_status status = reshard_sharded_new(out, err);
    return status ? status : reshard_sharded_add_offsets(*out, &tensor, &offset, sizeof(offset), 1, err);
}

static void *rank_main(void *context)
{
    const int64_t rank = (reshard_comm **)context - savers;
    float rows[2 * 12];
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_sharded *had = NULL, *wanted = NULL;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    convert.to = "torch_dist";
    options.convert = &convert;
    for (int i = 0; i < 24; i++)
        rows[i] = (float)(rank * 24 + i);
    reshard_status status = part_make(savers[rank], 0, rows, &had, &err);
    status = status ? status : reshard_save(savers[rank], folder, had, &options, NULL, &err);
    status = status || !loaders[rank] ? status : part_make(loaders[rank], 1, columns[rank], &wanted, &err);
    status = status || !loaders[rank] ? status : reshard_load(loaders[rank], folder, wanted, NULL, NULL, NULL, &err);
    if (status)
        fprintf(stderr, "save_and_load: %s\n", err.message);
    reshard_sharded_free(had), reshard_sharded_free(wanted);
    reshard_comm_free(savers[rank]), reshard_comm_free(loaders[rank]);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[4];
    folder = argv[1];
    if (argc != 2 || reshard_comm_threads(4, NULL, savers, NULL) || reshard_comm_threads(3, NULL, loaders, NULL))
        return fputs("usage: save_and_load FOLDER\n", stderr), 2;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, rank_main, &savers[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("row 1 of rank 2: %g %g %g %g\n", columns[2][4], columns[2][5], columns[2][6], columns[2][7]);
}
