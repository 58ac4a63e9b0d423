// Tensors to plain pointers, one task per row and head, and the registration of the decoding kernels.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "../common/decode_inputs.h"
#include "capability.h"
#include "tensors.h"

namespace fwp {

namespace {

// Every entry of a table is a row of storage, so that nothing outside of it is read.
void check_table(const char* op, const char* name, const Tensor& table, int64_t columns, int64_t end) {
  const int32_t* p = table.const_data_ptr<int32_t>();
  const int64_t ld = table.dim() > 1 ? table.size(1) : 1;
  bool inside = true;
  for (int64_t r = 0; r < table.size(0); ++r)
    for (int64_t j = 0; j < columns; ++j) inside = inside & (uint32_t(p[r * ld + j]) < uint64_t(end));
  TORCH_CHECK_INDEX(inside, op, ": ", name, " names a row outside of 0 .. ", end - 1);
}

void check(Block& block, int64_t d_key, int64_t writing) {
  check_type(block.op, block.keys);
  block.check(d_key, writing);
  if (block.ancestors) check_table(block.op, "ancestors", *block.ancestors, block.count, block.stored());
  else check_table(block.op, "rows", block.rows, block.count ? 1 : 0, block.stored());
  if (block.W) check_table(block.op, "rows", block.rows, 1, block.W->size(0));
}

template <class T> DecodeCall<T> call_of(const Block& block, int64_t d_key) {
  DecodeCall<T> c;
  block.describe(c, d_key);
  // Only decode writes, and into tensors that its schema says are written.
  c.keys = const_cast<T*>(block.keys.const_data_ptr<T>());
  c.values = const_cast<T*>(block.values.const_data_ptr<T>());
  c.strengths = const_cast<T*>(pointer<T>(block.strengths));
  c.state_rows = block.rows.const_data_ptr<int32_t>();
  if (block.ancestors) {
    c.ancestors = block.ancestors->const_data_ptr<int32_t>();
    c.ancestors_ld = block.ancestors->size(1);
  }
  c.W = pointer<T>(block.W);
  c.z = pointer<T>(block.z);
  return c;
}

// Tasks that are worth waking a thread for.
int64_t grain(int64_t work_of_a_task) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work_of_a_task)); }

Tensor decode(
    const Tensor& q, const OptionalTensor& k, const OptionalTensor& v, const OptionalTensor& beta,
    const OptionalTensor& padding, const Tensor& keys, const Tensor& values, const OptionalTensor& strengths,
    const OptionalTensor& ancestors, const Tensor& rows_, const OptionalTensor& W, const OptionalTensor& z,
    const OptionalTensor& projection, int64_t count, std::string rule, std::string feature_map, int64_t d_dot,
    double input_scale, bool normalize_features, bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  check_rank(op, "q", q, 4);
  const int64_t R = q.size(0), T = q.size(1), H = q.size(2), d_key = q.size(3);
  Block block{op, keys, values, strengths, ancestors, rows_, W, z, count, rule, feature_map, d_dot, normalize_output};
  check(block, d_key, k ? T : 0);
  const Step step(block, q, k, v, beta, padding, projection);
  if (k) {
    int32_t* table = ancestors->mutable_data_ptr<int32_t>();
    for (int64_t r = 0; r < R; ++r)
      for (int64_t t = 0; t < T; ++t) table[r * ancestors->size(1) + count + t] = static_cast<int32_t>(r);
  }
  Tensor out = new_rows(q, values.size(3));
  AT_DISPATCH_FLOATING_TYPES(q.scalar_type(), op, [&] {
    auto c = call_of<scalar_t>(block, d_key);
    c.tokens = T;
    c.projection = pointer<scalar_t>(projection);
    c.input_scale = static_cast<scalar_t>(input_scale);
    c.normalize_features = normalize_features;
    c.eps = static_cast<scalar_t>(eps);
    c.q = rows<scalar_t>(step.q);
    if (k) {
      c.k = rows<scalar_t>(*step.k);
      c.v = rows<scalar_t>(*step.v);
      if (beta) c.beta = rows<scalar_t>(*beta);
      if (padding) c.padding = rows<bool>(*padding);
    }
    c.out = mutable_rows<scalar_t>(out);
    const auto& kernels = chosen_decode_kernels<scalar_t>();
    const std::size_t size = kernels.scratch(c);
    const int64_t work = T * ((count + T) * (d_dot + c.d_value) + (W ? d_dot * c.d_value : 0));
    if (k) {
      at::parallel_for(0, R * H, grain(work), [&](int64_t first, int64_t last) {
        scalar_t* own = scratch<scalar_t>(size);
        for (int64_t i = first; i < last; ++i) kernels.step(c, i / H, i % H, own);
      });
      return;
    }
    // Rows beside each other that read the same source do so together.
    std::vector<int64_t> starts;
    const int32_t* source = c.state_rows;
    for (int64_t r = 0; r < R; ++r)
      if (r == 0 || ancestors || source[r] != source[r - 1]) starts.push_back(r);
    starts.push_back(R);
    at::parallel_for(0, (int64_t(starts.size()) - 1) * H, grain(work), [&](int64_t first, int64_t last) {
      scalar_t* own = scratch<scalar_t>(size);
      for (int64_t i = first; i < last; ++i) kernels.read(c, starts[i / H], starts[i / H + 1], i % H, own);
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> fold(
    const Tensor& keys, const Tensor& values, const OptionalTensor& strengths, const Tensor& ancestors,
    const Tensor& rows_, const OptionalTensor& W, const OptionalTensor& z, int64_t count, std::string rule,
    std::string feature_map, int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  Block block{op, keys, values, strengths, ancestors, rows_, W, z, count, rule, feature_map, d_dot, normalize_output};
  check_rank(op, "keys", keys, 4);
  check(block, block.d_cached(), 0);
  const int64_t R = block.reading(), H = block.heads();
  Tensor new_W = at::empty({R, H, d_dot, values.size(3)}, keys.options());
  Tensor new_z = normalize_output ? at::empty({R, H, d_dot}, keys.options()) : at::empty({0}, keys.options());
  AT_DISPATCH_FLOATING_TYPES(keys.scalar_type(), op, [&] {
    auto c = call_of<scalar_t>(block, block.d_cached());
    c.tokens = 0;
    c.normalize_features = false;
    c.eps = 0;
    c.new_W = new_W.mutable_data_ptr<scalar_t>();
    if (normalize_output) c.new_z = new_z.mutable_data_ptr<scalar_t>();
    const auto& kernels = chosen_decode_kernels<scalar_t>();
    const std::size_t size = kernels.scratch(c);
    at::parallel_for(0, R * H, 1, [&](int64_t first, int64_t last) {
      scalar_t* own = scratch<scalar_t>(size);
      for (int64_t i = first; i < last; ++i) kernels.fold(c, i / H, i % H, own);
    });
  });
  return {new_W, new_z};
}

}  // namespace

TORCH_LIBRARY_IMPL(fwp, CPU, m) {
  m.impl("decode", &decode);
  m.impl("fold", &fold);
}

}  // namespace fwp
