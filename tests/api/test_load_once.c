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
    options.no_exchange = asked->no_exchange;
    rank->status = reshard_load(rank->comm, path, sharded, &options, NULL, NULL, &rank->err);
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

TEST(bytes_that_several_ranks_ask_for_are_read_once)
{
    float *values = calloc(ROWS * COLUMNS, sizeof(*values));
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *sharded;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = (float)i;
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    tensor_add(sharded, 0, values, 0);
    options.convert = &convert;
    static const char *const formats[] = { "torch-dcp", "hf", "paddle-flex" };
    for (int f = 0; f < 3; f++) {
        convert.to = formats[f];
        snprintf(path, sizeof(path), "%s/%s", test_folder, formats[f]);
        CHECK_OK(reshard_save(NULL, path, sharded, &options, NULL, &err));
        assert_int_equal(times_read(&(struct asked){ 0, 0 }), 1);
        assert_int_equal(times_read(&(struct asked){ 1, 0 }), 1);
        assert_int_equal(times_read(&(struct asked){ 1, 1 }), RANKS);
    }
    reshard_sharded_free(sharded);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bytes_that_several_ranks_ask_for_are_read_once) };
    return cmocka_run_group_tests_name("load once", tests, test_folder_make, test_folder_remove);
}
