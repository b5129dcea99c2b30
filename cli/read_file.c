/* SPDX-License-Identifier: Apache-2.0 */
#include "read_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *read_file(const char *path, size_t *size)
{
    size_t capacity = 1 << 16, used = 0, got;
    char *bytes = malloc(capacity);
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    while (bytes && file && (got = fread(bytes + used, 1, capacity - used - 1, file)) > 0) {
        used += got;
        if (used + 1 < capacity)
            continue;
        char *larger = realloc(bytes, capacity * 2);
        if (!larger) {
            free(bytes);
            bytes = NULL;
            break;
        }
        bytes = larger;
        capacity *= 2;
    }
    bool failed = !bytes || !file || ferror(file);
    int number = bytes ? errno : ENOMEM;
    if (file && file != stdin)
        fclose(file);
    if (failed) {
        free(bytes);
        errno = number;
        return NULL;
    }
    bytes[used] = '\0';
    *size = used;
    return bytes;
}
