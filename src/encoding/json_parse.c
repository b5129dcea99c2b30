/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/array.h"
#include "base/decimal_text.h"
#include "base/hash.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define PAIRWISE_MAX 8 /* keys up to which comparing all pairs beats a table */

/* Nodes of open containers lie one behind the other in `nodes`; a frame says where those of one container start. */
struct frame {
    size_t first;
    uint64_t offset;
};

struct builder {
    struct json_parser *parser;
    struct value_graph *graph;
    const struct limits *limits;
    struct value **nodes;
    size_t node_count, node_capacity;
    struct frame *frames;
    size_t frame_count, frame_capacity;
};

/* ---- numbers ---- */

static reshard_status out_of_range(uint64_t offset, struct str text, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, offset, "JSON: number %.*s%s is out of range", STR_ARG_BRIEF(text));
}

/* value = value * 10 + digit, little-endian. */
static void multiply_add(uint8_t *bytes, size_t *size, unsigned digit)
{
    unsigned carry = digit;
    for (size_t i = 0; i < *size; i++) {
        carry += bytes[i] * 10u;
        bytes[i] = (uint8_t)carry;
        carry >>= 8;
    }
    if (carry)
        bytes[(*size)++] = (uint8_t)carry;
}

static void negate(uint8_t *bytes, size_t size)
{
    unsigned carry = 1;
    for (size_t i = 0; i < size; i++) {
        carry += (uint8_t)~bytes[i];
        bytes[i] = (uint8_t)carry;
        carry >>= 8;
    }
}

/* Two's complement, as short as it goes. */
static reshard_status make_bigint(struct builder *builder, struct str text, uint64_t offset, struct value **out, reshard_error *err)
{
    bool is_negative = text.data[0] == '-';
    size_t digits = text.size - is_negative, size = 0;
    /* A digit is worth more than 3 bits. */
    if (digits / 3 > builder->limits->bigint_bytes) {
        error_set_limit(err, "bigint_bytes", digits * 5 / 12 + 1, builder->limits->bigint_bytes);
        return RESHARD_ERR_LIMIT;
    }
    uint8_t *bytes = arena_zalloc(&builder->graph->arena, digits / 2 + 2);
    struct value *node = value_new(builder->graph, VALUE_BIGINT);
    if (!bytes || !node)
        return error_set_memory(err);
    for (size_t i = is_negative; i < text.size; i++)
        multiply_add(bytes, &size, (unsigned)(text.data[i] - '0'));
    size++; /* room for the sign */
    if (is_negative)
        negate(bytes, size);
    uint8_t sign = is_negative ? 0xFF : 0;
    while (size > 1 && bytes[size - 1] == sign && (bytes[size - 2] & 0x80) == (sign & 0x80))
        size--;
    if (size > builder->limits->bigint_bytes) {
        error_set_limit(err, "bigint_bytes", size, builder->limits->bigint_bytes);
        return RESHARD_ERR_LIMIT;
    }
    node->text = (struct str){ (const char *)bytes, size };
    node->offset = offset;
    *out = node;
    return RESHARD_OK;
}

static bool to_i64(struct str text, int64_t *out)
{
    bool is_negative = text.data[0] == '-';
    int64_t value = 0;
    for (size_t i = is_negative; i < text.size; i++) {
        int digit = text.data[i] - '0';
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, is_negative ? -digit : digit, &value))
            return false;
    }
    *out = value;
    return true;
}

/* The host program's locale must not decide what a point means. */
static reshard_status make_float(struct builder *builder, struct str text, uint64_t offset, struct value **out, reshard_error *err)
{
    char small[64], *copy = text.size < sizeof(small) ? small : malloc(text.size + 1);
    struct value *node = value_new(builder->graph, VALUE_FLOAT);
    reshard_status status = RESHARD_OK;
    if (!copy || !node) {
        status = error_set_memory(err);
        goto out;
    }
    memcpy(copy, text.data, text.size);
    copy[text.size] = '\0';
    if (!decimal_parse(copy, &node->real)) {
        status = error_set_memory(err);
        goto out;
    }
    node->offset = offset;
    if (isinf(node->real))
        status = out_of_range(offset, text, err);
    else
        *out = node;

out:
    if (copy != small)
        free(copy);
    return status;
}

static bool json_parse_is_integer(struct str text)
{
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] == '.' || text.data[i] == 'e' || text.data[i] == 'E')
            return false;
    }
    return true;
}

/* NaN and the infinities, which the parser lets through where they are wanted. */
static reshard_status make_non_finite(struct builder *builder, struct str text, uint64_t offset, struct value **out, reshard_error *err)
{
    struct value *node = value_new(builder->graph, VALUE_FLOAT);
    if (!node)
        return error_set_memory(err);
    node->real = text.data[0] == 'N' ? NAN : text.data[0] == '-' ? -INFINITY : INFINITY;
    node->offset = offset;
    *out = node;
    return RESHARD_OK;
}

static reshard_status make_number(struct builder *builder, struct str text, uint64_t offset, struct value **out, reshard_error *err)
{
    int64_t integer;
    if (text.data[text.size - 1] > '9')
        return make_non_finite(builder, text, offset, out, err);
    if (!json_parse_is_integer(text))
        return make_float(builder, text, offset, out, err);
    if (!to_i64(text, &integer))
        return make_bigint(builder, text, offset, out, err);
    *out = value_new_int(builder->graph, integer);
    if (!*out)
        return error_set_memory(err);
    (*out)->offset = offset;
    return RESHARD_OK;
}

/* ---- containers ---- */

