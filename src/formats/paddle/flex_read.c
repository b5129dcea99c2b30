/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: which metadata files of a folder, or of a trainer's folders, make up the checkpoint. */
#include "formats/paddle/flex.h"

#include "formats/paddle/unified.h"

#include <inttypes.h>
#include <stdlib.h>

#define NAMES_SHOWN 8

struct flex_opening {
    struct source *source;
    struct arena arena;
    struct str directory, metadata; /* as flex_locate says */
};

/* ---- which metadata file ---- */

/* Names of the listing's files of a kind, for messages. */
static const char *read_file_names(const struct flex_listing *listing, enum flex_file_kind kind, struct arena *arena)
{
    const char *text = "";
    size_t shown = 0;
    for (size_t i = 0; i < listing->count && text; i++) {
        const struct flex_file *file = &listing->files[i];
        if (file->kind != kind || shown++ >= NAMES_SHOWN)
            continue;
        text = arena_printf(arena, "%s%s%s", text, text[0] ? ", " : "", str_base_name(file->name).data);
    }
    return !text ? "…" : shown > NAMES_SHOWN ? arena_printf(arena, "%s, …", text) : text;
}

/* The metadata file that was asked for, or that of the largest uid. */
static reshard_status read_choose(struct flex_opening *opening, struct str directory, const struct flex_listing *listing,
                                  const struct flex_file **out, reshard_error *err)
{
    const struct flex_file *best = NULL;
    for (size_t i = 0; i < listing->count; i++) {
        const struct flex_file *file = &listing->files[i];
        struct str base = str_base_name(file->name);
        if (file->kind != FLEX_METADATA && file->kind != FLEX_AUTO)
            continue;
        if (opening->metadata.size ? str_equal(base, opening->metadata)
                                   : !best || best->kind == FLEX_AUTO || (file->kind == FLEX_METADATA && file->uid > best->uid))
            best = file;
    }
    *out = best;
    if (best)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "there is no metadata file (<uid>.metadata) for %s",
              read_file_names(listing, FLEX_DISTCP, &opening->arena));
    error_object(err, "%.*s", STR_ARG(directory));
    error_hint(err, "reshard_salvage() with reshard_salvage_options.like SIBLING takes the layout from a checkpoint of the same run");
    return RESHARD_ERR_FORMAT;
}

/* Data files of the chosen uid are of one kind. */
static reshard_status read_check_kinds(const struct flex_listing *listing, const struct flex_file *chosen, reshard_error *err)
{
    const struct flex_file *of_kind[2] = { 0 };
    for (size_t i = 0; i < listing->count && chosen->kind == FLEX_METADATA; i++) {
        const struct flex_file *file = &listing->files[i];
        if (file->uid == chosen->uid && (file->kind == FLEX_DISTCP || file->kind == FLEX_SAFETENSORS))
            of_kind[file->kind == FLEX_SAFETENSORS] = file;
    }
    if (!of_kind[0] || !of_kind[1])
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "one checkpoint has data files of two kinds: '%.*s' and '%.*s'", STR_ARG(of_kind[0]->name),
              STR_ARG(of_kind[1]->name));
    error_object(err, "%.*s", STR_ARG(of_kind[1]->name));
    return RESHARD_ERR_FORMAT;
}

/* What else lies there, and means nothing to this checkpoint. */
static reshard_status read_note_others(struct flex_opening *opening, const struct flex_listing *listing, const struct flex_file *chosen,
                                       reshard_error *err)
{
    struct catalog *catalog = opening->source->catalog;
    size_t metadata_count = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const struct flex_file *file = &listing->files[i];
        metadata_count += file->kind == FLEX_METADATA;
        if (file->kind == FLEX_LOCK)
            catalog_warn(catalog, false, "'%.*s' is left over from a save that did not end: it is ignored", STR_ARG(file->name));
    }
    if (metadata_count < 2)
        return RESHARD_OK;
    return catalog_add_fact(catalog, "uid", err, "%" PRIu64 " of %s (open PATH/<uid>.metadata for another)", chosen->uid,
                            read_file_names(listing, FLEX_METADATA, &opening->arena));
}

/* ---- metadata ---- */

