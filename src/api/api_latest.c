/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the newest checkpoint below a root that opens and verifies. */
#include "api/checkpoint.h"

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
    reshard_status status = store_open_path(root, 0, &store, NULL, err);
    if (status)
        return status;
    status = store_list(store, "", arena, &entries, &count, err);
    store_free(store);
    if (status)
        return status;
    struct candidate *candidates = arena_array(arena, count + 1, sizeof(*candidates));
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

static reshard_status try_candidate(const char *path, const reshard_open_options *options, const reshard_verify_options *verify,
                                    struct finding_sink *findings)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error problem = { 0 };
    struct str shown = { path, strlen(path) };
    reshard_status status = reshard_open(path, options, &checkpoint, &problem);
    if (!status)
        status = reshard_verify(checkpoint, verify, NULL, findings->sink, findings->context, &problem);
    reshard_close(checkpoint);
    if (status == RESHARD_DIFFERS)
        finding_report(findings, 1, "rejected", shown, "does not verify");
    else if (status)
        finding_report(findings, 1, "rejected", shown, "%s", problem.message);
    return status;
}

API_EXPORT reshard_status reshard_latest_good(const char *root, const reshard_open_options *options, const reshard_verify_options *verify,
                                              reshard_finding_sink sink, void *context, char **path, reshard_error *err)
{
    struct finding_sink findings = { .sink = sink, .context = context };
    struct arena arena = { 0 };
    struct candidate *candidates = NULL;
    size_t count = 0;
    reshard_status status = list_candidates(root, &arena, &candidates, &count, err);
    if (status)
        goto out;
    status = RESHARD_DIFFERS;
    for (size_t i = 0; i < count && status; i++) {
        char *candidate = arena_printf(&arena, "%s/%.*s", root, STR_ARG(candidates[i].name));
        if (!candidate) {
            status = error_set_memory(err);
            goto out;
        }
        status = try_candidate(candidate, options, verify, &findings);
        if (!status) {
            *path = copy_text(candidate, strlen(candidate));
            if (!*path)
                status = error_set_memory(err);
            goto out;
        }
    }
    error_set(err, RESHARD_DIFFERS, "'%s': none of %zu numbered directories is a checkpoint that verifies", root, count);
    status = RESHARD_DIFFERS;

out:
    arena_release(&arena);
    return status;
}
