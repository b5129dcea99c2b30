/* SPDX-License-Identifier: Apache-2.0 */
/* Shared libraries that few runs need: they are loaded when they are asked for, so that no other start waits for them, and stay. */
#ifndef BASE_LIBRARY_H
#define BASE_LIBRARY_H

#include "base/error.h"

#include <stddef.h>

struct library_symbol {
    const char *name;
    void *function; /* the address of the pointer to it that is to be set */
};

struct library {
    const char *file;   /* "libblosc.so.1" */
    const char *needed; /* begins the message: "blosc needs" */
    const char *hint;   /* "install libblosc 1.x (Debian: libblosc1)" */
    const struct library_symbol *symbols;
    size_t symbols_count;
};

/* Sets all functions, or fails as UNSUPPORTED: then some may be set. For one thread at a time. */
reshard_status library_load(const struct library *library, reshard_error *err);

#endif
