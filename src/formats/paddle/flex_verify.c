/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint's data files hold beyond what the metadata assigns to them: copies that Paddle 2.6 leaves in every rank's file, values
 * that are no tensors, files that nothing refers to. The format has no checksums. */
#include "formats/paddle/flex.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

struct flex_verifying {
    struct source *source;
    uint64_t *places; /* object << 32 | tensor of every chunk, ascending */
    size_t place_count;
    uint32_t object; /* the file that is looked at; CATALOG_NONE: none of the checkpoint's */
    bool is_ema;      /* the folder that is looked at */
    struct buffer key;
    uint32_t arrays, unassigned, others;
    struct str first_unassigned, first_other; /* in the open file */
};

static int verify_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static reshard_status verify_list_places(struct flex_verifying *verifying, reshard_error *err)
{
    const struct catalog *catalog = verifying->source->catalog;
    verifying->places = array_new(catalog->chunk_count, sizeof(*verifying->places));
    if (!verifying->places)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        verifying->places[verifying->place_count++] = (uint64_t)catalog->chunks[i].object << 32 | catalog->chunks[i].tensor;
    qsort(verifying->places, verifying->place_count, sizeof(*verifying->places), verify_compare);
    return RESHARD_OK;
}

static reshard_status verify_is_assigned(struct flex_verifying *verifying, struct str key, bool *out, reshard_error *err)
{
    buffer_clear(&verifying->key);
    bool done = (!verifying->is_ema || buffer_append_text(&verifying->key, FLEX_EMA_NAME ".")) && buffer_append_str(&verifying->key, key);
    uint32_t tensor = catalog_find(verifying->source->catalog, buffer_str(&verifying->key));
    uint64_t place = (uint64_t)verifying->object << 32 | tensor;
    *out = verifying->object != CATALOG_NONE && tensor != CATALOG_NONE &&
           bsearch(&place, verifying->places, verifying->place_count, sizeof(place), verify_compare);
    return done ? RESHARD_OK : error_set_memory(err);
}

static reshard_status verify_visit(void *context, struct str key, const struct flex_array *array, reshard_error *err)
{
    struct flex_verifying *verifying = context;
    bool is_assigned;
    if (!array) {
        bool is_listed = catalog_find_item(verifying->source->catalog, key) != CATALOG_NONE;
        if (!is_listed && !verifying->others++)
            verifying->first_other = key;
        return RESHARD_OK;
    }
    verifying->arrays++;
    reshard_status status = verify_is_assigned(verifying, key, &is_assigned, err);
    if (!status && !is_assigned && !verifying->unassigned++)
        verifying->first_unassigned = key;
    return status;
}

static void verify_report(const struct flex_verifying *verifying, const struct flex_file *file)
{
    struct catalog *catalog = verifying->source->catalog;
    if (verifying->object == CATALOG_NONE && verifying->arrays)
        catalog_warn(catalog, false, "'%.*s': the metadata does not refer to it, though it holds %" PRIu32 " tensors", STR_ARG(file->name),
                     verifying->arrays);
    else if (verifying->unassigned)
        catalog_warn(catalog, false,
                     "'%.*s': %" PRIu32 " of its tensors are not assigned to it by the metadata (copies, or left over), the first is "
                     "'%.*s'",
                     STR_ARG(file->name), verifying->unassigned, STR_ARG(verifying->first_unassigned));
    if (verifying->others)
        catalog_warn(catalog, false, "'%.*s': %" PRIu32 " of its values are no tensors and not listed, the first is '%.*s'",
                     STR_ARG(file->name), verifying->others, STR_ARG(verifying->first_other));
}

/* A file that nothing refers to may be anything: what is wrong with it is no damage to this checkpoint. */
static reshard_status verify_file(struct flex_verifying *verifying, const struct flex_file *file, reshard_error *err)
{
    struct source *source = verifying->source;
    struct flex_data *data = NULL;
    reshard_error found = { 0 };
    verifying->object = name_map_find(&source->catalog->object_names, file->name);
    verifying->arrays = verifying->unassigned = verifying->others = 0;
    reshard_status status = flex_data_open(source, file->name, &data, &found);
    if (!status) {
        status = flex_data_walk(data, verify_visit, verifying, err);
        verify_report(verifying, file);
    } else if (status_blames_bytes(status)) {
        catalog_warn(source->catalog, verifying->object != CATALOG_NONE, "%s", found.message);
        status = RESHARD_OK;
    } else if (err) {
        *err = found;
    }
    flex_data_close(data);
    return status;
}

reshard_status flex_verify(struct source *source, bool is_deep, reshard_error *err)
{
    struct flex_verifying verifying = { .source = source };
    const struct flex_source *state = flex_state(source);
    struct arena arena = { 0 };
    reshard_status status = verify_list_places(&verifying, err);
    (void)is_deep;
    for (uint32_t i = 0; i < state->part_count && !status; i++) {
        const struct flex_part *part = &state->parts[i];
        struct flex_listing listing;
        verifying.is_ema = part->role == FLEX_EMA;
        status = flex_list(source->store, part->directory, &arena, &listing, err);
        for (size_t j = 0; !status && !part->is_auto && j < listing.count; j++) {
            const struct flex_file *file = &listing.files[j];
            if ((file->kind == FLEX_DISTCP || file->kind == FLEX_SAFETENSORS) && file->uid == part->uid)
                status = verify_file(&verifying, file, err);
        }
    }
    arena_release(&arena);
    free(verifying.places);
    buffer_release(&verifying.key);
    return status;
}
