/* SPDX-License-Identifier: Apache-2.0 */
/* Files of paddle.save: the vectors of the format's description, one a protocol, and what may be wrong with such files. */
#include "encoding/paddle_save.h"
#include "encoding/pickle_write.h"

#include "check.h"

static reshard_error err;

static const char *const vectors[] = {
    /* protocol 2 */
    "gAJ9cQAoWAEAAAB3cQFjbnVtcHkuY29yZS5tdWx0aWFycmF5Cl9yZWNvbnN0cnVjdApxAmNudW1weQpuZGFycmF5CnEDSwCFcQRjX2Nv"
    "ZGVjcwplbmNvZGUKcQVYAQAAAGJxBlgGAAAAbGF0aW4xcQeGcQhScQmHcQpScQsoSwFLAksDhnEMY251bXB5CmR0eXBlCnENWAIAAABm"
    "NHEOiYiHcQ9ScRAoSwNYAQAAADxxEU5OTkr/////Sv////9LAHRxEmKJaAVYHAAAAAAAwoA/AAAAQAAAQEAAAMKAQAAAwqBAAADDgEBx"
    "E2gHhnEUUnEVdHEWYlgBAAAAYnEXaAJoA0sAhXEYaAmHcRlScRooSwFLAoVxG2gNWAIAAAB1MnEciYiHcR1ScR4oSwNoEU5OTkr/////"
    "Sv////9LAHRxH2KJaAVYBQAAAMKAPwBAcSBoB4ZxIVJxInRxI2JYGwAAAFN0cnVjdHVyZWRUb1BhcmFtZXRlck5hbWVAQHEkfXElKGgB"
    "WAwAAABsaW5lYXJfMC53XzBxJmgXWAwAAABsaW5lYXJfMC5iXzBxJ3V1Lg==",
    /* protocol 4 */
    "gASVNgEAAAAAAAB9lCiMAXeUjBVudW1weS5jb3JlLm11bHRpYXJyYXmUjAxfcmVjb25zdHJ1Y3SUk5SMBW51bXB5lIwHbmRhcnJheZST"
    "lEsAhZRDAWKUh5RSlChLAUsCSwOGlGgFjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////Sv////9LAHSUYolDGAAAgD8A"
    "AABAAABAQAAAgEAAAKBAAADAQJR0lGKMAWKUaARoB0sAhZRoCYeUUpQoSwFLAoWUaA6MAnUylImIh5RSlChLA2gSTk5OSv////9K////"
    "/0sAdJRiiUMEgD8AQJR0lGKMG1N0cnVjdHVyZWRUb1BhcmFtZXRlck5hbWVAQJR9lChoAYwMbGluZWFyXzAud18wlGgWjAxsaW5lYXJf"
    "MC5iXzCUdXUu",
    /* protocol 5 */
    "gAWVHAEAAAAAAAB9lCiMAXeUjBJudW1weS5jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZlcpSTlCiWGAAAAAAAAAAAAIA/AAAAQAAAQEAA"
    "AIBAAACgQAAAwECUjAVudW1weZSMBWR0eXBllJOUjAJmNJSJiIeUUpQoSwOMATyUTk5OSv////9K/////0sAdJRiSwJLA4aUjAFDlHSU"
    "UpSMAWKUaAQolgQAAAAAAAAAgD8AQJRoCIwCdTKUiYiHlFKUKEsDaAxOTk5K/////0r/////SwB0lGJLAoWUaA90lFKUjBtTdHJ1Y3R1"
    "cmVkVG9QYXJhbWV0ZXJOYW1lQECUfZQoaAGMDGxpbmVhcl8wLndfMJRoEowMbGluZWFyXzAuYl8wlHV1Lg==",
};

static int base64_value(char c)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c && c != '=' ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

static struct buffer bytes_of_base64(const char *text)
{
    struct buffer bytes = { 0 };
    unsigned bits = 0, value = 0;
    for (; base64_value(*text) >= 0; text++) {
        value = value << 6 | (unsigned)base64_value(*text);
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            buffer_append_byte(&bytes, (uint8_t)(value >> bits));
        }
    }
    return bytes;
}

