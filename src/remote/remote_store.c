/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/remote.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/name_map.h"
#include "remote/block_cache.h"
#include "remote/http.h"
#include "remote/listing.h"
#include "remote/remote_place.h"
#include "store/store_calls.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* What lies in a folder, as it was first seen. */
struct remote_folder {
    struct remote_folder *next;
    char *path;
    reshard_error *absence; /* what the server said where there is none, or NULL */
    struct listing listing; /* of the hub, which is asked once, all of the repository under whole paths */
};

struct found {
    bool is_there, is_folder;
    uint64_t bytes;
    char etag[HTTP_ETAG_MAX];
};

/* What is known of a path. */
struct remote_file {
    bool is_looked;           /* it was asked for by itself */
    struct found found;       /* as it was first seen then */
    char etag[HTTP_ETAG_MAX]; /* of the bytes that were seen first: no others are taken, whoever opens it; "" as long as nobody says one */
};

struct remote {
    struct remote_place place;
    bool names_file;        /* the place is a file, in which nothing lies */
    struct http *http;
    struct block_cache cache;
    uint64_t seed;          /* of the numbers of objects */
    pthread_mutex_t lock;   /* of folders and their sizes */
    struct remote_folder *folders;
    pthread_mutex_t file_lock;   /* of files; within the other */
    struct name_map paths;
    struct remote_file **files;  /* by the numbers of their paths */
    size_t files_capacity;
};

struct remote_object {
    struct remote *remote;
    char *url;
    uint64_t number, bytes; /* number: in the cache */
    struct remote_file *file;
};

/* Functions of a store return a number; what there is to say lies here until the store asks, on the same thread. */
static _Thread_local reshard_error said;
static _Thread_local reshard_status said_status;

static int say(reshard_status status)
{
    said_status = status;
    if (!status)
        return 0;
    return status == RESHARD_ERR_MEMORY ? ENOMEM : said.sys_errno > 0 ? said.sys_errno : EIO;
}

static int say_missing(void)
{
    said = (reshard_error)RESHARD_ERROR_INIT;
    error_set(&said, RESHARD_ERR_IO, "nothing is there");
    said.sys_errno = ENOENT;
    return say(RESHARD_ERR_IO);
}

static reshard_error *said_new(void)
{
    said = (reshard_error)RESHARD_ERROR_INIT;
    return &said;
}

static reshard_status remote_tell(reshard_error *err, void *context)
{
    (void)context;
    if (err)
        *err = said;
    return said_status;
}

/* ---- URLs ---- */

static char *object_url(const struct remote *remote, const char *path, bool is_folder)
{
    struct buffer url = { 0 };
    const bool is_given = !is_folder && strcmp(path, remote->place.path) == 0;
    buffer_append_text(&url, remote->place.base);
    if (is_given)
        buffer_append_text(&url, remote->place.encoded);
    else
        url_encode(str_of(path), true, &url);
    if (is_folder && path[0])
        buffer_append_byte(&url, '/');
    if (is_given)
        buffer_append_text(&url, remote->place.query);
    if (buffer_append_byte(&url, '\0'))
        return (char *)url.data;
    buffer_release(&url);
    return NULL;
}

/* ---- listings ---- */

/* What asks for a page of a list, and what takes the answer. *next: where it goes on, or empty. */
struct bucket_protocol {
    bool (*listing_url)(const struct remote *remote, const char *folder, struct str next, struct buffer *url);
    reshard_status (*take)(struct str answer, struct listing *listing, struct str *next, reshard_error *err);
};

/* Parameters in the order in which they are signed, here and below. */
static bool s3_listing_url(const struct remote *remote, const char *folder, struct str token, struct buffer *url)
{
    buffer_clear(url);
    buffer_append_text(url, remote->place.listing);
    buffer_append_byte(url, '?');
    if (token.size) {
        buffer_append_text(url, "continuation-token=");
        url_encode(token, false, url);
        buffer_append_byte(url, '&');
    }
    buffer_append_text(url, "delimiter=%2F&encoding-type=url&list-type=2&prefix=");
    url_encode(str_of(folder), false, url);
    if (folder[0])
        buffer_append_text(url, "%2F");
    return buffer_append_byte(url, '\0');
}

