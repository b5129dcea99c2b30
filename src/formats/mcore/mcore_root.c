/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Megatron has around a DCP directory: the save root with its tracker file, the folder of the iteration, and beside a torch_dist
 * checkpoint's data metadata.json and, on request, integrity.json.
 *
 *   latest_checkpointed_iteration.txt   "10", or "release"
 *   iter_0000010/, or release/          the checkpoint
 */
#include "formats/mcore/mcore.h"
#include "base/array.h"
#include "formats/mcore/mcore_source.h"
#include "formats/mcore/mcore_target.h"
#include "formats/shared/integrity_file.h"
#include "formats/shared/release_classes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>


const struct format_option mcore_options_torch_dist[] = {
    MCORE_ROOT_OPTIONS(""),
    MEGATRON_RELEASE_OPTION,
    { "common", "file|object", "file",
      "common.pt, which every release reads, or an object in the data files as Megatron Core writes from 0.19" },
    MCORE_MODULE_STATE_OPTION(""),
    { "optimizer", "auto|fully_reshardable|fully_sharded_model_space|dp_reshardable|dp_zero_gather_scatter", "auto",
      "layout of the distributed optimizer's state: one tensor for each parameter; those flattened, as Megatron Core 0.8 to 0.14 reads; by "
      "bucket, from 0.15 on; "
      "buffers in objects, up to 0.14; auto: the reference's" },
    { "state", "adapt|as-is", "adapt",
      "the common state and objects are made what a run asks for, or are those of a job of Megatron and stay what they are" },
    { "integrity", "yes|no", "no", "write integrity.json with the sha256 of every file" },
    { "chunk-bytes", "N", "268435456", "no chunk is larger; layers and experts have their own chunks in any case" },
    { NULL, NULL, NULL, NULL },
};

const struct format_option mcore_options_plain[] = {
    MCORE_ROOT_OPTIONS(""),
    { NULL, NULL, NULL, NULL },
};

/* ---- choosing ---- */

enum root_kind { ROOT_AUTO, ROOT_ITERATION, ROOT_RELEASE, ROOT_NONE };

reshard_status mcore_option_word(const struct layout_request *request, const char *name, const char *const *words, int *out,
                                 reshard_error *err)
{
    const char *text = layout_option(request, name);
    if (!text)
        return RESHARD_OK;
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return RESHARD_OK;
        }
    }
    error_set(err, RESHARD_ERR_USAGE, "option %s='%s' is not known", name, text);
    for (const struct format_option *option = mcore_options_torch_dist; option->name; option++) {
        if (strcmp(option->name, name) == 0)
            error_hint(err, "%s is one of %s", name, option->type);
    }
    return RESHARD_ERR_USAGE;
}

/* The last part of the directory that a source was read from: "iter_0000010", "release", "" for the root of its store. */
static struct str folder_of(const struct source *source)
{
    return str_base_name(str_without_slashes(str_of(source && source->name ? source->name : "")));
}

/* The iteration that the source's state tells, or its folder's; -1 if none does. */
static reshard_status source_iteration(const struct layout_request *request, int64_t *out, reshard_error *err)
{
    const struct catalog_item *item;
    int64_t number;
    *out = -1;
    reshard_status status = layout_item_named(request, "iteration", &item, err);
    if (status)
        return status;
    if (item && item->value && value_as_int(item->value, &number) && number >= 0)
        *out = number;
    else if (request->source && request->source->iteration >= 0)
        *out = request->source->iteration;
    return RESHARD_OK;
}

static reshard_status option_iteration(const struct layout_request *request, int64_t *iteration, reshard_error *err)
{
    const char *text = layout_option(request, "iteration");
    uint64_t number;
    if (!text)
        return RESHARD_OK;
    if (!str_to_u64(str_of(text), &number) || number > INT64_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "option iteration='%s': expected a number", text);
    *iteration = (int64_t)number;
    return RESHARD_OK;
}

/*
 * With a reference, as there. Else a release stays one, what knows its iteration gets its folder, and a checkpoint of the same kind that
 * lies alone stays alone; weights from elsewhere are a release, with which Megatron asks for no optimizer, scheduler or RNG state.
 */
