/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a GGUF file's metadata. Arrays may hold arrays: what is open of them is a stack, up to gguf_depth. */
#include "encoding/gguf.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/float_bits.h"

#include <inttypes.h>
#include <stdlib.h>

#define LENGTH_BYTES 8
#define ARRAY_BYTES 12 /* type and count */
#define BIG_BYTES 9    /* of an integer without sign that 64 bits with one do not hold */

static const int type_bytes[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

int gguf_type_bytes(enum gguf_type type)
{
    return type_bytes[type];
}

/* An array that is open. */
struct gguf_level {
    enum gguf_type type; /* of its elements */
    uint64_t left;
    struct value **next; /* where the next element goes; NULL: nowhere */
};

struct gguf_walk {
    struct gguf_scan *scan;
    struct value_graph *graph; /* NULL: values are passed over */
    struct gguf_level *levels;
    uint32_t depth, capacity;
};

static reshard_status out_of_room(const struct gguf_walk *walk, reshard_error *err)
{
    const struct limits *limits = walk->scan->limits;
    if (walk->graph->arena.is_full)
        return limit_error_bytes(err, NAMED_LIMIT(limits, item_bytes), "a value of the metadata", 0);
    return work_error(limits->budget, err);
}

static struct value *gguf_number_make(struct value_graph *graph, enum gguf_type type, uint64_t bits)
{
    int width = 8 * type_bytes[type];
    bool is_signed = type == GGUF_I8 || type == GGUF_I16 || type == GGUF_I32 || type == GGUF_I64;
    struct value *value;
    if (type == GGUF_F32 || type == GGUF_F64) {
        value = value_new(graph, VALUE_FLOAT);
        if (value && type == GGUF_F64)
            memcpy(&value->real, &bits, sizeof(bits));
        else if (value)
            value->real = (double)float_from_bits((uint32_t)bits);
        return value;
    }
    if (type == GGUF_BOOL) {
        value = value_new(graph, VALUE_BOOL);
        if (value)
            value->boolean = bits != 0;
        return value;
    }
    if (type == GGUF_U64 && bits > INT64_MAX) {
        char text[BIG_BYTES] = { 0 }; /* little-endian, as all of the machine's numbers */
        memcpy(text, &bits, sizeof(bits));
        value = value_new(graph, VALUE_BIGINT);
        return value && arena_str(&graph->arena, (struct str){ text, sizeof(text) }, &value->text) ? value : NULL;
    }
    return value_new_int(graph, is_signed ? (int64_t)(bits << (64 - width)) >> (64 - width) : (int64_t)bits);
}

static reshard_status gguf_take_string(struct gguf_walk *walk, struct value **out, reshard_error *err)
{
    struct gguf_scan *scan = walk->scan;
    const uint8_t *bytes;
    uint64_t size;
    reshard_status status = gguf_scan_length(scan, "a string", &size, err);
    if (!status && !walk->graph) {
        scan->at += size;
        return RESHARD_OK;
    }
    if (!status && size > scan->limits->item_bytes)
        status = error_set_limit(err, "item_bytes", size, scan->limits->item_bytes);
    if (!status)
        status = gguf_scan_take(scan, size, "a string", &bytes, err);
    if (status)
        return status;
    size_t bad;
    struct str text = { (const char *)bytes, (size_t)size };
    *out = value_new_str(walk->graph, text);
    if (*out && !str_is_utf8(text, false, &bad))
        (*out)->kind = VALUE_BYTES;
    return *out ? RESHARD_OK : out_of_room(walk, err);
}

static reshard_status array_begin(struct gguf_walk *walk, struct value **out, reshard_error *err)
{
    struct gguf_scan *scan = walk->scan;
    uint64_t at = scan->at, type, count, bytes;
    reshard_status status = gguf_scan_number(scan, 4, "an array's type", &type, err);
    if (!status && type >= GGUF_TYPE_COUNT)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "an array of values of type %" PRIu64 ", which GGUF does not have", type);
    if (!status)
        status = gguf_scan_number(scan, 8, "an array's count", &count, err);
    if (status)
        return status;
    int least = type == GGUF_STRING ? LENGTH_BYTES : type == GGUF_ARRAY ? ARRAY_BYTES : type_bytes[type];
    if (!checked_mul_u64(count, (uint64_t)least, &bytes) || !range_fits(scan->at, bytes, scan->reader->size))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "an array of %" PRIu64 " values of %d bytes at least, %" PRIu64 " are left",
                            count, least, scan->reader->size - scan->at);
    if (walk->depth >= scan->limits->gguf_depth)
        return error_set_limit(err, "gguf_depth", (uint64_t)walk->depth + 1, scan->limits->gguf_depth);
    struct gguf_level level = { .type = (enum gguf_type)type, .left = count };
    if (walk->graph) {
        level.next = arena_array(&walk->graph->arena, (size_t)count, sizeof(*level.next));
        *out = level.next ? value_new_list(walk->graph, VALUE_LIST, level.next, (size_t)count) : NULL;
        if (!*out)
            return out_of_room(walk, err);
    }
    if (!ARRAY_ROOM(walk->levels, walk->depth, walk->capacity))
        return error_set_memory(err);
    walk->levels[walk->depth++] = level;
    return RESHARD_OK;
}

static reshard_status gguf_element_take(struct gguf_walk *walk, enum gguf_type type, struct value **out, reshard_error *err)
{
    uint64_t bits;
    if (type == GGUF_STRING)
        return gguf_take_string(walk, out, err);
    if (type == GGUF_ARRAY)
        return array_begin(walk, out, err);
    reshard_status status = gguf_scan_number(walk->scan, type_bytes[type], "a number", &bits, err);
    if (status || !walk->graph)
        return status;
    *out = gguf_number_make(walk->graph, type, bits);
    return *out ? RESHARD_OK : out_of_room(walk, err);
}

/* Arrays of numbers are passed over at once. */
static bool level_is_passed(struct gguf_walk *walk, struct gguf_level *level)
{
    if (level->left && !walk->graph && type_bytes[level->type]) {
        walk->scan->at += level->left * (uint64_t)type_bytes[level->type];
        level->left = 0;
    }
    return !level->left;
}

static reshard_status walk_value(struct gguf_walk *walk, enum gguf_type type, struct value **out, reshard_error *err)
{
    struct value *ignored = NULL;
    walk->depth = 0;
    reshard_status status = gguf_element_take(walk, type, out ? out : &ignored, err);
    while (!status && walk->depth) {
        struct gguf_level *level = &walk->levels[walk->depth - 1];
        if (level_is_passed(walk, level)) {
            walk->depth--;
            continue;
        }
        level->left--;
        status = gguf_element_take(walk, level->type, level->next ? level->next++ : &ignored, err);
    }
    free(walk->levels);
    return status;
}

reshard_status gguf_value_skip(struct gguf_scan *scan, enum gguf_type type, reshard_error *err)
{
    struct gguf_walk walk = { .scan = scan };
    return walk_value(&walk, type, NULL, err);
}

reshard_status gguf_value_read(struct gguf_scan *scan, enum gguf_type type, struct value_graph *graph, struct value **out,
                               reshard_error *err)
{
    struct gguf_walk walk = { .scan = scan, .graph = graph };
    return walk_value(&walk, type, out, err);
}
