/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/fsdp_groups.h"

#include "formats/shared/accelerate_names.h"
#include "formats/source_probe.h"

#include <inttypes.h>
#include <stdlib.h>

#define RANKS_MAX 1000000

static bool fsdp_groups_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* accelerate's full state dicts. */
static bool parse_full(struct str name, struct fsdp_file *out)
{
    struct str stem = { name.data, name.size - 4 };
    uint32_t number;
    if (!str_ends_with(name, ".bin") ||
        (!accelerate_number(stem, ACCELERATE_MODEL, &number) && !accelerate_number(stem, ACCELERATE_OPTIMIZER, &number)))
        return false;
    *out = (struct fsdp_file){ .name = name, .prefix = stem, .extension = STR(".bin") };
    return true;
}

bool fsdp_file_parse(struct str name, struct fsdp_file *out)
{
    static const char *const extensions[] = { ".pt", ".bin", ".pth", ".ckpt" };
    struct str extension = { 0 };
    if (parse_full(name, out))
        return true;
    for (size_t i = 0; i < sizeof(extensions) / sizeof(*extensions) && !extension.size; i++)
        if (str_ends_with(name, extensions[i]))
            extension = str_of(extensions[i]);
    size_t end = name.size - extension.size, digits = end;
    while (digits > 0 && fsdp_groups_is_digit(name.data[digits - 1]))
        digits--;
    size_t word = digits;
    if (word > 0 && name.data[word - 1] == '_')
        word--;
    if (!extension.size || digits == end || end - digits > 7 || word < 4 || memcmp(name.data + word - 4, "rank", 4) != 0)
        return false;
    uint32_t rank = 0;
    for (size_t i = digits; i < end; i++)
        rank = rank * 10 + (uint32_t)(name.data[i] - '0');
    *out = (struct fsdp_file){ .name = name, .prefix = { name.data, word - 4 }, .extension = extension, .rank = rank };
    return rank < RANKS_MAX;
}

bool fsdp_item_file_parse(struct str name, struct fsdp_file *out)
{
    static const char extension[] = ".pt";
    size_t end = name.size - (sizeof(extension) - 1), digits = end;
    uint64_t rank;
    if (!str_ends_with(name, extension))
        return false;
    while (digits > 0 && fsdp_groups_is_digit(name.data[digits - 1]))
        digits--;
    if (digits < 2 || name.data[digits - 1] != '_' || !str_to_u64((struct str){ name.data + digits, end - digits }, &rank))
        return false;
    *out = (struct fsdp_file){ .name = name, .prefix = { name.data, digits - 1 }, .extension = STR(".pt"), .rank = (uint32_t)rank };
    return rank < RANKS_MAX;
}

/* "model_world_size_4_" says 4; 0 if nothing is said. */
static uint32_t said_world(struct str prefix)
{
    static const char word[] = "world_size_";
    const char *found = memmem(prefix.data, prefix.size, word, sizeof(word) - 1);
    uint32_t world = 0;
    if (found)
        for (const char *c = found + sizeof(word) - 1; c < prefix.data + prefix.size && fsdp_groups_is_digit(*c) && world < RANKS_MAX; c++)
            world = world * 10 + (uint32_t)(*c - '0');
    return world;
}

enum fsdp_kind fsdp_file_kind(const struct fsdp_file *file)
{
    if (str_starts_with(file->prefix, "model") || str_starts_with(file->prefix, "pytorch_model"))
        return FSDP_MODEL;
    if (str_starts_with(file->prefix, "optim"))
        return FSDP_OPTIMIZER;
    return str_starts_with(file->prefix, "extra") ? FSDP_EXTRA : FSDP_OTHER;
}

