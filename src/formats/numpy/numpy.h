/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NumPy's files. An array is a header, padded to 64 bytes, and its elements:
 *
 *   "\x93NUMPY" major minor  u16 or u32 LENGTH  "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n"  elements
 *
 *   npz   one zip archive of them, KEY.npy each, stored or deflated
 *   npy   one such file, or a folder of them: KEY.npy below it, where '/' in a key makes folders
 *
 * Written are rows first, little-endian, version 1.0. Spec: numpy.lib.format, docs/formats/numpy.md.
 */
#ifndef FORMATS_NUMPY_NUMPY_H
#define FORMATS_NUMPY_NUMPY_H

#include "formats/driver.h"

extern const struct format_driver format_npz, format_npy;

#endif
