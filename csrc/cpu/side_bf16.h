// phi of a block of up to 32 tokens as rows of bfloat16, [token][feature], for AMX tiles. Included by
// kernels_amx_bf16.cpp only. A map's PhiBf16 has
//
//     split_queries, split_keys     whether their features are kept as high + low
//     rows<fixed, low>(c, s, side, first, for_rows)   features of 16 tokens from `first` on, through for_rows(f): calls
//                                   f(token, inputs, features, their low part) for those that are there
//
// or none, and then bfloat16 is computed in float. fixed: d_key where known. Splitting the queries' features leaves the keys'
// rounding as the only one. Sums of features are those of what is stored: where one outweighs the others its rounding cancels.

using CallBf16 = Call<float, Bf16>;

constexpr idx features_of(idx d_dot) { return round_up(d_dot, block); }

// What the rows of one thread need besides the inputs.
struct MapScratch {
  idx stride;             // of phi: features + 32, so that rows may be written past their end and do not share cache sets
  float* base;            // 16 rows of what features are made of: base features behind their halo, or m products
  idx base_stride, halo;
  Bf16* rows;             // with a projection: 2 x 16 x width inputs
  Bf16 *high, *low;       // input_scale times the projection, the right factor
  idx m, width;           // m padded to 16, d_key padded to 32
  Bf16* ones;
  float* sums;

  MapScratch(const CallBf16& c, Arena<float>& arena) {
    const auto narrow = [&](idx count) { return reinterpret_cast<Bf16*>(arena.take(count / 2)); };
    stride = features_of(c.d_dot) + 32;
    halo = round_up(c.nu, 16);
    width = round_up(c.d_key, block);
    m = round_up(c.m, 16);
    base_stride = m ? m : round_up(halo + 2 * c.d_key + 32, 16);
    base = arena.take(16 * base_stride);
    rows = narrow(m ? 2 * 16 * width : 0);
    high = narrow(m ? width * m : 0);
    low = narrow(m ? width * m : 0);
    ones = narrow(32);
    sums = arena.take(32 * 16);
  }

  // What does not depend on the head.
  void prepare(const CallBf16& c) const {
    for (idx i = 0; i < 32; ++i) ones[i].bits = 0x3f80;
    if (!m) return;
    for (idx first = 0; first < m; first += 16) {
      for (idx i = 0; i < 16; ++i)
        for (idx d = 0; d < width; d += 32) {
          const idx left = first + i < c.m ? c.d_key - d : 0;
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

// Tokens that are missing, up to whole tiles, and padded keys have features 0. Features are filled up with 0.
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

template <Map M, class = void> struct PhiBf16 {
  static constexpr bool served = false, split_queries = false, split_keys = false;
};
