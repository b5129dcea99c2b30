/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the tables of one metadata file to tensors and chunks: state_dict_metadata says which shards a tensor has, storage_metadata in which
 * file each of them lies. The two are joined on key, offset and range; where that is not enough, on the shape of the box.
 */
#include "formats/paddle/flex.h"

#include "base/array.h"
#include "base/hash.h"
#include "encoding/paddle_save.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

struct cataloguing {
    struct source *source;
    struct flex_part *part;
    const struct flex_metadata *metadata;
    uint32_t *tensor_of_name;            /* CATALOG_NONE: not in state_dict_metadata */
    uint32_t *object_of_text;            /* CATALOG_NONE: not asked for yet */
    uint8_t *dtype_of_name;              /* by file, where the metadata knows no types: 1 + type */
    uint32_t *shard_slots, *place_slots; /* hash tables: shards by key, offset and range; indexes by key and file. 1 + number */
    uint8_t *is_used;                    /* by shard */
    uint32_t shard_mask, place_mask, first_chunk;
    uint64_t seed;
    bool is_derived; /* a global shape was missing */
    bool has_distcp, has_safetensors;
};

static const char *vector_text(const struct flex_metadata *metadata, uint32_t vector, char out[SHAPE_TEXT_MAX])
{
    return vector == FLEX_NONE ? shape_text(0, NULL, ", ", out)
                               : shape_text(flex_vector_rank(metadata, vector), flex_vector_at(metadata, vector), ", ", out);
}

/* ---- what is wrong ---- */

static reshard_status key_failed(struct str name, reshard_status status, reshard_error *err)
{
    if (status)
        error_prefix(err, "tensor '%.*s'", STR_ARG(name));
    return status;
}

/* The same for what the catalog says, which names the tensor itself unless a limit or memory is at its end. */
static reshard_status key_refused(struct str name, reshard_status status, reshard_error *err)
{
    return status == RESHARD_ERR_LIMIT || status == RESHARD_ERR_MEMORY ? key_failed(name, status, err) : status;
}

/* ---- tensors ---- */

/* what: a format with a text of the shard's box, and one of its range. */
static reshard_status key_bad_shard(const struct flex_metadata *metadata, const struct flex_shard *shard, const char *what,
                                    reshard_error *err)
{
    char offset[SHAPE_TEXT_MAX], shape[SHAPE_TEXT_MAX], range[SHAPE_TEXT_MAX] = "";
    vector_text(metadata, shard->offset, offset);
    vector_text(metadata, shard->shape, shape);
    if (shard->range != FLEX_NONE)
        vector_text(metadata, shard->range, range);
    return error_set(err, RESHARD_ERR_FORMAT, "the shard at %s of shape %s %s%s%s", offset, shape, what, range[0] ? ": " : "", range);
}

static reshard_status key_check_shard(const struct flex_metadata *metadata, const struct flex_shard *shard, int rank, reshard_error *err)
{
    if (flex_vector_rank(metadata, shard->offset) != rank || flex_vector_rank(metadata, shard->shape) != rank)
        return key_bad_shard(metadata, shard, "has another number of dimensions than the tensor's first", err);
    const int64_t *offset = flex_vector_at(metadata, shard->offset), *shape = flex_vector_at(metadata, shard->shape);
    for (int i = 0; i < rank; i++) {
        if (offset[i] < 0)
            return key_bad_shard(metadata, shard, "has a negative offset", err);
        if (shape[i] < 0)
            return key_bad_shard(metadata, shard, "has a negative size", err);
    }
    if (shard->is_flattened != (shard->range != FLEX_NONE))
        return key_bad_shard(metadata, shard, shard->is_flattened ? "is flattened, but has no range" : "has a range, but is not flattened",
                             err);
    if (!shard->is_flattened)
        return RESHARD_OK;
    const int64_t *bounds = flex_vector_at(metadata, shard->range);
    int64_t volume;
    if (!shape_volume(rank, shape, &volume) || bounds[0] < 0 || bounds[0] > bounds[1] || bounds[1] > volume)
        return key_bad_shard(metadata, shard, "has a flattened range that lies outside its box", err);
    return RESHARD_OK;
}

