/* SPDX-License-Identifier: Apache-2.0 */
#include "api/options_pack.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_NONE UINT32_MAX

static const size_t option_texts[] = {
    offsetof(reshard_convert_options, to),           offsetof(reshard_convert_options, layout),
    offsetof(reshard_convert_options, checksum),     offsetof(reshard_convert_options, wrap),
    offsetof(reshard_convert_options, strip_prefix), offsetof(reshard_convert_options, add_prefix),
    offsetof(reshard_convert_options, missing),
};
static const size_t option_lists[] = {
    offsetof(reshard_convert_options, include), offsetof(reshard_convert_options, exclude),
    offsetof(reshard_convert_options, dtypes),  offsetof(reshard_convert_options, format_options),
    offsetof(reshard_convert_options, renames),
};
static const size_t option_ints[] = {
    offsetof(reshard_convert_options, no_shard_limit), offsetof(reshard_convert_options, drop_items),
    offsetof(reshard_convert_options, overwrite),      offsetof(reshard_convert_options, no_sync),
    offsetof(reshard_convert_options, verify),
};
#define TEXTS (sizeof(option_texts) / sizeof(option_texts[0]))
#define LISTS (sizeof(option_lists) / sizeof(option_lists[0]))
#define INTS (sizeof(option_ints) / sizeof(option_ints[0]))

#define MEMBER(type, structure, offset) (*(type *)((uint8_t *)(uintptr_t)(structure) + (offset)))

const char *options_pack_excluded(const reshard_convert_options *options)
{
    return options->open             ? "open"
           : options->map            ? "map"
           : options->rename         ? "rename"
           : options->choose_missing ? "choose_missing"
           : options->store          ? "store"
                                     : NULL;
}

void packed_put_bytes(struct buffer *out, const char *data, size_t size)
{
    if (size >= TEXT_NONE) {
        out->failed = true;
        return;
    }
    buffer_append_u32le(out, (uint32_t)size);
    buffer_append(out, data, size);
    buffer_append_byte(out, 0);
}

void packed_put_block(struct buffer *out, const void *bytes, size_t size)
{
    buffer_append_u64le(out, size);
    buffer_append(out, bytes, size);
}

void packed_put_text(struct buffer *out, const char *text)
{
    if (text)
        packed_put_bytes(out, text, strlen(text));
    else
        buffer_append_u32le(out, TEXT_NONE);
}

reshard_status packed_put_path(struct buffer *out, const char *path, reshard_error *err)
{
    struct buffer whole = { 0 };
    char *folder = path && path[0] != '/' ? getcwd(NULL, 0) : NULL;
    if (path && path[0] != '/' && !folder)
        return error_set_errno(err, "the working directory");
    if (folder) {
        buffer_append_text(&whole, folder);
        buffer_append_byte(&whole, '/');
        buffer_append(&whole, path, strlen(path) + 1);
    }
    if (whole.failed)
        out->failed = true;
    else
        packed_put_text(out, folder ? (const char *)whole.data : path);
    buffer_release(&whole);
    free(folder);
    return RESHARD_OK;
}

static void packed_put_list(struct buffer *out, const char *const *list)
{
    uint32_t count = 0;
    while (list && list[count])
        count++;
    buffer_append_u32le(out, list ? count : TEXT_NONE);
    for (uint32_t i = 0; i < count; i++)
        packed_put_text(out, list[i]);
}

reshard_status options_pack(const reshard_convert_options *options, struct buffer *out, reshard_error *err)
{
    reshard_status status = packed_put_path(out, options->like, err);
    for (size_t i = 0; i < TEXTS; i++)
        packed_put_text(out, MEMBER(const char *, options, option_texts[i]));
    for (size_t i = 0; i < LISTS; i++)
        packed_put_list(out, MEMBER(const char *const *, options, option_lists[i]));
    for (size_t i = 0; i < INTS; i++)
        buffer_append_byte(out, MEMBER(int, options, option_ints[i]) != 0);
    buffer_append_byte(out, options->no_space_check != 0);
    buffer_append_u64le(out, options->max_shard_bytes);
    return status;
}

bool packed_take_bytes(struct cursor *cursor, struct str *out)
{
    uint32_t size;
    uint8_t end;
    return cursor_u32le(cursor, &size) && size != TEXT_NONE && cursor_bytes(cursor, size, out) && cursor_u8(cursor, &end) && end == 0;
}

bool packed_take_block(struct cursor *cursor, struct str *out)
{
    uint64_t size;
    return cursor_u64le(cursor, &size) && cursor_bytes(cursor, size, out);
}

bool packed_take_text(struct cursor *cursor, const char **out)
{
    struct cursor before = *cursor;
    struct str text;
    uint32_t size;
    *out = NULL;
    if (!cursor_u32le(&before, &size))
        return false;
    if (size == TEXT_NONE) {
        *cursor = before;
        return true;
    }
    if (!packed_take_bytes(cursor, &text) || memchr(text.data, 0, text.size))
        return false;
    *out = text.data;
    return true;
}

static reshard_status damaged_options(const struct cursor *cursor, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "the options are damaged at byte %zu", cursor->pos);
}

static reshard_status packed_take_list(struct cursor *cursor, struct arena *arena, const char *const **out, reshard_error *err)
{
    uint32_t count;
    *out = NULL;
    if (!cursor_u32le(cursor, &count) || (count != TEXT_NONE && count > cursor_left(cursor) / sizeof(count)))
        return damaged_options(cursor, err);
    if (count == TEXT_NONE)
        return RESHARD_OK;
    const char **list = arena_array(arena, (size_t)count + 1, sizeof(*list));
    if (!list)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        if (!packed_take_text(cursor, &list[i]) || !list[i])
            return damaged_options(cursor, err);
    }
    list[count] = NULL;
    *out = list;
    return RESHARD_OK;
}

reshard_status options_unpack(struct cursor *cursor, struct arena *arena, reshard_convert_options *out, reshard_error *err)
{
    bool is_good = packed_take_text(cursor, &out->like);
    reshard_status status = RESHARD_OK;
    uint8_t flag = 0;
    for (size_t i = 0; i < TEXTS && is_good; i++)
        is_good = packed_take_text(cursor, &MEMBER(const char *, out, option_texts[i]));
    for (size_t i = 0; i < LISTS && is_good && !status; i++)
        status = packed_take_list(cursor, arena, &MEMBER(const char *const *, out, option_lists[i]), err);
    for (size_t i = 0; i < INTS && is_good && !status; i++) {
        is_good = cursor_u8(cursor, &flag);
        MEMBER(int, out, option_ints[i]) = flag;
    }
    if (status)
        return status;
    is_good = is_good && cursor_u8(cursor, &flag);
    out->no_space_check = flag;
    return is_good && cursor_u64le(cursor, &out->max_shard_bytes) ? RESHARD_OK : damaged_options(cursor, err);
}
