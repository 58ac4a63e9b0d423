// Features of queries and keys, which the kernels that follow know alone, and their gradients' way back: a warp a row.
#pragma once

#include "features.cuh"
#include "tokens.cuh"

namespace fwp::gpu {

constexpr int rows_of_block = 4 * (most_threads / 32);  // one after the other, 4 for each warp

FWP_BOTH int rows_of_head(const Call& c) { return query_rows(c) + key_rows(c); }
FWP_BOTH int row_blocks_of_head(const Call& c) { return (rows_of_head(c) + rows_of_block - 1) / rows_of_block; }
// Shared memory of a block: each warp has, in the backward, the gradient of phi, and x and phi.
FWP_BOTH int gradient_floats(const Call& c, bool back) { return back ? round_up(c.d_dot, 4) : 0; }
FWP_BOTH int row_floats(const Call& c, bool back) {
  return gradient_floats(c, back) + round_up(2 * c.d_key + c.d_dot, 4);
}
FWP_BOTH int rows_bytes(const Call& c, bool back) { return most_threads / 32 * 4 * row_floats(c, back); }

struct FeatureRow : Head {
  const bool of_query;
  const int token, rows, length;  // of so many rows and tokens
  float *gradient, *x, *phi;

  FWP_DEVICE FeatureRow(const Call& call, int head, int row, bool back)
      : Head(call, head), of_query(row < query_rows(call)), token(row - (of_query ? 0 : query_rows(call))),
        rows(of_query ? query_rows(call) : key_rows(call)), length(of_query ? c.targets : c.sources) {
    gradient = reinterpret_cast<float*>(shared_memory(rows_bytes(c, back))) + warp_index() * row_floats(c, back);
    x = gradient + gradient_floats(c, back);
    phi = x + 2 * c.d_key;
  }

  FWP_DEVICE bool is_empty() const { return token >= length || (!of_query && is_pad(token)); }
  FWP_DEVICE Features<Call> features() const { return {c, x, c.projection_turned, phi}; }
  FWP_DEVICE int64_t first_feature() const { return (int64_t(head) * rows + token) * features_of(c); }
  // phi in shared memory; returns by what it has to be multiplied.
  FWP_DEVICE float make() const {
    const Features<Call> map = features();
    const bool empty = is_empty();
    const Rows<const void>& from = of_query ? c.q : c.k;
    const void* const data = from.data;
    const int64_t at = offset(from, token, length);
    map.each(c.d_key, [&](int d) { map.take(d, empty ? 0.f : load(c.type, data, at + d)); });
    sync_warp();
    return map.norm(empty, map.make());
  }
  FWP_DEVICE void run() const {
    const float by = make();
    const Pairs& to = of_query ? c.phi_q : c.phi_k;
    const int64_t first = first_feature();
    const Matrix row{{to.high + first, to.low + first}, features_of(c)};
    const auto at = [&](int i) { return i < c.d_dot ? by * phi[i] : 0.f; };
    Lanes().each(features_of(c) / 2, [&](int i) { row.put(0, 2 * i, {at(2 * i), at(2 * i + 1)}); });
  }
  FWP_DEVICE void run_back() const {
    if (token >= length) return;
    const Features<Call> map = features();
    const float* const from = (of_query ? c.grad_phi_q : c.grad_phi_k) + first_feature();
    FWP_ROLLED (int i = 4 * map.lane; i < c.d_dot; i += 128) start_copy(gradient + i, from + i);
    const float by = make();
    copies_arrived();
    sync_warp();
    const float mean = c.normalize_features ? by * map.sum(c.d_dot, [&](int i) { return phi[i] * gradient[i]; }) : 0.f;
    map.each(c.d_dot, [&](int i) { gradient[i] = by * (gradient[i] - mean); });
    sync_warp();
    const Rows<void>& to = of_query ? c.grad_q : c.grad_k;
    void* const data = to.data;
    const int64_t at = offset(to, token, length);
    const bool empty = is_empty();
    map.back(gradient, c.projection, [&](int d, float y) { store(c.type, data, at + d, empty ? 0.f : y); });
  }
};

// Calls f(row) for the rows of this warp.
template <class F> FWP_DEVICE void each_row(const Call& c, bool back, F f) {
  const int blocks = row_blocks_of_head(c), head = block_index() / blocks;
  const int first = block_index() % blocks * rows_of_block, rows = rows_of_head(c);
  FWP_ROLLED (int n = first + warp_index(); n < first + rows_of_block && n < rows; n += most_threads / 32) {
    f(FeatureRow(c, head, n, back));
    sync_warp();
  }
}

FWP_KERNEL(most_threads, 8) rows_kernel(FWP_CONSTANT Call c) {
  each_row(c, false, [](const FeatureRow& row) { row.run(); });
}
FWP_KERNEL(most_threads, 8) rows_back_kernel(FWP_CONSTANT Call c) {
  each_row(c, true, [](const FeatureRow& row) { row.run_back(); });
}

}  // namespace fwp::gpu
