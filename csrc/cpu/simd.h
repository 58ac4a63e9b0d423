// Vectors of FWP_VECTOR_BYTES in the compilers' own notation (g++ and clang, any processor): no intrinsics, so one text
// serves every instruction set. Included by kernels_*.cpp only, inside a namespace of its own for each of them.

template <int n> using Int = std::integral_constant<int, n>;

// f(Int<0>{}), f(Int<1>{}), ...: unrolled for certain, so that arrays of vectors stay in registers.
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

// Butterfly step of a transpose: swaps the blocks of `Step` lanes that lie across the diagonal of a pair of rows.
template <class T, int Step, std::size_t... i>
FWP_INLINE void swap_blocks(Vec<T>& a, Vec<T>& b, std::index_sequence<i...>) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define FWP_SHUFFLE 1
#endif
#endif
  constexpr int W = Lanes<T>::count;
#ifdef FWP_SHUFFLE
  const Vec<T> low = __builtin_shufflevector(a, b, ((int)i & Step ? W + (int)i - Step : (int)i)...);
  const Vec<T> high = __builtin_shufflevector(a, b, ((int)i & Step ? W + (int)i : (int)i + Step)...);
#else
  Vec<T> low, high;
  for (int l = 0; l < W; ++l) {
    low[l] = l & Step ? b[l - Step] : a[l];
    high[l] = l & Step ? b[l] : a[l + Step];
  }
#endif
  a = low;
  b = high;
}
template <class T, int Step> FWP_INLINE void transpose_steps(Vec<T>* rows) {
  constexpr int W = Lanes<T>::count;
  unroll<W>([&](auto i) FWP_INLINE_LAMBDA {
    if constexpr (!(i & Step)) swap_blocks<T, Step>(rows[i], rows[i + Step], std::make_index_sequence<W>{});
  });
  if constexpr (Step > 1) transpose_steps<T, Step / 2>(rows);
}

// Lane i: the sum of rows[i]'s lanes.
template <class T> FWP_INLINE Vec<T> sum_of_rows(Vec<T>* rows) {
  constexpr int W = Lanes<T>::count;
  transpose_steps<T, W / 2>(rows);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) rows[i] += rows[i + half];
  return rows[0];
}

// to[j][i] = from[i][j], W x W.
template <class T> FWP_INLINE void transpose_block(const T* from, idx from_ld, T* to, idx to_ld) {
  constexpr int W = Lanes<T>::count;
  Vec<T> rows[W];
  unroll<W>([&](auto i) FWP_INLINE_LAMBDA { rows[i] = load<T>(from + i * from_ld); });
  transpose_steps<T, W / 2>(rows);
  unroll<W>([&](auto i) FWP_INLINE_LAMBDA { store<T>(to + i * to_ld, rows[i]); });
}
