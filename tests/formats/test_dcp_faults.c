/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation and every access fails once while a checkpoint is opened, resolved, read and verified: an error, never worse. */
#include "formats/dcp_check.h"

#include "fail_malloc.h"

static const struct {
    const char *family, *folder;
    const struct format_driver *driver;
} cases[] = {
    { "torch-dcp", "dcp-small/ckpt", &format_torch_dcp },
    { "torch-dcp", "dcp-zstd/ckpt", &format_torch_dcp },
    { "torch-dcp", "dcp-safetensors/ckpt", &format_torch_dcp },
    { "torch-dcp", "dcp-per-rank-sharded/ckpt", &format_torch_dcp },
    { "torch-dcp", "dcp-no-flatten/ckpt", &format_torch_dcp },
    { "torch-dcp", "dcp-single-layouts/ckpt", &format_torch_dcp },
    { "torch-dcp", "bad-dcp-tp-fsdp-2d/ckpt", &format_torch_dcp },
    { "megatron", "megatron-sem-flat-v0.12.3/ckpt", &format_torch_dist },
    { "megatron", "megatron-sem-v0.19.0/ckpt", &format_torch_dist },
    { "megatron", "megatron-sem-integrity/ckpt", &format_torch_dist },
};

/* Numbers storages of an item by its persistent ids. */
static bool find_storage(const struct value *value, void *context)
{
    if (value->kind == VALUE_PERSID)
        *(uint32_t *)context = value->storage;
    return true;
}

static reshard_status use_items(struct source *source, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < source->catalog->item_count && !status; i++) {
        uint32_t storage = 0;
        struct buffer bytes = { 0 };
        status = source->driver->load_item(source, i, err);
        const struct catalog_item *item = &source->catalog->items[i];
        if (status || !item->value || !value_walk(item->value, item->graph->count, NULL, find_storage, &storage, NULL) || !storage)
            continue;
        status = source->driver->read_item_storage(source, i, storage - 1, &bytes, err);
        buffer_release(&bytes);
    }
    return status;
}

/* A source over a store that stays the caller's, not opened yet. */
static struct source *make_source(const struct format_driver *driver, struct store *store)
{
    struct source *source = calloc(1, sizeof(*source));
    *source = (struct source){ .driver = driver, .store = store, .limits = limits_default, .iteration = -1, .is_borrowed_store = true };
    source->name = strdup("");
    source->catalog = catalog_new(driver->name);
    return source;
}

static reshard_status use(struct source *source, reshard_error *err)
{
    (void)source->driver->probe(source->store, "", NULL);
    reshard_status status = source->driver->read_catalog(source, err);
    if (!status)
        status = catalog_seal(source->catalog, false, err);
    if (!status)
        status = check_resolve_all(source, err);
    if (!status)
        status = use_items(source, err);
    return status ? status : source->driver->verify(source, true, err);
}

static void case_path(size_t index, char out[8192])
{
    char family[4096];
    snprintf(out, 8192, "%s/%s", check_fixtures(cases[index].family, family), cases[index].folder);
}

static void fail_each_read(void (*fail_at)(unsigned long nth))
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[8192];
        unsigned long nth = 0;
        bool was_hit;
        case_path(i, path);
        do {
            reshard_error err = { 0 };
            struct store *store = NULL;
            CHECK_OK(store_open_path(path, 0, &store, NULL, &err));
            struct source *source = make_source(cases[i].driver, store);
            fail_at(nth = fail_next(nth));
            reshard_status status = use(source, &err);
            was_hit = fail_malloc_was_hit();
            if (status != RESHARD_OK && status != RESHARD_ERR_MEMORY)
                fail_msg("%s: allocation %lu: status %d: %s", cases[i].folder, nth, status, err.message);
            check_close(source);
            store_free(store);
        } while (was_hit);
        print_message("# %s: %lu allocations, or less\n", cases[i].folder, nth - 1);
    }
}

TEST(reading_survives_every_failed_allocation)
{
    fail_each_read(fail_malloc_at);
}

TEST(reading_survives_every_part_of_an_arena_that_is_refused)
{
    fail_each_read(fail_arena_at);
}

TEST(reading_reports_every_failed_access)
{
    static const enum fault_kind kinds[] = { FAULT_IO, FAULT_SHORT_READ };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        char path[8192];
        uint64_t nth = 0;
        bool was_hit;
        case_path(i / 2, path);
        do {
            reshard_error err = { 0 };
            struct store *inner = NULL;
            CHECK_OK(store_open_path(path, 0, &inner, NULL, &err));
            struct store *faulty = store_new_fault(inner, kinds[i % 2], ++nth);
            struct source *source = make_source(cases[i / 2].driver, faulty);
            reshard_status status = use(source, &err);
            was_hit = store_fault_was_hit(faulty);
            if (!was_hit && status)
                fail_msg("%s: status %d without a fault: %s", cases[i / 2].folder, status, err.message);
            check_close(source);
            store_free(faulty);
            store_free(inner);
        } while (was_hit);
        print_message("# %s: %d accesses\n", cases[i / 2].folder, (int)nth - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_survives_every_failed_allocation),
        cmocka_unit_test(reading_survives_every_part_of_an_arena_that_is_refused),
        cmocka_unit_test(reading_reports_every_failed_access),
    };
    return cmocka_run_group_tests_name("dcp_faults", tests, NULL, NULL);
}
