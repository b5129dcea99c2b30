/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes the layout of a model in the memory of four ranks by reshard_redistribute, and has each rank copy as many bytes as it gets by
 * memcpy, in interleaved rounds: bench_redistribute tp|ep threads|processes|shared [MEGABYTES]. shared: processes, with sources in memory
 * that the ranks have from their group.
 *
 * tp: matrices, half of them cut by rows and half by columns, from TP 4 to TP 2 (two data-parallel ranks, each with all of it). ep: experts
 * of two matrices, from a quarter of the experts on each rank to a quarter of each expert. Prints the ratio of the medians, over all ranks
 * the slowest, and the resident memory that a process takes beyond its shards.
 */
#include "bench.h"
#include "reshard/comm.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 7
#define RANKS 4
#define ROWS 4096
#define COLUMNS 4096
#define MATRIX_BYTES ((size_t)ROWS * COLUMNS * 2)

static int is_ep, has_processes, is_shared, matrix_count;

struct rank {
    reshard_comm *comm;
    int64_t number;
    reshard_shards *source, *target;
    uint8_t *copied; /* what memcpy reads: as large as the target */
    size_t target_bytes;
};

static void add(reshard_shards *shards, int matrix, const int64_t *start, const int64_t *extent, uint8_t *data)
{
    static const int64_t shape[] = { ROWS, COLUMNS };
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_shard shard = RESHARD_SHARD_INIT;
    char key[64];
    snprintf(key, sizeof(key), "layers.%d.weight", matrix);
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = "BF16";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = data;
    must(reshard_shards_add(shards, &shard, &err));
}

/* Of the rank's group, if there is one. */
static uint8_t *memory_new(reshard_comm *comm, size_t bytes, int value)
{
    reshard_error err = RESHARD_ERROR_INIT;
    void *memory = NULL;
    if (comm)
        must(reshard_comm_memory_new(comm, bytes, &memory, &err));
    else
        memory = malloc(bytes);
    if (!memory)
        exit(1);
    memset(memory, value, bytes);
    return memory;
}

/* One of `parts` equal parts of every matrix, odd ones by columns; of experts at home on a rank, the matrices of that rank whole. */
static reshard_shards *side_new(reshard_comm *comm, int64_t part, int64_t parts, int is_whole, size_t *bytes)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_shards *shards;
    must(reshard_shards_new(&shards, &err));
    *bytes = 0;
    for (int i = 0; i < matrix_count; i++) {
        int64_t start[] = { 0, 0 }, extent[] = { ROWS, COLUMNS };
        int axis = i % 2;
        if (is_whole && i / 2 % parts != part)
            continue;
        if (!is_whole) {
            extent[axis] /= parts;
            start[axis] = part * extent[axis];
        }
        size_t size = (size_t)(extent[0] * extent[1]) * 2;
        add(shards, i, start, extent, memory_new(comm, size, is_whole ? i : i + (int)part));
        *bytes += size;
    }
    return shards;
}

/* Seconds of a round: of the slowest rank, and of all ranks' processors together. */
struct spent {
    double wall, cpu;
};

