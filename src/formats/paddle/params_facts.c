/* SPDX-License-Identifier: Apache-2.0 */
/* What inspect and verify say about files of paddle.save beyond their tensors. */
#include "formats/paddle/params.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define DECODE_STEP ((size_t)64 << 10)

static const char *params_facts_name(const struct source *source, const struct params_file *file)
{
    return source->catalog->objects[file->object].name.data;
}

/* Keys that have one framework name are one parameter of the model, saved under several names. */
static reshard_status params_facts_find_aliases(struct source *source, const struct params_file *file, reshard_error *err)
{
    const struct paddle_archive *archive = &file->archive;
    struct name_map names = { 0 };
    uint32_t *first = array_zeroed(archive->entry_count, sizeof(*first));
    reshard_status status = first ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < archive->entry_count && !status; i++) {
        bool was_new;
        const struct paddle_entry *entry = &archive->entries[i];
        if (!entry->tensor || !entry->name.size)
            continue;
        uint32_t number = name_map_intern(&names, entry->name, &was_new);
        if (number == NAME_NONE)
            status = error_set_memory(err);
        else if (was_new)
            first[number] = i;
        else
            catalog_warn(source->catalog, false, "'%.*s' and '%.*s' are one parameter of the model (%.*s)",
                         STR_ARG(archive->entries[first[number]].key), STR_ARG(entry->key), STR_ARG(entry->name));
    }
    free(first);
    name_map_release(&names);
    return status;
}

reshard_status params_add_facts(struct source *source, reshard_error *err)
{
    struct params_source *state = params_source_of(source);
    struct catalog *catalog = source->catalog;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->file_count && !status; i++) {
        const struct params_file *file = &state->files[i];
        const struct paddle_archive *archive = &file->archive;
        uint64_t bytes = catalog->objects[file->object].bytes;
        if (archive->end < bytes)
            catalog_warn(catalog, false, "'%s': %" PRIu64 " bytes from byte %" PRIu64 " on, behind the end, are ignored",
                         params_facts_name(source, file), bytes - archive->end, archive->end);
        for (uint32_t j = 0; j < archive->unknown_global_count; j++)
            catalog_warn(catalog, false, "'%s': the pickle names %.*s; what that makes is an inert value", params_facts_name(source, file),
                         STR_ARG(archive->unknown_globals[j]));
        status = params_facts_find_aliases(source, file, err);
    }
    if (!status && state->file_count && state->files[0].archive.container == PADDLE_PICKLE)
        status = catalog_add_fact(catalog, "pickle protocol", err, "%d", state->files[0].archive.protocol);
    if (!status && state->bfloat16_count)
        status = catalog_add_fact(catalog, "bfloat16", err, "%" PRIu64 " arrays of uint16, which Paddle uses for nothing else",
                                  state->bfloat16_count);
    return status;
}

/* ---- verify ---- */

/* Text that decodes to other bytes than the shape needs: only reading it tells. */
static reshard_status params_facts_check_text(const struct reader *reader, const struct limits *limits, const struct paddle_part *part,
                                              reshard_error *err)
{
    struct decoder *decoder = NULL;
    uint8_t *room = malloc(DECODE_STEP);
    size_t got = DECODE_STEP;
    reshard_status status = room ? decoder_new(CODEC_LATIN1, reader, part->offset, part->stored_bytes, limits, &decoder, err)
                                 : error_set_memory(err);
    while (!status && got == DECODE_STEP)
        status = decoder_read(decoder, room, DECODE_STEP, &got, err);
    if (!status && decoder_position(decoder) != part->bytes)
        status = error_set_at(err, RESHARD_ERR_FORMAT, part->offset,
                              "byte %" PRIu64 ": array: its text has %" PRIu64 " bytes of elements, its shape needs %" PRIu64, part->offset,
                              decoder_position(decoder), part->bytes);
    decoder_free(decoder);
    free(room);
    return status;
}

static reshard_status params_facts_verify_file(struct source *source, const struct params_file *file, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, params_facts_name(source, file), &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    for (uint32_t i = 0; i < file->archive.tensor_count && !status; i++)
        for (uint32_t j = 0; j < file->archive.tensors[i].part_count && !status; j++)
            if (file->archive.tensors[i].parts[j].is_latin1)
                status = params_facts_check_text(&reader, &source->limits, &file->archive.tensors[i].parts[j], err);
    store_object_close(object);
    if (status) {
        error_prefix(err, "'%s'", params_facts_name(source, file));
        error_object(err, "%s", params_facts_name(source, file));
    }
    return status;
}

reshard_status params_verify(struct source *source, bool is_deep, reshard_error *err)
{
    const struct params_source *state = params_source_of(source);
    reshard_status status = RESHARD_OK;
    (void)is_deep;
    for (uint32_t i = 0; i < state->file_count && !status; i++)
        status = params_facts_verify_file(source, &state->files[i], err);
    return status;
}