static reshard_status open_within(const struct buffer *bytes, const struct limits *limits, bool lenient, struct paddle_archive *out)
{
    struct reader reader = reader_over_memory(bytes->data, bytes->size, "test");
    struct paddle_open_options options = { limits, lenient };
    return paddle_save_open(&reader, &options, out, &err);
}

static reshard_status open_bytes(const struct buffer *bytes, bool lenient, struct paddle_archive *out)
{
    return open_within(bytes, &limits_default, lenient, out);
}

static const struct paddle_tensor *tensor_at(const struct paddle_archive *archive, const char *key)
{
    uint32_t entry = paddle_save_find(archive, str_of(key));
    assert_int_not_equal(entry, NAME_NONE);
    assert_true(str_is(archive->entries[entry].key, key));
    assert_int_not_equal(archive->entries[entry].tensor, 0);
    return &archive->tensors[archive->entries[entry].tensor - 1];
}

TEST(one_state_dict_reads_alike_in_three_protocols)
{
    static const struct {
        int protocol;
        uint64_t w_offset, w_stored, b_offset, b_stored;
        bool is_latin1;
    } expected[] = { { 2, 205, 28, 331, 5, true }, { 4, 151, 24, 243, 4, false }, { 5, 65, 24, 174, 4, false } };
    for (size_t i = 0; i < 3; i++) {
        struct buffer bytes = bytes_of_base64(vectors[i]);
        struct paddle_archive archive;
        CHECK_OK(open_bytes(&bytes, false, &archive));
        assert_int_equal(archive.protocol, expected[i].protocol);
        assert_int_equal(archive.end, bytes.size);
        assert_int_equal(archive.entry_count, 2);
        const struct paddle_tensor *w = tensor_at(&archive, "w"), *b = tensor_at(&archive, "b");
        assert_int_equal(w->dtype, DTYPE_F32);
        assert_int_equal(w->rank, 2);
        assert_int_equal(w->shape[0], 2);
        assert_int_equal(w->shape[1], 3);
        assert_int_equal(w->part_count, 1);
        assert_int_equal(w->parts[0].offset, expected[i].w_offset);
        assert_int_equal(w->parts[0].stored_bytes, expected[i].w_stored);
        assert_int_equal(w->parts[0].bytes, 24);
        assert_int_equal(w->parts[0].is_latin1, expected[i].is_latin1);
        assert_int_equal(b->dtype, DTYPE_U16);
        assert_true(b->is_bfloat16);
        assert_int_equal(b->parts[0].offset, expected[i].b_offset);
        assert_int_equal(b->parts[0].stored_bytes, expected[i].b_stored);
        assert_true(str_is(archive.entries[0].name, "linear_0.w_0"));
        assert_true(str_is(archive.entries[1].name, "linear_0.b_0"));
        paddle_save_release(&archive);
        buffer_release(&bytes);
    }
}

/* ---- tensors in slices ---- */

static void put_text(struct buffer *out, const char *text)
{
    const uint8_t head[] = { 'X', (uint8_t)strlen(text), 0, 0, 0 };
    buffer_append(out, head, sizeof(head));
    buffer_append_text(out, text);
}

/* A member of a dict: a vector of n elements of a type; with rows it is a matrix. */
static void put_array(struct buffer *out, const char *key, const char *type, int rows, int n)
{
    static const char state[] = "(K\x03X\x01\0\0\0<NNNJ\xFF\xFF\xFF\xFFJ\xFF\xFF\xFF\xFFK\0tb\x89";
    int size = n * (type[1] - '0') * (rows ? rows : 1);
    put_text(out, key);
    buffer_append_text(out, "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01" "btR(K\x01(");
    if (rows)
        buffer_printf(out, "I%d\n", rows);
    buffer_printf(out, "I%d\ntcnumpy\ndtype\n(", n);
    put_text(out, type);
    buffer_append(out, "\x89\x88tR", 4);
    buffer_append(out, state, sizeof(state) - 1);
    buffer_append_byte(out, 'C');
    buffer_append_byte(out, (uint8_t)size);
    for (int i = 0; i < size; i++)
        buffer_append_byte(out, (uint8_t)i);
    buffer_append_text(out, "tb");
}

