/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/http.h"

#include "base/library.h"
#include "base/waiting.h"
#include "remote/azure_sign.h"
#include "remote/listing.h"

#if RESHARD_WITH_CURL
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define IDLE_MAX 64
#define TRIES 5
#define FIRST_PAUSE_MS 100 /* three times as long each time */
#define CONNECT_SECONDS 30L
#define SILENT_SECONDS 60L
#define REDIRECTS 8L
#define SAID_MAX 2000      /* bytes that are kept of what a server says of an error */

static struct curl_functions {
    __typeof__(&curl_global_init) global_init;
    __typeof__(&curl_easy_init) easy_init;
    __typeof__(&curl_easy_reset) easy_reset;
    __typeof__(&curl_easy_cleanup) easy_cleanup;
    CURLcode (*easy_setopt)(CURL *handle, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *handle, CURLINFO info, ...);
    __typeof__(&curl_easy_perform) easy_perform;
    __typeof__(&curl_easy_strerror) easy_strerror;
    __typeof__(&curl_slist_append) slist_append;
    __typeof__(&curl_slist_free_all) slist_free_all;
} curl;
static const struct library_symbol curl_symbols[] = { { "curl_global_init", &curl.global_init },
                                                      { "curl_easy_init", &curl.easy_init },
                                                      { "curl_easy_reset", &curl.easy_reset },
                                                      { "curl_easy_cleanup", &curl.easy_cleanup },
                                                      { "curl_easy_setopt", &curl.easy_setopt },
                                                      { "curl_easy_getinfo", &curl.easy_getinfo },
                                                      { "curl_easy_perform", &curl.easy_perform },
                                                      { "curl_easy_strerror", &curl.easy_strerror },
                                                      { "curl_slist_append", &curl.slist_append },
                                                      { "curl_slist_free_all", &curl.slist_free_all } };
static pthread_mutex_t curl_lock = PTHREAD_MUTEX_INITIALIZER;
static bool curl_is_loaded;

static reshard_status curl_need(reshard_error *err)
{
    static const struct library library = { "libcurl.so.4", "URLs need", "install libcurl (Debian: libcurl4)", curl_symbols,
                                            sizeof(curl_symbols) / sizeof(*curl_symbols) };
    pthread_mutex_lock(&curl_lock);
    reshard_status status = curl_is_loaded ? RESHARD_OK : library_load(&library, err);
    if (!status && !curl_is_loaded && curl.global_init(CURL_GLOBAL_DEFAULT))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "URLs need %s, which does not begin its work", library.file);
    curl_is_loaded = !status;
    pthread_mutex_unlock(&curl_lock);
    return status;
}

struct http {
    struct http_identity identity;
    pthread_mutex_t lock; /* of the idle ones */
    CURL *idle[IDLE_MAX];
    size_t idle_count;
    atomic_bool has_answered; /* some server, at least once */
};

/* Those that are copied. */
#define IDENTITY_TEXTS(http) \
    { \
        &(http)->identity.bearer, &(http)->identity.key, &(http)->identity.secret, &(http)->identity.session, &(http)->identity.token, \
            &(http)->identity.region \
    }

static char *copy_or_null(const char *text, bool *is_good)
{
    char *copy = text ? strdup(text) : NULL;
    *is_good = *is_good && (copy || !text);
    return copy;
}

reshard_status http_new(const struct http_identity *identity, struct http **out, reshard_error *err)
{
    reshard_status status = curl_need(err);
    if (status)
        return status;
    struct http *http = calloc(1, sizeof(*http));
    if (!http || pthread_mutex_init(&http->lock, NULL)) {
        free(http);
        return error_set_memory(err);
    }
    bool is_good = true;
    http->identity = *identity;
    const char **texts[] = IDENTITY_TEXTS(http);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        *texts[i] = copy_or_null(*texts[i], &is_good);
    *out = http;
    if (is_good)
        return RESHARD_OK;
    http_free(http);
    return error_set_memory(err);
}

