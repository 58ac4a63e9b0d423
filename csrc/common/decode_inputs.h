// The inputs of the decoding operators, checked, for the glue of every device. Their meaning: fwp_fairseq/ops/decoding.py.
#pragma once

#include "inputs.h"

namespace fwp {

// What decode and fold share.
struct Block {
  const char* op;
  Tensor keys, written;
  OptionalTensor strengths, ancestors;
  Tensor rows;
  OptionalTensor W, z;
  int64_t count;
  std::string rule_name, feature_map;
  int64_t d_dot;
  bool normalize_output;
  Rule rule{};
  Map map{};
  Width width{};

  int64_t room() const { return keys.size(0); }
  int64_t stored() const { return keys.size(1); }
  int64_t heads() const { return keys.size(2); }
  int64_t d_cached() const { return keys.size(3); }
  int64_t d_value() const { return written.size(3); }
  int64_t reading() const { return ancestors ? ancestors->size(0) : rows.size(0); }

  // Checks a tensor that is read and written in place.
  void check_held(const char* name, const Tensor& x, at::ScalarType type) const {
    TORCH_CHECK_VALUE(x.scalar_type() == type, op, ": ", name, " is of type ", x.scalar_type(),
                      ", expected a contiguous ", type);
    TORCH_CHECK_VALUE(x.is_contiguous(), op, ": ", name, " is not contiguous");
    check_device(op, name, x, keys);
  }

  // Checks the block, whose keys have four dimensions, for keys of width d_key and for `writing` positions that are to
  // be appended to it.
  void check(int64_t d_key, int64_t writing) {
    rule = rule_of(op, rule_name);
    map = map_of(op, feature_map);
    width = checked_width(op, map, d_key, d_dot);
    check_rank(op, "written", written, 4);
    check_shape(op, "keys", keys, {room(), stored(), heads(), width.d_cached});
    check_shape(op, "written", written, {room(), stored(), heads(), d_value()});
    check_held("keys", keys, keys.scalar_type());
    check_held("written", written, keys.scalar_type());
    TORCH_CHECK_VALUE(count >= 0 && count <= room() - writing, op, ": the block has room for ", room(),
                      " positions, got count = ", count, " and ", writing, " to write");
    TORCH_CHECK_VALUE(decays(rule) == strengths.has_value(), op, ": strengths are ",
                      strengths ? "given" : "missing", " for the rule ", name_of(rule));
    if (strengths) {
      check_shape(op, "strengths", *strengths, {room(), stored(), heads()});
      check_held("strengths", *strengths, state_type(keys));
    }
    check_rank(op, "rows", rows, 1);
    check_held("rows", rows, at::kInt);
    if (W) check_rank(op, "W", *W, 4);
    if (ancestors) {
      check_rank(op, "ancestors", *ancestors, 2);
      check_shape(op, "ancestors", *ancestors, {reading(), room()});
      check_held("ancestors", *ancestors, at::kInt);
    }
    if (W) check_shape(op, "rows", rows, {reading()});
    check_states(op, "W", "z", W, z, {W ? W->size(0) : 0, heads(), d_dot, d_value()}, normalize_output, keys);
    if (W) check_held("W", *W, state_type(keys));
    if (z) check_held("z", *z, state_type(keys));
    TORCH_CHECK_VALUE(d_value() > 0, op, ": written is of width 0, expected 1 or more");
    if (writing > 0) check_apart();
  }

  // Checks that nothing written shares memory with anything else: writing could make a table name rows that are not
  // there, after it was checked.
  void check_apart() const {
    const std::array<std::pair<const char*, const Tensor*>, 7> all = {
        {{"keys", &keys}, {"written", &written}, {"strengths", strengths ? &*strengths : nullptr},
         {"ancestors", ancestors ? &*ancestors : nullptr}, {"rows", &rows}, {"W", W ? &*W : nullptr},
         {"z", z ? &*z : nullptr}}};
    for (std::size_t i = 0; i < 4; ++i)  // those that are written come first
      for (std::size_t j = i + 1; j < all.size(); ++j)
        if (all[i].second && all[j].second)
          TORCH_CHECK_VALUE(!share_memory(*all[i].second, *all[j].second), op, ": ", all[i].first, " and ", all[j].first,
                            " share memory, expected tensors of their own");
  }

