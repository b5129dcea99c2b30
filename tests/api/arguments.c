/* SPDX-License-Identifier: Apache-2.0 */
#include "arguments.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define MARK 0xA5
#define UNKNOWN_BYTES 24
#define ROOM 65536 /* above every struct and array */

reshard_error err = RESHARD_ERROR_INIT;

static char trying[256];

void refused_begin(void)
{
    err.struct_size = offsetof(reshard_error, hint);
    err.message[0] = '\0';
    memset(err.hint, MARK, sizeof(err.hint));
}

void refused_end(const char *call, reshard_status status)
{
    bool is_kept = err.struct_size == offsetof(reshard_error, hint);
    for (size_t i = 0; i < sizeof(err.hint); i++)
        is_kept = is_kept && (uint8_t)err.hint[i] == MARK;
    if (status != RESHARD_ERR_USAGE || !is_kept || (err.message[0] && strncmp(err.message, "reshard_", 8) != 0))
        fail_msg("%s: status %d%s: %s", call, status, is_kept ? "" : ", the error's record is written behind its end", err.message);
    err.struct_size = sizeof(err);
    memset(err.hint, 0, sizeof(err.hint));
}

/* Structs end where a page begins that nobody may touch. */
static void tell_touched(int number)
{
    static const char text[] = "Bail out! what lies behind a struct was touched: ";
    if (write(STDOUT_FILENO, text, sizeof(text) - 1) < 0 || write(STDOUT_FILENO, trying, strlen(trying)) < 0)
        _exit(1);
    _exit(128 + number);
}

/* A place of `size` bytes with nothing behind them; up to 7 in front of that are marked if a struct ends within a word. */
static uint8_t *place_of(size_t size)
{
    static uint8_t *room;
    if (!room) {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        room = mmap(NULL, ROOM + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(room != MAP_FAILED && !mprotect(room + ROOM, page, PROT_NONE));
    }
    signal(SIGSEGV, tell_touched); /* cmocka sets its own for every test */
    assert_true(size <= ROOM - 8);
    memset(room, MARK, ROOM);
    return room + ROOM - (size + 7) / 8 * 8;
}

static uint8_t *struct_of(const struct struct_case *one, size_t size)
{
    uint8_t *made = place_of(size);
    if (one->init) {
        memset(made, 0, size);
        memcpy(made, one->init, size < one->size ? size : one->size);
    }
    memcpy(made, &size, sizeof(size));
    snprintf(trying, sizeof(trying), "%s of %zu bytes, ours has %zu", one->name, size, one->size);
    err.message[0] = '\0';
    return made;
}

static bool is_marked(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != MARK)
            return false;
    }
    return true;
}

static reshard_status call_with(const struct struct_case *one, size_t size)
{
    uint8_t *given = struct_of(one, size);
    reshard_status status = one->call(given);
    size_t left;
    memcpy(&left, given, sizeof(left));
    assert_int_equal(left, size);
    if (!is_marked(given + size, (8 - size % 8) % 8))
        fail_msg("%s: written behind its end", trying);
    for (size_t i = one->size; !one->init && i < size; i++)
        assert_int_equal(given[i], 0);
    return status;
}

void check_cut_structs(const struct struct_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (const size_t *member = cases[i].members; *member; member++) {
            if (call_with(&cases[i], *member))
                fail_msg("%s: %s", trying, err.message);
        }
        if (call_with(&cases[i], cases[i].size))
            fail_msg("%s: %s", trying, err.message);
    }
}

void check_sizeless_structs(const struct struct_case *cases, size_t count)
{
    static const size_t never[] = { 0, 1, sizeof(size_t) - 1, (size_t)1 << 30, SIZE_MAX }; /* what nobody has set may be anything */
    for (size_t i = 0; i < count; i++) {
        for (size_t s = 0; s < sizeof(never) / sizeof(never[0]); s++) {
            const size_t size = never[s];
            uint8_t *given = struct_of(&cases[i], cases[i].size);
            memcpy(given, &size, sizeof(size));
            err.message[0] = '\0';
            if (cases[i].call(given) != RESHARD_ERR_USAGE)
                fail_msg("%s: a struct_size of %zu is taken", cases[i].name, size);
            if (cases[i].init && !strstr(err.message, cases[i].name))
                fail_msg("%s: a struct_size of %zu: %s", cases[i].name, size, err.message);
            if (!cases[i].init && !is_marked(given + sizeof(size), cases[i].size - sizeof(size)))
                fail_msg("%s with a struct_size of %zu is written", cases[i].name, size);
        }
    }
}

