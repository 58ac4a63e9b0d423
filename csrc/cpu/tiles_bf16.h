// Matrix products by AMX tiles, and the forms of bfloat16 that they take. Included by kernels_amx_bf16.cpp only.
//
// A tile is 16 rows of 64 bytes: of the left factor 16 rows of 32 bfloat16, of the right factor 16 columns of 32, as rows
// of pairs (two numbers that are neighbours along the inner index), of the product 16 x 16 floats. The inner index runs
// over features or over tokens; which two are neighbours is free as long as both factors agree: features 2i and 2i + 1,
// tokens i and i + 16 of a block of 32, which splits without shuffles.
//
// A factor that is a result of this call is split into high + low, which keeps 16 bits of each number: bfloat16's 8 would
// not survive what the delta rule subtracts (repeated keys).

constexpr idx block = 32;  // the inner extent of a tile, and the tokens served at once

// Rows; `low` is null where `high` is all there is. `stride`: elements between rows.
struct Left {
  const Bf16 *high, *low;
  idx stride;
};
// Panels of 16 columns, each `panel` elements of consecutive tiles.
struct Right {
  const Bf16 *high, *low;
  idx panel;
};
constexpr idx panel_of(idx inner) { return inner * 16; }

// Configures all eight tiles in full size. _tile_release must undo this before other code runs.
FWP_INLINE void configure_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  asm volatile("" ::: "memory");
  _tile_loadconfig(&configuration);
}

// Tiles 0 1 / 2 3 hold the product, 4 and 5 the left factor, 6 and 7 the right one. Corner: tile 1 is wanted.
template <int R, int N, bool Corner> FWP_INLINE void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (N == 2 && Corner) _tile_dpbf16ps(1, 4, 7);
  if constexpr (R == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (R == 2 && N == 2) _tile_dpbf16ps(3, 5, 7);
}
template <int R> FWP_INLINE void load_left(const Bf16* a, idx stride) {
  _tile_loadd(4, a, stride * 2);
  if constexpr (R == 2) _tile_loadd(5, a + 16 * stride, stride * 2);
}
template <int N> FWP_INLINE void load_right(const Bf16* b, idx panel) {
  _tile_loadd(6, b, 64);
  if constexpr (N == 2) _tile_loadd(7, b + panel, 64);
}

