/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs against a slow and obvious interpreter, which knows nothing of boxes: a tensor there is a list of elements, each with
 * the source element that it is. RESHARD_TEST_SEED and RESHARD_TEST_ROUNDS change the run; a failing program is shrunk and printed.
 */
#include "check.h"
#include "map_run.h"

#include <inttypes.h>

#define SOURCES_MAX 4
#define STEPS_MAX 12
#define NAMES_MAX 64
#define PARTS_MAX 6
#define RANK_TEST 4
#define SOURCE_RANK_MAX 3

/* A tensor element by element: source number * 2^20 + flat index, and the last cast (0: none). */
struct slow {
    bool is_set, is_used, is_last; /* is_last: made by a fused statement, not used further */
    int rank, degree, degree_axis; /* shards of the target */
    int64_t shape[RANK_TEST];
    int64_t count;
    uint32_t *elements;
    uint8_t *casts;
};

enum step_kind {
    STEP_COPY,
    STEP_SPLIT,
    STEP_JOIN,
    STEP_PERMUTE,
    STEP_CAST,
    STEP_TRANSPOSE,
    STEP_STACK,
    STEP_UNSTACK,
    STEP_FFN,
    STEP_QKV_OLD,
    STEP_KINDS
};

struct step {
    enum step_kind kind;
    int inputs[PARTS_MAX], outputs[PARTS_MAX], input_count, output_count;
    int axis, permutation[RANK_TEST], cast, degree, heads, groups;
};

struct trial {
    uint64_t seed;
    int source_count, step_count, name_count;
    int source_degree[SOURCES_MAX], source_axis[SOURCES_MAX];
    struct slow sources[SOURCES_MAX];
    struct step steps[STEPS_MAX];
    bool dropped[STEPS_MAX]; /* left out while shrinking */
    struct slow names[NAMES_MAX];
};

static int pick(struct trial *trial, int count)
{
    return (int)(test_random(&trial->seed) % (uint64_t)count);
}

static void slow_free(struct slow *slow)
{
    free(slow->elements);
    free(slow->casts);
    *slow = (struct slow){ 0 };
}

static void slow_make(struct slow *slow, int rank, const int64_t *shape)
{
    slow_free(slow);
    slow->is_set = true;
    slow->rank = rank;
    slow->count = 1;
    for (int i = 0; i < rank; i++)
        slow->count *= slow->shape[i] = shape[i];
    slow->elements = calloc((size_t)slow->count + 1, sizeof(*slow->elements));
    slow->casts = calloc((size_t)slow->count + 1, 1);
    assert_non_null(slow->elements);
    assert_non_null(slow->casts);
}

static int64_t slow_at(const struct slow *slow, const int64_t *index)
{
    int64_t at = 0;
    for (int i = 0; i < slow->rank; i++)
        at = at * slow->shape[i] + index[i];
    return at;
}

static bool next_index(const struct slow *slow, int64_t *index)
{
    for (int i = slow->rank - 1; i >= 0; i--) {
        if (++index[i] < slow->shape[i])
            return true;
        index[i] = 0;
    }
    return false;
}

/* Copies elements [begin, begin + width) on an axis of `from` to position `to` on the same axis of `out`. */
static void slow_copy(const struct slow *from, struct slow *out, int axis, int64_t begin, int64_t width, int64_t to)
{
    int64_t index[RANK_TEST] = { 0 }, moved[RANK_TEST];
    do {
        if (index[axis] < begin || index[axis] >= begin + width)
            continue;
        memcpy(moved, index, sizeof(moved));
        moved[axis] += to - begin;
        out->elements[slow_at(out, moved)] = from->elements[slow_at(from, index)];
        out->casts[slow_at(out, moved)] = from->casts[slow_at(from, index)];
    } while (next_index(from, index));
}