static void check_unknown_byte(const struct struct_case *one, size_t at)
{
    char expected[128];
    size_t size = one->size + UNKNOWN_BYTES;
    uint8_t *given = struct_of(one, size);
    given[at] = 1;
    err.message[0] = '\0';
    reshard_status status = one->call(given);
    snprintf(expected, sizeof(expected), "%s of %zu bytes", one->name, size);
    if (status != RESHARD_ERR_USAGE || !strstr(err.message, expected))
        fail_msg("%s, byte %zu is set: %d: %s", trying, at, status, err.message);
}

void check_longer_structs(const struct struct_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (call_with(&cases[i], cases[i].size + UNKNOWN_BYTES))
            fail_msg("%s: %s", trying, err.message);
        for (size_t at = cases[i].size; cases[i].init && at < cases[i].size + UNKNOWN_BYTES; at++)
            check_unknown_byte(&cases[i], at);
    }
}

void check_failed_structs(const struct struct_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t sizes[] = { sizeof(size_t), cases[i].members[0], cases[i].size, cases[i].size + UNKNOWN_BYTES };
        for (size_t s = 0; !cases[i].init && s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            uint8_t *given = struct_of(&cases[i], sizes[s]);
            if (!cases[i].fails(given))
                fail_msg("%s: the call that fails does not", trying);
            for (size_t at = sizeof(size_t); at < sizes[s]; at++) {
                if (given[at])
                    fail_msg("%s: byte %zu is left as it was", trying, at);
            }
        }
    }
}

reshard_status unless_lacking(reshard_status status)
{
    static const char *const lacking[] = { " is NULL", " are NULL", "has no ", "neither a target format", "one of state and sharded",
                                           "is empty", "an array of ", "there is no tensor" };
    for (size_t i = 0; status == RESHARD_ERR_USAGE && i < sizeof(lacking) / sizeof(lacking[0]); i++) {
        if (strstr(err.message, lacking[i]))
            return RESHARD_OK;
    }
    return status;
}

/* ---- arrays ---- */

/* The members of an array `stride` bytes apart; with `unknown` set in the last byte of the last one. */
static uint8_t *array_of(const struct array_case *one, size_t stride, uint8_t unknown)
{
    uint8_t *made = place_of(one->count * stride);
    memset(made, 0, one->count * stride);
    for (size_t i = 0; i < one->count; i++)
        memcpy(made + i * stride, (const uint8_t *)one->array + i * one->size, stride < one->size ? stride : one->size);
    made[one->count * stride - 1] |= unknown;
    snprintf(trying, sizeof(trying), "%s, %zu bytes apart, ours have %zu", one->where, stride, one->size);
    return made;
}

void check_arrays(const struct array_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct array_case *one = &cases[i];
        const size_t longer = one->size + UNKNOWN_BYTES;
        char expected[128];
        snprintf(expected, sizeof(expected), "%s of %zu bytes", one->name, longer);
        for (size_t stride = one->size; stride <= longer; stride += UNKNOWN_BYTES) {
            if (one->call(array_of(one, stride, 0), stride, one->count))
                fail_msg("%s: %s", trying, err.message);
        }
        for (size_t stride = one->size - 8; stride >= 8; stride -= 8) {
            /* What is cut off may be needed; what counts is that the size is not what is wrong, and nothing behind it is touched. */
            if (one->call(array_of(one, stride, 0), stride, one->count) && strstr(err.message, "stride"))
                fail_msg("%s: %s", trying, err.message);
        }
        reshard_status status = one->call(array_of(one, longer, 1), longer, one->count);
        if (status != RESHARD_ERR_USAGE || !strstr(err.message, expected))
            fail_msg("%s, with a byte set: %d: %s", trying, status, err.message);
        status = one->call(array_of(one, one->size, 0), 0, one->count);
        if (status != RESHARD_ERR_USAGE || !strstr(err.message, one->name))
            fail_msg("%s without a stride: %d: %s", one->where, status, err.message);
        status = one->call(NULL, one->size, one->count);
        if (status != RESHARD_ERR_USAGE)
            fail_msg("%s is NULL: %d: %s", one->where, status, err.message);
    }
}
