// The operators decode and fold for any device. The functions here check the inputs and allocate the results, and a
// class Device computes them: CpuDecoding in cpu/decode_operators.cpp, CudaDecoding in cuda/decode_launch.cpp.
// fwp_fairseq/ops/decoding.py explains what they compute. A Device has two functions:
//
//     decode(block, writes, q, describe)
//     fold(block, keys, describe)
//
// Each raises an error if the device does not support the types of keys and written. It creates a call and
// Fields(op, q) or Fields(op, keys), lets describe(fields, call) fill in the call, and runs the kernel if
// fields.ready() is true. The device also checks that `ancestors` and `rows` refer to existing rows, before it computes
// or while it does.
#pragma once

#include <tuple>
#include <utility>

#include "inputs.h"

namespace fwp {

// The cache that decode and fold receive, with its sizes and the parsed options. The constructor checks them.
struct Block {
  const char* op;
  const Tensor &keys, &written;
  const OptionalTensor& strengths;
  const Tensor* ancestors;  // null if there are none
  const Tensor& rows;
  const OptionalTensor &W, &z;
  int64_t count, d_dot;
  bool normalize_output;
  Rule rule;
  Map map;
  int64_t room, stored, heads, d_value, reading;  // reading: the number of rows that read
  Width width;

  Block(const char* op, const Tensor& keys, const Tensor& written, const OptionalTensor& strengths,
        const Tensor* ancestors, const Tensor& rows, const OptionalTensor& W, const OptionalTensor& z, int64_t count,
        const std::string& rule_name, const std::string& feature_map, int64_t d_dot, bool normalize_output)
      : op(op), keys(keys), written(written), strengths(strengths), ancestors(ancestors), rows(rows), W(W), z(z),
        count(count), d_dot(d_dot), normalize_output(normalize_output), rule(rule_of(op, rule_name)),
        map(map_of(op, feature_map)) {
    check_rank(op, "keys", keys, 4);
    check_rank(op, "written", written, 4);
    check_rank(op, "rows", rows, 1);
    if (ancestors) check_rank(op, "ancestors", *ancestors, 2);
    if (W) check_rank(op, "W", *W, 4);
    room = keys.size(0), stored = keys.size(1), heads = keys.size(2), d_value = written.size(3);
    reading = ancestors ? ancestors->size(0) : rows.size(0);
    TORCH_CHECK_VALUE(d_value > 0, op, ": written is of width 0, expected 1 or more");
  }

  // Fills in a call for keys of width d_key that appends `writing` positions to the block.
  template <class C> void describe(Fields& f, C& c, int64_t d_key, int64_t writing) {
    width = checked_width(op, map, d_key, d_dot);
    TORCH_CHECK_VALUE(count >= 0 && count <= room - writing, op, ": the block has room for ", room,
                      " positions, got count = ", count, " and ", writing, " to write");
    TORCH_CHECK_VALUE(decays(rule) == strengths.has_value(), op, ": strengths are ", strengths ? "given" : "missing",
                      " for the rule ", name_of(rule));
    TORCH_CHECK_VALUE((W && normalize_output) == z.has_value(), op, ": z is ", z ? "given" : "missing",
                      ", expected it exactly where W is given and the output is normalised");
    const at::ScalarType states = state_type(keys);
    f.held("keys", keys, c.keys, {room, stored, heads, width.d_cached}, keys.scalar_type());
    f.held("written", written, c.written, {room, stored, heads, d_value}, written.scalar_type());
    if (strengths) f.held("strengths", *strengths, c.strengths, {room, stored, heads}, states);
    f.held("rows", rows, c.state_rows, {W ? reading : rows.size(0)}, at::kInt);
    if (ancestors) f.held("ancestors", *ancestors, c.ancestors, {reading, room}, at::kInt);
    if (W) f.held("W", *W, c.W, {W->size(0), heads, d_dot, d_value}, states);
    if (z) f.held("z", *z, c.z, {W->size(0), heads, d_dot}, states);
    if (writing > 0) check_apart();
    c.rule = rule;
    c.map = map;
    set(c.nu, width.nu);
    set(c.m, width.m);
    c.normalize_output = normalize_output;
    set(c.rows, reading);
    set(c.heads, heads);
    set(c.stored, stored);
    set(c.count, count);
    set(c.d_key, d_key);
    set(c.d_value, d_value);
    set(c.d_dot, d_dot);
    set(c.d_cached, width.d_cached);
    set(c.ancestors_ld, ancestors ? room : 0);
  }

