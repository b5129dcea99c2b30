/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"
#include "commands.h"
#include "ls_tree.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>

#define VALUE_SHOWN 200 /* bytes of an item in a line */

static void json_chunk(const reshard_tensor *tensor, const reshard_chunk *chunk)
{
    fputs("{\"start\":", stdout);
    json_ints(stdout, chunk->start, tensor->rank);
    fputs(",\"extent\":", stdout);
    json_ints(stdout, chunk->extent, tensor->rank);
    fputs(",\"file\":", stdout);
    json_string(stdout, chunk->file.data, chunk->file.size);
    printf(",\"offset\":%llu,\"bytes\":%llu,\"replica\":%s", (unsigned long long)chunk->offset, (unsigned long long)chunk->bytes,
           chunk->is_replica ? "true" : "false");
    if (!chunk->is_resolved)
        fputs(",\"container\":true", stdout);
    if (chunk->flat_count >= 0)
        printf(",\"flat\":[%lld,%lld]", (long long)chunk->flat_begin, (long long)chunk->flat_count);
    if (*chunk->encoding) {
        fputs(",\"encoding\":", stdout);
        json_text(stdout, chunk->encoding);
    }
    putchar('}');
}

static void json_tensor(reshard_checkpoint *checkpoint, size_t index, bool chunks)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_tensor_at(checkpoint, index, &tensor);
    fputs("{\"key\":", stdout);
    json_string(stdout, tensor.key.data, tensor.key.size);
    printf(",\"dtype\":\"%s\",\"shape\":", tensor.dtype);
    json_ints(stdout, tensor.shape, tensor.rank);
    printf(",\"bytes\":%llu", (unsigned long long)tensor.bytes);
    if (tensor.is_ambiguous)
        json_path(checkpoint, index);
    if (tensor.tied_to >= 0) {
        reshard_tensor other = RESHARD_TENSOR_INIT;
        reshard_tensor_at(checkpoint, (size_t)tensor.tied_to, &other);
        fputs(",\"tied_to\":", stdout);
        json_string(stdout, other.key.data, other.key.size);
    }
    if (chunks) {
        fputs(",\"chunks\":[", stdout);
        for (size_t i = 0; i < tensor.chunk_count; i++) {
            reshard_chunk_at(checkpoint, index, i, &chunk);
            if (i)
                putchar(',');
            json_chunk(&tensor, &chunk);
        }
        putchar(']');
    }
    putchar('}');
}

static int json_member(const reshard_item *member, const char *json, size_t size, void *context)
{
    const reshard_item *item = context;
    fputs(",{\"key\":", stdout);
    json_string(stdout, member->key.data, member->key.size);
    printf(",\"kind\":\"%s\"", member->kind);
    if (member->class_name.size) {
        fputs(",\"class\":", stdout);
        json_string(stdout, member->class_name.data, member->class_name.size);
    }
    fputs(",\"in\":", stdout);
    json_string(stdout, item->key.data, item->key.size);
    if (json) {
        fputs(",\"value\":", stdout);
        fwrite(json, 1, size, stdout);
    }
    putchar('}');
    return 0;
}

/* The members follow their item, each with its name. An item with too many has only itself. */
static int json_members(const struct options *options, reshard_checkpoint *checkpoint, size_t index, reshard_item *item)
{
    reshard_error err = { 0 };
    reshard_status status = reshard_item_members(checkpoint, index, json_member, item, &err);
    return status && status != RESHARD_ERR_LIMIT ? print_error(options, status, &err) : 0;
}

static int look_at_item(const struct options *options, const reshard_checkpoint *checkpoint, size_t index, reshard_item *item)
{
    reshard_status status = reshard_item_at(checkpoint, index, item);
    return status ? print_failure(options, status, NULL, "item %zu cannot be shown", index) : 0;
}

