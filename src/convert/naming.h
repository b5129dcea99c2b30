/* SPDX-License-Identifier: Apache-2.0 */
/* Names of what is written: a prefix taken off or put before, s/RE/NEW/, or whatever the caller's function says. In this order. */
#ifndef CONVERT_NAMING_H
#define CONVERT_NAMING_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/name_map.h"

struct naming_options {
    const char *strip_prefix;      /* taken off keys that begin so; others stay. NULL: none */
    const char *const *renames;    /* s/RE/NEW/ or s/RE/NEW/g, extended regular expressions; ends with NULL, or is NULL */
    const char *add_prefix;
    /* Appends the key's new name to out. NULL: names stay. */
    reshard_status (*rename)(struct str key, struct buffer *out, void *context, reshard_error *err);
    void *context;
};

struct naming_rename;
struct naming {
    const struct naming_options *options;
    struct naming_rename *renames;
    uint32_t rename_count;
    struct name_map made;          /* so that no two tensors get one name */
    struct buffer text, other;
    bool is_active;
};

reshard_status naming_begin(struct naming *naming, const struct naming_options *options, reshard_error *err);

/* Replaces *key, whose new text lives until naming_end. USAGE if another tensor has that name. */
reshard_status naming_apply(struct naming *naming, struct str *key, reshard_error *err);
void naming_end(struct naming *naming);

#endif
