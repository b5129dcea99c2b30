/* SPDX-License-Identifier: Apache-2.0 */
/* The storage account of Azure that the environment names, and what it is asked with. */
#ifndef REMOTE_AZURE_ACCOUNT_H
#define REMOTE_AZURE_ACCOUNT_H

#include "base/error.h"

#define AZURE_CONNECTION "AZURE_STORAGE_CONNECTION_STRING"

struct azure_account {
    const char *name, *key, *token; /* NULL where there is none; there is no key beside a token */
    char *server;                   /* URL of its containers, without '/' at its end */
    char *connection;               /* the string that the texts above lie in; NULL: they are the environment's */
};

/*
 * A connection string goes before the variables that say the same one by one, as in Azure's own programs: NAME=VALUE;NAME=VALUE with
 * AccountName, AccountKey, SharedAccessSignature, BlobEndpoint, DefaultEndpointsProtocol, EndpointSuffix or UseDevelopmentStorage, in any
 * case of letters; other names are passed over. USAGE for what names no account. Nothing of a key or a token stands in messages.
 */
reshard_status azure_account_find(struct azure_account *out, reshard_error *err);
void azure_account_release(struct azure_account *account);

#endif
