// f = [softmax(y), softmax(-y)] of a row of n numbers, and back.
#pragma once

#include "instruction_set.h"

#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct SoftmaxPair {
  static constexpr idx lanes = width<T>;

  // Calls f(first number of a vector, number of new lanes). The last vector of a row begins early enough to end with
  // the row, so only its last lanes are new.
  template <class F> static FWP_INLINE void for_vectors(idx n, F f) {
    idx i = 0;
    for (; i + lanes <= n; i += lanes) f(i, lanes);
    if (i < n) f(n - lanes, n - i);
  }
  // Keeps the new lanes, which are the last ones, and sets the others to 0.
  static FWP_INLINE Vec<T> only_new(Vec<T> x, idx fresh) {
    if (fresh == lanes) return x;
    typedef typename Lanes<T>::ints ints;
    const ints numbers = lane_numbers<T>();
    return numbers >= ints{} + static_cast<decltype(numbers[0] + 0)>(lanes - fresh) ? x : Vec<T>{};
  }

  static void forward(const T* y, const T*, idx n, T, T* f) {
    T most = y[0], least = y[0];
    for (idx i = 1; i < n; ++i) {
      most = y[i] > most ? y[i] : most;
      least = y[i] < least ? y[i] : least;
    }
    if (n < lanes) {
      T row[lanes] = {}, wide[2 * lanes];
      for (idx i = 0; i < n; ++i) row[i] = y[i];
      const Vec<T> x = load(row);
      store<T>(wide, exponential<T>(x - splat(most)));
      store<T>(wide + lanes, exponential<T>(splat(least) - x));
      for (int half = 0; half < 2; ++half) {
        T total = 0;
        for (idx i = 0; i < n; ++i) total += wide[half * lanes + i];
        for (idx i = 0; i < n; ++i) f[half * n + i] = wide[half * lanes + i] / total;
      }
      return;
    }
    Vec<T> up{}, down{};
    for_vectors(n, [&](idx i, idx fresh) FWP_INLINE_LAMBDA {
      const Vec<T> x = load(y + i);
      const Vec<T> a = exponential<T>(x - splat(most)), b = exponential<T>(splat(least) - x);
      store<T>(f + i, a);
      store<T>(f + n + i, b);
      up += only_new(a, fresh);
      down += only_new(b, fresh);
    });
    const T share_up = 1 / sum_of_lanes<T>(up), share_down = 1 / sum_of_lanes<T>(down);
    for (idx i = 0; i < n; ++i) {
      f[i] *= share_up;
      f[n + i] *= share_down;
    }
  }

  // dy = f+ (df+ - f+.df+) - f- (df- - f-.df-)
  static void backward(const T* f, const T* df, idx n, T, T* dy) {
    const T up = dot_unpadded(f, df, n), down = dot_unpadded(f + n, df + n, n);
    for (idx i = 0; i < n; ++i) dy[i] = f[i] * (df[i] - up) - f[n + i] * (df[n + i] - down);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
