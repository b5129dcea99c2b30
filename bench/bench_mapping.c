/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a mapping of 50 statements over a million keys and prints what each stage takes. usage: bench_mapping [LAYERS EXPERTS]
 * Every statement speaks of one kind of weight in every layer and expert: half rename, the others transpose, cast, join, split and stack.
 */
#include "bench.h"

#include <string.h>

#include "mapping/map_engine.h"
#include "mapping/map_expand.h"

#define STATEMENTS 50

static void die(const char *what)
{
    fprintf(stderr, "bench_mapping: %s\n", what);
    exit(1);
}

static void add(struct map_space *space, int layer, int expert, const char *kind, int number)
{
    static const int64_t shape[2] = { 64, 64 };
    reshard_error err;
    char key[96];
    snprintf(key, sizeof(key), "model.layers.%d.mlp.experts.%d.%s%d.weight", layer, expert, kind, number);
    if (map_space_add(space, str_of(key), DTYPE_BF16, 2, shape, NULL, 0, &err))
        die(err.message);
}

/* Kinds a0 … a49; every tenth statement joins a_i with b_i. */
static void make_source(struct map_space *space, int layers, int experts)
{
    reshard_error err;
    for (int layer = 0; layer < layers; layer++) {
        for (int expert = 0; expert < experts; expert++) {
            for (int i = 0; i < STATEMENTS; i++)
                add(space, layer, expert, i % 10 == 9 ? "b" : "a", i);
        }
    }
    if (map_space_seal(space, &err))
        die(err.message);
}

/* One statement of a form. */
static void print_form(struct buffer *text, int form, const char *from, const char *to, const char *other)
{
    switch (form) {
    case 1: buffer_printf(text, "%s^T -> %s\n", from, to); break;
    case 2: buffer_printf(text, "%s -> %s, dtype=\"float32\"\n", from, to); break;
    case 3: buffer_printf(text, "%s -> %s, permute=\"[1, 0]\"\n", from, to); break;
    case 4: buffer_printf(text, "%s -> %s.x, %s.y, axis=0\n", from, to, to); break;
    case 8: buffer_printf(text, "%s, %s -> %s, axis=1\n", from, other, to); break;
    case 9: buffer_printf(text, "%s -> %s, stack=0\n", other, to); break;
    default: buffer_printf(text, "%s -> %s\n", from, to);
    }
}

static void make_text(struct buffer *text)
{
    for (int i = 0; i < STATEMENTS; i++) {
        char from[96], to[96], other[96];
        snprintf(from, sizeof(from), "model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID.a%d.weight", i);
        snprintf(to, sizeof(to), "decoder.layers.$LAYER_ID.experts.$EXPERT_ID.c%d", i);
        snprintf(other, sizeof(other), "model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID.b%d.weight", i % 10 == 8 ? i + 1 : i);
        print_form(text, i % 10, from, to, other);
    }
    if (text->failed)
        die("no memory");
}

static void run(const struct map_space *source, const struct map_space *target, struct str text, const char *what,
                struct map_result *result)
{
    struct map_diagnoses diagnoses = { 0 };
    struct map_tokens tokens = { 0 };
    struct map_program written = { 0 }, expanded = { 0 };
    struct limits limits = limits_default;
    reshard_error err = { 0 };
    double start = now();
    struct map_macro_context context = { .source = source, .target = target, .limits = &limits, .diagnoses = &diagnoses };
    if (map_lex(text, false, &limits, &tokens, &diagnoses, &err) ||
        map_parse(text, &tokens, MAP_GRAMMAR_FULL, NULL, &written, &diagnoses, &err) || map_expand(&context, &written, &expanded, &err))
        die(err.message);
    double middle = now();
    struct map_engine_input input = {
        .program = &expanded, .source = source, .target = target, .limits = &limits, .diagnoses = &diagnoses
    };
    if (map_execute(&input, result, &err))
        die(err.message);
    if (diagnoses.error_count)
        die(diagnoses.rows[0].message);
    double end = now();
    printf("%-16s expand %6.3f s (%u statements)   execute %6.3f s (%u copies)   sum %6.3f s\n", what, middle - start, expanded.count,
           end - middle, result->copy_count, end - start);
    map_program_release(&expanded);
    map_program_release(&written);
    map_tokens_release(&tokens);
    map_diagnoses_release(&diagnoses);
}

int main(int argc, char **argv)
{
    int layers = argc > 1 ? atoi(argv[1]) : 100, experts = argc > 2 ? atoi(argv[2]) : 200;
    struct map_space source = { 0 };
    struct map_result first = { 0 }, second = { 0 };
    struct buffer text = { 0 };
    double start = now();
    make_source(&source, layers, experts);
    printf("%-16s %u keys in %.3f s\n", "source", map_space_tensor_count(&source), now() - start);
    make_text(&text);
    run(&source, NULL, buffer_str(&text), "without target", &first);
    run(&source, first.target, buffer_str(&text), "with target", &second);
    map_result_release(&second);
    map_result_release(&first);
    map_space_release(&source);
    buffer_release(&text);
    return 0;
}
