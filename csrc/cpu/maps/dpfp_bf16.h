// DPFP for AMX tiles.

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

template <> struct PhiBf16<Map::dpfp> {
  static constexpr bool served = true, split_queries = true, split_keys = false;

  template <int fixed, bool low, class F>
  static FWP_INLINE void rows(const CallBf16& c, const MapScratch& s, const SideBf16&, idx, F for_rows) {
    for_rows([&](idx i, const Bf16* x, Bf16*, Bf16*) FWP_INLINE_LAMBDA {
      dpfp_base<fixed>(x, c.d_key, c.nu, s.base + i * s.base_stride + s.halo);
    });
    for_rows([&](idx i, const Bf16*, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
      dpfp_row<fixed, low>(s.base + i * s.base_stride + s.halo, c.d_key, c.nu, phi, phi_low);
    });
  }
};