/* A file of two slices of w; the table says its shape, and which slices: a name, or "" for a number in place of one. */
static struct buffer sliced(const char *second_type, int second_rows, int second, int columns, const char *const *slices)
{
    struct buffer out = { 0 };
    buffer_append(&out, "\x80\x04}(", 4);
    put_array(&out, "w@@.0", "f4", 0, 4);
    put_array(&out, "w@@.1", second_type, second_rows, second);
    put_text(&out, "UnpackBigParamInfor@@");
    buffer_append_text(&out, "}(");
    put_text(&out, "w");
    buffer_append_text(&out, "}(");
    put_text(&out, "OriginShape");
    buffer_printf(&out, "(K\x02I%d\nt", columns);
    put_text(&out, "slices");
    buffer_append_text(&out, "](");
    for (; *slices; slices++) {
        if (**slices)
            put_text(&out, *slices);
        else
            buffer_append_text(&out, "I1\n");
    }
    buffer_append_text(&out, "euuu.");
    return out;
}

TEST(slices_are_put_together_only_if_they_make_the_tensor)
{
    static const char *const both[] = { "w@@.0", "w@@.1", NULL }, *const twice[] = { "w@@.0", "w@@.0", NULL }, *const none[] = { NULL },
                             *const stranger[] = { "w@@.0", "w@@.2", NULL }, *const number[] = { "w@@.0", "", NULL },
                             *const one[] = { "w@@.0", NULL };
    static const struct {
        const char *type;
        int rows, second, columns;
        const char *const *slices;
        const char *says; /* NULL: it is read */
    } cases[] = {
        { "f4", 0, 2, 3, both, NULL },
        { "f4", 0, 4, 4, both, NULL },
        { "f4", 0, 2, 2, one, NULL },
        { "f4", 0, 2, 4, both, "the slices of 'w' have 24 bytes, its OriginShape needs others" },
        { "f4", 0, 3, 3, both, "the slices of 'w' have 28 bytes" },
        { "f8", 0, 1, 3, both, "slice 1 of 'w' is no vector of F32 like the first" },
        { "i4", 0, 2, 3, both, "slice 1 of 'w' is no vector of F32 like the first" },
        { "f4", 2, 1, 3, both, "slice 1 of 'w' is no vector of F32 like the first" },
        { "f4", 0, 2, 4, twice, "uses a slice of 'w' twice" },
        { "f4", 0, 2, 3, stranger, "names slice 'w@@.2' of 'w', which is not in the file" },
        { "f4", 0, 2, 3, number, "slice 1 of 'w' has no name" },
        { "f4", 0, 2, 3, none, "a member without OriginShape and slices" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = sliced(cases[i].type, cases[i].rows, cases[i].second, cases[i].columns, cases[i].slices);
        struct paddle_archive archive;
        assert_false(bytes.failed);
        reshard_status status = open_bytes(&bytes, false, &archive);
        if (cases[i].says && (status != RESHARD_ERR_FORMAT || !strstr(err.message, cases[i].says)))
            fail_msg("case %zu: status %d, '%s'", i, (int)status, err.message);
        if (!cases[i].says) {
            CHECK_OK(status);
            const struct paddle_tensor *w = tensor_at(&archive, "w");
            assert_int_equal(w->rank, 2);
            assert_int_equal(w->shape[1], cases[i].columns);
            assert_int_equal(w->part_count, cases[i].slices == one ? 1 : 2);
            assert_int_equal(w->parts[0].bytes, 16);
            assert_memory_equal(bytes.data + w->parts[w->part_count - 1].offset, "\0\1\2\3", 4);
        }
        if (!status)
            paddle_save_release(&archive);
        buffer_release(&bytes);
    }
}

/* Elements of n floats as protocol 4 writes them: in one frame, or outside of frames from 64 KiB on. */
static struct buffer big_vector(uint32_t n, uint64_t *payload)
{
    static const char head[] = "}\x94\x8C\x01w\x94\x8C\x15numpy.core.multiarray\x94\x8C\x0C_reconstruct\x94\x93\x94\x8C\x05numpy\x94"
                               "\x8C\x07ndarray\x94\x93\x94K\0\x85\x94" "C\x01" "b\x94\x87\x94R\x94(K\x01";
    static const char type[] = "\x85\x94h\x05\x8C\x05" "dtype\x94\x93\x94\x8C\x02" "f4\x94\x89\x88\x87\x94R\x94"
                               "(K\x03\x8C\x01<\x94NNNJ\xFF\xFF\xFF\xFFJ\xFF\xFF\xFF\xFFK\0t\x94" "b\x89";
    static const char tail[] = "\x94t\x94" "bs.";
    struct buffer bytes = { 0 };
    bool is_framed = n * 4 < 65536;
    size_t inner = sizeof(head) - 1 + 3 + sizeof(type) - 1 + (is_framed ? 5 + n * 4 + sizeof(tail) - 1 : 0);
    buffer_append(&bytes, "\x80\x04\x95", 3);
    buffer_append_u64le(&bytes, inner);
    buffer_append(&bytes, head, sizeof(head) - 1);
    buffer_append_byte(&bytes, 'M');
    buffer_append_u16le(&bytes, (uint16_t)n);
    buffer_append(&bytes, type, sizeof(type) - 1);
    buffer_append_byte(&bytes, 'B');
    buffer_append_u32le(&bytes, n * 4);
    *payload = bytes.size;
    buffer_append_fill(&bytes, 0x95, n * 4);
    if (!is_framed) {
        buffer_append_byte(&bytes, 0x95);
        buffer_append_u64le(&bytes, sizeof(tail) - 1);
    }
    buffer_append(&bytes, tail, sizeof(tail) - 1);
    assert_false(bytes.failed);
    return bytes;
}

TEST(elements_in_a_frame_and_outside_of_frames_are_found)
{
    for (uint32_t n = 16383; n <= 16385; n++) {
        uint64_t payload;
        struct paddle_archive archive;
        struct buffer bytes = big_vector(n, &payload);
        CHECK_OK(open_bytes(&bytes, false, &archive));
        const struct paddle_tensor *w = tensor_at(&archive, "w");
        assert_int_equal(w->shape[0], n);
        assert_int_equal(w->parts[0].offset, payload);
        assert_int_equal(payload, 147 + 5);
        assert_int_equal(w->parts[0].bytes, 4 * n);
        assert_int_equal(archive.end, bytes.size);
        assert_true(archive.skim.bytes.size < 400); /* no payload */
        paddle_save_release(&archive);
        buffer_release(&bytes);
    }
}

/* A reader that counts what it reads, and fails in call number `fails`. */
struct guarded {
    const uint8_t *bytes;
    uint64_t read;
    unsigned calls, fails;
};

static reshard_status read_guarded(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *error)
{
    struct guarded *guard = (struct guarded *)(uintptr_t)reader->context;
    if (offset + size > reader->size)
        return error_set(error, RESHARD_ERR_IO, "beyond the end");
    if (++guard->calls == guard->fails)
        return error_set(error, RESHARD_ERR_IO, "no more");
    guard->read += size;
    memcpy(out, guard->bytes + offset, size);
    return RESHARD_OK;
}

TEST(payload_is_not_read)
{
    uint64_t payload;
    struct buffer bytes = big_vector(60000, &payload);
    struct guarded guard = { .bytes = bytes.data };
    struct reader reader = { .read_at = read_guarded, .size = bytes.size, .context = &guard, .name = "test" };
    struct paddle_archive archive;
    CHECK_OK(paddle_save_open(&reader, &(struct paddle_open_options){ &limits_default, false }, &archive, &err));
    assert_true(guard.read < 10000);
    paddle_save_release(&archive);
    buffer_release(&bytes);
}

TEST(every_cut_of_a_file_is_refused)
{
    for (size_t i = 0; i < 3; i++) {
        struct buffer bytes = bytes_of_base64(vectors[i]);
        size_t whole = bytes.size;
        for (bytes.size = 0; bytes.size < whole; bytes.size++) {
            struct paddle_archive archive;
            CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
            assert_in_range(err.offset, 0, bytes.size);
        }
        buffer_release(&bytes);
    }
}

TEST(bytes_behind_the_pickle_are_told)
{
    struct buffer bytes = bytes_of_base64(vectors[1]);
    struct paddle_archive archive;
    uint64_t end = bytes.size;
    buffer_append_text(&bytes, "more");
    CHECK_OK(open_bytes(&bytes, false, &archive));
    assert_int_equal(archive.end, end);
    paddle_save_release(&archive);
    buffer_release(&bytes);
}

/* The protocol 4 vector with `count` bytes at `at` replaced. */
static reshard_status open_changed(size_t at, const char *change, size_t count, bool lenient)
{
    struct buffer bytes = bytes_of_base64(vectors[1]);
    struct paddle_archive archive;
    memcpy(bytes.data + at, change, count);
    reshard_status status = open_bytes(&bytes, lenient, &archive);
    if (!status)
        paddle_save_release(&archive);
    buffer_release(&bytes);
    return status;
}

TEST(arrays_that_cannot_be_right_are_refused)
{
    struct buffer bytes = bytes_of_base64(vectors[1]);
    const uint8_t *shape = memmem(bytes.data, bytes.size, "K\x02K\x03\x86", 5), *type = memmem(bytes.data, bytes.size, "f4", 2);
    const uint8_t *name = memmem(bytes.data, bytes.size, "ndarray", 7);
    size_t shape_at = (size_t)(shape - bytes.data), type_at = (size_t)(type - bytes.data), name_at = (size_t)(name - bytes.data);
    buffer_release(&bytes);
    CHECK_OK(open_changed(0, "\x80", 1, false));
    CHECK_FAILS(open_changed(shape_at + 1, "\x03", 1, false), RESHARD_ERR_FORMAT); /* more elements than bytes */
    assert_non_null(strstr(err.message, "its shape needs 36"));
    CHECK_FAILS(open_changed(shape_at + 1, "\x01", 1, false), RESHARD_ERR_FORMAT); /* fewer */
    CHECK_FAILS(open_changed(type_at, "f8", 2, false), RESHARD_ERR_FORMAT);
    CHECK_FAILS(open_changed(type_at, "O8", 2, false), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "but not of numbers"));
    CHECK_FAILS(open_changed(name_at, "ndarraz", 7, false), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "numpy.ndarraz"));
}

