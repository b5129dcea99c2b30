/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "command_words.h"
#include "failure.h"
#include "near_names.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BIT(verb) (1u << VERB_##verb)
#define RUNNING (BIT(HASH) | BIT(CAT) | BIT(CONVERT) | BIT(PLAN) | BIT(VERIFY) | BIT(DIFF) | BIT(STATS) | BIT(SALVAGE))
#define READING (RUNNING | BIT(INSPECT) | BIT(LS) | BIT(DRAW))
#define WRITING (BIT(CONVERT) | BIT(PLAN))
#define SHAPING (WRITING | BIT(DRAW)) /* what a target looks like */
#define ANY (READING | BIT(MAP) | BIT(FORMATS) | BIT(COMPLETION) | BIT(HELP) | BIT(COMMIT)) /* may also stand before the verb */
/* Show what is chosen, under the names that are asked for. */
#define VIEWING (BIT(INSPECT) | BIT(LS) | BIT(HASH) | BIT(STATS) | BIT(VERIFY))

#define THREADS_MAX 4096

enum kind { FLAG, TEXT, WORD, LIST, BYTES, NUMBER, COUNT, THREADS }; /* WORD: one of those in its argument */

#define FIELD(name) offsetof(struct options, name)

static const struct row {
    const char *name, *argument;
    char short_name;
    enum kind kind;
    size_t field;
    unsigned verbs;
    const char *help;
} rows[] = {
    { "to", "FORMAT", 't', TEXT, FIELD(to), SHAPING | BIT(SALVAGE),
      "format to write; 'reshard formats' lists them (by the name: .safetensors, .pt, .pth, .bin, .npz, .pdparams, .pdopt)" },
    { "like", "PATH", 0, TEXT, FIELD(like), SHAPING, "take format, layout and names of files from this checkpoint" },
    { "like", "SIBLING", 0, TEXT, FIELD(like), BIT(SALVAGE), "take missing metadata from a checkpoint of the same run and layout" },
    { "layout", "WORDS", 0, TEXT, FIELD(layout), SHAPING, "how to cut tensors, for example ranks=8" },
    { "include", "GLOB", 0, LIST, FIELD(include), SHAPING | BIT(DIFF) | BIT(SALVAGE) | VIEWING, "only keys that match; repeatable" },
    { "exclude", "GLOB", 0, LIST, FIELD(exclude), SHAPING | BIT(DIFF) | BIT(SALVAGE) | VIEWING, "not the keys that match; repeatable" },
    { "dtype", "[GLOB=]TYPE", 0, LIST, FIELD(dtypes), SHAPING,
      "cast: all floating tensors to f32, bf16, f16, f8_e4m3 …, or the keys that match to any type; repeatable" },
    { "items", "keep|drop", 0, WORD, FIELD(items), WRITING, "whether non-tensor items are written too (keep)" },
    { "items", "compare|ignore", 0, WORD, FIELD(items), BIT(DIFF), "whether non-tensor items matter (compare)" },
    { "max-shard-size", "SIZE", 0, BYTES, FIELD(max_shard_bytes), SHAPING, "largest file of a sharded format (5GB; 0: no limit)" },
    { "wrap", "REGEX|root", 0, TEXT, FIELD(wrap), SHAPING, "modules that are flattened together: 'transformer.h.*' (atorch, fsdp-ranks)" },
    { "missing", "error|zeros|VALUE|PATH", 0, TEXT, FIELD(missing), WRITING, "tensors that --like has and the source lacks (left out)" },
    { "strip-prefix", "TEXT", 0, TEXT, FIELD(strip_prefix), SHAPING | BIT(DIFF) | VIEWING, "take this off the names that begin with it" },
    { "rename", "s/RE/NEW/|'GLOB -> GLOB'", 0, LIST, FIELD(renames), SHAPING | BIT(DIFF) | VIEWING, "change names; repeatable" },
    { "add-prefix", "TEXT", 0, TEXT, FIELD(add_prefix), SHAPING | BIT(DIFF) | VIEWING, "put this before all names" },
    { "option", "OPTION=VALUE", 'o', LIST, FIELD(format_options), SHAPING, "option of the target format; repeatable" },
    { "rules", "FAMILY|FILE|auto|none", 0, TEXT, FIELD(rules), SHAPING | BIT(DIFF),
      "family of the model, which relates names (detected)" },
    { "map", "FILE", 0, LIST, FIELD(maps), SHAPING | BIT(DIFF), "mapping text between names, shapes and types; repeatable" },
    { "mapping", "STATEMENT", 'm', LIST, FIELD(statements), SHAPING | BIT(DIFF),
      "one statement of a mapping, after those of --map; repeatable" },
    { "source", "PATH", 0, TEXT, FIELD(source), BIT(MAP), "checkpoint, or description (JSON), that the mapping reads" },
    { "target", "PATH", 0, TEXT, FIELD(target), BIT(MAP), "checkpoint, or description, that it is to fill" },
    { "reverse", NULL, 0, FLAG, FIELD(reverse), BIT(MAP), "read the text backwards, as with aoa_config_reverse" },
    { "set", "NAME=N", 0, LIST, FIELD(constants), SHAPING | BIT(DIFF) | BIT(MAP), "a number that mappings may name; repeatable" },
    { "config", "FILE", 0, TEXT, FIELD(config), SHAPING | BIT(DIFF) | BIT(MAP),
      "config.json of the model, for mappings (that of the source)" },
    { "strict-aoa", NULL, 0, FLAG, FIELD(strict_aoa), SHAPING | BIT(DIFF) | BIT(MAP),
      "refuse what Paddle's own mapping engine does not know" },
    { "checksum", "crc32c|sha256|none", 0, WORD, FIELD(checksum), WRITING, "write a sidecar reshard.json with a digest per tensor" },
    { "overwrite", NULL, 0, FLAG, FIELD(overwrite), SHAPING | BIT(SALVAGE),
      "replace a checkpoint, an empty folder or file that is in the way" },
    { "resume", NULL, 0, FLAG, FIELD(resume), WRITING, "go on where an interrupted run stopped" },
    { "part", "I/N", 0, TEXT, FIELD(part), BIT(CONVERT), "only part I, from 0, of N, beside others; then 'reshard commit DST'" },
    { "verify", NULL, 0, FLAG, FIELD(verify), WRITING, "read the result back and compare before it becomes visible" },
    { "no-sync", NULL, 0, FLAG, FIELD(no_sync), WRITING | BIT(SALVAGE), "do not wait for the disk; for scratch space" },
    { "no-space-check", NULL, 0, FLAG, FIELD(no_space_check), WRITING, "begin although the disk has not enough room" },
    { "dry-run", NULL, 'n', FLAG, FIELD(dry_run), BIT(CONVERT), "as 'reshard plan'" },
    { "ranks", NULL, 0, FLAG, FIELD(ranks_flag), BIT(PLAN), "a line for each target file" },
    { "chunks", NULL, 'c', FLAG, FIELD(chunks), BIT(LS), "also each stored piece: box, file, offset, length" },
    { "items", NULL, 'i', FLAG, FIELD(items_flag), BIT(LS), "also non-tensor items" },
    { "tree", NULL, 0, FLAG, FIELD(tree), BIT(LS), "levels with their sums, and what repeats in one line: layers.{0..31}" },
    { "depth", "N", 0, COUNT, FIELD(depth), BIT(LS), "so many levels of the tree (all)" },
    { "sort", "key|size|dtype", 0, WORD, FIELD(sort), BIT(LS), "order of tensors, in the tree on each level; the largest first" },
    { "digest", "sha256|xxh3|crc32c|md5", 0, WORD, FIELD(digest), BIT(HASH), "digest to print (sha256)" },
    { "slice", "A:B,…", 's', TEXT, FIELD(slice), BIT(CAT), "part of the tensor: begin:end:step per axis, ':' for all, '...'" },
    { "as", "text|npy|raw", 0, WORD, FIELD(as), BIT(CAT), "how to print the values (text)" },
    { "deep", NULL, 0, FLAG, FIELD(deep), BIT(VERIFY), "also read all values: NaN, infinities, all zero, copied experts" },
    { "expect-optimizer", NULL, 0, FLAG, FIELD(expect_optimizer), BIT(VERIFY), "a failure where weights lack optimizer states" },
    { "against", "REF", 0, TEXT, FIELD(against), BIT(VERIFY), "a checkpoint, index or config.json that names and shapes are held against" },
    { "fail-on", "nan,inf,zero", 0, TEXT, FIELD(fail_on), BIT(VERIFY), "values that are a failure; reads all of them" },
    { "latest-good", NULL, 0, FLAG, FIELD(latest_good), BIT(VERIFY), "PATH is a root: print its newest checkpoint that passes" },
    { "stat", NULL, 0, FLAG, FIELD(stat), BIT(DIFF), "a line for each layer and module instead of each tensor" },
    { "max", "N", 0, COUNT, FIELD(most), BIT(DIFF), "print at most so many findings" },
    { "tolerance", "ABS[,REL]", 0, TEXT, FIELD(tolerance), BIT(DIFF), "largest difference of values that counts as equal" },
    { "ignore-dtype", NULL, 0, FLAG, FIELD(ignore_dtype), BIT(DIFF), "cast what is of another floating type in B to that, then compare" },
    { "diff", NULL, 0, FLAG, FIELD(diff), BIT(DRAW), "what differs between two checkpoints, by layer and module; reads the values" },
    { "columns", "auto|files", 0, WORD, FIELD(columns), BIT(DRAW), "columns are files, even where ranks are known (auto: ranks)" },
    { "limits", NULL, 0, FLAG, FIELD(list_limits), BIT(FORMATS), "list the named limits instead" },
    { "format", "FORMAT", 'f', TEXT, FIELD(format), READING | BIT(MAP), "do not recognise the format, take this" },
    { "iteration", "N", 0, NUMBER, FIELD(iteration), READING | BIT(MAP), "of a root with several checkpoints (the latest)" },
    { "follow-links", NULL, 0, FLAG, FIELD(follow_links), READING, "symbolic links may lead out of the directory" },
    { "lenient", NULL, 0, FLAG, FIELD(lenient), READING, "accept what is ambiguous but readable" },
    { "memory", "SIZE", 0, BYTES, FIELD(memory_bytes), RUNNING, "budget for buffers (128MiB)" },
    { "threads", "N", 'j', THREADS, FIELD(threads), RUNNING, "worker threads (number of CPUs, at most 8)" },
    { "io", "auto|buffered|direct|mmap", 0, WORD, FIELD(io), RUNNING, "how files are read and written" },
    { "limit", "LIMIT=VALUE", 0, LIST, FIELD(limits), ANY, "raise or lower a named limit; repeatable" },
    { "progress", "auto|bar|plain|json|none", 0, WORD, FIELD(progress), ANY, "progress on standard error" },
    { "color", "auto|never|always", 0, WORD, FIELD(color), ANY, "colour on a terminal" },
    { "json", NULL, 0, FLAG, FIELD(json), ANY, "one JSON object on standard output" },
    { "quiet", NULL, 'q', FLAG, FIELD(quiet), ANY, "no progress, no notes" },
    { "verbose", NULL, 'v', FLAG, FIELD(verbose), ANY, "more detail" },
    { "help", NULL, 'h', FLAG, FIELD(help), ANY, "this text" },
    { "version", NULL, 'V', FLAG, FIELD(version), ANY, "version of the command" },
};

