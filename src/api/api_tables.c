/* SPDX-License-Identifier: Apache-2.0 */
/* What there is, whatever is open: the version, formats and their options, element types, limits. */
#include "reshard/reshard.h"

#include "api/versioned.h"
#include "base/limits.h"
#include "formats/driver.h"
#include "names/mapping_rules.h"
#include "store/store.h"

#include <stdlib.h>

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
#define VERSION VERSION_TEXT(RESHARD_VERSION_MAJOR, RESHARD_VERSION_MINOR, RESHARD_VERSION_PATCH)

#ifdef RESHARD_BUILD_VERSION
_Static_assert(__builtin_strcmp(RESHARD_BUILD_VERSION, VERSION) == 0, "the build and the header have one version");
#endif

API_EXPORT const char *reshard_version(void)
{
    return VERSION;
}

API_EXPORT void reshard_free(void *memory)
{
    free(memory);
}

API_EXPORT size_t reshard_visible_char(const char *text, size_t size)
{
    return text && size ? str_printable_char((struct str){ text, size }, 0) : 0;
}

API_EXPORT char *reshard_path_shown(const char *path)
{
    char shown[STORE_SHOWN_MAX];
    return path ? str_copy(str_of(store_path_shown(path, shown))) : NULL;
}

/* ---- formats ---- */

API_EXPORT size_t reshard_format_count(void)
{
    int count = 0;
    while (format_driver_at(count))
        count++;
    return (size_t)count;
}

static size_t option_count(const struct format_driver *driver)
{
    size_t count = 0;
    while (driver->options && driver->options[count].name)
        count++;
    return count;
}

API_EXPORT reshard_status reshard_format_at(size_t index, reshard_format *out)
{
    if (!entry_begin(out, "reshard_format", index, reshard_format_count()))
        return RESHARD_ERR_USAGE;
    const struct format_driver *driver = format_driver_at((int)index);
    const reshard_format made = {
        .name = driver->name,
        .summary = driver->summary,
        .reads = (driver->abilities & FORMAT_READS) != 0,
        .writes = (driver->abilities & FORMAT_WRITES) != 0,
        .is_directory = (driver->abilities & FORMAT_IS_DIRECTORY) != 0,
        .holds_items = (driver->abilities & FORMAT_HOLDS_ITEMS) != 0,
        .option_count = option_count(driver),
    };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_format_option_at(size_t format, size_t index, reshard_format_option *out)
{
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_format_option", NULL);
    if (status || format >= reshard_format_count() || index >= option_count(format_driver_at((int)format)))
        return RESHARD_ERR_USAGE;
    const struct format_option *option = &format_driver_at((int)format)->options[index];
    const reshard_format_option made = {
        .name = option->name, .type = option->type, .default_value = option->default_value, .help = option->help
    };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* The word of that number; those without help are synonyms. NULL behind the last. */
static const struct layout_word *format_word_find(const struct format_driver *driver, size_t index)
{
    for (const struct layout_word *word = driver ? driver->words : NULL; word && word->name; word++) {
        if (word->help && index-- == 0)
            return word;
    }
    return NULL;
}

API_EXPORT reshard_status reshard_format_word_at(size_t format, size_t index, reshard_format_word *out)
{
    const struct layout_word *word = format < reshard_format_count() ? format_word_find(format_driver_at((int)format), index) : NULL;
    if (!entry_begin(out, "reshard_format_word", 0, word ? 1 : 0))
        return RESHARD_ERR_USAGE;
    const reshard_format_word made = { .name = word->name, .help = word->help, .choices = word->choices };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* ---- element types ---- */

static void dtype_give(enum dtype dtype, reshard_dtype *out)
{
    const struct dtype_info *info = dtype_info(dtype);
    const reshard_dtype made = { .name = info->name, .torch_name = info->torch_name, .bits = info->bits };
    struct_give(out, &made, sizeof(made));
}

API_EXPORT size_t reshard_dtype_count(void)
{
    return DTYPE_COUNT;
}

API_EXPORT reshard_status reshard_dtype_at(size_t index, reshard_dtype *out)
{
    if (!entry_begin(out, "reshard_dtype", index, DTYPE_COUNT))
        return RESHARD_ERR_USAGE;
    dtype_give((enum dtype)index, out);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_dtype_find(const char *name, reshard_dtype *out)
{
    enum dtype dtype;
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_dtype", NULL);
    if (status || !name || !dtype_from_name(str_of(name), &dtype))
        return RESHARD_ERR_USAGE;
    dtype_give(dtype, out);
    return RESHARD_OK;
}

/* ---- limits ---- */

API_EXPORT size_t reshard_limit_count(void)
{
    const char *help;
    uint64_t value;
    int count = 0;
    while (limits_describe(count, &help, &value))
        count++;
    return (size_t)count;
}

API_EXPORT reshard_status reshard_limit_at(size_t index, reshard_limit *out)
{
    if (!entry_begin(out, "reshard_limit", index, reshard_limit_count()))
        return RESHARD_ERR_USAGE;
    reshard_limit made = { 0 };
    made.name = limits_describe((int)index, &made.help, &made.default_value);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* ---- families of models ---- */

API_EXPORT reshard_status reshard_family_at(size_t index, reshard_str *out)
{
    struct mapping_rules rules = { 0 };
    struct str name = { 0 };
    NEEDS(out, NULL);
    *out = (reshard_str){ 0 };
    reshard_status status = mapping_rules_load(NULL, &rules, NULL);
    if (status)
        return status;
    bool is_there = mapping_family_at(&rules, index, &name); /* part of a text that is compiled in */
    mapping_rules_release(&rules);
    if (is_there)
        *out = (reshard_str){ name.data, name.size };
    return is_there ? RESHARD_OK : RESHARD_ERR_USAGE;
}
