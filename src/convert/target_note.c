/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/target_check.h"

#include "convert/sidecar.h"

/* What a run would refuse before it writes, in the order in which it looks. */
static reshard_status target_check_all(const struct checkpoint *source, const struct conversion *conversion, const char *target_path,
                                       enum note_kind *kind, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    reshard_status status = RESHARD_OK;
    *kind = NOTE_TARGET;
    if (!options->store)
        status = target_check_source(source, target_path, options->overwrite, err);
    if (!status)
        status = target_check_replaced(conversion, target_path, err);
    if (!status)
        status = target_check_parts(conversion, target_path, err);
    if (!status && !options->store)
        status = sidecar_check_beside(target_path, conversion->target.driver->abilities & FORMAT_IS_DIRECTORY, options->overwrite, err);
    if (status)
        return status;
    *kind = NOTE_SPACE;
    return target_check_space(conversion, target_path, err);
}

reshard_status target_note(const struct checkpoint *source, struct conversion *conversion, const char *target_path,
                                  reshard_error *err)
{
    reshard_error found = { 0 };
    enum note_kind kind;
    reshard_status status = target_check_all(source, conversion, target_path, &kind, &found);
    if (!status)
        return RESHARD_OK;
    if (failure_ends_run(status, &found, err))
        return status;
    return note_add(&conversion->warnings, &conversion->notes, kind, STR(""), err, "%s", found.message);
}
