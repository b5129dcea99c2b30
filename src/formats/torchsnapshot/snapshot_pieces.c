/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of tensors and objects lie, as their entries say. */
#include "formats/torchsnapshot/snapshot_source.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

#define LEAVES_OUT "reshard_open_options.skip_unsupported leaves such tensors out"

/* ---- files ---- */

static reshard_status object_find(struct snapshot_reading *reading, struct str location, struct snapshot_piece *piece, reshard_error *err)
{
    struct source *source = reading->source;
    char *name = NULL;
    bool is_directory = false;
    uint64_t bytes = 0;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, location, &name, err);
    if (status)
        return status;
    uint32_t known = name_map_find(&source->catalog->object_names, str_of(name));
    if (known != NAME_NONE && source->catalog->objects[known].bytes) { /* a slab is asked for once, however much lies in it */
        piece->object = known;
        piece->is_left_out = false;
        free(name);
        return RESHARD_OK;
    }
    bool is_there = store_exists(source->store, name, &is_directory, &bytes) && !is_directory;
    if (!is_there && !source_bears_loss(source)) {
        status = error_set(err, RESHARD_ERR_FORMAT, "'%s', where the manifest has it, is not there", name);
        error_object(err, "%s", name);
    } else {
        piece->is_left_out = !is_there && !source->is_salvage;
        status = catalog_add_object(source->catalog, str_of(name), is_there ? bytes : 0, &piece->object, err);
    }
    free(name);
    return status;
}

/* The range of the file that is said, or all of it. */
static reshard_status byte_range_read(struct snapshot_reading *reading, const struct value *entry, struct snapshot_piece *piece,
                                      reshard_error *err)
{
    const struct value *said = value_dict_get(entry, "byte_range");
    const struct catalog *catalog = reading->source->catalog;
    int64_t range[2];
    size_t count;
    struct str location;
    if (!value_as_str(value_dict_get(entry, "location"), &location))
        return error_set(err, RESHARD_ERR_FORMAT, "there is no \"location\"");
    reshard_status status = object_find(reading, location, piece, err);
    if (status)
        return status;
    piece->offset = 0;
    piece->bytes = catalog->objects[piece->object].bytes;
    if (said && said->kind != VALUE_NONE) {
        if (!value_as_ints(said, range, 2, &count) || count != 2 || range[0] < 0 || range[1] < range[0])
            return error_set(err, RESHARD_ERR_FORMAT, "\"byte_range\" is not where bytes begin and where they end");
        piece->offset = (uint64_t)range[0];
        piece->bytes = (uint64_t)(range[1] - range[0]);
    }
    return RESHARD_OK;
}

static reshard_status check_inside(struct snapshot_reading *reading, struct snapshot_piece *piece, uint64_t wanted, reshard_error *err)
{
    const struct source *source = reading->source;
    const struct catalog_object *object = &source->catalog->objects[piece->object];
    const bool is_lost = !range_fits(piece->offset, wanted, object->bytes);
    if (is_lost && !source_bears_loss(source)) {
        error_set_at(err, RESHARD_ERR_FORMAT, piece->offset, "%" PRIu64 " bytes from here on are wanted, '%.*s' has %" PRIu64, wanted,
                     STR_ARG(object->name), object->bytes);
        error_object(err, "%.*s", STR_ARG(object->name));
        return RESHARD_ERR_FORMAT;
    }
    piece->is_left_out = piece->is_left_out || (is_lost && !source->is_salvage);
    return RESHARD_OK;
}

/* ---- tensors ---- */

static reshard_status serializer_read(const struct value *entry, struct snapshot_piece *out, reshard_error *err)
{
    struct str name = { 0 };
    value_as_str(value_dict_get(entry, "serializer"), &name);
    out->is_saved = str_is(name, "torch_save");
    if (out->is_saved || str_is(name, "buffer_protocol"))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "serializer '%.*s%s' is not known", STR_ARG_BRIEF(name));
    error_hint(err, LEAVES_OUT);
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status dtype_read(const struct value *entry, enum dtype *out, reshard_error *err)
{
    struct str name = { 0 };
    value_as_str(value_dict_get(entry, "dtype"), &name);
    bool is_known = str_starts_with(name, "torch.") && dtype_from_torch((struct str){ name.data + 6, name.size - 6 }, out),
         is_quantised = is_known && dtype_info(*out)->class_ == DTYPE_CLASS_OPAQUE;
    if (is_known && !is_quantised)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "type '%.*s%s'%s", STR_ARG_BRIEF(name),
              is_quantised ? ": quantised tensors of torch are not read" : " is not known");
    error_hint(err, LEAVES_OUT);
    return RESHARD_ERR_UNSUPPORTED;
}

