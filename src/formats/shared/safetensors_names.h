/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the files that a folder of safetensors files has. */
#ifndef FORMATS_SAFETENSORS_NAMES_H
#define FORMATS_SAFETENSORS_NAMES_H

#include "base/str.h"

/* Take a text, or a number of at least five digits as "%05d" prints it, off the front of *rest; false leaves it alone. */
bool st_name_take_text(struct str *rest, const char *text);
bool st_name_take_number(struct str *rest, uint64_t *out);

/* STEM-0000i-of-0000N.safetensors, and the same with another suffix. */
bool st_name_parse_numbered(struct str base, struct str *stem, uint64_t *file, uint64_t *file_count);
bool name_parse_numbered(struct str base, const char *suffix, struct str *stem, uint64_t *file, uint64_t *file_count);

/* model.safetensors.index.json, model.fp16.safetensors.index.json, model.safetensors.index.fp16.json */
bool st_name_is_index(struct str base);

/* Whether a file beside the weights belongs to the model: configuration, tokenizer, templates, code, texts. */
bool st_name_is_side_file(struct str base);

#endif
