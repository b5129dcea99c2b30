/* SPDX-License-Identifier: Apache-2.0 */
/* Decoded metadata as text: equal texts mean equal content, whatever the numbers of names, texts and vectors. */
#ifndef TESTS_FORMATS_DCP_METADATA_TEXT_H
#define TESTS_FORMATS_DCP_METADATA_TEXT_H

#include "base/buffer.h"
#include "formats/dcp/metadata_decode.h"

#include <inttypes.h>

static inline void text_of_vector(struct buffer *out, const struct dcp_metadata *m, uint32_t vector)
{
    for (int i = 0; vector != DCP_NONE && i < dcp_vector_rank(m, vector); i++)
        buffer_printf(out, "%" PRId64 ",", dcp_vector_at(m, vector)[i]);
    buffer_append_byte(out, vector == DCP_NONE ? '-' : ';');
}

static inline void text_of_text(struct buffer *out, const struct dcp_metadata *m, uint32_t text)
{
    if (text == DCP_NONE)
        buffer_append_byte(out, '-');
    else
        buffer_append_json_string(out, dcp_text(m, text));
}

static inline void text_of_texts(struct buffer *out, const struct dcp_metadata *m, const uint32_t *texts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        text_of_text(out, m, texts[i]);
    buffer_append_byte(out, '\n');
}

static inline void text_of_entries(struct buffer *out, const struct dcp_metadata *m)
{
    for (uint32_t i = 0; i < m->entry_count; i++) {
        const struct dcp_entry *entry = &m->entries[i];
        buffer_append_json_string(out, name_map_at(&m->names, entry->name));
        text_of_text(out, m, entry->dtype);
        text_of_vector(out, m, entry->size);
        for (uint32_t j = 0; j < entry->chunk_count; j++) {
            text_of_vector(out, m, m->chunks[entry->first_chunk + j].offsets);
            text_of_vector(out, m, m->chunks[entry->first_chunk + j].sizes);
        }
        buffer_printf(out, "%" PRIu64 " %u\n", entry->offset, m->entry_of_name[entry->name]);
    }
    for (uint32_t i = 0; i < m->path_count; i++) {
        buffer_append_json_string(out, name_map_at(&m->names, m->paths[i].name));
        for (uint32_t j = 0; j < m->paths[i].count; j++) {
            const struct dcp_path_part *part = &m->path_parts[m->paths[i].first + j];
            text_of_text(out, m, part->text);
            buffer_printf(out, "%" PRId64, part->index);
        }
        buffer_append_byte(out, '\n');
    }
}

static inline void text_of_storage(struct buffer *out, const struct dcp_metadata *m)
{
    for (uint32_t i = 0; i < m->storage_count; i++) {
        const struct dcp_index *index = &m->indexes[i];
        const struct dcp_range *range = &m->ranges[i];
        buffer_append_json_string(out, name_map_at(&m->names, index->name));
        text_of_vector(out, m, index->offset);
        text_of_text(out, m, range->path);
        buffer_printf(out, "%" PRId64 " %" PRIu64 " %" PRIu64, index->index, range->offset, range->length);
        if (range->transforms != DCP_NONE) {
            const struct dcp_transforms *list = &m->transform_lists[range->transforms];
            text_of_texts(out, m, list->count ? m->transform_texts + list->first : NULL, list->count);
        }
        buffer_append_byte(out, '\n');
    }
    text_of_texts(out, m, (uint32_t[]){ m->checkpoint_id, m->save_id, m->load_id, m->version, m->root_class }, 5);
    text_of_texts(out, m, m->class_modules, m->class_module_count);
    text_of_texts(out, m, m->extra_attributes, m->extra_attribute_count);
    text_of_texts(out, m, m->unknown_globals, m->unknown_global_count);
    buffer_printf(out, "%d%d%d%d", m->has_planner_data, m->has_storage_data, m->has_storage_meta, m->protocol);
}

static inline void dcp_metadata_text(struct buffer *out, const struct dcp_metadata *m)
{
    text_of_entries(out, m);
    text_of_storage(out, m);
}

#endif
