/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_pack.h"

/* Texts have their size (u32) before them. A rule that is not there has size UINT32_MAX. */
#define TEXT_NONE UINT32_MAX

static void mapping_pack_text(struct str text, struct buffer *out)
{
    buffer_append_u32le(out, (uint32_t)text.size);
    buffer_append_str(out, text);
}

static void mapping_pack_named(const struct mapping_text *text, struct buffer *out)
{
    mapping_pack_text(str_of(text->name), out);
    mapping_pack_text(text->text, out);
    buffer_append_u32le(out, text->reverse);
}

static bool mapping_is_packable(const struct mapping_options *options)
{
    bool fits = options->text_count < UINT32_MAX && options->constant_count < UINT32_MAX && options->config.size < UINT32_MAX;
    for (size_t i = 0; i < options->text_count; i++)
        fits = fits && options->texts[i].text.size < UINT32_MAX;
    return fits && (!options->rules_text || options->rules_text->text.size < UINT32_MAX);
}

bool mapping_pack(const struct mapping_options *options, struct buffer *out)
{
    if (!mapping_is_packable(options))
        return false;
    buffer_append_u32le(out, (uint32_t)options->text_count);
    for (size_t i = 0; i < options->text_count; i++)
        mapping_pack_named(&options->texts[i], out);
    if (options->rules)
        mapping_pack_text(str_of(options->rules), out);
    else
        buffer_append_u32le(out, TEXT_NONE);
    buffer_append_u32le(out, options->rules_text != NULL);
    if (options->rules_text)
        mapping_pack_named(options->rules_text, out);
    buffer_append_u32le(out, options->strict);
    mapping_pack_text(options->config, out);
    buffer_append_u32le(out, (uint32_t)options->constant_count);
    for (size_t i = 0; i < options->constant_count; i++) {
        mapping_pack_text(str_of(options->constants[i].name), out);
        buffer_append_u64le(out, (uint64_t)options->constants[i].value);
    }
    return !out->failed;
}

/* ---- back ---- */

struct mapping_reader {
    struct cursor cursor;
    struct arena *arena;
    bool is_short; /* of memory */
};

static bool mapping_read_flag(struct mapping_reader *reader, bool *out)
{
    uint32_t number;
    bool is_good = cursor_u32le(&reader->cursor, &number) && number <= 1;
    *out = is_good && number;
    return is_good;
}

static bool mapping_read_text(struct mapping_reader *reader, struct str *out)
{
    uint32_t size;
    struct str text;
    if (!cursor_u32le(&reader->cursor, &size) || !cursor_bytes(&reader->cursor, size, &text))
        return false;
    reader->is_short = !arena_str(reader->arena, text, out);
    return !reader->is_short;
}

/* A text without NUL, with one behind it. */
static bool mapping_read_word(struct mapping_reader *reader, const char **out)
{
    struct str text;
    if (!mapping_read_text(reader, &text) || (text.size && memchr(text.data, 0, text.size)))
        return false;
    *out = text.data; /* the arena ends its copies with NUL */
    return true;
}

static bool mapping_read_named(struct mapping_reader *reader, struct mapping_text *out)
{
    return mapping_read_word(reader, &out->name) && mapping_read_text(reader, &out->text) && mapping_read_flag(reader, &out->reverse);
}

/* How many come, each of which takes some bytes: room for them in the arena. */
static void *mapping_read_room(struct mapping_reader *reader, size_t bytes, size_t element_size, size_t *count)
{
    uint32_t number;
    if (!cursor_u32le(&reader->cursor, &number) || number > cursor_left(&reader->cursor) / bytes)
        return NULL;
    void *room = arena_array(reader->arena, number, element_size);
    reader->is_short = !room;
    *count = number;
    return room;
}

static bool mapping_read_texts(struct mapping_reader *reader, struct mapping_options *out)
{
    struct mapping_text *texts = mapping_read_room(reader, 12, sizeof(*texts), &out->text_count);
    bool is_good = texts != NULL;
    for (size_t i = 0; is_good && i < out->text_count; i++)
        is_good = mapping_read_named(reader, &texts[i]);
    out->texts = texts;
    return is_good;
}

static bool mapping_read_rules(struct mapping_reader *reader, struct mapping_options *out)
{
    const size_t at = reader->cursor.pos;
    bool has_text;
    uint32_t size;
    if (!cursor_u32le(&reader->cursor, &size))
        return false;
    if (size != TEXT_NONE) {
        reader->cursor.pos = at;
        if (!mapping_read_word(reader, &out->rules))
            return false;
    }
    if (!mapping_read_flag(reader, &has_text))
        return false;
    struct mapping_text *text = has_text ? arena_array(reader->arena, 1, sizeof(*text)) : NULL;
    out->rules_text = text;
    reader->is_short = has_text && !text;
    return !has_text || (text && mapping_read_named(reader, text));
}

static bool mapping_read_constants(struct mapping_reader *reader, struct mapping_options *out)
{
    struct mapping_constant *constants = mapping_read_room(reader, 12, sizeof(*constants), &out->constant_count);
    bool is_good = constants != NULL;
    for (size_t i = 0; is_good && i < out->constant_count; i++) {
        uint64_t number = 0;
        is_good = mapping_read_word(reader, &constants[i].name) && cursor_u64le(&reader->cursor, &number);
        constants[i].value = (int64_t)number;
    }
    out->constants = constants;
    return is_good;
}

reshard_status mapping_unpack(struct str bytes, struct arena *arena, struct mapping_options *out, reshard_error *err)
{
    struct mapping_reader reader = { .cursor = cursor_over(bytes.data, bytes.size), .arena = arena };
    *out = (struct mapping_options){ 0 };
    if (mapping_read_texts(&reader, out) && mapping_read_rules(&reader, out) && mapping_read_flag(&reader, &out->strict) &&
        mapping_read_text(&reader, &out->config) && mapping_read_constants(&reader, out) && !cursor_left(&reader.cursor))
        return RESHARD_OK;
    return reader.is_short ? error_set_memory(err)
                           : error_set_at(err, RESHARD_ERR_FORMAT, (int64_t)reader.cursor.pos, "a mapping of %zu bytes that is malformed",
                                          bytes.size);
}
