/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as reshard_items.json: what is read and can be written comes out of a second reading as it was. */
#include "catalog/catalog.h"
#include "formats/shared/kept_items.h"
#include "outcome.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* The text that the items of a text are written as; *is_whole: all of them are. false: they are not read, or there is no memory. */
static bool write_again(struct str text, struct kept_items *out, bool *is_whole)
{
    struct catalog *catalog = catalog_new("fuzz");
    reshard_error err = RESHARD_ERROR_INIT;
    bool done = catalog && !outcome_status(kept_items_read(catalog, text, &err), &err), is_kept;
    *is_whole = true;
    for (uint32_t i = 0; done && i < catalog->item_count; i++) {
        done = !outcome_status(kept_items_append(out, catalog, &catalog->items[i], &is_kept, &err), &err);
        *is_whole = *is_whole && is_kept;
    }
    if (done && out->text.size)
        done = !kept_items_end(&out->text, NULL);
    catalog_free(catalog);
    return done;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct kept_items first = { 0 }, second = { 0 };
    bool is_whole;
    if (write_again((struct str){ (const char *)bytes, size }, &first, &is_whole) && first.text.size) {
        bool is_read = write_again(buffer_str(&first.text), &second, &is_whole);
        if (!is_read || !is_whole || !str_equal(buffer_str(&first.text), buffer_str(&second.text)))
            abort();
    }
    outcome_text(buffer_str(&first.text));
    buffer_release(&first.text);
    buffer_release(&second.text);
    return 0;
}
