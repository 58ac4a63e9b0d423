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