/* Loads the item first, so that its kind is known. */
static int json_item(const struct options *options, reshard_checkpoint *checkpoint, size_t index)
{
    reshard_error err = { 0 };
    reshard_item item = RESHARD_ITEM_INIT;
    char *json = NULL;
    size_t size;
    int failed = look_at_item(options, checkpoint, index, &item);
    if (failed)
        return failed;
    bool is_file = strcmp(item.kind, "file") == 0;
    fputs("{\"key\":", stdout);
    json_string(stdout, item.key.data, item.key.size);
    if (is_file) {
        printf(",\"kind\":\"file\",\"bytes\":%llu}", (unsigned long long)item.bytes);
        return 0;
    }
    reshard_status status = reshard_item_json(checkpoint, index, &json, &size, &err);
    failed = look_at_item(options, checkpoint, index, &item);
    if (failed) {
        reshard_free(json);
        return failed;
    }
    printf(",\"kind\":\"%s\"", *item.kind ? item.kind : "object");
    if (item.class_name.size) {
        fputs(",\"class\":", stdout);
        json_string(stdout, item.class_name.data, item.class_name.size);
    }
    if (status == RESHARD_ERR_LIMIT) { /* too large to write out: say so instead of failing the whole listing */
        fputs(",\"note\":", stdout);
        json_text(stdout, err.message);
        putchar('}');
        return 0;
    }
    if (status) {
        putchar('}');
        return print_error(options, status, &err);
    }
    fputs(",\"value\":", stdout);
    fwrite(json, 1, size, stdout);
    putchar('}');
    reshard_free(json);
    return json_members(options, checkpoint, index, &item);
}

/* ---- order of tensors ---- */

static int compare_sizes(const void *x, const void *y, void *checkpoint)
{
    reshard_tensor a = RESHARD_TENSOR_INIT, b = RESHARD_TENSOR_INIT;
    size_t left = *(const size_t *)x, right = *(const size_t *)y;
    reshard_tensor_at(checkpoint, left, &a);
    reshard_tensor_at(checkpoint, right, &b);
    return a.bytes != b.bytes ? (a.bytes < b.bytes ? 1 : -1) : (left > right) - (left < right);
}

static int compare_dtypes(const void *x, const void *y, void *checkpoint)
{
    reshard_tensor a = RESHARD_TENSOR_INIT, b = RESHARD_TENSOR_INIT;
    size_t left = *(const size_t *)x, right = *(const size_t *)y;
    reshard_tensor_at(checkpoint, left, &a);
    reshard_tensor_at(checkpoint, right, &b);
    int order = strcmp(a.dtype, b.dtype);
    return order ? order : (left > right) - (left < right);
}

/* The tensors' numbers as --sort wants them, malloc'd; without it as they are stored. NULL: said why not. */
static size_t *tensor_order(const struct options *options, reshard_checkpoint *checkpoint, int *exit_status)
{
    const size_t *keys, count = reshard_tensor_count(checkpoint);
    size_t *order = calloc(count + 1, sizeof(*order));
    reshard_error err = { 0 };
    reshard_status status = order ? RESHARD_OK : RESHARD_ERR_MEMORY;
    for (size_t i = 0; !status && i < count; i++)
        order[i] = i;
    if (!status && options->sort && strcmp(options->sort, "key") == 0)
        status = reshard_tensor_order(checkpoint, &keys, &err);
    if (status) {
        *exit_status = err.code ? print_error(options, status, &err) : print_failure(options, status, NULL, "out of memory");
        free(order);
        return NULL;
    }
    if (options->sort && strcmp(options->sort, "key") == 0)
        memcpy(order, keys, count * sizeof(*order));
    else if (options->sort)
        qsort_r(order, count, sizeof(*order), strcmp(options->sort, "size") == 0 ? compare_sizes : compare_dtypes, checkpoint);
    return order;
}

static int ls_json(const struct options *options, reshard_checkpoint *checkpoint, const size_t *order)
{
    int exit_status = 0;
    fputs("{\"schema\":\"reshard-ls/1\",\"format\":", stdout);
    json_text(stdout, reshard_checkpoint_format(checkpoint));
    fputs(",\"path\":", stdout);
    json_text(stdout, shown_path(reshard_checkpoint_path(checkpoint)));
    if (options->tree)
        exit_status = ls_tree_json(options, checkpoint);
    fputs(options->tree ? ",\"items\":[" : ",\"tensors\":[", stdout);
    for (size_t i = 0; !options->tree && i < reshard_tensor_count(checkpoint); i++) {
        if (i)
            putchar(',');
        json_tensor(checkpoint, order[i], options->chunks);
    }
    fputs(options->tree ? "" : "],\"items\":[", stdout);
    for (size_t i = 0; options->items_flag && i < reshard_item_count(checkpoint) && !exit_status; i++) {
        if (i)
            putchar(',');
        exit_status = json_item(options, checkpoint, i);
    }
    fputs("],", stdout);
    json_warnings(checkpoint);
    fputs("}\n", stdout);
    return exit_status;
}

