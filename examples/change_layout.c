/* SPDX-License-Identifier: Apache-2.0 */
/* Saves a matrix that four ranks hold by rows, and loads it as three ranks hold it by columns: change_layout FOLDER */
#include <reshard/state.h>

#include <stdio.h>

#define ROWS 8
#define COLUMNS 12

/* Shards of all ranks; in a job each has its own, and reshard_shards_merge puts them together. */
static reshard_status shards_make(float *memory, int axis, int64_t ranks, reshard_shards **out, reshard_error *err)
{
    const int64_t shape[] = { ROWS, COLUMNS };
    reshard_status status = reshard_shards_new(out, err);
    for (int64_t rank = 0; rank < ranks && !status; rank++) {
        int64_t start[] = { 0, 0 }, extent[] = { ROWS, COLUMNS };
        extent[axis] /= ranks;
        start[axis] = rank * extent[axis];
        reshard_shard shard = RESHARD_SHARD_INIT;
        shard.key = (reshard_str){ "model.weight", 12 };
        shard.dtype = "float32";
        shard.rank = 2;
        shard.global_shape = shape;
        shard.start = start;
        shard.extent = extent;
        shard.data = memory + rank * extent[0] * extent[1];
        status = reshard_shards_add(*out, &shard, err);
    }
    return status;
}

int main(int argc, char **argv)
{
    float saved[ROWS * COLUMNS], loaded[ROWS * COLUMNS];
    reshard_shards *rows = NULL, *columns = NULL;
    reshard_checkpoint *live = NULL, *stored = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = "torch-dcp";
    options.layout = "ranks=4";
    for (int i = 0; i < ROWS * COLUMNS; i++)
        saved[i] = (float)i;
    reshard_status status = argc == 2 ? shards_make(saved, 0, 4, &rows, &err) : RESHARD_ERR_USAGE;
    state.shards = rows;
    status = status ? status : reshard_open_shards(&state, NULL, &live, &err);
    status = status ? status : reshard_convert(live, argv[1], &options, NULL, NULL, &err);
    status = status ? status : reshard_open(argv[1], NULL, &stored, &err);
    status = status ? status : shards_make(loaded, 1, 3, &columns, &err);
    status = status ? status : reshard_load_shards(stored, columns, NULL, &err);
    if (status)
        fprintf(stderr, "change_layout: %s\n", *err.message ? err.message : "usage: change_layout FOLDER");
    else
        printf("row 1 of rank 2: %g %g %g %g\n", loaded[68], loaded[69], loaded[70], loaded[71]);
    reshard_close(stored);
    reshard_close(live);
    reshard_shards_free(columns);
    reshard_shards_free(rows);
    return reshard_status_exit(status);
}
