// The two precisions of the kernels. Operands of matrix products come in pairs of numbers that are neighbours along the
// inner index, laid out as fp16 mma fragments have them; float pairs are fed to tf32 instructions in an order of the
// inner index that suits (the order inside a product is free), so that one text serves both.
//
//   Half    wide products (features) in fp16 with fp32 accumulation, narrow ones (values) in tf32: for half inputs
//   Single  every product as three tf32 products of high and low parts, about 2^-21: for float inputs
#pragma once

#include "call.h"
#include "device.cuh"

namespace fwp::gpu {

struct Float2 {
  float x, y;
};

// Instructions cut tf32 operands to 10 bits of mantissa. This makes the cut a rounding to within a fifth of the last place,
// in one operation (round_to_tf32 takes four): it adds 0.34 to 0.69 of it, on average a half. What is exact stays so.
FWP_DEVICE float before_cut(float x) {
  constexpr float part = 0.69f / 2048;
  return x + x * part;
}
// c += A B for float pairs: a[0] (g, 2t..) a[1] (g+8, 2t..) a[2] (g, 2t+8..) a[3] (g+8, 2t+8..), b0 (2t.., g) b1 (2t+8.., g)
FWP_DEVICE void mma_rounded(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
  mma_tf32(c, before_cut(a[0].x), before_cut(a[1].x), before_cut(a[0].y), before_cut(a[1].y), before_cut(b0.x), before_cut(b0.y));
  mma_tf32(c, before_cut(a[2].x), before_cut(a[3].x), before_cut(a[2].y), before_cut(a[3].y), before_cut(b1.x), before_cut(b1.y));
}
FWP_DEVICE void mma_split(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const float a_in[4] = {a[2 * s].x, a[2 * s + 1].x, a[2 * s].y, a[2 * s + 1].y};
    const Float2 b_in = s ? b1 : b0;
    float high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = round_to_tf32(a_in[i]);
      low[i] = round_to_tf32(a_in[i] - high[i]);
    }
    const float b_high[2] = {round_to_tf32(b_in.x), round_to_tf32(b_in.y)};
    const float b_low[2] = {round_to_tf32(b_in.x - b_high[0]), round_to_tf32(b_in.y - b_high[1])};
    mma_tf32(c, low[0], low[1], low[2], low[3], b_high[0], b_high[1]);
    mma_tf32(c, high[0], high[1], high[2], high[3], b_low[0], b_low[1]);
    mma_tf32(c, high[0], high[1], high[2], high[3], b_high[0], b_high[1]);
  }
}

struct Half {
  using Element = uint16_t;
  using Pair = uint32_t;
  static constexpr int padding = 8;  // elements behind a row of shared memory: rows begin 16 bytes apart modulo 128
  static constexpr bool scaled = true;  // operands must be brought near 1

  static FWP_DEVICE Element element(float x) { return to_half(x); }
  static FWP_DEVICE Pair pair(float x, float y) { return pack_halves(x, y); }
  static FWP_DEVICE Float2 values(Pair p) { return {from_half(uint16_t(p)), from_half(uint16_t(p >> 16))}; }
  static FWP_DEVICE Pair multiply(Pair a, Pair b) { return multiply_halves(a, b); }
  static FWP_DEVICE void mma(float (&c)[4], const Pair (&a)[4], Pair b0, Pair b1) {
    mma_half(c, a[0], a[1], a[2], a[3], b0, b1);
  }
  static FWP_DEVICE void mma(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) { mma_rounded(c, a, b0, b1); }

