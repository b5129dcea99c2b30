/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures of Azure's Blob service: the scheme SharedKey, of its version 2015-02-21 and later. */
#ifndef REMOTE_AZURE_SIGN_H
#define REMOTE_AZURE_SIGN_H

#include "base/buffer.h"

#include <time.h>

#define AZURE_VERSION "2021-08-06" /* of the service's protocol: x-ms-version */

/* A GET request without a body. Texts are "" where the request has no such header. */
struct azure_request {
    const char *account, *secret; /* secret: base64, as the portal shows it */
    const char *url;              /* encoded; parameters in the order of their names, which are lower case */
    const char *range, *etag;     /* Range: "bytes=0-9"; If-Match */
    const char *date;             /* x-ms-date */
};

/* The time as headers have it, "Sun, 29 Nov 2026 03:00:00 GMT", in no locale. */
bool azure_date(time_t seconds, struct buffer *out);

/* What is signed: of each header of the protocol its value or an empty line, then Azure's own headers, then what is asked for. */
bool azure_text_to_sign(const struct azure_request *request, struct buffer *out);

/* Appends the value of the header Authorization; false without memory, or where the secret is no base64. */
bool azure_authorization(const struct azure_request *request, struct buffer *out);

#endif
