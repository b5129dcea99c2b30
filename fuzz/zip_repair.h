/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the checksums of zip archives right, so that a mutated member gets past them to what reads it. */
#ifndef FUZZ_ZIP_REPAIR_H
#define FUZZ_ZIP_REPAIR_H

#include <stddef.h>
#include <stdint.h>

/* Bytes may hold several archives, one after the other. Whatever does not look like a stored member is left alone. */
void zip_repair(uint8_t *bytes, size_t size);

#endif
