/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way to the one tensor of a blob. It recognises exactly the archives that torch.save writes for a single dense
 * tensor and is at least as strict as torch_save_open about them; whatever looks different goes the long way, which alone
 * reports errors. A blob of 10^7 costs one or two preads and no allocation.
 */
#include "encoding/torch_save.h"

#include "base/checked.h"
#include "base/crc32.h"
#include "base/cursor.h"
#include "encoding/torch_save_parts.h"


#define WHOLE_BYTES_MAX 8192 /* a blob up to this size is read at once */
#define HEAD_BYTES 4096      /* else data.pkl and the first headers lie in here … */
#define TAIL_BYTES 2048      /* … and the directory in here */
#define MEMBERS_MAX 7
#define END_RECORD_BYTES 22
#define LOCATOR_BYTES 20
#define ZIP64_END_BYTES 56
#define LONG1 0x8A
#define GLOBAL_BYTES_MAX 64 /* of a module or a class, and the line feed */
#define FLAG_DESCRIPTOR 8u
#define FLAG_UTF8 0x800u

enum blob_member { BLOB_PICKLE, BLOB_FORMAT, BLOB_ALIGNMENT, BLOB_BYTEORDER, BLOB_STORAGE, BLOB_VERSION, BLOB_ID, BLOB_MEMBER_COUNT };

static const char *const member_names[BLOB_MEMBER_COUNT] = {
    "data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0", "version", ".data/serialization_id"
};

struct blob_window {
    const uint8_t *head, *tail;
    uint64_t head_bytes, tail_start, size;
};

struct blob_entry {
    bool is_there;
    uint16_t flags;
    uint32_t crc32;
    uint64_t bytes, header_offset, payload_offset;
};

struct blob_zip {
    struct blob_entry entries[BLOB_MEMBER_COUNT];
    struct str top;
    uint64_t end; /* of the member read last */
};

/* Bytes [offset, offset + length) if a window holds them. */
static bool window_get(const struct blob_window *window, uint64_t offset, uint64_t length, struct cursor *out)
{
    if (range_fits(offset, length, window->head_bytes)) {
        *out = cursor_over(window->head + offset, (size_t)length);
        return true;
    }
    if (offset >= window->tail_start && range_fits(offset, length, window->size)) {
        *out = cursor_over(window->tail + (offset - window->tail_start), (size_t)length);
        return true;
    }
    return false;
}

static bool read_windows(const struct reader *reader, struct buffer *scratch, struct blob_window *out)
{
    uint64_t size = reader->size;
    bool is_whole = size <= WHOLE_BYTES_MAX;
    size_t head_bytes = is_whole ? (size_t)size : HEAD_BYTES, tail_bytes = is_whole ? 0 : TAIL_BYTES;
    buffer_clear(scratch);
    scratch->failed = false;
    uint8_t *bytes = buffer_extend(scratch, head_bytes + tail_bytes);
    if (!bytes || reader_read(reader, 0, bytes, head_bytes, NULL))
        return false;
    if (tail_bytes > 0 && reader_read(reader, size - tail_bytes, bytes + head_bytes, tail_bytes, NULL))
        return false;
    *out = (struct blob_window){ bytes, bytes + head_bytes, head_bytes, size - tail_bytes, size };
    return true;
}

static bool expect_u16(struct cursor *c, uint16_t expected)
{
    uint16_t value;
    return cursor_u16le(c, &value) && value == expected;
}

static bool expect_u32(struct cursor *c, uint32_t expected)
{
    uint32_t value;
    return cursor_u32le(c, &value) && value == expected;
}

static bool expect_u64(struct cursor *c, uint64_t expected)
{
    uint64_t value;
    return cursor_u64le(c, &value) && value == expected;
}

