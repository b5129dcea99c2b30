/* SPDX-License-Identifier: Apache-2.0 */
/* Writing from memory, piece by piece. */
#include "reshard/writer.h"

#include "api/handle.h"

#include "api/convert_call.h"
#include "api/items.h"
#include "api/public_shards.h"
#include "api/report.h"
#include "api/writer_declaration.h"
#include "base/array.h"
#include "convert/feeding.h"

#include <stdlib.h>

struct reshard_writer {
    struct feeding feeding;
    struct convert_call call;
    struct buffer declaration; /* that the first part keeps */
    bool is_prepared;
};

/* ---- opening ---- */

static reshard_status declared_take(const reshard_writer_tensor *given, size_t index, struct shard *out, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct str key = { given->key.data, given->key.size };
    if (!given->key.data || !given->dtype || given->rank > RANK_MAX || (given->rank && !given->shape))
        return error_set(err, RESHARD_ERR_USAGE, "tensor %zu has no key, dtype or shape, or more than %d axes", index, RANK_MAX);
    *out = (struct shard){
        .key = key, .rank = (int)given->rank, .shape = given->shape, .start = origin, .extent = given->shape, .is_elsewhere = true
    };
    reshard_status status = dtype_take(given->dtype, key, &out->dtype, err);
    return status ? status : shard_check(out, err);
}

static reshard_status input_open(const reshard_writer_input *input, const struct shard *shards, const struct open_options *options,
                                 struct checkpoint **out, reshard_error *err)
{
    struct live_item *items = NULL;
    size_t item_count;
    reshard_status status = items_take(input->items, input->item_count, input->item_stride, input->values, &items, &item_count, err);
    const struct live_state live = { .shards = shards, .shard_count = input->tensor_count, .items = items, .item_count = item_count };
    if (!status)
        status = checkpoint_open_live(&live, options, input->name ? input->name : "memory", out, err);
    free(items);
    return status;
}

/* The declared tensors as a checkpoint without values. */
static reshard_status declared_open(const reshard_writer_input *input, const struct open_options *options, struct checkpoint **out,
                                    reshard_error *err)
{
    void *taken = NULL;
    struct shard *shards = array_zeroed(input->tensor_count, sizeof(*shards));
    if (!shards)
        return error_set_memory(err);
    reshard_status status = array_take(input->tensors, input->tensor_count, input->tensor_stride, sizeof(reshard_writer_tensor),
                                       "reshard_writer_tensor", &taken, err);
    const reshard_writer_tensor *tensors = taken;
    for (size_t i = 0; i < input->tensor_count && !status; i++)
        status = declared_take(&tensors[i], i, &shards[i], err);
    if (!status)
        status = input_open(input, shards, options, out, err);
    free(taken);
    free(shards);
    return status;
}

static reshard_status declaration_keep(reshard_writer *writer, const reshard_writer_input *input, reshard_error *err)
{
    struct conversion_options *options = &writer->call.options;
    if (!options->part_count || options->part || options->part_words.size)
        return RESHARD_OK;
    reshard_status status = declaration_write(input, &writer->call.given, &writer->declaration, err);
    options->part_words = buffer_str(&writer->declaration);
    return status;
}

/* Prepares, and goes on with what is given. */
static reshard_status writer_begin(reshard_writer *writer, const reshard_writer_input *input, const char *target_path,
                                   reshard_status (*begin)(struct feeding *feeding, reshard_error *err), reshard_report *report,
                                   reshard_error *err)
{
    struct convert_call *call = &writer->call;
    struct checkpoint *source = NULL;
    reshard_status status = declared_open(input, &call->open.options.open, &source, err);
    if (!status)
        status = declaration_keep(writer, input, err);
    if (status)
        checkpoint_close(source);
    else
        status = feeding_prepare(&writer->feeding, source, target_path, &call->options, &call->run.engine, err);
    status = map_call_status(&call->map, status, err);
    if (!status) {
        writer->is_prepared = true;
        status = report ? report_give(&writer->feeding.conversion, report, err) : RESHARD_OK;
    }
    if (!status)
        status = begin(&writer->feeding, err);
    if (status && report)
        reshard_report_release(report);
    return status;
}

static reshard_status writer_new(const reshard_writer_input *input, const char *target_path, const reshard_convert_options *options,
                                 const reshard_run_options *run, reshard_status (*begin)(struct feeding *feeding, reshard_error *err),
                                 reshard_report *report, reshard_writer **out, reshard_error *err)
{
    reshard_writer_input taken;
    reshard_status status = struct_take(&taken, sizeof(taken), input, "reshard_writer_input", err);
    if (status)
        return status;
    reshard_writer *writer = calloc(1, sizeof(*writer));
    if (!writer)
        return error_set_memory(err);
    status = convert_options_read(options, run, target_path, &writer->call, err);
    if (!status)
        status = writer_begin(writer, &taken, target_path, begin, report, err);
    if (status)
        reshard_writer_free(writer);
    else
        *out = writer;
    return status;
}