static double now_cpu(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static struct spent spent_since(const struct rank *rank, struct spent began)
{
    reshard_error err = RESHARD_ERROR_INIT;
    struct spent all_spent = { 0, 0 }, own = { now() - began.wall, now_cpu() - began.cpu };
    const void *parts[RANKS];
    size_t sizes[RANKS];
    void *all;
    must(reshard_comm_all_gather(rank->comm, &own, sizeof(own), parts, sizes, &all, &err));
    for (int i = 0; i < RANKS; i++) {
        struct spent other;
        memcpy(&other, parts[i], sizeof(other));
        all_spent.wall = other.wall > all_spent.wall ? other.wall : all_spent.wall;
        all_spent.cpu += other.cpu;
    }
    reshard_free(all);
    return all_spent;
}

static struct spent spent_begin(const struct rank *rank)
{
    reshard_error err = RESHARD_ERROR_INIT;
    must(reshard_comm_barrier(rank->comm, &err));
    return (struct spent){ now(), now_cpu() };
}

static struct spent ours(const struct rank *rank, reshard_redistribute_report *report)
{
    reshard_error err = RESHARD_ERROR_INIT;
    const struct spent began = spent_begin(rank);
    must(reshard_redistribute(rank->comm, rank->source, rank->target, NULL, report, &err));
    return spent_since(rank, began);
}

/* The bytes of the target, in pieces of its shards. */
static struct spent theirs(const struct rank *rank)
{
    reshard_error err = RESHARD_ERROR_INIT;
    size_t at = 0;
    const struct spent began = spent_begin(rank);
    for (size_t i = 0; i < reshard_shards_count(rank->target); i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        must(reshard_shards_at(rank->target, i, &shard));
        size_t size = (size_t)(shard.extent[0] * shard.extent[1]) * 2;
        memcpy(shard.data, rank->copied + at, size);
        at += size;
    }
    return spent_since(rank, began);
}

static long resident_most(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

/* The medians, of wall and of processors. */
static struct spent spent_median(struct spent *all)
{
    double wall[ROUNDS], cpu[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        wall[i] = all[i].wall;
        cpu[i] = all[i].cpu;
    }
    return (struct spent){ median(wall, ROUNDS), median(cpu, ROUNDS) };
}

static void *rank_run(void *given)
{
    struct rank *rank = given;
    struct spent our[ROUNDS], their[ROUNDS];
    size_t source_bytes;
    reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
    rank->source = side_new(is_shared ? rank->comm : NULL, rank->number, RANKS, is_ep, &source_bytes);
    rank->target = is_ep ? side_new(NULL, rank->number, RANKS, 0, &rank->target_bytes)
                         : side_new(NULL, rank->number % 2, 2, 0, &rank->target_bytes);
    rank->copied = memory_new(NULL, rank->target_bytes, 1);
    long before = resident_most();
    for (int round = -1; round < ROUNDS; round++) {
        our[round < 0 ? 0 : round] = ours(rank, &report);
        their[round < 0 ? 0 : round] = theirs(rank);
    }
    const struct spent a = spent_median(our), b = spent_median(their);
    if (rank->number == 0)
        printf("%s, %s: %zu MB into each of %d ranks, %" PRIu64 " MB of it from others: %.2fx of memcpy (%.3f s, memcpy %.3f s; CPU time "
               "%.2fx), %ld MiB\n",
               is_ep ? "EP 4 to TP 4" : "TP 4 to TP 2",
               is_shared ? "shared" : has_processes ? "processes" : "threads", rank->target_bytes / 1000000, RANKS,
               report.bytes_moved / 1000000 / RANKS, b.wall / a.wall, a.wall, b.wall, b.cpu / a.cpu, resident_most() - before);
    return NULL;
}

static int processes_run(void)
{
    int status = 0;
    char name[64];
    snprintf(name, sizeof(name), "bench-%d", (int)getpid());
    for (int64_t i = 0; i < RANKS; i++) {
        if (fork())
            continue;
        reshard_error err = RESHARD_ERROR_INIT;
        struct rank rank = { .number = i };
        must(reshard_comm_processes(name, i, RANKS, NULL, &rank.comm, &err));
        rank_run(&rank);
        fflush(stdout);
        _exit(0);
    }
    for (int left = RANKS; left > 0 && wait(&status) > 0; left--)
        if (status)
            return 1;
    return 0;
}

static int threads_run(void)
{
    static struct rank ranks[RANKS];
    reshard_error err = RESHARD_ERROR_INIT;
    pthread_t threads[RANKS];
    reshard_comm *comms[RANKS];
    must(reshard_comm_threads(RANKS, NULL, comms, &err));
    for (int64_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){ .comm = comms[i], .number = i };
        if (pthread_create(&threads[i], NULL, rank_run, &ranks[i]))
            return 1;
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    is_ep = strcmp(argv[1], "ep") == 0;
    is_shared = strcmp(argv[2], "shared") == 0;
    has_processes = is_shared || strcmp(argv[2], "processes") == 0;
    matrix_count = (int)((argc > 3 ? strtoul(argv[3], NULL, 10) : 2000) * 1000000 / MATRIX_BYTES) / 8 * 8;
    return has_processes ? processes_run() : threads_run();
}
