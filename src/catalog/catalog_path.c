/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog_path.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/array.h"

#define PATH_PARTS_MAX UINT16_MAX

/* Spelling of an integer part. */
static struct str index_text(int64_t index, char out[24])
{
    return (struct str){ out, (size_t)snprintf(out, 24, "%" PRId64, index) };
}

/*
 * The joined key spells every string part, so parts can point into it instead of being copied. *pos moves through key while it keeps
 * agreeing; once it does not (a key that is no plain join), it is SIZE_MAX and parts are copied.
 */
static bool part_keep(struct arena *arena, struct str key, size_t *pos, struct path_part *part)
{
    char digits[24];
    struct str text = part->kind == PATH_KEY ? part->key : index_text(part->index, digits);
    bool is_spelled =
        *pos <= key.size && text.size <= key.size - *pos && (text.size == 0 || memcmp(key.data + *pos, text.data, text.size) == 0);

    if (part->kind == PATH_KEY) {
        if (is_spelled)
            part->key = (struct str){ key.data + *pos, text.size };
        else if (!arena_str(arena, part->key, &part->key))
            return false;
    }
    if (is_spelled && *pos + text.size < key.size && key.data[*pos + text.size] == '.')
        *pos += text.size + 1;
    else
        *pos = SIZE_MAX;
    return true;
}

reshard_status path_add(struct catalog *catalog, struct str key, const struct path_part *parts, size_t count, uint32_t *out,
                        uint16_t *out_count, reshard_error *err)
{
    *out = CATALOG_NONE;
    *out_count = 0;
    if (count == 0)
        return RESHARD_OK;
    if (count > PATH_PARTS_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "'%.*s' is nested %zu deep, at most %d is supported", STR_ARG(key), count, PATH_PARTS_MAX);
    reshard_status status = work_spend(catalog->limits.budget, count * sizeof(*parts), err);
    if (status)
        return status;
    if (!ARRAY_RESERVE(catalog->paths, (uint64_t)catalog->path_count + count, catalog->path_capacity))
        return error_set_memory(err);

    size_t pos = 0;
    for (size_t i = 0; i < count; i++) {
        struct path_part part = parts[i];
        if (!part_keep(&catalog->arena, key, &pos, &part))
            return error_set_memory(err);
        catalog->paths[catalog->path_count + i] = part;
    }
    *out = catalog->path_count;
    *out_count = (uint16_t)count;
    catalog->path_count += (uint32_t)count;
    return RESHARD_OK;
}

reshard_status catalog_set_tensor_path(struct catalog *catalog, uint32_t tensor_index, const struct path_part *parts, size_t count,
                                       reshard_error *err)
{
    struct catalog_tensor *tensor = &catalog->tensors[tensor_index];
    return path_add(catalog, tensor->key, parts, count, &tensor->path, &tensor->path_count, err);
}

bool path_join(const struct path_part *parts, size_t count, struct buffer *out)
{
    char digits[24];
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !buffer_append_byte(out, '.'))
            return false;
        struct str text = parts[i].kind == PATH_KEY ? parts[i].key : index_text(parts[i].index, digits);
        if (!buffer_append_str(out, text))
            return false;
    }
    return !out->failed;
}

bool path_append_exact(const struct path_part *parts, size_t count, struct buffer *out)
{
    for (size_t i = 0; i < count; i++) {
        const bool is_key = parts[i].kind == PATH_KEY;
        buffer_append_byte(out, (uint8_t)parts[i].kind);
        buffer_append_u64le(out, is_key ? parts[i].key.size : (uint64_t)parts[i].index);
        buffer_append_str(out, is_key ? parts[i].key : (struct str){ 0 });
    }
    return !out->failed;
}

bool path_equal(const struct path_part *a, size_t a_count, const struct path_part *b, size_t b_count)
{
    if (a_count != b_count)
        return false;
    for (size_t i = 0; i < a_count; i++) {
        if (a[i].kind != b[i].kind)
            return false;
        bool is_same = a[i].kind == PATH_KEY ? str_equal(a[i].key, b[i].key) : a[i].index == b[i].index;
        if (!is_same)
            return false;
    }
    return true;
}

static size_t path_or_key(const struct catalog *catalog, struct str key, uint32_t path, uint16_t count, struct path_part *single,
                          const struct path_part **parts)
{
    if (path != CATALOG_NONE) {
        *parts = catalog->paths + path;
        return count;
    }
    *single = (struct path_part){ .kind = PATH_KEY, .key = key };
    *parts = single;
    return 1;
}

size_t catalog_tensor_path(const struct catalog *catalog, const struct catalog_tensor *tensor, struct path_part *single,
                           const struct path_part **parts)
{
    return path_or_key(catalog, tensor->key, tensor->path, tensor->path_count, single, parts);
}

size_t catalog_item_path(const struct catalog *catalog, const struct catalog_item *item, struct path_part *single,
                         const struct path_part **parts)
{
    return path_or_key(catalog, item->key, item->path, item->path_count, single, parts);
}