API_EXPORT reshard_status reshard_writer_open(const reshard_writer_input *input, const char *target_path,
                                              const reshard_convert_options *options, const reshard_run_options *run,
                                              reshard_report *report, reshard_writer **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(input, err);
    NEEDS(target_path, err);
    NEEDS(options, err);
    return writer_new(input, target_path, options, run, feeding_begin, report, out, err);
}

/* What the parts were opened with is what the first of them has kept. */
static reshard_status commit_declared(const char *target_path, const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    struct declaration declaration = { .input = RESHARD_WRITER_INPUT_INIT };
    struct buffer words = { 0 };
    reshard_writer *writer = NULL;
    bool is_first;
    reshard_status status = conversion_part_words(target_path, &is_first, &words, err);
    if (!status && !declaration_is(buffer_str(&words))) {
        status = is_first ? RESHARD_ERR_UNSUPPORTED : RESHARD_DIFFERS;
        error_set(err, status, is_first ? "the parts do not keep what they were opened with: their program commits them"
                                        : "part 0 is missing, which keeps what the parts were opened with");
        if (!is_first)
            error_hint(err, "write it, then commit again");
    }
    if (!status)
        status = declaration_read(buffer_str(&words), &declaration, err);
    if (!status)
        status = writer_new(&declaration.input, target_path, &declaration.options, run, feeding_commit, report, &writer, err);
    reshard_writer_free(writer);
    declaration_release(&declaration);
    buffer_release(&words);
    return status;
}

API_EXPORT reshard_status reshard_writer_commit(const reshard_writer_input *input, const char *target_path,
                                                const reshard_convert_options *options, const reshard_run_options *run,
                                                reshard_report *report, reshard_error *err)
{
    reshard_writer *writer = NULL;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(target_path, err);
    if (!input && !options)
        return commit_declared(target_path, run, report, err);
    NEEDS(input, err);
    NEEDS(options, err);
    status = writer_new(input, target_path, options, run, feeding_commit, report, &writer, err);
    reshard_writer_free(writer);
    return status;
}

/* ---- pieces ---- */

static reshard_status piece_read(void *context, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const reshard_piece *piece = context;
    if (!piece->read(out, offset, size, piece->context))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_CANCELLED, "reshard_piece.read failed for %zu bytes at %llu", size, (unsigned long long)offset);
}

/* given points to the piece for as long as the call lasts. */
static reshard_status piece_take(const struct catalog *catalog, reshard_piece *given, struct feeding_piece *out, reshard_error *err)
{
    if (given->tensor >= catalog->tensor_count)
        return error_set(err, RESHARD_ERR_USAGE, "there is no tensor %zu", given->tensor);
    const struct catalog_tensor *tensor = &catalog->tensors[given->tensor];
    if (!given->start != !given->extent)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': one of start and extent is NULL", STR_ARG(tensor->key));
    if (given->is_flattened && given->flat_end <= given->flat_begin)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': an empty range", STR_ARG(tensor->key));
    *out = (struct feeding_piece){ .box = { .tensor = (uint32_t)given->tensor,
                                            .start = given->start,
                                            .extent = given->extent,
                                            .dtype = tensor->dtype,
                                            .strides = given->strides,
                                            .out = given->read ? NULL : (void *)(uintptr_t)given->data,
                                            .bytes = given->read ? UINT64_MAX : given->size },
                                   .read = given->read ? piece_read : NULL,
                                   .context = given };
    if (given->is_flattened) {
        out->box.flat_begin = given->flat_begin;
        if (__builtin_sub_overflow(given->flat_end, given->flat_begin, &out->box.flat_count))
            return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a range of more than 2^63 elements", STR_ARG(tensor->key));
    }
    reshard_status status = given->dtype ? dtype_take(given->dtype, tensor->key, &out->box.dtype, err) : RESHARD_OK;
    if (!status && !copy_can_cast(out->box.dtype, tensor->dtype))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': %s cannot be cast to %s", STR_ARG(tensor->key),
                         dtype_info(out->box.dtype)->name, dtype_info(tensor->dtype)->name);
    return status;
}

API_EXPORT reshard_status reshard_writer_put(reshard_writer *writer, const reshard_piece *piece, reshard_error *err)
{
    reshard_piece given;
    struct feeding_piece taken;
    ERROR_SCOPE(err);
    NEEDS(writer, err);
    NEEDS(piece, err);
    reshard_status status = struct_take(&given, sizeof(given), piece, "reshard_piece", err);
    if (!status)
        status = piece_take(writer->feeding.source->source->catalog, &given, &taken, err);
    return status ? status : feeding_put(&writer->feeding, &taken, err);
}

API_EXPORT reshard_status reshard_writer_finish(reshard_writer *writer, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(writer, err);
    return feeding_finish(&writer->feeding, err);
}

API_EXPORT void reshard_writer_free(reshard_writer *writer)
{
    if (!writer)
        return;
    if (writer->is_prepared)
        feeding_release(&writer->feeding);
    map_call_release(&writer->call.map);
    buffer_release(&writer->declaration);
    free(writer);
}