#define ROW_COUNT (sizeof(rows) / sizeof(rows[0]))

const struct verb_info verb_table[VERB_COUNT] = {
    { "inspect", "PATH [GLOB…]", "one screen about a checkpoint: format, layout, tensors, what is odd",
      "  reshard inspect step-1000\n  reshard inspect step-1000 --exclude 'optimizer.*'\n"
      "  reshard inspect model.pt          # lists calls that the pickle would make; none is made\n",
      1, 1 },
    { "ls", "PATH [GLOB…]", "a line for each tensor",
      "  reshard ls step-1000 'model.layers.{0..3}.*'\n  reshard ls step-1000 --chunks\n  reshard ls step-1000 --tree --sort size --depth "
      "2\n"
      "  reshard ls model.pt --items --json | jq '.items[].key'\n",
      1, 1 },
    { "hash", "PATH [GLOB…]", "a digest for each tensor, independent of format and layout",
      "  reshard hash step-1000\n  diff <(reshard hash a) <(reshard hash b)\n", 1, 1 },
    { "cat", "PATH KEY", "values of one tensor, or an item as JSON",
      "  reshard cat model.safetensors lm_head.weight --slice 0:2,:\n  reshard cat step-1000 w --as npy > w.npy\n", 2, 2 },
    { "convert", "SRC DST", "write a checkpoint in another format or layout, whole or not at all",
      "  reshard convert step-1000 hf --to hf\n  reshard convert model.pt dcp --to torch-dcp --layout ranks=8\n"
      "  reshard convert step-1000 out --like reference --verify\n",
      2, 2 },
    { "commit", "DST", "make the result of 'convert --part' visible, once all parts are there",
      "  reshard convert step-1000 hf --to hf --part 0/2 & reshard convert step-1000 hf --to hf --part 1/2; wait\n  reshard commit hf\n", 1,
      1 },
    { "plan", "SRC [DST]", "what convert would do; touches nothing", "  reshard plan step-1000 --to hf --dtype bf16\n", 1, 2 },
    { "verify", "PATH [GLOB…]", "check structure, coverage, replicas and stored checksums",
      "  reshard verify step-1000 --deep --fail-on nan,inf\n  reshard verify hf --against config.json\n"
      "  reshard verify step-1000 --strip-prefix model. --exclude 'optimizer.*' --against hf\n"
      "  reshard verify --latest-good runs/a\n",
      1, 1 },
    { "diff", "A B [GLOB…]", "compare two checkpoints of any format and layout",
      "  reshard diff step-1000 hf --items ignore\n  reshard diff a b --tolerance 1e-6 --max 20\n"
      "  reshard diff step-1000 step-2000 --stat\n",
      2, 2 },
    { "stats", "PATH [GLOB…]", "what the values are like: range, moments, zeros, NaN, by tensor, layer and module",
      "  reshard stats step-1000\n  reshard stats step-1000 '*.mlp.*' --json | jq '.modules[]'\n", 1, 1 },
    { "salvage", "PATH DST [GLOB…]", "write what is left of a damaged checkpoint, and list what is lost and what nobody can prove",
      "  reshard salvage step-1000 rescued --json > report.json\n"
      "  reshard salvage step-1000 weights --exclude 'optimizer.*'\n"
      "  reshard salvage step-1000 rescued --like step-900      # .metadata is gone: that of a sibling says where things lie\n",
      2, 2 },
    { "draw", "PATH [OUT.html|OUT.svg]", "picture of where tensors lie, of what a conversion moves, or of what differs",
      "  reshard draw step-1000                       # in the terminal\n  reshard draw step-1000 map.html\n"
      "  reshard draw step-1000 move.html --to torch-dcp --layout ranks=8   # before, after, and the bytes that move\n"
      "  reshard draw --diff a b differs.html\n",
      1, 3 },
    { "map", "check|expand|invert|eval|parse FILE", "try a mapping between name spaces; FILE '-' is standard input",
      "  reshard map check llama.map --source hf-model --target step-1000   # does it fit, what is lost or doubled\n"
      "  reshard map expand llama.map --source hf-model                     # the statements behind all macros\n"
      "  reshard map invert llama.map --source hf-model > back.map          # the way back, where an exact one exists\n"
      "  reshard map eval join.map --source numbers.json                    # on small numbers\n"
      "  reshard map parse llama.map                                        # syntax only\n",
      2, 2 },
    { "formats", "[FORMAT]", "the known formats, or the options of one",
      "  reshard formats\n  reshard formats hf\n  reshard formats --limits\n", 0, 1 },
    { "completion", "bash|zsh|fish|words [WORD…]", "a completion script for a shell, or what fits the last word (which the scripts ask)",
      "  reshard completion bash > /etc/bash_completion.d/reshard\n  reshard completion words -- convert a b --to ''\n", 1, 1 },
    { "help", "[VERB]", "the verbs, or the options of one", "  reshard help convert\n", 0, 1 },
};