/* The shape that all shards give, or else the smallest one that holds them. */
static reshard_status key_find_shape(struct cataloguing *c, const struct flex_key *key, int rank, int64_t *shape, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    char a[SHAPE_TEXT_MAX], b[SHAPE_TEXT_MAX];
    uint32_t known = FLEX_NONE;
    memset(shape, 0, (size_t)rank * sizeof(*shape));
    for (uint32_t i = 0; i < key->shard_count; i++) {
        const struct flex_shard *shard = &metadata->shards[key->first_shard + i];
        if (shard->global_shape != FLEX_NONE && known != FLEX_NONE && shard->global_shape != known)
            return error_set(err, RESHARD_ERR_FORMAT, "two shards disagree about the global shape: %s and %s",
                             vector_text(metadata, known, a), vector_text(metadata, shard->global_shape, b));
        if (shard->global_shape != FLEX_NONE)
            known = shard->global_shape;
        for (int axis = 0; axis < rank; axis++) {
            int64_t end;
            if (__builtin_add_overflow(flex_vector_at(metadata, shard->offset)[axis], flex_vector_at(metadata, shard->shape)[axis], &end))
                return error_set(err, RESHARD_ERR_FORMAT, "the shard at %s of shape %s has an end beyond 2^63",
                                 vector_text(metadata, shard->offset, a), vector_text(metadata, shard->shape, b));
            shape[axis] = end > shape[axis] ? end : shape[axis];
        }
    }
    c->is_derived |= known == FLEX_NONE;
    if (known == FLEX_NONE)
        return RESHARD_OK;
    if (flex_vector_rank(metadata, known) != rank)
        return error_set(err, RESHARD_ERR_FORMAT, "its shards have %d dimensions, its global shape is %s", rank,
                         vector_text(metadata, known, a));
    memcpy(shape, flex_vector_at(metadata, known), (size_t)rank * sizeof(*shape));
    return RESHARD_OK;
}

static reshard_status key_find_dtype(const struct cataloguing *c, const struct flex_key *key, enum dtype *out, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    const struct flex_shard *first = &metadata->shards[key->first_shard];
    for (uint32_t i = 1; i < key->shard_count; i++) {
        if (first[i].dtype != first->dtype && first[i].dtype != FLEX_NONE && first->dtype != FLEX_NONE)
            return error_set(err, RESHARD_ERR_FORMAT, "two shards have different types: %.*s and %.*s",
                             STR_ARG(flex_text(metadata, first->dtype)), STR_ARG(flex_text(metadata, first[i].dtype)));
        if (first[i].dtype != first->dtype)
            return error_set(err, RESHARD_ERR_FORMAT, "only some of its shards have a type");
    }
    if (first->dtype == FLEX_NONE) {
        uint8_t found = c->dtype_of_name[key->name];
        *out = found ? (enum dtype)(found - 1) : DTYPE_F32;
        return found ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "the metadata has no types, and no data file holds it");
    }
    if (flex_dtype_from(flex_text(metadata, first->dtype), out))
        return RESHARD_OK;
    if (!dtype_from_torch(flex_text(metadata, first->dtype), out))
        return error_set(err, RESHARD_ERR_FORMAT, "there is no type '%.*s'", STR_ARG(flex_text(metadata, first->dtype)));
    error_set(err, RESHARD_ERR_UNSUPPORTED, "Paddle has no tensors of type '%.*s'", STR_ARG(flex_text(metadata, first->dtype)));
    error_hint(err, "reshard_open_options.skip_unsupported leaves such tensors out");
    return RESHARD_ERR_UNSUPPORTED;
}

/* Whether only files told its type, and none that can be read does. */
static bool key_lacks_dtype(const struct cataloguing *c, const struct flex_key *key)
{
    return c->metadata->generation.shard < 0 && !c->dtype_of_name[key->name];
}

/* Nobody misses its shards. */
static reshard_status key_leave_out(struct cataloguing *c, const struct flex_key *key)
{
    for (uint32_t i = 0; i < key->shard_count; i++)
        c->is_used[key->first_shard + i] = 1;
    return RESHARD_OK;
}