  // Fills in a device's DecodeCall.
  template <class C> void describe(C& c, int64_t d_key) const {
    const auto set = [](auto& to, auto x) { to = static_cast<std::remove_reference_t<decltype(to)>>(x); };
    c.rule = rule;
    c.map = map;
    set(c.nu, width.nu);
    set(c.m, width.m);
    c.normalize_output = normalize_output;
    set(c.rows, reading());
    set(c.heads, heads());
    set(c.stored, stored());
    set(c.count, count);
    set(c.d_key, d_key);
    set(c.d_value, d_value());
    set(c.d_dot, d_dot);
    set(c.d_cached, d_cached());
    point_held(c.keys, keys);
    point_held(c.written, written);
    point_held(c.strengths, strengths);
    if (ancestors) {
      point_held(c.ancestors, ancestors);
      set(c.ancestors_ld, room());
    }
    point(c.state_rows, rows);
    point(c.W, W);
    point(c.z, z);
  }
  // Only decode writes, and into tensors that its schema says are written.
  template <class V> static void point_held(V*& to, const OptionalTensor& x) {
    if (x) to = static_cast<V*>(const_cast<void*>(x->const_data_ptr()));
  }
};

// What a step adds to a block: queries, and what is to be written, if anything.
struct Step {
  Tensor q;
  OptionalTensor k, v, beta, alpha, key_padding_mask, projection;
  double input_scale;
  bool normalize_features;
  double eps;

  Step(const Block& block, const Tensor& given_q, const OptionalTensor& given_k, const OptionalTensor& given_v,
       const OptionalTensor& beta, const OptionalTensor& alpha, const OptionalTensor& key_padding_mask,
       const OptionalTensor& projection, double input_scale, bool normalize_features, double eps)
      : q(given_q), beta(beta), alpha(alpha), key_padding_mask(key_padding_mask),
        projection(projection), input_scale(input_scale), normalize_features(normalize_features), eps(eps) {
    const char* op = block.op;
    const int64_t R = q.size(0), T = q.size(1), H = block.heads(), d_key = q.size(3);
    check_like(op, "q", q, block.keys);
    check_shape(op, "q", q, {block.reading(), T, H, d_key});
    check_projection(op, projection, block.map, {d_key, block.width.m}, block.width.m > 0, q);
    if (projection) block.check_held("projection", *projection, state_type(q));
    q = with_contiguous_rows(q);  // what is copied has passed
    TORCH_CHECK_VALUE(given_k.has_value() == given_v.has_value() &&
                          (given_k && block.rule != Rule::sum) == beta.has_value() &&
                          (given_k && block.rule == Rule::gated_delta) == alpha.has_value(),
                      op, ": expected k and v together, and with them beta, but for sum, and alpha for gated_delta");
    if (!given_k) return;
    TORCH_CHECK_VALUE(block.ancestors, op, ": ancestors are missing, and positions are to be written");
    TORCH_CHECK_VALUE(R <= block.stored(), op, ": ", R, " rows are to be written, storage has ", block.stored());
    check_shape(op, "k", *given_k, q.sizes());
    check_shape(op, "v", *given_v, {R, T, H, block.d_value()});
    check_like(op, "k", *given_k, q);
    check_like(op, "v", *given_v, q);
    k = with_contiguous_rows(*given_k);
    v = with_contiguous_rows(*given_v);
    check_strength(op, "beta", beta, beta.has_value(), block.rule, {R, T, H}, q);
    check_strength(op, "alpha", alpha, alpha.has_value(), block.rule, {R, T, H}, q);
    if (key_padding_mask) check_mask(op, "key_padding_mask", *key_padding_mask, {R, T}, q);
  }

  // Fills in a device's DecodeCall, which the block has filled in before.
  template <class C> void describe(C& c) const {
    c.tokens = static_cast<decltype(c.tokens)>(q.size(1));
    c.input_scale = static_cast<decltype(c.input_scale)>(input_scale);
    c.normalize_features = normalize_features;
    c.eps = static_cast<decltype(c.eps)>(eps);
    point(c.projection, projection);
    point(c.q, q);
    if (!k) return;
    point(c.k, k);
    point(c.v, v);
    point(c.beta, beta);
    point(c.alpha, alpha);
    point(c.key_padding_mask, key_padding_mask);
  }
};

}  // namespace fwp
