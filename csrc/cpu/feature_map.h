// phi of a tile of tokens and its backward. Everything is transposed, [feature][token], tokens padded to whole vectors:
// a roll over features is then another row, and a DPFP feature the product of two rows.

// One side (queries or keys) of a tile.
template <class T> struct Side {
  idx tokens, padded;  // padded: whole vectors
  idx ld;              // of x and phi
  T* x;                // what the backward needs of the inputs: [base_rows][ld]
  T* phi;              // [d_dot][ld], not normalised
  T* scale;            // [padded]: phi * scale is what the rule sees; 0 for keys that are padding and behind the end
};

// Rows that x takes: DPFP keeps r = relu([x, -x]), the others the inputs.
template <class T> idx base_rows(const Call<T>& c) { return c.map == Map::dpfp ? 2 * c.d_key : c.d_key; }

// Distance of rows: whole vectors, but no multiple of 256 bytes from there on, whose lines would share few cache sets.
template <class T> idx row_distance(idx tokens) {
  const idx padded = round_up(tokens, width<T>);
  return padded * sizeof(T) >= 256 && padded * sizeof(T) % 256 == 0 ? padded + width<T> : padded;
}

// x[d][t] of tokens t0 .. t0 + count, 0 behind them and for padding. `buffer`: width x round_up(d_key) elements.
template <class T>
void load_transposed(const Rows<const T>& rows, idx b, idx h, idx t0, idx count, idx d_key, const Rows<const bool>& padding,
                     T* x, idx ld, T* buffer) {
  constexpr idx W = width<T>;
  const idx whole = d_key / W * W;
  for (idx t = 0; t < round_up(count, W); t += W) {
    bool direct = t + W <= count;
    if (direct && padding)
      for (idx i = 0; i < W; ++i) direct = direct && !*padding.at(b, t0 + t + i, 0);
    const T* from = rows.data ? rows.at(b, t0 + t, h) : nullptr;
    idx from_ld = rows.time, first = 0;
    if (direct) {
      for (; first < whole; first += W) transpose_block(from + first, from_ld, x + first * ld + t, ld);
      if (first == d_key) continue;
    }
    // Rows that end within a vector, or tokens that are not there: through a copy filled up with zeros.
    const idx columns = round_up(d_key, W);
    for (idx i = 0; i < W; ++i) {
      const bool there = t + i < count && !(padding && *padding.at(b, t0 + t + i, 0));
      for (idx d = first; d < columns; ++d) buffer[i * columns + d] = there && d < d_key ? from[i * from_ld + d] : T(0);
    }
    for (; first < d_key; first += W) {
      if (first + W <= d_key) transpose_block(buffer + first, columns, x + first * ld + t, ld);
      else
        for (idx d = first; d < d_key; ++d)
          for (idx i = 0; i < W; ++i) x[d * ld + t + i] = buffer[i * columns + d];
    }
  }
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
    for (idx i = 0; i < m; ++i) {
      const Vec<T> p = load(s.phi + i * s.ld + t), plus = p - norm, minus = -p - norm;
      store(s.phi + i * s.ld + t, exponential<T>(plus > top ? top : plus) * splat(constant));
      store(s.phi + (m + i) * s.ld + t, exponential<T>(minus > top ? top : minus) * splat(constant));
    }
  }
}

// to[i] = a[i] b[i] for rows of one vector each; their sum.
template <class T> FWP_INLINE Vec<T> rolled_products(const T* a, const T* b, T* to, idx ld, idx count) {
  Vec<T> sum{}, odd{};  // two sums: the latency of one would be waited for
  idx i = 0;
  for (; i + 2 <= count; i += 2, a += 2 * ld, b += 2 * ld, to += 2 * ld) {
    const Vec<T> y = load(a) * load(b), z = load(a + ld) * load(b + ld);
    store(to, y);
    store(to + ld, z);
    sum += y;
    odd += z;
  }
  if (i < count) {
    const Vec<T> y = load(a) * load(b);
    store(to, y);
    sum += y;
  }
  return sum + odd;
}

// Features `first` .. first + count of DPFP's block j: products of rows of s.x, to to[0..count). Adds to the sums in
// s.scale.
template <class T> void dpfp_rows(const Call<T>& c, Side<T>& s, idx j, idx first, idx count, T* to) {
  const idx n = 2 * c.d_key, ld = s.ld, end = first + count;
  for (idx t = 0; t < s.padded; t += width<T>) {
    Vec<T> total = load(s.scale + t);
    const T* x = s.x + t;
    idx i = first;
    if (i < j) {  // rolled in from the other end
      const idx part = (end < j ? end : j) - i;
      total += rolled_products(x + i * ld, x + (i - j + n) * ld, to + t, ld, part);
      i += part;
    }
    if (i < end) total += rolled_products(x + i * ld, x + (i - j) * ld, to + (i - first) * ld + t, ld, end - i);
    store(s.scale + t, total);
  }
}

// Sizes of the side and s.x from the inputs (identity: s.phi); sums in s.scale at 0. `padding` is given for keys only.
template <class T>
void load_inputs(const Call<T>& c, const Rows<const T>& rows, const Rows<const bool>& padding, idx b, idx h, idx t0,
                 idx count, Side<T>& s, T* buffer) {
  s.tokens = count;
  s.padded = round_up(count, width<T>);
  s.ld = row_distance<T>(count);
  T* x = c.map == Map::identity ? s.phi : s.x;
  load_transposed(rows, b, h, t0, count, c.d_key, padding, x, s.ld, buffer);
  for (idx t = 0; t < s.padded; t += width<T>) {
    store(s.scale + t, Vec<T>{});
    for (idx d = 0; d < c.d_key; ++d) {
      T* row = x + d * s.ld + t;
      const Vec<T> a = load(row);
      if (c.map == Map::dpfp) {
        store(row, relu<T>(a));
        store(row + c.d_key * s.ld, relu<T>(-a));
      } else if (c.map == Map::favor) {
        store(row, a * splat(c.input_scale));
      }
    }
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
  const idx ld = s.ld;
  if (c.map == Map::favor) favor_features(c, s);
  if (c.map == Map::dpfp)
    for (idx j = 1; j <= c.nu; ++j) dpfp_rows(c, s, j, 0, 2 * c.d_key, s.phi + (j - 1) * 2 * c.d_key * ld);
  else
    for (idx t = 0; t < s.padded; t += width<T>) {
      Vec<T> total{};
      for (idx i = 0; i < c.d_dot; ++i) {
        if (c.map == Map::elu) {
          const Vec<T> a = load(s.x + i * ld + t);
          // Not expm1 + 1: exp itself is what elu(x) + 1 rounds.
          store(s.phi + i * ld + t, a > Vec<T>{} ? a + splat(T(1)) : exponential<T>(a));
        }
        total += load(s.phi + i * ld + t);
      }
      store(s.scale + t, total);
    }
  finish_scale(c, padding, b, t0, s);
}

// Gradient of the inputs from that of the scaled features, df [d_dot][ld of s], which is overwritten where convenient.
// dx: [base_rows][ld]. Writes the rows of tokens t0 .. t0 + s.tokens of `rows`.
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
          store(dx + i * ld + t, load(s.x + i * ld + t) > Vec<T>{} ? g : g * load(s.phi + i * ld + t));
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