static void slow_permute(const struct slow *from, struct slow *out, const int *permutation)
{
    int64_t shape[RANK_TEST], index[RANK_TEST] = { 0 }, moved[RANK_TEST];
    for (int i = 0; i < from->rank; i++)
        shape[i] = from->shape[permutation[i]];
    slow_make(out, from->rank, shape);
    do {
        for (int i = 0; i < from->rank; i++)
            moved[i] = index[permutation[i]];
        out->elements[slow_at(out, moved)] = from->elements[slow_at(from, index)];
        out->casts[slow_at(out, moved)] = from->casts[slow_at(from, index)];
    } while (next_index(from, index));
}

/* Puts `from` at position `at` of a new axis of `out`, or takes it from there. */
static void slow_slice(struct slow *whole, struct slow *slice, int axis, int64_t at, bool is_stack)
{
    int64_t index[RANK_TEST] = { 0 }, inside[RANK_TEST];
    do {
        for (int i = 0; i < whole->rank; i++)
            inside[i] = i == axis ? at : index[i - (i > axis)];
        int64_t a = slow_at(whole, inside), b = slow_at(slice, index);
        if (is_stack) {
            whole->elements[a] = slice->elements[b];
            whole->casts[a] = slice->casts[b];
        } else {
            slice->elements[b] = whole->elements[a];
            slice->casts[b] = whole->casts[a];
        }
    } while (next_index(slice, index));
}

/* Where the pieces of each kind lie, per rank: kinds relate as shares do. Moves them from one number of ranks to another. */
static void slow_fused(const struct slow *from, struct slow *out, int axis, int from_ranks, int to_ranks, const int64_t *shares, int kinds)
{
    int64_t total = 0, unit, before = 0;
    for (int kind = 0; kind < kinds; kind++)
        total += shares[kind];
    unit = from->shape[axis] / total;
    slow_make(out, from->rank, from->shape);
    for (int kind = 0; kind < kinds; before += shares[kind++]) {
        for (int64_t i = 0; i < shares[kind] * unit; i++) {
            int64_t a = shares[kind] * unit / from_ranks, b = shares[kind] * unit / to_ranks;
            int64_t source = i / a * (total * unit / from_ranks) + before * unit / from_ranks + i % a;
            int64_t target = i / b * (total * unit / to_ranks) + before * unit / to_ranks + i % b;
            slow_copy(from, out, axis, source, 1, target);
        }
    }
}

static void make_sources(struct trial *trial)
{
    trial->source_count = 1 + pick(trial, SOURCES_MAX);
    for (int i = 0; i < trial->source_count; i++) {
        int64_t shape[RANK_TEST];
        int rank = 1 + pick(trial, SOURCE_RANK_MAX);
        static const int extents[] = { 1, 2, 3, 4, 6, 8, 12, 24 };
        for (int k = 0; k < rank; k++)
            shape[k] = extents[pick(trial, 8)];
        struct slow *slow = &trial->sources[i];
        slow_make(slow, rank, shape);
        for (int64_t k = 0; k < slow->count; k++)
            slow->elements[k] = (uint32_t)i << 20 | (uint32_t)k;
        trial->source_axis[i] = pick(trial, rank);
        int64_t extent = shape[trial->source_axis[i]];
        trial->source_degree[i] = extent % 2 == 0 && pick(trial, 2) ? 2 : extent % 3 == 0 && pick(trial, 2) ? 3 : 1;
    }
}

/* A tensor by number: names follow the sources. */
static struct slow *tensor_of(struct trial *trial, int number)
{
    return number < trial->source_count ? &trial->sources[number] : &trial->names[number - trial->source_count];
}

static int new_name(struct trial *trial)
{
    return trial->source_count + trial->name_count++;
}

static int any_tensor(struct trial *trial)
{
    for (;;) {
        int number = pick(trial, trial->source_count + trial->name_count);
        struct slow *slow = tensor_of(trial, number);
        if (slow->is_set && !slow->is_last)
            return number;
    }
}