/* The three records at the very end, which must agree. */
static bool parse_end(const struct blob_window *window, uint64_t *count, uint64_t *directory_offset, uint64_t *directory_bytes)
{
    const uint64_t tail = ZIP64_END_BYTES + LOCATOR_BYTES + END_RECORD_BYTES, zip64_end = window->size - tail;
    struct cursor c;
    bool good = window_get(window, zip64_end, tail, &c) && expect_u32(&c, 0x06064B50) && expect_u64(&c, ZIP64_END_BYTES - 12) &&
                cursor_skip(&c, 4) && expect_u32(&c, 0) && expect_u32(&c, 0) && cursor_u64le(&c, count) && expect_u64(&c, *count) &&
                cursor_u64le(&c, directory_bytes) && cursor_u64le(&c, directory_offset);
    good = good && expect_u32(&c, 0x07064B50) && expect_u32(&c, 0) && expect_u64(&c, zip64_end) && expect_u32(&c, 1);
    good = good && *count <= MEMBERS_MAX && *directory_offset < UINT32_MAX && *directory_offset == zip64_end - *directory_bytes;
    return good && expect_u32(&c, 0x06054B50) && expect_u32(&c, 0) && expect_u16(&c, (uint16_t)*count) &&
           expect_u16(&c, (uint16_t)*count) && expect_u32(&c, (uint32_t)*directory_bytes) && expect_u32(&c, (uint32_t)*directory_offset) &&
           expect_u16(&c, 0);
}

/*
 * The local header must tell the same as the directory; sizes and CRC may be left to the descriptor. What its extra field says does not
 * count: both sizes fit their 32 bits.
 */
static bool parse_local(const struct blob_window *window, struct str name, struct blob_entry *entry)
{
    struct cursor c;
    if (!window_get(window, entry->header_offset, 30 + name.size, &c))
        return false;
    uint32_t crc32, stored, bytes;
    uint16_t extra_bytes;
    struct str local_name;
    bool good = expect_u32(&c, 0x04034B50) && cursor_skip(&c, 2) && expect_u16(&c, entry->flags) && expect_u16(&c, 0) &&
                cursor_skip(&c, 4) && cursor_u32le(&c, &crc32) && cursor_u32le(&c, &stored) && cursor_u32le(&c, &bytes) &&
                expect_u16(&c, (uint16_t)name.size) && cursor_u16le(&c, &extra_bytes) && cursor_bytes(&c, name.size, &local_name) &&
                str_equal(local_name, name);
    if (!good)
        return false;
    bool is_deferred = entry->flags & FLAG_DESCRIPTOR && crc32 == 0 && stored == 0 && bytes == 0;
    bool is_same = crc32 == entry->crc32 && stored == entry->bytes && bytes == entry->bytes;
    entry->payload_offset = entry->header_offset + 30 + name.size + extra_bytes;
    return is_deferred || is_same;
}

static bool torch_save_tensor_find_member(struct str below, enum blob_member *out)
{
    for (int i = 0; i < BLOB_MEMBER_COUNT; i++) {
        if (str_is(below, member_names[i])) {
            *out = (enum blob_member)i;
            return true;
        }
    }
    return false;
}

static bool split_name(struct blob_zip *zip, struct str name, struct str *below)
{
    size_t slash, bad;
    if (!str_find_char(name, '/', &slash))
        return false;
    const struct str top = { name.data, slash };
    *below = (struct str){ name.data + slash + 1, name.size - slash - 1 };
    if (zip->top.size)
        return str_equal(top, zip->top);
    zip->top = top;
    return top.size && str_is_utf8(top, false, &bad) && !memchr(top.data, '\\', top.size) && !memchr(top.data, '\0', top.size) &&
           !str_is(top, ".") && !str_is(top, "..");
}

