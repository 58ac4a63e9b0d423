// phi of a block of up to 32 tokens as rows of bfloat16, [token][feature], for AMX tiles. Included by
// kernels_amx_bf16.cpp only. Queries' features are kept as high + low, which leaves the keys' rounding as
// the only one; keys' features where they are exponentials too, and one may outweigh all others.
// Sums of features are those of what is stored: where one feature outweighs the others its rounding cancels.

using CallBf16 = Call<float, Bf16>;

constexpr idx features_of(idx d_dot) { return round_up(d_dot, block); }

// What the rows of one thread need besides the inputs.
struct MapScratch {
  idx stride;             // of phi: features + 32, so that rows may be written past their end and do not share cache sets
  float* base;            // dpfp: 16 rows of r = relu([x, -x]); favor: 16 x m products with the projection
  idx base_stride, halo;
  Bf16* rows;             // favor: 2 x 16 x width inputs
  Bf16 *high, *low;       // favor: input_scale times the projection, the right factor
  idx m, width;           // m padded to 16, d_key padded to 32
  Bf16* ones;
  float* sums;

  MapScratch(const CallBf16& c, Arena<float>& arena) {
    const auto narrow = [&](idx count) { return reinterpret_cast<Bf16*>(arena.take(count / 2)); };
    const bool favor = c.map == Map::favor;
    stride = features_of(c.d_dot) + 32;
    halo = round_up(c.nu, 16);
    width = round_up(c.d_key, block);
    m = round_up(c.d_dot / 2, 16);
    base_stride = favor ? m : round_up(halo + 2 * c.d_key + 32, 16);
    base = arena.take(16 * base_stride);
    rows = narrow(favor ? 2 * 16 * width : 0);
    high = narrow(favor ? width * m : 0);
    low = narrow(favor ? width * m : 0);
    ones = narrow(32);
    sums = arena.take(32 * 16);
  }

  // What does not depend on the head.
  void prepare(const CallBf16& c) const {
    for (idx i = 0; i < 32; ++i) ones[i].bits = 0x3f80;
    if (c.map != Map::favor) return;
    for (idx first = 0; first < m; first += 16) {
      for (idx i = 0; i < 16; ++i)
        for (idx d = 0; d < width; d += 32) {
          const idx left = first + i < c.d_dot / 2 ? c.d_key - d : 0;
          const float* from = c.projection + (first + i) * c.d_key + d;
          const __m512 scale = _mm512_set1_ps(c.input_scale);
          const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(left), from), scale);
          const __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(first_lanes(left - 16), from + 16), scale);
          store_narrow<true>(rows + i * width + d, rows + (16 + i) * width + d, x, y, 32);
        }
      transpose_to_panels(rows, width, 16, width, high + first / 16 * panel_of(width));
      transpose_to_panels(rows + 16 * width, width, 16, width, low + first / 16 * panel_of(width));
    }
  }
};

// What is not there, and keys that are padding, have features 0 up to whole tiles; features are filled up with 0.
struct SideBf16 {
  Bf16 *phi, *phi_low;  // [32][stride], not normalised
  bool split;           // whether phi_low is in use
  float* scale;         // phi * scale is what the rule sees; 0 for what is not there
  bool* there;

  Left left(const MapScratch& s) const { return {phi, split ? phi_low : nullptr, s.stride}; }
};

// exp(x) for x <= 80 or so, to about 1e-5: more than is kept. NaN stays NaN.
FWP_INLINE __m512 rough_exponential(__m512 x) {
  const __m512 log2e = _mm512_set1_ps(1.44269504f), round = _mm512_set1_ps(12582912.0f);
  x = _mm512_max_ps(_mm512_set1_ps(-86.0f), x);  // the instruction returns its second operand where one is NaN
  const __m512 shifted = _mm512_fmadd_ps(x, log2e, round), n = _mm512_sub_ps(shifted, round);
  const __m512 r = _mm512_fmsub_ps(x, log2e, n);
  __m512 y = _mm512_set1_ps(0.00961812911f);  // Horner of 2^r's series, ln(2)^i / i!
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.0555041087f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.240226507f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.693147181f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  return (__m512)_mm512_add_epi32((__m512i)y, _mm512_slli_epi32((__m512i)shifted, 23));
}