static bool plan_fused(struct trial *trial, struct step *step)
{
    int source = step->inputs[0];
    const struct slow *in = tensor_of(trial, source);
    if (source >= trial->source_count)
        return false;
    step->axis = trial->source_axis[source];
    step->degree = 1 + pick(trial, 3);
    int64_t extent = in->shape[step->axis];
    int ranks = trial->source_degree[source];
    if (step->kind == STEP_FFN)
        return extent % (2 * ranks * step->degree) == 0;
    step->groups = ranks * step->degree;
    step->heads = step->groups * (1 + pick(trial, 2));
    return extent % (step->heads + 2 * step->groups) == 0;
}

/* Chooses a step that fits; false if the choice does not. */
static bool plan_step(struct trial *trial, struct step *step)
{
    *step = (struct step){ .kind = (enum step_kind)pick(trial, STEP_KINDS), .input_count = 1, .output_count = 1 };
    step->inputs[0] = any_tensor(trial);
    const struct slow *in = tensor_of(trial, step->inputs[0]);
    if (in->rank == 0 && (step->kind == STEP_SPLIT || step->kind == STEP_JOIN || step->kind == STEP_UNSTACK || step->kind == STEP_PERMUTE))
        return false;
    step->axis = in->rank ? pick(trial, in->rank) : 0;
    step->cast = 1 + pick(trial, 3);
    for (int i = 0; i < in->rank; i++) {
        int at = pick(trial, i + 1);
        step->permutation[i] = step->permutation[at];
        step->permutation[at] = i;
    }
    if (step->kind == STEP_FFN || step->kind == STEP_QKV_OLD)
        return plan_fused(trial, step);
    if (step->kind == STEP_UNSTACK) {
        step->output_count = (int)in->shape[step->axis];
        return step->output_count <= PARTS_MAX;
    }
    if (step->kind == STEP_STACK) {
        step->axis = pick(trial, in->rank + 1);
        for (step->input_count = 1; step->input_count < 1 + pick(trial, 3); step->input_count++) {
            int number = any_tensor(trial);
            const struct slow *other = tensor_of(trial, number);
            bool fits = other->rank == in->rank && memcmp(other->shape, in->shape, (size_t)in->rank * sizeof(in->shape[0])) == 0;
            step->inputs[step->input_count] = fits ? number : step->inputs[0];
        }
        return in->rank < RANK_TEST && in->count * step->input_count < 5000;
    }
    if (step->kind == STEP_SPLIT) {
        step->output_count = 2 + pick(trial, PARTS_MAX - 1);
        return in->shape[step->axis] % step->output_count == 0;
    }
    for (step->input_count = 1; step->kind == STEP_JOIN && step->input_count < 2 + pick(trial, 3); step->input_count++) {
        int number = any_tensor(trial);
        const struct slow *other = tensor_of(trial, number);
        bool fits = other->rank == in->rank;
        for (int i = 0; i < in->rank && fits; i++)
            fits = i == step->axis || other->shape[i] == in->shape[i];
        step->inputs[step->input_count] = fits ? number : step->inputs[0];
    }
    return step->kind != STEP_JOIN || in->count * step->input_count < 5000;
}

static void slow_stack(struct trial *trial, const struct step *step)
{
    const struct slow *in = tensor_of(trial, step->inputs[0]);
    struct slow *out = tensor_of(trial, step->outputs[0]);
    int64_t shape[RANK_TEST];
    for (int i = 0; i <= in->rank; i++)
        shape[i] = i == step->axis ? step->input_count : in->shape[i - (i > step->axis)];
    slow_make(out, in->rank + 1, shape);
    for (int i = 0; i < step->input_count; i++)
        slow_slice(out, tensor_of(trial, step->inputs[i]), step->axis, i, true);
}

