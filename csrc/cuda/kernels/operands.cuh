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
// in one operation (round_to_tf32 takes four): it adds 0.34 to 0.69 of it, on average a half. Exact numbers stay exact.
FWP_DEVICE float before_cut(float x) {
  constexpr float part = 0.69f / 2048;
  return x + x * part;
}
// c += A B for float pairs: a[0] (g, 2t..) a[1] (g+8, 2t..) a[2] (g, 2t+8..) a[3] (g+8, 2t+8..), b0 (2t.., g) b1 (2t+8.., g)
// An A that was a half is exact in tf32.
template <bool A_IS_EXACT>
FWP_DEVICE void mma_rounded(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
  const auto in = [](float x) { return A_IS_EXACT ? x : before_cut(x); };
  mma_tf32(c, in(a[0].x), in(a[1].x), in(a[0].y), in(a[1].y), before_cut(b0.x), before_cut(b0.y));
  mma_tf32(c, in(a[2].x), in(a[3].x), in(a[2].y), in(a[3].y), before_cut(b1.x), before_cut(b1.y));
}
// Tensor cores round sums towards zero, so a long sum made by them drifts. They only make the sum of these six products,
// and an addition that rounds to nearest adds it to `to`.
FWP_DEVICE void mma_split(float (&to)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
  float c[4] = {};
  FWP_UNROLL for (int s = 0; s < 2; ++s) {
    const float a_in[4] = {a[2 * s].x, a[2 * s + 1].x, a[2 * s].y, a[2 * s + 1].y};
    const Float2 b_in = s ? b1 : b0;
    float high[4], low[4];
    FWP_UNROLL for (int i = 0; i < 4; ++i) {
      high[i] = round_to_tf32(a_in[i]);
      low[i] = round_to_tf32(a_in[i] - high[i]);
    }
    const float b_high[2] = {round_to_tf32(b_in.x), round_to_tf32(b_in.y)};
    const float b_low[2] = {round_to_tf32(b_in.x - b_high[0]), round_to_tf32(b_in.y - b_high[1])};
    mma_tf32(c, low[0], low[1], low[2], low[3], b_high[0], b_high[1]);
    mma_tf32(c, high[0], high[1], high[2], high[3], b_low[0], b_low[1]);
    mma_tf32(c, high[0], high[1], high[2], high[3], b_high[0], b_high[1]);
  }
  FWP_UNROLL for (int i = 0; i < 4; ++i) to[i] += c[i];
}

template <Type x> struct Constant {
  static constexpr Type value = x;
};
struct alignas(16) Vector {  // as many numbers as one access moves
  uint32_t words[4];
};

// 16 x 16 numbers in memory as an operand: `along` it go tokens of an A or columns of a B, pairs are neighbours along the
// inner index. A: p[0] (along g, inner 2t..) p[1] (g+8, 2t..) p[2] (g, 2t+8..) p[3] (g+8, 2t+8..); B, of two products:
// p[0] (g, 2t..) p[1] (g, 2t+8..) p[2] (g+8, 2t..) p[3] (g+8, 2t+8..). The inner index goes down the rows, or along them.
// `corner` is where a lane loads from, before the 16 x 16 numbers' own place is added.
template <bool A, bool DOWN> struct Operand {
  static constexpr bool is_a = A, pairs_of_rows = DOWN;
};
using A_down = Operand<true, true>;
using B_down = Operand<false, true>;
using A_across = Operand<true, false>;
using B_across = Operand<false, false>;

struct Half {
  using Element = uint16_t;
  using Pair = uint32_t;
  static constexpr int padding = 8;  // elements behind a row of shared memory: rows begin 16 bytes apart modulo 128
  static constexpr bool scaled = true;  // operands must be brought near 1

  static FWP_DEVICE Element element(float x) { return to_half(x); }
  static FWP_DEVICE Pair pair(float x, float y) { return pack_halves(x, y); }
  static FWP_DEVICE Float2 values(Pair p) { return {from_half(uint16_t(p)), from_half(uint16_t(p >> 16))}; }
  static FWP_DEVICE Pair multiply(Pair a, Pair b) { return multiply_halves(a, b); }
  static FWP_DEVICE Pair keep(Pair p, bool x, bool y) { return p & ((x ? 0xffffu : 0u) | (y ? 0xffff0000u : 0u)); }
  static FWP_DEVICE Pair relu(Pair p) { return relu_halves(p); }
  static FWP_DEVICE Pair joined(Element x, Element y) { return x | uint32_t(y) << 16; }
  static FWP_DEVICE Element part(Pair p, int n) { return Element(n ? p >> 16 : p); }
  static FWP_DEVICE Pair negative(Pair p) { return p ^ 0x80008000u; }
  static FWP_DEVICE void mma(float (&c)[4], const Pair (&a)[4], Pair b0, Pair b1) {
    mma_half(c, a[0], a[1], a[2], a[3], b0, b1);
  }
  static FWP_DEVICE void mma(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
    mma_rounded<false>(c, a, b0, b1);
  }
  static FWP_DEVICE void mma_features(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
    mma_rounded<true>(c, a, b0, b1);
  }
  // Numbers of moderate size in two parts, to 22 bits of mantissa or 2^-25, and their product with halves.
  using Exact = Pair[2][4];
  static FWP_DEVICE void split(Exact& part, const Float2 (&a)[4]) {
    FWP_UNROLL for (int i = 0; i < 4; ++i) {
      part[1][i] = pair(a[i].x, a[i].y);
      const Float2 high = values(part[1][i]);
      part[0][i] = pair(a[i].x - high.x, a[i].y - high.y);
    }
  }
  static FWP_DEVICE void mma_exact(float (&c)[4], const Exact& a, Pair b0, Pair b1) {
    mma(c, a[0], b0, b1);
    mma(c, a[1], b0, b1);
  }