static bool azure_listing_url(const struct remote *remote, const char *folder, struct str marker, struct buffer *url)
{
    buffer_clear(url);
    buffer_printf(url, "%s?comp=list&delimiter=%%2F", remote->place.listing);
    if (marker.size) {
        buffer_append_text(url, "&marker=");
        url_encode(marker, false, url);
    }
    buffer_append_text(url, "&prefix=");
    url_encode(str_of(folder), false, url);
    buffer_printf(url, "%s&restype=container", folder[0] ? "%2F" : "");
    return buffer_append_byte(url, '\0');
}

static const struct bucket_protocol s3_protocol = { s3_listing_url, listing_take_s3 };
static const struct bucket_protocol azure_protocol = { azure_listing_url, listing_take_azure };

/* A list may go on for ever. */
static reshard_status page_count(unsigned *page, reshard_error *err)
{
    if (++*page <= LISTING_PAGES_MAX)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_LIMIT, "the server's list of a folder has more than %d pages", LISTING_PAGES_MAX);
}

static reshard_status bucket_list(struct remote *remote, const struct bucket_protocol *protocol, const char *folder,
                                  struct listing *listing, reshard_error *err)
{
    struct buffer url = { 0 }, answer = { 0 };
    struct str token = { NULL, 0 };
    struct http_answer facts;
    reshard_status status;
    unsigned page = 0;
    do {
        status = protocol->listing_url(remote, folder, token, &url) ? page_count(&page, err) : error_set_memory(err);
        if (!status)
            status = http_get(remote->http, (const char *)url.data, LISTING_BYTES_MAX, &answer, &facts, err);
        if (!status)
            status = protocol->take(buffer_str(&answer), listing, &token, err);
    } while (!status && token.size);
    buffer_release(&url);
    buffer_release(&answer);
    return status;
}

/* Pages follow each other by links of the server itself. */
static reshard_status hub_list(struct remote *remote, struct listing *listing, reshard_error *err)
{
    struct buffer url = { 0 }, answer = { 0 };
    struct http_answer facts;
    const char *host = strstr(remote->place.listing, "://") + 3; /* the place has looked */
    const struct str origin = { remote->place.listing, (size_t)(host - remote->place.listing) + strcspn(host, "/") + 1 };
    unsigned page = 0;
    buffer_printf(&url, "%s?recursive=true", remote->place.listing);
    reshard_status status = buffer_append_byte(&url, '\0') ? RESHARD_OK : error_set_memory(err);
    while (!status && url.size) {
        status = page_count(&page, err);
        if (!status)
            status = http_get(remote->http, (const char *)url.data, LISTING_BYTES_MAX, &answer, &facts, err);
        if (!status)
            status = listing_take_hub(buffer_str(&answer), listing, err);
        buffer_clear(&url);
        if (!status && facts.is_next_cut)
            status = error_set(err, RESHARD_ERR_LIMIT, "the hub's list goes on at a URL of more than %d bytes", HTTP_NEXT_MAX - 1);
        if (!status && facts.next[0] && !str_begins(str_of(facts.next), origin))
            status = error_set(err, RESHARD_ERR_FORMAT, "the hub's list goes on at another server: '%s'", facts.next);
        if (!status && facts.next[0] && !(buffer_append_text(&url, facts.next) && buffer_append_byte(&url, '\0')))
            status = error_set_memory(err);
    }
    buffer_release(&url);
    buffer_release(&answer);
    return status;
}