void http_free(struct http *http)
{
    if (!http)
        return;
    for (size_t i = 0; i < http->idle_count; i++)
        curl.easy_cleanup(http->idle[i]);
    pthread_mutex_destroy(&http->lock);
    const char **texts[] = IDENTITY_TEXTS(http);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        free((void *)(uintptr_t)*texts[i]);
    free(http);
}

/* ---- one request ---- */

struct request {
    struct http *http;
    const char *url, *etag;
    uint64_t offset, whole;   /* whole: bytes of the object, 0: not known */
    uint8_t *out;             /* NULL: all goes to body */
    size_t size, got;
    struct buffer *body;
    size_t bytes_max;         /* of body */
    struct http_answer *answer;
    char said[SAID_MAX + 1];  /* the body of an error */
    size_t said_size;
    uint64_t first;           /* of the range that comes */
    long retry_after;         /* seconds; 0: nothing is said */
    char region[64];          /* where the bucket is */
    const char *complaint;    /* why the transfer was ended here */
};

static bool header_is(const char *line, size_t size, const char *name, const char **value, size_t *value_size)
{
    const size_t length = strlen(name);
    if (size <= length || line[length] != ':' || strncasecmp(line, name, length) != 0)
        return false;
    const char *at = line + length + 1, *end = line + size;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    *value = at;
    *value_size = (size_t)(end - at);
    return true;
}

static void header_keep(const char *value, size_t size, char *out, size_t room)
{
    if (size >= room)
        size = 0;
    memcpy(out, value, size);
    out[size] = '\0';
}

/* "bytes FIRST-LAST/TOTAL", "bytes * /TOTAL". */
static void content_range_take(struct request *request, struct str value)
{
    size_t slash, dash;
    if (!str_starts_with(value, "bytes ") || !str_find_char(value, '/', &slash))
        return;
    struct str range = { value.data + 6, slash - 6 }, total = { value.data + slash + 1, value.size - slash - 1 };
    request->answer->has_bytes = str_to_u64(total, &request->answer->bytes);
    if (!str_find_char(range, '-', &dash) || !str_to_u64((struct str){ range.data, dash }, &request->first))
        request->first = UINT64_MAX;
}

/* Link: <URL>; rel="next" */
static void link_header_take(struct request *request, struct str value)
{
    size_t begin, end;
    if (memmem(value.data, value.size, "rel=\"next\"", 10) && str_find_char(value, '<', &begin) && str_find_char(value, '>', &end) &&
        begin < end) {
        header_keep(value.data + begin + 1, end - begin - 1, request->answer->next, sizeof(request->answer->next));
        request->answer->is_next_cut = end - begin - 1 >= sizeof(request->answer->next);
    }
}

/* Azure leaves out the quotes that If-Match needs, as its lists do, where it is asked by an old version; who else does has none. */
static void etag_header_take(struct request *request, struct str value)
{
    char *etag = request->answer->etag;
    const size_t room = sizeof(request->answer->etag);
    if (str_starts_with(value, "\""))
        header_keep(value.data, value.size, etag, room);
    else if (request->http->identity.protocol == HTTP_AZURE && value.size && value.size + 2 < room && !str_starts_with(value, "W/"))
        snprintf(etag, room, "\"%.*s\"", STR_ARG(value));
}

static size_t header_take(char *line, size_t one, size_t count, void *context)
{
    struct request *request = context;
    const size_t size = one * count;
    const char *value;
    size_t value_size;
    uint64_t number;
    if (size > 5 && memcmp(line, "HTTP/", 5) == 0) { /* of a redirection, too: what came before does not count */
        *request->answer = (struct http_answer){ .code = 0 };
        request->first = UINT64_MAX;
        request->retry_after = 0;
        request->region[0] = '\0';
    } else if (header_is(line, size, "Content-Range", &value, &value_size)) {
        content_range_take(request, (struct str){ value, value_size });
    } else if (header_is(line, size, "Content-Length", &value, &value_size) && request->first == UINT64_MAX) {
        if (!request->answer->has_bytes)
            request->answer->has_bytes = str_to_u64((struct str){ value, value_size }, &request->answer->bytes);
    } else if (header_is(line, size, "ETag", &value, &value_size)) {
        etag_header_take(request, (struct str){ value, value_size });
    } else if (header_is(line, size, "Link", &value, &value_size)) {
        link_header_take(request, (struct str){ value, value_size });
    } else if (header_is(line, size, "x-amz-bucket-region", &value, &value_size)) {
        header_keep(value, value_size, request->region, sizeof(request->region));
    } else if (header_is(line, size, "Retry-After", &value, &value_size)) {
        request->retry_after = str_to_u64((struct str){ value, value_size }, &number) && number < 30 ? (long)number : 0;
    }
    return size;
}

