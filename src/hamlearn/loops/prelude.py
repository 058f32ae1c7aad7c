"""What stands in front of every loop in C."""

PRELUDE = """\
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
// Both are computed, and one is taken. A load under a condition would do for C, but not for every compiler: gcc 12
// gives wrong numbers for loops of odd length with such loads.
#define CHOOSE(T) static inline T choose_##T(int c, T a, T b) { return c ? a : b; }
CHOOSE(float) CHOOSE(double) CHOOSE(int64_t) CHOOSE(int32_t) CHOOSE(uint8_t)
static inline int64_t clip(int64_t i, int64_t n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }
static inline int within(int64_t i, int64_t least, int64_t n) { return i >= least && i < n; }
#define OUTSIDE(r, b) (r != 0 && (r < 0) != (b < 0))
static inline double modulo(double a, double b) { a = fmod(a, b); return OUTSIDE(a, b) ? a + b : a; }
static inline float modulof(float a, float b) { a = fmodf(a, b); return OUTSIDE(a, b) ? a + b : a; }
static inline int64_t whole_part(int64_t a, int64_t b) { return b ? a / b : 0; }
static inline int64_t whole_modulo(int64_t a, int64_t b) { a = b ? a % b : 0; return OUTSIDE(a, b) ? a + b : a; }
static inline int64_t whole_quotient(int64_t a, int64_t b) { return b ? (a - whole_modulo(a, b)) / b : 0; }
static inline int64_t wrapped(int64_t i, int64_t n) { return clip(i < 0 ? i + n : i, n); }
"""
