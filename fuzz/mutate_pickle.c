/* SPDX-License-Identifier: Apache-2.0 */
#include "mutate.h"

#include <stdbool.h>
#include <string.h>

#define OPS_MAX 16384
#define RUN_MAX 8
#define FRAME_OP 0x95
#define ARGUMENT_MAX 4096

/* What follows an opcode: -1, -2 lines, or so many bytes, or a length of so many bytes and that many more. */
struct argument {
    int8_t fixed, length_bytes;
};

static struct argument argument_of(uint8_t op)
{
    switch (op) {
    case 'F': case 'I': case 'L': case 'P': case 'S': case 'V': case 'g': case 'p':
        return (struct argument){ -1, 0 };
    case 'c': case 'i':
        return (struct argument){ -2, 0 };
    case 'K': case 'h': case 'q': case 0x80: case 0x82:
        return (struct argument){ 1, 0 };
    case 'M': case 0x83:
        return (struct argument){ 2, 0 };
    case 'J': case 'j': case 'r': case 0x84:
        return (struct argument){ 4, 0 };
    case 'G': case FRAME_OP:
        return (struct argument){ 8, 0 };
    case 'U': case 'C': case 0x8a: case 0x8c:
        return (struct argument){ 0, 1 };
    case 'T': case 'X': case 'B': case 0x8b:
        return (struct argument){ 0, 4 };
    case 0x8d: case 0x8e: case 0x96:
        return (struct argument){ 0, 8 };
    default:
        return (struct argument){ 0, 0 };
    }
}

struct op {
    size_t at, size;
};

/* Size of the operation at `at`, or 0 if it does not end in the bytes. */
static size_t op_size(const uint8_t *bytes, size_t size, size_t at)
{
    struct argument argument = argument_of(bytes[at]);
    size_t end = at + 1;
    for (int lines = -argument.fixed; lines > 0; lines--) {
        const uint8_t *newline = memchr(bytes + end, '\n', size - end);
        if (!newline)
            return 0;
        end = (size_t)(newline - bytes) + 1;
    }
    uint64_t more = argument.fixed > 0 ? (uint64_t)argument.fixed : 0;
    if (size - end < (size_t)argument.length_bytes)
        return 0;
    for (int i = 0; i < argument.length_bytes; i++)
        more |= (uint64_t)bytes[end + (size_t)i] << 8 * i;
    end += (size_t)argument.length_bytes;
    return more <= size - end ? end + (size_t)more - at : 0;
}

/* Operations up to STOP, or as far as they go. */
static size_t scan(const uint8_t *bytes, size_t size, struct op *ops)
{
    size_t count = 0;
    for (size_t at = 0; at < size && count < OPS_MAX; count++) {
        size_t length = op_size(bytes, size, at);
        if (length == 0)
            break;
        ops[count] = (struct op){ at, length };
        if (bytes[at] == '.')
            return count + 1;
        at += length;
    }
    return count;
}

/* Replaces bytes [at, at + old) by fresh; the size stays if there is no room. */
static size_t replace(uint8_t *bytes, size_t size, size_t size_max, size_t at, size_t old, const uint8_t *fresh, size_t fresh_size)
{
    if (size - old > size_max || fresh_size > size_max - (size - old))
        return size;
    memmove(bytes + at + fresh_size, bytes + at + old, size - at - old);
    memcpy(bytes + at, fresh, fresh_size);
    return size - old + fresh_size;
}

/* An argument with a length: other content, and the length of that. */
static size_t mutate_sized(uint8_t *bytes, size_t size, size_t size_max, struct op op, size_t length_bytes)
{
    uint8_t fresh[ARGUMENT_MAX + 9];
    size_t head = 1 + length_bytes, content = op.size - head;
    if (content > ARGUMENT_MAX)
        return size;
    memcpy(fresh, bytes + op.at, op.size);
    size_t room = length_bytes == 1 ? 255 : content * 2 + 16 < ARGUMENT_MAX ? content * 2 + 16 : ARGUMENT_MAX;
    content = LLVMFuzzerMutate(fresh + head, content, room);
    for (size_t i = 0; i < length_bytes; i++)
        fresh[1 + i] = (uint8_t)(content >> 8 * i);
    return replace(bytes, size, size_max, op.at, op.size, fresh, head + content);
}

static size_t mutate_argument(uint8_t *bytes, size_t size, size_t size_max, struct op op)
{
    struct argument argument = argument_of(bytes[op.at]);
    if (argument.length_bytes)
        return mutate_sized(bytes, size, size_max, op, (size_t)argument.length_bytes);
    if (argument.fixed > 0) {
        LLVMFuzzerMutate(bytes + op.at + 1, op.size - 1, op.size - 1);
        return size;
    }
    if (argument.fixed == 0 || op.size > ARGUMENT_MAX)
        return LLVMFuzzerMutate(bytes, size, size_max);
    uint8_t fresh[ARGUMENT_MAX + 64];
    memcpy(fresh, bytes + op.at, op.size);
    size_t content = LLVMFuzzerMutate(fresh + 1, op.size - 2, op.size + 16);
    fresh[1 + content] = '\n';
    return replace(bytes, size, size_max, op.at, op.size, fresh, content + 2);
}

