/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_skim.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/pickle_forms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)64 << 10)
#define FIRST_READ_BYTES ((size_t)4 << 10) /* behind a jump: payload mostly follows soon */

struct scan {
    const struct reader *reader;
    const struct limits *limits;
    struct pickle_skim *out;
    uint8_t *window;
    size_t pos, have;         /* in the window */
    uint64_t window_offset;   /* of the window's first byte */
    size_t read_bytes;        /* for the next read */
    uint64_t op_start;
    reshard_error *err;
};

static uint64_t scan_offset(const struct scan *scan)
{
    return scan->window_offset + scan->pos;
}

static reshard_status scan_fail(const struct scan *scan, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set_at(scan->err, RESHARD_ERR_FORMAT, scan->op_start, "pickle: byte %" PRIu64 ": %s", scan->op_start, text);
}

/* Fills the window until `size` bytes lie before pos; size <= WINDOW_BYTES. */
static reshard_status scan_need(struct scan *scan, size_t size)
{
    size_t rest = scan->have - scan->pos;
    if (rest >= size)
        return RESHARD_OK;
    uint64_t left = scan->reader->size - scan->window_offset - scan->have;
    if (left < size - rest)
        return scan_fail(scan, "the pickle ends inside an opcode's argument");
    if (rest)
        memmove(scan->window, scan->window + scan->pos, rest);
    scan->window_offset += scan->pos;
    scan->pos = 0;
    scan->have = rest;
    size_t wanted = scan->read_bytes > size - rest ? scan->read_bytes : size - rest;
    wanted = wanted < WINDOW_BYTES - rest ? wanted : WINDOW_BYTES - rest;
    wanted = wanted < left ? wanted : (size_t)left;
    reshard_status status = reader_read(scan->reader, scan->window_offset + rest, scan->window + rest, wanted, scan->err);
    if (status)
        return status;
    work_add_input(scan->limits->budget, wanted);
    scan->have += wanted;
    scan->read_bytes = WINDOW_BYTES;
    return work_spend(scan->limits->budget, wanted, scan->err);
}

static reshard_status scan_copy(struct scan *scan, uint64_t size)
{
    while (size) {
        size_t step = size < WINDOW_BYTES ? (size_t)size : WINDOW_BYTES;
        reshard_status status = scan_need(scan, step);
        if (status)
            return status;
        if (!buffer_append(&scan->out->bytes, scan->window + scan->pos, step))
            return buffer_error(&scan->out->bytes, scan->err);
        scan->pos += step;
        size -= step;
    }
    return RESHARD_OK;
}

