/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat parameters of torch's FSDP under their own names, UNIT._flat_param: FSDP1's LOCAL_STATE_DICT stores them so. The names, shapes and
 * order of the parameters in one are the model's, and nothing that is stored tells them.
 */
#ifndef FORMATS_SHARED_FLAT_KEYS_H
#define FORMATS_SHARED_FLAT_KEYS_H

#include "catalog/catalog.h"

bool flat_key_is(struct str key);

/* A warning where there are any: they are read as the tensors that they are, and cannot be taken apart. */
void flat_keys_warn(struct catalog *catalog);

#endif
