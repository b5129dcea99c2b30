/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/source_root.h"

#include <inttypes.h>
#include <stdio.h>

#define TRACKER_BYTES_MAX 4096
#define ITERATIONS_SHOWN 8
#define STEP_NAME_BYTES 4096

/* What the sub-directories of a root are called: the prefix, then a number. */
static const char *const root_prefixes[] = { "iter_", "global_step_", "global_step", "checkpoint-", "step-", "step_" };

#define ROOT_PREFIX_COUNT (sizeof(root_prefixes) / sizeof(root_prefixes[0]))

/* Items of a step of Orbax that are the state, in the order of looking; the file that each has. */
static const char *const orbax_items[] = { "default", "state", "items", "params", "model", "pytree" };

#define ORBAX_ITEM_COUNT (sizeof(orbax_items) / sizeof(orbax_items[0]))
#define ORBAX_TREE "_METADATA"

struct root_listing {
    struct store *store;
    const struct store_entry *entries;
    size_t count;
};

/* The number that the text from there on is, with or without zeros before it. */
static bool root_number_at(struct str text, size_t start, int64_t *out)
{
    uint64_t number;
    while (start + 1 < text.size && text.data[start] == '0')
        start++;
    if (!str_to_u64((struct str){ text.data + start, text.size - start }, &number) || number > INT64_MAX)
        return false;
    *out = (int64_t)number;
    return true;
}

/* The number of a sub-directory such as iter_0000010; false if it is called otherwise. */
static bool iteration_of(struct str base, int64_t *out)
{
    for (size_t i = 0; i < ROOT_PREFIX_COUNT; i++) {
        if (str_starts_with(base, root_prefixes[i]) && root_number_at(base, strlen(root_prefixes[i]), out))
            return true;
    }
    return false;
}

bool root_is_iteration(struct str name)
{
    int64_t number;
    return iteration_of(name, &number);
}

static bool entry_holds(const struct root_listing *listing, size_t index, const char *file)
{
    char name[STEP_NAME_BYTES];
    int length = snprintf(name, sizeof(name), "%.*s/%s", STR_ARG(listing->entries[index].name), file);
    return length > 0 && (size_t)length < sizeof(name) && store_is_file(listing->store, name);
}

/*
 * The number of a step of Orbax, at the end of a name with or without zeros before it: 100, 00000100, checkpoint_100, any_prefix_00100.
 * What lies in the folder must tell it from others.
 */
static bool orbax_number_of(struct str base, int64_t *out)
{
    size_t start = base.size;
    while (start && base.data[start - 1] >= '0' && base.data[start - 1] <= '9')
        start--;
    if (start && base.data[start - 1] != '_')
        return false;
    return root_number_at(base, start, out);
}

/* Whether a folder is a step of Orbax: marked as one, the state itself as flax saves it, or, as of older versions, with its items. */
static bool is_orbax_step(const struct root_listing *listing, size_t index)
{
    char name[sizeof("default/_METADATA")];
    if (entry_holds(listing, index, "_CHECKPOINT_METADATA") || entry_holds(listing, index, ORBAX_TREE) ||
        entry_holds(listing, index, "manifest.ocdbt"))
        return true;
    for (size_t i = 0; i < ORBAX_ITEM_COUNT; i++) {
        snprintf(name, sizeof(name), "%s/" ORBAX_TREE, orbax_items[i]);
        if (entry_holds(listing, index, name))
            return true;
    }
    return false;
}

/* The number that an entry has if it is an iteration's; *is_sure: its name suffices, else what is in it decides. */
static bool entry_number(const struct root_listing *listing, size_t index, int64_t *out, bool *is_sure)
{
    struct str base = str_base_name(listing->entries[index].name);
    *is_sure = iteration_of(base, out);
    return listing->entries[index].is_directory && (*is_sure || orbax_number_of(base, out));
}