/* The key that a name of the metadata has in the catalog. */
static reshard_status key_list_as(const struct cataloguing *c, struct str *name, reshard_error *err)
{
    if (c->part->role != FLEX_EMA)
        return RESHARD_OK;
    *name = ARENA_JOIN(&c->source->catalog->arena, STR(FLEX_EMA_NAME "."), *name);
    return name->data ? RESHARD_OK : error_set_memory(err);
}

static reshard_status key_add_tensor(struct cataloguing *c, const struct flex_key *key, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    struct str name = flex_name(metadata, key->name);
    int64_t shape[RANK_MAX];
    enum dtype dtype;
    if (c->tensor_of_name[key->name] != CATALOG_NONE)
        return key_failed(name, error_set_at(err, RESHARD_ERR_FORMAT, key->offset, "state_dict_metadata has it twice"), err);
    if (key->shard_count == 0)
        return key_failed(name, error_set(err, RESHARD_ERR_FORMAT, "it has no shards"), err);
    int rank = flex_vector_rank(metadata, metadata->shards[key->first_shard].offset);
    reshard_status status = key_list_as(c, &name, err);
    for (uint32_t i = 0; !status && i < key->shard_count; i++)
        status = key_check_shard(metadata, &metadata->shards[key->first_shard + i], rank, err);
    if (!status)
        status = key_find_shape(c, key, rank, shape, err);
    if (!status && source_bears_loss(c->source) && key_lacks_dtype(c, key)) {
        catalog_warn_lost(c->source->catalog, name,
                          "tensor '%.*s' is lost: no data file that can be read has it, and the metadata has no types", STR_ARG(name));
        return key_leave_out(c, key);
    }
    if (!status)
        status = key_find_dtype(c, key, &dtype, err);
    if (status == RESHARD_ERR_UNSUPPORTED && c->source->skip_unsupported) {
        source_warn_left_out(c->source, name, true, "Paddle has no tensors of type '%.*s'",
                             STR_ARG(flex_text(metadata, metadata->shards[key->first_shard].dtype)));
        return key_leave_out(c, key);
    }
    if (status)
        return key_failed(name, status, err);
    return key_refused(name, catalog_add_tensor(c->source->catalog, name, dtype, rank, shape, &c->tensor_of_name[key->name], err), err);
}

static reshard_status catalog_add_tensors(struct cataloguing *c, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < c->metadata->key_count && !status; i++)
        status = key_add_tensor(c, &c->metadata->keys[i], err);
    return status;
}

/* Paths that are more than the key. */
static reshard_status catalog_add_paths(const struct cataloguing *c, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < metadata->path_count && !status; i++) {
        const struct flex_path *path = &metadata->paths[i];
        uint32_t tensor = c->tensor_of_name[path->name];
        if (tensor == CATALOG_NONE || path->count == 0 ||
            (path->count == 1 && str_equal(flex_text(metadata, metadata->path_texts[path->first]), flex_name(metadata, path->name))))
            continue;
        size_t before = c->part->role == FLEX_EMA ? 1 : 0;
        struct path_part *parts = array_zeroed((size_t)path->count + 1, sizeof(*parts));
        if (parts)
            parts[0] = (struct path_part){ .kind = PATH_KEY, .key = STR(FLEX_EMA_NAME) };
        for (uint32_t j = 0; parts && j < path->count; j++)
            parts[before + j] = (struct path_part){ .kind = PATH_KEY, .key = flex_text(metadata, metadata->path_texts[path->first + j]) };
        status = parts ? catalog_set_tensor_path(c->source->catalog, tensor, parts, before + path->count, err) : error_set_memory(err);
        free(parts);
    }
    return status;
}

/* ---- files ---- */

