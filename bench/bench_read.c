/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads boxes of a checkpoint by reshard_read_many, and the same bytes by pread where they are known to lie: bench_read CHECKPOINT.
 * Prints two ratios, medians of interleaved rounds: many small boxes, and all tensors whole into buffers that exist already.
 * Boxes are rows, so that each is one run of bytes of one chunk; CHECKPOINT is of safetensors files, where chunks say at once where they
 * lie.
 */
#include "bench.h"
#include "reshard/reshard.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BOXES 10000
#define SMALL_BYTES 16384
#define ROUNDS 9
#define FILES_MAX 1024

static reshard_checkpoint *checkpoint;
static reshard_error err;
static int files[FILES_MAX];
static char *file_names[FILES_MAX];

/* A box and where its bytes lie. */
struct box {
    int64_t start[2], extent[2];
    size_t file;
    uint64_t offset;
};

struct boxes {
    struct box *places;
    reshard_box *boxes;
    size_t count, capacity;
    uint64_t bytes;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_read: %s: %s\n", what, err.message);
    exit(1);
}

static size_t file_of(reshard_str name)
{
    for (size_t i = 0; i < FILES_MAX && file_names[i]; i++) {
        if (strlen(file_names[i]) == name.size && memcmp(file_names[i], name.data, name.size) == 0)
            return i;
    }
    die("a file is not known");
    return 0;
}

static void boxes_add(struct boxes *boxes, size_t tensor, const reshard_chunk *chunk, int64_t row, int64_t rows, uint64_t row_bytes)
{
    if (boxes->count == boxes->capacity)
        return;
    struct box *place = &boxes->places[boxes->count];
    *place = (struct box){ .start = { chunk->start[0] + row, 0 },
                           .extent = { rows, chunk->extent[1] },
                           .file = file_of(chunk->file),
                           .offset = chunk->offset + (uint64_t)row * row_bytes };
    uint64_t bytes = (uint64_t)rows * row_bytes;
    boxes->boxes[boxes->count++] = (reshard_box){ .tensor = tensor, .start = place->start, .extent = place->extent, .size = bytes };
    boxes->bytes += bytes;
}

/* All chunks of two axes that are cut by rows only: whole, or in pieces of about SMALL_BYTES. */
static void boxes_find(struct boxes *boxes, int is_small)
{
    for (size_t t = 0; t < reshard_tensor_count(checkpoint); t++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        if (reshard_tensor_at(checkpoint, t, &tensor) || tensor.rank != 2 || !tensor.bytes)
            continue;
        uint64_t row_bytes = tensor.bytes / (uint64_t)tensor.shape[0];
        for (size_t c = 0; c < tensor.chunk_count; c++) {
            reshard_chunk chunk = RESHARD_CHUNK_INIT;
            if (reshard_chunk_at(checkpoint, t, c, &chunk) || chunk.extent[1] != tensor.shape[1])
                continue;
            int64_t step = is_small ? (int64_t)(SMALL_BYTES / row_bytes) : chunk.extent[0];
            for (int64_t row = 0; step && row + step <= chunk.extent[0]; row += step * (is_small ? 2 : 1))
                boxes_add(boxes, t, &chunk, row, step, row_bytes);
        }
    }
}

/* In an order that has nothing to do with the files', as a loader asks. */
static void boxes_shuffle(struct boxes *boxes)
{
    uint64_t seed = 1;
    for (size_t i = boxes->count; i > 1; i--) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        size_t other = (size_t)(seed >> 33) % i;
        struct box place = boxes->places[i - 1];
        reshard_box box = boxes->boxes[i - 1];
        boxes->places[i - 1] = boxes->places[other];
        boxes->places[other] = place;
        boxes->boxes[i - 1] = boxes->boxes[other];
        boxes->boxes[other] = box;
    }
    for (size_t i = 0; i < boxes->count; i++) {
        boxes->boxes[i].start = boxes->places[i].start;
        boxes->boxes[i].extent = boxes->places[i].extent;
    }
}

static struct boxes boxes_make(int is_small)
{
    struct boxes boxes = { .capacity = is_small ? SMALL_BOXES : 100000 };
    boxes.places = calloc(boxes.capacity, sizeof(*boxes.places));
    boxes.boxes = calloc(boxes.capacity, sizeof(*boxes.boxes));
    if (!boxes.places || !boxes.boxes)
        die("memory");
    boxes_find(&boxes, is_small);
    boxes_shuffle(&boxes);
    uint8_t *memory = malloc(boxes.bytes + 1);
    if (!memory)
        die("memory");
    memset(memory, 1, boxes.bytes);
    for (size_t i = 0; i < boxes.count; memory += boxes.boxes[i++].size)
        boxes.boxes[i].out = memory;
    return boxes;
}

static double time_ours(const struct boxes *boxes)
{
    reshard_box_list list = RESHARD_BOX_LIST_INIT;
    list.boxes = boxes->boxes;
    list.box_count = boxes->count;
    double began = now();
    if (reshard_read_many(checkpoint, &list, NULL, &err))
        die("read");
    return now() - began;
}

static double time_pread(const struct boxes *boxes)
{
    double began = now();
    for (size_t i = 0; i < boxes->count; i++) {
        if (pread(files[boxes->places[i].file], boxes->boxes[i].out, boxes->boxes[i].size, (off_t)boxes->places[i].offset) !=
            (ssize_t)boxes->boxes[i].size)
            die("pread");
    }
    return now() - began;
}

static void boxes_time(const char *what, int is_small)
{
    struct boxes boxes = boxes_make(is_small);
    double ours[ROUNDS], theirs[ROUNDS];
    time_pread(&boxes);
    for (int i = 0; i < ROUNDS; i++) {
        ours[i] = time_ours(&boxes);
        theirs[i] = time_pread(&boxes);
    }
    double our_time = median(ours, ROUNDS), their_time = median(theirs, ROUNDS);
    printf("%s: %zu boxes, %.0f MB: %.2fx of pread (%.2f GB/s)\n", what, boxes.count, (double)boxes.bytes / 1e6,
           their_time / our_time, (double)boxes.bytes / 1e9 / our_time);
}

int main(int argc, char **argv)
{
    if (argc != 2 || reshard_open(argv[1], NULL, &checkpoint, &err))
        die("usage: bench_read CHECKPOINT");
    for (size_t i = 0; i < reshard_file_count(checkpoint) && i < FILES_MAX; i++) {
        reshard_file file = RESHARD_FILE_INIT;
        char path[8192];
        reshard_file_at(checkpoint, i, &file);
        file_names[i] = strndup(file.name.data, file.name.size);
        snprintf(path, sizeof(path), "%s/%.*s", reshard_checkpoint_path(checkpoint), (int)file.name.size, file.name.data);
        files[i] = open(path, O_RDONLY);
    }
    boxes_time("small boxes", 1);
    boxes_time("all tensors", 0);
    reshard_close(checkpoint);
    return 0;
}