/* Names become whole paths. */
static reshard_status page_list(struct remote *remote, const char *folder, struct listing *listing, reshard_error *err)
{
    struct buffer answer = { 0 };
    struct http_answer facts;
    char *url = object_url(remote, folder, true);
    reshard_status status = url ? http_get(remote->http, url, LISTING_BYTES_MAX, &answer, &facts, err) : error_set_memory(err);
    if (!status)
        status = listing_take_page(buffer_str(&answer), listing, err);
    for (size_t i = 0; i < listing->count && folder[0] && !status; i++) {
        listing->entries[i].name = ARENA_JOIN(&listing->arena, str_of(folder), STR("/"), listing->entries[i].name);
        if (!listing->entries[i].name.data)
            status = error_set_memory(err);
    }
    buffer_release(&answer);
    free(url);
    return status;
}

static reshard_status folder_read(struct remote *remote, struct remote_folder *folder, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    switch (remote->place.kind) {
    case REMOTE_S3:
        status = bucket_list(remote, &s3_protocol, folder->path, &folder->listing, err);
        break;
    case REMOTE_AZURE:
        status = bucket_list(remote, &azure_protocol, folder->path, &folder->listing, err);
        break;
    case REMOTE_HUB:
        status = hub_list(remote, &folder->listing, err);
        break;
    case REMOTE_HTTP:
        status = page_list(remote, folder->path, &folder->listing, err);
    }
    if (!status)
        listing_sort(&folder->listing);
    return status;
}

static void folder_free(struct remote_folder *folder)
{
    if (!folder)
        return;
    listing_release(&folder->listing);
    free(folder->absence);
    free(folder->path);
    free(folder);
}

/* What the server says of a folder that is not there holds from then on. */
static reshard_status absence_keep(struct remote_folder *folder, reshard_error *err)
{
    folder->absence = malloc(sizeof(*err));
    if (!folder->absence)
        return error_set_memory(err);
    *folder->absence = *err;
    return RESHARD_OK;
}

static reshard_status folder_answer(const struct remote_folder *folder, reshard_error *err)
{
    if (!folder->absence)
        return RESHARD_OK;
    *err = *folder->absence;
    return RESHARD_ERR_IO;
}

/* The folder's listing, of the hub that of all; call with the lock held. What is not there is remembered, too; what failed is not. */
static reshard_status folder_need(struct remote *remote, const char *path, struct remote_folder **out, reshard_error *err)
{
    if (remote->place.kind == REMOTE_HUB)
        path = "";
    for (*out = remote->folders; *out; *out = (*out)->next)
        if (strcmp((*out)->path, path) == 0)
            return folder_answer(*out, err);
    struct remote_folder *folder = calloc(1, sizeof(*folder));
    if (folder)
        folder->path = strdup(path);
    reshard_status status = folder && folder->path ? folder_read(remote, folder, err) : error_set_memory(err);
    if (status == RESHARD_ERR_IO && err->sys_errno == ENOENT)
        status = absence_keep(folder, err);
    if (status) {
        folder_free(folder);
        return status;
    }
    folder->next = remote->folders;
    *out = remote->folders = folder;
    return folder_answer(folder, err);
}

/* ---- what lies at a path ---- */

static bool has_buckets(const struct remote *remote)
{
    return remote->place.kind == REMOTE_S3 || remote->place.kind == REMOTE_AZURE;
}

static void found_take(const struct http_answer *answer, struct found *out)
{
    *out = (struct found){ .is_there = true, .is_folder = answer->is_folder, .bytes = answer->bytes };
    memcpy(out->etag, answer->etag, sizeof(out->etag));
}

/* That of a path, new if need be; call with the lock of files held. NULL without memory. */
static struct remote_file *file_need(struct remote *remote, const char *path)
{
    uint32_t number = name_map_find(&remote->paths, str_of(path));
    if (number != NAME_NONE)
        return remote->files[number];
    struct remote_file *file = ARRAY_ROOM(remote->files, remote->paths.count, remote->files_capacity) ? calloc(1, sizeof(*file)) : NULL;
    number = file ? name_map_intern(&remote->paths, str_of(path), NULL) : NAME_NONE;
    if (number == NAME_NONE) {
        free(file);
        return NULL;
    }
    return remote->files[number] = file;
}