static reshard_status file_find(struct cataloguing *c, uint32_t text, uint32_t *out, reshard_error *err)
{
    struct str base = flex_text(c->metadata, text);
    struct catalog *catalog = c->source->catalog;
    uint64_t rank, uid, bytes;
    bool is_directory;
    size_t slash;
    if (c->object_of_text[text] != CATALOG_NONE) {
        *out = c->object_of_text[text];
        return RESHARD_OK;
    }
    reshard_status status = store_name_check(base, err);
    if (!status && str_find_char(base, '/', &slash))
        status = error_set(err, RESHARD_ERR_FORMAT, "file name '%.*s' leads into another folder", STR_ARG(base));
    if (status)
        return status;
    const char *name = ARENA_JOIN(&catalog->arena, c->part->directory, base).data;
    if (!name)
        return error_set_memory(err);
    bool is_there = store_exists(c->source->store, name, &is_directory, &bytes);
    if (!is_there && source_bears_loss(c->source)) {
        bytes = 0; /* what lies in it is lost */
        if (!c->source->is_salvage)
            catalog_warn(catalog, true, "data file '%s', which storage_metadata names, is not there", name);
    } else if (!is_there || is_directory) {
        status = error_set(err, RESHARD_ERR_FORMAT, "data file '%s', which storage_metadata names, %s", name,
                           is_there ? "is a folder" : "is not there");
        error_object(err, "%s", name);
        return status;
    }
    enum flex_file_kind kind = flex_file_kind_of(base, &rank, &uid);
    c->has_distcp |= kind == FLEX_DISTCP;
    c->has_safetensors |= kind == FLEX_SAFETENSORS;
    status = catalog_add_object(catalog, str_of(name), bytes, out, err);
    if (!status)
        c->object_of_text[text] = *out;
    return status;
}

/* ---- joining ---- */

static uint32_t hash_of(const struct cataloguing *c, uint32_t a, uint32_t b, uint32_t d)
{
    const uint32_t key[] = { a, b, d };
    return (uint32_t)hash64(key, sizeof(key), c->seed);
}

/* Equal keys may stand one after the other: what looking past them takes is spent. */
static reshard_status catalog_index_shards(struct cataloguing *c, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    for (uint32_t i = 0; i < metadata->key_count; i++) {
        for (uint32_t j = 0; j < metadata->keys[i].shard_count; j++) {
            uint32_t number = metadata->keys[i].first_shard + j;
            const struct flex_shard *shard = &metadata->shards[number];
            uint32_t slot = hash_of(c, shard->name, shard->offset, shard->range) & c->shard_mask;
            uint64_t steps = 0;
            for (; c->shard_slots[slot]; steps++)
                slot = (slot + 1) & c->shard_mask;
            c->shard_slots[slot] = number + 1;
            reshard_status status = steps > 64 ? work_spend_steps(c->source->limits.budget, steps, err) : RESHARD_OK;
            if (status)
                return status;
        }
    }
    return RESHARD_OK;
}

static bool catalog_is_empty(const struct flex_metadata *metadata, const struct flex_shard *shard)
{
    const int64_t *shape = flex_vector_at(metadata, shard->shape);
    int rank = flex_vector_rank(metadata, shard->shape);
    for (int i = 0; i < rank; i++)
        if (!shape[i])
            return true;
    return false;
}

/* The shard that an index means, or FLEX_NONE. Before 3.3 an index does not know its shape: the first shard that it fits is meant, and a
 * shard without elements only where there is no other, which it shares its offset with. */
static uint32_t catalog_find_shard(const struct cataloguing *c, const struct flex_index *index)
{
    const struct flex_metadata *metadata = c->metadata;
    uint32_t slot = hash_of(c, index->name, index->offset, index->range) & c->shard_mask, empty = FLEX_NONE;
    for (; c->shard_slots[slot]; slot = (slot + 1) & c->shard_mask) {
        uint32_t number = c->shard_slots[slot] - 1;
        const struct flex_shard *shard = &metadata->shards[number];
        if (shard->name == index->name && shard->offset == index->offset && shard->range == index->range &&
            (index->shape == FLEX_NONE || index->shape == shard->shape)) {
            if (index->shape != FLEX_NONE || !catalog_is_empty(metadata, shard))
                return number;
            empty = empty == FLEX_NONE ? number : empty;
        }
    }
    return empty;
}

/* Whether a file has the key already: *out is the index that says so. Else this one is remembered. */
static bool catalog_find_place(struct cataloguing *c, uint32_t index, uint32_t *out)
{
    const struct flex_index *indexes = c->metadata->indexes, *wanted = &indexes[index];
    uint32_t slot = hash_of(c, wanted->name, wanted->file, 0) & c->place_mask;
    for (; c->place_slots[slot]; slot = (slot + 1) & c->place_mask) {
        *out = c->place_slots[slot] - 1;
        if (indexes[*out].name == wanted->name && indexes[*out].file == wanted->file)
            return true;
    }
    c->place_slots[slot] = index + 1;
    return false;
}

