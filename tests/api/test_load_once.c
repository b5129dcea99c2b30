/* SPDX-License-Identifier: Apache-2.0 */
/* What several ranks ask for is read from the disk once, whatever way it lies in their memory, and sent to the others. */
#include "check.h"

#include "comm/ranks.h"
#include "reshard/sharded.h"
#include "test_folder.h"

#include <stdatomic.h>
#include <unistd.h>

#define RANKS 4
#define ROWS 256
#define COLUMNS 512
#define TENSOR_BYTES (ROWS * COLUMNS * (long)sizeof(float))

static reshard_error err;
static char path[100];
static atomic_long bytes_read;

/* The linker gives the wrapped functions these names. */
ssize_t __real_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset)
{
    ssize_t done = __real_pread64(fd, bytes, size, offset);
    atomic_fetch_add(&bytes_read, done > 0 ? done : 0);
    return done;
}

struct asked {
    int is_strided;  /* ranks 1 and 2 have the tensor column by column */
    int no_exchange;
    const char *other_path; /* of rank 2, as are: */
    int other_exchange, other_strict;
};

static int is_by_column(const struct asked *asked, int64_t rank)
{
    return asked->is_strided && (rank == 1 || rank == 2);
}

static void tensor_add(reshard_sharded *sharded, int64_t rank, float *values, int by_column)
{
    static const int64_t shape[] = { ROWS, COLUMNS }, strides[] = { 1, ROWS };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    tensor.key = (reshard_str){ "w", 1 };
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = shape;
    tensor.replica_ids = &rank;
    tensor.replica_count = 1;
    tensor.data = values;
    tensor.strides = by_column ? strides : NULL;
    CHECK_OK(reshard_sharded_add_offsets(sharded, &tensor, NULL, sizeof(reshard_rank_offset), 0, &err));
}

static void rank_loads(struct test_rank *rank)
{
    const struct asked *asked = rank->context;
    float *values = calloc(ROWS * COLUMNS, sizeof(*values));
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    reshard_sharded *sharded;
    const int by_column = is_by_column(asked, rank->rank);
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    tensor_add(sharded, rank->rank, values, by_column);
    const int is_other = rank->rank == 2;
    options.no_exchange = asked->no_exchange != (is_other && asked->other_exchange);
    options.strict = is_other && asked->other_strict ? RESHARD_STRICT_LOG_ALL : 0;
    const char *from = is_other && asked->other_path ? asked->other_path : path;
    rank->status = reshard_load(rank->comm, from, sharded, &options, NULL, NULL, &rank->err);
    for (int i = 0; i < ROWS && !rank->status; i++)
        for (int j = 0; j < COLUMNS; j++)
            if (values[by_column ? j * ROWS + i : i * COLUMNS + j] != (float)(i * COLUMNS + j))
                rank->status = RESHARD_DIFFERS;
    reshard_sharded_free(sharded);
    free(values);
}

/* How often the tensor's bytes were read. */
static long times_read(const struct asked *asked)
{
    struct test_rank ranks[RANKS];
    atomic_store(&bytes_read, 0);
    test_ranks(RANKS, 20, (void *)asked, rank_loads, ranks);
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].status)
            fail_msg("rank %d: status %d: %s", r, ranks[r].status, ranks[r].err.message);
    const long more = atomic_load(&bytes_read) % TENSOR_BYTES; /* metadata, and the ends of the tensor's zip */
    assert_true(more < TENSOR_BYTES / 4);
    return atomic_load(&bytes_read) / TENSOR_BYTES;
}

/* Saves the tensor with values that count from `first`. */
static void tensor_save(const char *to, const char *format, int first)
{
    float *values = calloc(ROWS * COLUMNS, sizeof(*values));
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = (float)(first + i);
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    tensor_add(sharded, 0, values, 0);
    options.convert = &convert;
    convert.to = format;
    convert.overwrite = 1;
    CHECK_OK(reshard_save(NULL, to, sharded, &options, NULL, &err));
    reshard_sharded_free(sharded);
    free(values);
}

TEST(bytes_that_several_ranks_ask_for_are_read_once)
{
    static const char *const formats[] = { "torch-dcp", "hf", "paddle-flex" };
    for (int f = 0; f < 3; f++) {
        snprintf(path, sizeof(path), "%s/%s", test_folder, formats[f]);
        tensor_save(path, formats[f], 0);
        assert_int_equal(times_read(&(struct asked){ .is_strided = 0 }), 1);
        assert_int_equal(times_read(&(struct asked){ .is_strided = 1 }), 1);
        assert_int_equal(times_read(&(struct asked){ .is_strided = 1, .no_exchange = 1 }), RANKS);
    }
}

static void ranks_refuse(const struct asked *asked, const char *word)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 20, (void *)(uintptr_t)asked, rank_loads, ranks);
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].status != RESHARD_ERR_USAGE || !strstr(ranks[r].err.message, word))
            fail_msg("rank %d: status %d: '%s', not '%s'", r, ranks[r].status, ranks[r].err.message, word);
}

TEST(ranks_that_load_something_else_are_named)
{
    static const char *const formats[] = { "torch-dcp", "hf", "paddle-flex", "zarr" };
    char same[150], other[150];
    for (int f = 0; f < 4; f++) {
        snprintf(path, sizeof(path), "%s/%s", test_folder, formats[f]);
        snprintf(same, sizeof(same), "%s/./%s", test_folder, formats[f]); /* however it is spelled, */
        snprintf(other, sizeof(other), "%s/%s-copy", test_folder, formats[f]);
        tensor_save(path, formats[f], 0);
        tensor_save(other, formats[f], 0); /* and wherever it lies */
        times_read(&(struct asked){ .other_path = same });
        times_read(&(struct asked){ .other_path = other });
        tensor_save(other, formats[f], 1);
        ranks_refuse(&(struct asked){ .other_path = other }, "rank 2 loads another checkpoint than rank 0: '");
        ranks_refuse(&(struct asked){ .no_exchange = 1, .other_path = other }, "-copy', and '");
    }
    ranks_refuse(&(struct asked){ .other_exchange = 1 }, "rank 2 does not exchange what it reads with the others, and rank 0 does");
    ranks_refuse(&(struct asked){ .other_strict = 1 }, "rank 2 is log_all, rank 0 assume_ok_unexpected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_several_ranks_ask_for_are_read_once),
        cmocka_unit_test(ranks_that_load_something_else_are_named),
    };
    return cmocka_run_group_tests_name("load once", tests, test_folder_make, test_folder_remove);
}
