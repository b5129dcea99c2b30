/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"
#include "commands.h"
#include "cuts.h"

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
    struct cuts cuts;
    bool says_layout; /* the format itself tells of parallel ranks: nothing is concluded from cuts */
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
    reshard_fact fact = RESHARD_FACT_INIT;
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++)
        summary->says_layout = summary->says_layout || strcmp(fact.name, "saved under") == 0 ||
                               (strcmp(fact.name, "layout") == 0 && strncmp(fact.value, "tp=", 3) == 0);
    cuts_find(checkpoint, &summary->cuts);
}

/* The mesh that the cuts speak of, where the format does not say what it was saved under; or NULL. */
static const char *mesh_of(const struct summary *summary, char out[64])
{
    return summary->says_layout ? NULL : cuts_mesh(&summary->cuts, out);
}

static uint64_t bytes_of_files(const reshard_checkpoint *checkpoint)
{
    reshard_file file = RESHARD_FILE_INIT;
    uint64_t bytes = 0;
    for (size_t i = 0; reshard_file_at(checkpoint, i, &file) == RESHARD_OK; i++)
        bytes += file.bytes;
    return bytes;
}

static void json_cuts(const struct summary *summary)
{
    char mesh[64];
    fputs(",\"cuts\":[", stdout);
    for (size_t i = 0; i < summary->cuts.count; i++) {
        const struct cut *cut = &summary->cuts.kinds[i];
        printf("%s{\"tensors\":%llu,\"runs\":%s,\"axes\":[", i ? "," : "", (unsigned long long)cut->tensors,
               cut->is_runs ? "true" : "false");
        for (int axis = 0; axis < cut->axis_count; axis++)
            printf("%s%d", axis ? "," : "", cut->axes[axis]);
        fputs("],\"parts\":[", stdout);
        for (int axis = 0; axis < cut->axis_count; axis++)
            printf("%s%zu", axis ? "," : "", cut->parts[axis]);
        fputs("]}", stdout);
    }
    putchar(']');
    if (mesh_of(summary, mesh))
        printf(",\"mesh\":\"%s\"", mesh);
}

static void inspect_json(reshard_checkpoint *checkpoint, const struct summary *summary)
{
    reshard_fact fact = RESHARD_FACT_INIT;
    fputs("{\"schema\":\"reshard-inspect/1\",\"path\":", stdout);
    json_text(stdout, shown_path(reshard_checkpoint_path(checkpoint)));
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
    putchar('}');
    json_cuts(summary);
    fputs(",\"facts\":[", stdout);
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++) {
        fputs(i ? ",{\"name\":" : "{\"name\":", stdout);
        json_text(stdout, fact.name);
        fputs(",\"value\":", stdout);
        json_text(stdout, command_words(fact.value));
        putchar('}');
    }
    fputs("],", stdout);
    json_warnings(checkpoint);
    fputs("}\n", stdout);
}

static void print_value(const char *text)
{
    print_text(stdout, text, strlen(text));
    putchar('\n');
}

/* Ten, or all with --verbose, each behind that. */
static void print_warnings(const struct options *options, const reshard_checkpoint *checkpoint, const char *before, const char *behind)
{
    const char *warn = colour(options, "\x1b[33m"), *plain = colour(options, "\x1b[0m");
    size_t warnings = reshard_warning_count(checkpoint), shown = options->verbose || warnings <= 10 ? warnings : 10;
    reshard_warning warning = RESHARD_WARNING_INIT;
    for (size_t i = 0; i < shown; i++) {
        reshard_warning_at(checkpoint, i, &warning);
        printf("%s%s%s%s", warn, before, plain, behind);
        print_value(command_words(warning.text));
    }
    if (shown < warnings)
        printf("%s%s%s%s%zu more; --verbose shows all\n", warn, before, plain, behind, warnings - shown);
}

static void print_cuts(const struct summary *summary)
{
    char text[160], mesh[64];
    if (mesh_of(summary, mesh))
        printf("  %-18s %s, as tensors are cut\n", "mesh", mesh);
    for (size_t i = 0; i < summary->cuts.count; i++)
        printf("  %-18s %llu: %s\n", i ? "" : "cut", (unsigned long long)summary->cuts.kinds[i].tensors,
               cut_text(&summary->cuts.kinds[i], text));
}

static void inspect_screen(const struct options *options, reshard_checkpoint *checkpoint, const struct summary *summary)
{
    reshard_fact fact = RESHARD_FACT_INIT;
    char size[32];
    fputs(colour(options, "\x1b[1m"), stdout);
    print_path(stdout, reshard_checkpoint_path(checkpoint));
    puts(colour(options, "\x1b[0m"));
    printf("  %-18s %s\n", "format", reshard_checkpoint_format(checkpoint));
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++) {
        printf("  %-18s ", fact.name);
        print_value(command_words(fact.value));
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
    putchar('\n');
    print_cuts(summary);
    printf("  %-18s %zu\n", "items", reshard_item_count(checkpoint));
    if (summary->tied)
        printf("  %-18s %llu\n", "tied tensors", (unsigned long long)summary->tied);
    if (summary->ambiguous)
        printf("  %-18s %llu share their joined key with another; --json gives paths\n", "ambiguous keys",
               (unsigned long long)summary->ambiguous);
    print_warnings(options, checkpoint, "warning:", " ");
}

/* For programs: a word, then what belongs to it, numbers as they are. */
static void inspect_lines(const struct options *options, reshard_checkpoint *checkpoint, const struct summary *summary)
{
    reshard_fact fact = RESHARD_FACT_INIT;
    char text[160], mesh[64];
    printf("%spath%s\t", colour(options, "\x1b[1m"), colour(options, "\x1b[0m"));
    print_value(shown_path(reshard_checkpoint_path(checkpoint)));
    printf("format\t%s\n", reshard_checkpoint_format(checkpoint));
    for (size_t i = 0; reshard_fact_at(checkpoint, i, &fact) == RESHARD_OK; i++) {
        printf("%s\t", fact.name);
        print_value(command_words(fact.value));
    }
    printf("files\t%zu\t%llu\n", reshard_file_count(checkpoint), (unsigned long long)bytes_of_files(checkpoint));
    printf("tensors\t%zu\t%llu\t%llu\n", reshard_tensor_count(checkpoint), (unsigned long long)summary->elements,
           (unsigned long long)summary->bytes);
    for (size_t i = 0; i < summary->dtype_count; i++)
        printf("dtype\t%s\t%llu\t%llu\n", summary->dtypes[i].name, (unsigned long long)summary->dtypes[i].tensors,
               (unsigned long long)summary->dtypes[i].bytes);
    printf("chunks\t%llu\t%llu\n", (unsigned long long)summary->chunks, (unsigned long long)summary->replicas);
    if (mesh_of(summary, mesh))
        printf("mesh\t%s\n", mesh);
    for (size_t i = 0; i < summary->cuts.count; i++)
        printf("cut\t%s\t%llu\n", cut_text(&summary->cuts.kinds[i], text), (unsigned long long)summary->cuts.kinds[i].tensors);
    printf("items\t%zu\n", reshard_item_count(checkpoint));
    if (summary->tied)
        printf("tied tensors\t%llu\n", (unsigned long long)summary->tied);
    if (summary->ambiguous)
        printf("ambiguous keys\t%llu\n", (unsigned long long)summary->ambiguous);
    print_warnings(options, checkpoint, "warning", "\t");
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
    else if (is_terminal())
        inspect_screen(options, checkpoint, &summary);
    else
        inspect_lines(options, checkpoint, &summary);
    reshard_close(checkpoint);
    return 0;
}
