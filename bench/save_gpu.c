/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves from a GPU's memory in the background, by a thread and by a program, and how long training stands still for it; beside it the
 * same bytes by cudaMemcpy alone. Then what was saved is compared with what lies there. Not a part of `make bench`: it needs CUDA.
 *
 *   cc -O2 bench/save_gpu.c -o save_gpu $(pkg-config --cflags --libs reshard) -I$CUDA/include -L$CUDA/lib64 -lcudart
 *   ./save_gpu TARGET [MIB]        16 tensors of so many MiB each (512)
 */
#include "bench.h"
#include "reshard/async.h"
#include "reshard/reshard.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define TENSORS 16
#define SAVES 3

struct model {
    size_t bytes; /* of each tensor */
    int64_t elements;
    char names[TENSORS][32];
    void *memory[TENSORS]; /* the GPU's */
    float *host;           /* room for one of them */
    reshard_shards *shards;
};

static reshard_error err;

static void expect(int is_good, const char *what)
{
    if (is_good)
        return;
    fprintf(stderr, "save_gpu: %s\n", what);
    exit(1);
}

static int copy_from_gpu(void *to, const void *from, size_t bytes, void *context)
{
    (void)context;
    return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess;
}

static void model_make(struct model *model, size_t bytes)
{
    static const int64_t start = 0;
    *model = (struct model){ .bytes = bytes, .elements = (int64_t)(bytes / sizeof(float)), .host = malloc(bytes) };
    expect(model->host != NULL, "no memory");
    must(reshard_shards_new(&model->shards, &err));
    for (int t = 0; t < TENSORS; t++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        for (int64_t i = 0; i < model->elements; i++)
            model->host[i] = (float)(i * 7 + t);
        expect(cudaMalloc(&model->memory[t], bytes) == cudaSuccess, "the GPU has too little memory");
        expect(cudaMemcpy(model->memory[t], model->host, bytes, cudaMemcpyHostToDevice) == cudaSuccess, "cudaMemcpy failed");
        int size = snprintf(model->names[t], sizeof(model->names[t]), "layers.%d.weight", t);
        shard.key = (reshard_str){ model->names[t], (size_t)size };
        shard.dtype = "F32";
        shard.rank = 1;
        shard.global_shape = shard.extent = &model->elements;
        shard.start = &start;
        shard.data = model->memory[t];
        must(reshard_shards_add(model->shards, &shard, &err));
    }
}

static void save(const struct model *model, const char *target, int kind)
{
    reshard_saver *saver;
    reshard_saver_options how = RESHARD_SAVER_OPTIONS_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    how.kind = kind;
    how.copy = copy_from_gpu;
    options.to = "torch-dcp";
    options.overwrite = 1;
    state.shards = model->shards;
    request.path = target;
    request.options = &options;
    request.state = &state;
    must(reshard_saver_open(&how, &saver, &err));
    for (int n = 0; n < SAVES; n++) {
        double began = now();
        must(reshard_saver_save(saver, &request, NULL, &err));
        double stood = now() - began;
        must(reshard_saver_wait(saver, -1, &err));
        printf("%-8s save %d: training stands still for %.2f s, saved after %.2f s\n", kind ? "program," : "thread,", n, stood,
               now() - began);
    }
    must(reshard_saver_close(saver, &err));
}

static void compare(const struct model *model, const char *target)
{
    reshard_checkpoint *checkpoint;
    float *read = malloc(model->bytes);
    expect(read != NULL, "no memory");
    must(reshard_open(target, NULL, &checkpoint, &err));
    for (int t = 0; t < TENSORS; t++) {
        int64_t number = reshard_tensor_find(checkpoint, model->names[t], strlen(model->names[t]));
        expect(number >= 0, "a tensor is missing");
        must(reshard_read_into(checkpoint, (size_t)number, NULL, NULL, NULL, read, model->bytes, &err));
        expect(copy_from_gpu(model->host, model->memory[t], model->bytes, NULL) == 0, "cudaMemcpy failed");
        expect(memcmp(read, model->host, model->bytes) == 0, "the saved values differ from those of the GPU");
    }
    reshard_close(checkpoint);
    free(read);
}

int main(int argc, char **argv)
{
    struct model model;
    expect(argc > 1, "usage: save_gpu TARGET [MIB]");
    model_make(&model, (size_t)(argc > 2 ? atoll(argv[2]) : 512) << 20);
    printf("%.1f GiB on the GPU\n", (double)model.bytes * TENSORS / (1 << 30));
    double began = now();
    for (int t = 0; t < TENSORS; t++)
        copy_from_gpu(model.host, model.memory[t], model.bytes, NULL);
    printf("cudaMemcpy alone: %.2f s\n", now() - began);
    save(&model, argv[1], RESHARD_SAVER_THREAD);
    save(&model, argv[1], RESHARD_SAVER_PROCESS);
    compare(&model, argv[1]);
    printf("the saved values are those of the GPU\n");
    reshard_shards_free(model.shards);
    free(model.host);
    return 0;
}
