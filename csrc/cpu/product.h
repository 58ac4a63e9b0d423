// Matrix products over small matrices in cache: C = A B with A read element by element (any strides, also negative) and
// B, C in rows of whole vectors. One tile of rows x vectors of C stays in registers while the inner index runs.
// Triangular forms never read what lies outside of the triangle, so a NaN there reaches nothing.
#pragma once

#include "instruction_set.h"

#include "simd.h"

namespace fwp::FWP_NAMESPACE {
namespace {

// Element (i, k) is p[i * row + k * col].
template <class T> struct View {
  const T* p;
  idx row, col;
};

template <int R, int N, class T> struct Tile {
  Vec<T> c[R][N];

  FWP_INLINE void zero() {
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) c[r][n] = Vec<T>{};
  }
  FWP_INLINE void read(const T* from, idx ld) {
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) c[r][n] = load(from + r * ld + n * width<T>);
  }
  FWP_INLINE void write(T* to, idx ld) const {
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) store(to + r * ld + n * width<T>, c[r][n]);
  }
  // c += A(:, 0..count) B(0..count, :), of the columns in the vectors from `first` to before `end`.
  template <int first = 0, int end = N>
  FWP_INLINE void add(const T* a, idx row, idx col, const T* b, idx ldb, idx count) {
    for (idx k = 0; k < count; ++k, a += col, b += ldb) {
      Vec<T> x[N];
      for (int n = first; n < end; ++n) x[n] = load(b + n * width<T>);
      for (int r = 0; r < R; ++r) {
        const Vec<T> s = splat(a[r * row]);
        for (int n = first; n < end; ++n) c[r][n] += s * x[n];
      }
    }
  }
  // Rows from `first` on: c[r] += A(r, k) b
  template <int first> FWP_INLINE void add_from(const T* a, idx row, const Vec<T>* b) {
    unroll<R>([&](auto r) FWP_INLINE_LAMBDA {
      if constexpr (r >= first) {
        const Vec<T> s = splat(a[r * row]);
        for (int n = 0; n < N; ++n) c[r][n] += s * b[n];
      }
    });
  }
};

// A substitution waits for each row, so tiles of few rows and many vectors wait less often.
constexpr int solve_rows = FWP_TILE_ROWS / 2, solve_vectors = FWP_TILE_ROWS > 4 ? 4 : 3;

// Calls f(Int<rows>, first row) over the rows first .. M in tiles of `most` (8, 4 or 2), then of 4, 2 and 1.
template <int most = FWP_TILE_ROWS, class F> FWP_INLINE void for_row_tiles(idx first, idx M, F f) {
  idx i = first;
  for (; i + most <= M; i += most) f(Int<most>{}, i);
  if (most > 4 && i + 4 <= M) {
    f(Int<4>{}, i);
    i += 4;
  }
  if (most > 2 && i + 2 <= M) {
    f(Int<2>{}, i);
    i += 2;
  }
  if (i < M) f(Int<1>{}, i);
}

// Calls f(Int<vectors>, first column) over N columns, N a multiple of the vector width; at most 3 or 4 vectors.
template <class T, int most = 3, class F> FWP_INLINE void for_column_tiles(idx N, F f) {
  idx j = 0;
  while (j < N) {
    const idx left = (N - j) / width<T>;
    if (most == 4 && left >= 4) {
      f(Int<most>{}, j);
      j += most * width<T>;
    } else if (left == 3 || left > 4) {
      f(Int<3>{}, j);
      j += 3 * width<T>;
    } else if (left >= 2) {
      f(Int<2>{}, j);
      j += 2 * width<T>;
    } else {
      f(Int<1>{}, j);
      j += width<T>;
    }
  }
}

// The part of B (K x N) that is not zero.
enum class Band { full, upper /* k <= j */, lower /* k >= j */ };

// C = A B, or C += A B. M x K times K x N.
template <bool Add, Band band = Band::full, class T>
void product(idx M, idx N, idx K, View<T> A, const T* B, idx ldb, T* C, idx ldc) {
  for_column_tiles<T>(N, [&](auto n, idx j) FWP_INLINE_LAMBDA {
    constexpr int NV = decltype(n)::value;
    // In a band, the diagonal crosses the vectors of a tile one after another; it enters vector v at k = edge(v).
    const auto edge = [&](int v) FWP_INLINE_LAMBDA { return j + v * width<T> < K ? j + v * width<T> : K; };
    for_row_tiles(0, M, [&](auto r, idx i) FWP_INLINE_LAMBDA {
      Tile<decltype(r)::value, NV, T> tile;
      if (Add) tile.read(C + i * ldc + j, ldc);
      else tile.zero();
      const auto add = [&](auto from, auto to, idx first, idx last) FWP_INLINE_LAMBDA {
        tile.template add<from, to>(A.p + i * A.row + first * A.col, A.row, A.col, B + first * ldb + j, ldb,
                                    last - first);
      };
      if constexpr (band == Band::upper) {
        add(Int<0>{}, n, 0, edge(1));
        unroll<NV - 1>([&](auto v) FWP_INLINE_LAMBDA { add(Int<v + 1>{}, n, edge(v + 1), edge(v + 2)); });
      } else if constexpr (band == Band::lower) {
        unroll<NV - 1>([&](auto v) FWP_INLINE_LAMBDA { add(Int<0>{}, Int<v + 1>{}, edge(v), edge(v + 1)); });
        add(Int<0>{}, n, edge(NV - 1), K);
      } else {
        add(Int<0>{}, n, 0, K);
      }
      tile.write(C + i * ldc + j, ldc);
    });
  });
}

