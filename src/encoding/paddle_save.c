/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/paddle_save.h"

#include "base/array.h"
#include "encoding/paddle_save_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HEAD_BYTES 32
#define PROTOCOL_MIN 2
#define PROTOCOL_MAX 5

static bool is_pickle(const uint8_t *head, size_t size)
{
    return size >= 2 && head[0] == 0x80 && head[1] >= PROTOCOL_MIN && head[1] <= PROTOCOL_MAX;
}

bool paddle_save_probe(const uint8_t *head, size_t size)
{
    return is_pickle(head, size) || paddle_binary_probe(head, size);
}

reshard_status paddle_fail(const struct value *node, reshard_error *err, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "byte %" PRIu64 ": %s", node->offset, text);
}

reshard_status paddle_add_tensor(struct paddle_reading *reading, const struct paddle_tensor *tensor, uint32_t *out, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    size_t rank = (size_t)tensor->rank;
    int64_t *shape = arena_array(&archive->arena, rank, sizeof(*shape));
    struct paddle_part *parts = arena_array(&archive->arena, tensor->part_count, sizeof(*parts));
    if (!shape || !parts || !ARRAY_ROOM(archive->tensors, archive->tensor_count, reading->tensor_capacity))
        return work_error(reading->limits->budget, err);
    if (rank)
        memcpy(shape, tensor->shape, rank * sizeof(*shape));
    memcpy(parts, tensor->parts, tensor->part_count * sizeof(*parts));
    *out = archive->tensor_count++;
    archive->tensors[*out] = *tensor;
    archive->tensors[*out].shape = shape;
    archive->tensors[*out].parts = parts;
    return RESHARD_OK;
}

static reshard_status open_pickle(struct paddle_reading *reading, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    struct pickle_report report;
    reshard_status status = pickle_skim(reading->reader, reading->limits, &archive->skim, err);
    if (!status)
        status = pickle_skim_parse(&archive->skim, reading->limits, &archive->graph, &report, err);
    if (status)
        return status;
    archive->protocol = report.protocol;
    archive->end = archive->skim.consumed;
    if (report.stack_left)
        return error_set_at(err, RESHARD_ERR_FORMAT, archive->end - 1, "values are left on the stack at STOP");
    status = paddle_read_nodes(reading, err);
    return status ? status : paddle_read_entries(reading, err);
}

static reshard_status open_any(struct paddle_reading *reading, reshard_error *err)
{
    uint8_t head[HEAD_BYTES];
    const struct reader *reader = reading->reader;
    size_t size = reader->size < sizeof(head) ? (size_t)reader->size : sizeof(head);
    if (!size)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "empty file");
    reshard_status status = reader_read(reader, 0, head, size, err);
    if (status)
        return status;
    if (is_pickle(head, size))
        return open_pickle(reading, err);
    if (!paddle_binary_probe(head, size))
        return error_set_at(err, RESHARD_ERR_FORMAT, 0,
                            "begins with %02x %02x: neither a pickle of protocol 2 to 5 nor a binary tensor, as paddle.save writes them",
                            head[0], size > 1 ? head[1] : 0);
    return paddle_read_binary(reading, err);
}

reshard_status paddle_save_open(const struct reader *reader, const struct paddle_open_options *options, struct paddle_archive *out,
                                reshard_error *err)
{
    struct paddle_archive archive = { .arena = { .work = options->limits->budget } };
    struct paddle_reading reading = {
        .archive = &archive, .reader = reader, .limits = options->limits, .lenient = options->lenient,
    };
    reshard_status status = work_explain(options->limits->budget, open_any(&reading, err), err);
    name_map_release(&reading.globals);
    free(reading.by_id);
    free(reading.is_payload);
    if (status)
        paddle_save_release(&archive);
    else
        *out = archive;
    return status;
}

void paddle_save_release(struct paddle_archive *archive)
{
    value_graph_release(&archive->graph);
    free(archive->tensors);
    free(archive->entries);
    free(archive->unknown_globals);
    name_map_release(&archive->keys);
    arena_release(&archive->arena);
    pickle_skim_release(&archive->skim);
    *archive = (struct paddle_archive){ 0 };
}

