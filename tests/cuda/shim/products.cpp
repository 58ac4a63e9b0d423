#include "products.h"

#include <cmath>
#include <cstdint>

namespace fwp::gpu::shim {

namespace {

using Floats = float __attribute__((vector_size(4 * product_columns)));
using Integers = int32_t __attribute__((vector_size(4 * product_columns)));

// Sums whose summands are so large or small that the powers of two below could leave the range of floats, or are not
// numbers, are made one after the other.
constexpr int most_exponent = 100, least_exponent = -70;

inline void add_in_order(const float* a, const Floats* B, int inner, Floats& C) {
  for (int k = 0; k < inner; ++k) C += a[k] * B[k];
}
inline void add_towards_zero(const float* a, const Floats* B, int inner, Floats& C) {
  // Products of two numbers with 11 bits are exact in float.
  Floats products[most_products];
  Integers top = (Integers)C & 0x7fffffff;
  for (int k = 0; k < inner; ++k) {
    products[k] = a[k] * B[k];
    const Integers size = (Integers)products[k] & 0x7fffffff;
    top = size > top ? size : top;
  }
  const Integers exponent = (top >> 23) - 127, some = top != 0;
  const Integers outside = some & ((exponent > most_exponent) | (exponent < least_exponent));
  for (int j = 0; j < product_columns; ++j)
    if (outside[j]) return add_in_order(a, B, inner, C);
  // Numbers times 2^(25 - exponent) are below 2^26, and 17 of them below 2^31.
  const Floats scale = (Floats)((25 - exponent + 127) << 23), back = (Floats)((exponent - 25 + 127) << 23);
  Integers sum = __builtin_convertvector(C * scale, Integers);
  for (int k = 0; k < inner; ++k) sum += __builtin_convertvector(products[k] * scale, Integers);
  const Integers sign = sum & INT32_MIN, size = sum < 0 ? -sum : sum;
  // Cut to the bits of a float: the nearest one, or where that is larger the one before it.
  const Floats nearest = __builtin_convertvector(size, Floats);
  const Integers cut = (Integers)nearest + (__builtin_convertvector(nearest, Integers) > size);
  C = (Floats)(some & (Integers)((Floats)(cut | sign) * back));
}

}  // namespace

#if defined(__x86_64__) && defined(__gnu_linux__)
__attribute__((target_clones("avx2", "default")))  // of which AVX2 fuses nothing
#endif
void multiply(const float (&A)[product_rows][most_products], const float (&B)[most_products][product_columns], int inner,
              float (&C)[product_rows][product_columns]) {
  Floats columns[most_products], sum;
  for (int k = 0; k < inner; ++k) __builtin_memcpy(&columns[k], B[k], sizeof sum);
  for (int i = 0; i < product_rows; ++i) {
    __builtin_memcpy(&sum, C[i], sizeof sum);
    add_towards_zero(A[i], columns, inner, sum);
    __builtin_memcpy(C[i], &sum, sizeof sum);
  }
}

}  // namespace fwp::gpu::shim