static void list_chunk(struct table *table, const reshard_tensor *tensor, const reshard_chunk *chunk)
{
    fputs("  chunk", table_cell(table));
    print_shape(table_cell(table), chunk->start, tensor->rank);
    print_shape(table_cell(table), chunk->extent, tensor->rank);
    FILE *place = table_cell(table);
    print_escaped(place, chunk->file.data, chunk->file.size);
    fprintf(place, ":%llu+%llu%s%s%s", (unsigned long long)chunk->offset, (unsigned long long)chunk->bytes, *chunk->encoding ? " " : "",
            chunk->encoding, chunk->is_replica ? " replica" : "");
}

static void list_tensors(const struct options *options, reshard_checkpoint *checkpoint, const size_t *order)
{
    struct table table = { .columns = 4 };
    for (size_t i = 0; i < reshard_tensor_count(checkpoint); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        reshard_chunk chunk = RESHARD_CHUNK_INIT;
        reshard_tensor_at(checkpoint, order[i], &tensor);
        print_escaped(table_cell(&table), tensor.key.data, tensor.key.size);
        fputs(tensor.dtype, table_cell(&table));
        print_shape(table_cell(&table), tensor.shape, tensor.rank);
        fprintf(table_cell(&table), "%llu", (unsigned long long)tensor.bytes);
        for (size_t j = 0; options->chunks && j < tensor.chunk_count; j++) {
            reshard_chunk_at(checkpoint, order[i], j, &chunk);
            list_chunk(&table, &tensor, &chunk);
        }
    }
    table_end(&table);
}

/* The start of an item's JSON, or all of it with --verbose. */
static void print_value(FILE *out, const struct options *options, const char *json, size_t size)
{
    size_t shown = size;
    if (size > VALUE_SHOWN && !options->verbose) {
        shown = VALUE_SHOWN;
        while (shown && ((unsigned char)json[shown] & 0xC0) == 0x80)
            shown--;
    }
    print_text(out, json, shown);
    fputs(shown < size ? "…" : "", out);
}

static int list_item(const struct options *options, reshard_checkpoint *checkpoint, size_t index, struct table *table)
{
    reshard_error err = { 0 };
    reshard_item item = RESHARD_ITEM_INIT;
    char *json = NULL;
    size_t size = 0;
    int exit_status = look_at_item(options, checkpoint, index, &item);
    if (exit_status)
        return exit_status;
    bool is_file = strcmp(item.kind, "file") == 0;
    reshard_status status = is_file ? RESHARD_OK : reshard_item_json(checkpoint, index, &json, &size, &err);
    if (status && status != RESHARD_ERR_LIMIT)
        exit_status = print_error(options, status, &err);
    int failed = look_at_item(options, checkpoint, index, &item);
    if (failed) {
        reshard_free(json);
        return failed;
    }
    print_escaped(table_cell(table), item.key.data, item.key.size);
    if (item.class_name.size)
        print_escaped(table_cell(table), item.class_name.data, item.class_name.size);
    else
        fputs(*item.kind ? item.kind : "object", table_cell(table));
    if (is_file)
        fprintf(table_cell(table), "%llu bytes", (unsigned long long)item.bytes);
    else if (json)
        print_value(table_cell(table), options, json, size);
    else
        fputs(status == RESHARD_ERR_LIMIT ? "(too large)" : "(cannot be read)", table_cell(table));
    reshard_free(json);
    return exit_status;
}

static int list_items(const struct options *options, reshard_checkpoint *checkpoint)
{
    struct table table = { .columns = 3 };
    int exit_status = 0;
    for (size_t i = 0; i < reshard_item_count(checkpoint) && !exit_status; i++)
        exit_status = list_item(options, checkpoint, i, &table);
    table_end(&table);
    return exit_status;
}

static int ls_text(const struct options *options, reshard_checkpoint *checkpoint, const size_t *order)
{
    int exit_status = 0;
    if (options->tree)
        exit_status = ls_tree_text(options, checkpoint);
    else
        list_tensors(options, checkpoint, order);
    if (options->items_flag && !exit_status)
        exit_status = list_items(options, checkpoint);
    tell_warnings(options, checkpoint);
    return exit_status;
}

int command_ls(const struct options *options)
{
    int exit_status = 0;
    if (options->tree && options->chunks)
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "--tree and --chunks exclude each other");
    if (options->depth && !options->tree)
        return print_failure(options, RESHARD_ERR_USAGE, "add --tree", "--depth says how much of a tree to print");
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    size_t *order = checkpoint ? tensor_order(options, checkpoint, &exit_status) : NULL;
    if (order)
        exit_status = options->json ? ls_json(options, checkpoint, order) : ls_text(options, checkpoint, order);
    free(order);
    reshard_close(checkpoint);
    return exit_status;
}
