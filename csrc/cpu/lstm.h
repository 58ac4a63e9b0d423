// The recurrence of the Delta LSTM for one head. With f = softmax of the previous h, for the gates g = u, i, o, at each
// position t that is not padding
//
//     w^g = beta^g (v^g - R^g k^g),  R^g <- R^g + w^g k^g^T,  x^g = z^g + R^g f
//     i = sigmoid(x^i),  o = sigmoid(x^o),  c <- i * x^u + (1 - i) * c,  h <- o * c
//
// At padding R is only read, and h and c stay for the next position. The forward keeps w, x^u, i, o and c of every
// position and the last R; the backward goes from the last position to the first and subtracts w k^T from R again, as
// in Recurrent.
#pragma once

#include "instruction_set.h"

#include "recurrence.h"

namespace fwp::FWP_NAMESPACE {
namespace {

template <class T> struct Lstm : Recurrent<T> {
  typedef Recurrent<T> Base;
  typedef LstmCall<T> Call;
  static constexpr idx lanes = width<T>;
  static constexpr int gates = 3;

  // R and G of each gate, and at most 24 vectors.
  static std::size_t scratch(const Call& c) {
    const idx D = Base::padded(c);
    return 2 * gates * D * D + 24 * D;
  }

  static FWP_INLINE Vec<T> sigmoid(Vec<T> x) {
    const Vec<T> one = splat(T(1)), e = exponential<T>(x < Vec<T>{} ? x : -x);
    return (x < Vec<T>{} ? e : one) / (one + e);
  }

  // Where the numbers of a head and of its gates are.
  struct Place {
    const Call& c;
    idx b, h;
    idx of_gate(int g) const { return g * c.heads + h; }
    idx matrix(int g) const { return (b * gates * c.heads + of_gate(g)) * c.d * c.d; }
    idx carried() const { return (b * c.heads + h) * c.d; }
  };

  static void fetch_matrices(T* to, const T* from, const Place& at, idx d, idx D) {
    for (int g = 0; g < gates; ++g) Base::fetch_matrix(to + g * D * D, from ? from + at.matrix(g) : nullptr, d, D);
  }
  static void put_matrices(T* to, const T* from, const Place& at, idx d, idx D) {
    for (int g = 0; g < gates; ++g) Base::put_matrix(to + at.matrix(g), from + g * D * D, d, D);
  }
  static void fetch_carried(T* to, const T* from, const Place& at, idx d, idx D) {
    Base::fetch(to, from ? from + at.carried() : nullptr, d, D);
  }
  static void put(T* to, const T* from, idx d) {
    for (idx i = 0; i < d; ++i) to[i] = from[i];
  }

  static void forward(const Call& c, idx b, idx head, T* own) {
    const Place at{c, b, head};
    const idx d = c.d, D = Base::padded(c);
    T *R = own, *h = R + gates * D * D, *cell = h + D, *next_h = cell + D, *next_cell = next_h + D, *f = next_cell + D;
    T *k = f + D, *u = k + D, *x = u + D;  // x: of each gate
    fetch_matrices(R, c.initial_R, at, d, D);
    fetch_carried(h, c.initial_y, at, d, D);
    fetch_carried(cell, c.initial_c, at, d, D);
    for (idx t = 0; t < c.length; ++t) {
      const bool pad = Base::is_pad(c, b, t);
      Base::softmax(f, h, d, D);
      for (int g = 0; g < gates; ++g) {
        const idx own_head = at.of_gate(g);
        T *own_R = R + g * D * D, *own_x = x + g * D, *written = c.written.at(b, t, own_head);
        if (pad) {
          Base::read(own_R, f, own_x, d, D);
          for (idx i = 0; i < d; ++i) written[i] = 0;
        } else {
          Base::write(c, b, t, own_head, own_R, f, k, u, own_x, D);
        }
        const T* z = c.z.at(b, t, own_head);
        for (idx i = 0; i < d; ++i) own_x[i] += z[i];
      }
      for (idx j = 0; j < D; j += lanes) {
        const Vec<T> in = sigmoid(load(x + D + j)), out = sigmoid(load(x + 2 * D + j));
        const Vec<T> now = in * load(x + j) + (splat(T(1)) - in) * load(cell + j);
        store<T>(x + D + j, in);
        store<T>(x + 2 * D + j, out);
        store<T>(next_cell + j, now);
        store<T>(next_h + j, out * now);
      }
      for (int g = 0; g < gates; ++g) put(c.gates.at(b, t, at.of_gate(g)), x + g * D, d);
      put(c.cells.at(b, t, head), next_cell, d);
      put(c.out.at(b, t, head), next_h, d);
      if (pad) continue;
      T *const last_h = h, *const last_cell = cell;
      h = next_h, next_h = last_h;
      cell = next_cell, next_cell = last_cell;
    }
    put_matrices(c.R, R, at, d, D);
    put(c.y + at.carried(), h, d);
    put(c.c + at.carried(), cell, d);
  }

  static void backward(const Call& c, idx b, idx head, T* own) {
    const Place at{c, b, head};
    const idx d = c.d, D = Base::padded(c);
    T *R = own, *G = R + gates * D * D, *y = G + gates * D * D, *f = y + D, *df = f + D, *carried_h = df + D;
    T *carried_c = carried_h + D, *cell = carried_c + D, *e = cell + D;  // e: the gradients of x of each gate
    T* rest = e + gates * D;
    fetch_matrices(R, c.last_R, at, d, D);
    fetch_matrices(G, c.grad_R, at, d, D);
    fetch_carried(carried_h, c.grad_y, at, d, D);
    fetch_carried(carried_c, c.grad_c, at, d, D);
    for (idx i = 0; i < gates * D; ++i) e[i] = 0;
    idx before = c.length;
    for (idx t = c.length - 1; t >= 0; --t) {
      const bool pad = Base::is_pad(c, b, t);
      Base::go_before(c, b, t, before);
      if (before < 0) {
        fetch_carried(y, c.initial_y, at, d, D);
        fetch_carried(cell, c.initial_c, at, d, D);
      } else {
        Base::fetch(y, c.found.at(b, before, head), d, D);
        Base::fetch(cell, c.found_cells.at(b, before, head), d, D);
      }
      Base::softmax(f, y, d, D);
      const T *dout = c.grad_out.at(b, t, head), *now = c.found_cells.at(b, t, head);
      const T *x = c.found_gates.at(b, t, at.of_gate(0)), *in = c.found_gates.at(b, t, at.of_gate(1));
      const T* out = c.found_gates.at(b, t, at.of_gate(2));
      for (idx i = 0; i < d; ++i) {
        const T dh = dout[i] + (pad ? T(0) : carried_h[i]);
        const T dc = dh * out[i] + (pad ? T(0) : carried_c[i]);
        e[i] = dc * in[i];
        e[D + i] = dc * (x[i] - cell[i]) * in[i] * (1 - in[i]);
        e[2 * D + i] = dh * now[i] * out[i] * (1 - out[i]);
        carried_c[i] = (pad ? carried_c[i] : T(0)) + dc * (1 - in[i]);
      }
      for (idx i = 0; i < D; ++i) df[i] = 0;
      for (int gate = 0; gate < gates; ++gate) {
        const idx own_head = at.of_gate(gate);
        put(c.grad_z.at(b, t, own_head), e + gate * D, d);
        Base::back(c, b, t, own_head, R + gate * D * D, G + gate * D * D, e + gate * D, f, df, rest, D);
      }
      const T mean = dot(f, df, D);
      for (idx i = 0; i < d; ++i) carried_h[i] = (pad ? carried_h[i] : T(0)) + f[i] * (df[i] - mean);
    }
    put_matrices(c.grad_initial_R, G, at, d, D);
    put(c.grad_initial_y + at.carried(), carried_h, d);
    put(c.grad_initial_c + at.carried(), carried_c, d);
  }
};

}  // namespace
}  // namespace fwp::FWP_NAMESPACE