/* A dict with one member "x" whose pickle expression is given. */
static struct buffer dict_of(const char *expression, size_t size)
{
    struct buffer bytes = { 0 };
    buffer_append(&bytes, "\x80\x04}\x8C\x01x", 6);
    buffer_append(&bytes, expression, size);
    buffer_append_text(&bytes, "s.");
    return bytes;
}

TEST(what_paddle_never_writes_is_refused_or_inert)
{
    static const char call[] = "\x8C\x05posix\x8C\x06system\x93\x8C\x02id\x85R";
    struct buffer bytes = dict_of(call, sizeof(call) - 1);
    struct paddle_archive archive;
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "posix.system"));
    CHECK_OK(open_bytes(&bytes, true, &archive));
    assert_int_equal(archive.unknown_global_count, 1);
    assert_true(str_is(archive.unknown_globals[0], "posix.system"));
    assert_int_equal(archive.entries[0].tensor, 0);
    paddle_save_release(&archive);
    buffer_release(&bytes);
}

TEST(a_persistent_id_is_refused_also_by_salvage)
{
    struct buffer bytes = dict_of("\x8C\x02idQ", 5);
    for (int lenient = 0; lenient < 2; lenient++) {
        struct paddle_archive archive;
        CHECK_FAILS(open_bytes(&bytes, lenient, &archive), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "a persistent id"));
    }
    buffer_release(&bytes);
}

