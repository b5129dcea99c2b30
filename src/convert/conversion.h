/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversion: source and options in; selection, laid-out target, recipes and plan out, before a byte moves. Then it can be reported, and
 * run.
 */
#ifndef CONVERT_CONVERSION_H
#define CONVERT_CONVERSION_H

#include "convert/checkpoint.h"
#include "convert/request_words.h"
#include "convert/selection.h"
#include "formats/notes.h"
#include "names/mapping_make.h"
#include "parallel/state_owner.h"

struct conversion_options {
    const char *to;                    /* format; NULL only with like */
    const char *like;                  /* path of a checkpoint whose format, layout and names are taken; or NULL */
    struct checkpoint_options open;    /* of like, and limits */
    const char *layout;                /* "ranks=8,…" or NULL */
    struct selection_options selection; /* of what comes out of the mapping */
    const char *const *format_options; /* "name=value" of the target format; NULL-terminated or NULL */
    int64_t max_shard_bytes;           /* -1: the format's default */
    const char *wrap;                  /* parallel/wrap_rule.h; NULL */
    bool by_writer;                    /* what a rank has goes to that rank's file, where the format has one */
    bool overwrite, resume, no_sync, no_space_check;
    bool verify;                       /* read back and compare */
    const char *checksum;              /* digest of a sidecar, or NULL */
    const struct mapping_options *map; /* NULL: defaults */
    uint32_t part, part_count; /* write this part of the payload alone, and leave the rest to conversion_commit; 0 parts: all of it */
    struct str part_words;             /* kept with the part, for who commits */
    const struct store_calls *store;   /* where the target goes, in place of the file system; or NULL */
};

/* conversion_second.h: another checkpoint that tensors are borrowed of. */
struct second {
    struct checkpoint *opened, *view; /* NULL: none; view belongs to opened */
    struct catalog *joined;           /* NULL: nothing was borrowed */
    struct store *store;              /* of joined; borrows those of both */
};

struct conversion {
    struct checkpoint *source;
    struct checkpoint *like;
    struct checkpoint *named;      /* like, in the view whose names the source's are compared with; belongs to it */
    struct checkpoint *respelled;  /* the view of the source in which optimizer state is spelled as the target's format has it, or NULL */
    bool spells_as_torch;          /* the target's optimizer state is to be in the spelling of torch, and the source's is not */
    bool has_megatrons_words;      /* with spells_as_torch: its keys, too, which names need before words can be exchanged */
    struct str torch_prefix;       /* what weights have in front of the names that state has in the reference, "model." */
    bool has_one_master;           /* masters have the name that like's have, whatever the source's are called */
    struct second second;
    const struct conversion_options *options;
    struct mapping_made mapping;   /* stage NULL: names and shapes are the source's */
    struct note_list losses;       /* what the mapping leaves behind */
    struct note_list warnings;     /* of what arrives, but may not be what is meant */
    struct arena notes;            /* of the losses' and warnings' texts */
    struct selection selection;
    struct request_words said;
    struct layout_request request;
    char *file_name;
    struct target target;
    struct recipe *recipes;
    uint32_t recipe_count;
    uint32_t tensor_count;               /* tensors that the target has (conversion_count.c), */
    uint8_t *is_counted;                 /* by wanted tensor */
    struct {
        uint64_t tensors, bytes;
    } verified;                          /* what was read back and compared (read_back.h) */
    struct plan *plan;
    struct engine_options engine;
};

enum conversion_purpose {
    CONVERSION_TO_REPORT, /* target_path may be NULL */
    CONVERSION_TO_RUN     /* the payload of every source chunk is found, too */
};

/* The options, and what they point to, must outlive the conversion. On failure nothing is left to release. */
reshard_status conversion_prepare(struct checkpoint *source, const char *target_path, const struct conversion_options *options,
                                  const struct engine_options *engine, enum conversion_purpose purpose, struct conversion *out,
                                  reshard_error *err);
/* In *checkpoint its view for the target's format: those of torch get F4 in pairs, and with it shapes that count pairs. */
reshard_status conversion_pair(struct conversion *conversion, struct checkpoint **checkpoint, reshard_error *err);

/* Tells of each tensor that is in pairs then. */
reshard_status conversion_note_pairs(struct conversion *conversion, reshard_error *err);

/* Formats that name state by parameter get it so, whatever way the source stores it; other names are for parameters too. So the names of
 * the reference are those of parameters, too. */
reshard_status conversion_relate_state(struct conversion *conversion, reshard_error *err);

/* conversion_torch_state.c: whether the target's optimizer state is to become torch's, as the source's has another spelling; then the
 * source is seen so, as far as its own names tell. */
reshard_status conversion_torch_state(struct conversion *conversion, const struct format_driver *driver, reshard_error *err);

