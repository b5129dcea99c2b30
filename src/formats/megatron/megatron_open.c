/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the files of all ranks, and finding out how the run was laid out. */
#include "formats/megatron/megatron.h"
#include "formats/megatron/megatron_source.h"

#include "base/model_data.h"

#include <inttypes.h>
#include <stdlib.h>

#define MISSING_SHOWN 8
#define RANKS_MISSING_FACTOR 16 /* a set may lack so many times the ranks that it has, */
#define RANKS_MISSING_FREE 16384 /* and so many more */

/* ---- folders ---- */

static reshard_status list_folders(struct source *source, struct rank_folder **out, uint32_t *count, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    struct store_entry *entries;
    size_t entry_count;
    reshard_status status = store_list(source->store, source->name, &state->arena, &entries, &entry_count, err);
    if (status)
        return status;
    *out = arena_array(&state->arena, entry_count, sizeof(**out));
    *count = 0;
    if (!*out)
        return error_set_memory(err);
    for (size_t i = 0; i < entry_count; i++) {
        struct str base = str_base_name(entries[i].name);
        if (entries[i].is_directory && rank_folder_parse(base, &(*out)[*count]))
            (*count)++;
    }
    if (*count == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "no folder 'mp_rank_…' with a rank's files");
    return RESHARD_OK;
}

static const char *file_path(struct source *source, struct str folder, const char *file)
{
    struct arena *arena = &megatron_source_of(source)->arena;
    const char *path = store_join(arena, source->name, folder);
    return path ? store_join(arena, path, str_of(file)) : NULL;
}

/* ---- one rank ---- */

/* Files of the folder that nobody reads are named, once for the first folder that has any. */
static reshard_status warn_unread(struct source *source, struct str folder, bool *was_warned, reshard_error *err)
{
    static const char *const known[] = { MEGATRON_MODEL_FILE, MEGATRON_OLD_MODEL_FILE, MEGATRON_OPTIMIZER_FILE };
    struct megatron_source *state = megatron_source_of(source);
    const char *path = store_join(&state->arena, source->name, folder);
    struct store_entry *entries;
    size_t count;
    if (*was_warned)
        return RESHARD_OK;
    reshard_status status = path ? store_list(source->store, path, &state->arena, &entries, &count, err) : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        bool is_known = false;
        for (size_t j = 0; j < sizeof(known) / sizeof(known[0]); j++)
            is_known = is_known || str_is(base, known[j]);
        if (is_known)
            continue;
        catalog_warn(source->catalog, false, "'%.*s/%.*s' is not read, nor is what is like it in other folders", STR_ARG(folder),
                     STR_ARG(base));
        *was_warned = true;
    }
    return status;
}

static reshard_status check_root(struct source *source, struct megatron_rank *rank, const char *name, reshard_error *err)
{
    const struct torch_source *torch = torch_source_of(source);
    rank->root = torch->files[rank->file].graph->root;
    if (rank->root->kind != VALUE_DICT) {
        error_set(err, RESHARD_ERR_FORMAT, "'%s' holds no dictionary", name);
        error_object(err, "%s", name);
        return RESHARD_ERR_FORMAT;
    }
    rank->namespace = value_dict_get(rank->root, "args");
    training_args_read(rank->namespace, &rank->args);
    return RESHARD_OK;
}

/* *is_missing: the folder has no file of the rank's model. */
static reshard_status open_rank(struct source *source, const struct rank_folder *folder, struct megatron_rank *out, bool *is_missing,
                                reshard_error *err)
{
    *out = (struct megatron_rank){ .folder = folder->name, .optimizer_file = TORCH_NONE };
    const char *name = file_path(source, folder->name, MEGATRON_MODEL_FILE);
    const char *old = file_path(source, folder->name, MEGATRON_OLD_MODEL_FILE);
    const char *optimizer = file_path(source, folder->name, MEGATRON_OPTIMIZER_FILE);
    if (!name || !old || !optimizer)
        return error_set_memory(err);
    if (!store_is_file(source->store, name) && store_is_file(source->store, old))
        name = old;
    *is_missing = !store_is_file(source->store, name);
    if (*is_missing)
        return RESHARD_OK;
    reshard_status status = torch_source_open_file(source, name, -1, &out->file, err);
    if (!status)
        status = check_root(source, out, name, err);
    if (!status && store_is_file(source->store, optimizer))
        status = torch_source_open_file(source, optimizer, -1, &out->optimizer_file, err);
    return status;
}