static long code_of(CURL *handle)
{
    long code = 0;
    curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* A body that no range was asked of, or that is all of an object. */
static bool range_is_right(struct request *request, long code)
{
    if (code == 206 && request->first == request->offset)
        return true;
    const uint64_t whole = request->answer->has_bytes ? request->answer->bytes : request->whole;
    if (code == 200 && request->offset == 0 && request->size == whole)
        return true;
    request->complaint =
        code == 200 ? "the server gives whole files and no ranges of them" : "the server gives another range than was asked for";
    return false;
}

struct taking {
    CURL *handle;
    struct request *request;
};

static size_t body_take(char *bytes, size_t one, size_t count, void *context)
{
    const struct taking *taking = context;
    struct request *request = taking->request;
    const size_t size = one * count;
    const long code = code_of(taking->handle);
    if (code < 200 || code > 299) {
        size_t kept = size < SAID_MAX - request->said_size ? size : SAID_MAX - request->said_size;
        memcpy(request->said + request->said_size, bytes, kept);
        request->said_size += kept;
        return size;
    }
    if (request->out) {
        if (!request->got && !range_is_right(request, code))
            return 0;
        if (size > request->size - request->got) {
            request->complaint = "the server gives more than was asked for";
            return 0;
        }
        memcpy(request->out + request->got, bytes, size);
        request->got += size;
        return size;
    }
    if (size > request->bytes_max - request->body->size) {
        request->complaint = "the answer is too long";
        return 0;
    }
    return buffer_append(request->body, bytes, size) ? size : 0;
}

/* Called about once a second where nothing comes. */
static int transfer_goes_on(void *context, curl_off_t size, curl_off_t got, curl_off_t out_size, curl_off_t sent)
{
    (void)context, (void)size, (void)got, (void)out_size, (void)sent;
    return !waiting_goes_on();
}

static CURL *handle_take(struct http *http)
{
    CURL *handle = NULL;
    pthread_mutex_lock(&http->lock);
    if (http->idle_count)
        handle = http->idle[--http->idle_count];
    pthread_mutex_unlock(&http->lock);
    return handle ? handle : curl.easy_init();
}

static void handle_give(struct http *http, CURL *handle)
{
    curl.easy_reset(handle); /* its connections stay */
    pthread_mutex_lock(&http->lock);
    const bool has_room = http->idle_count < IDLE_MAX;
    if (has_room)
        http->idle[http->idle_count++] = handle;
    pthread_mutex_unlock(&http->lock);
    if (!has_room)
        curl.easy_cleanup(handle);
}

static bool header_add(struct curl_slist **list, const char *name, const char *value)
{
    char *line = NULL;
    if (asprintf(&line, "%s: %s", name, value) < 0)
        return false;
    struct curl_slist *longer = curl.slist_append(*list, line);
    free(line);
    if (longer)
        *list = longer;
    return longer != NULL;
}

/* Signing is libcurl's, who asks that the headers be there. */
static bool sign_s3(const struct http_identity *identity, CURL *handle, struct curl_slist **headers)
{
    char *pair = NULL, *how = NULL;
    bool is_good = asprintf(&pair, "%s:%s", identity->key, identity->secret) >= 0 &&
                   asprintf(&how, "aws:amz:%s:s3", identity->region ? identity->region : "auto") >= 0 &&
                   !curl.easy_setopt(handle, CURLOPT_AWS_SIGV4, how) && !curl.easy_setopt(handle, CURLOPT_USERPWD, pair) &&
                   header_add(headers, "x-amz-content-sha256", "UNSIGNED-PAYLOAD");
    if (is_good && identity->session)
        is_good = header_add(headers, "x-amz-security-token", identity->session);
    free(pair);
    free(how);
    return is_good;
}

static bool sign_azure(const struct request *request, const char *range, struct curl_slist **headers)
{
    const struct http_identity *identity = &request->http->identity;
    struct buffer date = { 0 }, authorization = { 0 };
    bool is_good = azure_date(time(NULL), &date) && buffer_append_byte(&date, '\0');
    const struct azure_request signing = { .account = identity->key,
                                           .secret = identity->secret,
                                           .url = request->url,
                                           .range = range,
                                           .etag = request->etag ? request->etag : "",
                                           .date = (const char *)date.data };
    is_good = is_good && azure_authorization(&signing, &authorization) && buffer_append_byte(&authorization, '\0') &&
              header_add(headers, "x-ms-date", signing.date) &&
              header_add(headers, "Authorization", (const char *)authorization.data);
    buffer_release(&date);
    buffer_release(&authorization);
    return is_good;
}

/* range: of the header Range, "" without. */
static bool identity_set(const struct request *request, CURL *handle, const char *range, struct curl_slist **headers)
{
    const struct http_identity *identity = &request->http->identity;
    if (identity->bearer)
        return !curl.easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER) &&
               !curl.easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, identity->bearer);
    /* Also from who does not sign: without it Azure speaks as it did in 2009. */
    if (identity->protocol == HTTP_AZURE && !header_add(headers, "x-ms-version", AZURE_VERSION))
        return false;
    if (!identity->key || !identity->secret)
        return true;
    return identity->protocol == HTTP_AZURE ? sign_azure(request, range, headers) : sign_s3(identity, handle, headers);
}