static bool look_find(struct remote *remote, const char *path, struct found *out)
{
    pthread_mutex_lock(&remote->file_lock);
    const uint32_t number = name_map_find(&remote->paths, str_of(path));
    const bool is_looked = number != NAME_NONE && remote->files[number]->is_looked;
    if (is_looked)
        *out = remote->files[number]->found;
    pthread_mutex_unlock(&remote->file_lock);
    return is_looked;
}

static reshard_status look_keep(struct remote *remote, const char *path, const struct found *found, reshard_error *err)
{
    pthread_mutex_lock(&remote->file_lock);
    struct remote_file *file = file_need(remote, path);
    if (file) {
        file->is_looked = true;
        file->found = *found;
    }
    pthread_mutex_unlock(&remote->file_lock);
    return file ? RESHARD_OK : error_set_memory(err);
}

/* Files beside the one that was asked for are asked for by formats alone. To these some servers say that the request is wrong, rather than
 * that nothing is there: what was signed is the one file. */
static bool is_refused_guess(const struct remote *remote, const char *path, long code)
{
    const bool is_guess = remote->place.kind == REMOTE_HTTP && !remote->place.is_folder && strcmp(path, remote->place.path) != 0;
    return is_guess && (code == 400 || code == 405 || code == 409);
}

/* A file by itself. */
static reshard_status file_look(struct remote *remote, const char *path, struct found *out, reshard_error *err)
{
    struct http_answer answer = { .code = 0 };
    if (look_find(remote, path, out))
        return RESHARD_OK;
    char *url = object_url(remote, path, false);
    reshard_status status = url ? http_look(remote->http, url, &answer, err) : error_set_memory(err);
    free(url);
    *out = (struct found){ .is_there = false };
    if (!status)
        found_take(&answer, out);
    const bool is_absent = status == RESHARD_ERR_IO && (err->sys_errno == ENOENT || is_refused_guess(remote, path, answer.code));
    if (status && !is_absent)
        return status;
    return look_keep(remote, path, out, err);
}

/* By the listing of the folder that it lies in. */
static reshard_status listed_look(struct remote *remote, const char *path, struct found *out, reshard_error *err)
{
    const char *slash = strrchr(path, '/');
    char *parent = strndup(path, slash ? (size_t)(slash - path) : 0);
    struct remote_folder *folder = NULL;
    struct listing_entry *entry = NULL;
    *out = (struct found){ .is_there = false };
    pthread_mutex_lock(&remote->lock);
    reshard_status status = parent ? folder_need(remote, parent, &folder, err) : error_set_memory(err);
    if (!status)
        entry = (struct listing_entry *)(uintptr_t)listing_find(&folder->listing, str_of(path));
    if (entry) {
        *out = (struct found){ true, entry->is_folder, entry->bytes, "" };
        if (entry->etag.size < sizeof(out->etag))
            memcpy(out->etag, entry->etag.data ? entry->etag.data : "", entry->etag.size);
    }
    const bool is_measured = !entry || entry->is_folder || entry->has_bytes;
    pthread_mutex_unlock(&remote->lock);
    free(parent);
    if (status == RESHARD_ERR_IO && err->sys_errno == EACCES && has_buckets(remote)) {
        *err = (reshard_error)RESHARD_ERROR_INIT;
        return file_look(remote, path, out, err); /* who may not list may read, perhaps */
    }
    return is_measured || status ? status : file_look(remote, path, out, err);
}

/* In a file there is nothing. */
static bool lies_below(const char *path, const char *file)
{
    const size_t size = strlen(file);
    return strncmp(path, file, size) == 0 && path[size] == '/';
}

