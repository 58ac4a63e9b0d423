// Forward and backward of one head. This file is included once per instruction set, see kernels_*.cpp.
//
// Time is cut into chunks: one up to longest_chunk positions, as sentences have, several shorter ones beyond. Rows are
// time, phi is feature-major, and everything is scaled as normalisation and padding ask:
//
//     P = M o (Q K^T)     M: causal mask, or ones
//     Y = K W + stril(K K^T) U,  U = beta V - rate Y      delta; rate = beta, or beta / (z.k + eps)
//     U = V                                               sum, gated
//     N = P U + Q W,  out = N or N / (P 1 + Q z + eps)
//     W <- W + K^T U,  z <- z + K^T 1
//
// The gated rule forgets: after t, what was written at s has weight M_ts = beta_s (1 - beta_{s+1}) .. (1 - beta_t) and
// the state before the chunk left_t = (1 - beta_0) .. (1 - beta_t). M masks P (where all targets read after the chunk,
// its last row does), and its last row weighs U as it is written to W. Q W and W itself are weighed with left.
// The gated delta rule forgets by alpha: M_ts = alpha_{s+1} .. alpha_t, left_t = alpha_0 .. alpha_t. Its keys read as
// late as its queries, so M masks K K^T too, and left weighs K W, in Y and in the denominators alike.
//
// Where the output is normalised, the accumulator z is kept as one more column of W, and U has a column of ones: "wide"
// rows of `wide` elements hold d_value numbers and that column, "narrow" is d_value in whole vectors.
//
// The backward recomputes phi, P and U. It keeps the state at the start of each chunk in scratch and runs the chunks
// backwards. dX is the gradient of X; dW is that of the state after the chunk, and the last column of dN is the
// gradient of the denominator:
//
//     dU = P^T dN + K dW;  Z = (I + diag(rate) stril(K K^T))^-T dU;  dY = -rate Z
//     dP = M o (dN U^T);  dKK = stril(dY U^T)
//     dQ = dP K + dN W^T;  dK = dP^T Q + (dKK + dKK^T) K + U dW^T + dY W^T
//     dV = beta Z;  dbeta = Z.(V - ...);  dW <- dW + Q^T dN + K^T dY
//
// For rules that decay, gradients of the running products M and left follow the recursion backwards, without dividing:
// with keep_t = 1 - beta_t, or alpha_t, and H_t = dM_t + keep_{t+1} H_{t+1}, that of keep_t is H_t.M_{t-1}. It is that
// of alpha_t; under the gated rule that of beta_t is H_tt less it.
//
// Scratch belongs to the thread that runs the head; nothing is shared, so results do not depend on the threads.

// A token costs less in short chunks, whose triangles are small; but each chunk reads and writes the state. 48 and 64
// are slower than 32 for heads of 16 to 64 and d_dot of 16 to 512.
constexpr idx longest_chunk = 128, short_chunk = 32;
constexpr idx longest_grouped = 64;  // up to this length features are made in groups that stay in the first-level cache
constexpr idx feature_group = 64;

// The sizes that a call determines.
template <class T> struct Plan {
  idx chunk, chunks, tile;  // source positions a chunk; chunks; targets read at once
  idx narrow, wide;
  bool causal, reads_state;  // reads_state: targets read the final state, not the Gram matrix of each chunk
  bool writes_state;         // somebody needs the state after the last chunk
  bool lone_z;               // z is alone in its vector of wide rows

  explicit Plan(const Call<T>& c) {
    constexpr idx lanes = width<T>;
    causal = c.causal;
    narrow = round_up(c.d_value, lanes);
    wide = round_up(c.d_value + (c.normalize_output ? 1 : 0), lanes);
    lone_z = c.normalize_output && narrow == c.d_value;
    chunk = c.sources <= longest_chunk ? c.sources : short_chunk;
    chunks = c.sources <= longest_chunk ? 1 : (c.sources + chunk - 1) / chunk;
    const bool given = c.W != nullptr;
    const idx gram = c.targets * c.sources * (c.d_dot + c.d_value);
    const idx state = (c.targets + (given ? 0 : c.sources)) * c.d_dot * c.d_value;
    reads_state = !causal && (chunks > 1 || gram > state);
    writes_state = given || reads_state;
    tile = causal ? chunk : (c.targets < longest_chunk ? c.targets : longest_chunk);
  }
};

// Divides the scratch into arrays; without a scratch, counts how large it has to be. Arrays start at whole cache lines
// with one line between them: if they were a multiple of 4096 bytes apart, loads would wait for stores of equal low
// address bits.
template <class T> struct Arena {
  T* base;
  std::size_t used = 0;

  T* take(idx count) {
    T* array = base ? base + used : nullptr;
    const idx line = 64 / idx(sizeof(T));
    used += round_up(count, line) + line;
    return array;
  }
  template <class U> U* take_as(idx count) {
    return reinterpret_cast<U*>(take(round_up(count * idx(sizeof(U)), sizeof(T)) / idx(sizeof(T))));
  }
};

