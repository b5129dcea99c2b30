/* SPDX-License-Identifier: Apache-2.0 */
/* Side files that a target carries along as they are. */
#ifndef FORMATS_SHARED_OBJECT_COPY_H
#define FORMATS_SHARED_OBJECT_COPY_H

#include "formats/driver.h"

/* Copies an object of the source into one of the target's, which has its size. */
reshard_status object_copy(const struct publish_job *job, uint32_t object, uint32_t source_number, reshard_error *err);

#endif
