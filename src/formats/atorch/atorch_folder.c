/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing marks a checkpoint as complete, and a save with another number of ranks leaves the old files behind: the names alone must show
 * that every rank is there once, and nobody else.
 */
#include "formats/atorch/atorch_source.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define DIGITS_MIN 5
#define RANKS_A_FILE_MAX 8 /* a folder of still fewer files has not lost some: its number of ranks is wrong */

static const char *const stems[] = { "flat_param", "flat_meta", "optim_param", "buffers", "ckpt_meta", "optim_meta" };

const char *atorch_file_stem(enum atorch_file_kind kind)
{
    return stems[kind];
}

/* Five digits, or more without a leading zero. */
static bool folder_number(struct str text, uint64_t *out)
{
    size_t zeros = 0;
    while (zeros + 1 < text.size && text.data[zeros] == '0')
        zeros++;
    bool is_padded = text.size == DIGITS_MIN || (text.size > DIGITS_MIN && zeros == 0);
    return is_padded && str_to_u64((struct str){ text.data + zeros, text.size - zeros }, out);
}

enum atorch_file_kind atorch_file_of(struct str name, uint64_t *rank, uint64_t *world)
{
    for (int kind = 0; kind < ATORCH_BESIDE; kind++) {
        size_t stem = strlen(stems[kind]), dash;
        if (kind >= ATORCH_RANK_FILES && str_is(name, stems[kind]))
            return (enum atorch_file_kind)kind;
        if (kind >= ATORCH_RANK_FILES || !str_starts_with(name, stems[kind]) || name.size <= stem || name.data[stem] != '.')
            continue;
        struct str rest = { name.data + stem + 1, name.size - stem - 1 };
        if (str_find_char(rest, '-', &dash) && folder_number((struct str){ rest.data, dash }, rank) &&
            folder_number((struct str){ rest.data + dash + 1, rest.size - dash - 1 }, world))
            return (enum atorch_file_kind)kind;
    }
    return ATORCH_BESIDE;
}

struct folder_reading {
    struct atorch_folder *folder;
    const struct store_entry *entries;
    size_t count;
    uint64_t world;
    const struct store_entry *first; /* the file that said world first */
    size_t room; /* ranks that tables are made for: all, unless they are too many for as few files */
    reshard_error *err;
};

/* All files of ranks say the same number of them. */
static reshard_status folder_find_world(struct folder_reading *reading, uint32_t counts[ATORCH_RANK_FILES])
{
    for (size_t i = 0; i < reading->count; i++) {
        const struct store_entry *entry = &reading->entries[i];
        uint64_t rank, world;
        struct str base = str_base_name(entry->name);
        enum atorch_file_kind kind = entry->is_directory ? ATORCH_BESIDE : atorch_file_of(base, &rank, &world);
        if (kind >= ATORCH_RANK_FILES)
            continue;
        if (!reading->first) {
            reading->first = entry;
            reading->world = world;
        }
        if (world != reading->world) {
            struct str first = str_base_name(reading->first->name);
            error_set(reading->err, RESHARD_ERR_FORMAT,
                      "files of two world sizes lie in one directory: '%.*s' of %" PRIu64 " ranks and '%.*s' of %" PRIu64, STR_ARG(first),
                      reading->world, STR_ARG(base), world);
            error_hint(reading->err, "a save by another number of ranks leaves old files behind: move those of one of them away");
            return RESHARD_ERR_FORMAT;
        }
        if (rank >= world)
            return error_set(reading->err, RESHARD_ERR_FORMAT, "'%.*s' is of rank %" PRIu64 " of %" PRIu64, STR_ARG(base), rank, world);
        counts[kind]++;
    }
    return RESHARD_OK;
}

/* The first rank without a file of the kind. */
static reshard_status folder_missing(const struct folder_reading *reading, enum atorch_file_kind kind)
{
    struct atorch_folder *folder = reading->folder;
    uint64_t rank = 0;
    while (folder->ranked[kind] && rank < reading->room && folder->ranked[kind][rank])
        rank++;
    error_set(reading->err, RESHARD_ERR_FORMAT, "'%s.%05" PRIu64 "-%05" PRIu64 "' is missing", stems[kind], rank, reading->world);
    error_object(reading->err, "%s.%05" PRIu64 "-%05" PRIu64, stems[kind], rank, reading->world);
    return RESHARD_ERR_FORMAT;
}