/* Behind the selection: where torch's state dict has the state, and groups of parameters as torch has them. */
reshard_status conversion_add_torch_state(struct conversion *conversion, reshard_error *err);

/* Notes options of groups of parameters that do not arrive. */
reshard_status conversion_note_options(struct conversion *conversion, const struct name_map *options, reshard_error *err);

/* Lists an item of the source as dropped that says how its ranks are laid out. */
reshard_status conversion_note_layout(struct conversion *conversion, struct str item, reshard_error *err);

/* What the key of a weight is without the prefix that naming takes off later, as keys of state are to have it. */
struct str conversion_state_name(const struct conversion *conversion, struct str weight);

/* conversion_respell.c: the source is seen with optimizer state in the spelling that the target's format has, if it has one of its own. */
reshard_status conversion_respell_state(struct conversion *conversion, reshard_error *err);

/* conversion_paddle_state.c: the same to Paddle's formats, where names are to become Paddle's. */
reshard_status conversion_paddle_state(struct conversion *conversion, reshard_error *err);

/* conversion_numbered.c: warns of state of the filter's that names no weights, for which no run of Megatron looks. */
reshard_status conversion_note_numbered(struct conversion *conversion, const struct state_owners *owners, struct key_filter *filter,
                                        bool is_by_number, reshard_error *err);

/* Behind the mapping: warns of state that was respelled and whose name stayed where its weight's did not. */
reshard_status conversion_note_unmapped(struct conversion *conversion, reshard_error *err);

void conversion_release(struct conversion *conversion);

/* The format of that name, or the other checkpoint's if none is said: one that can be written. */
reshard_status conversion_format(const char *to, const struct checkpoint *otherwise, const struct format_driver **out, reshard_error *err);

/* The same of an open conversion. */
reshard_status conversion_driver(const struct conversion *conversion, const struct format_driver **out, reshard_error *err);

/* Whether the target stores a wanted tensor: it is not dropped, and not the same as one that is. */
bool conversion_stores(const struct conversion *conversion, uint32_t wanted);

/* conversion_ties.c: ties that the source's metadata has recorded get the names that tensors have in the target, or are told as lost. */
reshard_status conversion_rename_ties(struct conversion *conversion, const struct selection_options *options, reshard_error *err);

/* conversion_remarks.c: warns of what the reference has and is not written, where nothing says what becomes of it; and of a target that is
 * called as the iteration in it. */
reshard_status conversion_remark_lacking(struct conversion *conversion, const struct selection_options *options, reshard_error *err);
reshard_status conversion_remark_root(struct conversion *conversion, reshard_error *err);

/* The same of a reference that has the model in a folder of its own, which the target has not. */
reshard_status conversion_remark_parts(struct conversion *conversion, reshard_error *err);

/* Warns of optimizer state under keys that those who load the target do not look for: Paddle's where they are others, others' where they
 * are Paddle's. Between Megatron's and torch's conversion_respell.c says what becomes of it. */
reshard_status conversion_remark_state(struct conversion *conversion, reshard_error *err);

/* conversion_count.c: counts the tensors that the target has: as many as one sees, and those that items keep. */
reshard_status conversion_count(struct conversion *conversion, reshard_error *err);

/* A prepared conversion is to write another target, with options that say the same and lie elsewhere. *out false: the name is a part of
 * what was laid out, and it has to be prepared anew. */
reshard_status conversion_turn_to(struct conversion *conversion, const char *target_path, const struct conversion_options *options,
                                  const struct engine_options *engine, bool *out, reshard_error *err);

/* Writes the target: it appears whole or not at all. What is there is replaced only if target_check.h allows it. */
reshard_status conversion_run(struct conversion *conversion, const char *target_path, reshard_error *err);

/*
 * conversion_parts.c: makes the target of all parts visible, which were conversions with the same options. RESHARD_DIFFERS names what is
 * missing, or of another run.
 */
reshard_status conversion_commit(struct conversion *conversion, const char *target_path, reshard_error *err);

/* The words that a part of an unfinished target left: part 0 if it is there, else some other; RESHARD_DIFFERS if there is none. */
reshard_status conversion_part_words(const char *target_path, bool *is_first, struct buffer *out, reshard_error *err);

/* conversion_names.c: runs the mapping, if there is one, and says what names the target gets that may not be meant. */
reshard_status conversion_map_names(struct conversion *conversion, const struct format_driver *driver, reshard_error *err);

/* conversion_settings.c: adds the configuration that the model has under its new names, as an item, and says so. */
reshard_status conversion_add_settings(struct conversion *conversion, const struct format_driver *driver, reshard_error *err);

/* Memory that a run takes at its peak: buffers and metadata. */
uint64_t conversion_memory(const struct conversion *conversion);

#endif
