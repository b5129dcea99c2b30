/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a pickle's value graph as instances of classes with attributes, however they were spelled. */
#ifndef ENCODING_PICKLE_OBJECTS_H
#define ENCODING_PICKLE_OBJECTS_H

#include "base/value.h"

/* The class (a GLOBAL) that a node is an instance of, or NULL; protocols 0 and 1 say copyreg._reconstructor(class, object, None). */
const struct value *pickle_object_class(const struct value *value);

/* An attribute of an instance. A state is a dict, or a pair of dicts of which either may be None; the last one that has the attribute
 * counts. NULL: none has. */
const struct value *pickle_object_attribute(const struct value *object, const char *name);

/* Looking an attribute up goes through all that the states hold, and objects may be named many times. */
reshard_status pickle_object_spend(const struct value *object, struct work *work, reshard_error *err);

#endif
