// The maps that are a function of one number, for AMX tiles.

struct OfTiles {  // the device of common/elementwise.h
  using Number = __m512;
  static FWP_INLINE Number number(float x) { return _mm512_set1_ps(x); }
  template <class C> static FWP_INLINE Number where(C condition, Number a, Number b) { return condition ? a : b; }
  static FWP_INLINE Number exponential(Number x) { return rough_exponential(x); }
};

template <Map M> struct PhiBf16<M, std::void_t<decltype(Function<M>::exact)>> {
  static constexpr bool served = true, split_queries = !Function<M>::exact, split_keys = false;

  template <int fixed, bool low, class F>
  static FWP_INLINE void rows(const CallBf16& c, const MapScratch&, const SideBf16&, idx, F for_rows) {
    const idx d = fixed ? fixed : c.d_key;
    for_rows([&](idx, const Bf16* x, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
      const auto feature = [&](idx i) FWP_INLINE_LAMBDA { return Function<M>::template value<OfTiles>(load_wide(x + i, d - i)); };
      for (idx i = 0; i < d; i += 32) store_narrow<low>(phi + i, phi_low + i, feature(i), feature(i + 16), 32);
    });
  }
};
