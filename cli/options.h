/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: one table that parses the command line, prints --help and makes the shells' completions.
 */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "reshard/reshard.h"

#include <stdbool.h>
#include <stdio.h>

#define OPTION_LIST_MAX 256

enum verb {
    VERB_INSPECT,
    VERB_LS,
    VERB_HASH,
    VERB_CAT,
    VERB_CONVERT,
    VERB_COMMIT,
    VERB_PLAN,
    VERB_VERIFY,
    VERB_DIFF,
    VERB_STATS,
    VERB_SALVAGE,
    VERB_DRAW,
    VERB_MAP,
    VERB_FORMATS,
    VERB_COMPLETION,
    VERB_HELP,
    VERB_COUNT
};

/* A repeatable option's values, NULL-terminated. */
struct option_list {
    const char *values[OPTION_LIST_MAX + 1];
    size_t count;
};

struct options {
    enum verb verb;
    const char *paths[3];
    int path_count;
    /* common */
    bool json, quiet, verbose, help, version;
    const char *progress, *color;
    struct option_list limits;
    /* opening */
    const char *format;
    int64_t iteration; /* -1: the latest */
    bool follow_links, lenient;
    /* running */
    uint64_t memory_bytes;
    unsigned threads;
    const char *io;
    /* of single verbs */
    bool chunks, items_flag, tree, deep, expect_optimizer, latest_good, list_limits, ranks_flag, stat, ignore_dtype;
    bool diff;           /* of draw */
    const char *columns; /* of draw */
    unsigned depth; /* of levels that are printed; 0: all */
    const char *against, *fail_on;
    unsigned most; /* findings that are printed; 0: all */
    const char *digest, *slice, *as, *items, *tolerance, *sort;
    const char *to, *like, *layout, *rules, *config, *checksum, *source, *target;
    int64_t max_shard_bytes; /* -1: the default; 0: no limit */
    const char *part; /* I/N */
    const char *wrap, *missing, *strip_prefix, *add_prefix;
    struct option_list renames;
    bool is_stream; /* the target goes to standard output afterwards */
    bool overwrite, resume, no_sync, no_space_check, verify, dry_run, strict_aoa, reverse;
    struct option_list include, exclude, dtypes, format_options, maps, statements, constants;
    reshard_limit_change limit_values[OPTION_LIST_MAX];
    const char *const *words; /* of the command line, then NULL */
    const char *const *rest; /* those behind the paths, then NULL */
    struct reshard_comm *comm; /* ranks that run the verb together, each with the same options; NULL: none */
    reshard_error failure; /* the first thing that is wrong with the command line; code 0 if nothing is */
};

struct verb_info {
    const char *name, *arguments /* with a GLOB: any number of them behind the paths */, *summary, *examples;
    int paths_min, paths_max;
};
extern const struct verb_info verb_table[VERB_COUNT];

/* Parses argv. Returns -1 to go on, or an exit status (usage errors are printed, --help and --version are answered). */
int options_parse(int argc, char **argv, struct options *out);

/* Frees what parsing allocated. */
void options_release(struct options *options);

void options_help(FILE *out, enum verb verb);
void options_overview(FILE *out);

/* Walks the option table for completion: false past the end. */
struct option_row {
    const char *name;
    const char *argument; /* alternatives with | between: in lower case as they are typed, others stand for values; NULL: a flag */
    const char *help;
    char short_name;
    unsigned verbs; /* bit per verb */
};
/* Whether the verb shows what the options of names and selection leave. */
bool option_is_viewing(enum verb verb);
bool options_row(size_t index, struct option_row *out);

/* The library's option structs for what was given. */
reshard_open_options options_open(const struct options *options);

/* Whether the verb makes a target, which matters more than what it prints. */
static inline bool verb_writes(const struct options *options)
{
    return options->verb == VERB_CONVERT || options->verb == VERB_SALVAGE;
}

#endif