static enum root_kind choose_kind(const struct layout_request *request, int64_t iteration)
{
    struct str name = folder_of(request->like ? request->like : request->source);
    if (request->like && name.size == 0)
        return ROOT_NONE;
    if (str_is(name, "release"))
        return ROOT_RELEASE;
    if (iteration >= 0)
        return ROOT_ITERATION;
    bool is_own = mcore_is_from(request, &format_torch_dist) || mcore_is_from(request, &format_zarr) ||
                  mcore_is_from(request, &format_torch_dcp_megatron) || mcore_is_from(request, &format_fsdp_dtensor);
    return is_own && name.size == 0 ? ROOT_NONE : ROOT_RELEASE;
}

static reshard_status choose_folder(const struct layout_request *request, struct mcore_target *state, reshard_error *err)
{
    static const char *const words[] = { "auto", "iteration", "release", "none", NULL };
    int kind = ROOT_AUTO;
    int64_t iteration;
    reshard_status status = mcore_option_word(request, "root", words, &kind, err);
    if (!status)
        status = source_iteration(request, &iteration, err);
    if (!status)
        status = option_iteration(request, &iteration, err);
    if (status)
        return status;
    if (kind == ROOT_AUTO)
        kind = choose_kind(request, iteration);
    if (kind == ROOT_ITERATION && iteration < 0 && request->like && request->like->iteration >= 0)
        iteration = request->like->iteration;
    if (kind == ROOT_ITERATION && iteration < 0) {
        error_set(err, RESHARD_ERR_USAGE, "nothing in the source tells the iteration that the folder is to name");
        error_hint(err, "reshard_convert_options.format_options iteration=N gives one, reshard_convert_options.format_options root=release "
                        "makes a release of it");
        return RESHARD_ERR_USAGE;
    }
    state->iteration = kind == ROOT_ITERATION ? iteration : -1;
    char tracker[24] = "release";
    if (kind == ROOT_ITERATION) {
        snprintf(state->dcp.folder, sizeof(state->dcp.folder), "iter_%07" PRId64 "/", iteration);
        snprintf(tracker, sizeof(tracker), "%" PRId64, iteration);
    } else if (kind == ROOT_RELEASE) {
        snprintf(state->dcp.folder, sizeof(state->dcp.folder), "release/");
    }
    if (kind == ROOT_NONE)
        return RESHARD_OK;
    state->texts[state->text_count].text = strdup(tracker);
    state->texts[state->text_count].is_in_folder = false;
    state->texts[state->text_count].name = MCORE_TRACKER;
    return state->texts[state->text_count++].text ? RESHARD_OK : error_set_memory(err);
}

static bool like_has(const struct source *like, const char *name)
{
    return like && store_has_file(like->store, ((const struct dcp_source *)like->driver_state)->directory, name, NULL);
}

static reshard_status choose_common(const struct layout_request *request, struct mcore_target *state, reshard_error *err)
{
    static const char *const kinds[] = { "file", "object", NULL }, *const answers[] = { "no", "yes", NULL },
                      *const asking[] = { "no", "yes", "local", NULL };
    /* A reference's object is not taken over: releases before 0.19 cannot read it, and all of them read the file. */
    int is_object = 0, module_state = MODULE_STATE_OF_RUN, has_integrity = like_has(request->like, INTEGRITY_FILE);
    reshard_status status = mcore_option_word(request, "common", kinds, &is_object, err);
    if (!status)
        status = mcore_option_word(request, "integrity", answers, &has_integrity, err);
    if (!status)
        status = mcore_option_word(request, "module-state", asking, &module_state, err);
    if (status)
        return status;
    state->common_is_object = is_object;
    state->has_integrity = has_integrity;
    state->module_state = (enum mcore_module_state)module_state;
    state->texts[state->text_count].name = MCORE_CONFIG_FILE;
    state->texts[state->text_count].is_in_folder = true;
    /* Releases before 0.19 refuse members that they do not know, and need these four. */
    char text[160];
    snprintf(text, sizeof(text), "{\"sharded_backend\": \"%s\", \"sharded_backend_version\": 1%s}", state->flavour->format,
             is_object ? "" : ", \"common_backend\": \"torch\", \"common_backend_version\": 1");
    state->texts[state->text_count].text = strdup(text);
    return state->texts[state->text_count++].text ? RESHARD_OK : error_set_memory(err);
}

