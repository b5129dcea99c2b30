/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The view by parameter is made of what the source has read: of metadata no byte is read again, and none is read twice to begin with. Reads
 * are counted by file where they leave the process.
 */
#include "check.h"

#include "formats/driver.h"
#include "formats/mcore/mcore.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 256
#define NAMED_LEAST 3 /* bytes of names of storages in items of such views */
#define VIEWS_LEAST 7 /* of the fixtures, whose state is stored otherwise than by parameter */

static struct {
    char name[256];
    uint64_t bytes, size;
} files[FILES_MAX];
static unsigned file_count;

static void count_read(int fd, uint64_t bytes)
{
    char link[64], path[4096];
    struct stat seen;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof(path) - 1);
    if (size <= 0 || fstat(fd, &seen))
        return;
    path[size] = '\0';
    const char *name = size > 200 ? path + size - 200 : path;
    unsigned i = 0;
    while (i < file_count && strcmp(files[i].name, name) != 0)
        i++;
    assert_true(i < FILES_MAX);
    if (i == file_count)
        snprintf(files[file_count++].name, sizeof(files[i].name), "%s", name);
    files[i].bytes += bytes;
    files[i].size = (uint64_t)seen.st_size;
}

ssize_t __real_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread64(int fd, void *bytes, size_t size, off_t offset)
{
    ssize_t done = __real_pread64(fd, bytes, size, offset);
    if (done > 0)
        count_read(fd, (uint64_t)done);
    return done;
}

static void forget_reads(void)
{
    memset(files, 0, sizeof(files));
    file_count = 0;
}

static bool ends_with(const char *name, const char *end)
{
    size_t size = strlen(name), end_size = strlen(end);
    return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

/* Payload, and objects of optimizer state that lie in it, are read when somebody asks for them. */
static void check_view_reads(const char *what)
{
    for (unsigned i = 0; i < file_count; i++) {
        if (!ends_with(files[i].name, ".distcp"))
            fail_msg("%s: the view read %llu bytes of '%s' again", what, (unsigned long long)files[i].bytes, files[i].name);
    }
}

static void check_open_reads(const char *what)
{
    for (unsigned i = 0; i < file_count; i++) {
        if (ends_with(files[i].name, "/.metadata") && files[i].bytes > files[i].size)
            fail_msg("%s: %llu bytes of '%s' were read, it has %llu", what, (unsigned long long)files[i].bytes, files[i].name,
                     (unsigned long long)files[i].size);
    }
}

/* The keys of the hidden tensors that a value's storages are, one after another. */
struct naming {
    const struct catalog *catalog;
    struct buffer keys;
};

static bool name_storage(const struct value *value, void *context)
{
    struct naming *naming = context;
    if (value->kind == VALUE_PERSID && value->storage > 0 && value->storage <= naming->catalog->tensor_count)
        buffer_append_str(&naming->keys, naming->catalog->tensors[value->storage - 1].key);
    return true;
}

/* The same node, or a copy whose numbers count the view's tensors. Returns the bytes of names of storages in it. */
static size_t check_value(const char *what, struct source *stored, const struct catalog_item *own, struct source *view,
                          const struct catalog_item *item)
{
    struct naming a = { .catalog = stored->catalog }, b = { .catalog = view->catalog };
    bool is_numbered = view->driver->abilities & FORMAT_ITEMS_NAME_TENSORS;
    if (!is_numbered && item->value != own->value)
        fail_msg("%s: item '%.*s' has another value in the view", what, STR_ARG(item->key));
    assert_true(value_walk(own->value, own->graph->count, NULL, name_storage, &a, NULL));
    assert_true(value_walk(item->value, item->graph->count, NULL, name_storage, &b, NULL));
    if (is_numbered && (a.keys.size != b.keys.size || (a.keys.size && memcmp(a.keys.data, b.keys.data, a.keys.size) != 0)))
        fail_msg("%s: item '%.*s' names other storages in the view", what, STR_ARG(item->key));
    size_t named = is_numbered ? b.keys.size : 0;
    buffer_release(&a.keys);
    buffer_release(&b.keys);
    return named;
}

static size_t bytes_named; /* in views of Megatron's own files */

/* Every element that the view lists can be found, and every item has the value that it has in the source. */
static void check_view(const char *what, struct source *stored, struct source *view)
{
    reshard_error err = { 0 };
    CHECK_OK(source_resolve(view, NULL, 0, &err));
    for (uint32_t i = 0; i < view->catalog->item_count; i++) {
        const struct catalog_item *item = &view->catalog->items[i];
        const struct catalog_item *own = &stored->catalog->items[view->stored_items[i]];
        if (!str_equal(item->key, own->key))
            fail_msg("%s: item %u is '%.*s', in the source '%.*s'", what, i, STR_ARG(item->key), STR_ARG(own->key));
        if (item->kind == ITEM_FILE)
            continue;
        CHECK_OK(source_load_item(view, i, &err));
        assert_non_null(item->value);
        bytes_named += check_value(what, stored, own, view, item);
    }
    assert_true(view->catalog->is_sealed);
    CHECK_OK(source_verify(view, false, &err));
}

static unsigned check_case(const char *path)
{
    reshard_error err = { 0 };
    struct store *store;
    struct source *stored, *view;
    char *file_name = NULL;
    const struct open_options options = { .limits = limits_default, .iteration = -1 };
    forget_reads();
    CHECK_OK(store_open_path(path, 0, &store, &file_name, &err));
    reshard_status status = format_open(store, file_name ? file_name : "", &options, &stored, &err);
    free(file_name);
    if (status)
        return 0;
    if (stored->driver == &format_torch_dist) /* the probes of its siblings look at the beginning of .metadata */
        check_open_reads(path);
    unsigned has_view = stored->has_other_view;
    if (has_view) {
        forget_reads();
        CHECK_OK(source_by_parameter(stored, &view, &err));
        check_view_reads(path);
        check_view(path, stored, view);
        source_free(view);
    }
    source_free(stored);
    return has_view;
}

TEST(no_metadata_is_read_twice)
{
    static const char *const families[] = { "megatron", "zarr" };
    unsigned views = 0;
    for (unsigned i = 0; i < 2; i++) {
        char folder[4096], path[4600];
        snprintf(folder, sizeof(folder), "%s/%s", test_fixtures(), families[i]);
        DIR *directory = opendir(folder);
        struct dirent *entry;
        assert_non_null(directory);
        while ((entry = readdir(directory)) != NULL) {
            snprintf(path, sizeof(path), "%s/%s/ckpt", folder, entry->d_name);
            if (strncmp(entry->d_name, "bad-", 4) != 0 && access(path, R_OK) == 0)
                views += check_case(path);
        }
        closedir(directory);
    }
    if (views < VIEWS_LEAST)
        fail_msg("%u of the fixtures have a view by parameter, %d are expected at least", views, VIEWS_LEAST);
    assert_true(bytes_named >= NAMED_LEAST);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(no_metadata_is_read_twice) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
