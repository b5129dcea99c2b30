/* SPDX-License-Identifier: Apache-2.0 */
#include "mutate.h"

#include "packed.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_MAX (1 << 20)

size_t mutate_safetensors(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    uint64_t header = 0;
    for (int i = 0; i < 8 && size >= 8; i++)
        header |= (uint64_t)bytes[i] << 8 * i;
    if (size <= 8 || header > size - 8 || header > HEADER_MAX || mutate_next(&seed) % 16 == 0)
        return LLVMFuzzerMutate(bytes, size, size_max);
    size_t data = size - 8 - (size_t)header, room = size_max - 8 - data;
    uint8_t *text = malloc(room + 1);
    if (!text)
        return size;
    memcpy(text, bytes + 8, (size_t)header);
    size_t changed = LLVMFuzzerMutate(text, (size_t)header, room);
    memmove(bytes + 8 + changed, bytes + 8 + header, data);
    memcpy(bytes + 8, text, changed);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)changed >> 8 * i);
    free(text);
    return 8 + changed + data;
}

static bool is_safetensors(const uint8_t *bytes, size_t size)
{
    return size > 9 && bytes[8] == '{' && memcmp(bytes + 3, "\0\0\0\0\0", 5) == 0;
}

size_t mutate_file(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    if (size > 4 && memcmp(bytes, "PK\3\4", 4) == 0)
        return mutate_zip(bytes, size, size_max, seed);
    if (size > 2 && bytes[0] == 0x80)
        return mutate_pickle(bytes, size, size_max, seed);
    if (is_safetensors(bytes, size))
        return mutate_safetensors(bytes, size, size_max, seed);
    return LLVMFuzzerMutate(bytes, size, size_max);
}

static void mutate_content(struct packed_file *file, unsigned seed)
{
    size_t room = file->size + file->size / 4 + 256;
    uint8_t *grown = realloc(file->bytes, room + 1);
    if (!grown)
        return;
    file->bytes = grown;
    file->size = mutate_file(grown, file->size, room, seed);
    if (file->size > 0xFFFFFF)
        file->size = 0xFFFFFF;
}

static void copy_content(struct packed_file *to, const struct packed_file *from)
{
    uint8_t *copy = malloc(from->size + 1);
    if (!copy)
        return;
    memcpy(copy, from->bytes, from->size);
    free(to->bytes);
    to->bytes = copy;
    to->size = from->size;
    to->repairs = from->repairs;
}

static void mutate_name(struct packed_file *file)
{
    size_t size = strlen(file->name);
    size = LLVMFuzzerMutate((uint8_t *)file->name, size, sizeof(file->name) - 1);
    file->name[size] = '\0';
}

static void mutate_files(struct packed *packed, unsigned seed)
{
    struct packed_file *file = &packed->files[mutate_next(&seed) % (unsigned)packed->count];
    struct packed_file *other = &packed->files[mutate_next(&seed) % (unsigned)packed->count];
    switch (mutate_next(&seed) % 32) {
    case 0:
        free(file->bytes);
        *file = packed->files[--packed->count];
        break;
    case 1:
        copy_content(file, other);
        break;
    case 2:
        mutate_name(file);
        break;
    case 3:
    case 4:
        LLVMFuzzerMutate(packed->options, PACKED_OPTIONS, PACKED_OPTIONS);
        break;
    case 5:
        LLVMFuzzerMutate(&file->repairs, 1, 1);
        break;
    default:
        mutate_content(file, mutate_next(&seed) << 16 | mutate_next(&seed));
    }
}

size_t mutate_packed(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    static struct packed packed;
    if (!packed_read(bytes, size, &packed) || packed.count == 0) {
        packed_release(&packed);
        return LLVMFuzzerMutate(bytes, size, size_max);
    }
    for (unsigned again = 1 + mutate_next(&seed) % 2; again && packed.count; again--)
        mutate_files(&packed, mutate_next(&seed) << 16 | mutate_next(&seed));
    size_t written = packed_write(&packed, bytes, size_max);
    packed_release(&packed);
    return written ? written : size;
}
