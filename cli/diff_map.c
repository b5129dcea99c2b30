/* SPDX-License-Identifier: Apache-2.0 */
#include "diff_map.h"

#include "output.h"
#include "progress.h"
#include "diff_tiles.h"
#include "layout_map.h"
#include "natural_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIFF_TENSORS_MAX 2000 /* told of in the page, and */
#define DIFF_TILED_MAX 200    /* drawn as tiles */
#define DIFF_EXPERTS_MAX 20000 /* told of one by one within their cells */

/* What the comparison found about a tensor. */
struct diff_tensor {
    char *key;       /* of the names of B, or of A for what B lacks; malloc'd */
    size_t key_size;
    char *text;      /* of its findings; malloc'd */
    unsigned marks;  /* bits of mark_names */
    uint64_t changed, elements;
    double error;    /* the largest relative difference; 0: none, or not known */
    char *module;    /* its key without the number of the layer; malloc'd */
    uint64_t layer;  /* 0: none; else 1 + the number of the layer */
    uint64_t expert; /* the next number in the key, if there is one */
};

struct diff_map {
    struct diff_tensor *tensors;
    size_t count, capacity;
    bool has_failed; /* no memory */
    const struct options *options;
    reshard_checkpoint *a, *b;
    uint64_t different;
    size_t experts; /* told of so far */
};

static const char *const mark_names[] = { "missing", "unexpected", "shape", "dtype", "nan" };

static char *text_copy(const char *data, size_t size)
{
    char *copy = malloc(size + 1);
    if (copy) {
        memcpy(copy, data, size);
        copy[size] = '\0';
    }
    return copy;
}

/* The key as its layer, the first number in it, and what is left, other numbers as {}: the module. */
static bool module_find(struct diff_tensor *tensor)
{
    struct key_numbers numbers;
    size_t size, from = 0;
    key_numbers_find((reshard_str){ tensor->key, tensor->key_size }, &numbers);
    FILE *out = open_memstream(&tensor->module, &size);
    if (!out)
        return false;
    tensor->layer = numbers.count ? (uint64_t)numbers.value[0] + 1 : 0;
    tensor->expert = numbers.count > 1 ? (uint64_t)numbers.value[1] : 0;
    if (numbers.count)
        from = numbers.end[0] + (numbers.end[0] < tensor->key_size);
    for (size_t i = 1; i < numbers.count; i++) {
        fwrite(tensor->key + from, 1, numbers.begin[i] - from, out);
        fputs("{}", out);
        from = numbers.end[i];
    }
    fwrite(tensor->key + from, 1, tensor->key_size - from, out);
    return fclose(out) == 0;
}

static struct diff_tensor *diff_tensor_add(struct diff_map *map, const char *key, size_t size)
{
    if (map->count == map->capacity) {
        size_t capacity = map->capacity ? 2 * map->capacity : 256;
        struct diff_tensor *grown = reallocarray(map->tensors, capacity, sizeof(*grown));
        if (!grown) {
            map->has_failed = true;
            return NULL;
        }
        map->tensors = grown;
        map->capacity = capacity;
    }
    struct diff_tensor *tensor = &map->tensors[map->count];
    *tensor = (struct diff_tensor){ .key = text_copy(key, size), .key_size = size };
    if (!tensor->key || !module_find(tensor)) {
        free(tensor->key);
        map->has_failed = true;
        return NULL;
    }
    map->count++;
    return tensor;
}

static unsigned mark_of(const char *kind)
{
    for (unsigned i = 0; i < sizeof(mark_names) / sizeof(mark_names[0]); i++) {
        if (strcmp(kind, mark_names[i]) == 0)
            return 1u << i;
    }
    return 0;
}

