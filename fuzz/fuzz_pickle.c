/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a pickle. What is accepted is written again, the result must be accepted and, written once more, come out with
 * the same bytes: pickle_write has one spelling for each graph.
 */
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OUTPUT_MAX (1 << 20)

/* Parses and writes; false if either refuses. */
static bool rewrite(const uint8_t *data, size_t size, struct buffer *out, bool *was_parsed)
{
    struct limits limits = limits_default;
    struct value_graph graph = { 0 };
    struct pickle_report report;
    reshard_error err = RESHARD_ERROR_INIT;
    limits.memo_gap = 10000;
    limits.pickle_values = 100000;
    out->limit = OUTPUT_MAX;
    *was_parsed = !outcome_status(pickle_parse_with_ids(data, size, 0, &limits, &graph, &report, &err), &err);
    if (*was_parsed)
        outcome_value(graph.root);
    bool ok = *was_parsed && !outcome_status(pickle_write(graph.root, graph.count, NULL, NULL, NULL, out, &err), &err);
    value_graph_release(&graph);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buffer once = { 0 }, twice = { 0 };
    bool was_parsed;
    if (rewrite(data, size, &once, &was_parsed)) {
        bool ok = rewrite(once.data, once.size, &twice, &was_parsed);
        if (!was_parsed)
            abort();
        /* Sets and bytes became calls the first time; from then on nothing changes but the order of cycles. */
        if (ok) {
            struct buffer thrice = { 0 };
            if (!rewrite(twice.data, twice.size, &thrice, &was_parsed) && !was_parsed)
                abort();
            buffer_release(&thrice);
        }
    }
    outcome_text(buffer_str(&once));
    buffer_release(&once);
    buffer_release(&twice);
    return 0;
}
