// phi of a tile of tokens and its backward. Everything is transposed, [feature][token], tokens padded to whole vectors:
// a roll over features is then another row, and a DPFP feature the product of two rows.

// One side (queries or keys) of a tile.
template <class T> struct Side {
  idx tokens, padded;  // padded: whole vectors
  idx ld;              // of x and phi
  T* x;                // what the backward needs of the inputs: [base_rows][ld]
  T* phi;              // [d_dot][ld], not normalised
  idx ahead = 0;       // from a row of inputs to the one that is loaded next in its place, which is asked for early
  T* scale;            // [padded]: phi * scale is what the rule sees; 0 for keys that are padding and behind the end
};

// Rows that x takes: DPFP keeps r = relu([x, -x]), FAVOR+ the inputs; the others need no more than phi.
template <class T> idx base_rows(const Call<T>& c) {
  return c.map == Map::dpfp ? 2 * c.d_key : c.map == Map::favor ? c.d_key : 0;
}

// Distance of rows: whole vectors, but no multiple of 256 bytes from there on, whose lines would share few cache sets.
template <class T> idx row_distance(idx tokens) {
  const idx padded = round_up(tokens, width<T>);
  return padded * sizeof(T) >= 256 && padded * sizeof(T) % 256 == 0 ? padded + width<T> : padded;
}

// put(d, x_d of tokens t0 + t .. t0 + t + W) for all d, 0 behind `count` and for padding. `buffer`: width x
// round_up(d_key) elements. `ahead` as in Side.
template <class T, class F>
FWP_INLINE void load_transposed(const Rows<const T>& rows, idx b, idx h, idx t0, idx t, idx count, idx d_key,
                                const Rows<const bool>& padding, idx ahead, T* buffer, F put) {
  constexpr idx W = width<T>;
  bool direct = t + W <= count;
  if (direct && padding)
    for (idx i = 0; i < W; ++i) direct = direct && !*padding.at(b, t0 + t + i, 0);
  const T* from = rows.data ? rows.at(b, t0 + t, h) : nullptr;
  idx first = 0;
  if (direct)
    for (; first + W <= d_key; first += W) {
      for (idx i = 0; i < W; ++i) prefetch<false>(from + i * rows.time + first + ahead);
      for_columns(from + first, rows.time, [&](auto i, Vec<T> column) FWP_INLINE_LAMBDA { put(first + i, column); });
    }
  if (first == d_key) return;
  // Rows that end within a vector, or tokens that are not there: through a copy filled up with zeros.
  const idx columns = round_up(d_key, W);
  for (idx i = 0; i < W; ++i) {
    const bool there = t + i < count && !(padding && *padding.at(b, t0 + t + i, 0));
    for (idx d = first; d < columns; ++d) buffer[i * columns + d] = there && d < d_key ? from[i * rows.time + d] : T(0);
  }
  for (; first < d_key; first += W)
    for_columns(buffer + first, columns, [&](auto i, Vec<T> column) FWP_INLINE_LAMBDA {
      if (first + i < d_key) put(first + i, column);
    });
}

// The other way: rows of tokens t0 .. t0 + count from x[d][t].
template <class T>
void store_transposed(const Rows<T>& rows, idx b, idx h, idx t0, idx count, idx d_key, const T* x, idx ld) {
  constexpr idx W = width<T>;
  idx t = 0;
  for (; t + W <= count; t += W) {
    idx d = 0;
    for (; d + W <= d_key; d += W) transpose_block(x + d * ld + t, ld, rows.at(b, t0 + t, h) + d, rows.time);
    for (; d < d_key; ++d)
      for (idx i = 0; i < W; ++i) rows.at(b, t0 + t + i, h)[d] = x[d * ld + t + i];
  }
  for (; t < count; ++t) {
    T* to = rows.at(b, t0 + t, h);
    for (idx d = 0; d < d_key; ++d) to[d] = x[d * ld + t];
  }
}

constexpr double largest_favor_exponent = 30;  // as feature_maps/favor.py

template <class T> void favor_features(const Call<T>& c, Side<T>& s) {
  constexpr idx W = width<T>;
  const idx m = c.d_dot / 2;
  const T constant = T(1 / __builtin_sqrt(double(c.d_dot)));
  product<false>(m, s.padded, c.d_key, View<T>{c.projection, c.d_key, 1}, s.x, s.ld, s.phi, s.ld);
  for (idx t = 0; t < s.padded; t += W) {
    Vec<T> norm{};
    for (idx d = 0; d < c.d_key; ++d) {
      const Vec<T> x = load(s.x + d * s.ld + t);
      norm += x * x;
    }
    norm *= splat(T(0.5));
    const Vec<T> top = splat(T(largest_favor_exponent));
    Vec<T> total{};
    for (idx i = 0; i < m; ++i) {
      const Vec<T> p = load(s.phi + i * s.ld + t), plus = p - norm, minus = -p - norm;
      const Vec<T> fp = exponential<T>(plus > top ? top : plus) * splat(constant);
      const Vec<T> fm = exponential<T>(minus > top ? top : minus) * splat(constant);
      store(s.phi + i * s.ld + t, fp);
      store(s.phi + (m + i) * s.ld + t, fm);
      total += fp + fm;
    }
    store(s.scale + t, total);
  }
}

