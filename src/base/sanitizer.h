/* SPDX-License-Identifier: Apache-2.0 */
/* HAS_ASAN: this is built with AddressSanitizer, which can be told more. */
#ifndef BASE_SANITIZER_H
#define BASE_SANITIZER_H

#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#endif

#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#endif

#endif
