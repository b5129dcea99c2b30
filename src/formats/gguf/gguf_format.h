/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF, the files of llama.cpp (docs/formats/gguf.md), read: one file (encoding/gguf.h), or several that are one model:
 *
 *   NAME.gguf
 *   NAME-0000i-of-0000N.gguf    split.no, split.count and split.tensors.count in each; the rest of the metadata in the first
 *
 * Quantised tensors are shown as the float32 numbers that they mean, dequantised as they are read.
 */
#ifndef FORMATS_GGUF_GGUF_FORMAT_H
#define FORMATS_GGUF_GGUF_FORMAT_H

#include "formats/driver.h"

extern const struct format_driver format_gguf; /* "gguf" */

#endif