static reshard_status catalog_put_chunk(struct cataloguing *c, const struct flex_index *index, const struct flex_shard *shard,
                                        uint32_t object, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    struct catalog *catalog = c->source->catalog;
    struct catalog_chunk *added;
    uint64_t rank, uid, bytes = 0;
    uint32_t tensor = c->tensor_of_name[index->name];
    const int64_t *bounds = shard->is_flattened ? flex_vector_at(metadata, shard->range) : NULL;
    const int64_t *shape = flex_vector_at(metadata, shard->shape);
    int64_t volume = 0;
    struct str name = flex_name(metadata, index->name);
    if (c->source->shows_damage && !c->source->is_salvage && !catalog->objects[object].bytes)
        return RESHARD_OK; /* the hole is told */
    reshard_status status = catalog_add_chunk(catalog, tensor, flex_vector_at(metadata, shard->offset), shape, object, 0, 0, &added, err);
    if (status)
        return key_refused(name, status, err);
    enum flex_file_kind kind = flex_file_kind_of(flex_text(metadata, index->file), &rank, &uid);
    added->writer = kind == FLEX_OTHER_FILE ? 0 : catalog_writer(rank);
    added->flags = CHUNK_UNRESOLVED;
    added->driver_data = flex_chunk_data(index->replica, shard->is_flattened);
    if (!shape_volume(flex_vector_rank(metadata, shard->shape), shape, &volume))
        return key_failed(name, error_set(err, RESHARD_ERR_FORMAT, "a shard of more than 2^63 elements"), err);
    int64_t count = bounds ? bounds[1] - bounds[0] : volume;
    if (!dtype_bytes(catalog->tensors[tensor].dtype, (uint64_t)count, &bytes) ||
        (bytes > catalog->objects[object].bytes && !c->source->is_salvage))
        return key_failed(name,
                          error_set(err, RESHARD_ERR_FORMAT,
                                    "'%.*s': its shard of %" PRId64 " elements is larger than the file of %" PRIu64 " bytes",
                                    STR_ARG(catalog->objects[object].name), count, catalog->objects[object].bytes),
                          err);
    added->bytes = catalog->objects[object].bytes; /* somewhere in it */
    return bounds ? key_failed(name, catalog_chunk_set_run(catalog, added, bounds[0], count, err), err) : RESHARD_OK;
}

static bool catalog_is_same_shard(const struct cataloguing *c, const struct flex_index *a, const struct flex_index *b)
{
    return catalog_find_shard(c, a) == catalog_find_shard(c, b);
}

/* The shard and file of an index; *is_done: there is nothing more to do. */
static reshard_status catalog_join(struct cataloguing *c, uint32_t number, uint32_t *out, uint32_t *object, bool *is_done,
                                   reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    const struct flex_index *index = &metadata->indexes[number];
    char offset[SHAPE_TEXT_MAX];
    uint32_t shard = catalog_find_shard(c, index), earlier;
    reshard_status status = file_find(c, index->file, object, err);
    *out = shard;
    *is_done = true;
    if (status)
        return status;
    if (shard == FLEX_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "storage_metadata puts a shard at %s into '%.*s' that state_dict_metadata does not have",
                         vector_text(metadata, index->offset, offset), STR_ARG(flex_text(metadata, index->file)));
    c->is_used[shard] = 1;
    if (c->tensor_of_name[index->name] == CATALOG_NONE)
        return RESHARD_OK; /* it was left out */
    if (catalog_find_place(c, number, &earlier)) {
        if (catalog_is_same_shard(c, index, &metadata->indexes[earlier]))
            return RESHARD_OK;
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is said to hold two shards of it, but a file has one array for a key",
                         STR_ARG(flex_text(metadata, index->file)));
    }
    *is_done = false;
    return RESHARD_OK;
}

static reshard_status catalog_index_add(struct cataloguing *c, uint32_t number, reshard_error *err)
{
    const struct flex_index *index = &c->metadata->indexes[number];
    uint32_t shard, object;
    bool is_done;
    reshard_status status = catalog_join(c, number, &shard, &object, &is_done, err);
    if (status || is_done)
        return key_failed(flex_name(c->metadata, index->name), status, err);
    return catalog_put_chunk(c, index, &c->metadata->shards[shard], object, err);
}

