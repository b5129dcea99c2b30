/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr: arrays cut into a grid of chunks, a file a chunk, described by JSON documents; formats 2 and 3, and the checkpoints that Megatron
 * Core wrote with them up to version 0.15.
 *
 *   group/.zgroup .zattrs            group/zarr.json           documents of a group (optional in practice)
 *   array/.zarray .zattrs            array/zarr.json           shape, chunk grid, type, codecs, fill value
 *   array/0.1 or array/0/1           array/c/0/1               chunk (0,1), all of them of the full size, the last ones padded
 *   metadata.json common.pt KEY/.zarray KEY/0.0 KEY/shard_0_1.pt   Megatron: arrays, objects and what is common
 */
#ifndef FORMATS_ZARR_ZARR_H
#define FORMATS_ZARR_ZARR_H

#include "formats/driver.h"

extern const struct format_driver format_zarr;

#endif
