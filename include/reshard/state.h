/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a running job: shards in memory as a checkpoint that can be read, converted, compared and verified like any other, and
 * shards in memory filled from any checkpoint. Saving is reshard_open_shards and reshard_convert, loading is reshard_open and
 * reshard_load_shards, and changing the layout in memory is reshard_open_shards and reshard_load_shards. No format is involved in that, and
 * no file.
 *
 * Shards are those of geometry.h: a key, a global shape, a box or a flat range of one, and where the values lie. One list may hold the
 * shards of many ranks (reshard_shards_merge). Values are read and written where they lie, in the byte order of the machine.
 *
 * Memory. Keys, descriptions and items are copied. Values of shards stay the caller's, and are read as long as what was opened of them is,
 * or functions asked for them (reshard_shard.read).
 *
 * Threads. Any thread makes these calls; a list of items is one thread's while it is added to, and lists that are const may be shared. What
 * was opened is a checkpoint, of which reshard.h says who may use it.
 *
 * Failures. Lists of items and of shards are as they were before a call that fails.
 */
#ifndef RESHARD_STATE_H
#define RESHARD_STATE_H

#include "reshard/geometry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ values of items */

/*
 * Items as typed values, without JSON: a list of named values, which may hold others. One thread at a time uses a list; any number may read
 * it while nobody adds to it.
 */
typedef struct reshard_items reshard_items;

reshard_status reshard_items_new(reshard_items **out, reshard_error *err);
void reshard_items_free(reshard_items *items);

/*
 * Adds a value, of which all is copied: to the list under a key (holder NULL), to the end of a LIST or SET (the key does not count), or to
 * a DICT under a text, whose last value of a key counts. value says what: kind NULL, BOOL, INT and REAL with their member; TEXT (UTF-8),
 * BYTES and BIG_INT (two's complement, little-endian) with text; LIST (with is_tuple a tuple), DICT and SET are empty at first, count is
 * not looked at. *out, which may be NULL, is what others can be added to; it lives as long as the list. An item of a key that is there is
 * RESHARD_ERR_USAGE, as is an OBJECT: nothing is added then.
 */
reshard_status reshard_items_add(reshard_items *items, reshard_value *holder, reshard_str key, const reshard_value_info *value,
                                 reshard_value **out, reshard_error *err);

/* Adds the object of a file of torch.save, with classes and tensors, under a key. The bytes are copied, and read as those of a stranger's
 * file when the list is used. Since 0.3 */
reshard_status reshard_items_add_file(reshard_items *items, reshard_str key, const void *bytes, size_t size, reshard_error *err);

/* Adds a copy of an item of an open checkpoint, loaded if need be, with classes and all, under its key or another (data NULL: its own). */
reshard_status reshard_items_copy(reshard_items *items, const reshard_checkpoint *checkpoint, size_t item, reshard_str key,
                                  reshard_error *err);

/* ------------------------------------------------------------------------------------------------ state */

/* A value that is no tensor: a number, a text, a list or a dictionary as JSON text. An array's member. */
typedef struct reshard_state_item {
    reshard_str key, json;
} reshard_state_item;

typedef struct reshard_state {
    size_t struct_size;
    const reshard_shards *shards;
    const reshard_state_item *items;
    size_t item_stride, item_count;
    const char *name;           /* of the checkpoint, for messages; NULL: "memory" */
    const reshard_items *values; /* more items, as values: no key may be in both. NULL: none */
} reshard_state;
#define RESHARD_STATE_INIT { sizeof(reshard_state), NULL, NULL, sizeof(reshard_state_item), 0, NULL, NULL }

/*
 * Opens shards in memory as a checkpoint of format "memory". Together they must be whole: every element of each key's global shape in
 * exactly one shard, or in several that hold the very same box or range, which are replicas. RESHARD_ERR_FORMAT names the key and the
 * region otherwise; a shard without values is RESHARD_ERR_USAGE. options may be NULL; of them limits, lenient and shows_damage count.
 *
 * Descriptions and items are copied. The values stay the caller's: they must be there until *out is closed, and a call that reads sees what
 * they are at that time.
 */
reshard_status reshard_open_shards(const reshard_state *state, const reshard_open_options *options, reshard_checkpoint **out,
                                   reshard_error *err);

/*
 * Fills the values of all shards of a list from a checkpoint, in one run: whatever its layout, each from as many files as it takes, cast to
 * the shard's type where that is another. The checkpoint has each key with the shard's global shape, else nothing is read, and
 * RESHARD_ERR_USAGE names the key; shards without values are left out. Those with write (geometry.h) are filled a round at a time, by way
 * of memory: run->memory_bytes (0: 128 MiB) or as much as the largest such shard takes. Threads and memory as for reshard_read_many. Any
 * number of threads may load from one checkpoint at once, into different memory. What fails later leaves shards half filled; the call may
 * be made again.
 */
reshard_status reshard_load_shards(const reshard_checkpoint *checkpoint, const reshard_shards *shards, const reshard_run_options *run,
                                   reshard_error *err);

/*
 * The same under other names, as reshard_load_options.map has it for ranks: shards have the keys, shapes and types that the mapping makes
 * of the checkpoint (docs/mapping.md); one without texts makes recognised names those of the shards. What it keeps (`_ -> key`) is left as
 * it is. How many ranks cut a tensor, which fused_ffn and fused_qkv_old ask for, is what the boxes of the list say: it may hold the
 * shards of all ranks, those of others without values. One thread at a time makes this call for a checkpoint, while no other uses it.
 */
reshard_status reshard_load_shards_mapped(reshard_checkpoint *checkpoint, const reshard_shards *shards, const reshard_map_options *map,
                                          const reshard_run_options *run, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