static reshard_status remote_find(struct remote *remote, const char *path, struct found *out, reshard_error *err)
{
    if (remote->names_file && lies_below(path, remote->place.path)) {
        *out = (struct found){ .is_there = false };
        return RESHARD_OK;
    }
    if (remote->place.kind == REMOTE_HTTP && !remote->place.is_folder)
        return file_look(remote, path, out, err);
    if (!path[0] || (remote->place.kind == REMOTE_HTTP && strcmp(path, remote->place.path) == 0)) {
        *out = (struct found){ .is_there = true, .is_folder = true };
        return RESHARD_OK;
    }
    return listed_look(remote, path, out, err);
}

static int remote_look(const char *path, int *is_folder, uint64_t *bytes, uint64_t *version, void *context)
{
    struct remote *remote = context;
    struct found found;
    reshard_status status = remote_find(remote, path, &found, said_new());
    if (status)
        return say(status);
    if (!found.is_there)
        return say_missing();
    *is_folder = found.is_folder;
    *bytes = found.bytes;
    *version = found.etag[0] ? hash64(found.etag, strlen(found.etag), 1) : 0;
    return 0;
}

/* The name in the folder of what lies right in it; of the hub's list, which has all, of nothing else. */
static bool name_in_folder(const struct listing_entry *entry, struct str folder, struct str *name)
{
    const size_t prefix = folder.size ? folder.size + 1 : 0;
    size_t slash;
    if (entry->name.size <= prefix || (prefix && (!str_begins(entry->name, folder) || entry->name.data[folder.size] != '/')))
        return false;
    *name = (struct str){ entry->name.data + prefix, entry->name.size - prefix };
    return !str_find_char(*name, '/', &slash) && !store_name_check(*name, NULL);
}

/* Sizes of what a page only links to are asked for one by one. */
static reshard_status entry_measure(struct remote *remote, struct listing_entry *entry, reshard_error *err)
{
    struct found found;
    if (entry->is_folder || entry->has_bytes)
        return RESHARD_OK;
    char *path = str_copy(entry->name);
    reshard_status status = path ? file_look(remote, path, &found, err) : error_set_memory(err);
    free(path);
    if (!status && found.is_there) {
        entry->has_bytes = true;
        entry->is_folder = found.is_folder;
        entry->bytes = found.bytes;
    }
    return status;
}

static int remote_list(const char *path, store_calls_sink sink, void *sink_context, void *context)
{
    struct remote *remote = context;
    struct remote_folder *folder;
    struct str name;
    int number = 0;
    pthread_mutex_lock(&remote->lock);
    reshard_status status = folder_need(remote, path, &folder, said_new());
    for (size_t i = 0; !status && !number && i < folder->listing.count; i++) {
        struct listing_entry *entry = &folder->listing.entries[i];
        if (!name_in_folder(entry, str_of(path), &name))
            continue;
        status = entry_measure(remote, entry, &said);
        if (!status && (entry->is_folder || entry->has_bytes))
            number = sink(name.data, name.size, entry->is_folder, entry->bytes, sink_context);
    }
    pthread_mutex_unlock(&remote->lock);
    return status ? say(status) : number;
}

/* ---- objects ---- */

static int remote_close(void *context, void *store)
{
    struct remote_object *object = context;
    (void)store;
    free(object->url);
    free(object);
    return 0;
}

/* The file of a path whose version begins as a listing has it. NULL without memory. */
static struct remote_file *file_begin(struct remote *remote, const char *path, const char *etag)
{
    pthread_mutex_lock(&remote->file_lock);
    struct remote_file *file = file_need(remote, path);
    if (file && !file->etag[0])
        memcpy(file->etag, etag, HTTP_ETAG_MAX);
    pthread_mutex_unlock(&remote->file_lock);
    return file;
}

static int remote_open(const char *path, void **out, uint64_t *bytes, void *context)
{
    struct remote *remote = context;
    struct found found;
    reshard_status status = remote_find(remote, path, &found, said_new());
    if (status)
        return say(status);
    if (!found.is_there || found.is_folder)
        return say_missing();
    struct remote_object *object = calloc(1, sizeof(*object));
    if (!object || !(object->url = object_url(remote, path, false))) {
        free(object);
        return say(error_set_memory(&said));
    }
    object->remote = remote;
    object->number = hash64(path, strlen(path), remote->seed) | 1;
    object->bytes = found.bytes;
    object->file = file_begin(remote, path, found.etag);
    if (!object->file) {
        remote_close(object, NULL);
        return say(error_set_memory(&said));
    }
    *out = object;
    *bytes = found.bytes;
    return 0;
}

