/* SPDX-License-Identifier: Apache-2.0 */
/* The names that the framework has for the tensors of a Flex Checkpoint. They are the writing process's own, so that they are no items: two
 * layouts of one content would differ in them. Who writes the content for Paddle again keeps them. */
#include "formats/paddle/flex.h"
#include "base/array.h"
#include "formats/paddle/paddle.h"

#include <stdlib.h>

/* The files that tensors lie in: true by object. */
static bool *called_files(const struct catalog *catalog)
{
    bool *is_data = array_zeroed(catalog->object_count, sizeof(*is_data));
    for (uint32_t i = 0; is_data && i < catalog->chunk_count; i++)
        is_data[catalog->chunks[i].object] = true;
    return is_data;
}

static reshard_status called_file(const struct source *source, uint32_t object, struct static_names *out, reshard_error *err)
{
    struct flex_data *data = NULL;
    reshard_error unsaid = { 0 };
    reshard_status status = flex_data_open(source, source->catalog->objects[object].name, &data, &unsaid);
    if (status && !flex_data_is_answer(source, status, &unsaid)) {
        *err = unsaid;
        return status;
    }
    if (status) /* it is no file of names, or it is not there: who reads its tensors says so */
        return RESHARD_OK;
    status = flex_data_note_names(data, object, out, err);
    flex_data_close(data);
    return status;
}

struct str flex_called_source(const struct static_names *names, const struct layout_request *request, uint32_t wanted)
{
    uint32_t source = request->wanted_source[wanted];
    return source == CATALOG_NONE ? (struct str){ 0 } : static_names_find(names, request->source_catalog->tensors[source].key);
}

reshard_status flex_called(const struct source *source, struct static_names *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (!source || source->driver != &format_paddle_flex)
        return RESHARD_OK;
    bool *is_data = called_files(source->catalog);
    if (!is_data)
        return error_set_memory(err);
    for (uint32_t i = 0; i < source->catalog->object_count && !status; i++)
        if (is_data[i])
            status = called_file(source, i, out, err);
    free(is_data);
    return status;
}
