/* SPDX-License-Identifier: Apache-2.0 */
/* Modes of the trainer in which weights are stored once: as master weights under the names of the weights, or as weights alone. */
#include "formats/paddle/unified_target.h"

#include <string.h>

const struct format_option uc_options[] = {
    { "mode", "MODE", "whole", "whole; skip_save_model_weight: master weights for the weights too; remove_master_weight: weights alone" },
    { NULL, NULL, NULL, NULL },
};

reshard_status uc_mode_read(const struct layout_request *request, enum uc_mode *out, reshard_error *err)
{
    static const char *const modes[] = { [UC_MODE_WHOLE] = "whole",
                                         [UC_MODE_SKIP] = "skip_save_model_weight",
                                         [UC_MODE_REMOVE] = "remove_master_weight" };
    const char *value = layout_option(request, "mode");
    *out = UC_MODE_WHOLE;
    if (!value)
        return RESHARD_OK;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(value, modes[i]) == 0) {
            *out = (enum uc_mode)i;
            return RESHARD_OK;
        }
    }
    return error_set(err, RESHARD_ERR_USAGE, "format option mode=%s: one of %s, %s, %s is wanted", value, modes[0], modes[1], modes[2]);
}

static reshard_status unified_mode_refuse(struct str key, const char *mode, const char *what, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has no %s, without which mode=%s would lose it", STR_ARG(key), what, mode);
    error_object(err, "%.*s", STR_ARG(key));
    error_hint(err, "give reshard_convert_options.format_options mode=whole");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status unified_mode_names(const struct st_pieces *pieces, struct name_map *names, reshard_error *err)
{
    for (uint32_t i = 0; i < pieces->count; i++)
        if (name_map_intern(names, pieces->items[i].name, NULL) == NAME_NONE)
            return error_set_memory(err);
    return RESHARD_OK;
}

/* Nobody shall look for it in what is written. */
static reshard_status unified_mode_drop(struct uc_leaving *leaving, uint32_t tensor, reshard_error *err)
{
    leaving->target->catalog->tensors[tensor].flags |= TENSOR_NO_DATA;
    return target_note_dropped(leaving->target, NOTE_NO_PLACE, leaving->wanted->tensors[tensor].key, err,
                               "%s: the trainer makes it of the %s", leaving->mode, leaving->what);
}

/* Takes the pieces of a family out whose names another has; a float32 one that it lacks stays, any other is refused. */
static reshard_status unified_mode_leave_out(struct uc_leaving *leaving, struct st_pieces *pieces, reshard_error *err)
{
    uint32_t kept = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < pieces->count && !status; i++) {
        struct st_piece piece = pieces->items[i];
        bool has_other = name_map_find(leaving->others, piece.name) != NAME_NONE;
        if (!has_other && leaving->may_stay && piece.dtype == DTYPE_F32)
            pieces->items[kept++] = piece;
        else if (!has_other)
            status = unified_mode_refuse(piece.name, leaving->mode, leaving->what, err);
        else
            status = unified_mode_drop(leaving, piece.tensor, err);
    }
    pieces->count = kept;
    return status;
}

static reshard_status unified_mode_skip(const struct layout_request *request, struct target *target, struct st_pieces *families,
                                        struct name_map *names, reshard_error *err)
{
    struct uc_leaving leaving = { target, request->wanted, names, "skip_save_model_weight", "master weight", true };
    struct st_pieces *masters = &families[UC_MASTERS];
    reshard_status status = unified_mode_names(masters, names, err);
    if (!status)
        status = unified_mode_leave_out(&leaving, &families[UC_MODEL], err);
    for (uint32_t i = 0; i < masters->count && !status; i++)
        status = st_pieces_add(&families[UC_MODEL], &masters->items[i], err);
    masters->count = 0;
    return status;
}

static reshard_status unified_mode_remove(const struct layout_request *request, struct target *target, struct st_pieces *families,
                                          struct name_map *names, reshard_error *err)
{
    struct uc_leaving leaving = { target, request->wanted, names, "remove_master_weight", "weight", false };
    reshard_status status = unified_mode_names(&families[UC_MODEL], names, err);
    return status ? status : unified_mode_leave_out(&leaving, &families[UC_MASTERS], err);
}

reshard_status uc_mode_apply(enum uc_mode mode, const struct layout_request *request, struct target *target, struct st_pieces *families,
                             reshard_error *err)
{
    struct name_map names = { 0 };
    reshard_status status = RESHARD_OK;
    if (mode == UC_MODE_SKIP)
        status = unified_mode_skip(request, target, families, &names, err);
    else if (mode == UC_MODE_REMOVE)
        status = unified_mode_remove(request, target, families, &names, err);
    name_map_release(&names);
    return status;
}
