// Features and scales of a block of tokens for AMX tiles, by whichever map the call names.

template <int fixed, bool low>
void map_rows(const CallBf16& c, const Rows<const Bf16>& rows, idx b, idx h, idx t0, idx first, const MapScratch& s,
              const SideBf16& side) {
  const idx features = features_of(c.d_dot);
  const auto for_rows = [&](auto f) FWP_INLINE_LAMBDA {
    for (idx i = 0; i < 16; ++i)
      if (side.there[first + i])
        f(i, rows.at(b, t0 + first + i, h), side.phi + (first + i) * s.stride, side.phi_low + (first + i) * s.stride);
  };
  with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA {
    if constexpr (PhiBf16<map.value>::served)
      PhiBf16<map.value>::template rows<fixed, low>(c, s, side, first, for_rows);
  });
  if (c.d_dot == features) return;
  for_rows([&](idx, const Bf16*, Bf16* phi, Bf16* phi_low) FWP_INLINE_LAMBDA {
    clear(phi, c.d_dot, features);
    if (low) clear(phi_low, c.d_dot, features);
  });
}

// Computes phi and scale of tokens t0 .. t0 + count, up to 32; `key_padding_mask` is given for keys only.
inline void load_side(const CallBf16& c, const Rows<const Bf16>& rows, const Rows<const bool>& key_padding_mask, idx b,
                      idx h, idx t0, idx count, const MapScratch& s, const SideBf16& side) {
  const idx features = features_of(c.d_dot), padded = round_up(count, 16);
  for (idx t = 0; t < padded; ++t) {
    side.there[t] = t < count && !(key_padding_mask && *key_padding_mask.at(b, t0 + t, 0));
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