static int fsdp_groups_file_order(const void *a, const void *b)
{
    const struct fsdp_file *x = a, *y = b;
    int order = (int)fsdp_file_kind(x) - (int)fsdp_file_kind(y); /* the model first, so that its order is the checkpoint's */
    if (!order)
        order = str_compare(x->prefix, y->prefix);
    if (!order)
        order = str_compare(x->extension, y->extension);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

static bool is_same_group(const struct fsdp_file *a, const struct fsdp_file *b)
{
    return str_equal(a->prefix, b->prefix) && str_equal(a->extension, b->extension);
}

static reshard_status check_group(struct fsdp_group *group, bool may_lack, reshard_error *err)
{
    const struct fsdp_file *first = &group->files[0];
    uint32_t world = said_world(first->prefix), last = group->files[group->count - 1].rank;
    group->world = world > last ? world : last + 1;
    for (uint32_t i = 0; i < group->count; i++) {
        if (!may_lack && group->files[i].rank > i)
            return error_set(err, RESHARD_ERR_FORMAT, "the file of rank %" PRIu32 " beside '%.*s' is missing", i, STR_ARG(first->name));
        if (i > 0 && group->files[i].rank == group->files[i - 1].rank)
            return error_set(err, RESHARD_ERR_FORMAT, "two files of rank %" PRIu32 ", one is '%.*s'", group->files[i].rank,
                             STR_ARG(group->files[i].name));
    }
    if (world > 0 && world != group->count && (!may_lack || world < group->count))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' says %" PRIu32 " ranks, but there are %" PRIu32 " files", STR_ARG(first->name),
                         world, group->count);
    return RESHARD_OK;
}

/* Two groups of one kind for different world sizes are the remains of two runs. */
static reshard_status check_worlds(const struct fsdp_groups *groups, reshard_error *err)
{
    for (uint32_t i = 1; i < groups->count; i++) {
        const struct fsdp_file *a = &groups->groups[i - 1].files[0], *b = &groups->groups[i].files[0];
        const char *word_a = memmem(a->prefix.data, a->prefix.size, "world_size_", 11),
                   *word_b = memmem(b->prefix.data, b->prefix.size, "world_size_", 11);
        if (!word_a || !word_b || said_world(a->prefix) == said_world(b->prefix))
            continue;
        if (str_equal((struct str){ a->prefix.data, (size_t)(word_a - a->prefix.data) },
                      (struct str){ b->prefix.data, (size_t)(word_b - b->prefix.data) }))
            return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' and '%.*s' are of different world sizes", STR_ARG(a->name), STR_ARG(b->name));
    }
    return RESHARD_OK;
}

static reshard_status list_files(struct store *store, const char *directory, bool (*parse)(struct str name, struct fsdp_file *out),
                                 struct arena *arena, struct fsdp_file **out, size_t *count, reshard_error *err)
{
    struct store_entry *entries;
    size_t entry_count = 0;
    *count = 0;
    reshard_status status = store_list(store, directory, arena, &entries, &entry_count, err);
    if (status)
        return status;
    *out = arena_array(arena, entry_count, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    for (size_t i = 0; i < entry_count; i++) {
        struct str name = entries[i].name;
        if (entries[i].is_directory || !parse(str_base_name(name), &(*out)[*count]))
            continue;
        (*out)[(*count)++].name = name;
    }
    return RESHARD_OK;
}

/* Whether files of ranks lie in the folder. What cannot be listed has none; without memory nobody knows. */
static reshard_status look_for_rank_files(struct store *store, const char *directory, struct arena *arena, bool *out, reshard_error *err)
{
    reshard_error seen = { 0 };
    struct fsdp_file *files;
    size_t count;
    reshard_status status = list_files(store, directory, fsdp_file_parse, arena, &files, &count, &seen);
    *out = !status && count > 0;
    return status == RESHARD_ERR_MEMORY ? error_set_memory(err) : RESHARD_OK;
}

char *fsdp_folder_find(struct store *store, const char *name, struct arena *arena, const char **other, reshard_error *err)
{
    static const char *const roles[] = { "actor", "critic", "ref", "reward" };
    char *found = arena_printf(arena, "%s", name);
    bool is_chosen = name[0] && !store_is_directory(store, name), has_roles = false;
    *other = NULL;
    reshard_status status = found ? RESHARD_OK : error_set_memory(err);
    if (!status && !is_chosen)
        status = look_for_rank_files(store, name, arena, &is_chosen, err);
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles) && !status && !is_chosen && !*other; i++) {
        char *folder = store_join(arena, name, str_of(roles[i]));
        bool is_one = false;
        if (!folder)
            status = error_set_memory(err);
        else if (store_is_directory(store, folder))
            status = look_for_rank_files(store, folder, arena, &is_one, err);
        if (!is_one)
            continue;
        *other = has_roles ? roles[i] : NULL;
        found = has_roles ? found : folder;
        has_roles = true;
    }
    return status ? NULL : found;
}

