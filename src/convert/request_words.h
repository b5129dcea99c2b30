/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller says about the target in words of the format's own: format options, and the words of --layout. */
#ifndef CONVERT_REQUEST_WORDS_H
#define CONVERT_REQUEST_WORDS_H

#include "base/arena.h"
#include "formats/driver.h"

struct request_words {
    struct arena arena;
    const struct option_value *options;
    const struct word_number *words;
    uint32_t ranks; /* 0: the driver's default */
};

/* Reads both: NAME=VALUE texts that end with NULL, and "WORD=NUMBER,…"; each may be NULL. USAGE, or UNSUPPORTED for a word that the format
 * does not know, with those that it knows. Of what is said twice the last counts. */
reshard_status request_words_read(const char *const *options, const char *layout, const struct format_driver *driver,
                                  struct request_words *out, reshard_error *err);
void request_words_release(struct request_words *words);

#endif
