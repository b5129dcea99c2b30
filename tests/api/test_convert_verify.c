/* SPDX-License-Identifier: Apache-2.0 */
/* convert with verify reads the target back: a byte that arrives wrong in the file stops it, whatever the format, and nothing becomes
 * visible. */
#include "check.h"

#include "reshard/reshard.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The values of the one tensor: nothing else that is written looks like them. */
#define MARK_BYTES 64
static uint8_t mark[MARK_BYTES];
static reshard_error err;
static bool corrupts;
static unsigned corrupted;

ssize_t __real_pwrite64(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t size, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t size, off_t offset)
{
    const uint8_t *found = corrupts ? memmem(bytes, size, mark, sizeof(mark)) : NULL;
    if (!found)
        return __real_pwrite64(fd, bytes, size, offset);
    uint8_t *copy = malloc(size);
    memcpy(copy, bytes, size);
    copy[(size_t)(found - (const uint8_t *)bytes) + MARK_BYTES / 2] ^= 4;
    ssize_t written = __real_pwrite64(fd, copy, size, offset);
    free(copy);
    corrupted++;
    return written;
}

/* What the kernel copies cannot be caught here. */
ssize_t __wrap_copy_file_range(int in, off_t *in_offset, int out, off_t *out_offset, size_t size, unsigned flags);
ssize_t __wrap_copy_file_range(int in, off_t *in_offset, int out, off_t *out_offset, size_t size, unsigned flags)
{
    (void)in, (void)in_offset, (void)out, (void)out_offset, (void)size, (void)flags;
    errno = ENOSYS;
    return -1;
}

static char work[TEST_FOLDER_SIZE], source_path[64], target_path[64];

static void write_source(void)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[64],\"data_offsets\":[0,64]}}";
    uint64_t size = sizeof(header) - 1;
    for (size_t i = 0; i < sizeof(mark); i++)
        mark[i] = (uint8_t)(i * 167 + 91);
    assert_non_null(test_mkdtemp(work));
    snprintf(source_path, sizeof(source_path), "%s/source.safetensors", work);
    snprintf(target_path, sizeof(target_path), "%s/target", work);
    FILE *file = fopen(source_path, "wb");
    assert_non_null(file);
    fwrite(&size, sizeof(size), 1, file);
    fwrite(header, size, 1, file);
    fwrite(mark, sizeof(mark), 1, file);
    assert_int_equal(fclose(file), 0);
}

static bool is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static void remove_target(void)
{
    assert_int_equal(test_tree_remove(target_path), 0);
}

static reshard_status convert(const char *to, int verify)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    options.to = to;
    options.verify = verify;
    run.io = "buffered";
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, &err);
    if (!status)
        status = reshard_convert(checkpoint, target_path, &options, &run, NULL, &err);
    reshard_close(checkpoint);
    return status;
}

TEST(a_byte_that_arrives_wrong_is_found_by_verify_and_by_nothing_else)
{
    static const char *const formats[] = { "safetensors",  "hf",   "torch",       "torch-dcp", "torch_dist", "torch_dcp",
                                           "fsdp_dtensor", "zarr", "paddle-flex", "fsdp-ranks" };
    write_source();
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        corrupted = 0;
        corrupts = false;
        CHECK_OK(convert(formats[i], 1));
        remove_target();
        corrupts = true;
        CHECK_OK(convert(formats[i], 0));
        assert_int_equal(corrupted, 1);
        remove_target();
        CHECK_FAILS(convert(formats[i], 1), RESHARD_DIFFERS);
        assert_int_equal(corrupted, 2);
        assert_non_null(strstr(err.message, "tensor 'w': digest"));
        assert_false(is_there(target_path));
    }
    corrupts = false;
    unlink(source_path);
    assert_int_equal(rmdir(work), 0); /* nothing was left beside the target */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_byte_that_arrives_wrong_is_found_by_verify_and_by_nothing_else),
    };
    return cmocka_run_group_tests_name("convert_verify", tests, NULL, NULL);
}
