/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a `.metadata`: what the fast way decodes, the general way must decode to the same. */
#include "base/buffer.h"
#include "formats/dcp/metadata_decode.h"

#include <inttypes.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print_vector(struct buffer *out, const struct dcp_metadata *m, uint32_t vector)
{
    for (int i = 0; vector != DCP_NONE && i < dcp_vector_rank(m, vector); i++)
        buffer_printf(out, "%" PRId64 ",", dcp_vector_at(m, vector)[i]);
    buffer_append_byte(out, vector == DCP_NONE ? '-' : ';');
}

static void print_text(struct buffer *out, const struct dcp_metadata *m, uint32_t text)
{
    if (text == DCP_NONE)
        buffer_append_byte(out, '-');
    else
        buffer_append_json_string(out, dcp_text(m, text));
}

static void print_texts(struct buffer *out, const struct dcp_metadata *m, const uint32_t *texts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        print_text(out, m, texts[i]);
    buffer_append_byte(out, '\n');
}

static void print_entries(struct buffer *out, const struct dcp_metadata *m)
{
    for (uint32_t i = 0; i < m->entry_count; i++) {
        const struct dcp_entry *entry = &m->entries[i];
        buffer_append_json_string(out, name_map_at(&m->names, entry->name));
        print_text(out, m, entry->dtype);
        print_vector(out, m, entry->size);
        for (uint32_t j = 0; j < entry->chunk_count; j++) {
            print_vector(out, m, m->chunks[entry->first_chunk + j].offsets);
            print_vector(out, m, m->chunks[entry->first_chunk + j].sizes);
        }
        buffer_printf(out, "%" PRIu64 " %u\n", entry->offset, m->entry_of_name[entry->name]);
    }
    for (uint32_t i = 0; i < m->path_count; i++) {
        buffer_append_json_string(out, name_map_at(&m->names, m->paths[i].name));
        for (uint32_t j = 0; j < m->paths[i].count; j++) {
            const struct dcp_path_part *part = &m->path_parts[m->paths[i].first + j];
            print_text(out, m, part->text);
            buffer_printf(out, "%" PRId64, part->index);
        }
        buffer_append_byte(out, '\n');
    }
}

static void print_storage(struct buffer *out, const struct dcp_metadata *m)
{
    for (uint32_t i = 0; i < m->storage_count; i++) {
        const struct dcp_index *index = &m->indexes[i];
        const struct dcp_range *range = &m->ranges[i];
        buffer_append_json_string(out, name_map_at(&m->names, index->name));
        print_vector(out, m, index->offset);
        print_text(out, m, range->path);
        buffer_printf(out, "%" PRId64 " %" PRIu64 " %" PRIu64, index->index, range->offset, range->length);
        if (range->transforms != DCP_NONE) {
            const struct dcp_transforms *list = &m->transform_lists[range->transforms];
            print_texts(out, m, m->transform_texts + list->first, list->count);
        }
        buffer_append_byte(out, '\n');
    }
    print_texts(out, m, (uint32_t[]){ m->checkpoint_id, m->save_id, m->load_id, m->version, m->root_class }, 5);
    print_texts(out, m, m->class_modules, m->class_module_count);
    print_texts(out, m, m->extra_attributes, m->extra_attribute_count);
    print_texts(out, m, m->unknown_globals, m->unknown_global_count);
    buffer_printf(out, "%d%d%d%d", m->has_planner_data, m->has_storage_data, m->has_storage_meta, m->protocol);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct limits limits = limits_default;
    struct dcp_metadata fast, general;
    struct buffer a = { 0 }, b = { 0 };
    reshard_error err;
    limits.memo_gap = 10000;
    limits.chunks = 100000;
    reshard_status fast_status = dcp_metadata_decode(data, size, &limits, DCP_DECODE_BEST, &fast, &err);
    reshard_status general_status = dcp_metadata_decode(data, size, &limits, DCP_DECODE_GENERAL, &general, &err);
    if (fast_status != general_status && fast_status != RESHARD_ERR_LIMIT && general_status != RESHARD_ERR_LIMIT)
        abort();
    if (!fast_status && !general_status && fast.is_fast) {
        print_entries(&a, &fast);
        print_storage(&a, &fast);
        print_entries(&b, &general);
        print_storage(&b, &general);
        if (!str_equal(buffer_str(&a), buffer_str(&b)))
            abort();
    }
    buffer_release(&a);
    buffer_release(&b);
    dcp_metadata_release(&fast);
    dcp_metadata_release(&general);
    return 0;
}