// Blocks of width x width of C = A B, or C += A B, that touch its lower triangle (j <= i); the others keep what they
// hold.
template <bool Add, class T> void product_lower(idx M, idx N, idx K, View<T> A, const T* B, idx ldb, T* C, idx ldc) {
  for_column_tiles<T>(N, [&](auto n, idx j) FWP_INLINE_LAMBDA {
    constexpr int NV = decltype(n)::value;
    const auto tiles = [&](auto v, idx first, idx last) FWP_INLINE_LAMBDA {
      for_row_tiles(first, last < M ? last : M, [&](auto r, idx i) FWP_INLINE_LAMBDA {
        Tile<decltype(r)::value, decltype(v)::value, T> tile;
        if (Add) tile.read(C + i * ldc + j, ldc);
        else tile.zero();
        tile.add(A.p + i * A.row, A.row, A.col, B + j, ldb, K);
        tile.write(C + i * ldc + j, ldc);
      });
    };
    unroll<NV - 1>([&](auto v) FWP_INLINE_LAMBDA { tiles(Int<v + 1>{}, j + v * width<T>, j + (v + 1) * width<T>); });
    tiles(n, j + (NV - 1) * width<T>, M);
  });
}

// C[i] (+)= sum over k <= i of A(i, k) B[k]. With pointers to the far ends and negative strides, the triangle is the
// upper one.
template <bool Add, class T> void triangle_product(idx M, idx N, View<T> A, const T* B, idx ldb, T* C, idx ldc) {
  for_column_tiles<T>(N, [&](auto n, idx j) FWP_INLINE_LAMBDA {
    constexpr int NV = decltype(n)::value;
    for_row_tiles(0, M, [&](auto r, idx i) FWP_INLINE_LAMBDA {
      constexpr int R = decltype(r)::value;
      Tile<R, NV, T> tile;
      if (Add) tile.read(C + i * ldc + j, ldc);
      else tile.zero();
      const T* a = A.p + i * A.row;
      tile.add(a, A.row, A.col, B + j, ldb, i);
      unroll<R>([&](auto k) FWP_INLINE_LAMBDA {
        Vec<T> b[NV];
        for (int v = 0; v < NV; ++v) b[v] = load(B + (i + k) * ldb + j + v * width<T>);
        tile.template add_from<k>(a + (i + k) * A.col, A.row, b);
      });
      tile.write(C + i * ldc + j, ldc);
    });
  });
}

// Forward substitution, for i = 0, 1, ...:
//     S[i] (+)= sum over k < i of A(i, k) Y[k];   Y[i] -= rate[i] S[i]
// In the delta rule, S is what the keys retrieve, and Y what is written. With pointers to the far ends and negative
// strides, this solves the transposed system, which runs backwards in time.
template <bool Add, class T>
void triangle_solve(idx M, idx N, View<T> A, const T* rate, idx rate_step, T* S, idx lds, T* Y, idx ldy) {
  for_column_tiles<T, solve_vectors>(N, [&](auto n, idx j) FWP_INLINE_LAMBDA {
    constexpr int NV = decltype(n)::value;
    for_row_tiles<solve_rows>(0, M, [&](auto r, idx i) FWP_INLINE_LAMBDA {
      constexpr int R = decltype(r)::value;
      Tile<R, NV, T> tile;
      if (Add) tile.read(S + i * lds + j, lds);
      else tile.zero();
      const T* a = A.p + i * A.row;
      tile.add(a, A.row, A.col, Y + j, ldy, i);
      unroll<R>([&](auto k) FWP_INLINE_LAMBDA {
        Vec<T> y[NV];
        T* to = Y + (i + k) * ldy + j;
        for (int v = 0; v < NV; ++v) {
          y[v] = load<T>(to + v * width<T>) - splat(rate[(i + k) * rate_step]) * tile.c[k][v];
          store<T>(to + v * width<T>, y[v]);
        }
        tile.template add_from<k + 1>(a + (i + k) * A.col, A.row, y);
      });
      tile.write(S + i * lds + j, lds);
    });
  });
}

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