template <class T> struct Head {
  const Call<T>& c;
  const Plan<T> plan;
  const idx b, h;

  Side<T> q, k;
  const bool corrects, decays;
  T *buffer, *P, *KK, *M, *U, *Y, *N, *W;  // as above; KK is K K^T below the diagonal; M is for rules that decay
  T *beta, *rate, *seen, *denominator;
  T *keep, *left;  // decays: what each position leaves of the one before it, and of W
  const T* ends;   // decays: the last row of M
  T kept;          // decays: the last of left
  T *unmasked_KK = nullptr, *unweighed_Y = nullptr;  // gated_delta's backward: K K^T before M, and K W
  idx ldp;  // distance of the rows of P, KK and M
  bool has_W = false;
  bool grams_done = false;  // load_grams has loaded both sides; phi does not hold the features
  bool paired = false;      // it did so by pairs: P and KK are transposed, with nothing above the diagonal
  T *pairs, *products;      // a group of features of q and k, and the Gram matrices of both, as in product_pairs
  idx ldpairs;

  Head(const Call<T>& call, idx b, idx h, Arena<T>& arena)
      : c(call), plan(call), b(b), h(h), corrects(fwp::corrects(call.rule)), decays(fwp::decays(call.rule)) {
    const idx longest = plan.chunk > plan.tile ? plan.chunk : plan.tile;
    const idx ld = round_up(longest, width<T>) + width<T>, rows = round_up(longest, width<T>);
    ldp = row_distance<T>(plan.chunk);
    for (Side<T>* side : {&q, &k}) {
      side->x = arena.take(base_rows(c) * ld);
      side->phi = arena.take(c.d_dot * ld);
      side->scale = arena.take(ld);
    }
    q.ahead = ahead(c.q);
    k.ahead = ahead(c.k);
    buffer = arena.take(width<T> * round_up(c.d_key, width<T>));
    ldpairs = row_distance<T>(2 * rows);
    pairs = arena.take(pairs_features() ? feature_group * ldpairs : 0);
    products = arena.take(pairs_features() ? rows * ldpairs : 0);
    P = arena.take(rows * ldp);
    KK = arena.take(corrects ? rows * ldp : 0);
    M = arena.take(decays ? rows * ldp : 0);
    U = arena.take(rows * plan.wide);
    Y = arena.take(corrects ? rows * plan.wide : 0);
    N = arena.take(rows * plan.wide);
    W = arena.take(c.d_dot * plan.wide);
    beta = arena.take(ld);
    rate = arena.take(ld);
    seen = arena.take(ld);
    denominator = arena.take(ld);
    keep = arena.take(decays ? ld : 0);
    left = arena.take(decays ? ld : 0);
  }

  // ---- state ----

  void copy_state_in(const T* from_W, const T* from_z, T* to) const {
    for (idx i = 0; i < c.d_dot; ++i) {
      T* row = to + i * plan.wide;
      const T* from = from_W + ((b * c.heads + h) * c.d_dot + i) * c.d_value;
      for (idx j = 0; j < c.d_value; ++j) row[j] = from[j];
      for (idx j = c.d_value; j < plan.wide; ++j) row[j] = 0;
      if (c.normalize_output && from_z) row[c.d_value] = from_z[(b * c.heads + h) * c.d_dot + i];
    }
  }
  void copy_state_out(const T* from, T* to_W, T* to_z) const {
    for (idx i = 0; i < c.d_dot; ++i) {
      const T* row = from + i * plan.wide;
      T* to = to_W + ((b * c.heads + h) * c.d_dot + i) * c.d_value;
      for (idx j = 0; j < c.d_value; ++j) to[j] = row[j];
      if (c.normalize_output && to_z) to_z[(b * c.heads + h) * c.d_dot + i] = row[c.d_value];
    }
  }

  // ---- helpers ----

  // Loads rows of values or of their gradient, filled up with zeros to `wide`. Values at padded keys are not read.
  void load_rows(const Rows<const T>& rows, idx t0, idx count, bool keys, T* to) const {
    const idx next = ahead(rows);
    for (idx t = 0; t < count; ++t) {
      T* row = to + t * plan.wide;
      if (keys && is_pad(t0 + t)) {
        for (idx j = 0; j < plan.wide; ++j) row[j] = 0;
        continue;
      }
      const T* from = rows.at(b, t0 + t, h);
      idx j = 0;
      for (; j + width<T> <= c.d_value; j += width<T>) {
        prefetch<false>(from + j + next);
        store(row + j, load(from + j));
      }
      for (; j < c.d_value; ++j) row[j] = from[j];
      for (; j < plan.wide; ++j) row[j] = 0;
    }
  }

  bool is_pad(idx t) const { return c.key_padding_mask && *c.key_padding_mask.at(b, t, 0); }

  void scale_rows(idx count, const T* by, T* rows, idx columns) const {
    for (idx t = 0; t < count; ++t) {
      const Vec<T> s = splat(by[t]);
      for (idx j = 0; j < columns; j += width<T>) store(rows + t * plan.wide + j, load(rows + t * plan.wide + j) * s);
    }
  }

  // phi viewed as (token, feature) and as (feature, token).
  static View<T> tokens(const Side<T>& s) { return {s.phi, 1, s.ld}; }
  static View<T> features(const Side<T>& s) { return {s.phi, s.ld, 1}; }
  View<T> rows(const T* rows) const { return {rows, plan.wide, 1}; }

  template <bool Add>
  void add_gram(const Side<T>& a, const Side<T>& b, View<T> A, const T* B, idx features, bool lower, T* to) const {
    if (lower) product_lower<Add>(a.padded, b.padded, features, A, B, b.ld, to, ldp);
    else product<Add>(a.padded, b.padded, features, A, B, b.ld, to, ldp);
  }

  // Whether this is a sentence without a state whose features only the Gram matrices need.
  bool groups_features() const {
    const bool grouped = with_map(c.map, [](auto map) { return Phi<map.value>::grouped; });
    return grouped && c.sources <= longest_grouped && c.targets <= longest_grouped && !plan.reads_state &&
           !plan.writes_state && !c.initial_W;
  }
  bool pairs_features() const { return groups_features() && plan.causal && c.rule == Rule::delta; }

  // Loads both sides and the Gram matrices before scaling, a few features at a time: phi as a whole would leave the
  // first-level cache and come back.
  void load_grams(idx targets, idx sources) {
    load_inputs(c, c.k, c.key_padding_mask, b, h, 0, sources, k, buffer);
    load_inputs(c, c.q, Rows<const bool>{}, b, h, 0, targets, q, buffer);
    paired = pairs_features();
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
    if (paired) {
      const auto put = [&](T* to) {
        return [=, this](idx i, idx t, Vec<T> y) FWP_INLINE_LAMBDA { store_halves(to + i * ldpairs + 2 * t, y); };
      };
      Phi<M>::rows(c, q, j, first, count, put(pairs));
      Phi<M>::rows(c, k, j, first, count, put(pairs + width<T> / 2));
      product_pairs<Add>(2 * k.padded, count, pairs, ldpairs, products, ldpairs);
      return;
    }
    for (Side<T>* s : {&k, &q})
      Phi<M>::rows(c, *s, j, first, count,
                   [&](idx i, idx t, Vec<T> y) FWP_INLINE_LAMBDA { store(s->phi + i * s->ld + t, y); });
    add_gram<Add>(q, k, tokens(q), k.phi, count, plan.causal, P);
    if (corrects) add_gram<Add>(k, k, tokens(k), k.phi, count, true, KK);
  }

  // A view of P or KK for the triangular products.
  View<T> triangle(const T* gram) const { return paired ? View<T>{gram, 1, ldp} : View<T>{gram, ldp, 1}; }

  // to = (scaled a . scaled k)^T for j <= i + limit, from a's half vectors of `products`; sums over j go to `sums`.
  void gram_of_pairs(const Side<T>& a, const T* from, idx limit, T* to, T* sums) const {
    const auto lane = lane_numbers<T>();
    for (idx first = 0; first < a.padded; first += width<T>) {
      const Vec<T> scale = load(a.scale + first);
      Vec<T> sum{};
      for (idx j = 0; j < first + width<T> + limit; ++j) {
        const Vec<T> x = load_halves(from + j * ldpairs + 2 * first) * (scale * splat(k.scale[j]));
        const Vec<T> kept = lane >= lane_limit(j - limit - first) ? x : Vec<T>{};
        store(to + j * ldp + first, kept);
        sum += kept;
      }
      if (sums) store(sums + first, sum);
    }
  }

  // to (padded rows) = scaled a . scaled b for j <= i + limit and 0 elsewhere; its row sums go to `sums`.
  void gram(const Side<T>& a, const Side<T>& b, bool lower, idx limit, T* to, T* sums) const {
    if (paired) return gram_of_pairs(a, &a == &q ? products : products + width<T> / 2, limit, to, sums);
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

  // ---- writing ----

  // Loads keys and U (for delta also Y, rate, KK) of the chunk that starts at t0, from the state W if there is one.
  void load_chunk(idx t0, idx count) {
    if (!grams_done) load_side(c, c.k, c.key_padding_mask, b, h, t0, count, k, buffer);
    load_rows(c.v, t0, count, true, U);
    if (c.rule != Rule::sum)
      for (idx t = 0; t < count; ++t) beta[t] = is_pad(t0 + t) ? T(0) : *c.beta.at(b, t0 + t, h);
    if (decays) load_decay(t0, count);
    if (corrects) {
      gram(k, k, true, -1, KK, c.normalize_output && !decays ? seen : nullptr);
      if (decays)
        for (idx i = 0; i < count; ++i) mask_row(i, M + i * ldp, KK, unmasked_KK);
      if (has_W) {
        read_from(k, W, Y);
        for (idx i = 0; unweighed_Y && i < count * plan.wide; ++i) unweighed_Y[i] = Y[i];
        if (decays) scale_rows(count, left, Y, plan.wide);
      }
      for (idx t = 0; t < count; ++t) {
        if (!c.normalize_output) {
          rate[t] = beta[t];
          continue;
        }
        seen[t] += (has_W ? Y[t * plan.wide + c.d_value] : T(0)) + c.eps;
        rate[t] = seen[t] == 0 ? T(0) : beta[t] / seen[t];
      }
      scale_rows(count, beta, U, plan.narrow);
      if (has_W) triangle_solve<true>(count, plan.narrow, triangle(KK), rate, 1, Y, plan.wide, U, plan.wide);
      else triangle_solve<false>(count, plan.narrow, triangle(KK), rate, 1, Y, plan.wide, U, plan.wide);
    }
    if (c.normalize_output)
      for (idx t = 0; t < count; ++t) U[t * plan.wide + c.d_value] = 1;
  }

  // Computes keep, M and left of the chunk; a pad changes nothing.
  void load_decay(idx t0, idx count) {
    const bool gated = c.rule == Rule::gated;
    kept = 1;
    for (idx t = 0; t < count; ++t) {
      keep[t] = gated ? 1 - beta[t] : is_pad(t0 + t) ? T(1) : *c.alpha.at(b, t0 + t, h);
      T* row = M + t * ldp;
      for (idx j = 0; j < k.padded; j += width<T>)
        store(row + j, t == 0 ? Vec<T>{} : load(row - ldp + j) * splat(keep[t]));
      row[t] = gated ? beta[t] : T(1);
      left[t] = kept *= keep[t];
    }
    ends = M + (count > 0 ? count - 1 : 0) * ldp;
  }

  // Turns the state before the chunk, if there is one, in `to` into the state after it. Overwrites U.
  void write_chunk(T* to) {
    if (decays) {
      scale_rows(k.tokens, ends, U, plan.wide);
      if (has_W)
        for (idx i = 0; i < c.d_dot * plan.wide; i += width<T>) store(to + i, load(to + i) * splat(kept));
    }
    write(k, U, to, has_W);
  }

  // to += (features of s)^T what, or = where !add. `what` (wide rows) is scaled with s in place.
  void write(const Side<T>& s, T* what, T* to, bool add) const {
    scale_rows(s.tokens, s.scale, what, plan.wide);
    const idx columns = plan.lone_z ? plan.narrow : plan.wide;
    if (add) product<true>(c.d_dot, columns, s.tokens, features(s), what, plan.wide, to, plan.wide);
    else product<false>(c.d_dot, columns, s.tokens, features(s), what, plan.wide, to, plan.wide);
    if (plan.lone_z) write_z(s, what, to, add);
  }

  // A column that is alone in its vector would cost a product as much as a whole vector of columns. Behind it rows hold
  // zeros.
  void write_z(const Side<T>& s, const T* what, T* to, bool add) const {
    T column[longest_chunk], found[width<T>];
    for (idx t = 0; t < s.padded; ++t) column[t] = t < s.tokens ? what[t * plan.wide + c.d_value] : T(0);
    for (idx first = 0; first < c.d_dot; first += width<T>) {
      const idx count = first + width<T> < c.d_dot ? width<T> : c.d_dot - first;
      Vec<T> sum[width<T>] = {};
      for (idx r = 0; r < count; ++r)
        for (idx t = 0; t < s.padded; t += width<T>) sum[r] += load(s.phi + (first + r) * s.ld + t) * load(column + t);
      store(found, sum_of_rows<T>(sum));
      for (idx r = 0; r < count; ++r) {
        T* z = to + (first + r) * plan.wide + c.d_value;
        put_z(z, add ? *z + found[r] : found[r]);
      }
    }
  }
  void read_z(const Side<T>& s, const T* from, T* to) const {
    T found[longest_chunk];
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> sum[4] = {};  // several, as with one each addition would wait for the last
      idx i = 0;
      for (; i + 4 <= c.d_dot; i += 4)
        for (int r = 0; r < 4; ++r)
          sum[r] += load(s.phi + (i + r) * s.ld + t) * splat(from[(i + r) * plan.wide + c.d_value]);
      for (; i < c.d_dot; ++i) sum[0] += load(s.phi + i * s.ld + t) * splat(from[i * plan.wide + c.d_value]);
      store(found + t, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    for (idx t = 0; t < s.tokens; ++t) put_z(to + t * plan.wide + c.d_value, found[t]);
  }
  static void put_z(T* to, T z) {
    Vec<T> row{};
    row[0] = z;
    store(to, row);
  }

  // ---- reading ----

  // to = (scaled features of s) state, wide.
  void read_from(const Side<T>& s, const T* state, T* to) const {
    const idx columns = plan.lone_z ? plan.narrow : plan.wide;
    product<false>(s.tokens, columns, c.d_dot, tokens(s), state, plan.wide, to, plan.wide);
    if (plan.lone_z) read_z(s, state, to);
    scale_rows(s.tokens, s.scale, to, plan.wide);
  }
  // The weight that W has for target t.
  T share(idx t, bool from_gram) const {
    return !decays || !from_gram ? T(1) : plan.causal ? left[t] : kept;
  }
  // Computes P, adds its row sums to the denominators, and stores P before M in `unmasked`.
  void read_gram(T* unmasked = nullptr) {
    gram(q, k, plan.causal, 0, P, c.normalize_output && !decays ? seen : nullptr);
    for (idx i = 0; decays && i < q.tokens; ++i) mask_row(i, plan.causal ? M + i * ldp : ends, P, unmasked);
    if (c.normalize_output)
      for (idx t = 0; t < q.tokens; ++t) denominator[t] += seen[t];
  }

  // Multiplies row i of a Gram matrix by m, keeps the row as it was in `unmasked`, and sets seen to its new sum.
  void mask_row(idx i, const T* m, T* gram, T* unmasked) {
    Vec<T> sum{};
    for (idx j = 0; j < k.padded; j += width<T>) {
      const Vec<T> x = load(gram + i * ldp + j), y = x * load(m + j);
      if (unmasked) store(unmasked + i * ldp + j, x);
      store(gram + i * ldp + j, y);
      sum += y;
    }
    seen[i] = sum_of_lanes<T>(sum);
  }

  // Computes N and denominators of the tile in q, from W if there is one and, if from_gram, from the chunk in k.
  void read(bool from_gram) {
    const idx count = q.tokens;
    for (idx t = 0; t < count; ++t) denominator[t] = c.eps;
    if (has_W) {
      read_from(q, W, N);
      if (decays && from_gram)
        for (idx t = 0; t < count; ++t)
          for (idx j = 0; j < plan.wide; ++j) N[t * plan.wide + j] *= share(t, true);
      if (c.normalize_output)
        for (idx t = 0; t < count; ++t) denominator[t] += N[t * plan.wide + c.d_value];
    }
    if (!from_gram) return;
    read_gram();
    if (has_W) add_written<true>(count);
    else add_written<false>(count);
  }
  // N (+)= P U
  template <bool Add> void add_written(idx count) const {
    if (plan.causal) triangle_product<Add>(count, plan.narrow, triangle(P), U, plan.wide, N, plan.wide);
    else product<Add>(count, plan.narrow, k.tokens, View<T>{P, ldp, 1}, U, plan.wide, N, plan.wide);
  }

  void load_queries(idx t0, idx count) { load_side(c, c.q, Rows<const bool>{}, b, h, t0, count, q, buffer); }

  void read_out(idx t0, idx count, bool from_gram) {
    if (!grams_done) load_queries(t0, count);
    read(from_gram);
    for (idx t = 0; t < count; ++t) {
      const T* row = N + t * plan.wide;
      const T d = c.normalize_output ? denominator[t] : T(1);
      store_row(row, d == 0 ? T(0) : 1 / d, d == 0, c.out.at(b, t0 + t, h), ahead(c.out));
    }
  }
  // to = by row; or zeros where `zero`, whatever the row holds.
  void store_row(const T* row, T by, bool zero, T* to, idx ahead) const {
    if (zero) {
      for (idx j = 0; j < c.d_value; ++j) to[j] = 0;
      return;
    }
    idx j = 0;
    for (; j + width<T> <= c.d_value; j += width<T>) {
      prefetch<true>(to + j + ahead);
      store(to + j, load(row + j) * splat(by));
    }
    for (; j < c.d_value; ++j) to[j] = row[j] * by;
  }

  template <class F> void for_tiles(F f) const {
    for (idx t0 = 0; t0 < c.targets; t0 += plan.tile)
      f(t0, t0 + plan.tile < c.targets ? plan.tile : c.targets - t0);
  }
  idx chunk_length(idx n) const {
    const idx t0 = n * plan.chunk;
    return t0 + plan.chunk < c.sources ? plan.chunk : c.sources - t0;
  }
  void start() {
    has_W = c.initial_W != nullptr;
    if (has_W) copy_state_in(c.initial_W, c.initial_z, W);
  }

  // The distance from a row to the one in its place in the next chunk, or if there is one chunk, of the next head.
  template <class U> idx ahead(const Rows<U>& rows) const {
    if (plan.chunks > 1) return plan.chunk * rows.time;
    if (h + 1 < c.heads) return rows.head;
    return b + 1 < c.batch ? rows.batch - (c.heads - 1) * rows.head : 0;
  }

  void forward() {
    start();
    if (groups_features()) load_grams(c.targets, c.sources);
    for (idx n = 0; n < plan.chunks; ++n) {
      const idx t0 = n * plan.chunk, count = chunk_length(n);
      load_chunk(t0, count);
      if (plan.causal) read_out(t0, count, true);
      else if (!plan.reads_state) for_tiles([&](idx t, idx tile) { read_out(t, tile, true); });
      if (plan.writes_state || n + 1 < plan.chunks) {
        write_chunk(W);
        has_W = true;
      }
    }
    if (plan.reads_state) for_tiles([&](idx t, idx tile) { read_out(t, tile, false); });
    if (c.W) copy_state_out(W, c.W, c.z);
  }
};

template <class T> struct HeadBackward : Head<T> {
  using Base = Head<T>;
  using Base::b, Base::beta, Base::c, Base::corrects, Base::decays, Base::denominator, Base::ends, Base::h, Base::has_W,
      Base::k, Base::keep, Base::kept, Base::KK, Base::ldp, Base::left, Base::M, Base::P, Base::plan, Base::q, Base::Y,
      Base::rate, Base::seen, Base::U, Base::unmasked_KK, Base::unweighed_Y, Base::W;

  T* states;           // W at the start of every chunk and after the last
  T* dW;               // [d_dot][wide]
  T *dq, *dk, *dx;     // of scaled features, [d_dot][ld of q, k]; of their inputs, [d_key, dpfp: 2 d_key][ld]
  T *dN, *dU, *dY;     // wide rows; dY ends as the gradient of K W, with that of z.k in the last column
  T *V, *old;          // wide rows: values; Q W
  T *U_across, *across;  // [wide][lda]: transposes of U and of dN or dY
  T *dP, *dP_t;           // [tokens][lda]: gradient of P, then of K K^T, and its transpose
  T *pull, *seen_by_keys;  // gradient of z.k; z.k + eps
  // Decays: P before M and then, where has_dM, M's gradient; the gradients of M's last row and of left; H.
  T *unmasked, *dends, *dleft, *running;
  T dkept = 0;         // gradient of kept
  idx lda, columns;    // columns: d_value and, where the output is normalised, z's
  bool has_dW = false;

  HeadBackward(const Call<T>& call, idx b, idx h, Arena<T>& arena) : Base(call, b, h, arena) {
    const idx longest = plan.chunk > plan.tile ? plan.chunk : plan.tile;
    const idx rows = round_up(longest, width<T>), size = rows * plan.wide, state = c.d_dot * plan.wide;
    lda = row_distance<T>(longest);
    columns = c.d_value + (c.normalize_output ? 1 : 0);
    states = arena.take((plan.chunks + 1) * state);
    W = states;
    dW = arena.take(state);
    const idx ld = rows + width<T>;
    dq = arena.take(c.d_dot * ld);
    dk = arena.take(c.d_dot * ld);
    dx = arena.take(gradient_rows(c) * ld);
    dN = arena.take(size);
    dU = arena.take(size);
    dY = arena.take(corrects ? size : 0);
    V = arena.take(corrects ? size : 0);
    old = arena.take(size);
    U_across = arena.take(plan.wide * lda);
    across = arena.take(plan.wide * lda);
    dP = arena.take(rows * lda);
    dP_t = arena.take(rows * lda);
    pull = arena.take(ld);
    seen_by_keys = arena.take(ld);
    unmasked = arena.take(decays ? rows * ldp : 0);
    for (T** row : {&dends, &dleft, &running}) *row = arena.take(decays ? ld : 0);
    if (corrects && decays) {
      unmasked_KK = arena.take(rows * ldp);
      unweighed_Y = arena.take(size);
    }
  }

  void enter(idx n) {  // the state at the start of chunk n
    W = states + n * c.d_dot * plan.wide;
    has_W = n > 0 || c.initial_W;
  }

  // to[j][t] = rows[t][j]; tokens past the end become 0 in both.
  void turn(T* rows, idx count, T* to) const {
    const idx padded = round_up(count, width<T>);
    for (idx i = count * plan.wide; i < padded * plan.wide; ++i) rows[i] = 0;
    for (idx t = 0; t < padded; t += width<T>)
      for (idx j = 0; j < plan.wide; j += width<T>)
        transpose_block(rows + t * plan.wide + j, plan.wide, to + j * lda + t, lda);
  }
  // dP_t = dP^T. scale_square multiplies row i of a square by by[i].
  void turn_square(idx rows, idx columns) const {
    for (idx i = 0; i < rows; i += width<T>)
      for (idx j = 0; j < columns; j += width<T>) transpose_block(dP + i * lda + j, lda, dP_t + j * lda + i, lda);
  }
  void scale_square(T* square, idx rows, idx columns, const T* by) const {
    for (idx i = 0; i < rows; ++i)
      for (idx j = 0; j < columns; j += width<T>) store(square + i * lda + j, load(square + i * lda + j) * splat(by[i]));
  }

  // dP = left U^T without the column of ones; dP has `rows` padded rows.
  void pair_gradient(const T* left, idx rows, bool lower) const {
    if (lower) product_lower<false>(rows, k.padded, c.d_value, Base::rows(left), U_across, lda, dP, lda);
    else product<false>(rows, k.padded, c.d_value, Base::rows(left), U_across, lda, dP, lda);
  }
  // dP[i][j] += shift for j <= last, and 0 after it.
  void shift_row(idx i, idx last, T shift) const {
    const auto lane = lane_numbers<T>();
    for (idx j = 0; j < k.padded; j += width<T>) {
      Vec<T> x{};
      if (j <= last) {
        x = load(dP + i * lda + j) + splat(shift);
        if (j + width<T> > last + 1) x = lane <= Base::lane_limit(last - j) ? x : Vec<T>{};
      }
      store(dP + i * lda + j, x);
    }
  }
  T dot_values(const T* a, const T* b, idx t) const {  // of row t, without z's column
    a += t * plan.wide;
    b += t * plan.wide;
    Vec<T> sum{};
    idx j = 0;
    for (; j + width<T> <= c.d_value; j += width<T>) sum += load(a + j) * load(b + j);
    T total = sum_of_lanes<T>(sum);
    for (; j < c.d_value; ++j) total += a[j] * b[j];
    return total;
  }
  T dot_row(idx i, idx last) const {  // P_i.D_i up to and with `last`
    const auto lane = lane_numbers<T>();
    Vec<T> sum{};
    for (idx j = 0; j < k.padded && j <= last; j += width<T>) {
      const Vec<T> x = load(P + i * ldp + j) * load(dP + i * lda + j);
      sum += j + width<T> > last + 1 ? (lane <= Base::lane_limit(last - j) ? x : Vec<T>{}) : x;
    }
    return sum_of_lanes<T>(sum);
  }

  // Stores the gradient of a tile of queries; adds to dk and dU of the chunk in k (from_gram) and to dW (need_dW).
  void read_backward(idx t0, idx count, bool from_gram, bool need_dW) {
    Base::load_queries(t0, count);
    for (idx t = 0; t < count; ++t) denominator[t] = c.eps;
    const bool decayed = decays && from_gram;
    const bool reads_old = has_W && (c.normalize_output || decayed);
    if (reads_old) Base::read_from(q, W, old);
    if (has_W && c.normalize_output)
      for (idx t = 0; t < count; ++t) denominator[t] += Base::share(t, from_gram) * old[t * plan.wide + c.d_value];
    if (from_gram) Base::read_gram(unmasked);
    Base::load_rows(c.grad_out, t0, count, false, dN);
    for (idx i = count * plan.wide; i < q.padded * plan.wide; ++i) dN[i] = 0;
    if (c.normalize_output)
      for (idx t = 0; t < count; ++t) {
        const T inverse = denominator[t] == 0 ? T(0) : 1 / denominator[t];
        denominator[t] = inverse;
        T total = 0;  // dN.N, so far only the part read from W
        for (idx j = 0; j < c.d_value; ++j) dN[t * plan.wide + j] *= inverse;
        if (has_W) total = dot_values(dN, old, t);
        seen[t] = Base::share(t, from_gram) * total;
      }
    if (from_gram) pair_gradient(dN, q.padded, plan.causal);
    for (idx i = 0; i < q.padded; ++i) {
      const idx last = i >= count ? -1 : plan.causal ? i : k.tokens - 1;
      T shift = 0;  // gradient of the denominator
      if (c.normalize_output && i < count) {
        if (from_gram) seen[i] += dot_row(i, last);
        shift = -denominator[i] * seen[i];
        dN[i * plan.wide + c.d_value] = shift;
      }
      if (from_gram) shift_row(i, last, shift);
    }
    if (decayed) mask_backward(count);
    if (has_W) {
      turn(dN, count, across);
      product<false>(c.d_dot, q.padded, columns, Base::rows(W), across, lda, dq, q.ld);
      for (idx t = 0; decayed && t < count; ++t)
        for (idx i = 0; i < c.d_dot; ++i) dq[i * q.ld + t] *= Base::share(t, true);
    } else {
      for (idx i = 0; i < c.d_dot * q.ld; ++i) dq[i] = 0;
    }
    if (from_gram) gram_backward(count);
    store_side_gradient(c, q, dq, dx, c.grad_q, b, h, t0);
    if (need_dW) {
      for (idx t = 0; decayed && t < count; ++t)
        for (idx j = 0; j < plan.wide; ++j) dN[t * plan.wide + j] *= Base::share(t, true);
      Base::write(q, dN, dW, has_dW);
      has_dW = true;
    }
  }

  // Adds to dq, dk and dU what dP of a tile of `count` queries gives.
  FWP_INLINE void gram_backward(idx count) const {
    turn_square(q.padded, k.padded);
    scale_square(dP_t, k.padded, q.padded, k.scale);
    scale_square(dP, q.padded, k.padded, q.scale);
    const View<T> keys = Base::features(k), queries = Base::features(q);
    if (plan.causal) {
      // dU += P^T dN from the last row up, so that the triangle is a lower one.
      const idx e = count - 1;
      triangle_product<true>(count, plan.narrow, View<T>{P + e * ldp + e, -1, -ldp}, dN + e * plan.wide, -plan.wide,
                             dU + e * plan.wide, -plan.wide);
      product<true, Band::upper>(c.d_dot, q.padded, k.tokens, keys, dP_t, lda, dq, q.ld);
      product<true, Band::lower>(c.d_dot, k.padded, count, queries, dP, lda, dk, k.ld);
    } else {
      product<true>(k.tokens, plan.narrow, count, View<T>{P, 1, ldp}, dN, plan.wide, dU, plan.wide);
      product<true>(c.d_dot, q.padded, k.tokens, keys, dP_t, lda, dq, q.ld);
      product<true>(c.d_dot, k.padded, count, queries, dP, lda, dk, k.ld);
    }
  }

  // Turns dP from the gradient of P into that of Q K^T, and computes the gradients of M and left.
  void mask_backward(idx count) {
    for (idx t = 0; t < count; ++t) {
      const T* m = plan.causal ? M + t * ldp : ends;
      for (idx j = 0; j < k.padded; j += width<T>) {
        const Vec<T> d = load(dP + t * lda + j), dm = d * load(unmasked + t * ldp + j);
        if (plan.causal) store(unmasked + t * ldp + j, dm);
        else store(dends + j, load(dends + j) + dm);
        store(dP + t * lda + j, d * load(m + j));
      }
      T total = 0;
      for (idx j = 0; has_W && j < columns; ++j) total += dN[t * plan.wide + j] * old[t * plan.wide + j];
      if (plan.causal) dleft[t] = total;
      else dkept += total;
    }
  }

  // Takes gradients through the write of a rule that decays: dW, that of the state after the chunk, reaches K and U by
  // the weights in `ends`, the state before it by `kept`. Where has_dW, dU and dk hold K dW and U dW^T on entry.
  void write_decay_backward(idx count) {
    dkept = 0;
    for (idx j = 0; j < k.padded; ++j) dends[j] = 0;
    for (idx t = 0; t < count; ++t) dleft[t] = 0;
    if (!has_dW) return;
    for (idx t = 0; t < count; ++t)
      for (idx j = 0; j < plan.wide; ++j) {
        dends[t] += dU[t * plan.wide + j] * U[t * plan.wide + j];
        dU[t * plan.wide + j] *= ends[t];
      }
    for (idx i = 0; i < c.d_dot; ++i)
      for (idx t = 0; t < count; ++t) dk[i * k.ld + t] *= ends[t];
    Vec<T> total{};
    for (idx i = 0; i < c.d_dot * plan.wide; i += width<T>) {
      const Vec<T> g = load(dW + i);
      if (has_W) total += g * load(W + i);
      store(dW + i, g * splat(kept));
    }
    dkept = sum_of_lanes<T>(total);
  }

  // Gradient of beta (gated) or alpha from those of M and left.
  void decay_backward(idx t0, idx count) {
    const bool has_dM = plan.causal || corrects;  // otherwise only M's last row was used
    for (idx j = 0; j < k.padded; ++j) running[j] = dends[j];
    T running_left = dkept;
    for (idx t = count - 1; t >= 0; --t) {
      running_left += dleft[t];
      const T own = running[t] + (has_dM ? unmasked[t * ldp + t] : T(0));
      Vec<T> sum{};
      for (idx j = 0; j < k.padded; j += width<T>) {
        Vec<T> x = load(running + j);
        if (has_dM) x += load(unmasked + t * ldp + j);
        if (t > 0) sum += x * load(M + (t - 1) * ldp + j);
        store(running + j, x * splat(keep[t]));
      }
      const T dkeep = sum_of_lanes<T>(sum) + running_left * (t > 0 ? left[t - 1] : T(1));
      running_left *= keep[t];
      const bool gated = c.rule == Rule::gated;
      *(gated ? c.grad_beta : c.grad_alpha).at(b, t0 + t, h) = Base::is_pad(t0 + t) ? T(0) : gated ? own - dkeep : dkeep;
    }
  }

  // Takes the complete dU through the solve to V, beta, keys and the state that the chunk started from.
  void write_backward(idx t0, idx count, bool need_dW) {
    if (!corrects) {
      if (decays) decay_backward(t0, count);
      store_values(t0, count, dU, nullptr);
      return;
    }
    const idx e = count - 1;
    for (idx i = 0; i < round_up(count, width<T>) * plan.wide; ++i) dY[i] = 0;
    // The transposed system runs from the last row up: dU becomes Z, dY = -rate Z.
    triangle_solve<true>(count, plan.narrow, View<T>{KK + e * ldp + e, -1, -ldp}, rate + e, -1, dU + e * plan.wide, -plan.wide,
                   dY + e * plan.wide, -plan.wide);
    const T* Z = dU;
    Base::load_rows(c.v, t0, count, true, V);
    for (idx t = 0; t < count; ++t) {
      T dbeta = dot_values(Z, V, t);
      const T drate = -dot_values(Z, Y, t);
      pull[t] = 0;
      if (!c.normalize_output) {
        dbeta += drate;
      } else if (seen_by_keys[t] != 0) {
        dbeta += drate / seen_by_keys[t];
        pull[t] = -drate * rate[t] / seen_by_keys[t];
      }
      for (idx j = c.d_value; j < plan.wide; ++j) dY[t * plan.wide + j] = 0;
      if (c.normalize_output) dY[t * plan.wide + c.d_value] = pull[t];
      *c.grad_beta.at(b, t0 + t, h) = Base::is_pad(t0 + t) ? T(0) : dbeta;
    }
    store_values(t0, count, Z, beta);
    pair_gradient(dY, k.padded, true);
    for (idx i = 0; i < k.padded; ++i) shift_row(i, i < count ? i - 1 : -1, i < count ? pull[i] : T(0));
    if (decays) {
      mask_keys_backward(count);
      decay_backward(t0, count);
    }
    turn_square(k.padded, k.padded);
    for (idx i = 0; i < k.padded; ++i)
      for (idx j = 0; j < k.padded; j += width<T>) {
        T* d = dP + i * lda + j;
        store(d, (load(d) + load(dP_t + i * lda + j)) * splat(k.scale[i]));
      }
    product<true>(c.d_dot, k.padded, count, Base::features(k), dP, lda, dk, k.ld);
    if (has_W) {
      turn(dY, count, across);
      product<true>(c.d_dot, k.padded, columns, Base::rows(W), across, lda, dk, k.ld);
    }
    if (need_dW) {
      Base::write(k, dY, dW, has_dW);
      has_dW = true;
    }
  }

  // gated_delta: turns dP from the gradient of M o K K^T into that of K K^T, and dY into that of K W. Adds to the
  // gradients of M and left.
  void mask_keys_backward(idx count) {
    for (idx t = 0; t < count; ++t) {
      for (idx j = 0; j < k.padded; j += width<T>) {
        const Vec<T> d = load(dP + t * lda + j);
        const Vec<T> dm = d * load(unmasked_KK + t * ldp + j);
        store(unmasked + t * ldp + j, plan.causal ? dm + load(unmasked + t * ldp + j) : dm);
        store(dP + t * lda + j, d * load(M + t * ldp + j));
      }
      T total = 0;
      for (idx j = 0; has_W && j < columns; ++j) total += dY[t * plan.wide + j] * unweighed_Y[t * plan.wide + j];
      dleft[t] += total;
    }
    Base::scale_rows(count, left, dY, plan.wide);
  }

  void store_values(idx t0, idx count, const T* rows, const T* by) const {
    for (idx t = 0; t < count; ++t) {
      Base::store_row(rows + t * plan.wide, by ? by[t] : T(1), Base::is_pad(t0 + t), c.grad_v.at(b, t0 + t, h),
                      Base::ahead(c.grad_v));
    }
  }

  void backward() {
    if (c.initial_W) Base::copy_state_in(c.initial_W, c.initial_z, states);
    has_dW = c.grad_W != nullptr;
    if (has_dW) Base::copy_state_in(c.grad_W, c.grad_z, dW);
    const idx size = c.d_dot * plan.wide;
    if (plan.chunks > 1 || plan.reads_state)
      for (idx n = 0; n < plan.chunks; ++n) {
        enter(n);
        if (n + 1 == plan.chunks && !plan.reads_state) break;
        Base::load_chunk(n * plan.chunk, Base::chunk_length(n));
        if (has_W)
          for (idx i = 0; i < size; ++i) W[size + i] = W[i];
        Base::write_chunk(W + size);
      }
    if (plan.reads_state) {
      enter(plan.chunks);
      Base::for_tiles([&](idx t, idx tile) { read_backward(t, tile, false, true); });
    }
    for (idx n = plan.chunks - 1; n >= 0; --n) {
      enter(n);
      const idx t0 = n * plan.chunk, count = Base::chunk_length(n);
      const bool need_dW = has_W;
      Base::load_chunk(t0, count);
      for (idx t = 0; t < count; ++t) seen_by_keys[t] = seen[t];
      turn(U, count, U_across);
      if (has_dW) {
        Base::read_from(k, dW, dU);
        product<false>(c.d_dot, k.padded, columns, Base::rows(dW), U_across, lda, dk, k.ld);
      } else {
        for (idx i = 0; i < c.d_dot * k.ld; ++i) dk[i] = 0;
        for (idx i = 0; i < count * plan.wide; ++i) dU[i] = 0;
      }
      if (decays) write_decay_backward(count);
      if (plan.causal) read_backward(t0, count, true, need_dW);
      else if (!plan.reads_state) Base::for_tiles([&](idx t, idx tile) { read_backward(t, tile, true, need_dW); });
      write_backward(t0, count, need_dW);
      store_side_gradient(c, k, dk, dx, c.grad_k, b, h, t0);
    }
    if (c.grad_initial_W) {
      if (!has_dW)
        for (idx i = 0; i < size; ++i) dW[i] = 0;
      Base::copy_state_out(dW, c.grad_initial_W, c.grad_initial_z);
    }
  }
};

template <class T> std::size_t forward_scratch(const Call<T>& c) {
  Arena<T> arena{nullptr};
  Head<T>(c, 0, 0, arena);
  return arena.used;
}
template <class T> std::size_t backward_scratch(const Call<T>& c) {
  Arena<T> arena{nullptr};
  HeadBackward<T>(c, 0, 0, arena);
  return arena.used;
}
template <class T> void forward(const Call<T>& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  Head<T>(c, b, h, arena).forward();
}
template <class T> void backward(const Call<T>& c, idx b, idx h, T* scratch) {
  Arena<T> arena{scratch};
  HeadBackward<T>(c, b, h, arena).backward();
}
template <class T> constexpr Kernels<T> kernels{forward_scratch<T>, backward_scratch<T>, forward<T>, backward<T>};
