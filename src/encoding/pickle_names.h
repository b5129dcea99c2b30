/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that differ between Python 2 and 3. Pickles of protocol 0 to 2 use the old ones, whatever Python writes them; the
 * value graph holds the new ones.
 */
#ifndef ENCODING_PICKLE_NAMES_H
#define ENCODING_PICKLE_NAMES_H

#include "base/str.h"

/* What the reader notes in value.reserved. */
enum {
    NODE_UNHASHABLE = 1, /* a tuple with a list, dict or set inside: no key */
    NODE_RAW_STRING = 2, /* a Python 2 string that is not UTF-8 */
    NODE_NESTED_NAME = 4 /* a global of protocol 4 and up, where dots in the name are look-ups; below they lead nowhere */
};

/* Old to new, in place; names that never changed stay. */
void pickle_name_modernise(struct str *module, struct str *name);

/* New to old where reading the old name gives the new one back; else the names stay. */
void pickle_name_age(struct str *module, struct str *name);

#endif
