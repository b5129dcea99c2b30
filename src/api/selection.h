/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: what of a source is wanted, under which dtypes, as the catalog without chunks that drivers lay out. */
#ifndef API_SELECTION_H
#define API_SELECTION_H

#include "api/checkpoint.h"

struct selection {
    struct catalog *wanted;
    uint32_t *wanted_source; /* source tensor by wanted tensor */
    uint32_t *wanted_items;  /* source item by wanted item */
    bool is_whole;
};

reshard_status selection_make(const reshard_checkpoint *source, const char *format, const reshard_convert_options *options, struct selection *out,
                              reshard_error *err);
void selection_release(struct selection *selection);

#endif