/* A line with its end. The parser checks what it says, and how long it may be. */
static reshard_status scan_copy_line(struct scan *scan)
{
    const uint8_t *end = NULL;
    for (uint64_t size = 0; !end;) {
        reshard_status status = scan_need(scan, 1);
        if (status)
            return status;
        size_t step = scan->have - scan->pos;
        end = memchr(scan->window + scan->pos, '\n', step);
        if (end)
            step = (size_t)(end - (scan->window + scan->pos)) + 1;
        size += step;
        if (size > capped_add_u64(scan->limits->pickle_string_bytes, PICKLE_SKIM_STRING_MIN))
            return error_set_limit(scan->err, "pickle_string_bytes", size, scan->limits->pickle_string_bytes);
        status = scan_copy(scan, step);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* So many bytes of the file are left out here. */
static reshard_status scan_note_shift(struct scan *scan, uint64_t bytes)
{
    struct pickle_skim *out = scan->out;
    struct pickle_shift *last = out->shift_count ? &out->shifts[out->shift_count - 1] : NULL;
    if (last && last->at == out->bytes.size) {
        last->bytes += bytes;
        return RESHARD_OK;
    }
    uint64_t shift = (last ? last->bytes : 0) + bytes;
    if (!ARRAY_ROOM(out->shifts, out->shift_count, out->shift_capacity))
        return error_set_memory(scan->err);
    out->shifts[out->shift_count++] = (struct pickle_shift){ out->bytes.size, shift };
    return work_spend(scan->limits->budget, sizeof(*out->shifts), scan->err);
}

static reshard_status scan_frame(struct scan *scan)
{
    reshard_status status = scan_need(scan, 9);
    if (status)
        return status;
    uint64_t length = load_le(scan->window + scan->pos + 1, 8);
    scan->pos += 9;
    uint64_t left = scan->reader->size - scan_offset(scan);
    if (length > left)
        return scan_fail(scan, "a frame of %" PRIu64 " bytes, but only %" PRIu64 " follow", length, left);
    return scan_note_shift(scan, 9);
}

/* Moves behind a string that is left out. */
static reshard_status scan_jump(struct scan *scan, uint64_t bytes)
{
    struct pickle_skim *out = scan->out;
    uint64_t offset = scan_offset(scan);
    if (!ARRAY_ROOM(out->skipped, out->skipped_count, out->skipped_capacity))
        return error_set_memory(scan->err);
    out->skipped[out->skipped_count++] = (struct pickle_skipped){ out->bytes.size, offset, bytes };
    if (bytes <= scan->have - scan->pos) {
        scan->pos += (size_t)bytes;
    } else {
        scan->window_offset = offset + bytes;
        scan->pos = scan->have = 0;
        scan->read_bytes = FIRST_READ_BYTES;
    }
    return scan_note_shift(scan, bytes);
}

static reshard_status scan_string(struct scan *scan, struct pickle_form form)
{
    static const uint8_t zeros[8] = { 0 };
    reshard_status status = scan_need(scan, 1 + (size_t)form.size);
    if (status)
        return status;
    const uint8_t *opcode = scan->window + scan->pos;
    uint64_t length = load_le(opcode + 1, form.size), left = scan->reader->size - scan_offset(scan) - 1 - form.size;
    if (form.argument == PICKLE_ARG_INTEGER && length > scan->limits->bigint_bytes)
        return error_set_limit(scan->err, "bigint_bytes", length, scan->limits->bigint_bytes);
    if (length > left)
        return scan_fail(scan, "a string of %" PRIu64 " bytes, but only %" PRIu64 " follow", length, left);
    if (form.argument == PICKLE_ARG_INTEGER || length < PICKLE_SKIM_STRING_MIN)
        return scan_copy(scan, 1 + form.size + length);
    if (!buffer_append(&scan->out->bytes, opcode, 1) || !buffer_append(&scan->out->bytes, zeros, form.size))
        return buffer_error(&scan->out->bytes, scan->err);
    scan->pos += 1 + (size_t)form.size;
    return scan_jump(scan, length);
}

static reshard_status skim_opcode(struct scan *scan, uint8_t byte)
{
    struct pickle_form form = pickle_forms[byte];
    reshard_status status = RESHARD_OK;
    switch (form.argument) {
    case PICKLE_ARG_UNKNOWN:
        return scan_fail(scan, "unknown opcode 0x%02X", byte);
    case PICKLE_ARG_STRING:
    case PICKLE_ARG_INTEGER:
        return scan_string(scan, form);
    case PICKLE_ARG_FRAME:
        return scan_frame(scan);
    case PICKLE_ARG_LINES:
        status = scan_copy(scan, 1);
        for (int i = 0; i < form.size && !status; i++)
            status = scan_copy_line(scan);
        return status;
    default:
        return scan_copy(scan, 1 + (uint64_t)form.size);
    }
}

static reshard_status scan_all(struct scan *scan)
{
    for (uint8_t byte = 0; byte != '.';) {
        scan->op_start = scan_offset(scan);
        if (scan->op_start == scan->reader->size)
            return scan_fail(scan, scan->op_start ? "the pickle ends without STOP" : "the pickle is empty");
        reshard_status status = scan_need(scan, 1);
        if (status)
            return status;
        byte = scan->window[scan->pos];
        status = skim_opcode(scan, byte);
        if (status)
            return status;
    }
    scan->out->consumed = scan_offset(scan);
    return RESHARD_OK;
}

reshard_status pickle_skim(const struct reader *reader, const struct limits *limits, struct pickle_skim *out, reshard_error *err)
{
    struct pickle_skim skim = { .bytes = { .limit = (size_t)limits->metadata_bytes, .limit_name = "metadata_bytes" } };
    struct scan scan = {
        .reader = reader, .limits = limits, .out = &skim, .window = malloc(WINDOW_BYTES), .read_bytes = FIRST_READ_BYTES, .err = err,
    };
    reshard_status status = scan.window ? scan_all(&scan) : error_set_memory(err);
    free(scan.window);
    if (status)
        pickle_skim_release(&skim);
    else
        *out = skim;
    return status;
}

void pickle_skim_release(struct pickle_skim *skim)
{
    buffer_release(&skim->bytes);
    free(skim->shifts);
    free(skim->skipped);
    *skim = (struct pickle_skim){ 0 };
}

reshard_status pickle_skim_parse(const struct pickle_skim *skim, const struct limits *limits, struct value_graph *graph,
                                 struct pickle_report *report, reshard_error *err)
{
    return pickle_parse_shifted(skim->bytes.data, skim->bytes.size, skim->shifts, skim->shift_count, limits, graph, report, err);
}

/* ---- where strings lie ---- */

/* Place of the string's bytes in the small pickle; false if they are elsewhere. */
static bool skim_place(const struct pickle_skim *skim, const struct value *string, size_t *at)
{
    uintptr_t text = (uintptr_t)string->text.data, start = (uintptr_t)skim->bytes.data;
    if (!string->text.data || text < start || text - start > skim->bytes.size)
        return false;
    *at = (size_t)(text - start);
    return true;
}

const struct pickle_skipped *pickle_skim_skipped(const struct pickle_skim *skim, const struct value *string)
{
    size_t at, low = 0, high = skim->skipped_count;
    if (string->text.size || !skim_place(skim, string, &at))
        return NULL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (skim->skipped[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < skim->skipped_count && skim->skipped[low].at == at ? &skim->skipped[low] : NULL;
}

static uint64_t skim_shift(const struct pickle_skim *skim, size_t at)
{
    size_t low = 0, high = skim->shift_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (skim->shifts[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? skim->shifts[low - 1].bytes : 0;
}

bool pickle_skim_locate(const struct pickle_skim *skim, const struct value *string, struct pickle_place *out)
{
    const struct pickle_skipped *skipped = pickle_skim_skipped(skim, string);
    size_t at;
    if (!skim_place(skim, string, &at))
        return false;
    uint64_t offset = skipped ? skipped->offset : at + skim_shift(skim, at), header = offset - string->offset;
    if (offset < string->offset || header > at)
        return false;
    uint8_t opcode = skim->bytes.data[at - (size_t)header];
    *out = (struct pickle_place){ offset, skipped ? skipped->bytes : string->text.size, pickle_forms[opcode].is_text };
    return pickle_forms[opcode].argument == PICKLE_ARG_STRING;
}

reshard_status pickle_skim_load(const struct pickle_skim *skim, const struct reader *reader, const struct limits *limits,
                                struct value_graph *graph, struct value *string, reshard_error *err)
{
    const struct pickle_skipped *skipped = pickle_skim_skipped(skim, string);
    if (!skipped)
        return RESHARD_OK;
    if (skipped->bytes > limits->pickle_string_bytes)
        return error_set_limit(err, "pickle_string_bytes", skipped->bytes, limits->pickle_string_bytes);
    work_add_input(limits->budget, skipped->bytes);
    char *text = arena_alloc(&graph->arena, (size_t)skipped->bytes);
    if (!text)
        return work_error(limits->budget, err);
    reshard_status status = reader_read(reader, skipped->offset, text, (size_t)skipped->bytes, err);
    if (status)
        return status;
    struct str loaded = { text, (size_t)skipped->bytes };
    if (string->kind == VALUE_STR && !str_is_utf8(loaded, true, NULL))
        return error_set_at(err, RESHARD_ERR_FORMAT, skipped->offset, "pickle: byte %" PRIu64 ": a string is not UTF-8", skipped->offset);
    string->text = loaded;
    return RESHARD_OK;
}
