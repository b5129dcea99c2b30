/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"
#include "base/array.h"
#include "base/value_parts.h"

#include <stdlib.h>

/* Nodes are numbered in the order of the walk, from 1, before they are digested: what a node refers to may come later. */
#define NUMBERS_PER_UNIT 8 /* clearing memory is cheap */

struct digesting {
    struct digest *digest;
    uint32_t *numbers; /* by id */
    uint32_t count;
};

static bool number_node(const struct value *value, void *context)
{
    struct digesting *digesting = context;
    digesting->numbers[value->id] = ++digesting->count;
    return true;
}

static void put_number(struct digesting *digesting, uint64_t number)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(number >> (8 * i));
    digest_update(digesting->digest, bytes, sizeof(bytes));
}

static void value_digest_put_text(struct digesting *digesting, struct str text)
{
    put_number(digesting, text.size);
    if (text.size)
        digest_update(digesting->digest, text.data, text.size);
}

static void value_digest_put_leaf(struct digesting *digesting, const struct value *value)
{
    uint64_t bits;
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE:
        break;
    case VALUE_BOOL:
        put_number(digesting, value->boolean);
        break;
    case VALUE_INT:
        put_number(digesting, (uint64_t)value->integer);
        break;
    case VALUE_FLOAT:
        memcpy(&bits, &value->real, sizeof(bits));
        put_number(digesting, bits);
        break;
    case VALUE_GLOBAL:
        value_digest_put_text(digesting, value->global.module);
        value_digest_put_text(digesting, value->global.name);
        break;
    default:
        value_digest_put_text(digesting, value->text);
    }
}

static bool digest_node(const struct value *value, void *context)
{
    struct digesting *digesting = context;
    struct value *child = NULL;
    put_number(digesting, value->kind);
    if (value_is_leaf(value)) {
        value_digest_put_leaf(digesting, value);
        return true;
    }
    for (size_t i = 0; value_child(value, i, &child); i++)
        put_number(digesting, child ? digesting->numbers[child->id] : 0);
    put_number(digesting, UINT64_MAX); /* the end of its parts */
    return true;
}

bool value_digest(const struct value *root, uint32_t graph_count, struct work *work, struct digest *digest)
{
    if (!work_take(work, graph_count / NUMBERS_PER_UNIT))
        return false;
    struct digesting digesting = { .digest = digest, .numbers = array_zeroed(graph_count, sizeof(uint32_t)) };
    bool done = digesting.numbers && value_walk(root, graph_count, work, number_node, &digesting, NULL) &&
                value_walk(root, graph_count, work, digest_node, &digesting, NULL);
    free(digesting.numbers);
    return done;
}
