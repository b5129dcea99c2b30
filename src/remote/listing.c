/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/listing.h"

#include "base/array.h"
#include "encoding/json.h"
#include "remote/remote_place.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

void listing_release(struct listing *listing)
{
    arena_release(&listing->arena);
    free(listing->entries);
    *listing = (struct listing){ 0 };
}

/* Keeps the texts. */
static reshard_status listing_keep(struct listing *listing, const struct listing_entry *entry, reshard_error *err)
{
    if (listing->count >= LISTING_ENTRIES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "the server lists more than %d names", LISTING_ENTRIES_MAX);
    struct listing_entry kept = *entry;
    if (!ARRAY_ROOM(listing->entries, listing->count, listing->capacity) || !arena_str(&listing->arena, entry->name, &kept.name) ||
        !arena_str(&listing->arena, entry->etag, &kept.etag))
        return error_set_memory(err);
    kept.number = listing->count;
    listing->entries[listing->count++] = kept;
    return RESHARD_OK;
}

/* An empty object: programs that write to stores without folders put one in a folder's place. */
static bool is_stub(const struct listing_entry *entry)
{
    return !entry->is_folder && entry->has_bytes && !entry->bytes;
}

static int entry_by_name(const void *a, const void *b)
{
    const struct listing_entry *x = a, *y = b;
    int order = str_compare(x->name, y->name);
    if (!order)
        order = is_stub(x) - is_stub(y);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

void listing_sort(struct listing *listing)
{
    size_t kept = 0;
    if (listing->count > 1)
        qsort(listing->entries, listing->count, sizeof(*listing->entries), entry_by_name);
    for (size_t i = 0; i < listing->count; i++)
        if (!kept || !str_equal(listing->entries[kept - 1].name, listing->entries[i].name))
            listing->entries[kept++] = listing->entries[i];
    listing->count = kept;
}

const struct listing_entry *listing_find(const struct listing *listing, struct str name)
{
    size_t low = 0, high = listing->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = str_compare(listing->entries[middle].name, name);
        if (!order)
            return &listing->entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- XML of S3 ---- */

#define ENTITY_BYTES_MAX 16 /* of "&#x10FFFF;", with zeros in front of the number */

/* What begins at or behind the first occurrence of text; *out is that text and all behind it. */
static bool text_find(struct str in, const char *text, struct str *out)
{
    const char *at = in.size ? memmem(in.data, in.size, text, strlen(text)) : NULL;
    if (at)
        *out = (struct str){ at, in.size - (size_t)(at - in.data) };
    return at != NULL;
}

/* The inside of the first element of that name; *rest is what lies behind it. S3's have no attributes where this is asked. */
static bool element_take(struct str xml, const char *name, struct str *inside, struct str *rest)
{
    char begin[40], end[40];
    struct str from, to;
    snprintf(begin, sizeof(begin), "<%s>", name);
    snprintf(end, sizeof(end), "</%s>", name);
    if (!text_find(xml, begin, &from))
        return false;
    from = (struct str){ from.data + strlen(begin), from.size - strlen(begin) };
    if (!text_find(from, end, &to))
        return false;
    *inside = (struct str){ from.data, from.size - to.size };
    *rest = (struct str){ to.data + strlen(end), to.size - strlen(end) };
    return true;
}

struct str element_text(struct str xml, const char *name)
{
    struct str inside = { NULL, 0 }, rest;
    return element_take(xml, name, &inside, &rest) ? inside : (struct str){ NULL, 0 };
}

/* Appends the character that is meant by the inside of "&…;"; false for what XML has not. */
static bool entity_decode(struct str entity, struct buffer *out)
{
    static const struct {
        const char *name;
        char character;
    } entities[] = { { "amp", '&' }, { "lt", '<' }, { "gt", '>' }, { "quot", '"' }, { "apos", '\'' } };
    for (size_t i = 0; i < sizeof(entities) / sizeof(*entities); i++)
        if (str_is(entity, entities[i].name))
            return buffer_append_byte(out, (uint8_t)entities[i].character);
    char character[4];
    uint64_t point;
    const bool is_hexadecimal = str_starts_with(entity, "#x");
    const size_t prefix = is_hexadecimal ? 2 : 1;
    if (!str_starts_with(entity, "#") || entity.size <= prefix)
        return false;
    struct str number = { entity.data + prefix, entity.size - prefix };
    while (number.size > 1 && number.data[0] == '0')
        number = (struct str){ number.data + 1, number.size - 1 };
    if (!(is_hexadecimal ? str_hex_at(number, 0, number.size, &point) : str_to_u64(number, &point)))
        return false;
    if (!point || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return false;
    return buffer_append(out, character, str_put_utf8((uint32_t)point, character));
}

/* Entities of XML, also of characters by their numbers; what is none stays. */
static void xml_decode(struct str text, struct buffer *out)
{
    while (text.size) {
        const struct str near = { text.data, text.size < ENTITY_BYTES_MAX ? text.size : ENTITY_BYTES_MAX };
        size_t taken = 1, end;
        if (text.data[0] == '&' && str_find_char(near, ';', &end) && entity_decode((struct str){ text.data + 1, end - 1 }, out))
            taken = end + 1;
        else
            buffer_append_byte(out, (uint8_t)text.data[0]);
        text = (struct str){ text.data + taken, text.size - taken };
    }
}

#define SHOWN_BYTES 80

static reshard_status bad_answer(const char *what, struct str found, reshard_error *err)
{
    struct str shown = { found.data, found.size < SHOWN_BYTES ? found.size : SHOWN_BYTES };
    return error_set(err, RESHARD_ERR_FORMAT, "the server's list of a folder %s: '%.*s'", what, STR_ARG(shown));
}

/* The list, from its first element to the end of that: a connection that ends before looks like an answer of another length. */
static reshard_status root_take(struct str answer, const char *name, const char *otherwise, struct str *root, reshard_error *err)
{
    char begin[40], end[40];
    struct str rest;
    snprintf(begin, sizeof(begin), "<%s", name);
    snprintf(end, sizeof(end), "</%s>", name);
    if (!text_find(answer, begin, root))
        return bad_answer(otherwise, answer, err);
    if (text_find(*root, end, &rest)) {
        root->size -= rest.size;
        return RESHARD_OK;
    }
    const size_t shown = root->size < SHOWN_BYTES ? root->size : SHOWN_BYTES;
    return bad_answer("is cut off, and ends so", (struct str){ root->data + root->size - shown, shown }, err);
}

/* What an object store lists is taken into it. */
struct objects {
    struct listing *listing;
    bool is_encoded;          /* S3: names are percent-encoded, as was asked for; not every server heeds that */
    struct buffer name, etag; /* of an entry */
};

static bool s3_name(struct str key, bool is_encoded, struct buffer *out)
{
    buffer_clear(out);
    if (is_encoded)
        return url_decode(key, true, out);
    xml_decode(key, out);
    return true;
}

/* Keeps what an object store lists under that name. An empty object of a folder's name stands for the folder. */
static reshard_status object_keep(struct objects *objects, struct listing_entry *entry, reshard_error *err)
{
    if (objects->name.failed || objects->etag.failed)
        return error_set_memory(err);
    entry->name = buffer_str(&objects->name);
    entry->etag = buffer_str(&objects->etag);
    if (entry->is_folder && entry->name.size && entry->name.data[entry->name.size - 1] == '/')
        entry->name.size--;
    if (!entry->name.size || entry->name.data[entry->name.size - 1] == '/')
        return RESHARD_OK;
    return listing_keep(objects->listing, entry, err);
}

typedef reshard_status (*entry_take)(struct objects *objects, struct str inside, bool is_folder, reshard_error *err);

/* Every element of either name, objects and folders. */
static reshard_status entries_take(struct objects *objects, struct str root, const char *object, const char *folder, entry_take take,
                                   reshard_error *err)
{
    struct str inside, rest;
    reshard_status status = RESHARD_OK;
    for (rest = root; !status && element_take(rest, object, &inside, &rest);)
        status = take(objects, inside, false, err);
    for (rest = root; !status && element_take(rest, folder, &inside, &rest);)
        status = take(objects, inside, true, err);
    return status;
}

/* The text that says where the list goes on; empty without. */
static reshard_status next_take(struct objects *objects, struct str text, struct str *next, reshard_error *err)
{
    buffer_clear(&objects->name);
    xml_decode(text, &objects->name);
    const bool is_kept = !objects->name.failed && arena_str(&objects->listing->arena, buffer_str(&objects->name), next);
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

static void objects_release(struct objects *objects)
{
    buffer_release(&objects->name);
    buffer_release(&objects->etag);
}

/* Some lists leave out the quotes that If-Match needs, and that the object itself is answered with. A weak one is of no use. */
static void etag_take(struct str version, struct buffer *etag)
{
    const bool is_bare = version.size && version.data[0] != '"' && version.data[0] != '&';
    buffer_clear(etag);
    if (str_starts_with(version, "W/"))
        return;
    if (is_bare)
        buffer_append_byte(etag, '"');
    xml_decode(version, etag);
    if (is_bare)
        buffer_append_byte(etag, '"');
}

/* One <Contents> or <CommonPrefixes>. */
static reshard_status s3_entry(struct objects *objects, struct str inside, bool is_folder, reshard_error *err)
{
    struct listing_entry entry = { .is_folder = is_folder, .has_bytes = true };
    struct str key = element_text(inside, is_folder ? "Prefix" : "Key");
    if (!s3_name(key, objects->is_encoded, &objects->name))
        return bad_answer("has a name with a '%' that is no code of a character", key, err);
    etag_take(element_text(inside, "ETag"), &objects->etag);
    if (!is_folder && !str_to_u64(element_text(inside, "Size"), &entry.bytes))
        return bad_answer("lacks the size of an object", inside, err);
    return object_keep(objects, &entry, err);
}

reshard_status listing_take_s3(struct str answer, struct listing *listing, struct str *next, reshard_error *err)
{
    struct objects objects = { .listing = listing };
    struct str root;
    *next = (struct str){ NULL, 0 };
    reshard_status status = root_take(answer, "ListBucketResult", "is none of S3", &root, err);
    if (status)
        return status;
    objects.is_encoded = str_is(element_text(root, "EncodingType"), "url");
    status = entries_take(&objects, root, "Contents", "CommonPrefixes", s3_entry, err);
    if (!status && str_is(element_text(root, "IsTruncated"), "true")) {
        status = next_take(&objects, element_text(root, "NextContinuationToken"), next, err);
        if (!status && !next->size)
            status = bad_answer("goes on, and does not say how", root, err);
    }
    objects_release(&objects);
    return status;
}

/* ---- XML of Azure ---- */

/* One <Blob> or <BlobPrefix>. A directory of a hierarchical store is a blob, too, beside its prefix, which may say as well what it is. */
static reshard_status azure_entry(struct objects *objects, struct str inside, bool is_folder, reshard_error *err)
{
    struct listing_entry entry = { .is_folder = is_folder, .has_bytes = true };
    if (!is_folder && str_is(element_text(inside, "ResourceType"), "directory"))
        return RESHARD_OK;
    buffer_clear(&objects->name);
    xml_decode(element_text(inside, "Name"), &objects->name);
    etag_take(element_text(inside, "Etag"), &objects->etag);
    if (!objects->name.size && !objects->name.failed)
        return bad_answer("has an entry without a name that XML can hold", inside, err);
    if (!is_folder && !str_to_u64(element_text(inside, "Content-Length"), &entry.bytes))
        return bad_answer("lacks the size of an object", inside, err);
    return object_keep(objects, &entry, err);
}

reshard_status listing_take_azure(struct str answer, struct listing *listing, struct str *next, reshard_error *err)
{
    struct objects objects = { .listing = listing };
    struct str root;
    *next = (struct str){ NULL, 0 };
    reshard_status status = root_take(answer, "EnumerationResults", "is none of Azure", &root, err);
    if (status)
        return status;
    status = entries_take(&objects, root, "Blob", "BlobPrefix", azure_entry, err);
    if (!status)
        status = next_take(&objects, element_text(root, "NextMarker"), next, err);
    objects_release(&objects);
    return status;
}

/* ---- JSON of a hub ---- */

/* An object of the list, whose '{' was taken. */
static reshard_status hub_entry(struct json_parser *parser, struct listing *listing, reshard_error *err)
{
    struct listing_entry entry = { .has_bytes = false };
    struct arena texts = { 0 };
    enum json_event event;
    struct str text, kind = { NULL, 0 };
    reshard_status status = json_next(parser, &event, &text, err);
    while (!status && event == JSON_KEY) {
        const bool is_type = str_is(text, "type"), is_path = str_is(text, "path"), is_size = str_is(text, "size");
        status = json_next(parser, &event, &text, err);
        struct str *into = is_type ? &kind : is_path ? &entry.name : NULL;
        if (!status && event == JSON_STRING && into)
            status = arena_str(&texts, text, into) ? RESHARD_OK : error_set_memory(err);
        else if (!status && event == JSON_NUMBER && is_size)
            entry.has_bytes = json_number_is_u64(text, &entry.bytes);
        else if (!status)
            status = json_skip(parser, event, err);
        if (!status)
            status = json_next(parser, &event, &text, err);
    }
    entry.is_folder = str_is(kind, "directory");
    if (!status && (!entry.name.size || (!entry.is_folder && !str_is(kind, "file"))))
        status = bad_answer("has an entry that is no file and no directory", kind, err);
    if (!status)
        status = listing_keep(listing, &entry, err);
    arena_release(&texts);
    return status;
}

reshard_status listing_take_hub(struct str answer, struct listing *listing, reshard_error *err)
{
    struct json_parser *parser = json_new(answer.data, answer.size, 0, &limits_default);
    enum json_event event = JSON_END;
    struct str text;
    reshard_status status = parser ? json_next(parser, &event, &text, err) : error_set_memory(err);
    if (!status && event != JSON_ARRAY_BEGIN)
        status = bad_answer("is none of a hub", answer, err);
    while (!status && !(status = json_next(parser, &event, &text, err)) && event == JSON_OBJECT_BEGIN)
        status = hub_entry(parser, listing, err);
    if (!status && event != JSON_ARRAY_END)
        status = bad_answer("is none of a hub", answer, err);
    if (!status)
        status = json_next(parser, &event, &text, err); /* the end */
    json_free(parser);
    return status;
}

bool listing_is_commit(struct str name)
{
    uint64_t digit;
    size_t digits = 0;
    while (digits < name.size && str_hex_at(name, digits, 1, &digit))
        digits++;
    return digits == name.size && (digits == 40 || digits == 64);
}

reshard_status listing_take_commit(struct str answer, struct buffer *out, reshard_error *err)
{
    struct json_parser *parser = json_new(answer.data, answer.size, 0, &limits_default);
    enum json_event event = JSON_END;
    struct str text;
    reshard_status status = parser ? json_next(parser, &event, &text, err) : error_set_memory(err);
    const bool is_object = !status && event == JSON_OBJECT_BEGIN;
    if (is_object)
        status = json_next(parser, &event, &text, err);
    while (!status && is_object && event == JSON_KEY) {
        const bool is_commit = str_is(text, "sha");
        status = json_next(parser, &event, &text, err);
        if (!status && is_commit && event == JSON_STRING && listing_is_commit(text)) {
            buffer_clear(out);
            status = buffer_append_str(out, text) ? RESHARD_OK : error_set_memory(err);
        } else if (!status) {
            status = json_skip(parser, event, err);
        }
        if (!status)
            status = json_next(parser, &event, &text, err);
    }
    if (!status && is_object)
        status = json_next(parser, &event, &text, err); /* the end */
    if (!status && !out->size)
        status = error_set(err, RESHARD_ERR_FORMAT, "the hub does not say which commit that revision is");
    if (status)
        buffer_release(out);
    json_free(parser);
    return status;
}

/* ---- links of a page ---- */

/* A link to something in the folder itself: no other server, no folder above, no order to sort by. Names are decoded. */
static reshard_status link_take(struct str link, struct buffer *name, struct listing *listing, reshard_error *err)
{
    struct listing_entry entry = { .is_folder = link.size && link.data[link.size - 1] == '/' };
    size_t at;
    if (str_starts_with(link, "./"))
        link = (struct str){ link.data + 2, link.size - 2 };
    if (entry.is_folder && link.size)
        link.size--;
    buffer_clear(name);
    if (str_find_char(link, '?', &at) || str_find_char(link, '#', &at) || str_find_char(link, '/', &at) || str_find_char(link, ':', &at) ||
        !url_decode(link, false, name))
        return RESHARD_OK;
    entry.name = buffer_str(name);
    if (name->failed)
        return error_set_memory(err);
    if (str_find_char(entry.name, '/', &at) || store_name_check(entry.name, NULL))
        return RESHARD_OK;
    return listing_keep(listing, &entry, err);
}

reshard_status listing_take_page(struct str answer, struct listing *listing, reshard_error *err)
{
    struct buffer link = { 0 }, name = { 0 };
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 6 < answer.size && !status; i++) {
        if (strncasecmp(answer.data + i, "href=", 5) != 0)
            continue;
        const char quote = answer.data[i + 5];
        const char *begin = answer.data + i + 6, *end = quote == '"' || quote == '\'' ? memchr(begin, quote, answer.size - i - 6) : NULL;
        if (!end)
            continue;
        buffer_clear(&link);
        xml_decode((struct str){ begin, (size_t)(end - begin) }, &link);
        status = link.failed ? error_set_memory(err) : link_take(buffer_str(&link), &name, listing, err);
        i = (size_t)(end - answer.data);
    }
    buffer_release(&link);
    buffer_release(&name);
    return status;
}
