// decode and fold for any device: inputs are checked and results are made here, a Device computes them. A Device has
// Guard and check as in operators.h, and
//
//     check_tables(block)       fails where a table names a row that is not there, if the device looks before it starts
//     decode(block, step, out)  fills out, and writes the step's positions
//     fold(block, W, z)         fills both; z is empty where the output is not normalised
#pragma once

#include <tuple>

#include "decode_inputs.h"

namespace fwp {

template <class Device>
Tensor decode(const Tensor& q, const OptionalTensor& k, const OptionalTensor& v, const OptionalTensor& beta,
              const OptionalTensor& alpha, const OptionalTensor& key_padding_mask, const Tensor& keys, const Tensor& written,
              const OptionalTensor& strengths, const OptionalTensor& ancestors, const Tensor& rows,
              const OptionalTensor& W, const OptionalTensor& z, const OptionalTensor& projection, int64_t count,
              std::string rule, std::string feature_map, int64_t d_dot, double input_scale, bool normalize_features,
              bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  check_rank(op, "q", q, 4);
  check_rank(op, "keys", keys, 4);
  const typename Device::Guard guard(q.device());
  Device::check(op, "keys", keys.scalar_type(), q.size(3));
  Block block{op, keys, written, strengths, ancestors, rows, W, z, count, rule, feature_map, d_dot, normalize_output};
  block.check(q.size(3), k ? q.size(1) : 0);
  Device::check_tables(block);
  const Step step(block, q, k, v, beta, alpha, key_padding_mask, projection, input_scale, normalize_features, eps);
  const Tensor out = new_rows(q, block.d_value());
  if (out.numel()) Device::decode(block, step, out);  // otherwise nothing is written either
  return out;
}

template <class Device>
std::tuple<Tensor, Tensor> fold(const Tensor& keys, const Tensor& written, const OptionalTensor& strengths,
                                const Tensor& ancestors, const Tensor& rows, const OptionalTensor& W,
                                const OptionalTensor& z, int64_t count, std::string rule, std::string feature_map,
                                int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  check_rank(op, "keys", keys, 4);
  check_given(op, "ancestors", ancestors);
  const typename Device::Guard guard(keys.device());
  Device::check(op, "keys", keys.scalar_type(), keys.size(3));
  Block block{op, keys, written, strengths, ancestors, rows, W, z, count, rule, feature_map, d_dot, normalize_output};
  block.check(block.d_cached(), 0);
  Device::check_tables(block);
  const int64_t R = block.reading(), H = block.heads();
  const auto states = keys.options().dtype(state_type(keys));
  const Tensor new_W = at::empty({R, H, d_dot, block.d_value()}, states);
  const Tensor new_z = normalize_output ? at::empty({R, H, d_dot}, states) : at::empty({0}, states);
  if (new_W.numel()) Device::fold(block, new_W, new_z);
  return {new_W, new_z};
}

}  // namespace fwp