// max(0, x) that keeps a NaN, as torch's relu does.
FWP_INLINE __m512 relu_of(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

template <int fixed, bool low> FWP_INLINE void elu_row(const Bf16* x, idx d, Bf16* phi, Bf16* phi_low) {
  if (fixed) d = fixed;
  const auto map = [&](__m512 a) FWP_INLINE_LAMBDA {
    const __mmask16 positive = _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mask_add_ps(rough_exponential(a), positive, a, _mm512_set1_ps(1.0f));
  };
  for (idx i = 0; i < d; i += 32)
    store_narrow<low>(phi + i, phi_low + i, map(load_wide(x + i, d - i)), map(load_wide(x + i + 16, d - i - 16)), 32);
}

// r = relu([x, -x]), preceded by its own last `nu` entries and followed by 32 zeros where products will run past its end.
template <int fixed> FWP_INLINE void dpfp_base(const Bf16* x, idx d, idx nu, float* r) {
  if (fixed) d = fixed;
  const idx n = 2 * d;
  for (idx i = 0; i < d; i += 16) _mm512_storeu_ps(r + i, relu_of(load_wide(x + i, d - i)));
  for (idx i = 0; i < d; i += 16)
    _mm512_storeu_ps(r + d + i, relu_of(_mm512_sub_ps(_mm512_setzero_ps(), load_wide(x + i, d - i))));
  if (n % 32)
    for (idx i = 0; i < 32; i += 16) _mm512_storeu_ps(r + n + i, _mm512_setzero_ps());
  for (idx i = 0; i < nu; i += 16) _mm512_storeu_ps(r - 16 - i, _mm512_loadu_ps(r + n - 16 - i));
}
template <int fixed, bool low> FWP_INLINE void dpfp_row(const float* r, idx d, idx nu, Bf16* phi, Bf16* phi_low) {
  if (fixed) d = fixed;
  const idx n = 2 * d;
  for (idx j = 1; j <= nu; ++j, phi += n, phi_low += n)
    for (idx i = 0; i < n; i += 32) {
      const auto product = [&](idx at) FWP_INLINE_LAMBDA {
        return _mm512_mul_ps(_mm512_loadu_ps(r + at), _mm512_loadu_ps(r + at - j));
      };
      store_narrow<low>(phi + i, phi_low + i, product(i), product(i + 16), 32);
    }
}

// 16 rows of favor from their inputs in s.rows.
template <bool low> void favor_rows(const CallBf16& c, const MapScratch& s, const SideBf16& side, idx first) {
  const idx m = c.d_dot / 2;
  tile_product(16, s.m, s.width, {s.rows, nullptr, s.width}, {s.high, s.low, panel_of(s.width)}, s.base, s.base_stride,
               false);
  const __m512 top = _mm512_set1_ps(float(largest_favor_exponent)), zero = _mm512_setzero_ps();
  const __m512 constant = _mm512_set1_ps(float(1 / __builtin_sqrt(double(c.d_dot))));
  for (idx t = 0; t < 16; ++t) {
    if (!side.there[first + t]) continue;
    __m512 squares = zero;
    for (idx d = 0; d < s.width; d += 16) {
      const __m512 x = _mm512_mul_ps(load_wide(s.rows + t * s.width + d, 16), _mm512_set1_ps(c.input_scale));
      squares = _mm512_fmadd_ps(x, x, squares);
    }
    const __m512 norm = _mm512_set1_ps(0.5f * _mm512_reduce_add_ps(squares));
    const float* p = s.base + t * s.base_stride;
    const auto feature = [&](__m512 x) FWP_INLINE_LAMBDA {
      return _mm512_mul_ps(rough_exponential(_mm512_min_ps(top, _mm512_sub_ps(x, norm))), constant);
    };
    Bf16 *to = side.phi + (first + t) * s.stride, *to_low = side.phi_low + (first + t) * s.stride;
    for (idx i = 0; i < m; i += 16)
      store_narrow<low>(to + i, to_low + i, feature(_mm512_loadu_ps(p + i)), zero, 16);
    for (idx i = 0; i < m; i += 16)
      store_narrow<low>(to + m + i, to_low + m + i, feature(_mm512_sub_ps(zero, _mm512_loadu_ps(p + i))), zero, 16);
  }
}

template <int fixed, bool low>
void map_rows(const CallBf16& c, const Rows<const Bf16>& rows, idx b, idx h, idx t0, idx first, const MapScratch& s,
              const SideBf16& side) {
  const idx d = fixed ? fixed : c.d_key, features = features_of(c.d_dot);
  const auto for_rows = [&](auto f) FWP_INLINE_LAMBDA {
    for (idx i = 0; i < 16; ++i)
      if (side.there[first + i])
        f(i, rows.at(b, t0 + first + i, h), side.phi + (first + i) * s.stride, side.phi_low + (first + i) * s.stride);
  };
  switch (c.map) {
    case Map::identity:
      for_rows([&](idx, const Bf16* x, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
        for (idx i = 0; i < d; i += 16) store_narrow<low>(phi + i, phi_low + i, load_wide(x + i, d - i), __m512{}, 16);
      });
      break;
    case Map::elu:
      for_rows([&](idx, const Bf16* x, Bf16* phi, Bf16* phi_low)
                   FWP_INLINE_LAMBDA { elu_row<fixed, low>(x, d, phi, phi_low); });
      break;
    case Map::dpfp:
      for_rows([&](idx i, const Bf16* x, Bf16*, Bf16*) FWP_INLINE_LAMBDA {
        dpfp_base<fixed>(x, d, c.nu, s.base + i * s.base_stride + s.halo);
      });
      for_rows([&](idx i, const Bf16*, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
        dpfp_row<fixed, low>(s.base + i * s.base_stride + s.halo, d, c.nu, phi, phi_low);
      });
      break;
    case Map::favor:
      clear(s.rows, 0, 16 * s.width);
      for_rows([&](idx i, const Bf16* x, Bf16*, Bf16*) FWP_INLINE_LAMBDA {
        for (idx j = 0; j < d; j += 16)
          store_narrow<false>(s.rows + i * s.width + j, nullptr, load_wide(x + j, d - j), __m512{}, 16);
      });
      favor_rows<low>(c, s, side, first);
      break;
  }
  if (c.d_dot == features) return;
  for_rows([&](idx, const Bf16*, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
    clear(phi, c.d_dot, features);
    if (low) clear(phi_low, c.d_dot, features);
  });
}

// phi and scale of tokens t0 .. t0 + count, up to 32; `padding` is given for keys only.
inline void load_side(const CallBf16& c, const Rows<const Bf16>& rows, const Rows<const bool>& padding, idx b, idx h,
                      idx t0, idx count, const MapScratch& s, const SideBf16& side) {
  const idx features = features_of(c.d_dot), padded = round_up(count, 16);
  for (idx t = 0; t < padded; ++t) {
    side.there[t] = t < count && !(padding && *padding.at(b, t0 + t, 0));
    if (side.there[t]) continue;
    clear(side.phi + t * s.stride, 0, features);
    if (side.split) clear(side.phi_low + t * s.stride, 0, features);
  }
  for (idx first = 0; first < padded; first += 16) {
    if (side.split && c.d_key == 64) map_rows<64, true>(c, rows, b, h, t0, first, s, side);
    else if (side.split) map_rows<0, true>(c, rows, b, h, t0, first, s, side);
    else if (c.d_key == 64) map_rows<64, false>(c, rows, b, h, t0, first, s, side);
    else map_rows<0, false>(c, rows, b, h, t0, first, s, side);
  }
  if (c.normalize_features) row_sums(padded, features, side.left(s), s.ones, s.sums, side.scale);
  for (idx t = 0; t < padded; t += 16) {
    __m512 scale = _mm512_set1_ps(1.0f);
    if (c.normalize_features) {
      const __m512 total = _mm512_add_ps(_mm512_loadu_ps(side.scale + t), _mm512_set1_ps(c.eps));
      scale = _mm512_maskz_div_ps(_mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ), scale, total);
    }
    const __m128i there = _mm_loadu_si128(reinterpret_cast<const __m128i*>(side.there + t));
    _mm512_storeu_ps(side.scale + t, _mm512_maskz_mov_ps(_mm_test_epi8_mask(there, there), scale));
  }
}
