/* SPDX-License-Identifier: Apache-2.0 */
/* Plans conversions between synthetic layouts of about a million chunks and prints how many source chunks a second. */
#include "bench.h"

#include "plan/plan.h"

static void die(const reshard_error *err)
{
    fprintf(stderr, "bench_plan: %s\n", err->message);
    exit(1);
}

/* Cuts each tensor into a grid of about equal boxes, written to objects in turn. */
static void add_grid(struct catalog *catalog, uint32_t tensor, int64_t rows, int64_t columns, const int64_t *shape, uint32_t objects,
                     uint64_t *offset)
{
    reshard_error err;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            int64_t start[2] = { shape[0] * r / rows, shape[1] * c / columns };
            int64_t extent[2] = { shape[0] * (r + 1) / rows - start[0], shape[1] * (c + 1) / columns - start[1] };
            uint64_t bytes = (uint64_t)(extent[0] * extent[1]) * 2;
            if (catalog_add_chunk(catalog, tensor, start, extent, (uint32_t)(r + c) % objects, *offset, bytes, NULL, &err))
                die(&err);
            *offset += bytes;
        }
    }
}

static struct catalog *make(uint32_t tensors, const int64_t *shape, int64_t rows, int64_t columns, uint32_t objects)
{
    reshard_error err;
    struct catalog *catalog = catalog_new("bench");
    uint64_t offset = 0;
    for (uint32_t i = 0; i < objects; i++) {
        char name[32];
        uint32_t index;
        snprintf(name, sizeof(name), "o%u", i);
        if (!catalog || catalog_add_object(catalog, str_of(name), UINT64_MAX / 2, &index, &err))
            die(&err);
    }
    for (uint32_t i = 0; i < tensors; i++) {
        char key[32];
        uint32_t index;
        snprintf(key, sizeof(key), "layers.%u.weight", i);
        if (catalog_add_tensor(catalog, str_of(key), DTYPE_BF16, 2, shape, &index, &err))
            die(&err);
        add_grid(catalog, index, rows, columns, shape, objects, &offset);
    }
    if (catalog_seal(catalog, true, &err))
        die(&err);
    return catalog;
}

struct scenario {
    const char *name;
    uint32_t tensors;
    int64_t shape[2], source[2], target[2];
};

static void run(const struct scenario *s)
{
    reshard_error err;
    struct plan *plan;
    struct catalog *source = make(s->tensors, s->shape, s->source[0], s->source[1], 64);
    struct catalog *target = make(s->tensors, s->shape, s->target[0], s->target[1], 16);
    struct recipe *recipes = calloc(s->tensors, sizeof(*recipes));
    if (!recipes)
        exit(1);
    for (uint32_t i = 0; i < s->tensors; i++)
        recipes[i] = (struct recipe){ .source_tensor = i, .target_tensor = i, .is_whole = true };
    double begin = now();
    if (plan_new(source, target, recipes, s->tensors, &plan, &err))
        die(&err);
    double planned = now() - begin;
    begin = now();
    uint64_t hash = plan_hash(plan);
    printf("%-44s %8u -> %8u chunks: %8u steps in %.3f s, %6.2f M source chunks/s; hash %016llx in %.3f s\n", s->name, source->chunk_count,
           target->chunk_count, plan->step_count, planned, source->chunk_count / planned * 1e-6, (unsigned long long)hash, now() - begin);
    plan_free(plan);
    catalog_free(source);
    catalog_free(target);
    free(recipes);
}

int main(void)
{
    static const struct scenario scenarios[] = {
        { "one tensor, rows", 1, { 10000000, 64 }, { 1000000, 1 }, { 700000, 1 } },
        { "one tensor, grid", 1, { 100000, 100000 }, { 1000, 1000 }, { 800, 1250 } },
        { "one tensor, rows to columns", 1, { 10000, 10000 }, { 1000, 1 }, { 1, 1000 } },
        { "1000 tensors, rows of 1024 ranks to 8x16", 1000, { 4096, 4096 }, { 1024, 1 }, { 8, 16 } },
        { "1000 tensors, grid 32x32 to whole", 1000, { 4096, 4096 }, { 32, 32 }, { 1, 1 } },
        { "1000000 whole tensors", 1000000, { 16, 16 }, { 1, 1 }, { 1, 1 } },
    };
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        run(&scenarios[i]);
    return 0;
}