// R x N tiles of C = A B, or C += A B, over `inner` (a multiple of 32).
template <int R, int N, bool Corner>
FWP_INLINE void multiply_block(idx inner, Left A, Right B, float* C, idx ldc, bool add) {
  asm volatile("" ::: "memory");  // g++'s tile loads do not say that they read memory
  if (add) {
    _tile_loadd(0, C, ldc * 4);
    if constexpr (N == 2 && Corner) _tile_loadd(1, C + 16, ldc * 4);
    if constexpr (R == 2) _tile_loadd(2, C + 16 * ldc, ldc * 4);
    if constexpr (R == 2 && N == 2) _tile_loadd(3, C + 16 * ldc + 16, ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (idx k = 0; k < inner; k += block) {
    load_right<N>(B.high + 16 * k, B.panel);
    if (A.low) {
      load_left<R>(A.low + k, A.stride);
      multiply_tiles<R, N, Corner>();
    }
    load_left<R>(A.high + k, A.stride);
    multiply_tiles<R, N, Corner>();
    if (B.low) {
      load_right<N>(B.low + 16 * k, B.panel);
      multiply_tiles<R, N, Corner>();
    }
  }
  _tile_stored(0, C, ldc * 4);
  if constexpr (N == 2 && Corner) _tile_stored(1, C + 16, ldc * 4);
  if constexpr (R == 2) _tile_stored(2, C + 16 * ldc, ldc * 4);
  if constexpr (R == 2 && N == 2) _tile_stored(3, C + 16 * ldc + 16, ldc * 4);
}

// C = A B, or C += A B, for 16 or 32 rows; columns a multiple of 16. Of a square of 32 columns from `diagonal` on, the
// tile above the diagonal is left as it is.
inline void tile_product(idx rows, idx columns, idx inner, Left A, Right B, float* C, idx ldc, bool add,
                         idx diagonal = -1) {
  for (idx j = 0; j < columns; j += 32, C += 32) {
    const Right b = {B.high + j / 16 * B.panel, B.low ? B.low + j / 16 * B.panel : nullptr, B.panel};
    const bool two = columns - j > 16;
    if (rows > 16 && two && j == diagonal) multiply_block<2, 2, false>(inner, A, b, C, ldc, add);
    else if (rows > 16 && two) multiply_block<2, 2, true>(inner, A, b, C, ldc, add);
    else if (rows > 16) multiply_block<2, 1, true>(inner, A, b, C, ldc, add);
    else if (two) multiply_block<1, 2, true>(inner, A, b, C, ldc, add);
    else multiply_block<1, 1, true>(inner, A, b, C, ldc, add);
  }
}

// ---- conversions ----

FWP_INLINE __mmask16 first_lanes(idx count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }

FWP_INLINE float to_float(Bf16 x) { return _mm512_cvtss_f32((__m512)_mm512_set1_epi32(int(x.bits) << 16)); }
FWP_INLINE __m512i upper_halves(__m512 x) { return _mm512_and_si512((__m512i)x, _mm512_set1_epi32(int(0xffff0000))); }

// 16 numbers as 32-bit integers; those from `count` on are 0 and not read.
FWP_INLINE __m512i load_bits(const Bf16* p, idx count) {
  return _mm512_cvtepu16_epi32(count >= 16 ? _mm256_loadu_si256((const __m256i*)p)
                                           : _mm256_maskz_loadu_epi16(first_lanes(count), p));
}
FWP_INLINE __m512 load_wide(const Bf16* p, idx count) { return (__m512)_mm512_slli_epi32(load_bits(p, count), 16); }

// Two vectors as 32 numbers, rounded to nearest: to `high`, or to high + low. Only the first `count` are stored.
template <bool low> FWP_INLINE void store_narrow(Bf16* to, Bf16* to_low, __m512 x, __m512 y, idx count) {
  const __mmask32 first = count >= 32 ? ~0u : (1u << count) - 1;
  const auto put = [&](Bf16* p, __m512 x, __m512 y) FWP_INLINE_LAMBDA {
    const __m512i z = (__m512i)_mm512_cvtne2ps_pbh(y, x);
    if (count >= 32) _mm512_storeu_si512(p, z);
    else _mm512_mask_storeu_epi16(p, first, z);
  };
  if constexpr (low) {
    const __m512 a = (__m512)upper_halves(x), b = (__m512)upper_halves(y);
    put(to_low, _mm512_sub_ps(x, a), _mm512_sub_ps(y, b));
    x = a;
    y = b;
  }
  put(to, x, y);
}

// p[from .. to) = 0
FWP_INLINE void clear(Bf16* p, idx from, idx to) {
  for (; from < to; from += 32)
    _mm512_mask_storeu_epi16(p + from, to - from >= 32 ? ~0u : (1u << (to - from)) - 1, _mm512_setzero_si512());
}

// x in the lower and y in the upper halves, high + low.
struct Pairs {
  __m512i high, low;
};
FWP_INLINE __m512i zip_halves(__m512i x, __m512i y) { return _mm512_or_si512(_mm512_srli_epi32(x, 16), y); }
FWP_INLINE Pairs split(__m512 x, __m512 y) {
  const __m512i a = upper_halves(x), b = upper_halves(y);
  const __m512 dx = _mm512_sub_ps(x, (__m512)a), dy = _mm512_sub_ps(y, (__m512)b);
  return {zip_halves(a, b), zip_halves((__m512i)dx, upper_halves(dy))};
}

// A row of a left factor over tokens, from `count` floats (a multiple of 32); those from `limit` on count as 0.
FWP_INLINE void split_row(const float* from, idx count, idx limit, Bf16* high, Bf16* low) {
  for (idx j = 0; j < count; j += 32) {
    const Pairs p = split(_mm512_maskz_loadu_ps(first_lanes(limit - j), from + j),
                          _mm512_maskz_loadu_ps(first_lanes(limit - j - 16), from + j + 16));
    _mm512_storeu_si512(high + j, p.high);
    _mm512_storeu_si512(low + j, p.low);
  }
}

// One row of pairs of a right factor, from two rows of `columns` floats (a multiple of 16). Adds to `largest`, which is
// below 0x7f80 in every half while everything is finite.
FWP_INLINE void split_pairs(const float* x, const float* y, idx columns, Bf16* high, Bf16* low, idx panel, __m512i& largest) {
  for (idx j = 0; j < columns; j += 16, high += panel, low += panel) {
    const Pairs p = split(_mm512_loadu_ps(x + j), _mm512_loadu_ps(y + j));
    largest = _mm512_max_epu16(largest, _mm512_and_si512(p.high, _mm512_set1_epi16(0x7fff)));
    _mm512_storeu_si512(high, p.high);
    _mm512_storeu_si512(low, p.low);
  }
}
FWP_INLINE bool is_finite(__m512i largest) {
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7f80)) == 0;
}

