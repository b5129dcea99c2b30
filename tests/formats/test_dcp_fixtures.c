/* SPDX-License-Identifier: Apache-2.0 */
/* What torch and Megatron wrote is read exactly, what is damaged is refused, and what is written again holds the same. */
#include "formats/dcp_check.h"

static bool manifest_text(const struct value *manifest, const char *key, char *out, size_t size)
{
    struct str text;
    const struct value *value = value_dict_get(manifest, key);
    if (!value || !value_as_str(value, &text))
        return false;
    snprintf(out, size, "%.*s", STR_ARG(text));
    return true;
}

static bool is_refused_in_manifest(const struct value *manifest)
{
    const struct value *expect = value_dict_get(manifest, "expect");
    const struct value *error = expect ? value_dict_get(expect, "error") : NULL;
    return error && error->kind != VALUE_NONE;
}

/* Compares all tensors with their digests; complaints are counted and printed. */
static int compare_tensors(struct source *source, const struct value *manifest, const char *name)
{
    const struct value *tensors = value_dict_get(manifest, "tensors");
    int complaints = 0;
    size_t listed = 0;
    for (uint32_t i = 0; i < source->catalog->tensor_count; i++)
        listed += !(source->catalog->tensors[i].flags & TENSOR_HIDDEN);
    if (listed != tensors->list.count / 2) {
        print_message("# %s: %zu tensors, expected %zu\n", name, listed, tensors->list.count / 2);
        complaints++;
    }
    for (size_t i = 0; i + 1 < tensors->list.count; i += 2) {
        struct str key, dtype, digest;
        reshard_error err = { 0 };
        struct buffer bytes = { 0 };
        char hex[65] = "";
        value_as_str(tensors->list.items[i], &key);
        const struct value *wanted = tensors->list.items[i + 1];
        value_as_str(value_dict_get(wanted, "dtype"), &dtype);
        value_as_str(value_dict_get(wanted, "sha256"), &digest);
        int64_t shape[RANK_MAX];
        size_t rank = 0;
        value_as_ints(value_dict_get(wanted, "shape"), shape, RANK_MAX, &rank);
        uint32_t index = catalog_find(source->catalog, key);
        if (index == CATALOG_NONE) {
            print_message("# %s: no tensor '%.*s'\n", name, STR_ARG(key));
            complaints++;
            continue;
        }
        const struct catalog_tensor *tensor = &source->catalog->tensors[index];
        bool same =
            (size_t)tensor->rank == rank && memcmp(catalog_vector_at(source->catalog, tensor->shape), shape, rank * sizeof(*shape)) == 0;
        if (check_tensor_bytes(source, index, &bytes, &err))
            print_message("# %s: '%.*s': %s\n", name, STR_ARG(key), err.message);
        else
            check_sha256(bytes.data, bytes.size, hex);
        if (!same || !str_is(digest, hex)) {
            print_message("# %s: '%.*s': other %s\n", name, STR_ARG(key), same ? "bytes" : "shape");
            complaints++;
        }
        buffer_release(&bytes);
    }
    return complaints;
}

/* Every item of the manifest is there and can be loaded. */
static int compare_items(struct source *source, const struct value *manifest, const char *name)
{
    const struct value *items = value_dict_get(manifest, "items");
    int complaints = 0;
    for (size_t i = 0; i + 1 < items->list.count; i += 2) {
        struct str key;
        uint32_t found = CATALOG_NONE;
        reshard_error err = { 0 };
        value_as_str(items->list.items[i], &key);
        for (uint32_t j = 0; j < source->catalog->item_count; j++)
            found = str_equal(source->catalog->items[j].key, key) ? j : found;
        reshard_status status =
            found == CATALOG_NONE ? error_set(&err, RESHARD_ERR_FORMAT, "missing") : source->driver->load_item(source, found, &err);
        const struct value *value = status ? NULL : source->catalog->items[found].value;
        const struct value *wanted = value_dict_get(items->list.items[i + 1], "value");
        bool is_plain =
            wanted && (wanted->kind == VALUE_INT || wanted->kind == VALUE_STR || wanted->kind == VALUE_BOOL || wanted->kind == VALUE_NONE);
        if (!value || (is_plain && !value_equal(value, wanted))) {
            print_message("# %s: item '%.*s': %s\n", name, STR_ARG(key), value ? "another value" : err.message);
            complaints++;
        }
    }
    return complaints;
}

