/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_READ_FILE_H
#define CLI_READ_FILE_H

#include <stddef.h>

/* The whole of a file, with a NUL behind it, or of standard input for "-". The caller frees it. NULL: errno says why. */
char *read_file(const char *path, size_t *size);

#endif