/* Files of the kind are gone, and the rest is to be read: their ranks are lost. Where too little is left, that is an error. */
static reshard_status folder_bear(const struct folder_reading *reading, enum atorch_file_kind kind, struct catalog *catalog)
{
    struct atorch_folder *folder = reading->folder;
    uint32_t ranks = (uint32_t)reading->world, missing = 0, first = 0, lost = 0;
    if (reading->room != reading->world || (!folder->ranked[kind] && kind != ATORCH_OPTIM))
        return folder_missing(reading, kind);
    if (!folder->is_lost && !(folder->is_lost = arena_zalloc(&folder->arena, ranks)))
        return error_set_memory(reading->err);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        bool is_missing = !folder->ranked[kind] || !folder->ranked[kind][rank];
        first = is_missing && !missing++ ? rank : first;
        folder->is_lost[rank] |= is_missing && kind != ATORCH_OPTIM;
        lost += folder->is_lost[rank];
    }
    if (lost == ranks)
        return folder_missing(reading, kind);
    catalog_warn_lost(catalog, (struct str){ 0 },
                      "%" PRIu32 " of %" PRIu32 " files %s are missing, the first is '%s.%05" PRIu32 "-%05" PRIu32
                      "': what only they held is lost", missing, ranks, stems[kind], stems[kind], first, ranks);
    return RESHARD_OK;
}

static reshard_status folder_sort(struct folder_reading *reading, const uint32_t counts[ATORCH_RANK_FILES])
{
    struct atorch_folder *folder = reading->folder;
    folder->beside = arena_array(&folder->arena, reading->count, sizeof(const struct store_entry *));
    reading->room = reading->world / RANKS_A_FILE_MAX <= reading->count ? (size_t)reading->world : reading->count;
    for (int kind = 0; kind < ATORCH_RANK_FILES; kind++) {
        size_t bytes = (reading->room + 1) * sizeof(const struct store_entry *);
        if (counts[kind] && !(folder->ranked[kind] = arena_zalloc(&folder->arena, bytes)))
            return error_set_memory(reading->err);
    }
    if (!folder->beside)
        return error_set_memory(reading->err);
    for (size_t i = 0; i < reading->count; i++) {
        const struct store_entry *entry = &reading->entries[i];
        uint64_t rank, world;
        enum atorch_file_kind kind = atorch_file_of(str_base_name(entry->name), &rank, &world);
        if (entry->is_directory)
            continue;
        if (kind == ATORCH_BESIDE)
            folder->beside[folder->beside_count++] = entry;
        else if (kind >= ATORCH_RANK_FILES)
            folder->single[kind] = entry;
        else if (rank < reading->room)
            folder->ranked[kind][rank] = entry;
    }
    return RESHARD_OK;
}

/* Files of other names that atorch's own loader, which asks for a beginning only, would take for ranks' files. */
static void folder_warn(const struct folder_reading *reading, struct catalog *catalog)
{
    for (uint32_t i = 0; i < reading->folder->beside_count; i++) {
        struct str base = str_base_name(reading->folder->beside[i]->name);
        for (int kind = 0; kind < ATORCH_RANK_FILES; kind++) {
            if (str_starts_with(base, stems[kind]))
                catalog_warn(catalog, false, "'%.*s' is no file of a rank; atorch itself would take it for one", STR_ARG(base));
        }
    }
}

reshard_status atorch_folder_read(const struct source *source, struct atorch_folder *out, reshard_error *err)
{
    struct folder_reading reading = { .folder = out, .err = err };
    uint32_t counts[ATORCH_RANK_FILES] = { 0 };
    struct store_entry *entries;
    reshard_status status = store_list(source->store, source->name, &out->arena, &entries, &reading.count, err);
    if (status)
        return status;
    reading.entries = entries;
    status = folder_find_world(&reading, counts);
    if (!status)
        status = folder_sort(&reading, counts);
    if (status)
        return status;
    for (int kind = 0; kind < ATORCH_RANK_FILES && !status; kind++) {
        bool is_wanted = counts[kind] || (kind != ATORCH_OPTIM && (counts[ATORCH_PARAM] || counts[ATORCH_META])) ||
                         (kind == ATORCH_OPTIM && out->single[ATORCH_OPTIM_META] && reading.world);
        if (is_wanted && counts[kind] != reading.world)
            status = source_bears_loss(source) ? folder_bear(&reading, (enum atorch_file_kind)kind, source->catalog)
                                               : folder_missing(&reading, (enum atorch_file_kind)kind);
    }
    out->ranks = (uint32_t)reading.world; /* no more than there are files, or RANKS_A_FILE_MAX for each; else one is missing */
    if (!status)
        folder_warn(&reading, source->catalog);
    return status;
}

void atorch_folder_release(struct atorch_folder *folder)
{
    arena_release(&folder->arena);
    *folder = (struct atorch_folder){ 0 };
}
