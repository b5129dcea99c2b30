/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as what a server says lies in a folder; the first byte chooses: Azure, a hub's commit, S3, a hub, a page. */
#include "outcome.h"
#include "remote/listing.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Each name once, in order, and found again. */
static void check_sorted(const struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) {
        const struct listing_entry *entry = &listing->entries[i];
        const bool is_behind = !i || str_compare(listing->entries[i - 1].name, entry->name) < 0;
        if (!entry->name.size || !is_behind || listing_find(listing, entry->name) != entry)
            abort();
        outcome_text(entry->name);
        outcome_text(entry->etag);
        outcome_number((uint64_t)entry->is_folder << 1 | entry->has_bytes);
        outcome_number(entry->has_bytes ? entry->bytes : 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct listing listing = { 0 };
    struct str next = { NULL, 0 };
    struct buffer commit = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status;
    if (size < 1)
        return 0;
    const struct str answer = { (const char *)bytes + 1, size - 1 };
    if (bytes[0] == 'z')
        status = listing_take_azure(answer, &listing, &next, &err);
    else if (bytes[0] == 'c')
        status = listing_take_commit(answer, &commit, &err);
    else if (bytes[0] % 3 == 0)
        status = listing_take_s3(answer, &listing, &next, &err);
    else if (bytes[0] % 3 == 1)
        status = listing_take_hub(answer, &listing, &err);
    else
        status = listing_take_page(answer, &listing, &err);
    outcome_status(status, &err);
    if (commit.size && !listing_is_commit(buffer_str(&commit)))
        abort();
    if (commit.size)
        outcome_text(buffer_str(&commit));
    outcome_text(next);
    outcome_text(element_text(answer, "Code"));
    listing_sort(&listing);
    check_sorted(&listing);
    listing_release(&listing);
    buffer_release(&commit);
    return 0;
}
