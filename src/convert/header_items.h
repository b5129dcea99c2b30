/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the headers of safetensors files and the index of a folder of them say beside the tensors. Those formats list it as items
 * (safetensors_items.h), but it is no part of a model: no other format gets it, where it would be a key among the model's.
 */
#ifndef CONVERT_HEADER_ITEMS_H
#define CONVERT_HEADER_ITEMS_H

#include "formats/driver.h"

/* Whether the item is of that kind, and says no more than for which framework the tensors are, and how much they are in all. */
reshard_status header_item_is_bare(struct source *source, uint32_t item, bool *out, reshard_error *err);

/*
 * *is_left_out: by item of the source, what is lost (may be NULL), and what the target has no place for as it is of that kind; NULL if
 * nothing is. Texts that are lost so are noted. To be freed, on failure too.
 */
reshard_status header_items_leave_out(struct source *source, const struct format_driver *target, const uint8_t *lost,
                                      struct note_list *losses, struct arena *notes, uint8_t **is_left_out, reshard_error *err);

#endif