TEST(eval_of_anything_but_the_old_form_is_refused)
{
    static const char *const texts[] = { "\x8C\x08" "builtins\x8C\x04" "eval\x93\x8C\x04" "open}\x8C\x04" "dataNs\x86R",
                                         "\x8C\x08" "builtins\x8C\x04" "eval\x93\x8C\x04" "data}\x8C\x04" "dataNs\x86R",
                                         "\x8C\x08" "builtins\x8C\x04" "eval\x93\x8C\x04" "data\x85R" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        struct buffer bytes = dict_of(texts[i], strlen(texts[i]));
        struct paddle_archive archive;
        CHECK_FAILS(open_bytes(&bytes, true, &archive), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "eval"));
        buffer_release(&bytes);
    }
}

/* eval(text, {'data': array of two bytes}) */
TEST(eval_of_an_array_is_taken_in_the_old_form_alone)
{
    static const char array[] = "}\x8C\x04" "data\x8C\x15numpy.core.multiarray\x8C\x0C_reconstruct\x93\x8C\x05numpy\x8C\x07ndarray\x93"
                                "K\0\x85" "C\x01" "b\x87R(K\x01K\x02\x85\x8C\x05numpy\x8C\x05" "dtype\x93\x8C\x02u1\x89\x88\x87R\x89"
                                "C\x02xytbs\x86R";
    static const char *const texts[] = { "data", "dato" };
    for (size_t i = 0; i < 2; i++) {
        struct buffer call = { 0 };
        struct paddle_archive archive;
        buffer_append_text(&call, "\x8C\x08" "builtins\x8C\x04" "eval\x93\x8C\x04");
        buffer_append_text(&call, texts[i]);
        buffer_append(&call, array, sizeof(array) - 1);
        struct buffer bytes = dict_of((const char *)call.data, call.size);
        reshard_status status = open_bytes(&bytes, true, &archive);
        assert_int_equal(status, i ? RESHARD_ERR_FORMAT : RESHARD_OK);
        if (!status) {
            assert_int_equal(tensor_at(&archive, "x")->shape[0], 2);
            paddle_save_release(&archive);
        }
        buffer_release(&bytes);
        buffer_release(&call);
    }
}

