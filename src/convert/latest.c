/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/latest.h"

#include "remote/remote.h"

#include <stdlib.h>

/* A sub-directory whose name ends in a number: iter_0001000, global_step10, checkpoint-500, step_20. */
struct candidate {
    struct str name;
    uint64_t number;
};

static bool trailing_number(struct str name, uint64_t *out)
{
    size_t start = name.size;
    while (start > 0 && name.data[start - 1] >= '0' && name.data[start - 1] <= '9')
        start--;
    while (start + 1 < name.size && name.data[start] == '0')
        start++;
    return start < name.size && str_to_u64((struct str){ name.data + start, name.size - start }, out);
}

static int newest_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->number != y->number)
        return x->number > y->number ? -1 : 1;
    return str_compare(x->name, y->name);
}

static reshard_status list_candidates(const char *root, struct arena *arena, struct candidate **out, size_t *out_count, reshard_error *err)
{
    struct store *store = NULL;
    struct store_entry *entries;
    size_t count;
    reshard_status status = remote_open_path(root, 0, &store, NULL, err);
    if (status)
        return status;
    status = store_list(store, "", arena, &entries, &count, err);
    store_free(store);
    if (status)
        return status;
    struct candidate *candidates = arena_array(arena, count, sizeof(*candidates));
    if (!candidates)
        return error_set_memory(err);
    *out_count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t number;
        if (entries[i].is_directory && trailing_number(entries[i].name, &number))
            candidates[(*out_count)++] = (struct candidate){ entries[i].name, number };
    }
    qsort(candidates, *out_count, sizeof(*candidates), newest_first);
    *out = candidates;
    return RESHARD_OK;
}

/* *is_good: it opens and verifies. Why it does not is a finding, but a run that is stopped is an error. */
static reshard_status try_candidate(const char *path, const struct checkpoint_options *options, const struct verify_options *verify,
                                    const struct engine_options *engine, struct finding_sink *findings, bool *is_good, reshard_error *err)
{
    struct checkpoint *checkpoint = NULL;
    reshard_error problem = { 0 };
    char shown[STORE_SHOWN_MAX];
    reshard_status status = checkpoint_open(path, options, &checkpoint, &problem);
    if (!status)
        status = verify_run(checkpoint, verify, engine, findings, &problem);
    checkpoint_close(checkpoint);
    *is_good = status == RESHARD_OK;
    if (status == RESHARD_ERR_CANCELLED && err)
        *err = problem;
    if (status == RESHARD_ERR_CANCELLED)
        return status;
    if (status)
        finding_report(findings, FINDING_WARNING, "rejected", str_of(store_path_shown(path, shown)), "%s",
                       status == RESHARD_DIFFERS ? "does not verify" : problem.message);
    return finding_sink_status(findings, err);
}

/* What candidates are held against is no candidate's fault. */
static reshard_status look_at_reference(const struct verify_options *verify, reshard_error *err)
{
    struct store *store = NULL;
    char *name = NULL;
    reshard_status status = verify->against ? remote_open_path(verify->against, 0, &store, &name, err) : RESHARD_OK;
    store_free(store);
    free(name);
    return status;
}

/* Without '/' at its end. What the query of a URL asks for is the root, not what lies below it. */
static size_t root_size(const char *root)
{
    return str_without_slashes((struct str){ root, store_path_is_url(root) ? strcspn(root, "?#") : strlen(root) }).size;
}

reshard_status latest_good(const char *root, const struct checkpoint_options *options, const struct verify_options *verify,
                           const struct engine_options *engine, struct finding_sink *findings, char **path, reshard_error *err)
{
    struct arena arena = { 0 };
    struct candidate *candidates = NULL;
    size_t count = 0;
    bool is_good = false;
    char shown[STORE_SHOWN_MAX];
    reshard_status status = look_at_reference(verify, err);
    if (!status)
        status = list_candidates(root, &arena, &candidates, &count, err);
    for (size_t i = 0; i < count && !status && !is_good; i++) {
        const char *candidate = ARENA_JOIN(&arena, { root, root_size(root) }, STR("/"), candidates[i].name).data;
        status = candidate ? try_candidate(candidate, options, verify, engine, findings, &is_good, err) : error_set_memory(err);
        if (!status && is_good && !(*path = str_copy(str_of(candidate))))
            status = error_set_memory(err);
    }
    if (!status && !is_good)
        status = error_set(err, RESHARD_DIFFERS, "'%s': none of %zu numbered directories is a checkpoint that verifies",
                           store_path_shown(root, shown), count);
    if (status == RESHARD_DIFFERS && !count)
        error_hint(err, "a root has its checkpoints in folders with numbers (iter_0000010); reshard_verify() looks at one checkpoint");
    arena_release(&arena);
    return status;
}