static const struct format_driver *surest(struct store *store, const char *name)
{
    const struct format_driver *drivers[] = { &format_torch_dcp, &format_torch_dist, &format_torch_dcp_megatron, &format_fsdp_dtensor };
    const struct format_driver *best = NULL;
    int best_score = 0;
    for (size_t i = 0; i < 4; i++) {
        int score = drivers[i]->probe(store, name, NULL);
        if (score > best_score) {
            best_score = score;
            best = drivers[i];
        }
    }
    return best;
}

/* Megatron cases are roots with one iteration. */
static void enter_iteration(char *path, size_t size)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    while (directory && (entry = readdir(directory))) {
        if (strncmp(entry->d_name, "iter_", 5) == 0 || strcmp(entry->d_name, "release") == 0) {
            size_t used = strlen(path);
            snprintf(path + used, size - used, "/%s", entry->d_name);
            break;
        }
    }
    if (directory)
        closedir(directory);
}

static bool has_damage(const struct source *source)
{
    for (uint32_t i = 0; i < source->catalog->warning_count; i++) {
        if (source->catalog->warnings[i].is_damage)
            return true;
    }
    return false;
}

static int check_verify(struct source *source, const char *name)
{
    reshard_error err = { 0 };
    reshard_status status = source->driver->verify(source, false, &err);
    if (!status && !has_damage(source))
        return 0;
    print_message("# %s: verify: %s\n", name, status ? err.message : "damage");
    for (uint32_t i = 0; i < source->catalog->warning_count; i++)
        print_message("#     %.*s\n", STR_ARG(source->catalog->warnings[i].text));
    return 1;
}

/* Writes everything again, over `ranks` ranks or like itself, and reads it back. */
static int check_rewrite(struct source *source, const struct value *manifest, const char *name, uint32_t ranks, bool like_itself)
{
    char path[TEST_FOLDER_SIZE], inside[64];
    struct check_conversion conversion;
    struct store_txn *txn = NULL;
    struct store_txn_options options = { .is_directory = true, .no_sync = true };
    struct source *again = NULL;
    reshard_error err = { 0 };
    int complaints = 1;
    assert_non_null(test_mkdtemp(path));
    snprintf(inside, sizeof(inside), "%s/ckpt", path);
    reshard_status status = check_lay_out(source, like_itself ? source : NULL, ranks, ranks == 1 ? 4096 : -1, &conversion, &err);
    if (!status)
        status = store_txn_begin(inside, &options, &txn, &err);
    if (!status)
        status = check_write(&conversion, txn, &err);
    if (!status)
        status = store_txn_commit(txn, &err);
    if (!status)
        status = check_open_path(&format_torch_dcp, inside, &again, &err);
    if (!status)
        status = check_resolve_all(again, &err);
    if (status)
        print_message("# %s: written again: %s\n", name, err.message);
    else
        complaints = compare_tensors(again, manifest, name) + compare_items(again, manifest, name) + check_verify(again, name);
    if (!status && like_itself && again->catalog->chunk_count > source->catalog->chunk_count) {
        print_message("# %s: %u chunks, like %u\n", name, again->catalog->chunk_count, source->catalog->chunk_count);
        complaints++;
    }
    check_close(again);
    check_conversion_release(&conversion);
    if (!getenv("RESHARD_KEEP") && test_tree_remove(path) != 0)
        complaints++;
    return complaints;
}