/* Directory part of a name, in the arena. */
static char *directory_of(struct arena *arena, const char *name)
{
    const struct str folder = str_without_slashes(str_folder(str_of(name)));
    return arena_copy(arena, folder.data, folder.size);
}

static reshard_status group_files(const struct fsdp_file *files, size_t count, const struct fsdp_file *only, bool may_lack,
                                  struct fsdp_groups *out, reshard_error *err)
{
    out->groups = arena_array(&out->arena, count, sizeof(*out->groups));
    if (!out->groups)
        return error_set_memory(err);
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && is_same_group(&files[begin], &files[end]);)
            end++;
        if (!only || is_same_group(&files[begin], only))
            out->groups[out->count++] = (struct fsdp_group){ .files = &files[begin], .count = (uint32_t)(end - begin) };
    }
    reshard_status status = check_worlds(out, err);
    for (uint32_t i = 0; !status && i < out->count; i++)
        status = check_group(&out->groups[i], may_lack, err);
    return status;
}

bool fsdp_model_number(const struct fsdp_file *file, uint32_t *out)
{
    return accelerate_number(file->prefix, ACCELERATE_MODEL, out);
}

/* Of accelerate's models the first one alone, with its own optimizer. */
static size_t keep_first_model(struct fsdp_file *files, size_t count)
{
    uint32_t first = UINT32_MAX, number;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (fsdp_model_number(&files[i], &number) && number < first)
            first = number;
    for (size_t i = 0; i < count; i++) {
        bool is_numbered = fsdp_model_number(&files[i], &number) || accelerate_number(files[i].prefix, ACCELERATE_OPTIMIZER, &number);
        if (!is_numbered || number == first || (first == UINT32_MAX && number == 0))
            files[kept++] = files[i];
    }
    return kept;
}

reshard_status fsdp_groups_find(struct store *store, const char *name, bool may_lack, struct fsdp_groups *out, reshard_error *err)
{
    struct fsdp_groups found = { 0 };
    struct fsdp_file *files = NULL, only;
    size_t count = 0;
    const char *directory = name;
    bool is_file = store_is_file(store, name);
    reshard_status status = RESHARD_OK;
    if (is_file) {
        directory = directory_of(&found.arena, name);
        if (!directory)
            status = error_set_memory(err);
        else if (!fsdp_file_parse(str_base_name(str_of(name)), &only))
            status = error_set(err, RESHARD_ERR_FORMAT, "'%s' is not the file of one rank: no \"rank_N\" before its extension", name);
    }
    if (!status)
        status = list_files(store, directory, fsdp_file_parse, &found.arena, &files, &count, err);
    if (!status && !is_file)
        count = keep_first_model(files, count);
    if (!status && count > 0)
        qsort(files, count, sizeof(*files), fsdp_groups_file_order);
    if (!status)
        status = group_files(files, count, is_file ? &only : NULL, may_lack, &found, err);
    if (status) {
        arena_release(&found.arena);
        return status;
    }
    *out = found;
    return RESHARD_OK;
}

reshard_status fsdp_item_groups_find(struct store *store, const char *directory, uint32_t world, bool may_lack, struct fsdp_groups *out,
                                     reshard_error *err)
{
    struct fsdp_file *files = NULL;
    size_t count = 0;
    reshard_status status = list_files(store, directory, fsdp_item_file_parse, &out->arena, &files, &count, err);
    if (!status && count > 0)
        qsort(files, count, sizeof(*files), fsdp_groups_file_order);
    if (!status)
        status = group_files(files, count, NULL, may_lack, out, err);
    for (uint32_t i = 0; !status && i < out->count; i++) {
        struct fsdp_group *group = &out->groups[i];
        if (group->world > world || (!may_lack && group->world < world))
            status = error_set(err, RESHARD_ERR_FORMAT, "there are files of %" PRIu32 " ranks beside '%.*s', the metadata says %" PRIu32,
                               group->world, STR_ARG(group->files[0].name), world);
        group->world = world;
    }
    return status;
}

void fsdp_groups_release(struct fsdp_groups *groups)
{
    arena_release(&groups->arena);
    *groups = (struct fsdp_groups){ 0 };
}
