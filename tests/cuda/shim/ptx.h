// What translated PTX (tests/cuda/ptx.py) is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "shim/device.h"

namespace fwp::gpu {

namespace shim {
// Puts a translated kernel on the list of those that run in place of their sources.
struct Translation {
  Translation(const char* name, Translated kernel);
};

// Counts what a thread executes; at its end, of a warp what the lane with most has executed (translated.cpp).
struct Executed {
  uint64_t count = 0;
  void operator+=(uint64_t some) { count += some; }
  ~Executed();
};
}  // namespace shim

// A register is the low bits of a word.
template <class T> T get(uint64_t word) {
  T x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}
template <> inline bool get<bool>(uint64_t word) { return word != 0; }
template <class T> void set(uint64_t& word, T x) {
  word = 0;
  std::memcpy(&word, &x, sizeof x);
}
template <class T, int count> T* aligned(char* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % (count * sizeof(T))) shim::fail("an access is not aligned");
  return reinterpret_cast<T*>(at);
}

// set.neu: all bits of halves that differ or are NaN.
inline uint32_t not_equal_halves(uint32_t x, uint32_t y) {
  return (first_half(x) != first_half(y) ? 0xffffu : 0) | (second_half(x) != second_half(y) ? 0xffff0000u : 0);
}
// prmt: byte i of the result is the one of x (0 to 3) or y (4 to 7) that digit i of `which` names, or, from 8 on, its sign.
inline uint32_t chosen_bytes(uint32_t x, uint32_t y, uint32_t which) {
  const uint64_t both = x | uint64_t(y) << 32;
  uint32_t found = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = which >> 4 * i, byte = both >> 8 * (digit & 7) & 0xff;
    found |= (digit & 8 ? (byte >> 7) * 0xff : byte) << 8 * i;
  }
  return found;
}
// lop3: each bit is the one of the table that the bits of x, y and z are the number of.
inline uint32_t of_three_words(uint32_t x, uint32_t y, uint32_t z, uint32_t table) {
  uint32_t found = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) found |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
  return found;
}
inline uint32_t fma_bfloat16s(uint32_t x, uint32_t y, uint32_t z) {
  const auto fma = [](uint32_t x, uint32_t y, uint32_t z) {
    return std::fmaf(from_bfloat16(uint16_t(x)), from_bfloat16(uint16_t(y)), from_bfloat16(uint16_t(z)));
  };
  return pack_bfloat16s(fma(x, y, z), fma(x >> 16, y >> 16, z >> 16));
}

// bfi: y, whose `count` bits from `at` on are the lowest ones of x.
inline uint32_t with_bits(uint32_t x, uint32_t y, uint32_t at, uint32_t count) {
  const uint32_t bits = uint32_t(((uint64_t(1) << count) - 1) << at);
  return (x << at & bits) | (y & ~bits);
}

// By the type's width or more, nothing is left but the sign.
template <class T> T shift_left(T x, uint32_t by) { return by < 8 * sizeof x ? T(x << by) : T(0); }
template <class T> T shift_right(T x, uint32_t by) { return T(by < 8 * sizeof x ? x >> by : x < 0 ? -1 : 0); }
inline bool unordered(float x, float y) { return x != x || y != y; }
inline float saturated(float x) { return x > 0 ? std::min(x, 1.f) : 0.f; }  // NaN becomes 0
// a b + c rounded downwards, of numbers whose exact result double holds.
inline float fma_down(float a, float b, float c) {
  const double exact = double(a) * b + c;
  const float near = float(exact);
  return near > exact ? std::nextafter(near, -INFINITY) : near;
}

}  // namespace fwp::gpu