static bool torch_save_tensor_parse_entry(const struct blob_window *window, struct cursor *c, struct blob_zip *zip)
{
    struct blob_entry entry = { .is_there = true };
    uint16_t name_bytes;
    uint32_t stored, bytes, header_offset;
    struct str name, below;
    enum blob_member member;
    bool good = expect_u32(c, 0x02014B50) && cursor_skip(c, 4) && cursor_u16le(c, &entry.flags) && expect_u16(c, 0) && cursor_skip(c, 4) &&
                cursor_u32le(c, &entry.crc32) && cursor_u32le(c, &stored) && cursor_u32le(c, &bytes) && cursor_u16le(c, &name_bytes) &&
                expect_u16(c, 0) && expect_u16(c, 0) && expect_u16(c, 0) && cursor_skip(c, 6) && cursor_u32le(c, &header_offset) &&
                cursor_bytes(c, name_bytes, &name);
    if (!good || stored != bytes || bytes == UINT32_MAX || header_offset == UINT32_MAX || entry.flags & ~(FLAG_DESCRIPTOR | FLAG_UTF8))
        return false;
    entry.bytes = bytes;
    entry.header_offset = header_offset;
    if (!split_name(zip, name, &below) || !torch_save_tensor_find_member(below, &member) || zip->entries[member].is_there)
        return false;
    if (entry.header_offset < zip->end || !parse_local(window, name, &entry))
        return false;
    zip->end = entry.payload_offset + entry.bytes + (entry.flags & FLAG_DESCRIPTOR ? 16 : 0);
    zip->entries[member] = entry;
    return true;
}

static bool parse_zip(const struct blob_window *window, struct blob_zip *zip)
{
    uint64_t count, offset, bytes;
    struct cursor c;
    if (!parse_end(window, &count, &offset, &bytes) || !window_get(window, offset, bytes, &c))
        return false;
    for (uint64_t i = 0; i < count; i++)
        if (!torch_save_tensor_parse_entry(window, &c, zip))
            return false;
    return cursor_left(&c) == 0 && zip->end <= offset && zip->entries[BLOB_PICKLE].is_there &&
           zip->entries[BLOB_PICKLE].header_offset == 0 && zip->entries[BLOB_STORAGE].is_there && zip->entries[BLOB_VERSION].is_there;
}

/* Content of a small member, with the right CRC: a writer that switched checksums off goes the long way. */
static bool member_text(const struct blob_window *window, const struct blob_entry *entry, struct str *out)
{
    struct cursor c;
    return window_get(window, entry->payload_offset, entry->bytes, &c) && cursor_bytes(&c, entry->bytes, out) &&
           crc32_zip(0, out->data, out->size) == entry->crc32;
}

/* The small members must say what torch says today: version 3, little-endian, a numeric alignment. */
static bool check_texts(const struct blob_window *window, const struct blob_zip *zip)
{
    const struct blob_entry *entries = zip->entries;
    struct str text;
    uint64_t alignment;
    if (!member_text(window, &entries[BLOB_VERSION], &text) || !str_is(text, "3\n"))
        return false;
    if (entries[BLOB_BYTEORDER].is_there && (!member_text(window, &entries[BLOB_BYTEORDER], &text) || !str_is(text, "little")))
        return false;
    return !entries[BLOB_ALIGNMENT].is_there || (member_text(window, &entries[BLOB_ALIGNMENT], &text) && str_to_u64(text, &alignment));
}

/* ---- data.pkl ---- */

static bool torch_save_tensor_take(struct cursor *c, uint8_t opcode)
{
    struct cursor ahead = *c;
    uint8_t found;
    if (!cursor_u8(&ahead, &found) || found != opcode)
        return false;
    *c = ahead;
    return true;
}

/* The pickler memoises nearly everything; a single tensor fetches nothing back. */
static void skip_put(struct cursor *c)
{
    uint8_t index;
    if (torch_save_tensor_take(c, 'q'))
        cursor_u8(c, &index);
}

/* BINUNICODE of exactly this text. */
static bool take_str(struct cursor *c, const char *text)
{
    struct cursor ahead = *c;
    uint32_t size;
    struct str found;
    if (!torch_save_tensor_take(&ahead, 'X') || !cursor_u32le(&ahead, &size) || !cursor_bytes(&ahead, size, &found) ||
        !str_is(found, text))
        return false;
    skip_put(&ahead);
    *c = ahead;
    return true;
}

/* Of LONG1 up to 63 bits; no negative numbers. */
static bool take_int(struct cursor *c, int64_t *out)
{
    uint8_t opcode = 0, size = 0;
    struct str bytes;
    cursor_u8(c, &opcode);
    if (opcode == LONG1)
        cursor_u8(c, &size);
    else
        size = opcode == 'K' ? 1 : opcode == 'M' ? 2 : opcode == 'J' ? 4 : 0;
    if (size == 0 || size > sizeof(uint64_t) || !cursor_bytes(c, size, &bytes))
        return false;
    *out = (int64_t)load_le((const uint8_t *)bytes.data, size);
    return opcode == 'K' || opcode == 'M' || !(bytes.data[size - 1] & 0x80);
}

