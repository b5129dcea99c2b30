/* SPDX-License-Identifier: Apache-2.0 */
#include "name_tree.h"

#include "key_numbers.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS_MAX 64   /* the rest of a name is one step */

/* Children lie side by side. A tensor has none: where one is named as a level is, both stand there. */
struct node {
    const char *step;
    size_t size, first, end; /* the tensors below it, in order of their keys; then its children */
    int64_t tensor, number;  /* the first tensor below it; its step as a number, or NO_NUMBER */
    uint64_t hash, tensors, bytes;
    bool is_level;
};

/* Some children of one node that are alike; the first stands for them. */
struct fold {
    size_t first, count; /* in name_tree.order */
};

struct name_tree {
    const reshard_checkpoint *checkpoint;
    const size_t *keys;
    struct node *nodes;
    size_t count, room;
    bool failed;
    /* of a walk */
    enum name_order order;
    unsigned depth;
    name_line_sink sink;
    void *context;
    char *name;
    size_t name_room;
};

static reshard_tensor tensor_of(const struct name_tree *tree, size_t index)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(tree->checkpoint, index, &tensor);
    return tensor;
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

static void add_node(struct name_tree *tree, struct node node)
{
    if (tree->count == tree->room) {
        size_t room = tree->room ? 2 * tree->room : 256;
        struct node *grown = realloc(tree->nodes, room * sizeof(*grown));
        if (!grown) {
            tree->failed = true;
            return;
        }
        tree->nodes = grown;
        tree->room = room;
    }
    node.number = key_step_number(node.step, node.size);
    tree->nodes[tree->count++] = node;
}

/* The next child of those that have the tensors from `at` to `end`, whose names go on behind `behind` bytes. */
static struct node next_child(const struct name_tree *tree, size_t at, size_t end, size_t behind, int level)
{
    reshard_tensor tensor = tensor_of(tree, tree->keys[at]);
    const char *step = tensor.key.size ? tensor.key.data + behind : "";
    const char *dot = level < LEVELS_MAX ? memchr(step, '.', tensor.key.size - behind) : NULL;
    struct node node = { .step = step, .first = at, .end = at + 1, .tensor = (int64_t)tree->keys[at], .is_level = dot != NULL };
    node.size = dot ? (size_t)(dot - step) : tensor.key.size - behind;
    for (size_t shared = behind + node.size + 1; dot && node.end < end; node.end++) {
        reshard_tensor other = tensor_of(tree, tree->keys[node.end]);
        if (other.key.size < shared || memcmp(other.key.data + behind, step, node.size + 1) != 0)
            break;
    }
    return node;
}

static void sign_tensor(const struct name_tree *tree, struct node *node)
{
    reshard_tensor tensor = tensor_of(tree, (size_t)node->tensor);
    node->tensors = 1;
    node->bytes = tensor.bytes;
    node->hash = hash_bytes(hash_bytes(1, tensor.dtype, strlen(tensor.dtype)), tensor.shape, (size_t)tensor.rank * sizeof(*tensor.shape));
}

/* Makes the children of a level, and all below them. */
static void grow(struct name_tree *tree, size_t level, size_t behind, int depth)
{
    size_t first = tree->count, at = tree->nodes[level].first, end = tree->nodes[level].end, last;
    while (at < end && !tree->failed) {
        add_node(tree, next_child(tree, at, end, behind, depth));
        at = tree->nodes[tree->count - 1].end;
    }
    last = tree->count;
    tree->nodes[level].first = first;
    tree->nodes[level].end = last;
    uint64_t hash = 2;
    for (size_t i = first; i < last && !tree->failed; i++) {
        if (tree->nodes[i].is_level)
            grow(tree, i, behind + tree->nodes[i].size + 1, depth + 1);
        else
            sign_tensor(tree, &tree->nodes[i]);
        const struct node *node = &tree->nodes[i];
        hash = hash_bytes(hash_bytes(hash, node->step, node->size), &node->hash, sizeof(node->hash));
        tree->nodes[level].tensors += node->tensors;
        tree->nodes[level].bytes += node->bytes;
    }
    tree->nodes[level].hash = hash;
}

