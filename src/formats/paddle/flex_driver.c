/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/paddle.h"

#include "formats/paddle/flex.h"
#include "formats/paddle/flex_target.h"

static const char *const flex_folder_entries[] = { FLEX_FOLDER_ENTRIES, NULL };
static const char *const flex_layout_files[] = { "*.metadata", NULL };

const struct format_driver format_paddle_flex = {
    .name = "paddle-flex",
    .summary = "Paddle's Flex Checkpoint: <rank>_<uid>.distcp files and <uid>.metadata",
    .name_space = "paddle",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_CUTS_BY_RANK |
                 FORMAT_PADDLE_STATE,
    .options = flex_options,
    .words = flex_words,
    .folder_entries = flex_folder_entries,
    .layout_files = flex_layout_files,
    .probe = flex_probe,
    .read_catalog = flex_read_catalog,
    .resolve = flex_resolve,
    .verify = flex_verify,
    .lay_out = flex_lay_out,
    .publish_object = flex_publish_object,
    .commit = flex_commit,
    .close_source = flex_close_source,
    .close_target = flex_close_target,
};