/* Whether an answer is of the version that was seen first; the first that says one is. */
static bool version_agrees(struct remote_object *object, const struct http_answer *answer)
{
    struct remote_file *file = object->file;
    pthread_mutex_lock(&object->remote->file_lock);
    if (!file->etag[0])
        memcpy(file->etag, answer->etag, sizeof(file->etag));
    const bool agrees = !answer->etag[0] || strcmp(file->etag, answer->etag) == 0;
    pthread_mutex_unlock(&object->remote->file_lock);
    return agrees && (!answer->has_bytes || answer->bytes == object->bytes);
}

static reshard_status object_get(struct remote_object *object, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    struct http_answer answer = { .code = 0 };
    char etag[HTTP_ETAG_MAX];
    pthread_mutex_lock(&object->remote->file_lock);
    memcpy(etag, object->file->etag, sizeof(etag));
    pthread_mutex_unlock(&object->remote->file_lock);
    reshard_status status = http_get_range(object->remote->http, object->url, etag, offset, out, size, object->bytes, &answer, err);
    if (!status && !version_agrees(object, &answer)) {
        status = error_set(err, RESHARD_ERR_IO, "it is another file than before");
        error_hint(err, "it has been replaced since it was opened: open it again");
    }
    return status;
}

/* Little at a time comes out of blocks. */
static reshard_status object_read_block(struct remote_object *object, uint64_t offset, void *out, size_t *size, reshard_error *err)
{
    const uint64_t number = offset / BLOCK_BYTES, begin = number * BLOCK_BYTES;
    const size_t at = (size_t)(offset - begin);
    const size_t whole = object->bytes - begin < BLOCK_BYTES ? (size_t)(object->bytes - begin) : BLOCK_BYTES;
    if (*size > whole - at)
        *size = whole - at;
    if (block_cache_get(&object->remote->cache, object->number, number, at, out, *size))
        return RESHARD_OK;
    uint8_t *block = malloc(whole);
    reshard_status status = block ? object_get(object, begin, block, whole, err) : error_set_memory(err);
    if (!status) {
        memcpy(out, block + at, *size);
        block_cache_put(&object->remote->cache, object->number, number, block, whole);
    }
    free(block);
    return status;
}

static int remote_read_at(void *context, uint64_t offset, void *out, size_t size, size_t *done, void *store)
{
    struct remote_object *object = context;
    reshard_error *err = said_new();
    (void)store;
    *done = size;
    if (offset >= object->bytes || size > object->bytes - offset)
        return say(error_set(err, RESHARD_ERR_FORMAT, "%zu bytes at %" PRIu64 " of %" PRIu64, size, offset, object->bytes));
    return say(size < BLOCK_BYTES ? object_read_block(object, offset, out, done, err) : object_get(object, offset, out, size, err));
}

/* ---- stores ---- */

static void remote_release(void *context)
{
    struct remote *remote = context;
    for (uint32_t i = 0; i < remote->paths.count; i++)
        free(remote->files[i]);
    free(remote->files);
    name_map_release(&remote->paths);
    while (remote->folders) {
        struct remote_folder *next = remote->folders->next;
        folder_free(remote->folders);
        remote->folders = next;
    }
    http_free(remote->http);
    block_cache_release(&remote->cache);
    pthread_mutex_destroy(&remote->lock);
    pthread_mutex_destroy(&remote->file_lock);
    remote_place_release(&remote->place);
    free(remote);
}