bool option_is_viewing(enum verb verb)
{
    return (1u << verb & VIEWING) != 0;
}

bool options_row(size_t index, struct option_row *out)
{
    if (index >= ROW_COUNT)
        return false;
    *out = (struct option_row){ rows[index].name, rows[index].argument, rows[index].help, rows[index].short_name, rows[index].verbs };
    return true;
}

void options_overview(FILE *out)
{
    fputs("usage: reshard VERB [options] PATH...\n\nOpens any sharded deep-learning checkpoint, and saves it under any other layout or "
          "format.\n\n",
          out);
    for (int i = 0; i < VERB_COUNT; i++)
        fprintf(out, "  %-11s %s\n", verb_table[i].name, verb_table[i].summary);
    fputs("\nWhat is read may be a URL: https://, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/BLOB, hf://ORG/REPO.\n"
          "'reshard VERB --help' tells more. Exit status: 0 done or same, 1 differs or a check failed, 2 usage, 3 input/output,\n"
          "4 malformed input, 5 unsupported, 6 a limit was reached, 130 interrupted.\n",
          out);
}

void options_help(FILE *out, enum verb verb)
{
    const struct verb_info *info = &verb_table[verb];
    fprintf(out, "usage: reshard %s [options] %s\n\n%c%s.\n\n", info->name, info->arguments, info->summary[0] & ~0x20, info->summary + 1);
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!(rows[i].verbs & 1u << verb))
            continue;
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", rows[i].name, rows[i].argument ? " " : "", rows[i].argument ? rows[i].argument : "");
        if (rows[i].short_name)
            fprintf(out, "  -%c, %-36s %s\n", rows[i].short_name, left, rows[i].help);
        else
            fprintf(out, "      %-36s %s\n", left, rows[i].help);
    }
    fprintf(out, "\nexamples:\n%s", info->examples);
}

