/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/azure_sign.h"

#include "base/digest.h"
#include "encoding/base64.h"
#include "remote/remote_place.h"

#include <string.h>

bool azure_date(time_t seconds, struct buffer *out)
{
    static const char *const days[] = { "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat" };
    static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
    struct tm time;
    if (!gmtime_r(&seconds, &time))
        return false;
    return buffer_printf(out, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[time.tm_wday], time.tm_mday, months[time.tm_mon],
                         time.tm_year + 1900, time.tm_hour, time.tm_min, time.tm_sec);
}

/* Each parameter of the query on a line: its name, and its value decoded. */
static void put_query_lines(struct str query, struct buffer *out)
{
    while (query.size) {
        struct str parameter = str_take(&query, '&'), name = str_take(&parameter, '=');
        buffer_append_byte(out, '\n');
        buffer_append_str(out, name);
        buffer_append_byte(out, ':');
        url_decode(parameter, false, out);
    }
}

bool azure_text_to_sign(const struct azure_request *request, struct buffer *out)
{
    struct str url = str_of(request->url);
    const char *host = strstr(request->url, "://");
    size_t at = host ? (size_t)(host - request->url) + 3 : 0;
    at += strcspn(request->url + at, "/?");
    struct str query = { url.data + at, url.size - at }, path = str_take(&query, '?');
    /* Encoding, language, length, MD5, type, date (x-ms-date stands for it), If-Modified-Since; None-Match and Unmodified-Since. */
    buffer_printf(out, "GET\n\n\n\n\n\n\n\n%s\n\n\n%s\n", request->etag, request->range);
    buffer_printf(out, "x-ms-date:%s\nx-ms-version:" AZURE_VERSION "\n/%s", request->date, request->account);
    buffer_append_str(out, path);
    put_query_lines(query, out);
    return !out->failed;
}

bool azure_authorization(const struct azure_request *request, struct buffer *out)
{
    struct buffer text = { 0 }, key = { 0 };
    uint8_t digest[HMAC_SHA256_BYTES];
    bool is_good = base64_decode(str_of(request->secret), &key) && azure_text_to_sign(request, &text);
    if (is_good) {
        hmac_sha256(buffer_str(&key), buffer_str(&text), digest);
        buffer_printf(out, "SharedKey %s:", request->account);
        is_good = base64_encode((struct str){ (const char *)digest, sizeof(digest) }, out);
    }
    buffer_release(&text);
    buffer_release(&key);
    return is_good;
}
