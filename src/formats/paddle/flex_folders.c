/* SPDX-License-Identifier: Apache-2.0 */
/* The folders that a Flex Checkpoint is written to: those of the reference, a trainer's three, or one; and the names of their files. */
#include "formats/paddle/flex.h"
#include "formats/paddle/flex_target.h"

#include <inttypes.h>
#include <stdio.h>

/* As PaddleFormers' trainer deals what its optimizer hands in. */
static enum flex_role flex_folders_role(struct str key)
{
    return str_starts_with(key, FLEX_EMA_NAME ".") ? FLEX_EMA
           : str_ends_with(key, MASTER_SUFFIX)     ? FLEX_MASTERS
           : str_ends_with(key, "_0")              ? FLEX_OPTIMIZER
                                                   : FLEX_MODEL;
}

uint32_t flex_folder_of(const struct target *target, struct str key)
{
    const struct flex_target *state = flex_target_state(target);
    enum flex_role role = flex_folders_role(key);
    for (uint32_t i = 0; i < state->folder_count; i++)
        if (state->folders[i].role == role || state->folders[i].role == FLEX_ALL)
            return i;
    return 0;
}

reshard_status flex_target_add_rank_file(struct target *target, uint32_t folder, uint32_t rank, uint32_t *out, reshard_error *err)
{
    struct flex_target *state = flex_target_state(target);
    const struct flex_out_folder *in = &state->folders[folder];
    bool is_safetensors = in->is_safetensors;
    char name[80];
    const char *suffix = in->is_named_safetensors ? "safetensors" : "distcp";
    int size = snprintf(name, sizeof(name), "%" PRIu32 "_%" PRIu64 ".%s", rank, in->uid, suffix);
    reshard_status status = flex_target_add_file(target, (struct str){ name, (size_t)size }, folder, rank, out, err);
    if (!status)
        state->files[*out].is_safetensors = is_safetensors;
    return status;
}

/* ---- the reference's ---- */

bool flex_part_holds(const struct flex_part *part, struct str name)
{
    const struct str directory = part->directory;
    size_t slash;
    if (name.size <= directory.size || memcmp(name.data, directory.data, directory.size) != 0)
        return false;
    return !str_find_char((struct str){ name.data + directory.size, name.size - directory.size }, '/', &slash);
}

/* Whether the data files of a part are safetensors, whatever their names. */
static reshard_status flex_folders_safetensors(const struct source *like, const struct flex_part *part, bool *out, reshard_error *err)
{
    const struct catalog *catalog = like->catalog;
    reshard_status status = RESHARD_OK;
    *out = part->is_safetensors;
    for (uint32_t i = 0; i < catalog->object_count && !*out && !status; i++) {
        struct str name = catalog->objects[i].name;
        int protocol;
        if (!flex_part_holds(part, name) || str_ends_with(name, ".metadata"))
            continue;
        status = flex_data_protocol(like, name, &protocol, err);
        *out = !status && protocol == 0;
    }
    return status;
}

reshard_status flex_folders_like(struct target *target, const struct source *like, reshard_error *err)
{
    const struct flex_source *from = flex_state(like);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < from->part_count && !status; i++) {
        const struct flex_part *part = &from->parts[i];
        const struct str metadata = str_base_name(part->metadata_name);
        uint32_t number;
        bool is_safetensors;
        status = flex_folders_safetensors(like, part, &is_safetensors, err);
        if (!status)
            status = flex_target_add_folder(target, part->role, metadata, &number, err);
        if (status)
            return status;
        struct flex_out_folder *folder = &flex_target_state(target)->folders[number];
        folder->uid = part->uid;
        folder->is_safetensors = is_safetensors;
        folder->is_named_safetensors = part->is_safetensors;
    }
    return status;
}

/* ---- what is asked for ---- */

static bool flex_folders_of_trainer(const struct source *source)
{
    return source && source->driver->lay_out == flex_lay_out && flex_state(source)->parts[0].role != FLEX_ALL;
}

/* A reference says which folders there are; its files can have another number of ranks only if ranks are what they are of. */
static reshard_status flex_folders_check_reference(const struct layout_request *request, enum flex_filing filing, reshard_error *err)
{
    const struct source *like = flex_reference(request);
    bool is_trainer = flex_folders_of_trainer(like);
    if (filing != FLEX_FILING_KEPT && is_trainer != (filing == FLEX_FILING_TRAINER))
        return error_set(err, RESHARD_ERR_USAGE, "format option folders=%s: the reference has %s", is_trainer ? "one" : "trainer",
                         is_trainer ? "a trainer's folders" : "one folder");
    if (!layout_has_words(request) || !flex_state(like)->parts[0].is_auto)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_USAGE,
              "reshard_convert_options.layout beside reshard_convert_options.like: the reference's files are those of a folder of Hugging "
              "Face, which are of no ranks");
    error_hint(err, "give one of the two");
    return RESHARD_ERR_USAGE;
}

static bool has_averages(const struct catalog *wanted)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++)
        if (flex_folders_role(wanted->tensors[i].key) == FLEX_EMA)
            return true;
    return false;
}

reshard_status flex_folders_make(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const enum flex_filing filing = flex_target_state(target)->filing;
    const struct source *like = flex_reference(request);
    uint32_t folder;
    reshard_status status = like ? flex_folders_check_reference(request, filing, err) : RESHARD_OK;
    if (status || like)
        return status ? status : flex_folders_like(target, like, err);
    bool is_trainer = filing == FLEX_FILING_KEPT ? flex_folders_of_trainer(request->source) : filing == FLEX_FILING_TRAINER;
    if (!is_trainer)
        return flex_target_add_folder(target, FLEX_ALL, STR("0.metadata"), &folder, err);
    /* The trainer's loader wants all three, though nothing be in them; that of averages is there where there are some. */
    for (int role = FLEX_MODEL; role < FLEX_EMA + has_averages(request->wanted) && !status; role++)
        status = flex_target_add_folder(target, (enum flex_role)role, STR("0.metadata"), &folder, err);
    return status;
}
