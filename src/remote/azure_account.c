/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/azure_account.h"

#include "encoding/base64.h"
#include "remote/environment.h"
#include "remote/remote_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of the emulator, which has one account; its key is no secret. */
#define EMULATOR_ACCOUNT "devstoreaccount1"
#define EMULATOR_KEY "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#define EMULATOR_SERVER "http://127.0.0.1:10000/" EMULATOR_ACCOUNT

/* What is said of an account, wherever; NULL where nothing is. */
struct account_texts {
    const char *name, *key, *token, *server, *protocol, *suffix, *is_emulator;
};

/* Cuts the text into values; false: a part of it is no NAME=VALUE. */
static bool connection_split(char *text, struct account_texts *out)
{
    const struct {
        const char *name, **value;
    } fields[] = {
        { "AccountName", &out->name },
        { "AccountKey", &out->key },
        { "SharedAccessSignature", &out->token },
        { "BlobEndpoint", &out->server },
        { "DefaultEndpointsProtocol", &out->protocol },
        { "EndpointSuffix", &out->suffix },
        { "UseDevelopmentStorage", &out->is_emulator },
    };
    for (char *rest = text, *field; (field = strsep(&rest, ";"));) {
        char *value = strchr(field, '=');
        if (!value && !*field)
            continue;
        if (!value)
            return false;
        *value++ = '\0';
        for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
            if (strcasecmp(field, fields[i].name) == 0)
                *fields[i].value = *value ? value : NULL;
    }
    return true;
}

static reshard_status connection_take(struct azure_account *out, struct account_texts *texts, reshard_error *err)
{
    out->connection = strdup(environment_text(AZURE_CONNECTION));
    if (!out->connection)
        return error_set_memory(err);
    bool is_good = connection_split(out->connection, texts);
    if (is_good && texts->is_emulator && strcasecmp(texts->is_emulator, "true") == 0)
        *texts = (struct account_texts){ .name = EMULATOR_ACCOUNT, .key = EMULATOR_KEY, .server = EMULATOR_SERVER };
    if (is_good && (texts->name || (texts->server && !texts->key)))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_USAGE, "the environment's " AZURE_CONNECTION " names no account");
    error_hint(err, "AccountName=…;AccountKey=… or BlobEndpoint=…;SharedAccessSignature=…, as the portal shows them");
    return RESHARD_ERR_USAGE;
}

static reshard_status variables_take(struct account_texts *texts, reshard_error *err)
{
    *texts = (struct account_texts){ .name = environment_text("AZURE_STORAGE_ACCOUNT"),
                                     .key = environment_text("AZURE_STORAGE_KEY"),
                                     .token = environment_text("AZURE_STORAGE_SAS_TOKEN"),
                                     .server = environment_text("AZURE_STORAGE_SERVICE_ENDPOINT") };
    if (texts->name || (texts->server && (texts->token || !texts->key)))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_USAGE, "the environment has no AZURE_STORAGE_ACCOUNT");
    error_hint(err, "set it to the name of the storage account that has the container");
    return RESHARD_ERR_USAGE;
}

static reshard_status azure_key_check(const char *key, const char *variable, reshard_error *err)
{
    struct buffer bytes = { 0 };
    const bool is_base64 = base64_decode(str_of(key), &bytes), has_memory = !bytes.failed;
    buffer_release(&bytes);
    if (!has_memory)
        return error_set_memory(err);
    return is_base64 ? RESHARD_OK : error_set(err, RESHARD_ERR_USAGE, "the environment's %s has no key of an account", variable);
}

static reshard_status server_take(const struct account_texts *texts, const char *variable, char **out, reshard_error *err)
{
    struct str server;
    char *made = NULL;
    if (!texts->server && asprintf(&made, "%s://%s.blob.%s", texts->protocol ? texts->protocol : "https", texts->name,
                                   texts->suffix ? texts->suffix : "core.windows.net") < 0)
        return error_set_memory(err);
    reshard_status status = environment_server(variable, made ? made : texts->server, &server, err);
    if (!status && !(*out = str_copy(server)))
        status = error_set_memory(err);
    free(made);
    return status;
}

reshard_status azure_account_find(struct azure_account *out, reshard_error *err)
{
    struct account_texts texts = { 0 };
    *out = (struct azure_account){ 0 };
    const bool is_connection = environment_text(AZURE_CONNECTION) != NULL;
    reshard_status status = is_connection ? connection_take(out, &texts, err) : variables_take(&texts, err);
    if (!status && texts.name && !remote_is_bucket(str_of(texts.name)))
        status = error_set(err, RESHARD_ERR_USAGE, "the environment's %s has '%s', which is no name of an account",
                           is_connection ? AZURE_CONNECTION : "AZURE_STORAGE_ACCOUNT", texts.name);
    if (!status)
        status = server_take(&texts, is_connection ? AZURE_CONNECTION : "AZURE_STORAGE_SERVICE_ENDPOINT", &out->server, err);
    out->name = texts.name;
    out->token = texts.token ? texts.token + (texts.token[0] == '?') : NULL; /* it is kept with the '?' of a query, or without */
    out->key = texts.token ? NULL : texts.key;
    if (!status && out->key)
        status = azure_key_check(out->key, is_connection ? AZURE_CONNECTION : "AZURE_STORAGE_KEY", err);
    return status;
}

void azure_account_release(struct azure_account *account)
{
    free(account->server);
    free(account->connection);
    *account = (struct azure_account){ 0 };
}