/* 5GB is 5·10^9, 5GiB is 5·2^30, plain numbers are bytes; 5gb is 5GB, as in other tools. */
static bool parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t factor;
    } units[] = {
        { "", 1 }, { "B", 1 }, { "KB", 1000 }, { "MB", 1000000 }, { "GB", 1000000000 }, { "TB", UINT64_C(1000000000000) },
        { "KiB", 1 << 10 }, { "MiB", 1 << 20 }, { "GiB", 1 << 30 }, { "TiB", UINT64_C(1) << 40 },
        { "K", 1 << 10 }, { "M", 1 << 20 }, { "G", 1 << 30 }, { "T", UINT64_C(1) << 40 },
    };
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    for (size_t i = 0; errno == 0 && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].unit) == 0)
            return !__builtin_mul_overflow((uint64_t)value, units[i].factor, out) && *out <= INT64_MAX;
    }
    return false;
}

/* Notes what is wrong. The first thing stays; it is printed when it is known whether as JSON. */
__attribute__((format(printf, 4, 5))) static void refuse(struct options *options, reshard_status status, const char *hint,
                                                         const char *format, ...)
{
    va_list args;
    if (options->failure.code)
        return;
    options->failure = (reshard_error){ .code = status, .offset = -1 };
    va_start(args, format);
    vsnprintf(options->failure.message, sizeof(options->failure.message), format, args);
    va_end(args);
    snprintf(options->failure.hint, sizeof(options->failure.hint), "%s", hint);
}

