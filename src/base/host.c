/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What machines this builds for. Elements are cast, compared and hashed as they lie in memory, and files are little-endian; sizes of
 * objects are 64 bits wide and so are those of memory. A build that would be wrong on another machine is no build.
 */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "reshard runs on little-endian machines only (x86-64, aarch64, riscv64, ppc64le): this one is big-endian"
#endif
#if __SIZEOF_POINTER__ < 8
#error "reshard runs on 64-bit machines only: checkpoints are larger than what this one can address"
#endif

/* A file has to declare something. */
extern const int host_is_supported;
const int host_is_supported = 1;