static bool push_node(struct builder *builder, struct value *node)
{
    if (!ARRAY_ROOM(builder->nodes, builder->node_count, builder->node_capacity))
        return false;
    builder->nodes[builder->node_count++] = node;
    return true;
}

static bool push_frame(struct builder *builder, uint64_t offset)
{
    if (!ARRAY_ROOM(builder->frames, builder->frame_count, builder->frame_capacity))
        return false;
    builder->frames[builder->frame_count++] = (struct frame){ builder->node_count, offset };
    return true;
}

static reshard_status duplicate(const struct value *key, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, key->offset, "JSON: duplicate key '%.*s'", STR_ARG(key->text));
}

/* Keys are every second node. */
static reshard_status json_parse_check_keys(struct value **pairs, size_t count, reshard_error *err)
{
    size_t keys = count / 2;
    if (keys <= PAIRWISE_MAX) {
        for (size_t i = 1; i < keys; i++) {
            for (size_t j = 0; j < i; j++) {
                if (str_equal(pairs[2 * i]->text, pairs[2 * j]->text))
                    return duplicate(pairs[2 * i], err);
            }
        }
        return RESHARD_OK;
    }
    size_t slot_count = 32;
    while (slot_count / 2 < keys)
        slot_count *= 2;
    struct value **slots = array_zeroed(slot_count, sizeof(*slots));
    if (!slots)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    uint64_t seed = hash_table_seed();
    for (size_t i = 0; i < keys && !status; i++) {
        struct value *key = pairs[2 * i];
        size_t at = (size_t)hash64(key->text.data, key->text.size, seed) & (slot_count - 1);
        while (slots[at] && !str_equal(slots[at]->text, key->text))
            at = (at + 1) & (slot_count - 1);
        if (slots[at])
            status = duplicate(key, err);
        slots[at] = key;
    }
    free(slots);
    return status;
}

static reshard_status close_frame(struct builder *builder, enum value_kind kind, struct value **out, reshard_error *err)
{
    struct frame frame = builder->frames[--builder->frame_count];
    size_t count = builder->node_count - frame.first;
    struct value **nodes = count ? builder->nodes + frame.first : NULL,
                 **items = arena_array(&builder->graph->arena, count, sizeof(*items));
    reshard_status status = kind == VALUE_DICT ? json_parse_check_keys(nodes, count, err) : RESHARD_OK;
    if (status)
        return status;
    if (items && count)
        memcpy(items, nodes, count * sizeof(*items));
    *out = items ? value_new_list(builder->graph, kind, items, count) : NULL;
    if (!*out)
        return error_set_memory(err);
    (*out)->offset = frame.offset;
    builder->node_count = frame.first;
    return RESHARD_OK;
}

/* ---- the document ---- */

static reshard_status json_parse_make_simple(struct builder *builder, enum json_event event, struct str text, uint64_t offset,
                                             struct value **out, reshard_error *err)
{
    struct value *node;
    if (event == JSON_KEY || event == JSON_STRING) {
        node = value_new_str(builder->graph, text);
    } else {
        node = value_new(builder->graph, event == JSON_NULL ? VALUE_NONE : VALUE_BOOL);
        if (node && event != JSON_NULL)
            node->boolean = event == JSON_TRUE;
    }
    if (!node)
        return error_set_memory(err);
    node->offset = offset;
    *out = node;
    return RESHARD_OK;
}

static reshard_status take_event(struct builder *builder, enum json_event event, struct str text, reshard_error *err)
{
    uint64_t offset = json_offset(builder->parser);
    struct value *node = NULL;
    reshard_status status;
    switch (event) {
    case JSON_OBJECT_BEGIN:
    case JSON_ARRAY_BEGIN:
        return push_frame(builder, offset) ? RESHARD_OK : error_set_memory(err);
    case JSON_OBJECT_END:
        status = close_frame(builder, VALUE_DICT, &node, err);
        break;
    case JSON_ARRAY_END:
        status = close_frame(builder, VALUE_LIST, &node, err);
        break;
    case JSON_NUMBER:
        status = make_number(builder, text, offset, &node, err);
        break;
    default:
        status = json_parse_make_simple(builder, event, text, offset, &node, err);
        break;
    }
    if (!status && !push_node(builder, node))
        status = error_set_memory(err);
    return status;
}

static reshard_status document_parse(struct str bytes, bool takes_non_finite, const struct limits *limits, struct value_graph *graph,
                                     reshard_error *err)
{
    if (bytes.size > limits->json_bytes)
        return error_set_limit(err, "json_bytes", bytes.size, limits->json_bytes);
    struct builder builder = { .parser = json_new(bytes.data, bytes.size, 0, limits), .graph = graph, .limits = limits };
    if (!builder.parser)
        return error_set_memory(err);
    if (takes_non_finite)
        json_take_non_finite(builder.parser);
    graph->arena.work = limits->budget;
    enum json_event event = JSON_NULL;
    struct str text;
    reshard_status status;
    while (!(status = json_next(builder.parser, &event, &text, err)) && event != JSON_END) {
        status = take_event(&builder, event, text, err);
        if (status)
            break;
    }
    if (!status)
        graph->root = builder.nodes[0];
    free(builder.nodes);
    free(builder.frames);
    json_free(builder.parser);
    return work_explain(limits->budget, status, err);
}

reshard_status json_parse(const void *bytes, size_t size, const struct limits *limits, struct value_graph *graph, reshard_error *err)
{
    return document_parse((struct str){ bytes, size }, false, limits, graph, err);
}

reshard_status json_parse_python(const void *bytes, size_t size, const struct limits *limits, struct value_graph *graph,
                                 reshard_error *err)
{
    return document_parse((struct str){ bytes, size }, true, limits, graph, err);
}