TEST(a_file_that_ends_inside_an_array_says_where)
{
    uint64_t payload;
    struct paddle_archive archive;
    struct buffer bytes = big_vector(20000, &payload);
    bytes.size = payload + 79900;
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "80000 bytes, but only 79900 follow"));
    assert_int_equal(err.offset, 147);
    buffer_release(&bytes);
}

/* One whose member is a string of so many letters. */
static struct buffer dict_of_text(uint32_t size)
{
    struct buffer text = { 0 };
    buffer_append_byte(&text, 'X');
    buffer_append_u32le(&text, size);
    buffer_append_fill(&text, 'z', size);
    struct buffer bytes = dict_of((const char *)text.data, text.size);
    buffer_release(&text);
    return bytes;
}

TEST(a_long_string_that_is_no_array_is_read)
{
    struct buffer bytes = dict_of_text(5000);
    struct paddle_archive archive;
    CHECK_OK(open_bytes(&bytes, false, &archive));
    assert_int_equal(archive.entries[0].value->text.size, 5000);
    assert_int_equal(archive.entries[0].value->text.data[4999], 'z');
    assert_true(archive.skim.bytes.size < 100);
    paddle_save_release(&archive);
    bytes.data[20] = 0xFF; /* inside the text */
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
    buffer_release(&bytes);
}

TEST(a_read_that_fails_fails_the_whole)
{
    struct buffer bytes = dict_of_text(100000);
    struct guarded guard = { .bytes = bytes.data };
    struct reader reader = { .read_at = read_guarded, .size = bytes.size, .context = &guard, .name = "test" };
    struct paddle_open_options options = { &limits_default, false };
    struct paddle_archive archive;
    CHECK_OK(paddle_save_open(&reader, &options, &archive, &err));
    assert_int_equal(archive.entries[0].value->text.size, 100000);
    paddle_save_release(&archive);
    unsigned calls = guard.calls;
    assert_in_range(calls, 2, 100); /* the text is read for itself */
    for (guard.fails = 1; guard.fails <= calls; guard.fails++) {
        guard.calls = 0;
        CHECK_FAILS(paddle_save_open(&reader, &options, &archive, &err), RESHARD_ERR_IO);
    }
    buffer_release(&bytes);
}

