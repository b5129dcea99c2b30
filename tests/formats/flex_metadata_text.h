/* SPDX-License-Identifier: Apache-2.0 */
/* Decoded Flex Checkpoint metadata as text: equal texts mean equal content, whatever the numbers of names, texts and vectors. */
#ifndef TESTS_FORMATS_FLEX_METADATA_TEXT_H
#define TESTS_FORMATS_FLEX_METADATA_TEXT_H

#include "base/buffer.h"
#include "formats/paddle/flex_metadata.h"

#include <inttypes.h>

static inline void flex_text_of_vector(struct buffer *out, const struct flex_metadata *m, uint32_t vector)
{
    buffer_append_text(out, vector == FLEX_NONE ? " -" : " (");
    for (int i = 0; vector != FLEX_NONE && i < flex_vector_rank(m, vector); i++)
        buffer_printf(out, "%" PRId64 ",", flex_vector_at(m, vector)[i]);
    if (vector != FLEX_NONE)
        buffer_append_byte(out, ')');
}

static inline void flex_text_of_text(struct buffer *out, const struct flex_metadata *m, uint32_t text)
{
    buffer_append_byte(out, ' ');
    if (text == FLEX_NONE)
        buffer_append_byte(out, '-');
    else
        buffer_append_json_string(out, flex_text(m, text));
}

static inline void flex_text_of_keys(struct buffer *out, const struct flex_metadata *m)
{
    for (uint32_t i = 0; i < m->key_count; i++) {
        const struct flex_key *key = &m->keys[i];
        buffer_append_json_string(out, flex_name(m, key->name));
        buffer_append_byte(out, '\n');
        for (uint32_t j = 0; j < key->shard_count; j++) {
            const struct flex_shard *shard = &m->shards[key->first_shard + j];
            flex_text_of_vector(out, m, shard->offset);
            flex_text_of_vector(out, m, shard->shape);
            flex_text_of_text(out, m, shard->dtype);
            flex_text_of_vector(out, m, shard->global_shape);
            flex_text_of_vector(out, m, shard->range);
            buffer_printf(out, " %d\n", shard->is_flattened);
        }
    }
}

static inline void flex_text_of(struct buffer *out, const struct flex_metadata *m)
{
    flex_text_of_keys(out, m);
    for (uint32_t i = 0; i < m->index_count; i++) {
        const struct flex_index *index = &m->indexes[i];
        buffer_append_json_string(out, flex_name(m, index->name));
        flex_text_of_vector(out, m, index->offset);
        flex_text_of_vector(out, m, index->range);
        flex_text_of_vector(out, m, index->shape);
        flex_text_of_text(out, m, index->file);
        buffer_printf(out, " %d %d\n", index->replica, index->is_flattened);
    }
    for (uint32_t i = 0; i < m->path_count; i++) {
        buffer_append_json_string(out, flex_name(m, m->paths[i].name));
        for (uint32_t j = 0; j < m->paths[i].count; j++)
            flex_text_of_text(out, m, m->path_texts[m->paths[i].first + j]);
        buffer_append_byte(out, '\n');
    }
    for (int i = 0; i < FLEX_LABELS; i++)
        flex_text_of_text(out, m, m->labels[i]);
    for (uint32_t i = 0; i < m->extra_attribute_count; i++)
        flex_text_of_text(out, m, m->extra_attributes[i]);
    buffer_printf(out, "\n%d %d %d mapping %d protocol %d\n", m->generation.shard, m->generation.index, m->generation.is_old_module,
                  m->has_flat_mapping, m->protocol);
}

#endif
