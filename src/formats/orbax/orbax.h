/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orbax, the checkpoints of JAX (docs/formats/orbax.md), read: zarr arrays of format 2 or 3, each in a folder, or all in one key-value
 * store of OCDBT:
 *
 *   _METADATA            the tree: names of arrays, which of them are numbers of Python
 *   _strings.json        texts of the tree
 *   NAME/…               an array, or
 *   manifest.ocdbt       the key-value store: NAME/… are keys, in data files
 *   d/, ocdbt.process_N/ of it
 *
 * The arrays are the container formats/zarr.
 */
#ifndef FORMATS_ORBAX_ORBAX_H
#define FORMATS_ORBAX_ORBAX_H

#include "formats/driver.h"

extern const struct format_driver format_orbax; /* "orbax" */

#endif
