/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/gguf/gguf_format.h"

#include "formats/gguf/gguf_source.h"
#include "formats/source_probe.h"

#define SCORE_DAMAGED 25 /* of folders: others' weights may lie there too, and say more of what it is */
#define SCORE_FOLDER 30

/* Under any name, such as Ollama's digests: asked where nobody knows the name, so that others' files are not read for it. */
static bool gguf_probe_rest(struct store *store, const char *name, reshard_error *err)
{
    struct store_object *object = NULL;
    char first[4];
    if (store_is_directory(store, name) || store_open_object(store, name, &object, err))
        return false;
    bool is_ours = store_object_size(object) >= sizeof(first) && !store_read_at(object, 0, first, sizeof(first), err) &&
                   memcmp(first, "GGUF", sizeof(first)) == 0;
    store_object_close(object);
    return is_ours;
}

/* The name alone is nearly enough, so that a damaged file is refused for what it claims to be. */
static int gguf_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct gguf_folder folder;
    bool is_directory = true;
    uint64_t bytes;
    if (name[0] && !store_exists(store, name, &is_directory, &bytes))
        return 0;
    if (!is_directory)
        return str_ends_with(str_of(name), GGUF_SUFFIX) ? 99 : 0;
    reshard_status status = gguf_folder_scan(store, name, &arena, &folder, err);
    bool is_damaged = status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_UNSUPPORTED || (!status && folder.missing_count);
    int score = is_damaged ? SCORE_DAMAGED : status || !folder.file_count ? 0 : SCORE_FOLDER;
    arena_release(&arena);
    return score;
}

static const char *const gguf_entries[] = { "*" GGUF_SUFFIX, NULL };

const struct format_driver format_gguf = {
    .name = "gguf",
    .summary = "GGUF files of llama.cpp, in one piece or split; quantised tensors are shown as F32",
    .abilities = FORMAT_READS,
    .folder_entries = gguf_entries,
    .probe = gguf_probe,
    .probe_rest = gguf_probe_rest,
    .read_catalog = gguf_read_catalog,
    .load_item = gguf_load_item,
};