/* The number of an entry that is an iteration's. */
static bool entry_iteration(const struct root_listing *listing, size_t index, int64_t *out)
{
    bool is_sure;
    return entry_number(listing, index, out, &is_sure) && (is_sure || is_orbax_step(listing, index));
}

static bool choose_entry(const struct root_listing *listing, size_t index, int64_t iteration, struct arena *arena, struct root_choice *out)
{
    struct str name = listing->entries[index].name;
    out->name = arena_copy(arena, name.data, name.size);
    out->iteration = iteration;
    out->before = -1;
    for (size_t i = 0; i < listing->count; i++) {
        int64_t number;
        if (i != index && entry_iteration(listing, i, &number) && number < iteration && number > out->before)
            out->before = number;
    }
    return out->name != NULL;
}

/* Index of the sub-directory with this number, or of the highest number if iteration is -1; listing->count if there is none. */
static size_t find_iteration(const struct root_listing *listing, int64_t iteration)
{
    size_t best = listing->count;
    int64_t best_number = -1;
    for (size_t i = 0; i < listing->count; i++) {
        int64_t number;
        bool is_sure;
        if (!entry_number(listing, i, &number, &is_sure) || (iteration >= 0 ? number != iteration : number <= best_number))
            continue;
        if (!is_sure && !is_orbax_step(listing, i)) /* looked at only where it would be chosen */
            continue;
        if (iteration >= 0)
            return i;
        best_number = number;
        best = i;
    }
    return best;
}

static void hint_iterations(const struct root_listing *listing, reshard_error *err)
{
    char text[ITERATIONS_SHOWN * 24] = "";
    size_t size = 0, shown = 0;
    for (size_t i = 0; i < listing->count && shown < ITERATIONS_SHOWN; i++) {
        int64_t number;
        if (entry_iteration(listing, i, &number)) {
            size += (size_t)snprintf(text + size, sizeof(text) - size, "%s%" PRId64, shown ? ", " : "", number);
            shown++;
        }
    }
    if (shown)
        error_hint(err, "iterations here: %s%s", text, shown == ITERATIONS_SHOWN ? ", …" : "");
}

static reshard_status choose_wanted(const struct root_listing *listing, int64_t iteration, struct arena *arena, struct root_choice *out,
                                    reshard_error *err)
{
    size_t found = find_iteration(listing, iteration);
    if (found < listing->count)
        return choose_entry(listing, found, iteration, arena, out) ? RESHARD_OK : error_set_memory(err);
    error_set(err, RESHARD_ERR_USAGE, "there is no iteration %" PRId64, iteration);
    hint_iterations(listing, err);
    return RESHARD_ERR_USAGE;
}

static struct str trimmed(struct str text)
{
    while (text.size && strchr(" \t\r\n", text.data[text.size - 1]))
        text.size--;
    while (text.size && strchr(" \t\r\n", text.data[0]))
        text = (struct str){ text.data + 1, text.size - 1 };
    return text;
}

/* Reads a tracker file if the directory has one: *text is what it says, empty if there is none. */
static reshard_status read_tracker(struct store *store, const char *directory, const char *name, struct buffer *bytes, struct arena *arena,
                                   struct str *text, reshard_error *err)
{
    *text = (struct str){ 0 };
    char *path = store_join(arena, directory, str_of(name));
    if (!path)
        return error_set_memory(err);
    if (!store_is_file(store, path))
        return RESHARD_OK;
    buffer_clear(bytes);
    reshard_status status = store_read_all(store, path, AT_MOST(TRACKER_BYTES_MAX), bytes, err);
    if (!status)
        *text = trimmed(buffer_str(bytes));
    return status;
}

static size_t find_directory(const struct root_listing *listing, struct str base)
{
    for (size_t i = 0; i < listing->count; i++)
        if (listing->entries[i].is_directory && str_equal(str_base_name(listing->entries[i].name), base))
            return i;
    return listing->count;
}

