/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole conversions of whatever the bytes describe, from memory to memory: opening, verifying, loading items, moving payload, writing by
 * any driver that can, with any of its options, and reading back what was written, which must hold the same tensors.
 *
 * The input is packed files. Options: byte 0: enum convert_flags; byte 1: number of the target format among those that can be written; byte
 * 2: layout, and whether there is a reference; bytes 3-7: for each option of the format four bits, 0: not given, else which of the values
 * that its type allows.
 *
 * With EVERY_FORMAT (replays only) each format is written twice: as it is without options, and with such as follow from the input.
 */
#include "outcome.h"
#include "packed.h"
#include "api/report.h"
#include "convert/conversion.h"
#include "convert/conversion_second.h"
#include "whole.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define OPTIONS_AT 3
#define OPTIONS_MAX ((PACKED_OPTIONS - OPTIONS_AT) * 2)
#define OPTION_BYTES 64
#define FILE_BYTES_MAX (64 << 20)

enum convert_flags { CASTS = 1, SMALL_SHARDS = 2, LENIENT = 4, DROPS_ITEMS = 8, MAPS = 16 }; /* above: which mapping */
#define HAS_LIKE 64 /* of the byte that chooses the layout: there is a reference */

/* What is being asked for, in the command's words. */
static char asked[512];

static void fail(const char *what, struct str key, const reshard_error *err)
{
    fprintf(stderr, "fuzz_convert: %s: %s '%.*s': %s\n", asked, what, STR_ARG(key), err->message);
    abort();
}

static void note_asked(const struct conversion_options *made, bool casts, bool small, const char *const *options)
{
    const char *missing = made->selection.missing;
    int at = snprintf(asked, sizeof(asked), "--to %s%s%s%s%s%s%s%s%s", made->to, made->layout ? " --layout " : "",
                      made->layout ? made->layout : "", casts ? " --dtype f16" : "", small ? " --max-shard-size 64" : "",
                      made->like ? " --like " : "", made->like ? made->like : "", missing ? " --missing " : "", missing ? missing : "");
    for (; *options && at >= 0 && (size_t)at < sizeof(asked); options++)
        at += snprintf(asked + at, sizeof(asked) - (size_t)at, " -o %s", *options);
}

/* ---- options ---- */

static unsigned writer_count(void)
{
    unsigned count = 0;
    for (int i = 0; format_driver_at(i); i++)
        count += (format_driver_at(i)->abilities & FORMAT_WRITES) != 0;
    return count;
}

static const struct format_driver *pick_format(unsigned number)
{
    number %= writer_count();
    for (int i = 0;; i++) {
        if (format_driver_at(i)->abilities & FORMAT_WRITES && number-- == 0)
            return format_driver_at(i);
    }
}

/* Of ranks only where the format heeds them. */
static const char *pick_layout(const struct format_driver *driver, unsigned number)
{
    static const char *const any[] = { NULL, "ranks=2", "ranks=8" };
    static const char *const parallel[] = { NULL, "tp=2", "pp=2", "tp=2,pp=2,dp=2", "ep=2", "tp=2,ep=2,etp=1", "pp=2,vp=2", "dp=4" };
    static const struct {
        const char *const *layouts;
        unsigned count;
    } tables[] = { { any, 3 }, { parallel, 8 } };
    unsigned table = number >> 7;
    if (table == 0 && !driver->words)
        return NULL;
    return tables[table].layouts[(number & 127) % tables[table].count];
}