static bool url_set(const struct request *request, CURL *handle)
{
    const char *token = request->http->identity.token;
    char *url = NULL;
    if (!token)
        return !curl.easy_setopt(handle, CURLOPT_URL, request->url);
    bool is_good = asprintf(&url, "%s%c%s", request->url, strchr(request->url, '?') ? '&' : '?', token) >= 0 &&
                   !curl.easy_setopt(handle, CURLOPT_URL, url);
    free(url);
    return is_good;
}

static bool options_set(struct request *request, CURL *handle, struct taking *taking, char *said, struct curl_slist **headers)
{
    char range[64] = "";
    bool is_good = url_set(request, handle) && !curl.easy_setopt(handle, CURLOPT_ERRORBUFFER, said) &&
                   !curl.easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https") &&
                   !curl.easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                                     strncasecmp(request->url, "https:", 6) == 0 ? "https" : "http,https");
    curl.easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    /* Who signs has secrets in headers that libcurl would take along to other servers. */
    curl.easy_setopt(handle, CURLOPT_FOLLOWLOCATION, request->http->identity.key ? 0L : 1L);
    curl.easy_setopt(handle, CURLOPT_MAXREDIRS, REDIRECTS);
    curl.easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    curl.easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, SILENT_SECONDS);
    curl.easy_setopt(handle, CURLOPT_NETRC, (long)CURL_NETRC_OPTIONAL);
    curl.easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
    curl.easy_setopt(handle, CURLOPT_USERAGENT, "reshard");
    curl.easy_setopt(handle, CURLOPT_HEADERFUNCTION, header_take);
    curl.easy_setopt(handle, CURLOPT_HEADERDATA, request);
    curl.easy_setopt(handle, CURLOPT_WRITEFUNCTION, body_take);
    curl.easy_setopt(handle, CURLOPT_WRITEDATA, taking);
    curl.easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, transfer_goes_on);
    curl.easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    if (request->out)
        snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, request->offset, request->offset + request->size - 1);
    if (range[0])
        is_good = is_good && !curl.easy_setopt(handle, CURLOPT_RANGE, range + strlen("bytes="));
    if (request->etag && request->etag[0])
        is_good = is_good && header_add(headers, "If-Match", request->etag);
    is_good = is_good && identity_set(request, handle, range, headers);
    return is_good && (!*headers || !curl.easy_setopt(handle, CURLOPT_HTTPHEADER, *headers));
}