/* A finding about a tensor becomes part of its entry, which is made for it: findings come by tensor. Items are told in words alone. */
static int diff_map_take(const reshard_finding *finding, void *context)
{
    struct diff_map *map = context;
    if (finding->severity < 2 || !finding->key.size || strncmp(finding->kind, "item", 4) == 0)
        return 0;
    struct diff_tensor *last = map->count ? &map->tensors[map->count - 1] : NULL;
    bool is_same = last && last->key_size == finding->key.size && memcmp(last->key, finding->key.data, last->key_size) == 0;
    struct diff_tensor *tensor = is_same ? last : diff_tensor_add(map, finding->key.data, finding->key.size);
    if (!tensor)
        return 1;
    tensor->marks |= mark_of(finding->kind);
    tensor->changed += finding->count;
    tensor->error = finding->count && !(tensor->error > 0) ? finding->max_difference : tensor->error;
    if (isnan(tensor->error)) {
        tensor->marks |= mark_of("nan");
        tensor->error = 0;
    }
    free(tensor->text);
    tensor->text = text_copy(finding->text, strlen(finding->text));
    map->different += !is_same;
    return 0;
}

static int compare_diff_keys(const void *a, const void *b)
{
    const struct diff_tensor *left = a, *right = b;
    size_t size = left->key_size < right->key_size ? left->key_size : right->key_size;
    int order = memcmp(left->key, right->key, size);
    return order ? order : (left->key_size > right->key_size) - (left->key_size < right->key_size);
}

static uint64_t elements_of(const reshard_tensor *tensor)
{
    uint64_t elements = 1;
    for (int axis = 0; axis < tensor->rank; axis++)
        elements *= (uint64_t)tensor->shape[axis];
    return elements;
}

/* The tensors of B that nothing was found about are equal: they have a cell too. */
static void equal_add(struct diff_map *map)
{
    size_t found = map->count;
    qsort(map->tensors, found, sizeof(*map->tensors), compare_diff_keys);
    for (size_t i = 0; !map->has_failed && i < reshard_tensor_count(map->b); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        reshard_tensor_at(map->b, i, &tensor);
        const struct diff_tensor wanted = { .key = (char *)(uintptr_t)tensor.key.data, .key_size = tensor.key.size };
        struct diff_tensor *there = bsearch(&wanted, map->tensors, found, sizeof(*map->tensors), compare_diff_keys);
        if (!there)
            there = diff_tensor_add(map, tensor.key.data, tensor.key.size);
        if (there)
            there->elements = elements_of(&tensor);
    }
}

/* ---- the grid ---- */

static int compare_modules(const void *a, const void *b)
{
    const struct diff_tensor *left = *(struct diff_tensor *const *)a, *right = *(struct diff_tensor *const *)b;
    return natural_order((reshard_str){ left->module, strlen(left->module) }, (reshard_str){ right->module, strlen(right->module) });
}

static int compare_layers(const void *a, const void *b)
{
    const struct diff_tensor *left = *(struct diff_tensor *const *)a, *right = *(struct diff_tensor *const *)b;
    return (left->layer > right->layer) - (left->layer < right->layer);
}

typedef int (*diff_order)(const void *a, const void *b);

/* Numbers tensors by what the order tells apart, and prints a name for each number. */
static void axis_json(FILE *out, struct diff_tensor **sorted, size_t count, diff_order order, uint32_t *numbers, const struct diff_map *map)
{
    uint32_t number = 0;
    qsort(sorted, count, sizeof(*sorted), order);
    putc('[', out);
    for (size_t i = 0; i < count; i++) {
        bool is_new = i == 0 || order(&sorted[i - 1], &sorted[i]) != 0;
        number += is_new && i;
        numbers[sorted[i] - map->tensors] = number;
        if (is_new && i)
            putc(',', out);
        if (is_new && order == compare_modules)
            json_text(out, sorted[i]->module);
        else if (is_new && sorted[i]->layer)
            fprintf(out, "\"%llu\"", (unsigned long long)sorted[i]->layer - 1);
        else if (is_new)
            fputs("\"–\"", out);
    }
    putc(']', out);
}

