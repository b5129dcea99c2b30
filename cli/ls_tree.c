/* SPDX-License-Identifier: Apache-2.0 */
#include "ls_tree.h"

#include "name_tree.h"
#include "output.h"
#include "table.h"

#include <string.h>

struct tree_output {
    const reshard_checkpoint *checkpoint;
    struct table table;
    uint64_t tensors, bytes;
    size_t lines;
};

/* The totals are those of the outermost level. */
static void count_line(struct tree_output *output, const struct name_line *line)
{
    output->tensors += line->depth ? 0 : line->tensors;
    output->bytes += line->depth ? 0 : line->bytes;
    output->lines++;
}

static void print_sums(struct table *table, uint64_t tensors, uint64_t bytes)
{
    char text[32];
    fprintf(table_cell(table), is_terminal() ? "×%llu" : "%llu", (unsigned long long)tensors);
    if (is_terminal())
        fprintf(table_cell(table), "%10s", human_bytes(bytes, text));
    else
        fprintf(table_cell(table), "%llu", (unsigned long long)bytes);
}

/* On a terminal what a level's name has before it is only room; for programs each name is whole. */
static int print_line(const struct name_line *line, void *context)
{
    struct tree_output *output = context;
    struct table *table = &output->table;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    size_t hidden = is_terminal() ? line->tail : 0;
    FILE *cell = table_cell(table);
    fprintf(cell, "%*s", is_terminal() ? (int)(2 * line->depth) : 0, "");
    print_escaped(cell, line->name + hidden, line->size - hidden);
    if (line->tensor >= 0)
        reshard_tensor_at(output->checkpoint, (size_t)line->tensor, &tensor);
    fputs(line->tensor >= 0 ? tensor.dtype : "", table_cell(table));
    cell = table_cell(table);
    if (line->tensor >= 0)
        print_shape(cell, tensor.shape, tensor.rank);
    print_sums(table, line->tensors, line->bytes);
    count_line(output, line);
    return 0;
}

static enum name_order order_of(const struct options *options)
{
    if (!options->sort || strcmp(options->sort, "key") == 0)
        return NAME_BY_KEY;
    return strcmp(options->sort, "size") == 0 ? NAME_BY_SIZE : NAME_BY_DTYPE;
}

int ls_tree_text(const struct options *options, reshard_checkpoint *checkpoint)
{
    struct tree_output output = { .checkpoint = checkpoint, .table = { .columns = 5 } };
    reshard_error err = { 0 };
    reshard_status status = name_tree_walk(checkpoint, order_of(options), options->depth, print_line, &output, &err);
    if (!status) {
        fputs("(all)", table_cell(&output.table));
        table_cell(&output.table);
        table_cell(&output.table);
        print_sums(&output.table, output.tensors, output.bytes);
    }
    table_end(&output.table);
    return status ? print_error(options, status, &err) : 0;
}

static int json_line(const struct name_line *line, void *context)
{
    struct tree_output *output = context;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    fputs(output->lines ? ",{\"name\":" : "{\"name\":", stdout);
    json_string(stdout, line->name, line->size);
    printf(",\"depth\":%u,\"count\":%llu,\"bytes\":%llu", line->depth, (unsigned long long)line->tensors, (unsigned long long)line->bytes);
    if (line->tensor >= 0) {
        reshard_tensor_at(output->checkpoint, (size_t)line->tensor, &tensor);
        printf(",\"dtype\":\"%s\",\"shape\":", tensor.dtype);
        json_ints(stdout, tensor.shape, tensor.rank);
    }
    putchar('}');
    count_line(output, line);
    return 0;
}

int ls_tree_json(const struct options *options, reshard_checkpoint *checkpoint)
{
    struct tree_output output = { .checkpoint = checkpoint };
    reshard_error err = { 0 };
    fputs(",\"tree\":[", stdout);
    reshard_status status = name_tree_walk(checkpoint, order_of(options), options->depth, json_line, &output, &err);
    printf("],\"count\":%llu,\"bytes\":%llu", (unsigned long long)output.tensors, (unsigned long long)output.bytes);
    return status ? print_error(options, status, &err) : 0;
}
