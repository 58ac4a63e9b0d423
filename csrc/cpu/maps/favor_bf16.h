// FAVOR+ for AMX tiles.

// 16 rows of favor from their inputs in s.rows.
template <bool low> void favor_rows(const CallBf16& c, const MapScratch& s, const SideBf16& side, idx first) {
  const idx m = c.m;
  tile_product(16, s.m, s.width, {s.rows, nullptr, s.width}, {s.high, s.low, panel_of(s.width)}, s.base, s.base_stride,
               false);
  const __m512 top = _mm512_set1_ps(largest_exponent), zero = _mm512_setzero_ps();
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

// One feature may outweigh all others: the keys' are split, too.
template <> struct PhiBf16<Map::favor> {
  static constexpr bool served = true, split_queries = true, split_keys = true;

  template <int fixed, bool low, class F>
  static FWP_INLINE void rows(const CallBf16& c, const MapScratch& s, const SideBf16& side, idx first, F for_rows) {
    const idx d = fixed ? fixed : c.d_key;
    clear(s.rows, 0, 16 * s.width);
    for_rows([&](idx i, const Bf16* x, Bf16*, Bf16*) FWP_INLINE_LAMBDA {
      for (idx j = 0; j < d; j += 16)
        store_narrow<false>(s.rows + i * s.width + j, nullptr, load_wide(x + j, d - j), __m512{}, 16);
    });
    favor_rows<low>(c, s, side, first);
  }
};
