/* SPDX-License-Identifier: Apache-2.0 */
/* A training loop that goes on while it saves, step after step, and keeps the last checkpoint: save_in_background FOLDER STEPS */
#include <reshard/async.h>

#include <stdio.h>
#include <stdlib.h>

#define SIZE 1024
static float weights[SIZE];
static int64_t last = -1;

/* Called in the order of the saves, once each is there or has failed: the place to move a `latest` file. */
static int step_saved(int64_t number, reshard_status status, void *context)
{
    (void)context;
    last = status ? -1 : number;
    return 0;
}

int main(int argc, char **argv)
{
    const int64_t shape = SIZE, start = 0;
    if (argc != 3)
        return fputs("usage: save_in_background FOLDER STEPS\n", stderr), 2;
    reshard_saver *saver = NULL;
    reshard_shards *shards = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_saver_options how = RESHARD_SAVER_OPTIONS_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    shard.key = (reshard_str){ "model.weight", 12 };
    shard.dtype = "float32", shard.rank = 1;
    shard.global_shape = shard.extent = &shape;
    shard.start = &start;
    shard.data = weights;
    how.kind = RESHARD_SAVER_PROCESS; /* what is begun is finished even if this process crashes */
    options.to = "torch-dcp";
    options.overwrite = 1;
    request.path = argv[1];
    request.options = &options;
    request.state = &state;
    request.finished = step_saved;
    reshard_status status = reshard_saver_open(&how, &saver, &err);
    status = status ? status : reshard_shards_new(&shards, &err);
    status = status ? status : reshard_shards_add(shards, &shard, &err);
    state.shards = shards;
    for (int step = 0; step < atoi(argv[2]) && !status; step++) {
        weights[0] += (float)step; /* training */
        status = reshard_saver_save(saver, &request, NULL, &err);
    }
    reshard_status closed = reshard_saver_close(saver, status ? NULL : &err);
    if (status || closed)
        fprintf(stderr, "save_in_background: %s\n", err.message);
    else
        printf("%d saves, the last one holds %g\n", (int)last + 1, weights[0]);
    reshard_shards_free(shards);
    return reshard_status_exit(status ? status : closed);
}
