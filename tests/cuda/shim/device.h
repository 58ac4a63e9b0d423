// csrc/cuda/kernels/device.cuh for a C++ compiler: the threads of a block are fibres that run one after the other and
// switch at warp-wide primitives and barriers. Blocks run one at a time. Its checks:
//   - shared memory is NaN before every block, and its surroundings are untouched after it
//   - copies into shared memory are waited for, and until then what they bring is not there
//   - all lanes of a warp meet at one place of the sources, and all threads of a block at its barrier
//   - where asked for, accesses to memory that no barrier orders (races.h)
// Sums of products as in products.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define FWP_DEVICE inline
#define FWP_BOTH inline
#define FWP_KERNEL(threads, blocks) void
#define FWP_CONSTANT const
#define FWP_UNROLL for
#define FWP_ROLLED for

namespace fwp::gpu {

using Stream = void*;

namespace shim {

// Where in the sources a barrier stands.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

[[noreturn]] void fail(const char* message);

enum class Op { sync_warp, shuffle, shuffle_xor, mma_half, load_matrices, load_matrices_transposed };

// What the lanes of a warp hand in and get back.
struct Lane {
  union {
    uint32_t in[10];
    float in_f[10];
  };
  union {
    uint32_t out[4];
    float out_f[4];
  };
  const void* address;
  int source;
};
Lane& lane();  // of the running thread
void meet(Op op, Site site);  // returns when all lanes of the warp have called it and the exchange is done
// Barriers, unless that of this place is left out (places.h).
void meet_warp(Site site);
void meet_block(Site site);  // returns when all have called it
void note_access(const void* address, int bytes, bool write);  // by the running thread; for races.h
// A copy of the running thread may write at any time between these two. It does so in the second; until then NaN stands
// there.
void start_copy(void* to, const void* from, int bytes);
void finish_copies();
int thread();
int block();
char* shared(int bytes);
int shared_bytes();

extern const float* const half_values;  // of all 65536 halves
extern const char*
    missing_code;  // what the device says of kernels that it has no code for, if that is what is emulated

using Body = void (*)(const void* kernel, const void* argument);
// What nvcc has made of a kernel, translated, if that is to run in its place, or null; see ptx.h.
using Translated = void (*)(const void* argument);
Translated translation_of(const void* kernel);
const char* run(Body body, const void* kernel, const void* argument, int blocks, int threads, int shared_bytes);

}  // namespace shim

inline int thread_index() { return shim::thread(); }
inline int block_index() { return shim::block(); }
inline int warp_index() { return shim::thread() / 32; }
inline int kept(int x) { return x; }
inline char* shared_memory(int bytes) { return shim::shared(bytes); }
using Site = shim::Site;
inline void sync_block(Site site = Site::here()) { shim::meet_block(site); }
inline void sync_warp(Site site = Site::here()) { shim::meet_warp(site); }
inline float shuffle_xor(float x, int mask, Site site = Site::here()) {
  shim::Lane& own = shim::lane();
  own.in_f[0] = x;
  own.source = mask;
  shim::meet(shim::Op::shuffle_xor, site);
  return own.out_f[0];
}
inline float shuffle(float x, int source, Site site = Site::here()) {
  shim::Lane& own = shim::lane();
  own.in_f[0] = x;
  own.source = source;
  shim::meet(shim::Op::shuffle, site);
  return own.out_f[0];
}

inline float larger(float x, float y) { return std::fmax(x, y); }
inline float largest_of_warp(float x, Site site = Site::here()) {
  for (int mask = 1; mask < 32; mask *= 2) x = larger(x, shuffle_xor(x, mask, site));
  return x;
}

inline void require(bool holds, const char* what) {
  if (!holds) shim::fail(what);
}

inline uint32_t bits_of(float x) {
  uint32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline float float_of(uint32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}

inline uint16_t to_half(float x) {
  const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7fff);
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and more round to infinity
  if (magnitude < 0x38800000)  // below 2^-14: a multiple of 2^-24, rounded by the addition
    return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  return uint16_t(sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13));
}
inline float from_half(uint16_t x) { return shim::half_values[x]; }
inline uint16_t to_bfloat16(float x) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline float from_bfloat16(uint16_t x) { return float_of(uint32_t(x) << 16); }
inline uint32_t pack_bfloat16s(float a, float b) { return to_bfloat16(a) | uint32_t(to_bfloat16(b)) << 16; }
inline uint32_t pack_halves(float a, float b) { return to_half(a) | uint32_t(to_half(b)) << 16; }
inline float first_half(uint32_t x) { return from_half(uint16_t(x)); }
inline float second_half(uint32_t x) { return from_half(uint16_t(x >> 16)); }
inline void split_halves(uint32_t x, float& first, float& second) { first = first_half(x), second = second_half(x); }
inline uint32_t multiply_halves(uint32_t x, uint32_t y) {
  return pack_halves(first_half(x) * first_half(y), second_half(x) * second_half(y));
}
inline uint32_t add_halves(uint32_t x, uint32_t y) {
  return pack_halves(first_half(x) + first_half(y), second_half(x) + second_half(y));
}
// x y + z, rounded once: a float holds the product, a double the sum, and a float rounded to odd what to_half rounds.
inline uint32_t fma_halves(uint32_t x, uint32_t y, uint32_t z) {
  const auto fma = [](float a, float b, float c) {
    const double exact = double(a * b) + c;
    float odd = float(exact);
    if (odd != exact) odd = float_of((std::fabs(odd) > std::fabs(exact) ? bits_of(odd) - 1 : bits_of(odd)) | 1);
    return to_half(odd);
  };
  return fma(first_half(x), first_half(y), first_half(z)) |
         uint32_t(fma(second_half(x), second_half(y), second_half(z))) << 16;
}
inline uint32_t not_zero(uint32_t x) { return (x & 0x7fff ? 0xffffu : 0) | (x & 0x7fff0000u ? 0xffff0000u : 0); }
inline uint32_t positive_halves(uint32_t x) {  // 0 for negative ones
  const auto positive = [](float a) { return a < 0 ? 0.f : a; };
  return pack_halves(positive(first_half(x)), positive(second_half(x)));
}
inline uint32_t positive_product(uint32_t x, uint32_t y) { return positive_halves(multiply_halves(x, y)); }
inline uint32_t larger_numbers(uint32_t x, uint32_t y) {
  return pack_halves(std::fmax(first_half(x), first_half(y)), std::fmax(second_half(x), second_half(y)));
}
inline uint32_t signs(uint32_t x) { return (x & 0x8000 ? 0xffffu : 0) | (x >> 31 ? 0xffff0000u : 0); }
inline uint32_t chosen(uint32_t mask, uint32_t x, uint32_t y) { return (mask & x) | (~mask & y); }
inline uint32_t halves_of_bfloat16s(uint32_t x, uint32_t power) {
  const uint32_t y = pack_bfloat16s(from_bfloat16(uint16_t(x)) * from_bfloat16(uint16_t(power)),
                                    from_bfloat16(uint16_t(x >> 16)) * from_bfloat16(uint16_t(power >> 16)));
  return pack_halves(from_bfloat16(uint16_t(y)), from_bfloat16(uint16_t(y >> 16)));
}
inline uint32_t straddle(uint32_t x, uint32_t y) { return x >> 16 | y << 16; }
struct alignas(16) Eight {
  uint32_t w[4];
};
inline Eight eight(const void* at) { return *static_cast<const Eight*>(at); }
inline void put_eight(void* at, const Eight& x) { *static_cast<Eight*>(at) = x; }
inline float exponential(float x) { return std::exp(x); }
inline float absolute(float x) { return std::fabs(x); }
inline float square_root(float x) { return std::sqrt(x); }