/* ---- what came of it ---- */

static reshard_status answer_refused(const struct request *request, long code, reshard_error *err)
{
    struct str said = element_text((struct str){ request->said, request->said_size }, "Code");
    if (said.size > 60)
        said.size = 0;
    errno = code == 404 || code == 410 ? ENOENT : code == 401 || code == 403 ? EACCES : EIO;
    int number = errno;
    error_set(err, RESHARD_ERR_IO, "HTTP %ld%s%.*s%s", code, said.size ? " (" : "", STR_ARG(said), said.size ? ")" : "");
    if (err)
        err->sys_errno = number;
    if (code == 412)
        error_hint(err, "it has been replaced since it was opened: open it again");
    const struct http_identity *identity = &request->http->identity;
    const bool is_known = identity->key || identity->bearer || identity->token;
    /* To whom it does not know Azure says that nothing is there, or nothing public. */
    const bool is_hidden = identity->protocol == HTTP_AZURE && !is_known && (code == 404 || code == 409);
    if (request->region[0] && identity->region && strcmp(request->region, identity->region) != 0)
        error_hint(err, "the bucket is in another region: set AWS_REGION to %s", request->region);
    else if (number == EACCES && is_known)
        error_hint(err, "the key or token that the environment has may not read it, or has run out");
    else if (number == EACCES || is_hidden)
        error_hint(err, "what is not public needs a key: %s", identity->variables);
    return RESHARD_ERR_IO;
}

static reshard_status transfer_failed(const struct request *request, CURLcode result, const char *said, reshard_error *err)
{
    if (result == CURLE_ABORTED_BY_CALLBACK)
        return error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
    if (result == CURLE_OUT_OF_MEMORY || (request->body && request->body->failed))
        return error_set_memory(err);
    error_set(err, RESHARD_ERR_IO, "%s", request->complaint ? request->complaint : said[0] ? said : curl.easy_strerror(result));
    if (err)
        err->sys_errno = EIO;
    return RESHARD_ERR_IO;
}