static int compare_experts(const void *a, const void *b)
{
    const struct diff_tensor *const *first = a, *const *second = b;
    return (*first)->expert < (*second)->expert ? -1 : (*first)->expert > (*second)->expert;
}

/* Several tensors of one cell are its experts, which the page draws as a grid within it: number, error, share, whether there is a mark. */
static void experts_json(FILE *out, struct diff_tensor **tensors, size_t count, struct diff_map *map)
{
    if (count < 2 || !strstr(tensors[0]->module, "{}") || count > DIFF_EXPERTS_MAX - map->experts)
        return;
    map->experts += count;
    qsort(tensors, count, sizeof(*tensors), compare_experts);
    fputs(",\"experts\":[", out);
    for (size_t i = 0; i < count; i++) {
        const struct diff_tensor *tensor = tensors[i];
        double share = tensor->elements ? (double)tensor->changed / (double)tensor->elements : 0;
        fprintf(out, "%s[%llu,%.3g,%.3g,%d]", i ? "," : "", (unsigned long long)tensor->expert, isfinite(tensor->error) ? tensor->error : 1,
                share, tensor->marks != 0);
    }
    putc(']', out);
}

static void cell_json(FILE *out, struct diff_tensor **tensors, size_t count, const uint32_t *layers, const uint32_t *modules,
                      struct diff_map *map)
{
    uint64_t changed = 0, elements = 0;
    double error = 0;
    unsigned marks = 0;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        changed += tensors[i]->changed;
        elements += tensors[i]->elements;
        error = tensors[i]->error > error ? tensors[i]->error : error;
        marks |= tensors[i]->marks;
    }
    size_t first = (size_t)(tensors[0] - map->tensors);
    fprintf(out, "{\"layer\":%u,\"module\":%u,\"elements\":%llu,\"changed\":%llu,\"error\":%.6g,\"marks\":[", layers[first], modules[first],
            (unsigned long long)elements, (unsigned long long)changed, isfinite(error) ? error : 1);
    for (unsigned i = 0; i < sizeof(mark_names) / sizeof(mark_names[0]); i++) {
        if (marks >> i & 1) {
            fprintf(out, "%s\"%s\"", any ? "," : "", mark_names[i]);
            any = true;
        }
    }
    fputs("],\"tensors\":[", out);
    any = false;
    for (size_t i = 0; i < count; i++) {
        size_t index = (size_t)(tensors[i] - map->tensors);
        if (index < DIFF_TENSORS_MAX)
            fprintf(out, "%s%zu", any ? "," : "", index);
        any |= index < DIFF_TENSORS_MAX;
    }
    putc(']', out);
    experts_json(out, tensors, count, map);
    putc('}', out);
}

static int compare_cells(const void *a, const void *b)
{
    int order = compare_layers(a, b);
    return order ? order : compare_modules(a, b);
}

static void cells_json(FILE *out, struct diff_map *map, struct diff_tensor **sorted, const uint32_t *layers, const uint32_t *modules)
{
    qsort(sorted, map->count, sizeof(*sorted), compare_cells);
    fputs(",\"cells\":[", out);
    for (size_t i = 0, end; i < map->count; i = end) {
        for (end = i + 1; end < map->count && compare_cells(&sorted[i], &sorted[end]) == 0;)
            end++;
        fputs(i ? "," : "", out);
        cell_json(out, sorted + i, end - i, layers, modules, map);
    }
    putc(']', out);
}

/* ---- tensors ---- */

