// What the walk over gradients of states needs of each piece, made for all pieces at the same time: features (noted.cuh), dN,
// dden, read rates and scales, and for the delta rule P^T dN and V - E. Equations: backward.cuh.
#pragma once

#include "backward.cuh"
#include "pieces.cuh"

namespace fwp::gpu {

template <class P, int LT, Rule RULE, Kind K> struct Preparation : Backward<P, LT, RULE, K> {
  using Base = Backward<P, LT, RULE, K>;
  using Base::Base;
  using Base::c, Base::here, Base::s, Base::g, Base::t, Base::w, Base::row, Base::stride, Base::keys, Base::queries,
      Base::last_q, Base::first_k, Base::value_tiles, Base::DELTA, Base::DECAYS;
  using typename Base::Strip, typename Base::KeyStrip, typename Base::Values;

  FWP_DEVICE void run(const Note<LT>& to, int columns) {
    if constexpr (K == Kind::state) {
      if (c.features_q && here.queries) Base::note_features(false);
      if (DELTA && c.features_k && !c.inverses && here.keys) Base::note_features(true);  // else keys_kernel has left them
    }
    const bool normalized = c.normalize_output;  // else dN is the gradient of out, and E is not needed
    if (DECAYS) Base::find_decay(thread_index());
    {
      Strip A;
      KeyStrip B;
      float sum_q[4] = {}, sum_k[4] = {};
      Base::clear(A);
      Base::clear(B);
      Base::template grams<DELTA, Base::together>(
          A, B, sum_q, sum_k, Base::early && normalized ? last_q : 0, normalized && w < keys ? keys : 0,
          [](int, int, int) {}, [](auto&) {});
      Base::finish_scales(sum_q, sum_k);
      sync_block();
      if (normalized) {
        Base::solve_for_E(B);
        Base::read(A);
      } else {
        share_gradient();
      }
    }
    if constexpr (DELTA) {
      store_read(to, columns);
      if (normalized) store_missing(to, columns);
    }
    for (int i = thread_index(); i < LT * columns; i += 2 * LT) to.dN[i] = s.dN[i / columns * stride + i % columns];
    const int token = thread_index();
    if (token < LT) {
      to.scale_q[token] = s.scale_q[token];
      to.scale_k[token] = s.scale_k[token];
      to.dden[token] = normalized ? s.gradient_den[token] : 0.f;
      to.read_rate[token] = DELTA && normalized ? s.read_rate[token] : 1.f;
    }
  }

  FWP_DEVICE void share_gradient() {
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::load_values(c.grad_out, false, first, x);
      Base::share_values(s.dN, first, x);
    }
    sync_block();
  }
  // Own rows of a note, in the columns from `first` on.
  FWP_DEVICE void store_rows(float* to, int columns, int first, const Values& x) const {
    FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
      FWP_UNROLL for (int r = 0; r < 2; ++r)
        if (first + 8 * n < columns)
          Single::store_pair(Type::float32, to + (row + g + 8 * r) * columns + first + 2 * t, 8 * n,
                             {x[n][2 * r], x[n][2 * r + 1]});
  }
  FWP_DEVICE void store_read(const Note<LT>& to, int columns) {
    Strip A;
    Base::clear(A);
    Base::add_gram(A, s.keys, s.queries, first_k, queries);
    const float scale[2] = {s.scale_k[row + g], s.scale_k[row + g + 8]};
    Base::template for_decay<DECAYS, true>(0, Base::tiles, [&](int n, int i, int j, float left) {
      A[n][i] = c.causal && j < Base::row_of(i) ? 0.f : A[n][i] * (scale[i >> 1] * s.scale_q[j]) * left;
    });
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::clear(x);
      Base::add_read(x, A, s.dN, first_k, queries, first);
      store_rows(to.read, columns, first, x);
    }
  }
  FWP_DEVICE void store_missing(const Note<LT>& to, int columns) {
    FWP_ROLLED for (int first = 0; first < c.d_value; first += value_block) {
      Values x;
      Base::load_values(c.v, true, first, x);
      const float* E = s.E + (row + g) * stride + first + 2 * t;
      FWP_UNROLL for (int n = 0; n < value_tiles; ++n)
        FWP_UNROLL for (int i = 0; i < 4; ++i) x[n][i] -= E[8 * (i >> 1) * stride + 8 * n + (i & 1)];
      store_rows(to.missing, columns, first, x);
    }
  }
};

template <class P, int LT, Rule RULE, Kind K> FWP_KERNEL(2 * LT, 1) preparation_kernel(FWP_CONSTANT Pieces c) {
  const int count = pieces_of(c, LT), head = block_index() / count, n = block_index() % count;
  Preparation<P, LT, RULE, K>(c, piece(c, LT, head, n)).run(Note<LT>(c, head, n), c.note_columns);
}

template <class P, Rule RULE, Kind K> const char* launch_preparation(const Pieces& c, void* stream) {
  constexpr int LT = short_segment;
  return launch(preparation_kernel<P, LT, RULE, K>, c.batch * c.heads * pieces_of(c, LT), 2 * LT, bytes_of<P>(c, true),
                static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu

// Used by the sources in instances/.
#define FWP_INSTANCE_OF_PREPARATION(P, RULE, KIND)                                                             \
  template const char* fwp::gpu::launch_preparation<fwp::gpu::P, fwp::Rule::RULE, fwp::gpu::Kind::KIND>( \
      const fwp::gpu::Pieces&, void*);