static void run_slow(struct trial *trial, const struct step *step)
{
    const struct slow *in = tensor_of(trial, step->inputs[0]);
    struct slow *out = tensor_of(trial, step->outputs[0]);
    static const int64_t ffn[] = { 1, 1 };
    int64_t qkv[] = { step->heads, step->groups, step->groups }, shape[RANK_TEST], at = 0;
    int reversal[RANK_TEST];
    memcpy(shape, in->shape, sizeof(shape));
    for (int i = 0; i < in->rank; i++)
        reversal[i] = in->rank - 1 - i;
    for (int i = 0; i < step->input_count; i++)
        tensor_of(trial, step->inputs[i])->is_used = true;
    switch (step->kind) {
    case STEP_SPLIT:
        shape[step->axis] /= step->output_count;
        for (int i = 0; i < step->output_count; i++) {
            out = tensor_of(trial, step->outputs[i]);
            slow_make(out, in->rank, shape);
            slow_copy(in, out, step->axis, i * shape[step->axis], shape[step->axis], 0);
        }
        break;
    case STEP_JOIN:
        for (int i = 1; i < step->input_count; i++)
            shape[step->axis] += tensor_of(trial, step->inputs[i])->shape[step->axis];
        slow_make(out, in->rank, shape);
        for (int i = 0; i < step->input_count; i++) {
            const struct slow *part = tensor_of(trial, step->inputs[i]);
            slow_copy(part, out, step->axis, 0, part->shape[step->axis], at);
            at += part->shape[step->axis];
        }
        break;
    case STEP_STACK: slow_stack(trial, step); break;
    case STEP_UNSTACK:
        for (int i = step->axis; i + 1 < in->rank; i++)
            shape[i] = in->shape[i + 1];
        for (int i = 0; i < step->output_count; i++) {
            slow_make(tensor_of(trial, step->outputs[i]), in->rank - 1, shape);
            slow_slice(tensor_of(trial, step->inputs[0]), tensor_of(trial, step->outputs[i]), step->axis, i, false);
        }
        break;
    case STEP_FFN:
    case STEP_QKV_OLD:
        slow_fused(in, out, step->axis, trial->source_degree[step->inputs[0]], step->degree, step->kind == STEP_FFN ? ffn : qkv,
                   step->kind == STEP_FFN ? 2 : 3);
        out->is_last = true;
        out->degree = step->degree;
        out->degree_axis = step->axis;
        break;
    case STEP_PERMUTE: slow_permute(in, out, step->permutation); break;
    case STEP_TRANSPOSE: slow_permute(in, out, reversal); break;
    default:
        slow_make(out, in->rank, shape);
        for (int64_t i = 0; i < out->count; i++) {
            out->elements[i] = in->elements[i];
            out->casts[i] = step->kind == STEP_CAST ? (uint8_t)step->cast : in->casts[i];
        }
    }
}

static void name_text(const struct trial *trial, int number, char out[16])
{
    snprintf(out, 16, "%c.%d", number < trial->source_count ? 's' : 'v',
             number < trial->source_count ? number : number - trial->source_count);
}