/* Whether a shard needs no index: it has no elements, and where indexes have no shapes, another shard's is at its offset. */
static bool catalog_needs_no_place(const struct cataloguing *c, const struct flex_shard *shard)
{
    return c->metadata->generation.index < 2 && catalog_is_empty(c->metadata, shard);
}

/* Copies that say so come behind what they copy. */
static reshard_status catalog_add_chunks(struct cataloguing *c, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    for (int is_copy = 0; is_copy < 2; is_copy++) {
        for (uint32_t i = 0; i < metadata->index_count; i++) {
            if ((metadata->indexes[i].replica > 0) != is_copy)
                continue;
            reshard_status status = catalog_index_add(c, i, err);
            if (status)
                return status;
        }
    }
    for (uint32_t i = 0; i < metadata->key_count; i++) {
        const struct flex_key *key = &metadata->keys[i];
        char offset[SHAPE_TEXT_MAX];
        for (uint32_t j = 0; j < key->shard_count; j++) {
            if (!c->is_used[key->first_shard + j] && !catalog_needs_no_place(c, &metadata->shards[key->first_shard + j]))
                return error_set_at(
                    err, RESHARD_ERR_FORMAT, key->offset, "tensor '%.*s': storage_metadata says nothing about its shard at %s",
                    STR_ARG(flex_name(metadata, key->name)), vector_text(metadata, metadata->shards[key->first_shard + j].offset, offset));
        }
    }
    return RESHARD_OK;
}

/* ---- what only the files know ---- */

/* *out is NULL where the file cannot be read and the source bears it: whoever asks for what lies in it is told why. */
static reshard_status catalog_open_data(const struct cataloguing *c, uint32_t object, struct flex_data **out, reshard_error *err)
{
    const struct catalog *catalog = c->source->catalog;
    reshard_error seen = { 0 };
    *out = NULL;
    if (!catalog->objects[object].bytes && source_bears_loss(c->source))
        return RESHARD_OK; /* it is missing */
    reshard_status status = flex_data_open(c->source, catalog->objects[object].name, out, &seen);
    if (status_blames_bytes(status) && source_bears_loss(c->source))
        return RESHARD_OK;
    if (status && err)
        *err = seen;
    return status;
}

static int catalog_by_file(const void *a, const void *b, void *context)
{
    const struct flex_index *indexes = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return indexes[i].file != indexes[j].file ? (indexes[i].file < indexes[j].file ? -1 : 1) : i < j ? -1 : i > j;
}

/* Types of the arrays, file by file: 2.6 keeps none in the metadata. Paddle has no uint16: it is bfloat16. */
static reshard_status catalog_read_dtypes(struct cataloguing *c, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    struct flex_data *data = NULL;
    uint32_t *order = array_new(metadata->index_count, sizeof(*order)), object = CATALOG_NONE;
    reshard_status status = order ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < metadata->index_count; i++)
        order[i] = i;
    if (!status)
        qsort_r(order, metadata->index_count, sizeof(*order), catalog_by_file, metadata->indexes);
    for (uint32_t i = 0; !status && i < metadata->index_count; i++) {
        const struct flex_index *index = &metadata->indexes[order[i]];
        struct flex_array array;
        if (i == 0 || index->file != metadata->indexes[order[i - 1]].file) {
            flex_data_close(data);
            data = NULL;
            status = file_find(c, index->file, &object, err);
            if (!status)
                status = catalog_open_data(c, object, &data, err);
        }
        if (!status && data && !c->dtype_of_name[index->name] && flex_data_find(data, flex_name(metadata, index->name), &array))
            c->dtype_of_name[index->name] = (uint8_t)(1 + (array.dtype == DTYPE_U16 ? DTYPE_BF16 : array.dtype));
    }
    flex_data_close(data);
    free(order);
    return status;
}

/* ---- files whose arrays may be in slices ---- */

