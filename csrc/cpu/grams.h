// Queries and keys of a tile, and the Gram matrices of their features. If a map is `grouped` (DPFP), load_grams may
// compute features in groups that stay in the first-level cache. Only load_grams and the functions that it calls handle
// groups.
#pragma once

#include "instruction_set.h"

#include "feature_map.h"
#include "plan.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Grams {
  const Call<T>& c;
  const Plan<T> plan;
  const idx b, h;
  const bool corrects;

  Side<T> q, k;
  T *buffer, *P, *KK;  // P: scaled q.k; KK: scaled k.k below the diagonal
  idx ldp;  // distance of their rows
  bool grams_done = false;  // load_grams has loaded both sides; phi does not hold the features

  Grams(const Call<T>& call, idx b, idx h, Arena<T>& arena)
      : c(call), plan(call), b(b), h(h), corrects(fwp::corrects(call.rule)) {
    const idx rows = plan.rows, ld = rows + width<T>;
    ldp = row_distance<T>(plan.chunk);
    for (Side<T>* side : {&q, &k}) {
      side->x = arena.take(base_rows(c) * ld);
      side->phi = arena.take(c.d_dot * ld);
      side->scale = arena.take(ld);
    }
    q.ahead = ahead(c.q);
    k.ahead = ahead(c.k);
    buffer = arena.take(width<T> * round_up(c.d_key, width<T>));
    P = arena.take(rows * ldp);
    KK = arena.take(corrects ? rows * ldp : 0);
  }

  bool is_pad(idx t) const { return fwp::is_pad(c.key_padding_mask, b, t); }

  // The distance from a row to the same row of the next chunk or, if there is one chunk, of the next head.
  template <class U> idx ahead(const Rows<U>& rows) const {
    if (plan.chunks > 1) return plan.chunk * rows.time;
    if (h + 1 < c.heads) return rows.head;
    return b + 1 < c.batch ? rows.batch - (c.heads - 1) * rows.head : 0;
  }

  // phi viewed as (token, feature) and as (feature, token).
  static View<T> tokens(const Side<T>& s) { return {s.phi, 1, s.ld}; }
  static View<T> features(const Side<T>& s) { return {s.phi, s.ld, 1}; }
  template <bool Add>
  void add_gram(const Side<T>& a, const Side<T>& b, View<T> A, const T* B, idx features, bool lower, T* to) const {
    if (lower) product_lower<Add>(a.padded, b.padded, features, A, B, b.ld, to, ldp);
    else product<Add>(a.padded, b.padded, features, A, B, b.ld, to, ldp);
  }

  // True for a short input without a state, where only the Gram matrices need the features.
  bool groups_features() const {
    const bool grouped = with_map(c.map, [](auto map) { return Phi<map.value>::grouped; });
    return grouped && c.sources <= longest_grouped && c.targets <= longest_grouped && !plan.reads_state &&
           !plan.writes_state && !c.initial_W;
  }

  // Loads both sides and computes the Gram matrices before scaling, a few features at a time, because phi as a whole
  // does not fit into the first-level cache.
  void load_grams(idx targets, idx sources) {
    load_inputs(c, c.k, c.key_padding_mask, b, h, 0, sources, k, buffer);
    load_inputs(c, c.q, Rows<const bool>{}, b, h, 0, targets, q, buffer);
    with_map(c.map, [&](auto map) {
      if constexpr (Phi<map.value>::grouped) load_grams_of<map.value>();
    });
    finish_scale(c, c.key_padding_mask, b, 0, k);
    finish_scale(c, Rows<const bool>{}, b, 0, q);
    grams_done = true;
  }
  template <Map M> void load_grams_of() {
    const idx n = Phi<M>::base_rows(c.d_key);
    bool add = false;
    for (idx j = 1; j <= c.nu; ++j)
      for (idx first = 0; first < n; first += feature_group, add = true) {
        const idx count = first + feature_group < n ? feature_group : n - first;
        if (add) add_grams<M, true>(j, first, count);
        else add_grams<M, false>(j, first, count);
      }
  }
  template <Map M, bool Add> void add_grams(idx j, idx first, idx count) {
    for (Side<T>* s : {&k, &q})
      Phi<M>::rows(c, *s, j, first, count,
                   [&](idx i, idx t, Vec<T> y) FWP_INLINE_LAMBDA { store(s->phi + i * s->ld + t, y); });
    add_gram<Add>(q, k, tokens(q), k.phi, count, plan.causal, P);
    if (corrects) add_gram<Add>(k, k, tokens(k), k.phi, count, true, KK);
  }

  View<T> triangle(const T* gram) const { return {gram, ldp, 1}; }

  // to (padded rows) = scaled a . scaled b for j <= i + limit and 0 elsewhere; its row sums go to `sums`.
  void gram(const Side<T>& a, const Side<T>& b, bool lower, idx limit, T* to, T* sums) const {
    if (!grams_done) add_gram<false>(a, b, tokens(a), b.phi, c.d_dot, lower, to);
    const auto lane = lane_numbers<T>();
    for (idx first = 0; first < a.padded; first += width<T>) {
      Vec<T> sum[Lanes<T>::count];
      for (int r = 0; r < Lanes<T>::count; ++r) {
        const idx i = first + r, last = lower ? i + limit : b.padded;
        const Vec<T> scale = splat(a.scale[i]);
        T* p = to + i * ldp;
        sum[r] = Vec<T>{};
        idx j = 0;
        for (; j < b.padded && j + width<T> <= last + 1; j += width<T>) {
          const Vec<T> x = load(p + j) * (scale * load(b.scale + j));
          store(p + j, x);
          sum[r] += x;
        }
        for (; j < b.padded; j += width<T>) {
          const Vec<T> x = lane <= lane_limit(last - j) ? load(p + j) * (scale * load(b.scale + j)) : Vec<T>{};
          store(p + j, x);
          sum[r] += x;
        }
      }
      if (sums) store(sums + first, sum_of_rows<T>(sum));
    }
  }
  static typename Lanes<T>::ints lane_limit(idx last) {
    typename Lanes<T>::ints limit{};
    return limit + static_cast<decltype(limit[0] + 0)>(last);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
