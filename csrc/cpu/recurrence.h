// The recurrence of the Delta RNN for one head. At each position t that is not padding
//
//     u = beta (v - R k),  R <- R + u k^T,  y <- z + R f,  f = softmax of the previous y
//
// Row i of R in memory belongs to key entry i, as in W. The forward keeps u of every position and the last R. The
// backward goes from the last position to the first and subtracts u k^T from R again, so it needs only one R, and G,
// the gradient of R. Rows are padded with zeros to whole vectors in scratch.
#pragma once

#include "instruction_set.h"

#include "rows.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Recurrent {
  typedef RecurrenceCall<T> Call;
  static constexpr idx lanes = width<T>;

  static idx padded(const Call& c) { return round_up(c.d, lanes); }
  // R and G, and at most 24 vectors.
  static std::size_t scratch(const Call& c) { return 2 * padded(c) * padded(c) + 24 * padded(c); }

  static FWP_INLINE void fetch(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < d; ++i) to[i] = from ? from[i] : T(0);
    for (idx i = d; i < D; ++i) to[i] = 0;
  }
  static void fetch_matrix(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < D; ++i) fetch(to + i * D, from && i < d ? from + i * d : nullptr, d, D);
  }
  static void put_matrix(T* to, const T* from, idx d, idx D) {
    for (idx i = 0; i < d; ++i)
      for (idx j = 0; j < d; ++j) to[i * d + j] = from[i * D + j];
  }

  static FWP_INLINE void softmax(T* f, const T* y, idx d, idx D) {
    T most = y[0];
    for (idx i = 1; i < d; ++i) most = y[i] > most ? y[i] : most;
    const Vec<T> shift = splat(most);
    for (idx j = 0; j < D; j += lanes) store<T>(f + j, exponential<T>(load(y + j) - shift));
    for (idx i = d; i < D; ++i) f[i] = 0;
    const Vec<T> share = splat(T(1) / sum(f, D));
    for (idx j = 0; j < D; j += lanes) store<T>(f + j, load(f + j) * share);
  }

  template <class C> static bool is_pad(const C& c, idx b, idx t) { return fwp::is_pad(c.key_padding_mask, b, t); }
  // Sets `before` to the last position before t that is not padding, or -1. As t goes back, it is searched again only
  // when t reaches it, so that a run of padding is read once.
  template <class C> static void go_before(const C& c, idx b, idx t, idx& before) {
    if (before < t) return;
    before = t - 1;
    while (before >= 0 && is_pad(c, b, before)) --before;
  }

  // y = sum_i x_i row i.
  static FWP_INLINE void read(const T* R, const T* x, T* y, idx d, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> even[C.value]{}, odd[C.value]{};
      idx i = 0;
      for (; i + 2 <= d; i += 2) {
        const Vec<T> a = splat(x[i]), b = splat(x[i + 1]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
          even[c] += a * load(R + i * D + j + c * lanes);
          odd[c] += b * load(R + (i + 1) * D + j + c * lanes);
        });
      }
      if (i < d) {
        const Vec<T> a = splat(x[i]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { even[c] += a * load(R + i * D + j + c * lanes); });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(y + j + c * lanes, even[c] + odd[c]); });
    });
  }

  // row i += k_i u, and y = sum_i f_i row i.
  static FWP_INLINE void write_and_read(T* R, const T* k, const T* u, const T* f, T* y, idx d, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> total[C.value]{}, change[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { change[c] = load(u + j + c * lanes); });
      for (idx i = 0; i < d; ++i) {
        const Vec<T> a = splat(k[i]), b = splat(f[i]);
        unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
          T* at = R + i * D + j + c * lanes;
          const Vec<T> row = load(at) + a * change[c];
          store<T>(at, row);
          total[c] += b * row;
        });
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA { store<T>(y + j + c * lanes, total[c]); });
    });
  }

  // The write and the read at a position that is not padding: u = beta (v - R k), R += u k^T, y = R f. Takes scratch
  // for k and u.
  template <class C>
  static FWP_INLINE void write(const C& c, idx b, idx t, idx h, T* R, const T* f, T* k, T* u, T* y, idx D) {
    const T beta = *c.beta.at(b, t, h), *v = c.v.at(b, t, h);
    T* written = c.written.at(b, t, h);
    fetch(k, c.k.at(b, t, h), c.d, D);
    read(R, k, u, c.d, D);
    for (idx i = 0; i < c.d; ++i) written[i] = u[i] = beta * (v[i] - u[i]);
    write_and_read(R, k, u, f, y, c.d, D);
  }

  static void forward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = padded(c), head = b * c.heads + h;
    T *R = own, *y = R + D * D, *f = y + D, *k = f + D, *u = k + D, *next = u + D;
    fetch_matrix(R, c.initial_R ? c.initial_R + head * d * d : nullptr, d, D);
    fetch(y, c.initial_y ? c.initial_y + head * d : nullptr, d, D);
    for (idx t = 0; t < c.length; ++t) {
      const bool pad = is_pad(c, b, t);
      const T* z = c.z.at(b, t, h);
      T *out = c.out.at(b, t, h), *written = c.written.at(b, t, h);
      softmax(f, y, d, D);
      if (pad) {
        read(R, f, next, d, D);
        for (idx i = 0; i < d; ++i) written[i] = 0;
      } else {
        write(c, b, t, h, R, f, k, u, next, D);
      }
      for (idx i = 0; i < d; ++i) out[i] = z[i] + next[i];
      if (!pad)
        for (idx i = 0; i < d; ++i) y[i] = out[i];
    }
    put_matrix(c.R + head * d * d, R, d, D);
    for (idx i = 0; i < d; ++i) c.y[head * d + i] = y[i];
  }

  // to[r] += the sum of the numbers of rows[r], for as many rows as a vector has lanes.
  static FWP_INLINE void add_sums(T* to, Vec<T>* rows) { store<T>(to, load(to) + sum_of_rows<T>(rows)); }

  // With R after the write: df_i = R_i.e, G_i += f_i e; then the write is undone, R_i -= k_i u; g = sum_i k_i G_i and
  // old = sum_i k_i R_i. df starts as 0.
  static FWP_INLINE void undo(T* R, T* G, const T* e, const T* f, const T* k, const T* u, T* df, T* g, T* old, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> gradient[C.value], change[C.value], g_sum[C.value]{}, old_sum[C.value]{};
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        gradient[c] = load(e + j + c * lanes);
        change[c] = load(u + j + c * lanes);
      });
      for (idx i = 0; i < D; i += lanes) {
        Vec<T> sums[lanes];
        for (idx r = 0; r < lanes; ++r) {
          const Vec<T> a = splat(k[i + r]), b = splat(f[i + r]);
          Vec<T> total{};
          unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
            T *at = R + (i + r) * D + j + c * lanes, *grad_at = G + (i + r) * D + j + c * lanes;
            const Vec<T> row = load(at);
            total += row * gradient[c];
            const Vec<T> before = row - a * change[c], grad = load(grad_at) + b * gradient[c];
            store<T>(at, before);
            store<T>(grad_at, grad);
            g_sum[c] += a * grad;
            old_sum[c] += a * before;
          });
          sums[r] = total;
        }
        add_sums(df + i, sums);
      }
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        store<T>(g + j + c * lanes, g_sum[c]);
        store<T>(old + j + c * lanes, old_sum[c]);
      });
    });
  }

  // dk_i = G_i.u - R_i.s and G_i -= k_i s, with s = beta g. dk starts as 0.
  static FWP_INLINE void grad_of_key(const T* R, T* G, const T* k, const T* u, const T* s, T* dk, idx D) {
    for_groups<T>(D, [&](idx j, auto C) FWP_INLINE_LAMBDA {
      Vec<T> change[C.value], scaled[C.value];
      unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
        change[c] = load(u + j + c * lanes);
        scaled[c] = load(s + j + c * lanes);
      });
      for (idx i = 0; i < D; i += lanes) {
        Vec<T> sums[lanes];
        for (idx r = 0; r < lanes; ++r) {
          const Vec<T> a = splat(k[i + r]);
          Vec<T> total{};
          unroll<C.value>([&](auto c) FWP_INLINE_LAMBDA {
            T* grad_at = G + (i + r) * D + j + c * lanes;
            const Vec<T> grad = load(grad_at);
            total += grad * change[c] - load(R + (i + r) * D + j + c * lanes) * scaled[c];
            store<T>(grad_at, grad - a * scaled[c]);
          });
          sums[r] = total;
        }
        add_sums(dk + i, sums);
      }
    });
  }

  // At padding: df_i = R_i.e and G_i += f_i e. df starts as 0.
  static void only_read(const T* R, T* G, const T* e, const T* f, T* df, idx d, idx D) {
    for (idx i = 0; i < d; ++i) {
      df[i] += dot(R + i * D, e, D);
      for (idx j = 0; j < D; j += lanes) store<T>(G + i * D + j, load(G + i * D + j) + splat(f[i]) * load(e + j));
    }
  }

  // The backward pass of a position, where e is the gradient of R f: undoes the write to R, adds to G and df, and
  // stores the gradients of k, v and beta, which are 0 at padding. Takes scratch for 6 vectors.
  template <class C>
  static void back(const C& c, idx b, idx t, idx h, T* R, T* G, const T* e, const T* f, T* df, T* own, idx D) {
    const idx d = c.d;
    T *to_k = c.grad_k.at(b, t, h), *dv = c.grad_v.at(b, t, h), *dbeta = c.grad_beta.at(b, t, h);
    if (is_pad(c, b, t)) {
      only_read(R, G, e, f, df, d, D);
      *dbeta = 0;
      for (idx i = 0; i < d; ++i) to_k[i] = dv[i] = 0;
      return;
    }
    T *k = own, *u = k + D, *g = u + D, *old = g + D, *dk = old + D, *s = dk + D;
    const T beta = *c.beta.at(b, t, h), *v = c.v.at(b, t, h);
    fetch(k, c.k.at(b, t, h), d, D);
    fetch(u, c.found_written.at(b, t, h), d, D);
    undo(R, G, e, f, k, u, df, g, old, D);
    for (idx j = 0; j < D; j += lanes) store<T>(s + j, load(g + j) * splat(beta));
    for (idx i = 0; i < D; ++i) dk[i] = 0;
    grad_of_key(R, G, k, u, s, dk, D);
    T total = 0;
    for (idx i = 0; i < d; ++i) {
      to_k[i] = dk[i];
      dv[i] = s[i];
      total += g[i] * (v[i] - old[i]);
    }
    *dbeta = total;
  }

  static void backward(const Call& c, idx b, idx h, T* own) {
    const idx d = c.d, D = padded(c), head = b * c.heads + h;
    T *R = own, *G = R + D * D, *y = G + D * D, *f = y + D, *e = f + D, *df = e + D, *carried = df + D;
    T* rest = carried + D;
    fetch_matrix(R, c.last_R + head * d * d, d, D);
    fetch_matrix(G, c.grad_R ? c.grad_R + head * d * d : nullptr, d, D);
    fetch(carried, c.grad_y ? c.grad_y + head * d : nullptr, d, D);
    idx before = c.length;
    for (idx t = c.length - 1; t >= 0; --t) {
      go_before(c, b, t, before);
      const T* start = c.initial_y ? c.initial_y + head * d : nullptr;
      fetch(y, before < 0 ? start : c.found.at(b, before, h), d, D);
      softmax(f, y, d, D);
      fetch(e, c.grad_out.at(b, t, h), d, D);
      for (idx i = 0; i < D; ++i) df[i] = 0;
      const bool pad = is_pad(c, b, t);
      for (idx j = 0; !pad && j < D; j += lanes) store<T>(e + j, load(e + j) + load(carried + j));
      back(c, b, t, h, R, G, e, f, df, rest, D);
      T* dz = c.grad_z.at(b, t, h);
      for (idx i = 0; i < d; ++i) dz[i] = e[i];
      const T mean = dot(f, df, D);
      for (idx i = 0; i < d; ++i) carried[i] = (pad ? carried[i] : T(0)) + f[i] * (df[i] - mean);
    }
    put_matrix(c.grad_initial_R + head * d * d, G, d, D);
    for (idx i = 0; i < d; ++i) c.grad_initial_y[head * d + i] = carried[i];
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