static bool take_ints(struct cursor *c, int64_t *out, int *count)
{
    *count = 0;
    if (torch_save_tensor_take(c, ')'))
        return true;
    if (torch_save_tensor_take(c, '(')) {
        while (!torch_save_tensor_take(c, 't'))
            if (*count >= RANK_MAX || !take_int(c, &out[(*count)++]))
                return false;
        skip_put(c);
        return true;
    }
    for (int i = 0; i < 3; i++) {
        if (!take_int(c, &out[i]))
            return false;
        if (torch_save_tensor_take(c, (uint8_t)(0x85 + i))) {
            *count = i + 1;
            skip_put(c);
            return true;
        }
    }
    return false;
}

/* GLOBAL of a known module; *name is what it names there. */
static bool take_global(struct cursor *c, const char *module, struct str *name)
{
    struct cursor ahead = *c;
    struct str found;
    if (!torch_save_tensor_take(&ahead, 'c') || !cursor_line(&ahead, GLOBAL_BYTES_MAX, &found) ||
        !str_is(found, module) || !cursor_line(&ahead, GLOBAL_BYTES_MAX, name))
        return false;
    skip_put(&ahead);
    *c = ahead;
    return true;
}

struct blob_pickle {
    struct torch_blob_tensor *out;
    bool is_v3, is_untyped, requires_grad;
    enum dtype storage_dtype;
    int64_t numel, offset;
};

/* ('storage', class, '0', location, numel) and BINPERSID. */
static bool torch_save_tensor_take_storage(struct cursor *c, struct blob_pickle *p)
{
    struct str name, location;
    uint32_t location_bytes;
    if (!torch_save_tensor_take(c, '(') || !take_str(c, "storage"))
        return false;
    if (take_global(c, "torch", &name)) {
        if (!dtype_from_torch_storage(name, &p->storage_dtype))
            return false;
    } else if (take_global(c, "torch.storage", &name) && str_is(name, "UntypedStorage")) {
        p->is_untyped = true;
        p->storage_dtype = DTYPE_U8;
    } else {
        return false;
    }
    if (!take_str(c, "0") || !torch_save_tensor_take(c, 'X') || !cursor_u32le(c, &location_bytes) ||
        !cursor_bytes(c, location_bytes, &location))
        return false;
    skip_put(c);
    if (!(str_is(location, "cpu") || str_starts_with(location, "cuda:")) || !take_int(c, &p->numel) || !torch_save_tensor_take(c, 't'))
        return false;
    skip_put(c);
    return torch_save_tensor_take(c, 'Q');
}

static bool take_hooks(struct cursor *c)
{
    struct str name;
    if (!take_global(c, "collections", &name) || !str_is(name, "OrderedDict") || !torch_save_tensor_take(c, ')') ||
        !torch_save_tensor_take(c, 'R'))
        return false;
    skip_put(c);
    return true;
}

static bool parse_pickle(struct cursor *c, struct blob_pickle *p)
{
    struct torch_blob_tensor *out = p->out;
    struct str name;
    int stride_count;
    if (!torch_save_tensor_take(c, 0x80) || !torch_save_tensor_take(c, 2) || !take_global(c, "torch._utils", &name))
        return false;
    p->is_v3 = str_is(name, "_rebuild_tensor_v3");
    if ((!p->is_v3 && !str_is(name, "_rebuild_tensor_v2")) || !torch_save_tensor_take(c, '(') || !torch_save_tensor_take_storage(c, p) ||
        !take_int(c, &p->offset))
        return false;
    if (!take_ints(c, out->shape, &out->rank) || !take_ints(c, out->strides, &stride_count) || stride_count != out->rank)
        return false;
    p->requires_grad = torch_save_tensor_take(c, 0x88);
    if ((!p->requires_grad && !torch_save_tensor_take(c, 0x89)) || !take_hooks(c))
        return false;
    out->dtype = p->storage_dtype;
    if (p->is_v3 && (!take_global(c, "torch", &name) || !dtype_from_torch(name, &out->dtype)))
        return false;
    if (!torch_save_tensor_take(c, 't'))
        return false;
    skip_put(c);
    if (!torch_save_tensor_take(c, 'R'))
        return false;
    skip_put(c);
    return torch_save_tensor_take(c, '.') && cursor_left(c) == 0;
}

