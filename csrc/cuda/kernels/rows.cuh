// Features of queries and keys, which the kernels that follow know alone, and their gradients' way back: a warp a row.
#pragma once

#include "features.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

FWP_BOTH int rows_of_head(const Call& c) { return query_rows(c) + key_rows(c); }
// Shared memory of a block: each warp has x, phi and, in the backward, the gradient of phi.
FWP_BOTH int rows_bytes(const Call& c, bool back) { return threads / 32 * 4 * (c.d_key + (back ? 2 : 1) * c.d_dot); }

struct FeatureRow : Head {
  const bool of_query;
  const int token, length;
  float *x, *phi, *gradient;

  FWP_DEVICE FeatureRow(const Call& call, int index, bool back)
      : Head(call, index / rows_of_head(call)), of_query(index % rows_of_head(call) < query_rows(call)),
        token(index % rows_of_head(call) - (of_query ? 0 : query_rows(call))),
        length(of_query ? c.targets : c.sources) {
    x = reinterpret_cast<float*>(shared_memory(rows_bytes(c, back))) +
        warp_index() * (c.d_key + (back ? 2 : 1) * c.d_dot);
    phi = x + c.d_key;
    gradient = phi + c.d_dot;
  }

  FWP_DEVICE bool is_empty() const { return token >= length || (!of_query && is_pad(token)); }
  FWP_DEVICE Features<Call> features() const { return {c, x, c.projection_turned, phi}; }
  // phi in shared memory; returns by what its normalisation multiplied.
  FWP_DEVICE float make() const {
    const Features<Call> map = features();
    const bool empty = is_empty();
    const Rows<const void>& from = of_query ? c.q : c.k;
    map.each(c.d_key, [&](int d) { x[d] = empty ? 0.f : load(c.type, from.data, offset(from, token, length) + d); });
    sync_warp();
    map.make();
    return map.normalize(empty);
  }
  FWP_DEVICE void run() const {
    make();
    const Pairs& to = of_query ? c.phi_q : c.phi_k;
    const int rows = of_query ? query_rows(c) : key_rows(c), features = features_of(c);
    const int64_t first = (int64_t(head) * rows + token) * features;
    const Matrix row{{to.high + first, to.low + first}, features};
    const auto at = [&](int i) { return i < c.d_dot ? phi[i] : 0.f; };
    Lanes().each(features / 2, [&](int i) { row.put(0, 2 * i, {at(2 * i), at(2 * i + 1)}); });
  }
  FWP_DEVICE void run_back() const {
    if (token >= length) return;
    const float by = make();
    const Features<Call> map = features();
    const int rows = of_query ? query_rows(c) : key_rows(c);
    const float* const from =
        (of_query ? c.grad_phi_q : c.grad_phi_k) + (int64_t(head) * rows + token) * features_of(c);
    const float mean = c.normalize_features ? map.sum(c.d_dot, [&](int i) { return phi[i] * from[i]; }) : 0.f;
    map.each(c.d_dot, [&](int i) {
      gradient[i] = by * (from[i] - mean);
      if (c.normalize_features && by != 0) phi[i] /= by;
    });
    sync_warp();
    const Rows<void>& to = of_query ? c.grad_q : c.grad_k;
    const bool empty = is_empty();
    map.back(gradient, c.projection,
             [&](int d, float y) { store(c.type, to.data, offset(to, token, length) + d, empty ? 0.f : y); });
  }
};

FWP_KERNEL(threads, 1) rows_kernel(FWP_CONSTANT Call c) {
  const int row = block_index() * (threads / 32) + warp_index();
  if (row < c.group * rows_of_head(c)) FeatureRow(c, row, false).run();
}
FWP_KERNEL(threads, 1) rows_back_kernel(FWP_CONSTANT Call c) {
  const int row = block_index() * (threads / 32) + warp_index();
  if (row < c.group * rows_of_head(c)) FeatureRow(c, row, true).run_back();
}

}  // namespace fwp::gpu