 private:
  // Checks that the tensors of the cache do not share memory. Otherwise, writing to one of them could change an index
  // table that has been checked already, and make it refer to rows that do not exist.
  void check_apart() const {
    const auto of = [](const OptionalTensor& x) { return x ? &*x : nullptr; };
    const std::pair<const char*, const Tensor*> all[] = {
        {"keys", &keys}, {"written", &written}, {"strengths", of(strengths)}, {"ancestors", ancestors}, {"rows", &rows},
        {"W", of(W)},    {"z", of(z)}};
    constexpr int written_ones = 4, count = 7;  // the tensors that decode writes to come first
    for (int i = 0; i < written_ones; ++i)
      for (int j = i + 1; j < count; ++j)
        if (all[i].second && all[j].second)
          TORCH_CHECK_VALUE(!share_memory(*all[i].second, *all[j].second), op, ": ", all[i].first, " and ",
                            all[j].first, " share memory, expected tensors of their own");
  }
};

template <class Device>
Tensor decode(const Tensor& q, const OptionalTensor& k, const OptionalTensor& v, const OptionalTensor& beta,
              const OptionalTensor& alpha, const OptionalTensor& key_padding_mask, const Tensor& keys,
              const Tensor& written, const OptionalTensor& strengths, const OptionalTensor& ancestors,
              const Tensor& rows, const OptionalTensor& W, const OptionalTensor& z, const OptionalTensor& projection,
              int64_t count, std::string rule, std::string feature_map, int64_t d_dot, bool normalize_features,
              bool normalize_output, double eps) {
  static constexpr char op[] = "fwp::decode";
  check_rank(op, "q", q, 4);
  const bool writes = k.has_value();
  Block block(op, keys, written, strengths, ancestors ? &*ancestors : nullptr, rows, W, z, count, rule, feature_map,
              d_dot, normalize_output);
  TORCH_CHECK_VALUE(
      writes == v.has_value() && (writes && takes_beta(block.rule)) == beta.has_value() &&
          (writes && takes_alpha(block.rule)) == alpha.has_value(),
      op, ": expected both k and v or neither, and with them the gates of the rule, beta or alpha, and no others");
  const int64_t R = q.size(0), T = q.size(1), H = block.heads, d_key = q.size(3);
  Tensor out;
  Device::decode(block, writes, q, [&](Fields& f, auto& c) {
    f.rows("q", q, c.q, {block.reading, T, H, d_key});
    block.describe(f, c, d_key, writes ? T : 0);
    check_is(op, "keys", keys, q.scalar_type());
    set(c.tokens, T);
    set(c.input_scale, input_scale(d_key));
    c.normalize_features = normalize_features;
    set(c.eps, eps);
    fwp::projection(f, projection, c.projection, block.map, {d_key, block.width.m}, block.width.m > 0);
    if (writes) {
      TORCH_CHECK_VALUE(ancestors, op, ": ancestors are missing, and positions are to be written");
      TORCH_CHECK_VALUE(R <= block.stored, op, ": ", R, " rows are to be written, storage of keys has ", block.stored);
      f.rows("k", *k, c.k, {R, T, H, d_key});
      f.rows("v", *v, c.v, {R, T, H, block.d_value}, written.scalar_type());
      if (beta) f.gate("beta", *beta, c.beta, {R, T, H});
      if (alpha) f.gate("alpha", *alpha, c.alpha, {R, T, H});
      f.mask(key_padding_mask, c.key_padding_mask, {R, T});
    }
    out = f.new_rows(c.out, q, block.d_value, written.scalar_type());
  });
  return out;
}

template <class Device>
std::tuple<Tensor, Tensor> fold(const Tensor& keys, const Tensor& written, const OptionalTensor& strengths,
                                const Tensor& ancestors, const Tensor& rows, const OptionalTensor& W,
                                const OptionalTensor& z, int64_t count, std::string rule, std::string feature_map,
                                int64_t d_dot, bool normalize_output) {
  static constexpr char op[] = "fwp::fold";
  check_given(op, "ancestors", ancestors);
  Block block(op, keys, written, strengths, &ancestors, rows, W, z, count, rule, feature_map, d_dot, normalize_output);
  Tensor new_W, new_z;
  Device::fold(block, keys, [&](Fields& f, auto& c) {
    block.describe(f, c, keys.size(3), 0);
    new_W = f.new_whole(c.new_W, {block.reading, block.heads, d_dot, block.d_value});
    new_z = normalize_output ? f.new_whole(c.new_z, {block.reading, block.heads, d_dot})
                             : at::empty({0}, keys.options().dtype(state_type(keys)));
  });
  return {new_W, new_z};
}

}  // namespace fwp
