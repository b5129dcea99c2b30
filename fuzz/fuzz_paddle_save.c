/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a file of paddle.save. What is read lies in the file and fits its shape; the skimmed pickle builds what the whole one
 * does. */
#include "encoding/paddle_save.h"

#include <stdlib.h>

#include "base/checked.h"
#include "outcome.h"
#include "tensor/box.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static struct limits fuzz_limits(void)
{
    struct limits limits = limits_default;
    limits.memo_gap = 10000;
    limits.pickle_values = 100000;
    return limits;
}

static void check_tensor(const struct paddle_tensor *tensor, size_t size)
{
    uint64_t bytes = 0, wanted;
    int64_t elements;
    outcome_number(tensor->dtype);
    outcome_bytes(tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape));
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        const struct paddle_part *part = &tensor->parts[i];
        if (part->stored_bytes && !range_fits(part->offset, part->stored_bytes, size))
            abort();
        if (part->is_latin1 ? part->bytes > part->stored_bytes : part->bytes != part->stored_bytes)
            abort();
        bytes += part->bytes;
        outcome_number(part->offset << 1 | part->is_latin1);
        outcome_number(part->stored_bytes);
    }
    if (!shape_volume(tensor->rank, tensor->shape, &elements) || !dtype_bytes(tensor->dtype, (uint64_t)elements, &wanted) ||
        wanted != bytes)
        abort();
}

/* Nodes of the skimmed pickle lie where those of the whole one do. */
static void check_skim(const uint8_t *bytes, size_t size, const struct limits *limits)
{
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct pickle_skim skim;
    struct value_graph part = { 0 }, whole = { 0 };
    struct pickle_report report;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(pickle_skim(&reader, limits, &skim, &err), &err))
        return;
    reshard_status status = outcome_status(pickle_skim_parse(&skim, limits, &part, &report, &err), &err);
    if (!status && !pickle_parse(bytes, size, 0, limits, &whole, &report, NULL) &&
        (part.count != whole.count || part.root->kind != whole.root->kind || part.root->offset != whole.root->offset ||
         report.consumed != skim.consumed))
        abort();
    value_graph_release(&part);
    value_graph_release(&whole);
    pickle_skim_release(&skim);
}

/* What a value may hold that is listed as no tensor: arrays in it are read, and paddle.load is asked for all of it as a writer asks. */
static void check_values(struct paddle_archive *archive, const struct reader *reader, const struct limits *limits)
{
    reshard_error err = RESHARD_ERROR_INIT;
    for (uint32_t i = 0; i < archive->entry_count; i++) {
        const struct value *value = archive->entries[i].value;
        bool fits = false;
        if (archive->entries[i].tensor || !value || value->kind < VALUE_LIST)
            continue;
        if (outcome_status(paddle_save_load_value(archive, reader, limits, &archive->graph, value, &err), &err))
            return;
        outcome_value(value);
        if (!outcome_status(paddle_save_check_load(value, archive->graph.count, limits->budget, &fits, &err), &err))
            outcome_number(fits);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits limits = fuzz_limits();
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct paddle_open_options options = { &limits, size & 1 };
    struct paddle_archive archive;
    check_skim(bytes, size, &limits);
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(paddle_save_open(&reader, &options, &archive, &err), &err))
        return 0;
    outcome_number(archive.end);
    outcome_value(archive.graph.root);
    if (archive.end > size)
        abort();
    for (uint32_t i = 0; i < archive.tensor_count; i++)
        check_tensor(&archive.tensors[i], size);
    for (uint32_t i = 0; i < archive.entry_count; i++) {
        const struct paddle_entry *entry = &archive.entries[i];
        outcome_text(entry->key);
        outcome_number(entry->tensor);
        bool is_text = !entry->key_node || entry->key_node->kind == VALUE_STR;
        if (entry->tensor > archive.tensor_count || (is_text && paddle_save_find(&archive, entry->key) != i))
            abort();
    }
    check_values(&archive, &reader, &limits);
    paddle_save_release(&archive);
    return 0;
}