TEST(a_long_string_has_a_limit)
{
    struct paddle_archive archive;
    struct limits limits = limits_default;
    struct buffer bytes = dict_of_text(5000);
    limits.pickle_string_bytes = 5000;
    CHECK_OK(open_within(&bytes, &limits, false, &archive));
    paddle_save_release(&archive);
    limits.pickle_string_bytes = 4999;
    CHECK_FAILS(open_within(&bytes, &limits, false, &archive), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "pickle_string_bytes"));
    buffer_release(&bytes);
}

/* What a file's own size allows is no work: elements that are read later add what they cost. */
TEST(elements_that_are_read_for_a_value_are_no_work)
{
    uint64_t payload;
    struct paddle_archive archive;
    struct work work;
    struct limits limits = limits_default;
    struct buffer bytes = big_vector(20000, &payload);
    struct reader reader = reader_over_memory(bytes.data, bytes.size, "test");
    limits.budget = &work;
    work_begin(&work, limits.work);
    CHECK_OK(open_within(&bytes, &limits, false, &archive));
    work.left = 20000; /* for the walk */
    CHECK_OK(paddle_save_load_value(&archive, &reader, &limits, &archive.graph, archive.entries[0].value, &err));
    paddle_save_release(&archive);
    buffer_release(&bytes);
}

TEST(keys_that_occur_twice_are_refused)
{
    struct buffer bytes = { 0 };
    struct paddle_archive archive;
    buffer_append_text(&bytes, "\x80\x04}(\x8C\x01xN\x8C\x01xNu.");
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'x' occurs twice"));
    buffer_release(&bytes);
}

TEST(binary_tensors_are_read)
{
    static const uint8_t head[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 8, 22, 16, 3, 16, 2 };
    struct buffer bytes = { 0 };
    struct paddle_archive archive;
    buffer_append(&bytes, head, sizeof(head));
    buffer_append_fill(&bytes, 1, 12);
    CHECK_OK(open_bytes(&bytes, false, &archive));
    const struct paddle_tensor *tensor = tensor_at(&archive, "");
    assert_int_equal(archive.container, PADDLE_BINARY);
    assert_int_equal(tensor->dtype, DTYPE_BF16);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 3);
    assert_int_equal(tensor->shape[1], 2);
    assert_int_equal(tensor->parts[0].offset, 26);
    assert_int_equal(tensor->parts[0].bytes, 12);
    paddle_save_release(&archive);
    bytes.size--;
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_FORMAT);
    bytes.size++;
    bytes.data[21] = 19;
    CHECK_FAILS(open_bytes(&bytes, false, &archive), RESHARD_ERR_UNSUPPORTED);
    buffer_release(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_state_dict_reads_alike_in_three_protocols),
        cmocka_unit_test(slices_are_put_together_only_if_they_make_the_tensor),
        cmocka_unit_test(elements_in_a_frame_and_outside_of_frames_are_found),
        cmocka_unit_test(payload_is_not_read),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(bytes_behind_the_pickle_are_told),
        cmocka_unit_test(arrays_that_cannot_be_right_are_refused),
        cmocka_unit_test(what_paddle_never_writes_is_refused_or_inert),
        cmocka_unit_test(a_persistent_id_is_refused_also_by_salvage),
        cmocka_unit_test(eval_of_anything_but_the_old_form_is_refused),
        cmocka_unit_test(eval_of_an_array_is_taken_in_the_old_form_alone),
        cmocka_unit_test(a_file_that_ends_inside_an_array_says_where),
        cmocka_unit_test(a_long_string_that_is_no_array_is_read),
        cmocka_unit_test(a_read_that_fails_fails_the_whole),
        cmocka_unit_test(a_long_string_has_a_limit),
        cmocka_unit_test(elements_that_are_read_for_a_value_are_no_work),
        cmocka_unit_test(keys_that_occur_twice_are_refused),
        cmocka_unit_test(binary_tensors_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