  // 16 rows x 16 columns from `column` on. row(i): start of row i in 0..15. By columns: pairs of rows for one column,
  // p[0] (rows 2t.., column g) p[1] (2t.., g+8) p[2] (2t+8.., g) p[3] (2t+8.., g+8).
  template <class Row> static FWP_DEVICE void by_columns(Pair (&p)[4], int lane, int column, Row row) {
    load_matrices_transposed(p, row((lane >> 4) * 8 + (lane & 7)) + column + (lane >> 3 & 1) * 8);
  }
  // By rows: pairs of columns of one row, p[0] (row g, columns 2t..) p[1] (g+8, 2t..) p[2] (g, 2t+8..) p[3] (g+8, 2t+8..).
  template <class Row> static FWP_DEVICE void by_rows(Pair (&p)[4], int lane, int column, Row row) {
    load_matrices(p, row((lane >> 3 & 1) * 8 + (lane & 7)) + column + (lane >> 4) * 8);
  }
  static FWP_DEVICE float load(Type type, const void* from, int64_t i) {
    const uint16_t x = static_cast<const uint16_t*>(from)[i];
    return type == Type::float16 ? from_half(x) : from_bfloat16(x);
  }
  static FWP_DEVICE void store(Type type, void* to, int64_t i, float x) {
    static_cast<uint16_t*>(to)[i] = type == Type::float16 ? to_half(x) : to_bfloat16(x);
  }
  static FWP_DEVICE Float2 load_pair(Type type, const void* from, int64_t i) {  // i even, aligned
    const uint32_t x = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(from) + i);
    if (type == Type::float16) return values(x);
    return {from_bfloat16(uint16_t(x)), from_bfloat16(uint16_t(x >> 16))};
  }
  static FWP_DEVICE void store_pair(Type type, void* to, int64_t i, Float2 x) {
    const uint32_t bits =
        type == Type::float16 ? pack_halves(x.x, x.y) : to_bfloat16(x.x) | uint32_t(to_bfloat16(x.y)) << 16;
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(to) + i) = bits;
  }
  struct alignas(16) Eight {
    uint32_t words[4];
  };
  static FWP_DEVICE void load_eight(Type type, const void* from, int64_t i, float (&x)[8]) {
    const Eight e = *reinterpret_cast<const Eight*>(static_cast<const uint16_t*>(from) + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint16_t low = uint16_t(e.words[j]), high = uint16_t(e.words[j] >> 16);
      x[2 * j] = type == Type::float16 ? from_half(low) : from_bfloat16(low);
      x[2 * j + 1] = type == Type::float16 ? from_half(high) : from_bfloat16(high);
    }
  }
};

struct Single {
  using Element = float;
  using Pair = Float2;
  static constexpr int padding = 4;
  static constexpr bool scaled = false;

  static FWP_DEVICE Element element(float x) { return x; }
  static FWP_DEVICE Pair pair(float x, float y) { return {x, y}; }
  static FWP_DEVICE Float2 values(Pair p) { return p; }
  static FWP_DEVICE Pair multiply(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  static FWP_DEVICE void mma(float (&c)[4], const Pair (&a)[4], Pair b0, Pair b1) { mma_split(c, a, b0, b1); }

  template <class Row> static FWP_DEVICE void by_columns(Pair (&p)[4], int lane, int column, Row row) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = 2 * t + 8 * (i >> 1), at = column + g + 8 * (i & 1);
      p[i] = {row(first)[at], row(first + 1)[at]};
    }
  }
  template <class Row> static FWP_DEVICE void by_rows(Pair (&p)[4], int lane, int column, Row row) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto* from = row(g + 8 * (i & 1)) + column + 2 * t + 8 * (i >> 1);
      p[i] = {from[0], from[1]};
    }
  }
  static FWP_DEVICE float load(Type, const void* from, int64_t i) { return static_cast<const float*>(from)[i]; }
  static FWP_DEVICE void store(Type, void* to, int64_t i, float x) { static_cast<float*>(to)[i] = x; }
  struct alignas(8) Two {
    float x, y;
  };
  static FWP_DEVICE Float2 load_pair(Type, const void* from, int64_t i) {
    const Two x = *reinterpret_cast<const Two*>(static_cast<const float*>(from) + i);
    return {x.x, x.y};
  }
  static FWP_DEVICE void store_pair(Type, void* to, int64_t i, Float2 x) {
    *reinterpret_cast<Two*>(static_cast<float*>(to) + i) = {x.x, x.y};
  }
  struct alignas(16) Four {
    float x[4];
  };
  static FWP_DEVICE void load_eight(Type, const void* from, int64_t i, float (&x)[8]) {
    const Four* four = reinterpret_cast<const Four*>(static_cast<const float*>(from) + i);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Four y = four[j];
#pragma unroll
      for (int n = 0; n < 4; ++n) x[4 * j + n] = y.x[n];
    }
  }
};

}  // namespace fwp::gpu