/* What a tracker says is a number ("10"), or the name of a sub-directory ("release", "global_step10"). */
static reshard_status choose_tracked(const struct root_listing *listing, const char *tracker, struct str text, struct arena *arena,
                                     struct root_choice *out, reshard_error *err)
{
    uint64_t number;
    int64_t iteration = -1;
    size_t found;
    if (str_to_u64(text, &number) && number <= INT64_MAX) {
        iteration = (int64_t)number;
        found = find_iteration(listing, iteration);
    } else {
        found = find_directory(listing, text);
        if (!iteration_of(text, &iteration))
            iteration = -1;
    }
    if (found < listing->count)
        return choose_entry(listing, found, iteration, arena, out) ? RESHARD_OK : error_set_memory(err);
    error_set(err, RESHARD_ERR_FORMAT, "%s says '%.*s', but there is no such sub-directory", tracker, STR_ARG(text));
    error_object(err, "%s", tracker);
    hint_iterations(listing, err);
    error_hint(err, "reshard_open_options.iteration N picks another");
    return RESHARD_ERR_FORMAT;
}

/*
 * Sub-directories that hold the one checkpoint of a root without iterations: a release, the weights of NeMo 2 and NeMo 1, which are
 * distributed checkpoints, or the item of one of Orbax's steps that is the state.
 */
static reshard_status choose_only(const struct root_listing *listing, struct arena *arena, struct root_choice *out, reshard_error *err)
{
    static const struct {
        const char *name;
        const char *file; /* that must lie in it, NULL: none */
    } known[] = { { "release", NULL }, { "weights", "metadata.json" }, { "model_weights", "metadata.json" } };
    const size_t known_count = sizeof(known) / sizeof(known[0]);
    for (size_t i = 0; i < known_count + ORBAX_ITEM_COUNT; i++) {
        size_t found = find_directory(listing, str_of(i < known_count ? known[i].name : orbax_items[i - known_count]));
        const char *file = i < known_count ? known[i].file : ORBAX_TREE;
        if (found < listing->count && (!file || entry_holds(listing, found, file)))
            return choose_entry(listing, found, -1, arena, out) ? RESHARD_OK : error_set_memory(err);
    }
    return RESHARD_OK;
}

static reshard_status choose_latest(struct store *store, const char *directory, const struct root_listing *listing, struct arena *arena,
                                    struct root_choice *out, reshard_error *err)
{
    static const char *const trackers[] = { "latest_checkpointed_iteration.txt", "latest", "latest_universal" };
    struct buffer bytes = { 0 };
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < sizeof(trackers) / sizeof(trackers[0]); i++) {
        struct str text;
        status = read_tracker(store, directory, trackers[i], &bytes, arena, &text, err);
        if (status)
            goto out;
        if (text.size) {
            status = choose_tracked(listing, trackers[i], text, arena, out, err);
            goto out;
        }
    }
    size_t highest = find_iteration(listing, -1);
    if (highest == listing->count) {
        status = choose_only(listing, arena, out, err);
        goto out;
    }
    int64_t iteration = -1;
    entry_iteration(listing, highest, &iteration);
    out->is_guess = true;
    if (!choose_entry(listing, highest, iteration, arena, out))
        status = error_set_memory(err);

out:
    buffer_release(&bytes);
    return status;
}

reshard_status root_choose(struct store *store, const char *directory, int64_t iteration, struct arena *arena, struct root_choice *out,
                           reshard_error *err)
{
    struct root_choice choice = { .iteration = -1 };
    struct store_entry *entries;
    size_t count;
    reshard_status status = store_list(store, directory, arena, &entries, &count, err);
    if (status)
        return status;
    struct root_listing listing = { store, entries, count };
    if (iteration >= 0)
        status = choose_wanted(&listing, iteration, arena, &choice, err);
    else
        status = choose_latest(store, directory, &listing, arena, &choice, err);
    if (!status)
        *out = choice;
    return status;
}
