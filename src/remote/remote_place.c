/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/remote_place.h"

#include "remote/environment.h"
#include "remote/listing.h"
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define HUB "https://huggingface.co"

/* Of Amazon's. */
static const char *remote_region(void)
{
    const char *region = environment_text("AWS_REGION");
    if (!region)
        region = environment_text("AWS_DEFAULT_REGION");
    return region ? region : "us-east-1";
}

/* ---- encoding ---- */

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
}

void url_encode(struct str text, bool keeps_slashes, struct buffer *out)
{
    for (size_t i = 0; i < text.size; i++) {
        if (is_plain(text.data[i]) || (keeps_slashes && text.data[i] == '/'))
            buffer_append_byte(out, (uint8_t)text.data[i]);
        else
            buffer_printf(out, "%%%02X", (unsigned)(uint8_t)text.data[i]);
    }
}

bool url_decode(struct str text, bool plus_is_space, struct buffer *out)
{
    for (size_t i = 0; i < text.size; i++) {
        char c = text.data[i];
        if (c == '%') {
            uint64_t byte;
            if (!str_hex_at(text, i + 1, 2, &byte))
                return false;
            c = (char)byte;
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        buffer_append_byte(out, (uint8_t)c);
    }
    return true;
}

/* ---- parts of URLs ---- */

static reshard_status bad_url(const char *url, const char *complaint, reshard_error *err)
{
    char shown[STORE_SHOWN_MAX];
    return error_set(err, RESHARD_ERR_USAGE, "'%s' %s", store_path_shown(url, shown), complaint);
}

/* The text of a buffer, which is empty then; NULL without memory. */
static char *buffer_text(struct buffer *buffer)
{
    char *text = buffer_append_byte(buffer, '\0') ? (char *)buffer->data : NULL;
    if (!text)
        buffer_release(buffer);
    *buffer = (struct buffer){ 0 };
    return text;
}

static char *joined(const struct str *parts, size_t count)
{
    struct buffer text = { 0 };
    for (size_t i = 0; i < count; i++)
        buffer_append_str(&text, parts[i]);
    return buffer_text(&text);
}
#define JOINED(...) joined((const struct str[]){ __VA_ARGS__ }, sizeof((const struct str[]){ __VA_ARGS__ }) / sizeof(struct str))

/* As a browser sends it: what is encoded stays so, and so does what need not be. */
static void path_encode(struct str path, struct buffer *out)
{
    for (size_t i = 0; i < path.size; i++) {
        const struct str character = { path.data + i, 1 };
        if (strchr("%!$&'()*+,;=:@", path.data[i]))
            buffer_append_str(out, character);
        else
            url_encode(character, true, out);
    }
}

/* Decodes a path, and takes '/' from its ends. */
static reshard_status path_take(const char *url, struct str path, bool is_encoded, struct remote_place *out, reshard_error *err)
{
    struct buffer decoded = { 0 }, encoded = { 0 };
    out->is_folder = !path.size || path.data[path.size - 1] == '/';
    while (path.size && path.data[0] == '/')
        path = (struct str){ path.data + 1, path.size - 1 };
    while (path.size && path.data[path.size - 1] == '/')
        path.size--;
    bool is_good = is_encoded ? url_decode(path, false, &decoded) : buffer_append_str(&decoded, path);
    reshard_status status = is_good || decoded.failed ? RESHARD_OK : bad_url(url, "has a '%' that is no code of a character", err);
    if (!status && decoded.size)
        status = store_name_check(buffer_str(&decoded), err);
    if (status) {
        buffer_release(&decoded);
        return status == RESHARD_ERR_FORMAT ? RESHARD_ERR_USAGE : status;
    }
    if (is_encoded)
        path_encode(path, &encoded);
    else
        url_encode(path, true, &encoded);
    out->path = buffer_text(&decoded);
    out->encoded = buffer_text(&encoded);
    return out->path && out->encoded ? RESHARD_OK : error_set_memory(err);
}

static reshard_status remote_place_check(const struct remote_place *place, reshard_error *err)
{
    return place->name && place->base && place->path && place->query ? RESHARD_OK : error_set_memory(err);
}

/* Splits at the first of the characters; *rest begins with it, or is empty. */
static struct str part_before(struct str text, const char *characters, struct str *rest)
{
    size_t at = 0;
    while (at < text.size && !strchr(characters, text.data[at]))
        at++;
    *rest = (struct str){ text.data + at, text.size - at };
    return (struct str){ text.data, at };
}

/* The server that a variable of the environment names, without '/' at its end; otherwise that one. */
static reshard_status endpoint_of(const char *variable, const char *otherwise, struct str *out, reshard_error *err)
{
    const char *given = environment_text(variable);
    *out = str_of(otherwise);
    return given ? environment_server(variable, given, out, err) : RESHARD_OK;
}

/* ---- kinds ---- */

static reshard_status http_place(const char *url, struct remote_place *out, reshard_error *err)
{
    out->identity.variables = "~/.netrc";
    struct str all = str_of(url), rest, query, fragment;
    size_t scheme = (size_t)(strstr(url, "://") - url) + 3;
    struct str host = part_before((struct str){ url + scheme, all.size - scheme }, "/?#", &rest);
    struct str path = part_before(rest, "?#", &query);
    query = part_before(query, "#", &fragment);
    if (!host.size)
        return bad_url(url, "names no server", err);
    size_t at = host.size;
    while (at && host.data[at - 1] != '@')
        at--;
    out->name = JOINED({ url, scheme }, { host.data + at, host.size - at });
    out->base = JOINED({ url, scheme }, host, STR("/"));
    out->query = str_copy(query);
    reshard_status status = path_take(url, path, true, out, err);
    return status ? status : remote_place_check(out, err);
}

bool remote_is_bucket(struct str name)
{
    for (size_t i = 0; i < name.size; i++)
        if (!is_plain(name.data[i]) || name.data[i] == '~')
            return false;
    return name.size >= 3 && name.size <= 255;
}

/* Object stores that speak S3's protocol, and the variables that say who asks. */
struct bucket_store {
    const char *scheme;
    const char *complaint;
    const char *endpoints[2]; /* the first that is set counts */
    const char *server;       /* "": Amazon's servers, of buckets and regions */
    const char *bearer, *key, *secret, *session;
    const char *variables; /* for messages */
};

static const struct bucket_store amazon = { .scheme = "s3://",
                                            .complaint = "names no bucket: s3://BUCKET/KEY",
                                            .endpoints = { "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL" },
                                            .server = "",
                                            .key = "AWS_ACCESS_KEY_ID",
                                            .secret = "AWS_SECRET_ACCESS_KEY",
                                            .session = "AWS_SESSION_TOKEN",
                                            .variables = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (of a profile or a role: aws "
                                                         "configure export-credentials --format env)" };

static const struct bucket_store google = {
    .scheme = "gs://",
    .complaint = "names no bucket: gs://BUCKET/KEY",
    .endpoints = { "STORAGE_EMULATOR_HOST" },
    .server = "https://storage.googleapis.com",
    .bearer = "GOOGLE_OAUTH_ACCESS_TOKEN",
    .key = "GS_ACCESS_KEY_ID",
    .secret = "GS_SECRET_ACCESS_KEY",
    .variables = "GOOGLE_OAUTH_ACCESS_TOKEN (gcloud auth print-access-token), or GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY"
};

/* A token goes before keys. */
static struct http_identity bucket_identity(const struct bucket_store *store)
{
    struct http_identity identity = { .bearer = environment_text(store->bearer), .variables = store->variables };
    if (!identity.bearer) {
        identity.key = environment_text(store->key);
        identity.secret = environment_text(store->secret);
        identity.session = environment_text(store->session);
    }
    if (!store->server[0])
        identity.region = remote_region();
    return identity;
}

/* A bucket with dots has no certificate of its own, and what is no Amazon need not have names of buckets. */
static reshard_status bucket_place(const char *url, const struct bucket_store *store, struct remote_place *out, reshard_error *err)
{
    const size_t begin = strlen(store->scheme);
    struct str key, bucket = part_before((struct str){ url + begin, strlen(url) - begin }, "/", &key);
    size_t dot;
    struct str server;
    const struct str region = str_of(remote_region());
    reshard_status status = endpoint_of(store->endpoints[!environment_text(store->endpoints[0])], store->server, &server, err);
    if (status)
        return status;
    if (!remote_is_bucket(bucket))
        return bad_url(url, store->complaint, err);
    out->identity = bucket_identity(store);
    out->name = JOINED(str_of(store->scheme), bucket);
    const struct str domain = str_starts_with(region, "cn-") ? STR(".amazonaws.com.cn/") : STR(".amazonaws.com/");
    if (server.size)
        out->base = JOINED(server, STR("/"), bucket, STR("/"));
    else if (str_find_char(bucket, '.', &dot))
        out->base = JOINED(STR("https://s3."), region, domain, bucket, STR("/"));
    else
        out->base = JOINED(STR("https://"), bucket, STR(".s3."), region, domain);
    out->listing = out->base ? strdup(out->base) : NULL;
    out->query = strdup("");
    status = path_take(url, key, false, out, err);
    return status ? status : out->listing ? remote_place_check(out, err) : error_set_memory(err);
}

static reshard_status azure_place(const char *url, struct remote_place *out, reshard_error *err)
{
    struct str key, container = part_before((struct str){ url + 5, strlen(url) - 5 }, "/", &key);
    reshard_status status = azure_account_find(&out->azure, err);
    if (status)
        return status;
    if (!remote_is_bucket(container))
        return bad_url(url, "names no container: az://CONTAINER/BLOB", err);
    out->name = JOINED(STR("az://"), container);
    out->identity =
        (struct http_identity){ .protocol = HTTP_AZURE,
                                .key = out->azure.key ? out->azure.name : NULL,
                                .secret = out->azure.key,
                                .token = out->azure.token,
                                .variables = "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or " AZURE_CONNECTION };
    out->listing = JOINED(str_of(out->azure.server), STR("/"), container);
    out->base = out->listing ? JOINED(str_of(out->listing), STR("/")) : NULL;
    out->query = strdup("");
    status = path_take(url, key, false, out, err);
    return status ? status : remote_place_check(out, err);
}

/* A revision ends at a '/', but for the names that a hub gives to what is proposed and converted. *path begins with that, or is empty. */
static struct str revision_take(struct str text, struct str *path)
{
    struct str last, revision = part_before(text, "/", path);
    const bool is_proposal = str_starts_with(text, "refs/pr/"), is_special = is_proposal || str_starts_with(text, "refs/convert/");
    const size_t prefix = is_proposal ? strlen("refs/pr/") : strlen("refs/convert/");
    if (!is_special || text.size == prefix || text.data[prefix] == '/')
        return revision;
    last = part_before((struct str){ text.data + prefix, text.size - prefix }, "/", path);
    return (struct str){ text.data, prefix + last.size };
}

/* Names are written as they are; "%2F" alone is a '/' of a revision, which would end it. */
static bool revision_decode(struct str given, struct buffer *out)
{
    while (given.size) {
        const bool is_slash = str_starts_with(given, "%2F") || str_starts_with(given, "%2f");
        const size_t taken = is_slash ? 3 : 1;
        buffer_append_byte(out, is_slash ? '/' : (uint8_t)given.data[0]);
        given = (struct str){ given.data + taken, given.size - taken };
    }
    return !store_name_check(buffer_str(out), NULL);
}

/* Where the repository is asked for files and for their list; revision is encoded. */
static reshard_status hub_urls(struct remote_place *out, struct str revision, reshard_error *err)
{
    const struct str server = str_of(out->server), repository = str_of(out->repository);
    free(out->base);
    free(out->listing);
    out->base = JOINED(server, STR("/"), repository, STR("/resolve/"), revision, STR("/"));
    out->listing = JOINED(server, STR("/api/models/"), repository, STR("/tree/"), revision);
    return out->base && out->listing ? RESHARD_OK : error_set_memory(err);
}

reshard_status remote_place_pin(struct remote_place *place, struct str commit, reshard_error *err)
{
    return hub_urls(place, commit, err);
}

/* All but the path. */
static reshard_status hub_repository(struct str org, struct str name, struct str revision, struct remote_place *out, reshard_error *err)
{
    struct buffer repository = { 0 }, encoded = { 0 };
    struct str server;
    reshard_status status = endpoint_of("HF_ENDPOINT", HUB, &server, err);
    if (status)
        return status;
    out->identity = (struct http_identity){ .bearer = environment_text("HF_TOKEN"), .variables = "HF_TOKEN" };
    url_encode(org, false, &repository);
    buffer_append_byte(&repository, '/');
    url_encode(name, false, &repository);
    url_encode(revision, false, &encoded);
    out->server = str_copy(server);
    out->repository = buffer_text(&repository);
    status = out->server && out->repository && !encoded.failed ? hub_urls(out, buffer_str(&encoded), err) : error_set_memory(err);
    if (!status && !listing_is_commit(revision)) {
        out->revision = JOINED(server, STR("/api/models/"), str_of(out->repository), STR("/revision/"), buffer_str(&encoded));
        status = out->revision ? RESHARD_OK : error_set_memory(err);
    }
    buffer_release(&encoded);
    return status;
}

static reshard_status hub_place(const char *url, struct remote_place *out, reshard_error *err)
{
    struct str rest, path, org = part_before((struct str){ url + 5, strlen(url) - 5 }, "/", &rest);
    struct str name = rest.size ? (struct str){ rest.data + 1, rest.size - 1 } : rest, given = STR("main");
    struct buffer revision = { 0 };
    name = part_before(name, "/@", &path);
    if (str_starts_with(path, "@"))
        given = revision_take((struct str){ path.data + 1, path.size - 1 }, &path);
    const bool is_good = org.size && name.size && given.size && !store_name_check(org, NULL) && !store_name_check(name, NULL) &&
                         revision_decode(given, &revision);
    reshard_status status = RESHARD_OK;
    if (revision.failed)
        status = error_set_memory(err);
    else if (!is_good)
        status = bad_url(url, "names no repository: hf://ORG/REPO, hf://ORG/REPO@REVISION/PATH", err);
    if (!status)
        status = hub_repository(org, name, buffer_str(&revision), out, err);
    buffer_release(&revision);
    if (status)
        return status;
    out->name = JOINED(STR("hf://"), org, STR("/"), name, STR("@"), given);
    out->query = strdup("");
    status = path_take(url, path, false, out, err);
    return status ? status : remote_place_check(out, err);
}

static reshard_status amazon_place(const char *url, struct remote_place *out, reshard_error *err)
{
    return bucket_place(url, &amazon, out, err);
}

static reshard_status google_place(const char *url, struct remote_place *out, reshard_error *err)
{
    return bucket_place(url, &google, out, err);
}

static const struct scheme {
    const char *prefix;
    enum remote_kind kind;
    reshard_status (*place)(const char *url, struct remote_place *out, reshard_error *err);
} schemes[] = { { "https://", REMOTE_HTTP, http_place },
                { "http://", REMOTE_HTTP, http_place },
                { "s3://", REMOTE_S3, amazon_place },
                { "gs://", REMOTE_S3, google_place },
                { "az://", REMOTE_AZURE, azure_place },
                { "hf://", REMOTE_HUB, hub_place } };

reshard_status remote_place_of(const char *url, struct remote_place *out, reshard_error *err)
{
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        *out = (struct remote_place){ .kind = schemes[i].kind };
        if (strncasecmp(url, schemes[i].prefix, strlen(schemes[i].prefix)) == 0)
            return schemes[i].place(url, out, err);
    }
    char shown[STORE_SHOWN_MAX];
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s' is a URL of a kind that is not known", store_path_shown(url, shown));
    error_hint(err, "https://…, s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/BLOB and hf://ORG/REPO are");
    return RESHARD_ERR_UNSUPPORTED;
}

void remote_place_release(struct remote_place *place)
{
    free(place->name);
    free(place->base);
    free(place->listing);
    free(place->server);
    free(place->repository);
    free(place->revision);
    free(place->path);
    free(place->encoded);
    free(place->query);
    azure_account_release(&place->azure);
    *place = (struct remote_place){ 0 };
}
