/* SPDX-License-Identifier: Apache-2.0 */
/* Names of what is written: a prefix taken off, renames (key_pattern.h), whatever the caller's function says, and a prefix put before. */
#ifndef CONVERT_NAMING_H
#define CONVERT_NAMING_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/name_map.h"
#include "convert/key_pattern.h"

struct naming_options {
    const char *strip_prefix;      /* taken off keys that begin so; others stay. NULL: none */
    const char *const *renames;    /* s/RE/NEW/, s/RE/NEW/g or GLOB -> GLOB, in their order; ends with NULL, or is NULL */
    const char *add_prefix;        /* of all tensors, and of items that stand among them: whose names begin as some tensor's, up to a dot */
    /* Appends a tensor's new name to out. NULL: names stay. */
    reshard_status (*rename)(struct str key, struct buffer *out, void *context, reshard_error *err);
    void *context;
};

/* Whether the options change any name. */
bool naming_is_asked(const struct naming_options *options);

struct naming {
    const struct naming_options *options;
    struct key_rename **renames;
    uint32_t rename_count;
    struct name_map made;          /* so that no two tensors or items get one name, */
    struct str *from;              /* by number in made: whose it is */
    uint32_t from_capacity;
    struct name_map heads;         /* of tensors' names, where items are asked for */
    struct buffer text, other;
    bool is_active;
};

reshard_status naming_begin(struct naming *naming, const struct naming_options *options, reshard_error *err);

enum naming_of { NAMING_TENSOR, NAMING_ITEM };

/* Replaces *key, whose new text lives until naming_end; the old one must live as long. USAGE if something else has that name. */
reshard_status naming_apply(struct naming *naming, enum naming_of of, struct str *key, reshard_error *err);

/* What a pattern is compared with where names are changed; for the hint, when one has matched no key. */
void naming_hint(const struct naming *naming, reshard_error *err);
void naming_end(struct naming *naming);

#endif