static const char *const cast_names[] = { "", "float32", "float16", "bfloat16" };
static const enum dtype cast_types[] = { DTYPE_F32, DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

static void print_step(const struct trial *trial, const struct step *step, struct buffer *out)
{
    char name[16];
    for (int i = 0; i < step->input_count; i++) {
        name_text(trial, step->inputs[i], name);
        buffer_printf(out, "%s%s%s", i ? ", " : "", name, step->kind == STEP_TRANSPOSE ? "^T" : "");
    }
    for (int i = 0; i < step->output_count; i++) {
        name_text(trial, step->outputs[i], name);
        buffer_printf(out, "%s%s", i ? ", " : " -> ", name);
    }
    if (step->kind == STEP_SPLIT || step->kind == STEP_JOIN)
        buffer_printf(out, ", axis=%d", step->axis);
    if (step->kind == STEP_STACK || step->kind == STEP_UNSTACK)
        buffer_printf(out, ", %s=%d", step->kind == STEP_STACK ? "stack" : "unstack", step->axis);
    if (step->kind == STEP_FFN)
        buffer_printf(out, ", fused_ffn, axis=%d", step->axis);
    if (step->kind == STEP_QKV_OLD)
        buffer_printf(out, ", fused_qkv_old, num_heads=%d, num_key_value_groups=%d, axis=%d", step->heads, step->groups, step->axis);
    if (step->kind == STEP_CAST)
        buffer_printf(out, ", dtype=\"%s\"", cast_names[step->cast]);
    for (int i = 0; step->kind == STEP_PERMUTE && i < tensor_of((struct trial *)(uintptr_t)trial, step->inputs[0])->rank; i++)
        buffer_printf(out, "%s%d", i ? ", " : ", permute='[", step->permutation[i]);
    buffer_append_text(out, step->kind == STEP_PERMUTE ? "]'\n" : "\n");
}

static void add_tensor(struct map_space *space, const char *key, enum dtype dtype, const struct slow *slow, int degree, int axis)
{
    int64_t starts[8][RANK_TEST] = { { 0 } }, extent[RANK_TEST];
    struct map_shard shards[8];
    reshard_error err = { 0 };
    memcpy(extent, slow->shape, sizeof(extent));
    if (slow->rank)
        extent[axis] /= degree;
    for (int i = 0; i < degree; i++) {
        starts[i][axis] = i * extent[axis];
        shards[i] = (struct map_shard){ starts[i], extent };
    }
    CHECK_OK(map_space_add(space, str_of(key), dtype, slow->rank, slow->shape, shards, (uint32_t)degree, &err));
}

/* Everything that is left over, if it has one type. */
static bool make_target(struct trial *trial, struct map_space *target)
{
    reshard_error err = { 0 };
    char name[16];
    for (int number = 0; number < trial->source_count + trial->name_count; number++) {
        const struct slow *slow = tensor_of(trial, number);
        if (!slow->is_set || slow->is_used)
            continue;
        for (int64_t i = 1; i < slow->count; i++) {
            if (cast_types[slow->casts[i]] != cast_types[slow->casts[0]])
                return false;
        }
        name_text(trial, number, name);
        add_tensor(target, name, cast_types[slow->casts[0]], slow, slow->degree ? slow->degree : 1, slow->degree_axis);
    }
    CHECK_OK(map_space_seal(target, &err));
    return true;
}

/* The element map of one tensor of the result; UINT32_MAX where nothing is written. */
static void fast_elements(const struct map_result *result, const struct map_space *source, uint32_t target, uint32_t *out, int64_t count)
{
    const struct map_tensor *tensor = &result->target->tensors[target];
    struct slow shape = { .rank = tensor->rank };
    memset(out, 0xFF, (size_t)count * sizeof(*out));
    memcpy(shape.shape, tensor->shape, (size_t)tensor->rank * sizeof(int64_t));
    for (uint32_t i = 0; i < result->copy_count; i++) {
        const struct map_copy *copy = &result->copies[i];
        const struct map_tensor *from = &source->tensors[copy->source_tensor];
        struct slow from_shape = { .rank = from->rank }, box = { .rank = tensor->rank };
        int64_t index[RANK_TEST] = { 0 }, a[RANK_TEST], b[RANK_TEST];
        memcpy(a, copy->piece->source_start, (size_t)from->rank * sizeof(a[0]));
        if (copy->target_tensor != target)
            continue;
        memcpy(from_shape.shape, from->shape, (size_t)from->rank * sizeof(int64_t));
        memcpy(box.shape, copy->piece->extent, (size_t)tensor->rank * sizeof(int64_t));
        do {
            for (int k = 0; k < tensor->rank; k++) {
                int axis = copy->piece->axes ? copy->piece->axes[k] : k;
                if (axis != MAP_AXIS_NEW)
                    a[axis] = copy->piece->source_start[axis] + index[k];
                b[k] = copy->piece->start[k] + index[k];
            }
            int64_t at = slow_at(&shape, b);
            assert_true(at < count && out[at] == UINT32_MAX);
            out[at] = (uint32_t)(from->key.data[2] - '0') << 20 | (uint32_t)slow_at(&from_shape, a);
        } while (next_index(&box, index));
    }
}

/* Whether the engine and the slow interpreter agree on the steps that are not dropped. */
static bool agrees(struct trial *trial, struct buffer *text)
{
    struct map_space source = { 0 }, target = { 0 };
    struct map_run run;
    reshard_error err = { 0 };
    char name[16];
    bool same = true;
    buffer_clear(text);
    for (int i = 0; i < trial->step_count; i++) {
        if (!trial->dropped[i])
            print_step(trial, &trial->steps[i], text);
    }
    buffer_append_byte(text, '\0');
    for (int i = 0; i < trial->source_count; i++) {
        name_text(trial, i, name);
        add_tensor(&source, name, DTYPE_F32, &trial->sources[i], trial->source_degree[i], trial->source_axis[i]);
    }
    CHECK_OK(map_space_seal(&source, &err));
    if (make_target(trial, &target)) {
        CHECK_OK(map_run(&run, (const char *)text->data, &source, &target, false, &err));
        same = run.diagnoses.error_count == 0;
        for (int number = 0; number < trial->source_count + trial->name_count && same; number++) {
            const struct slow *slow = tensor_of(trial, number);
            if (!slow->is_set || slow->is_used)
                continue;
            uint32_t *elements = calloc((size_t)slow->count + 1, sizeof(*elements));
            name_text(trial, number, name);
            fast_elements(&run.result, &source, name_map_find(&target.keys, str_of(name)), elements, slow->count);
            same = memcmp(elements, slow->elements, (size_t)slow->count * sizeof(*elements)) == 0;
            free(elements);
        }
        map_run_release(&run);
    }
    map_space_release(&source);
    map_space_release(&target);
    return same;
}

/* Runs the slow interpreter over the steps that are left; false if a step lacks its input. */
static bool replay(struct trial *trial)
{
    for (int i = 0; i < trial->name_count; i++)
        slow_free(&trial->names[i]);
    for (int i = 0; i < trial->source_count; i++)
        trial->sources[i].is_used = false;
    for (int i = 0; i < trial->step_count; i++) {
        for (int k = 0; k < trial->steps[i].input_count && !trial->dropped[i]; k++) {
            if (!tensor_of(trial, trial->steps[i].inputs[k])->is_set)
                return false;
        }
        if (!trial->dropped[i])
            run_slow(trial, &trial->steps[i]);
    }
    return true;
}

static void shrink(struct trial *trial, struct buffer *text)
{
    for (int i = trial->step_count - 1; i >= 0; i--) {
        trial->dropped[i] = true;
        if (!replay(trial) || agrees(trial, text))
            trial->dropped[i] = false;
    }
    replay(trial);
    agrees(trial, text);
}

static void make_steps(struct trial *trial)
{
    int wanted = 1 + pick(trial, STEPS_MAX);
    for (int tries = 0; trial->step_count < wanted && tries < 100; tries++) {
        struct step *step = &trial->steps[trial->step_count];
        if (!plan_step(trial, step))
            continue;
        if (trial->name_count + step->output_count > NAMES_MAX)
            return;
        for (int i = 0; i < step->output_count; i++)
            step->outputs[i] = new_name(trial);
        run_slow(trial, step);
        trial->step_count++;
    }
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

TEST(random_programs_give_the_elements_of_the_slow_interpreter)
{
    uint64_t seed = number_from("RESHARD_TEST_SEED", 20251121), rounds = number_from("RESHARD_TEST_ROUNDS", 10000);
    struct buffer text = { 0 };
    print_message("# seed %" PRIu64 ", %" PRIu64 " programs\n", seed, rounds);
    for (uint64_t round = 0; round < rounds; round++) {
        struct trial trial = { .seed = seed + round };
        make_sources(&trial);
        make_steps(&trial);
        bool same = agrees(&trial, &text);
        if (!same)
            shrink(&trial, &text);
        for (int i = 0; i < trial.source_count; i++)
            slow_free(&trial.sources[i]);
        for (int i = 0; i < trial.name_count; i++)
            slow_free(&trial.names[i]);
        if (!same)
            fail_msg("seed %" PRIu64 ":\n%s", seed + round, (const char *)text.data);
    }
    buffer_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_programs_give_the_elements_of_the_slow_interpreter) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
