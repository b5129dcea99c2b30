/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members: what a dictionary, or a list with dictionaries in it, holds, under names joined with dots, as torch.distributed.checkpoint
 * flattens a state dict: dictionaries are entered, and lists that have a dictionary in them; everything else is a member as a whole.
 */
#ifndef BASE_VALUE_MEMBERS_H
#define BASE_VALUE_MEMBERS_H

#include "base/value.h"

#define VALUE_MEMBERS_MAX 100000 /* shared nodes are visited each time, so a small graph may have any number of members */
#define VALUE_MEMBERS_DEPTH 64   /* what lies deeper is one member */

/* key is valid during the call; a false ends the walk. */
typedef bool (*value_member_visit)(void *context, struct str key, const struct value *value);

/*
 * Calls visit for the members of root, named after prefix; none if root is a member as a whole. Fails without memory or work, and above
 * VALUE_MEMBERS_MAX.
 */
reshard_status value_members(const struct value *root, struct str prefix, struct work *work, value_member_visit visit, void *context,
                             reshard_error *err);

#endif