inline void start_copy(void* to, const void* from) { shim::start_copy(to, from, 16); }
inline void start_copy(void* to, const void* from, int bytes) {
  static const Eight zeros = {};
  shim::start_copy(to, bytes ? from : &zeros, 16);
}
inline void start_copy_of_word(void* to, const void* from) { shim::start_copy(to, from, 4); }
inline void copies_arrived() { shim::finish_copies(); }

inline void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::here()) {
  shim::Lane& own = shim::lane();
  const uint32_t operands[6] = {a[0], a[1], a[2], a[3], b0, b1};
  std::memcpy(own.in, operands, sizeof operands);
  std::memcpy(own.in + 6, c, sizeof c);
  shim::meet(shim::Op::mma_half, site);
  std::memcpy(c, own.out, sizeof c);
}
inline void load_matrices(uint32_t (&x)[4], const void* row, Site site = Site::here()) {
  shim::Lane& own = shim::lane();
  own.address = row;
  shim::meet(shim::Op::load_matrices, site);
  std::memcpy(x, own.out, sizeof x);
}
inline void load_matrices_transposed(uint32_t (&x)[4], const void* row, Site site = Site::here()) {
  shim::Lane& own = shim::lane();
  own.address = row;
  shim::meet(shim::Op::load_matrices_transposed, site);
  std::memcpy(x, own.out, sizeof x);
}

template <class Argument> const char* missing_code(void (*)(Argument)) { return shim::missing_code; }
template <class Argument>
const char* launch(void (*kernel)(Argument), int blocks, int threads, int shared, Stream, const Argument& argument) {
  if (const shim::Translated made = shim::translation_of(reinterpret_cast<const void*>(kernel))) {
    const auto body = [](const void* made, const void* argument) {
      (*static_cast<const shim::Translated*>(made))(argument);
    };
    return shim::run(body, &made, &argument, blocks, threads, shared);
  }
  const auto body = [](const void* kernel, const void* argument) {
    (*static_cast<void (*const*)(Argument)>(kernel))(*static_cast<const Argument*>(argument));
  };
  return shim::run(body, &kernel, &argument, blocks, threads, shared);
}

}  // namespace fwp::gpu
