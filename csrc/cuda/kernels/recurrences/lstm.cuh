// The recurrence of the Delta LSTM. With f = softmax of the h before, for the gates g = u, i, o, at each position that
// is no pad
//
//     w^g = beta^g (v^g - R^g k^g),  R^g <- R^g + w^g k^g^T,  x^g = z^g + R^g f
//     i = sigmoid(x^i),  o = sigmoid(x^o),  c <- i * x^u + (1 - i) * c,  h <- o * c
//
// At a pad R is only read, and h and c stay for the next position. The forward keeps w, x^u, i, o and c of every
// position and the last R. Three R and their gradients would not fit into the registers of a block, so the backward
// pass has two kernels. To go back by one position, only R is needed: the gradients of x follow from those of h and c,
// and that of f is the sum of R^g^T dx^g. The first kernel goes back with the three R of a head, subtracts w k^T again,
// and stores the gradients of x, which are also those of z. With these, the gates do not depend on each other, and the
// second kernel, in lstm_gate.cuh, processes each gate by itself.
#pragma once

#include "recurrent_block.cuh"

namespace fwp::gpu {

constexpr int lstm_gates = 3;

// How many times 8 columns of each gate's matrix a lane has. With three matrices of 128 x 128, fewer threads leave more
// registers for everything else.
template <int N> constexpr int lstm_parts = N > 2 ? 2 : 1;
template <int N> constexpr int lstm_threads = recurrent_threads<N> / lstm_parts<N>;
template <int N> FWP_BOTH int lstm_warps(const RecurrenceCall& c) {
  return (recurrent_warps(c) + lstm_parts<N> - 1) / lstm_parts<N>;
}

// A block processes a head, with the matrices of its three gates; each warp has the same columns of all three.
template <int N> struct Lstm : RecurrentBlock<N> {
  typedef RecurrentBlock<N> Base;
  using Base::at, Base::carried, Base::d, Base::fetch, Base::head, Base::is_pad, Base::rows, Base::warp, Base::warps;
  static constexpr int gates = lstm_gates, parts = lstm_parts<N>;
  typedef typename Base::Matrix Matrices[gates][parts];

  const LstmCall& c;

  FWP_DEVICE explicit Lstm(const LstmCall& call) : Base(call, warp_index(), lstm_warps<N>(call)), c(call) {}

  // h of two positions in turn, because a warp can be one position ahead of warps that still read the previous h.
  static FWP_BOTH int forward_bytes(const RecurrenceCall&) { return 2 * rows * int(sizeof(float)); }
  // Gradients of f: each warp's part, and their sum.
  static FWP_BOTH int backward_bytes(const RecurrenceCall& c) {
    return (lstm_warps<N>(c) + 1) * rows * int(sizeof(float));
  }

  // The block for one part of this warp's columns.
  FWP_DEVICE Base part(int p) const { return Base(c, warp + p * warps, warps); }
  FWP_DEVICE int of_gate(int g) const { return g * int(c.heads) + head; }
  FWP_DEVICE int64_t matrix(int g) const { return (this->b * gates * c.heads + of_gate(g)) * d * d; }

  FWP_DEVICE void fetch_matrices(Matrices& R, const float* from) const {
    FWP_UNROLL (int g = 0; g < gates; ++g)
      FWP_UNROLL (int p = 0; p < parts; ++p) part(p).fetch_matrix(R[g][p], from, matrix(g));
  }
  FWP_DEVICE void fetch_columns(float (&x)[parts], const float* from) const {
    FWP_UNROLL (int p = 0; p < parts; ++p) x[p] = from ? part(p).fetch_column(from) : 0.f;
  }
  FWP_DEVICE void put_columns(float* to, const float (&x)[parts]) const {
    FWP_UNROLL (int p = 0; p < parts; ++p)
      if (const Base own = part(p); own.stores()) to[own.column] = x[p];
  }

  // f of the h at `from`, which is 0 if `from` is null.
  FWP_DEVICE void feed(float (&f)[N], const float* from) const {
    float h[N];
    fetch(h, from);
    this->softmax(f, h);
  }

  FWP_DEVICE void forward() const {
    float* const shared = reinterpret_cast<float*>(shared_memory(forward_bytes(c)));
    Matrices R;
    float f[N], cell[parts];
    fetch_matrices(R, c.initial_R);
    feed(f, carried(c.initial_y));
    fetch_columns(cell, carried(c.initial_c));
    int slot = 0;
    FWP_ROLLED (int64_t t = 0; t < c.length; ++t) {
      const bool pad = is_pad(t);
      float x[gates][parts], now[parts], out[parts];
      FWP_UNROLL (int g = 0; g < gates; ++g) {
        const int own = of_gate(g);
        float w[parts] = {}, v[parts], z[parts];
        fetch_columns(z, at(c.z, t, own));
        if (!pad) {
          float k[N];
          fetch(k, at(c.k, t, own));
          fetch_columns(v, at(c.v, t, own));
          const float beta = *at(c.beta, t, own);
          FWP_UNROLL (int p = 0; p < parts; ++p) w[p] = part(p).write(R[g][p], k, v[p], beta);
        }
        put_columns(at(c.written, t, own), w);
        FWP_UNROLL (int p = 0; p < parts; ++p) {
          x[g][p] = z[p] + part(p).read(R[g][p], f);
          if (g > 0) x[g][p] = sigmoid(x[g][p]);
        }
        put_columns(at(c.gates, t, own), x[g]);
      }
      FWP_UNROLL (int p = 0; p < parts; ++p) {
        now[p] = x[1][p] * x[0][p] + (1 - x[1][p]) * cell[p];
        out[p] = x[2][p] * now[p];
      }
      put_columns(at(c.cells, t), now);
      put_columns(at(c.out, t), out);
      if (pad) continue;
      FWP_UNROLL (int p = 0; p < parts; ++p) cell[p] = now[p];
      put_columns(shared + slot * rows, out);
      sync_block();
      feed(f, shared + slot * rows);
      slot = 1 - slot;
    }
    FWP_UNROLL (int g = 0; g < gates; ++g)
      FWP_UNROLL (int p = 0; p < parts; ++p) part(p).put_matrix(c.R, R[g][p], matrix(g));
    // The last h is read again from where this thread stored it.
    int64_t last = c.length;
    this->go_before(c.length, last);
    const float* const h = last >= 0 ? at(c.out, last) : carried(c.initial_y);
    FWP_UNROLL (int p = 0; p < parts; ++p)
      if (const Base own = part(p); own.stores()) carried(c.y)[own.column] = h ? h[own.column] : 0.f;
    put_columns(carried(c.c), cell);
  }

  FWP_DEVICE void backward() const {
    float* const of_warps = reinterpret_cast<float*>(shared_memory(backward_bytes(c)));
    float* const sums = of_warps + warps * rows;
    Matrices R;
    float carried_h[parts], carried_c[parts];
    fetch_matrices(R, c.last_R);
    fetch_columns(carried_h, carried(c.grad_y));
    fetch_columns(carried_c, carried(c.grad_c));
    int64_t before = c.length;
    FWP_ROLLED (int64_t t = c.length - 1; t >= 0; --t) {
      const bool pad = is_pad(t);
      this->go_before(t, before);
      float e[gates][parts];
      {
        float cell[parts], dout[parts], now[parts], x[parts], in[parts], out[parts];
        fetch_columns(cell, before >= 0 ? at(c.found_cells, before) : carried(c.initial_c));
        fetch_columns(dout, at(c.grad_out, t));
        fetch_columns(now, at(c.found_cells, t));
        fetch_columns(x, at(c.found_gates, t, of_gate(0)));
        fetch_columns(in, at(c.found_gates, t, of_gate(1)));
        fetch_columns(out, at(c.found_gates, t, of_gate(2)));
        FWP_UNROLL (int p = 0; p < parts; ++p) {
          const float dh = dout[p] + (pad ? 0.f : carried_h[p]);
          const float dc = dh * out[p] + (pad ? 0.f : carried_c[p]);
          e[0][p] = dc * in[p];
          e[1][p] = dc * (x[p] - cell[p]) * in[p] * (1 - in[p]);
          e[2][p] = dh * now[p] * out[p] * (1 - out[p]);
          carried_c[p] = (pad ? carried_c[p] : 0.f) + dc * (1 - in[p]);
        }
      }
      float df[N] = {};
      FWP_UNROLL (int g = 0; g < gates; ++g) {
        put_columns(at(c.grad_z, t, of_gate(g)), e[g]);
        FWP_UNROLL (int p = 0; p < parts; ++p) part(p).read_transposed(R[g][p], e[g][p], df);
      }
      if (!pad) {
        FWP_UNROLL (int g = 0; g < gates; ++g) {
          float k[N], w[parts];
          fetch(k, at(c.k, t, of_gate(g)));
          fetch_columns(w, at(c.found_written, t, of_gate(g)));
          FWP_UNROLL (int p = 0; p < parts; ++p) part(p).add(R[g][p], k, -w[p]);
        }
      }
      this->put(of_warps + warp * rows, df);
      sync_block();
      this->add_up(of_warps, sums);
      sync_block();
      float f[N];
      feed(f, before >= 0 ? at(c.found, before) : carried(c.initial_y));
      fetch(df, sums);
      const float mean = this->dot(f, df);
      FWP_UNROLL (int r = 0; r < N; ++r) df[r] = f[r] * (df[r] - mean);
      FWP_UNROLL (int p = 0; p < parts; ++p) {
        const float fed = part(p).of_column(df);
        carried_h[p] = (pad ? carried_h[p] : 0.f) + fed;
      }
    }
    put_columns(carried(c.grad_initial_y), carried_h);
    put_columns(carried(c.grad_initial_c), carried_c);
  }
};

template <int N> FWP_KERNEL(lstm_threads<N>, 1) recur_lstm_kernel(FWP_CONSTANT LstmCall c) { Lstm<N>(c).forward(); }
template <int N> FWP_KERNEL(lstm_threads<N>, 1) recur_lstm_backward_kernel(FWP_CONSTANT LstmCall c) {
  Lstm<N>(c).backward();
}

}  // namespace fwp::gpu
