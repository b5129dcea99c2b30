/* SPDX-License-Identifier: Apache-2.0 */
/* What was written, against what it was made of. */
#ifndef CONVERT_READ_BACK_H
#define CONVERT_READ_BACK_H

#include "convert/conversion.h"

/* Compares the written target with the conversion's source, casts applied, and counts in conversion->verified what it compared: what lies
 * within items only where the target says what it is called there. RESHARD_DIFFERS with the first tensor that is wrong. */
reshard_status read_back_compare(struct conversion *conversion, struct checkpoint *written, reshard_error *err);

#endif
