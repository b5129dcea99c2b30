/* SPDX-License-Identifier: Apache-2.0 */
/* A save's request, as the program that writes in the background gets it: read, and its state opened, but not saved. */
#include "api/saver_request.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const uint8_t values[4096];
    struct saver_work work;
    reshard_error err = RESHARD_ERROR_INIT;
    outcome_status(saver_work_read(bytes, size, values, sizeof(values), &work, &err), &err);
    saver_work_release(&work);
    return 0;
}