#define USAGE RESHARD_ERR_USAGE

static bool is_one_of(const char *value, const char *words)
{
    size_t size = strlen(value);
    for (const char *at = words; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, value, size) == 0 && (at[size] == '|' || at[size] == '\0'))
            return true;
    }
    return false;
}

static void store_number(struct options *options, const struct row *row, const char *value)
{
    void *field = (char *)options + row->field;
    char *end;
    errno = 0;
    uint64_t number = strtoull(value, &end, 10);
    const uint64_t most = row->kind == THREADS ? THREADS_MAX : row->kind == COUNT ? UINT_MAX : INT64_MAX;
    if (*value < '0' || *value > '9' || *end || errno || number > most)
        refuse(options, USAGE, "", "--%s: '%s' is not a number that fits", row->name, value);
    else if (row->kind != NUMBER)
        *(unsigned *)field = (unsigned)number;
    else
        *(int64_t *)field = (int64_t)number;
}

static void store_value(struct options *options, const struct row *row, const char *value)
{
    void *field = (char *)options + row->field;
    struct option_list *list = field;
    uint64_t bytes;
    switch (row->kind) {
    case FLAG:
        *(bool *)field = true;
        break;
    case WORD:
        if (!is_one_of(value, row->argument))
            refuse(options, USAGE, "", "--%s: '%s' is not one of %s", row->name, value, row->argument);
        *(const char **)field = value;
        break;
    case TEXT:
        *(const char **)field = value;
        break;
    case LIST:
        if (list->count == OPTION_LIST_MAX)
            refuse(options, USAGE, "", "--%s: given more than %d times", row->name, OPTION_LIST_MAX);
        else
            list->values[list->count++] = value;
        break;
    case BYTES:
        if (!parse_bytes(value, &bytes))
            refuse(options, USAGE, "", "--%s: '%s' is not a size such as 5GB or 64MiB", row->name, value);
        else
            *(int64_t *)field = (int64_t)bytes;
        break;
    case NUMBER:
    case COUNT:
    case THREADS:
        store_number(options, row, value);
        break;
    }
}

