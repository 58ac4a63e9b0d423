// phi of a tile of tokens and its backward, by whichever map the call names.
#pragma once

#include "instruction_set.h"

#include "maps/dpfp.h"
#include "maps/favor.h"
#include "maps/softmax_pair.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> idx base_rows(const Call<T>& c) {
  return with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { return Phi<map.value>::base_rows(c.d_key); });
}
template <class T> idx gradient_rows(const Call<T>& c) {
  const idx base = base_rows(c);
  return base > c.d_key ? base : c.d_key;
}

// Loads the inputs: sets the side's sizes and, depending on the map, either s.x, with 0 in s.scale, or the features,
// with their sums in s.scale. `key_padding_mask` is given for keys only.
template <class T>
void load_inputs(const Call<T>& c, const Rows<const T>& rows, const Rows<const bool>& key_padding_mask, idx b, idx h,
                 idx t0, idx count, Side<T>& s, T* buffer) {
  s.tokens = count;
  s.padded = round_up(count, width<T>);
  s.ld = row_distance<T>(count);
  const auto each = [&](auto put) FWP_INLINE_LAMBDA {
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> total{};
      load_transposed(rows, b, h, t0, t, count, c.d_key, key_padding_mask, s.ahead, buffer,
                      [&](idx d, Vec<T> x) FWP_INLINE_LAMBDA { put(d, d * s.ld + t, x, total); });
      store(s.scale + t, total);
    }
  };
  with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { Phi<map.value>::take(c, s, each); });
}

// Turns the sums in s.scale into scales.
template <class T>
void finish_scale(const Call<T>& c, const Rows<const bool>& key_padding_mask, idx b, idx t0, Side<T>& s) {
  for (idx t = 0; t < s.padded; ++t) {
    const bool there = t < s.tokens && !is_pad(key_padding_mask, b, t0 + t);
    const T total = s.scale[t] + c.eps;
    if (!there) s.scale[t] = 0;
    else if (!c.normalize_features) s.scale[t] = 1;
    else s.scale[t] = total == 0 ? T(0) : 1 / total;
  }
}

// Computes s.x from the inputs, then phi and scale.
template <class T>
void load_side(const Call<T>& c, const Rows<const T>& rows, const Rows<const bool>& key_padding_mask, idx b, idx h,
               idx t0, idx count, Side<T>& s, T* buffer) {
  load_inputs(c, rows, key_padding_mask, b, h, t0, count, s, buffer);
  with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { Phi<map.value>::features(c, s); });
  finish_scale(c, key_padding_mask, b, t0, s);
}

// Gradient of the inputs from that of the scaled features, df [d_dot][ld of s], which may be overwritten. dx:
// [gradient_rows][ld]. Writes the rows of tokens t0 .. t0 + s.tokens of `rows`.
template <class T>
void store_side_gradient(const Call<T>& c, const Side<T>& s, T* df, T* dx, const Rows<T>& rows, idx b, idx h, idx t0) {
  constexpr idx lanes = width<T>;
  const idx ld = s.ld;
  for (idx t = 0; t < s.padded; t += lanes) {
    const Vec<T> scale = load(s.scale + t);
    // f = a / (sum a + eps): da = (df - df.f) scale
    Vec<T> shift{};
    if (c.normalize_features) {
      Vec<T> odd{};
      idx i = 0;
      for (; i + 2 <= c.d_dot; i += 2) {
        shift += load(df + i * ld + t) * load(s.phi + i * ld + t);
        odd += load(df + (i + 1) * ld + t) * load(s.phi + (i + 1) * ld + t);
      }
      if (i < c.d_dot) shift += load(df + i * ld + t) * load(s.phi + i * ld + t);
      shift = (shift + odd) * scale;
    }
    with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { Phi<map.value>::gradient(c, s, t, shift, df, dx); });
  }
  with_map(c.map, [&](auto map) FWP_INLINE_LAMBDA { Phi<map.value>::finish_gradient(c, s, df, dx); });
  store_transposed(rows, b, h, t0, s.tokens, c.d_key, dx, ld);
}

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