// The right factor (panels of 16 tokens, inner index features) from 16 or 32 rows of `features` numbers (a multiple of 32).
inline void transpose_to_panels(const Bf16* rows, idx stride, idx count, idx features, Bf16* to) {
  for (idx i = 0; i < count; i += 16)
    for (idx j = 0; j < features; j += 32)
      transpose_block(reinterpret_cast<const float*>(rows + i * stride + j), stride / 2,
                      reinterpret_cast<float*>(to + i / 16 * panel_of(features) + panel_of(j)), 16);
}

// The reverse: makes the left factor whose rows are 32 features from `first` on and whose inner index is `count`
// tokens, filled up with zeros to a multiple of 32.
inline void features_of_panels(const Bf16* panels, idx features, idx first, idx count, Bf16* to, idx stride) {
  const Bf16* from = panels + panel_of(first);
  const __m512i lower = _mm512_set1_epi32(0xffff);
  for (idx j = 0; j < count; j += 32, from += 2 * panel_of(features)) {
    const __mmask16 here = first_lanes(count - j), there = first_lanes(count - j - 16);
    for (idx i = 0; i < 16; ++i) {
      const __m512i x = _mm512_maskz_loadu_epi32(here, from + 32 * i);
      const __m512i y = _mm512_maskz_loadu_epi32(there, from + panel_of(features) + 32 * i);
      _mm512_storeu_si512(to + 2 * i * stride + j,
                          _mm512_or_si512(_mm512_and_si512(x, lower), _mm512_slli_epi32(y, 16)));
      _mm512_storeu_si512(to + (2 * i + 1) * stride + j, zip_halves(x, upper_halves((__m512)y)));
    }
  }
}

// to[i] = sum of row i of A, 16 or 32 rows; `ones`: 32 of them; `buffer`: 32 x 16 floats.
inline void row_sums(idx rows, idx features, Left A, const Bf16* ones, float* buffer, float* to) {
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(2);
  _tile_loadd(6, ones, 0);
  for (const Bf16* part : {A.high, A.low})
    for (idx k = 0; part && k < features; k += block) {
      load_left<2>(part + k, A.stride);
      multiply_tiles<2, 1, true>();
    }
  _tile_stored(0, buffer, 64);
  _tile_stored(2, buffer + 256, 64);
  const __m512i column = _mm512_mullo_epi32((__m512i)lane_numbers<float>(), _mm512_set1_epi32(16));
  for (idx i = 0; i < rows; i += 16)
    _mm512_storeu_ps(to + i, _mm512_i32gather_ps(column, buffer + i * 16, 4));
}
