// Vectors of FWP_VECTOR_BYTES in the compilers' own notation (g++ and clang, any processor): no intrinsics, so one text
// serves every instruction set.
#pragma once

#include "instruction_set.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <int n> using Int = std::integral_constant<int, n>;

// Calls f(Int<0>{}), f(Int<1>{}), ... The compiler must unroll this, so arrays of vectors stay in registers.
template <class F, int... i> FWP_INLINE void unroll(F& f, std::integer_sequence<int, i...>) { (f(Int<i>{}), ...); }
template <int N, class F> FWP_INLINE void unroll(F f) { unroll(f, std::make_integer_sequence<int, N>{}); }

template <class T> struct Lanes;
template <> struct Lanes<float> {
  static constexpr int count = FWP_VECTOR_BYTES / 4;
  typedef float vec __attribute__((vector_size(FWP_VECTOR_BYTES)));
  typedef float unaligned __attribute__((vector_size(FWP_VECTOR_BYTES), aligned(4), may_alias));
  typedef std::int32_t ints __attribute__((vector_size(FWP_VECTOR_BYTES)));
  // exp: beyond the range of a normal number the result is 0; `round` makes x + round - round the nearest integer.
  static constexpr float lowest_exponent = -87.0f, round = 12582912.0f;
  static constexpr float ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
  static constexpr int mantissa = 23, terms = 7;
  static constexpr std::int32_t one = 0x3f800000;
};
template <> struct Lanes<double> {
  static constexpr int count = FWP_VECTOR_BYTES / 8;
  typedef double vec __attribute__((vector_size(FWP_VECTOR_BYTES)));
  typedef double unaligned __attribute__((vector_size(FWP_VECTOR_BYTES), aligned(8), may_alias));
  typedef std::int64_t ints __attribute__((vector_size(FWP_VECTOR_BYTES)));
  static constexpr double lowest_exponent = -708.0, round = 6755399441055744.0;
  static constexpr double ln2_high = 0.693147180369123816490, ln2_low = 1.90821492927058770002e-10;
  static constexpr int mantissa = 52, terms = 13;
  static constexpr std::int64_t one = 0x3ff0000000000000;
};
template <class T> using Vec = typename Lanes<T>::vec;
template <class T> constexpr idx width = Lanes<T>::count;

template <class T> FWP_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename Lanes<T>::unaligned*>(p);
}
template <class T> FWP_INLINE void store(T* p, Vec<T> x) { *reinterpret_cast<typename Lanes<T>::unaligned*>(p) = x; }
// Prefetches a cache line, because the rows of one head are short and far apart, which the processor's own prefetcher
// does not foresee. The line goes to the second-level cache, because rows that are a multiple of 4096 bytes apart share
// few sets of the first.
template <bool ToWrite, class T> FWP_INLINE void prefetch(const T* p) { __builtin_prefetch(p, ToWrite ? 1 : 0, 2); }
template <class T> FWP_INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }  // x - 0 is x for every x, -0 included

// The lanes' numbers 0, 1, 2, ... as integers.
template <class T> FWP_INLINE typename Lanes<T>::ints lane_numbers() {
  typename Lanes<T>::ints numbers{};
  for (int i = 0; i < Lanes<T>::count; ++i) numbers[i] = i;
  return numbers;
}

template <class T> FWP_INLINE T sum_of_lanes(Vec<T> x) {
  T total = 0;
  for (int i = 0; i < Lanes<T>::count; ++i) total += x[i];
  return total;
}

// True if x is infinite or NaN.
template <class T> FWP_INLINE bool is_beyond(T x) { return x - x != 0; }

// relu keeps a NaN, as torch's does.
template <class T> FWP_INLINE Vec<T> relu(Vec<T> x) { return x < Vec<T>{} ? Vec<T>{} : x; }

template <class T> constexpr T inverse_factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; ++i) product *= i;
  return T(1 / product);
}