  template <class O> static FWP_DEVICE int corner(int lane, int ld) {
    const int far = 8 * (lane >> 4), near = 8 * (lane >> 3 & 1), r = lane & 7;
    return O::pairs_of_rows == O::is_a ? (far + r) * ld + near : (near + r) * ld + far;
  }
  template <class O, int LD> static FWP_DEVICE void load(Pair (&p)[4], const Element* corner) {
    if (O::pairs_of_rows) load_matrices_transposed(p, corner);
    else load_matrices(p, corner);
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
    const uint32_t bits = type == Type::float16 ? pack_halves(x.x, x.y) : pack_bfloat16s(x.x, x.y);
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(to) + i) = bits;
  }
  // f with the type of a call's numbers as a constant; two such numbers as they stand in memory.
  template <class F> static FWP_DEVICE void for_type(Type type, F f) {
    if (type == Type::float16) f(Constant<Type::float16>{});
    else f(Constant<Type::bfloat16>{});
  }
  template <Type type> static FWP_DEVICE Float2 numbers(Pair p) {
    if (type == Type::float16) return values(p);
    return {float_of(p << 16), float_of(p & 0xffff0000u)};
  }
  template <Type type> static FWP_DEVICE Pair packed(Float2 x) {
    return type == Type::float16 ? pack_halves(x.x, x.y) : pack_bfloat16s(x.x, x.y);
  }
  struct Eight {  // numbers that are neighbours in memory
    Vector v;
    FWP_DEVICE Pair& pair(int n) { return v.words[n]; }
  };
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
  static FWP_DEVICE Pair keep(Pair p, bool x, bool y) { return {x ? p.x : 0.f, y ? p.y : 0.f}; }
  static FWP_DEVICE Pair relu(Pair p) { return {p.x < 0 ? 0.f : p.x, p.y < 0 ? 0.f : p.y}; }
  static FWP_DEVICE Pair joined(Element x, Element y) { return {x, y}; }
  static FWP_DEVICE Element part(Pair p, int n) { return n ? p.y : p.x; }
  static FWP_DEVICE Pair negative(Pair p) { return {-p.x, -p.y}; }
  static FWP_DEVICE void mma(float (&c)[4], const Pair (&a)[4], Pair b0, Pair b1) { mma_split(c, a, b0, b1); }
  static FWP_DEVICE void mma_features(float (&c)[4], const Float2 (&a)[4], Float2 b0, Float2 b1) {
    mma_split(c, a, b0, b1);
  }
  using Exact = Pair[4];
  static FWP_DEVICE void split(Exact& part, const Float2 (&a)[4]) {
    FWP_UNROLL for (int i = 0; i < 4; ++i) part[i] = a[i];
  }
  static FWP_DEVICE void mma_exact(float (&c)[4], const Exact& a, Pair b0, Pair b1) { mma_split(c, a, b0, b1); }

  template <class O> static FWP_DEVICE int corner(int lane, int ld) {
    const int g = lane >> 2, t = lane & 3;
    return O::pairs_of_rows ? 2 * t * ld + g : g * ld + 2 * t;
  }
  template <class O, int LD> static FWP_DEVICE void load(Pair (&p)[4], const Element* corner) {
    constexpr int next = O::pairs_of_rows ? LD : 1;
    FWP_UNROLL for (int i = 0; i < 4; ++i) {
      const bool second = O::is_a ? i >> 1 : i & 1, along = O::is_a ? i & 1 : i >> 1;
      const Element* at = corner + 8 * (O::pairs_of_rows ? second * LD + along : along * LD + second);
      p[i] = {at[0], at[next]};
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
  template <class F> static FWP_DEVICE void for_type(Type, F f) { f(Constant<Type::float32>{}); }
  template <Type> static FWP_DEVICE Float2 numbers(Pair p) { return p; }
  template <Type> static FWP_DEVICE Pair packed(Float2 x) { return x; }
  struct alignas(16) Eight {
    Pair p[4];
    FWP_DEVICE Pair& pair(int n) { return p[n]; }
  };
};

}  // namespace fwp::gpu
