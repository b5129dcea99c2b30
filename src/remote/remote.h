/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints behind URLs, which are read in ranges and never downloaded whole:
 *
 *   https://HOST/PATH           a file; with '/' at its end a folder, if the server lists it as a page of links. http:// too
 *   s3://BUCKET/KEY             an object, or a folder of objects, of Amazon S3 or what speaks its protocol
 *   gs://BUCKET/KEY             the same of Google Cloud Storage, by its XML API
 *   az://CONTAINER/BLOB         the same of Azure's Blob service
 *   hf://ORG/REPO[@REV][/PATH]  a repository of a Hugging Face hub, or a part of it
 *
 * The environment says who asks, under the names that other programs use: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
 * (without them nothing is signed), AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL;
 * GOOGLE_OAUTH_ACCESS_TOKEN, or GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, STORAGE_EMULATOR_HOST;
 * AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY, AZURE_STORAGE_SERVICE_ENDPOINT, or all of
 * it in AZURE_STORAGE_CONNECTION_STRING; HF_TOKEN, HF_ENDPOINT; ~/.netrc and the proxies that libcurl knows.
 *
 * A server is believed as little as a file is. What has an ETag is asked for under it, so that bytes of two versions are never mixed.
 */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include "store/store.h"

/* As store_open_path, to which all goes that is no URL. UNSUPPORTED for URLs of other kinds. */
reshard_status remote_open_path(const char *path, unsigned flags, struct store **out, char **file_name, reshard_error *err);

#endif