/* Pickles of protocols 2 and 3 may hold arrays in slices, each of which is a chunk: these are placed while chunks can still be added. */
static reshard_status catalog_place_sliced(struct cataloguing *c, reshard_error *err)
{
    struct catalog *catalog = c->source->catalog;
    uint32_t end = catalog->chunk_count;
    reshard_status status = RESHARD_OK;
    for (uint32_t text = 0; text < c->metadata->texts.count && !status; text++) {
        uint32_t object = c->object_of_text[text];
        struct flex_data *data = NULL;
        int protocol = 0;
        if (object != CATALOG_NONE)
            status = flex_data_protocol(c->source, catalog->objects[object].name, &protocol, err);
        if (protocol != 2 && protocol != 3)
            continue;
        status = catalog_open_data(c, object, &data, err);
        for (uint32_t i = c->first_chunk; i < end && !status && data; i++) {
            if (catalog->chunks[i].object == object)
                status = flex_place_in(catalog, data, i, err);
        }
        flex_data_close(data);
    }
    return status;
}

/* ---- a part ---- */

static uint32_t slots_for(uint32_t count)
{
    uint32_t slots = 16;
    while (slots < count + count / 2)
        slots *= 2;
    return slots;
}

static reshard_status cataloguing_init(struct cataloguing *c, reshard_error *err)
{
    const struct flex_metadata *metadata = c->metadata;
    uint32_t shards = slots_for(metadata->shard_count), places = slots_for(metadata->index_count);
    size_t names = (size_t)metadata->names.count + 1, texts = (size_t)metadata->texts.count + 1;
    c->seed = hash_table_seed();
    c->shard_mask = shards - 1;
    c->place_mask = places - 1;
    c->first_chunk = c->source->catalog->chunk_count;
    c->tensor_of_name = array_new(names, sizeof(*c->tensor_of_name));
    c->object_of_text = array_new(texts, sizeof(*c->object_of_text));
    c->dtype_of_name = array_zeroed(names, 1);
    c->shard_slots = array_zeroed(shards, sizeof(*c->shard_slots));
    c->place_slots = array_zeroed(places, sizeof(*c->place_slots));
    c->is_used = array_zeroed(metadata->shard_count, 1);
    if (!c->tensor_of_name || !c->object_of_text || !c->dtype_of_name || !c->shard_slots || !c->place_slots || !c->is_used)
        return error_set_memory(err);
    memset(c->tensor_of_name, 0xFF, names * sizeof(*c->tensor_of_name));
    memset(c->object_of_text, 0xFF, texts * sizeof(*c->object_of_text));
    return RESHARD_OK;
}

static void cataloguing_release(struct cataloguing *c)
{
    free(c->tensor_of_name);
    free(c->object_of_text);
    free(c->dtype_of_name);
    free(c->shard_slots);
    free(c->place_slots);
    free(c->is_used);
}

static reshard_status catalog_check_kinds(struct cataloguing *c, reshard_error *err)
{
    c->part->is_safetensors = c->has_safetensors || c->part->is_auto;
    if (c->has_distcp && c->has_safetensors)
        return error_set(err, RESHARD_ERR_FORMAT, "it names .distcp and .safetensors files: a checkpoint has one kind");
    if (!c->is_derived)
        return RESHARD_OK;
    return catalog_add_fact(c->source->catalog, "global shapes", err, "derived from the shards: the metadata does not give them");
}

/* What the metadata alone tells. */
static reshard_status catalog_add_all(struct cataloguing *c, reshard_error *err)
{
    reshard_status status = catalog_add_tensors(c, err);
    if (!status)
        status = catalog_add_paths(c, err);
    if (!status)
        status = catalog_index_shards(c, err);
    if (!status)
        status = catalog_add_chunks(c, err);
    if (!status)
        status = catalog_check_kinds(c, err);
    if (status)
        error_prefix(err, "'%.*s'", STR_ARG(c->part->metadata_name));
    return status;
}

reshard_status flex_catalog_add(struct source *source, struct flex_part *part, const struct flex_metadata *metadata, reshard_error *err)
{
    struct cataloguing c = { .source = source, .part = part, .metadata = metadata };
    reshard_status status = cataloguing_init(&c, err);
    if (!status && metadata->generation.shard < 0)
        status = catalog_read_dtypes(&c, err);
    if (!status)
        status = catalog_add_all(&c, err);
    if (!status)
        status = catalog_place_sliced(&c, err);
    cataloguing_release(&c);
    return status;
}