/* The number-th of the values that a type such as "none|N|blosc[:CNAME]" allows; words in capitals stand for something. */
static struct str pick_value(const char *type, unsigned number)
{
    static const char *const numbers[] = { "0", "1", "2", "3", "7", "16", "64", "4096" };
    struct str rest = str_of(type), value = { 0 };
    unsigned count = 1;
    size_t bracket;
    for (const char *at = type; *at; at++)
        count += *at == '|';
    for (unsigned i = 0; i <= number % count; i++)
        value = str_take(&rest, '|');
    if (str_find_char(value, '[', &bracket))
        value.size = bracket;
    bool is_number = str_is(value, "number") || str_is(value, "N") || str_starts_with(value, "N,") || str_starts_with(value, "0.N");
    if (is_number)
        return str_of(numbers[number / count % 8]);
    return value.size && isupper((unsigned char)value.data[0]) ? str_of("name") : value;
}

/* "NAME=VALUE" for each option that the bytes choose. */
static void pick_options(const struct format_driver *driver, const uint8_t *bytes, char (*texts)[OPTION_BYTES], const char **out)
{
    unsigned count = 0;
    for (unsigned i = 0; driver->options && driver->options[i].name && i < OPTIONS_MAX; i++) {
        unsigned chosen = bytes[i / 2] >> i % 2 * 4 & 15;
        if (chosen == 0)
            continue;
        struct str value = pick_value(driver->options[i].type, chosen - 1);
        snprintf(texts[count], OPTION_BYTES, "%s=%.*s", driver->options[i].name, STR_ARG(value));
        out[count] = texts[count];
        count++;
    }
    out[count] = NULL;
}

/* ---- writing ---- */

static reshard_status write_objects(struct conversion *conversion, struct store_txn *txn, struct store_object **objects, uint32_t *crcs,
                                    reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    bool is_directory = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < target->object_count && !status; i++) {
        char *name = str_copy(is_directory ? target->objects[i].name : STR(""));
        status = name ? store_txn_create(txn, name, target->objects[i].bytes, &objects[i], err) : RESHARD_ERR_MEMORY;
        free(name);
    }
    struct engine_source source = conversion_engine_source(conversion);
    bool is_packed = false;
    for (uint32_t i = 0; i < target->object_count; i++)
        is_packed = is_packed || target->objects[i].packing;
    if (!status)
        status = engine_run(conversion->plan, &source, objects, crcs, is_packed ? NULL : txn, &conversion->engine, err);
    if (!status && is_packed)
        status = engine_pack(target, objects, 0, &conversion->engine, err);
    struct publish_job job = {
        .target = &conversion->target,
        .source = conversion->source->source,
        .objects = objects,
        .chunk_crcs = crcs,
        .request = &conversion->request,
    };
    return status ? status : target_publish(&job, err);
}

static reshard_status write_target(struct conversion *conversion, struct store *store, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    bool is_directory = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    struct store_txn_options options = { .is_directory = is_directory, .no_sync = true, .identity = plan_hash(conversion->plan) };
    struct store_txn *txn = NULL;
    struct store_object **objects = calloc((size_t)target->object_count + 1, sizeof(*objects));
    uint32_t *crcs = calloc((size_t)target->chunk_count + 1, sizeof(*crcs));
    reshard_status status = objects && crcs ? RESHARD_OK : RESHARD_ERR_MEMORY;
    if (!status)
        status = store_txn_begin_in(store, "out", &options, &txn, err);
    if (!status)
        status = write_objects(conversion, txn, objects, crcs, err);
    for (uint32_t i = 0; objects && i < target->object_count; i++)
        store_object_close(objects[i]);
    free(objects);
    free(crcs);
    if (!status)
        return store_txn_commit(txn, err);
    store_txn_abort(txn, false);
    return status;
}

/* ---- reading back ---- */

static bool has_replicas(const struct catalog *catalog, const struct catalog_tensor *tensor)
{
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        if (catalog->chunks[tensor->first_chunk + i].flags & CHUNK_REPLICA)
            return true;
    }
    return false;
}

