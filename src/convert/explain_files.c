/* SPDX-License-Identifier: Apache-2.0 */
/* Differences that are whole files: all that a file holds differs, while others agree. */
#include "convert/explain.h"

#include "base/array.h"

#include <stdlib.h>

#define TENSORS_LEAST 2 /* of one alone a file says nothing that its name does not */

struct file_tally {
    uint32_t differing, agreeing; /* tensors of which some lies there; those of which little differs, or for another cause, agree */
};

struct file_tallies {
    struct file_tally *files; /* by object */
    uint8_t *differs;         /* by tensor */
};

static uint32_t suspect_tensor(const struct suspect *suspect, bool is_a)
{
    return is_a ? suspect->pair.a : suspect->pair.b;
}

static void tally_files(const struct catalog *catalog, struct file_tallies *tallies)
{
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        const struct catalog_tensor *tensor = &catalog->tensors[t];
        uint32_t last = CATALOG_NONE;
        for (uint32_t i = 0; i < tensor->chunk_count && !(tensor->flags & TENSOR_HIDDEN); i++) {
            const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
            if (chunk->object == last || chunk->flags & CHUNK_REPLICA)
                continue;
            last = chunk->object;
            *(tallies->differs[t] ? &tallies->files[last].differing : &tallies->files[last].agreeing) += 1;
        }
    }
}

/* The one file in which the tensor lies; CATALOG_NONE if there are several. */
static uint32_t file_of(const struct catalog *catalog, uint32_t tensor)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    uint32_t file = CATALOG_NONE;
    for (uint32_t i = 0; i < entry->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[entry->first_chunk + i];
        if (chunk->flags & CHUNK_REPLICA)
            continue;
        if (file != CATALOG_NONE && file != chunk->object)
            return CATALOG_NONE;
        file = chunk->object;
    }
    return file;
}

static reshard_status tell_files(struct explanation *explanation, bool is_a, const struct file_tallies *tallies, reshard_error *err)
{
    const struct catalog *catalog = is_a ? explanation->catalog_a : explanation->b->catalog;
    bool some_agree = false;
    for (uint32_t i = 0; i < catalog->object_count; i++)
        some_agree = some_agree || tallies->files[i].agreeing;
    for (uint32_t i = 0; i < explanation->count; i++)
        some_agree = some_agree || explanation->suspects[i].is_partial;
    for (uint32_t i = 0; i < explanation->count && some_agree; i++) {
        struct suspect *suspect = &explanation->suspects[i];
        uint32_t file = suspect->text ? CATALOG_NONE : file_of(catalog, suspect_tensor(suspect, is_a));
        struct buffer text = { 0 };
        if (file == CATALOG_NONE || tallies->files[file].agreeing || tallies->files[file].differing < TENSORS_LEAST)
            continue;
        buffer_printf(&text, "all %u tensors of '%.*s' in the %s differ, and others agree: one of the two may be of another step",
                      tallies->files[file].differing, STR_ARG(catalog->objects[file].name), is_a ? "first" : "second");
        reshard_status status = suspect_tell(suspect, &text, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

reshard_status explain_files(struct explanation *explanation, bool is_a, reshard_error *err)
{
    const struct catalog *catalog = is_a ? explanation->catalog_a : explanation->b->catalog;
    struct file_tallies tallies = { .files = array_zeroed(catalog->object_count, sizeof(*tallies.files)),
                                    .differs = array_zeroed(catalog->tensor_count, 1) };
    reshard_status status = tallies.files && tallies.differs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < explanation->count && !status; i++) {
        const struct suspect *suspect = &explanation->suspects[i];
        tallies.differs[suspect_tensor(suspect, is_a)] = suspect->is_other || suspect->is_partial;
    }
    if (!status) {
        tally_files(catalog, &tallies);
        status = tell_files(explanation, is_a, &tallies, err);
    }
    free(tallies.files);
    free(tallies.differs);
    return status;
}
