/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"
#include "commands.h"

#include <stdlib.h>
#include <string.h>

#define DTYPES_MAX 64

/* What one pass over the tensors counts. */
struct summary {
    uint64_t elements, bytes, chunks, replicas, tied, ambiguous;
    struct {
        const char *name;
        uint64_t tensors, bytes;
    } dtypes[DTYPES_MAX];
    size_t dtype_count;
};

static void count_dtype(struct summary *summary, const reshard_tensor *tensor)
{
    size_t at = 0;
    while (at < summary->dtype_count && strcmp(summary->dtypes[at].name, tensor->dtype) != 0)
        at++;
    if (at == DTYPES_MAX)
        return;
    if (at == summary->dtype_count)
        summary->dtypes[summary->dtype_count++].name = tensor->dtype;
    summary->dtypes[at].tensors++;
    summary->dtypes[at].bytes += tensor->bytes;
}

static void summarize(const reshard_checkpoint *checkpoint, struct summary *summary)
{
    for (size_t i = 0; i < reshard_tensor_count(checkpoint); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        uint64_t elements = 1;
        reshard_tensor_at(checkpoint, i, &tensor);
        for (int axis = 0; axis < tensor.rank; axis++)
            elements *= (uint64_t)tensor.shape[axis];
        summary->elements += elements;
        summary->bytes += tensor.bytes;
        summary->chunks += tensor.chunk_count;
        summary->replicas += tensor.replica_count;
        summary->tied += tensor.tied_to >= 0;
        summary->ambiguous += tensor.is_ambiguous != 0;
        count_dtype(summary, &tensor);
    }
}

static uint64_t bytes_of_files(const reshard_checkpoint *checkpoint)
{
    reshard_file file = RESHARD_FILE_INIT;
    uint64_t bytes = 0;
    for (size_t i = 0; reshard_file_at(checkpoint, i, &file) == RESHARD_OK; i++)
        bytes += file.bytes;
    return bytes;
}

static void inspect_json(reshard_checkpoint *checkpoint, const struct summary *summary)
{
    reshard_fact fact = RESHARD_FACT_INIT;
    fputs("{\"schema\":\"reshard-inspect/1\",\"path\":", stdout);
    json_text(stdout, reshard_checkpoint_path(checkpoint));
    fputs(",\"format\":", stdout);
    json_text(stdout, reshard_checkpoint_format(checkpoint));
    printf(",\"files\":%zu,\"file_bytes\":%llu,\"tensors\":%zu,\"elements\":%llu,\"bytes\":%llu,\"chunks\":%llu,\"replicas\":%llu,"
           "\"tied\":%llu,\"items\":%zu",
           reshard_file_count(checkpoint), (unsigned long long)bytes_of_files(checkpoint), reshard_tensor_count(checkpoint),
           (unsigned long long)summary->elements, (unsigned long long)summary->bytes, (unsigned long long)summary->chunks,
           (unsigned long long)summary->replicas, (unsigned long long)summary->tied, reshard_item_count(checkpoint));
    fputs(",\"dtypes\":{", stdout);
    for (size_t i = 0; i < summary->dtype_count; i++)
        printf("%s\"%s\":{\"tensors\":%llu,\"bytes\":%llu}", i ? "," : "", summary->dtypes[i].name,
               (unsigned long long)summary->dtypes[i].tensors, (unsigned long long)summary->dtypes[i].bytes);
    fputs("},\"facts\":[", stdout);
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++) {
        fputs(i ? ",{\"name\":" : "{\"name\":", stdout);
        json_text(stdout, fact.name);
        fputs(",\"value\":", stdout);
        json_text(stdout, command_words(fact.value));
        putchar('}');
    }
    fputs("],\"warnings\":[", stdout);
    json_warnings(checkpoint);
    fputs("]}\n", stdout);
}

static void inspect_text(const struct options *options, reshard_checkpoint *checkpoint, const struct summary *summary)
{
    const char *bold = colour(options, "\x1b[1m"), *warn = colour(options, "\x1b[33m"), *plain = colour(options, "\x1b[0m");
    size_t warnings = reshard_warning_count(checkpoint);
    reshard_fact fact = RESHARD_FACT_INIT;
    reshard_warning warning = RESHARD_WARNING_INIT;
    char size[32];
    fputs(bold, stdout);
    print_text(stdout, reshard_checkpoint_path(checkpoint), strlen(reshard_checkpoint_path(checkpoint)));
    printf("%s\n", plain);
    printf("  %-18s %s\n", "format", reshard_checkpoint_format(checkpoint));
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++) {
        const char *value = command_words(fact.value);
        printf("  %-18s ", fact.name);
        print_text(stdout, value, strlen(value));
        putchar('\n');
    }
    printf("  %-18s %zu, %s\n", "files", reshard_file_count(checkpoint), human_bytes(bytes_of_files(checkpoint), size));
    printf("  %-18s %zu, %llu elements, %s\n", "tensors", reshard_tensor_count(checkpoint), (unsigned long long)summary->elements,
           human_bytes(summary->bytes, size));
    for (size_t i = 0; i < summary->dtype_count; i++)
        printf("    %-16s %llu, %s\n", summary->dtypes[i].name, (unsigned long long)summary->dtypes[i].tensors,
               human_bytes(summary->dtypes[i].bytes, size));
    printf("  %-18s %llu", "chunks", (unsigned long long)summary->chunks);
    if (summary->replicas)
        printf(", %llu of them replicas", (unsigned long long)summary->replicas);
    printf("\n  %-18s %zu\n", "items", reshard_item_count(checkpoint));
    if (summary->tied)
        printf("  %-18s %llu\n", "tied tensors", (unsigned long long)summary->tied);
    if (summary->ambiguous)
        printf("  %-18s %llu share their joined key with another; --json gives paths\n", "ambiguous keys",
               (unsigned long long)summary->ambiguous);
    size_t shown = options->verbose || warnings <= 10 ? warnings : 10;
    for (size_t i = 0; i < shown; i++) {
        reshard_warning_at(checkpoint, i, &warning);
        const char *text = command_words(warning.text);
        printf("%swarning:%s ", warn, plain);
        print_text(stdout, text, strlen(text));
        putchar('\n');
    }
    if (shown < warnings)
        printf("%swarning:%s %zu more; --verbose shows all\n", warn, plain, warnings - shown);
}

int command_inspect(const struct options *options)
{
    int exit_status = 0;
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    struct summary summary = { 0 };
    summarize(checkpoint, &summary);
    if (options->json)
        inspect_json(checkpoint, &summary);
    else
        inspect_text(options, checkpoint, &summary);
    reshard_close(checkpoint);
    return 0;
}
