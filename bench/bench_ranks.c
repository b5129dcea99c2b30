/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four ranks, processes of this machine, save a model and load it under another layout: bench_ranks FOLDER [MEGABYTES]. In interleaved
 * rounds as many bytes are written by a dd of each rank, synced too, and read by pread of each rank into the memory that it fills.
 *
 * Matrices are cut by rows or by columns, saved from TP 4 as torch-dcp, and loaded into TP 2 with two replicas of each part: every byte is
 * wanted twice. Prints the ratios of the medians, of the slowest rank each time, and how many bytes the ranks read for each that is saved.
 */
#include "bench.h"
#include "reshard/sharded.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 5
#define RANKS 4
#define ROWS 4096
#define COLUMNS 4096
#define MATRIX_BYTES ((size_t)ROWS * COLUMNS * 2)
#define PIECE ((size_t)8 << 20)

static reshard_error err;
static const char *folder;
static int matrix_count;

struct rank {
    reshard_comm *comm;
    int64_t number;
    reshard_sharded *had, *wanted;
    char *memory; /* of what is wanted */
    size_t bytes; /* of it */
};

static char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* A part of all matrices, odd ones cut by columns, behind each other in memory. */
static reshard_sharded *model_new(int64_t part, int64_t parts, int64_t replica, char **memory)
{
    reshard_sharded *model;
    const size_t bytes = MATRIX_BYTES / (size_t)parts;
    *memory = malloc(bytes * (size_t)matrix_count);
    if (!*memory)
        exit(1);
    memset(*memory, (int)part + 1, bytes * (size_t)matrix_count);
    must(reshard_sharded_new(&model, &err));
    for (int i = 0; i < matrix_count; i++) {
        const reshard_rank_offset offset = { i % 2, part, parts };
        const int64_t shape[] = { i % 2 ? ROWS : ROWS / parts, i % 2 ? COLUMNS / parts : COLUMNS }, replicas[] = { replica };
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        char key[64];
        snprintf(key, sizeof(key), "layers.%d.weight", i);
        tensor.key = (reshard_str){ key, strlen(key) };
        tensor.dtype = "BF16";
        tensor.rank = 2;
        tensor.local_shape = shape;
        tensor.replica_ids = replicas;
        tensor.replica_count = 1;
        tensor.data = *memory + bytes * (size_t)i;
        must(reshard_sharded_add_offsets(model, &tensor, &offset, sizeof(offset), 1, &err));
    }
    return model;
}

/* The slowest rank's seconds, or the sum of a count of all. */
static double all_ranks(const struct rank *rank, double own, int is_sum)
{
    const void *parts[RANKS];
    size_t sizes[RANKS];
    void *all;
    double result = 0;
    must(reshard_comm_all_gather(rank->comm, &own, sizeof(own), parts, sizes, &all, &err));
    for (int i = 0; i < RANKS; i++) {
        double other;
        memcpy(&other, parts[i], sizeof(other));
        result = is_sum ? result + other : other > result ? other : result;
    }
    reshard_free(all);
    return result;
}

static void run(const char *command)
{
    if (system(command)) {
        fprintf(stderr, "bench_ranks: %s failed\n", command);
        exit(1);
    }
}

static void remove_all(const struct rank *rank, const char *name)
{
    char command[8192];
    must(reshard_comm_barrier(rank->comm, &err));
    snprintf(command, sizeof(command), "rm -rf %s", path_of(name));
    if (rank->number == 0)
        run(command);
    must(reshard_comm_barrier(rank->comm, &err));
}

static double save_ours(const struct rank *rank)
{
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    convert.to = "torch-dcp";
    options.convert = &convert;
    remove_all(rank, "saved");
    const double began = now();
    must(reshard_save(rank->comm, path_of("saved"), rank->had, &options, NULL, &err));
    return all_ranks(rank, now() - began, 0);
}

static double save_dd(const struct rank *rank)
{
    char command[8192];
    remove_all(rank, "dd-*");
    snprintf(command, sizeof(command), "dd if=/dev/zero of=%s%" PRId64 " bs=1M count=%zu conv=fsync status=none", path_of("dd-"),
             rank->number, matrix_count * (MATRIX_BYTES / RANKS >> 20));
    const double began = now();
    run(command);
    return all_ranks(rank, now() - began, 0);
}

/* Bytes that this process has asked the kernel for. */
static double bytes_read(void)
{
    unsigned long long count = 0;
    FILE *file = fopen("/proc/self/io", "r");
    if (!file || fscanf(file, "rchar: %llu", &count) != 1)
        exit(1);
    fclose(file);
    return (double)count;
}

