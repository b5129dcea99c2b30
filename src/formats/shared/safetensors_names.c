/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_names.h"

#include "formats/driver.h"

#define SUFFIX ".safetensors"
#define DIGITS 5

bool st_name_take_text(struct str *rest, const char *text)
{
    if (!str_starts_with(*rest, text))
        return false;
    size_t size = strlen(text);
    *rest = (struct str){ rest->data + size, rest->size - size };
    return true;
}

bool st_name_take_number(struct str *rest, uint64_t *out)
{
    size_t digits = 0, zeros = 0;
    while (digits < rest->size && rest->data[digits] >= '0' && rest->data[digits] <= '9')
        digits++;
    while (zeros + 1 < digits && rest->data[zeros] == '0')
        zeros++;
    if (digits < DIGITS || !str_to_u64((struct str){ rest->data + zeros, digits - zeros }, out))
        return false;
    *rest = (struct str){ rest->data + digits, rest->size - digits };
    return true;
}

bool name_parse_numbered(struct str base, const char *suffix, struct str *stem, uint64_t *file, uint64_t *file_count)
{
    for (size_t i = base.size; i-- > 0;) {
        struct str rest = { base.data + i, base.size - i };
        if (st_name_take_text(&rest, "-") && st_name_take_number(&rest, file) && st_name_take_text(&rest, "-of-") &&
            st_name_take_number(&rest, file_count) && str_is(rest, suffix)) {
            *stem = (struct str){ base.data, i };
            return true;
        }
    }
    return false;
}

bool st_name_parse_numbered(struct str base, struct str *stem, uint64_t *file, uint64_t *file_count)
{
    return name_parse_numbered(base, SUFFIX, stem, file, file_count);
}

bool st_name_is_index(struct str base)
{
    static const char middle[] = SUFFIX ".index.";
    if (!str_ends_with(base, ".json"))
        return false;
    for (size_t i = 0; i + sizeof(middle) - 1 <= base.size; i++) {
        if (memcmp(base.data + i, middle, sizeof(middle) - 1) == 0)
            return true;
    }
    return false;
}

bool st_name_is_side_file(struct str base)
{
    static const char *const suffixes[] = { ".json", ".txt", ".model", ".jinja", ".py", ".md", ".tiktoken", ".spm", ".yaml", ".yml" };
    if (!base.size || base.data[0] == '.' || str_is(base, SIDECAR_NAME) || str_ends_with(base, ".index.json") || st_name_is_index(base))
        return false;
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (str_ends_with(base, suffixes[i]))
            return true;
    }
    return str_starts_with(base, "tokenizer") || str_starts_with(base, "vocab") || str_starts_with(base, "LICENSE");
}