// put(i, a[i] b[i]) for rows of one vector each; their sum.
template <class T, class F> FWP_INLINE Vec<T> rolled_products(const T* a, const T* b, idx ld, idx count, F put) {
  Vec<T> sum{}, odd{};  // two sums: the latency of one would be waited for
  idx i = 0;
  for (; i + 2 <= count; i += 2, a += 2 * ld, b += 2 * ld) {
    const Vec<T> y = load(a) * load(b), z = load(a + ld) * load(b + ld);
    put(i, y);
    put(i + 1, z);
    sum += y;
    odd += z;
  }
  if (i < count) {
    const Vec<T> y = load(a) * load(b);
    put(i, y);
    sum += y;
  }
  return sum + odd;
}

// Features `first` .. first + count of DPFP's block j, products of rows of s.x: put(i, t, feature first + i of the tokens
// from t on). Adds to the sums in s.scale.
template <class T, class F> FWP_INLINE void dpfp_rows(const Call<T>& c, Side<T>& s, idx j, idx first, idx count, F put) {
  const idx n = 2 * c.d_key, ld = s.ld, end = first + count;
  for (idx t = 0; t < s.padded; t += width<T>) {
    Vec<T> total = load(s.scale + t);
    const T* x = s.x + t;
    idx i = first;
    if (i < j) {  // rolled in from the other end
      const idx part = (end < j ? end : j) - i;
      total += rolled_products(x + i * ld, x + (i - j + n) * ld, ld, part,
                               [&](idx at, Vec<T> y) FWP_INLINE_LAMBDA { put(at, t, y); });
      i += part;
    }
    if (i < end)
      total += rolled_products(x + i * ld, x + (i - j) * ld, ld, end - i,
                               [&](idx at, Vec<T> y) FWP_INLINE_LAMBDA { put(i - first + at, t, y); });
    store(s.scale + t, total);
  }
}
template <class T> void dpfp_rows(const Call<T>& c, Side<T>& s, idx j, idx first, idx count, T* to) {
  dpfp_rows(c, s, j, first, count, [&](idx i, idx t, Vec<T> y) FWP_INLINE_LAMBDA { store(to + i * s.ld + t, y); });
}

// Sizes of the side, what the map needs of the inputs in s.x, phi of the maps that take one input each, and the sums of
// these in s.scale (dpfp, favor: 0). `padding` is given for keys only.
template <class T>
void load_inputs(const Call<T>& c, const Rows<const T>& rows, const Rows<const bool>& padding, idx b, idx h, idx t0,
                 idx count, Side<T>& s, T* buffer) {
  s.tokens = count;
  s.padded = round_up(count, width<T>);
  s.ld = row_distance<T>(count);
  const auto load_all = [&](auto put) FWP_INLINE_LAMBDA {
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> total{};
      load_transposed(rows, b, h, t0, t, count, c.d_key, padding, s.ahead, buffer,
                      [&](idx d, Vec<T> a) FWP_INLINE_LAMBDA { put(d * s.ld + t, a, total); });
      store(s.scale + t, total);
    }
  };
  switch (c.map) {
    case Map::identity:
      load_all([&](idx at, Vec<T> a, Vec<T>& total) FWP_INLINE_LAMBDA {
        store(s.phi + at, a);
        total += a;
      });
      break;
    case Map::elu:
      load_all([&](idx at, Vec<T> a, Vec<T>& total) FWP_INLINE_LAMBDA {
        // Not expm1 + 1: exp itself is what elu(x) + 1 rounds.
        const Vec<T> f = a > Vec<T>{} ? a + splat(T(1)) : exponential<T>(a);
        store(s.phi + at, f);
        total += f;
      });
      break;
    case Map::dpfp:
      load_all([&](idx at, Vec<T> a, Vec<T>&) FWP_INLINE_LAMBDA {
        store(s.x + at, relu<T>(a));
        store(s.x + c.d_key * s.ld + at, relu<T>(-a));
      });
      break;
    case Map::favor:
      load_all([&](idx at, Vec<T> a, Vec<T>&) FWP_INLINE_LAMBDA { store(s.x + at, a * splat(c.input_scale)); });
      break;
  }
}

