/* SPDX-License-Identifier: Apache-2.0 */
#include "outcome.h"

#include "base/value.h"

#define FNV_START UINT64_C(0xCBF29CE484222325)
#define FNV_FACTOR UINT64_C(0x100000001B3)
#define JSON_BYTES_MAX (64 << 10)

static uint64_t outcome = FNV_START;

uint64_t outcome_hash(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * FNV_FACTOR;
    return hash;
}

void outcome_bytes(const void *bytes, size_t size)
{
    outcome = outcome_hash(outcome, bytes, size);
    outcome_number(size);
}

void outcome_number(uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    outcome = outcome_hash(outcome, bytes, sizeof(bytes));
}

void outcome_text(struct str text)
{
    outcome_bytes(text.data, text.size);
}

reshard_status outcome_status(reshard_status status, const reshard_error *err)
{
    outcome_number(status);
    if (status && err) {
        outcome_number((uint64_t)err->offset);
        outcome_number((uint64_t)err->line << 32 | (uint32_t)err->column);
        outcome_text(str_of(err->object));
    }
    return status;
}

void outcome_value(const struct value *value)
{
    struct buffer json = { 0 };
    if (value)
        outcome_number(value_to_json(value, &json, AT_MOST(JSON_BYTES_MAX), NULL));
    outcome_text(buffer_str(&json));
    buffer_release(&json);
}

static void add_vector(const struct catalog *catalog, uint32_t vector, int32_t count)
{
    outcome_bytes(catalog_vector_at(catalog, vector), (size_t)count * sizeof(int64_t));
}

static void add_layout(const struct catalog *catalog, const struct chunk_layout *layout, int32_t rank)
{
    if (layout->strides != CATALOG_NONE)
        add_vector(catalog, layout->strides, rank);
    outcome_number((uint64_t)layout->flat_begin);
    outcome_number((uint64_t)layout->flat_count);
    outcome_number((uint64_t)layout->codec << 8 | (uint64_t)layout->outer_codec);
    outcome_number(layout->coded_offset);
    outcome_number(layout->coded_bytes);
    outcome_number(layout->outer_offset);
    outcome_number(layout->outer_bytes);
    outcome_number(layout->crc32);
    outcome_number(layout->crc_offset);
    outcome_number(layout->crc_bytes);
}

static void add_chunk(const struct catalog *catalog, const struct catalog_chunk *chunk, int32_t rank)
{
    outcome_number(chunk->offset);
    outcome_number(chunk->bytes);
    outcome_text(catalog->objects[chunk->object].name);
    add_vector(catalog, chunk->start, rank);
    add_vector(catalog, chunk->extent, rank);
    outcome_number((uint64_t)chunk->flags << 16 | chunk->writer);
    if (catalog_layout_of(catalog, chunk))
        add_layout(catalog, catalog_layout_of(catalog, chunk), rank);
}

void outcome_catalog(const struct catalog *catalog)
{
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        const struct catalog_tensor *tensor = &catalog->tensors[t];
        outcome_text(tensor->key);
        outcome_number((uint64_t)tensor->dtype << 32 | tensor->flags);
        add_vector(catalog, tensor->shape, tensor->rank);
        outcome_number((uint64_t)tensor->tied_to << 32 | tensor->stored_as);
        for (uint32_t c = 0; c < tensor->chunk_count; c++)
            add_chunk(catalog, &catalog->chunks[tensor->first_chunk + c], tensor->rank);
    }
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct catalog_item *item = &catalog->items[i];
        outcome_text(item->key);
        outcome_number((uint64_t)item->kind << 16 | item->writer);
        outcome_number(item->offset);
        outcome_number(item->bytes);
    }
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        const struct catalog_warning *warning = &catalog->warnings[i];
        outcome_text(warning->key);
        outcome_number(warning->is_damage);
        outcome_number(warning->offset);
        outcome_number(warning->bytes);
    }
    for (uint32_t i = 0; i < catalog->fact_count; i++)
        outcome_text(catalog->facts[i].value);
    outcome_number((uint64_t)catalog->ranks << 32 | catalog->lost_count);
}

uint64_t outcome_take(void)
{
    uint64_t taken = outcome;
    outcome = FNV_START;
    return taken;
}
