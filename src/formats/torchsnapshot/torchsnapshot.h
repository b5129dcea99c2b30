/* SPDX-License-Identifier: Apache-2.0 */
/* torchsnapshot: a folder with the manifest .snapshot_metadata and files of bytes that it names. Read only. */
#ifndef FORMATS_TORCHSNAPSHOT_TORCHSNAPSHOT_H
#define FORMATS_TORCHSNAPSHOT_TORCHSNAPSHOT_H

#include "formats/driver.h"

extern const struct format_driver format_torchsnapshot;

#endif
