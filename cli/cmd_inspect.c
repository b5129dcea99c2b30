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
        reshard_tensor tensor;
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

static void inspect_json(reshard_checkpoint *checkpoint, const struct summary *summary)
{
    uint64_t file_bytes;
    size_t files = reshard_file_count(checkpoint, &file_bytes);
    const char *value;
    fputs("{\"schema\":\"reshard-inspect/1\",\"path\":", stdout);
    json_text(stdout, reshard_checkpoint_path(checkpoint));
    fputs(",\"format\":", stdout);
    json_text(stdout, reshard_checkpoint_format(checkpoint));
    printf(",\"files\":%zu,\"file_bytes\":%llu,\"tensors\":%zu,\"elements\":%llu,\"bytes\":%llu,\"chunks\":%llu,\"replicas\":%llu,"
           "\"tied\":%llu,\"items\":%zu",
           files, (unsigned long long)file_bytes, reshard_tensor_count(checkpoint), (unsigned long long)summary->elements,
           (unsigned long long)summary->bytes, (unsigned long long)summary->chunks, (unsigned long long)summary->replicas,
           (unsigned long long)summary->tied, reshard_item_count(checkpoint));
    fputs(",\"dtypes\":{", stdout);
    for (size_t i = 0; i < summary->dtype_count; i++)
        printf("%s\"%s\":{\"tensors\":%llu,\"bytes\":%llu}", i ? "," : "", summary->dtypes[i].name,
               (unsigned long long)summary->dtypes[i].tensors, (unsigned long long)summary->dtypes[i].bytes);
    fputs("},\"facts\":[", stdout);
    for (size_t i = 0;; i++) {
        const char *name = reshard_fact_at(checkpoint, i, &value);
        if (!name)
            break;
        fputs(i ? ",{\"name\":" : "{\"name\":", stdout);
        json_text(stdout, name);
        fputs(",\"value\":", stdout);
        json_text(stdout, command_words(value));
        putchar('}');
    }
    fputs("],\"warnings\":[", stdout);
    for (size_t i = 0; i < reshard_warning_count(checkpoint); i++) {
        if (i)
            putchar(',');
        json_text(stdout, command_words(reshard_warning_at(checkpoint, i)));
    }
    fputs("]}\n", stdout);
}

static void inspect_text(const struct options *options, reshard_checkpoint *checkpoint, const struct summary *summary)
{
    const char *bold = colour(options, "\x1b[1m"), *warn = colour(options, "\x1b[33m"), *plain = colour(options, "\x1b[0m");
    uint64_t file_bytes;
    size_t files = reshard_file_count(checkpoint, &file_bytes), warnings = reshard_warning_count(checkpoint);
    const char *value;
    char size[32];
    fputs(bold, stdout);
    print_text(stdout, reshard_checkpoint_path(checkpoint), strlen(reshard_checkpoint_path(checkpoint)));
    printf("%s\n", plain);
    printf("  %-18s %s\n", "format", reshard_checkpoint_format(checkpoint));
    for (size_t i = 0;; i++) {
        const char *name = reshard_fact_at(checkpoint, i, &value);
        if (!name)
            break;
        printf("  %-18s ", name);
        value = command_words(value);
        print_text(stdout, value, strlen(value));
        putchar('\n');
    }
    printf("  %-18s %zu, %s\n", "files", files, human_bytes(file_bytes, size));
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
        const char *text = command_words(reshard_warning_at(checkpoint, i));
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
