"""What stands in front of every loop, in C and in CUDA."""

_IN_C = """\
#define INLINE static inline
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <float.h>
#define LARGEST DBL_MAX
#define LARGESTf FLT_MAX
// Where the C library has them, loops call functions that take a whole vector.
#ifdef VECTOR_MATH
#define VECTOR(name) \
    __attribute__((simd("notinbranch"), const)) double name(double); \
    __attribute__((simd("notinbranch"), const)) float name##f(float);
VECTOR(exp) VECTOR(expm1) VECTOR(log) VECTOR(log1p) VECTOR(tanh) VECTOR(sin) VECTOR(cos) VECTOR(erf)
#endif
// Where a function adds up, the order is free; everywhere else, arithmetic is what it says.
#if defined(__GNUC__) && !defined(__clang__)
#define REORDERED __attribute__((noinline, optimize("associative-math", "no-signed-zeros", "no-trapping-math")))
#else
#define REORDERED
#endif
"""

_COMMON = """\
// Both are computed, and one is taken. A load under a condition would do for C, but not for every compiler: gcc 12
// gives wrong numbers for loops of odd length with such loads.
#define CHOOSE(T) INLINE T choose_##T(int c, T a, T b) { return c ? a : b; }
CHOOSE(float) CHOOSE(double) CHOOSE(int64_t) CHOOSE(int32_t) CHOOSE(uint8_t)
INLINE int64_t clip(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
INLINE int within(int64_t i, int64_t least, int64_t n) { return i >= least && i < n; }
#define OUTSIDE(r, b) (r != 0 && (r < 0) != (b < 0))
INLINE double modulo(double a, double b) { a = fmod(a, b); return OUTSIDE(a, b) ? a + b : a; }
INLINE float modulof(float a, float b) { a = fmodf(a, b); return OUTSIDE(a, b) ? a + b : a; }
// The least number has no opposite: it is its own, as in PyTorch, and not an overflow.
INLINE int64_t opposite(int64_t a) { return (int64_t)(0 - (uint64_t)a); }
INLINE int64_t whole_size(int64_t a) { return a < 0 ? opposite(a) : a; }
INLINE int64_t whole_part(int64_t a, int64_t b) { return b == -1 ? opposite(a) : b ? a / b : 0; }
INLINE int64_t whole_rest(int64_t a, int64_t b) { return b == -1 || b == 0 ? 0 : a % b; }
INLINE int64_t whole_modulo(int64_t a, int64_t b) { a = whole_rest(a, b); return OUTSIDE(a, b) ? a + b : a; }
INLINE int64_t whole_quotient(int64_t a, int64_t b) { return whole_part(a, b) - OUTSIDE(whole_rest(a, b), b); }
INLINE int64_t wrapped(int64_t i, int64_t n) { return clip(i < 0 ? i + n : i, n); }
"""

CUDA_HEAD = """\
// The compiler at run time has functions, but no headers.
#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define INT64_MIN (-9223372036854775807LL - 1)
#else
#include <math.h>
#include <stdint.h>
#endif
#define INLINE static __device__ __forceinline__
#define LARGEST 1.7976931348623157e308
#define LARGESTf 3.4028234663852886e38f
extern __shared__ __align__(16) unsigned char shared[];
// All threads of all blocks wait for each other; `met` counts how often, for each thread.
INLINE void meet(unsigned* arrived, unsigned& met) {
    ++met;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(arrived, 1u);
        while ((int)(*(volatile unsigned*)arrived - met * gridDim.x) < 0) {}
        __threadfence();
    }
    __syncthreads();
}
"""

_BY_THREADS = """\
#define WARP 32
#define EVERYONE 0xffffffffu
// One member's elements of memory that a group of W members shares: they lie W apart.
template <typename T, int W> struct Apart {
    T* first;
    __device__ __forceinline__ T& operator[](int i) const { return first[(int64_t)i * W]; }
};
// What the thread that differs in bit `by` of its number has.
template <typename T> INLINE T exchanged(T x, int by) { return __shfl_xor_sync(EVERYONE, x, by); }
INLINE uint8_t exchanged(uint8_t x, int by) { return __shfl_xor_sync(EVERYONE, (int)x, by); }
"""

PRELUDE = _IN_C + _COMMON
CUDA_PRELUDE = _COMMON + _BY_THREADS
