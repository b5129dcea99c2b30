/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes a `.metadata` file of torch.distributed.checkpoint, or with --flex of Paddle, five times and prints the median rate. usage:
 * bench_metadata [--flex] FILE */
#include "bench.h"

#include "formats/dcp/metadata_decode.h"
#include "formats/paddle/flex_metadata.h"

#define ROUNDS 5

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        return NULL;
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size + 1);
    if (bytes && fread(bytes, 1, *size, file) != *size) {
        free(bytes);
        bytes = NULL;
    }
    fclose(file);
    return bytes;
}

static reshard_status decode_dcp(const uint8_t *bytes, size_t size, uint32_t *chunks, reshard_error *err)
{
    struct dcp_metadata metadata;
    reshard_status status = dcp_metadata_decode(bytes, size, &limits_default, DCP_DECODE_BEST, &metadata, err);
    *chunks = metadata.chunk_count;
    dcp_metadata_release(&metadata);
    return status;
}

static reshard_status decode_flex(const uint8_t *bytes, size_t size, uint32_t *chunks, reshard_error *err)
{
    struct flex_metadata metadata;
    reshard_status status = flex_metadata_decode(bytes, size, &limits_default, FLEX_DECODE_BEST, &metadata, err);
    *chunks = metadata.index_count;
    flex_metadata_release(&metadata);
    return status;
}

int main(int argc, char **argv)
{
    size_t size = 0;
    bool is_flex = argc == 3 && strcmp(argv[1], "--flex") == 0;
    uint8_t *bytes = argc == 2 || is_flex ? read_file(argv[argc - 1], &size) : NULL;
    double seconds[ROUNDS];
    uint32_t chunks = 0;
    if (!bytes) {
        fprintf(stderr, "usage: bench_metadata [--flex] FILE\n");
        return 2;
    }
    for (int round = 0; round < ROUNDS; round++) {
        reshard_error err = { 0 };
        double started = now();
        if ((is_flex ? decode_flex : decode_dcp)(bytes, size, &chunks, &err)) {
            fprintf(stderr, "bench_metadata: %s\n", err.message);
            return 1;
        }
        seconds[round] = now() - started;
    }
    double typical = median(seconds, ROUNDS);
    printf("%.1f M chunks/s, %.2f GB/s\n", chunks / typical / 1e6, (double)size / typical / 1e9);
    free(bytes);
    return 0;
}
