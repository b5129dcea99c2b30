/* SPDX-License-Identifier: Apache-2.0 */
/* Files beside a checkpoint's own, which are carried along as items: a tokenizer, a configuration. */
#ifndef FORMATS_SHARED_SIDE_FILES_H
#define FORMATS_SHARED_SIDE_FILES_H

#include "formats/driver.h"

/* Whether a file is to be carried along; base: its name in its directory. */
typedef bool (*side_file_test)(const void *context, const struct store_entry *entry, struct str base);

/*
 * Adds the files of a directory of the source's store ("": the store's own) that the test takes, NULL: all; no directories, no links that
 * lead out. Their keys are their names in the directory, behind `prefix`: "" or the directory's own last part with its '/'.
 */
reshard_status side_files_add(struct source *source, const char *directory, const char *prefix, side_file_test is_wanted,
                              const void *context, reshard_error *err);

/* Whether it is of those that Transformers' Trainer and Accelerate write beside the weights of a run that goes on. */
bool side_file_is_of_training(struct str base);

#endif