static bool is_worth_trying_again(const struct request *request, CURLcode result, long code)
{
    if (request->complaint)
        return false;
    switch ((int)result) {
    case CURLE_OK:
        return code == 408 || code == 429 || code == 500 || code == 502 || code == 503 || code == 504;
    case CURLE_COULDNT_RESOLVE_HOST: /* at first it is more likely a name that is written wrongly */
        return atomic_load(&request->http->has_answered);
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR: /* of the handshake; certificates that are not good have others */
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

/* False: the answer is not wanted any more. */
static bool pause_before(unsigned attempt, long seconds)
{
    unsigned milliseconds = FIRST_PAUSE_MS;
    for (unsigned i = 1; i < attempt; i++)
        milliseconds *= 3;
    if (seconds * 1000 > (long)milliseconds)
        milliseconds = (unsigned)seconds * 1000;
    return waiting_pause(milliseconds);
}

static bool is_sent_on_to_folder(const struct request *request, CURL *handle)
{
    const char *url = NULL;
    curl.easy_getinfo(handle, CURLINFO_EFFECTIVE_URL, &url);
    const size_t asked = strcspn(request->url, "?"), size = url ? strcspn(url, "?") : 0;
    return size && url[size - 1] == '/' && asked && request->url[asked - 1] != '/';
}

static reshard_status request_once(struct request *request, bool *again, reshard_error *err)
{
    char said[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = NULL;
    CURL *handle = handle_take(request->http);
    *again = false;
    if (!handle)
        return error_set_memory(err);
    struct taking taking = { handle, request };
    request->got = request->said_size = 0;
    request->complaint = NULL;
    if (request->body)
        buffer_clear(request->body);
    const bool is_set = options_set(request, handle, &taking, said, &headers);
    const CURLcode result = is_set ? curl.easy_perform(handle) : CURLE_FAILED_INIT;
    const long code = request->answer->code = code_of(handle);
    request->answer->is_folder = is_set && is_sent_on_to_folder(request, handle);
    curl.slist_free_all(headers);
    if (is_set)
        handle_give(request->http, handle);
    else
        curl.easy_cleanup(handle);
    if (result == CURLE_OK)
        atomic_store(&request->http->has_answered, true);
    *again = is_worth_trying_again(request, result, code);
    if (!is_set)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "this libcurl lacks what is needed (7.85 and later have it)");
    if (result)
        return transfer_failed(request, result, said, err);
    if (code < 200 || code > 299)
        return answer_refused(request, code, err);
    if (!request->out || request->got == request->size)
        return RESHARD_OK;
    if (code == 200 && !request->got)
        range_is_right(request, code);
    return transfer_failed(request, CURLE_PARTIAL_FILE, "the server gives fewer bytes than was asked for", err);
}

static reshard_status request_run(struct request *request, reshard_error *err)
{
    bool again = true;
    reshard_status status = RESHARD_OK;
    *request->answer = (struct http_answer){ .code = 0 };
    for (unsigned attempt = 0; attempt < TRIES && again; attempt++) {
        if (attempt && !pause_before(attempt, request->retry_after))
            return error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
        status = request_once(request, &again, err);
        if (!status)
            return RESHARD_OK;
    }
    return status;
}

reshard_status http_get_range(struct http *http, const char *url, const char *etag, uint64_t offset, void *out, size_t size, uint64_t whole,
                              struct http_answer *answer, reshard_error *err)
{
    struct request request = { .http = http, .url = url, .etag = etag, .offset = offset, .out = out, .size = size, .whole = whole,
                               .answer = answer };
    return request_run(&request, err);
}

/* By its first byte: servers that sign URLs do so for GET alone. */
reshard_status http_look(struct http *http, const char *url, struct http_answer *answer, reshard_error *err)
{
    uint8_t first;
    struct request request = { .http = http, .url = url, .etag = "", .out = &first, .size = 1, .answer = answer };
    reshard_status status = request_run(&request, err);
    if (answer->is_folder && answer->code >= 200 && answer->code < 300)
        return RESHARD_OK;
    if (status && answer->has_bytes && (answer->code == 416 || answer->code == 200) && answer->bytes == 0)
        return RESHARD_OK; /* it is empty */
    if (!status && !answer->has_bytes)
        return error_set(err, RESHARD_ERR_IO, "the server does not say how many bytes it has");
    return status;
}

reshard_status http_get(struct http *http, const char *url, size_t bytes_max, struct buffer *out, struct http_answer *answer,
                        reshard_error *err)
{
    struct request request = { .http = http, .url = url, .body = out, .bytes_max = bytes_max, .answer = answer };
    return request_run(&request, err);
}
#else
reshard_status http_new(const struct http_identity *identity, struct http **out, reshard_error *err)
{
    (void)identity;
    *out = NULL;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "this build knows no URLs");
    error_hint(err, "build it where libcurl's headers are (Debian: libcurl4-openssl-dev), or read a copy on this machine");
    return RESHARD_ERR_UNSUPPORTED;
}

void http_free(struct http *http)
{
    (void)http;
}

reshard_status http_get_range(struct http *http, const char *url, const char *etag, uint64_t offset, void *out, size_t size, uint64_t whole,
                              struct http_answer *answer, reshard_error *err)
{
    (void)http, (void)url, (void)etag, (void)offset, (void)out, (void)size, (void)whole, (void)answer;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "this build knows no URLs");
}

reshard_status http_look(struct http *http, const char *url, struct http_answer *answer, reshard_error *err)
{
    return http_get_range(http, url, "", 0, NULL, 0, 0, answer, err);
}

reshard_status http_get(struct http *http, const char *url, size_t bytes_max, struct buffer *out, struct http_answer *answer,
                        reshard_error *err)
{
    (void)bytes_max, (void)out;
    return http_get_range(http, url, "", 0, NULL, 0, 0, answer, err);
}
#endif
