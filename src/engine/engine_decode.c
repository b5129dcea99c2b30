/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_origin.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

/* One open stream. Not moved while open: readers point into it. */
struct origin_stream {
    uint32_t chunk;
    bool is_open;
    bool has_object;
    uint64_t last_used;
    struct store_object *object;
    struct reader file;
    struct decoder *outer; /* of a coded range inside a coded range */
    struct reader outer_reader;
    struct decoder *decoder;
    const struct streams *streams;
};

reshard_status streams_init(struct streams *streams, struct origins *origins, uint32_t slot_count, reshard_error *err)
{
    *streams = (struct streams){ .origins = origins, .slot_count = slot_count };
    streams->slots = array_zeroed(slot_count, sizeof(*streams->slots));
    return streams->slots ? RESHARD_OK : error_set_memory(err);
}

static void stream_close(struct streams *streams, struct origin_stream *stream)
{
    decoder_free(stream->decoder);
    decoder_free(stream->outer);
    if (stream->has_object)
        origin_give(streams->origins, streams->origins->source->catalog->chunks[stream->chunk].object);
    *stream = (struct origin_stream){ 0 };
}

void streams_release(struct streams *streams)
{
    for (uint32_t i = 0; streams->slots && i < streams->slot_count; i++)
        stream_close(streams, &streams->slots[i]);
    free(streams->slots);
    *streams = (struct streams){ 0 };
}

/* Decodes on to position `to`, through scratch; the bytes are of no interest. */
static reshard_status decoder_skip_to(struct decoder *decoder, uint64_t to, void *scratch, size_t scratch_bytes, reshard_error *err)
{
    while (decoder_position(decoder) < to) {
        uint64_t left = to - decoder_position(decoder);
        size_t got, wanted = left < scratch_bytes ? (size_t)left : scratch_bytes;
        reshard_status status = decoder_read(decoder, scratch, wanted, &got, err);
        if (status)
            return status;
        if (got < wanted)
            return error_set(err, RESHARD_ERR_FORMAT, "decoded data ends at byte %" PRIu64 ", expected at least %" PRIu64,
                             decoder_position(decoder), to);
    }
    return RESHARD_OK;
}

static reshard_status decoder_read_all(struct decoder *decoder, void *out, size_t size, reshard_error *err)
{
    size_t got;
    uint64_t begin = decoder_position(decoder);
    reshard_status status = decoder_read(decoder, out, size, &got, err);
    if (!status && got < size)
        return error_set(err, RESHARD_ERR_FORMAT, "decoded data ends at byte %" PRIu64 ", expected at least %" PRIu64, begin + got,
                         begin + size);
    return status;
}

static const struct chunk_layout *stream_layout(const struct origin_stream *stream)
{
    const struct catalog *catalog = stream->streams->origins->source->catalog;
    return catalog_layout_of(catalog, &catalog->chunks[stream->chunk]);
}

static const struct limits *stream_limits(const struct streams *streams)
{
    const struct limits *limits = streams->origins->source->limits;
    return limits ? limits : &limits_default;
}

/* Forward-only reader over the outer stream. It starts that stream again when asked to go back. */
static reshard_status outer_read_at(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    struct origin_stream *stream = (struct origin_stream *)reader->context;
    const struct chunk_layout *layout = stream_layout(stream);
    reshard_status status = RESHARD_OK;
    if (size == 0)
        return RESHARD_OK;
    if (offset < decoder_position(stream->outer)) {
        decoder_free(stream->outer);
        stream->outer = NULL;
        status = decoder_new(layout->outer_codec, &stream->file, layout->outer_offset, layout->outer_bytes, stream_limits(stream->streams),
                             &stream->outer, err);
    }
    if (!status)
        status = decoder_skip_to(stream->outer, offset, out, size, err);
    return status ? status : decoder_read_all(stream->outer, out, size, err);
}

/* Opens the chunk's decoders. On failure the stream is to be closed all the same. */
static reshard_status stream_open(struct streams *streams, struct origin_stream *stream, uint32_t chunk_index, reshard_error *err)
{
    const struct engine_source *source = streams->origins->source;
    const struct catalog_chunk *chunk = &source->catalog->chunks[chunk_index];
    const struct chunk_layout *layout = catalog_layout_of(source->catalog, chunk);
    const struct limits *limits = stream_limits(streams);

    *stream = (struct origin_stream){ .chunk = chunk_index, .is_open = true, .streams = streams };
    reshard_status status = origin_take(streams->origins, chunk->object, &stream->object, err);
    if (status)
        return status;
    stream->has_object = true;
    stream->file = store_object_reader(stream->object);
    const struct reader *coded = &stream->file;
    if (layout->outer_codec != CODEC_NONE) {
        status = decoder_new(layout->outer_codec, &stream->file, layout->outer_offset, layout->outer_bytes, limits, &stream->outer, err);
        if (status)
            return status;
        stream->outer_reader = (struct reader){ .read_at = outer_read_at, .context = stream, .name = stream->file.name };
        if (__builtin_add_overflow(layout->coded_offset, layout->coded_bytes, &stream->outer_reader.size))
            return error_set(err, RESHARD_ERR_FORMAT, "coded range beyond 2^64");
        coded = &stream->outer_reader;
    }
    return decoder_new(layout->codec, coded, layout->coded_offset, layout->coded_bytes, limits, &stream->decoder, err);
}

/* The chunk's stream if it is open, else the slot that was not used for the longest time. */
static struct origin_stream *stream_find(struct streams *streams, uint32_t chunk)
{
    struct origin_stream *oldest = &streams->slots[0];
    for (uint32_t i = 0; i < streams->slot_count; i++) {
        struct origin_stream *stream = &streams->slots[i];
        if (stream->is_open && stream->chunk == chunk)
            return stream;
        if (!stream->is_open ? oldest->is_open : oldest->is_open && stream->last_used < oldest->last_used)
            oldest = stream;
    }
    return oldest;
}

reshard_status stream_read(struct streams *streams, uint32_t chunk, uint64_t begin, void *out, size_t size, reshard_error *err)
{
    struct origin_stream *stream = stream_find(streams, chunk);
    reshard_status status = RESHARD_OK;
    if (size == 0)
        return RESHARD_OK;
    if (!stream->is_open || stream->chunk != chunk || decoder_position(stream->decoder) > begin) {
        stream_close(streams, stream);
        status = stream_open(streams, stream, chunk, err);
    }
    if (!status)
        status = decoder_skip_to(stream->decoder, begin, out, size, err);
    if (!status)
        status = decoder_read_all(stream->decoder, out, size, err);
    stream->last_used = ++streams->clock;
    if (status)
        stream_close(streams, stream);
    return status;
}
