/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a checkpoint has the tensors that it should have: those of another checkpoint, of an index, or of a model by its config.json. */
#ifndef CONVERT_AGAINST_H
#define CONVERT_AGAINST_H

#include "convert/checkpoint.h"
#include "convert/finding.h"

/* reference: a checkpoint of any format, the index of a Hugging Face folder, a config.json, or a folder with one of these. Findings of the
 * kinds "missing", "unexpected" and "shape" are failures, "dtype" is a warning. Only an error that stops is one. */
reshard_status against_run(struct checkpoint *checkpoint, const char *reference, const struct open_options *options,
                           struct finding_sink *findings, reshard_error *err);

/* The same with the text of a config.json; does nothing where the model's family is not known. side: what the other is called. */
reshard_status against_config(const struct catalog *catalog, struct str config, const struct limits *limits, struct finding_sink *findings,
                              reshard_error *err);

#endif
