/* SPDX-License-Identifier: Apache-2.0 */
#ifndef API_REPORT_H
#define API_REPORT_H

#include "reshard/reshard.h"

#include "convert/conversion.h"

/* Fills a report of the caller's, which was cleared. */
reshard_status report_give(const struct conversion *conversion, reshard_report *out, reshard_error *err);

#endif