/* ---- the layout ---- */

static int64_t open_known(int64_t number, int64_t otherwise)
{
    return number == TRAINING_ARG_UNKNOWN || number < 1 || number > INT32_MAX ? otherwise : number;
}

static bool begins_model(const struct partition_rules *rules, const struct value *root)
{
    const struct value *model = value_dict_get(root, "model0");
    struct value **pairs;
    size_t count;
    if (!model)
        model = value_dict_get(root, "model");
    if (!model || !value_as_mapping(model, &pairs, &count))
        return false;
    if (value_dict_get(model, "language_model") && value_as_mapping(value_dict_get(model, "language_model"), &pairs, &count))
        return value_dict_get(value_dict_get(model, "language_model"), "embedding") != NULL;
    for (size_t i = 0; i + 1 < count; i += 2)
        for (uint32_t j = 0; j < rules->stage_count; j++)
            if (pairs[i]->kind == VALUE_STR && rules->stages[j].place == PLACE_FIRST &&
                pairs[i]->text.size > rules->stages[j].prefix.size &&
                memcmp(pairs[i]->text.data, rules->stages[j].prefix.data, rules->stages[j].prefix.size) == 0)
                return true;
    return false;
}

/* Without arguments the names of the folders must do. A second number is a stage of the pipeline unless every rank begins the model. */
static void layout_from_folders(const struct megatron_source *state, const struct rank_folder *folders, uint32_t count,
                                struct parallel_layout *out)
{
    int64_t sizes[3] = { 1, 1, 1 };
    bool all_begin = true;
    for (uint32_t i = 0; i < count; i++)
        for (int j = 0; j < folders[i].number_count; j++)
            sizes[j] = folders[i].numbers[j] >= sizes[j] ? folders[i].numbers[j] + 1 : sizes[j];
    for (uint32_t i = 0; i < state->rank_count; i++)
        all_begin = all_begin && begins_model(&state->rules, state->ranks[i].root);
    bool is_expert = folders[0].number_count == 2 && all_begin;
    *out = (struct parallel_layout){ sizes[0], is_expert ? 1 : sizes[1], 1, is_expert ? sizes[1] : sizes[2], sizes[0] };
}

static void layout_from_args(const struct training_args *args, struct parallel_layout *out)
{
    out->tp = open_known(args->tp, out->tp);
    out->pp = open_known(args->pp, out->pp);
    out->ep = open_known(args->ep, out->ep);
    out->etp = open_known(args->etp, out->tp);
    if (args->experts == TRAINING_ARG_UNKNOWN && args->ep <= 1)
        out->etp = out->tp;
}

/* ---- files that belong together ---- */

static reshard_status differ(const struct megatron_rank *a, const struct megatron_rank *b, const char *what, int64_t in_a, int64_t in_b,
                             reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT,
              "the files of '%.*s' and '%.*s' are of different runs: %s is %" PRId64 " in the first and %" PRId64 " in the second",
              STR_ARG(a->folder), STR_ARG(b->folder), what, in_a, in_b);
    error_object(err, "%.*s/%s", STR_ARG(b->folder), MEGATRON_MODEL_FILE);
    return RESHARD_ERR_FORMAT;
}

static reshard_status check_same_run(const struct megatron_source *state, reshard_error *err)
{
    static const struct {
        size_t offset;
        const char *name;
    } members[] = {
#define X(field, name, alias) { offsetof(struct training_args, field), name },
        TRAINING_ARGS(X)
#undef X
    };
    const struct megatron_rank *first = &state->ranks[0];
    for (uint32_t i = 1; i < state->rank_count; i++) {
        const struct megatron_rank *rank = &state->ranks[i];
        for (size_t j = 0; j < sizeof(members) / sizeof(members[0]); j++) {
            int64_t a, b;
            memcpy(&a, (const char *)&first->args + members[j].offset, sizeof(a));
            memcpy(&b, (const char *)&rank->args + members[j].offset, sizeof(b));
            if (a != b && a != TRAINING_ARG_UNKNOWN && b != TRAINING_ARG_UNKNOWN)
                return differ(first, rank, members[j].name, a, b, err);
        }
        const struct value *a = value_dict_get(first->root, "iteration"), *b = value_dict_get(rank->root, "iteration");
        int64_t in_a = 0, in_b = 0;
        if (a && b && value_as_int(a, &in_a) && value_as_int(b, &in_b) && in_a != in_b)
            return differ(first, rank, "iteration", in_a, in_b, err);
    }
    return RESHARD_OK;
}

