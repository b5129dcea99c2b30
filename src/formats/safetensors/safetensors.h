/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors file as a checkpoint. safetensors_header.h draws the bytes. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include "formats/driver.h"

extern const struct format_driver format_safetensors;

#endif
