/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the tensors of a checkpoint of any format: list_tensors PATH */
#include <reshard/reshard.h>

#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    if (argc != 2) {
        fprintf(stderr, "usage: list_tensors PATH\n");
        return RESHARD_ERR_USAGE;
    }
    reshard_status status = reshard_open(argv[1], NULL, &checkpoint, &err);
    if (status) {
        fprintf(stderr, "list_tensors: %s\n", err.message);
        return reshard_status_exit(status);
    }
    for (size_t i = 0; i < reshard_tensor_count(checkpoint); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        reshard_tensor_at(checkpoint, i, &tensor);
        printf("%s\t[", tensor.dtype);
        for (int axis = 0; axis < tensor.rank; axis++)
            printf(axis ? ",%" PRId64 : "%" PRId64, tensor.shape[axis]);
        printf("]\t%.*s\n", (int)tensor.key.size, tensor.key.data);
    }
    reshard_close(checkpoint);
    return 0;
}