// exp(x) for x <= 80 or so, within 2 units in the last place; NaN stays NaN.
template <class T> FWP_INLINE Vec<T> exponential(Vec<T> x) {
  typedef Lanes<T> L;
  const Vec<T> lowest = splat(L::lowest_exponent), round = splat(L::round);
  const auto tiny = x < lowest;
  x = tiny ? lowest : x;
  const Vec<T> shifted = x * splat(T(1.44269504088896340736)) + round;
  const Vec<T> n = shifted - round;
  const Vec<T> r = x - n * splat(L::ln2_high) - n * splat(L::ln2_low);
  Vec<T> y = splat(inverse_factorial<T>(L::terms));  // Horner of the Taylor series
  unroll<L::terms>([&](auto i) FWP_INLINE_LAMBDA { y = y * r + splat(inverse_factorial<T>(L::terms - 1 - i)); });
  typedef typename L::ints ints;
  const ints scale = ((ints)shifted << L::mantissa) + L::one;  // the bits of 2^n
  y *= (Vec<T>)scale;
  return tiny ? Vec<T>{} : y;
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define FWP_SHUFFLE 1
#endif
#endif

// Lane i of the result is lane Pick::lane(i) of a followed by b.
template <class Out, class Pick, class In, int... i>
FWP_INLINE Out picked(In a, In b, std::integer_sequence<int, i...>) {
#ifdef FWP_SHUFFLE
  return __builtin_shufflevector(a, b, Pick::lane(i)...);
#else
  constexpr int N = sizeof(In) / sizeof(a[0]);
  return Out{(Pick::lane(i) < N ? a[Pick::lane(i) % N] : b[Pick::lane(i) % N])...};
#endif
}
template <class Pick, class T> FWP_INLINE Vec<T> picked(Vec<T> a, Vec<T> b) {
  return picked<Vec<T>, Pick>(a, b, std::make_integer_sequence<int, Lanes<T>::count>{});
}

// Processors shuffle cheaply within blocks of 16 bytes, and put such blocks together while they load them.
template <class T> constexpr int block_lanes = 16 / sizeof(T);

// In each block: units of `Unit` lanes in turn from a and b, of the lower or the upper half of the block.
template <class T, int Unit, bool Upper> struct Interleave {
  static constexpr int lane(int i) {
    constexpr int B = block_lanes<T>;
    const int within = i % B, unit = within / Unit;
    return (unit % 2 ? Lanes<T>::count : 0) + i / B * B + (Upper ? B / 2 : 0) + unit / 2 * Unit + within % Unit;
  }
};
struct Concatenate {
  static constexpr int lane(int i) { return i; }
};

// The last lane of a, then b without its last.
template <class T> struct Roll {
  static constexpr int lane(int i) { return Lanes<T>::count - 1 + i; }
};

// Blocks of the rows from, from + step, ...: as many as `bytes` hold.
template <class T, int bytes> FWP_INLINE auto load_blocks(const T* from, idx step) {
  typedef T vec __attribute__((vector_size(bytes)));
  if constexpr (bytes == 16) {
    typedef T unaligned __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
    return static_cast<vec>(*reinterpret_cast<const unaligned*>(from));
  } else {
    constexpr int half = bytes / 2;
    return picked<vec, Concatenate>(load_blocks<T, half>(from, step),
                                    load_blocks<T, half>(from + half / 16 * step, step),
                                    std::make_integer_sequence<int, bytes / (int)sizeof(T)>{});
  }
}

// Calls f(Int<j>{}, column j) for each lane j of as many rows as there are lanes. The columns are made a few at a time,
// so that they stay in registers.
template <class T, class F> FWP_INLINE void for_columns(const T* from, idx ld, F f) {
  constexpr int lanes = Lanes<T>::count, B = block_lanes<T>;
  unroll<lanes / B>([&](auto block) FWP_INLINE_LAMBDA {
    Vec<T> r[B];
    unroll<B>([&](auto i)
                  FWP_INLINE_LAMBDA { r[i] = load_blocks<T, FWP_VECTOR_BYTES>(from + i * ld + block * B, B * ld); });
    typedef Interleave<T, 1, false> Low;
    typedef Interleave<T, 1, true> High;
    if constexpr (B == 2) {
      f(Int<block * B>{}, picked<Low, T>(r[0], r[1]));
      f(Int<block * B + 1>{}, picked<High, T>(r[0], r[1]));
    } else {
      typedef Interleave<T, 2, false> LowPair;
      typedef Interleave<T, 2, true> HighPair;
      const Vec<T> a = picked<Low, T>(r[0], r[1]), b = picked<Low, T>(r[2], r[3]);
      const Vec<T> c = picked<High, T>(r[0], r[1]), d = picked<High, T>(r[2], r[3]);
      f(Int<block * B>{}, picked<LowPair, T>(a, b));
      f(Int<block * B + 1>{}, picked<HighPair, T>(a, b));
      f(Int<block * B + 2>{}, picked<LowPair, T>(c, d));
      f(Int<block * B + 3>{}, picked<HighPair, T>(c, d));
    }
  });
}

// to[j][i] = from[i][j], for as many rows as there are lanes.
template <class T> FWP_INLINE void transpose_block(const T* from, idx from_ld, T* to, idx to_ld) {
  for_columns(from, from_ld, [&](auto j, Vec<T> column) FWP_INLINE_LAMBDA { store<T>(to + j * to_ld, column); });
}

// A butterfly step: takes the lanes whose number has the bit `Step` from b and the others from a or, with Other, the
// lanes whose numbers differ from these in that bit.
template <class T, int Step, bool Other> struct Cross {
  static constexpr int lane(int i) {
    constexpr int lanes = Lanes<T>::count;
    return (i & Step) ? lanes + i - (Other ? 0 : Step) : i + (Other ? Step : 0);
  }
};
// Lane i: the sum of rows[i]'s lanes, for the 2 Step rows.
template <class T, int Step> FWP_INLINE Vec<T> sum_of_rows(Vec<T>* rows) {
  for (int i = 0; i < Step; ++i)
    rows[i] = picked<Cross<T, Step, false>, T>(rows[i], rows[i + Step]) +
              picked<Cross<T, Step, true>, T>(rows[i], rows[i + Step]);
  if constexpr (Step > 1) return sum_of_rows<T, Step / 2>(rows);
  else return rows[0];
}
template <class T> FWP_INLINE Vec<T> sum_of_rows(Vec<T>* rows) { return sum_of_rows<T, Lanes<T>::count / 2>(rows); }

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