bool torch_save_tensor_of_pickle(struct str text, const struct limits *limits, struct torch_blob_tensor *out)
{
    struct blob_pickle pickle = { .out = out };
    struct cursor c = cursor_over(text.data, text.size);
    if (!parse_pickle(&c, &pickle) || !dtype_bytes(pickle.storage_dtype, (uint64_t)pickle.numel, &out->payload_bytes))
        return false;
    struct torch_view view = { out->dtype, out->rank, out->shape, out->strides, pickle.offset };
    if (torch_view_check(&view, out->payload_bytes, limits, 0, &out->offset_bytes, NULL))
        return false;
    out->is_tensor = true;
    out->payload_offset = 0;
    out->stored_bytes = out->payload_bytes;
    out->codec = CODEC_NONE;
    out->flags = pickle.requires_grad ? TORCH_TENSOR_REQUIRES_GRAD : 0;
    out->crc32 = 0;
    out->has_crc = false;
    return true;
}

static bool open_fast(const struct reader *reader, const struct limits *limits, struct buffer *scratch, struct torch_blob_tensor *out)
{
    struct blob_window window;
    struct blob_zip zip = { 0 };
    struct str text;
    if (reader->size < 256 || !read_windows(reader, scratch, &window) || !parse_zip(&window, &zip) || !check_texts(&window, &zip))
        return false;
    const struct blob_entry *data = &zip.entries[BLOB_STORAGE], *pkl = &zip.entries[BLOB_PICKLE];
    if (!member_text(&window, pkl, &text))
        return false;
    if (!torch_save_tensor_of_pickle(text, limits, out) || out->payload_bytes != data->bytes)
        return false;
    out->payload_offset = data->payload_offset;
    out->crc32 = data->crc32;
    out->has_crc = data->crc32 != 0 || data->bytes == 0;
    return true;
}

static reshard_status open_slow(const struct reader *reader, const struct limits *limits, struct torch_blob_tensor *out, reshard_error *err)
{
    struct torch_archive archive;
    reshard_status status = torch_save_open(reader, limits, -1, &archive, err);
    if (status)
        return status;
    uint32_t index = archive.graph.root->tensor;
    if (index > 0) {
        const struct torch_tensor *tensor = &archive.tensors[index - 1];
        const struct torch_storage *storage = &archive.storages[tensor->storage];
        out->is_tensor = true;
        out->dtype = tensor->dtype;
        out->rank = tensor->rank;
        memcpy(out->shape, tensor->shape, (size_t)tensor->rank * sizeof(*out->shape));
        memcpy(out->strides, tensor->strides, (size_t)tensor->rank * sizeof(*out->strides));
        out->payload_offset = storage->offset;
        out->payload_bytes = storage->bytes;
        out->stored_bytes = storage->stored_bytes;
        out->offset_bytes = tensor->offset_bytes;
        out->codec = storage->codec;
        out->flags = tensor->flags;
        out->crc32 = storage->crc32;
        out->has_crc = storage->has_crc;
    }
    torch_save_release(&archive);
    return RESHARD_OK;
}

reshard_status torch_save_open_tensor(const struct reader *reader, const struct limits *limits, struct buffer *scratch,
                                      struct torch_blob_tensor *out, reshard_error *err)
{
    /* The arrays inside are large and need no clearing: only rank numbers of each count. */
    out->is_tensor = false;
    out->rank = 0;
    out->codec = CODEC_NONE;
    out->flags = 0;
    if (open_fast(reader, limits, scratch, out))
        return RESHARD_OK;
    out->codec = CODEC_NONE;
    out->flags = 0;
    out->is_tensor = false;
    return open_slow(reader, limits, out, err);
}
