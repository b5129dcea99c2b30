/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears whole or not at all: written beside its place, and moved there. What is there stays, unless --overwrite is given. */
#ifndef CLI_WHOLE_FILE_H
#define CLI_WHOLE_FILE_H

#include "options.h"

struct whole_file {
    const struct options *options;
    const char *path;
    char *beside;
    FILE *out;
};

/* Before anything is made for it: whether it could begin. Returns as whole_file_begin. */
int whole_file_check(const struct options *options, const char *path);

/* Returns 0, or an exit status: then what is wrong was printed, and there is nothing to end. */
int whole_file_begin(struct whole_file *file, const struct options *options, const char *path);

/* Makes it visible, or takes it away again and says why. Returns 0 or an exit status. */
int whole_file_end(struct whole_file *file);

#endif