/* The tensors, with tiles of those whose values differ. */
static void tensors_tiled_json(FILE *out, struct diff_map *map, const reshard_run_options *run)
{
    struct diff_tiles *tiles = malloc(sizeof(*tiles));
    char *text = NULL;
    size_t size = 0, tiled = 0;
    FILE *list = open_memstream(&text, &size);
    if (list)
        fputs(",\"tensors\":[", list);
    for (size_t i = 0; list && tiles && i < map->count && i < DIFF_TENSORS_MAX; i++) {
        struct diff_tensor *tensor = &map->tensors[i];
        int64_t a = reshard_tensor_find(map->a, tensor->key, tensor->key_size);
        int64_t b = reshard_tensor_find(map->b, tensor->key, tensor->key_size);
        fputs(i ? ",{\"key\":" : "{\"key\":", list);
        json_string(list, tensor->key, tensor->key_size);
        fputs(",\"text\":", list);
        json_text(list, tensor->text ? tensor->text : "equal");
        if (tensor->changed && a >= 0 && b >= 0 && tiled < DIFF_TILED_MAX &&
            diff_tiles_make(map->a, (size_t)a, map->b, (size_t)b, run, tiles)) {
            tensor->error = tiles->largest;
            tensor->marks |= tiles->has_nan ? mark_of("nan") : 0;
            diff_tiles_json(list, tiles, map->a, (size_t)a, map->b, (size_t)b);
            tiled++;
        }
        putc('}', list);
    }
    free(tiles);
    if (list)
        fclose(list);
    if (text)
        fwrite(text, 1, size, out);
    free(text);
    fputs(text ? "]" : "", out);
}

static void diff_map_json_of(FILE *out, struct diff_map *map, const reshard_run_options *run)
{
    struct diff_tensor **sorted = calloc(map->count + 1, sizeof(struct diff_tensor *));
    uint32_t *layers = calloc(map->count + 1, sizeof(*layers)), *modules = calloc(map->count + 1, sizeof(*modules));
    map->has_failed |= !sorted || !layers || !modules;
    for (size_t i = 0; !map->has_failed && i < map->count; i++)
        sorted[i] = &map->tensors[i];
    if (!map->has_failed) {
        fputs("{\"schema\":\"reshard-draw-diff/1\",\"title\":\"What differs\",\"subtitle\":", out);
        char *line = NULL;
        if (asprintf(&line, "A: %s   B: %s", reshard_checkpoint_path(map->a), reshard_checkpoint_path(map->b)) < 0)
            line = NULL;
        json_text(out, line ? line : "");
        free(line);
        fprintf(out, ",\"footer\":\"Drawn by reshard %s.\",\"diff\":{\"verdict\":\"%llu of %zu tensors differ\",\"layers\":",
                reshard_version(), (unsigned long long)map->different, map->count);
        axis_json(out, sorted, map->count, compare_layers, layers, map);
        fputs(",\"modules\":", out);
        axis_json(out, sorted, map->count, compare_modules, modules, map);
        tensors_tiled_json(out, map, run);
        cells_json(out, map, sorted, layers, modules);
        fputs("}}", out);
    }
    free(sorted);
    free(layers);
    free(modules);
}

int diff_map_json(FILE *out, const struct options *options, const struct mapping_input *mapping, reshard_checkpoint *a,
                  reshard_checkpoint *b)
{
    struct diff_map map = { .options = options, .a = a, .b = b };
    reshard_error err = { 0 };
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    diff.ignore_items = 1;
    diff.map = &mapping->map;
    diff.include = options->include.values;
    diff.exclude = options->exclude.values;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "draw");
    reshard_status status = reshard_diff(a, b, &diff, &run, diff_map_take, &map, &err);
    int exit_status = 0;
    if (!map.has_failed && (!status || status == RESHARD_DIFFERS)) {
        equal_add(&map);
        diff_map_json_of(out, &map, &run);
    }
    progress_end(&progress);
    if (map.has_failed)
        exit_status = print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    else if (status)
        exit_status = status == RESHARD_DIFFERS ? 1 : mapping_input_error(mapping, status, &err);
    for (size_t i = 0; i < map.count; i++) {
        free(map.tensors[i].key);
        free(map.tensors[i].text);
        free(map.tensors[i].module);
    }
    free(map.tensors);
    return exit_status;
}