static int check_good(const char *path, const struct value *manifest, const char *name)
{
    struct store *store = NULL;
    reshard_error err = { 0 };
    struct source *source = NULL;
    if (store_open_path(path, 0, &store, NULL, &err))
        return 1;
    const struct format_driver *driver = surest(store, "");
    if (!driver) {
        store_free(store);
        return strstr(name, "-legacy") || strstr(name, "zarr") || strstr(name, "-hf-") ? 0 : 1;
    }
    reshard_status status = check_open(driver, store, "", &source, &err);
    if (!status)
        status = check_resolve_all(source, &err);
    if (status) {
        print_message("# %s: %s\n", name, err.message);
        check_close(source);
        return 1;
    }
    int complaints = compare_tensors(source, manifest, name) + compare_items(source, manifest, name) + check_verify(source, name);
    if (complaints == 0) {
        complaints += check_rewrite(source, manifest, name, 1, false);
        complaints += check_rewrite(source, manifest, name, 3, false);
        if (driver == &format_torch_dcp)
            complaints += check_rewrite(source, manifest, name, 0, true);
    }
    check_close(source);
    return complaints;
}

static int check_bad(const char *path, const char *name)
{
    struct store *store = NULL;
    reshard_error err = { 0 };
    struct source *source = NULL;
    if (store_open_path(path, 0, &store, NULL, &err))
        return 0;
    const struct format_driver *driver = surest(store, "");
    if (!driver) {
        store_free(store);
        return 0;
    }
    reshard_status status = check_open(driver, store, "", &source, &err);
    if (!status)
        status = check_resolve_all(source, &err);
    if (!status)
        status = source->driver->verify(source, false, &err);
    bool refused = status || has_damage(source);
    if (status)
        print_message("# %s: %d: %s\n", name, status, err.message);
    else
        for (uint32_t i = 0; i < source->catalog->warning_count; i++)
            print_message("# %s: %.*s\n", name, STR_ARG(source->catalog->warnings[i].text));
    if (!status || !source)
        check_close(source);
    else
        check_close(source);
    return refused ? 0 : 1;
}

static int check_case(const char *family, const char *name)
{
    char folder[4352], path[4608], inside[256] = "";
    struct buffer text = { 0 };
    struct value_graph graph = { 0 };
    int complaints = 0;
    const char *only = getenv("RESHARD_CASE");
    snprintf(folder, sizeof(folder), "%s/%s", family, name);
    if ((only && !strstr(name, only)) || !check_manifest(folder, &text, &graph))
        goto out;
    manifest_text(graph.root, "path", inside, sizeof(inside));
    snprintf(path, sizeof(path), "%s/%s", folder, inside);
    if (strstr(inside, ".pt"))
        goto out;
    enter_iteration(path, sizeof(path));
    if (is_refused_in_manifest(graph.root)) {
        if (!strstr(name, "legacy") && !strstr(name, "mp-rank") && !strstr(name, "mixed") && !strstr(name, "tracker") &&
            !strstr(name, "pp-rank") && !strstr(name, "two-runs"))
            complaints = check_bad(path, name);
    } else if (!strncmp(name, "dcp-", 4) || strstr(name, "-dist-") || strstr(name, "-optim-") || strstr(name, "-sem-")) {
        complaints = check_good(path, graph.root, name);
    }
    if (complaints)
        print_message("# %s: %d complaints\n", name, complaints);

out:
    value_graph_release(&graph);
    buffer_release(&text);
    return complaints;
}

static void check_family(const char *family_name)
{
    char family[4096];
    struct dirent **entries;
    int failed = 0;
    check_fixtures(family_name, family);
    int count = scandir(family, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.')
            failed += check_case(family, entries[i]->d_name) != 0;
        free(entries[i]);
    }
    free(entries);
    assert_int_equal(failed, 0);
}

TEST(every_torch_dcp_fixture_reads_as_torch_says)
{
    check_family("torch-dcp");
}

TEST(every_torch_dist_fixture_reads_as_megatron_says)
{
    check_family("megatron");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_torch_dcp_fixture_reads_as_torch_says),
        cmocka_unit_test(every_torch_dist_fixture_reads_as_megatron_says),
    };
    return cmocka_run_group_tests_name("dcp_fixtures", tests, NULL, NULL);
}