/* Numbers of one axis each; *rank is set by the first, and the others have as many. */
static reshard_status axes_read(const struct value *entry, const char *name, int64_t *out, int *rank, reshard_error *err)
{
    size_t count;
    if (!value_as_ints(value_dict_get(entry, name), out, RANK_MAX, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "\"%s\" is no list of at most %d numbers", name, RANK_MAX);
    if (*rank >= 0 && (size_t)*rank != count)
        return error_set(err, RESHARD_ERR_FORMAT, "\"%s\" has %zu numbers for %d axes", name, count, *rank);
    *rank = (int)count;
    return RESHARD_OK;
}

static reshard_status check_bytes(struct snapshot_reading *reading, const struct value *entry, struct snapshot_piece *piece,
                                  reshard_error *err)
{
    const struct value *said = value_dict_get(entry, "byte_range");
    int64_t volume;
    uint64_t wanted;
    if (!shape_volume(piece->rank, piece->extent, &volume) || !dtype_bytes(piece->dtype, (uint64_t)volume, &wanted))
        return error_set(err, RESHARD_ERR_FORMAT, "its shape is too large");
    if (piece->is_saved)
        return check_inside(reading, piece, piece->bytes, err);
    reshard_status status = check_inside(reading, piece, wanted, err);
    bool is_told = said && said->kind != VALUE_NONE;
    if (!status && !piece->is_left_out && piece->bytes != wanted && (is_told || !reading->source->is_salvage))
        status = error_set_at(err, RESHARD_ERR_FORMAT, piece->offset, "there are %" PRIu64 " bytes for a shape that takes %" PRIu64,
                              piece->bytes, wanted);
    piece->bytes = wanted;
    return status;
}

reshard_status snapshot_object_read(struct snapshot_reading *reading, const struct value *entry, struct snapshot_piece *out,
                                    reshard_error *err)
{
    reshard_status status = serializer_read(entry, out, err);
    if (!status)
        status = byte_range_read(reading, entry, out, err);
    return status ? status : check_inside(reading, out, out->bytes, err);
}

/* A Tensor entry, alone or of a shard. */
static reshard_status tensor_read(struct snapshot_reading *reading, const struct value *entry, struct snapshot_piece *out,
                                  reshard_error *err)
{
    int rank = -1;
    int64_t shape[RANK_MAX];
    reshard_status status = dtype_read(entry, &out->dtype, err);
    if (!status)
        status = serializer_read(entry, out, err);
    if (!status)
        status = byte_range_read(reading, entry, out, err);
    if (!status)
        status = axes_read(entry, "shape", shape, &rank, err);
    if (status)
        return status;
    if (out->rank < 0) {
        out->rank = rank;
        memcpy(out->extent, shape, sizeof(shape));
    } else if (rank != out->rank || !shape_equal(rank, shape, rank, out->extent)) {
        return error_set(err, RESHARD_ERR_FORMAT, "a shard's \"sizes\" are not the shape of its tensor");
    }
    return check_bytes(reading, entry, out, err);
}

static reshard_status piece_keep(struct snapshot_reading *reading, const struct snapshot_piece *piece, reshard_error *err)
{
    struct snapshot_state *state = snapshot_state_of(reading->source);
    if (!ARRAY_ROOM(state->pieces, state->piece_count, state->piece_capacity))
        return error_set_memory(err);
    state->pieces[state->piece_count++] = *piece;
    return RESHARD_OK;
}

static reshard_status shard_read(struct snapshot_reading *reading, const struct value *shard, struct snapshot_piece *out,
                                 reshard_error *err)
{
    out->rank = -1;
    reshard_status status = axes_read(shard, "sizes", out->extent, &out->rank, err);
    if (!status)
        status = axes_read(shard, "offsets", out->start, &out->rank, err);
    return status ? status : tensor_read(reading, value_dict_get(shard, "tensor"), out, err);
}

reshard_status snapshot_pieces_read(struct snapshot_reading *reading, const struct snapshot_entry *entry, uint32_t *count,
                                    reshard_error *err)
{
    struct value **shards = NULL;
    struct snapshot_piece piece = { .rank = -1 };
    size_t shard_count = 0;
    *count = 0;
    if (str_is(entry->type, "Tensor")) {
        reshard_status status = tensor_read(reading, entry->value, &piece, err);
        *count = 1;
        return status ? status : piece_keep(reading, &piece, err);
    }
    const char *word = str_is(entry->type, "ChunkedTensor") ? "chunks" : "shards";
    if (!value_as_sequence(value_dict_get(entry->value, word), &shards, &shard_count))
        return error_set(err, RESHARD_ERR_FORMAT, "there is no list \"%s\"", word);
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; !status && i < shard_count; i++) {
        status = shard_read(reading, shards[i], &piece, err);
        if (!status)
            status = piece_keep(reading, &piece, err);
        *count += !status;
    }
    return status;
}
