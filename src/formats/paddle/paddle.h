/* SPDX-License-Identifier: Apache-2.0 */
/* Paddle's formats. */
#ifndef FORMATS_PADDLE_H
#define FORMATS_PADDLE_H

#include "formats/driver.h"

#define PADDLE_RANK_MAX 9 /* of tensors that Paddle loads */

extern const struct format_driver format_paddle_flex; /* Flex Checkpoint: .distcp files and <uid>.metadata */
extern const struct format_driver format_paddle_uc;
extern const struct format_driver format_paddle; /* files of paddle.save */

#endif
