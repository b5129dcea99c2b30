/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Releases of Megatron Core, as the format option release=0.N names them: the one that is to load what is written. It unpickles only the
 * classes that it has (models/megatron.classes).
 */
#ifndef FORMATS_SHARED_RELEASE_CLASSES_H
#define FORMATS_SHARED_RELEASE_CLASSES_H

#include "base/value.h"
#include "formats/driver.h"

#define MEGATRON_RELEASE_OPTION { "release", "0.N", "", "release of Megatron Core that is to load it: what that does not know is left out" }

/* N of the option; 0 if it is not given. */
reshard_status megatron_release_option(const struct layout_request *request, uint32_t *minor, reshard_error *err);

/* Whether the release has the class; what is not Megatron's, it has. */
bool megatron_release_has(uint32_t minor, struct str module, struct str name);

/* Whether the value is or holds an instance of a class that the release does not have. */
reshard_status megatron_release_lacks(uint32_t minor, const struct value *value, uint32_t graph_count, bool *lacks, reshard_error *err);

/*
 * Takes members of such classes out of the dicts and namespaces of a value of the graph, and notes them as dropped. *is_whole: the value is
 * such an instance itself.
 */
reshard_status megatron_release_strip(uint32_t minor, const struct value_graph *graph, struct str key, struct value *value,
                                      struct target *target, bool *is_whole, reshard_error *err);

#endif