static void find_verb(const char *name, struct options *out)
{
    struct near_names near = { .word = name };
    char hint[256];
    for (int i = 0; i < VERB_COUNT; i++) {
        if (strcmp(name, verb_table[i].name) == 0) {
            out->verb = (enum verb)i;
            return;
        }
        near_names_offer(&near, verb_table[i].name);
    }
    refuse(out, USAGE, near_names_hint(&near, "'reshard --help' lists the verbs", hint, sizeof(hint)), "unknown verb '%s'", name);
}

/* NAME=VALUE pairs of --limit; values may carry a unit. */
static void read_limits(struct options *options)
{
    for (size_t i = 0; i < options->limits.count; i++) {
        const char *text = options->limits.values[i], *equals = strchr(text, '=');
        uint64_t value;
        if (!equals || !parse_bytes(equals + 1, &value)) {
            refuse(options, USAGE, "'reshard formats --limits' lists them", "--limit: '%s' is not NAME=VALUE", text);
            return;
        }
        char *name = strndup(text, (size_t)(equals - text));
        if (!name)
            refuse(options, RESHARD_ERR_MEMORY, "", "out of memory");
        options->limit_values[i] = (reshard_limit_change){ name, value };
    }
}

void options_release(struct options *options)
{
    for (size_t i = 0; i < options->limits.count; i++)
        free((char *)options->limit_values[i].name);
}

/* What others call these formats. */
static const char *const usual_formats[][2] = {
    { "dcp", "torch-dcp" },     { "dcp", "torch_dcp" },      { "fsdp", "torch-dcp" },   { "fsdp", "fsdp-ranks" },
    { "huggingface", "hf" },    { "hugging-face", "hf" },    { "transformers", "hf" },  { "pytorch", "torch" },
    { "pt", "torch" },          { "mcore", "torch_dist" },   { "megatron-core", "torch_dist" }, { "megatron-lm", "megatron" },
    { "flex", "paddle-flex" },  { "numpy", "npz" },
};

/* A format that is not there, or that cannot be written, is said before anything is opened. */
static void check_format_name(struct options *options, const char *name, bool is_written)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    struct near_names near = { .word = name };
    char hint[256];
    for (size_t i = 0; name && reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (strcmp(format.name, name) == 0)
            return;
        if (format.writes || !is_written)
            near_names_offer(&near, format.name);
    }
    for (size_t i = 0; name && i < sizeof(usual_formats) / sizeof(usual_formats[0]); i++)
        near_names_know(&near, usual_formats[i][0], usual_formats[i][1]);
    if (name)
        refuse(options, USAGE, near_names_hint(&near, "'reshard formats' lists them", hint, sizeof(hint)), "unknown format '%s'", name);
}

