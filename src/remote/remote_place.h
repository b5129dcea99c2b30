/* SPDX-License-Identifier: Apache-2.0 */
/* What a URL means: which server is asked for what. */
#ifndef REMOTE_REMOTE_PLACE_H
#define REMOTE_REMOTE_PLACE_H

#include "base/buffer.h"
#include "base/error.h"
#include "remote/azure_account.h"
#include "remote/http.h"

/* How a server is asked: as a web server, by S3's protocol (Amazon's, Google's and other object stores), by Azure's, as a hub. */
enum remote_kind { REMOTE_HTTP, REMOTE_S3, REMOTE_AZURE, REMOTE_HUB };

/* Texts are malloc'd. Paths have no '/' at either end, and are not percent-encoded. */
struct remote_place {
    enum remote_kind kind;
    struct http_identity identity; /* who asks; texts of the environment's, or of azure's */
    struct azure_account azure;
    char *name;     /* for messages: "s3://bucket", "https://host", "hf://org/repo@main" */
    char *base;     /* the URL of an object is this and its encoded path */
    char *listing;  /* S3, Azure, hub: the URL that lists; NULL: pages of folders do */
    char *server, *repository; /* hub: "https://huggingface.co", and "ORG/REPO" encoded; of others NULL */
    char *revision; /* hub: the URL that says which commit is meant; NULL: base and listing name one */
    char *path;     /* what was asked for */
    char *encoded;  /* the same as a part of its URL: of a web server as it was given, where %2F is no '/' */
    char *query;    /* of the file that was asked for, "" or "?…" */
    bool is_folder; /* the URL ends with '/' */
};

/* The environment counts: remote.h. USAGE for what is no URL. */
reshard_status remote_place_of(const char *url, struct remote_place *out, reshard_error *err);
void remote_place_release(struct remote_place *place);

/* From here on a hub is asked for that commit, whatever becomes of the branch. */
reshard_status remote_place_pin(struct remote_place *place, struct str commit, reshard_error *err);

/* Whether servers may have a bucket, a container or an account of that name. */
bool remote_is_bucket(struct str name);

/* Appends text percent-encoded: all but letters, digits, "-_.~" and, if keeps_slashes, '/'. */
void url_encode(struct str text, bool keeps_slashes, struct buffer *out);

/* Appends text decoded; false for a '%' that two hexadecimal digits do not follow. plus_is_space as in forms. */
bool url_decode(struct str text, bool plus_is_space, struct buffer *out);

#endif