static reshard_status read_decode(const struct source *source, struct str name, struct flex_metadata *out, reshard_error *err)
{
    struct buffer bytes = { 0 };
    *out = (struct flex_metadata){ 0 };
    reshard_status status = store_read_all(source->store, name.data, NAMED_LIMIT(&source->limits, metadata_bytes), &bytes, err);
    if (!status)
        status = flex_metadata_decode(bytes.data, bytes.size, &source->limits, FLEX_DECODE_BEST, out, err);
    buffer_release(&bytes);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(name));
        error_object(err, "%.*s", STR_ARG(name));
    }
    return status;
}

/* The shape that the first shard of a name gives: its global shape. */
static bool read_shape_of(const struct flex_metadata *metadata, struct str name, const int64_t **shape, int *rank)
{
    uint32_t number = name_map_find(&metadata->names, name);
    for (uint32_t i = 0; number != NAME_NONE && i < metadata->key_count; i++) {
        const struct flex_key *key = &metadata->keys[i];
        if (key->name != number || key->shard_count == 0 || metadata->shards[key->first_shard].global_shape == FLEX_NONE)
            continue;
        uint32_t vector = metadata->shards[key->first_shard].global_shape;
        *shape = flex_vector_at(metadata, vector);
        *rank = flex_vector_rank(metadata, vector);
        return true;
    }
    return false;
}

/* Another metadata file names the same data files: only one of the two can be right about them. */
static reshard_status read_compare(const struct flex_metadata *a, const struct flex_metadata *b, struct str a_name, struct str b_name,
                                   reshard_error *err)
{
    for (uint32_t i = 0; i < a->key_count; i++) {
        const int64_t *mine, *other;
        int my_rank, other_rank;
        struct str name = flex_name(a, a->keys[i].name);
        if (!read_shape_of(a, name, &mine, &my_rank) || !read_shape_of(b, name, &other, &other_rank))
            continue;
        if (my_rank == other_rank && (my_rank == 0 || memcmp(mine, other, (size_t)my_rank * sizeof(*mine)) == 0))
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s' and '%.*s' name the same data files and disagree about the global shape of '%.*s'",
                  STR_ARG(a_name), STR_ARG(b_name), STR_ARG(name));
        error_object(err, "%.*s", STR_ARG(a_name));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

/* The first data file that belongs to another uid which has metadata, too. */
static const struct flex_file *read_rival(const struct flex_metadata *metadata, const struct flex_listing *listing,
                                          const struct flex_file *chosen)
{
    for (uint32_t text = 0; text < metadata->texts.count; text++) {
        uint64_t rank, uid;
        enum flex_file_kind kind = flex_file_kind_of(flex_text(metadata, text), &rank, &uid);
        if ((kind != FLEX_DISTCP && kind != FLEX_SAFETENSORS) || uid == chosen->uid)
            continue;
        for (size_t i = 0; i < listing->count; i++) {
            if (listing->files[i].kind == FLEX_METADATA && listing->files[i].uid == uid)
                return &listing->files[i];
        }
    }
    return NULL;
}

static reshard_status read_check_rival(const struct source *source, const struct flex_metadata *metadata,
                                       const struct flex_listing *listing, const struct flex_file *chosen, reshard_error *err)
{
    const struct flex_file *rival = chosen->kind == FLEX_METADATA ? read_rival(metadata, listing, chosen) : NULL;
    struct flex_metadata other;
    if (!rival)
        return RESHARD_OK;
    reshard_status status = read_decode(source, rival->name, &other, err);
    if (!status)
        status = read_compare(metadata, &other, chosen->name, rival->name, err);
    if (!status)
        catalog_warn(source->catalog, false, "'%.*s' names data files that belong to '%.*s'", STR_ARG(chosen->name), STR_ARG(rival->name));
    flex_metadata_release(&other);
    return status;
}

/* ---- facts ---- */

static const char *read_writer(const struct flex_metadata *metadata)
{
    if (metadata->generation.is_old_module)
        return metadata->generation.shard < 0 ? "Paddle 2.6" : "Paddle 3.0 or 3.1";
    return metadata->generation.index < 2 ? "Paddle 3.2" : "Paddle 3.3 or newer";
}

static reshard_status read_add_facts(const struct source *source, const struct flex_metadata *metadata, reshard_error *err)
{
    static const char *const labels[FLEX_LABELS] = { "model type", "checkpoint version", "erniebot commit", "paddle commit" };
    struct catalog *catalog = source->catalog;
    reshard_status status = catalog_add_fact(catalog, "written by", err, "%s", read_writer(metadata));
    for (int i = 0; i < FLEX_LABELS && !status; i++) {
        if (metadata->labels[i] != FLEX_NONE)
            status = catalog_add_fact(catalog, labels[i], err, "%.*s", STR_ARG(flex_text(metadata, metadata->labels[i])));
    }
    for (uint32_t i = 0; i < metadata->extra_attribute_count && !status; i++)
        status = catalog_add_fact(catalog, "unknown attribute", err, "%.*s", STR_ARG(flex_text(metadata, metadata->extra_attributes[i])));
    return status;
}

/* ---- items ---- */

/* The items of one file. One that cannot be read may have had some; that its tensors cannot be is said when they are asked for. */
static reshard_status read_items_of(struct source *source, const struct flex_file *file, bool *is_needed, reshard_error *err)
{
    struct flex_source *state = flex_state(source);
    struct flex_data *data = NULL;
    reshard_error unsaid = { 0 };
    reshard_status status = flex_data_open(source, file->name, &data, &unsaid);
    if (status && !flex_data_is_answer(source, status, &unsaid)) {
        *err = unsaid;
        return status;
    }
    if (!data) {
        catalog_warn(source->catalog, status == RESHARD_ERR_FORMAT, "items, if there are any, are left out: %s", unsaid.message);
        return RESHARD_OK;
    }
    status = flex_data_add_items(source, data, is_needed, err);
    if (*is_needed)
        state->kept[state->part_count - 1] = data;
    else
        flex_data_close(data);
    return status;
}

/* Those of the lowest rank's file, or else of the highest's, where convert puts them. */
static reshard_status read_items(struct source *source, const struct flex_listing *listing, const struct flex_file *chosen,
                                 reshard_error *err)
{
    const struct flex_file *first = NULL, *last = NULL;
    bool is_needed = false;
    for (size_t i = 0; i < listing->count; i++) {
        const struct flex_file *file = &listing->files[i];
        if (file->kind != FLEX_DISTCP || chosen->kind != FLEX_METADATA || file->uid != chosen->uid)
            continue;
        first = !first || file->rank < first->rank ? file : first;
        last = !last || file->rank > last->rank ? file : last;
    }
    reshard_status status = first ? read_items_of(source, first, &is_needed, err) : RESHARD_OK;
    if (!status && !is_needed && last != first)
        status = read_items_of(source, last, &is_needed, err);
    return status;
}

/* ---- a part ---- */

static uint32_t read_count_ranks(const struct flex_listing *listing, const struct flex_file *chosen)
{
    uint32_t ranks = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const struct flex_file *file = &listing->files[i];
        ranks += (file->kind == FLEX_DISTCP || file->kind == FLEX_SAFETENSORS) && file->uid == chosen->uid;
    }
    return ranks;
}

