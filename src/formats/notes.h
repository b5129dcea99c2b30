/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: what a conversion leaves out and what it changes, each with the name concerned, a word for programs and a reason for people. */
#ifndef FORMATS_NOTES_H
#define FORMATS_NOTES_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/name_map.h"

/* id, word, whether the reason goes on where the name ends ("'a' loses its class") instead of standing behind it ("a: no value") */
#define NOTE_KINDS(X)                                                                                  \
    X(NO_PLACE, "no-place", false)       /* the format has no place for it */                          \
    X(ITEMS, "items", false)             /* the caller leaves out what is no tensor */                 \
    X(NO_VALUE, "no-value", false)       /* its value is not known */                                  \
    X(NO_DATA, "no-data", false)         /* a tensor without elements stored (meta) */                 \
    X(LAYOUT, "layout", false)           /* it belongs to the ranks or the layout that it was saved under */ \
    X(RANKS, "ranks", false)             /* what other ranks have of it */                             \
    X(RELEASE, "release", false)         /* the release of the framework does not know it */           \
    X(OPTIMIZER, "optimizer", false)     /* optimizer state is arranged in another way */              \
    X(GROUPS, "param-groups", false)     /* settings of parameter groups */                            \
    X(MAPPING, "mapping", false)         /* the mapping has no use for it */                           \
    X(MISSING, "missing", false)         /* the mapping makes nothing of it, or not all */             \
    X(NAMES, "names", false)             /* names become those of another framework */                 \
    X(TIE, "tie", false)                 /* shares its bytes with another tensor */                    \
    X(DTYPE, "dtype", false)             /* another element type */                                    \
    X(KEYS, "keys", false)               /* keys or lists that the format spells in another way */     \
    X(COMPRESSION, "compression", false) /* stored bytes are coded in another way */                   \
    X(CONFIG, "config", false)           /* a configuration or arguments, made for the target */       \
    X(ARGUMENTS, "arguments", false)     /* sizes in the arguments of the run */                       \
    X(PARTITION, "partition", false)     /* no rule says how it is cut */                              \
    X(REFERENCE, "reference", false)     /* taken from the reference */                                \
    X(FUSED, "fused", false)             /* a fused weight changes the number of its parts */          \
    X(SCALES, "scales", false)           /* small floats become wider ones without their scales */     \
    X(SPACE, "space", false)             /* the target does not fit where it is to be */               \
    X(TARGET, "target", false)           /* where it is to be it cannot be written, or may not replace what is there */ \
    X(VOCABULARY, "vocabulary", false)   /* rows of the vocabulary's padding */                        \
    X(ROWS, "rows", true)                /* the tensor gains or loses rows of padding */               \
    X(JOINED_NAME, "joined-name", true)  /* written under a flat name instead of its nested one */     \
    X(CLASS, "class", true)              /* loses its class */

enum note_kind {
#define X(id, word, continues) NOTE_##id,
    NOTE_KINDS(X)
#undef X
};

struct note {
    enum note_kind kind;
    struct str key;    /* the name concerned, or empty */
    struct str reason;
};

/* Texts lie in the arena that note_add got. A list starts as { 0 }. */
struct note_list {
    struct note *notes;
    uint32_t count, capacity;
};

/* key is copied. */
reshard_status note_add(struct note_list *list, struct arena *arena, enum note_kind kind, struct str key, reshard_error *err,
                        const char *format, ...) PRINTF_LIKE(6, 7);
reshard_status note_add_args(struct note_list *list, struct arena *arena, enum note_kind kind, struct str key, reshard_error *err,
                             const char *format, va_list args) PRINTF_LIKE(6, 0);
void note_list_release(struct note_list *list);

/* Adds the keys of all notes to a map; is_of_ties: of those of ties alone. */
reshard_status note_list_keys(const struct note_list *list, bool is_of_ties, struct name_map *out, reshard_error *err);

const char *note_kind_word(enum note_kind kind);

/* Appends the note as one line for people. */
void note_print(const struct note *note, struct buffer *out);

#endif
