/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json beside a target's weights, where the format has one: that of the source, one that is given, or one that was made. */
#ifndef CONVERT_MODEL_CONFIG_H
#define CONVERT_MODEL_CONFIG_H

#include "convert/conversion.h"

#define MODEL_CONFIG_KEY "config.json"

/* The text of the config.json that is written; nothing is appended if there is none. */
reshard_status model_config_read(const struct conversion *conversion, struct buffer *out, reshard_error *err);

/* What is written is this text, whatever there was. */
reshard_status model_config_put(struct conversion *conversion, struct str text, reshard_error *err);

/* Puts the one that the caller gives, or says that nothing reads it. *is_put: there is nothing else to make. */
reshard_status model_config_take_given(struct conversion *conversion, bool *is_put, reshard_error *err);

/* What names the weights' type names that of the weights that are written, where options.dtypes made it another one. */
reshard_status model_config_follow_types(struct conversion *conversion, reshard_error *err);

/* The type that most bytes of numbers with fractions have; DTYPE_COUNT: there are none. */
enum dtype model_config_main_type(const struct catalog *catalog);

#endif