static reshard_status read_describe(struct flex_part *part, struct source *source, const struct flex_metadata *metadata,
                                    const struct flex_file *chosen, reshard_error *err)
{
    struct arena *arena = &source->catalog->arena;
    part->uid = chosen->uid;
    part->is_auto = chosen->kind == FLEX_AUTO;
    part->generation = metadata->generation;
    part->protocol = metadata->protocol;
    part->has_flat_mapping = metadata->has_flat_mapping;
    bool done = arena_str(arena, chosen->name, &part->metadata_name);
    for (int i = 0; i < FLEX_LABELS && done; i++) {
        if (metadata->labels[i] != FLEX_NONE)
            done = arena_str(arena, flex_text(metadata, metadata->labels[i]), &part->labels[i]);
    }
    return done ? RESHARD_OK : error_set_memory(err);
}

static reshard_status read_part(struct flex_opening *opening, struct str directory, enum flex_role role, const struct flex_listing *listing,
                                reshard_error *err)
{
    struct source *source = opening->source;
    struct flex_source *state = flex_state(source);
    struct flex_part *part = &state->parts[state->part_count];
    struct flex_metadata metadata = { 0 };
    const struct flex_file *chosen;
    uint32_t object;
    reshard_status status = read_choose(opening, directory, listing, &chosen, err);
    if (!status)
        status = read_check_kinds(listing, chosen, err);
    if (!status)
        status = read_note_others(opening, listing, chosen, err);
    if (!status)
        status = catalog_add_object(source->catalog, chosen->name, chosen->bytes, &object, err);
    if (!status)
        status = read_decode(source, chosen->name, &metadata, err);
    if (status)
        return status;
    part->role = role;
    if (!arena_str(&source->catalog->arena, directory, &part->directory))
        status = error_set_memory(err);
    if (!status)
        status = read_describe(part, source, &metadata, chosen, err);
    if (!status && !state->part_count++)
        status = read_add_facts(source, &metadata, err);
    if (!status)
        status = read_check_rival(source, &metadata, listing, chosen, err);
    if (!status)
        status = flex_catalog_add(source, part, &metadata, err);
    if (!status)
        status = read_items(source, listing, chosen, err);
    uint32_t ranks = read_count_ranks(listing, chosen);
    if (ranks > source->catalog->ranks)
        source->catalog->ranks = ranks;
    flex_metadata_release(&metadata);
    return status;
}

