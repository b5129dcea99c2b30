/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

struct hash_output {
    const struct options *options;
    reshard_checkpoint *checkpoint;
    bool any;
};

static int print_hash(size_t index, const char *hex, void *context)
{
    struct hash_output *output = context;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(output->checkpoint, index, &tensor);
    if (output->options->json) {
        fputs(output->any ? ",{\"key\":" : "{\"key\":", stdout);
        json_string(stdout, tensor.key.data, tensor.key.size);
        printf(",\"dtype\":\"%s\",\"shape\":", tensor.dtype);
        json_ints(stdout, tensor.shape, tensor.rank);
        printf(",\"hash\":\"%s\"", hex);
        if (tensor.is_ambiguous)
            json_path(output->checkpoint, index);
        putchar('}');
    } else {
        printf("%s  %s  ", hex, tensor.dtype);
        print_shape(stdout, tensor.shape, tensor.rank);
        fputs("  ", stdout);
        print_escaped(stdout, tensor.key.data, tensor.key.size);
        putchar('\n');
    }
    output->any = true;
    return 0;
}

int command_hash(const struct options *options)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    const char *digest = options->digest ? options->digest : "sha256";
    struct hash_output output = { options, checkpoint, false };
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "hash");
    if (options->json)
        printf("{\"schema\":\"reshard-hash/1\",\"digest\":\"%s\",\"tensors\":[", digest);
    reshard_status status = reshard_hash(checkpoint, digest, &run, print_hash, &output, &err);
    progress_end(&progress);
    if (options->json)
        puts("]}");
    if (status)
        exit_status = print_error(options, status, &err);
    else if (!options->json)
        tell_warnings(options, checkpoint);
    reshard_close(checkpoint);
    return exit_status;
}
