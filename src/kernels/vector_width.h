/* SPDX-License-Identifier: Apache-2.0 */
/* How wide the vectors of this machine are: one question for all kernels that have a way for each. */
#ifndef KERNELS_VECTOR_WIDTH_H
#define KERNELS_VECTOR_WIDTH_H

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define TARGET_WIDE __attribute__((target("avx2,popcnt,f16c")))
#define TARGET_WIDER __attribute__((target("avx2,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#define WIDE_INLINE TARGET_WIDE static inline __attribute__((always_inline))
#define WIDER_INLINE TARGET_WIDER static inline __attribute__((always_inline))
#endif

/* 0: what every machine can do; 1: TARGET_WIDE; 2: TARGET_WIDER. */
#define VECTOR_WIDTH_BEST 2

/* The best that this machine can do, at most `wanted`. */
static inline int vector_width(int wanted)
{
    int best = 0;
#if defined(__x86_64__)
    unsigned a, b, features, d;
    __builtin_cpu_init();
    /* Older compilers do not know f16c by its name. */
    const bool has_f16c = __get_cpuid(1, &a, &b, &features, &d) && (features & bit_F16C);
    if (has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt"))
        best = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? 2 : 1;
#endif
    return wanted < best ? wanted : best;
}

#endif