/* ---- the folder, or a trainer's folders ---- */

static bool read_is_checkpoint(const struct flex_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        enum flex_file_kind kind = listing->files[i].kind;
        if (kind == FLEX_METADATA || kind == FLEX_DISTCP || kind == FLEX_AUTO)
            return true;
    }
    return false;
}

/* Files beside the checkpoint's own that are carried along. */
static reshard_status read_side_files(struct flex_opening *opening, const struct flex_listing *listing, reshard_error *err)
{
    struct catalog *catalog = opening->source->catalog;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < listing->count && !status; i++) {
        const struct flex_file *file = &listing->files[i];
        struct str base = str_base_name(file->name);
        if (file->kind == FLEX_OTHER_FILE && uc_is_side_file(base))
            status = catalog_add_file(catalog, base, file->name, file->bytes, err);
    }
    return status;
}

static reshard_status read_roles(struct flex_opening *opening, const struct flex_listing *listing, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (int role = FLEX_MODEL; role < FLEX_ROLES && !status; role++) {
        struct flex_listing inner;
        uint32_t first = opening->source->catalog->tensor_count;
        if (!listing->has_folder[role])
            continue;
        const struct str folder = ARENA_JOIN(&opening->arena, opening->directory, str_of(flex_role_folders[role]));
        status = folder.data ? flex_list(opening->source->store, folder, &opening->arena, &inner, err) : error_set_memory(err);
        if (!status && read_is_checkpoint(&inner))
            status = read_part(opening, folder, (enum flex_role)role, &inner, err);
        if (!status && role == FLEX_MASTERS)
            status = master_weights_cast(opening->source->catalog, first, NULL, 0, err);
    }
    if (!status && flex_state(opening->source)->part_count == 0)
        status = error_set(err, RESHARD_ERR_FORMAT,
                           "there is no metadata file (<uid>.metadata), and none in model_state/, "
                           "optimizer_state/ or master_weight/");
    return status;
}

reshard_status flex_read_catalog(struct source *source, reshard_error *err)
{
    struct flex_opening opening = { .source = source };
    struct flex_listing listing;
    source->driver_state = calloc(1, sizeof(struct flex_source));
    reshard_status status = source->driver_state ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = flex_locate(source->store, source->name, &opening.arena, &opening.directory, &opening.metadata, err);
    if (!status)
        status = flex_list(source->store, opening.directory, &opening.arena, &listing, err);
    if (!status && source->is_salvage && read_is_checkpoint(&listing) && flex_lacks_metadata(&listing))
        status = flex_rebuild(source, &listing, err);
    else if (!status)
        status = read_is_checkpoint(&listing) ? read_part(&opening, opening.directory, FLEX_ALL, &listing, err)
                                              : read_roles(&opening, &listing, err);
    if (!status)
        status = read_side_files(&opening, &listing, err);
    if (!status && source->catalog->ranks)
        status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, source->catalog->ranks);
    arena_release(&opening.arena);
    return status;
}

void flex_close_source(struct source *source)
{
    struct flex_source *state = flex_state(source);
    for (int i = 0; state && i < FLEX_ROLES; i++)
        flex_data_close(state->kept[i]);
    if (state)
        free(state->chunks);
    free(source->driver_state);
    source->driver_state = NULL;
}
