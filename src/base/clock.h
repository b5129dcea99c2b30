/* SPDX-License-Identifier: Apache-2.0 */
/* Time that only goes forward, whatever the clock on the wall is set to. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void);
int64_t clock_ms(void);
double clock_seconds(void);

#endif