static size_t insert_words(uint8_t *bytes, size_t size, size_t size_max, size_t at, unsigned which)
{
    static const struct {
        uint8_t size, bytes[7];
    } words[] = {
        { 1, "N" },
        { 1, "(" },
        { 1, "0" },
        { 1, "1" },
        { 1, "2" },
        { 1, "t" },
        { 1, "l" },
        { 1, "d" },
        { 1, "]" },
        { 1, "}" },
        { 1, ")" },
        { 1, "a" },
        { 1, "e" },
        { 1, "s" },
        { 1, "u" },
        { 1, "R" },
        { 1, "b" },
        { 1, "Q" },
        { 2, "h\0" },
        { 2, "q\0" },
        { 2, "h\1" },
        { 2, "h\2" },
        { 2, "K\0" },
        { 2, "K\xFF" },
        { 3, "M\xFF\xFF" },
        { 5, "J\xFF\xFF\xFF\xFF" },
        { 5, "J\xFF\xFF\xFF\x7F" },
        { 5, "r\0\0\1\0" },
        { 5, "j\0\0\0\0" },
        { 1, "\x85" },
        { 1, "\x86" },
        { 1, "\x87" },
        { 1, "\x88" },
        { 1, "\x89" },
        { 1, "\x8f" },
        { 1, "\x90" },
        { 1, "\x91" },
        { 1, "\x92" },
        { 1, "\x93" },
        { 1, "\x94" },
        { 1, "\x81" },
        { 2, "\x8a\0" },
        { 3, "\x8c\1a" },
        { 2, "C\0" },
        { 5, "X\0\0\0\0" },
        { 5, "I01\n" },
        { 6, "cos\na\n" },
        { 3, "\x82\1" },
    };
    which %= sizeof(words) / sizeof(words[0]);
    return replace(bytes, size, size_max, at, 0, words[which].bytes, words[which].size);
}

/* Each frame reaches to the next one, the last one behind STOP. */
static void fit_frames(uint8_t *bytes, const struct op *ops, size_t count)
{
    size_t end = count ? ops[count - 1].at + ops[count - 1].size : 0;
    for (size_t i = count; i-- > 0;) {
        if (bytes[ops[i].at] != FRAME_OP)
            continue;
        uint64_t length = end - (ops[i].at + ops[i].size);
        for (int byte = 0; byte < 8; byte++)
            bytes[ops[i].at + 1 + (size_t)byte] = (uint8_t)(length >> 8 * byte);
        end = ops[i].at;
    }
}

/* Bytes of a run of operations that starts with the first and has at most RUN_MAX. */
static size_t run_size(const struct op *ops, size_t count, size_t first, unsigned length)
{
    size_t last = first + length % RUN_MAX;
    last = last < count ? last : count - 1;
    return ops[last].at + ops[last].size - ops[first].at;
}

static size_t mutate_ops(uint8_t *bytes, size_t size, size_t size_max, const struct op *ops, size_t count, unsigned seed)
{
    uint8_t copy[ARGUMENT_MAX];
    unsigned what = mutate_next(&seed) % 8;
    size_t from = (size_t)(mutate_next(&seed) << 4 ^ mutate_next(&seed)) % count,
           to = (size_t)(mutate_next(&seed) << 4 ^ mutate_next(&seed)) % count;
    size_t run = run_size(ops, count, from, mutate_next(&seed)), target = run_size(ops, count, to, mutate_next(&seed));
    if (what >= 5)
        return mutate_argument(bytes, size, size_max, ops[from]);
    if (what == 0)
        return replace(bytes, size, size_max, ops[from].at, run, copy, 0);
    if (what == 1)
        return insert_words(bytes, size, size_max, ops[from].at, mutate_next(&seed));
    if (run > sizeof(copy))
        return size;
    memcpy(copy, bytes + ops[from].at, run);
    if (what == 2)
        return replace(bytes, size, size_max, ops[to].at, 0, copy, run);
    if (what == 3)
        return replace(bytes, size, size_max, ops[to].at, target, copy, run);
    /* Moved: cut out behind the place where it goes. */
    if (to >= from)
        return replace(bytes, size, size_max, ops[from].at, run, copy, 0);
    size = replace(bytes, size, size_max, ops[from].at, run, copy, 0);
    return replace(bytes, size, size_max, ops[to].at, 0, copy, run);
}

size_t mutate_pickle(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    static struct op ops[OPS_MAX];
    size_t count = mutate_next(&seed) % 16 ? scan(bytes, size, ops) : 0;
    if (count < 2)
        return LLVMFuzzerMutate(bytes, size, size_max);
    for (unsigned again = 1 + mutate_next(&seed) % 3; again && count; again--) {
        size = mutate_ops(bytes, size, size_max, ops, count, mutate_next(&seed) << 16 | mutate_next(&seed));
        count = scan(bytes, size, ops);
    }
    fit_frames(bytes, ops, count);
    return size;
}
