/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one whole tensor, however it is sharded, and sums its bytes: read_tensor PATH KEY */
#include <reshard/reshard.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    uint64_t sum = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: read_tensor PATH KEY\n");
        return RESHARD_ERR_USAGE;
    }
    reshard_status status = reshard_open(argv[1], NULL, &checkpoint, &err);
    int64_t index = status ? -1 : reshard_tensor_find(checkpoint, argv[2], strlen(argv[2]));
    unsigned char *values = NULL;
    if (index >= 0) {
        reshard_tensor_at(checkpoint, (size_t)index, &tensor);
        values = (unsigned char *)malloc(tensor.bytes + 1);
        status = values ? reshard_read_into(checkpoint, (size_t)index, NULL, NULL, NULL, values, tensor.bytes, &err) : RESHARD_ERR_MEMORY;
        for (uint64_t i = 0; !status && i < tensor.bytes; i++)
            sum += values[i];
    }
    if (status)
        fprintf(stderr, "read_tensor: %s\n", *err.message ? err.message : reshard_status_name(status));
    else if (index < 0)
        fprintf(stderr, "read_tensor: no tensor '%s'\n", argv[2]);
    else
        printf("%s: %" PRIu64 " bytes, sum %" PRIu64 "\n", tensor.dtype, tensor.bytes, sum);
    free(values);
    reshard_close(checkpoint);
    return index < 0 && !status ? 1 : reshard_status_exit(status);
}