/* Whether a tensor's content must come out as it went in: it was written, its key names it alone, nothing says it twice. */
static bool is_comparable(const struct conversion *conversion, uint32_t tensor)
{
    const struct catalog *source = conversion->source->source->catalog, *written = conversion->target.catalog;
    const struct catalog_tensor *target = &written->tensors[tensor];
    uint32_t wanted = conversion->selection.wanted_source[tensor];
    if (conversion->mapping.stage || wanted == CATALOG_NONE || target->chunk_count == 0)
        return false;
    const struct catalog_tensor *from = &source->tensors[wanted];
    if ((target->flags | from->flags) & (TENSOR_HIDDEN | TENSOR_AMBIGUOUS) || target->dtype != from->dtype || target->rank != from->rank)
        return false;
    return memcmp(catalog_vector_at(written, target->shape), catalog_vector_at(source, from->shape),
                  (size_t)from->rank * sizeof(int64_t)) == 0 &&
           !has_replicas(source, from);
}

/* Whether the target was asked to pad a vocabulary to other rows: state has them too, though only its parameter is noted. */
static bool has_other_rows(const struct conversion *conversion, const struct catalog *written, uint32_t tensor, uint32_t found)
{
    const struct note_list *changed = &conversion->target.changed;
    const struct catalog_tensor *target = &conversion->target.catalog->tensors[tensor], *read = &written->tensors[found];
    bool is_noted = false;
    for (uint32_t i = 0; i < changed->count; i++)
        is_noted = is_noted || changed->notes[i].kind == NOTE_ROWS;
    return is_noted && read->rank == target->rank && read->rank > 0 &&
           catalog_vector_at(written, read->shape)[0] != catalog_vector_at(conversion->target.catalog, target->shape)[0];
}

/*
 * Where items name tensors, an optimizer's may be in its item, not beside it; and of a run's arguments follow the names of what is written,
 * so that with items left out nothing is known of them.
 */
static bool is_named_by_items(const struct conversion *conversion, const struct catalog *written, struct str key)
{
    if (!(conversion->target.driver->abilities & FORMAT_ITEMS_NAME_TENSORS))
        return false;
    return conversion->options->selection.drop_items || catalog_find_item(written, str_take(&key, '.')) != CATALOG_NONE;
}

/* Whether the tensor was taken apart, and its parts, one behind the other, hash to that. */
static bool is_in_parts(const struct conversion *conversion, struct checkpoint *written, uint32_t tensor, uint64_t before)
{
    const struct target_parts *parts = conversion->target.read_parts ? &conversion->target.read_parts[tensor] : NULL;
    uint64_t after = 0;
    reshard_error err = { 0 };
    for (uint32_t i = 0; parts && i < parts->count; i++) {
        uint32_t found = catalog_find(written->source->catalog, parts->keys[i]);
        if (found == CATALOG_NONE || whole_hash_on(written, found, &after, &err))
            fail("a part is missing", parts->keys[i], &err);
    }
    return parts && parts->count && before == after;
}

static void compare(const struct conversion *conversion, struct checkpoint *written)
{
    const struct catalog *target = conversion->target.catalog;
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        uint64_t before, after;
        reshard_error err = { 0 };
        if (!is_comparable(conversion, i))
            continue;
        struct str key = target->tensors[i].key;
        uint32_t found = catalog_find(written->source->catalog, target_read_key(&conversion->target, i));
        if (found == CATALOG_NONE && is_named_by_items(conversion, written->source->catalog, key))
            continue;
        if (whole_hash(conversion->source, conversion->selection.wanted_source[i], &before, &err))
            fail("was written, but cannot be read", key, &err);
        if (found == CATALOG_NONE && is_in_parts(conversion, written, i, before))
            continue;
        if (found == CATALOG_NONE)
            fail("missing after writing", key, &err);
        if (has_other_rows(conversion, written->source->catalog, i, found))
            continue;
        if (whole_hash(written, found, &after, &err))
            fail("cannot be read back", key, &err);
        if (before != after)
            fail("differs after writing", key, &err);
    }
}