/* Whether the same lies below both; the names of the two do not matter. */
static bool same_below(const struct name_tree *tree, const struct node *a, const struct node *b)
{
    if (a->hash != b->hash || a->is_level != b->is_level)
        return false;
    if (!a->is_level) {
        reshard_tensor x = tensor_of(tree, (size_t)a->tensor), y = tensor_of(tree, (size_t)b->tensor);
        return strcmp(x.dtype, y.dtype) == 0 && x.rank == y.rank &&
               (x.rank == 0 || memcmp(x.shape, y.shape, (size_t)x.rank * sizeof(*x.shape)) == 0);
    }
    bool same = a->end - a->first == b->end - b->first;
    for (size_t i = 0; same && i < a->end - a->first; i++) {
        const struct node *x = &tree->nodes[a->first + i], *y = &tree->nodes[b->first + i];
        same = x->size == y->size && memcmp(x->step, y->step, x->size) == 0 && same_below(tree, x, y);
    }
    return same;
}

/* ---- folding ---- */

/* Names first; of numbers, those that are alike side by side. */
static int compare_for_folding(const void *x, const void *y, void *context)
{
    const struct name_tree *tree = context;
    const struct node *a = &tree->nodes[*(const size_t *)x], *b = &tree->nodes[*(const size_t *)y];
    if ((a->number == NO_NUMBER) != (b->number == NO_NUMBER))
        return a->number == NO_NUMBER ? -1 : 1;
    if (a->number == NO_NUMBER)
        return (*(const size_t *)x > *(const size_t *)y) - (*(const size_t *)x < *(const size_t *)y);
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

struct folding {
    const struct name_tree *tree;
    size_t *children; /* those of a fold side by side */
    struct fold *folds;
    size_t count;
};

static const struct node *first_of(const struct folding *folding, const struct fold *fold)
{
    return &folding->tree->nodes[folding->children[fold->first]];
}

static int compare_steps(const struct node *a, const struct node *b)
{
    if (a->number != NO_NUMBER && b->number != NO_NUMBER)
        return (a->number > b->number) - (a->number < b->number);
    int order = memcmp(a->step, b->step, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* The dtype of the only tensor below a node, or "": it is printed as a level. */
static const char *dtype_below(const struct name_tree *tree, const struct node *node)
{
    while (node->is_level && node->end - node->first == 1)
        node = &tree->nodes[node->first];
    return node->is_level ? "" : tensor_of(tree, (size_t)node->tensor).dtype;
}

static int compare_dtypes(const char *a, const char *b)
{
    return *a && *b ? strcmp(a, b) : !*a - !*b;
}

static int compare_for_printing(const void *x, const void *y, void *context)
{
    const struct folding *folding = context;
    const struct fold *a = x, *b = y;
    const struct node *left = first_of(folding, a), *right = first_of(folding, b);
    uint64_t left_bytes = left->bytes * a->count, right_bytes = right->bytes * b->count;
    int order = 0;
    if (folding->tree->order == NAME_BY_SIZE)
        order = (left_bytes < right_bytes) - (left_bytes > right_bytes);
    else if (folding->tree->order == NAME_BY_DTYPE)
        order = compare_dtypes(dtype_below(folding->tree, left), dtype_below(folding->tree, right));
    if (!order)
        order = compare_steps(left, right);
    return order ? order : (a->first > b->first) - (a->first < b->first);
}

static bool fold_children(const struct name_tree *tree, const struct node *level, struct folding *out)
{
    size_t count = level->end - level->first;
    *out = (struct folding){ .tree = tree, .children = calloc(count + 1, sizeof(size_t)), .folds = calloc(count + 1, sizeof(struct fold)) };
    if (!out->children || !out->folds)
        return false;
    for (size_t i = 0; i < count; i++)
        out->children[i] = level->first + i;
    qsort_r(out->children, count, sizeof(*out->children), compare_for_folding, (void *)tree);
    for (size_t i = 0; i < count; i++) {
        const struct node *node = &tree->nodes[out->children[i]];
        struct fold *last = out->count ? &out->folds[out->count - 1] : NULL;
        if (last && node->number != NO_NUMBER && first_of(out, last)->number != NO_NUMBER && same_below(tree, first_of(out, last), node))
            last->count++;
        else
            out->folds[out->count++] = (struct fold){ i, 1 };
    }
    qsort_r(out->folds, out->count, sizeof(*out->folds), compare_for_printing, out);
    return true;
}

static void folding_release(struct folding *folding)
{
    free(folding->children);
    free(folding->folds);
}

/* ---- walking ---- */

static void put(struct name_tree *tree, size_t *size, const char *text, size_t text_size)
{
    if (tree->name_room - *size <= text_size) {
        size_t room = 2 * (*size + text_size) + 64;
        char *grown = realloc(tree->name, room);
        tree->failed = tree->failed || !grown;
        if (!grown)
            return;
        tree->name = grown;
        tree->name_room = room;
    }
    memcpy(tree->name + *size, text, text_size);
    *size += text_size;
    tree->name[*size] = '\0';
}

/* "{0..31}", or the step of the only one. */
static void put_fold(struct name_tree *tree, size_t *size, const struct folding *folding, const struct fold *fold)
{
    if (fold->count == 1) {
        put(tree, size, first_of(folding, fold)->step, first_of(folding, fold)->size);
        return;
    }
    char *text = NULL;
    size_t text_size = 0;
    int64_t *numbers = malloc(fold->count * sizeof(*numbers));
    FILE *out = numbers ? open_memstream(&text, &text_size) : NULL;
    for (size_t i = 0; out && i < fold->count; i++)
        numbers[i] = tree->nodes[folding->children[fold->first + i]].number;
    if (out)
        key_numbers_print(out, numbers, fold->count, SIZE_MAX);
    if (out && !fclose(out))
        put(tree, size, text, text_size);
    else
        tree->failed = true;
    free(numbers);
    free(text);
}

struct place {
    size_t size; /* of the name so far */
    uint64_t times;
    unsigned depth;
};

static reshard_status walk_level(struct name_tree *tree, const struct node *level, struct place place);

static reshard_status tell(struct name_tree *tree, const struct node *node, size_t tail, struct place place)
{
    struct name_line line = { .name = tree->name, .size = place.size, .tail = tail, .depth = place.depth,
                              .tensors = node->tensors * place.times, .bytes = node->bytes * place.times,
                              .tensor = node->is_level ? -1 : node->tensor };
    if (tree->failed)
        return RESHARD_ERR_MEMORY;
    return tree->sink(&line, tree->context) ? RESHARD_ERR_CANCELLED : RESHARD_OK;
}

/* Takes the steps of levels that have one child only together with it. */
static reshard_status walk_fold(struct name_tree *tree, const struct folding *folding, const struct fold *fold, struct place place)
{
    const struct node *node = first_of(folding, fold);
    size_t tail = place.depth ? place.size + 1 : 0;
    if (place.depth)
        put(tree, &place.size, ".", 1);
    put_fold(tree, &place.size, folding, fold);
    place.times *= fold->count;
    bool is_joined = node->is_level;
    while (is_joined) {
        struct folding below;
        is_joined = fold_children(tree, node, &below) && below.count == 1;
        tree->failed = tree->failed || !below.children || !below.folds;
        if (is_joined) {
            node = first_of(&below, below.folds);
            put(tree, &place.size, ".", 1);
            put_fold(tree, &place.size, &below, below.folds);
            place.times *= below.folds->count;
            is_joined = node->is_level;
        }
        folding_release(&below);
    }
    reshard_status status = tell(tree, node, tail, place);
    place.depth++;
    return status || !node->is_level ? status : walk_level(tree, node, place);
}

static reshard_status walk_level(struct name_tree *tree, const struct node *level, struct place place)
{
    struct folding folding = { 0 };
    reshard_status status = RESHARD_OK;
    if (tree->depth && place.depth >= tree->depth)
        return RESHARD_OK;
    tree->failed = tree->failed || !fold_children(tree, level, &folding);
    for (size_t i = 0; !tree->failed && !status && i < folding.count; i++)
        status = walk_fold(tree, &folding, &folding.folds[i], place);
    folding_release(&folding);
    return tree->failed ? RESHARD_ERR_MEMORY : status;
}

reshard_status name_tree_walk(const reshard_checkpoint *checkpoint, enum name_order order, unsigned depth, name_line_sink sink,
                              void *context, reshard_error *err)
{
    struct name_tree tree = { .checkpoint = checkpoint, .order = order, .depth = depth, .sink = sink, .context = context };
    reshard_status status = reshard_tensor_order(checkpoint, &tree.keys, err);
    if (status)
        return status;
    add_node(&tree, (struct node){ .step = "", .end = reshard_tensor_count(checkpoint), .is_level = true });
    if (!tree.failed)
        grow(&tree, 0, 0, 0);
    status = tree.failed ? RESHARD_ERR_MEMORY : walk_level(&tree, tree.nodes, (struct place){ .times = 1 });
    if (status == RESHARD_ERR_MEMORY) {
        *err = (reshard_error){ .code = status, .offset = -1 };
        snprintf(err->message, sizeof(err->message), "out of memory");
    }
    free(tree.nodes);
    free(tree.name);
    return status;
}