static double load_ours(const struct rank *rank, int64_t no_exchange, double *read)
{
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    options.no_exchange = no_exchange;
    must(reshard_comm_barrier(rank->comm, &err));
    const double before = bytes_read(), began = now();
    must(reshard_load(rank->comm, path_of("saved"), rank->wanted, &options, NULL, NULL, &err));
    const double seconds = now() - began;
    *read = all_ranks(rank, bytes_read() - before, 1);
    return all_ranks(rank, seconds, 0);
}

/* The two files of TP 4 that have a part of TP 2. */
static double load_pread(const struct rank *rank)
{
    size_t at = 0;
    must(reshard_comm_barrier(rank->comm, &err));
    const double began = now();
    for (int64_t file = rank->number % 2 * 2, last = file + 2; file < last; file++) {
        char name[64];
        ssize_t got = 1;
        snprintf(name, sizeof(name), "saved/__%" PRId64 "_0.distcp", file);
        const int fd = open(path_of(name), O_RDONLY);
        if (fd < 0)
            exit(1);
        for (off_t offset = 0; at < rank->bytes && got > 0; offset += got, at += (size_t)got) {
            got = pread(fd, rank->memory + at, rank->bytes - at < PIECE ? rank->bytes - at : PIECE, offset);
        }
        close(fd);
    }
    return all_ranks(rank, now() - began, 0);
}

/* Whether each half has the values of the two quarters: of rows behind each other, of columns beside each other. */
static int is_loaded(const struct rank *rank)
{
    const int first = (int)(rank->number % 2 * 2) + 1;
    for (int i = 0; i < matrix_count; i++) {
        const char *half = rank->memory + MATRIX_BYTES / 2 * (size_t)i;
        const size_t second = i % 2 ? COLUMNS / 4 * 2 : MATRIX_BYTES / 4;
        if (half[0] != first || half[second - 1] != first || half[second] != first + 1 || half[MATRIX_BYTES / 2 - 1] != first + 1)
            return 0;
    }
    return 1;
}

static void rank_run(struct rank *rank)
{
    double times[5][ROUNDS], read[2];
    char *had;
    const size_t total = MATRIX_BYTES * (size_t)matrix_count;
    rank->had = model_new(rank->number, RANKS, 0, &had);
    rank->wanted = model_new(rank->number % 2, 2, rank->number / 2, &rank->memory);
    rank->bytes = total / 2;
    for (int round = -1; round < ROUNDS; round++) { /* one that warms up */
        const int to = round < 0 ? 0 : round;
        times[0][to] = save_dd(rank);
        times[1][to] = save_ours(rank);
        remove_all(rank, "dd-*");
        times[2][to] = load_pread(rank);
        for (int way = 0; way < 2; way++) {
            memset(rank->memory, 0, rank->bytes);
            times[3 + way][to] = load_ours(rank, way, &read[way]);
            if (!is_loaded(rank)) {
                fprintf(stderr, "bench_ranks: what was loaded is not what was saved\n");
                exit(1);
            }
        }
    }
    double seconds[5];
    for (int i = 0; i < 5; i++)
        seconds[i] = median(times[i], ROUNDS);
    remove_all(rank, "saved");
    if (rank->number)
        return;
    printf("save: %zu MB: %.2fx of dd (%.2f s, dd %.2f s)\n", total / 1000000, seconds[0] / seconds[1], seconds[1], seconds[0]);
    for (int way = 0; way < 2; way++)
        printf("%s: %zu MB wanted: %.2fx of pread (%.3f s, pread %.3f s), read amplification %.2f\n",
               way ? "load, each rank by itself" : "load, each byte read once", total * 2 / 1000000, seconds[2] / seconds[3 + way],
               seconds[3 + way], seconds[2], read[way] / (double)total);
}

int main(int argc, char **argv)
{
    int status = 0, failures = 0;
    char name[64];
    if (argc < 2) {
        fprintf(stderr, "usage: bench_ranks FOLDER [MEGABYTES]\n");
        return 2;
    }
    folder = argv[1];
    matrix_count = (int)((argc > 2 ? strtoul(argv[2], NULL, 10) : 1000) * 1000000 / MATRIX_BYTES) / 2 * 2;
    snprintf(name, sizeof(name), "bench-%d", (int)getpid());
    for (int64_t i = 0; i < RANKS; i++) {
        if (fork())
            continue;
        struct rank rank = { .number = i };
        must(reshard_comm_processes(name, i, RANKS, NULL, &rank.comm, &err));
        rank_run(&rank);
        fflush(stdout);
        _exit(0);
    }
    while (wait(&status) > 0)
        failures += status != 0;
    return failures > 0;
}
