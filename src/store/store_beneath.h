/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a name below a directory without ever leaving it, whatever symbolic links lie there. */
#ifndef STORE_STORE_BENEATH_H
#define STORE_STORE_BENEATH_H

#include <stdbool.h>

/*
 * As openat, but symbolic links may lead only to places below root: otherwise -1 with errno EXDEV. name "" is root itself.
 * by_hand: without openat2, as on kernels that lack it.
 */
int open_beneath(int root, const char *name, int flags, bool by_hand);

#endif