/* All that was written is a part of the outcome. */
static void note_files(struct store *store, const char *directory)
{
    struct arena arena = { 0 };
    struct store_entry *entries = NULL;
    size_t count = 0;
    outcome_number(store_list(store, directory, &arena, &entries, &count, NULL));
    for (size_t i = 0; i < count; i++) {
        const char *name = arena_copy(&arena, entries[i].name.data, entries[i].name.size);
        struct buffer bytes = { 0 };
        outcome_text(entries[i].name);
        if (name && entries[i].is_directory)
            note_files(store, name);
        else if (name)
            outcome_number(store_read_all(store, name, AT_MOST(FILE_BYTES_MAX), &bytes, NULL));
        outcome_text(buffer_str(&bytes));
        buffer_release(&bytes);
    }
    arena_release(&arena);
}

static void check_target(const struct conversion *conversion, struct store *store)
{
    reshard_error err = { 0 };
    struct whole_options options = { .format = conversion->target.driver->name };
    struct checkpoint *written = whole_open(store, "out", &options, &err), *related = written;
    /* What was converted were tensors of parameters, however the target keeps optimizer state. */
    if (written && conversion->target.driver->abilities & FORMAT_STATE_BY_PARAMETER && checkpoint_relate(written, &related, &err))
        related = NULL;
    if (related) {
        compare(conversion, related);
        whole_load_items(written->source);
    } else if (err.code != RESHARD_ERR_LIMIT) {
        /* What was read through small limits may be written at greater length. */
        fail("what was written cannot be opened", str_of(conversion->target.driver->name), &err);
    }
    checkpoint_close(written);
}

static char like_path[] = "/tmp/fuzz_convert-XXXXXX.safetensors";

static void like_remove(void)
{
    unlink(like_path);
}

/* A small reference on the disk, with tensors of its own; NULL: the disk declines. */
static const char *like_make(void)
{
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                                 "\"own.half\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                                 "\"own.bytes\":{\"dtype\":\"I8\",\"shape\":[2,1],\"data_offsets\":[22,24]},"
                                 "\"own.one\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}";
    static const uint8_t data[26] = { 1, 2, 3 };
    static int fd = -1;
    uint64_t size = sizeof(header) - 1;
    if (fd >= 0)
        return like_path;
    fd = mkstemps(like_path, (int)strlen(".safetensors"));
    if (fd < 0)
        return NULL;
    atexit(like_remove);
    bool is_written = write(fd, &size, sizeof(size)) == sizeof(size) && write(fd, header, size) == (ssize_t)size &&
                      write(fd, data, sizeof(data)) == sizeof(data);
    return is_written ? like_path : NULL;
}

/* A reference, and what becomes of its tensors that the source lacks. */
static void pick_like(unsigned number, struct conversion_options *options)
{
    options->like = like_make();
    options->open.open = (struct open_options){ .limits = whole_limits(), .iteration = -1 };
    const char *const missing[] = { NULL, "zeros", "-0.5", options->like };
    options->selection.missing = options->like ? missing[number >> 4 & 3] : NULL;
}

/* A mapping of the first two tensors that are listed; false: there are none. */
static bool pick_mapping(const struct checkpoint *checkpoint, unsigned number, struct buffer *text)
{
    static const char *const behind[] = { " -> x\n", " -> ab, axis=0\n", "^T -> t\n", " -> h, dtype='float16'\n",
                                          " -> p, q, axis=0\n", " -> _\n", " -> s, stack=0\n", " -> y, permute='[]'\n_ -> nothing\n" };
    const struct catalog *catalog = checkpoint->source->catalog;
    const uint32_t names = number == 1 || number == 6 ? 2 : 1;
    for (uint32_t i = 0; i < names && i < checkpoint->listed_count; i++)
        buffer_printf(text, "%s`%.*s`", i ? ", " : "", STR_ARG(catalog->tensors[checkpoint->listed[i]].key));
    buffer_append_text(text, behind[number]);
    return names <= checkpoint->listed_count && !text->failed;
}