struct expecting {
    struct source *source;
    struct buffer missing;
    uint32_t missing_count, expected;
};

static reshard_status expect_rank(const struct rank_place *place, int64_t global_rank, void *context, reshard_error *err)
{
    struct expecting *expecting = context;
    struct megatron_source *state = megatron_source_of(expecting->source);
    (void)global_rank;
    expecting->expected++;
    for (uint32_t i = 0; i < state->rank_count; i++) {
        const struct rank_place *found = &state->ranks[i].place;
        if (found->tp == place->tp && found->pp == place->pp && found->ep == place->ep)
            return RESHARD_OK;
    }
    if (expecting->missing_count++ >= MISSING_SHOWN)
        return RESHARD_OK;
    char *folder = rank_folder_name(&state->arena, &state->layout, place);
    if (!folder || !buffer_printf(&expecting->missing, "%s%s/%s", expecting->missing.size ? ", " : "", folder, MEGATRON_MODEL_FILE))
        return error_set_memory(err);
    return RESHARD_OK;
}

/* Arguments that speak of far more ranks than there are would have each of them looked for. */
static reshard_status check_rank_count(const struct megatron_source *state, reshard_error *err)
{
    const struct parallel_layout *layout = &state->layout;
    int64_t experts, ranks = 0, most = (int64_t)state->rank_count * RANKS_MISSING_FACTOR + RANKS_MISSING_FREE;
    bool fits = !__builtin_mul_overflow(layout->ep, layout->etp, &experts) &&
                !__builtin_mul_overflow(experts > layout->tp ? experts : layout->tp, layout->pp, &ranks);
    if (fits && ranks <= most)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT,
              "the arguments speak of tp=%" PRId64 ", pp=%" PRId64 ", ep=%" PRId64 ", etp=%" PRId64 ", and %" PRIu32 " ranks have files",
              layout->tp, layout->pp, layout->ep, layout->etp, state->rank_count);
    error_object(err, "%.*s/%s", STR_ARG(state->ranks[0].folder), MEGATRON_MODEL_FILE);
    return RESHARD_ERR_FORMAT;
}

static reshard_status open_check_complete(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    const struct parallel_layout *layout = &state->layout;
    struct expecting expecting = { .source = source };
    reshard_status status = check_rank_count(state, err);
    if (!status)
        status = rank_places(layout, false, expect_rank, &expecting, err);
    if (!status && expecting.missing_count > 0) {
        struct str names = buffer_str(&expecting.missing);
        if (megatron_may_lack(source)) {
            catalog_warn(source->catalog, true, "%" PRIu32 " of %" PRIu32 " rank files are missing: %.*s", expecting.missing_count,
                         expecting.expected, STR_ARG(names));
        } else {
            status = error_set(err, RESHARD_ERR_FORMAT,
                               "%" PRIu32 " of %" PRIu32 " rank files are missing (tp=%" PRId64 ", pp=%" PRId64 ", ep=%" PRId64 "): %.*s%s",
                               expecting.missing_count, expecting.expected, layout->tp, layout->pp, layout->ep, STR_ARG(names),
                               expecting.missing_count > MISSING_SHOWN ? ", …" : "");
            size_t comma;
            struct str first = names;
            if (str_find_char(names, ',', &comma))
                first.size = comma;
            error_object(err, "%.*s", STR_ARG(first));
            error_hint(err, "reshard_open_options.lenient opens it with what is there");
        }
    }
    buffer_release(&expecting.missing);
    return status;
}

static int rank_order(const void *a, const void *b)
{
    const struct rank_place *x = &((const struct megatron_rank *)a)->place, *y = &((const struct megatron_rank *)b)->place;
    if (x->pp != y->pp)
        return x->pp < y->pp ? -1 : 1;
    if (x->ep != y->ep)
        return x->ep < y->ep ? -1 : 1;
    return x->tp < y->tp ? -1 : x->tp > y->tp;
}