/* The rows that all of these verbs have, as getopt's tables. Long options return ROW_BASE + the row. */
#define ROW_BASE 1000

struct getopt_tables {
    struct option longs[ROW_COUNT + 1];
    char shorts[2 * ROW_COUNT + 3];
};

static void make_tables(unsigned verbs, struct getopt_tables *out)
{
    size_t used = 0, at = 0;
    *out = (struct getopt_tables){ 0 };
    out->shorts[at++] = ':';
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if ((rows[i].verbs & verbs) != verbs)
            continue;
        out->longs[used++] = (struct option){ rows[i].name, rows[i].argument ? required_argument : no_argument, NULL, (int)(ROW_BASE + i) };
        if (rows[i].short_name) {
            out->shorts[at++] = rows[i].short_name;
            if (rows[i].argument)
                out->shorts[at++] = ':';
        }
    }
}

/* What getopt did not take: an unknown option, or one without its value. */
static void refuse_option(struct options *out, int found, unsigned verbs, char **argv)
{
    struct near_names near = { .word = "", .prefix = "--" };
    char hint[256], usual[64], name[64];
    if (verbs == ANY)
        snprintf(usual, sizeof(usual), "options of a verb stand after it");
    else
        snprintf(usual, sizeof(usual), "'reshard %s --help' lists the options", verb_table[out->verb].name);
    if (optopt > 0 && optopt < ROW_BASE)
        snprintf(name, sizeof(name), "-%c", optopt);
    else
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(argv[optind - 1], "="), argv[optind - 1]);
    if (found == ':') {
        refuse(out, USAGE, usual, "no value for option '%s'", name);
    } else if (optopt >= ROW_BASE) {
        refuse(out, USAGE, usual, "option '--%s' takes no value", rows[optopt - ROW_BASE].name);
    } else {
        near.word = strncmp(name, "--", 2) == 0 ? name + 2 : "";
        for (size_t i = 0; i < ROW_COUNT; i++) {
            if ((rows[i].verbs & verbs) == verbs)
                near_names_offer(&near, rows[i].name);
        }
        refuse(out, USAGE, near_names_hint(&near, usual, hint, sizeof(hint)), "unknown option '%s'", name);
    }
}

/* Goes on behind what is wrong: whether errors are wanted as JSON may stand last. */
static void parse_rows(int argc, char **argv, unsigned verbs, struct options *out)
{
    struct getopt_tables tables;
    make_tables(verbs, &tables);
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, tables.shorts, tables.longs, NULL)) != -1;) {
        if (found == '?' || found == ':') {
            refuse_option(out, found, verbs, argv);
            continue;
        }
        size_t row = found >= ROW_BASE ? (size_t)found - ROW_BASE : 0;
        while (found < ROW_BASE && !(rows[row].short_name == found && (rows[row].verbs & verbs) == verbs))
            row++;
        store_value(out, &rows[row], optarg);
    }
}

/* Moves the verb before the options that stand before it. Returns whether there is one. */
static bool bring_verb_forward(int argc, char **argv, struct options *out)
{
    struct getopt_tables tables;
    char shorts[sizeof(tables.shorts) + 1] = "+";
    make_tables(ANY, &tables);
    strcat(shorts, tables.shorts);
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, shorts, tables.longs, NULL)) != -1;) {
        if (found == '?' || found == ':')
            refuse_option(out, found, ANY, argv);
    }
    if (optind >= argc)
        return false;
    char *verb = argv[optind];
    memmove(argv + 2, argv + 1, (size_t)(optind - 1) * sizeof(*argv));
    argv[1] = verb;
    return true;
}