reshard_status mcore_root_choose(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    reshard_status status = choose_folder(request, state, err);
    return status || !state->flavour->has_common ? status : choose_common(request, state, err);
}

/* ---- integrity.json ---- */

static int by_name(const void *a, const void *b, void *context)
{
    const struct catalog *catalog = context;
    return str_compare(catalog->objects[*(const uint32_t *)a].name, catalog->objects[*(const uint32_t *)b].name);
}

/* Whether the object lies directly in the checkpoint's folder. */
static bool mcore_root_is_listed(const struct target *target, uint32_t object)
{
    const struct mcore_target *state = mcore_target_state(target);
    struct str name = target->catalog->objects[object].name;
    size_t folder = strlen(state->dcp.folder), slash;
    if (object == state->integrity_object || !str_starts_with(name, state->dcp.folder))
        return false;
    struct str base = { name.data + folder, name.size - folder };
    return !str_find_char(base, '/', &slash) && !(folder == 0 && str_is(base, MCORE_TRACKER));
}

/* As json.dumps with an indent of 2. objects NULL: only the size counts, which is always the same. */
static reshard_status integrity_text(const struct target *target, struct store_object **objects, struct buffer *out, reshard_error *err)
{
    const struct catalog *catalog = target->catalog;
    uint32_t count = 0, *order = array_new(catalog->object_count, sizeof(*order));
    struct integrity_hasher *hasher = integrity_hasher_new();
    char hex[DIGEST_HEX_MAX] = "0000000000000000000000000000000000000000000000000000000000000000";
    reshard_status status = order && hasher ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < catalog->object_count && !status; i++) {
        if (mcore_root_is_listed(target, i))
            order[count++] = i;
    }
    if (!status)
        qsort_r(order, count, sizeof(*order), by_name, (void *)catalog);
    buffer_append_text(out, "{\n  \"algorithm\": \"sha256\",\n  \"files\": {");
    size_t folder = strlen(mcore_target_state(target)->dcp.folder);
    for (uint32_t i = 0; i < count && !status; i++) {
        struct str name = catalog->objects[order[i]].name;
        if (objects)
            status = integrity_hash(hasher, objects[order[i]], hex, err);
        buffer_append_text(out, i ? ",\n    " : "\n    ");
        buffer_append_json_string(out, (struct str){ name.data + folder, name.size - folder });
        buffer_printf(out, ": \"%s\"", hex);
    }
    buffer_append_text(out, "\n  }\n}");
    integrity_hasher_free(hasher);
    free(order);
    return !status && out->failed ? error_set_memory(err) : status;
}

/* ---- laying out and publishing ---- */

static reshard_status mcore_root_add_file(struct target *target, const char *folder, const char *name, uint64_t bytes, uint32_t *out,
                               reshard_error *err)
{
    char *path = arena_printf(&target->catalog->arena, "%s%s", folder, name);
    return path ? catalog_add_object(target->catalog, str_of(path), bytes, out, err) : error_set_memory(err);
}

reshard_status mcore_root_lay_out(struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->text_count && !status; i++) {
        struct mcore_text_file *file = &state->texts[i];
        status =
            mcore_root_add_file(target, file->is_in_folder ? state->dcp.folder : "", file->name, strlen(file->text), &file->object, err);
    }
    state->integrity_object = CATALOG_NONE;
    if (status || !state->has_integrity)
        return status;
    status = integrity_text(target, NULL, &text, err);
    if (!status)
        status = mcore_root_add_file(target, state->dcp.folder, INTEGRITY_FILE, text.size, &state->integrity_object, err);
    buffer_release(&text);
    return status;
}

reshard_status mcore_root_commit(const struct publish_job *job, reshard_error *err)
{
    const struct mcore_target *state = mcore_target_state(job->target);
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->text_count && !status; i++) {
        const struct mcore_text_file *file = &state->texts[i];
        status = store_write_at(job->objects[file->object], 0, file->text, strlen(file->text), err);
    }
    if (status || !state->has_integrity)
        return status;
    status = integrity_text(job->target, job->objects, &text, err);
    if (!status)
        status = store_write_at(job->objects[state->integrity_object], 0, text.data, text.size, err);
    buffer_release(&text);
    return status;
}
