/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the options of a mapping in a kept plan, or from another rank: what is read is written as the same bytes. */
#include "names/mapping_pack.h"
#include "outcome.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct arena arena = { 0 };
    struct mapping_options options;
    struct buffer packed = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(mapping_unpack((struct str){ (const char *)bytes, size }, &arena, &options, &err), &err) &&
        (!mapping_pack(&options, &packed) || packed.size != size || memcmp(packed.data, bytes, size) != 0))
        abort();
    buffer_release(&packed);
    arena_release(&arena);
    return 0;
}