static void take_paths(int argc, char **argv, struct options *out)
{
    const struct verb_info *info = &verb_table[out->verb];
    char hint[128];
    for (; optind < argc; optind++) {
        snprintf(hint, sizeof(hint), "usage: reshard %s [options] %s", info->name, info->arguments);
        if (out->path_count == info->paths_max && strstr(info->arguments, "[WORD…]"))
            return; /* what is behind "--" is not ours */
        bool is_glob = out->path_count == info->paths_max && strstr(info->arguments, "GLOB");
        if (is_glob && out->include.count < OPTION_LIST_MAX) /* more of --include */
            out->include.values[out->include.count++] = argv[optind];
        else if (out->path_count == info->paths_max)
            refuse(out, USAGE, hint, "unexpected argument '%s'", shown_path(argv[optind]));
        else
            out->paths[out->path_count++] = argv[optind];
        out->rest = (const char *const *)argv + optind + 1;
    }
    snprintf(hint, sizeof(hint), "'reshard %s --help' shows examples", info->name);
    if (out->path_count < info->paths_min)
        refuse(out, USAGE, hint, "%s needs %s", info->name, info->arguments);
}

/* '-' is standard input where a verb opens a checkpoint, and standard output as the target of convert, and nothing elsewhere. */
static void check_streams(struct options *out)
{
    const enum verb verb = out->verb;
    const char *first = out->path_count > 0 && verb != VERB_MAP ? out->paths[0] : NULL;
    const struct {
        const char *what, *value;
    } others[] = { { "--like", out->like },
                   { "--against", out->against },
                   { "--missing", out->missing },
                   { "--source", out->source },
                   { "--target", out->target },
                   { "--latest-good", out->latest_good ? first : NULL },
                   { "commit", verb == VERB_COMMIT ? first : NULL },
                   { "the target of salvage", verb == VERB_SALVAGE && out->path_count > 1 ? out->paths[1] : NULL } };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (others[i].value && strcmp(others[i].value, "-") == 0)
            refuse(out, USAGE, "'-' is a checkpoint that a verb reads, or the target of convert; './-' is a file of that name",
                   "%s: '-' does not stand for a stream here", others[i].what);
    }
}

/* Without a verb there are only --help and --version. */
static int parse_without_verb(int argc, char **argv, struct options *out)
{
    parse_rows(argc, argv, ANY, out);
    if (out->failure.code)
        return print_error(out, out->failure.code, &out->failure);
    if (out->version)
        printf("reshard %s\n", reshard_version());
    else if (out->help)
        options_overview(stdout);
    else if (argc > 1)
        return print_failure(out, USAGE, "'reshard --help' lists the verbs", "no verb is given");
    else
        options_overview(stderr);
    return out->version || out->help ? 0 : reshard_status_exit(USAGE);
}

int options_parse(int argc, char **argv, struct options *out)
{
    *out = (struct options){ .iteration = -1, .max_shard_bytes = -1, .words = (const char *const *)argv };
    if (!bring_verb_forward(argc, argv, out))
        return parse_without_verb(argc, argv, out);
    find_verb(argv[1], out);
    parse_rows(argc - 1, argv + 1, out->failure.code ? ANY : 1u << out->verb, out);
    if (!out->failure.code && out->version)
        return parse_without_verb(1, argv, out);
    if (!out->failure.code && out->help) {
        options_help(stdout, out->verb);
        return 0;
    }
    if (!out->failure.code)
        take_paths(argc - 1, argv + 1, out);
    check_streams(out);
    check_format_name(out, out->to, true);
    check_format_name(out, out->format, false);
    read_limits(out);
    if (out->failure.code)
        return print_error(out, out->failure.code, &out->failure);
    return -1;
}

reshard_open_options options_open(const struct options *options)
{
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    open.format = options->format;
    open.has_iteration = options->iteration >= 0;
    open.iteration = open.has_iteration ? options->iteration : 0;
    open.limits = options->limit_values;
    open.limit_count = options->limits.count;
    open.follow_links = options->follow_links;
    open.lenient = options->lenient;
    /* Who only looks sees the rest, and that something is missing. */
    open.skip_unsupported = options->verb == VERB_INSPECT || options->verb == VERB_LS || options->verb == VERB_VERIFY ||
                            options->verb == VERB_DRAW;
    open.shows_damage = open.skip_unsupported && !options->diff;
    return open;
}
