/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .npy header. What is read is written again, and read again as the same, but for types that the format lacks. */
#include "encoding/npy.h"
#include "outcome.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct npy_header header, again;
    struct buffer out = { 0 };
    bool is_substitute = false;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(npy_parse(bytes, size, &header, &err), &err))
        return 0;
    outcome_number((uint64_t)header.dtype << 32 | (uint64_t)header.data_offset);
    outcome_bytes(header.shape, (size_t)header.rank * sizeof(*header.shape));
    if (header.data_offset > size)
        abort();
    if (!npy_write_header(header.dtype, header.rank, header.shape, &is_substitute, &out, NULL)) {
        if (npy_parse(out.data, out.size, &again, NULL) || again.data_offset != out.size || again.data_offset % 64 ||
            again.rank != header.rank || memcmp(again.shape, header.shape, (size_t)header.rank * sizeof(int64_t)) != 0 ||
            (!is_substitute && again.dtype != header.dtype))
            abort();
    }
    outcome_text(buffer_str(&out));
    buffer_release(&out);
    return 0;
}