static reshard_status remote_new(const char *url, struct remote **out, reshard_error *err)
{
    struct remote *remote = calloc(1, sizeof(*remote));
    if (!remote)
        return error_set_memory(err);
    if (!block_cache_init(&remote->cache) || pthread_mutex_init(&remote->lock, NULL) || pthread_mutex_init(&remote->file_lock, NULL)) {
        free(remote);
        return error_set_memory(err);
    }
    remote->seed = hash_table_seed();
    reshard_status status = remote_place_of(url, &remote->place, err);
    if (!status)
        status = http_new(&remote->place.identity, &remote->http, err);
    if (status)
        remote_release(remote);
    else
        *out = remote;
    return status;
}

/* A branch of a hub moves while it is read, and is asked for by the commit that it is now. */
static reshard_status hub_pin(struct remote *remote, reshard_error *err)
{
    struct buffer answer = { 0 }, commit = { 0 };
    struct http_answer facts;
    reshard_status status = http_get(remote->http, remote->place.revision, LISTING_BYTES_MAX, &answer, &facts, err);
    if (!status)
        status = listing_take_commit(buffer_str(&answer), &commit, err);
    if (!status)
        status = remote_place_pin(&remote->place, buffer_str(&commit), err);
    buffer_release(&answer);
    buffer_release(&commit);
    return status;
}

/* Of a folder whose '/' at the end was left out, web servers send on to its page. */
static reshard_status folder_recognise(struct remote *remote, reshard_error *err)
{
    struct found found;
    reshard_status status = file_look(remote, remote->place.path, &found, err);
    if (!status)
        remote->place.is_folder = found.is_folder;
    return status;
}

/* A bucket or a repository that is not there ends the run before formats look for their files in it. */
static reshard_status root_check(struct remote *remote, reshard_error *err)
{
    struct remote_folder *folder;
    pthread_mutex_lock(&remote->lock);
    reshard_status status = folder_need(remote, "", &folder, err);
    pthread_mutex_unlock(&remote->lock);
    if (status == RESHARD_ERR_IO && err->sys_errno == EACCES && has_buckets(remote)) {
        *err = (reshard_error)RESHARD_ERROR_INIT; /* who may not list may read, perhaps */
        return RESHARD_OK;
    }
    return status;
}

/* What has to be known of the place before it is a store. */
static reshard_status place_prepare(struct remote *remote, reshard_error *err)
{
    const struct remote_place *place = &remote->place;
    reshard_error own = RESHARD_ERROR_INIT;
    reshard_status status = place->revision ? hub_pin(remote, &own) : RESHARD_OK;
    if (!status && place->kind == REMOTE_HTTP && !place->is_folder)
        status = folder_recognise(remote, &own);
    if (!status && place->kind != REMOTE_HTTP && !place->path[0])
        status = root_check(remote, &own);
    if (!status)
        return RESHARD_OK;
    if (err)
        *err = own;
    error_prefix(err, "cannot look at '%s/%s'", place->name, place->path); /* a URL may hold secrets */
    return status;
}

reshard_status remote_open_path(const char *path, unsigned flags, struct store **out, char **file_name, reshard_error *err)
{
    struct remote *remote = NULL;
    char *name = NULL;
    if (!store_path_is_url(path))
        return store_open_path(path, flags, out, file_name, err);
    reshard_status status = remote_new(path, &remote, err);
    if (status)
        return status;
    status = place_prepare(remote, err);
    if (status) {
        remote_release(remote);
        return status;
    }
    const struct store_calls calls = { .name = remote->place.name,
                                       .context = remote,
                                       .look = remote_look,
                                       .list = remote_list,
                                       .open = remote_open,
                                       .read_at = remote_read_at,
                                       .close = remote_close,
                                       .tell = remote_tell,
                                       .release = remote_release };
    status = store_open_calls(&calls, remote->place.path, out, &name, err);
    if (status) {
        remote_release(remote);
        return status;
    }
    remote->names_file = name[0] != '\0';
    if (file_name)
        *file_name = name;
    else
        free(name);
    return RESHARD_OK;
}