// s.scale from the sums in it.
template <class T>
void finish_scale(const Call<T>& c, const Rows<const bool>& padding, idx b, idx t0, Side<T>& s) {
  for (idx t = 0; t < s.padded; ++t) {
    const bool there = t < s.tokens && !(padding && *padding.at(b, t0 + t, 0));
    const T total = s.scale[t] + c.eps;
    if (!there) s.scale[t] = 0;
    else if (!c.normalize_features) s.scale[t] = 1;
    else s.scale[t] = total == 0 ? T(0) : 1 / total;
  }
}

// s.x from the inputs, then phi and scale.
template <class T>
void load_side(const Call<T>& c, const Rows<const T>& rows, const Rows<const bool>& padding, idx b, idx h, idx t0, idx count,
               Side<T>& s, T* buffer) {
  load_inputs(c, rows, padding, b, h, t0, count, s, buffer);
  if (c.map == Map::favor) favor_features(c, s);
  if (c.map == Map::dpfp)
    for (idx j = 1; j <= c.nu; ++j) dpfp_rows(c, s, j, 0, 2 * c.d_key, s.phi + (j - 1) * 2 * c.d_key * s.ld);
  finish_scale(c, padding, b, t0, s);
}

// Gradient of the inputs from that of the scaled features, df [d_dot][ld of s], which is overwritten where convenient.
// dx: [d_key, dpfp: 2 d_key][ld]. Writes the rows of tokens t0 .. t0 + s.tokens of `rows`.
template <class T>
void store_side_gradient(const Call<T>& c, const Side<T>& s, T* df, T* dx, const Rows<T>& rows, idx b, idx h, idx t0) {
  constexpr idx W = width<T>;
  const idx ld = s.ld;
  for (idx t = 0; t < s.padded; t += W) {
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
    switch (c.map) {
      case Map::identity:
        for (idx i = 0; i < c.d_dot; ++i) store(dx + i * ld + t, (load(df + i * ld + t) - shift) * scale);
        break;
      case Map::elu:
        for (idx i = 0; i < c.d_dot; ++i) {
          const Vec<T> g = (load(df + i * ld + t) - shift) * scale;
          const Vec<T> f = load(s.phi + i * ld + t);
          store(dx + i * ld + t, f > splat(T(1)) ? g : g * f);
        }
        break;
      case Map::dpfp: {
        const idx n = 2 * c.d_key;
        const T* r = s.x + t;
        for (idx i = 0; i < n; ++i) {
          Vec<T> g{};
          for (idx j = 1; j <= c.nu; ++j) {  // r_i is in r_i r_{i-j} and in r_{i+j} r_i
            const T* block = df + (j - 1) * n * ld + t;
            const idx below = i < j ? i - j + n : i - j, above = i + j < n ? i + j : i + j - n;
            g += (load(block + i * ld) - shift) * load(r + below * ld);
            g += (load(block + above * ld) - shift) * load(r + above * ld);
          }
          store(dx + i * ld + t, g * scale);
        }
        for (idx i = 0; i < c.d_key; ++i) {
          const Vec<T> zero{};
          const Vec<T> plus = load(r + i * ld) <= zero ? zero : load(dx + i * ld + t);
          const Vec<T> minus = load(r + (c.d_key + i) * ld) <= zero ? zero : load(dx + (c.d_key + i) * ld + t);
          store(dx + i * ld + t, plus - minus);
        }
        break;
      }
      case Map::favor: {
        const idx m = c.d_dot / 2;
        // Clipped features sit at exp(30) exactly and have no gradient.
        const Vec<T> top =
            exponential<T>(splat(T(largest_favor_exponent))) * splat(T(1 / __builtin_sqrt(double(c.d_dot))));
        Vec<T> norm{};
        for (idx i = 0; i < m; ++i) {
          T *plus = df + i * ld + t, *minus = df + (m + i) * ld + t;
          const Vec<T> fp = load(s.phi + i * ld + t), fm = load(s.phi + (m + i) * ld + t);
          const Vec<T> gp = fp >= top ? Vec<T>{} : (load(plus) - shift) * scale * fp;
          const Vec<T> gm = fm >= top ? Vec<T>{} : (load(minus) - shift) * scale * fm;
          norm += gp + gm;
          store(plus, gp - gm);
        }
        for (idx d = 0; d < c.d_key; ++d) store(dx + d * ld + t, -norm * load(s.x + d * ld + t));
        break;
      }
    }
  }
  if (c.map == Map::favor) {
    product<true>(c.d_key, s.padded, c.d_dot / 2, View<T>{c.projection, 1, c.d_key}, df, ld, dx, ld);
    for (idx i = 0; i < c.d_key; ++i)
      for (idx t = 0; t < s.padded; ++t) dx[i * ld + t] *= c.input_scale;
  }
  store_transposed(rows, b, h, t0, s.tokens, c.d_key, dx, ld);
}
