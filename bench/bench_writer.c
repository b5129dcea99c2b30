/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes one large tensor from memory in pieces of 1 MiB, in order and in any, by one thread and by two, and has dd write as many bytes, in
 * interleaved rounds: bench_writer FOLDER [GIGABYTES]. Both bring the bytes to the disk. Prints the ratios of the medians, and what
 * resident memory has grown by.
 */
#include "bench.h"
#include "reshard/writer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#define ROUNDS 5
#define PIECE ((size_t)1 << 20)
#define COLUMNS 4096
#define THREADS_MAX 4

static reshard_error err;

struct way {
    const char *what, *format;
    int threads, is_shuffled;
};

struct feeding {
    reshard_writer *writer;
    const unsigned char *bytes;
    size_t count;
    int is_shuffled;
    atomic_size_t next;
};

/* The order is that of multiples of an odd number, modulo a power of two. */
static void *feed(void *context)
{
    struct feeding *feeding = context;
    reshard_error own = RESHARD_ERROR_INIT;
    size_t i;
    while ((i = atomic_fetch_add(&feeding->next, 1)) < feeding->count) {
        const int64_t rows = (int64_t)(PIECE / 2 / COLUMNS);
        size_t place = feeding->is_shuffled ? i * 0x9E3779B1u % feeding->count : i;
        const int64_t start[] = { (int64_t)place * rows, 0 }, extent[] = { rows, COLUMNS };
        reshard_piece piece = RESHARD_PIECE_INIT;
        piece.start = start;
        piece.extent = extent;
        piece.data = feeding->bytes;
        piece.size = PIECE;
        if (reshard_writer_put(feeding->writer, &piece, &own)) {
            fprintf(stderr, "bench_writer: %s\n", own.message);
            exit(1);
        }
    }
    return NULL;
}

static double write_pieces(const struct way *way, const char *folder, size_t count, const unsigned char *bytes)
{
    const int64_t shape[] = { (int64_t)(count * (PIECE / 2 / COLUMNS)), COLUMNS };
    const reshard_writer_tensor tensor = { { "w", 1 }, "BF16", 2, shape };
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    struct feeding feeding = { .bytes = bytes, .count = count, .is_shuffled = way->is_shuffled };
    pthread_t threads[THREADS_MAX];
    char path[4096];
    snprintf(path, sizeof(path), "%s/written", folder);
    options.to = way->format;
    input.tensors = &tensor;
    input.tensor_count = 1;
    double started = now();
    must(reshard_writer_open(&input, path, &options, NULL, NULL, &feeding.writer, &err));
    for (int i = 1; i < way->threads; i++)
        pthread_create(&threads[i], NULL, feed, &feeding);
    feed(&feeding);
    for (int i = 1; i < way->threads; i++)
        pthread_join(threads[i], NULL);
    must(reshard_writer_finish(feeding.writer, &err));
    double seconds = now() - started;
    reshard_writer_free(feeding.writer);
    return seconds;
}

static void run(const char *command)
{
    if (system(command)) {
        fprintf(stderr, "bench_writer: %s failed\n", command);
        exit(1);
    }
}

static double write_dd(const char *folder, size_t count)
{
    char command[8192];
    snprintf(command, sizeof(command), "dd if=/dev/zero of=%s/written bs=1M count=%zu conv=fsync status=none", folder, count);
    double started = now();
    run(command);
    return now() - started;
}

int main(int argc, char **argv)
{
    static const struct way ways[] = { { "safetensors, in order, 1 thread", "safetensors", 1, 0 },
                                       { "safetensors, in any order, 1 thread", "safetensors", 1, 1 },
                                       { "safetensors, in any order, 2 threads", "safetensors", 2, 1 },
                                       { "torch (with CRC-32), in any order, 1 thread", "torch", 1, 1 } };
    enum { WAYS = sizeof(ways) / sizeof(ways[0]) };
    double times[WAYS][ROUNDS], dd[ROUNDS];
    char command[4096];
    if (argc < 2) {
        fprintf(stderr, "usage: bench_writer FOLDER [GIGABYTES]\n");
        return 2;
    }
    size_t count = 1024;
    for (double size = argc > 2 ? atof(argv[2]) : 1; (double)(count * 2) <= size * 1024;)
        count *= 2;
    unsigned char *bytes = malloc(PIECE);
    struct rusage before, after;
    if (!bytes)
        return 1;
    for (size_t i = 0; i < PIECE; i++)
        bytes[i] = (unsigned char)(i * 31 + 7);
    snprintf(command, sizeof(command), "rm -r %s/written", argv[1]);
    getrusage(RUSAGE_SELF, &before);
    for (int round = -1; round < ROUNDS; round++) { /* one that warms up */
        double seconds = write_dd(argv[1], count);
        dd[round < 0 ? 0 : round] = seconds;
        run(command);
        for (int i = 0; i < WAYS; i++) {
            times[i][round < 0 ? 0 : round] = write_pieces(&ways[i], argv[1], count, bytes);
            run(command);
        }
    }
    getrusage(RUSAGE_SELF, &after);
    double reference = median(dd, ROUNDS);
    for (int i = 0; i < WAYS; i++) {
        double seconds = median(times[i], ROUNDS);
        printf("%s: %zu MB: %.2fx of dd (%.2f s, dd %.2f s)\n", ways[i].what, count, reference / seconds, seconds, reference);
    }
    printf("resident memory: %ld MB more\n", (after.ru_maxrss - before.ru_maxrss) / 1024);
    free(bytes);
    return 0;
}