static reshard_status place_ranks(struct source *source, const struct rank_folder *folders, uint32_t folder_count, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    layout_from_folders(state, folders, folder_count, &state->layout);
    layout_from_args(&state->args, &state->layout);
    for (uint32_t i = 0; i < state->rank_count; i++) {
        struct rank_folder folder;
        const struct parallel_layout *layout = &state->layout;
        rank_folder_parse(state->ranks[i].folder, &folder);
        if (rank_folder_place(&folder, layout, &state->ranks[i].place))
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "folder '%.*s' has no place in a run with tp=%" PRId64 ", pp=%" PRId64 ", ep=%" PRId64,
                  STR_ARG(folder.name), layout->tp, layout->pp, layout->ep);
        error_object(err, "%.*s", STR_ARG(folder.name));
        error_hint(err, "folders of two runs may lie side by side: remove those of the older one");
        return RESHARD_ERR_FORMAT;
    }
    qsort(state->ranks, state->rank_count, sizeof(*state->ranks), rank_order);
    return open_check_complete(source, err);
}

/* ---- versions ---- */

/* Megatron has come to 3.0. */
#define VERSION_END 1000

static reshard_status read_version(struct megatron_source *state, reshard_error *err)
{
    const struct value *version = value_dict_get(state->ranks[0].root, "checkpoint_version");
    state->version = 0;
    if (version && version->kind == VALUE_FLOAT)
        state->version = version->real;
    else if (version && version->kind == VALUE_INT)
        state->version = (double)version->integer;
    return state->version >= 0 && state->version < VERSION_END
               ? RESHARD_OK
               : error_set(err, RESHARD_ERR_FORMAT, "'%.*s/" MEGATRON_MODEL_FILE "': its checkpoint_version is none that there is: 0 to 3",
                           STR_ARG(state->ranks[0].folder));
}

static reshard_status open_read_run(struct megatron_source *state, reshard_error *err)
{
    const struct training_args *args = &state->args;
    reshard_status status = read_version(state, err);
    /* Runs from before the argument always tied them. */
    state->is_tied = args->members && args->is_untied != 1;
    state->context = (struct cut_context){ .rules = &state->rules, .args = &state->args, .layout = state->layout };
    state->context.is_gated = training_args_are_gated(args);
    state->context.is_split_down = args->is_local_spec;
    state->context.version_order = state->version >= 2 ? 2 : state->version >= 1 ? 1 : 0;
    return status;
}

/* The directory's own name, also where it was opened by itself. */
static reshard_status name_directory(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    const struct str path = str_of(source->name[0] ? source->name : store_path(source->store));
    return arena_str(&state->arena, str_base_name(str_without_slashes(path)), &state->directory) ? RESHARD_OK : error_set_memory(err);
}

reshard_status megatron_open_ranks(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    struct rank_folder *folders;
    uint32_t folder_count;
    const struct model_data *rules = model_data_find(STR("megatron.rules"));
    if (!rules)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/megatron.rules");
    reshard_status status = partition_rules_parse(rules->text, &state->arena, &state->rules, err);
    if (!status)
        status = list_folders(source, &folders, &folder_count, err);
    if (status)
        return status;
    state->ranks = arena_array(&state->arena, folder_count, sizeof(*state->ranks));
    if (!state->ranks)
        return error_set_memory(err);
    bool was_warned = false;
    for (uint32_t i = 0; !status && i < folder_count; i++) {
        bool is_missing;
        status = warn_unread(source, folders[i].name, &was_warned, err);
        if (status)
            break;
        status = open_rank(source, &folders[i], &state->ranks[state->rank_count], &is_missing, err);
        if (status || is_missing)
            continue;
        state->rank_count++;
    }
    if (!status && state->rank_count == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "no rank has a file '%s'", MEGATRON_MODEL_FILE);
    if (status)
        return status;
    state->args = state->ranks[0].args;
    status = check_same_run(state, err);
    if (!status)
        status = place_ranks(source, folders, folder_count, err);
    if (!status)
        status = open_read_run(state, err);
    return status ? status : name_directory(source, err);
}
