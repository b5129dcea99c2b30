/* SPDX-License-Identifier: Apache-2.0 */
/* Parses arbitrary bytes as JSON, event by event, by skipping, and into a value graph: all must agree on whether they are JSON. */
#include "encoding/json.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static reshard_status walk(const uint8_t *bytes, size_t size, const struct limits *limits, bool skips)
{
    struct json_parser *parser = json_new(bytes, size, 0, limits);
    if (!parser)
        return RESHARD_ERR_MEMORY;
    enum json_event event = JSON_NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    struct str text;
    reshard_status status;
    uint64_t before = 0;
    while (!(status = json_next(parser, &event, &text, &err)) && event != JSON_END) {
        uint64_t number = 0;
        if (json_offset(parser) < before || json_offset(parser) >= size)
            abort();
        before = json_offset(parser);
        outcome_number(before << 8 | event);
        if ((event == JSON_KEY || event == JSON_STRING) && !str_is_utf8(text, false, &(size_t){ 0 }))
            abort();
        if (event == JSON_NUMBER)
            outcome_number(json_number_is_u64(text, &number) ? number : UINT64_MAX);
        if (event == JSON_KEY || event == JSON_STRING)
            outcome_text(text);
        if (skips && (status = json_skip(parser, event, &err)))
            break;
    }
    json_free(parser);
    return outcome_status(status, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits limits = limits_default;
    struct value_graph graph = { 0 };
    reshard_status walked = walk(bytes, size, &limits, false), skipped = walk(bytes, size, &limits, true);
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status parsed = outcome_status(json_parse(bytes, size, &limits, &graph, &err), &err);
    if (walked != skipped || (!parsed && walked))
        abort();
    if (!parsed) {
        struct buffer out = { 0 };
        struct value_graph again = { 0 };
        if (!value_to_json(graph.root, &out, AT_MOST(1 << 20), NULL) && json_parse(out.data, out.size, &limits, &again, NULL))
            abort();
        outcome_text(buffer_str(&out));
        value_graph_release(&again);
        buffer_release(&out);
    }
    value_graph_release(&graph);
    return 0;
}