static void convert(struct checkpoint *checkpoint, const uint8_t *chosen)
{
    static const char *const half[] = { "f16", NULL };
    const struct format_driver *driver = pick_format(chosen[1]);
    char texts[OPTIONS_MAX][OPTION_BYTES];
    const char *format_options[OPTIONS_MAX + 1];
    struct conversion_options options = { 0 };
    struct engine_options run = whole_run();
    struct conversion conversion;
    struct buffer text = { 0 };
    struct mapping_text mapping = { .name = "fuzz" };
    struct mapping_options map = { .texts = &mapping, .text_count = 1 };
    pick_options(driver, chosen + OPTIONS_AT, texts, format_options);
    options.to = driver->name;
    options.selection.dtypes = chosen[0] & CASTS ? half : NULL;
    const bool has_small_shards = chosen[0] & SMALL_SHARDS && driver->abilities & FORMAT_LIMITS_FILES;
    options.max_shard_bytes = has_small_shards ? 64 : -1;
    options.selection.drop_items = (chosen[0] & DROPS_ITEMS) != 0;
    options.layout = pick_layout(driver, chosen[2] & ~HAS_LIKE);
    options.format_options = format_options;
    if (chosen[2] & HAS_LIKE)
        pick_like(chosen[2], &options);
    note_asked(&options, chosen[0] & CASTS, has_small_shards, format_options);
    run.memory_bytes = 64 << 10;
    if (chosen[0] & MAPS && pick_mapping(checkpoint, chosen[0] >> 5, &text)) {
        mapping.text = buffer_str(&text);
        options.map = &map;
    }
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(conversion_prepare(checkpoint, "out", &options, &run, CONVERSION_TO_RUN, &conversion, &err), &err)) {
        buffer_release(&text);
        return;
    }
    reshard_report report = RESHARD_REPORT_INIT;
    if (!outcome_status(report_give(&conversion, &report, &err), &err))
        reshard_report_release(&report);
    outcome_catalog(conversion.target.catalog);
    struct store *store = store_new_memory();
    if (store && !outcome_status(write_target(&conversion, store, &err), &err)) {
        note_files(store, "");
        check_target(&conversion, store);
    }
    store_free(store);
    conversion_release(&conversion);
    buffer_release(&text);
}

#ifdef EVERY_FORMAT
static void convert_all(struct checkpoint *checkpoint, const uint8_t *bytes, size_t size)
{
    uint64_t seed = size;
    for (size_t i = 0; i < size; i++)
        seed = seed * 31 + bytes[i];
    for (uint8_t number = 0; number < writer_count(); number++) {
        uint8_t chosen[PACKED_OPTIONS] = { 0, number };
        convert(checkpoint, chosen);
        for (int i = 0; i < PACKED_OPTIONS; i++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            chosen[i] = (uint8_t)(seed >> 56);
        }
        chosen[0] &= MAPS - 1;
        chosen[1] = number;
        chosen[2] &= (uint8_t)~HAS_LIKE;
        convert(checkpoint, chosen);
    }
}
#endif

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct packed packed;
    if (!packed_read(bytes, size, &packed))
        return 0;
    struct store *store = store_new_memory();
    struct whole_options options = { .lenient = packed.options[0] & LENIENT };
    struct checkpoint *checkpoint = store ? whole_open(store, packed_store(&packed, store), &options, NULL) : NULL;
    if (checkpoint && whole_is_small(checkpoint->source->catalog)) {
        whole_load_items(checkpoint->source);
        whole_verify(checkpoint, true);
#ifdef EVERY_FORMAT
        convert_all(checkpoint, bytes, size);
#else
        convert(checkpoint, packed.options);
#endif
    }
    checkpoint_close(checkpoint);
    store_free(store);
    packed_release(&packed);
    return 0;
}
